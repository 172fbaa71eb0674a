//! Traffic statistics: samples the counters once a second and notifies streams.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tidegate::{Clock, Micros};
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore, watch};

use super::denials::DenialLog;
use super::history::History;
use super::seconds::WindowSeconds;
use super::snapshot::TrafficSnapshot;
use super::tick_cache::TickCache;
use crate::observe::metrics::Metrics;
use crate::shutdown::Shutdown;

/// Counts of the last minutes and recent denials.
///
/// [`TrafficStats::run`] reads the counters once a second. A call itself records nothing here
/// unless it is denied, and that is cheap.
#[derive(Debug)]
pub struct TrafficStats {
    pub(super) began: Micros,
    history: Mutex<History>,
    denied: DenialLog,
    would_deny: DenialLog,
    pub(super) ticks: watch::Sender<u64>,
    pub(super) snapshots: AsyncMutex<TickCache<WindowSeconds, Arc<TrafficSnapshot>>>,
    pub(super) events: AsyncMutex<TickCache<WindowSeconds, Bytes>>,
    streams: Arc<Semaphore>,
    /// In units of 1 KiB.
    in_flight: Arc<Semaphore>,
}

impl TrafficStats {
    /// The maximum number of concurrent streams.
    pub const MAX_STREAMS: usize = 64;
    /// The maximum number of bytes of responses and events in flight.
    pub const MAX_HELD: usize = 32 << 20;

    /// Starts at `now`. Instants are [`Clock::elapsed`] unless said otherwise.
    pub fn new(now: Micros) -> Self {
        Self {
            began: now,
            history: Mutex::new(History::new(now)),
            denied: DenialLog::default(),
            would_deny: DenialLog::default(),
            ticks: watch::Sender::new(0),
            snapshots: AsyncMutex::default(),
            events: AsyncMutex::default(),
            streams: Arc::new(Semaphore::new(Self::MAX_STREAMS)),
            in_flight: Arc::new(Semaphore::new(Self::MAX_HELD >> 10)),
        }
    }

    /// Calls that were denied.
    pub fn denied(&self) -> &DenialLog {
        &self.denied
    }

    /// Calls that were allowed but that a shadow limit would have denied.
    pub fn would_deny(&self) -> &DenialLog {
        &self.would_deny
    }

    /// Reads the counters and notifies all streams.
    pub fn sample(&self, now: Micros, metrics: &Metrics) {
        let rules = metrics.all_rules();
        let totals = rules.iter().map(|(name, counters)| (name, counters.totals()));
        self.history().sample(now, totals, metrics.durations(), metrics.requests());
        // A locked cache is in use, so nothing in it has to be dropped.
        let tick = *self.ticks.borrow();
        let _ = self.snapshots.try_lock().map(|mut cache| cache.drop_before(tick));
        let _ = self.events.try_lock().map(|mut cache| cache.drop_before(tick));
        self.ticks.send_modify(|tick| *tick += 1);
    }

    /// Samples at the start of every second of `clock`, until the server drains.
    pub async fn run(
        self: Arc<Self>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        mut shutdown: Shutdown,
    ) {
        const SECOND: u64 = 1_000_000;
        loop {
            let next = Micros::from_secs(clock.elapsed().get() / SECOND + 1);
            tokio::select! {
                () = clock.sleep_until(next) => {}
                () = shutdown.begun() => return,
            }
            self.sample(clock.elapsed(), &metrics);
        }
    }

    /// The number of samples, which changes with each of them.
    pub fn ticks(&self) -> watch::Receiver<u64> {
        self.ticks.subscribe()
    }

    /// A permit for one stream; `None` if there are [`TrafficStats::MAX_STREAMS`].
    pub fn follow(&self) -> Option<OwnedSemaphorePermit> {
        self.streams.clone().try_acquire_owned().ok()
    }

    /// A permit for a response or event of this size while it is in flight; `None` if
    /// [`TrafficStats::MAX_HELD`] would be exceeded.
    pub fn hold(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kilobytes = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        self.in_flight.clone().try_acquire_many_owned(kilobytes).ok()
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Outcome, Source};

    use super::*;
    use crate::observe::traffic::denials::DenialCause;

    const START: Micros = Micros::from_secs(50);

    fn after(seconds: u64) -> Micros {
        START.saturating_add(Micros::from_secs(seconds))
    }

    #[test]
    fn streams_are_notified_and_their_number_is_bounded() {
        let (traffic, metrics) = (TrafficStats::new(START), Metrics::default());
        let ticks = traffic.ticks();
        assert!(!ticks.has_changed().unwrap());
        traffic.sample(after(1), &metrics);
        assert!(ticks.has_changed().unwrap());
        let permits: Vec<_> =
            (0..TrafficStats::MAX_STREAMS).map_while(|_| traffic.follow()).collect();
        assert_eq!((permits.len(), traffic.follow().is_none()), (TrafficStats::MAX_STREAMS, true));
        drop(permits);
        assert!(traffic.follow().is_some());
    }

    #[test]
    fn the_bytes_of_events_in_flight_are_bounded() {
        let traffic = TrafficStats::new(START);
        let large: Vec<_> = (0..9).map_while(|_| traffic.hold(4 << 20)).collect();
        assert_eq!((large.len(), traffic.hold(1).is_none()), (8, true));
        drop(large);
        assert!(traffic.hold(TrafficStats::MAX_HELD).is_some());
        assert!(traffic.hold(TrafficStats::MAX_HELD + 1).is_none());
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
            let (traffic, metrics) = (TrafficStats::new(START), Metrics::default());
            let rules: Vec<_> = (0..count).map(|i| metrics.rule(&format!("r{i}"))).collect();
            let mut best = u64::MAX;
            for second in 1..=20 {
                rules.iter().for_each(|rule| rule.count(Outcome::Allow, Source::Memory));
                best = best.min(micros(&mut || traffic.sample(after(second), &metrics)));
            }
            println!("{count} rules, all with calls: {best} us a sample");
        }
        let traffic = TrafficStats::new(START);
        let calls = 10_000_000;
        let flood = micros(&mut || {
            let denied = DenialCause::Rule("r", None);
            (0..calls).for_each(|i| traffic.denied().record(Micros::new(i / 10), denied));
        });
        println!("a denial in a flood: {} ns", flood * 1_000 / calls);
    }
}
