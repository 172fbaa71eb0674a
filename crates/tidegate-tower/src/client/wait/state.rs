//! Pauses and waiting calls, under the lock of the gate. Time is always an argument.
//!
//! Only the first call in the queue of a key checks the pause. A call that leaves the queue wakes
//! the next one, so the end of a pause wakes one task and not all of them.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use tidegate::Micros;

use crate::client::Hint;
use crate::client::advice::ResponseAdvice;
use crate::client::backoff::{Backoff, CallNumber};

/// The hash of a key.
pub(crate) type KeyHash = u64;

/// Position of a call in the lists: ordered by key, then by arrival.
pub(crate) type WaitPosition = (KeyHash, CallNumber);

pub(crate) struct PauseState {
    pauses: HashMap<KeyHash, Backoff>,
    max_pauses: usize,
    /// Calls that wait for the end of a pause.
    queue: BTreeMap<WaitPosition, PausedCall>,
    /// Calls that wait for a permit and are woken when a pause begins.
    watching: BTreeMap<WaitPosition, Waker>,
    last_number: CallNumber,
    /// To be woken after the lock is released.
    wakers: Vec<Waker>,
}

struct PausedCall {
    deadline: Micros,
    notified: bool,
    waker: Option<Waker>,
}

/// Whether a call may be sent.
pub(crate) enum PauseCheck {
    Send,
    Wait(Micros),
    TooLong(PausedTooLong),
}

/// An upstream that is paused for longer than a call may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PausedTooLong {
    pub(crate) retry_after: Micros,
    pub(crate) hint: Option<Hint>,
}

impl PauseState {
    pub(crate) fn new(max_pauses: usize) -> Self {
        Self {
            pauses: HashMap::new(),
            max_pauses,
            queue: BTreeMap::new(),
            watching: BTreeMap::new(),
            last_number: 0,
            wakers: Vec::new(),
        }
    }

    /// The number of the next call.
    pub(crate) fn next_number(&mut self) -> CallNumber {
        self.last_number += 1;
        self.last_number
    }

    /// The wakers to wake after the lock is released.
    pub(crate) fn wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// May the call be sent? If it has to wait, it is queued.
    pub(crate) fn check(
        &mut self,
        position: WaitPosition,
        deadline: Micros,
        now: Micros,
    ) -> PauseCheck {
        let (key, number) = position;
        let is_first = self.first(key).is_none_or(|first| first >= number);
        let Some(pause) = self.pauses.get_mut(&key) else {
            self.leave_queue(position);
            return PauseCheck::Send;
        };
        let next_call_at = pause.next_call_at(now);
        if is_first && next_call_at <= now {
            pause.start_call(number, now);
            self.leave_queue(position);
            return PauseCheck::Send;
        }
        if pause.until() > deadline || now >= deadline {
            let paused =
                PausedTooLong { retry_after: next_call_at.saturating_sub(now), hint: pause.hint() };
            self.leave_queue(position);
            return PauseCheck::TooLong(paused);
        }
        let waiting = self.queue.entry(position).or_insert(PausedCall {
            deadline,
            notified: false,
            waker: None,
        });
        waiting.notified = false;
        PauseCheck::Wait(if is_first { next_call_at.min(deadline) } else { deadline })
    }

    /// Was the call woken since its last check? If not, `waker` will be.
    pub(crate) fn is_notified(&mut self, position: WaitPosition, waker: &Waker) -> bool {
        let Some(waiting) = self.queue.get_mut(&position) else { return true };
        waiting.waker = Some(waker.clone());
        waiting.notified
    }

    /// Is there a pause? If not, `waker` is woken when one begins.
    pub(crate) fn watch(&mut self, position: WaitPosition, now: Micros, waker: &Waker) -> bool {
        let paused = self.is_paused(position.0, now);
        if !paused {
            self.watching.insert(position, waker.clone());
        }
        paused
    }

    pub(crate) fn stop_watching(&mut self, position: WaitPosition) {
        self.watching.remove(&position);
    }

    pub(crate) fn is_paused(&self, key: KeyHash, now: Micros) -> bool {
        self.pauses.get(&key).is_some_and(|pause| pause.until() > now)
    }

    /// Updates the backoff after a response.
    pub(crate) fn finished(
        &mut self,
        position: WaitPosition,
        sent: Micros,
        response: ResponseAdvice,
    ) {
        let (key, number) = position;
        let queue_is_empty = self.first(key).is_none();
        let Some(pause) = self.pauses.get_mut(&key) else { return };
        if response.served {
            pause.reset_streak(sent);
        }
        let was_in_flight = pause.release(number);
        if was_in_flight && response.served && response.advice.is_none() {
            pause.raise_limit();
            if queue_is_empty {
                self.pauses.remove(&key);
            }
        }
        self.wake_first(key);
    }

    /// Pauses calls to `key` until `until`, or until the end of the current pause if that is later.
    pub(crate) fn pause(&mut self, key: KeyHash, until: Micros, hint: Option<Hint>, now: Micros) {
        if until <= now || !self.backoff_of(key, now).lengthen(until, hint) {
            return;
        }
        while let Some((&position, _)) = self.watching.range(all_of(key)).next() {
            self.wakers.extend(self.watching.remove(&position));
        }
        // Calls that cannot wait that long fail at once.
        for (_, waiting) in self.queue.range_mut(all_of(key)).filter(|(_, w)| w.deadline < until) {
            waiting.notified = true;
            self.wakers.extend(waiting.waker.take());
        }
    }

    /// The backoff of `key`, created if there is none. To make room, pauses that are over are
    /// evicted first, and then the one that ends next.
    pub(crate) fn backoff_of(&mut self, key: KeyHash, now: Micros) -> &mut Backoff {
        if self.pauses.len() >= self.max_pauses && !self.pauses.contains_key(&key) {
            let is_over = |(_, pause): &(&KeyHash, &Backoff)| pause.until() <= now;
            let mut evicted: Vec<KeyHash> =
                self.pauses.iter().filter(is_over).map(|(key, _)| *key).collect();
            if evicted.is_empty() {
                let next = self.pauses.iter().min_by_key(|(_, pause)| pause.until());
                evicted.extend(next.map(|(key, _)| *key));
            }
            for key in evicted {
                self.pauses.remove(&key);
                self.wake_first(key);
            }
        }
        self.pauses.entry(key).or_insert_with(Backoff::none)
    }

    /// Removes the call from all lists.
    pub(crate) fn leave(&mut self, position: WaitPosition) {
        let (key, number) = position;
        self.stop_watching(position);
        self.leave_queue(position);
        if self.pauses.get_mut(&key).is_some_and(|pause| pause.release(number)) {
            self.wake_first(key);
        }
    }

    fn leave_queue(&mut self, position: WaitPosition) {
        let was_first = self.first(position.0) == Some(position.1);
        if self.queue.remove(&position).is_some() && was_first {
            self.wake_first(position.0);
        }
    }

    fn first(&self, key: KeyHash) -> Option<CallNumber> {
        self.queue.range(all_of(key)).next().map(|((_, number), _)| *number)
    }

    /// Lets the first call in the queue check again.
    fn wake_first(&mut self, key: KeyHash) {
        if let Some((_, waiting)) = self.queue.range_mut(all_of(key)).next() {
            waiting.notified = true;
            self.wakers.extend(waiting.waker.take());
        }
    }
}

fn all_of(key: KeyHash) -> std::ops::RangeInclusive<WaitPosition> {
    (key, CallNumber::MIN)..=(key, CallNumber::MAX)
}

#[cfg(test)]
impl PauseState {
    /// Number of pauses, of queued calls, and of watching calls.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        (self.pauses.len(), self.queue.len(), self.watching.len())
    }

    /// Number of queued calls that were woken and have not checked since.
    pub(crate) fn notified(&self) -> usize {
        self.queue.values().filter(|waiting| waiting.notified).count()
    }
}
