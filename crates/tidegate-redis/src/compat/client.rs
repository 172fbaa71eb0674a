//! A client for limiters with a foreign key layout, on the connections of an engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ToRedisArgs, Value};
use tidegate::{Clock, EngineError, Micros, Outcome};
use tokio::time::Instant;

use crate::compat::wait_queue::LimiterQueues;
use crate::durability::replica_ack::SendVia;
use crate::engine::Redis;
use crate::protocol::reply::{engine_error, malformed_reply};
use crate::protocol::scripts::Script;
use crate::protocol::sender::ScriptSender;
use crate::topology::hash_slot::HashSlot;

/// Client for limiters with a foreign key layout: [`redisson`](crate::redisson) and
/// [`spring`](crate::spring). Clones share connections and id.
///
/// It uses the connections and the deadline of the engine that made it, with one server, Sentinel
/// or Cluster. Replicas do not confirm its writes.
///
/// ```no_run
/// use tidegate_redis::Redis;
/// use tidegate_redis::redisson::RateLimiter;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Redis::builder("redis://127.0.0.1:6379").build()?.client();
/// let taken = RateLimiter::new(&client, "orders").try_acquire(1).await?;
/// println!("{}, {} left", taken.allowed(), taken.remaining());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisClient(Arc<ClientInner>);

struct ClientInner {
    sender: ScriptSender,
    id: Box<str>,
    clock: Arc<dyn Clock>,
    queues: LimiterQueues,
}

impl Redis {
    /// A client on the connections of this engine, with its own id.
    pub fn client(&self) -> RedisClient {
        let sender = self.executor.sender.clone();
        RedisClient(Arc::new(ClientInner {
            clock: sender.clock(),
            sender,
            id: random_id().into(),
            queues: LimiterQueues::default(),
        }))
    }
}

impl RedisClient {
    /// Client id (UUID v4), by which limiters per client distinguish their clients, as in Redisson.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    /// The time that a call may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.0.sender.router.deadline().duration_since(Instant::now())
    }

    /// Replaces the clock of Redis in scripts, in microseconds; empty except in tests.
    pub(crate) fn instant(&self) -> String {
        let instant = self.0.sender.time().instant;
        instant.map_or(String::new(), |instant| instant.get().to_string())
    }

    pub(crate) fn queues(&self) -> &LimiterQueues {
        &self.0.queues
    }

    /// Runs a script that writes. Its keys are in one slot.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<Value, EngineError> {
        // One deadline, however many commands it takes.
        let until = self.0.sender.router.deadline();
        let slot = HashSlot::of(keys.first().unwrap_or(&""));
        let push = |cmd: &mut Cmd| {
            cmd.arg(keys.len()).arg(keys).arg(args);
        };
        let reply = self.0.sender.eval(script, slot, SendVia::Shared, until, push).await;
        reply.map(|(value, _)| value).map_err(|error| engine_error(error, true))
    }

    /// Runs a command whose keys are in the slot of `key`.
    pub(crate) async fn call(
        &self,
        key: &str,
        name: &str,
        args: impl ToRedisArgs,
        kind: CommandKind,
    ) -> Result<Value, EngineError> {
        let mut cmd = redis::cmd(name);
        cmd.arg(args);
        let until = self.0.sender.router.deadline();
        let reply = self.0.sender.router.call_until(until, HashSlot::of(key), &cmd).await;
        reply.map_err(|error| engine_error(error, kind == CommandKind::Write))
    }
}

/// Whether permits were acquired, and how many remain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcquireDecision {
    pub(crate) outcome: Outcome,
    pub(crate) remaining: u64,
}

impl AcquireDecision {
    /// Whether the permits were acquired.
    pub fn allowed(&self) -> bool {
        self.outcome == Outcome::Allow
    }

    /// Whether the permits were acquired, and if not, when to retry.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The permits that remain, rounded down.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Time until there may be enough permits; None if they were acquired, or never can be.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::RetryAfter(span) => Some(span.into()),
            Outcome::Allow | Outcome::Never => None,
        }
    }

    /// The same for a caller that only read the state, and has no time left to acquire.
    pub(crate) fn untaken(mut self) -> Self {
        if self.outcome == Outcome::Allow {
            self.outcome = Outcome::RetryAfter(Micros::ZERO);
        }
        self
    }
}

/// Whether the result of a command without a reply is ambiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommandKind {
    Read,
    Write,
}

/// The integers in the reply of a script of `redisson` or `spring`.
pub(crate) fn numbers(reply: &Value) -> Result<Vec<i64>, EngineError> {
    let Value::Array(values) = reply else { return Err(malformed_reply(true)) };
    let number = |value: &Value| match value {
        Value::Int(number) => Ok(*number),
        _ => Err(malformed_reply(true)),
    };
    values.iter().map(number).collect()
}

/// A UUID v4. Without a source of randomness, several clients get the same id and count together,
/// which is too strict but never too lax.
fn random_id() -> String {
    let mut bits = [0; 16];
    let _ = getrandom::fill(&mut bits);
    bits[6] = bits[6] & 0x0f | 0x40;
    bits[8] = bits[8] & 0x3f | 0x80;
    let mut id = String::with_capacity(36);
    for (index, byte) in bits.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            id.push('-');
        }
        id.push_str(&format!("{byte:02x}"));
    }
    id
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient").field("id", &self.0.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_looks_like_a_uuid_and_no_two_are_alike() {
        let ids: std::collections::HashSet<String> = (0..1_000).map(|_| random_id()).collect();
        assert_eq!(ids.len(), 1_000);
        for id in ids {
            let parts: Vec<&str> = id.split('-').collect();
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
            assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]), "{id}");
        }
    }
}
