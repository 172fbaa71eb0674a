//! Tens of thousands of holds on one key.

use std::sync::Arc;
use std::time::Duration;

use testkit::timing::compare_with_goal;
use tidegate::{
    Call, Charge, Clock, Cost, Costs, Decision, Engine, Expiry, HoldId, ManualClock, Memory,
    Micros, Op, Rule, RuleLimit, SystemClock,
};
use tidegate_model::print_line;

const HOLDS: u64 = 50_000;
const TTL: Micros = Micros::from_secs(60);

struct OneKey {
    clock: ManualClock,
    memory: Memory,
    limit: Arc<RuleLimit>,
}

impl OneKey {
    fn new(limit: &str) -> Self {
        let clock = ManualClock::default();
        clock.set(Micros::from_secs(1_000));
        let memory = Memory::builder().clock(clock.clone()).build();
        let rule = Rule::new("tokens", [limit.parse().unwrap()]).unwrap();
        Self { clock, memory, limit: rule.limits()[0].clone() }
    }

    fn hold(&self, n: u64) -> Decision {
        let op = Op::hold(id(n), TTL, Expiry::Charge);
        let charge = Charge { limit: &self.limit, key: "k".into(), cost: Cost::ONE, caller: None };
        self.memory.decide_now(&Call { op, charges: &[charge], idempotency_key: None }).unwrap()
    }

    fn settle(&self, n: u64, cost: u64) -> Decision {
        let op = Op::Settle { id: id(n), costs: Costs::All(Cost::total(cost)) };
        self.memory.decide_now(&Call { op, charges: &[], idempotency_key: None }).unwrap()
    }
}

fn id(n: u64) -> HoldId {
    HoldId::from(u128::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

/// How many deadlines a decision visits is bounded by tests of `tidegate-core`.
#[test]
fn fifty_thousand_holds_on_one_key_are_made_and_settled_in_a_moment() {
    for limit in ["1000000/1d", "sliding-window 1000000/1d", "concurrency 1000000 lease 60s"] {
        let key = OneKey::new(limit);
        let start = SystemClock.elapsed();
        for n in 0..HOLDS {
            let held = key.hold(n);
            assert_eq!(held.verdict().remaining, 1_000_000 - n - 1, "{limit}");
            key.clock.advance(Duration::from_micros(100));
        }
        let made = SystemClock.elapsed().saturating_sub(start);
        for n in 0..HOLDS {
            let settled = key.settle(n, 0);
            assert!(!settled.expired(), "{limit}: {n}");
            assert_eq!(settled.verdict().remaining, 1_000_000 - (HOLDS - n - 1), "{limit}: {n}");
        }
        let all = SystemClock.elapsed().saturating_sub(start);
        print_line(&format!("{HOLDS} holds under {limit}: made in {made}, settled after {all}"));
        compare_with_goal(limit, Duration::from_micros(all.get()), Duration::from_secs(2));
    }
}

/// Their deadlines are rounded up by at most 1/64, and never down.
#[test]
fn many_holds_end_no_earlier_than_their_deadline_and_at_most_a_64th_later() {
    let key = OneKey::new("fixed-window 1000000/1d");
    for n in 0..HOLDS {
        key.hold(n);
        key.clock.advance(Duration::from_micros(100));
    }
    let used = |key: &OneKey| {
        let found = key.memory.inspect(&key.limit, "k".into()).now().unwrap();
        (found.standing.held, found.standing.used)
    };
    // The first ends here, and the last one 5 seconds later.
    let first = Micros::from_secs(1_060);
    let late = TTL.get() / 64;
    for after in (0..=6_000_000).step_by(50_000) {
        key.clock.set(first.saturating_add(Micros::new(after)));
        let ended_since = |after: u64| (after / 100 + 1).min(HOLDS);
        let (held, charged) = used(&key);
        assert_eq!(held + charged, HOLDS, "after {after} us");
        assert!(charged <= ended_since(after), "{charged} after {after} us");
        let least = after.checked_sub(late).map_or(0, ended_since);
        assert!(charged >= least, "{charged} after {after} us");
    }
    assert_eq!(used(&key), (0, HOLDS));
    assert!(key.settle(7, 1).expired());
}
