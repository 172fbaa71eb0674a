//! The counters of one rule.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Outcome, Source};

/// What became of the calls that a rule had a say in.
///
/// Aligned, so that two rules do not slow each other down.
#[derive(Default, Debug)]
#[repr(align(64))]
pub struct RuleMetrics {
    decisions: [[AtomicU64; OUTCOMES.len()]; SOURCES.len()],
    errors: AtomicU64,
    shadow_denied: AtomicU64,
}

/// What a rule has come to since the server began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RuleTotals {
    pub(crate) allowed: u64,
    /// Those that can never pass, too.
    pub(crate) denied: u64,
    pub(crate) errors: u64,
    pub(crate) would_deny: u64,
    pub(crate) fallback: u64,
}

const OUTCOMES: [&str; 3] = ["allow", "deny", "never"];

/// The last is for a source that is not known here yet.
const SOURCES: [&str; 7] = [
    Source::Memory.name(),
    Source::Redis.name(),
    Source::Lease.name(),
    Source::DenyCache.name(),
    Source::Fallback.name(),
    Source::Policy.name(),
    "other",
];

const FALLBACK: usize = 4;

impl RuleMetrics {
    /// Counts a decision. One from [`Source::Fallback`] counts as a fallback decision, too.
    pub fn count(&self, outcome: Outcome, source: Source) {
        let outcome = match outcome {
            Outcome::Allow => 0,
            Outcome::RetryAfter(_) => 1,
            Outcome::Never => 2,
        };
        let source = match source {
            Source::Memory => 0,
            Source::Redis => 1,
            Source::Lease => 2,
            Source::DenyCache => 3,
            Source::Fallback => FALLBACK,
            Source::Policy => 5,
            _ => 6,
        };
        self.decisions[source][outcome].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that got no decision.
    pub fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that a shadow limit would have denied.
    pub fn count_shadow_denied(&self) {
        self.shadow_denied.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls that a shadow limit would have denied.
    pub fn shadow_denied(&self) -> u64 {
        self.shadow_denied.load(Ordering::Relaxed)
    }

    /// Decisions by the local limiter, because the store did not answer.
    pub fn fallback_decisions(&self) -> u64 {
        self.decisions[FALLBACK].iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Everything together, whatever the source was.
    pub(crate) fn totals(&self) -> RuleTotals {
        let mut sums = [0; OUTCOMES.len()];
        for counts in &self.decisions {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        let [allowed, denied, never] = sums;
        RuleTotals {
            allowed,
            denied: denied + never,
            errors: self.errors.load(Ordering::Relaxed),
            would_deny: self.shadow_denied(),
            fallback: self.fallback_decisions(),
        }
    }

    /// Hands over outcome, source and count. A source that never decided is left out, since a rule
    /// meets few of them; errors are always there.
    pub(super) fn each_count(&self, mut take: impl FnMut(&'static str, &'static str, u64)) {
        for (source, counts) in SOURCES.into_iter().zip(&self.decisions) {
            let counts = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            if counts.iter().all(|count| *count == 0) {
                continue;
            }
            for (outcome, count) in OUTCOMES.into_iter().zip(counts) {
                take(outcome, source, count);
            }
        }
        take("error", "none", self.errors.load(Ordering::Relaxed));
    }
}
