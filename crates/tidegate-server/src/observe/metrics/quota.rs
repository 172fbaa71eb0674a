//! Counters of the rate limit quota service.

use std::sync::atomic::{AtomicU64, Ordering};

use super::exposition::{Exposition, MetricType};

/// What happens on streams of the rate limit quota service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QuotaEvent {
    /// Requests that Envoys have admitted.
    Admitted,
    /// Requests that Envoys have denied.
    Denied,
    /// Messages to holders that were written.
    Sent,
    /// Messages to holders that were not written in time.
    Dropped,
    /// Reports of a bucket without a limit.
    Unknown,
    /// Buckets and checks that found no room for a state.
    Full,
}

const EVENTS: usize = 6;

#[derive(Default, Debug)]
pub(super) struct QuotaMetrics {
    counts: [AtomicU64; EVENTS],
    streams: AtomicU64,
    holders: AtomicU64,
}

impl QuotaMetrics {
    pub(super) fn count(&self, event: QuotaEvent, count: u64) {
        self.counts[event as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn set(&self, streams: u64, holders: u64) {
        self.streams.store(streams, Ordering::Relaxed);
        self.holders.store(holders, Ordering::Relaxed);
    }

    fn get(&self, event: QuotaEvent) -> u64 {
        self.counts[event as usize].load(Ordering::Relaxed)
    }

    pub(super) fn render(&self, out: &mut Exposition) {
        let help = "Streams of the rate limit quota service.";
        out.gauge("tidegate_rlqs_streams", help, self.streams.load(Ordering::Relaxed));
        let help = "Buckets that are lent a share of a limit: one for each bucket and stream.";
        out.gauge("tidegate_rlqs_holders", help, self.holders.load(Ordering::Relaxed));
        let help = "Requests that Envoys report.";
        let mut requests = out.family("tidegate_rlqs_requests_total", MetricType::Counter, help);
        for (outcome, event) in [("allow", QuotaEvent::Admitted), ("deny", QuotaEvent::Denied)] {
            requests.sample("", &[("outcome", outcome)], self.get(event));
        }
        for (name, help, event) in [
            ("tidegate_rlqs_messages_total", "Assignments written.", QuotaEvent::Sent),
            (
                "tidegate_rlqs_messages_dropped_total",
                "Assignments that could not be written in time.",
                QuotaEvent::Dropped,
            ),
            (
                "tidegate_rlqs_unknown_buckets_total",
                "Reports of a bucket that no descriptor with rlqs matches.",
                QuotaEvent::Unknown,
            ),
            (
                "tidegate_rlqs_full_total",
                "Buckets and checks without room for another limit or bucket.",
                QuotaEvent::Full,
            ),
        ] {
            out.counter(name, help, self.get(event));
        }
    }
}
