//! Record, refund, reset, inspect; the limit changes; the clock steps.

use std::sync::Arc;

use tidegate_core::{Cost, Limit, Micros, RecoveryPoint, Wait};

use super::harness::{EVERY_LIMIT, Harness, wait_of};
use crate::{Call, Charge, Key, Op, Rule};

pub(super) async fn run(new: impl Fn() -> Harness) {
    a_record_goes_into_debt_by_at_most_one_limit(&new()).await;
    a_refund_gives_back_at_most_the_consumption(&new()).await;
    a_reset_clears_consumption(&new()).await;
    an_inspection_returns_the_present_state(&new()).await;
    a_recovery_is_what_peeks_say(&new()).await;
    a_changed_limit_keeps_consumption(&new()).await;
    a_changed_algorithm_starts_unused(&new()).await;
    an_older_limit_discards_no_consumption_of_a_newer_one(&new()).await;
    a_clock_step_back_neither_admits_nor_blocks_a_key(&new()).await;
    a_log_stores_the_callers_it_is_given(&new()).await;
    only_a_log_stores_callers(&new()).await;
}

async fn a_record_goes_into_debt_by_at_most_one_limit(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("record", text);
        assert_eq!(harness.one(Op::Record, &limit, text, 4).await.remaining(), 6, "{text}");
        let debt = harness.one(Op::Record, &limit, text, 1 << 32).await.verdict();
        assert_eq!((debt.allowed, debt.remaining), (false, 0), "{text}");
        assert_eq!(harness.inspect(&limit, text).await.standing.used, 20, "{text}");
        let wait = wait_of(&harness.peek(&limit, text).await);
        assert_eq!(debt.retry_after, Wait::For(wait), "{text}");
        harness.advance(wait);
        assert!(harness.check(&limit, text, 1).await.allowed, "{text}");
    }
}

async fn a_refund_gives_back_at_most_the_consumption(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("refund", text);
        assert_eq!(harness.one(Op::Refund, &limit, text, 3).await.refunded(), Cost::ZERO, "{text}");
        harness.check(&limit, text, 8).await;
        let some = harness.one(Op::Refund, &limit, text, 3).await;
        assert_eq!((some.refunded().get(), some.remaining()), (3, 5), "{text}");
        let rest = harness.one(Op::Refund, &limit, text, 1 << 32).await;
        assert_eq!((rest.refunded().get(), rest.remaining()), (5, 10), "{text}");
        assert!(harness.check(&limit, text, 10).await.allowed, "{text}");
    }
}

async fn a_reset_clears_consumption(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("reset", text);
        harness.one(Op::Record, &limit, text, 17).await;
        assert_eq!(harness.one(Op::Reset, &limit, text, 0).await.remaining(), 10, "{text}");
        assert!(harness.check(&limit, text, 10).await.allowed, "{text}");
    }
}

async fn an_inspection_returns_the_present_state(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("inspect", text);
        let unused = harness.inspect(&limit, text).await;
        assert_eq!((unused.standing.used, unused.standing.remaining), (0, 10), "{text}");
        harness.check(&limit, text, 3).await;
        let (_, hold) = harness.hold(Micros::from_secs(1));
        harness.one(hold, &limit, text, 2).await;
        let found = harness.inspect(&limit, text).await;
        let standing = (found.standing.used, found.standing.held, found.standing.remaining);
        assert_eq!((found.limit, standing), (10, (3, 2, 5)), "{text}");
    }
}

/// Each point is the earliest instant at which so many permits fit.
async fn a_recovery_is_what_peeks_say(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("recovery", text);
        assert_eq!(harness.inspect(&limit, text).await.recovery, [], "{text}");
        for cost in [3, 1, 2] {
            harness.check(&limit, text, cost).await;
            harness.advance(Micros::from_millis(100));
        }
        let (_, hold) = harness.hold(Micros::from_secs(1));
        harness.one(hold, &limit, text, 2).await;
        let found = harness.inspect(&limit, text).await;
        assert_eq!(found.recovery.last().map(|point| point.fits), Some(10), "{text}");
        assert!(found.recovery.is_sorted_by(|a, b| a.after <= b.after && a.fits < b.fits));
        for RecoveryPoint { after, fits } in found.recovery {
            let verdict = harness.one(Op::Peek, &limit, text, fits).await.verdict();
            assert_eq!(verdict.retry_after, after, "{fits} of {text}");
        }
    }
}

async fn a_changed_limit_keeps_consumption(harness: &Harness) {
    for (old, new, used, remaining) in [
        ("10/s", "20/s", 6, 14),
        ("10/s", "4/s", 6, 0),
        ("10/s", "10/m", 6, 4),
        ("10/s", "10/d burst 10", 6, 4),
        ("leaky-bucket 10/s", "leaky-bucket 10/s capacity 30 queue", 6, 24),
        ("10/s", "5/s burst 10 every 1s", 6, 4),
        ("fixed-window 10/60s", "fixed-window 8/30s", 6, 2),
        ("fixed-window 10/60s first-hit", "fixed-window 15/90s first-hit", 6, 9),
        ("fixed-window 10/60s", "fixed-window 10/d", 6, 4),
        ("sliding-log 10/60s", "sliding-log 7/30s", 6, 1),
        ("sliding-window 10/60s", "sliding-window 20/90s precision 7s", 6, 14),
        ("sliding-window 10/60s", "sliding-window 20/60s approximate", 6, 14),
        ("sliding-window 10/60s approximate", "sliding-window 12/60s approximate", 6, 6),
    ] {
        let (before, after) = (harness.limit("changed", old), harness.limit("changed", new));
        let key = format!("{old} {new}");
        harness.check(&before, &key, used).await;
        let kept = harness.peek(&after, &key).await.remaining;
        assert_eq!(kept, remaining, "{old} -> {new}");
    }
}

async fn a_changed_algorithm_starts_unused(harness: &Harness) {
    let bucket = harness.limit("algorithm", "10/s");
    let log = harness.limit("algorithm", "sliding-log 10/s");
    harness.check(&bucket, "k", 10).await;
    assert_eq!(harness.peek(&log, "k").await.remaining, 10);
}

/// As during a rollout of a new limit: some callers still send the old one.
async fn an_older_limit_discards_no_consumption_of_a_newer_one(harness: &Harness) {
    for text in EVERY_LIMIT {
        let raised = text.replace("10", "40");
        let (old, new) = (harness.limit("rolled-out", text), harness.limit("rolled-out", &raised));
        let capacity = new.limit().capacity();
        let mut admitted = 0;
        for _ in 0..2 * capacity {
            for limit in [&old, &new] {
                admitted += u64::from(harness.check(limit, text, 1).await.allowed);
            }
        }
        assert_eq!(admitted, capacity, "alternating, {text} and {raised}");
        harness.one(Op::Reset, &new, text, 0).await;
        harness.one(Op::Record, &new, text, capacity).await;
        for _ in 0..5 {
            harness.peek(&old, text).await;
            assert!(!harness.check(&old, text, 1).await.allowed, "{text}");
            let (_, hold) = harness.hold(Micros::from_secs(5));
            assert!(!harness.one(hold, &old, text, 1).await.allowed(), "{text}");
            harness.inspect(&old, text).await;
            assert!(!harness.check(&new, text, 1).await.allowed, "{text} and {raised}");
        }
        let used = harness.inspect(&new, text).await.standing.used;
        assert_eq!(used, capacity, "{text} and {raised}");
    }
}

/// Consumption is kept, and recovers from the time of the step, even if every call in between was
/// denied.
async fn a_clock_step_back_neither_admits_nor_blocks_a_key(harness: &Harness) {
    let day = Micros::from_secs(86_400);
    for text in EVERY_LIMIT {
        let limit = harness.limit("steps", text);
        harness.check(&limit, text, 10).await;
        let longest = harness.peek(&limit, text).await.reset_after;
        harness.clock.set(harness.now().saturating_sub(day));
        let wait = wait_of(&harness.check(&limit, text, 1).await);
        // A calendar window may be longer; every other limit is as before.
        let longest = if text.contains("tz") || text.ends_with("/d") {
            day.saturating_add(longest)
        } else {
            longest
        };
        let grain = Micros::from_secs(60);
        assert!(wait <= longest.saturating_add(grain), "{text}: {wait:?} after {longest:?}");
        harness.advance(wait.saturating_sub(Micros::new(1)));
        assert!(!harness.check(&limit, text, 1).await.allowed, "{text}");
        harness.advance(Micros::new(1));
        assert!(harness.check(&limit, text, 1).await.allowed, "{text}");
        harness.advance(Micros::from_secs(40 * 86_400));
    }
}

async fn a_log_stores_the_callers_it_is_given(harness: &Harness) {
    let limit: Limit = "sliding-log 10/60s".parse().expect("a limit of the suite");
    let rule = Rule::new("names", [limit]).expect("a rule of the suite");
    let limit: &Arc<_> = &rule.limits()[0];
    let parts = [&*harness.nonce, "k"];
    for (caller, cost) in [(Some("alice"), 2), (None, 1), (Some("bob"), 3), (Some("bob"), 1)] {
        let cost = Cost::new(cost).expect("a cost of the suite");
        let charge = Charge { limit, key: Key::of(&parts), cost, caller };
        let call = Call { op: Op::Check, charges: &[charge], idempotency_key: None };
        assert!(harness.engine.decide(call).await.expect("a decision").allowed());
        harness.advance(Micros::from_secs(1));
    }
    let entries = harness.inspect(limit, "k").await.entries;
    let entries: Vec<_> = entries.iter().map(|(caller, n)| (caller.as_deref(), *n)).collect();
    assert_eq!(entries, [(Some("alice"), 2), (None, 1), (Some("bob"), 3), (Some("bob"), 1)]);
}

/// With callers, every request would need an entry, and a sub-window would be no smaller than a
/// log.
async fn only_a_log_stores_callers(harness: &Harness) {
    for text in EVERY_LIMIT.into_iter().filter(|text| !text.starts_with("sliding-log")) {
        let limit = harness.limit("no-callers", text);
        let parts = [&*harness.nonce, text];
        for caller in ["alice", "bob", "alice"] {
            let charge = Charge {
                limit: &limit,
                key: Key::of(&parts),
                cost: Cost::ONE,
                caller: Some(caller),
            };
            let call = Call { op: Op::Check, charges: &[charge], idempotency_key: None };
            assert!(harness.engine.decide(call).await.expect("a decision").allowed());
        }
        let entries = harness.inspect(&limit, text).await.entries;
        assert!(entries.len() <= 1, "{text}: {entries:?}");
        assert!(entries.iter().all(|(caller, _)| caller.is_none()), "{text}: {entries:?}");
    }
}
