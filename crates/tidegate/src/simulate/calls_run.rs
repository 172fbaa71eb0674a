//! Runs calls under one candidate, by every method of spending a budget.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use tidegate_core::{Cost, Expiry, Hold, Holds, Micros, State};

use super::arrivals::Arrival;
use super::calls::{BudgetMethod, CallProfile, MethodReport};
use super::candidate::Candidate;
use super::guarantee::Guarantee;
use super::rng::Rng;
use super::time_axis::START;
use super::worst_window::{AdmittedAt, most_consumed};
use crate::RuleLimit;

/// One request with its random numbers.
#[derive(Clone, Copy)]
struct SimulatedCall {
    estimate: Cost,
    cost: Cost,
    takes: Micros,
}

/// Runs the requests under one candidate by every method. They are the same for all candidates.
pub(super) fn run(
    profile: &CallProfile,
    candidate: &Candidate,
    arrivals: &[Arrival],
    keys: usize,
    seed: u64,
) -> Vec<MethodReport> {
    // Not the numbers that have chosen the arrivals.
    let mut rng = Rng::new(seed ^ 0x5bd1_e995_9d1b_54a5);
    let mut between = |(from, to): (u64, u64)| from + rng.below(to - from + 1);
    let calls: Vec<SimulatedCall> = arrivals
        .iter()
        .map(|_| SimulatedCall {
            estimate: Cost::total(between(profile.estimate)),
            cost: Cost::total(between(profile.cost)),
            takes: Micros::new(between(profile.takes)),
        })
        .collect();
    let run = |method| MethodRun::new(method, candidate, keys).run(arrivals, &calls);
    BudgetMethod::ALL.map(run).into()
}

/// The state of all limits while one method is simulated.
struct MethodRun {
    method: BudgetMethod,
    limits: Vec<LimitBudget>,
}

/// One limit with the state of every key.
struct LimitBudget {
    rule: Arc<RuleLimit>,
    keys: Vec<(Option<State>, Holds)>,
    consumed: Vec<(AdmittedAt, u64)>,
}

impl MethodRun {
    fn new(method: BudgetMethod, candidate: &Candidate, keys: usize) -> Self {
        let limits = candidate.rule().limits().iter().map(|rule| LimitBudget {
            rule: rule.clone(),
            keys: vec![(None, Holds::default()); keys],
            consumed: Vec::new(),
        });
        Self { method, limits: limits.collect() }
    }

    fn run(mut self, arrivals: &[Arrival], calls: &[SimulatedCall]) -> MethodReport {
        let mut report = MethodReport {
            method: self.method,
            admitted: 0,
            denied: 0,
            consumed: 0,
            worst: Vec::new(),
        };
        let mut ends: BinaryHeap<Reverse<(Micros, usize)>> = BinaryHeap::new();
        for (i, (arrival, call)) in arrivals.iter().zip(calls).enumerate() {
            while let Some(Reverse((at, ended))) = ends.peek().copied()
                && at <= arrival.at()
            {
                ends.pop();
                self.end(arrivals[ended].key(), &calls[ended], at);
            }
            if self.admit(arrival.key() as usize, call, arrival.at()) {
                report.admitted += 1;
                report.consumed += call.cost.get();
                ends.push(Reverse((arrival.at().saturating_add(call.takes), i)));
            } else {
                report.denied += 1;
            }
        }
        while let Some(Reverse((at, ended))) = ends.pop() {
            self.end(arrivals[ended].key(), &calls[ended], at);
        }
        report.worst = self.limits.iter_mut().map(LimitBudget::worst).collect();
        report
    }

    /// Takes what the call is expected to cost, if every limit allows it.
    fn admit(&mut self, key: usize, call: &SimulatedCall, at: Micros) -> bool {
        let (now, method) = (START.saturating_add(at), self.method);
        let allows = |limit: &LimitBudget| {
            let (state, holds) = &limit.keys[key];
            let moment = limit.rule.moment(now);
            let look = |cost| limit.rule.limit().look(state.as_ref(), holds, &moment, cost);
            match method {
                _ if limit.is_slot() => look(Cost::ONE).allowed,
                BudgetMethod::ChargeAfter => look(Cost::ZERO).remaining > 0,
                _ => look(call.estimate).allowed,
            }
        };
        let is_allowed = self.limits.iter().all(allows);
        for limit in self.limits.iter_mut().filter(|_| is_allowed) {
            match method {
                _ if limit.is_slot() => limit.hold(key, |held| held + 1),
                BudgetMethod::Reserve => limit.hold(key, |held| held + call.estimate.get()),
                BudgetMethod::RefundDifference => limit.charge(key, now, call.estimate),
                BudgetMethod::ChargeAfter => {}
            }
        }
        is_allowed
    }

    /// Charges what the call has cost.
    fn end(&mut self, key: u32, call: &SimulatedCall, at: Micros) {
        let (now, place) = (START.saturating_add(at), key as usize);
        let &SimulatedCall { estimate, cost, .. } = call;
        for limit in &mut self.limits {
            if limit.is_slot() {
                limit.hold(place, |held| held - 1);
                continue;
            }
            match self.method {
                BudgetMethod::Reserve => {
                    limit.hold(place, |held| held - estimate.get());
                    limit.charge(place, now, cost);
                }
                BudgetMethod::RefundDifference => {
                    limit.refund(place, now, estimate.saturating_sub(cost));
                    limit.charge(place, now, cost.saturating_sub(estimate));
                }
                BudgetMethod::ChargeAfter => limit.charge(place, now, cost),
            }
            limit.consumed.extend(AdmittedAt::new(key, at).map(|end| (end, cost.get())));
        }
    }
}

impl LimitBudget {
    fn is_slot(&self) -> bool {
        self.rule.limit().lease().is_some()
    }

    /// Changes what is held. All holds of a key are one that never expires: each call ends its own.
    fn hold(&mut self, key: usize, change: impl Fn(u64) -> u64) {
        let holds = &mut self.keys[key].1;
        let cost = Cost::total(change(holds.held()));
        holds.remove(0);
        if !cost.is_zero() {
            let (deadline, ttl) = (Micros::MAX, Micros::MAX);
            holds.insert(Hold { id: 0, cost, deadline, ttl, expiry: Expiry::Release });
        }
    }

    fn charge(&mut self, key: usize, now: Micros, cost: Cost) {
        self.rule.limit().charge(&mut self.keys[key].0, &self.rule.moment(now), cost, None);
    }

    fn refund(&mut self, key: usize, now: Micros, cost: Cost) {
        if !cost.is_zero() {
            self.rule.limit().refund(&mut self.keys[key].0, &self.rule.moment(now), cost);
        }
    }

    fn worst(&mut self) -> u64 {
        self.consumed.sort_unstable();
        most_consumed(&self.consumed, Guarantee::of(self.rule.limit(), Micros::ZERO).window)
    }
}
