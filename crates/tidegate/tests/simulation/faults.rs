//! What goes wrong, and when.

use std::fmt;

use tidegate_model::Rng;

use crate::plan::LENGTH;
use crate::time::BEGIN;

/// One thing that goes wrong. Spans are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A process does not reach the store. Its calls fail at once, or nobody ever answers.
    Cut { node: usize, span: u64, refuses: bool },
    /// All packets are slow.
    Slow { latency: u64, span: u64 },
    /// The store stands still, and then goes on.
    Freeze { span: u64 },
    /// The store is off, and comes back as it was, or empty.
    Crash { span: u64, keeps: bool },
    /// The store is off, and then another is in its place that does not know of its last calls. Its clock
    /// is another.
    Promote { span: u64, forgets: u64, step: i64 },
    /// As a promotion, but some processes go on talking to the old one.
    Split { span: u64, forgets: u64, stay: u64 },
    /// The store's clock is set.
    Step { by: i64 },
    /// A process dies, and another takes its place.
    Kill { node: usize, span: u64 },
    /// A process ends in good order, and another takes its place.
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
        let place = match self {
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
        Self::NAMES[place]
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self:?}", self.name())
    }
}

/// A few kinds at a time, so that what one of them breaks is not hidden by the others.
pub(crate) fn draw(rng: &mut Rng, nodes: usize) -> Vec<(u64, Fault)> {
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

fn step(rng: &mut Rng) -> i64 {
    let by = rng.magnitude(5_000_000).cast_signed();
    if rng.one_in(2) { by } else { -by }
}
