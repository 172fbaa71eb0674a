//! Errors of an engine: why there is no decision.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tidegate_core::{Cost, InvalidCost};

use super::bounds::{self, MAX_ID_LEN};
use super::memory_use::MemoryKind;
use crate::Key;

/// Why there is no decision. A denial is a decision and never an error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// The store did not reply; nothing was charged.
    Unavailable(Arc<dyn Error + Send + Sync>),
    /// The store did not reply in time; the call may have been charged.
    Ambiguous(Arc<dyn Error + Send + Sync>),
    /// The call is invalid; nothing was charged.
    Refused(Refusal),
}

impl EngineError {
    /// The store did not reply because of `cause`; nothing was charged.
    pub fn unavailable(cause: impl Error + Send + Sync + 'static) -> Self {
        Self::Unavailable(Arc::new(cause))
    }

    /// Whether the error is about the call or the state under its keys: a refusal, which may
    /// precede any contact with the store, a [`ForeignState`], or a [`MemoryFull`]. Such errors do
    /// not count against the store.
    pub fn is_store_healthy(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Unavailable(cause) | Self::Ambiguous(cause) => {
                cause.is::<ForeignState>() || cause.is::<MemoryFull>()
            }
        }
    }

    /// The memory that was full, if that is why there is no decision.
    pub fn memory_full(&self) -> Option<MemoryFull> {
        match self {
            Self::Unavailable(cause) => cause.downcast_ref().copied(),
            Self::Ambiguous(_) | Self::Refused(_) => None,
        }
    }

    /// Why there is no decision, without what was charged.
    pub fn cause(&self) -> String {
        match self {
            Self::Unavailable(cause) | Self::Ambiguous(cause) => cause.to_string(),
            Self::Refused(refusal) => refusal.to_string(),
        }
    }

    /// The refusal, if this is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Unavailable(_) | Self::Ambiguous(_) => None,
        }
    }
}

/// The value under a key was written by another program or version; the store itself is healthy.
#[derive(Clone, Debug)]
pub struct ForeignState(pub Arc<dyn Error + Send + Sync>);

impl fmt::Display for ForeignState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state under this key was not written by this version of Tidegate: {}", self.0)
    }
}

impl Error for ForeignState {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// A memory engine has no room for the call. Calls that need no memory of this kind are decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryFull(pub MemoryKind);

impl fmt::Display for MemoryFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory is full ({}); retry later, or raise the memory cap", self.0.name())
    }
}

impl Error for MemoryFull {}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(cause) => write!(f, "no decision; not charged: {cause}"),
            Self::Ambiguous(cause) => write!(f, "no decision; may have been charged: {cause}"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl Error for EngineError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unavailable(cause) | Self::Ambiguous(cause) => Some(&**cause),
            Self::Refused(_) => None,
        }
    }
}

impl From<Refusal> for EngineError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Why a call is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// No charges, or too many; or any charges in a call about a hold.
    ChargeCount(usize),
    /// A key beyond [`Key::MAX_LEN`] or [`Key::MAX_PARTS`].
    KeyTooLong,
    /// The `Display` implementation of a key returned an error.
    KeyNotWritten,
    /// A cost that is too large.
    Cost(InvalidCost),
    /// A cost that is not a number of permits: negative, or beyond 64 bits.
    CostRange,
    /// An id that is empty or beyond [`IdempotencyKey::MAX_LEN`](crate::IdempotencyKey::MAX_LEN).
    IdLength(usize),
    /// The id was used for another request.
    IdReused,
    /// No such hold, or its record has expired.
    UnknownHold,
    /// The hold was settled with another cost.
    AlreadySettled,
    /// The hold has expired: what was released may be another caller's, and what was charged stays
    /// so.
    HoldExpired,
    /// A minimum without one total for all rules, or not from 1 to this total.
    MinCost,
    /// A hold of a queue cannot be extended.
    QueueExtended(Box<str>),
    /// One cost for a hold of this many rules, which were held at different costs.
    DifferentCosts(usize),
    /// A cost of a rule of which the hold has no permits.
    NotHeld(Box<str>),
    /// A cost of a rule that is held with several keys, or two costs of one rule and key.
    CostOfSeveral(Box<str>),
    /// A reservation of which every limit is charged when it is made.
    NothingToHold,
    /// A hold of zero permits.
    EmptyHold,
    /// A hold of zero length, or longer than [`HoldId::MAX_TTL`](crate::HoldId::MAX_TTL).
    HoldLength,
    /// A `concurrency` limit counts holders; it can be held and released, not charged.
    ConcurrencyNeedsHold,
    /// A hold that is made for one request ([`HoldKind`](crate::HoldKind)) with an id.
    EnterTakesNoId,
    /// No such time zone.
    UnknownZone(Box<str>),
    /// No such rule.
    UnknownRule {
        /// The name in the call.
        name: Box<str>,
        /// The rule that it resembles.
        meant: Option<Box<str>>,
    },
    /// No such plan of the rule.
    UnknownPlan(UnknownPlan),
    /// Only a check, a reservation and an entry can wait.
    OnlyChecksWait,
    /// The engine cannot decide without waiting.
    NotImmediate,
    /// The future was polled after completion.
    AlreadyPolled,
}

/// A plan that the rule does not have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPlan {
    /// The plan.
    pub plan: Box<str>,
    /// The name of the rule.
    pub rule: Box<str>,
    /// The plans of the rule.
    pub plans: Box<[Box<str>]>,
}

impl fmt::Display for UnknownPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, rule, plans } = self;
        match plans.is_empty() {
            true => write!(f, "rule {rule:?} has no plans; leave out plan {plan:?}"),
            false => {
                write!(f, "rule {rule:?} has no plan {plan:?}; its plans: {}", plans.join(", "))
            }
        }
    }
}

impl Refusal {
    /// Whether the store found this out. All other refusals follow from the call alone, before the
    /// store is contacted.
    pub(crate) fn is_from_store(&self) -> bool {
        matches!(
            self,
            Self::IdReused | Self::UnknownHold | Self::AlreadySettled | Self::HoldExpired
        )
    }
}

fn fmt_unknown_rule(f: &mut fmt::Formatter<'_>, name: &str, meant: Option<&str>) -> fmt::Result {
    write!(f, "no rule named {name:?}")?;
    meant.map_or(Ok(()), |meant| write!(f, "; did you mean {meant:?}?"))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChargeCount(count) => {
                write!(
                    f,
                    "a call of {count} charges; use 1 to {}, or none about a reservation",
                    bounds::MAX_CHARGES
                )
            }
            Self::KeyTooLong => write!(
                f,
                "the key is too long; at most {} bytes in {} parts, or send a hash",
                Key::MAX_LEN,
                Key::MAX_PARTS
            ),
            Self::KeyNotWritten => {
                f.write_str("the key's Display implementation returned an error")
            }
            Self::Cost(invalid) => invalid.fmt(f),
            Self::CostRange => write!(f, "the cost must be a number from 0 to {}", Cost::MAX),
            Self::IdLength(len) => write!(f, "an id of {len} bytes; use 1 to {MAX_ID_LEN}"),
            Self::IdReused => f.write_str("the id was used for another request; use a new one"),
            Self::UnknownHold => f.write_str("no such reservation, or its record was forgotten"),
            Self::AlreadySettled => {
                f.write_str("the reservation was already settled with another cost")
            }
            Self::HoldExpired => f.write_str("the reservation has expired; reserve anew"),
            Self::MinCost => f.write_str(
                "min needs one cost of all rules that are named, and is from 1 to that cost",
            ),
            Self::QueueExtended(rule) => {
                write!(f, "rule {rule:?} is a queue: its reservations cannot be extended")
            }
            Self::DifferentCosts(rules) => write!(
                f,
                "this reservation holds {rules} rules with different costs; name them in \"costs\""
            ),
            Self::NotHeld(rule) => write!(
                f,
                "the reservation holds no permits of rule {rule:?}: it was not reserved, was \
                 charged when it was reserved, or counts slots"
            ),
            Self::CostOfSeveral(rule) => write!(
                f,
                "rule {rule:?} is held with several keys, or named twice; name each key once"
            ),
            Self::NothingToHold => f.write_str(
                "nothing to reserve: the rules are charged when they are reserved; use a check",
            ),
            Self::EmptyHold => f.write_str("empty reservation; use a cost of 1 or more"),
            Self::HoldLength => f.write_str("a reservation must last from 1us to 1h, or its lease"),
            Self::ConcurrencyNeedsHold => {
                f.write_str("concurrency counts holders; reserve to enter, and cancel to leave")
            }
            Self::EnterTakesNoId => {
                f.write_str("`enter` takes no id; use `reserve` for idempotency")
            }
            Self::UnknownZone(zone) => {
                write!(f, "unknown time zone {zone:?}; use an IANA name like Europe/Berlin")
            }
            Self::UnknownRule { name, meant } => fmt_unknown_rule(f, name, meant.as_deref()),
            Self::UnknownPlan(unknown) => unknown.fmt(f),
            Self::OnlyChecksWait => f.write_str(
                "only checks, reservations and entries can wait; await other operations directly",
            ),
            Self::NotImmediate => f.write_str("this engine is asynchronous; use `.await`"),
            Self::AlreadyPolled => f.write_str("polled after completion"),
        }
    }
}

impl Error for Refusal {}

impl From<InvalidCost> for Refusal {
    fn from(invalid: InvalidCost) -> Self {
        Self::Cost(invalid)
    }
}
