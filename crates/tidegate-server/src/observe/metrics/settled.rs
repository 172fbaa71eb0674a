//! How much of what was reserved is charged, by rule and model.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::exposition::MetricFamily;
use super::histogram::render_buckets;

/// The upper bounds of the buckets in thousandths, and as text.
const BOUNDS: [(u64, &str); 14] = [
    (0, "0"),
    (100, "0.1"),
    (250, "0.25"),
    (500, "0.5"),
    (750, "0.75"),
    (900, "0.9"),
    (1_000, "1"),
    (1_100, "1.1"),
    (1_250, "1.25"),
    (1_500, "1.5"),
    (2_000, "2"),
    (3_000, "3"),
    (5_000, "5"),
    (10_000, "10"),
];

/// Higher ratios count as this one in the sum, so that it does not overflow.
const MAX_THOUSANDTHS: u64 = 1_000_000;

/// Histograms of charged / reserved. A settlement takes a lock: it is rarer than a check.
#[derive(Debug)]
pub(super) struct SettledRatios {
    pairs: Mutex<BTreeMap<RuleModel, RatioHistogram>>,
    /// The label of what has no histogram of its own.
    other: &'static str,
}

/// Names of a rule and a model.
type RuleModel = (Box<str>, Box<str>);

#[derive(Default, Debug)]
struct RatioHistogram {
    buckets: [u64; BOUNDS.len() + 1],
    thousandths: u64,
}

impl SettledRatios {
    /// Pairs of rule and model that have a histogram. All others share that of `other`.
    const MAX_PAIRS: usize = 2_000;

    /// With the histogram of `other`, so that the family exists from the start.
    pub(super) fn new(other: &'static str) -> Self {
        let pairs = BTreeMap::from([((other.into(), other.into()), RatioHistogram::default())]);
        Self { pairs: Mutex::new(pairs), other }
    }

    pub(super) fn observe(&self, rule: &str, model: &str, charged: u64, reserved: u64) {
        // Rounded up: a ratio slightly above a bound is not in its bucket.
        let ratio = (u128::from(charged) * 1_000).div_ceil(reserved.max(1).into());
        let ratio = u64::try_from(ratio).unwrap_or(MAX_THOUSANDTHS).min(MAX_THOUSANDTHS);
        let mut pairs = self.pairs();
        let mut pair: RuleModel = (rule.into(), model.into());
        if pairs.len() >= Self::MAX_PAIRS && !pairs.contains_key(&pair) {
            pair = (self.other.into(), self.other.into());
        }
        let histogram = pairs.entry(pair).or_default();
        histogram.buckets[BOUNDS.partition_point(|(bound, _)| *bound < ratio)] += 1;
        histogram.thousandths += ratio;
    }

    /// Ends the histograms of all other rules.
    pub(super) fn retain(&self, is_active: impl Fn(&str) -> bool) {
        self.pairs().retain(|(rule, _), _| is_active(rule));
    }

    pub(super) fn render(&self, family: &mut MetricFamily<'_>) {
        for ((rule, model), histogram) in &*self.pairs() {
            let labels = [("rule", &**rule), ("model", &**model)];
            let sum = histogram.thousandths;
            let sum = format!("{}.{:03}", sum / 1_000, sum % 1_000);
            let bounds = BOUNDS.iter().map(|(_, text)| *text);
            render_buckets(family, &labels, bounds, &histogram.buckets, &sum);
        }
    }

    fn pairs(&self) -> MutexGuard<'_, BTreeMap<RuleModel, RatioHistogram>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
