//! A batch, taken from a queue in order of arrival, and its groups of equal checks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tidegate::EngineError;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::check::{BatchMode, CheckReply, QueuedCaller, QueuedCheck};
use crate::connection::error::CallError;
use crate::protocol::reply::{GroupReply, malformed_reply};
use crate::protocol::request::{CheckScript, ExtraKeys, ScriptRequest};
use crate::protocol::scripts::{Script, ScriptVariant, lean, lean_log};
use crate::topology::hash_slot::HashSlot;

/// Checks for one script call.
#[derive(Default)]
pub(super) struct Batch {
    groups: Vec<CheckGroup>,
    /// The index of the last group with a state, by the hash of the state.
    latest: HashMap<u64, usize>,
    weight: usize,
    callers: usize,
}

/// Equal checks, in order of arrival.
struct CheckGroup {
    check: Arc<QueuedCheck>,
    callers: Vec<oneshot::Sender<CheckReply>>,
    until: Instant,
}

impl Batch {
    /// The most work for one script call. A state that `lean.lua` decides weighs 1, and takes about
    /// 4 us of the server's time on a small machine. No other client is served meanwhile, so it
    /// should take less than a millisecond.
    const MAX_BATCH_WEIGHT: usize = 256;
    /// The most callers that one task replies to at once.
    const MAX_BATCH_CALLERS: usize = 4_096;

    /// One check, whose caller sends the batch itself.
    pub(super) fn of_one(check: Arc<QueuedCheck>) -> Self {
        let group = CheckGroup { check, callers: Vec::new(), until: Instant::now() };
        Self { groups: vec![group], ..Self::default() }
    }

    /// Takes as many checks as one call may have. Skips those whose caller has given up, and
    /// rejects those whose deadline has passed.
    pub(super) fn take(queue: &mut VecDeque<QueuedCaller>, mode: BatchMode) -> Self {
        let mut batch = Self::default();
        let now = Instant::now();
        while let Some(queued) = queue.front() {
            let joins = batch.group_for(&queued.check);
            let fits = match joins {
                Some(_) => batch.callers < Self::MAX_BATCH_CALLERS,
                None => batch.has_room_for(&queued.check, mode),
            };
            if !fits {
                break;
            }
            let Some(queued) = queue.pop_front() else { break };
            if queued.until <= now {
                queued.reject(&CallError::not_sent("the deadline had already passed; raise it"));
            } else if queued.check.try_claim() {
                batch.add(queued, joins);
            }
        }
        batch
    }

    /// The group of equal checks that this one can join. It must not overtake checks of other
    /// groups with any of the same states.
    fn group_for(&self, check: &QueuedCheck) -> Option<usize> {
        let index = *self.latest.get(&check.hashes().next()?)?;
        let is_last = check.hashes().all(|hash| self.latest.get(&hash) == Some(&index));
        (is_last && !check.must_be_sent_alone() && self.groups[index].check.equals(check))
            .then_some(index)
    }

    fn has_room_for(&self, check: &QueuedCheck, mode: BatchMode) -> bool {
        let Some(first) = self.groups.first() else { return true };
        self.weight + weight(check) <= Self::MAX_BATCH_WEIGHT
            && (mode == BatchMode::All || first.check.has_keys_of(check))
    }

    fn add(&mut self, queued: QueuedCaller, joins: Option<usize>) {
        let QueuedCaller { check, until, reply, .. } = queued;
        self.callers += 1;
        if let Some(group) = joins.and_then(|index| self.groups.get_mut(index)) {
            group.callers.push(reply);
            group.until = group.until.max(until);
            return;
        }
        self.weight += weight(&check);
        self.latest.extend(check.hashes().map(|hash| (hash, self.groups.len())));
        self.groups.push(CheckGroup { check, callers: vec![reply], until });
    }

    /// The latest deadline of its callers; None if it is empty.
    pub(super) fn until(&self) -> Option<Instant> {
        self.groups.iter().map(|group| group.until).max()
    }

    /// How many equal checks each group has, and one of them.
    pub(super) fn groups(&self) -> impl ExactSizeIterator<Item = (u64, &ScriptRequest)> + Clone {
        self.groups
            .iter()
            .map(|CheckGroup { check, callers, .. }| (callers.len().max(1) as u64, &check.request))
    }

    pub(super) fn decided_by(&self) -> CheckScript {
        self.groups.first().map_or(CheckScript::General, |group| group.check.request.script)
    }

    pub(super) fn script(&self) -> &'static Script {
        let parts = self.groups.iter().flat_map(|group| &*group.check.request.parts);
        match self.decided_by() {
            CheckScript::General => ScriptVariant::of_parts(parts).checks(),
            CheckScript::Lean => lean(),
            CheckScript::LeanLog => lean_log(),
        }
    }

    /// The slot of all its keys; any slot if one server owns all of them.
    pub(super) fn slot(&self) -> HashSlot {
        self.groups.first().map_or_else(|| HashSlot::of(""), |group| group.check.request.slot())
    }

    /// Replies to the callers of each group, from the index that `first` returns on.
    pub(super) fn deliver(&mut self, replies: &BatchReply, first: impl Fn(usize) -> usize) {
        for (index, CheckGroup { callers, .. }) in self.groups.iter_mut().enumerate() {
            let first = first(index).min(callers.len());
            for (nth, caller) in (first as u64 + 1..).zip(callers.drain(first..)) {
                // Fails if the caller has given up.
                let _ = caller.send(replies.reply_for(index, nth));
            }
        }
    }
}

/// The replies to the groups of a batch.
pub(super) struct BatchReply {
    pub(super) groups: Vec<GroupReply>,
    /// `Ok` if replicas have confirmed the charges, or need not.
    pub(super) confirmed: Result<(), EngineError>,
}

impl BatchReply {
    pub(super) fn any_admitted(&self) -> bool {
        (0..self.groups.len()).any(|index| self.admitted(index) > 0)
    }

    /// How many checks of a group are admitted: the first ones.
    pub(super) fn admitted(&self, index: usize) -> usize {
        match self.groups.get(index) {
            Some(Ok(reply)) => usize::try_from(reply.admitted()).unwrap_or(usize::MAX),
            _ => 0,
        }
    }

    /// The reply to the `nth` check of a group. An admitted one fails if it is not confirmed.
    pub(super) fn reply_for(&self, index: usize, nth: u64) -> CheckReply {
        let reply = self.groups.get(index).cloned().unwrap_or_else(|| Err(malformed_reply(false)));
        let reply = reply?;
        if nth <= reply.admitted() {
            self.confirmed.clone()?;
        }
        Ok((reply, nth))
    }
}

/// Logs are searched, and holds may have to be read one by one, so they weigh more.
fn weight(check: &QueuedCheck) -> usize {
    const LEAN_LOG: usize = 3;
    const GENERAL: usize = 4;
    match check.request.script {
        CheckScript::General => {}
        CheckScript::Lean => return check.request.parts.len(),
        CheckScript::LeanLog => return LEAN_LOG,
    }
    let of_one = |extra: &ExtraKeys| {
        1 + 2 * usize::from(extra.has(ExtraKeys::LOG))
            + 7 * usize::from(extra.has(ExtraKeys::HOLDS))
    };
    GENERAL * check.request.extra_keys.iter().map(of_one).sum::<usize>()
}
