//! Idempotency: at most one charge per id.

use tidegate_core::{Expiry, Micros};

use super::{Bench, EVERY_LIMIT};
use crate::{CallId, Decision, HoldId, Op, Refusal, Rule};

pub(super) async fn run(new: impl Fn() -> Bench) {
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
    first.clone().again()
}

async fn an_id_is_charged_once(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("once", text);
        let first = bench.ask_once(Op::Check, &[(&limit, text, 4)], Some("a")).await;
        let first = first.expect("a decision");
        assert_eq!(first.remaining(), 6, "{text}");
        for _ in 0..3 {
            let again = bench.ask_once(Op::Check, &[(&limit, text, 4)], Some("a")).await;
            assert_eq!(again.expect("a decision"), repeated(&first), "{text}");
        }
        assert_eq!(bench.peek(&limit, text).await.remaining, 6, "{text}");
    }
    bench.advance(CallId::TTL);
    let limit = bench.limit("once", "fixed-window 10/d");
    let anew = bench.ask_once(Op::Check, &[(&limit, "fixed-window 10/d", 4)], Some("a")).await;
    assert!(anew.expect("a decision").allowed(), "forgotten after its time");
    assert_eq!(bench.peek(&limit, "fixed-window 10/d").await.remaining, 2);
}

async fn an_id_serves_one_request_only(bench: &Bench) {
    let limit = bench.limit("one-request", "10/m");
    let other = bench.limit("other", "10/m");
    bench.ask_once(Op::Check, &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    for (op, asks) in [
        (Op::Check, vec![(&limit, "k", 3)]),
        (Op::Record, vec![(&limit, "k", 4)]),
        (Op::Check, vec![(&limit, "k", 4), (&other, "k", 1)]),
    ] {
        let refused = bench.ask_once(op, &asks, Some("a")).await.expect_err("another request");
        assert_eq!(refused.refusal(), Some(&Refusal::IdReused), "{op:?}");
    }
    assert_eq!(bench.peek(&limit, "k").await.remaining, 6);
    assert_eq!(bench.peek(&other, "k").await.remaining, 10);
}

async fn a_denial_is_not_remembered(bench: &Bench) {
    let limit = bench.limit("denial", "sliding-log 10/m");
    bench.check(&limit, "k", 10).await;
    let denied = bench.ask_once(Op::Check, &[(&limit, "k", 1)], Some("a")).await;
    assert!(!denied.expect("a decision").allowed());
    let peeked = bench.ask_once(Op::Check, &[(&limit, "k", 0)], Some("a")).await;
    assert!(peeked.expect("a decision").allowed(), "a check of nothing charges nothing");
    bench.advance(Micros::from_secs(60));
    let allowed = bench.ask_once(Op::Check, &[(&limit, "k", 1)], Some("a")).await;
    assert!(allowed.expect("a decision").allowed());
}

async fn an_id_belongs_to_its_rule_and_key(bench: &Bench) {
    let (one, two) = (bench.limit("scope-1", "10/m"), bench.limit("scope-2", "10/m"));
    for (limit, key) in [(&one, "k"), (&one, "l"), (&two, "k")] {
        let asked = bench.ask_once(Op::Check, &[(limit, key, 4)], Some("a")).await;
        assert_eq!(asked.expect("a decision").remaining(), 6, "{} {key}", limit.rule());
    }
}

async fn a_reservation_made_twice_is_one(bench: &Bench) {
    let limit = bench.limit("reserve", "10/m");
    let hold = || {
        let id = HoldId::random().expect("the system has random numbers");
        Op::Hold { id, ttl: Micros::from_secs(5), expiry: Expiry::Release }
    };
    let first = bench.ask_once(hold(), &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    let again = bench.ask_once(hold(), &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    assert_eq!(again, repeated(&first), "the same reservation");
    assert_eq!(bench.peek(&limit, "k").await.remaining, 6);
    // A reservation that is over is not handed out again.
    bench.settle(first.hold().expect("a hold"), Some(0)).await.expect("a decision");
    let anew = bench.ask_once(hold(), &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    assert!(anew.allowed() && !anew.repeated() && anew.hold() != first.hold());
    bench.advance(Micros::from_secs(5));
    let after = bench.ask_once(hold(), &[(&limit, "k", 4)], Some("a")).await.expect("a decision");
    assert!(after.allowed() && !after.repeated() && after.hold() != anew.hold());
}

async fn a_renewed_reservation_is_the_same_one(bench: &Bench) {
    let limit = bench.limit("renewed", "concurrency 5 lease 60s");
    let ttl = Micros::from_secs(60);
    let ask = async || {
        let (_, hold) = bench.hold(ttl);
        bench.ask_once(hold, &[(&limit, "k", 1)], Some("a")).await.expect("a decision")
    };
    let first = ask().await;
    let id = first.hold().expect("a hold");
    for _ in 0..3 {
        bench.advance(Micros::from_secs(40));
        assert!(!bench.renew(id, ttl).await.expect("a decision").expired());
        assert_eq!(ask().await, repeated(&first));
        assert_eq!(bench.inspect(&limit, "k").await.standing.held, 1);
    }
    bench.settle(id, Some(0)).await.expect("a decision");
    let second = ask().await;
    assert!(!second.repeated() && second.hold() != first.hold(), "cancelled, it is not handed out");
    bench.one(Op::Reset, &limit, "k", 0).await;
    let third = ask().await;
    assert!(!third.repeated() && third.hold() != second.hold(), "nor is one that was reset");
}

async fn an_id_outlives_a_step_of_the_clock(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("step", text);
        let ask = async || {
            let answer = bench.ask_once(Op::Check, &[(&limit, text, 4)], Some("a")).await;
            answer.expect("a decision")
        };
        let first = ask().await;
        for step in [1, 3_600_000_000, 86_400_000_000] {
            bench.clock.set(bench.now().saturating_sub(Micros::new(step)));
            assert_eq!(ask().await, repeated(&first), "{text}, {step} us back");
        }
        bench.advance(CallId::TTL);
        assert!(!ask().await.repeated(), "{text}: an hour from the step on, and no longer");
        bench.advance(Micros::from_secs(40 * 86_400));
    }
}

async fn an_id_outlives_a_change_of_its_rule(bench: &Bench) {
    let rule = |limits: &[&str]| {
        let limits = limits.iter().map(|text| text.parse().expect("a limit of the suite"));
        Rule::new("changed", limits.collect::<Vec<_>>()).expect("a rule of the suite")
    };
    let ask = async |rule: &Rule| {
        let asks: Vec<_> = rule.limits().iter().map(|limit| (limit, "k", 4)).collect();
        bench.ask_once(Op::Check, &asks, Some("a")).await.expect("a decision")
    };
    let first = ask(&rule(&["sliding-log 10/h", "fixed-window 50/h"])).await;
    for limits in [
        &["sliding-log 10/h", "fixed-window 50/h", "30/h"][..],
        &["sliding-log 10/h"],
        &["fixed-window 60/h", "sliding-log 20/h"],
    ] {
        assert_eq!(ask(&rule(limits)).await, repeated(&first), "{limits:?}");
    }
}
