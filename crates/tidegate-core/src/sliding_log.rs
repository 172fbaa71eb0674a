//! The log of charges: `sliding-log`, and `sliding-window` as a log of sub-windows.
//!
//! Entries store the running total, so that both "how much is live" and "when will enough have
//! left" are found by binary search, and refunding the oldest consumption is one addition.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::arithmetic::Arithmetic;
use crate::state::state_is;
use crate::{Micros, Moment};

/// A count in every window, on a grain of time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SlidingLog {
    pub(crate) limit: u64,
    /// The grain in microseconds: 1, or the length of a sub-window.
    pub(crate) grain: u64,
    /// For how many grains an entry counts.
    pub(crate) window: u64,
}

/// Charges that still count, oldest first. An empty log is no state.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Log {
    entries: VecDeque<LogEntry>,
    /// The running total up to which charges have left the window or were refunded.
    gone: u64,
    /// By how many microseconds the time of the log is ahead of the clock, since the clock stepped
    /// back.
    offset: u64,
    /// Bytes of all names in the entries.
    name_bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct LogEntry {
    /// Of the latest charge, in microseconds: a limit with another grain can count it, too.
    instant: u64,
    /// The running total including this entry.
    total: u64,
    who: Option<Box<str>>,
}

impl SlidingLog {
    pub(crate) fn exact(limit: u64, window: Micros) -> Self {
        Self { limit, grain: 1, window: window.get() }
    }

    /// Sub-windows: the present one and as many before it as the window may overlap.
    pub(crate) fn sub_windows(limit: u64, window: Micros, precision: Micros) -> Self {
        let earlier = window.get().div_ceil(precision.get());
        Self { limit, grain: precision.get(), window: earlier + 1 }
    }

    /// The running total up to which charges no longer count.
    fn gone(&self, log: &Log, at: &Moment) -> u64 {
        // The beginning of the first grain that counts.
        let first = (log.time(at) / self.grain + 1).saturating_sub(self.window);
        let first = first.saturating_mul(self.grain);
        let live = log.entries.partition_point(|entry| entry.instant < first);
        match live.checked_sub(1).and_then(|last| log.entries.get(last)) {
            Some(left) => left.total.max(log.gone),
            None => log.gone,
        }
    }

    /// Caller and permits of the live charges, oldest first.
    pub(crate) fn entries<'a>(
        &self,
        log: &'a Log,
        at: &Moment,
    ) -> impl Iterator<Item = (Option<&'a str>, u64)> + use<'a> {
        let mut before = self.gone(log, at);
        let live = log.entries.partition_point(|entry| entry.total <= before);
        log.entries.range(live..).map(move |entry| {
            let permits = entry.total - before;
            before = entry.total;
            (entry.who.as_deref(), permits)
        })
    }

    /// Merges neighbouring entries at the instant of the later one. Charges that no longer count
    /// are removed first, so that they are not merged with live ones. `false` if there is nothing
    /// to merge.
    pub(crate) fn compact(&self, log: &mut Option<Log>, at: &Moment) -> bool {
        *log = log.take().and_then(|mut log| {
            log.gone = self.gone(&log, at);
            log.trim()
        });
        log.as_mut().is_some_and(Log::halve)
    }

    /// The span until `entry` leaves the window.
    fn until(&self, log: &Log, entry: &LogEntry, at: &Moment) -> Micros {
        let grain = entry.instant / self.grain + self.window;
        let instant = u128::from(grain) * u128::from(self.grain);
        Micros::saturating_from(instant.saturating_sub(u128::from(log.time(at))))
    }

    /// Are both instants in one grain?
    fn is_one_grain(&self, a: u64, b: u64) -> bool {
        a / self.grain == b / self.grain
    }

    /// The same charges with another resolution and window, at most the limit of them.
    pub(crate) fn carry(&self, old: &Self, mut log: Log, at: &Moment) -> Option<Log> {
        log.gone = old.gone(&log, at);
        let most = log.gone.max(log.total().saturating_sub(self.limit));
        log.gone = most.max(self.gone(&log, at));
        let mut log = log.trim()?;
        // The newest may be after now by a finer grain.
        if self.ahead(&log, at) {
            self.rebase(&mut log, at);
        }
        Some(log)
    }
}

impl Log {
    fn time(&self, at: &Moment) -> u64 {
        at.now().get().saturating_add(self.offset)
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(0, |entry| entry.total)
    }

    /// Removes charges that no longer count; `None` if none is left.
    fn trim(mut self) -> Option<Self> {
        let gone = self.entries.partition_point(|entry| entry.total <= self.gone);
        for left in self.entries.drain(..gone) {
            self.name_bytes -= left.who.map_or(0, |who| who.len());
        }
        if self.entries.capacity() > 4 * self.entries.len() + 16 {
            self.entries.shrink_to(2 * self.entries.len());
        }
        (!self.entries.is_empty()).then_some(self)
    }

    /// Adds permits at `instant`, to the last entry if it `joins` that and has the same name.
    fn push(&mut self, instant: u64, permits: u64, who: Option<&str>, joins: impl Fn(u64) -> bool) {
        const RESTART_TOTALS_AT: u64 = 1 << 60;
        if self.total() >= RESTART_TOTALS_AT {
            for entry in &mut self.entries {
                entry.total -= self.gone;
            }
            self.gone = 0;
        }
        let total = self.total() + permits;
        match self.entries.back_mut() {
            Some(last) if joins(last.instant) && last.who.as_deref() == who => {
                last.instant = last.instant.max(instant);
                last.total = total;
            }
            _ => {
                self.name_bytes += who.map_or(0, str::len);
                self.entries.push_back(LogEntry { instant, total, who: who.map(Into::into) });
            }
        }
    }

    /// Bytes that the next entry will allocate.
    pub(crate) fn growth(&self, who: Option<&str>) -> usize {
        let full = self.entries.len() == self.entries.capacity();
        let entries = if full { self.entries.capacity().max(4) } else { 0 };
        entries * size_of::<LogEntry>() + who.map_or(0, str::len)
    }

    /// Halves the log. `false` if it has fewer than two entries.
    fn halve(&mut self) -> bool {
        if self.entries.len() < 2 {
            return false;
        }
        // From the newest back, so that an odd entry out is the oldest. Totals are running ones:
        // dropping the earlier of two entries moves its permits to the later.
        let odd = self.entries.len() % 2;
        let mut place = 0_usize;
        self.entries.retain(|_| {
            place += 1;
            place % 2 == odd
        });
        self.entries.shrink_to_fit();
        self.name_bytes = self.entries.iter().filter_map(|e| e.who.as_ref()).map(|w| w.len()).sum();
        true
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<LogEntry>() + self.name_bytes
    }
}

impl Arithmetic for SlidingLog {
    state_is!(Log as Log);

    fn used(&self, log: &Log, at: &Moment) -> u64 {
        log.total() - self.gone(log, at)
    }

    fn wait(&self, log: &Log, at: &Moment, target: u64) -> Micros {
        if self.used(log, at) <= target {
            return Micros::ZERO;
        }
        let must_go = log.total() - target;
        let last = log.entries.partition_point(|entry| entry.total < must_go);
        log.entries.get(last).map_or(Micros::ZERO, |entry| self.until(log, entry, at))
    }

    fn reset_after(&self, log: &Log, at: &Moment) -> Micros {
        log.entries.back().map_or(Micros::ZERO, |entry| self.until(log, entry, at))
    }

    fn charge(
        &self,
        log: Option<Log>,
        at: &Moment,
        permits: u64,
        who: Option<&str>,
    ) -> Option<Log> {
        let live = log.and_then(|mut log| {
            log.gone = self.gone(&log, at);
            log.trim()
        });
        let mut log = live.unwrap_or_default();
        let most = 2 * self.limit;
        let instant = log.time(at);
        if permits > 0 {
            log.push(instant, permits.min(most), who, |last| self.is_one_grain(last, instant));
        }
        // The oldest entries make room. If the newest were dropped, a hold settled in debt would no
        // longer count once the older debt has left the window.
        log.gone = log.gone.max(log.total().saturating_sub(most));
        log.trim()
    }

    fn refund(&self, mut log: Log, at: &Moment, permits: u64) -> (Option<Log>, u64) {
        log.gone = self.gone(&log, at);
        let given = permits.min(log.total() - log.gone);
        log.gone += given;
        (log.trim(), given)
    }

    fn ahead(&self, log: &Log, at: &Moment) -> bool {
        let grain = log.time(at) / self.grain;
        log.entries.back().is_some_and(|entry| entry.instant / self.grain > grain)
    }

    fn rebase(&self, log: &mut Log, at: &Moment) {
        if let Some(newest) = log.entries.back() {
            let begins = newest.instant - newest.instant % self.grain;
            log.offset = begins.saturating_sub(at.now().get());
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn at(now: u64) -> Moment {
        Moment::new(Micros::new(now))
    }

    /// A log of one permit each, at these instants and with these names.
    fn logged(limit: &SlidingLog, charges: &[(u64, Option<&str>)]) -> Log {
        let charge = |log, &(now, who): &(u64, Option<&str>)| limit.charge(log, &at(now), 1, who);
        charges.iter().fold(None, charge).unwrap()
    }

    #[test]
    fn charges_of_one_instant_and_name_are_one_entry() {
        let limit = SlidingLog::exact(10, Micros::new(100));
        let (alice, bob) = (Some("alice"), Some("bob"));
        let log =
            logged(&limit, &[(1, alice), (1, alice), (1, bob), (2, bob), (2, None), (2, None)]);
        let entries: Vec<_> = limit.entries(&log, &at(2)).collect();
        assert_eq!(entries, [(alice, 2), (bob, 1), (bob, 1), (None, 2)]);
        let after: Vec<_> = limit.entries(&log, &at(101)).collect();
        assert_eq!(after, [(bob, 1), (None, 2)], "entries that left the window are not listed");
        let (left, _) = limit.refund(log, &at(2), 1);
        let left = left.unwrap();
        let entries: Vec<_> = limit.entries(&left, &at(2)).collect();
        assert_eq!(entries, [(alice, 1), (bob, 1), (bob, 1), (None, 2)], "the oldest goes first");
    }

    #[test]
    fn name_bytes_follow_the_entries() {
        let limit = SlidingLog::exact(10, Micros::new(100));
        let log = logged(&limit, &[(1, Some("alice")), (2, Some("bob")), (3, None)]);
        assert_eq!(log.name_bytes, 8);
        let log = limit.charge(Some(log), &at(101), 1, Some("eve")).unwrap();
        assert_eq!(log.name_bytes, 6, "alice has left");
        assert_eq!(log.heap_bytes(), log.entries.capacity() * size_of::<LogEntry>() + 6);
        let mut log = Some(log);
        assert!(limit.compact(&mut log, &at(101)));
        let log = log.unwrap();
        let names: usize = log.entries.iter().filter_map(|e| e.who.as_ref()).map(|w| w.len()).sum();
        assert_eq!(log.name_bytes, names);
    }

    #[test]
    fn growth_predicts_what_the_next_entry_allocates() {
        let limit = SlidingLog::exact(1_000, Micros::new(1_000_000));
        let mut log = Log::default();
        for now in 1..200 {
            let who = (now % 3 == 0).then_some("caller-1");
            let predicted = log.heap_bytes() + log.growth(who);
            log = limit.charge(Some(log), &at(now), 1, who).unwrap();
            assert_eq!(log.heap_bytes(), predicted, "at {now}");
        }
    }

    #[test]
    fn memory_follows_the_live_entries() {
        let limit = SlidingLog::exact(1_000, Micros::new(1_000));
        let charges: Vec<_> = (1..=1_000).map(|now| (now, None)).collect();
        let full = logged(&limit, &charges);
        let one = limit.charge(Some(full.clone()), &at(2_001), 1, None).unwrap();
        assert_eq!(one.entries.len(), 1);
        assert!(one.heap_bytes() <= 20 * size_of::<LogEntry>(), "{} bytes", one.heap_bytes());
        let capacity = full.entries.capacity();
        let half = limit.charge(Some(full), &at(1_500), 1, None).unwrap();
        assert_eq!(half.entries.capacity(), capacity, "not on every charge");
    }

    #[test]
    fn spare_capacity_is_freed_above_four_times_the_live_entries_plus_sixteen() {
        let limit = SlidingLog::exact(100, Micros::new(100));
        let charges: Vec<_> = (1..=32).map(|now| (now, None)).collect();
        let full = logged(&limit, &charges);
        assert_eq!(full.entries.capacity(), 32);
        let live = |live: u64| limit.refund(full.clone(), &at(32), 32 - live).0.unwrap().entries;
        let (four, three) = (live(4), live(3));
        assert_eq!((four.len(), four.capacity()), (4, 32), "4 * 4 + 16 is kept");
        assert_eq!(three.len(), 3);
        assert!((6..32).contains(&three.capacity()), "as many again fit: {}", three.capacity());
    }

    #[test]
    fn a_compacted_log_has_half_the_entries_and_recovers_no_earlier() {
        let limit = SlidingLog::exact(100, Micros::new(100));
        for count in 1..20_u64 {
            let charges: Vec<_> = (1..=count).map(|now| (now, None)).collect();
            let before = logged(&limit, &charges);
            let mut after = Some(before.clone());
            assert_eq!(limit.compact(&mut after, &at(count)), count >= 2, "{count}");
            let after = after.unwrap();
            assert_eq!(after.entries.len() as u64, count.div_ceil(2), "{count}");
            assert_eq!(after.entries.front().unwrap().instant, if count % 2 == 1 { 1 } else { 2 });
            for now in count..=count + 100 {
                let (used, was) = (limit.used(&after, &at(now)), limit.used(&before, &at(now)));
                assert!(used >= was && used <= was + 1, "{count} at {now}: {used} and {was}");
            }
        }
        // Entries that left the window are not merged with live ones.
        let mut log = Some(logged(&limit, &[(1, None), (2, None), (150, None)]));
        assert!(!limit.compact(&mut log, &at(150)));
        assert_eq!(limit.used(&log.unwrap(), &at(150)), 1);
    }

    #[test]
    fn running_totals_restart_before_they_overflow() {
        let limit = SlidingLog::sub_windows(1 << 51, Micros::new(1_000), Micros::new(10));
        let mut log = None;
        for round in 0..3_000 {
            let now = at(round * 2_000);
            log = limit.charge(log, &now, 1 << 51, None);
            log = limit.charge(log, &at(round * 2_000 + 10), 5, None);
            let live = log.as_ref().unwrap();
            assert_eq!(limit.used(live, &at(round * 2_000 + 10)), (1 << 51) + 5, "round {round}");
            assert!(live.total() < 1 << 61);
        }
        // Also with an entry that is still live.
        let limit = SlidingLog::exact(1 << 19, Micros::new(1_000));
        let mut log = Log { gone: (1 << 60) - 1, ..Log::default() };
        log.entries.push_back(LogEntry { instant: 5, total: (1 << 60) + 6, who: None });
        let log = limit.charge(Some(log), &at(6), 2, None).unwrap();
        assert_eq!((log.gone, log.total()), (0, 9));
        assert_eq!(limit.used(&log, &at(6)), 9);
        assert_eq!(limit.used(&log, &at(1_005)), 2);
    }
}
