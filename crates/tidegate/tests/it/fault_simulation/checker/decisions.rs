//! Claims about single decisions.

use std::collections::HashMap;

use tidegate::{Op, Source};

use super::{Violation, Violations};
use crate::fault_simulation::log::{Log, Outcome, Row, Sent};
use crate::fault_simulation::network::DEADLINE;
use crate::fault_simulation::plan::Plan;
use crate::fault_simulation::store::{Execution, Server};
use crate::fault_simulation::traffic::Kind;

/// Rounding of clocks. Apart from waiting, nothing takes time here.
const ROUNDING: u64 = 100;

/// How long a denial may be cached.
const MAX_CACHE_AGE: u64 = 1_000_000;

/// The log by request.
struct Rows<'a> {
    plan: &'a Plan,
    log: &'a Log,
    servers: &'a [Server],
    sent: HashMap<usize, Vec<&'a Sent>>,
    executions: HashMap<usize, Vec<&'a Execution>>,
}

pub(super) fn check(plan: &Plan, log: &Log, servers: &[Server], found: &mut Violations) {
    let (mut sent, mut executions) = (HashMap::new(), HashMap::new());
    for one in &log.sent {
        if let Some(row) = one.row {
            sent.entry(row).or_insert_with(Vec::new).push(one);
        }
    }
    for one in &log.executions {
        if let Some(row) = one.packet.row {
            executions.entry(row).or_insert_with(Vec::new).push(one);
        }
    }
    let rows = Rows { plan, log, servers, sent, executions };
    for (number, row) in log.rows.iter().enumerate() {
        for claim in rows.broken(number, row) {
            let what = format!("request {number}: {row:?}");
            found.push(Violation { claim, at: row.end.unwrap_or(row.start), what });
        }
    }
}

impl Rows<'_> {
    /// The claims that a decision breaks.
    fn broken(&self, number: usize, row: &Row) -> Vec<&'static str> {
        let mut broken = Vec::new();
        let mut claim = |claim, holds: bool| {
            if !holds {
                broken.push(claim);
            }
        };
        let sent = self.sent.get(&number).map_or(0, Vec::len);
        claim("nothing is sent twice", sent <= 1 && self.executions(number).len() <= 1);
        let (Some(end), Some(outcome)) = (row.end, row.outcome) else {
            let died = self.log.incarnations[row.incarnation].died.is_some();
            claim("every request gets a result", row.given_up || died);
            return broken;
        };
        let deadline = self.true_span(row, self.store_calls(row) * DEADLINE.get()) + ROUNDING;
        claim("no request waits beyond the deadline", end - row.start <= deadline);
        match outcome {
            Outcome::Decided { source, .. } => {
                claim(source_claim(source), self.is_from(number, row, source, outcome));
            }
            Outcome::Refused => {
                claim("no valid request is refused", is_about_a_hold(&row.request.kind))
            }
            Outcome::Unavailable | Outcome::Ambiguous => {
                let covered = self.plan.layers.fallback && is_covered(&row.request.kind);
                claim("the fallback decides where the store fails", !covered);
            }
        }
        let from_store = outcome.source().is_some_and(|source| source != Source::Fallback);
        match row.request.kind {
            Kind::Probe => {
                let is_valid = from_store || self.another_probe_is_in_flight(row);
                claim("a store that recovered is used within a second", is_valid);
            }
            Kind::All => {
                claim(
                    "in the end the whole capacity is available again",
                    from_store && outcome.allowed(),
                );
            }
            Kind::AllAlone => {
                let alone = self.plan.subjects[row.request.charges[0].0].local.0;
                claim(
                    "a process that is cut off has its share again",
                    outcome.allowed() == (alone > 0),
                );
            }
            _ => {}
        }
        broken
    }

    /// How many store calls a request may wait for. Refunds, resets and records first report the
    /// loan of the same key, and record its usage if the store has lost the loan.
    fn store_calls(&self, row: &Row) -> u64 {
        let reports = matches!(row.request.kind, Kind::Record | Kind::Refund | Kind::Reset);
        if reports && self.plan.layers.lease { 3 } else { 1 }
    }

    /// Whether it was decided by the source that it names.
    fn is_from(&self, number: usize, row: &Row, source: Source, outcome: Outcome) -> bool {
        let Outcome::Decided { allowed, .. } = outcome else { return false };
        let here = self.executions(number);
        match source {
            Source::Redis => match here {
                [one] => {
                    let within = row.start <= one.at && Some(one.at) <= row.end;
                    within && one.allowed() == allowed
                }
                _ => false,
            },
            Source::Lease => {
                self.plan.layers.lease && allowed && here.is_empty() && row.end == Some(row.start)
            }
            Source::DenyCache => !allowed && self.was_denied(row),
            Source::Fallback => {
                let own = is_about_a_hold(&row.request.kind);
                self.plan.layers.fallback && (own || self.store_failed(number, row))
            }
            _ => false,
        }
    }

    fn executions(&self, number: usize) -> &[&Execution] {
        self.executions.get(&number).map_or(&[], |all| &all[..])
    }

    /// Whether the store failed, or the circuit was open.
    fn store_failed(&self, number: usize, row: &Row) -> bool {
        let failed = |sent: &&Sent| {
            matches!(sent.result, Some((_, Outcome::Unavailable | Outcome::Ambiguous)))
        };
        let until = row.end.unwrap_or(row.start);
        let is_open = super::breaker::is_open(self.log, row.incarnation, row.start, until);
        match self.sent.get(&number) {
            // The circuit opens before the reply to a call in flight.
            Some(sent) => {
                sent.iter().any(failed) || is_open && sent.iter().any(|sent| sent.result.is_none())
            }
            None => is_open,
        }
    }

    /// Whether another call is the probe of a half-open circuit. Calls close a circuit, so a
    /// circuit with few calls stays half-open for longer when most decisions are made above it.
    fn another_probe_is_in_flight(&self, row: &Row) -> bool {
        let in_flight = |sent: &Sent| {
            let pending = sent.result.is_none_or(|(at, _)| row.start <= at);
            sent.incarnation == row.incarnation && sent.at <= row.start && pending
        };
        super::breaker::is_open(self.log, row.incarnation, row.start, row.start)
            && self.log.sent.iter().any(in_flight)
    }

    /// Whether the store denied as much to the same process within the last second, and the denial
    /// still holds.
    fn was_denied(&self, row: &Row) -> bool {
        let denials = self.log.rows.iter().enumerate().filter(|(_, denial)| {
            denial.incarnation == row.incarnation
                && denial.start + self.true_span(row, MAX_CACHE_AGE) + ROUNDING >= row.start
                && denial.end.is_some_and(|end| end <= row.start)
        });
        denials.into_iter().any(|(number, denial)| {
            let Some(Outcome::Decided {
                source: Source::Redis, allowed: false, retry_after, ..
            }) = denial.outcome
            else {
                return false;
            };
            let wait = retry_after.map_or(u64::MAX, |wait| self.true_span(row, wait) + ROUNDING);
            let of_the_same = row.request.charges.iter().any(|(subject, cost)| {
                let same = |(other, less): &&(usize, u64)| other == subject && less <= cost;
                denial.request.charges.iter().any(|other| same(&other))
            });
            of_the_same
                && row.start - denial.start <= wait
                && (!row.would_be_granted || self.permits_were_freed(number, row))
        })
    }

    /// Whether anything except time has freed permits since this denial.
    fn permits_were_freed(&self, denial: usize, row: &Row) -> bool {
        let Some(since) = self.executions(denial).first().map(|one| one.at) else { return false };
        let is_since_denial = |at: u64| since <= at && at <= row.start;
        let frees_permits =
            |one: &&Execution| matches!(one.packet.op, Op::Refund | Op::Reset | Op::Settle { .. });
        let stepped = |server: &Server| {
            is_since_denial(server.from)
                || is_since_denial(server.until)
                || server.steps.iter().any(|s| is_since_denial(s.0))
        };
        // During a split, one primary may deny what the other would grant.
        let there = |server: &&Server| server.from <= row.start && since <= server.until;
        // A slow clock counts a wait for too long.
        self.log.incarnations[row.incarnation].pace < 1_000
            || self.servers.iter().any(stepped)
            || self.servers.iter().filter(there).count() > 1
            || self.log.executions.iter().filter(frees_permits).any(|one| is_since_denial(one.at))
    }

    /// The span in true time of a process's own clock, rounded up.
    fn true_span(&self, row: &Row, span: u64) -> u64 {
        (span.saturating_mul(1_000) / self.log.incarnations[row.incarnation].pace).saturating_add(1)
    }
}

fn source_claim(source: Source) -> &'static str {
    match source {
        Source::Redis => "the store's decisions are made by the store, once",
        Source::Lease => "a decision from a loan is granted at once",
        Source::DenyCache => "a cached denial is of the last second",
        Source::Fallback => "the fallback decides only where the store fails",
        _ => "every decision names its source",
    }
}

fn is_about_a_hold(kind: &Kind) -> bool {
    matches!(kind, Kind::Settle { .. } | Kind::Renew { .. })
}

/// Whether the fallback decides it when the store fails.
fn is_covered(kind: &Kind) -> bool {
    !matches!(kind, Kind::Refund | Kind::Reset) && !is_about_a_hold(kind)
}
