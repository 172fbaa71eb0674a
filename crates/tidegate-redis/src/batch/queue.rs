//! Queues of checks, and the permits to send them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::check::{BatchMode, QueuedCaller};
use super::group::Batch;
use super::round_trip::RoundTrip;
use crate::connection::error::CallError;
use crate::topology::hash_slot::HashSlot;

/// All queues that are not empty or have a send permit.
#[derive(Default)]
pub(super) struct SendQueues {
    queues: Mutex<HashMap<u64, SendQueue>>,
    next_id: AtomicU64,
    pub(super) round_trip: RoundTrip,
}

#[derive(Default)]
struct SendQueue {
    queued: VecDeque<QueuedCaller>,
    permits: Vec<SendPermit>,
}

/// The right to send. It ends with the deadline of the calls in flight: a future that is no longer
/// polled, or whose runtime is stuck, must not block the queue.
struct SendPermit {
    id: u64,
    until: Instant,
}

/// What a new caller must do.
pub(super) enum QueueAdmission {
    /// Send its own check, and then end the permit.
    Now(SendPermitId),
    /// Queued. Start a task that sends the queue, which has lost its senders.
    Next(SendPermitId),
    Later,
    /// Rejected: the queue is full. With a permit, start a task that sends the queue.
    QueueFull(Option<SendPermitId>),
}

#[derive(Clone, Copy)]
pub(super) struct SendPermitId {
    queue: u64,
    id: u64,
}

impl SendQueues {
    /// Admits a caller. `queued` makes the entry of the queue if it must wait, or None if there are
    /// too many.
    pub(super) fn admit(
        &self,
        key: u64,
        until: Instant,
        queued: impl FnOnce() -> Option<QueuedCaller>,
    ) -> QueueAdmission {
        let mut queues = self.lock();
        let queue = queues.entry(key).or_default();
        let max_in_flight = self.round_trip.max_in_flight();
        if queue.permits.len() >= max_in_flight {
            let now = Instant::now();
            queue.permits.retain(|permit| now < permit.until);
        }
        if queue.permits.len() >= max_in_flight {
            let Some(queued) = queued() else { return QueueAdmission::QueueFull(None) };
            queue.queued.push_back(queued);
            return QueueAdmission::Later;
        }
        let permit = SendPermitId { queue: key, id: self.next_id.fetch_add(1, Ordering::Relaxed) };
        queue.permits.push(SendPermit { id: permit.id, until });
        if queue.queued.is_empty() {
            return QueueAdmission::Now(permit);
        }
        let Some(queued) = queued() else { return QueueAdmission::QueueFull(Some(permit)) };
        queue.queued.push_back(queued);
        QueueAdmission::Next(permit)
    }

    /// The slot and the deadline of the last queued check. Extends the permit until then.
    pub(super) fn last_queued(&self, permit: SendPermitId) -> Option<(HashSlot, Instant)> {
        let mut queues = self.lock();
        let queue = queues.get_mut(&permit.queue)?;
        let last = queue.queued.back()?;
        let (slot, until) = (last.check.request.slot(), last.until);
        queue.extend(permit.id, until);
        Some((slot, until))
    }

    /// Takes the next batch; empty if no check is queued. Extends the permit until its deadline.
    pub(super) fn next_batch(&self, permit: SendPermitId, mode: BatchMode) -> Batch {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(&permit.queue) else { return Batch::default() };
        let batch = Batch::take(&mut queue.queued, mode);
        if let Some(until) = batch.until() {
            queue.extend(permit.id, until);
        }
        batch
    }

    /// Rejects the queued checks whose deadline has passed.
    pub(super) fn reject_late(&self, permit: SendPermitId, why: &CallError) {
        let now = Instant::now();
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(&permit.queue) else { return };
        let (late, rest) = queue.queued.drain(..).partition(|queued| queued.until <= now);
        queue.queued = rest;
        drop(queues);
        VecDeque::into_iter(late).for_each(|queued| queued.reject(why));
    }

    /// Ends a permit if the queue is empty. False if the permit stays, to send the rest.
    pub(super) fn end_if_empty(&self, permit: SendPermitId) -> bool {
        let mut queues = self.lock();
        let is_empty = queues.get(&permit.queue).is_none_or(|queue| queue.queued.is_empty());
        if is_empty {
            end(&mut queues, permit);
        }
        is_empty
    }

    pub(super) fn end(&self, permit: SendPermitId) {
        end(&mut self.lock(), permit);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, SendQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(queues: &mut HashMap<u64, SendQueue>, permit: SendPermitId) {
    let Some(queue) = queues.get_mut(&permit.queue) else { return };
    queue.permits.retain(|other| other.id != permit.id);
    if queue.permits.is_empty() && queue.queued.is_empty() {
        queues.remove(&permit.queue);
    }
}

impl SendQueue {
    /// Extends a permit, even if it had expired.
    fn extend(&mut self, id: u64, until: Instant) {
        match self.permits.iter_mut().find(|permit| permit.id == id) {
            Some(permit) => permit.until = until,
            None => self.permits.push(SendPermit { id, until }),
        }
    }
}
