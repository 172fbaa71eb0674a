//! Why something that was done does not count.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidegate::EngineError;

use crate::link::LinkError;

/// It was done, but not enough replicas are known to have it.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    Few {
        got: i64,
        wanted: u32,
    },
    /// Nobody said how many there are.
    Late {
        wanted: u32,
    },
    /// The same, and not even the script has answered.
    Unheard {
        wanted: u32,
    },
    Refused {
        wanted: u32,
        why: LinkError,
    },
    Unreadable {
        wanted: u32,
    },
    /// What was found under an id was gone when it was to be confirmed.
    Gone,
}

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ADVICE: &str = "see the replicas in INFO replication, or allow more time";
        match self {
            Self::Few { got, wanted } => {
                write!(f, "redis has done it, but only {got} of {wanted} replicas confirmed it ")?;
                write!(f, "in time; {ADVICE}")
            }
            Self::Late { wanted } => {
                write!(f, "redis has done it, but fewer than {wanted} ")?;
                write!(f, "{} confirmed it before the deadline; {ADVICE}", replicas(*wanted))
            }
            Self::Unheard { wanted } => {
                write!(f, "redis may have done it, but it was not confirmed by {wanted} ")?;
                write!(f, "{} before the deadline; {ADVICE}", replicas(*wanted))
            }
            Self::Refused { wanted, why } => {
                write!(f, "redis has done it, but not said whether {wanted} ")?;
                write!(f, "{} have it ({why}); ", replicas(*wanted))?;
                f.write_str(match is_not_permitted(why) {
                    true => "give this user +wait",
                    false => ADVICE,
                })
            }
            Self::Unreadable { wanted } => {
                write!(f, "redis has done it, but answered to WAIT {wanted} what is no number; ")?;
                f.write_str("see whether that is a redis")
            }
            Self::Gone => f.write_str(
                "what was done under this id before is gone, perhaps with a primary; \
                 ask again under it",
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

fn is_not_permitted(why: &LinkError) -> bool {
    matches!(why, LinkError::Reply(error) if error.code() == Some("NOPERM"))
}
