//! Tests of the sketch of hot keys.

use std::collections::HashMap;

use tidegate::{Clock, SystemClock};

use super::*;
use crate::text::escape::{MAX_KEY_LEN, display_key};

const NOW: Micros = Micros::from_secs(1_700_000_010);
const DENY: Outcome = Outcome::RetryAfter(Micros::ZERO);

/// Random numbers from 0 up, where the probability of i is proportional to 1 / (i + 1)^s.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: u32, s: f64) -> Self {
        let sums = (1..=n).scan(0.0, |sum, i| {
            *sum += f64::from(i).powf(-s);
            Some(*sum)
        });
        Self(sums.collect())
    }

    fn draw(&self) -> usize {
        let at = (random() >> 11) as f64 / (1_u64 << 53) as f64 * self.0[self.0.len() - 1];
        self.0.partition_point(|sum| *sum <= at)
    }
}

/// Records `per_second` calls in each of `seconds`, and returns the true counts, most first.
fn send_zipf(hot_keys: &HotKeys, per_second: u64, seconds: u64) -> Vec<(String, u64)> {
    let zipf = Zipf::new(100_000, 1.1);
    let mut counts: HashMap<usize, u64> = HashMap::new();
    for i in 0..per_second * seconds {
        let drawn = zipf.draw();
        *counts.entry(drawn).or_default() += 1;
        let now = NOW.saturating_add(Micros::new(i * 1_000_000 / per_second));
        hot_keys.record("api", (&format!("user-{drawn}")).into(), Outcome::Allow, now);
    }
    let mut counts: Vec<(String, u64)> =
        counts.into_iter().map(|(drawn, count)| (format!("user-{drawn}"), count)).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

#[test]
fn the_ten_hottest_keys_are_found_and_counted_within_a_tenth() {
    let hot_keys = HotKeys::default();
    let counts = send_zipf(&hot_keys, 8_000, 25);
    let top = hot_keys.top(20, NOW);
    for (key, count) in &counts[..10] {
        let hot = top.iter().find(|hot| hot.key == *key).expect(key);
        assert!(hot.allowed <= *count && hot.allowed >= count * 9 / 10, "{count}: {hot:?}");
    }
    assert_eq!(top[0].key, counts[0].0);
}

#[test]
fn a_sample_of_heavy_traffic_finds_them_too() {
    let hot_keys = HotKeys::default();
    let counts = send_zipf(&hot_keys, 100_000, 10);
    let halvings = hot_keys.sampling.halvings();
    assert!((3..=5).contains(&halvings), "one in 2^{halvings}");
    let top = hot_keys.top(20, NOW);
    for (key, count) in &counts[..10] {
        let hot = top.iter().find(|hot| hot.key == *key).expect(key);
        assert!(hot.allowed.abs_diff(*count) < count / 4, "{count}: {hot:?}");
    }
}

#[test]
fn light_traffic_is_counted_exactly_again_after_heavy_traffic() {
    let hot_keys = HotKeys::default();
    (0..1_000_000).for_each(|_| hot_keys.record("r", "busy".into(), Outcome::Allow, NOW));
    assert!(hot_keys.sampling.halvings() > 1);
    // The first later call ends the busy period, and the next one ends a light period.
    for seconds in [1, 2, 3, 4] {
        let later = NOW.saturating_add(Micros::from_secs(seconds));
        (0..100).for_each(|_| hot_keys.record("r", "busy".into(), Outcome::Allow, later));
    }
    let later = NOW.saturating_add(Micros::from_secs(5));
    (0..10).for_each(|_| hot_keys.record("r", "quiet".into(), DENY, later));
    let quiet = hot_keys.top(2, later).remove(1);
    assert_eq!((quiet.key.as_str(), quiet.allowed, quiet.denied), ("quiet", 0, 10));
}

#[test]
fn a_million_keys_use_no_more_memory_and_do_not_displace_a_hot_one() {
    let hot_keys = HotKeys::default();
    let long = "x".repeat(Key::MAX_LEN - 8);
    for i in 0..1_000_000_u64 {
        let now = NOW.saturating_add(Micros::new(i * 25));
        hot_keys.record("r", (&format!("{i}{long}")).into(), Outcome::Allow, now);
        if i % 100 == 0 {
            hot_keys.record("r", "hot".into(), DENY, now);
        }
    }
    let now = NOW.saturating_add(Micros::from_secs(25));
    assert_eq!(hot_keys.top(1, now)[0].key, "hot");
    assert!(hot_keys.top(usize::MAX, now).len() <= HotKeys::CAPACITY);
    for set in &hot_keys.sets {
        for counter in &set.lock().unwrap().counters {
            assert!(counter.key.capacity() <= 2 * MAX_KEY_LEN);
            assert!(counter.rule.capacity() <= 2 * MAX_RULE_LEN);
        }
    }
}

#[test]
fn allowed_and_denied_calls_and_rules_are_counted_separately() {
    let hot_keys = HotKeys::default();
    let calls = [("a", Outcome::Allow), ("a", DENY), ("a", Outcome::Never), ("b", DENY)];
    calls.iter().for_each(|(rule, outcome)| hot_keys.record(rule, "k".into(), *outcome, NOW));
    let hot = |rule: &str, allowed, denied| HotKey {
        rule: rule.into(),
        key: "k".into(),
        allowed,
        denied,
        state: None,
    };
    assert_eq!(hot_keys.top(9, NOW), [hot("a", 1, 2), hot("b", 0, 1)]);
    assert_eq!(hot_keys.top(1, NOW), [hot("a", 1, 2)]);
    assert_eq!(hot_keys.top(0, NOW), []);
}

#[test]
fn calls_count_half_after_a_half_life_and_are_dropped_at_last() {
    let hot_keys = HotKeys::default();
    (0..100).for_each(|_| hot_keys.record("r", "k".into(), Outcome::Allow, NOW));
    let after = |spans: u64| {
        let now = NOW.saturating_add(Micros::new(spans * HotKeys::HALF_LIFE.get()));
        hot_keys.top(1, now).first().map(|hot| hot.allowed)
    };
    // A clock that goes back changes nothing, neither by a little nor by much.
    let counts = [(0, Some(100)), (1, Some(50)), (0, Some(50)), (1, Some(50)), (3, Some(12))];
    for (spans, count) in counts {
        assert_eq!(after(spans), count, "after {spans}");
    }
    assert_eq!(hot_keys.top(1, Micros::ZERO)[0].allowed, 12);
    assert_eq!(after(0), None);
    let set = hot_keys.sets.iter().find(|set| set.lock().unwrap().hashes != [0; WAYS]);
    assert!(set.is_none(), "a slot is still taken");
}

#[test]
fn keys_are_shown_as_display_key_writes_them() {
    for parts in [&["tenant", "", "alice"][..], &["a\nb\u{1b}[2J\u{202e}"], &[&"x".repeat(999)]] {
        let hot_keys = HotKeys::default();
        hot_keys.record("r", Key::of(parts), Outcome::Allow, NOW);
        assert_eq!(hot_keys.top(1, NOW)[0].key, display_key(Key::of(parts)));
    }
}

#[test]
fn threads_can_record_and_read_at_once() {
    let hot_keys = HotKeys::default();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let hot_keys = &hot_keys;
            scope.spawn(move || {
                for i in 0..20_000_u64 {
                    let key = format!("{}", i % 50);
                    let now = NOW.saturating_add(Micros::new(i * thread));
                    hot_keys.record("r", (&key).into(), Outcome::Allow, now);
                }
            });
        }
        (0..50).for_each(|_| assert!(hot_keys.top(99, NOW).len() <= 50));
    });
    assert_eq!(hot_keys.top(99, NOW).len(), 50);
}

#[test]
#[ignore = "prints how long a call takes; run it with --release and --nocapture"]
fn measure_a_call() {
    for (per_second, keys) in [5_000, 50_000, 500_000, 5_000_000]
        .into_iter()
        .flat_map(|per_second| [1, 100, 1_000_000].map(|keys| (per_second, keys)))
    {
        let hot_keys = HotKeys::default();
        let keys: Vec<String> = (0..keys).map(|i| format!("customer-{i}")).collect();
        let mut calls = 0;
        let mut run = |count: u64| {
            let begin = SystemClock.elapsed();
            for _ in 0..count {
                let key = &keys[calls as usize % keys.len()];
                let now = NOW.saturating_add(Micros::new(calls * 1_000_000 / per_second));
                hot_keys.record("login", key.into(), Outcome::Allow, now);
                calls += 1;
            }
            SystemClock.elapsed().saturating_sub(begin).get() as f64
        };
        run(2 * per_second);
        let count = 2 * per_second.max(1_000_000);
        // The best of several runs, since the machine may be busy.
        let best = (0..5).map(|_| run(count)).reduce(f64::min).unwrap();
        let nanos = best * 1e3 / count as f64;
        let halvings = hot_keys.sampling.halvings();
        println!(
            "{per_second}/s, {} keys: {nanos:.1} ns, {:.2}% of a core, one in 2^{halvings}",
            keys.len(),
            nanos * per_second as f64 / 1e7
        );
    }
}
