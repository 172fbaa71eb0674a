//! What passes, and when to retry.

use tidegate_core::{Micros, Outcome, Wait};

use super::harness::{EVERY_LIMIT, Harness, wait_of};
use crate::Op;

pub(super) async fn run(new: impl Fn() -> Harness) {
    at_an_instant_exactly_the_capacity_passes(&new()).await;
    a_cost_counts_as_that_many_permits(&new()).await;
    retry_after_is_exact(&new()).await;
    reset_after_is_when_the_key_is_fully_recovered(&new()).await;
    more_than_the_capacity_never_passes(&new()).await;
    a_peek_takes_nothing(&new()).await;
    a_limit_of_zero_allows_nothing(&new()).await;
    a_queue_gives_turns_at_its_rate(&new()).await;
    keys_do_not_share(&new()).await;
}

async fn at_an_instant_exactly_the_capacity_passes(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("burst", text);
        for n in 0..10 {
            let verdict = harness.check(&limit, text, 1).await;
            assert!(verdict.allowed, "{text}: {n} passed, then {verdict:?}");
            assert_eq!((verdict.limit, verdict.remaining), (10, 9 - n), "{text}");
        }
        let eleventh = harness.check(&limit, text, 1).await;
        assert!(wait_of(&eleventh) > Micros::ZERO, "{text}");
        assert_eq!(eleventh.remaining, 0, "{text}");
    }
}

async fn a_cost_counts_as_that_many_permits(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("weight", text);
        assert_eq!(harness.check(&limit, text, 7).await.remaining, 3, "{text}");
        assert!(!harness.check(&limit, text, 4).await.allowed, "{text}");
        assert!(harness.check(&limit, text, 3).await.allowed, "{text}");
    }
}

async fn retry_after_is_exact(harness: &Harness) {
    for text in EVERY_LIMIT {
        for cost in [1, 4, 10] {
            let limit = harness.limit("retry", text);
            let key = format!("{text} {cost}");
            harness.check(&limit, &key, 10).await;
            let wait = wait_of(&harness.check(&limit, &key, cost).await);
            harness.advance(wait.saturating_sub(Micros::new(1)));
            let early = harness.check(&limit, &key, cost).await;
            assert_eq!(early.outcome(), Outcome::RetryAfter(Micros::new(1)), "{text} {cost}");
            harness.advance(Micros::new(1));
            assert!(
                harness.check(&limit, &key, cost).await.allowed,
                "{text} {cost} after {wait:?}"
            );
        }
    }
}

async fn reset_after_is_when_the_key_is_fully_recovered(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("reset", text);
        let reset = harness.check(&limit, text, 6).await.reset_after;
        harness.advance(reset.saturating_sub(Micros::new(1)));
        assert_eq!(harness.peek(&limit, text).await.reset_after, Micros::new(1), "{text}");
        harness.advance(Micros::new(1));
        let recovered = harness.peek(&limit, text).await;
        assert_eq!((recovered.remaining, recovered.reset_after), (10, Micros::ZERO), "{text}");
    }
}

async fn more_than_the_capacity_never_passes(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("never", text);
        for cost in [11, 1 << 32] {
            let verdict = harness.check(&limit, text, cost).await;
            assert_eq!(verdict.outcome(), Outcome::Never, "{text} {cost}");
            assert_eq!(verdict.remaining, 10, "{text} {cost}");
        }
    }
}

async fn a_peek_takes_nothing(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("peek", text);
        harness.check(&limit, text, 10).await;
        let before = harness.inspect(&limit, text).await;
        let peek = harness.peek(&limit, text).await;
        assert!(peek.allowed, "a peek is denied only in debt, {text}");
        assert!(peek.retry_after > Wait::NONE, "but has the wait for a cost of 1, {text}");
        let denied = harness.one(Op::Peek, &limit, text, 1).await.verdict();
        assert_eq!((denied.allowed, denied.retry_after), (false, peek.retry_after), "{text}");
        assert_eq!(harness.inspect(&limit, text).await, before, "{text}");
    }
}

async fn a_limit_of_zero_allows_nothing(harness: &Harness) {
    for text in [
        "0/s",
        "fixed-window 0/60s",
        "sliding-log 0/60s",
        "sliding-window 0/60s",
        "leaky-bucket 0/s",
    ] {
        let limit = harness.limit("zero", text);
        assert_eq!(harness.check(&limit, text, 1).await.outcome(), Outcome::Never, "{text}");
        assert!(harness.peek(&limit, text).await.allowed, "{text}");
        assert!(harness.one(Op::Record, &limit, text, 5).await.allowed(), "{text}");
    }
}

async fn a_queue_gives_turns_at_its_rate(harness: &Harness) {
    let limit = harness.limit("turns", "leaky-bucket 3/s capacity 5 queue");
    for (k, delay) in [0, 333_334, 666_667, 1_000_000, 1_333_334].into_iter().enumerate() {
        let verdict = harness.check(&limit, "k", 1).await;
        assert_eq!((verdict.allowed, verdict.delay), (true, Micros::new(delay)), "turn {k}");
    }
    assert_eq!(wait_of(&harness.check(&limit, "k", 1).await), Micros::new(333_334));
    let back = harness.one(Op::Refund, &limit, "k", 3).await.refunded();
    assert_eq!(back.get(), 1, "only the last turn can be given back");
    assert_eq!(harness.check(&limit, "k", 1).await.delay, Micros::new(1_333_334));
}

async fn keys_do_not_share(harness: &Harness) {
    let limit = harness.limit("keys", "sliding-log 1/60s");
    let long = "x".repeat(900);
    let hostile = ["", "a", "{a}", "a}", "a:b", "a\nb", "a\0b", "*", "é", &long, "a\0"];
    for key in hostile {
        assert!(harness.check(&limit, key, 1).await.allowed, "first of {key:?}");
    }
    for key in hostile {
        assert!(!harness.check(&limit, key, 1).await.allowed, "second of {key:?}");
    }
}
