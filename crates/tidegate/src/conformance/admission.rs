//! What passes, and when to come back.

use tidegate_core::{Micros, Outcome, Wait};

use super::{Bench, EVERY_LIMIT, wait_of};
use crate::Op;

pub(super) async fn run(new: impl Fn() -> Bench) {
    at_an_instant_exactly_the_capacity_passes(&new()).await;
    a_weight_counts_as_that_many(&new()).await;
    retry_after_is_exact(&new()).await;
    reset_after_is_when_the_key_is_as_new(&new()).await;
    more_than_the_capacity_never_passes(&new()).await;
    a_peek_takes_nothing(&new()).await;
    a_limit_of_zero_allows_nothing(&new()).await;
    a_queue_gives_turns_at_its_rate(&new()).await;
    keys_do_not_share(&new()).await;
}

async fn at_an_instant_exactly_the_capacity_passes(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("burst", text);
        for n in 0..10 {
            let verdict = bench.check(&limit, text, 1).await;
            assert!(verdict.allowed, "{text}: {n} passed, then {verdict:?}");
            assert_eq!((verdict.limit, verdict.remaining), (10, 9 - n), "{text}");
        }
        let eleventh = bench.check(&limit, text, 1).await;
        assert!(wait_of(&eleventh) > Micros::ZERO, "{text}");
        assert_eq!(eleventh.remaining, 0, "{text}");
    }
}

async fn a_weight_counts_as_that_many(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("weight", text);
        assert_eq!(bench.check(&limit, text, 7).await.remaining, 3, "{text}");
        assert!(!bench.check(&limit, text, 4).await.allowed, "{text}");
        assert!(bench.check(&limit, text, 3).await.allowed, "{text}");
    }
}

async fn retry_after_is_exact(bench: &Bench) {
    for text in EVERY_LIMIT {
        for cost in [1, 4, 10] {
            let limit = bench.limit("retry", text);
            let key = format!("{text} {cost}");
            bench.check(&limit, &key, 10).await;
            let wait = wait_of(&bench.check(&limit, &key, cost).await);
            bench.advance(wait.saturating_sub(Micros::new(1)));
            let early = bench.check(&limit, &key, cost).await;
            assert_eq!(early.outcome(), Outcome::RetryAfter(Micros::new(1)), "{text} {cost}");
            bench.advance(Micros::new(1));
            assert!(bench.check(&limit, &key, cost).await.allowed, "{text} {cost} after {wait:?}");
        }
    }
}

async fn reset_after_is_when_the_key_is_as_new(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("reset", text);
        let reset = bench.check(&limit, text, 6).await.reset_after;
        bench.advance(reset.saturating_sub(Micros::new(1)));
        assert_eq!(bench.peek(&limit, text).await.reset_after, Micros::new(1), "{text}");
        bench.advance(Micros::new(1));
        let as_new = bench.peek(&limit, text).await;
        assert_eq!((as_new.remaining, as_new.reset_after), (10, Micros::ZERO), "{text}");
    }
}

async fn more_than_the_capacity_never_passes(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("never", text);
        for cost in [11, 1 << 32] {
            let verdict = bench.check(&limit, text, cost).await;
            assert_eq!(verdict.outcome(), Outcome::Never, "{text} {cost}");
            assert_eq!(verdict.remaining, 10, "{text} {cost}");
        }
    }
}

async fn a_peek_takes_nothing(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("peek", text);
        bench.check(&limit, text, 10).await;
        let before = bench.inspect(&limit, text).await;
        let peek = bench.peek(&limit, text).await;
        assert!(peek.allowed, "a peek is denied only in debt, {text}");
        assert!(peek.retry_after > Wait::NONE, "but tells what a cost of 1 would wait, {text}");
        let asked = bench.one(Op::Peek, &limit, text, 1).await.verdict();
        assert_eq!((asked.allowed, asked.retry_after), (false, peek.retry_after), "{text}");
        assert_eq!(bench.inspect(&limit, text).await, before, "{text}");
    }
}

async fn a_limit_of_zero_allows_nothing(bench: &Bench) {
    for text in [
        "0/s",
        "fixed-window 0/60s",
        "sliding-log 0/60s",
        "sliding-window 0/60s",
        "leaky-bucket 0/s",
    ] {
        let limit = bench.limit("zero", text);
        assert_eq!(bench.check(&limit, text, 1).await.outcome(), Outcome::Never, "{text}");
        assert!(bench.peek(&limit, text).await.allowed, "{text}");
        assert!(bench.one(Op::Record, &limit, text, 5).await.allowed(), "{text}");
    }
}

async fn a_queue_gives_turns_at_its_rate(bench: &Bench) {
    let limit = bench.limit("turns", "leaky-bucket 3/s capacity 5 queue");
    for (k, delay) in [0, 333_334, 666_667, 1_000_000, 1_333_334].into_iter().enumerate() {
        let verdict = bench.check(&limit, "k", 1).await;
        assert_eq!((verdict.allowed, verdict.delay), (true, Micros::new(delay)), "turn {k}");
    }
    assert_eq!(wait_of(&bench.check(&limit, "k", 1).await), Micros::new(333_334));
    let back = bench.one(Op::Refund, &limit, "k", 3).await.refunded();
    assert_eq!(back.get(), 1, "only the last turn can be given back");
    assert_eq!(bench.check(&limit, "k", 1).await.delay, Micros::new(1_333_334));
}

async fn keys_do_not_share(bench: &Bench) {
    let limit = bench.limit("keys", "sliding-log 1/60s");
    let long = "x".repeat(900);
    let hostile = ["", "a", "{a}", "a}", "a:b", "a\nb", "a\0b", "*", "é", &long, "a\0"];
    for key in hostile {
        assert!(bench.check(&limit, key, 1).await.allowed, "first of {key:?}");
    }
    for key in hostile {
        assert!(!bench.check(&limit, key, 1).await.allowed, "second of {key:?}");
    }
}
