//! What was seen lately in JSON: made once a second for everybody who wants the same, and never while nobody asks.

use std::sync::Arc;

use bytes::Bytes;

use super::{Live, MAX_SECONDS, Present, Seconds, Snapshot};

/// What an event is wrapped in. There are no line feeds in between.
const EVENT_START: &[u8] = b"data: ";
const EVENT_END: &[u8] = b"\n\n";

/// What was made after one sample.
#[derive(Default, Debug)]
pub(super) struct Written {
    tick: u64,
    /// Of [`Seconds::DEFAULT`] and of all that is remembered, if somebody has asked for so many.
    snapshots: Vec<Snapshot>,
    texts: Vec<(Seconds, Bytes)>,
}

impl Live {
    /// A snapshot in JSON, as it was after the last sample: made for the first who asks, and the same for all others.
    /// None when the process ends.
    pub async fn json(
        self: &Arc<Self>,
        seconds: Seconds,
        present: impl FnOnce() -> Present + Send + 'static,
    ) -> Option<Bytes> {
        let event = self.event(seconds, present).await?;
        Some(event.slice(EVENT_START.len()..event.len() - EVENT_END.len()))
    }

    /// The same as one of a stream of events.
    pub async fn event(
        self: &Arc<Self>,
        seconds: Seconds,
        present: impl FnOnce() -> Present + Send + 'static,
    ) -> Option<Bytes> {
        let mut written = self.written.clone().lock_owned().await;
        written.begin(*self.ticks.borrow());
        if let Some(text) = written.text(seconds) {
            return Some(text);
        }
        let live = self.clone();
        // It may be megabytes, and calls that are to be decided do not wait for them.
        let made = move || {
            let text = written.snapshot(&live, seconds, present).event(seconds);
            written.keep(seconds, &text);
            text
        };
        match tokio::task::spawn_blocking(made).await {
            Ok(text) => Some(text),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => None,
            },
        }
    }
}

impl Written {
    /// The most texts; whoever wants yet another span has it written anew, of the same snapshot.
    const MAX: usize = 4;

    /// Forgets what is not of this sample. Before the first there is nothing to be kept.
    fn begin(&mut self, tick: u64) {
        if self.tick != tick || tick == 0 {
            *self = Self { tick, ..Self::default() };
        }
    }

    /// Forgets what nobody has asked for since this sample.
    pub(super) fn forget_before(&mut self, tick: u64) {
        if self.tick < tick {
            *self = Self { tick: self.tick, ..Self::default() };
        }
    }

    fn text(&self, seconds: Seconds) -> Option<Bytes> {
        self.texts.iter().find(|(of, _)| *of == seconds).map(|(_, text)| text.clone())
    }

    fn keep(&mut self, seconds: Seconds, text: &Bytes) {
        if self.texts.len() < Self::MAX {
            self.texts.push((seconds, text.clone()));
        }
    }

    /// One with at least so many seconds.
    fn snapshot(
        &mut self,
        live: &Live,
        seconds: Seconds,
        present: impl FnOnce() -> Present,
    ) -> &Snapshot {
        // Not one for every number of seconds that somebody thinks of.
        let of = if seconds <= Seconds::DEFAULT { Seconds::DEFAULT } else { Seconds(MAX_SECONDS) };
        let known = self.snapshots.iter().position(|snapshot| snapshot.seconds >= of.get());
        let place = known.unwrap_or_else(|| {
            self.snapshots.push(live.snapshot(of, present()));
            self.snapshots.len() - 1
        });
        &self.snapshots[place]
    }
}

impl Snapshot {
    /// Its last seconds as an event.
    fn event(&self, seconds: Seconds) -> Bytes {
        let mut text = EVENT_START.to_vec();
        // Nothing in it can fail to be written.
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
    use crate::metrics::Metrics;

    const START: Micros = Micros::from_secs(50);

    fn after(seconds: u64) -> Micros {
        START.saturating_add(Micros::from_secs(seconds))
    }

    fn present() -> Present {
        Present::at(after(1), Health::up(None, 0))
    }

    fn never() -> Present {
        panic!("made already")
    }

    fn live() -> (Arc<Live>, Metrics) {
        (Arc::new(Live::new(START)), Metrics::default())
    }

    #[tokio::test]
    async fn a_snapshot_is_written_once_for_everybody_who_wants_the_same() {
        let (live, metrics) = live();
        live.sample(after(1), &metrics);
        let first = live.json(Seconds::DEFAULT, present).await.unwrap();
        let same = live.json(Seconds::DEFAULT, never).await.unwrap();
        assert_eq!(same.as_ptr(), first.as_ptr());
        live.json(Seconds(900), present).await.unwrap();
        // Whatever else is asked for is a part of what is there.
        for seconds in 1..=900 {
            live.json(Seconds(seconds), never).await.unwrap();
        }
        assert_eq!(live.written.lock().await.texts.len(), Written::MAX);
        assert_eq!(live.written.lock().await.snapshots.len(), 2);
        live.sample(after(2), &metrics);
        metrics.rule("a").count(Outcome::Allow, Source::Memory);
        let second = live.json(Seconds::DEFAULT, present).await.unwrap();
        assert_ne!(second.as_ptr(), first.as_ptr());
        assert_eq!(live.written.lock().await.texts.len(), 1);
    }

    #[tokio::test]
    async fn a_part_of_a_snapshot_is_what_would_have_been_made_of_so_many_seconds() {
        let (live, metrics) = live();
        for second in 1..=100 {
            if second % 20 == 0 {
                metrics.rule("a").count(Outcome::Allow, Source::Memory);
            }
            live.sample(after(second), &metrics);
        }
        for seconds in [1, 5, 30, 59, 60, 61, 300, 900].map(Seconds) {
            let json = live.json(seconds, present).await.unwrap();
            let told: Snapshot = serde_json::from_slice(&json).unwrap();
            assert_eq!(told, live.snapshot(seconds, present()), "{seconds}");
        }
    }

    #[tokio::test]
    async fn before_the_first_second_is_over_nothing_is_kept() {
        let (live, asked) = (live().0, Arc::new(AtomicUsize::new(0)));
        for _ in 0..2 {
            let asked = asked.clone();
            let present = move || {
                asked.fetch_add(1, Ordering::Relaxed);
                present()
            };
            live.json(Seconds::DEFAULT, present).await.unwrap();
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_nobody_asks_for_any_more_is_forgotten() {
        let (live, metrics) = live();
        live.sample(after(1), &metrics);
        live.json(Seconds::DEFAULT, present).await.unwrap();
        let kept = async || {
            let written = live.written.lock().await;
            (written.snapshots.len(), written.texts.len())
        };
        live.sample(after(2), &metrics);
        assert_eq!(kept().await, (1, 1), "it was asked for in the second before");
        live.sample(after(3), &metrics);
        assert_eq!(kept().await, (0, 0));
    }
}
