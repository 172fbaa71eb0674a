//! Why a call was not sent.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tidegate::Limited;

use super::Hint;

/// A call that was not sent. The layer's errors are boxed, as is usual in tower; this is inside.
///
/// ```
/// # use std::error::Error;
/// use tidegate_tower::client::NotSent;
/// # fn look(error: Box<dyn Error + Send + Sync>) {
/// match error.downcast_ref::<NotSent>() {
///     Some(not_sent) => println!("try again in {:?}", not_sent.retry_after()),
///     None => println!("sent, and failed: {error}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum NotSent {
    /// The far side asked to be left alone for longer than the call may wait.
    Held {
        /// Whom the call was for.
        key: String,
        /// When there is a chance again.
        retry_after: Duration,
        /// What asked for it; `None` if the far side refused and did not say for how long.
        hint: Option<Hint>,
    },
    /// Our own limit let no call pass in time, or could not be asked.
    Limited {
        /// Whom the call was for.
        key: String,
        /// What the limiter said.
        limited: Limited,
    },
}

impl NotSent {
    /// Whom the call was for.
    pub fn key(&self) -> &str {
        match self {
            Self::Held { key, .. } | Self::Limited { key, .. } => key,
        }
    }

    /// When there is a chance again; `None` if that is not known, or never.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Held { retry_after, .. } => Some(*retry_after),
            Self::Limited { limited: Limited::Denied(decision), .. } => {
                decision.retry_after().span().map(Duration::from)
            }
            Self::Limited { limited: Limited::NoAnswer(_), .. } => None,
        }
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { key, retry_after, hint } => {
                write!(f, "not sent to {key:?}: the far side is left alone for {retry_after:?}, ")?;
                match hint {
                    Some(hint) => write!(f, "as its {hint} asked")?,
                    None => f.write_str("since it refused the last calls")?,
                }
                f.write_str("; call again then, or allow a longer wait")
            }
            Self::Limited { key, limited } => {
                write!(f, "not sent to {key:?} by our own limit: {limited}")
            }
        }
    }
}

impl Error for NotSent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Held { .. } => None,
            // It is spoken of already, so what comes next is its cause.
            Self::Limited { limited, .. } => limited.source(),
        }
    }
}
