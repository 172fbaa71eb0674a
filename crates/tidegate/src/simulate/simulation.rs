//! Candidates on the same traffic.

use std::error::Error;
use std::fmt;

use tidegate_core::Micros;

use super::arrivals::Arrival;
use super::axis::Axis;
use super::meters::{Meters, Told};
use super::report::{Report, Run};
use super::tally::Tally;
use super::{Candidate, Traffic};

/// When imagined time begins: on a Monday, the first of January 2024, at midnight UTC. Windows of the
/// calendar, and those of a length that divides a day, begin there as well.
pub const START: Micros = Micros::from_secs(1_704_067_200);

/// Traffic, and what chance begins with.
#[derive(Clone, Debug)]
pub struct Simulation {
    traffic: Traffic,
    seed: u64,
    hold: Option<Micros>,
}

/// Why nothing was simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotSimulated {
    /// No candidate, or more than [`Simulation::MAX_CANDIDATES`].
    CandidateCount(usize),
    /// A `concurrency` limit, and nobody has said how long holders stay.
    NoHold,
}

/// What every candidate has before it.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) axis: Axis,
    pub(super) busiest: u32,
    pub(super) offered_by_key: &'a [u64],
    /// How long holders stay.
    pub(super) stay: Micros,
}

impl Simulation {
    /// The most candidates side by side.
    pub const MAX_CANDIDATES: usize = 16;

    /// This traffic, with a seed of 1.
    pub fn new(traffic: Traffic) -> Self {
        Self { traffic, seed: 1, hold: None }
    }

    /// Chance begins with this.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whoever is let in under a `concurrency` limit stays so long, or until the lease ends.
    #[must_use]
    pub fn hold(mut self, stay: Micros) -> Self {
        self.hold = Some(stay);
        self
    }

    /// Runs every candidate on the same requests.
    pub fn run(&self, candidates: &[Candidate]) -> Result<Report, NotSimulated> {
        if candidates.is_empty() || candidates.len() > Self::MAX_CANDIDATES {
            return Err(NotSimulated::CandidateCount(candidates.len()));
        }
        candidates.iter().try_for_each(|candidate| self.check(candidate))?;
        let arrivals = self.traffic.arrivals(self.seed);
        let axis = Axis::over(self.traffic.span());
        let (mut offered_by_key, mut offered_series) =
            (vec![0; self.traffic.keys() as usize], axis.zeros());
        for arrival in &arrivals {
            offered_by_key[arrival.key() as usize] += 1;
            if let Some(step) = axis.step_at(arrival.at()) {
                offered_series[step] += 1;
            }
        }
        let busiest = busiest(&offered_by_key);
        let stay = self.hold.unwrap_or(Micros::ZERO);
        let scene = Scene { axis, busiest: busiest.0, offered_by_key: &offered_by_key, stay };
        Ok(Report {
            traffic: self.traffic.clone(),
            seed: self.seed,
            offered: arrivals.len() as u64,
            keys: offered_by_key.iter().filter(|offered| **offered > 0).count() as u64,
            busiest,
            axis,
            offered_series,
            runs: candidates.iter().map(|candidate| run(candidate, &arrivals, &scene)).collect(),
        })
    }

    /// Tells of every request under one candidate, in order.
    pub fn watch(
        &self,
        candidate: &Candidate,
        mut tell: impl FnMut(Arrival, Told),
    ) -> Result<(), NotSimulated> {
        self.check(candidate)?;
        let stay = self.hold.unwrap_or(Micros::ZERO);
        let mut meters = Meters::new(candidate, self.traffic.keys() as usize, stay);
        for arrival in self.traffic.arrivals(self.seed) {
            tell(
                arrival,
                meters.decide(arrival.key() as usize, START.saturating_add(arrival.at())),
            );
        }
        Ok(())
    }

    fn check(&self, candidate: &Candidate) -> Result<(), NotSimulated> {
        let holds = candidate.limits().any(|limit| limit.lease().is_some());
        let stays = self.hold.is_some_and(|stay| stay > Micros::ZERO);
        if holds && !stays { Err(NotSimulated::NoHold) } else { Ok(()) }
    }
}

fn run(candidate: &Candidate, arrivals: &[Arrival], scene: &Scene<'_>) -> Run {
    let mut meters = Meters::new(candidate, scene.offered_by_key.len(), scene.stay);
    let mut tally = Tally::new(scene, candidate.limits().count());
    for arrival in arrivals {
        tally.come_to(arrival.at(), &meters);
        let now = START.saturating_add(arrival.at());
        let told = meters.decide(arrival.key() as usize, now);
        tally.count(*arrival, &told, &meters);
    }
    tally.come_to(scene.axis.span, &meters);
    tally.finish(candidate)
}

/// The key that asks most often, the first of several, and how often.
fn busiest(offered_by_key: &[u64]) -> (u32, u64) {
    (0_u32..)
        .zip(offered_by_key)
        .fold((0, 0), |most, (key, offered)| if *offered > most.1 { (key, *offered) } else { most })
}

impl fmt::Display for NotSimulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CandidateCount(count) => {
                write!(f, "{count} limits side by side; use 1 to {}", Simulation::MAX_CANDIDATES)
            }
            Self::NoHold => f.write_str("concurrency counts holders; say how long each stays"),
        }
    }
}

impl Error for NotSimulated {}
