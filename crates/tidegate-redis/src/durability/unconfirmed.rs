//! The error of a call that executed without enough replicas confirming it.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidegate::EngineError;

use crate::connection::error::CallError;

/// Executed, but not enough replicas are known to have the write.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    Few {
        got: i64,
        wanted: u32,
    },
    /// No reply to `WAIT` before the deadline.
    Late {
        wanted: u32,
    },
    /// No reply to the script before the deadline.
    NoReply {
        wanted: u32,
    },
    Refused {
        wanted: u32,
        why: CallError,
    },
    Unreadable {
        wanted: u32,
    },
    /// The stored result of an id no longer existed when it was to be confirmed.
    Gone,
}

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ADVICE: &str = "see INFO replication, or raise the deadline";
        match self {
            Self::Few { got, wanted } => {
                write!(f, "executed, but only {got} of {wanted} replicas confirmed in time; ")?;
                f.write_str(ADVICE)
            }
            Self::Late { wanted } => {
                write!(f, "executed, but fewer than {wanted} {} confirmed ", replicas(*wanted))?;
                write!(f, "before the deadline; {ADVICE}")
            }
            Self::NoReply { wanted } => {
                write!(f, "possibly executed, but not confirmed by {wanted} ")?;
                write!(f, "{} before the deadline; {ADVICE}", replicas(*wanted))
            }
            Self::Refused { wanted, why } => {
                write!(f, "executed, but redis did not report whether {wanted} ")?;
                write!(f, "{} have it ({why}); ", replicas(*wanted))?;
                f.write_str(match is_not_permitted(why) {
                    true => "give this user +wait",
                    false => ADVICE,
                })
            }
            Self::Unreadable { wanted } => {
                write!(f, "executed, but unexpected reply to WAIT {wanted}; ")?;
                f.write_str("check that the server is Redis")
            }
            Self::Gone => f.write_str(
                "the earlier result of this id was lost, probably in a failover; \
                 retry with the same id",
            ),
        }
    }
}

impl Error for Unconfirmed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused { why, .. } => Some(why),
            _ => None,
        }
    }
}

impl From<Unconfirmed> for EngineError {
    fn from(unconfirmed: Unconfirmed) -> Self {
        Self::Ambiguous(Arc::new(unconfirmed))
    }
}

fn replicas(count: u32) -> &'static str {
    if count == 1 { "replica" } else { "replicas" }
}

fn is_not_permitted(why: &CallError) -> bool {
    matches!(why, CallError::ServerError(error) if error.code() == Some("NOPERM"))
}
