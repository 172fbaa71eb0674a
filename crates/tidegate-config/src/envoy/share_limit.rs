//! A limit that Envoy's rate limit quota service can lend in shares.

use std::fmt;

use tidegate::{Limit, Micros};

/// A token bucket in whole tokens per interval, as Envoy takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareLimit {
    /// The most that passes at once.
    pub burst: u64,
    /// Tokens added in each interval, rounded down.
    pub tokens: u64,
    /// The interval of `tokens`.
    pub interval: FillInterval,
}

/// The interval of all shares of a limit. Envoy ignores a change of the interval alone, so there
/// are only two, and the tokens change with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FillInterval {
    /// 3,600 seconds.
    Hour,
    /// 86,400 seconds, for limits below one token a second.
    Day,
}

impl FillInterval {
    /// The duration.
    pub const fn length(self) -> Micros {
        Micros::from_secs(match self {
            Self::Hour => 3_600,
            Self::Day => 86_400,
        })
    }
}

impl ShareLimit {
    /// The largest burst: `max_tokens` of Envoy has 32 bits.
    pub const MAX_BURST: u64 = u32::MAX as u64;
    /// The largest number of tokens per interval: `tokens_per_fill` has 32 bits.
    pub const MAX_TOKENS: u64 = u32::MAX as u64;

    /// The shares of `limit`, which must be a token bucket.
    pub fn new(limit: &Limit) -> Result<Self, UnsuitableLimit> {
        let (count, span) = limit.refill().ok_or(UnsuitableLimit::NotABucket)?;
        Self::of_rate(limit.capacity(), count, span)
    }

    /// A bucket of `burst` that is refilled with `count` tokens in each `span`.
    pub fn of_rate(burst: u64, count: u64, span: Micros) -> Result<Self, UnsuitableLimit> {
        let per_second = u128::from(count) * 1_000_000;
        let is_slow = per_second < u128::from(span.get());
        let interval = if is_slow { FillInterval::Day } else { FillInterval::Hour };
        let length = u128::from(interval.length().get());
        let tokens = u128::from(count) * length / u128::from(span.get().max(1));
        let tokens = u64::try_from(tokens).unwrap_or(u64::MAX);
        if tokens > Self::MAX_TOKENS {
            return Err(UnsuitableLimit::TooFast);
        } else if tokens == 0 {
            return Err(UnsuitableLimit::TooSlow);
        } else if !(1..=Self::MAX_BURST).contains(&burst) {
            return Err(UnsuitableLimit::Burst(burst));
        }
        Ok(Self { burst, tokens, interval })
    }

    /// Units of one token. In these units the rate is [`tokens`](Self::tokens) a microsecond.
    pub fn unit(self) -> i128 {
        i128::from(self.interval.length().get())
    }
}

/// Why a limit cannot be lent in shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnsuitableLimit {
    /// It is not one token bucket that is refilled evenly.
    NotABucket,
    /// More than 1,000,000 requests a second.
    TooFast,
    /// Less than one request a day.
    TooSlow,
    /// A burst of more than [`ShareLimit::MAX_BURST`].
    Burst(u64),
}

impl fmt::Display for UnsuitableLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotABucket => {
                f.write_str("rlqs needs one token bucket; write limit: \"100/s burst 200\"")
            }
            Self::TooFast => {
                f.write_str("too fast; rlqs takes at most 1,000,000 requests a second")
            }
            Self::TooSlow => f.write_str("too slow; rlqs takes at least one request a day"),
            Self::Burst(burst) => {
                write!(f, "burst {burst}; rlqs takes 1 to {}", ShareLimit::MAX_BURST)
            }
        }
    }
}

impl std::error::Error for UnsuitableLimit {}
