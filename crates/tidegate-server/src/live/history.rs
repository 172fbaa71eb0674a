//! How many calls of each rule there were in each of the last seconds.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use tidegate::Micros;

use super::ring::{Ring, shares};
use crate::metrics::{Durations, RuleTotals};

/// What is counted of a rule: allowed, denied, errors, would-have-denied, fallback.
pub(super) const KINDS: usize = 5;

/// The last seconds of every rule that was asked lately.
///
/// Of at most [`History::MAX_RULES`] each has its own; the others are summed up. Which those are is decided by how many
/// calls they have had lately: one that is left out takes the place of another once it has had twice as many.
#[derive(Debug)]
pub(super) struct History {
    /// When the first sample could have been taken, and when the last one was.
    began: Micros,
    at: Micros,
    rules: HashMap<Arc<str>, Seen>,
    total: Ring<KINDS>,
    totals: RuleTotals,
    other: Ring<KINDS>,
    durations: Durations,
    latency: Ring<{ Durations::BUCKETS }>,
}

/// One rule as it was seen last.
#[derive(Debug, Default)]
struct Seen {
    totals: RuleTotals,
    /// Its calls; those before count half after a minute.
    score: u64,
    last_call: u64,
    ring: Option<Ring<KINDS>>,
}

/// One rule's last seconds, or those of several together.
#[derive(Debug)]
pub(super) struct Past<'a> {
    pub(super) name: &'a Arc<str>,
    pub(super) totals: &'a RuleTotals,
    pub(super) ring: &'a Ring<KINDS>,
}

impl History {
    /// The most rules that have their own.
    pub(super) const MAX_RULES: usize = 512;
    /// After so many seconds a call counts half.
    const HALF_LIFE: u64 = 60;

    /// Nothing yet. Whatever the first sample finds has happened since `now`.
    pub(super) fn new(now: Micros) -> Self {
        Self {
            began: now,
            at: now,
            rules: HashMap::new(),
            total: Ring::new(),
            totals: RuleTotals::default(),
            other: Ring::new(),
            durations: Durations::default(),
            latency: Ring::new(),
        }
    }

    /// What has been counted up to `now`. The difference to the sample before belongs to the seconds between the two,
    /// evenly.
    pub(super) fn sample<'r>(
        &mut self,
        now: Micros,
        rules: impl IntoIterator<Item = (&'r Arc<str>, RuleTotals)>,
        durations: Durations,
    ) {
        let (before, now) = (self.at, now.max(self.at));
        self.forget(second(before), second(now));
        self.at = now;
        let mut called = Vec::new();
        for (name, totals) in rules {
            let known = self.rules.entry(name.clone()).or_default();
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
        self.make_room(&called);
        for (name, more) in called {
            let ring = self.rules.get_mut(&name).and_then(|known| known.ring.as_mut());
            let ring = ring.unwrap_or(&mut self.other);
            shares(&more, before, now).for_each(|(at, part)| ring.add(at, &part));
        }
        let mut more = durations;
        more.0.iter_mut().zip(self.durations.0).for_each(|(now, then)| *now -= then.min(*now));
        self.durations = durations;
        shares(&more.0, before, now).for_each(|(at, part)| self.latency.add(at, &part));
    }

    /// The second that is not over yet: the series end before it.
    pub(super) fn end(&self) -> u64 {
        second(self.at)
    }

    /// When the series end.
    pub(super) fn end_at(&self) -> Micros {
        Micros::from_secs(self.end())
    }

    /// How many seconds there have been, at least one.
    pub(super) fn seconds(&self) -> u64 {
        (self.end() - second(self.began)).max(1)
    }

    /// Everything together.
    pub(super) fn total(&self) -> (&RuleTotals, &Ring<KINDS>) {
        (&self.totals, &self.total)
    }

    /// The rules that have their own.
    pub(super) fn rules(&self) -> impl Iterator<Item = Past<'_>> {
        self.rules.iter().filter_map(|(name, seen)| {
            Some(Past { name, totals: &seen.totals, ring: seen.ring.as_ref()? })
        })
    }

    /// What is summed up of the others.
    pub(super) fn other(&self) -> &Ring<KINDS> {
        &self.other
    }

    /// How long checks took.
    pub(super) fn latency(&self) -> &Ring<{ Durations::BUCKETS }> {
        &self.latency
    }

    /// Time goes on: the oldest seconds make room for new ones, and so do rules that nobody asks any more.
    fn forget(&mut self, before: u64, now: u64) {
        let halvings = now / Self::HALF_LIFE - before / Self::HALF_LIFE;
        for ring in [&mut self.total, &mut self.other] {
            ring.advance(before, now);
        }
        self.latency.advance(before, now);
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

    /// Gives those rules their own seconds that have none and deserve them.
    fn make_room(&mut self, called: &[(Arc<str>, [u64; KINDS])]) {
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
        let mut room = Self::MAX_RULES - least.len();
        let mut least = least.into_iter();
        for (Reverse(score), name) in new {
            if room > 0 {
                room -= 1;
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

fn difference(before: &RuleTotals, now: &RuleTotals) -> [u64; KINDS] {
    let more = |field: fn(&RuleTotals) -> u64| field(now).saturating_sub(field(before));
    [
        more(|t| t.allowed),
        more(|t| t.denied),
        more(|t| t.errors),
        more(|t| t.would_deny),
        more(|t| t.fallback),
    ]
}

fn add(totals: &mut RuleTotals, more: &[u64; KINDS]) {
    let [allowed, denied, errors, would_deny, fallback] = more;
    totals.allowed += allowed;
    totals.denied += denied;
    totals.errors += errors;
    totals.would_deny += would_deny;
    totals.fallback += fallback;
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Micros = Micros::from_secs(1_000);

    fn allowed(allowed: u64) -> RuleTotals {
        RuleTotals { allowed, ..RuleTotals::default() }
    }

    /// Samples these totals of allowed calls, so many microseconds after the start.
    fn sample(history: &mut History, after: u64, rules: &[(&str, u64)]) {
        let names: Vec<Arc<str>> = rules.iter().map(|(name, _)| Arc::from(*name)).collect();
        let totals = names.iter().zip(rules).map(|(name, (_, calls))| (name, allowed(*calls)));
        history.sample(START.saturating_add(Micros::new(after)), totals, Durations::default());
    }

    /// The allowed calls of the last seconds of a rule, or of all.
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
        // Half a second late, three and a half seconds' worth of calls.
        sample(&mut history, 4_500_000, &[("a", 80)]);
        assert_eq!(series(&history, Some("a"), 4), [10, 20, 20, 20]);
        sample(&mut history, 5_000_000, &[("a", 90)]);
        assert_eq!(series(&history, Some("a"), 5), [10, 20, 20, 20, 20]);
        // A little late is not in the wrong second.
        sample(&mut history, 6_003_000, &[("a", 91)]);
        sample(&mut history, 7_000_000, &[("a", 91)]);
        assert_eq!(series(&history, Some("a"), 3), [20, 1, 0]);
        // Odd parts: all of them are somewhere.
        sample(&mut history, 10_700_000, &[("a", 98)]);
        sample(&mut history, 11_000_000, &[("a", 98)]);
        assert_eq!(series(&history, Some("a"), 4).iter().sum::<u32>(), 7);
    }

    #[test]
    fn a_long_gap_leaves_what_was_before_it_behind() {
        let mut history = History::new(START);
        sample(&mut history, 1_000_000, &[("a", 10)]);
        sample(&mut history, 5_001_000_000, &[("a", 10)]);
        assert_eq!(series(&history, None, 900), [0; 900]);
        assert_eq!(history.rules().count(), 0, "nobody has asked it for long");
        // A hundred a second for longer than is remembered.
        sample(&mut history, 7_001_000_000, &[("a", 200_010)]);
        assert_eq!(series(&history, Some("a"), 900), [100; 900]);
    }

    #[test]
    fn a_rule_goes_when_nobody_has_asked_it_for_a_quarter_of_an_hour() {
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
    fn only_the_busiest_rules_have_their_own_and_no_call_is_lost() {
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
        // The last one is asked a lot now, and takes the place of the least busy.
        sample(&mut history, 2_000_000, &calls(1, 5_000));
        assert!(has(&history, "r599") && !has(&history, "r511"));
        assert_eq!(history.rules().count(), History::MAX_RULES);
        assert_eq!(series(&history, Some("r599"), 2), [0, 4_999], "from when it had its own");
        assert_eq!(sums(&history).1, sum + 4_999);
    }

    #[test]
    fn a_clock_that_stands_still_loses_nothing() {
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
        let mut durations = Durations::default();
        for at in 1..=3 {
            durations.0[at as usize] += 10 * at;
            let now = START.saturating_add(Micros::from_secs(at));
            history.sample(now, [], durations);
        }
        let of: Vec<_> = history.latency().last(history.end(), 3).copied().collect();
        assert_eq!((of[0][1], of[1][2], of[2][3]), (10, 20, 30));
        assert_eq!(of[2].iter().sum::<u32>(), 30);
    }
}
