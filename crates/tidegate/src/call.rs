//! What is asked of an engine.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidegate_core::{Cost, Expiry, Limit, Micros};

use crate::engine::{EngineError, Refusal};
use crate::{Key, RuleLimit};

/// What to do with the charges of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Charge all if every limit allows it, else none.
    Check,
    /// Look without writing. A charge with a cost says what a check of it would be answered, or
    /// was answered, if it has an id and was charged under it.
    Peek,
    /// Charge without asking: it has happened already.
    Record,
    /// Give back at most the present consumption.
    Refund,
    /// Forget consumption and holds.
    Reset,
    /// Set the costs aside if every limit allows it, until `ttl` has passed.
    Hold {
        /// The name to settle it by.
        id: HoldId,
        /// How long it lasts.
        ttl: Micros,
        /// What happens then.
        expiry: Expiry,
    },
    /// Pass and take a place, if every limit allows it: limits that count holders (`concurrency`)
    /// set the cost aside until `ttl` has passed, as [`Op::Hold`] does, and all others are charged,
    /// as by [`Op::Check`]. Where none counts holders it is a check, and no hold is made. The hold
    /// covers the places alone: settled or renewed, it says nothing about the other limits. Settled,
    /// it is forgotten, since there is one for every request.
    Enter {
        /// The name to leave by.
        id: HoldId,
        /// How long the places last.
        ttl: Micros,
    },
    /// Set the costs aside for the length of one request, if every limit allows it: as [`Op::Hold`],
    /// released at the end of its time, and forgotten when it is settled, as [`Op::Enter`].
    Visit {
        /// The name to settle it by.
        id: HoldId,
        /// How long it lasts.
        ttl: Micros,
    },
    /// Set the costs aside for a process that spends them by itself, if every limit allows it: as
    /// [`Op::Hold`], charged at the end of its time, and forgotten when it is settled, as [`Op::Enter`].
    Lend {
        /// The name to settle it by.
        id: HoldId,
        /// How long it lasts.
        ttl: Micros,
    },
    /// End a hold and charge each of its limits `cost`, or what was held if there is none. A cost
    /// of zero cancels. The call has no charges of its own; the engine knows what was held.
    Settle {
        /// The hold.
        id: HoldId,
        /// What is to be charged.
        cost: Option<Cost>,
    },
    /// Let a hold last `ttl` from now. The call has no charges of its own.
    Renew {
        /// The hold.
        id: HoldId,
        /// How long it is to last.
        ttl: Micros,
    },
}

impl Op {
    /// The hold that it makes if every limit allows it: its name, how long it lasts, and what
    /// happens then.
    pub fn hold(&self) -> Option<(HoldId, Micros, Expiry)> {
        match *self {
            Self::Hold { id, ttl, expiry } => Some((id, ttl, expiry)),
            Self::Enter { id, ttl } | Self::Visit { id, ttl } => Some((id, ttl, Expiry::Release)),
            Self::Lend { id, ttl } => Some((id, ttl, Expiry::Charge)),
            _ => None,
        }
    }

    /// Does it set permits of `limit` aside, rather than charge them?
    pub fn sets_aside(&self, limit: &Limit) -> bool {
        match self {
            Self::Hold { .. } | Self::Visit { .. } | Self::Lend { .. } => true,
            Self::Enter { .. } => limit.lease().is_some(),
            _ => false,
        }
    }

    /// Does it take something, unless a limit denies it?
    pub(crate) fn takes(&self) -> bool {
        *self == Self::Check || self.hold().is_some()
    }

    /// Is there one for every request, or nearly? Nobody asks how it ended, so it is forgotten when it is
    /// settled.
    pub(crate) fn is_of_a_request(&self) -> bool {
        matches!(self, Self::Enter { .. } | Self::Visit { .. } | Self::Lend { .. })
    }
}

/// One limit, one key, one cost.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The limit.
    pub limit: &'a Arc<RuleLimit>,
    /// Whom it concerns.
    pub key: Key<'a>,
    /// How much.
    pub cost: Cost,
    /// Who it was, for a `sliding-log` to keep with the entry.
    pub who: Option<&'a str>,
}

/// One request to an engine: decided in one atomic step, charged all or none.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What to do.
    pub op: Op,
    /// With which limits; the same limit and key twice counts as one with the costs added.
    pub charges: &'a [Charge<'a>],
    /// Charge at most once under this name, scoped to the first charge's rule and key.
    pub once: Option<CallId<'a>>,
}

impl Call<'_> {
    /// The most charges in one call.
    pub const MAX_CHARGES: usize = 64;

    /// Refuses what no engine has to think about. Engines call it first.
    pub fn validate(&self) -> Result<(), EngineError> {
        let of_a_hold = matches!(self.op, Op::Settle { .. } | Op::Renew { .. });
        let count = self.charges.len();
        if of_a_hold != (count == 0) || count > Self::MAX_CHARGES {
            return Err(Refusal::ChargeCount(count).into());
        }
        if self.op.is_of_a_request() && self.once.is_some() {
            return Err(Refusal::EnterTakesNoId.into());
        }
        let charges_nothing = matches!(self.op, Op::Peek | Op::Reset);
        for charge in self.charges {
            let who = charge.who.map_or(0, str::len);
            if !charge.key.is_valid() || who > Key::MAX_LEN {
                return Err(Refusal::KeyTooLong.into());
            }
            let limit = charge.limit.limit();
            let set_aside = self.op.sets_aside(limit);
            if set_aside && charge.cost.is_zero() {
                return Err(Refusal::EmptyHold.into());
            }
            if limit.lease().is_some() && !set_aside && !charges_nothing {
                return Err(Refusal::ConcurrencyNeedsHold.into());
            }
            charge.limit.check_zone()?;
        }
        Ok(())
    }
}

/// The name under which a call is charged at most once: 1 to 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId<'a>(&'a str);

impl<'a> CallId<'a> {
    /// The longest name in bytes.
    pub const MAX_LEN: usize = 64;
    /// How long a name is remembered.
    pub const TTL: Micros = Micros::from_secs(3_600);

    /// A name, unless it is empty or too long.
    pub fn new(id: &'a str) -> Result<Self, Refusal> {
        if id.is_empty() || id.len() > Self::MAX_LEN {
            return Err(Refusal::IdLength(id.len()));
        }
        Ok(Self(id))
    }

    /// The name.
    pub fn as_str(&self) -> &'a str {
        self.0
    }
}

/// The name of a hold: 128 random bits and, where an engine needs it, the place where it lies.
/// Written as 32 or 64 hexadecimal digits. Whoever knows it may settle the hold, so it is not to be
/// guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HoldId {
    bits: u128,
    place: u128,
}

impl HoldId {
    /// How long a hold may last at most.
    pub const MAX_TTL: Micros = Micros::from_secs(3_600);
    /// How long a settled or expired hold is remembered; that of an entry only if nobody settles it.
    pub const REMEMBERED: Micros = Micros::from_secs(3_600);

    /// A new name from the system's random numbers.
    pub fn random() -> Result<Self, EngineError> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).map_err(EngineError::unavailable)?;
        Ok(u128::from_ne_bytes(bits).into())
    }

    /// The random bits.
    pub const fn get(self) -> u128 {
        self.bits
    }

    /// Half of the random bits: enough to spread names.
    #[expect(clippy::cast_possible_truncation, reason = "half of the bits")]
    pub(crate) const fn low_bits(self) -> u64 {
        self.bits as u64
    }

    /// Where it lies, as the engine that made it says; 0 where nobody asks.
    pub const fn place(self) -> u128 {
        self.place
    }

    /// The same name, lying there.
    #[must_use]
    pub const fn at(self, place: u128) -> Self {
        Self { place, ..self }
    }
}

impl From<u128> for HoldId {
    fn from(bits: u128) -> Self {
        Self { bits, place: 0 }
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place != 0 {
            write!(f, "{:032x}", self.place)?;
        }
        write!(f, "{:032x}", self.bits)
    }
}

/// Shows the beginning only: the whole name is a capability and has no place in a log.
impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldId({:04x}..)", self.bits >> 112)
    }
}

impl FromStr for HoldId {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let digits = text.bytes().all(|b| b.is_ascii_hexdigit());
        let number =
            |digits: &str| u128::from_str_radix(digits, 16).map_err(|_| Refusal::UnknownHold);
        match text.len() {
            32 if digits => Ok(number(text)?.into()),
            64 if digits => Ok(Self::from(number(&text[32..])?).at(number(&text[..32])?)),
            _ => Err(Refusal::UnknownHold),
        }
    }
}
