//! What a limit may honestly be held to.

use tidegate_core::{Algorithm, CalendarUnit, Limit, Micros, Span};

/// At most so many in any window of this length, whatever comes.
///
/// The window is the one that the limit names: its span, or how long holders stay. `docs/choosing.md` has a
/// bound for each algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// How long the window is.
    pub window: Micros,
    /// How many may pass in any of them; holders at one time for `concurrency`, turns for a queue.
    pub at_most: u64,
}

impl Promise {
    /// What `limit` promises; holders stay for `stay`.
    pub(super) fn of(limit: &Limit, stay: Micros) -> Self {
        let capacity = limit.capacity();
        let window = match limit.algorithm() {
            Algorithm::Concurrency => stay,
            Algorithm::FixedWindow => shortest(limit),
            _ => limit.span().length().unwrap_or(Micros::from_secs(1)),
        };
        let (_, numbers) = limit.numbers();
        let at_most = match (limit.algorithm(), &*numbers) {
            (Algorithm::Concurrency | Algorithm::SlidingLog, _) => capacity,
            // Two windows, or the counts of two, meet inside.
            (Algorithm::FixedWindow, _) => 2 * capacity,
            // Two counters have a tick; sub-windows count in grains, and count one more than needed.
            (Algorithm::SlidingWindow, _) if limit.packs() => (2 * capacity).saturating_sub(1),
            (Algorithm::SlidingWindow, _) => capacity,
            // Turns follow each other at the rate, and where its span is a whole number of ticks, exactly.
            (_, [tick, permit, drain, _, 1]) => {
                let even = window.get().is_multiple_of(*tick);
                drained(window, *tick, *permit, *drain) + u64::from(!even)
            }
            (_, [tick, permit, drain, size, _]) => size + drained(window, *tick, *permit, *drain),
            // Steps: as many as begin inside, and the one before.
            (_, [every, amount, size]) => size + amount * (window.get() / every.max(&1) + 1),
            _ => capacity,
        };
        Self { window, at_most: if capacity == 0 { 0 } else { at_most } }
    }
}

/// How many permits a bucket drains in a window.
fn drained(window: Micros, tick: u64, permit: u64, drain: u64) -> u64 {
    let units = u128::from(window.get()) * u128::from(drain);
    let per_permit = (u128::from(tick) * u128::from(permit)).max(1);
    u64::try_from(units / per_permit).unwrap_or(u64::MAX)
}

/// The shortest window of a fixed window. Where clocks are set forward for the summer, it is shorter by an hour, and in
/// one zone by two.
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

impl Promise {
    /// The window as it is written in limits.
    pub fn span(&self) -> Span {
        Span::Plain(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_algorithm_promises_what_the_guide_says() {
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
            let promise = Promise::of(&limit.parse().unwrap(), Micros::from_millis(200));
            let expected = Promise { window: Micros::from_millis(window_ms), at_most };
            assert_eq!(promise, expected, "{limit}");
        }
    }
}
