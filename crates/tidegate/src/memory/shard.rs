//! One shard: the packed states, cells and idempotency records of its keys.

use tidegate_core::{Cost, Micros};

use super::budget::Budgets;
use super::cell::{Cell, Space};
use super::id_table::IdTable;
use super::limit_registry::LimitRegistry;
use super::packed_table::{LimitNumber, PackedEntry, PackedTable};
use super::table::Table;
use crate::RuleLimit;

/// A key has a packed state or a cell, or neither while it is unused.
//
// In this order: a check reads the beginning, next to the lock.
#[repr(C)]
pub(super) struct Shard {
    pub(super) packed: PackedTable,
    pub(super) cells: Table<Cell>,
    pub(super) adhoc_packed: PackedTable,
    pub(super) adhoc_cells: Table<Cell>,
    pub(super) ids: IdTable,
}

/// How many states a sweep visits.
#[derive(Clone, Copy)]
pub(super) struct SweepSteps {
    pub(super) packed: usize,
    pub(super) cells: usize,
}

impl SweepSteps {
    /// When a new key is inserted: more than one, so that sweeping outruns inserting.
    pub(super) const ON_INSERT: Self = Self { packed: 8, cells: 8 };
    /// When there is no room.
    pub(super) const WHEN_FULL: Self = Self { packed: 64, cells: 64 };
    /// So many that a shard whose keys have recovered soon gives its memory back.
    pub(super) const THOROUGH: Self = Self { packed: 4_096, cells: 64 };
    pub(super) const ALL: Self = Self { packed: usize::MAX, cells: usize::MAX };
}

impl Shard {
    pub(super) fn new(budgets: &Budgets) -> Self {
        Self {
            packed: PackedTable::new(&budgets.state),
            cells: Table::new(&budgets.state),
            adhoc_packed: PackedTable::new(&budgets.adhoc),
            adhoc_cells: Table::new(&budgets.adhoc),
            ids: IdTable::new(&budgets.ids),
        }
    }

    pub(super) fn packed(&mut self, space: Space) -> &mut PackedTable {
        match space {
            Space::Rules => &mut self.packed,
            Space::Adhoc => &mut self.adhoc_packed,
        }
    }

    /// The same, to read.
    pub(super) fn packed_in(&self, space: Space) -> &PackedTable {
        match space {
            Space::Rules => &self.packed,
            Space::Adhoc => &self.adhoc_packed,
        }
    }

    pub(super) fn cells(&mut self, space: Space) -> &mut Table<Cell> {
        match space {
            Space::Rules => &mut self.cells,
            Space::Adhoc => &mut self.adhoc_cells,
        }
    }

    /// The share of the rule of `limit` among the keys of rules that are stored like its own, from
    /// a sample: of how many, and how many of them. Recovered keys make room, so they do not count.
    pub(super) fn share_of(
        &self,
        limit: &RuleLimit,
        registry: &LimitRegistry,
        now: Micros,
    ) -> (usize, usize) {
        const SAMPLE: usize = 64;
        let is_own = |other: &RuleLimit| other.rule() == limit.rule();
        if !LimitRegistry::packs(limit) {
            let own = self.cells.sample(SAMPLE);
            let own = own.filter(|cell| is_own(cell.limit()) && !cell.is_recovered(now)).count();
            return (self.cells.len().min(SAMPLE), own);
        }
        let own = self.packed.sample(SAMPLE).filter(|entry| {
            let of = registry.limit(entry.limit);
            of.is_some_and(|of| is_own(&of) && !has_recovered(&of, *entry, now))
        });
        (self.packed.len().min(SAMPLE), own.count())
    }

    /// Keys with a state.
    pub(super) fn len(&self) -> usize {
        let adhoc = self.adhoc_packed.len() + self.adhoc_cells.len();
        self.packed.len() + self.cells.len() + adhoc
    }

    pub(super) fn has_cell(&self, space: Space, fingerprint: u64) -> bool {
        let cells = match space {
            Space::Rules => &self.cells,
            Space::Adhoc => &self.adhoc_cells,
        };
        cells.len() > 0 && cells.get(fingerprint.into()).is_some()
    }

    /// Visits the next packed states and cells and removes those that have recovered.
    pub(super) fn sweep(
        &mut self,
        space: Space,
        registry: &LimitRegistry,
        steps: SweepSteps,
        now: Micros,
    ) {
        sweep_packed(self.packed(space), registry, steps.packed, now, None);
        self.cells(space).sweep(steps.cells, |cell| cell.is_recovered(now));
    }

    /// Inserts the state of a new key, and removes some that have recovered. Most are under the
    /// same limit.
    pub(super) fn insert_packed(
        &mut self,
        limit: &RuleLimit,
        fingerprint: u64,
        entry: PackedEntry,
        registry: &LimitRegistry,
        now: Micros,
    ) {
        let (table, steps) = (self.packed(Space::of(limit)), SweepSteps::ON_INSERT.packed);
        sweep_packed(table, registry, steps, now, Some((entry.limit, limit)));
        table.insert(fingerprint, entry);
    }
}

fn sweep_packed(
    table: &mut PackedTable,
    registry: &LimitRegistry,
    steps: usize,
    now: Micros,
    known: Option<(LimitNumber, &RuleLimit)>,
) {
    table.sweep(steps, |entry| match known {
        Some((number, limit)) if number == entry.limit => has_recovered(limit, entry, now),
        _ => registry.limit(entry.limit).is_some_and(|limit| has_recovered(&limit, entry, now)),
    });
}

/// Whether a state equals an unused one.
fn has_recovered(limit: &RuleLimit, entry: PackedEntry, now: Micros) -> bool {
    let look = limit.limit().decide(Some(entry.state), &limit.moment(now), Cost::ZERO);
    look.is_some_and(|(verdict, _)| verdict.reset_after == Micros::ZERO)
}
