//! The data of the charts.

use tidegate::{Algorithm, Inspection, Limit, Micros, RecoveryPoint, RuleLimit, Standing, Wait};

use super::shape::RecoveryShape;
use crate::text::format::number;

/// The state of a key under one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyChart<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) standing: Standing,
    pub(crate) capacity: u64,
    pub(crate) recovery: &'a [RecoveryPoint],
    /// Time since the start and until the end of the current fixed window, if known.
    pub(crate) window: Option<(Micros, Micros)>,
}

impl<'a> KeyChart<'a> {
    pub(crate) fn new(limit: &'a RuleLimit, found: &'a Inspection, now: Micros) -> Self {
        Self {
            limit: limit.limit(),
            standing: found.standing,
            capacity: found.limit,
            recovery: &found.recovery,
            window: window(limit, found, now),
        }
    }

    pub(crate) fn shape(&self) -> RecoveryShape {
        RecoveryShape::of(self.limit)
    }

    /// Whether the chart shows the used permits instead of the remaining ones.
    pub(crate) fn shows_used(&self) -> bool {
        self.limit.algorithm() != Algorithm::TokenBucket
    }

    /// Permits used above the limit.
    pub(crate) fn debt(&self) -> u64 {
        self.standing.used.saturating_sub(self.capacity)
    }

    /// The last known point of the recovery without a release by a holder.
    pub(crate) fn last(&self) -> Option<(Micros, u64)> {
        let known = self.recovery.iter().rev();
        known.filter_map(|known| Some((known.after.span()?, known.fits))).next()
    }

    /// Title of the gauge.
    pub(crate) fn state_title(&self) -> String {
        let Standing { used, held, remaining, .. } = self.standing;
        let held = match held {
            0 => String::new(),
            held => format!(", {} held", number(held)),
        };
        let (used, left, all) = (number(used), number(remaining), number(self.capacity));
        format!("{used} used{held}, {left} of {all} remaining")
    }

    /// Title of the recovery chart.
    pub(crate) fn recovery_title(&self) -> String {
        let Some((after, fits)) = self.last() else { return self.state_title() };
        let (fits, all) = (number(fits), number(self.capacity));
        format!("Without further requests {fits} of {all} are available in {after}")
    }
}

/// Time since the start and until the end of the current fixed window. The start of a window that
/// begins with a request is computed from its end.
fn window(limit: &RuleLimit, found: &Inspection, now: Micros) -> Option<(Micros, Micros)> {
    let (3, numbers) = limit.limit().numbers() else { return None };
    let (begins, ends) = match *numbers {
        [0, _, length] if length > 0 => {
            let begins = now.get() - now.get() % length;
            (Micros::new(begins), Micros::new(begins + length))
        }
        [2, _, length] => {
            let first = found.recovery.first()?.after;
            let Wait::For(left) = first else { return None };
            let ends = now.saturating_add(left);
            (ends.saturating_sub(Micros::new(length)), ends)
        }
        _ => {
            let boundaries = limit.boundaries(now);
            let ends = boundaries.iter().copied().find(|at| *at > now)?;
            (boundaries.into_iter().rfind(|at| *at <= now)?, ends)
        }
    };
    Some((now.saturating_sub(begins), ends.saturating_sub(now)))
}
