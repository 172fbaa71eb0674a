//! Scripts that are not the engine's, on the engine's connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ToRedisArgs, Value};
use tidegate::{Clock, EngineError, Micros, Outcome, SystemClock};
use tokio::time::Instant;

use crate::classify::Meaning;
use crate::engine::Redis;
use crate::link::LinkError;
use crate::reply::{unavailable, unreadable};
use crate::route::Route;
use crate::script::Script;
use crate::slot::Slot;

/// The connections of a [`Redis`], for limiters that other programs have laid out: [`redisson`](crate::redisson)
/// and [`spring`](crate::spring). Clones share them, and are one client to others.
///
/// It has the address, the deadlines and the reconnecting of the engine that it comes from, on one server,
/// with sentinels and in a Cluster. Replicas do not confirm what it writes.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    route: Route,
    id: Box<str>,
    test_clock: Option<Arc<dyn Clock>>,
    clock: Arc<dyn Clock>,
    lines: crate::redisson::Lines,
}

impl Redis {
    /// A client on the connections of this engine, with a name of its own.
    pub fn client(&self) -> Client {
        let clock: Arc<dyn Clock> = match &self.test_clock {
            Some(clock) => Arc::clone(clock),
            None => Arc::new(SystemClock),
        };
        Client(Arc::new(Shared {
            route: self.route.clone(),
            id: random_id().into(),
            test_clock: self.test_clock.clone(),
            clock,
            lines: Default::default(),
        }))
    }
}

impl Client {
    /// By what limiters per client tell it from others: 36 random characters in the form of a UUID, as
    /// Redisson's are.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    /// How long a call may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.0.route.deadline().duration_since(Instant::now())
    }

    /// What scripts are told instead of reading Redis's clock, in microseconds; nothing but in tests.
    pub(crate) fn instant(&self) -> String {
        self.0.test_clock.as_ref().map_or(String::new(), |clock| clock.now().get().to_string())
    }

    pub(crate) fn lines(&self) -> &crate::redisson::Lines {
        &self.0.lines
    }

    /// What a script answers that writes. Its keys lie in one slot.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<Value, EngineError> {
        // One deadline, however many commands it takes.
        let until = self.0.route.deadline();
        let slot = Slot::of(keys.first().unwrap_or(&""));
        let command = |name: &str, script: &str| {
            let mut cmd = redis::cmd(name);
            cmd.arg(script).arg(keys.len()).arg(keys).arg(args);
            cmd
        };
        let send = async |cmd: Cmd| self.0.route.call_until(until, slot, &cmd).await;
        let answer = match send(command("EVALSHA", &script.digest)).await {
            // Nothing has run: the server has not seen the script yet.
            Err(LinkError::Reply(error)) if Meaning::of(&error) == Meaning::NoScript => {
                send(command("EVAL", &script.text)).await
            }
            answer => answer,
        };
        answer.map_err(|error| unavailable(error, true))
    }

    /// What a command answers whose keys lie in the slot of `key`.
    pub(crate) async fn call(
        &self,
        key: &str,
        name: &str,
        args: impl ToRedisArgs,
        writes: Writes,
    ) -> Result<Value, EngineError> {
        let mut cmd = redis::cmd(name);
        cmd.arg(args);
        let answer = self.0.route.call_until(self.0.route.deadline(), Slot::of(key), &cmd).await;
        answer.map_err(|error| unavailable(error, writes == Writes::Yes))
    }
}

/// Whether permits were taken, and how many are left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    pub(crate) outcome: Outcome,
    pub(crate) remaining: u64,
}

impl Taken {
    /// They were taken.
    pub fn allowed(&self) -> bool {
        self.outcome == Outcome::Allow
    }

    /// Whether they were, and if not, when there may be enough.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// How many are left, rounded down.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// When there may be enough; nothing if they were taken, or never can be.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::RetryAfter(span) => Some(span.into()),
            Outcome::Allow | Outcome::Never => None,
        }
    }

    /// The same for somebody who only looked, and has no time left to take what there is.
    pub(crate) fn untaken(mut self) -> Self {
        if self.outcome == Outcome::Allow {
            self.outcome = Outcome::RetryAfter(Micros::ZERO);
        }
        self
    }
}

/// May a command have changed something, if nobody knows how it ended?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writes {
    Yes,
    No,
}

/// The whole numbers that a script of `redisson` or `spring` answers with.
pub(crate) fn numbers(answer: &Value) -> Result<Vec<i64>, EngineError> {
    let Value::Array(values) = answer else { return Err(unreadable(true)) };
    let number = |value: &Value| match value {
        Value::Int(number) => Ok(*number),
        _ => Err(unreadable(true)),
    };
    values.iter().map(number).collect()
}

/// A UUID of version 4. Without randomness it is the same as every other such client's, which then count
/// together: too strict, and not too lax.
fn random_id() -> String {
    let mut bits = [0; 16];
    let _ = getrandom::fill(&mut bits);
    bits[6] = bits[6] & 0x0f | 0x40;
    bits[8] = bits[8] & 0x3f | 0x80;
    let mut id = String::with_capacity(36);
    for (place, byte) in bits.iter().enumerate() {
        if [4, 6, 8, 10].contains(&place) {
            id.push('-');
        }
        id.push_str(&format!("{byte:02x}"));
    }
    id
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.0.id).finish_non_exhaustive()
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
