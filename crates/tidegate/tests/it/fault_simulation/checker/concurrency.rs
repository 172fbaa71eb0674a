//! Concurrency limits: the number of holders at the same time.

use std::collections::BTreeMap;

use tidegate::{Decision, Op, Source};

use super::{History, Violation, Violations};
use crate::fault_simulation::log::{Log, Outcome};
use crate::fault_simulation::node::HOLD;
use crate::fault_simulation::plan::Plan;
use crate::fault_simulation::time::BEGIN;
use crate::fault_simulation::traffic::Kind;

/// A holder of slots.
#[derive(Clone, Copy)]
struct Holder {
    from: u64,
    until: u64,
    slots: u64,
}

pub(super) fn check(plan: &Plan, history: &History<'_>, found: &mut Violations) {
    for (number, subject) in plan.subjects.iter().enumerate() {
        if !subject.counts_holders() {
            continue;
        }
        check_holders(&holders(history, number), subject.capacity, BEGIN, found);
    }
}

/// The same for processes that decided alone.
pub(super) fn check_alone(plan: &Plan, log: &Log, found: &mut Violations) {
    for (number, subject) in plan.subjects.iter().enumerate() {
        if !subject.counts_holders() {
            continue;
        }
        for incarnation in 0..log.incarnations.len() {
            check_holders(&holders_alone(log, incarnation, number), subject.local.0, BEGIN, found);
        }
    }
}

fn check_holders(holders: &[Holder], capacity: u64, begin: u64, found: &mut Violations) {
    for Holder { from: at, .. } in holders {
        let is_active = |holder: &&Holder| holder.from <= *at && *at < holder.until;
        let slots: u64 = holders.iter().filter(is_active).map(|holder| holder.slots).sum();
        if slots > capacity {
            let claim = "there are no more holders than slots";
            let what = format!("{slots} of {capacity}, from {} us on", *at - begin);
            found.push(Violation { claim, at: *at, what });
            return;
        }
    }
}

/// All holders that a process admitted alone, by its own clock.
fn holders_alone(log: &Log, incarnation: usize, subject: usize) -> Vec<Holder> {
    let mut holders: BTreeMap<u128, Holder> = BTreeMap::new();
    for row in log.rows.iter().filter(|row| row.incarnation == incarnation) {
        let Some(Outcome::Decided { source: Source::Fallback, allowed, expired, .. }) = row.outcome
        else {
            continue;
        };
        let charge = row.request.charges.iter().find(|charge| charge.0 == subject);
        match (&row.request.kind, row.hold, charge) {
            (Kind::Enter { .. } | Kind::All, Some(id), Some((_, slots))) if allowed => {
                let until = row.local + HOLD.get();
                holders.insert(id.get(), Holder { from: row.local, until, slots: *slots });
            }
            (Kind::Renew { hold }, ..) if !expired => {
                if let Some(holder) = holders.get_mut(&hold.get()) {
                    holder.until = row.local + HOLD.get();
                }
            }
            (Kind::Settle { hold, .. }, ..) => {
                if let Some(holder) = holders.get_mut(&hold.get()) {
                    holder.until = holder.until.min(row.local);
                }
            }
            _ => {}
        }
    }
    holders.into_values().collect()
}

/// All holders, from the first instant to the last.
fn holders(history: &History<'_>, subject: usize) -> Vec<Holder> {
    let mut holders: BTreeMap<u128, Holder> = BTreeMap::new();
    for execution in &history.executions {
        let (packet, at) = (&execution.packet, execution.at);
        let renewed = execution.reply.as_ref().is_ok_and(|decision: &Decision| !decision.expired());
        let charge = packet.charges.iter().find(|charge| charge.0 == subject);
        match (packet.op, charge) {
            // For the time that its caller was granted.
            (Op::Hold(hold), Some((_, slots))) if execution.grants() => {
                let until = at + HOLD.get();
                holders.insert(hold.id.get(), Holder { from: at, until, slots: *slots });
            }
            (Op::Renew { id, ttl }, _) if renewed => {
                if let Some(holder) = holders.get_mut(&id.get()) {
                    holder.until = at + ttl.get();
                }
            }
            (Op::Settle { id, .. }, _) => {
                if let Some(holder) = holders.get_mut(&id.get()) {
                    holder.until = holder.until.min(at);
                }
            }
            _ => {}
        }
    }
    // A clock that steps forward ends holds early, and a reset forgets them.
    for at in history.forward().map(|(at, _)| at).chain(history.resets(subject)) {
        let before = holders.values_mut().filter(|holder| holder.from < at);
        before.for_each(|holder| holder.until = holder.until.min(at));
    }
    holders.into_values().collect()
}
