//! Runs the scripts of one limiter.

use std::sync::Arc;

use tidegate::{EngineError, Micros};

use super::keys::RedissonKeys;
use super::scripts::RedissonScript;
use crate::compat::client::{RedisClient, numbers};
use crate::compat::wait_queue::LimiterQueue;
use crate::connection::error::StaticError;

/// The client, the keys and the wait queue of one limiter. Clones share them.
#[derive(Clone)]
pub(crate) struct LimiterCalls {
    pub(crate) client: RedisClient,
    pub(crate) keys: Arc<RedissonKeys>,
    pub(crate) queue: Arc<LimiterQueue>,
}

/// The status of a script that has counted a part of the entries and must be called again.
const STATUS_PARTIAL: i64 = 4;

impl LimiterCalls {
    /// Of 1,000 entries each.
    const MAX_CHUNKS: u32 = 10_000;
    /// For all chunks of one call, whatever its timeout is.
    const MAX_CHUNK_TIME: Micros = Micros::from_millis(2_000);

    pub(crate) fn new(client: &RedisClient, name: &str) -> Self {
        let keys = RedissonKeys::new(name, client.id()).into();
        Self { client: client.clone(), keys, queue: client.queues().queue(name) }
    }

    /// Calls a script until it is done: with many entries, each call counts a part. After `end` no
    /// other call begins, but a call may always take its deadline: a short timeout is not an error.
    pub(crate) async fn run(
        &self,
        script: RedissonScript,
        args: &[&[u8]],
        end: Micros,
    ) -> Result<Vec<i64>, EngineError> {
        let end = end.max(self.after(self.client.deadline().into()));
        let end = end.min(self.after(Self::MAX_CHUNK_TIME));
        for _ in 0..Self::MAX_CHUNKS {
            let (instant, known) = (self.client.instant(), self.queue.known_rate());
            let known =
                known.map_or(String::new(), |(rate, interval)| format!("{rate} {interval}"));
            let args = [&[instant.as_bytes(), known.as_bytes()], args].concat();
            let reply = self.client.run(script.script(), &self.keys.keys(), &args).await?;
            let reply = numbers(&reply)?;
            if reply.first() != Some(&STATUS_PARTIAL) {
                return Ok(reply);
            }
            if self.client.clock().elapsed() >= end {
                break;
            }
        }
        // Or other clients changed them faster than they were counted.
        let text = "too many entries to count; retry, or acquire several permits per call";
        Err(EngineError::unavailable(StaticError(text)))
    }

    /// Takes an entry back.
    pub(crate) async fn undo(&self, permits: u32, id: [u8; 16]) -> Result<(), EngineError> {
        self.run(RedissonScript::Undo, &[permits.to_string().as_bytes(), &id], Micros::MAX).await?;
        self.queue.released.notify_one();
        Ok(())
    }

    /// Stores the rate and the interval at the end of a reply: the entries match them now.
    pub(crate) fn set_known_rate(&self, reply: &[i64]) {
        if let [0 | 1, .., rate, interval] = *reply {
            self.queue.set_known_rate((rate.unsigned_abs(), interval.unsigned_abs()));
        }
    }

    pub(crate) fn after(&self, span: Micros) -> Micros {
        self.client.clock().elapsed().saturating_add(span)
    }
}
