//! Ends holds whose reply was lost: they may exist, and only this process knows their ids.

use std::sync::Arc;
use std::time::Duration;

use tidegate::EngineError;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::connection::timing::join_all;
use crate::executor::ScriptExecutor;
use crate::protocol::reply::ScriptDecision;
use crate::protocol::request::{ScriptOp, ScriptRequest};

/// How to end the holds that a call makes: drop or charge them. The endings that are left when this
/// is dropped, because the call was dropped or had no reply, run in a background task. Without a
/// runtime, or if Redis does not reply to these either, the holds expire. Charges of an entry
/// besides its concurrency slots stay.
pub(crate) struct AbandonedHolds<'a> {
    executor: &'a ScriptExecutor,
    /// Limits the background tasks.
    cleanup: &'a Arc<Semaphore>,
    /// One for each of the call's holds; `None` once there is nothing left to do.
    endings: Vec<Option<ScriptRequest>>,
}

/// The reply to the ending of a hold; None if there was nothing to do.
pub(crate) type EndingReply = Option<Result<ScriptDecision, EngineError>>;

impl<'a> AbandonedHolds<'a> {
    /// The most background tasks of an engine. Beyond that, holds expire.
    pub(crate) const MAX_CLEANUP_TASKS: usize = 1_024;
    /// The pauses before each attempt. More attempts would be useless: most holds have expired by
    /// then.
    const PAUSES: [Duration; 4] = [
        Duration::ZERO,
        Duration::from_millis(100),
        Duration::from_secs(1),
        Duration::from_secs(10),
    ];

    pub(crate) fn new(
        executor: &'a ScriptExecutor,
        cleanup: &'a Arc<Semaphore>,
        endings: Vec<Option<ScriptRequest>>,
    ) -> Self {
        Self { executor, cleanup, endings }
    }

    /// Replaces the ending of the hold at `index`.
    pub(super) fn set(&mut self, index: usize, ending: Option<ScriptRequest>) {
        self.endings[index] = ending;
    }

    /// Keeps all holds that would be dropped: the caller ends them.
    pub(super) fn keep_remaining(&mut self) {
        for ending in &mut self.endings {
            ending.take_if(|ending| !charges(ending));
        }
    }

    /// Leaves all holds to expire.
    pub(crate) fn disarm(&mut self) {
        self.endings.fill(None);
    }

    /// Runs all endings concurrently.
    pub(super) async fn drop_all(&mut self, until: Instant) -> Vec<EndingReply> {
        self.end(until, |_| true).await
    }

    /// Runs the endings that charge, concurrently.
    pub(super) async fn charge_all(&mut self, until: Instant) -> Vec<EndingReply> {
        self.end(until, charges).await
    }

    async fn end(
        &mut self,
        until: Instant,
        is_due: impl Fn(&ScriptRequest) -> bool,
    ) -> Vec<EndingReply> {
        let executor = self.executor;
        let due = self.endings.iter().map(|ending| {
            let ending = ending.clone().filter(|ending| is_due(ending));
            async move { Some(executor.request(ending?, until).await) }
        });
        let ended = join_all(due.collect()).await;
        // Commands on one connection execute in order. But a hold that must be confirmed was sent
        // on another connection, and may execute later.
        let in_order = executor.sender.router.replicas_to_confirm() == 0;
        for (ending, reply) in self.endings.iter_mut().zip(&ended) {
            let is_over = match reply {
                Some(Ok(_)) => true,
                Some(Err(error)) => in_order && error.refusal().is_some(),
                None => false,
            };
            if is_over {
                *ending = None;
            }
        }
        ended
    }
}

impl Drop for AbandonedHolds<'_> {
    fn drop(&mut self) {
        let endings = std::mem::take(&mut self.endings);
        let Ok(runtime) = Handle::try_current() else { return };
        if endings.iter().all(Option::is_none) {
            return;
        }
        // Without the limit, a server that never replies in time would cause one task per call.
        let Ok(permit) = Arc::clone(self.cleanup).try_acquire_owned() else { return };
        let (executor, cleanup) = (self.executor.clone(), Arc::clone(self.cleanup));
        runtime.spawn(async move {
            let _permit = permit;
            let mut holds = AbandonedHolds::new(&executor, &cleanup, endings);
            for pause in Self::PAUSES {
                sleep(pause).await;
                holds.end(executor.sender.router.deadline(), |_| true).await;
                if holds.endings.iter().all(Option::is_none) {
                    return;
                }
            }
            holds.disarm();
        });
    }
}

/// Whether an ending charges its hold, and does not drop it.
fn charges(ending: &ScriptRequest) -> bool {
    ending.op == ScriptOp::Settle
}

/// Whether nothing is left of the holds. A hold that expired before may have been charged.
pub(super) fn all_ended(ended: &[EndingReply]) -> bool {
    let expired = |ended: &EndingReply| matches!(ended, Some(Ok(reply)) if reply.expired);
    ended.iter().all(|ended| no_reply(ended).is_none() && !expired(ended))
}

/// Why a hold may still exist; None if it has ended.
pub(super) fn no_reply(ended: &EndingReply) -> Option<EngineError> {
    match ended {
        Some(Err(error)) if error.refusal().is_none() => Some(error.clone()),
        _ => None,
    }
}
