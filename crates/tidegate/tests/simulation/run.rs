//! One seed, from its beginning to its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate::Source;

use crate::checker::{self, Violation};
use crate::log::Outcome;
use crate::mutants::Mutation;
use crate::plan::Plan;
use crate::time::Due;
use crate::world::{Hash, World};

/// More happens in no history: somebody goes round in circles.
const MOST_EVENTS: u64 = 1_000_000;

/// What came of a history.
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
    /// Without a decision: nobody waited for it, its process died, there was no answer.
    pub(crate) given_up: u64,
    pub(crate) died: u64,
    pub(crate) errors: u64,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) executions: u64,
    /// How often circuits were opened, and how often at most in one life of a process.
    pub(crate) opened: u64,
    pub(crate) most_opened: u64,
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
        self.most_opened = self.most_opened.max(other.most_opened);
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

/// Lets the history of `seed` happen, and judges it.
pub(crate) fn run(seed: u64, mutation: Mutation) -> Report {
    let world = World::new(Plan::draw(seed), mutation);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(live(&world));
    drop(runtime);
    // They know of the world, and the world of them.
    let nodes = std::mem::take(&mut world.state().nodes);
    drop(nodes);
    let (violations, judged) = checker::check(&world);
    let mut totals = tally(&world);
    (totals.intervals, totals.full) = judged;
    Report { violations, totals, world }
}

/// Turns the clock to whatever is next, and lets everybody do what they can do then.
async fn live(world: &Arc<World>) {
    world.plan_everything();
    for _ in 0..MOST_EVENTS {
        quiet(world).await;
        let woken = world.timeline.activity();
        loop {
            match world.timeline.go_on() {
                None => return,
                Some(Due::Wake(waker)) => {
                    waker.wake();
                    break;
                }
                Some(Due::Happen(what)) => {
                    what(world);
                    if world.timeline.activity() != woken {
                        break;
                    }
                }
            }
        }
    }
    panic!("this does not come to an end");
}

async fn quiet(world: &World) {
    loop {
        let before = world.timeline.activity();
        tokio::task::yield_now().await;
        if world.timeline.activity() == before {
            return;
        }
    }
}

fn tally(world: &World) -> Totals {
    let log = &world.state().log;
    let mut totals = Totals {
        requests: log.rows.len() as u64,
        faults: log.faults.clone(),
        executions: log.executions.len() as u64,
        ..Totals::default()
    };
    for life in 0..log.lives.len() {
        let opened = log.circuits.iter().filter(|turn| turn.1 == life && turn.2).count() as u64;
        totals.opened += opened;
        totals.most_opened = totals.most_opened.max(opened);
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

/// Of every decision; the same for the same seed.
pub(crate) fn digest(world: &World) -> u64 {
    let log = &world.state().log;
    let mut rows: Vec<String> = log
        .rows
        .iter()
        .map(|row| {
            let (request, outcome) = (&row.request, row.outcome);
            let who = (row.start, row.life, &request.kind, &request.charges);
            format!("{who:?} {:?} {outcome:?}", row.end)
        })
        .collect();
    rows.sort_unstable();
    let mut digest = Hash::new(0);
    for byte in rows.iter().flat_map(|row| row.bytes()) {
        digest.0 = (digest.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    digest.0
}
