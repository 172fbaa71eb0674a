//! Why run-time rules and overrides are not changed, and their bounds.

use std::error::Error;
use std::fmt;

use tidegate::{EngineError, InvalidRule};
use tidegate_config::Problems;

/// Why nothing was changed.
#[derive(Debug)]
pub enum RuleChangeError {
    /// The rule or the override does not load.
    Faulty(Problems),
    /// The rule conflicts with others.
    Invalid(InvalidRule),
    Exists,
    /// It has another stamp.
    Modified,
    /// No rule has this name.
    Unknown,
    /// The key has no run-time override.
    UnknownOverride,
    /// The rule is defined in the policy file.
    FromFile,
    /// The end of the override has passed.
    Ended,
    /// There are [`Self::MAX_RUNTIME_RULES`] run-time rules.
    TooMany,
    /// There are [`Self::MAX_OVERRIDES`] overrides.
    TooManyOverrides,
    /// Its size in bytes is above [`Self::MAX_FIELD_BYTES`].
    TooLarge(usize),
    /// All together would be above [`Self::MAX_RUNTIME_BYTES`].
    Full,
    /// Other servers made changes at the same time, too often.
    Contended,
    /// The store did not reply.
    Store(EngineError),
}

impl RuleChangeError {
    /// The maximum number of run-time rules.
    pub const MAX_RUNTIME_RULES: usize = 1_000;
    /// The maximum number of run-time overrides.
    pub const MAX_OVERRIDES: usize = 10_000;
    /// The maximum size of one of them in the store, with its name.
    pub const MAX_FIELD_BYTES: usize = 16 << 10;
    /// The maximum size of all of them.
    pub const MAX_RUNTIME_BYTES: usize = 4 << 20;
}

impl fmt::Display for RuleChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faulty(problems) => problems.fmt(f),
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::Exists => f.write_str("it exists already"),
            Self::Modified => f.write_str("the stamp in If-Match is not the current one"),
            Self::Unknown => f.write_str("no such rule"),
            Self::UnknownOverride => f.write_str("the key has no run-time override"),
            Self::FromFile => {
                f.write_str("the rule is defined in the policy file; change it there")
            }
            Self::Ended => f.write_str("the end has passed; use a later one"),
            Self::TooMany => {
                let max = Self::MAX_RUNTIME_RULES;
                write!(f, "too many run-time rules; at most {max}")
            }
            Self::TooManyOverrides => {
                write!(f, "too many run-time overrides; at most {}", Self::MAX_OVERRIDES)
            }
            Self::TooLarge(bytes) => {
                let max = Self::MAX_FIELD_BYTES;
                write!(f, "{bytes} bytes; a run-time rule or override has at most {max}")
            }
            Self::Full => write!(
                f,
                "run-time rules and overrides would have more than {} bytes, with those deleted \
                 or ended in the last 7 days",
                Self::MAX_RUNTIME_BYTES
            ),
            Self::Contended => {
                f.write_str("other servers make changes at the same time; nothing changed, retry")
            }
            Self::Store(EngineError::Ambiguous(cause)) => {
                write!(f, "no reply from the store; the change may have been made: {cause}")
            }
            Self::Store(EngineError::Unavailable(cause)) => {
                write!(f, "no reply from the store; nothing changed: {cause}")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl Error for RuleChangeError {}
