//! Calls of the script that takes permits.

use tidegate::{EngineError, Micros};

use super::calls::LimiterCalls;
use super::error::Error;
use super::reply::{decision, u64_at};
use super::scripts::RedissonScript;
use super::undo::UndoOnDrop;
use crate::compat::client::AcquireDecision;
use crate::compat::wait_ticket::PermitsEntry;

impl LimiterCalls {
    /// Takes the permits of the first entry if they are available, then those of the others in
    /// order, with a reply by `end`. Returns the decision on the first, and how many were taken.
    pub(crate) async fn take(
        &self,
        entries: &[PermitsEntry],
        end: Micros,
    ) -> Result<(AcquireDecision, usize), Error> {
        let permits: Vec<String> = entries.iter().map(|entry| entry.permits.to_string()).collect();
        let mut args: Vec<&[u8]> = Vec::with_capacity(2 * entries.len() + 1);
        for (entry, permits) in entries.iter().zip(&permits) {
            args.extend([permits.as_bytes(), &entry.id]);
        }
        args.insert(1, b"take");
        let undo = UndoOnDrop::new(self, entries.to_vec());
        let reply = undo.finish(self.run(RedissonScript::Take, &args, end).await)?;
        self.set_known_rate(&reply);
        let first = decision(entries[0].permits, &reply)?;
        if first.allowed() {
            return Ok((first, usize::try_from(u64_at(&reply, 2)?).unwrap_or(entries.len())));
        }
        if u64_at(&reply, 3)? == 1 {
            self.queue.set_shared(self.client.clock().elapsed());
        }
        Ok((first, 0))
    }

    /// The decision on `permits`, without taking them.
    pub(crate) async fn look(&self, permits: u32, end: Micros) -> Result<AcquireDecision, Error> {
        let count = permits.to_string();
        let args = [count.as_bytes(), b"look", &random_id()?];
        let reply = self.run(RedissonScript::Take, &args, end).await?;
        self.set_known_rate(&reply);
        decision(permits, &reply)
    }

    /// When to send the request again.
    pub(crate) fn retry_at(&self, taken: &AcquireDecision) -> Micros {
        self.after(taken.retry_after().unwrap_or_default().into())
    }
}

/// The id of an entry, of as many bytes as Redisson's. The last four are the same for all Rust
/// programs, which distinguishes their entries from those of Java.
pub(crate) fn random_id() -> Result<[u8; 16], EngineError> {
    let mut id = *b"____________RUST";
    getrandom::fill(&mut id[..12]).map_err(EngineError::unavailable)?;
    Ok(id)
}
