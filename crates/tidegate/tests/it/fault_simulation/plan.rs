//! A history to run, drawn from one seed.

use std::sync::Arc;

use tidegate::{
    Algorithm, Charge, Cost, Fraction, LeaseSize, Limit, OnStoreFailure, Rule, RuleLimit,
};
use tidegate_model::TraceRng;

use crate::fault_simulation::faults::{self, Fault};
use crate::fault_simulation::time::BEGIN;
use crate::fault_simulation::traffic::{self, Request};
use testkit::bounds::families::{GuaranteedBound, LIMIT_FAMILIES};

/// How long traffic and faults last.
pub(crate) const LENGTH: u64 = 4_000_000;

/// One history, before it runs.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) layers: Layers,
    pub(crate) subjects: Vec<Subject>,
    pub(crate) links: Links,
    /// The pace of each process's clock, in thousandths.
    pub(crate) paces: Vec<u64>,
    pub(crate) faults: Vec<(u64, Fault)>,
    pub(crate) requests: Vec<(u64, Request)>,
}

/// The layers that every process has around its link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layers {
    pub(crate) fallback: bool,
    pub(crate) lease: bool,
    pub(crate) deny_cache: bool,
    pub(crate) breaker: bool,
}

/// Latency and losses of all links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    /// Maximum latency of one direction, in microseconds.
    pub(crate) latency: u64,
    /// One packet of so many is lost; 0 if none is.
    pub(crate) loses_one_in: u64,
}

/// One key under one limit.
pub(crate) struct Subject {
    pub(crate) limit: Arc<RuleLimit>,
    pub(crate) key: String,
    pub(crate) capacity: u64,
    /// The bound; `None` for concurrency limits.
    pub(crate) bound: Option<GuaranteedBound>,
    /// Capacity and bound of a process that decides alone.
    pub(crate) local: (u64, Option<GuaranteedBound>),
}

impl Subject {
    pub(crate) fn charge(&self, cost: Cost) -> Charge<'_> {
        Charge { limit: &self.limit, key: (&*self.key).into(), cost, caller: None }
    }

    pub(crate) fn counts_holders(&self) -> bool {
        self.limit.limit().algorithm() == Algorithm::Concurrency
    }

    /// The number of the subject of a breaker's probes.
    pub(crate) const PROBES: usize = usize::MAX;

    /// The number in the rule's name.
    pub(crate) fn number_of(limit: &RuleLimit) -> usize {
        limit.rule().strip_prefix('s').map_or(Self::PROBES, |number| number.parse().unwrap())
    }

    /// The subject of a breaker's probes: its limit is never reached.
    pub(crate) fn of_probes() -> Self {
        let capacity = 1_000_000;
        let limit = rule(0, &format!("{capacity}/s")).limits()[0].clone();
        Self { limit, key: "probe".into(), capacity, bound: None, local: (0, None) }
    }
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = TraceRng::new(seed);
        let layers = Layers {
            fallback: !rng.one_in(3),
            lease: rng.one_in(2),
            deny_cache: rng.one_in(2),
            breaker: rng.one_in(2),
        };
        let links = Links {
            latency: rng.pick(&[100, 1_000, 10_000]),
            loses_one_in: rng.pick(&[0, 0, 8, 40]),
        };
        let drift = rng.pick(&[0, 0, 100]);
        let nodes = usize::try_from(rng.between(1, 4)).unwrap();
        let paces = (0..nodes).map(|_| rng.between(1_000 - drift, 1_000 + drift)).collect();
        let mut subjects: Vec<Subject> =
            (0..rng.between(1, 2)).map(|number| charged(&mut rng, number, layers.lease)).collect();
        if rng.one_in(3) {
            subjects.push(held(&mut rng, subjects.len() as u64));
        }
        let faults = faults::draw(&mut rng, nodes);
        let requests = traffic::draw(&mut rng, nodes, &subjects);
        Self { seed, layers, subjects, links, paces, faults, requests }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.paces.len()
    }

    /// When all faults end.
    pub(crate) fn faults_end() -> u64 {
        BEGIN + LENGTH
    }
}

/// A fraction of `whole`, at least 1.
fn share_of(share: Fraction, whole: u64) -> u64 {
    (whole * share.millionths() / 1_000_000).max(1)
}

fn charged(rng: &mut TraceRng, number: u64, lease: bool) -> Subject {
    let family = rng.pick(&LIMIT_FAMILIES);
    let length = rng.pick(&[300_000, 1_000_000, 2_500_000]);
    let capacity = if rng.one_in(3) { rng.between(5, 100) } else { rng.between(100, 2_000) };
    let (notation, bound) = family.1(capacity, length);
    let share = rng.pick(&[Fraction::HALF, Fraction::from_millionths(100_000).unwrap()]);
    let on_failure = match rng.below(8) {
        0 => OnStoreFailure::Deny,
        _ => OnStoreFailure::Fallback(share),
    };
    let local = match bound {
        GuaranteedBound::Rate { count, period } => {
            GuaranteedBound::Rate { count: share_of(share, count), period }
        }
        GuaranteedBound::Steps { amount, every } => {
            GuaranteedBound::Steps { amount: share_of(share, amount), every }
        }
        window => window,
    };
    let local_capacity =
        if on_failure == OnStoreFailure::Deny { 0 } else { share_of(share, capacity) };
    let mut rule = rule(number, &notation).on_store_failure(on_failure);
    if lease {
        let size = if rng.one_in(2) { rng.magnitude(100) } else { rng.between(50, 400) };
        let size = u32::try_from(size).unwrap().try_into().unwrap();
        rule = rule.lease(if rng.one_in(2) { LeaseSize::Of(size) } else { LeaseSize::Auto });
    }
    Subject {
        limit: rule.limits()[0].clone(),
        key: format!("key {number}"),
        capacity,
        bound: Some(bound),
        local: (local_capacity, Some(local)),
    }
}

fn held(rng: &mut TraceRng, number: u64) -> Subject {
    let capacity = rng.between(1, 8);
    let rule = rule(number, &format!("concurrency {capacity} lease 1s"));
    Subject {
        limit: rule.limits()[0].clone(),
        key: format!("key {number}"),
        capacity,
        bound: None,
        local: (share_of(Fraction::HALF, capacity), None),
    }
}

fn rule(number: u64, notation: &str) -> Rule {
    Rule::new(&format!("s{number}"), [notation.parse::<Limit>().unwrap()]).unwrap()
}
