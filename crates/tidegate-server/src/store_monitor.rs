//! Probes the store without traffic, and logs its health.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Breaker, Engine, Health, Micros};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::store::Store;

/// Watches a store that can fail independently of this process.
pub(crate) struct StoreMonitor {
    store: Store,
    breaker: Arc<Breaker<Arc<dyn Engine>>>,
    /// The deadline of a call.
    deadline: Duration,
}

impl StoreMonitor {
    /// The interval of probes and of health reports, and the time to connect before the first
    /// report.
    const INTERVAL: Duration = Duration::from_secs(1);
    /// The pause after a failed probe. Five of them open the circuit.
    const RETRY: Duration = Duration::from_millis(50);

    pub(crate) fn new(
        store: Store,
        breaker: Arc<Breaker<Arc<dyn Engine>>>,
        deadline: Duration,
    ) -> Self {
        Self { store, breaker, deadline }
    }

    /// Never completes. `errors` is the number of store calls that failed so far.
    pub(crate) async fn run(&self, health: impl Fn() -> Health, errors: impl Fn() -> u64) {
        tokio::join!(self.probe(), self.log_health(health, errors));
    }

    /// Sends a probe every second, so that the health of the store is known without traffic. Logs a
    /// warning if the first ones show that the deadline is too short for the distance.
    async fn probe(&self) {
        let mut distance = Distance::default();
        loop {
            let sent = Instant::now();
            let is_up = self.breaker.probe().await.is_ok();
            if is_up
                && let Some(round_trip) = distance.measured(sent.elapsed())
                && is_too_short(self.deadline, round_trip)
            {
                let (store, remedy) = (&self.store, "raise store_deadline");
                warn!(%store, ?round_trip, deadline = ?self.deadline, remedy,
                    "store far away: the round trip is near the deadline");
            }
            tokio::time::sleep(if is_up { Self::INTERVAL } else { Self::RETRY }).await;
        }
    }

    /// Logs when decisions stop to come from the store, again every minute, and when they come from
    /// it again; a misconfiguration or a loss of state when it is new; and each minute the number
    /// of failed calls, since those may be too few to open the circuit.
    async fn log_health(&self, health: impl Fn() -> Health, errors: impl Fn() -> u64) {
        let store = &self.store;
        let mut reported = ReportedHealth::default();
        loop {
            tokio::time::sleep(Self::INTERVAL).await;
            let health = health();
            match reported.outage(&health) {
                Some(OutageReport::Unavailable { error, since }) => {
                    let since = since.map(|since| since.get() / 1_000_000);
                    warn!(%store, error, since, "store unavailable, on_store_failure applies");
                }
                Some(OutageReport::Available) => info!(%store, "store available again"),
                None => {}
            }
            if let Some(warning) = reported.new_warning(&health) {
                warn!(%store, %warning, "store misconfigured");
            }
            if let Some(what) = reported.new_reset(&health) {
                let resets = health.resets;
                warn!(%store, %what, resets, "store may have lost its state");
            }
            if let Some(calls) = reported.new_errors(errors()) {
                warn!(%store, calls, "store calls failed in the last minute");
            }
        }
    }
}

/// Whether a call that finds another in flight may miss the deadline: two round trips, and 10 ms
/// each for a busy machine.
fn is_too_short(deadline: Duration, round_trip: Duration) -> bool {
    2 * (round_trip + Duration::from_millis(10)) > deadline
}

/// The shortest round trip of the first probes that succeed.
#[derive(Default)]
struct Distance {
    probes: u32,
    shortest: Option<Duration>,
}

impl Distance {
    /// The first ones load scripts, and a busy machine delays some.
    const PROBES: u32 = 5;

    /// Once, when enough probes have succeeded.
    fn measured(&mut self, round_trip: Duration) -> Option<Duration> {
        self.probes = self.probes.saturating_add(1);
        let shortest = self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip));
        self.shortest = Some(shortest);
        (self.probes == Self::PROBES).then_some(shortest)
    }
}

/// What to log about the availability of a store.
#[derive(PartialEq, Eq, Debug)]
enum OutageReport<'a> {
    Unavailable { error: &'a str, since: Option<Micros> },
    Available,
}

/// What has been logged about a store.
#[derive(Default)]
struct ReportedHealth {
    /// Polls since an outage was last logged; `None` without an outage.
    outage_polls: Option<u32>,
    warning: Option<Arc<str>>,
    resets: u64,
    errors: u64,
    /// Polls since the number of errors was last compared.
    polls: u32,
}

impl ReportedHealth {
    /// Polls in a minute.
    const MINUTE: u32 = 60;

    fn outage<'a>(&mut self, health: &'a Health) -> Option<OutageReport<'a>> {
        if health.up && health.error.is_none() {
            return self.outage_polls.take().map(|_| OutageReport::Available);
        }
        let polls = self.outage_polls.map_or(0, |polls| (polls + 1) % Self::MINUTE);
        self.outage_polls = Some(polls);
        let error = health.error.as_deref().unwrap_or("unknown cause");
        (polls == 0).then_some(OutageReport::Unavailable { error, since: health.since })
    }

    /// Each minute: the number of new errors, if there are any.
    fn new_errors(&mut self, errors: u64) -> Option<u64> {
        self.polls += 1;
        if self.polls < Self::MINUTE {
            return None;
        }
        self.polls = 0;
        let new = errors - std::mem::replace(&mut self.errors, errors);
        (new > 0).then_some(new)
    }

    fn new_warning(&mut self, health: &Health) -> Option<Arc<str>> {
        let warning = health.warning.clone().filter(|text| self.warning.as_ref() != Some(text))?;
        self.warning = Some(warning.clone());
        Some(warning)
    }

    fn new_reset(&mut self, health: &Health) -> Option<Arc<str>> {
        let is_new = health.resets > std::mem::replace(&mut self.resets, health.resets);
        is_new.then(|| health.last_reset.clone().unwrap_or_else(|| "unknown cause".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_near_the_deadline_is_noticed_once() {
        let ms = Duration::from_millis;
        let mut distance = Distance::default();
        let measured: Vec<_> =
            [90, 70, 41, 60, 50, 45, 1].map(|span| distance.measured(ms(span))).into();
        assert_eq!(measured, [None, None, None, None, Some(ms(41)), None, None]);
        for (deadline, round_trip, expected) in
            [(100, 41, true), (100, 40, false), (100, 1, false), (25, 3, true), (25, 2, false)]
        {
            assert_eq!(is_too_short(ms(deadline), ms(round_trip)), expected, "{round_trip}");
        }
    }

    #[test]
    fn an_outage_is_reported_at_once_then_every_minute_and_at_its_end() {
        let mut reported = ReportedHealth::default();
        let mut health = Health::up(None, 0);
        assert_eq!(reported.outage(&health), None);
        (health.up, health.error, health.since) = (false, Some("e".into()), Some(Micros::new(7)));
        let unavailable = || Some(OutageReport::Unavailable { error: "e", since: health.since });
        for poll in 0..130 {
            let expected = if poll % 60 == 0 { unavailable() } else { None };
            assert_eq!(reported.outage(&health), expected, "{poll}");
        }
        // One shard of several.
        health.up = true;
        assert_eq!(reported.outage(&health), None);
        health.error = None;
        assert_eq!(reported.outage(&health), Some(OutageReport::Available));
        assert_eq!(reported.outage(&health), None);
    }

    #[test]
    fn warnings_and_resets_are_reported_when_they_are_new() {
        let mut reported = ReportedHealth::default();
        let mut health = Health::up(None, 0);
        for (warning, resets, last, expected) in [
            (None, 0, None, (None, None)),
            (Some("w"), 1, Some("x"), (Some("w"), Some("x"))),
            (Some("w"), 1, Some("x"), (None, None)),
            (None, 2, Some("x"), (None, Some("x"))),
            (Some("w"), 2, Some("x"), (None, None)),
            (Some("v"), 5, None, (Some("v"), Some("unknown cause"))),
        ] {
            health.warning = warning.map(Arc::from);
            (health.resets, health.last_reset) = (resets, last.map(Arc::from));
            let news = (reported.new_warning(&health), reported.new_reset(&health));
            assert_eq!((news.0.as_deref(), news.1.as_deref()), expected);
        }
    }
}
