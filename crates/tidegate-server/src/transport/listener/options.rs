//! Options of the listeners.

use super::timeouts::Timeouts;
use crate::check::WaitLimits;
use crate::tls::TlsSources;

/// TLS, connection limit, waiting requests and timeouts of all listeners.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Certificate files.
    pub tls: TlsSources,
    /// Most open connections, over all listeners.
    pub max_connections: usize,
    /// Most requests that wait for permits.
    pub waits: WaitLimits,
    /// When slow and idle connections are closed.
    pub deadlines: Timeouts,
}

impl ListenerOptions {
    /// Default of `max_connections`.
    pub const MAX_CONNECTIONS: usize = 10_000;
}

impl Default for ListenerOptions {
    fn default() -> Self {
        let (deadlines, waits) = (Timeouts::default(), WaitLimits::default());
        Self {
            tls: TlsSources::default(),
            max_connections: Self::MAX_CONNECTIONS,
            waits,
            deadlines,
        }
    }
}
