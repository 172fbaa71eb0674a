//! The verdict of one limit about one request.

use core::fmt;
use core::time::Duration;

use crate::Micros;

/// How long until a cost fits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wait {
    /// After this span, exact on the limit's tick; zero means now.
    For(Micros),
    /// At no time: the cost is larger than the limit.
    Never,
}

impl Wait {
    /// It fits now.
    pub const NONE: Self = Self::For(Micros::ZERO);

    /// The span to wait, unless it is never.
    pub const fn span(self) -> Option<Micros> {
        match self {
            Self::For(span) => Some(span),
            Self::Never => None,
        }
    }

    /// The time to sleep before a retry; `None` if no retry can succeed.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tidegate_core::{Micros, Wait};
    ///
    /// let wait = Wait::For(Micros::new(1_500_000));
    /// assert_eq!(wait.duration(), Some(Duration::from_millis(1_500)));
    /// assert_eq!(Wait::Never.duration(), None);
    /// ```
    pub fn duration(self) -> Option<Duration> {
        self.span().map(Duration::from)
    }
}

/// As [`Micros`] is displayed, or `never`.
impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(span) => span.fmt(f),
            Self::Never => f.write_str("never"),
        }
    }
}

/// The outcome of a request.
///
/// ```
/// use tidegate_core::{Micros, Outcome};
/// fn status(outcome: Outcome) -> (u16, Option<u64>) {
///     match outcome {
///         Outcome::Allow => (200, None),
///         // `Retry-After` in whole seconds, rounded up.
///         Outcome::RetryAfter(wait) => (429, Some(wait.get().div_ceil(1_000_000))),
///         Outcome::Never => (413, None),
///     }
/// }
/// assert_eq!(status(Outcome::RetryAfter(Micros::new(1_200_000))), (429, Some(2)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It is allowed.
    Allow,
    /// It is denied now, and allowed after this span if no other request is charged first.
    RetryAfter(Micros),
    /// It is never allowed: it costs more than the whole limit.
    Never,
}

/// The verdict of one limit about one request.
///
/// ```
/// use tidegate_core::{Cost, Holds, Limit, Micros, Moment, Outcome, Wait};
///
/// let limit: Limit = "5/m".parse()?;
/// let now = Moment::new(Micros::from_secs(1_700_000_000));
/// let verdict = limit.look(None, Holds::NONE, &now, Cost::ONE);
/// assert!(verdict.allowed);
/// assert_eq!((verdict.limit, verdict.retry_after), (5, Wait::NONE));
///
/// let too_much = limit.look(None, Holds::NONE, &now, Cost::new(6)?);
/// assert_eq!(too_much.outcome(), Outcome::Never);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Verdict {
    /// Is it allowed? A peek (cost 0) is, unless the limit is in debt.
    pub allowed: bool,
    /// When the cost would fit, or a cost of 1 for a peek; [`Wait::NONE`] if it does now.
    pub retry_after: Wait,
    /// How long an allowed request is delayed; only a queue sets it.
    pub delay: Micros,
    /// The capacity of the limit.
    pub limit: u64,
    /// What is left, rounded down.
    pub remaining: u64,
    /// Time until the limit is fully recovered.
    pub reset_after: Micros,
}

impl Verdict {
    /// The verdict as one value.
    pub const fn outcome(&self) -> Outcome {
        match (self.allowed, self.retry_after) {
            (true, _) => Outcome::Allow,
            (false, Wait::For(span)) => Outcome::RetryAfter(span),
            (false, Wait::Never) => Outcome::Never,
        }
    }
}
