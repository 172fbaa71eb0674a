//! The token bucket of Spring Cloud Gateway's `RedisRateLimiter`, shared with such gateways.
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
//! It refills once per second of Redis's clock, with `rate` tokens at once. `docs/use/redisson.md`
//! describes the consequences.

use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

use tidegate::{EngineError, Micros, Outcome};

use crate::compat::client::{AcquireDecision, RedisClient, numbers};
use crate::protocol::reply::malformed_reply;
use crate::protocol::scripts::Script;

/// Rate and capacity of each key. All gateways must use the same: Redis stores only the tokens.
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

    /// Whether tokens are stored between two requests. Spring stores them for twice the time in
    /// which the bucket fills, in whole seconds. When that is 0, every request finds a full bucket.
    pub fn is_kept(&self) -> bool {
        u64::from(self.capacity) * 2 >= u64::from(self.rate)
    }
}

/// Buckets with one rate and capacity, by key.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    client: RedisClient,
    bucket: Bucket,
}

impl RateLimiter {
    /// Sends its requests through `client`.
    pub fn new(client: &RedisClient, bucket: Bucket) -> Self {
        Self { client: client.clone(), bucket }
    }

    /// Takes `tokens` from the bucket of `id`, if there are enough.
    ///
    /// `id` is the part in braces of Spring's keys, `request_rate_limiter.{id}.tokens`. Since
    /// version 5 that is the route and the result of the `KeyResolver`, joined by a dot; before,
    /// only the latter.
    pub async fn try_acquire(&self, id: &str, tokens: u32) -> Result<AcquireDecision, EngineError> {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        let script =
            SCRIPT.get_or_init(|| Script::of(&[include_str!("../../lua/spring/take.lua")]));
        let keys =
            ["tokens", "timestamp"].map(|name| format!("request_rate_limiter.{{{id}}}.{name}"));
        let Bucket { rate, capacity } = self.bucket;
        let numbers_sent = [rate, capacity, tokens].map(|number| number.to_string());
        let [rate, capacity, tokens] = &numbers_sent;
        let instant = self.client.instant();
        let args = [&instant, rate, capacity, tokens].map(|arg| arg.as_bytes());
        let reply = self.client.run(script, &keys.each_ref().map(|key| &**key), &args).await?;
        decision(&numbers(&reply)?).ok_or_else(|| malformed_reply(true))
    }
}

fn decision(reply: &[i64]) -> Option<AcquireDecision> {
    let to_u64 = |number: i64| u64::try_from(number).ok();
    let (outcome, remaining) = match *reply {
        [1, left] => (Outcome::Allow, left),
        [0, left, -1] => (Outcome::Never, left),
        [0, left, wait] => (Outcome::RetryAfter(Micros::new(to_u64(wait)?)), left),
        _ => return None,
    };
    Some(AcquireDecision { outcome, remaining: to_u64(remaining)? })
}

/// Why a bucket is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidBucket {
    /// A rate of 0, with which the bucket never refills.
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
