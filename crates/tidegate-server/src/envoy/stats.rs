//! What is counted under envoyproxy/ratelimit's names, for dashboards that know no others.
//!
//! The names and labels are those that its own exporter gives: `ratelimit_service_rate_limit_total_hits` with
//! `domain`, `key1`, `key2`..

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::request::{Hits, Placed, Wish, Wishes};
use super::response::{Report, Told};
use super::service::Fault;
use crate::metrics::exposition::{Exposition, Kind};

/// Counters under envoyproxy/ratelimit's names.
#[derive(Default, Debug)]
pub struct Stats {
    limits: RwLock<BTreeMap<Box<str>, Arc<LimitStats>>>,
    invalid: AtomicU64,
    unavailable: AtomicU64,
}

/// The counters of one name.
#[derive(Default, Debug)]
struct LimitStats {
    /// Where the name of the domain ends.
    domain_len: usize,
    total_hits: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    within_limit: AtomicU64,
    shadow_mode: AtomicU64,
}

/// A family of counters: its name, what it tells, and where it is.
type Family = (&'static str, &'static str, fn(&LimitStats) -> &AtomicU64);

const FAMILIES: [Family; 5] = [
    ("ratelimit_service_rate_limit_total_hits", "Hits.", |s| &s.total_hits),
    ("ratelimit_service_rate_limit_over_limit", "Hits over the limit.", |s| &s.over_limit),
    ("ratelimit_service_rate_limit_near_limit", "Hits in the last fifth of the limit.", |s| {
        &s.near_limit
    }),
    ("ratelimit_service_rate_limit_within_limit", "Hits within the limit.", |s| &s.within_limit),
    ("ratelimit_service_rate_limit_shadow_mode", "Hits over a limit that looks on.", |s| {
        &s.shadow_mode
    }),
];

impl Stats {
    /// The most names that are counted apart. There may be one for every value that is sent, where a file says
    /// `detailed_metric: true`.
    pub const MAX_NAMES: usize = 10_000;
    /// The name that those beyond are counted under.
    const OTHER: &str = "other";

    /// Counts what became of a request.
    pub(super) fn count(&self, domain: &str, wishes: &Wishes<'_>, told: &Told<'_, '_>) {
        let of = |placed: &Placed<'_>| self.of(&placed.found.stat_name(placed.entries), domain);
        for wish in &wishes.all {
            if let Wish::Unlimited(placed) = wish {
                let (stats, hits) = (of(placed), placed.hits.count());
                add(&stats.total_hits, hits);
                add(&stats.within_limit, hits);
            }
        }
        for (limited, report) in told {
            let stats = of(limited);
            stats.count(limited.hits, report);
            if limited.leaf().is_shadow() && report.is_over() {
                add(&stats.shadow_mode, limited.hits.count());
            }
        }
    }

    /// Counts a request that got no response.
    pub(super) fn count_fault(&self, fault: &Fault) {
        match fault {
            Fault::Invalid(_) => add(&self.invalid, 1),
            Fault::Unavailable(_) => add(&self.unavailable, 1),
        }
    }

    fn of(&self, name: &str, domain: &str) -> Arc<LimitStats> {
        let known = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(stats) = known.get(name) {
            return stats.clone();
        }
        drop(known);
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let has_room = limits.len() < Self::MAX_NAMES || limits.contains_key(name);
        let name = if has_room { name } else { Self::OTHER };
        let domain_len = domain.len().min(name.len());
        let new = || Arc::new(LimitStats { domain_len, ..LimitStats::default() });
        limits.entry(name.into()).or_insert_with(new).clone()
    }

    /// All of them in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner).clone();
        for (family, help, counter) in FAMILIES {
            let mut samples = out.family(family, Kind::Counter, help);
            for (name, stats) in &limits {
                let (domain, keys) = split(name, stats.domain_len);
                let names: Vec<String> = (1..=keys.len()).map(|n| format!("key{n}")).collect();
                let keys = names.iter().map(String::as_str).zip(keys);
                let labels: Vec<_> = [("domain", domain)].into_iter().chain(keys).collect();
                samples.sample("", &labels, counter(stats).load(Ordering::Relaxed));
            }
        }
        let name = "ratelimit_service_should_rate_limit_error";
        let mut errors = out.family(name, Kind::Counter, "Requests without a response.");
        for (kind, count) in [("service_error", &self.invalid), ("redis_error", &self.unavailable)]
        {
            errors.sample("", &[("err_type", kind)], count.load(Ordering::Relaxed));
        }
        out.finish()
    }
}

/// A name at its dots, which the domain may have, too.
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
    /// The hits by where they fell. Of those that were charged beyond the limit it is not known how many
    /// were still below; all of them count as over.
    fn count(&self, hits: Hits, report: &Report) {
        let count = hits.count();
        add(&self.total_hits, count);
        if report.is_over() {
            add(&self.over_limit, count);
            return;
        }
        add(&self.within_limit, count);
        if let Some((_, verdict)) = report.speaker() {
            let used = verdict.limit.saturating_sub(verdict.remaining);
            // The last fifth begins where theirs does: at the whole number below.
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
    use crate::service::Verb;

    fn report(allowed: bool, limit: u64, remaining: u64) -> Report {
        let verdict = Verdict {
            allowed,
            retry_after: Wait::NONE,
            delay: Micros::ZERO,
            limit,
            remaining,
            reset_after: Micros::ZERO,
        };
        Report::new(Verb::Check, Source::Memory, smallvec![verdict])
    }

    #[test]
    fn hits_count_as_near_from_four_fifths_of_the_limit_on() {
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
    fn names_are_told_by_domain_and_keys_and_are_bounded() {
        let stats = Stats::default();
        let count = |name: &str| stats.of(name, "a.b").count(Hits::One, &report(true, 1, 0));
        count("a.b.k_v.\"x\"");
        (0..2 * Stats::MAX_NAMES).for_each(|n| count(&format!("a.b.k_{n}")));
        let text = stats.render();
        let line =
            r#"ratelimit_service_rate_limit_total_hits{domain="a.b",key1="k_v",key2="\"x\""} 1"#;
        assert!(text.contains(line), "{}", &text[..500]);
        let other = r#"ratelimit_service_rate_limit_total_hits{domain="oth",key1="#;
        assert!(!text.contains(other));
        let beyond = text.lines().find(|line| line.contains(r#"{domain="other"}"#)).unwrap();
        assert!(beyond.ends_with(&format!(" {}", Stats::MAX_NAMES + 1)), "{beyond}");
        assert!(stats.limits.read().unwrap().len() <= Stats::MAX_NAMES + 1);
    }
}
