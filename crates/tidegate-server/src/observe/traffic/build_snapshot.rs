//! History -> snapshot.

use tidegate::policy::instance_id;

use super::denials::DenialRecord;
use super::history::KINDS;
use super::ring::Ring;
use super::seconds::WindowSeconds;
use super::snapshot::{
    CallRates, CallSeries, CallStats, CallTotals, CurrentStatus, DenialKind, LatencyQuantiles,
    RecentDenial, RequestCounts, RequestStats, RuleTraffic, StoreState, TrafficSnapshot,
};
use super::stats::TrafficStats;
use crate::observe::metrics::BucketCounts;

impl TrafficStats {
    /// The last `seconds` of traffic, with the current status.
    pub fn snapshot(&self, seconds: WindowSeconds, status: CurrentStatus) -> TrafficSnapshot {
        let CurrentStatus { now, elapsed, health, hottest, policy, connections, store_address } =
            status;
        // The history stays locked only while its numbers are copied: the next sample waits.
        let history = self.history();
        let window =
            SeriesWindow { end: history.end(), seconds, average: history.seconds().min(10) };
        let end_at = history.end_at();
        let (totals, total) = history.total();
        let total = window.traffic(totals, total);
        let (totals, requests) = history.requests();
        let requests = window.requests(totals, requests);
        let other = window.series(history.other());
        let latency = history.latency().clone();
        let mut rules: Vec<_> = history
            .rules()
            .map(|past| RuleTraffic {
                name: past.name.to_string(),
                lent: health.lent.get(&**past.name).copied().unwrap_or(0),
                traffic: window.traffic(past.totals, past.ring),
            })
            .collect();
        drop(history);
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        TrafficSnapshot {
            version: env!("CARGO_PKG_VERSION").into(),
            instance: instance_id().into(),
            store_address,
            at_ms: now.saturating_sub(elapsed.saturating_sub(end_at)).get() / 1_000,
            uptime_s: elapsed.saturating_sub(self.began).get() / 1_000_000,
            seconds: seconds.get(),
            requests,
            total,
            rules,
            other,
            latency: window.latency(&latency),
            hottest,
            denials: self.denials(),
            denials_left_out: self.denied().left_out() + self.would_deny().left_out(),
            store: StoreState::from(health),
            policy,
            connections,
        }
    }

    fn denials(&self) -> Vec<RecentDenial> {
        let of = |kind| move |denial| (kind, denial);
        let denied = self.denied().last().into_iter().map(of(DenialKind::Deny));
        let would_deny = self.would_deny().last().into_iter().map(of(DenialKind::WouldDeny));
        let mut all: Vec<(DenialKind, DenialRecord)> = denied.chain(would_deny).collect();
        all.sort_by_key(|(_, denial)| denial.at);
        all.into_iter().rev().map(|(kind, denial)| RecentDenial::new(kind, denial)).collect()
    }
}

/// The seconds of the series of a snapshot.
#[derive(Clone, Copy)]
struct SeriesWindow {
    end: u64,
    seconds: WindowSeconds,
    /// How many of them the rates are averaged over.
    average: u64,
}

impl SeriesWindow {
    fn traffic(self, totals: &CallTotals, ring: &Ring<KINDS>) -> CallStats {
        let rates = CallRates::from_array(self.rates(ring));
        CallStats { totals: *totals, rates, series: self.series(ring) }
    }

    fn requests(
        self,
        totals: RequestCounts<u64>,
        ring: &Ring<{ RequestCounts::<u64>::KINDS }>,
    ) -> RequestStats {
        let rates = RequestCounts::from_array(self.rates(ring));
        RequestStats { totals, rates, series: RequestCounts::from_array(self.columns(ring)) }
    }

    fn series(self, ring: &Ring<KINDS>) -> CallSeries {
        CallSeries::from_array(self.columns(ring))
    }

    fn rates<const W: usize>(self, ring: &Ring<W>) -> [f64; W] {
        let mut sums = [0_u64; W];
        for counts in ring.last(self.end, self.average as usize) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        sums.map(|sum| sum as f64 / self.average as f64)
    }

    fn columns<const W: usize>(self, ring: &Ring<W>) -> [Vec<u32>; W] {
        std::array::from_fn(|kind| {
            let counts = || ring.last(self.end, self.seconds.get()).map(|counts| counts[kind]);
            if counts().all(|count| count == 0) { Vec::new() } else { counts().collect() }
        })
    }

    fn latency(self, ring: &Ring<{ BucketCounts::BUCKETS }>) -> LatencyQuantiles {
        let micros = |durations: BucketCounts, percent| {
            durations.percentile(percent).map(|nanos: u64| nanos.div_ceil(1_000))
        };
        let mut recent = BucketCounts::default();
        for counts in ring.last(self.end, self.average as usize) {
            recent.add(&BucketCounts(counts.map(u64::from)));
        }
        let series = |percent| {
            let seconds = ring.last(self.end, self.seconds.get());
            seconds.map(|counts| micros(BucketCounts(counts.map(u64::from)), percent)).collect()
        };
        LatencyQuantiles {
            p50_us: micros(recent, 50),
            p99_us: micros(recent, 99),
            p50_us_series: series(50),
            p99_us_series: series(99),
        }
    }
}
