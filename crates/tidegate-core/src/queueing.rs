//! How long it takes at least until a whole queue of callers has passed.

use crate::fixed::{Fixed, Window};
use crate::shape::Shape;
use crate::{Cost, Limit, Micros};

impl Limit {
    /// Splits `cost`, and what those `ahead` of it want, into a first part, to
    /// [look](Self::look) for, and a rest, to ask [`at_least`](Self::at_least) about.
    pub fn split(&self, cost: Cost, ahead: u64) -> (Cost, u64) {
        let capacity = self.capacity().max(1);
        let wanted = cost.get().saturating_add(ahead);
        let first = match &self.shape {
            Shape::Bucket(bucket) if bucket.queue => cost.get(),
            Shape::Fixed(_) | Shape::Logged(_) => {
                wanted - wanted.saturating_sub(1) / capacity * capacity
            }
            _ => wanted.min(capacity),
        };
        (Cost::from_permits(first), wanted - first)
    }

    /// How long it takes at least until `rest` has passed as well, if the first part has to wait
    /// for `wait`. Exact for those who come one by one and each take one; never too long.
    pub fn at_least(&self, wait: Micros, rest: u64) -> Micros {
        let times = |n: u64, span: u64| Micros::saturating_from(u128::from(n) * u128::from(span));
        let fills = rest / self.capacity().max(1);
        let more = match &self.shape {
            _ if rest == 0 => Micros::ZERO,
            Shape::Bucket(bucket) if bucket.drain > 0 => {
                let units = u128::from(rest) * u128::from(bucket.permit);
                // Rounded down, because the wait was rounded up.
                let ticks = units / u128::from(bucket.drain);
                Micros::saturating_from(ticks * u128::from(bucket.tick.span().get()))
            }
            Shape::Steps(steps) if steps.amount > 0 => times(rest / steps.amount, steps.every),
            // The present window may end at once.
            Shape::Fixed(Fixed { window: Window::Aligned(w) | Window::FirstHit(w), .. }) => {
                times(if wait == Micros::ZERO { fills.saturating_sub(1) } else { fills }, *w)
            }
            Shape::Logged(logged) => {
                let grains = fills.saturating_mul(logged.window);
                let whole = if wait == Micros::ZERO { logged.grain - 1 } else { 0 };
                times(grains, logged.grain).saturating_sub(Micros::new(whole))
            }
            _ => Micros::ZERO,
        };
        wait.saturating_add(more)
    }
}
