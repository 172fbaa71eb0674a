//! Counts per candidate.

use tidegate_core::{Micros, Wait};

use super::Candidate;
use super::arrivals::Arrival;
use super::evaluate::{Evaluator, SimulatedDecision};
use super::guarantee::Guarantee;
use super::report::{CandidateReport, Fairness, LimitReport};
use super::time_axis::{START, TimeAxis};
use super::worst_window::{AdmittedAt, window_series, worst_window};

/// The input that all candidates share.
#[derive(Debug)]
pub(super) struct SimulationInput<'a> {
    pub(super) axis: TimeAxis,
    pub(super) busiest: u32,
    pub(super) offered_by_key: &'a [u64],
    /// How long a holder keeps its slot.
    pub(super) hold_time: Micros,
}

/// Counts while a candidate is evaluated.
pub(super) struct RunCounts<'a> {
    input: &'a SimulationInput<'a>,
    denied: u64,
    longest_wait: Option<Wait>,
    longest_delay: Micros,
    admitted_by_key: Vec<u64>,
    passed_series: Vec<u64>,
    passed_later: u64,
    denied_series: Vec<u64>,
    /// Admitted requests, at the time of the decision.
    admissions: Vec<AdmittedAt>,
    limits: Vec<LimitCounts>,
    step: usize,
}

#[derive(Default)]
struct LimitCounts {
    denied: u64,
    used_series: Vec<u64>,
    /// Admitted requests at the turn that this limit gave them; empty unless it is a queue.
    turns: Vec<AdmittedAt>,
}

impl<'a> RunCounts<'a> {
    pub(super) fn new(input: &'a SimulationInput<'a>, limits: usize) -> Self {
        let zeros = || input.axis.zeros();
        let limit = || LimitCounts { used_series: zeros(), ..LimitCounts::default() };
        Self {
            input,
            denied: 0,
            longest_wait: None,
            longest_delay: Micros::ZERO,
            admitted_by_key: vec![0; input.offered_by_key.len()],
            passed_series: zeros(),
            passed_later: 0,
            denied_series: zeros(),
            admissions: Vec::new(),
            limits: (0..limits).map(|_| limit()).collect(),
            step: 0,
        }
    }

    /// Advances to `at`: records the usage of the busiest key at the start of each step.
    pub(super) fn advance_to(&mut self, at: Micros, evaluator: &Evaluator) {
        let axis = &self.input.axis;
        while self.step + 1 < axis.steps && axis.begins(self.step + 1) <= at {
            self.step += 1;
            let start = START.saturating_add(axis.begins(self.step));
            for (limit, limit_evaluator) in self.limits.iter_mut().zip(evaluator.iter()) {
                limit.used_series[self.step] =
                    limit_evaluator.used(self.input.busiest as usize, start);
            }
        }
    }

    pub(super) fn count(
        &mut self,
        arrival: Arrival,
        decision: &SimulatedDecision,
        evaluator: &Evaluator,
    ) {
        let (key, at) = (arrival.key(), arrival.at());
        if decision.allowed {
            self.admitted_by_key[key as usize] += 1;
            self.longest_delay = self.longest_delay.max(decision.delay);
            self.admissions.extend(AdmittedAt::new(key, at));
            let step = match decision.delay {
                Micros::ZERO => Some(self.step),
                delay => self.input.axis.step_at(at.saturating_add(delay)),
            };
            match step {
                Some(step) => self.passed_series[step] += 1,
                None => self.passed_later += 1,
            }
        } else {
            self.denied += 1;
            self.denied_series[self.step] += 1;
            self.longest_wait = self.longest_wait.max(Some(decision.retry_after));
        }
        for (limit, limit_evaluator) in self.limits.iter_mut().zip(evaluator.iter()) {
            limit.denied += u64::from(!limit_evaluator.allowed());
            if key == self.input.busiest {
                let used = &mut limit.used_series[self.step];
                *used = (*used).max(limit_evaluator.used_after(decision.allowed));
            }
            if decision.allowed && limit_evaluator.is_queue() {
                limit
                    .turns
                    .extend(AdmittedAt::new(key, at.saturating_add(limit_evaluator.delay())));
            }
        }
    }

    pub(super) fn finish(mut self, candidate: &Candidate) -> CandidateReport {
        self.admissions.sort_unstable();
        let (input, admissions) = (self.input, self.admissions);
        let limits = candidate.limits().zip(self.limits).map(|(limit, mut counts)| {
            let hold_time =
                limit.lease().map_or(input.hold_time, |lease| lease.min(input.hold_time));
            let promise = Guarantee::of(limit, hold_time);
            counts.turns.sort_unstable();
            let admissions = if limit.is_queue() { &counts.turns } else { &admissions };
            LimitReport {
                limit: limit.clone(),
                denied: counts.denied,
                promise,
                worst: worst_window(admissions, promise.window),
                window_series: window_series(
                    admissions,
                    input.busiest,
                    promise.window,
                    &input.axis,
                ),
                used_series: counts.used_series,
            }
        });
        let admitted = self.admitted_by_key.iter().sum();
        CandidateReport {
            candidate: candidate.clone(),
            admitted,
            denied: self.denied,
            longest_wait: self.longest_wait,
            longest_delay: self.longest_delay,
            fairness: Fairness::of(input.offered_by_key, &self.admitted_by_key),
            passed_series: self.passed_series,
            passed_later: self.passed_later,
            denied_series: self.denied_series,
            limits: limits.collect(),
            calls: None,
        }
    }
}
