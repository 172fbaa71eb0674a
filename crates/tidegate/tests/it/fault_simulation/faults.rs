//! Faults, and when they occur.

use std::fmt;

use tidegate_model::TraceRng;

use crate::fault_simulation::plan::LENGTH;
use crate::fault_simulation::time::BEGIN;

/// One fault. Spans are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A process does not reach the store. Its calls fail at once, or get no reply.
    Cut { node: usize, span: u64, refuses: bool },
    /// All packets are slow.
    Slow { latency: u64, span: u64 },
    /// The store stalls, and then continues.
    Freeze { span: u64 },
    /// The store is down, and restarts with its data, or empty.
    Crash { span: u64, keeps: bool },
    /// The store is down, and is then replaced by one that has lost its last calls and has another
    /// clock.
    Promote { span: u64, forgets: u64, step: i64 },
    /// As a promotion, but some processes keep calling the old primary.
    Split { span: u64, forgets: u64, stay: u64 },
    /// The store's clock steps.
    Step { by: i64 },
    /// A process dies, and another replaces it.
    Kill { node: usize, span: u64 },
    /// A process shuts down, and another replaces it.
    Close { node: usize },
}

impl Fault {
    pub(crate) const NAMES: [&str; 10] = [
        "cut off",
        "slow",
        "frozen",
        "crash",
        "emptied",
        "promotion",
        "split",
        "clock step",
        "process killed",
        "process closed",
    ];

    pub(crate) fn name(&self) -> &'static str {
        let index = match self {
            Self::Cut { .. } => 0,
            Self::Slow { .. } => 1,
            Self::Freeze { .. } => 2,
            Self::Crash { keeps: true, .. } => 3,
            Self::Crash { .. } => 4,
            Self::Promote { .. } => 5,
            Self::Split { .. } => 6,
            Self::Step { .. } => 7,
            Self::Kill { .. } => 8,
            Self::Close { .. } => 9,
        };
        Self::NAMES[index]
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self:?}", self.name())
    }
}

/// A few kinds at a time, so that the effects of one are not hidden by the others.
pub(crate) fn draw(rng: &mut TraceRng, nodes: usize) -> Vec<(u64, Fault)> {
    if rng.one_in(5) {
        return Vec::new();
    }
    let kinds = [rng.below(9), rng.below(9)];
    let mut faults = Vec::new();
    for _ in 0..rng.between(1, 4) {
        let at = rng.below(LENGTH - 200_000);
        let span = if rng.one_in(3) { rng.magnitude(1_500_000) } else { rng.below(1_500_000) };
        let span = span.min(LENGTH - at);
        let node = usize::try_from(rng.below(nodes as u64)).unwrap();
        let forgets = if rng.one_in(3) { rng.magnitude(400) } else { rng.below(12) };
        let fault = match rng.pick(&kinds) {
            0 => Fault::Cut { node, span, refuses: rng.one_in(2) },
            1 => Fault::Slow { latency: rng.between(5_000, 60_000), span },
            2 => Fault::Freeze { span },
            3 => Fault::Crash { span, keeps: !rng.one_in(3) },
            4 => {
                let step = if rng.one_in(2) { step(rng) } else { 0 };
                Fault::Promote { span: span / 4, forgets, step }
            }
            5 => Fault::Split { span: span / 2, forgets, stay: rng.any() },
            6 => Fault::Step { by: step(rng) },
            7 => Fault::Kill { node, span },
            _ => Fault::Close { node },
        };
        faults.push((BEGIN + at, fault));
    }
    faults
}

fn step(rng: &mut TraceRng) -> i64 {
    let by = rng.magnitude(5_000_000).cast_signed();
    if rng.one_in(2) { by } else { -by }
}
