//! Holds of which nobody heard: made perhaps, and nobody knows to settle them.

use std::time::Duration;

use tidegate::{Answer, Call, Cost, Decision, Engine, EngineError, HoldId, Op};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::engine::Redis;

/// A hold that is being asked for. If its call is dropped, or ends without an answer, the hold is
/// cancelled from a task of its own, should it have been made; without a runtime, or if Redis does
/// not answer that either, its deadline ends it. What an entry has charged beside it stays charged.
pub(crate) struct Unheard<'a> {
    engine: &'a Redis,
    id: Option<HoldId>,
}

impl<'a> Unheard<'a> {
    /// The pauses before each attempt to cancel. One more makes no sense to whoever is waiting for
    /// the permits: most holds have ended by then.
    const PAUSES: [Duration; 4] = [
        Duration::ZERO,
        Duration::from_millis(100),
        Duration::from_secs(1),
        Duration::from_secs(10),
    ];

    pub(crate) fn new(engine: &'a Redis, id: HoldId) -> Self {
        Self { engine, id: Some(id) }
    }

    /// Somebody knows how it ended, unless it is ambiguous.
    pub(crate) fn heard(mut self, answer: &Result<Decision, EngineError>) {
        if !matches!(answer, Err(EngineError::Ambiguous(_))) {
            self.id = None;
        }
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id, Handle::try_current()) else { return };
        let engine = self.engine.twin();
        runtime.spawn(async move {
            for pause in Self::PAUSES {
                sleep(pause).await;
                let op = Op::Settle { id, cost: Some(Cost::ZERO) };
                let Answer::Later(answer) = engine.decide(Call { op, charges: &[], once: None })
                else {
                    return;
                };
                // Cancelled; or never made, since what was sent before has been done before.
                if matches!(answer.await, Ok(_) | Err(EngineError::Refused(_))) {
                    return;
                }
            }
        });
    }
}
