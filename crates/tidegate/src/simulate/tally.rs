//! Counting what comes of a candidate.

use tidegate_core::{Micros, Wait};

use super::Candidate;
use super::arrivals::Arrival;
use super::meters::{Meters, Told};
use super::promise::Promise;
use super::report::{Fairness, LimitRun, Run};
use super::simulation::{START, Scene};
use super::worst::{Pass, window_series, worst_window};

/// What is counted while a candidate decides.
pub(super) struct Tally<'a> {
    scene: &'a Scene<'a>,
    denied: u64,
    longest_wait: Option<Wait>,
    longest_delay: Micros,
    admitted_by_key: Vec<u64>,
    passed_series: Vec<u64>,
    passed_later: u64,
    denied_series: Vec<u64>,
    /// Everybody who was let in, at the instant of the decision.
    passes: Vec<Pass>,
    limits: Vec<LimitTally>,
    /// The step that time is in.
    step: usize,
}

#[derive(Default)]
struct LimitTally {
    denied: u64,
    used_series: Vec<u64>,
    /// Everybody at the turn that this limit gave; empty unless it gives any.
    turns: Vec<Pass>,
}

impl<'a> Tally<'a> {
    pub(super) fn new(scene: &'a Scene<'a>, limits: usize) -> Self {
        let zeros = || scene.axis.zeros();
        let limit = || LimitTally { used_series: zeros(), ..LimitTally::default() };
        Self {
            scene,
            denied: 0,
            longest_wait: None,
            longest_delay: Micros::ZERO,
            admitted_by_key: vec![0; scene.offered_by_key.len()],
            passed_series: zeros(),
            passed_later: 0,
            denied_series: zeros(),
            passes: Vec::new(),
            limits: (0..limits).map(|_| limit()).collect(),
            step: 0,
        }
    }

    /// Time comes to `at`: what the busiest key has used is noted where each step begins.
    pub(super) fn come_to(&mut self, at: Micros, meters: &Meters) {
        let axis = &self.scene.axis;
        while self.step + 1 < axis.steps && axis.begins(self.step + 1) <= at {
            self.step += 1;
            let begins = START.saturating_add(axis.begins(self.step));
            for (limit, meter) in self.limits.iter_mut().zip(meters.iter()) {
                limit.used_series[self.step] = meter.used(self.scene.busiest as usize, begins);
            }
        }
    }

    /// A request was decided.
    pub(super) fn count(&mut self, arrival: Arrival, told: &Told, meters: &Meters) {
        let (key, at) = (arrival.key(), arrival.at());
        if told.allowed {
            self.admitted_by_key[key as usize] += 1;
            self.longest_delay = self.longest_delay.max(told.delay);
            self.passes.extend(Pass::new(key, at));
            let step = match told.delay {
                Micros::ZERO => Some(self.step),
                delay => self.scene.axis.step_at(at.saturating_add(delay)),
            };
            match step {
                Some(step) => self.passed_series[step] += 1,
                None => self.passed_later += 1,
            }
        } else {
            self.denied += 1;
            self.denied_series[self.step] += 1;
            self.longest_wait = self.longest_wait.max(Some(told.retry_after));
        }
        for (limit, meter) in self.limits.iter_mut().zip(meters.iter()) {
            limit.denied += u64::from(!meter.allowed());
            if key == self.scene.busiest {
                let used = &mut limit.used_series[self.step];
                *used = (*used).max(meter.used_then(told.allowed));
            }
            if told.allowed && meter.gives_turns() {
                limit.turns.extend(Pass::new(key, at.saturating_add(meter.delay())));
            }
        }
    }

    /// The numbers.
    pub(super) fn finish(mut self, candidate: &Candidate) -> Run {
        self.passes.sort_unstable();
        let (scene, passes) = (self.scene, self.passes);
        let limits = candidate.limits().zip(self.limits).map(|(limit, mut tally)| {
            let stay = limit.lease().map_or(scene.stay, |lease| lease.min(scene.stay));
            let promise = Promise::of(limit, stay);
            tally.turns.sort_unstable();
            let passes = if limit.is_queue() { &tally.turns } else { &passes };
            LimitRun {
                limit: limit.clone(),
                denied: tally.denied,
                promise,
                worst: worst_window(passes, promise.window),
                window_series: window_series(passes, scene.busiest, promise.window, &scene.axis),
                used_series: tally.used_series,
            }
        });
        let admitted = self.admitted_by_key.iter().sum();
        Run {
            candidate: candidate.clone(),
            admitted,
            denied: self.denied,
            longest_wait: self.longest_wait,
            longest_delay: self.longest_delay,
            fairness: Fairness::of(scene.offered_by_key, &self.admitted_by_key),
            passed_series: self.passed_series,
            passed_later: self.passed_later,
            denied_series: self.denied_series,
            limits: limits.collect(),
        }
    }
}
