//! What the server has seen lately, for people.
//!
//! # Layout
//!
//! - [`Live`] holds it. [`run`] looks at the counters once a second; a call pays for nothing but a denial, and for
//!   that next to nothing.
//! - `history`: the calls of each rule in each of the last seconds, in a `ring`. [`denials`]: who was denied.
//! - [`snapshot`]: all of it as it is told. `written`: the same in JSON, made once a second.

pub mod denials;
mod history;
mod ring;
pub mod snapshot;
mod written;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{Clock, Micros};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use self::denials::Denials;
use self::history::History;
pub use self::snapshot::{Present, Snapshot};
use self::written::Written;
use crate::drain::Drain;
use crate::metrics::Metrics;
use crate::service::Service;

/// The most seconds that are remembered: a quarter of an hour.
pub const MAX_SECONDS: usize = 900;

/// What the server has seen lately.
#[derive(Debug)]
pub struct Live {
    began: Micros,
    history: Mutex<History>,
    denied: Denials,
    would_deny: Denials,
    ticks: watch::Sender<u64>,
    written: Arc<tokio::sync::Mutex<Written>>,
    streams: Arc<Semaphore>,
    held: Arc<Semaphore>,
}

/// How many of the last seconds somebody wants to see.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seconds(usize);

impl Seconds {
    /// A minute.
    pub const DEFAULT: Self = Self(60);

    /// From 1 to [`MAX_SECONDS`].
    pub fn new(seconds: usize) -> Option<Self> {
        (1..=MAX_SECONDS).contains(&seconds).then_some(Self(seconds))
    }

    /// The number.
    pub fn get(self) -> usize {
        self.0
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Live {
    /// The most who may follow at a time.
    pub const MAX_STREAMS: usize = 64;
    /// The most bytes that are on their way to all who ask or follow at a time.
    pub const MAX_HELD: usize = 32 << 20;

    /// Nothing seen yet. Instants without another word are [`Clock::elapsed`].
    pub fn new(now: Micros) -> Self {
        Self {
            began: now,
            history: Mutex::new(History::new(now)),
            denied: Denials::default(),
            would_deny: Denials::default(),
            ticks: watch::Sender::new(0),
            written: Arc::default(),
            streams: Arc::new(Semaphore::new(Self::MAX_STREAMS)),
            held: Arc::new(Semaphore::new(Self::MAX_HELD >> 10)),
        }
    }

    /// Calls that were denied.
    pub fn denied(&self) -> &Denials {
        &self.denied
    }

    /// Calls that a shadow limit would have denied, and that were allowed.
    pub fn would_deny(&self) -> &Denials {
        &self.would_deny
    }

    /// Looks at the counters, and tells whoever follows that there is something new.
    pub fn sample(&self, now: Micros, metrics: &Metrics) {
        let rules = metrics.all_rules();
        let totals = rules.iter().map(|(name, counters)| (name, counters.totals()));
        self.history().sample(now, totals, metrics.durations());
        // Whoever is writing wants it still.
        if let Ok(mut written) = self.written.try_lock() {
            written.forget_before(*self.ticks.borrow());
        }
        self.ticks.send_modify(|tick| *tick += 1);
    }

    /// Changes with every sample.
    pub fn ticks(&self) -> watch::Receiver<u64> {
        self.ticks.subscribe()
    }

    /// A place among those who follow, for as long as it is held; none if there are too many.
    pub fn follow(&self) -> Option<OwnedSemaphorePermit> {
        self.streams.clone().try_acquire_owned().ok()
    }

    /// Room for an answer or event of so many bytes on its way, for as long as it is held; none if others are slow in taking theirs.
    pub fn hold(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kilobytes = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        self.held.clone().try_acquire_many_owned(kilobytes).ok()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at the counters at the turn of every second, until the server drains.
pub async fn run(service: Arc<Service>, mut drain: Drain) {
    const SECOND: u64 = 1_000_000;
    let clock = service.clock().clone();
    loop {
        let next = Micros::from_secs(clock.elapsed().get() / SECOND + 1);
        tokio::select! {
            () = clock.sleep_until(next) => {}
            () = drain.begun() => return,
        }
        service.live().sample(clock.elapsed(), service.metrics());
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Outcome, Source};

    use super::*;

    const START: Micros = Micros::from_secs(50);

    fn after(seconds: u64) -> Micros {
        START.saturating_add(Micros::from_secs(seconds))
    }

    #[test]
    fn who_follows_is_told_and_there_is_room_for_a_few() {
        let (live, metrics) = (Live::new(START), Metrics::default());
        let ticks = live.ticks();
        assert!(!ticks.has_changed().unwrap());
        live.sample(after(1), &metrics);
        assert!(ticks.has_changed().unwrap());
        let places: Vec<_> = (0..Live::MAX_STREAMS).map_while(|_| live.follow()).collect();
        assert_eq!((places.len(), live.follow().is_none()), (Live::MAX_STREAMS, true));
        drop(places);
        assert!(live.follow().is_some());
    }

    #[test]
    fn events_on_their_way_have_bounded_room() {
        let live = Live::new(START);
        let large: Vec<_> = (0..9).map_while(|_| live.hold(4 << 20)).collect();
        assert_eq!((large.len(), live.hold(1).is_none()), (8, true));
        drop(large);
        assert!(live.hold(Live::MAX_HELD).is_some());
        assert!(live.hold(Live::MAX_HELD + 1).is_none());
    }

    #[test]
    fn seconds_are_within_what_is_remembered() {
        for (seconds, good) in [(0, false), (1, true), (900, true), (901, false)] {
            assert_eq!(Seconds::new(seconds).is_some(), good, "{seconds}");
        }
    }

    #[test]
    #[ignore = "prints how long a sample and a denial take; run it with --release and --nocapture"]
    fn measure_a_sample() {
        use tidegate::SystemClock;
        let micros = |work: &mut dyn FnMut()| {
            let begin = SystemClock.elapsed();
            work();
            SystemClock.elapsed().saturating_sub(begin).get()
        };
        for count in [3, 512, Metrics::MAX_RULES] {
            let (live, metrics) = (Live::new(START), Metrics::default());
            let rules: Vec<_> = (0..count).map(|i| metrics.rule(&format!("r{i}"))).collect();
            let mut best = u64::MAX;
            for second in 1..=20 {
                rules.iter().for_each(|rule| rule.count(Outcome::Allow, Source::Memory));
                best = best.min(micros(&mut || live.sample(after(second), &metrics)));
            }
            println!("{count} rules that are all asked: {best} us a sample");
        }
        let live = Live::new(START);
        let calls = 10_000_000;
        let flood = micros(&mut || {
            let denied = denials::Denied::Rule("r", None);
            (0..calls).for_each(|i| live.denied().note(Micros::new(i / 10), denied));
        });
        println!("a denial in a flood: {} ns", flood * 1_000 / calls);
    }
}
