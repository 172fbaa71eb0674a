//! Several limits on one state, as in Redis: an entry for each limit in use. The section "Several
//! limits on one key" of `docs/understand/algorithms.md`.

use std::collections::HashMap;

use tidegate_core::Expiry;

use crate::Spec;
use crate::cell::{Caller, CellEvent, CellState, ModelHold, rebase_holds, renew_hold, take_ended};
use crate::consumption::{Consumption, ModelEntry, Terms, newest};

const MAX_ENTRIES: usize = 3;

/// One state that calls with different limits share.
#[derive(Clone, Debug)]
pub struct EntriesCell {
    class: SharingClass,
    /// The limit of the next call.
    present: Terms,
    /// In the order in which they were added.
    entries: Vec<LimitEntry>,
    holds: Vec<ModelHold>,
    /// The limit under which each hold was made, or reported last.
    reported_under: HashMap<u128, Terms>,
}

/// Where the limits of a state come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharingClass {
    /// From policies: each limit in use has an entry.
    Policies,
    /// From calls: one entry, of the limit that charged last.
    Calls,
}

/// The consumption as one limit counts it.
#[derive(Clone, Debug)]
struct LimitEntry {
    terms: Terms,
    consumption: Option<Consumption>,
    /// The last call of this limit. Not stored, and without meaning, in a single entry.
    seen: i128,
}

/// The entry under which a call is decided, by index.
#[derive(Clone, Copy)]
enum DecidingEntry {
    Own(usize),
    /// The limit of the call has none.
    Other(usize),
}

impl EntriesCell {
    pub fn new(spec: Spec, class: SharingClass) -> Self {
        let (present, reported_under) = (Terms::new(spec), HashMap::new());
        Self { class, present, entries: Vec::new(), holds: Vec::new(), reported_under }
    }

    /// Sets the limit of the next call.
    pub fn set_limit(&mut self, spec: Spec) {
        self.present = Terms::new(spec);
    }

    /// The number of limits that have an entry.
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// Has this limit an entry?
    pub fn has_entry(&self, spec: Spec) -> bool {
        let terms = Terms::new(spec);
        self.entries.iter().any(|entry| entry.terms.is_same(&terms))
    }

    /// Is nothing used or held by any limit?
    pub fn is_unused(&self, now: i128) -> bool {
        let cell = self.found_at(now);
        cell.entries.is_empty() && cell.holds.is_empty()
    }

    /// The cell as a call finds it.
    pub fn at(&self, now: i128) -> CellState {
        let mut cell = self.found_at(now);
        let deciding = cell.admit(now);
        cell.view(deciding, now)
    }

    /// The cell as a call finds it that settles, renews or extends a hold.
    pub fn at_hold(&self, id: u128, now: i128) -> CellState {
        let mut cell = self.found_at(now);
        let deciding = DecidingEntry::Own(cell.entry_of_hold(id, now));
        cell.view(deciding, now)
    }

    fn found_at(&self, now: i128) -> Self {
        let mut cell = self.clone();
        cell.rebase(now);
        cell.expire(now);
        cell
    }

    fn view(&self, deciding: DecidingEntry, now: i128) -> CellState {
        let (index, caller) = match deciding {
            DecidingEntry::Own(index) => (index, None),
            DecidingEntry::Other(index) => (index, Some(self.caller(now))),
        };
        let LimitEntry { terms, ref consumption, .. } = self.entries[index];
        let (consumption, holds) = (consumption.clone(), self.holds.clone());
        let other_log = self.other_log(index, now);
        CellState { now, terms, consumption, holds, was_ahead: false, caller, other_log }
    }

    /// Of the logs beside this one, the one with the most permits.
    fn other_log(&self, index: usize, now: i128) -> Option<(Terms, Consumption)> {
        let permits = |entry: &LimitEntry| {
            permits_of(&entry.terms.kept_log(entry.consumption.as_ref(), now).0)
        };
        let others = self.entries.iter().enumerate().filter(|(other, _)| *other != index);
        let logs = others.map(|(_, entry)| entry).filter(|entry| entry.logged().is_some());
        let log = logs.max_by_key(|entry| permits(entry))?;
        self.entries[index].is_log().then(|| (log.terms, log.consumption.clone().unwrap()))
    }

    fn caller(&self, now: i128) -> Caller {
        if self.class == SharingClass::Calls {
            return Caller { terms: self.present, takes_over: true, room_after: 0 };
        }
        let ends = self.entries.iter().map(|entry| entry.seen + 2 * entry.terms.recovery());
        let room_after = ends.min().unwrap_or(now) - now;
        Caller { terms: self.present, takes_over: false, room_after }
    }

    /// Moves what was written after `now` to `now`. Every call stores it.
    pub fn rebase(&mut self, now: i128) {
        rebase_holds(&mut self.holds, now);
        let is_ahead = |entry: &LimitEntry| {
            let consumption = entry.consumption.as_ref();
            consumption.is_some_and(|consumption| entry.terms.is_ahead(consumption, now))
        };
        // There is one log for all.
        if self.entries.iter().any(|entry| entry.is_log() && is_ahead(entry)) {
            let begins = |entry: &LimitEntry| Some(entry.terms.begins_at(newest(entry.logged()?)?));
            let offset = self.entries.iter().filter_map(begins).max().unwrap() - now;
            self.entries.iter_mut().for_each(|entry| entry.set_offset(offset));
        }
        for entry in &mut self.entries {
            if !entry.is_log() && is_ahead(entry) {
                entry.terms.rebase(entry.consumption.as_mut().unwrap(), now);
            }
            entry.seen = entry.seen.min(now);
        }
    }

    /// Time passes until `now`. A state of which nothing is used or held has no entries.
    fn expire(&mut self, now: i128) {
        while let Some(ended) = take_ended(&mut self.holds, now) {
            if ended.expiry == Expiry::Charge {
                self.charge(ended.deadline, ended.cost);
            }
        }
        if self.holds.is_empty() && self.entries.iter().all(|entry| entry.used(now) == 0) {
            self.entries.clear();
        }
    }

    /// A call that charges nothing: a denied one, or one without a cost. Not a peek.
    pub fn touch(&mut self, now: i128) {
        let mut written = self.clone();
        written.expire(now);
        if written.entries.is_empty() || self.class == SharingClass::Calls {
            return;
        }
        let is_written = match written.own() {
            Some(own) => {
                let LimitEntry { terms, seen, .. } = &written.entries[own];
                written.entries.len() > 1 && 2 * (now - seen) > terms.recovery()
            }
            None => matches!(written.admit(now), DecidingEntry::Own(_)),
        };
        if is_written {
            written.forget_unused(now);
            written.store(now, Some(written.present));
            *self = written;
        }
    }

    /// A call that has this effect.
    pub fn apply(&mut self, now: i128, event: CellEvent) {
        self.expire(now);
        self.forget_unused(now);
        let by = match event {
            CellEvent::Settle { id, .. } | CellEvent::Renew { id, .. } => {
                let reported = self.entry_of_hold(id, now);
                // The same, if nothing is left.
                let terms = self.entries[reported].terms;
                self.reported_under.insert(id, terms);
                terms
            }
            _ => self.present,
        };
        match event {
            CellEvent::Charge(cost) => {
                self.take_over(now);
                self.charge(now, cost);
            }
            CellEvent::Record(cost) => {
                self.admit_write(now);
                self.charge(now, cost);
            }
            CellEvent::Hold(hold) => {
                self.take_over(now);
                self.reported_under.insert(hold.id, self.present);
                self.holds.push(hold);
            }
            CellEvent::Refund(cost) => {
                self.admit_write(now);
                for entry in &mut self.entries {
                    entry.terms.refund(&mut entry.consumption, now, cost);
                }
            }
            CellEvent::Reset => {
                self.entries = vec![LimitEntry::new(self.present, now)];
                self.holds.retain(|hold| hold.expiry == Expiry::Charge);
            }
            CellEvent::Settle { id, due } => {
                self.holds.retain(|hold| hold.id != id);
                self.charge(now, due);
            }
            CellEvent::Renew { id, cost, ttl } => renew_hold(&mut self.holds, now, id, cost, ttl),
            CellEvent::Change(_) | CellEvent::Rebased => unreachable!("no effect on entries"),
        }
        let is_call = !matches!(event, CellEvent::Settle { .. } | CellEvent::Renew { .. });
        self.store(now, is_call.then_some(by));
        if !is_call {
            self.drop_out_of_use(now, &by);
        }
    }

    /// The entry that a settled hold is reported under: the one whose limit was called last, among
    /// equals the newest. An unused cell gets one of the limit that the hold was made under.
    fn entry_of_hold(&mut self, id: u128, now: i128) -> usize {
        if self.entries.is_empty() {
            let made = self.reported_under.get(&id).copied().unwrap_or(self.present);
            self.entries.push(LimitEntry::new(made, now));
        }
        (0..self.entries.len()).max_by_key(|&index| self.entries[index].seen).unwrap()
    }

    fn own(&self) -> Option<usize> {
        self.entries.iter().position(|entry| entry.terms.is_same(&self.present))
    }

    /// The entry that a new limit begins with, and is decided under while there is no room for its
    /// own: the one with the largest capacity, for a log that of a log if there is one. Among
    /// equals the oldest, not the one with more used, which may be another one when a denied call
    /// comes back.
    fn source(&self) -> usize {
        let is_log = |entry: &LimitEntry| entry.is_log();
        let only_logs = self.present.spec.is_log() && self.entries.iter().any(is_log);
        let capacity = |index: usize| self.entries[index].terms.spec.capacity();
        let indices = (0..self.entries.len()).rev();
        let indices = indices.filter(|&index| !only_logs || is_log(&self.entries[index]));
        indices.max_by_key(|&index| capacity(index)).unwrap()
    }

    /// Finds the entry that decides about a call, and adds that of a new limit.
    fn admit(&mut self, now: i128) -> DecidingEntry {
        if let Some(own) = self.own() {
            return DecidingEntry::Own(own);
        }
        if self.entries.is_empty() {
            self.entries.push(LimitEntry::new(self.present, now));
            return DecidingEntry::Own(0);
        }
        let source = self.source();
        if self.class == SharingClass::Calls {
            return DecidingEntry::Other(source);
        }
        if let [single] = &mut self.entries[..] {
            single.seen = now;
        }
        if self.entries.iter().filter(|entry| entry.is_in_use(now)).count() == MAX_ENTRIES {
            return DecidingEntry::Other(source);
        }
        let consumption = self.derived(now);
        let present = self.present;
        self.entries.retain(|entry| entry.is_in_use(now));
        self.entries.push(LimitEntry { terms: present, consumption, seen: now });
        // The newest of a log may be after now by a finer precision.
        self.rebase(now);
        DecidingEntry::Own(self.entries.len() - 1)
    }

    /// As [`admit`](Self::admit), for a call that writes: what a new limit counts as recovered is
    /// not stored, so that a clock step back does not count it again.
    fn admit_write(&mut self, now: i128) -> DecidingEntry {
        let deciding = self.admit(now);
        self.forget_unused(now);
        deciding
    }

    /// The consumption that a new limit begins with.
    fn derived(&self, now: i128) -> Option<Consumption> {
        let LimitEntry { terms, consumption, .. } = &self.entries[self.source()];
        if !self.present.spec.is_log() || !terms.spec.is_log() {
            return self.present.carry(terms, consumption.clone(), now);
        }
        if self.present.spec.capacity() == 0 {
            return None;
        }
        // There is one log for all, and nothing is cut.
        let (entries, offset) = terms.kept_log(consumption.as_ref(), now);
        (!entries.is_empty()).then_some(Consumption::Log { entries, offset })
    }

    /// As [`admit`](Self::admit), for a call that is allowed: the single entry of limits that come
    /// with calls becomes that of the caller's.
    fn take_over(&mut self, now: i128) {
        let DecidingEntry::Other(index) = self.admit_write(now) else { return };
        if self.class == SharingClass::Calls {
            let LimitEntry { terms, consumption, .. } = self.entries.remove(index);
            let consumption = self.present.carry(&terms, consumption, now);
            self.entries.push(LimitEntry { terms: self.present, consumption, seen: now });
        }
    }

    fn charge(&mut self, now: i128, cost: i128) {
        if cost == 0 {
            return;
        }
        let logs: Vec<Terms> =
            self.entries.iter().filter(|e| e.is_log()).map(|entry| entry.terms).collect();
        let kept = |entry: &LimitEntry| entry.terms.kept_log(entry.consumption.as_ref(), now);
        let shared = self.entries.iter().filter(|entry| entry.is_log()).map(kept);
        let shared = shared.max_by_key(|(entries, _)| permits_of(entries));
        let (last, offset) = match &shared {
            Some((entries, offset)) => match entries.last() {
                Some(last) => (Some(last.instant), *offset),
                // An empty log has no offset.
                None => (None, 0),
            },
            None => (None, 0),
        };
        let mut instant = now + offset;
        let is_one = |terms: &Terms, last| terms.begins_at(last) == terms.begins_at(instant);
        let joins = last.is_some_and(|last| logs.iter().all(|terms| is_one(terms, last)));
        if joins {
            instant = instant.max(last.unwrap());
        }
        for entry in &mut self.entries {
            if entry.is_log() && entry.terms.spec.capacity() > 0 {
                let (entries, _) = entry.terms.kept_log(entry.consumption.as_ref(), now);
                let log = entry.terms.charge_log(entries, instant, offset, cost, joins);
                entry.consumption = Some(log);
            } else {
                entry.terms.charge(&mut entry.consumption, now, cost);
            }
        }
    }

    fn forget_unused(&mut self, now: i128) {
        for entry in &mut self.entries {
            if entry.used(now) == 0 {
                entry.consumption = None;
            }
        }
    }

    /// The end of a write, which a call of the limit `by` made.
    fn store(&mut self, now: i128, by: Option<Terms>) {
        let Some(by) = by else { return };
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.terms.is_same(&by)) {
            entry.seen = now;
        }
        self.drop_out_of_use(now, &by);
    }

    fn drop_out_of_use(&mut self, now: i128, except: &Terms) {
        if self.entries.len() > 1 {
            self.entries.retain(|entry| entry.is_in_use(now) || entry.terms.is_same(except));
        }
    }
}

impl LimitEntry {
    fn new(terms: Terms, seen: i128) -> Self {
        Self { terms, consumption: None, seen }
    }

    fn used(&self, now: i128) -> i128 {
        self.terms.used(self.consumption.as_ref(), now)
    }

    fn is_log(&self) -> bool {
        self.terms.spec.is_log()
    }

    fn logged(&self) -> Option<&[ModelEntry]> {
        match &self.consumption {
            Some(Consumption::Log { entries, .. }) => Some(entries),
            _ => None,
        }
    }

    fn set_offset(&mut self, to: i128) {
        if let Some(Consumption::Log { offset, .. }) = &mut self.consumption {
            *offset = to;
        }
    }

    /// Has a call of this limit come within two recoveries?
    fn is_in_use(&self, now: i128) -> bool {
        now - self.seen < 2 * self.terms.recovery()
    }
}

fn permits_of(entries: &[ModelEntry]) -> i128 {
    entries.iter().map(|entry| entry.permits).sum()
}
