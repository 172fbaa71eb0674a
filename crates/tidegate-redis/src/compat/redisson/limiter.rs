//! The limiter: acquire, release and configure.

use std::fmt;
use std::time::Duration;

use redis::Value;
use tidegate::Micros;

use super::calls::LimiterCalls;
use super::error::Error;
use super::rate::Rate;
use super::reply::{status, u64_at};
use super::scripts::RedissonScript;
use super::take::random_id;
use super::turn::acquire_in_turn;
use crate::compat::client::{AcquireDecision, CommandKind, RedisClient};
use crate::compat::wait_ticket::PermitsEntry;
use crate::protocol::reply::malformed_reply;

/// A limiter of Redisson, by its name. Clones are the same limiter.
///
/// This client counts by the clock of Redis. Java's entries have the clock of the process that
/// wrote them.
#[derive(Clone)]
pub struct RateLimiter(LimiterCalls);

impl RateLimiter {
    /// The limiter of `redisson.getRateLimiter(name)` in Java. Sends nothing.
    pub fn new(client: &RedisClient, name: &str) -> Self {
        Self(LimiterCalls::new(client, name))
    }

    /// The name of the limiter.
    pub fn name(&self) -> &str {
        self.0.keys.name()
    }

    /// Sets the rate if there is none. False if there is one, which then stays.
    pub async fn try_set_rate(&self, rate: Rate) -> Result<bool, Error> {
        self.configure("try", rate).await
    }

    /// Sets the rate and resets the limiter: acquired permits no longer count. In `PerClient` mode
    /// that is only for this client.
    pub async fn set_rate(&self, rate: Rate) -> Result<(), Error> {
        self.configure("set", rate).await.map(drop)
    }

    /// Sets the rate; acquired permits still count, unless the [`Mode`](super::Mode) changes. False
    /// if the limiter is not initialized.
    pub async fn update_rate(&self, rate: Rate) -> Result<bool, Error> {
        self.configure("update", rate).await
    }

    /// Acquires `permits` if they are available now. 0 permits only reads.
    pub async fn try_acquire(&self, permits: u32) -> Result<AcquireDecision, Error> {
        let entry = PermitsEntry { permits, id: random_id()? };
        Ok(self.0.take(&[entry], Micros::MAX).await?.0)
    }

    /// Acquires `permits`, waiting up to `timeout` for them. Callers with the same limiter name and
    /// the same [`RedisClient`] are served in order of arrival. Returns at once if the permits
    /// cannot be available in time.
    ///
    /// While Java takes permits too, a caller that waits retries up to 80 ms after permits are
    /// freed, at random, and at most an interval. Without Java, one caller in 2 s does.
    ///
    /// It is an error if counting the entries takes longer than `timeout` and than a call may take.
    /// The progress is stored, and the next call continues from there.
    ///
    /// A dropped future acquires nothing: permits that it may have got are returned.
    pub async fn try_acquire_for(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<AcquireDecision, Error> {
        acquire_in_turn(&self.0, permits, timeout).await
    }

    /// Acquires `permits`, without a timeout; otherwise like
    /// [`try_acquire_for`](Self::try_acquire_for).
    pub async fn acquire(&self, permits: u32) -> Result<(), Error> {
        loop {
            if self.try_acquire_for(permits, Duration::MAX).await?.allowed() {
                return Ok(());
            }
        }
    }

    /// Releases `permits`, the oldest first, and returns how many: at most the acquired ones, and
    /// at most those of 1,000 entries.
    pub async fn release(&self, permits: u32) -> Result<u64, Error> {
        if permits == 0 {
            return Ok(0);
        }
        let count = permits.to_string();
        let args = [count.as_bytes(), &random_id()?];
        let reply = self.0.run(RedissonScript::Release, &args, Micros::MAX).await?;
        self.0.set_known_rate(&reply);
        let released = u64_at(&reply, 1)?;
        self.0.queue.released.notify_one();
        Ok(released)
    }

    /// The permits that are available now. Writes only if there are more than 1,000 entries to
    /// count, or if the rate has changed and the entries must be corrected.
    pub async fn available_permits(&self) -> Result<u64, Error> {
        Ok(self.0.look(0, Micros::MAX).await?.remaining)
    }

    /// The rate, if there is one.
    pub async fn config(&self) -> Result<Option<Rate>, Error> {
        let args = [self.name(), "rate", "interval", "type", "keepAliveTime"];
        let reply = self.0.client.call(self.name(), "HMGET", &args[..], CommandKind::Read).await?;
        let Value::Array(fields) = reply else { return Err(malformed_reply(false).into()) };
        Ok(Rate::read(&fields).map_err(|()| malformed_reply(false))?)
    }

    /// Deletes the limiter after `span`, in whole milliseconds, rounded up. Using a limiter with a
    /// keep-alive time extends it. False if there is none.
    pub async fn expire(&self, span: Duration) -> Result<bool, Error> {
        let ms = span.min(Rate::MAX_SPAN).as_nanos().div_ceil(1_000_000).to_string();
        let reply = self.0.run(RedissonScript::Expire, &[ms.as_bytes()], Micros::MAX).await?;
        Ok(status(&reply)? == 1)
    }

    /// Deletes the limiter: its rate, and the permits acquired by all clients and by this client.
    /// False if there was none.
    pub async fn delete(&self) -> Result<bool, Error> {
        let LimiterCalls { client, keys, .. } = &self.0;
        let reply = client.call(self.name(), "DEL", &keys.keys()[..], CommandKind::Write).await?;
        match reply {
            Value::Int(keys) => Ok(keys > 0),
            _ => Err(malformed_reply(true).into()),
        }
    }

    async fn configure(&self, mode: &str, rate: Rate) -> Result<bool, Error> {
        let fields = rate.fields();
        let mut args = vec![mode.as_bytes()];
        let id = random_id()?;
        args.push(&id);
        args.extend(fields.iter().map(String::as_bytes));
        let set = status(&self.0.run(RedissonScript::Configure, &args, Micros::MAX).await?)? == 1;
        if set {
            self.0.queue.set_known_rate(rate.permits_and_interval());
        }
        Ok(set)
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("name", &self.name()).finish_non_exhaustive()
    }
}
