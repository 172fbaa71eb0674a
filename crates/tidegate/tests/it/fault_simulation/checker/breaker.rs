//! When circuits open, admit probes, and close.

use super::{Violation, Violations};
use crate::fault_simulation::log::{Log, Outcome, Sent};
use crate::fault_simulation::plan::Plan;

/// Lower bound of the time from opening to the first probe.
const FIRST_PAUSE: u64 = 50_000;

/// Lower bound of the time from a failed probe to the next.
const PAUSE: u64 = 20_000;

/// Failures that open a circuit.
const FAILURES: usize = 5;
/// Successful probes that close it at first.
const PROBES_TO_CLOSE: usize = 3;
/// An idle circuit without calls for so long is dropped.
const DROPPED_AFTER: u64 = 10_000_000;

pub(super) fn check(plan: &Plan, log: &Log, found: &mut Violations) {
    if !plan.layers.breaker {
        return;
    }
    for incarnation in 0..log.incarnations.len() {
        let circuit = Circuit::of(log, incarnation);
        let opened = circuit.transitions.iter().filter(|transition| transition.1).count();
        // A link that loses packets all the time is a fault without an end.
        let flaps = plan.links.loses_one_in == 0 && opened > plan.faults.len();
        let flaps = circuit.transitions.last().filter(|_| flaps).map(|transition| transition.0);
        let flaps = flaps.map(|at| (at, "a circuit opens once for every fault at most"));
        for (at, claim) in circuit.broken().into_iter().chain(flaps) {
            let what = format!("incarnation {incarnation}: {:?}", circuit.transitions);
            found.push(Violation { claim, at, what });
        }
    }
}

/// Whether the circuit of this incarnation is open at some instant of this time.
pub(super) fn is_open(log: &Log, incarnation: usize, from: u64, until: u64) -> bool {
    let transitions = log.circuits.iter().filter(|transition| transition.1 == incarnation);
    let before = transitions
        .clone()
        .rfind(|transition| transition.0 < from)
        .is_some_and(|transition| transition.2);
    before
        || transitions
            .clone()
            .any(|transition| from <= transition.0 && transition.0 <= until && transition.2)
}

/// The circuit of one incarnation of a process.
struct Circuit<'a> {
    pace: u64,
    /// Instants at which it opened (`true`) or closed.
    transitions: Vec<(u64, bool)>,
    sent: Vec<&'a Sent>,
}

impl<'a> Circuit<'a> {
    fn of(log: &'a Log, incarnation: usize) -> Self {
        let transitions = log.circuits.iter().filter(|transition| transition.1 == incarnation);
        Self {
            pace: log.incarnations[incarnation].pace,
            transitions: transitions.map(|transition| (transition.0, transition.2)).collect(),
            sent: log.sent.iter().filter(|sent| sent.incarnation == incarnation).collect(),
        }
    }

    fn broken(&self) -> Vec<(u64, &'static str)> {
        let mut broken = Vec::new();
        let mut since = 0;
        let mut needed = PROBES_TO_CLOSE;
        for (transition, &(at, opens)) in self.transitions.iter().enumerate() {
            let is_even = transition % 2 == 0;
            if opens != is_even {
                broken.push((at, "a circuit opens and closes alternately"));
            }
            if opens {
                if self.ended(since, at, true) < FAILURES {
                    broken.push((at, "a circuit opens after five failures"));
                }
                let until = self.transitions.get(transition + 1).map_or(u64::MAX, |next| next.0);
                broken.extend(self.broken_while_open(at, until));
            } else if self.is_dropped(since, at) {
                needed = PROBES_TO_CLOSE;
            } else {
                if self.ended(since, at, false) < needed {
                    broken.push((
                        at,
                        "a circuit closes after successful probes, twice as many each time",
                    ));
                }
                needed *= 2;
            }
            since = at;
        }
        broken
    }

    /// Whether no call was admitted for long.
    fn is_dropped(&self, opened: u64, at: u64) -> bool {
        let before = self.sent.iter().map(|sent| sent.at).filter(|sent| *sent < at).max();
        at - before.map_or(opened, |sent| sent.max(opened)) >= self.true_span(DROPPED_AFTER)
    }

    /// A span of the process's clock in true time, rounded.
    fn true_span(&self, span: u64) -> u64 {
        span * 1_000 / self.pace - 10
    }

    /// The number of calls that failed or succeeded in this time.
    fn ended(&self, from: u64, until: u64, failed_calls: bool) -> usize {
        let is_one = |sent: &&&Sent| {
            sent.result.is_some_and(|(at, _)| from <= at && at <= until)
                && failed(sent) == failed_calls
        };
        self.sent.iter().filter(is_one).count()
    }

    fn broken_while_open(&self, from: u64, until: u64) -> Vec<(u64, &'static str)> {
        let mut broken = Vec::new();
        let mut free_from = from + self.true_span(FIRST_PAUSE);
        for sent in self.sent.iter().filter(|sent| from < sent.at && sent.at < until) {
            if sent.at < free_from {
                broken.push((sent.at, "an open circuit admits one probe at a time, after a pause"));
            }
            free_from = match sent.result {
                Some((at, _)) if failed(sent) => at + self.true_span(PAUSE),
                Some((at, _)) => at,
                // The caller dropped the call; the next call may take its slot at once.
                None => sent.at,
            };
        }
        broken
    }
}

fn failed(sent: &Sent) -> bool {
    matches!(sent.result, Some((_, Outcome::Unavailable | Outcome::Ambiguous)))
}
