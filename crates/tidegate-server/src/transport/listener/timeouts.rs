//! Timeouts of connections. Each is enforced in another file:
//!
//! | what may not take longer | file |
//! |---|---|
//! | TLS handshake | `listener/accept` |
//! | first head of an HTTP/1.1 connection, preface of HTTP/2 | `listener/http_connection` |
//! | head of a later HTTP/1.1 request | `listener/timed_stream` |
//! | body of an HTTP request | `http/read_body`: 5 s, not part of these settings |
//! | body of a gRPC request | `listener/body_deadline` |
//! | reading a response; time between two HTTP requests | `listener/connection_monitor` |
//! | commands, replies and idle time over RESP | `resp/connection` |

use std::time::Duration;

/// Time that clients have. A connection that takes longer is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// HTTP: for the head of a request. gRPC: for a message. RESP: for a whole command, for the
    /// first command, and for authentication.
    pub request: Duration,
    /// For reading a response or reply.
    pub response: Duration,
    /// HTTP: between two requests of a connection. Longer than the idle timeouts of proxies, so
    /// that the proxy closes first: nginx and AWS after 60 s, Traefik after 90 s, Caddy after
    /// 2 min.
    pub idle: Duration,
    /// RESP: between two commands. None by default, as in Redis: clients keep connections in
    /// pools. TCP keepalive detects clients whose machine is gone.
    pub resp_idle: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            request: Duration::from_secs(10),
            response: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            resp_idle: None,
        }
    }
}
