//! The upper bound of admissions that a limit guarantees.

use tidegate_core::{Algorithm, CalendarUnit, Limit, Micros, Span};

#[cfg(feature = "serde")]
use super::json::micros;

/// At most this many admissions in any window of this length, whatever the traffic.
///
/// The window is the one that the limit names: its span, or the hold time.
/// `docs/use/choosing-a-limit.md` has a bound for each algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Guarantee {
    /// Length of the window.
    #[cfg_attr(feature = "serde", serde(rename = "window_us", serialize_with = "micros"))]
    #[cfg_attr(feature = "serde", schemars(with = "u64"))]
    pub window: Micros,
    /// Largest number of admissions in any window; of concurrent holders for `concurrency`, of
    /// turns for a queue.
    #[cfg_attr(feature = "serde", serde(rename = "promised"))]
    pub at_most: u64,
}

impl Guarantee {
    /// The guarantee of `limit`; holders keep their slot for `hold_time`.
    pub(super) fn of(limit: &Limit, hold_time: Micros) -> Self {
        let capacity = limit.capacity();
        let window = match limit.algorithm() {
            Algorithm::Concurrency => hold_time,
            Algorithm::FixedWindow => shortest(limit),
            _ => limit.span().length().unwrap_or(Micros::from_secs(1)),
        };
        let (_, numbers) = limit.numbers();
        let at_most = match (limit.algorithm(), &*numbers) {
            (Algorithm::Concurrency | Algorithm::SlidingLog, _) => capacity,
            // The window can overlap two full windows.
            (Algorithm::FixedWindow, _) => 2 * capacity,
            // The two-counter form weighs the previous window, in ticks. Sub-windows count one more
            // than needed.
            (Algorithm::SlidingWindow, _) if limit.packs() => (2 * capacity).saturating_sub(1),
            (Algorithm::SlidingWindow, _) => capacity,
            // Turns follow each other at the rate; exactly, if the span is a whole number of ticks.
            (_, [tick, permit, drain, _, 1]) => {
                let even = window.get().is_multiple_of(*tick);
                drained(window, *tick, *permit, *drain) + u64::from(!even)
            }
            (_, [tick, permit, drain, size, _]) => size + drained(window, *tick, *permit, *drain),
            // Refill steps: those that start inside the window, and the one before.
            (_, [every, amount, size]) => size + amount * (window.get() / every.max(&1) + 1),
            _ => capacity,
        };
        Self { window, at_most: if capacity == 0 { 0 } else { at_most } }
    }
}

/// Permits that a bucket drains in a window.
fn drained(window: Micros, tick: u64, permit: u64, drain: u64) -> u64 {
    let units = u128::from(window.get()) * u128::from(drain);
    let per_permit = (u128::from(tick) * u128::from(permit)).max(1);
    u64::try_from(units / per_permit).unwrap_or(u64::MAX)
}

/// The shortest window of a fixed window. With daylight saving time it is shorter by an hour, and
/// in one zone by two.
fn shortest(limit: &Limit) -> Micros {
    const DAY: u64 = 86_400;
    let Some((unit, zone)) = limit.calendar() else {
        return limit.span().length().unwrap_or(Micros::from_secs(1));
    };
    let days = match unit {
        CalendarUnit::Day => 1,
        CalendarUnit::Week => 7,
        CalendarUnit::Month => 28,
    };
    let summer = if zone.is_some() { 7_200 } else { 0 };
    Micros::from_secs(days * DAY - summer)
}

impl Guarantee {
    /// The window in the notation of limits.
    pub fn span(&self) -> Span {
        Span::Plain(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_algorithm_has_the_bound_of_the_guide() {
        for (limit, window_ms, at_most) in [
            ("100/s burst 20", 1_000, 120),
            ("10/30s", 30_000, 20),
            ("77777/d", 86_400_000, 155_554),
            ("10/s burst 50 every 500ms", 1_000, 65),
            ("leaky-bucket 10/s capacity 30", 1_000, 40),
            ("leaky-bucket 10/s capacity 30 queue", 1_000, 10),
            ("fixed-window 100/10s", 10_000, 200),
            ("fixed-window 100/10s first-hit", 10_000, 200),
            ("fixed-window 100/d", 86_400_000, 200),
            ("fixed-window 100/d tz Europe/Berlin", 79_200_000, 200),
            ("fixed-window 100/month", 28 * 86_400_000, 200),
            ("sliding-log 5/m", 60_000, 5),
            ("sliding-window 240/h", 3_600_000, 240),
            ("sliding-window 240/h approximate", 3_600_000, 479),
            ("concurrency 20 lease 45s", 200, 20),
            ("0/s", 1_000, 0),
            ("fixed-window 0/s", 1_000, 0),
        ] {
            let promise = Guarantee::of(&limit.parse().unwrap(), Micros::from_millis(200));
            let expected = Guarantee { window: Micros::from_millis(window_ms), at_most };
            assert_eq!(promise, expected, "{limit}");
        }
    }
}
