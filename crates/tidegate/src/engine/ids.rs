//! Names of calls and holds: idempotency keys and hold ids.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidegate_core::Micros;

use super::bounds;
use super::error::{EngineError, Refusal};
use super::rule_limit::RuleLimit;

/// The id under which a call is charged at most once: 1 to 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IdempotencyKey<'a>(&'a str);

impl<'a> IdempotencyKey<'a> {
    /// Longest id in bytes.
    pub const MAX_LEN: usize = bounds::MAX_ID_LEN;
    /// How long the result of an id is remembered.
    pub const TTL: Micros = bounds::ID_TTL;

    /// An id of 1 to [`MAX_LEN`](Self::MAX_LEN) bytes.
    pub fn new(id: &'a str) -> Result<Self, Refusal> {
        if id.is_empty() || id.len() > Self::MAX_LEN {
            return Err(Refusal::IdLength(id.len()));
        }
        Ok(Self(id))
    }

    /// The id as text.
    pub fn as_str(&self) -> &'a str {
        self.0
    }
}

/// The id of a hold: 128 random bits and, where an engine needs them, 128 bits of its location.
/// Written as 32 or 64 hexadecimal digits. The id is a capability: any holder of it can settle the
/// hold, so it must not be guessable.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HoldId {
    bits: u128,
    location: u128,
}

impl HoldId {
    /// Longest duration of a hold, unless a lease is longer.
    pub const MAX_TTL: Micros = Micros::from_secs(3_600);
    /// How long a settled or expired hold is remembered. Holds of entries are remembered only if
    /// they expire.
    pub const RETENTION: Micros = Micros::from_secs(3_600);

    /// A new id from the system's random number generator.
    pub fn random() -> Result<Self, EngineError> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).map_err(EngineError::unavailable)?;
        Ok(u128::from_ne_bytes(bits).into())
    }

    /// The random bits.
    pub const fn get(self) -> u128 {
        self.bits
    }

    /// Half of the random bits, to choose a shard or a bucket.
    #[expect(clippy::cast_possible_truncation, reason = "half of the bits")]
    pub(crate) const fn low_bits(self) -> u64 {
        self.bits as u64
    }

    /// The same id with its first 32 bits replaced: a note of the caller about the hold, which
    /// every process that knows the id can read. 96 random bits remain.
    #[must_use]
    pub const fn with_tag(self, tag: u32) -> Self {
        let bits = (self.bits & (u128::MAX >> 32)) | ((tag as u128) << 96);
        Self { bits, ..self }
    }

    /// The first 32 bits: a [tag](Self::with_tag), or random.
    pub const fn tag(self) -> u32 {
        (self.bits >> 96) as u32
    }

    /// Engine-specific location bits; 0 if unused.
    pub const fn location(self) -> u128 {
        self.location
    }

    /// The same id with these location bits.
    #[must_use]
    pub const fn with_location(self, location: u128) -> Self {
        Self { location, ..self }
    }
}

impl From<u128> for HoldId {
    fn from(bits: u128) -> Self {
        Self { bits, location: 0 }
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.location != 0 {
            write!(f, "{:032x}", self.location)?;
        }
        write!(f, "{:032x}", self.bits)
    }
}

/// Shows the first 16 bits only: the id is a capability and must not appear in a log.
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
            64 if digits => {
                Ok(Self::from(number(&text[32..])?).with_location(number(&text[..32])?))
            }
            _ => Err(Refusal::UnknownHold),
        }
    }
}

/// Refuses a hold of zero length or beyond the maximum: [`HoldId::MAX_TTL`], or the longest lease
/// among the limits if that is longer.
pub(crate) fn check_ttl<'a>(
    ttl: Micros,
    limits: impl Iterator<Item = &'a Arc<RuleLimit>>,
) -> Result<(), EngineError> {
    let lease = limits.filter_map(|limit| limit.limit().lease()).max();
    if ttl == Micros::ZERO || ttl > HoldId::MAX_TTL.max(lease.unwrap_or_default()) {
        return Err(Refusal::HoldLength.into());
    }
    Ok(())
}
