//! The counters of one rule.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{Outcome, Rule, RuleLimit, Source};

/// Counters of the decisions of one rule.
///
/// Aligned to a cache line, so that two rules do not slow each other down.
#[derive(Default, Debug)]
#[repr(align(64))]
pub struct RuleMetrics {
    decisions: [[AtomicU64; OUTCOMES.len()]; Source::ALL.len()],
    errors: AtomicU64,
    shadow_denied: AtomicU64,
    uncharged: AtomicU64,
    denials: LimitDenials,
}

/// Denials by the limit that denied. A rule that has denied nothing takes no memory for them.
#[derive(Default, Debug)]
pub(crate) struct LimitDenials {
    /// By position among the enforced limits.
    counts: OnceLock<Box<[AtomicU64; Rule::MAX_LIMITS]>>,
    /// The rule had more than one enforced limit at the last denial.
    has_several: AtomicBool,
}

impl LimitDenials {
    /// Counts a denial by one of the limits of `rule`.
    pub(crate) fn count(&self, rule: &Rule, limit: &RuleLimit) {
        let mut enforced = rule.limits().iter().filter(|limit| !limit.is_shadow());
        self.has_several.store(enforced.clone().nth(1).is_some(), Ordering::Relaxed);
        let position = enforced.position(|one| one.policy() == limit.policy());
        let counts = self.counts.get_or_init(Box::default);
        if let Some(count) = position.and_then(|position| counts.get(position)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls `take` with the name of each limit that has denied, and the number of denials. The
    /// names are those in headers.
    pub(crate) fn each(&self, rule: &str, mut take: impl FnMut(&str, u64)) {
        let has_several = self.has_several.load(Ordering::Relaxed);
        for (i, count) in self.counts.get().iter().flat_map(|counts| counts.iter()).enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let name = match has_several || i > 0 {
                    true => Cow::Owned(format!("{rule}.{}", i + 1)),
                    false => Cow::Borrowed(rule),
                };
                take(&name, count);
            }
        }
    }
}

/// Calls by their outcome. Calls in `would_deny` and `fallback` are also in `allowed` or `denied`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
#[schemars(rename = "OutcomeCounts_{T}")]
pub struct OutcomeCounts<T> {
    /// Allowed.
    pub allowed: T,
    /// Denied, including costs above the limit.
    pub denied: T,
    /// Failed.
    pub errors: T,
    /// Allowed, but a shadow limit would have denied.
    pub would_deny: T,
    /// Decided locally because the store was unavailable.
    pub fallback: T,
}

impl<T> OutcomeCounts<T> {
    /// How many counts there are.
    pub(crate) const KINDS: usize = 5;

    /// In the order of the fields.
    pub(crate) fn from_array(counts: [T; 5]) -> Self {
        let [allowed, denied, errors, would_deny, fallback] = counts;
        Self { allowed, denied, errors, would_deny, fallback }
    }

    /// In the order of the fields.
    pub(crate) fn as_array(&self) -> [&T; 5] {
        let Self { allowed, denied, errors, would_deny, fallback } = self;
        [allowed, denied, errors, would_deny, fallback]
    }
}

const OUTCOMES: [&str; 3] = ["allow", "deny", "never"];

impl RuleMetrics {
    pub fn count(&self, outcome: Outcome, source: Source) {
        let outcome = match outcome {
            Outcome::Allow => 0,
            Outcome::RetryAfter(_) => 1,
            Outcome::Never => 2,
        };
        self.decisions[source as usize][outcome].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that got no decision.
    pub fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an allowed call that a shadow limit would have denied.
    pub fn count_shadow_denied(&self) {
        self.shadow_denied.fetch_add(1, Ordering::Relaxed);
    }

    /// Allowed calls that a shadow limit would have denied.
    pub fn shadow_denied(&self) -> u64 {
        self.shadow_denied.load(Ordering::Relaxed)
    }

    /// Denials by limit.
    pub(crate) fn denials(&self) -> &LimitDenials {
        &self.denials
    }

    /// Counts permits that settling a reservation could not charge.
    pub fn count_uncharged(&self, permits: u64) {
        self.uncharged.fetch_add(permits, Ordering::Relaxed);
    }

    /// Permits that settling a reservation could not charge.
    pub fn uncharged(&self) -> u64 {
        self.uncharged.load(Ordering::Relaxed)
    }

    /// Decisions made locally because the store was unavailable.
    pub fn fallback_decisions(&self) -> u64 {
        self.decisions[Source::Fallback as usize]
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// The sums over all sources.
    pub(crate) fn totals(&self) -> OutcomeCounts<u64> {
        let mut sums = [0; OUTCOMES.len()];
        for counts in &self.decisions {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        let [allowed, denied, never] = sums;
        OutcomeCounts {
            allowed,
            denied: denied + never,
            errors: self.errors.load(Ordering::Relaxed),
            would_deny: self.shadow_denied(),
            fallback: self.fallback_decisions(),
        }
    }

    /// Calls `take` with each outcome, source and count. Sources without a decision are left out,
    /// since a rule has few of them; errors are always included.
    pub(crate) fn each_count(&self, mut take: impl FnMut(&'static str, &'static str, u64)) {
        for (source, counts) in Source::ALL.into_iter().zip(&self.decisions) {
            let counts = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            if counts.iter().all(|count| *count == 0) {
                continue;
            }
            for (outcome, count) in OUTCOMES.into_iter().zip(counts) {
                take(outcome, source.name(), count);
            }
        }
        take("error", "none", self.errors.load(Ordering::Relaxed));
    }
}
