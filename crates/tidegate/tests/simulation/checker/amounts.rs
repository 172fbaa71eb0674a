//! What passed in every interval.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidegate::{Op, Source};

use super::{History, Violation, Violations};
use crate::bounds::Promise;
use crate::log::{Log, Outcome};
use crate::mutants::LIMIT;
use crate::plan::{Plan, Subject};
use crate::server::Execution;
use crate::traffic::Kind;

/// So long a loan is spent at most, with a clock that is a tenth slow.
const SPENT_WITHIN: u64 = 1_700_000;

/// Permits that may pass beyond the limit, in intervals that touch this one.
struct Grace {
    from: u64,
    until: u64,
    permits: u64,
}

/// One subject in one history.
struct Account<'a> {
    subject: &'a Subject,
    /// When how much was admitted.
    admitted: Vec<(u64, u64)>,
    graces: Vec<Grace>,
}

/// Holds all subjects in the history of one store to their limits. How many intervals there were, and how
/// many had no room for more.
pub(super) fn check(
    plan: &Plan,
    log: &Log,
    history: &History<'_>,
    found: &mut Violations,
) -> (u64, u64) {
    let mut judged = (0, 0);
    for (number, subject) in plan.subjects.iter().enumerate() {
        let Some(promise) = subject.promise else { continue };
        let mut admitted = of_the_store(history, number);
        let by_lease = log.rows.iter().filter(|row| {
            let source = row.outcome.and_then(|outcome| outcome.source());
            source == Some(Source::Lease) && row.start <= history.server.until
        });
        for row in by_lease {
            let here = row.request.charges.iter().filter(|charge| charge.0 == number);
            admitted.extend(here.map(|(_, cost)| (row.start, *cost)));
        }
        admitted.sort_unstable();
        let graces = graces(log, history, number, subject.capacity, promise);
        let account = Account { subject, admitted, graces };
        match promise {
            Promise::Aligned { length } => {
                account.judge_windows(history, length, found);
                let twice = Promise::Window { times: 2, less: 0, length };
                add(&mut judged, account.judge(twice, subject.capacity, found));
            }
            promise => add(&mut judged, account.judge(promise, subject.capacity, found)),
        }
    }
    judged
}

/// Holds every process that counted alone to its share.
pub(super) fn check_alone(plan: &Plan, log: &Log, found: &mut Violations) {
    let mut alone: BTreeMap<(usize, usize), Vec<(u64, u64)>> = BTreeMap::new();
    let mut ids = HashSet::new();
    let mut reserved: HashMap<u128, Vec<(usize, u64)>> = HashMap::new();
    for row in &log.rows {
        let Some(Outcome::Decided { source: Source::Fallback, allowed: true, expired, .. }) =
            row.outcome
        else {
            continue;
        };
        let charges = row.request.charges.iter().copied();
        let admitted: Vec<(usize, u64)> = match &row.request.kind {
            Kind::Check
            | Kind::Quick
            | Kind::Probe
            | Kind::All
            | Kind::AllAlone
            | Kind::Enter { .. } => charges.collect(),
            // Asked again under the same name it is not charged again.
            Kind::Once(id) => charges.filter(|_| ids.insert((row.life, id))).collect(),
            Kind::Reserve { .. } => {
                reserved.extend(row.hold.map(|hold| (hold.get(), charges.collect())));
                continue;
            }
            Kind::Settle { hold, used, .. } => {
                let held = reserved.remove(&hold.get()).filter(|_| !expired);
                held.into_iter()
                    .flatten()
                    .map(|(subject, most)| (subject, most.min(*used)))
                    .collect()
            }
            _ => continue,
        };
        for (subject, cost) in admitted {
            alone.entry((row.life, subject)).or_default().push((row.local, cost));
        }
    }
    for ((_, number), mut admitted) in alone {
        admitted.sort_unstable();
        let subject = &plan.subjects[number];
        let (most, Some(promise)) = subject.local else { continue };
        Account { subject, admitted, graces: Vec::new() }.judge(promise, most, found);
    }
}

/// What a store has admitted, or what was charged of what it had set aside.
fn of_the_store(history: &History<'_>, subject: usize) -> Vec<(u64, u64)> {
    let mut admitted = Vec::new();
    let mut reserved: HashMap<u128, u64> = HashMap::new();
    for execution in &history.executions {
        let Execution { packet, at, answer, .. } = execution;
        let cost = packet.charges.iter().find(|charge| charge.0 == subject).map(|charge| charge.1);
        match (packet.op, cost) {
            (Op::Check | Op::Enter { .. }, Some(cost)) if execution.grants() => {
                admitted.push((*at, cost));
            }
            (Op::Hold { id, .. }, Some(cost)) if execution.grants() && packet.is_reservation() => {
                reserved.insert(id.get(), cost);
            }
            (Op::Settle { id, cost: Some(used) }, _) => {
                let expired = answer.as_ref().is_ok_and(|decision| decision.expired());
                let first = answer.is_ok() && !expired;
                if let Some(most) = reserved.remove(&id.get()).filter(|_| first) {
                    admitted.push((*at, used.get().min(most)));
                }
            }
            _ => {}
        }
    }
    admitted
}

/// What was given back; what was lent by others than this store, or is forgotten by it; what is reset; and
/// what its clock passes over when it is set.
fn graces(
    log: &Log,
    history: &History<'_>,
    subject: usize,
    capacity: u64,
    promise: Promise,
) -> Vec<Grace> {
    let mut graces = Vec::new();
    let known: HashSet<usize> = history.server.log.iter().copied().collect();
    let resets: Vec<u64> = history.resets(subject).collect();
    let of = |execution: &Execution| {
        let mut charges = execution.packet.charges.iter();
        charges.find(|charge| charge.0 == subject).map(|charge| charge.1)
    };
    for (number, execution) in log.executions.iter().enumerate() {
        let (Some(cost), Ok(decision)) = (of(execution), &execution.answer) else { continue };
        let (from, is_known) = (execution.at, known.contains(&number));
        match execution.packet.op {
            Op::Refund if is_known => {
                let permits = decision.refunded().get();
                graces.push(Grace { from, until: from, permits });
            }
            Op::Lend { .. } if decision.allowed() && from <= history.server.until => {
                let until = from + SPENT_WITHIN;
                if !is_known {
                    graces.push(Grace { from, until, permits: cost });
                }
                // A loan of which the time is over too early is charged before it is spent. One that is
                // forgotten is not charged before it is reported.
                let early = history.forward().map(|(at, _)| at).chain(resets.iter().copied());
                let early = early.filter(|at| from <= *at && *at <= until);
                graces.extend(early.map(|at| Grace { from: at, until, permits: cost }));
            }
            _ => {}
        }
    }
    for (at, span) in history.forward() {
        let permits = passed_over(promise, capacity, span);
        graces.push(Grace { from: at, until: at, permits });
    }
    let times = if let Promise::Window { times, .. } = promise { times } else { 1 };
    let forgotten = |at: &u64| Grace { from: *at, until: *at, permits: times * capacity };
    graces.extend(resets.iter().map(forgotten));
    match promise {
        Promise::Aligned { .. } => {
            let back = history.server.steps.iter().filter(|(_, by)| *by < 0);
            graces.extend(back.map(|(at, _)| Grace { from: *at, until: *at, permits: capacity }));
        }
        // A multiple of `every` that comes again brings the amount again: once for each time that the clock is
        // set back over one, over however many, since no more of them come again than time has room for.
        Promise::Steps { amount, every } => {
            let back = history.back_over(every);
            graces.extend(back.map(|at| Grace { from: at, until: at, permits: amount }));
        }
        Promise::Rate { .. } | Promise::Window { .. } => {}
    }
    graces
}

/// What comes back at once when a clock is set forward.
fn passed_over(promise: Promise, capacity: u64, span: u64) -> u64 {
    match promise {
        Promise::Rate { count, period } => {
            let whole = (u128::from(count) * u128::from(span)).div_ceil(u128::from(period));
            u64::try_from(whole).unwrap()
        }
        Promise::Steps { amount, every } => amount * (span / every + 1),
        Promise::Window { length, .. } | Promise::Aligned { length } => {
            capacity * (span / length + 1)
        }
    }
}

impl Account<'_> {
    /// Compares every interval from one admission to another with the promise.
    fn judge(&self, promise: Promise, capacity: u64, found: &mut Violations) -> (u64, u64) {
        let (mut intervals, mut full) = (0, 0);
        let joined = joined(&self.admitted);
        for (place, (start, _)) in joined.iter().enumerate() {
            let mut sum = 0;
            for (end, permits) in &joined[place..] {
                if end - start > promise.reach() {
                    break;
                }
                sum += permits;
                intervals += 1;
                let keeps = |sum, more| promise.keeps(sum, capacity, (*start, *end), more);
                if keeps(sum + 1, 0) {
                    continue;
                }
                full += 1;
                if !keeps(sum, 0) && !keeps(sum, self.grace(*start, *end)) {
                    let span = end - start;
                    self.exceeds(*end, format!("{sum} in {span} us, {promise:?}"), found);
                    return (intervals, full);
                }
            }
        }
        (intervals, full)
    }

    /// The same for windows as the store's clock shows them.
    fn judge_windows(&self, history: &History<'_>, length: u64, found: &mut Violations) {
        let mut windows: BTreeMap<(usize, u64), (u64, u64, u64)> = BTreeMap::new();
        for (at, permits) in &self.admitted {
            let (steps, shown) = history.server.shown_at(*at);
            let (_, end, sum) = windows.entry((steps, shown / length)).or_insert((*at, *at, 0));
            (*end, *sum) = (*at, *sum + permits);
        }
        for (start, end, sum) in windows.into_values() {
            if sum > self.subject.capacity + self.grace(start, end) {
                self.exceeds(end, format!("{sum} in a window of {length} us"), found);
            }
        }
    }

    fn grace(&self, start: u64, end: u64) -> u64 {
        let touches = |grace: &&Grace| grace.from <= end && start <= grace.until;
        self.graces.iter().filter(touches).map(|grace| grace.permits).sum()
    }

    fn exceeds(&self, at: u64, what: String, found: &mut Violations) {
        let limit = self.subject.limit.limit();
        let what = format!("{} under {limit}: {what}", self.subject.limit.rule());
        found.push(Violation { claim: LIMIT, at, what });
    }
}

/// What was admitted at one instant is one admission.
fn joined(admitted: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for &(at, permits) in admitted {
        match joined.last_mut() {
            Some((same, sum)) if *same == at => *sum += permits,
            _ => joined.push((at, permits)),
        }
    }
    joined
}

fn add(sum: &mut (u64, u64), more: (u64, u64)) {
    *sum = (sum.0 + more.0, sum.1 + more.1);
}
