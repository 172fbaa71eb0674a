//! Reservations and concurrency.

use tidegate_core::{Expiry, Micros};

use super::harness::{EVERY_LIMIT, Harness, wait_of};
use crate::{HoldId, Op, Refusal};

pub(super) async fn run(new: impl Fn() -> Harness) {
    a_hold_reserves_and_charges_nothing(&new()).await;
    a_commit_charges_what_it_names(&new()).await;
    a_hold_is_all_or_none(&new()).await;
    a_hold_ends_at_its_deadline(&new()).await;
    a_lease_is_charged_at_its_deadline(&new()).await;
    a_loan_is_charged_at_its_deadline_and_forgotten_when_settled(&new()).await;
    a_renewed_hold_lasts_longer(&new()).await;
    settling_again_returns_the_same_decision(&new()).await;
    concurrency_counts_holders(&new()).await;
    a_hold_outlives_no_clock_step(&new()).await;
    a_hold_ends_under_the_present_limit(&new()).await;
    a_charging_hold_on_a_limit_of_zero_charges_nothing(&new()).await;
    a_thousand_holds_expire_together(&new()).await;
}

const TTL: Micros = Micros::from_secs(5);

async fn a_hold_reserves_and_charges_nothing(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("hold", text);
        let (id, hold) = harness.hold(TTL);
        let made = harness.one(hold, &limit, text, 7).await;
        assert_eq!((made.allowed(), made.remaining()), (true, 3), "{text}");
        let requested = id.get();
        let id = made.hold().expect("a hold");
        assert_eq!(id.get(), requested, "an engine only adds the location");
        let wait = wait_of(&harness.check(&limit, text, 4).await);
        assert_eq!(wait, TTL, "the hold is released at its deadline, {text}");
        let (_, second) = harness.hold(TTL);
        let denied = harness.one(second, &limit, text, 4).await;
        assert_eq!((denied.allowed(), denied.hold()), (false, None), "{text}");
        let cancelled = harness.settle(id, Some(0)).await.expect("a decision");
        assert_eq!((cancelled.expired(), cancelled.remaining()), (false, 10), "{text}");
        assert!(harness.check(&limit, text, 10).await.allowed, "{text}");
    }
}

async fn a_commit_charges_what_it_names(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("commit", text);
        for (cost, remaining) in [(Some(3), 7), (None, 4), (Some(5), 5), (Some(12), 0)] {
            let key = format!("{text} {cost:?}");
            let id = harness.held(TTL, &limit, &key, 6).await;
            let done = harness.settle(id, cost).await.expect("a decision");
            assert_eq!((done.expired(), done.remaining()), (false, remaining), "{text} {cost:?}");
            assert_eq!(done.allowed(), cost != Some(12), "denied only in debt, {text} {cost:?}");
        }
    }
}

async fn a_hold_is_all_or_none(harness: &Harness) {
    let (first, second) = (harness.limit("one", "10/m"), harness.limit("two", "sliding-log 5/m"));
    let (_, hold) = harness.hold(TTL);
    let denied = harness.call(hold, &[(&first, "k", 5), (&second, "k", 6)]).await;
    assert!(!denied.expect("a decision").allowed());
    assert_eq!(harness.peek(&first, "k").await.remaining, 10);
    let (_, hold) = harness.hold(TTL);
    let made = harness.call(hold, &[(&first, "k", 5), (&second, "k", 4)]).await;
    let id = made.expect("a decision").hold().expect("a hold");
    let done = harness.settle(id, None).await.expect("a decision");
    let remaining: Vec<u64> = done.verdicts.iter().map(|verdict| verdict.remaining).collect();
    assert_eq!(remaining, [5, 1]);
}

async fn a_hold_ends_at_its_deadline(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("deadline", text);
        let id = harness.held(TTL, &limit, text, 6).await;
        harness.advance(TTL.saturating_sub(Micros::new(1)));
        assert_eq!(harness.peek(&limit, text).await.remaining, 4, "{text}");
        harness.advance(Micros::new(1));
        assert_eq!(harness.peek(&limit, text).await.remaining, 10, "{text}");
        let late = harness.settle(id, Some(4)).await.expect("a decision");
        assert_eq!((late.expired(), late.remaining()), (true, 6), "charged all the same, {text}");
    }
}

async fn a_lease_is_charged_at_its_deadline(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("lease", text);
        let id = HoldId::random().expect("random numbers");
        let made = harness.one(Op::hold(id, TTL, Expiry::Charge), &limit, text, 6).await;
        let id = made.hold().expect("a hold");
        harness.advance(TTL);
        let charged = harness.inspect(&limit, text).await.standing;
        assert_eq!((charged.used, charged.held), (6, 0), "{text}");
        let late = harness.settle(id, Some(4)).await.expect("a decision");
        assert_eq!((late.expired(), late.remaining()), (true, 4), "not charged twice, {text}");
        harness.advance(Micros::from_secs(40 * 86_400));
    }
}

async fn a_loan_is_charged_at_its_deadline_and_forgotten_when_settled(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("lent", text);
        let borrow = || Op::loan(HoldId::random().expect("random numbers"), TTL);
        let first = harness.one(borrow(), &limit, text, 4).await;
        assert_eq!((first.allowed(), first.remaining()), (true, 6), "{text}");
        let first = first.hold().expect("a hold");
        let second = harness.one(borrow(), &limit, text, 3).await.hold().expect("a hold");
        let denied = harness.one(borrow(), &limit, text, 4).await;
        assert_eq!((denied.allowed(), denied.hold()), (false, None), "{text}");
        let settled = harness.settle(first, Some(1)).await.expect("a decision");
        assert_eq!((settled.expired(), settled.remaining()), (false, 6), "{text}");
        let again = harness.settle(first, Some(1)).await.expect_err("forgotten");
        assert_eq!(again.refusal(), Some(&Refusal::UnknownHold), "{text}");
        let key = format!("{text} unsettled");
        let late = harness.one(borrow(), &limit, &key, 10).await.hold().expect("a hold");
        harness.advance(TTL);
        let settled = harness.settle(late, Some(2)).await.expect("a decision");
        assert_eq!((settled.expired(), settled.remaining()), (true, 0), "{text}");
        drop(harness.settle(second, Some(0)).await);
    }
}

async fn a_renewed_hold_lasts_longer(harness: &Harness) {
    let limit = harness.limit("renew", "sliding-log 10/m");
    let id = harness.held(TTL, &limit, "k", 6).await;
    harness.advance(Micros::from_secs(4));
    assert!(!harness.renew(id, TTL).await.expect("a decision").expired());
    harness.advance(Micros::from_secs(4));
    assert_eq!(harness.peek(&limit, "k").await.remaining, 4);
    harness.advance(Micros::from_secs(1));
    assert_eq!(harness.peek(&limit, "k").await.remaining, 10);
    assert!(harness.renew(id, TTL).await.expect("a decision").expired(), "too late");
    assert_eq!(harness.peek(&limit, "k").await.remaining, 10);
}

async fn settling_again_returns_the_same_decision(harness: &Harness) {
    let limit = harness.limit("again", "sliding-log 10/d");
    let id = harness.held(TTL, &limit, "k", 6).await;
    let first = harness.settle(id, Some(2)).await.expect("a decision");
    harness.advance(Micros::from_secs(3_000));
    assert_eq!(harness.settle(id, Some(2)).await.expect("a decision"), first);
    assert_eq!(harness.peek(&limit, "k").await.remaining, 8, "charged once");
    for cost in [Some(0), Some(3), None] {
        let refused = harness.settle(id, cost).await.expect_err("settled");
        assert_eq!(refused.refusal(), Some(&Refusal::AlreadySettled), "{cost:?}");
    }
    let refused = harness.renew(id, TTL).await.expect_err("settled");
    assert_eq!(refused.refusal(), Some(&Refusal::AlreadySettled));
    harness.advance(HoldId::RETENTION);
    let forgotten = harness.settle(id, Some(2)).await.expect_err("forgotten");
    assert_eq!(forgotten.refusal(), Some(&Refusal::UnknownHold));
}

async fn concurrency_counts_holders(harness: &Harness) {
    let limit = harness.limit("holders", "concurrency 2 lease 5s");
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(harness.held(TTL, &limit, "k", 1).await);
        harness.advance(Micros::from_secs(1));
    }
    let (_, third) = harness.hold(TTL);
    assert_eq!(wait_of(&harness.one(third, &limit, "k", 1).await.verdict()), Micros::from_secs(3));
    harness.settle(ids[1], Some(1)).await.expect("a decision");
    let (_, third) = harness.hold(TTL);
    assert!(harness.one(third, &limit, "k", 1).await.allowed(), "a holder left");
    harness.advance(Micros::from_secs(3));
    let (_, fourth) = harness.hold(TTL);
    assert!(
        harness.one(fourth, &limit, "k", 1).await.allowed(),
        "the lease of a crashed holder has ended"
    );
    let standing = harness.inspect(&limit, "k").await.standing;
    assert_eq!((standing.used, standing.held, standing.remaining), (0, 2, 0));
}

async fn a_hold_outlives_no_clock_step(harness: &Harness) {
    let limit = harness.limit("step", "concurrency 1 lease 5s");
    harness.held(TTL, &limit, "k", 1).await;
    harness.clock.set(harness.now().saturating_sub(Micros::from_secs(86_400)));
    assert_eq!(harness.peek(&limit, "k").await.retry_after.span(), Some(TTL));
    harness.advance(TTL);
    assert_eq!(harness.peek(&limit, "k").await.remaining, 1);
}

/// A hold stores the limit it was made under; settling it must not reactivate that limit.
async fn a_hold_ends_under_the_present_limit(harness: &Harness) {
    for (old, new) in [
        ("5/h", "100/h"),
        ("5/h every 1h", "100/h every 1h"),
        ("leaky-bucket 5/h", "leaky-bucket 100/h"),
        ("fixed-window 5/h", "fixed-window 100/h"),
        ("fixed-window 5/h", "fixed-window 100/d"),
        ("fixed-window 5/d", "fixed-window 100/month"),
        ("fixed-window 5/month", "fixed-window 100/h first-hit"),
        ("sliding-log 5/h", "sliding-log 100/h"),
        ("sliding-window 5/h", "sliding-window 100/h precision 7m"),
        ("sliding-window 5/h approximate", "sliding-window 100/h approximate"),
    ] {
        let key = format!("{old} {new}");
        let before = harness.limit("raised", old);
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(harness.held(Micros::from_secs(3_000), &before, &key, 1).await);
        }
        let after = harness.limit("raised", new);
        let mut admitted = 0;
        let mut fill = async || {
            while harness.check(&after, &key, 1).await.allowed {
                admitted += 1;
            }
            admitted
        };
        assert_eq!(fill().await, 96, "{key}");
        let renewed = harness.renew(ids[0], TTL).await.expect("a decision");
        assert_eq!((renewed.expired(), renewed.verdict().limit), (false, 100), "{key}");
        assert_eq!(fill().await, 96, "{key}");
        let settled = harness.settle(ids[1], Some(1)).await.expect("a decision");
        assert_eq!((settled.remaining(), settled.verdict().limit), (0, 100), "{key}");
        assert_eq!(fill().await, 96, "{key}");
        for (left, id) in [(1, ids[2]), (2, ids[3])] {
            let cancelled = harness.settle(id, Some(0)).await.expect("a decision");
            assert_eq!(cancelled.remaining(), 1, "{key}");
            assert_eq!(fill().await, 96 + left, "{key}");
        }
    }
}

async fn a_charging_hold_on_a_limit_of_zero_charges_nothing(harness: &Harness) {
    let other = harness.limit("other", "fixed-window 50/h");
    for (text, zero) in [
        ("5/s", "0/s"),
        ("5/s every 1s", "0/s every 1s"),
        ("leaky-bucket 5/s", "leaky-bucket 0/s"),
        ("fixed-window 5/h", "fixed-window 0/h"),
        ("sliding-log 5/h", "sliding-log 0/h"),
        ("sliding-window 5/h", "sliding-window 0/h"),
        ("sliding-window 5/h approximate", "sliding-window 0/h approximate"),
    ] {
        let before = harness.limit("zero", text);
        let (id, _) = harness.hold(TTL);
        let hold = Op::hold(id, TTL, Expiry::Charge);
        harness.one(hold, &before, text, 1).await;
        let after = harness.limit("zero", zero);
        for recorded in 1..=3 {
            let both = [(&other, text, 1), (&after, text, 1)];
            let done = harness.call(Op::Record, &both).await.expect("a decision");
            assert_eq!(done.verdicts[0].remaining, 50 - recorded, "{text} -> {zero}");
            assert_eq!(done.verdicts[1].remaining, 0, "{text} -> {zero}");
            harness.advance(Micros::from_secs(4));
        }
        assert_eq!(harness.inspect(&after, text).await.standing.used, 0, "{zero}");
    }
}

async fn a_thousand_holds_expire_together(harness: &Harness) {
    for text in ["concurrency 1000 lease 5s", "fixed-window 1000/h"] {
        let limit = harness.limit("thousand", text);
        for _ in 0..1_000 {
            harness.held(TTL, &limit, text, 1).await;
        }
        harness.advance(TTL.saturating_sub(Micros::new(1)));
        assert_eq!(harness.peek(&limit, text).await.remaining, 0, "{text}");
        // So many holds of one key may end late by a part of their TTL.
        harness.advance(Micros::new(TTL.get() / 64 + 1));
        assert_eq!(harness.peek(&limit, text).await.remaining, 1_000, "{text}");
        for left in (990..1_000).rev() {
            let (_, hold) = harness.hold(TTL);
            assert_eq!(harness.one(hold, &limit, text, 1).await.remaining(), left, "{text}");
        }
    }
}
