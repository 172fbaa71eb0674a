//! When a store is left alone, and when it is asked again.

use super::{Violation, Violations};
use crate::log::{Log, Outcome, Sent};
use crate::plan::Plan;

/// From opening to the first probe, at least.
const FIRST_PAUSE: u64 = 50_000;

/// From a probe that failed to the next, at least.
const PAUSE: u64 = 20_000;

/// It takes so many failures to open a circuit, and so many good probes to close it.
const FAILURES: usize = 5;
const GOOD_PROBES: usize = 3;
/// A circuit is closed when nobody has wanted to ask for so long.
const FORGOTTEN_AFTER: u64 = 10_000_000;

pub(super) fn check(plan: &Plan, log: &Log, found: &mut Violations) {
    if !plan.layers.breaker {
        return;
    }
    for life in 0..log.lives.len() {
        let circuit = Circuit::of(log, life);
        let opened = circuit.turns.iter().filter(|turn| turn.1).count();
        // A link that loses something all the time is a fault without an end.
        let flaps = plan.links.loses_one_in == 0 && opened > plan.faults.len();
        let flaps = circuit.turns.last().filter(|_| flaps).map(|turn| turn.0);
        let flaps = flaps.map(|at| (at, "a circuit opens once for every fault at most"));
        for (at, claim) in circuit.broken().into_iter().chain(flaps) {
            let what = format!("life {life} of a process: {:?}", circuit.turns);
            found.push(Violation { claim, at, what });
        }
    }
}

/// Does this process leave the store alone, at some instant of this time?
pub(super) fn is_open(log: &Log, life: usize, from: u64, until: u64) -> bool {
    let turns = log.circuits.iter().filter(|turn| turn.1 == life);
    let before = turns.clone().rfind(|turn| turn.0 < from).is_some_and(|turn| turn.2);
    before || turns.clone().any(|turn| from <= turn.0 && turn.0 <= until && turn.2)
}

/// The circuit of one life of a process.
struct Circuit<'a> {
    pace: u64,
    /// When it was opened or closed.
    turns: Vec<(u64, bool)>,
    sent: Vec<&'a Sent>,
}

impl<'a> Circuit<'a> {
    fn of(log: &'a Log, life: usize) -> Self {
        let turns = log.circuits.iter().filter(|turn| turn.1 == life);
        Self {
            pace: log.lives[life].pace,
            turns: turns.map(|turn| (turn.0, turn.2)).collect(),
            sent: log.sent.iter().filter(|sent| sent.life == life).collect(),
        }
    }

    fn broken(&self) -> Vec<(u64, &'static str)> {
        let mut broken = Vec::new();
        let mut since = 0;
        let mut needed = GOOD_PROBES;
        for (turn, &(at, opens)) in self.turns.iter().enumerate() {
            let is_even = turn % 2 == 0;
            if opens != is_even {
                broken.push((at, "a circuit is opened and closed by turns"));
            }
            if opens {
                if self.ended(since, at, true) < FAILURES {
                    broken.push((at, "a circuit opens after five failures"));
                }
                let until = self.turns.get(turn + 1).map_or(u64::MAX, |next| next.0);
                broken.extend(self.broken_while_open(at, until));
            } else if self.is_forgotten(since, at) {
                needed = GOOD_PROBES;
            } else {
                if self.ended(since, at, false) < needed {
                    broken
                        .push((at, "a circuit closes after good probes, twice as many each time"));
                }
                needed *= 2;
            }
            since = at;
        }
        broken
    }

    /// Nobody was let through for long.
    fn is_forgotten(&self, opened: u64, at: u64) -> bool {
        let before = self.sent.iter().map(|sent| sent.at).filter(|sent| *sent < at).max();
        at - before.map_or(opened, |sent| sent.max(opened)) >= self.true_span(FORGOTTEN_AFTER)
    }

    /// A span by its own clock, rounded.
    fn true_span(&self, span: u64) -> u64 {
        span * 1_000 / self.pace - 10
    }

    /// Calls that ended in this time, badly or well.
    fn ended(&self, from: u64, until: u64, badly: bool) -> usize {
        let is_one = |sent: &&&Sent| {
            sent.back.is_some_and(|(at, _)| from <= at && at <= until) && failed(sent) == badly
        };
        self.sent.iter().filter(is_one).count()
    }

    fn broken_while_open(&self, from: u64, until: u64) -> Vec<(u64, &'static str)> {
        let mut broken = Vec::new();
        let mut free_from = from + self.true_span(FIRST_PAUSE);
        for sent in self.sent.iter().filter(|sent| from < sent.at && sent.at < until) {
            if sent.at < free_from {
                broken.push((sent.at, "an open circuit lets through one at a time, after a pause"));
            }
            free_from = match sent.back {
                Some((at, _)) if failed(sent) => at + self.true_span(PAUSE),
                Some((at, _)) => at,
                // Whoever asked went away; the next may take its place at once.
                None => sent.at,
            };
        }
        broken
    }
}

fn failed(sent: &Sent) -> bool {
    matches!(sent.back, Some((_, Outcome::Unavailable | Outcome::Ambiguous)))
}
