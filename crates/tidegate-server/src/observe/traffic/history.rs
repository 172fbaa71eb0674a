//! Calls of each rule in each of the last 900 seconds.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use tidegate::Micros;

use super::ring::{Ring, shares};
use super::snapshot::CallTotals;
use crate::observe::metrics::{BucketCounts, RequestCounts};

/// The counters of a rule: allowed, denied, errors, would-have-denied, fallback.
pub(crate) const KINDS: usize = CallTotals::KINDS;

/// The last seconds of every rule with recent calls.
///
/// At most [`History::MAX_RULES`] rules have a ring each; the others share one. A rule without a
/// ring replaces the least busy rule once it has more than twice as many recent calls.
#[derive(Debug)]
pub(crate) struct History {
    began: Micros,
    /// When the last sample was taken.
    at: Micros,
    rules: HashMap<Arc<str>, RuleHistory>,
    total: Ring<KINDS>,
    totals: CallTotals,
    other: Ring<KINDS>,
    durations: BucketCounts,
    latency: Ring<{ BucketCounts::BUCKETS }>,
    requests: Ring<{ RequestCounts::<u64>::KINDS }>,
    request_totals: RequestCounts<u64>,
}

/// One rule as of the last sample.
#[derive(Debug, Default)]
struct RuleHistory {
    totals: CallTotals,
    /// Its recent calls, with a half-life of [`History::HALF_LIFE`].
    score: u64,
    /// The second of the last sample with calls.
    last_call: u64,
    /// The last sample that had the rule.
    sampled: Micros,
    ring: Option<Ring<KINDS>>,
}

/// The last seconds of one rule.
#[derive(Debug)]
pub(crate) struct HistorySlice<'a> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) totals: &'a CallTotals,
    pub(crate) ring: &'a Ring<KINDS>,
}

impl History {
    /// The maximum number of rules with their own ring.
    pub(crate) const MAX_RULES: usize = 512;
    /// After this many seconds a call counts half.
    const HALF_LIFE: u64 = 60;

    /// Starts at `now`: calls of the first sample were made since then.
    pub(crate) fn new(now: Micros) -> Self {
        Self {
            began: now,
            at: now,
            rules: HashMap::new(),
            total: Ring::new(),
            totals: CallTotals::default(),
            other: Ring::new(),
            durations: BucketCounts::default(),
            latency: Ring::new(),
            requests: Ring::new(),
            request_totals: RequestCounts::default(),
        }
    }

    /// Takes the totals at `now`. The difference to the last sample is distributed evenly over the
    /// seconds between the two.
    pub(crate) fn sample<'r>(
        &mut self,
        now: Micros,
        rules: impl IntoIterator<Item = (&'r Arc<str>, CallTotals)>,
        durations: BucketCounts,
        requests: RequestCounts<u64>,
    ) {
        let (before, now) = (self.at, now.max(self.at));
        self.advance(second(before), second(now));
        self.at = now;
        let mut called = Vec::new();
        for (name, totals) in rules {
            let known = self.rules.entry(name.clone()).or_default();
            known.sampled = now;
            let more = difference(&known.totals, &totals);
            known.totals = totals;
            let calls: u64 = more[..3].iter().sum();
            if more == [0; KINDS] {
                continue;
            }
            known.score = known.score.saturating_add(calls.max(1));
            known.last_call = second(now);
            add(&mut self.totals, &more);
            shares(&more, before, now).for_each(|(at, part)| self.total.add(at, &part));
            called.push((name.clone(), more));
        }
        // A deleted rule stays as long as its ring shows recent calls.
        self.rules.retain(|_, known| known.sampled == now || known.ring.is_some());
        self.assign_rings(&called);
        for (name, more) in called {
            let ring = self.rules.get_mut(&name).and_then(|known| known.ring.as_mut());
            let ring = ring.unwrap_or(&mut self.other);
            shares(&more, before, now).for_each(|(at, part)| ring.add(at, &part));
        }
        let mut more = durations;
        more.0.iter_mut().zip(self.durations.0).for_each(|(now, then)| *now -= then.min(*now));
        self.durations = durations;
        shares(&more.0, before, now).for_each(|(at, part)| self.latency.add(at, &part));
        let (earlier, later) = (self.request_totals.as_array(), requests.as_array());
        let more = std::array::from_fn(|kind| later[kind].saturating_sub(*earlier[kind]));
        self.request_totals = requests;
        shares(&more, before, now).for_each(|(at, part)| self.requests.add(at, &part));
    }

    /// The current second; the series end before it.
    pub(crate) fn end(&self) -> u64 {
        second(self.at)
    }

    /// When the series end.
    pub(crate) fn end_at(&self) -> Micros {
        Micros::from_secs(self.end())
    }

    /// The number of full seconds since the start, at least one.
    pub(crate) fn seconds(&self) -> u64 {
        (self.end() - second(self.began)).max(1)
    }

    /// The totals and the seconds of all rules together.
    pub(crate) fn total(&self) -> (&CallTotals, &Ring<KINDS>) {
        (&self.totals, &self.total)
    }

    /// The rules with their own ring.
    pub(crate) fn rules(&self) -> impl Iterator<Item = HistorySlice<'_>> {
        self.rules.iter().filter_map(|(name, rule)| {
            Some(HistorySlice { name, totals: &rule.totals, ring: rule.ring.as_ref()? })
        })
    }

    /// The sum of all other rules.
    pub(crate) fn other(&self) -> &Ring<KINDS> {
        &self.other
    }

    /// The totals and the seconds of all requests.
    pub(crate) fn requests(&self) -> (RequestCounts<u64>, &Ring<{ RequestCounts::<u64>::KINDS }>) {
        (self.request_totals, &self.requests)
    }

    pub(crate) fn latency(&self) -> &Ring<{ BucketCounts::BUCKETS }> {
        &self.latency
    }

    /// Moves the rings on to the second `now`, and drops the rings of rules without recent calls.
    fn advance(&mut self, before: u64, now: u64) {
        let halvings = now / Self::HALF_LIFE - before / Self::HALF_LIFE;
        for ring in [&mut self.total, &mut self.other] {
            ring.advance(before, now);
        }
        self.latency.advance(before, now);
        self.requests.advance(before, now);
        for known in self.rules.values_mut() {
            known.score = known.score.checked_shr(halvings as u32).unwrap_or(0);
            if known.last_call + Ring::<KINDS>::LEN as u64 <= now {
                known.ring = None;
            }
            if let Some(ring) = &mut known.ring {
                ring.advance(before, now);
            }
        }
    }

    /// Gives a ring to rules that have none: a free one, or that of a much less busy rule.
    fn assign_rings(&mut self, called: &[(Arc<str>, [u64; KINDS])]) {
        let score = |name: &Arc<str>| self.rules.get(name).map_or(0, |known| known.score);
        let without = |name: &Arc<str>| self.rules.get(name).is_some_and(|k| k.ring.is_none());
        let new = called.iter().map(|(name, _)| name).filter(|name| without(name));
        let mut new: Vec<_> = new.map(|name| (Reverse(score(name)), name.clone())).collect();
        if new.is_empty() {
            return;
        }
        new.sort();
        let with = self.rules.iter().filter(|(_, known)| known.ring.is_some());
        let mut least: Vec<_> = with.map(|(name, known)| (known.score, name.clone())).collect();
        least.sort();
        let mut free = Self::MAX_RULES - least.len();
        let mut least = least.into_iter();
        for (Reverse(score), name) in new {
            if free > 0 {
                free -= 1;
            } else {
                let Some((_, name)) = least.next().filter(|(least, _)| score / 2 > *least) else {
                    return;
                };
                let ring = self.rules.get_mut(&name).and_then(|known| known.ring.take());
                ring.iter().for_each(|ring| self.other.merge(ring));
            }
            if let Some(known) = self.rules.get_mut(&name) {
                known.ring = Some(Ring::new());
            }
        }
    }
}

fn second(at: Micros) -> u64 {
    at.get() / 1_000_000
}

fn difference(before: &CallTotals, now: &CallTotals) -> [u64; KINDS] {
    let (before, now) = (before.as_array(), now.as_array());
    // A rule that was deleted and set again counts from zero.
    let is_new = before.iter().zip(now).any(|(before, now)| now < *before);
    std::array::from_fn(|kind| now[kind] - if is_new { 0 } else { *before[kind] })
}

fn add(totals: &mut CallTotals, more: &[u64; KINDS]) {
    let before = totals.as_array();
    *totals = CallTotals::from_array(std::array::from_fn(|kind| before[kind] + more[kind]));
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Micros = Micros::from_secs(1_000);

    fn allowed(allowed: u64) -> CallTotals {
        CallTotals { allowed, ..CallTotals::default() }
    }

    /// Samples these totals of allowed calls `after` microseconds from the start.
    fn sample(history: &mut History, after: u64, rules: &[(&str, u64)]) {
        let names: Vec<Arc<str>> = rules.iter().map(|(name, _)| Arc::from(*name)).collect();
        let totals = names.iter().zip(rules).map(|(name, (_, calls))| (name, allowed(*calls)));
        history.sample(
            START.saturating_add(Micros::new(after)),
            totals,
            BucketCounts::default(),
            RequestCounts::default(),
        );
    }

    /// The allowed calls of a rule, or of all rules, in the last seconds.
    fn series(history: &History, rule: Option<&str>, seconds: usize) -> Vec<u32> {
        let ring = match rule {
            None => history.total().1,
            Some("other") => history.other(),
            Some(name) => history.rules().find(|past| &**past.name == name).unwrap().ring,
        };
        ring.last(history.end(), seconds).map(|counts| counts[0]).collect()
    }

    #[test]
    fn each_second_has_the_calls_that_were_made_in_it() {
        let mut history = History::new(START);
        for (at, calls) in [(1, 5), (2, 5), (3, 12), (4, 13)] {
            sample(&mut history, at * 1_000_000, &[("a", calls), ("b", 100 * calls)]);
        }
        assert_eq!(series(&history, Some("a"), 6), [0, 0, 5, 0, 7, 1]);
        assert_eq!(series(&history, Some("b"), 2), [700, 100]);
        assert_eq!(series(&history, None, 4), [505, 0, 707, 101]);
        assert_eq!(history.total().0.allowed, 13 + 1_300);
        assert_eq!(history.seconds(), 4);
    }

    #[test]
    fn a_late_sample_belongs_to_the_seconds_it_spans_and_nothing_is_lost() {
        let mut history = History::new(START);
        sample(&mut history, 1_000_000, &[("a", 10)]);
        // Half a second late, with the calls of three and a half seconds.
        sample(&mut history, 4_500_000, &[("a", 80)]);
        assert_eq!(series(&history, Some("a"), 4), [10, 20, 20, 20]);
        sample(&mut history, 5_000_000, &[("a", 90)]);
        assert_eq!(series(&history, Some("a"), 5), [10, 20, 20, 20, 20]);
        // A sample that is slightly late does not move calls into another second.
        sample(&mut history, 6_003_000, &[("a", 91)]);
        sample(&mut history, 7_000_000, &[("a", 91)]);
        assert_eq!(series(&history, Some("a"), 3), [20, 1, 0]);
        // Parts that do not divide evenly still add up.
        sample(&mut history, 10_700_000, &[("a", 98)]);
        sample(&mut history, 11_000_000, &[("a", 98)]);
        assert_eq!(series(&history, Some("a"), 4).iter().sum::<u32>(), 7);
    }

    #[test]
    fn a_long_gap_clears_the_seconds_before_it() {
        let mut history = History::new(START);
        sample(&mut history, 1_000_000, &[("a", 10)]);
        sample(&mut history, 5_001_000_000, &[("a", 10)]);
        assert_eq!(series(&history, None, 900), [0; 900]);
        assert_eq!(history.rules().count(), 0, "the rule has had no calls for long");
        // A hundred a second for longer than the ring.
        sample(&mut history, 7_001_000_000, &[("a", 200_010)]);
        assert_eq!(series(&history, Some("a"), 900), [100; 900]);
    }

    #[test]
    fn a_deleted_rule_stays_while_it_has_recent_calls_and_counts_from_zero_if_it_is_set_again() {
        let mut history = History::new(START);
        sample(&mut history, 1_000_000, &[("a", 7), ("idle", 0)]);
        assert_eq!(history.rules.len(), 2);
        sample(&mut history, 2_000_000, &[]);
        assert_eq!(history.rules.len(), 1, "a rule without calls is forgotten at once");
        assert_eq!(series(&history, Some("a"), 2), [7, 0]);
        sample(&mut history, 3_000_000, &[("a", 2)]);
        assert_eq!(series(&history, Some("a"), 3), [7, 0, 2]);
        for at in 4..=905 {
            sample(&mut history, at * 1_000_000, &[]);
        }
        assert_eq!(history.rules.len(), 0);
    }

    #[test]
    fn a_rule_without_calls_for_15_minutes_is_dropped() {
        let mut history = History::new(START);
        sample(&mut history, 1_000_000, &[("a", 1)]);
        for at in 2..=900 {
            sample(&mut history, at * 1_000_000, &[("a", 1)]);
        }
        assert_eq!(series(&history, Some("a"), 900)[0], 1);
        for at in 901..=903 {
            sample(&mut history, at * 1_000_000, &[("a", 1)]);
        }
        assert_eq!(history.rules().count(), 0);
        assert_eq!(series(&history, None, 900), [0; 900]);
    }

    #[test]
    fn only_the_busiest_rules_have_a_ring_and_no_call_is_lost() {
        let mut history = History::new(START);
        let names: Vec<String> = (0..600).map(|i| format!("r{i:03}")).collect();
        let calls = |factor: u64, last: u64| -> Vec<(&str, u64)> {
            let many = |i: usize| if i == 599 { last } else { factor * (600 - i as u64) };
            names.iter().enumerate().map(|(i, name)| (&**name, many(i))).collect()
        };
        sample(&mut history, 1_000_000, &calls(1, 1));
        let has = |history: &History, name: &str| history.rules().any(|p| &**p.name == name);
        assert_eq!(history.rules().count(), History::MAX_RULES);
        assert!(has(&history, "r000") && has(&history, "r511") && !has(&history, "r512"));
        let sum: u64 = (2..=600).sum::<u64>() + 1;
        let sums = |history: &History| {
            let own: u64 = history
                .rules()
                .flat_map(|past| past.ring.last(history.end(), 900).map(|c| u64::from(c[0])))
                .sum();
            let of = |rule| series(history, rule, 900).iter().map(|c| u64::from(*c)).sum::<u64>();
            assert_eq!(own + of(Some("other")), of(None));
            (own, of(None))
        };
        assert_eq!(sums(&history), (sum - (2..=88).sum::<u64>() - 1, sum));
        // The last rule is now busy and replaces the least busy one.
        sample(&mut history, 2_000_000, &calls(1, 5_000));
        assert!(has(&history, "r599") && !has(&history, "r511"));
        assert_eq!(history.rules().count(), History::MAX_RULES);
        assert_eq!(series(&history, Some("r599"), 2), [0, 4_999], "from when it got its own ring");
        assert_eq!(sums(&history).1, sum + 4_999);
    }

    #[test]
    fn a_clock_that_stands_still_loses_no_calls() {
        let mut history = History::new(START);
        for calls in [1, 2, 3] {
            sample(&mut history, 500_000, &[("a", calls)]);
        }
        sample(&mut history, 0, &[("a", 4)]);
        sample(&mut history, 1_000_000, &[("a", 4)]);
        assert_eq!(series(&history, Some("a"), 1), [4]);
    }

    #[test]
    fn durations_are_kept_by_the_second() {
        let mut history = History::new(START);
        let mut durations = BucketCounts::default();
        for at in 1..=3 {
            durations.0[at as usize] += 10 * at;
            let now = START.saturating_add(Micros::from_secs(at));
            history.sample(now, [], durations, RequestCounts::default());
        }
        let of: Vec<_> = history.latency().last(history.end(), 3).copied().collect();
        assert_eq!((of[0][1], of[1][2], of[2][3]), (10, 20, 30));
        assert_eq!(of[2].iter().sum::<u32>(), 30);
    }
}
