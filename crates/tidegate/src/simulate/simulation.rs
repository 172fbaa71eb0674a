//! Runs candidates on the same traffic.

use std::error::Error;
use std::fmt;

use tidegate_core::Micros;

use super::arrivals::Arrival;
use super::calls::CallProfile;
use super::counts::{RunCounts, SimulationInput};
use super::evaluate::{Evaluator, SimulatedDecision};
use super::report::{CandidateReport, Report};
use super::time_axis::{START, TimeAxis};
use super::{Candidate, Traffic, calls_run};

/// Traffic, random seed and hold time.
#[derive(Clone, Debug)]
pub struct Simulation {
    traffic: Traffic,
    seed: u64,
    hold_time: Option<Micros>,
    calls: Option<CallProfile>,
}

/// Why a simulation is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SimulationError {
    /// No candidate, or more than [`Simulation::MAX_CANDIDATES`].
    CandidateCount(usize),
    /// A `concurrency` limit without a hold time.
    NoHold,
}

impl Simulation {
    /// Largest number of candidates.
    pub const MAX_CANDIDATES: usize = 16;

    /// A simulation of this traffic, with a seed of 1.
    pub fn new(traffic: Traffic) -> Self {
        Self { traffic, seed: 1, hold_time: None, calls: None }
    }

    /// Sets the random seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long an admitted request holds its slot of a `concurrency` limit, at most its lease.
    #[must_use]
    pub fn hold_time(mut self, hold_time: Micros) -> Self {
        self.hold_time = Some(hold_time);
        self
    }

    /// Lets the requests also be calls that reserve an estimate: [`CandidateReport::calls`] has
    /// their results.
    #[must_use]
    pub fn calls(mut self, calls: CallProfile) -> Self {
        self.calls = Some(calls);
        self
    }

    /// Runs every candidate on the same requests.
    pub fn run(&self, candidates: &[Candidate]) -> Result<Report, SimulationError> {
        if candidates.is_empty() || candidates.len() > Self::MAX_CANDIDATES {
            return Err(SimulationError::CandidateCount(candidates.len()));
        }
        candidates.iter().try_for_each(|candidate| self.check(candidate))?;
        let arrivals = self.traffic.arrivals(self.seed);
        let axis = TimeAxis::over(self.traffic.span());
        let (mut offered_by_key, mut offered_series) =
            (vec![0; self.traffic.keys() as usize], axis.zeros());
        for arrival in &arrivals {
            offered_by_key[arrival.key() as usize] += 1;
            if let Some(step) = axis.step_at(arrival.at()) {
                offered_series[step] += 1;
            }
        }
        let busiest = busiest(&offered_by_key);
        let hold_time = self.hold_time.unwrap_or(Micros::ZERO);
        let input = SimulationInput {
            axis,
            busiest: busiest.0,
            offered_by_key: &offered_by_key,
            hold_time,
        };
        Ok(Report {
            traffic: self.traffic.clone(),
            seed: self.seed,
            offered: arrivals.len() as u64,
            keys: offered_by_key.iter().filter(|offered| **offered > 0).count() as u64,
            busiest,
            axis,
            offered_series,
            calls: self.calls,
            runs: candidates.iter().map(|one| self.run_one(one, &arrivals, &input)).collect(),
        })
    }

    fn run_one(
        &self,
        candidate: &Candidate,
        arrivals: &[Arrival],
        input: &SimulationInput<'_>,
    ) -> CandidateReport {
        let keys = input.offered_by_key.len();
        let calls =
            self.calls.map(|calls| calls_run::run(&calls, candidate, arrivals, keys, self.seed));
        CandidateReport { calls, ..run(candidate, arrivals, input) }
    }

    /// Calls `visit` with the decision of every request under one candidate, in order.
    pub fn for_each_decision(
        &self,
        candidate: &Candidate,
        mut visit: impl FnMut(Arrival, SimulatedDecision),
    ) -> Result<(), SimulationError> {
        self.check(candidate)?;
        let hold_time = self.hold_time.unwrap_or(Micros::ZERO);
        let mut evaluator = Evaluator::new(candidate, self.traffic.keys() as usize, hold_time);
        for arrival in self.traffic.arrivals(self.seed) {
            visit(
                arrival,
                evaluator.decide(arrival.key() as usize, START.saturating_add(arrival.at())),
            );
        }
        Ok(())
    }

    fn check(&self, candidate: &Candidate) -> Result<(), SimulationError> {
        let holds = candidate.limits().any(|limit| limit.lease().is_some());
        let stays = self.hold_time.is_some_and(|hold_time| hold_time > Micros::ZERO);
        if holds && !stays { Err(SimulationError::NoHold) } else { Ok(()) }
    }
}

fn run(
    candidate: &Candidate,
    arrivals: &[Arrival],
    input: &SimulationInput<'_>,
) -> CandidateReport {
    let mut evaluator = Evaluator::new(candidate, input.offered_by_key.len(), input.hold_time);
    let mut counts = RunCounts::new(input, candidate.limits().count());
    for arrival in arrivals {
        counts.advance_to(arrival.at(), &evaluator);
        let now = START.saturating_add(arrival.at());
        let decision = evaluator.decide(arrival.key() as usize, now);
        counts.count(*arrival, &decision, &evaluator);
    }
    counts.advance_to(input.axis.span, &evaluator);
    counts.finish(candidate)
}

/// The key with the most requests, the first of several, and their number.
fn busiest(offered_by_key: &[u64]) -> (u32, u64) {
    (0_u32..)
        .zip(offered_by_key)
        .fold((0, 0), |most, (key, offered)| if *offered > most.1 { (key, *offered) } else { most })
}

impl fmt::Display for SimulationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CandidateCount(count) => {
                write!(f, "{count} candidates; use 1 to {}", Simulation::MAX_CANDIDATES)
            }
            Self::NoHold => f.write_str("concurrency counts holders; set a hold time"),
        }
    }
}

impl Error for SimulationError {}
