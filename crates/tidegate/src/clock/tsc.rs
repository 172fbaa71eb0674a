//! Time of day from the CPU's counter, which is cheaper to read than the system clock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use quanta::Clock;
use tidegate_core::Micros;

/// Computes the time of day from the last reading of the system clock and the CPU's counter.
///
/// The system clock is read again after [`Self::RESYNC_NANOS`], so a clock that is set is noticed
/// by then. If the counter is slightly ahead of the system, it is slowed down until the system has
/// caught up, so that small corrections do not make time run backwards. Larger differences are
/// steps of the clock, and followed at once.
///
/// If the CPU does not guarantee an invariant counter, `quanta` reads the system's monotonic clock
/// instead: slower, and equally correct. If a CPU claims an invariant counter and its cores differ,
/// the time can be off by that difference. A counter that restarts, as after a suspend, is
/// detected.
pub(crate) struct TscClock {
    clock: Clock,
    /// Sequence number: even if the fields below are consistent, odd while they are written.
    version: AtomicU64,
    /// Counter value at the last reading of the system clock.
    count: AtomicU64,
    /// The time shown at that instant, in nanoseconds since the epoch.
    nanos: AtomicU64,
    /// How far that time is ahead of the system clock.
    ahead: AtomicU64,
    /// Counts after which the system clock is read again.
    resync_after: u64,
    /// Nanoseconds in 2^32 counts.
    scale: u64,
}

/// An instant by the system clock and by the counter.
#[derive(Clone, Copy)]
struct ClockAnchor {
    count: u64,
    nanos: u64,
    ahead: u64,
}

impl TscClock {
    const RESYNC_NANOS: u64 = 10_000_000;
    /// Difference in nanoseconds above which it counts as a step.
    const STEP: u64 = 500_000;
    /// Longest time for reading both clocks, in nanoseconds; slower readings are repeated.
    const MAX_READ_NANOS: u64 = 2_000;
    /// A slowed clock loses one in this many nanoseconds.
    const SLEW_DIVISOR: u64 = 64;

    #[inline]
    pub(crate) fn get() -> &'static Self {
        static COUNTER: OnceLock<TscClock> = OnceLock::new();
        COUNTER.get_or_init(|| Self::new(Clock::new()))
    }

    fn new(clock: Clock) -> Self {
        let anchor = ClockAnchor::read(&clock);
        let scale = clock.delta_as_nanos(0, 1 << 32).max(1);
        Self {
            resync_after: (Self::RESYNC_NANOS << 32) / scale,
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
        if version & 1 == 1 || counts > self.resync_after {
            return self.now_slow_path();
        }
        micros(anchor.after((counts * self.scale) >> 32))
    }

    #[cold]
    #[inline(never)]
    fn now_slow_path(&self) -> Micros {
        let (version, anchor) = self.anchor();
        let count = self.clock.raw();
        let passed = self.clock.delta_as_nanos(anchor.count, count);
        // Another thread may have synchronized meanwhile. A counter further back than one interval
        // has restarted.
        let back = self.clock.delta_as_nanos(count, anchor.count);
        if version & 1 == 1 || passed > Self::RESYNC_NANOS || back > Self::RESYNC_NANOS {
            return micros(self.resync(version, anchor));
        }
        micros(anchor.after(passed))
    }

    /// The last anchor, consistent if its version is even. A writer finishes within a few spins,
    /// unless its thread is descheduled.
    fn anchor(&self) -> (u64, ClockAnchor) {
        const MAX_SPINS: usize = 64;
        for _ in 0..MAX_SPINS {
            let (version, anchor) = self.anchor_once();
            if version & 1 == 0 {
                return (version, anchor);
            }
            std::hint::spin_loop();
        }
        self.anchor_once()
    }

    #[inline]
    fn anchor_once(&self) -> (u64, ClockAnchor) {
        let version = self.version.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Acquire);
        let nanos = self.nanos.load(Ordering::Acquire);
        let ahead = self.ahead.load(Ordering::Acquire);
        let torn = u64::from(self.version.load(Ordering::Relaxed) != version);
        (version | torn, ClockAnchor { count, nanos, ahead })
    }

    /// Reads the system clock and publishes the anchor, unless another thread does so.
    #[cold]
    fn resync(&self, version: u64, before: ClockAnchor) -> u64 {
        let read = ClockAnchor::read(&self.clock);
        if version & 1 == 1 {
            // The previous anchor could not be read.
            return read.nanos;
        }
        let expected = before.after(self.clock.delta_as_nanos(before.count, read.count));
        let is_step = expected.abs_diff(read.nanos) > Self::STEP;
        let ahead = if is_step { 0 } else { expected.saturating_sub(read.nanos) };
        let anchor = ClockAnchor { nanos: read.nanos + ahead, ahead, ..read };
        let (odd, even) = (version + 1, version + 2);
        let won = self.version.compare_exchange(version, odd, Ordering::AcqRel, Ordering::Relaxed);
        if won.is_ok() {
            self.count.store(anchor.count, Ordering::Release);
            self.nanos.store(anchor.nanos, Ordering::Release);
            self.ahead.store(anchor.ahead, Ordering::Release);
            self.version.store(even, Ordering::Release);
        }
        anchor.nanos
    }
}

impl ClockAnchor {
    #[expect(clippy::disallowed_methods, reason = "this is part of the clock")]
    fn read(clock: &Clock) -> Self {
        let read = || {
            let before = clock.raw();
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let nanos = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
            let after = clock.raw();
            let took = clock.delta_as_nanos(before, after);
            (took, Self { count: before + after.saturating_sub(before) / 2, nanos, ahead: 0 })
        };
        // A thread that was descheduled between the readings tries again.
        let readings = (0..4).map(|_| read());
        let mut best = None::<(u64, Self)>;
        for (took, anchor) in readings {
            if best.is_none_or(|(fastest, _)| took < fastest) {
                best = Some((took, anchor));
            }
            if took < TscClock::MAX_READ_NANOS {
                break;
            }
        }
        best.map_or(Self { count: 0, nanos: 0, ahead: 0 }, |(_, anchor)| anchor)
    }

    /// The time after this many nanoseconds by the counter.
    #[inline]
    fn after(&self, passed: u64) -> u64 {
        if self.ahead == 0 {
            return self.nanos + passed;
        }
        self.nanos + (passed - passed.div_ceil(TscClock::SLEW_DIVISOR).min(self.ahead))
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

    #[expect(clippy::disallowed_methods, reason = "the reference for the clock")]
    fn system() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(now.as_micros()).unwrap()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the clock is what is tested")]
    fn it_follows_the_system_clock_and_never_runs_backwards() {
        let counter = TscClock::get();
        let started = std::time::Instant::now();
        let (mut last, mut max, mut readings) = (Micros::ZERO, 0, 0_u64);
        while started.elapsed().as_millis() < 200 {
            let before = system();
            let now = counter.now();
            let after = system();
            assert!(now >= last, "{last:?} and then {now:?}");
            max = max.max(before.saturating_sub(now.get())).max(now.get().saturating_sub(after));
            (last, readings) = (now, readings + 1);
        }
        let _ = writeln!(std::io::stderr(), "clock: {readings} readings, at most {max} us apart");
        assert!(max <= TscClock::STEP / 1_000, "{max} us apart");
    }

    #[test]
    fn threads_that_read_at_once_see_the_same_time() {
        let counter = TscClock::get();
        let latest = AtomicU64::new(0);
        let went_back = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200_000 {
                        let seen = latest.load(Ordering::SeqCst);
                        let now = counter.now().get();
                        latest.fetch_max(now, Ordering::SeqCst);
                        // Rounding may account for one microsecond.
                        went_back.fetch_max(seen.saturating_sub(now), Ordering::SeqCst);
                    }
                });
            }
        });
        let most = went_back.load(Ordering::SeqCst);
        let _ = writeln!(std::io::stderr(), "clock: four threads at once, at most {most} us back");
        assert!(most <= 2, "{most} us back");
    }

    #[test]
    fn a_restarted_counter_is_detected() {
        let (clock, counts) = Clock::mock();
        counts.increment(Duration::from_secs(3_600));
        let counter = TscClock::new(clock);
        counts.decrement(Duration::from_secs(3_599));
        let (before, now, after) = (system(), counter.now().get(), system());
        assert!((before..=after).contains(&now), "{before}, {now}, {after}");
        // After that, it counts from the new start.
        counts.increment(Duration::from_millis(5));
        assert_eq!(counter.now().get() / 1_000, (now + 5_000) / 1_000);
    }

    #[test]
    fn a_clock_that_is_ahead_is_slowed_until_it_is_not() {
        let even = ClockAnchor { count: 0, nanos: 1_000_000, ahead: 0 };
        let ahead = ClockAnchor { ahead: 150, ..even };
        for (passed, lost) in [(0, 0), (1, 1), (6_400, 100), (9_600, 150), (1_000_000, 150)] {
            assert_eq!(even.after(passed), 1_000_000 + passed);
            assert_eq!(ahead.after(passed), 1_000_000 + passed - lost, "{passed}");
        }
    }
}
