//! The memory engine while the limit of a key changes: by a rule's new limit, and by limits that
//! come with calls.

use std::sync::Arc;

use tidegate::{
    Call, Charge, Cost, Engine, Inspection, Key, Limit, ManualClock, Memory, Micros, Op, Rule,
    RuleLimit, Verdict, Wait,
};
use tidegate_model::{TraceRng, print_line, run_size};

/// An engine with one key.
struct OneKey {
    clock: ManualClock,
    memory: Memory,
}

impl OneKey {
    fn new() -> Self {
        let clock = ManualClock::default();
        let memory = Memory::builder().clock(clock.clone()).build();
        let key = Self { clock, memory };
        key.set(1_000_000_000);
        key
    }

    fn set(&self, micros: u64) {
        self.clock.set(Micros::new(micros));
    }

    fn run(&self, op: Op<'_>, limit: &Arc<RuleLimit>, cost: u64) -> Verdict {
        let key = Key::from("k");
        let charges = [Charge { limit, key, cost: Cost::total(cost), caller: None }];
        let call = Call { op, charges: &charges, idempotency_key: None };
        self.memory.decide_now(&call).unwrap().verdicts[0]
    }

    fn inspect(&self, limit: &Arc<RuleLimit>) -> Inspection {
        self.memory.inspect(limit, Key::from("k")).now().unwrap()
    }
}

fn of_call(limit: &str) -> Arc<RuleLimit> {
    Rule::throttle(limit.parse().unwrap()).limits()[0].clone()
}

fn of_rule(limit: &str) -> Arc<RuleLimit> {
    Rule::new("r", [limit.parse::<Limit>().unwrap()]).unwrap().limits()[0].clone()
}

fn wait(verdict: &Verdict) -> u64 {
    verdict.retry_after.span().unwrap().get()
}

#[test]
fn a_smaller_limit_of_a_call_waits_until_earlier_consumption_fits() {
    // The larger limit, the smaller one, and when 9 of the 1,000 are left.
    for (large, small, expected) in [
        ("1000/1h", "10/2s", 991 * 3_600_000),
        ("leaky-bucket 1000/1h", "leaky-bucket 10/2s", 991 * 3_600_000),
        ("leaky-bucket 1000/1h", "leaky-bucket 10/2s queue", 991 * 3_600_000),
        ("3600/1h burst 1000 every 1s", "10/2s every 1s", 991_000_000),
        ("fixed-window 1000/1h", "fixed-window 10/2s", 2_600_000_000),
        ("fixed-window 1000/1h first-hit", "fixed-window 10/2s first-hit", 3_600_000_000),
        ("sliding-log 1000/1h", "sliding-log 10/2s", 3_600_000_000),
        ("sliding-window 1000/1h precision 1m", "sliding-window 10/2s", 3_620_000_000),
    ] {
        let key = OneKey::new();
        let (large, small) = (of_call(large), of_call(small));
        assert!(key.run(Op::Check, &large, 1_000).allowed);
        let denied = key.run(Op::Check, &small, 1);
        assert_eq!((denied.allowed, denied.limit, denied.remaining), (false, 10, 0), "{small:?}");
        assert_eq!(wait(&denied), expected, "{small:?}");
        assert_eq!(wait(&key.run(Op::Peek, &small, 1)), expected, "{small:?}");
        let never = key.run(Op::Check, &small, 11);
        assert_eq!(never.retry_after, Wait::Never, "{small:?}");
        let inspection = key.inspect(&small);
        let (standing, first) = (inspection.standing, inspection.recovery[0]);
        assert_eq!((inspection.limit, standing.used, standing.remaining), (10, 1_000, 0));
        assert_eq!(first.after, denied.retry_after, "{small:?}: the first permit to recover");
        let used = key.run(Op::Peek, &large, 0).remaining;
        assert_eq!(used, 0, "{small:?}: a denial changes nothing");

        key.set(1_000_000_000 + expected - 1);
        assert!(!key.run(Op::Check, &small, 1).allowed, "{small:?}");
        key.set(1_000_000_000 + expected);
        let allowed = key.run(Op::Check, &small, 1);
        assert!(allowed.allowed, "{small:?}");
        assert_eq!(key.run(Op::Peek, &small, 0).remaining, allowed.remaining, "{small:?}");
    }
}

#[test]
fn a_record_or_refund_of_a_smaller_limit_of_a_call_cuts_nothing_off() {
    let (large, small) = (of_call("1000/1h"), of_call("10/2s"));
    let key = OneKey::new();
    key.run(Op::Check, &large, 500);
    key.run(Op::Record, &small, 100);
    assert_eq!(key.run(Op::Peek, &large, 0).remaining, 400);
    key.run(Op::Refund, &small, 50);
    assert_eq!(key.run(Op::Peek, &large, 0).remaining, 450);
    key.run(Op::Reset, &small, 0);
    assert_eq!(key.run(Op::Peek, &large, 0).remaining, 1_000);
}

#[test]
fn a_larger_limit_of_a_call_admits_what_it_is_larger_by() {
    let (small, large) = (of_call("10/1h"), of_call("1000/1h"));
    let key = OneKey::new();
    assert!(key.run(Op::Check, &small, 10).allowed);
    assert_eq!(key.run(Op::Peek, &large, 0).remaining, 990);
    assert!(key.run(Op::Check, &large, 990).allowed);
    assert!(!key.run(Op::Check, &large, 1).allowed);
}

#[test]
fn limits_of_calls_that_flip_ten_thousand_times_stay_within_the_largest_burst_and_rate() {
    let flips = run_size(1_000, 10_000, 1_000_000);
    for limits in [
        &["1000/1h", "10/2s"][..],
        &["50/1s burst 5", "10/1s burst 80"],
        &["7/100ms", "100/1s", "50/1s burst 40", "1/1s burst 200"],
    ] {
        let key = OneKey::new();
        let parsed: Vec<Limit> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let calls: Vec<_> = limits.iter().map(|limit| of_call(limit)).collect();
        let capacity = parsed.iter().map(Limit::capacity).max().unwrap();
        let rate = |limit: &Limit| (limit.capacity() as f64) / recovery_seconds(limit);
        let rate = parsed.iter().map(rate).fold(0.0, f64::max);
        let mut rng = TraceRng::new(1);
        let (mut now, mut admitted) = (1_000_000_000, 0);
        for flip in 0..flips {
            let limit = &calls[flip as usize % calls.len()];
            now += rng.magnitude(20_000);
            key.set(now);
            let cost = key.run(Op::Peek, limit, 0).remaining.max(1);
            let cost = if rng.one_in(3) { 1 } else { cost };
            admitted += cost * u64::from(key.run(Op::Check, limit, cost).allowed);
        }
        let seconds = (now - 1_000_000_000) as f64 / 1e6;
        let bound = capacity as f64 + rate * seconds;
        print_line(&format!("{limits:?}: {admitted} in {seconds:.1} s, at most {bound:.0}"));
        assert!(admitted as f64 <= bound, "{limits:?}: {admitted} in {seconds} s");
        assert!(admitted as f64 > bound / 20.0, "{limits:?}: {admitted} in {seconds} s");
    }
}

/// How long a full bucket takes to drain.
fn recovery_seconds(limit: &Limit) -> f64 {
    limit.recovery().unwrap().get() as f64 / 1e6
}

#[test]
fn a_retry_after_the_wait_is_allowed_when_limits_change_and_flip() {
    const FAMILIES: [&[&str]; 6] = [
        &["1000/1h", "10/2s", "3/1s burst 7", "100/1s every 100ms", "20/1m burst 3"],
        &["leaky-bucket 10/2s", "leaky-bucket 1000/1h", "leaky-bucket 3/1s capacity 9 queue"],
        &["fixed-window 1000/1h", "fixed-window 10/2s", "fixed-window 5/3s first-hit"],
        &["fixed-window 100/d", "fixed-window 10/month", "fixed-window 7/1h"],
        &["sliding-window 100/1h", "sliding-window 10/2s", "sliding-window 9/7s approximate"],
        &["sliding-log 100/1h", "sliding-log 10/2s", "sliding-log 50/1m"],
    ];
    for (name, make) in [("rules", of_rule as fn(&str) -> _), ("calls", of_call)] {
        let mut retries = 0;
        for seed in 0..run_size(10, 300, 10_000) {
            let mut rng = TraceRng::new(seed);
            let family = rng.pick(&FAMILIES);
            let (key, mut now) = (OneKey::new(), 1_000_000_000);
            let mut limit = make(family[0]);
            for _ in 0..200 {
                if rng.one_in(4) {
                    limit = make(rng.pick(family));
                }
                now += rng.magnitude(3_000_000);
                key.set(now);
                let most = limit.limit().capacity();
                let cost = if rng.one_in(2) { 1 } else { rng.between(1, most) };
                let denied = key.run(Op::Check, &limit, cost);
                if denied.allowed {
                    continue;
                }
                now += wait(&denied);
                key.set(now);
                let again = key.run(Op::Check, &limit, cost);
                assert!(again.allowed, "{name}, seed {seed}: {cost} of {limit:?} at {now}");
                retries += 1;
            }
        }
        print_line(&format!("{name}: {retries} retries, all allowed"));
        assert!(retries > 100, "{name}: {retries}");
    }
}
