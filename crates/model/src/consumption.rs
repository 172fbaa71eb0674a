//! The state of each algorithm and its arithmetic: the sections "Algorithms" and "The clock steps
//! back" of `docs/understand/algorithms.md`.

use crate::spec::{BucketKind, Spec, WindowKind, ceil};

/// A limit and the tick that it counts on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) spec: Spec,
    pub(crate) tick: i128,
}

/// The state of a key that was used. Where the definition has ticks, steps or grains, these are
/// numbers of ticks, steps or grains since the epoch.
#[derive(Clone, Debug)]
pub(crate) enum Consumption {
    /// `u` and `a`, and what is left of the latest charge. A permit is as many units as the period
    /// has microseconds, and a tick drains count times tick: the fractions are not reduced.
    Bucket {
        level: i128,
        from: i128,
        latest: i128,
    },
    Steps {
        permits: i128,
        step: i128,
    },
    Fixed {
        count: i128,
        start: i128,
    },
    /// The entries that counted at the last charge or refund, in microseconds.
    Log {
        entries: Vec<ModelEntry>,
        offset: i128,
    },
    Approximate {
        present: i128,
        previous: i128,
        window: i128,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelEntry {
    pub(crate) instant: i128,
    pub(crate) permits: i128,
}

impl Terms {
    pub(crate) fn new(spec: Spec) -> Self {
        Self { spec, tick: spec.tick() }
    }

    /// Is it the same limit, in whichever notation?
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let numbers = |terms: &Self| terms.spec.limit().unwrap().numbers();
        self.spec == other.spec || numbers(self) == numbers(other)
    }

    /// `used` at `now`, rounded up.
    pub(crate) fn used(&self, consumption: Option<&Consumption>, now: i128) -> i128 {
        match consumption {
            None => 0,
            Some(&Consumption::Bucket { level, from, .. }) => {
                ceil(self.level_at(level, from, now / self.tick), self.permit())
            }
            Some(&Consumption::Steps { permits, step }) => {
                (permits - (now / self.every() - step) * self.amount()).max(0)
            }
            Some(&Consumption::Fixed { count, start }) => {
                let is_present = self.is_present(start, now);
                if is_present { count } else { 0 }
            }
            Some(Consumption::Log { entries, offset }) => {
                self.counted(entries, now + offset).map(|e| e.permits).sum()
            }
            Some(&Consumption::Approximate { present, previous, window }) => {
                let (present, previous) = self.pair(present, previous, window, now);
                (present + self.share(previous, now)).min(2 * self.spec.capacity())
            }
        }
    }

    /// Charges `permits` at `now`, as many as fit in twice the capacity.
    pub(crate) fn charge(&self, consumption: &mut Option<Consumption>, now: i128, permits: i128) {
        if permits == 0 || self.spec.capacity() == 0 {
            return;
        }
        let most = 2 * self.spec.capacity();
        let used = self.used(consumption.as_ref(), now);
        let added = permits.min(most - used).max(0);
        *consumption = match (self.spec, consumption.take()) {
            (Spec::Bucket { .. }, old) => Some(self.charge_bucket(old, now, permits)),
            (Spec::Steps { .. }, _) => {
                Some(Consumption::Steps { permits: used + added, step: now / self.every() })
            }
            (Spec::Fixed { .. }, Some(Consumption::Fixed { count, start }))
                if self.is_present(start, now) =>
            {
                Some(Consumption::Fixed { count: count + added, start })
            }
            (Spec::Fixed { .. }, _) => {
                let start = self.spec.window(now).map_or(now, |(start, _)| start);
                Some(Consumption::Fixed { count: added, start })
            }
            (Spec::Log { .. } | Spec::SubWindows { .. }, old) => {
                let (entries, offset) = self.kept_log(old.as_ref(), now);
                // An empty log is no log, and has no offset.
                let offset = if entries.is_empty() { 0 } else { offset };
                let instant = now + offset;
                let last = entries.last().map(|last| last.instant);
                let joins =
                    last.is_some_and(|last| self.begins_at(last) == self.begins_at(instant));
                Some(self.charge_log(entries, instant, offset, permits, joins))
            }
            (Spec::Approximate { .. }, old) => {
                let (present, previous) = self.pair_of(old.as_ref(), now);
                let window = now / self.length();
                Some(Consumption::Approximate { present: present + added, previous, window })
            }
            (Spec::Concurrency { .. }, _) => None,
        };
    }

    /// The entries of a log that count at `now`, and its offset.
    pub(crate) fn kept_log(&self, old: Option<&Consumption>, now: i128) -> (Vec<ModelEntry>, i128) {
        let Some(Consumption::Log { entries, offset }) = old else { return (Vec::new(), 0) };
        let mut entries = entries.clone();
        entries.retain(|entry| entry.permits > 0 && self.counts(entry, now + offset));
        (entries, *offset)
    }

    /// Adds an entry, or adds to the last one: charges in one sub-window are one entry, at the
    /// instant of the latest.
    pub(crate) fn charge_log(
        &self,
        mut entries: Vec<ModelEntry>,
        instant: i128,
        offset: i128,
        permits: i128,
        joins: bool,
    ) -> Consumption {
        let most = 2 * self.spec.capacity();
        let permits = permits.min(most);
        match entries.last_mut() {
            Some(last) if joins => {
                last.instant = last.instant.max(instant);
                last.permits += permits;
            }
            _ => entries.push(ModelEntry { instant, permits }),
        }
        // The oldest make room.
        let mut excess = entries.iter().map(|entry| entry.permits).sum::<i128>() - most;
        for entry in &mut entries {
            let taken = entry.permits.min(excess.max(0));
            (entry.permits, excess) = (entry.permits - taken, excess - taken);
        }
        Consumption::Log { entries, offset }
    }

    fn charge_bucket(&self, old: Option<Consumption>, now: i128, permits: i128) -> Consumption {
        let (level, from) = match old {
            Some(Consumption::Bucket { level, from, .. }) => (level, from),
            _ => (0, 0),
        };
        let found = self.level_at(level, from, now / self.tick);
        let most = 2 * self.spec.capacity() * self.permit();
        let level = (found + permits * self.permit()).min(most);
        let drains_from = if found < self.drain() { ceil(now, self.tick) } else { now / self.tick };
        Consumption::Bucket { level, from: from.max(drains_from), latest: level - found }
    }

    /// Refunds at most `permits` and at most what is used. Returns what was refunded. If nothing is
    /// left, the key is unused.
    pub(crate) fn refund(
        &self,
        consumption: &mut Option<Consumption>,
        now: i128,
        permits: i128,
    ) -> i128 {
        let used = self.used(consumption.as_ref(), now);
        let mut back = permits.min(used);
        match consumption {
            None => {}
            Some(Consumption::Bucket { level, from, latest }) => {
                let found = self.level_at(*level, *from, now / self.tick);
                let mut units = (permits * self.permit()).min(found);
                if self.is_queue() {
                    units = units.min(*latest);
                }
                *level -= units;
                *latest -= units.min(*latest);
                back = ceil(units, self.permit());
            }
            Some(Consumption::Steps { permits, step }) => {
                *permits = used - back;
                *step = now / self.every();
            }
            Some(Consumption::Fixed { count, .. }) => {
                *count -= back;
            }
            Some(Consumption::Log { entries, offset }) => {
                let time = now + *offset;
                entries.retain(|entry| self.counts(entry, time));
                let mut left = back;
                for entry in entries {
                    let taken = left.min(entry.permits);
                    entry.permits -= taken;
                    left -= taken;
                }
            }
            Some(Consumption::Approximate { present, previous, window }) => {
                (*present, *previous) = self.pair(*present, *previous, *window, now);
                *window = now / self.length();
                let from_present = permits.min(*present);
                *present -= from_present;
                *previous -= (permits - from_present).min(*previous);
                back = used - self.used(consumption.as_ref(), now);
            }
        }
        if self.used(consumption.as_ref(), now) == 0 {
            *consumption = None;
        }
        back
    }

    /// The section "The clock steps back": was this written after `now`?
    pub(crate) fn is_ahead(&self, consumption: &Consumption, now: i128) -> bool {
        match *consumption {
            Consumption::Bucket { from, .. } => from > now / self.tick + 1,
            Consumption::Steps { step, .. } => step > now / self.every(),
            Consumption::Fixed { start, .. } => {
                start > self.spec.window(now).map_or(now, |(start, _)| start)
            }
            Consumption::Log { ref entries, offset } => {
                let grain = self.spec.grain();
                newest(entries).is_some_and(|newest| newest / grain > (now + offset) / grain)
            }
            Consumption::Approximate { window, .. } => window > now / self.length(),
        }
    }

    /// Moves state that is ahead of the clock to `now`.
    pub(crate) fn rebase(&self, consumption: &mut Consumption, now: i128) {
        match consumption {
            Consumption::Bucket { from, .. } => *from = ceil(now, self.tick),
            Consumption::Steps { step, .. } => *step = now / self.every(),
            Consumption::Fixed { start, .. } => {
                *start = self.spec.window(now).map_or(now, |(start, _)| start);
            }
            Consumption::Log { entries, offset } => {
                *offset = self.begins_at(newest(entries).unwrap()) - now;
            }
            Consumption::Approximate { present, previous, window } => {
                *window = now / self.length();
                *present = (*present + std::mem::take(previous)).min(2 * self.spec.capacity());
            }
        }
    }

    /// The delay of a charge at `now` in a queue.
    pub(crate) fn delay(&self, consumption: Option<&Consumption>, now: i128) -> i128 {
        match consumption {
            Some(&Consumption::Bucket { level, from, .. }) if self.is_queue() => {
                ((from + ceil(level, self.drain())) * self.tick - now).max(0)
            }
            _ => 0,
        }
    }

    fn is_queue(&self) -> bool {
        matches!(self.spec, Spec::Bucket { kind: BucketKind::Queue, .. })
    }

    pub(crate) fn level_at(&self, level: i128, from: i128, tick: i128) -> i128 {
        if tick <= from { level } else { (level - (tick - from) * self.drain()).max(0) }
    }

    /// Units per permit.
    pub(crate) fn permit(&self) -> i128 {
        match self.spec {
            Spec::Bucket { period, .. } => i128::from(period),
            _ => unreachable!("only a bucket has units"),
        }
    }

    /// Units drained per tick.
    fn drain(&self) -> i128 {
        match self.spec {
            Spec::Bucket { count, .. } => i128::from(count) * self.tick,
            _ => unreachable!("only a bucket has units"),
        }
    }

    fn every(&self) -> i128 {
        match self.spec {
            Spec::Steps { every, .. } => i128::from(every),
            _ => unreachable!("only a stepped bucket has a step"),
        }
    }

    fn amount(&self) -> i128 {
        match self.spec {
            Spec::Steps { count, period, every, .. } => {
                i128::from(count) * i128::from(every) / i128::from(period)
            }
            _ => unreachable!("only a stepped bucket has an amount"),
        }
    }

    /// Is the fixed window that began at `start` the one at `now`?
    fn is_present(&self, start: i128, now: i128) -> bool {
        match (self.spec, self.spec.window(now)) {
            (_, Some((present, _))) => present == start,
            (Spec::Fixed { window: WindowKind::FirstHit(length), .. }, None) => {
                now < start + i128::from(length)
            }
            _ => unreachable!("only a fixed window has a start"),
        }
    }

    /// The span in which a full limit recovers, at most.
    pub(crate) fn recovery(&self) -> i128 {
        let capacity = self.spec.capacity();
        match self.spec {
            _ if capacity == 0 => 0,
            Spec::Bucket { .. } => ceil(capacity * self.permit(), self.drain()) * self.tick,
            Spec::Steps { .. } => ceil(capacity, self.amount()) * self.every(),
            Spec::Fixed {
                window: WindowKind::Aligned(length) | WindowKind::FirstHit(length),
                ..
            } => i128::from(length),
            Spec::Fixed { .. } | Spec::Concurrency { .. } => unreachable!("never one of several"),
            Spec::Log { .. } | Spec::SubWindows { .. } => self.grains() * self.spec.grain(),
            Spec::Approximate { .. } => 2 * self.length(),
        }
    }

    /// The window of a log in grains.
    fn grains(&self) -> i128 {
        match self.spec {
            Spec::Log { window, .. } => i128::from(window),
            Spec::SubWindows { window, .. } => ceil(i128::from(window), self.spec.grain()) + 1,
            _ => unreachable!("only a log counts entries"),
        }
    }

    /// The beginning of the sub-window that contains this instant.
    pub(crate) fn begins_at(&self, instant: i128) -> i128 {
        instant / self.spec.grain() * self.spec.grain()
    }

    /// Does a log count this entry at `time`, the instant with the offset of the log?
    pub(crate) fn counts(&self, entry: &ModelEntry, time: i128) -> bool {
        let grain = self.spec.grain();
        time / grain < entry.instant / grain + self.grains()
    }

    pub(crate) fn counted<'a>(
        &self,
        entries: &'a [ModelEntry],
        time: i128,
    ) -> impl Iterator<Item = &'a ModelEntry> {
        entries.iter().filter(move |entry| self.counts(entry, time))
    }

    /// The length of an approximate window in microseconds.
    pub(crate) fn length(&self) -> i128 {
        match self.spec {
            Spec::Approximate { window, .. } => i128::from(window),
            _ => unreachable!("only an approximate window has two counts"),
        }
    }

    /// The counts of the present window and of the previous one, at `now`.
    pub(crate) fn pair(
        &self,
        present: i128,
        previous: i128,
        window: i128,
        now: i128,
    ) -> (i128, i128) {
        match now / self.length() - window {
            0 => (present, previous),
            1 => (0, present),
            _ => (0, 0),
        }
    }

    fn pair_of(&self, consumption: Option<&Consumption>, now: i128) -> (i128, i128) {
        match consumption {
            Some(&Consumption::Approximate { present, previous, window }) => {
                self.pair(present, previous, window, now)
            }
            _ => (0, 0),
        }
    }

    /// The remaining weight of the previous count.
    pub(crate) fn share(&self, previous: i128, now: i128) -> i128 {
        let ticks = self.length() / self.tick;
        let passed = now % self.length() / self.tick;
        ceil(previous * (ticks - passed), ticks)
    }
}

pub(crate) fn newest(entries: &[ModelEntry]) -> Option<i128> {
    entries.iter().filter(|entry| entry.permits > 0).map(|entry| entry.instant).max()
}
