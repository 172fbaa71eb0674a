//! How many requests wait for permits at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::observe::metrics::{Metrics, WaitCap};

/// Most requests that wait for permits at the same time. A request beyond them does not wait: it
/// passes or is denied at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitLimits {
    /// For one key, or one list of rules and keys; at least 1.
    pub per_key: usize,
    /// On one connection, over all keys.
    pub per_connection: usize,
    /// In the server, over all connections.
    pub total: usize,
}

impl WaitLimits {
    /// Default of `per_key`.
    pub const PER_KEY: usize = 64;
    /// Default of `per_connection`.
    pub const PER_CONNECTION: usize = 256;
    /// Default of `total`.
    pub const TOTAL: usize = 4_096;
}

impl Default for WaitLimits {
    fn default() -> Self {
        let (per_key, per_connection) = (Self::PER_KEY, Self::PER_CONNECTION);
        Self { per_key, per_connection, total: Self::TOTAL }
    }
}

/// The requests that wait: of one connection, as an extension of its requests, or of the server.
#[derive(Clone, Default, Debug)]
pub(crate) struct WaitCount(Arc<AtomicUsize>);

/// Counts a request as waiting until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitPermit([WaitCount; 2]);

impl WaitPermit {
    /// A permit, counted in those of the connection and of the server. `None`, and counted as
    /// refused, if too many requests wait.
    pub(super) fn new(
        limits: WaitLimits,
        counts: [&WaitCount; 2],
        metrics: &Metrics,
    ) -> Option<Self> {
        // Counted first, and uncounted by the drop of a permit that is refused.
        let before = counts.map(|count| count.0.fetch_add(1, Ordering::Relaxed));
        let permit = Self(counts.map(WaitCount::clone));
        let [on_connection, in_total] = before;
        let refused = match (on_connection < limits.per_connection, in_total < limits.total) {
            (true, true) => return Some(permit),
            (false, _) => WaitCap::Connection,
            (true, false) => WaitCap::Total,
        };
        metrics.count_refused_wait(refused);
        None
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        for WaitCount(count) in &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caps_hold_per_connection_and_in_total_and_permits_are_given_back() {
        let limits = WaitLimits { per_key: 1, per_connection: 2, total: 3 };
        let metrics = Metrics::default();
        let [one, other, total] = [(); 3].map(|()| WaitCount::default());
        let wait = |connection| WaitPermit::new(limits, [connection, &total], &metrics);
        let held = [&one, &one, &one, &other, &other].map(wait);
        assert_eq!(held.each_ref().map(Option::is_some), [true, true, false, true, false]);
        let counted = || [&one, &other, &total].map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(counted(), [2, 1, 3]);
        drop(held);
        assert_eq!(counted(), [0, 0, 0]);
        assert!(wait(&other).is_some());
    }
}
