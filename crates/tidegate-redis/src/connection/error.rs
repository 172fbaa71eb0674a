//! Why a call failed, and why there is no connection.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use redis::RedisError;

use crate::connection::server_error;

/// Why a call has no reply, or an error as its reply.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    /// Nothing was sent, so nothing was executed.
    NotSent(Arc<ConnectFailure>),
    /// The call was sent and has no reply in time: it may have executed, or may execute later.
    TimedOut,
    /// The connection was lost after the call was sent: it may have executed.
    ConnectionLost(Arc<ConnectFailure>),
    /// The server replied with an error.
    ServerError(Arc<RedisError>),
}

impl CallError {
    /// Nothing was sent, for this reason.
    pub(crate) fn not_sent(why: &str) -> Self {
        Self::NotSent(ConnectFailure(why.to_owned()).into())
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(failure) => write!(f, "nothing was sent: {failure}"),
            Self::TimedOut => f.write_str(
                "no reply from redis before the deadline; the call may have executed. \
                 See SLOWLOG, or raise the deadline",
            ),
            Self::ConnectionLost(failure) => {
                write!(f, "connection lost; the call may have executed: {failure}")
            }
            Self::ServerError(error) => {
                match (error.code(), error.detail()) {
                    (Some(word), Some(text)) => {
                        write!(f, "redis error: {word} {}", text.trim_end_matches('.'))?;
                    }
                    _ => write!(f, "redis error: {error}")?,
                }
                server_error::remedy(error).map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
            }
        }
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotSent(failure) | Self::ConnectionLost(failure) => Some(&**failure),
            Self::ServerError(error) => Some(&**error),
            Self::TimedOut => None,
        }
    }
}

/// Why there is no connection. Names the server, and contains no secret.
#[derive(Debug)]
pub(crate) struct ConnectFailure(pub(crate) String);

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ConnectFailure {}

/// An error with a fixed text.
#[derive(Debug)]
pub(crate) struct StaticError(pub(crate) &'static str);

impl fmt::Display for StaticError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for StaticError {}
