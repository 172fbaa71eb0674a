//! Adaptive sampling: the busier the server, the fewer calls are counted.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate::Micros;
use tidegate::simulate::Rng;

/// Samples one call in 2^n, with n adapted so that the number of samples per second is bounded.
#[derive(Default, Debug)]
pub(super) struct SamplingRate {
    config: SamplingConfig,
    taken: SampleCount,
}

/// Read by every call and changed by few.
#[derive(Default, Debug)]
#[repr(align(64))]
struct SamplingConfig {
    /// n of 2^n.
    halvings: AtomicU32,
    /// When this period began, in microseconds.
    since: AtomicU64,
}

/// The calls sampled in this period. On its own cache line, since it changes often.
#[derive(Default, Debug)]
#[repr(align(64))]
struct SampleCount(AtomicU64);

impl SamplingRate {
    const PERIOD: Micros = Micros::from_secs(1);
    /// Samples in a period before n grows. They cost less than 0.5% of a core.
    const MAX_TAKEN: u64 = 16_384;
    const MAX_HALVINGS: u32 = 20;

    /// How many calls this one stands for; `None` if it is not sampled.
    pub(super) fn weight(&self, now: Micros) -> Option<u64> {
        let since = self.config.since.load(Ordering::Relaxed);
        if now.get().abs_diff(since) >= Self::PERIOD.get() {
            self.begin_period(since, now);
        }
        let halvings = self.config.halvings.load(Ordering::Relaxed);
        let weight = 1 << halvings;
        // At random and not every nth: callers may follow a pattern.
        if weight > 1 && random() & (weight - 1) != 0 {
            return None;
        }
        if self.taken.0.fetch_add(1, Ordering::Relaxed) + 1 == Self::MAX_TAKEN {
            self.config.halvings.store((halvings + 1).min(Self::MAX_HALVINGS), Ordering::Relaxed);
            self.config.since.store(now.get(), Ordering::Relaxed);
            self.taken.0.store(0, Ordering::Relaxed);
        }
        Some(weight)
    }

    #[cfg(test)]
    pub(super) fn halvings(&self) -> u32 {
        self.config.halvings.load(Ordering::Relaxed)
    }

    /// Sets n from the calls of the last period. One thread does it; the others continue.
    #[cold]
    fn begin_period(&self, since: u64, now: Micros) {
        let SamplingConfig { halvings, since: begun } = &self.config;
        if begun.compare_exchange(since, now.get(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let periods = now.get().abs_diff(since) / Self::PERIOD.get();
        let taken = self.taken.0.swap(0, Ordering::Relaxed);
        let calls = (taken << halvings.load(Ordering::Relaxed)) / periods.max(1);
        let enough = |n: &u32| calls >> n <= Self::MAX_TAKEN / 2;
        let n = (0..Self::MAX_HALVINGS).find(enough).unwrap_or(Self::MAX_HALVINGS);
        halvings.store(n, Ordering::Relaxed);
    }
}

/// A random number, from a seed for each thread.
pub(super) fn random() -> u64 {
    thread_local! {
        static RNG: RefCell<Rng> = RefCell::new(Rng::new(RandomState::new().hash_one(0)));
    }
    RNG.with_borrow_mut(Rng::any)
}
