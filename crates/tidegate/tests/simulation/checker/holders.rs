//! How many were in at the same time.

use std::collections::BTreeMap;

use tidegate::{Decision, Op, Source};

use super::{History, Violation, Violations};
use crate::log::{Log, Outcome};
use crate::node::HOLD;
use crate::plan::Plan;
use crate::time::BEGIN;
use crate::traffic::Kind;

/// Somebody who is in.
#[derive(Clone, Copy)]
struct Holder {
    from: u64,
    until: u64,
    places: u64,
}

pub(super) fn check(plan: &Plan, history: &History<'_>, found: &mut Violations) {
    for (number, subject) in plan.subjects.iter().enumerate() {
        if !subject.counts_holders() {
            continue;
        }
        judge(&holders(history, number), subject.capacity, BEGIN, found);
    }
}

/// The same of processes that counted alone.
pub(super) fn check_alone(plan: &Plan, log: &Log, found: &mut Violations) {
    for (number, subject) in plan.subjects.iter().enumerate() {
        if !subject.counts_holders() {
            continue;
        }
        for life in 0..log.lives.len() {
            judge(&holders_alone(log, life, number), subject.local.0, BEGIN, found);
        }
    }
}

fn judge(holders: &[Holder], most: u64, begin: u64, found: &mut Violations) {
    for Holder { from: at, .. } in holders {
        let is_in = |holder: &&Holder| holder.from <= *at && *at < holder.until;
        let places: u64 = holders.iter().filter(is_in).map(|holder| holder.places).sum();
        if places > most {
            let claim = "there are no more holders than places";
            let what = format!("{places} of {most}, from {} us on", *at - begin);
            found.push(Violation { claim, at: *at, what });
            return;
        }
    }
}

/// Everybody who was ever in by the word of a process alone, by its own clock.
fn holders_alone(log: &Log, life: usize, subject: usize) -> Vec<Holder> {
    let mut holders: BTreeMap<u128, Holder> = BTreeMap::new();
    for row in log.rows.iter().filter(|row| row.life == life) {
        let Some(Outcome::Decided { source: Source::Fallback, allowed, expired, .. }) = row.outcome
        else {
            continue;
        };
        let charge = row.request.charges.iter().find(|charge| charge.0 == subject);
        match (&row.request.kind, row.hold, charge) {
            (Kind::Enter { .. } | Kind::All, Some(id), Some((_, places))) if allowed => {
                let until = row.local + HOLD.get();
                holders.insert(id.get(), Holder { from: row.local, until, places: *places });
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

/// Everybody who was ever in, from the first instant to the last.
fn holders(history: &History<'_>, subject: usize) -> Vec<Holder> {
    let mut holders: BTreeMap<u128, Holder> = BTreeMap::new();
    for execution in &history.executions {
        let (packet, at) = (&execution.packet, execution.at);
        let good = execution.answer.as_ref().is_ok_and(|decision: &Decision| !decision.expired());
        let charge = packet.charges.iter().find(|charge| charge.0 == subject);
        match (packet.op, charge) {
            // For as long as its caller was told.
            (Op::Enter { id, .. } | Op::Hold { id, .. }, Some((_, places)))
                if execution.grants() =>
            {
                let until = at + HOLD.get();
                holders.insert(id.get(), Holder { from: at, until, places: *places });
            }
            (Op::Renew { id, ttl }, _) if good => {
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
    // A clock that is set forward ends them early, and a reset forgets them.
    for at in history.forward().map(|(at, _)| at).chain(history.resets(subject)) {
        let before = holders.values_mut().filter(|holder| holder.from < at);
        before.for_each(|holder| holder.until = holder.until.min(at));
    }
    holders.into_values().collect()
}
