//! Counters under envoyproxy/ratelimit's metric names, for existing dashboards.
//!
//! Names and labels are those of its exporter: `ratelimit_service_rate_limit_total_hits` with
//! `domain`, `key1`, `key2`..

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::error::EnvoyError;
use super::request::{Hits, LimitMatch, LimitMatches, MatchedDescriptor};
use super::response::{DescriptorReport, DescriptorReports};
use crate::observe::metrics::exposition::{Exposition, MetricType};

/// Counters under envoyproxy/ratelimit's metric names.
#[derive(Default, Debug)]
pub struct EnvoyStats {
    limits: RwLock<BTreeMap<Box<str>, Arc<LimitStats>>>,
    invalid: AtomicU64,
    unavailable: AtomicU64,
}

/// Counters of one statistic name.
#[derive(Default, Debug)]
struct LimitStats {
    /// Length of the domain, the first part of the name.
    domain_len: usize,
    total_hits: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    within_limit: AtomicU64,
    shadow_mode: AtomicU64,
}

/// A family of counters: its name, its help text, and its field.
type StatFamily = (&'static str, &'static str, fn(&LimitStats) -> &AtomicU64);

const FAMILIES: [StatFamily; 5] = [
    ("ratelimit_service_rate_limit_total_hits", "Hits.", |s| &s.total_hits),
    ("ratelimit_service_rate_limit_over_limit", "Hits over the limit.", |s| &s.over_limit),
    ("ratelimit_service_rate_limit_near_limit", "Hits above 80 % of the limit.", |s| &s.near_limit),
    ("ratelimit_service_rate_limit_within_limit", "Hits within the limit.", |s| &s.within_limit),
    ("ratelimit_service_rate_limit_shadow_mode", "Hits over a limit in shadow mode.", |s| {
        &s.shadow_mode
    }),
];

impl EnvoyStats {
    /// Most names with separate counters. `detailed_metric: true` makes one for every value of
    /// a descriptor.
    pub const MAX_NAMES: usize = 10_000;
    /// Name for all names beyond the maximum.
    const OTHER: &str = "other";

    /// Counts the hits of a request.
    pub(crate) fn count(
        &self,
        domain: &str,
        matches: &LimitMatches<'_>,
        reports: &DescriptorReports<'_, '_>,
    ) {
        let of = |matched: &MatchedDescriptor<'_>| {
            self.of(&matched.found.stat_name(&matched.entries), domain)
        };
        for one in &matches.all {
            if let LimitMatch::Unlimited(matched) = one {
                let (stats, hits) = (of(matched), matched.hits.count());
                add(&stats.total_hits, hits);
                add(&stats.within_limit, hits);
            }
        }
        for (limited, report) in reports {
            let stats = of(limited);
            stats.count(limited.hits, report);
            if limited.limit().is_shadow() && report.is_over() {
                add(&stats.shadow_mode, limited.hits.count());
            }
        }
    }

    /// Counts a request that failed.
    pub(crate) fn count_error(&self, error: &EnvoyError) {
        match error {
            EnvoyError::Invalid(_) => add(&self.invalid, 1),
            EnvoyError::Unavailable(_) => add(&self.unavailable, 1),
        }
    }

    fn of(&self, name: &str, domain: &str) -> Arc<LimitStats> {
        let known = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(stats) = known.get(name) {
            return stats.clone();
        }
        drop(known);
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let fits = limits.len() < Self::MAX_NAMES || limits.contains_key(name);
        let name = if fits { name } else { Self::OTHER };
        let domain_len = domain.len().min(name.len());
        let new = || Arc::new(LimitStats { domain_len, ..LimitStats::default() });
        limits.entry(name.into()).or_insert_with(new).clone()
    }

    /// All counters in the Prometheus text format.
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner).clone();
        for (family, help, counter) in FAMILIES {
            let mut samples = out.family(family, MetricType::Counter, help);
            for (name, stats) in &limits {
                let (domain, keys) = split(name, stats.domain_len);
                let names: Vec<String> = (1..=keys.len()).map(|n| format!("key{n}")).collect();
                let keys = names.iter().map(String::as_str).zip(keys);
                let labels: Vec<_> = [("domain", domain)].into_iter().chain(keys).collect();
                samples.sample("", &labels, counter(stats).load(Ordering::Relaxed));
            }
        }
        let name = "ratelimit_service_should_rate_limit_error";
        let mut errors = out.family(name, MetricType::Counter, "Requests that failed.");
        for (kind, count) in [("service_error", &self.invalid), ("redis_error", &self.unavailable)]
        {
            errors.sample("", &[("err_type", kind)], count.load(Ordering::Relaxed));
        }
        out.finish()
    }
}

/// Splits a name into domain and keys at its dots. The domain may contain dots too.
fn split(name: &str, domain_len: usize) -> (&str, Vec<&str>) {
    match name.split_at_checked(domain_len) {
        Some((domain, rest)) if rest.starts_with('.') => (domain, rest[1..].split('.').collect()),
        _ => (name, Vec::new()),
    }
}

fn add(counter: &AtomicU64, hits: u64) {
    counter.fetch_add(hits, Ordering::Relaxed);
}

impl LimitStats {
    /// Counts hits as over, near or within the limit. If a charge of several hits exceeds the
    /// limit, all of them count as over.
    fn count(&self, hits: Hits, report: &DescriptorReport) {
        let count = match hits {
            Hits::Reserve(cost) if report.is_over() => cost.get(),
            hits => hits.count(),
        };
        add(&self.total_hits, count);
        if report.is_over() {
            add(&self.over_limit, count);
            return;
        }
        add(&self.within_limit, count);
        if let Some((_, verdict)) = report.most_restrictive() {
            let used = verdict.limit.saturating_sub(verdict.remaining);
            // 80 % rounded down, as in envoyproxy/ratelimit.
            let near = used.saturating_sub(verdict.limit / 5 * 4 + verdict.limit % 5 * 4 / 5);
            add(&self.near_limit, near.min(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;
    use tidegate::{Micros, Source, Verdict, Wait};

    use super::*;
    use crate::check::Operation;

    fn report(allowed: bool, limit: u64, remaining: u64) -> DescriptorReport {
        let verdict = Verdict {
            allowed,
            retry_after: Wait::NONE,
            delay: Micros::ZERO,
            limit,
            remaining,
            reset_after: Micros::ZERO,
        };
        DescriptorReport::new(Operation::Check, Source::Memory, smallvec![verdict])
    }

    #[test]
    fn hits_above_80_percent_of_the_limit_count_as_near() {
        let charge = |hits: u32| Hits::Charge(hits.into());
        for (hits, report, [over, near, within]) in [
            (Hits::One, report(true, 10, 2), [0, 0, 1]),
            (Hits::One, report(true, 10, 1), [0, 1, 1]),
            (Hits::One, report(true, 10, 0), [0, 1, 1]),
            (Hits::One, report(false, 10, 0), [1, 0, 0]),
            (charge(5), report(true, 10, 0), [0, 2, 5]),
            (charge(5), report(true, 10, 4), [0, 0, 5]),
            (charge(5), report(false, 10, 0), [5, 0, 0]),
            (Hits::One, report(true, 7, 2), [0, 0, 1]),
            (Hits::One, report(true, 7, 1), [0, 1, 1]),
            (Hits::Probe, report(true, 10, 0), [0, 0, 0]),
        ] {
            let stats = LimitStats::default();
            stats.count(hits, &report);
            let counted = [&stats.over_limit, &stats.near_limit, &stats.within_limit];
            let counted = counted.map(|counter| counter.load(Ordering::Relaxed));
            assert_eq!(counted, [over, near, within], "{hits:?} {report:?}");
            assert_eq!(stats.total_hits.load(Ordering::Relaxed), hits.count());
        }
    }

    #[test]
    fn names_have_labels_for_domain_and_keys_and_are_bounded() {
        let stats = EnvoyStats::default();
        let count = |name: &str| stats.of(name, "a.b").count(Hits::One, &report(true, 1, 0));
        count("a.b.k_v.\"x\"");
        (0..2 * EnvoyStats::MAX_NAMES).for_each(|n| count(&format!("a.b.k_{n}")));
        let text = stats.render();
        let line =
            r#"ratelimit_service_rate_limit_total_hits{domain="a.b",key1="k_v",key2="\"x\""} 1"#;
        assert!(text.contains(line), "{}", &text[..500]);
        let other = r#"ratelimit_service_rate_limit_total_hits{domain="oth",key1="#;
        assert!(!text.contains(other));
        let beyond = text.lines().find(|line| line.contains(r#"{domain="other"}"#)).unwrap();
        assert!(beyond.ends_with(&format!(" {}", EnvoyStats::MAX_NAMES + 1)), "{beyond}");
        assert!(stats.limits.read().unwrap().len() <= EnvoyStats::MAX_NAMES + 1);
    }
}
