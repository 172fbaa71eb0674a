//! A check in the queue, and the caller that waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::EngineError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::connection::error::CallError;
use crate::protocol::reply::{GroupDecision, Status, engine_error};
use crate::protocol::request::{LimitCharge, ScriptRequest};

/// Which checks may share one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchMode {
    /// None: each check is sent alone, at once.
    Off,
    /// Checks of the same keys.
    SameKeys,
    All,
}

/// The reply to the group of a check, and the index of the check in the group, from 1.
pub(super) type CheckReply = Result<(Arc<Status<GroupDecision>>, u64), EngineError>;

/// A check: limits that are charged all or none, in one slot.
pub(super) struct QueuedCheck {
    pub(super) request: ScriptRequest,
    /// Set once, either when the check is sent or when its caller gives up.
    claimed: AtomicBool,
}

impl QueuedCheck {
    pub(super) fn new(request: ScriptRequest) -> Self {
        Self { request, claimed: AtomicBool::new(false) }
    }

    /// True for the first call only.
    pub(super) fn try_claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// Checks with the same key share a queue: all checks of one script if one server owns all
    /// keys, those of the same keys in a Cluster.
    pub(super) fn queue_key(&self, mode: BatchMode) -> u64 {
        let script = self.request.script as u64;
        match mode {
            BatchMode::All => script,
            _ => self.hashes().fold(script, |key, hash| key.rotate_left(1) ^ hash),
        }
    }

    /// The hash of each state.
    pub(super) fn hashes(&self) -> impl Iterator<Item = u64> {
        self.request.parts.iter().map(|part| part.hash)
    }

    pub(super) fn has_keys_of(&self, other: &Self) -> bool {
        let (one, other) = (&self.request, &other.request);
        let same = |(one, other): (&LimitCharge, &LimitCharge)| one.state == other.state;
        one.script == other.script
            && one.parts.len() == other.parts.len()
            && one.extra_keys == other.extra_keys
            && one.parts.iter().zip(&*other.parts).all(same)
    }

    /// Whether the script would decide both in the same way.
    pub(super) fn equals(&self, other: &Self) -> bool {
        let same = |(one, other): (&LimitCharge, &LimitCharge)| {
            Arc::ptr_eq(&one.limit, &other.limit)
                && one.cost == other.cost
                && one.caller == other.caller
        };
        self.has_keys_of(other)
            && self.request.guess == other.request.guess
            && self.request.parts.iter().zip(&*other.request.parts).all(same)
    }

    /// Whether it must not be grouped: each check of a queue limit gets its own delay.
    pub(super) fn must_be_sent_alone(&self) -> bool {
        self.request.parts.iter().any(|part| part.limit.limit().is_queue())
    }
}

/// Claims a check when dropped, so that a check without a caller is not sent.
pub(super) struct CancelOnDrop<'a>(pub(super) &'a QueuedCheck);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.try_claim();
    }
}

/// A check in a queue, with the channel to its caller.
pub(super) struct QueuedCaller {
    pub(super) check: Arc<QueuedCheck>,
    pub(super) until: Instant,
    pub(super) reply: oneshot::Sender<CheckReply>,
    pub(super) _permit: OwnedSemaphorePermit,
}

impl QueuedCaller {
    /// Reports to the caller that nothing was sent, unless it has given up.
    pub(super) fn reject(self, why: &CallError) {
        if self.check.try_claim() {
            let _ = self.reply.send(Err(engine_error(why.clone(), false)));
        }
    }
}
