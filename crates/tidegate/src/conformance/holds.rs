//! Reservations and concurrency.

use tidegate_core::{Expiry, Micros};

use super::{Bench, EVERY_LIMIT, wait_of};
use crate::{HoldId, Op, Refusal};

pub(super) async fn run(new: impl Fn() -> Bench) {
    a_hold_sets_aside_and_charges_nothing(&new()).await;
    a_commit_charges_what_it_names(&new()).await;
    a_hold_is_all_or_none(&new()).await;
    a_hold_ends_at_its_deadline(&new()).await;
    a_lease_is_charged_at_its_deadline(&new()).await;
    what_is_lent_is_charged_at_its_deadline_and_forgotten_when_settled(&new()).await;
    a_renewed_hold_lasts_longer(&new()).await;
    a_settled_hold_answers_the_same_again(&new()).await;
    concurrency_counts_holders(&new()).await;
    a_hold_outlives_no_clock_step(&new()).await;
    a_hold_ends_under_the_limit_that_counts_by_then(&new()).await;
    a_charging_hold_on_a_limit_of_zero_charges_nothing(&new()).await;
    a_thousand_holds_that_end_together_are_gone_together(&new()).await;
}

const TTL: Micros = Micros::from_secs(5);

async fn a_hold_sets_aside_and_charges_nothing(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("hold", text);
        let (id, hold) = bench.hold(TTL);
        let made = bench.one(hold, &limit, text, 7).await;
        assert_eq!((made.allowed(), made.remaining()), (true, 3), "{text}");
        let asked = id.get();
        let id = made.hold().expect("a hold");
        assert_eq!(id.get(), asked, "an engine only adds where it lies");
        let wait = wait_of(&bench.check(&limit, text, 4).await);
        assert_eq!(wait, TTL, "what is held comes back at the deadline, {text}");
        let (_, second) = bench.hold(TTL);
        let denied = bench.one(second, &limit, text, 4).await;
        assert_eq!((denied.allowed(), denied.hold()), (false, None), "{text}");
        let cancelled = bench.settle(id, Some(0)).await.expect("a decision");
        assert_eq!((cancelled.expired(), cancelled.remaining()), (false, 10), "{text}");
        assert!(bench.check(&limit, text, 10).await.allowed, "{text}");
    }
}

async fn a_commit_charges_what_it_names(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("commit", text);
        for (cost, remaining) in [(Some(3), 7), (None, 4), (Some(5), 5), (Some(12), 0)] {
            let key = format!("{text} {cost:?}");
            let id = bench.held(TTL, &limit, &key, 6).await;
            let done = bench.settle(id, cost).await.expect("a decision");
            assert_eq!((done.expired(), done.remaining()), (false, remaining), "{text} {cost:?}");
            assert_eq!(done.allowed(), cost != Some(12), "denied only in debt, {text} {cost:?}");
        }
    }
}

async fn a_hold_is_all_or_none(bench: &Bench) {
    let (first, second) = (bench.limit("one", "10/m"), bench.limit("two", "sliding-log 5/m"));
    let (_, hold) = bench.hold(TTL);
    let denied = bench.ask(hold, &[(&first, "k", 5), (&second, "k", 6)]).await;
    assert!(!denied.expect("a decision").allowed());
    assert_eq!(bench.peek(&first, "k").await.remaining, 10);
    let (_, hold) = bench.hold(TTL);
    let made = bench.ask(hold, &[(&first, "k", 5), (&second, "k", 4)]).await;
    let id = made.expect("a decision").hold().expect("a hold");
    let done = bench.settle(id, None).await.expect("a decision");
    let remaining: Vec<u64> = done.verdicts.iter().map(|verdict| verdict.remaining).collect();
    assert_eq!(remaining, [5, 1]);
}

async fn a_hold_ends_at_its_deadline(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("deadline", text);
        let id = bench.held(TTL, &limit, text, 6).await;
        bench.advance(TTL.saturating_sub(Micros::new(1)));
        assert_eq!(bench.peek(&limit, text).await.remaining, 4, "{text}");
        bench.advance(Micros::new(1));
        assert_eq!(bench.peek(&limit, text).await.remaining, 10, "{text}");
        let late = bench.settle(id, Some(4)).await.expect("a decision");
        assert_eq!((late.expired(), late.remaining()), (true, 6), "charged all the same, {text}");
    }
}

async fn a_lease_is_charged_at_its_deadline(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("lease", text);
        let (id, hold) = bench.hold(TTL);
        let Op::Hold { ttl, .. } = hold else { unreachable!("a hold") };
        let made = bench.one(Op::Hold { id, ttl, expiry: Expiry::Charge }, &limit, text, 6).await;
        let id = made.hold().expect("a hold");
        bench.advance(TTL);
        let charged = bench.inspect(&limit, text).await.standing;
        assert_eq!((charged.used, charged.held), (6, 0), "{text}");
        let late = bench.settle(id, Some(4)).await.expect("a decision");
        assert_eq!((late.expired(), late.remaining()), (true, 4), "not charged twice, {text}");
        bench.advance(Micros::from_secs(40 * 86_400));
    }
}

async fn what_is_lent_is_charged_at_its_deadline_and_forgotten_when_settled(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("lent", text);
        let lend = || Op::Lend { id: HoldId::random().expect("random numbers"), ttl: TTL };
        let first = bench.one(lend(), &limit, text, 4).await;
        assert_eq!((first.allowed(), first.remaining()), (true, 6), "{text}");
        let first = first.hold().expect("a hold");
        let second = bench.one(lend(), &limit, text, 3).await.hold().expect("a hold");
        let denied = bench.one(lend(), &limit, text, 4).await;
        assert_eq!((denied.allowed(), denied.hold()), (false, None), "{text}");
        let settled = bench.settle(first, Some(1)).await.expect("a decision");
        assert_eq!((settled.expired(), settled.remaining()), (false, 6), "{text}");
        let again = bench.settle(first, Some(1)).await.expect_err("it is forgotten");
        assert_eq!(again.refusal(), Some(&Refusal::UnknownHold), "{text}");
        let key = format!("{text} unsettled");
        let late = bench.one(lend(), &limit, &key, 10).await.hold().expect("a hold");
        bench.advance(TTL);
        let settled = bench.settle(late, Some(2)).await.expect("a decision");
        assert_eq!((settled.expired(), settled.remaining()), (true, 0), "{text}");
        drop(bench.settle(second, Some(0)).await);
    }
}

async fn a_renewed_hold_lasts_longer(bench: &Bench) {
    let limit = bench.limit("renew", "sliding-log 10/m");
    let id = bench.held(TTL, &limit, "k", 6).await;
    bench.advance(Micros::from_secs(4));
    assert!(!bench.renew(id, TTL).await.expect("a decision").expired());
    bench.advance(Micros::from_secs(4));
    assert_eq!(bench.peek(&limit, "k").await.remaining, 4);
    bench.advance(Micros::from_secs(1));
    assert_eq!(bench.peek(&limit, "k").await.remaining, 10);
    assert!(bench.renew(id, TTL).await.expect("a decision").expired(), "too late");
    assert_eq!(bench.peek(&limit, "k").await.remaining, 10);
}

async fn a_settled_hold_answers_the_same_again(bench: &Bench) {
    let limit = bench.limit("again", "sliding-log 10/d");
    let id = bench.held(TTL, &limit, "k", 6).await;
    let first = bench.settle(id, Some(2)).await.expect("a decision");
    bench.advance(Micros::from_secs(3_000));
    assert_eq!(bench.settle(id, Some(2)).await.expect("a decision"), first);
    assert_eq!(bench.peek(&limit, "k").await.remaining, 8, "charged once");
    for otherwise in [Some(0), Some(3), None] {
        let refused = bench.settle(id, otherwise).await.expect_err("settled");
        assert_eq!(refused.refusal(), Some(&Refusal::AlreadySettled), "{otherwise:?}");
    }
    let refused = bench.renew(id, TTL).await.expect_err("settled");
    assert_eq!(refused.refusal(), Some(&Refusal::AlreadySettled));
    bench.advance(HoldId::REMEMBERED);
    let forgotten = bench.settle(id, Some(2)).await.expect_err("forgotten");
    assert_eq!(forgotten.refusal(), Some(&Refusal::UnknownHold));
}

async fn concurrency_counts_holders(bench: &Bench) {
    let limit = bench.limit("holders", "concurrency 2 lease 5s");
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(bench.held(TTL, &limit, "k", 1).await);
        bench.advance(Micros::from_secs(1));
    }
    let (_, third) = bench.hold(TTL);
    assert_eq!(wait_of(&bench.one(third, &limit, "k", 1).await.verdict()), Micros::from_secs(3));
    bench.settle(ids[1], Some(1)).await.expect("a decision");
    let (_, third) = bench.hold(TTL);
    assert!(bench.one(third, &limit, "k", 1).await.allowed(), "a holder left");
    bench.advance(Micros::from_secs(3));
    let (_, fourth) = bench.hold(TTL);
    assert!(bench.one(fourth, &limit, "k", 1).await.allowed(), "a crashed holder is gone");
    let standing = bench.inspect(&limit, "k").await.standing;
    assert_eq!((standing.used, standing.held, standing.remaining), (0, 2, 0));
}

async fn a_hold_outlives_no_clock_step(bench: &Bench) {
    let limit = bench.limit("step", "concurrency 1 lease 5s");
    bench.held(TTL, &limit, "k", 1).await;
    bench.clock.set(bench.now().saturating_sub(Micros::from_secs(86_400)));
    assert_eq!(bench.peek(&limit, "k").await.retry_after.span(), Some(TTL));
    bench.advance(TTL);
    assert_eq!(bench.peek(&limit, "k").await.remaining, 1);
}

/// The hold remembers the limit it was made for; ending it must not bring that one back.
async fn a_hold_ends_under_the_limit_that_counts_by_then(bench: &Bench) {
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
        let before = bench.limit("raised", old);
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(bench.held(Micros::from_secs(3_000), &before, &key, 1).await);
        }
        let after = bench.limit("raised", new);
        let mut admitted = 0;
        let mut fill = async || {
            while bench.check(&after, &key, 1).await.allowed {
                admitted += 1;
            }
            admitted
        };
        assert_eq!(fill().await, 96, "{key}");
        let renewed = bench.renew(ids[0], TTL).await.expect("a decision");
        assert_eq!((renewed.expired(), renewed.verdict().limit), (false, 100), "{key}");
        assert_eq!(fill().await, 96, "{key}");
        let settled = bench.settle(ids[1], Some(1)).await.expect("a decision");
        assert_eq!((settled.remaining(), settled.verdict().limit), (0, 100), "{key}");
        assert_eq!(fill().await, 96, "{key}");
        for (left, id) in [(1, ids[2]), (2, ids[3])] {
            let cancelled = bench.settle(id, Some(0)).await.expect("a decision");
            assert_eq!(cancelled.remaining(), 1, "{key}");
            assert_eq!(fill().await, 96 + left, "{key}");
        }
    }
}

async fn a_charging_hold_on_a_limit_of_zero_charges_nothing(bench: &Bench) {
    let beside = bench.limit("beside", "fixed-window 50/h");
    for (text, zero) in [
        ("5/s", "0/s"),
        ("5/s every 1s", "0/s every 1s"),
        ("leaky-bucket 5/s", "leaky-bucket 0/s"),
        ("fixed-window 5/h", "fixed-window 0/h"),
        ("sliding-log 5/h", "sliding-log 0/h"),
        ("sliding-window 5/h", "sliding-window 0/h"),
        ("sliding-window 5/h approximate", "sliding-window 0/h approximate"),
    ] {
        let before = bench.limit("zero", text);
        let (id, _) = bench.hold(TTL);
        let hold = Op::Hold { id, ttl: TTL, expiry: Expiry::Charge };
        bench.one(hold, &before, text, 1).await;
        let after = bench.limit("zero", zero);
        for recorded in 1..=3 {
            let both = [(&beside, text, 1), (&after, text, 1)];
            let done = bench.ask(Op::Record, &both).await.expect("a decision");
            assert_eq!(done.verdicts[0].remaining, 50 - recorded, "{text} -> {zero}");
            assert_eq!(done.verdicts[1].remaining, 0, "{text} -> {zero}");
            bench.advance(Micros::from_secs(4));
        }
        assert_eq!(bench.inspect(&after, text).await.standing.used, 0, "{zero}");
    }
}

async fn a_thousand_holds_that_end_together_are_gone_together(bench: &Bench) {
    for text in ["concurrency 1000 lease 5s", "fixed-window 1000/h"] {
        let limit = bench.limit("thousand", text);
        for _ in 0..1_000 {
            bench.held(TTL, &limit, text, 1).await;
        }
        assert_eq!(bench.peek(&limit, text).await.remaining, 0, "{text}");
        bench.advance(TTL);
        assert_eq!(bench.peek(&limit, text).await.remaining, 1_000, "{text}");
        for left in (990..1_000).rev() {
            let (_, hold) = bench.hold(TTL);
            assert_eq!(bench.one(hold, &limit, text, 1).await.remaining(), left, "{text}");
        }
    }
}
