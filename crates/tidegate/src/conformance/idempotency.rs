//! Idempotency: at most one charge per id.

use tidegate_core::{Expiry, Micros};

use super::harness::{EVERY_LIMIT, Harness};
use crate::{Decision, HoldId, IdempotencyKey, Op, Refusal, Rule};

pub(super) async fn run(new: impl Fn() -> Harness) {
    an_id_is_charged_once(&new()).await;
    an_id_serves_one_request_only(&new()).await;
    a_denial_is_not_remembered(&new()).await;
    an_id_belongs_to_its_rule_and_key(&new()).await;
    a_reservation_made_twice_is_one(&new()).await;
    a_renewed_reservation_is_the_same_one(&new()).await;
    an_id_outlives_a_step_of_the_clock(&new()).await;
    an_id_outlives_a_change_of_its_rule(&new()).await;
}

fn repeated(first: &Decision) -> Decision {
    first.clone().into_repeated()
}

async fn an_id_is_charged_once(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("once", text);
        let first = harness.call_with_id(Op::Check, &[(&limit, text, 4)], Some("a")).await;
        let first = first.expect("a decision");
        assert_eq!(first.remaining(), 6, "{text}");
        for _ in 0..3 {
            let again = harness.call_with_id(Op::Check, &[(&limit, text, 4)], Some("a")).await;
            assert_eq!(again.expect("a decision"), repeated(&first), "{text}");
        }
        assert_eq!(harness.peek(&limit, text).await.remaining, 6, "{text}");
    }
    harness.advance(IdempotencyKey::TTL);
    let limit = harness.limit("once", "fixed-window 10/d");
    let later =
        harness.call_with_id(Op::Check, &[(&limit, "fixed-window 10/d", 4)], Some("a")).await;
    assert!(later.expect("a decision").allowed(), "forgotten after its time");
    assert_eq!(harness.peek(&limit, "fixed-window 10/d").await.remaining, 2);
}

async fn an_id_serves_one_request_only(harness: &Harness) {
    let limit = harness.limit("one-request", "10/m");
    let other = harness.limit("other", "10/m");
    harness.call_with_id(Op::Check, &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    for (op, charges) in [
        (Op::Check, vec![(&limit, "k", 3)]),
        (Op::Record, vec![(&limit, "k", 4)]),
        (Op::Check, vec![(&limit, "k", 4), (&other, "k", 1)]),
    ] {
        let refused =
            harness.call_with_id(op, &charges, Some("a")).await.expect_err("another request");
        assert_eq!(refused.refusal(), Some(&Refusal::IdReused), "{op:?}");
    }
    assert_eq!(harness.peek(&limit, "k").await.remaining, 6);
    assert_eq!(harness.peek(&other, "k").await.remaining, 10);
}

async fn a_denial_is_not_remembered(harness: &Harness) {
    let limit = harness.limit("denial", "sliding-log 10/m");
    harness.check(&limit, "k", 10).await;
    let denied = harness.call_with_id(Op::Check, &[(&limit, "k", 1)], Some("a")).await;
    assert!(!denied.expect("a decision").allowed());
    let peeked = harness.call_with_id(Op::Check, &[(&limit, "k", 0)], Some("a")).await;
    assert!(peeked.expect("a decision").allowed(), "a check of nothing charges nothing");
    harness.advance(Micros::from_secs(60));
    let allowed = harness.call_with_id(Op::Check, &[(&limit, "k", 1)], Some("a")).await;
    assert!(allowed.expect("a decision").allowed());
}

async fn an_id_belongs_to_its_rule_and_key(harness: &Harness) {
    let (one, two) = (harness.limit("scope-1", "10/m"), harness.limit("scope-2", "10/m"));
    for (limit, key) in [(&one, "k"), (&one, "l"), (&two, "k")] {
        let decision = harness.call_with_id(Op::Check, &[(limit, key, 4)], Some("a")).await;
        assert_eq!(decision.expect("a decision").remaining(), 6, "{} {key}", limit.rule());
    }
}

async fn a_reservation_made_twice_is_one(harness: &Harness) {
    let limit = harness.limit("reserve", "10/m");
    let hold = || {
        let id = HoldId::random().expect("the system has random numbers");
        Op::hold(id, Micros::from_secs(5), Expiry::Release)
    };
    let first =
        harness.call_with_id(hold(), &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    let again =
        harness.call_with_id(hold(), &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    assert_eq!(again, repeated(&first), "the same reservation");
    assert_eq!(harness.peek(&limit, "k").await.remaining, 6);
    // A reservation that has ended is not returned again.
    harness.settle(first.hold().expect("a hold"), Some(0)).await.expect("a decision");
    let second =
        harness.call_with_id(hold(), &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    assert!(second.allowed() && !second.repeated() && second.hold() != first.hold());
    harness.advance(Micros::from_secs(5));
    let after =
        harness.call_with_id(hold(), &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    assert!(after.allowed() && !after.repeated() && after.hold() != second.hold());
}

async fn a_renewed_reservation_is_the_same_one(harness: &Harness) {
    let limit = harness.limit("renewed", "concurrency 5 lease 60s");
    let ttl = Micros::from_secs(60);
    let call = async || {
        let (_, hold) = harness.hold(ttl);
        harness.call_with_id(hold, &[(&limit, "k", 1)], Some("a")).await.expect("a decision")
    };
    let first = call().await;
    let id = first.hold().expect("a hold");
    for _ in 0..3 {
        harness.advance(Micros::from_secs(40));
        assert!(!harness.renew(id, ttl).await.expect("a decision").expired());
        assert_eq!(call().await, repeated(&first));
        assert_eq!(harness.inspect(&limit, "k").await.standing.held, 1);
    }
    harness.settle(id, Some(0)).await.expect("a decision");
    let second = call().await;
    assert!(!second.repeated() && second.hold() != first.hold(), "a cancelled one is not returned");
    harness.one(Op::Reset, &limit, "k", 0).await;
    let third = call().await;
    assert!(!third.repeated() && third.hold() != second.hold(), "nor is one that was reset");
}

async fn an_id_outlives_a_step_of_the_clock(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("step", text);
        let call = async || {
            let result = harness.call_with_id(Op::Check, &[(&limit, text, 4)], Some("a")).await;
            result.expect("a decision")
        };
        let first = call().await;
        for step in [1, 3_600_000_000, 86_400_000_000] {
            harness.clock.set(harness.now().saturating_sub(Micros::new(step)));
            assert_eq!(call().await, repeated(&first), "{text}, {step} us back");
        }
        harness.advance(IdempotencyKey::TTL);
        assert!(!call().await.repeated(), "{text}: an hour from the step, and no longer");
        harness.advance(Micros::from_secs(40 * 86_400));
    }
}

async fn an_id_outlives_a_change_of_its_rule(harness: &Harness) {
    let rule = |limits: &[&str]| {
        let limits = limits.iter().map(|text| text.parse().expect("a limit of the suite"));
        Rule::new("changed", limits.collect::<Vec<_>>()).expect("a rule of the suite")
    };
    let call = async |rule: &Rule| {
        let charges: Vec<_> = rule.limits().iter().map(|limit| (limit, "k", 4)).collect();
        harness.call_with_id(Op::Check, &charges, Some("a")).await.expect("a decision")
    };
    let first = call(&rule(&["sliding-log 10/h", "fixed-window 50/h"])).await;
    for limits in [
        &["sliding-log 10/h", "fixed-window 50/h", "30/h"][..],
        &["sliding-log 10/h"],
        &["fixed-window 60/h", "sliding-log 20/h"],
    ] {
        assert_eq!(call(&rule(limits)).await, repeated(&first), "{limits:?}");
    }
}
