//! Snapshots serialized once a second and shared between requests; never without a request.

use std::sync::Arc;

use bytes::Bytes;

use super::seconds::WindowSeconds;
use super::snapshot::{CurrentStatus, TrafficSnapshot};
use super::stats::TrafficStats;

/// The framing of a server-sent event. The JSON between them contains no line feed.
const EVENT_START: &[u8] = b"data: ";
const EVENT_END: &[u8] = b"\n\n";
/// The maximum number of cached events. An event for another number of seconds is serialized on
/// each request, from the same snapshot.
const MAX_EVENTS: usize = 4;

impl TrafficStats {
    /// The snapshot after the last sample in JSON. The first request makes it, and all others share
    /// it. `None` while the runtime shuts down.
    pub async fn json(
        self: &Arc<Self>,
        seconds: WindowSeconds,
        status: impl Future<Output = CurrentStatus>,
    ) -> Option<Bytes> {
        let event = self.event(seconds, status).await?;
        Some(event.slice(EVENT_START.len()..event.len() - EVENT_END.len()))
    }

    /// The same as a server-sent event.
    pub async fn event(
        self: &Arc<Self>,
        seconds: WindowSeconds,
        status: impl Future<Output = CurrentStatus>,
    ) -> Option<Bytes> {
        let mut cache = self.events.lock().await;
        if let Some(event) = cache.get(*self.ticks.borrow(), &seconds) {
            return Some(event);
        }
        let snapshot = self.latest(seconds, status).await?;
        // It may be megabytes, and serializing them must not delay checks.
        let event = blocking(move || snapshot.event(seconds)).await?;
        cache.keep(MAX_EVENTS, seconds, &event);
        Some(event)
    }

    /// The snapshot after the last sample, of at least these seconds. `status` is read only if no
    /// other request has made the snapshot. `None` while the runtime shuts down.
    pub(crate) async fn latest(
        self: &Arc<Self>,
        seconds: WindowSeconds,
        status: impl Future<Output = CurrentStatus>,
    ) -> Option<Arc<TrafficSnapshot>> {
        let mut cache = self.snapshots.lock().await;
        let tick = *self.ticks.borrow();
        // Two sizes serve every number of seconds that a request may name.
        let (small, large) = (WindowSeconds::DEFAULT, WindowSeconds::MAX);
        let of = if seconds <= small { small } else { large };
        if let Some(snapshot) = cache.get(tick, &of).or_else(|| cache.get(tick, &large)) {
            return Some(snapshot);
        }
        let (traffic, status) = (self.clone(), status.await);
        let snapshot = blocking(move || Arc::new(traffic.snapshot(of, status))).await?;
        cache.keep(2, of, &snapshot);
        Some(snapshot)
    }
}

/// Runs `make` on a thread for blocking work; `None` while the runtime shuts down.
async fn blocking<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(make).await {
        Ok(made) => Some(made),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}

impl TrafficSnapshot {
    /// Its last seconds as a server-sent event.
    fn event(&self, seconds: WindowSeconds) -> Bytes {
        let mut text = EVENT_START.to_vec();
        // Neither the model nor a vector can fail.
        let _ = match seconds.get() == self.seconds {
            true => serde_json::to_writer(&mut text, self),
            false => serde_json::to_writer(&mut text, &self.last(seconds)),
        };
        text.extend_from_slice(EVENT_END);
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tidegate::{Health, Micros, Outcome, Source};

    use super::*;
    use crate::observe::metrics::Metrics;

    const START: Micros = Micros::from_secs(50);

    fn after(seconds: u64) -> Micros {
        START.saturating_add(Micros::from_secs(seconds))
    }

    async fn status() -> CurrentStatus {
        CurrentStatus::at(after(1), Health::up(None, 0))
    }

    async fn never() -> CurrentStatus {
        panic!("already made")
    }

    fn new_stats() -> (Arc<TrafficStats>, Metrics) {
        (Arc::new(TrafficStats::new(START)), Metrics::default())
    }

    #[tokio::test]
    async fn a_snapshot_is_serialized_once_for_all_requests_of_the_same_window() {
        let (traffic, metrics) = new_stats();
        traffic.sample(after(1), &metrics);
        let first = traffic.json(WindowSeconds::DEFAULT, status()).await.unwrap();
        let same = traffic.json(WindowSeconds::DEFAULT, never()).await.unwrap();
        assert_eq!(same.as_ptr(), first.as_ptr());
        traffic.json(WindowSeconds::MAX, status()).await.unwrap();
        // Every other window is a part of these two.
        for seconds in 1..=900 {
            traffic.json(WindowSeconds::new(seconds).unwrap(), never()).await.unwrap();
        }
        assert_eq!(traffic.events.lock().await.len(), MAX_EVENTS);
        assert_eq!(traffic.snapshots.lock().await.len(), 2);
        traffic.sample(after(2), &metrics);
        metrics.rule("a").count(Outcome::Allow, Source::Memory);
        let second = traffic.json(WindowSeconds::DEFAULT, status()).await.unwrap();
        assert_ne!(second.as_ptr(), first.as_ptr());
        assert_eq!(traffic.events.lock().await.len(), 1);
    }

    #[tokio::test]
    async fn a_shortened_snapshot_equals_one_made_for_its_window() {
        let (traffic, metrics) = new_stats();
        for second in 1..=100 {
            if second % 20 == 0 {
                metrics.rule("a").count(Outcome::Allow, Source::Memory);
            }
            traffic.sample(after(second), &metrics);
        }
        for seconds in [1, 5, 30, 59, 60, 61, 300, 900].map(|n| WindowSeconds::new(n).unwrap()) {
            let json = traffic.json(seconds, status()).await.unwrap();
            let parsed: TrafficSnapshot = serde_json::from_slice(&json).unwrap();
            assert_eq!(parsed, traffic.snapshot(seconds, status().await), "{seconds}");
        }
    }

    #[tokio::test]
    async fn nothing_is_cached_before_the_first_sample() {
        let (traffic, made) = (new_stats().0, Arc::new(AtomicUsize::new(0)));
        for _ in 0..2 {
            let made = made.clone();
            let status = async move {
                made.fetch_add(1, Ordering::Relaxed);
                CurrentStatus::at(after(1), Health::up(None, 0))
            };
            traffic.json(WindowSeconds::DEFAULT, status).await.unwrap();
        }
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_snapshot_that_is_no_longer_requested_is_dropped() {
        let (traffic, metrics) = new_stats();
        traffic.sample(after(1), &metrics);
        traffic.json(WindowSeconds::DEFAULT, status()).await.unwrap();
        let kept =
            async || (traffic.snapshots.lock().await.len(), traffic.events.lock().await.len());
        traffic.sample(after(2), &metrics);
        assert_eq!(kept().await, (1, 1), "it was requested in the second before");
        traffic.sample(after(3), &metrics);
        assert_eq!(kept().await, (0, 0));
    }
}
