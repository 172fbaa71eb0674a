//! Result of one benchmark request.

use std::borrow::Cow;
use std::fmt;

use crate::endpoint::ConnectError;

/// Result of a request that got a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BenchResponse {
    Allow,
    Deny,
    /// The target responded without a decision.
    Error(RequestError),
}

/// Why a request has no decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RequestError {
    /// Errors are counted by kind: `timeout`, `http 503`.
    pub(crate) kind: Cow<'static, str>,
    /// At most [`RequestError::MAX_CHARS`] characters.
    pub(crate) message: String,
}

impl RequestError {
    /// Bound for messages, since they come from the target.
    const MAX_CHARS: usize = 200;

    pub(crate) fn new(kind: impl Into<Cow<'static, str>>, message: impl fmt::Display) -> Self {
        let message = message.to_string().chars().take(Self::MAX_CHARS).collect();
        Self { kind: kind.into(), message }
    }

    /// The connection could not be opened.
    pub(crate) fn connect(message: impl fmt::Display) -> Self {
        Self::new("connect", message)
    }

    /// The connection was lost.
    pub(crate) fn closed(message: impl fmt::Display) -> Self {
        Self::new("closed", message)
    }

    /// The response does not follow the protocol.
    pub(crate) fn garbled(message: impl fmt::Display) -> Self {
        Self::new("garbled", message)
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl From<ConnectError> for RequestError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Tcp(error) => Self::connect(error),
            ConnectError::Tls(error) => Self::new("tls", error),
        }
    }
}
