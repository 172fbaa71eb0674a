//! What is under the gate's lock. Every instant is an argument.
//!
//! Only the first in the line of a key looks at the pause. Whoever leaves the line calls the next,
//! so that the end of a pause wakes one task and not all of them.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use tidegate::Micros;

use crate::client::Hint;
use crate::client::advice::Heard;
use crate::client::pause::{Pause, Ticket};

/// The hash of a key.
pub(super) type KeyHash = u64;

/// A call in the lists: those of one key stand together, the first to come before the others.
pub(super) type Place = (KeyHash, Ticket);

pub(super) struct State {
    pauses: HashMap<KeyHash, Pause>,
    max_pauses: usize,
    /// Those who wait at the gate.
    line: BTreeMap<Place, Waiter>,
    /// Those who wait for something else, and want to know when a pause begins.
    watching: BTreeMap<Place, Waker>,
    tickets: Ticket,
    /// To be woken when the lock is free.
    woken: Vec<Waker>,
}

struct Waiter {
    deadline: Micros,
    called: bool,
    waker: Option<Waker>,
}

/// What a call finds at the gate.
pub(super) enum Look {
    Go,
    Wait(Micros),
    Hold(Held),
}

/// A far side that is left alone for longer than a call may wait.
#[derive(Clone, Copy, Debug)]
pub(in crate::client) struct Held {
    pub(in crate::client) retry_after: Micros,
    pub(in crate::client) hint: Option<Hint>,
}

impl State {
    pub(super) fn new(max_pauses: usize) -> Self {
        Self {
            pauses: HashMap::new(),
            max_pauses,
            line: BTreeMap::new(),
            watching: BTreeMap::new(),
            tickets: 0,
            woken: Vec::new(),
        }
    }

    /// For the next to come.
    pub(super) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }

    /// Those to be woken when the lock is free.
    pub(super) fn woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// What a call finds that may wait until `deadline`. If it waits, it stands in line.
    pub(super) fn look(&mut self, place: Place, deadline: Micros, now: Micros) -> Look {
        let (key, ticket) = place;
        let is_first = self.first(key).is_none_or(|first| first >= ticket);
        let Some(pause) = self.pauses.get_mut(&key) else {
            self.leave_line(place);
            return Look::Go;
        };
        let opens = pause.opens(now);
        if is_first && opens <= now {
            pause.enter(ticket, now);
            self.leave_line(place);
            return Look::Go;
        }
        if pause.until() > deadline || now >= deadline {
            let held = Held { retry_after: opens.saturating_sub(now), hint: pause.hint() };
            self.leave_line(place);
            return Look::Hold(held);
        }
        let waiter =
            self.line.entry(place).or_insert(Waiter { deadline, called: false, waker: None });
        waiter.called = false;
        Look::Wait(if is_first { opens.min(deadline) } else { deadline })
    }

    /// Was the waiter called since it looked? If not, it will be by `waker`.
    pub(super) fn is_called(&mut self, place: Place, waker: &Waker) -> bool {
        let Some(waiter) = self.line.get_mut(&place) else { return true };
        waiter.waker = Some(waker.clone());
        waiter.called
    }

    /// Is there a pause? If not, `waker` will tell when one begins.
    pub(super) fn watch(&mut self, place: Place, now: Micros, waker: &Waker) -> bool {
        let paused = self.is_paused(place.0, now);
        if !paused {
            self.watching.insert(place, waker.clone());
        }
        paused
    }

    pub(super) fn stop_watching(&mut self, place: Place) {
        self.watching.remove(&place);
    }

    pub(super) fn is_paused(&self, key: KeyHash, now: Micros) -> bool {
        self.pauses.get(&key).is_some_and(|pause| pause.until() > now)
    }

    /// A call has come back with an answer.
    pub(super) fn returned(&mut self, place: Place, sent: Micros, heard: Heard) {
        let (key, ticket) = place;
        let nobody_waits = self.first(key).is_none();
        let Some(pause) = self.pauses.get_mut(&key) else { return };
        if heard.well {
            pause.forgive(sent);
        }
        let was_out = pause.release(ticket);
        if was_out && heard.well && heard.advice.is_none() {
            pause.widen();
            if nobody_waits {
                self.pauses.remove(&key);
            }
        }
        self.call_first(key);
    }

    /// Nobody calls `key` until `until`, or until later if that was said before.
    pub(super) fn pause(&mut self, key: KeyHash, until: Micros, hint: Option<Hint>, now: Micros) {
        if until <= now || !self.pause_of(key, now).lengthen(until, hint) {
            return;
        }
        while let Some((&place, _)) = self.watching.range(all_of(key)).next() {
            self.woken.extend(self.watching.remove(&place));
        }
        // Whoever cannot wait that long is told at once.
        for (_, waiter) in self.line.range_mut(all_of(key)).filter(|(_, w)| w.deadline < until) {
            waiter.called = true;
            self.woken.extend(waiter.waker.take());
        }
    }

    /// The pause of `key`, which may be none yet. To make room, those that are over are forgotten
    /// first, and then the one that ends next.
    pub(super) fn pause_of(&mut self, key: KeyHash, now: Micros) -> &mut Pause {
        if self.pauses.len() >= self.max_pauses && !self.pauses.contains_key(&key) {
            let is_over = |(_, pause): &(&KeyHash, &Pause)| pause.until() <= now;
            let mut forgotten: Vec<KeyHash> =
                self.pauses.iter().filter(is_over).map(|(key, _)| *key).collect();
            if forgotten.is_empty() {
                let next = self.pauses.iter().min_by_key(|(_, pause)| pause.until());
                forgotten.extend(next.map(|(key, _)| *key));
            }
            for key in forgotten {
                self.pauses.remove(&key);
                self.call_first(key);
            }
        }
        self.pauses.entry(key).or_insert_with(Pause::none)
    }

    /// The call is gone, wherever it was.
    pub(super) fn leave(&mut self, place: Place) {
        let (key, ticket) = place;
        self.stop_watching(place);
        self.leave_line(place);
        if self.pauses.get_mut(&key).is_some_and(|pause| pause.release(ticket)) {
            self.call_first(key);
        }
    }

    fn leave_line(&mut self, place: Place) {
        let was_first = self.first(place.0) == Some(place.1);
        if self.line.remove(&place).is_some() && was_first {
            self.call_first(place.0);
        }
    }

    fn first(&self, key: KeyHash) -> Option<Ticket> {
        self.line.range(all_of(key)).next().map(|((_, ticket), _)| *ticket)
    }

    /// Lets the first in line look again.
    fn call_first(&mut self, key: KeyHash) {
        if let Some((_, waiter)) = self.line.range_mut(all_of(key)).next() {
            waiter.called = true;
            self.woken.extend(waiter.waker.take());
        }
    }
}

fn all_of(key: KeyHash) -> std::ops::RangeInclusive<Place> {
    (key, Ticket::MIN)..=(key, Ticket::MAX)
}

#[cfg(test)]
impl State {
    /// Pauses, and entries in the two lists.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.pauses.len(), self.line.len(), self.watching.len())
    }

    /// How many in line were called and have not looked since.
    pub(super) fn called(&self) -> usize {
        self.line.values().filter(|waiter| waiter.called).count()
    }
}
