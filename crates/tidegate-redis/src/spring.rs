//! The bucket of Spring Cloud Gateway's `RedisRateLimiter`, shared with the gateways that have it.
//!
//! ```no_run
//! use tidegate_redis::Redis;
//! use tidegate_redis::spring::{Bucket, RateLimiter};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Redis::builder("redis://127.0.0.1:6379").build()?.client();
//! // replenishRate: 10, burstCapacity: 20
//! let limiter = RateLimiter::new(&client, Bucket::new(10, 20)?);
//! // the key of user-42 on the route orders
//! if limiter.try_acquire("orders.user-42", 1).await?.allowed() {
//!     // requestedTokens: 1
//! }
//! # Ok(())
//! # }
//! ```
//!
//! It refills by whole seconds of Redis's clock: `rate` tokens come in at each, all at once. `docs/redisson.md` says
//! what follows from that.

use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

use tidegate::{EngineError, Micros, Outcome};

use crate::client::{Client, Taken, numbers};
use crate::reply::unreadable;
use crate::script::Script;

/// What each key may take. Every gateway on it must say the same: Redis holds the tokens, not the rate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bucket {
    rate: u32,
    capacity: u32,
}

impl Bucket {
    /// `replenishRate` and `burstCapacity`.
    pub fn new(rate: u32, capacity: u32) -> Result<Self, InvalidBucket> {
        if rate == 0 {
            return Err(InvalidBucket::Rate);
        }
        Ok(Self { rate, capacity })
    }

    /// Is anything kept between two requests? Spring keeps tokens for twice the time in which the bucket fills, in
    /// whole seconds; when that is none, every request finds a full bucket, and so it does here.
    pub fn is_kept(&self) -> bool {
        u64::from(self.capacity) * 2 >= u64::from(self.rate)
    }
}

/// Buckets of one kind, by their keys.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    client: Client,
    bucket: Bucket,
}

impl RateLimiter {
    /// Asks through `client`.
    pub fn new(client: &Client, bucket: Bucket) -> Self {
        Self { client: client.clone(), bucket }
    }

    /// Takes `tokens` from the bucket of `id`, if there are as many.
    ///
    /// `id` is what Spring has between the braces of its keys, `request_rate_limiter.{id}.tokens`: the route and what the
    /// `KeyResolver` makes of the request, with a dot in between, since version 5; before, the latter alone.
    pub async fn try_acquire(&self, id: &str, tokens: u32) -> Result<Taken, EngineError> {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        let script = SCRIPT.get_or_init(|| Script::of(&[include_str!("../lua/spring/take.lua")]));
        let keys =
            ["tokens", "timestamp"].map(|name| format!("request_rate_limiter.{{{id}}}.{name}"));
        let Bucket { rate, capacity } = self.bucket;
        let words = [rate, capacity, tokens].map(|word| word.to_string());
        let instant = self.client.instant();
        let args = [&instant, &words[0], &words[1], &words[2]].map(|word| word.as_bytes());
        let answer = self.client.run(script, &keys.each_ref().map(|key| &**key), &args).await?;
        taken(&numbers(&answer)?).ok_or_else(|| unreadable(true))
    }
}

fn taken(answer: &[i64]) -> Option<Taken> {
    let natural = |number: i64| u64::try_from(number).ok();
    let (outcome, remaining) = match *answer {
        [1, left] => (Outcome::Allow, left),
        [0, left, -1] => (Outcome::Never, left),
        [0, left, wait] => (Outcome::RetryAfter(Micros::new(natural(wait)?)), left),
        _ => return None,
    };
    Some(Taken { outcome, remaining: natural(remaining)? })
}

/// Why there is no such bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidBucket {
    /// A rate of 0, at which it never fills.
    Rate,
}

impl fmt::Display for InvalidBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate => f.write_str("a replenish rate of 0; use 1 or more, as Spring does"),
        }
    }
}

impl Error for InvalidBucket {}
