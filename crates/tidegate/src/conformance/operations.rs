//! Record, refund, reset, inspect; the limit changes; the clock steps.

use std::sync::Arc;

use tidegate_core::{Cost, Limit, Micros, Wait};

use super::{Bench, EVERY_LIMIT, wait_of};
use crate::{Call, Charge, Key, Op, Rule};

pub(super) async fn run(new: impl Fn() -> Bench) {
    a_record_goes_into_debt_of_one_more_limit(&new()).await;
    a_refund_gives_back_what_is_used_and_no_more(&new()).await;
    a_reset_forgets(&new()).await;
    an_inspection_tells_what_is_there(&new()).await;
    a_changed_limit_keeps_consumption(&new()).await;
    a_changed_algorithm_starts_unused(&new()).await;
    an_older_limit_makes_the_newer_one_forget_nothing(&new()).await;
    a_clock_that_steps_back_lets_nobody_in_and_locks_nobody_out(&new()).await;
    names_are_kept_where_they_are_given(&new()).await;
    only_a_log_keeps_names(&new()).await;
}

async fn a_record_goes_into_debt_of_one_more_limit(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("record", text);
        assert_eq!(bench.one(Op::Record, &limit, text, 4).await.remaining(), 6, "{text}");
        let debt = bench.one(Op::Record, &limit, text, 1 << 32).await.verdict();
        assert_eq!((debt.allowed, debt.remaining), (false, 0), "{text}");
        assert_eq!(bench.inspect(&limit, text).await.standing.used, 20, "{text}");
        let wait = wait_of(&bench.peek(&limit, text).await);
        assert_eq!(debt.retry_after, Wait::For(wait), "{text}");
        bench.advance(wait);
        assert!(bench.check(&limit, text, 1).await.allowed, "{text}");
    }
}

async fn a_refund_gives_back_what_is_used_and_no_more(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("refund", text);
        assert_eq!(bench.one(Op::Refund, &limit, text, 3).await.refunded(), Cost::ZERO, "{text}");
        bench.check(&limit, text, 8).await;
        let some = bench.one(Op::Refund, &limit, text, 3).await;
        assert_eq!((some.refunded().get(), some.remaining()), (3, 5), "{text}");
        let rest = bench.one(Op::Refund, &limit, text, 1 << 32).await;
        assert_eq!((rest.refunded().get(), rest.remaining()), (5, 10), "{text}");
        assert!(bench.check(&limit, text, 10).await.allowed, "{text}");
    }
}

async fn a_reset_forgets(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("reset", text);
        bench.one(Op::Record, &limit, text, 17).await;
        assert_eq!(bench.one(Op::Reset, &limit, text, 0).await.remaining(), 10, "{text}");
        assert!(bench.check(&limit, text, 10).await.allowed, "{text}");
    }
}

async fn an_inspection_tells_what_is_there(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("inspect", text);
        let unused = bench.inspect(&limit, text).await;
        assert_eq!((unused.standing.used, unused.standing.remaining), (0, 10), "{text}");
        bench.check(&limit, text, 3).await;
        let (_, hold) = bench.hold(Micros::from_secs(1));
        bench.one(hold, &limit, text, 2).await;
        let found = bench.inspect(&limit, text).await;
        let standing = (found.standing.used, found.standing.held, found.standing.remaining);
        assert_eq!((found.limit, standing), (10, (3, 2, 5)), "{text}");
    }
}

async fn a_changed_limit_keeps_consumption(bench: &Bench) {
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
        let (before, after) = (bench.limit("changed", old), bench.limit("changed", new));
        let key = format!("{old} {new}");
        bench.check(&before, &key, used).await;
        let kept = bench.peek(&after, &key).await.remaining;
        assert_eq!(kept, remaining, "{old} -> {new}");
    }
}

async fn a_changed_algorithm_starts_unused(bench: &Bench) {
    let bucket = bench.limit("algorithm", "10/s");
    let log = bench.limit("algorithm", "sliding-log 10/s");
    bench.check(&bucket, "k", 10).await;
    assert_eq!(bench.peek(&log, "k").await.remaining, 10);
}

/// As while a new limit is rolled out: those who have the old one yet ask as well.
async fn an_older_limit_makes_the_newer_one_forget_nothing(bench: &Bench) {
    for text in EVERY_LIMIT {
        let raised = text.replace("10", "40");
        let (old, new) = (bench.limit("rolled-out", text), bench.limit("rolled-out", &raised));
        let capacity = new.limit().capacity();
        let mut admitted = 0;
        for _ in 0..2 * capacity {
            for limit in [&old, &new] {
                admitted += u64::from(bench.check(limit, text, 1).await.allowed);
            }
        }
        assert_eq!(admitted, capacity, "by turns, {text} beside {raised}");
        bench.one(Op::Reset, &new, text, 0).await;
        bench.one(Op::Record, &new, text, capacity).await;
        for _ in 0..5 {
            bench.peek(&old, text).await;
            assert!(!bench.check(&old, text, 1).await.allowed, "{text}");
            let (_, hold) = bench.hold(Micros::from_secs(5));
            assert!(!bench.one(hold, &old, text, 1).await.allowed(), "{text}");
            bench.inspect(&old, text).await;
            assert!(!bench.check(&new, text, 1).await.allowed, "{text} beside {raised}");
        }
        let used = bench.inspect(&new, text).await.standing.used;
        assert_eq!(used, capacity, "{text} beside {raised}");
    }
}

/// Consumption is kept, and recovers from the moment of the step on, even if every call in
/// between was denied.
async fn a_clock_that_steps_back_lets_nobody_in_and_locks_nobody_out(bench: &Bench) {
    let day = Micros::from_secs(86_400);
    for text in EVERY_LIMIT {
        let limit = bench.limit("steps", text);
        bench.check(&limit, text, 10).await;
        let longest = bench.peek(&limit, text).await.reset_after;
        bench.clock.set(bench.now().saturating_sub(day));
        let wait = wait_of(&bench.check(&limit, text, 1).await);
        // A calendar window may be a long one; every other limit is as it was before.
        let longest = if text.contains("tz") || text.ends_with("/d") {
            day.saturating_add(longest)
        } else {
            longest
        };
        let grain = Micros::from_secs(60);
        assert!(wait <= longest.saturating_add(grain), "{text}: {wait:?} after {longest:?}");
        bench.advance(wait.saturating_sub(Micros::new(1)));
        assert!(!bench.check(&limit, text, 1).await.allowed, "{text}");
        bench.advance(Micros::new(1));
        assert!(bench.check(&limit, text, 1).await.allowed, "{text}");
        bench.advance(Micros::from_secs(40 * 86_400));
    }
}

async fn names_are_kept_where_they_are_given(bench: &Bench) {
    let limit: Limit = "sliding-log 10/60s".parse().expect("a limit of the suite");
    let rule = Rule::new("names", [limit]).expect("a rule of the suite");
    let limit: &Arc<_> = &rule.limits()[0];
    let parts = [&*bench.nonce, "k"];
    for (who, cost) in [(Some("alice"), 2), (None, 1), (Some("bob"), 3), (Some("bob"), 1)] {
        let cost = Cost::new(cost).expect("a cost of the suite");
        let charge = Charge { limit, key: Key::of(&parts), cost, who };
        let call = Call { op: Op::Check, charges: &[charge], once: None };
        assert!(bench.engine.decide(call).await.expect("a decision").allowed());
        bench.advance(Micros::from_secs(1));
    }
    let entries = bench.inspect(limit, "k").await.entries;
    let entries: Vec<_> = entries.iter().map(|(who, n)| (who.as_deref(), *n)).collect();
    assert_eq!(entries, [(Some("alice"), 2), (None, 1), (Some("bob"), 3), (Some("bob"), 1)]);
}

/// With a name each, requests would get an entry each, and a sub-window would be no smaller than a
/// log.
async fn only_a_log_keeps_names(bench: &Bench) {
    for text in EVERY_LIMIT.into_iter().filter(|text| !text.starts_with("sliding-log")) {
        let limit = bench.limit("nameless", text);
        let parts = [&*bench.nonce, text];
        for who in ["alice", "bob", "alice"] {
            let charge =
                Charge { limit: &limit, key: Key::of(&parts), cost: Cost::ONE, who: Some(who) };
            let call = Call { op: Op::Check, charges: &[charge], once: None };
            assert!(bench.engine.decide(call).await.expect("a decision").allowed());
        }
        let entries = bench.inspect(&limit, text).await.entries;
        assert!(entries.len() <= 1, "{text}: {entries:?}");
        assert!(entries.iter().all(|(who, _)| who.is_none()), "{text}: {entries:?}");
    }
}
