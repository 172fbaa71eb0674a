//! Why a call was not sent.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tidegate::{Limited, Micros};

use super::Hint;

/// A call that was not sent. The errors of the layer are boxed, as is usual in tower; downcast
/// them.
///
/// ```
/// # use std::error::Error;
/// use tidegate_tower::client::NotSent;
/// # fn report(error: Box<dyn Error + Send + Sync>) {
/// match error.downcast_ref::<NotSent>() {
///     Some(not_sent) => println!("retry in {:?}", not_sent.retry_after()),
///     None => println!("sent, and failed: {error}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum NotSent {
    /// The upstream is paused for longer than the call may wait.
    Paused {
        /// The key of the call.
        key: String,
        /// Time until a call can be sent.
        retry_after: Duration,
        /// The header that caused the pause; `None` after rejections without a hint.
        hint: Option<Hint>,
    },
    /// The local limit allowed no call in time, or its engine failed.
    Limited {
        /// The key of the call.
        key: String,
        /// The error of the limiter.
        limited: Limited,
    },
}

impl NotSent {
    /// The key of the call.
    pub fn key(&self) -> &str {
        match self {
            Self::Paused { key, .. } | Self::Limited { key, .. } => key,
        }
    }

    /// Time until a call can be sent; `None` if that is unknown or never.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Paused { retry_after, .. } => Some(*retry_after),
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
            Self::Paused { key, retry_after, hint } => {
                let span = Micros::from(*retry_after);
                write!(f, "not sent to {key:?}: paused for {span} ")?;
                match hint {
                    Some(hint) => write!(f, "by its {hint}")?,
                    None => f.write_str("after rejected calls")?,
                }
                f.write_str("; retry later, or raise the wait")
            }
            Self::Limited { key, limited } => {
                write!(f, "not sent to {key:?}: local limit: {limited}")
            }
        }
    }
}

impl Error for NotSent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Paused { .. } => None,
            // `Display` includes `limited`, so the source is the next error in its chain.
            Self::Limited { limited, .. } => limited.source(),
        }
    }
}
