//! Clocks: the system clock, and a manual one for tests. Imports: nothing.
//!
//! This folder is the only place that reads the system time.

mod tsc;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tidegate_core::Micros;

use self::tsc::TscClock;

/// Source of time and timers.
pub trait Clock: Send + Sync + 'static {
    /// Microseconds since the Unix epoch. May step in either direction.
    fn now(&self) -> Micros;

    /// Microseconds since a fixed instant. Never steps: for measuring durations.
    fn elapsed(&self) -> Micros;

    /// Completes once [`Clock::elapsed`] has reached `elapsed`.
    fn sleep_until(&self, elapsed: Micros) -> Sleep;
}

/// Timer of [`Clock::sleep_until`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The system clock, extrapolated from the CPU's counter and synchronized every 10 ms: a clock that
/// is set is noticed within that time. Sleeping needs a Tokio runtime with its timer; reading the
/// time does not.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Micros {
        TscClock::get().now()
    }

    #[expect(clippy::disallowed_methods, reason = "the clock itself")]
    fn elapsed(&self) -> Micros {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().into()
    }

    fn sleep_until(&self, elapsed: Micros) -> Sleep {
        let left = elapsed.saturating_sub(self.elapsed());
        Box::pin(async move {
            if left > Micros::ZERO {
                tokio::time::sleep(left.into()).await;
            }
        })
    }
}

/// Clock for tests; advances only by `advance` and `set`. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Clock, ManualClock};
/// let clock = ManualClock::default();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now().saturating_sub(before).get(), 60_000_000);
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<ManualTime>>);

#[derive(Debug)]
struct ManualTime {
    now: Micros,
    elapsed: Micros,
    sleepers: Vec<(Micros, Waker)>,
}

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Micros) -> Self {
        Self(Arc::new(Mutex::new(ManualTime { now, elapsed: now, sleepers: Vec::new() })))
    }

    /// Advances by `span`.
    pub fn advance(&self, span: Duration) {
        self.change(|now| now.saturating_add(span.into()));
    }

    /// Sets the time to `now`, which may be earlier than before.
    pub fn set(&self, now: Micros) {
        self.change(|_| now);
    }

    fn change(&self, to: impl FnOnce(Micros) -> Micros) {
        let mut time = self.lock();
        let now = to(time.now);
        // A step back does not change the elapsed time.
        time.elapsed = time.elapsed.saturating_add(now.saturating_sub(time.now));
        time.now = now;
        let elapsed = time.elapsed;
        let (due, waiting) = time.sleepers.drain(..).partition(|(instant, _)| *instant <= elapsed);
        time.sleepers = waiting;
        drop(time);
        let due: Vec<(Micros, Waker)> = due;
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// The instant at which the first sleeper wakes, in terms of [`Clock::elapsed`]. That is the
    /// time shown, unless the clock was set back.
    pub fn next_wake(&self) -> Option<Micros> {
        self.lock().sleepers.iter().map(|(instant, _)| *instant).min()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fixed instant in November 2023, so that every run is the same.
impl Default for ManualClock {
    fn default() -> Self {
        Self::new(Micros::from_secs(1_700_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        self.lock().now
    }

    fn elapsed(&self) -> Micros {
        self.lock().elapsed
    }

    fn sleep_until(&self, elapsed: Micros) -> Sleep {
        Box::pin(ManualSleep { clock: self.clone(), instant: elapsed, registered: None })
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Micros {
        (**self).now()
    }

    fn elapsed(&self) -> Micros {
        (**self).elapsed()
    }

    fn sleep_until(&self, elapsed: Micros) -> Sleep {
        (**self).sleep_until(elapsed)
    }
}

struct ManualSleep {
    clock: ManualClock,
    instant: Micros,
    registered: Option<Waker>,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut time = this.clock.lock();
        if time.elapsed >= this.instant {
            return Poll::Ready(());
        }
        if let Some(old) = this.registered.replace(cx.waker().clone()) {
            remove_sleeper(&mut time, this.instant, &old);
        }
        time.sleepers.push((this.instant, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(waker) = self.registered.take() {
            remove_sleeper(&mut self.clock.lock(), self.instant, &waker);
        }
    }
}

fn remove_sleeper(time: &mut ManualTime, instant: Micros, waker: &Waker) {
    let same = |(at, sleeper): &(Micros, Waker)| *at == instant && sleeper.will_wake(waker);
    if let Some(index) = time.sleepers.iter().position(same) {
        time.sleepers.swap_remove(index);
    }
}
