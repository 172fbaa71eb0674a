//! The one place that reads the time, and the clock that tests turn by hand.

mod counter;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tidegate_core::Micros;

use self::counter::Counter;

/// Tells the time, and wakes those who wait for it.
pub trait Clock: Send + Sync + 'static {
    /// Microseconds since the Unix epoch. It may step.
    fn now(&self) -> Micros;

    /// Microseconds since some instant that stays the same. It never steps: for measuring how long
    /// somebody has waited.
    fn elapsed(&self) -> Micros;

    /// Completes once [`Clock::elapsed`] has reached `elapsed`.
    fn sleep_until(&self, elapsed: Micros) -> Sleep;
}

/// Completes when its time has come.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The system's clock, read by the processor's counter and asked again every 10 ms: a clock that is set
/// is noticed by then. Waiting needs a Tokio runtime with its timer; telling the time does not.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Micros {
        Counter::get().now()
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that reads the time")]
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

/// A clock that stands still until it is told to move. Clones show the same time.
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
pub struct ManualClock(Arc<Mutex<Dial>>);

#[derive(Debug)]
struct Dial {
    now: Micros,
    elapsed: Micros,
    sleepers: Vec<(Micros, Waker)>,
}

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Micros) -> Self {
        Self(Arc::new(Mutex::new(Dial { now, elapsed: now, sleepers: Vec::new() })))
    }

    /// Moves on by `span`.
    pub fn advance(&self, span: Duration) {
        self.turn(|now| now.saturating_add(span.into()));
    }

    /// Shows `now` from here on, be it later or earlier than before.
    pub fn set(&self, now: Micros) {
        self.turn(|_| now);
    }

    fn turn(&self, to: impl FnOnce(Micros) -> Micros) {
        let mut dial = self.dial();
        let now = to(dial.now);
        // A step back takes no time.
        dial.elapsed = dial.elapsed.saturating_add(now.saturating_sub(dial.now));
        dial.now = now;
        let elapsed = dial.elapsed;
        let (due, waiting) = dial.sleepers.drain(..).partition(|(instant, _)| *instant <= elapsed);
        dial.sleepers = waiting;
        drop(dial);
        let due: Vec<(Micros, Waker)> = due;
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// The instant that the first of the sleepers waits for, as [`Clock::elapsed`] shows it; that is
    /// the time, unless the clock was set back.
    pub fn next_wake(&self) -> Option<Micros> {
        self.dial().sleepers.iter().map(|(instant, _)| *instant).min()
    }

    fn dial(&self) -> std::sync::MutexGuard<'_, Dial> {
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
        self.dial().now
    }

    fn elapsed(&self) -> Micros {
        self.dial().elapsed
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
        let mut dial = this.clock.dial();
        if dial.elapsed >= this.instant {
            return Poll::Ready(());
        }
        if let Some(old) = this.registered.replace(cx.waker().clone()) {
            forget(&mut dial, this.instant, &old);
        }
        dial.sleepers.push((this.instant, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        if let Some(waker) = self.registered.take() {
            forget(&mut self.clock.dial(), self.instant, &waker);
        }
    }
}

fn forget(dial: &mut Dial, instant: Micros, waker: &Waker) {
    let same = |(at, sleeper): &(Micros, Waker)| *at == instant && sleeper.will_wake(waker);
    if let Some(place) = dial.sleepers.iter().position(same) {
        dial.sleepers.swap_remove(place);
    }
}
