//! A batch, taken from a queue in the order of arrival.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::said::Answers;
use super::{Check, Together, Told, Waiting};
use crate::link::{Fault, LinkError};
use crate::request::Beside;
use crate::script::Covers;
use crate::slot::Slot;

/// Checks for one script call.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) groups: Vec<Group>,
    /// The last group in which a state comes, by its mark.
    latest: HashMap<u64, usize>,
    weight: usize,
    callers: usize,
}

/// Checks that are equal, in the order of arrival.
pub(super) struct Group {
    pub(super) check: Arc<Check>,
    callers: Vec<oneshot::Sender<Told>>,
    until: Instant,
}

impl Batch {
    /// How much a script is given to do. A state weighs 1, and takes some 15 us of the server's time on
    /// a small machine: nobody else is served meanwhile, and it should not be for a millisecond.
    const MOST_WEIGHT: usize = 64;
    /// How many callers are told at once.
    const MOST_CALLERS: usize = 4_096;

    /// One check, whose caller waits for the answer himself.
    pub(super) fn of_one(check: Arc<Check>) -> Self {
        let group = Group { check, callers: Vec::new(), until: Instant::now() };
        Self { groups: vec![group], ..Self::default() }
    }

    /// As many as may come together, without those whose callers have gone or whose time is up.
    pub(super) fn take(queue: &mut VecDeque<Waiting>, together: Together) -> Self {
        let mut batch = Self::default();
        let now = Instant::now();
        while let Some(waiting) = queue.front() {
            let joins = batch.group_for(&waiting.check);
            let fits = match joins {
                Some(_) => batch.callers < Self::MOST_CALLERS,
                None => batch.has_room_for(&waiting.check, together),
            };
            if !fits {
                break;
            }
            let Some(waiting) = queue.pop_front() else { break };
            if waiting.until <= now {
                let fault = Fault("the deadline had passed already; allow more time".to_owned());
                waiting.dismiss(&LinkError::Down(fault.into()));
            } else if waiting.check.claim() {
                batch.add(waiting, joins);
            }
        }
        batch
    }

    /// The group of equal checks that this one can join: it must not overtake others that are about
    /// any of the same states.
    fn group_for(&self, check: &Check) -> Option<usize> {
        let place = *self.latest.get(check.marks.first()?)?;
        let is_last = check.marks.iter().all(|mark| self.latest.get(mark) == Some(&place));
        (is_last && !check.is_alone() && self.groups[place].check.equals(check)).then_some(place)
    }

    fn has_room_for(&self, check: &Check, together: Together) -> bool {
        let Some(first) = self.groups.first() else { return true };
        let same_keys = || first.check.states == check.states && first.check.beside == check.beside;
        self.weight + weight(check) <= Self::MOST_WEIGHT
            && (together == Together::Everything || same_keys())
    }

    fn add(&mut self, waiting: Waiting, joins: Option<usize>) {
        let Waiting { check, until, answer, .. } = waiting;
        self.callers += 1;
        if let Some(group) = joins.and_then(|place| self.groups.get_mut(place)) {
            group.callers.push(answer);
            group.until = group.until.max(until);
            return;
        }
        self.weight += weight(&check);
        self.latest.extend(check.marks.iter().map(|mark| (*mark, self.groups.len())));
        self.groups.push(Group { check, callers: vec![answer], until });
    }

    /// When the last of its callers gives up; none if it has none.
    pub(super) fn until(&self) -> Option<Instant> {
        self.groups.iter().map(|group| group.until).max()
    }

    pub(super) fn covers(&self) -> Covers {
        let parts = self.groups.iter().flat_map(|group| &group.check.parts);
        Covers::of(parts.map(|part| part.limit.limit().algorithm()))
    }

    /// Where its keys lie: all of them, unless one server has all slots.
    pub(super) fn slot(&self) -> Slot {
        self.groups.first().map_or_else(|| Slot::of(""), |group| group.check.slot())
    }

    /// Tells those who are not admitted: they need not wait for anybody.
    pub(super) fn tell_denied(&mut self, answers: &Answers) {
        for (place, group) in self.groups.iter_mut().enumerate() {
            let admitted = answers.admitted(place).min(group.callers.len());
            let denied = group.callers.drain(admitted..);
            for (nth, caller) in (admitted as u64 + 1..).zip(denied) {
                let _ = caller.send(answers.told(place, nth));
            }
        }
    }

    /// Tells every caller what was said about his check.
    pub(super) fn tell(self, answers: &Answers) {
        for (place, group) in self.groups.into_iter().enumerate() {
            for (nth, caller) in (1..).zip(group.callers) {
                // Whoever has gone needs no answer.
                let _ = caller.send(answers.told(place, nth));
            }
        }
    }
}

impl Group {
    /// How many checks it stands for.
    pub(super) fn times(&self) -> u64 {
        self.callers.len().max(1) as u64
    }
}

/// A log is searched, and holds may have to be looked at one by one.
fn weight(check: &Check) -> usize {
    let of_one = |beside: &Beside| {
        1 + 2 * usize::from(beside.has(Beside::LOG)) + 7 * usize::from(beside.has(Beside::HOLDS))
    };
    check.beside.iter().map(of_one).sum()
}
