//! Byte budgets: one for each kind of memory, with a guaranteed minimum and a common pool.

use std::sync::Arc;

use tidegate_core::Micros;

use super::rule_records::{RuleNumber, RuleRecords};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::{EngineError, KindUse, MemoryFull, MemoryKind};

/// Bytes of a value on the heap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct HeapSize {
    pub(crate) own: usize,
    /// Those of holds, which have a budget of their own.
    pub(crate) holds: usize,
}

/// Counts the bytes of one kind. Callers check before they allocate, and then count the actual
/// bytes.
///
/// The minimum is reserved for this kind. Beyond it, a kind takes from the pool as long as it has
/// taken at most what is still free there: none takes the last half, and a kind that comes later
/// finds half of the rest.
#[derive(Debug)]
pub(crate) struct Budget {
    kind: MemoryKind,
    minimum: usize,
    used: AtomicUsize,
    pool: Arc<Pool>,
    /// Where the holds of cells are counted; here if there is none.
    holds: Option<Arc<Self>>,
    /// Records by rule, of kinds that are shared out among rules.
    rules: Option<RuleRecords>,
    /// Calls that found no room, and when the last one did.
    overflows: AtomicU64,
    last_overflow: AtomicU64,
}

/// Bytes that are reserved for no kind.
#[derive(Debug)]
struct Pool {
    bytes: usize,
    taken: AtomicUsize,
}

impl Budget {
    /// A kind counts as full for this long after a call found no room.
    const FULL_FOR: Micros = Micros::from_secs(60);

    fn new(kind: MemoryKind, minimum: usize, pool: &Arc<Pool>, holds: Option<&Arc<Self>>) -> Self {
        Self {
            kind,
            minimum,
            used: AtomicUsize::new(0),
            pool: pool.clone(),
            holds: holds.cloned(),
            rules: matches!(kind, MemoryKind::Ids | MemoryKind::Reservations)
                .then(RuleRecords::new),
            overflows: AtomicU64::new(0),
            last_overflow: AtomicU64::new(0),
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that this kind may still take.
    pub(crate) fn room(&self) -> usize {
        let used = self.used();
        let others = self.pool.taken.load(Ordering::Relaxed).saturating_sub(self.share(used));
        let allowed = self.minimum + self.pool.bytes.saturating_sub(others) / 2;
        allowed.saturating_sub(used)
    }

    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        bytes <= self.room()
    }

    /// Whether there is room, or as much was freed since `earlier` bytes were in use.
    pub(crate) fn has_room_since(&self, earlier: usize, bytes: usize) -> bool {
        self.has_room_for(bytes) || self.used().saturating_add(bytes) <= earlier
    }

    /// Counts a change of size from `before` to `after` bytes.
    pub(crate) fn resized(&self, before: usize, after: usize) {
        if after >= before {
            let more = after - before;
            let used = self.used.fetch_add(more, Ordering::Relaxed);
            let taken = self.share(used + more) - self.share(used);
            self.pool.taken.fetch_add(taken, Ordering::Relaxed);
        } else {
            let less = before - after;
            let used = self.used.fetch_sub(less, Ordering::Relaxed);
            let returned = self.share(used) - self.share(used - less);
            self.pool.taken.fetch_sub(returned, Ordering::Relaxed);
        }
    }

    /// Counts a change on the heap of a value.
    pub(crate) fn heap_resized(&self, before: HeapSize, after: HeapSize) {
        self.resized(before.own, after.own);
        if before.holds != after.holds {
            self.holds.as_deref().unwrap_or(self).resized(before.holds, after.holds);
        }
    }

    /// Counts one more record of a rule.
    pub(crate) fn count_record(&self, rule: RuleNumber) {
        self.rules.iter().for_each(|rules| rules.add(rule));
    }

    /// Counts one record less of a rule.
    pub(crate) fn uncount_record(&self, rule: RuleNumber) {
        self.rules.iter().for_each(|rules| rules.remove(rule));
    }

    /// Records of a rule.
    pub(crate) fn records(&self, rule: RuleNumber) -> usize {
        self.rules.as_ref().map_or(0, |rules| rules.count(rule))
    }

    /// Whether a rule may take room for one more record: what it has is at most what is free. So
    /// one rule has at most half, and a rule that comes later finds half of the rest.
    pub(crate) fn has_share(&self, rule: RuleNumber) -> bool {
        let (used, room) = (self.used(), self.room());
        let own = || self.rules.as_ref().map_or(0, |rules| rules.part_of(used, rule));
        used <= room || own() <= room
    }

    /// Whether a rule has a share, or fewer than `earlier` records.
    pub(crate) fn has_share_since(&self, earlier: usize, rule: RuleNumber) -> bool {
        self.has_share(rule) || self.records(rule) < earlier
    }

    /// Counts a call that found no room.
    pub(crate) fn count_overflow(&self, now: Micros) {
        self.overflows.fetch_add(1, Ordering::Relaxed);
        self.last_overflow.store(now.get(), Ordering::Relaxed);
    }

    /// The error of a call that found no room.
    pub(crate) fn refuse(&self, now: Micros) -> EngineError {
        self.count_overflow(now);
        EngineError::unavailable(MemoryFull(self.kind))
    }

    /// Whether a call found no room within the last minute. A clock that was set does not keep it
    /// full.
    pub(crate) fn is_full(&self, now: Micros) -> bool {
        let last = self.last_overflow.load(Ordering::Relaxed);
        self.overflows.load(Ordering::Relaxed) > 0
            && now.get().abs_diff(last) < Self::FULL_FOR.get()
    }

    fn report(&self, now: Micros) -> (MemoryKind, KindUse) {
        let overflows = self.overflows.load(Ordering::Relaxed);
        let bytes = self.used() as u64;
        (self.kind, KindUse { bytes, overflows, is_full: self.is_full(now) })
    }

    /// What is beyond the minimum at this use.
    fn share(&self, used: usize) -> usize {
        used.saturating_sub(self.minimum)
    }

    /// A budget of these bytes without a pool.
    #[cfg(test)]
    pub(crate) fn alone(bytes: usize) -> Arc<Self> {
        let pool = Arc::new(Pool { bytes: 0, taken: AtomicUsize::new(0) });
        Arc::new(Self::new(MemoryKind::State, bytes, &pool, None))
    }
}

/// The budgets of an engine.
#[derive(Debug)]
pub(crate) struct Budgets {
    pub(crate) state: Arc<Budget>,
    pub(crate) overflow: Arc<Budget>,
    pub(crate) adhoc: Arc<Budget>,
    pub(crate) adhoc_overflow: Arc<Budget>,
    pub(crate) ids: Arc<Budget>,
    pub(crate) holds: Arc<Budget>,
}

impl Budgets {
    /// Divides `cap` bytes. The minima below are of 256 parts; the rest, 88 parts, is the pool.
    pub(crate) fn new(cap: usize) -> Self {
        let part = |parts: usize| cap / 256 * parts;
        let pool = Arc::new(Pool { bytes: part(88), taken: AtomicUsize::new(0) });
        let budget = |kind, parts, holds| Arc::new(Budget::new(kind, part(parts), &pool, holds));
        let holds = budget(MemoryKind::Reservations, 16, None);
        let of_cells = |kind, parts| budget(kind, parts, Some(&holds));
        Self {
            state: of_cells(MemoryKind::State, 96),
            overflow: of_cells(MemoryKind::Overflow, 16),
            adhoc: of_cells(MemoryKind::Adhoc, 22),
            adhoc_overflow: of_cells(MemoryKind::Adhoc, 2),
            ids: budget(MemoryKind::Ids, 16, None),
            holds,
        }
    }

    /// What each budget has used, and whether it is full.
    pub(crate) fn report(&self, now: Micros) -> impl Iterator<Item = (MemoryKind, KindUse)> {
        let Self { state, overflow, adhoc, adhoc_overflow, ids, holds } = self;
        [state, overflow, adhoc, adhoc_overflow, ids, holds].map(|of| of.report(now)).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Takes steps of 1 KiB until there is no room, and returns how much was taken.
    fn fill(budget: &Budget) -> usize {
        let before = budget.used();
        while budget.has_room_for(1 << 10) {
            budget.resized(0, 1 << 10);
        }
        budget.used() - before
    }

    #[test]
    fn a_kind_takes_its_minimum_and_at_most_half_of_the_pool() {
        let budgets = Budgets::new(256 * MIB);
        assert_eq!(fill(&budgets.ids), (16 + 44) * MIB);
        assert_eq!(fill(&budgets.state), (96 + 22) * MIB);
        assert_eq!(fill(&budgets.holds), (16 + 11) * MIB);
        assert_eq!(fill(&budgets.adhoc), 22 * MIB + 11 * MIB / 2);
        // Its minimum is left to it, whatever the others took.
        assert!(fill(&budgets.overflow) >= 16 * MIB);
        let used: u64 = budgets.report(Micros::ZERO).map(|(_, kind)| kind.bytes).sum();
        assert!(used <= 256 * MIB as u64, "{used}");
    }

    #[test]
    fn a_rule_takes_at_most_half_of_a_kind_and_the_next_one_half_of_the_rest() {
        let budgets = Budgets::new(256 * MIB);
        let take = |rule: RuleNumber| {
            while budgets.holds.has_share(rule) {
                budgets.holds.resized(0, 1 << 10);
                budgets.holds.count_record(rule);
            }
            budgets.holds.records(rule) >> 10
        };
        let rules = ["a", "b", "c"].map(RuleNumber::of);
        // Of 60 MiB.
        assert_eq!(rules.map(take), [30, 15, 7]);
        let before = budgets.holds.records(rules[0]);
        budgets.holds.uncount_record(rules[0]);
        assert!(!budgets.holds.has_share(rules[0]), "others have taken the room");
        assert!(budgets.holds.has_share_since(before, rules[0]), "it made room for one");
    }

    #[test]
    fn what_a_kind_gives_back_is_free_for_the_others() {
        let budgets = Budgets::new(256 * MIB);
        fill(&budgets.ids);
        budgets.ids.resized(budgets.ids.used(), 0);
        assert_eq!(fill(&budgets.state), (96 + 44) * MIB);
        // A value that is larger than everything has no room, and does not overflow the sum.
        assert!(!budgets.holds.has_room_for(usize::MAX));
    }

    #[test]
    fn a_kind_is_full_for_a_minute_after_a_call_found_no_room() {
        let budgets = Budgets::new(256 * MIB);
        let now = Micros::from_secs(1_000);
        assert!(!budgets.ids.is_full(Micros::ZERO) && !budgets.ids.is_full(now));
        let error = budgets.ids.refuse(now);
        assert_eq!(error.memory_full(), Some(MemoryFull(MemoryKind::Ids)));
        assert!(budgets.ids.is_full(now) && !budgets.holds.is_full(now));
        assert!(!budgets.ids.is_full(now.saturating_add(Budget::FULL_FOR)));
        let ids = budgets.report(now).find(|(kind, _)| *kind == MemoryKind::Ids).unwrap().1;
        assert_eq!((ids.bytes, ids.overflows, ids.is_full), (0, 1, true));
    }
}
