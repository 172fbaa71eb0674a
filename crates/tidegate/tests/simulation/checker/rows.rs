//! Every decision by itself.

use std::collections::HashMap;

use tidegate::{Op, Source};

use super::{Violation, Violations};
use crate::log::{Log, Outcome, Row, Sent};
use crate::network::DEADLINE;
use crate::plan::Plan;
use crate::server::{Execution, Server};
use crate::traffic::Kind;

/// For whatever a process does besides waiting. Nothing takes time here, but clocks are rounded.
const MOMENT: u64 = 100;

/// How long a denial may be remembered.
const REMEMBERED: u64 = 1_000_000;

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
            let died = self.log.lives[row.life].died.is_some();
            claim("everybody gets an answer", row.given_up || died);
            return broken;
        };
        let patience = self.true_span(row, self.questions(row) * DEADLINE.get()) + MOMENT;
        claim("nobody waits beyond the deadline", end - row.start <= patience);
        match outcome {
            Outcome::Decided { source, .. } => {
                claim(origin(source), self.is_from(number, row, source, outcome));
            }
            Outcome::Refused => {
                claim("nothing good is refused", is_about_a_hold(&row.request.kind))
            }
            Outcome::Unavailable | Outcome::Ambiguous => {
                let covered = self.plan.layers.fallback && is_covered(&row.request.kind);
                claim("the fallback answers where the store does not", !covered);
            }
        }
        let is_back = outcome.source().is_some_and(|source| source != Source::Fallback);
        match row.request.kind {
            Kind::Probe => {
                let fine = is_back || self.comes_second(row);
                claim("a store that is back is used within a second", fine);
            }
            Kind::All => {
                claim("in the end all can be had again", is_back && outcome.allowed());
            }
            Kind::AllAlone => {
                let alone = self.plan.subjects[row.request.charges[0].0].local.0;
                claim("whoever is alone has a share again", outcome.allowed() == (alone > 0));
            }
            _ => {}
        }
        broken
    }

    /// How many answers of the store it may wait for. What gives back or records is preceded by the
    /// report of what is borrowed for the same key, and that by a record if the loan is forgotten.
    fn questions(&self, row: &Row) -> u64 {
        let reports = matches!(row.request.kind, Kind::Record | Kind::Refund | Kind::Reset);
        if reports && self.plan.layers.lease { 3 } else { 1 }
    }

    /// Was it decided where it says?
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
                self.plan.layers.fallback && (own || self.had_no_answer(number, row))
            }
            _ => false,
        }
    }

    fn executions(&self, number: usize) -> &[&Execution] {
        self.executions.get(&number).map_or(&[], |all| &all[..])
    }

    /// Did the store not answer it, or was it left alone?
    fn had_no_answer(&self, number: usize, row: &Row) -> bool {
        let failed = |sent: &&Sent| {
            matches!(sent.back, Some((_, Outcome::Unavailable | Outcome::Ambiguous)))
        };
        match self.sent.get(&number) {
            Some(sent) => sent.iter().any(failed),
            None => {
                let until = row.end.unwrap_or(row.start);
                super::circuits::is_open(self.log, row.life, row.start, until)
            }
        }
    }

    /// Is somebody else asking the store, as the one who is let through? A circuit is closed by calls, so that one
    /// that hardly anybody asks, since most is decided above it, stays half-open for longer.
    fn comes_second(&self, row: &Row) -> bool {
        let on_its_way = |sent: &Sent| {
            let back = sent.back.is_none_or(|(at, _)| row.start <= at);
            sent.life == row.life && sent.at <= row.start && back
        };
        super::circuits::is_open(self.log, row.life, row.start, row.start)
            && self.log.sent.iter().any(on_its_way)
    }

    /// Has the store denied as much to the same process within the last second, and is that still good?
    fn was_denied(&self, row: &Row) -> bool {
        let denials = self.log.rows.iter().enumerate().filter(|(_, denial)| {
            denial.life == row.life
                && denial.start + self.true_span(row, REMEMBERED) + MOMENT >= row.start
                && denial.end.is_some_and(|end| end <= row.start)
        });
        denials.into_iter().any(|(number, denial)| {
            let Some(Outcome::Decided {
                source: Source::Redis, allowed: false, retry_after, ..
            }) = denial.outcome
            else {
                return false;
            };
            let wait = retry_after.map_or(u64::MAX, |wait| self.true_span(row, wait) + MOMENT);
            let of_the_same = row.request.charges.iter().any(|(subject, cost)| {
                let same = |(other, less): &&(usize, u64)| other == subject && less <= cost;
                denial.request.charges.iter().any(|other| same(&other))
            });
            of_the_same
                && row.start - denial.start <= wait
                && (!row.would_be_granted || self.was_given_back(number, row))
        })
    }

    /// Has anything but time made room since this denial?
    fn was_given_back(&self, denial: usize, row: &Row) -> bool {
        let Some(since) = self.executions(denial).first().map(|one| one.at) else { return false };
        let lately = |at: u64| since <= at && at <= row.start;
        let gives =
            |one: &&Execution| matches!(one.packet.op, Op::Refund | Op::Reset | Op::Settle { .. });
        let stepped = |server: &Server| {
            lately(server.from) || lately(server.until) || server.steps.iter().any(|s| lately(s.0))
        };
        // While two take themselves for the primary, the one may deny what the other would grant.
        let there = |server: &&Server| server.from <= row.start && since <= server.until;
        // A slow clock counts a wait for too long.
        self.log.lives[row.life].pace < 1_000
            || self.servers.iter().any(stepped)
            || self.servers.iter().filter(there).count() > 1
            || self.log.executions.iter().filter(gives).any(|one| lately(one.at))
    }

    /// How long this takes at most by a process's own clock.
    fn true_span(&self, row: &Row, span: u64) -> u64 {
        (span.saturating_mul(1_000) / self.log.lives[row.life].pace).saturating_add(1)
    }
}

fn origin(source: Source) -> &'static str {
    match source {
        Source::Redis => "the store's decisions are made by the store, once",
        Source::Lease => "what is decided from a loan is granted at once",
        Source::DenyCache => "what is remembered is a denial of the last second",
        Source::Fallback => "the fallback answers only where the store does not",
        _ => "every decision says where it was made",
    }
}

fn is_about_a_hold(kind: &Kind) -> bool {
    matches!(kind, Kind::Settle { .. } | Kind::Renew { .. })
}

/// Is it answered here if the store does not answer?
fn is_covered(kind: &Kind) -> bool {
    !matches!(kind, Kind::Refund | Kind::Reset) && !is_about_a_hold(kind)
}
