//! What a limit says about one request.

use core::fmt;

use crate::Micros;

/// How long until something fits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wait {
    /// After this span, exact on the limit's tick; zero means now.
    For(Micros),
    /// However long one waits: the cost is larger than the limit.
    Never,
}

impl Wait {
    /// It fits now.
    pub const NONE: Self = Self::For(Micros::ZERO);

    /// The span to wait, unless it is for ever.
    pub const fn span(self) -> Option<Micros> {
        match self {
            Self::For(span) => Some(span),
            Self::Never => None,
        }
    }
}

/// As a duration, like `250ms` or `1.5s`, or `never`.
impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(span) => write!(f, "{:?}", core::time::Duration::from(*span)),
            Self::Never => f.write_str("never"),
        }
    }
}

/// What became of the request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It may pass.
    Allow,
    /// It may not pass now, but after this span, if nobody else comes first.
    RetryAfter(Micros),
    /// It can never pass: it costs more than the whole limit.
    Never,
}

/// One limit's answer to one request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Verdict {
    /// May it pass? A peek (cost 0) may, unless the limit is in debt.
    pub allowed: bool,
    /// When the cost would fit, or a cost of 1 for a peek; [`Wait::NONE`] if it does now.
    pub retry_after: Wait,
    /// How long an allowed request must wait for the turn it was given; only a queue sets it.
    pub delay: Micros,
    /// The most that fits at once.
    pub limit: u64,
    /// What is left, rounded down.
    pub remaining: u64,
    /// Until the state equals that of an unused key.
    pub reset_after: Micros,
}

impl Verdict {
    /// The verdict in one word.
    pub const fn outcome(&self) -> Outcome {
        match (self.allowed, self.retry_after) {
            (true, _) => Outcome::Allow,
            (false, Wait::For(span)) => Outcome::RetryAfter(span),
            (false, Wait::Never) => Outcome::Never,
        }
    }
}
