//! How clients come in, and how long they may take.
//!
//! # Layout
//!
//! - [`accept`]: the loop that lets them in. [`room`]: how many at once. [`descriptors`]: how many the system has room
//!   for. [`exposed`]: who could come in from where.
//! - [`tls`]: certificates, read again when they change. [`stream`]: a client, with TLS or without.
//! - [`panics`]: our own mistakes are answered, and deny. [`seldom`]: log lines that strangers could fill a disk with.

pub mod accept;
pub mod descriptors;
pub mod exposed;
pub mod panics;
pub mod room;
pub mod seldom;
pub mod stream;
pub mod tls;

use std::time::Duration;

/// How the doors are guarded, besides by tokens.
#[derive(Clone, Debug)]
pub struct Options {
    /// The certificates; those of the policy if not given.
    pub tls: Option<tls::Files>,
    /// The most clients at once, over all doors.
    pub max_connections: usize,
    /// How long clients may take.
    pub deadlines: Deadlines,
}

impl Options {
    /// The most clients at once, unless told otherwise.
    pub const MAX_CONNECTIONS: usize = 10_000;
}

impl Default for Options {
    fn default() -> Self {
        let deadlines = Deadlines::default();
        Self { tls: None, max_connections: Self::MAX_CONNECTIONS, deadlines }
    }
}

/// How long clients may take. Whoever takes longer is cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadlines {
    /// To agree on TLS.
    pub handshake: Duration,
    /// To send the head of a request over HTTP, or a message over gRPC; to finish a command of the Redis protocol, to
    /// send the first one there, and to say who they are.
    pub request: Duration,
    /// To take what they are answered.
    pub answer: Duration,
    /// To ask again over HTTP, on a connection that is kept. Longer than proxies keep theirs, so that it is they who
    /// end it: nginx and AWS's after 60 s, Traefik after 90 s, Caddy after 2 min.
    pub idle: Duration,
    /// The same over the Redis protocol. Nothing, as in Redis: its clients expect to find a connection as they left
    /// it. Those whose machine is gone are found by TCP itself.
    pub resp_idle: Option<Duration>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            request: Duration::from_secs(10),
            answer: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            resp_idle: None,
        }
    }
}
