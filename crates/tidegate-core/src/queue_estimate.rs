//! A lower bound of the wait behind other callers.

use crate::algorithm_params::AlgorithmParams;
use crate::fixed_window::{FixedWindow, Window};
use crate::{Cost, Limit, Micros};

impl Limit {
    /// Splits `cost` and the cost `ahead` of it into a first part, to be passed to
    /// [`look`](Self::look), and a rest, to be passed to [`at_least`](Self::at_least).
    pub fn split(&self, cost: Cost, ahead: u64) -> (Cost, u64) {
        let capacity = self.capacity().max(1);
        let wanted = cost.get().saturating_add(ahead);
        let first = match &self.params {
            AlgorithmParams::Bucket(bucket) if bucket.queue => cost.get(),
            AlgorithmParams::Fixed(_) | AlgorithmParams::Logged(_) => {
                wanted - wanted.saturating_sub(1) / capacity * capacity
            }
            _ => wanted.min(capacity),
        };
        (Cost::total(first), wanted - first)
    }

    /// The minimal time until `rest` has passed too, if the first part has to wait for `wait`.
    /// Exact for callers that take one permit each, one by one; never too long.
    pub fn at_least(&self, wait: Micros, rest: u64) -> Micros {
        let times = |n: u64, span: u64| Micros::saturating_from(u128::from(n) * u128::from(span));
        let fills = rest / self.capacity().max(1);
        let more = match &self.params {
            _ if rest == 0 => Micros::ZERO,
            AlgorithmParams::Bucket(bucket) if bucket.drain > 0 => {
                let units = u128::from(rest) * u128::from(bucket.permit);
                // Rounded down, because the wait was rounded up.
                let ticks = units / u128::from(bucket.drain);
                Micros::saturating_from(ticks * u128::from(bucket.tick.span().get()))
            }
            AlgorithmParams::Steps(steps) if steps.amount > 0 => {
                times(rest / steps.amount, steps.every)
            }
            // The present window may end now.
            AlgorithmParams::Fixed(FixedWindow {
                window: Window::Aligned(w) | Window::FirstHit(w),
                ..
            }) => times(if wait == Micros::ZERO { fills.saturating_sub(1) } else { fills }, *w),
            AlgorithmParams::Logged(logged) => {
                let grains = fills.saturating_mul(logged.window);
                let whole = if wait == Micros::ZERO { logged.grain - 1 } else { 0 };
                times(grains, logged.grain).saturating_sub(Micros::new(whole))
            }
            _ => Micros::ZERO,
        };
        wait.saturating_add(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Estimates for a caller with `ahead` permits in front, if the first part waits for `wait`.
    fn at_least(limit: &str, cost: u32, ahead: u64, wait: u64) -> (u64, u64) {
        let limit: Limit = limit.parse().unwrap();
        let (first, rest) = limit.split(cost.into(), ahead);
        (first.get(), limit.at_least(Micros::new(wait), rest).get())
    }

    #[test]
    fn the_estimate_is_what_the_limit_allows_at_best() {
        for (limit, cost, ahead, wait, first, least) in [
            // A bucket allows its burst at once, and the rest at its rate.
            ("10/s", 1, 3, 7, 4, 7),
            ("10/s", 1, 9, 7, 10, 7),
            ("10/s", 1, 14, 7, 10, 7 + SECOND / 2),
            ("10/s", 5, 20, 0, 10, 3 * SECOND / 2),
            ("3/s", 1, 3, 0, 3, 333_333),
            ("0/s", 1, 5, 9, 1, 9),
            // A step adds its amount at once.
            ("5/s burst 10 every 1s", 1, 10, 3, 10, 3),
            ("5/s burst 10 every 1s", 1, 14, 3, 10, 3 + SECOND),
            ("5/s burst 10 every 1s", 1, 18, 3, 10, 3 + SECOND),
            ("1/s burst 10 every 1s", 1, 14, 3, 10, 3 + 5 * SECOND),
            ("0/s every 1s", 1, 18, 3, 1, 3),
            // A queue delays each request.
            ("leaky-bucket 10/s capacity 5 queue", 2, 3, 4, 2, 4 + 3 * SECOND / 10),
            // A window allows its count, then the next window.
            ("fixed-window 10/1s", 1, 9, 5, 10, 5),
            ("fixed-window 10/1s", 1, 10, 5, 1, 5 + SECOND),
            ("fixed-window 10/1s", 1, 10, 0, 1, 0),
            ("fixed-window 10/1s", 1, 25, 0, 6, SECOND),
            ("fixed-window 10/1s first-hit", 1, 25, 5, 6, 5 + 2 * SECOND),
            ("fixed-window 10/d", 1, 25, 5, 6, 5),
            // A log allows none before the charge one whole count earlier has left.
            ("sliding-log 10/1s", 1, 9, 5, 10, 5),
            ("sliding-log 10/1s", 1, 10, 5, 1, 5 + SECOND),
            ("sliding-log 10/1s", 1, 10, 0, 1, SECOND),
            ("sliding-log 10/1s", 1, 25, 5, 6, 5 + 2 * SECOND),
            ("sliding-window 10/1s precision 100ms", 1, 25, 5, 6, 5 + 2 * 1_100_000),
            ("sliding-window 10/1s precision 100ms", 1, 25, 0, 6, 2 * 1_100_000 - 99_999),
            ("sliding-window 10/1s approximate", 1, 25, 5, 10, 5),
            ("concurrency 10", 1, 25, 5, 10, 5),
            ("fixed-window 0/1s", 1, 2, 5, 1, 5 + 2 * SECOND),
        ] {
            let expected = (first, least);
            assert_eq!(
                at_least(limit, cost, ahead, wait),
                expected,
                "{limit} {cost} behind {ahead}"
            );
        }
    }

    #[test]
    fn an_estimate_saturates_at_the_extremes() {
        for limit in ["1/us", "1/36500d", "fixed-window 1/36500d", "sliding-log 1/36500d", "0/s"] {
            let limit: Limit = limit.parse().unwrap();
            for ahead in [0, 1, u64::MAX] {
                let (_, rest) = limit.split(Cost::MAX, ahead);
                assert!(limit.at_least(Micros::MAX, rest) == Micros::MAX);
                let _ = limit.at_least(Micros::ZERO, rest);
                let _ = limit.at_least(Micros::ZERO, 1);
            }
        }
    }
}
