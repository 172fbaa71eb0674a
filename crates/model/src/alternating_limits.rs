//! Limits of one cell that take turns: by alternation, at random and in phases.

use crate::{Spec, TraceRng};

/// Limits of a cell that take turns.
pub(crate) struct AlternatingLimits {
    /// For each cell two to four limits, or one that does not change.
    limits: Vec<Vec<Spec>>,
    /// A call in so many changes the limit: every one, some, or few.
    one_in: u64,
    /// By turns, and not at random?
    by_turns: bool,
}

impl AlternatingLimits {
    pub(crate) fn new(rng: &mut TraceRng, specs: &[Spec], returns: bool) -> Self {
        let limits = specs.iter().map(|spec| {
            let mut limits = vec![*spec];
            // The windows of a calendar are known only to the calls of its limit. Without returns,
            // the system may cut what a log counts.
            let is_fixed =
                |spec: &Spec| spec.is_calendar() || spec.is_held() || spec.is_log() && !returns;
            let others = if is_fixed(spec) { 0 } else { rng.between(1, 3) };
            for _ in 0..others {
                let changed = rng.pick(&limits).draw_change(rng);
                limits.extend(Some(changed).filter(|changed| !is_fixed(changed)));
            }
            limits
        });
        let limits = limits.collect();
        Self { limits, one_in: rng.pick(&[1, 1, 2, 10]), by_turns: rng.one_in(2) }
    }

    pub(crate) fn next(&self, rng: &mut TraceRng, cell: usize, present: &Spec) -> Option<Spec> {
        let limits = &self.limits[cell];
        if limits.len() == 1 || !rng.one_in(self.one_in) {
            return None;
        }
        let place = limits.iter().position(|spec| spec == present).unwrap_or(0);
        let place =
            if self.by_turns { (place + 1) % limits.len() } else { rng.index(limits.len()) };
        let numbers = |spec: &Spec| spec.limit().map(|limit| limit.numbers());
        Some(limits[place]).filter(|next| numbers(next) != numbers(present))
    }
}
