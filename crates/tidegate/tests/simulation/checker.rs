//! Holds a history to what is claimed, from the log alone.
//!
//! # Layout
//!
//! - `rows`: every decision by itself: answered in time, once, by whom it says.
//! - `amounts`: what passed in every interval. `holders`: how many were in at the same time.
//! - `circuits`: when a store is left alone.

mod amounts;
mod circuits;
mod holders;
mod rows;

use std::collections::BTreeMap;
use std::fmt;

use tidegate::Op;

use crate::log::Log;
use crate::server::{Execution, Server};
use crate::time::BEGIN;
use crate::traffic::Kind;
use crate::world::World;

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

/// What does not hold; and how many intervals there were, and how many of them had no room for more.
pub(crate) fn check(world: &World) -> (Violations, (u64, u64)) {
    let state = world.state();
    let (plan, log) = (&world.plan, &state.log);
    let mut found = Violations::new();
    rows::check(plan, log, &state.servers, &mut found);
    circuits::check(plan, log, &mut found);
    let mut judged = (0, 0);
    for server in &state.servers {
        let history = History::of(log, server);
        once_per_id(&history, &mut found);
        holders::check(plan, &history, &mut found);
        let (intervals, full) = amounts::check(plan, log, &history, &mut found);
        judged = (judged.0 + intervals, judged.1 + full);
    }
    amounts::check_alone(plan, log, &mut found);
    holders::check_alone(plan, log, &mut found);
    for left in &log.leftovers {
        let (claim, what) = ("nothing is left of what was", left.clone());
        found.push(Violation { claim, at: state.servers[0].from, what });
    }
    (found, judged)
}

/// What one store knew of in the end: it is as if nothing else had ever been asked of any store.
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

    /// Instants at which its clock was set forward, and by how much.
    fn forward(&self) -> impl Iterator<Item = (u64, u64)> {
        let steps = self.server.steps.iter();
        steps.filter(|(_, by)| *by > 0).map(|(at, by)| (*at, by.unsigned_abs()))
    }

    /// Instants at which its clock was set back over a multiple of `length`, as it shows them.
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
        // By the request's own words: the store may have forgotten that there was an id.
        let (Some((Kind::Once(id), subject)), Op::Check) = (packet.asked_for(), packet.op) else {
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
