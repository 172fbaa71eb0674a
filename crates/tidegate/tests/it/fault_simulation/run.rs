//! Runs the history of one seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate::Source;

use crate::fault_simulation::broken_layers::Mutation;
use crate::fault_simulation::checker::{self, Violation};
use crate::fault_simulation::log::Outcome;
use crate::fault_simulation::plan::Plan;
use crate::fault_simulation::time::Due;
use crate::fault_simulation::world::{Hash, World};

/// No history has more events; more means an endless loop.
const MAX_EVENTS: u64 = 1_000_000;

/// The result of a history.
pub(crate) struct Report {
    pub(crate) violations: Vec<Violation>,
    pub(crate) totals: Totals,
    pub(crate) world: Arc<World>,
}

#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) decisions: u64,
    pub(crate) sources: BTreeMap<&'static str, u64>,
    /// Without a decision: the caller dropped it, its process died, or the store failed.
    pub(crate) given_up: u64,
    pub(crate) died: u64,
    pub(crate) errors: u64,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) executions: u64,
    /// How often circuits opened, and the maximum in one incarnation of a process.
    pub(crate) opened: u64,
    pub(crate) max_opened: u64,
    pub(crate) intervals: u64,
    pub(crate) full: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.decisions += other.decisions;
        self.given_up += other.given_up;
        self.died += other.died;
        self.errors += other.errors;
        self.executions += other.executions;
        self.opened += other.opened;
        self.max_opened = self.max_opened.max(other.max_opened);
        self.intervals += other.intervals;
        self.full += other.full;
        for (name, count) in &other.sources {
            *self.sources.entry(name).or_default() += count;
        }
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
    }
}

/// Runs and checks the history of `seed`.
pub(crate) fn run(seed: u64, mutation: Mutation) -> Report {
    let world = World::new(Plan::draw(seed), mutation);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(run_history(&world));
    drop(runtime);
    // The nodes and the world reference each other.
    let nodes = std::mem::take(&mut world.state().nodes);
    drop(nodes);
    let (violations, counts) = checker::check(&world);
    let mut totals = count_totals(&world);
    (totals.intervals, totals.full) = counts;
    Report { violations, totals, world }
}

/// Advances the clock to the next event and runs every task that is ready then.
async fn run_history(world: &Arc<World>) {
    world.schedule_all();
    for _ in 0..MAX_EVENTS {
        run_until_idle(world).await;
        let woken = world.timeline.activity();
        loop {
            match world.timeline.advance() {
                None => return,
                Some(Due::Wake(waker)) => {
                    waker.wake();
                    break;
                }
                Some(Due::Event(event)) => {
                    event(world);
                    if world.timeline.activity() != woken {
                        break;
                    }
                }
            }
        }
    }
    panic!("the history does not end");
}

async fn run_until_idle(world: &World) {
    loop {
        let before = world.timeline.activity();
        tokio::task::yield_now().await;
        if world.timeline.activity() == before {
            return;
        }
    }
}

fn count_totals(world: &World) -> Totals {
    let log = &world.state().log;
    let mut totals = Totals {
        requests: log.rows.len() as u64,
        faults: log.faults.clone(),
        executions: log.executions.len() as u64,
        ..Totals::default()
    };
    for incarnation in 0..log.incarnations.len() {
        let opened =
            log.circuits.iter().filter(|turn| turn.1 == incarnation && turn.2).count() as u64;
        totals.opened += opened;
        totals.max_opened = totals.max_opened.max(opened);
    }
    for row in &log.rows {
        match row.outcome {
            Some(Outcome::Decided { source, .. }) => {
                totals.decisions += 1;
                *totals.sources.entry(Source::name(source)).or_default() += 1;
            }
            Some(_) => totals.errors += 1,
            None if row.given_up => totals.given_up += 1,
            None => totals.died += 1,
        }
    }
    totals
}

/// A hash of every decision; the same for the same seed.
pub(crate) fn digest(world: &World) -> u64 {
    let log = &world.state().log;
    let mut rows: Vec<String> = log
        .rows
        .iter()
        .map(|row| {
            let (request, outcome) = (&row.request, row.outcome);
            let label = (row.start, row.incarnation, &request.kind, &request.charges);
            format!("{label:?} {:?} {outcome:?}", row.end)
        })
        .collect();
    rows.sort_unstable();
    let mut digest = Hash::new(0);
    for byte in rows.iter().flat_map(|row| row.bytes()) {
        digest.0 = (digest.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    digest.0
}
