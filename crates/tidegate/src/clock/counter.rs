//! The system's time by the processor's counter, which is read in a fraction of the time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use quanta::Clock;
use tidegate_core::Micros;

/// Reckons the time of day from the last time that the system was asked for it.
///
/// The system is asked again after [`Self::ASK_EVERY`], so a clock that is set is noticed by then.
/// Where the counter runs a little ahead of the system it is slowed down until the system has caught
/// up, so that small corrections do not turn time back. Larger ones are steps, and taken as such.
///
/// Where the processor does not say that its counter runs evenly, `quanta` reads the system's own
/// monotonic clock instead: slower, and as good. A processor that says so and whose counters differ from
/// core to core all the same can be off by as much as they differ; one whose counter starts anew, as after
/// a machine was suspended, is found out.
pub(crate) struct Counter {
    clock: Clock,
    /// Even if what follows is whole; odd while it is being written.
    version: AtomicU64,
    /// The count at which the system was asked.
    count: AtomicU64,
    /// What time it was then, in nanoseconds since the epoch.
    nanos: AtomicU64,
    /// How much of that the system has yet to catch up with.
    ahead: AtomicU64,
    /// Counts after which the system is asked again.
    ask_after: u64,
    /// Nanoseconds in 2^32 counts.
    scale: u64,
}

/// An instant by the system and by the counter.
#[derive(Clone, Copy)]
struct Anchor {
    count: u64,
    nanos: u64,
    ahead: u64,
}

impl Counter {
    const ASK_EVERY: u64 = 10_000_000;
    /// How far the two may be apart before it is a step, in nanoseconds.
    const STEP: u64 = 500_000;
    /// How long reading both may take without doubt about which instant it was.
    const READING: u64 = 2_000;
    /// Going slow loses one in so many.
    const SLOWER_BY: u64 = 64;

    #[inline]
    pub(crate) fn get() -> &'static Self {
        static COUNTER: OnceLock<Counter> = OnceLock::new();
        COUNTER.get_or_init(|| Self::new(Clock::new()))
    }

    fn new(clock: Clock) -> Self {
        let anchor = Anchor::ask(&clock);
        let scale = clock.delta_as_nanos(0, 1 << 32).max(1);
        Self {
            ask_after: (Self::ASK_EVERY << 32) / scale,
            scale,
            version: AtomicU64::new(0),
            count: AtomicU64::new(anchor.count),
            nanos: AtomicU64::new(anchor.nanos),
            ahead: AtomicU64::new(0),
            clock,
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Micros {
        let (version, anchor) = self.anchor_once();
        let counts = self.clock.raw().wrapping_sub(anchor.count);
        if version & 1 == 1 || counts > self.ask_after {
            return self.now_with_care();
        }
        micros(anchor.after((counts * self.scale) >> 32))
    }

    #[cold]
    #[inline(never)]
    fn now_with_care(&self) -> Micros {
        let (version, anchor) = self.anchor();
        let count = self.clock.raw();
        let passed = self.clock.delta_as_nanos(anchor.count, count);
        // Somebody may have asked a moment ago. A counter that is further back than that began anew.
        let back = self.clock.delta_as_nanos(count, anchor.count);
        if version & 1 == 1 || passed > Self::ASK_EVERY || back > Self::ASK_EVERY {
            return micros(self.ask(version, anchor));
        }
        micros(anchor.after(passed))
    }

    /// What was written last; of use if its version is even. Whoever writes has done so in a moment,
    /// unless it was put to sleep.
    fn anchor(&self) -> (u64, Anchor) {
        const PATIENCE: usize = 64;
        for _ in 0..PATIENCE {
            let (version, anchor) = self.anchor_once();
            if version & 1 == 0 {
                return (version, anchor);
            }
            std::hint::spin_loop();
        }
        self.anchor_once()
    }

    #[inline]
    fn anchor_once(&self) -> (u64, Anchor) {
        let version = self.version.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Acquire);
        let nanos = self.nanos.load(Ordering::Acquire);
        let ahead = self.ahead.load(Ordering::Acquire);
        let torn = u64::from(self.version.load(Ordering::Relaxed) != version);
        (version | torn, Anchor { count, nanos, ahead })
    }

    /// Asks the system, and writes it down unless somebody else does.
    #[cold]
    fn ask(&self, version: u64, before: Anchor) -> u64 {
        let asked = Anchor::ask(&self.clock);
        if version & 1 == 1 {
            // What was before could not be read.
            return asked.nanos;
        }
        let expected = before.after(self.clock.delta_as_nanos(before.count, asked.count));
        let is_step = expected.abs_diff(asked.nanos) > Self::STEP;
        let ahead = if is_step { 0 } else { expected.saturating_sub(asked.nanos) };
        let anchor = Anchor { nanos: asked.nanos + ahead, ahead, ..asked };
        let (odd, even) = (version + 1, version + 2);
        let mine = self.version.compare_exchange(version, odd, Ordering::AcqRel, Ordering::Relaxed);
        if mine.is_ok() {
            self.count.store(anchor.count, Ordering::Release);
            self.nanos.store(anchor.nanos, Ordering::Release);
            self.ahead.store(anchor.ahead, Ordering::Release);
            self.version.store(even, Ordering::Release);
        }
        anchor.nanos
    }
}

impl Anchor {
    #[expect(clippy::disallowed_methods, reason = "this is part of the clock")]
    fn ask(clock: &Clock) -> Self {
        let read = || {
            let before = clock.raw();
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let nanos = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
            let after = clock.raw();
            let took = clock.delta_as_nanos(before, after);
            (took, Self { count: before + after.saturating_sub(before) / 2, nanos, ahead: 0 })
        };
        // Whoever is put to sleep between the readings tries again.
        let readings = (0..4).map(|_| read());
        let mut best = None::<(u64, Self)>;
        for (took, anchor) in readings {
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((took, anchor));
            }
            if took < Counter::READING {
                break;
            }
        }
        best.map_or(Self { count: 0, nanos: 0, ahead: 0 }, |(_, anchor)| anchor)
    }

    /// The time when so many nanoseconds have passed by the counter.
    #[inline]
    fn after(&self, passed: u64) -> u64 {
        if self.ahead == 0 {
            return self.nanos + passed;
        }
        self.nanos + (passed - passed.div_ceil(Counter::SLOWER_BY).min(self.ahead))
    }
}

#[inline]
fn micros(nanos: u64) -> Micros {
    Micros::new(nanos / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::time::Duration;

    #[expect(clippy::disallowed_methods, reason = "what the clock is held to")]
    fn system() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(now.as_micros()).unwrap()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the clock is what is tested")]
    fn it_shows_the_systems_time_and_never_turns_back() {
        let counter = Counter::get();
        let started = std::time::Instant::now();
        let (mut last, mut most, mut readings) = (Micros::ZERO, 0, 0_u64);
        while started.elapsed().as_millis() < 200 {
            let before = system();
            let now = counter.now();
            let after = system();
            assert!(now >= last, "{last:?} and then {now:?}");
            most = most.max(before.saturating_sub(now.get())).max(now.get().saturating_sub(after));
            (last, readings) = (now, readings + 1);
        }
        let _ = writeln!(std::io::stderr(), "clock: {readings} readings, at most {most} us apart");
        assert!(most <= Counter::STEP / 1_000, "{most} us apart");
    }

    #[test]
    fn threads_that_read_at_once_see_the_same_time() {
        let counter = Counter::get();
        let latest = AtomicU64::new(0);
        let turned_back = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200_000 {
                        let seen = latest.load(Ordering::SeqCst);
                        let now = counter.now().get();
                        latest.fetch_max(now, Ordering::SeqCst);
                        // A microsecond is what rounding may make of nothing.
                        turned_back.fetch_max(seen.saturating_sub(now), Ordering::SeqCst);
                    }
                });
            }
        });
        let most = turned_back.load(Ordering::SeqCst);
        let _ = writeln!(std::io::stderr(), "clock: four threads at once, at most {most} us back");
        assert!(most <= 2, "{most} us back");
    }

    #[test]
    fn a_counter_that_begins_anew_is_found_out() {
        let (clock, counts) = Clock::mock();
        counts.increment(Duration::from_secs(3_600));
        let counter = Counter::new(clock);
        counts.decrement(Duration::from_secs(3_599));
        let (before, now, after) = (system(), counter.now().get(), system());
        assert!((before..=after).contains(&now), "{before}, {now}, {after}");
        // From here on it counts from the new beginning.
        counts.increment(Duration::from_millis(5));
        assert_eq!(counter.now().get() / 1_000, (now + 5_000) / 1_000);
    }

    #[test]
    fn what_is_ahead_goes_slower_until_it_is_not() {
        let even = Anchor { count: 0, nanos: 1_000_000, ahead: 0 };
        let ahead = Anchor { ahead: 150, ..even };
        for (passed, lost) in [(0, 0), (1, 1), (6_400, 100), (9_600, 150), (1_000_000, 150)] {
            assert_eq!(even.after(passed), 1_000_000 + passed);
            assert_eq!(ahead.after(passed), 1_000_000 + passed - lost, "{passed}");
        }
    }
}
