//! Admission bounds over every interval.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidegate::{Costs, Op, Source};

use super::{History, Violation, Violations};
use crate::fault_simulation::broken_layers::LIMIT;
use crate::fault_simulation::log::{Log, Outcome};
use crate::fault_simulation::plan::{Plan, Subject};
use crate::fault_simulation::store::Execution;
use crate::fault_simulation::traffic::Kind;
use testkit::bounds::families::GuaranteedBound;

/// Upper bound of the time in which a loan is spent, with a clock that is a tenth slow.
const MAX_LOAN_SPAN: u64 = 1_700_000;

/// Permits that may be admitted beyond the limit, in intervals that touch this one.
struct Grace {
    from: u64,
    until: u64,
    permits: u64,
}

/// One subject in one history.
struct Account<'a> {
    subject: &'a Subject,
    /// Instants and permits of admissions.
    admitted: Vec<(u64, u64)>,
    graces: Vec<Grace>,
}

/// Checks all subjects in the history of one store. Returns the number of intervals, and how many
/// of them had no room for more.
pub(super) fn check(
    plan: &Plan,
    log: &Log,
    history: &History<'_>,
    found: &mut Violations,
) -> (u64, u64) {
    let mut counts = (0, 0);
    for (number, subject) in plan.subjects.iter().enumerate() {
        let Some(bound) = subject.bound else { continue };
        let mut admitted = store_admissions(history, number);
        let by_lease = log.rows.iter().filter(|row| {
            let source = row.outcome.and_then(|outcome| outcome.source());
            source == Some(Source::Lease) && row.start <= history.server.until
        });
        for row in by_lease {
            let here = row.request.charges.iter().filter(|charge| charge.0 == number);
            admitted.extend(here.map(|(_, cost)| (row.start, *cost)));
        }
        admitted.sort_unstable();
        let graces = graces(log, history, number, subject.capacity, bound);
        let account = Account { subject, admitted, graces };
        match bound {
            GuaranteedBound::Aligned { length } => {
                account.check_windows(history, length, found);
                let twice = GuaranteedBound::Window { times: 2, less: 0, length };
                add(&mut counts, account.check_intervals(twice, subject.capacity, found));
            }
            bound => add(&mut counts, account.check_intervals(bound, subject.capacity, found)),
        }
    }
    counts
}

/// Checks every process that decided alone against its share.
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
            // A retry under the same id is not charged again.
            Kind::Once(id) => charges.filter(|_| ids.insert((row.incarnation, id))).collect(),
            Kind::Reserve { .. } => {
                reserved.extend(row.hold.map(|hold| (hold.get(), charges.collect())));
                continue;
            }
            Kind::Settle { hold, used, .. } => {
                let held = reserved.remove(&hold.get()).filter(|_| !expired);
                held.into_iter().flatten().map(|(subject, max)| (subject, max.min(*used))).collect()
            }
            _ => continue,
        };
        for (subject, cost) in admitted {
            alone.entry((row.incarnation, subject)).or_default().push((row.local, cost));
        }
    }
    for ((_, number), mut admitted) in alone {
        admitted.sort_unstable();
        let subject = &plan.subjects[number];
        let (max, Some(bound)) = subject.local else { continue };
        Account { subject, admitted, graces: Vec::new() }.check_intervals(bound, max, found);
    }
}

/// Admissions of a store, and charges of its reservations.
fn store_admissions(history: &History<'_>, subject: usize) -> Vec<(u64, u64)> {
    let mut admitted = Vec::new();
    let mut reserved: HashMap<u128, u64> = HashMap::new();
    for execution in &history.executions {
        let Execution { packet, at, reply, .. } = execution;
        let cost = packet.charges.iter().find(|charge| charge.0 == subject).map(|charge| charge.1);
        match (packet.op, cost) {
            (op, Some(cost)) if (op == Op::Check || op.is_entry()) && execution.grants() => {
                admitted.push((*at, cost));
            }
            (Op::Hold(hold), Some(cost)) if execution.grants() && packet.is_reservation() => {
                reserved.insert(hold.id.get(), cost);
            }
            (Op::Settle { id, costs: Costs::All(used) }, _) => {
                let expired = reply.as_ref().is_ok_and(|decision| decision.expired());
                let first = reply.is_ok() && !expired;
                if let Some(max) = reserved.remove(&id.get()).filter(|_| first) {
                    admitted.push((*at, used.get().min(max)));
                }
            }
            _ => {}
        }
    }
    admitted
}

/// Allowances: refunds, loans that this store did not make or has lost, resets, and jumps of its
/// clock.
fn graces(
    log: &Log,
    history: &History<'_>,
    subject: usize,
    capacity: u64,
    bound: GuaranteedBound,
) -> Vec<Grace> {
    let mut graces = Vec::new();
    let known: HashSet<usize> = history.server.log.iter().copied().collect();
    let resets: Vec<u64> = history.resets(subject).collect();
    let of = |execution: &Execution| {
        let mut charges = execution.packet.charges.iter();
        charges.find(|charge| charge.0 == subject).map(|charge| charge.1)
    };
    for (number, execution) in log.executions.iter().enumerate() {
        let (Some(cost), Ok(decision)) = (of(execution), &execution.reply) else { continue };
        let (from, is_known) = (execution.at, known.contains(&number));
        match execution.packet.op {
            Op::Refund if is_known => {
                let permits = decision.refunded().get();
                graces.push(Grace { from, until: from, permits });
            }
            Op::Hold(hold)
                if hold.is_loan() && decision.allowed() && from <= history.server.until =>
            {
                let until = from + MAX_LOAN_SPAN;
                if !is_known {
                    graces.push(Grace { from, until, permits: cost });
                }
                // A loan that ends too early is charged before it is spent. A lost loan is not
                // charged before it is reported.
                let early = history.forward().map(|(at, _)| at).chain(resets.iter().copied());
                let early = early.filter(|at| from <= *at && *at <= until);
                graces.extend(early.map(|at| Grace { from: at, until, permits: cost }));
            }
            _ => {}
        }
    }
    for (at, span) in history.forward() {
        let permits = recovered_by_jump(bound, capacity, span);
        graces.push(Grace { from: at, until: at, permits });
    }
    let times = if let GuaranteedBound::Window { times, .. } = bound { times } else { 1 };
    let forgotten = |at: &u64| Grace { from: *at, until: *at, permits: times * capacity };
    graces.extend(resets.iter().map(forgotten));
    match bound {
        GuaranteedBound::Aligned { .. } => {
            let back = history.server.steps.iter().filter(|(_, by)| *by < 0);
            graces.extend(back.map(|(at, _)| Grace { from: *at, until: *at, permits: capacity }));
        }
        // A multiple of `every` that is passed again adds the amount again. That happens at most
        // once for each step back over such multiples, since the elapsed time has no room for more.
        GuaranteedBound::Steps { amount, every } => {
            let back = history.back_over(every);
            graces.extend(back.map(|at| Grace { from: at, until: at, permits: amount }));
        }
        GuaranteedBound::Rate { .. } | GuaranteedBound::Window { .. } => {}
    }
    graces
}

/// Permits that recover at once when a clock steps forward.
fn recovered_by_jump(bound: GuaranteedBound, capacity: u64, span: u64) -> u64 {
    match bound {
        GuaranteedBound::Rate { count, period } => {
            let whole = (u128::from(count) * u128::from(span)).div_ceil(u128::from(period));
            u64::try_from(whole).unwrap()
        }
        GuaranteedBound::Steps { amount, every } => amount * (span / every + 1),
        GuaranteedBound::Window { length, .. } | GuaranteedBound::Aligned { length } => {
            capacity * (span / length + 1)
        }
    }
}

impl Account<'_> {
    /// Compares every interval from one admission to another with the bound.
    fn check_intervals(
        &self,
        bound: GuaranteedBound,
        capacity: u64,
        found: &mut Violations,
    ) -> (u64, u64) {
        let (mut intervals, mut full) = (0, 0);
        let joined = join_admissions(&self.admitted);
        for (index, (start, _)) in joined.iter().enumerate() {
            let mut sum = 0;
            for (end, permits) in &joined[index..] {
                if end - start > bound.max_interval() {
                    break;
                }
                sum += permits;
                intervals += 1;
                let is_within = |sum, more| bound.allows(sum, capacity, (*start, *end), more);
                if is_within(sum + 1, 0) {
                    continue;
                }
                full += 1;
                if !is_within(sum, 0) && !is_within(sum, self.grace(*start, *end)) {
                    let span = end - start;
                    self.exceeds(*end, format!("{sum} in {span} us, {bound:?}"), found);
                    return (intervals, full);
                }
            }
        }
        (intervals, full)
    }

    /// The same for windows as the store's clock shows them.
    fn check_windows(&self, history: &History<'_>, length: u64, found: &mut Violations) {
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

/// Joins the admissions of one instant.
fn join_admissions(admitted: &[(u64, u64)]) -> Vec<(u64, u64)> {
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
