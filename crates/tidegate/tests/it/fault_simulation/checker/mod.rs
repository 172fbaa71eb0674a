//! Compares a history with the claims, from the log alone.
//!
//! - `decisions`: every decision by itself: in time, once, by the source that it names.
//! - `admissions`: bounds over every interval. `concurrency`: holders at the same time.
//! - `breaker`: when circuits open and close.

mod admissions;
mod breaker;
mod concurrency;
mod decisions;
mod mirror;

use std::collections::BTreeMap;
use std::fmt;

use tidegate::Op;

use crate::fault_simulation::log::Log;
use crate::fault_simulation::store::{Execution, Server};
use crate::fault_simulation::time::BEGIN;
use crate::fault_simulation::traffic::Kind;
use crate::fault_simulation::world::World;

/// A claim that does not hold.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) claim: &'static str,
    pub(crate) at: u64,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} us: {}: {}", self.at - BEGIN, self.claim, self.what)
    }
}

pub(crate) type Violations = Vec<Violation>;

/// The violations; the number of intervals, and how many of them had no room for more.
pub(crate) fn check(world: &World) -> (Violations, (u64, u64)) {
    let state = world.state();
    let (plan, log) = (&world.plan, &state.log);
    let mut found = Violations::new();
    decisions::check(plan, log, &state.servers, &mut found);
    breaker::check(plan, log, &mut found);
    let mut counts = (0, 0);
    for server in &state.servers {
        let history = History::of(log, server);
        once_per_id(&history, &mut found);
        concurrency::check(plan, &history, &mut found);
        let (intervals, full) = admissions::check(plan, log, &history, &mut found);
        counts = (counts.0 + intervals, counts.1 + full);
    }
    admissions::check_alone(plan, log, &mut found);
    mirror::check(plan, log, &mut found);
    concurrency::check_alone(plan, log, &mut found);
    for left in &log.leftovers {
        let (claim, what) = ("nothing is left over at the end", left.clone());
        found.push(Violation { claim, at: state.servers[0].from, what });
    }
    (found, counts)
}

/// The calls that one store knew in the end, as if no other store had existed.
pub(super) struct History<'a> {
    server: &'a Server,
    executions: Vec<&'a Execution>,
}

impl<'a> History<'a> {
    fn of(log: &'a Log, server: &'a Server) -> Self {
        let executions = server.log.iter().map(|number| &log.executions[*number]).collect();
        Self { server, executions }
    }

    /// When a subject was reset.
    fn resets(&self, subject: usize) -> impl Iterator<Item = u64> {
        let of = move |execution: &&&Execution| {
            let packet = &execution.packet;
            packet.op == Op::Reset && packet.charges.iter().any(|charge| charge.0 == subject)
        };
        self.executions.iter().filter(of).map(|execution| execution.at)
    }

    /// Instants at which its clock stepped forward, and by how much.
    fn forward(&self) -> impl Iterator<Item = (u64, u64)> {
        let steps = self.server.steps.iter();
        steps.filter(|(_, by)| *by > 0).map(|(at, by)| (*at, by.unsigned_abs()))
    }

    /// Instants at which its clock stepped back over a multiple of `length`, as it shows them.
    fn back_over(&self, length: u64) -> impl Iterator<Item = u64> {
        let mut ahead = 0;
        self.server.steps.iter().filter_map(move |(at, by)| {
            let before = at.saturating_add_signed(ahead) / length;
            ahead += by;
            (at.saturating_add_signed(ahead) / length < before).then_some(*at)
        })
    }
}

fn once_per_id(history: &History<'_>, found: &mut Violations) {
    let mut charged: BTreeMap<(usize, &str), u64> = BTreeMap::new();
    for execution in history.executions.iter().filter(|execution| execution.grants()) {
        let (packet, at) = (&execution.packet, execution.at);
        // By the kind of the request: the store may have lost the id.
        let (Some((Kind::Once(id), subject)), Op::Check) = (packet.kind_and_subject(), packet.op)
        else {
            continue;
        };
        let times = charged.entry((subject, id)).or_default();
        *times += 1;
        if *times > 1 {
            let (claim, what) = ("an id is charged once", format!("{id:?}: {times} times"));
            found.push(Violation { claim, at, what });
        }
    }
}
