//! Reservations of several rules, each settled at its own cost.

use std::sync::Arc;

use tidegate_core::{Cost, Expiry, Micros};

use super::harness::{EVERY_LIMIT, Harness};
use crate::{
    Costs, Decision, HoldId, HoldKind, HoldSpec, Key, Op, Refusal, RuleCost, RuleLimit, Unit,
};

pub(super) async fn run(new: impl Fn() -> Harness) {
    each_rule_is_settled_at_its_own_cost(&new()).await;
    requests_are_charged_when_they_are_reserved(&new()).await;
    one_cost_is_refused_if_rules_hold_different_ones(&new()).await;
    a_rule_of_several_keys_is_settled_by_key(&new()).await;
    the_same_costs_in_another_form_return_the_same(&new()).await;
    tokens_are_charged_at_the_deadline_and_never_lowered(&new()).await;
    what_is_not_charged_is_reported(&new()).await;
    a_hold_counts_in_both_windows_and_is_charged_in_that_of_its_commit(&new()).await;
    a_reservation_under_an_id_is_the_same_one(&new()).await;
    a_step_back_moves_what_was_charged_when_it_was_reserved(&new()).await;
    a_named_hold_exists_once_and_is_found_by_its_key(&new()).await;
}

const TTL: Micros = Micros::from_secs(5);

fn remaining(decision: &Decision) -> Vec<u64> {
    decision.verdicts.iter().map(|verdict| verdict.remaining).collect()
}

/// Reserved, charged and uncharged of each limit.
fn charged(decision: &Decision) -> Vec<(u64, u64, u64)> {
    let settled = decision.settled().iter();
    let numbers = settled.map(|one| (one.reserved.get(), one.charged.get(), one.uncharged.get()));
    numbers.collect()
}

fn tokens(cost: u64) -> [RuleCost<'static>; 1] {
    [RuleCost::new("tokens", Cost::total(cost))]
}

struct Gateway {
    requests: Arc<RuleLimit>,
    tokens: Arc<RuleLimit>,
}

impl Gateway {
    fn new(harness: &Harness) -> Self {
        Self {
            requests: harness.budget("requests", "60/m", Unit::Requests),
            tokens: harness.budget("tokens", "fixed-window 10000/h", Unit::Tokens),
        }
    }

    async fn reserve(&self, harness: &Harness, key: &str, cost: u64) -> HoldId {
        let (_, hold) = harness.hold(TTL);
        let charges = [(&self.requests, key, 1), (&self.tokens, key, cost)];
        let made = harness.call(hold, &charges).await.expect("a decision");
        made.hold().expect("a hold")
    }
}

async fn each_rule_is_settled_at_its_own_cost(harness: &Harness) {
    let gateway = Gateway::new(harness);
    let id = gateway.reserve(harness, "ann", 1_500).await;
    assert_eq!(harness.peek(&gateway.tokens, "ann").await.remaining, 8_500);
    let settled = harness.settle_at(id, Costs::Each(&tokens(312))).await.expect("a decision");
    assert!(!settled.expired() && settled.allowed());
    assert_eq!(remaining(&settled), [59, 9_688]);
    assert_eq!(charged(&settled), [(1, 1, 0), (1_500, 312, 0)]);
    assert_eq!(
        settled.held().iter().map(|limit| limit.rule()).collect::<Vec<_>>(),
        ["requests", "tokens"]
    );
    let id = gateway.reserve(harness, "bob", 1_500).await;
    let settled = harness.settle(id, None).await.expect("a decision");
    assert_eq!(remaining(&settled), [59, 8_500], "what is not named is charged as reserved");
    let id = gateway.reserve(harness, "cat", 1_500).await;
    let settled = harness.settle(id, Some(0)).await.expect("a decision");
    assert_eq!(remaining(&settled), [59, 10_000], "a cancelled request was a request");
}

async fn requests_are_charged_when_they_are_reserved(harness: &Harness) {
    let gateway = Gateway::new(harness);
    let id = gateway.reserve(harness, "ann", 10).await;
    let standing = harness.inspect(&gateway.requests, "ann").await.standing;
    assert_eq!((standing.used, standing.held), (1, 0));
    harness.advance(Micros::from_secs(1));
    assert_eq!(harness.peek(&gateway.requests, "ann").await.remaining, 60, "it recovers meanwhile");
    let settled = harness.settle(id, None).await.expect("a decision");
    assert_eq!(remaining(&settled), [60, 9_990], "and is not charged again");
    let (_, hold) = harness.hold(TTL);
    let nothing = harness.call(hold, &[(&gateway.requests, "ann", 1)]).await;
    assert_eq!(nothing.expect_err("refused").refusal(), Some(&Refusal::NothingToHold));
    // A denial of either charges neither.
    let (_, hold) = harness.hold(TTL);
    let both = [(&gateway.requests, "ann", 1), (&gateway.tokens, "ann", 9_991)];
    let denied = harness.call(hold, &both).await.expect("a decision");
    assert_eq!((denied.allowed(), denied.hold()), (false, None));
    assert_eq!(harness.peek(&gateway.requests, "ann").await.remaining, 60);
}

async fn one_cost_is_refused_if_rules_hold_different_ones(harness: &Harness) {
    let (one, two) = (harness.limit("one", "10/m"), harness.limit("two", "sliding-log 50/m"));
    let hold = async |cost| {
        let (_, hold) = harness.hold(TTL);
        let made = harness.call(hold, &[(&one, "k", cost), (&two, "k", 4)]).await;
        made.expect("a decision").hold().expect("a hold")
    };
    let id = hold(3).await;
    let refused = harness.settle(id, Some(2)).await.expect_err("refused");
    assert_eq!(refused.refusal(), Some(&Refusal::DifferentCosts(2)));
    for rule in ["three", ""] {
        let costs = [RuleCost::new(rule, Cost::ONE)];
        let refused = harness.settle_at(id, Costs::Each(&costs)).await.expect_err("refused");
        assert_eq!(refused.refusal(), Some(&Refusal::NotHeld(rule.into())));
    }
    let standing = harness.inspect(&two, "k").await.standing;
    assert_eq!((standing.used, standing.held), (0, 4), "a refusal settles nothing");
    harness.settle(id, Some(0)).await.expect("cancelled");
    let id = hold(4).await;
    let settled = harness.settle(id, Some(2)).await.expect("a decision");
    assert_eq!(remaining(&settled), [8, 48], "both hold 4");
}

async fn a_rule_of_several_keys_is_settled_by_key(harness: &Harness) {
    let tokens_of = harness.budget("tokens", "fixed-window 100/h", Unit::Tokens);
    let (_, hold) = harness.hold(TTL);
    let charges = [(&tokens_of, "org", 40), (&tokens_of, "team", 30)];
    let id = harness.call(hold, &charges).await.expect("a decision").hold().expect("a hold");
    let refused = harness.settle_at(id, Costs::Each(&tokens(5))).await.expect_err("refused");
    assert_eq!(refused.refusal(), Some(&Refusal::CostOfSeveral("tokens".into())));
    let parts = [&*harness.nonce, "team"];
    let key = Some(Key::of(&parts));
    let team = [RuleCost { key, ..tokens(5)[0] }];
    let settled = harness.settle_at(id, Costs::Each(&team)).await.expect("a decision");
    assert_eq!(remaining(&settled), [60, 95]);
    let unknown = [RuleCost { key: Some(Key::from("unknown")), ..tokens(5)[0] }];
    let refused = harness.settle_at(id, Costs::Each(&unknown)).await.expect_err("refused");
    assert_eq!(refused.refusal(), Some(&Refusal::NotHeld("tokens".into())));
}

async fn the_same_costs_in_another_form_return_the_same(harness: &Harness) {
    let gateway = Gateway::new(harness);
    let id = gateway.reserve(harness, "ann", 500).await;
    let first = harness.settle_at(id, Costs::Each(&tokens(500))).await.expect("a decision");
    harness.advance(Micros::from_secs(3_000));
    for costs in [Costs::Each(&tokens(500)), Costs::AsHeld, Costs::All(Cost::total(500))] {
        let again = harness.settle_at(id, costs).await.expect("a decision");
        // A limit that was charged at the start may be reported as it is now.
        let of_tokens = |one: &Decision| (charged(one), one.expired(), one.verdicts[1]);
        assert_eq!(of_tokens(&again), of_tokens(&first), "{costs:?}");
    }
    for costs in [Costs::Each(&tokens(499)), Costs::All(Cost::ZERO)] {
        let refused = harness.settle_at(id, costs).await.expect_err("settled");
        assert_eq!(refused.refusal(), Some(&Refusal::AlreadySettled), "{costs:?}");
    }
}

async fn tokens_are_charged_at_the_deadline_and_never_lowered(harness: &Harness) {
    for text in EVERY_LIMIT {
        for (actual, charged_now, in_total) in [(4, 0, 6), (6, 0, 6), (9, 3, 9)] {
            let key = format!("{text} {actual}");
            let charging = harness.budget("tokens", text, Unit::Tokens);
            let releasing = harness.limit("plain", text);
            let (_, hold) = harness.hold(TTL);
            let both = [(&charging, &*key, 6), (&releasing, &*key, 2)];
            let made = harness.call(hold, &both).await.expect("a decision");
            harness.advance(TTL);
            let used = harness.inspect(&charging, &key).await.standing;
            assert_eq!((used.used, used.held), (6, 0), "charged at its deadline, {text}");
            let free = harness.inspect(&releasing, &key).await.standing;
            assert_eq!((free.used, free.held), (0, 0), "released, {text}");
            let id = made.hold().expect("a hold");
            let late = harness.settle_at(id, Costs::Each(&tokens(actual))).await;
            let late = late.expect("a decision");
            assert!(late.expired(), "{text}");
            assert_eq!(charged(&late), [(6, in_total, 0), (2, 2, 0)], "{text}");
            let used = harness.inspect(&charging, &key).await.standing.used;
            assert_eq!(used, 6 + charged_now, "{text}");
        }
    }
    // The request can only make it stricter.
    let plain = harness.limit("plain", "sliding-log 10/h");
    let id = HoldId::random().expect("random numbers");
    harness.one(Op::hold(id, TTL, Expiry::Charge), &plain, "stricter", 6).await;
    harness.advance(TTL);
    assert_eq!(harness.inspect(&plain, "stricter").await.standing.used, 6);
}

async fn what_is_not_charged_is_reported(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("tokens", text);
        let id = harness.held(TTL, &limit, text, 6).await;
        let settled = harness.settle(id, Some(1_000)).await.expect("a decision");
        assert_eq!(charged(&settled), [(6, 20, 980)], "twice the capacity, {text}");
        assert!(!settled.allowed(), "overdrawn, {text}");
    }
}

async fn a_hold_counts_in_both_windows_and_is_charged_in_that_of_its_commit(harness: &Harness) {
    for text in ["fixed-window 10/60s", "fixed-window 10/d", "fixed-window 10/d tz Asia/Shanghai"] {
        let limit = harness.budget("tokens", text, Unit::Tokens);
        harness.check(&limit, text, 3).await;
        let id = harness.held(Micros::from_secs(3_000), &limit, text, 5).await;
        let reset = harness.inspect(&limit, text).await;
        let next = reset.recovery.first().and_then(|point| point.after.span()).expect("a window");
        // A day is longer than a reservation: it is renewed on the way.
        while harness.peek(&limit, text).await.remaining == 2 {
            harness.advance(next.min(Micros::from_secs(2_000)));
            harness.renew(id, Micros::from_secs(3_000)).await.expect("renewed");
        }
        assert_eq!(harness.peek(&limit, text).await.remaining, 5, "held in the next one, {text}");
        let settled = harness.settle(id, Some(4)).await.expect("a decision");
        assert_eq!((settled.expired(), settled.remaining()), (false, 6), "{text}");
    }
}

async fn a_reservation_under_an_id_is_the_same_one(harness: &Harness) {
    let gateway = Gateway::new(harness);
    let reserve = async || {
        let (_, hold) = harness.hold(TTL);
        let charges = [(&gateway.requests, "ann", 1), (&gateway.tokens, "ann", 100)];
        harness.call_with_id(hold, &charges, Some("req-17")).await.expect("a decision")
    };
    let (first, again) = (reserve().await, reserve().await);
    assert_eq!((again.hold(), again.repeated()), (first.hold(), true));
    assert_eq!(harness.peek(&gateway.requests, "ann").await.remaining, 59, "charged once");
    assert_eq!(harness.peek(&gateway.tokens, "ann").await.remaining, 9_900);
    let id = first.hold().expect("a hold");
    harness.settle_at(id, Costs::Each(&tokens(10))).await.expect("a decision");
    let anew = reserve().await;
    assert_ne!(anew.hold(), first.hold(), "its permits are gone");
    assert_eq!(harness.peek(&gateway.requests, "ann").await.remaining, 58);
    assert_eq!(harness.peek(&gateway.tokens, "ann").await.remaining, 9_890);
}

async fn a_step_back_moves_what_was_charged_when_it_was_reserved(harness: &Harness) {
    let (hour, third) = (Micros::from_secs(3_600), Micros::from_secs(1_200));
    let requests = harness.budget("requests", "1/h", Unit::Requests);
    let tokens_of = harness.budget("tokens", "fixed-window 10/h", Unit::Tokens);
    let (_, hold) = harness.hold(hour);
    let both = [(&requests, "ann", 1), (&tokens_of, "ann", 5)];
    let id = harness.call(hold, &both).await.expect("a decision").hold().expect("a hold");
    // A call about the hold stores it, as every call does, although it charges nothing there.
    harness.clock.set(harness.now().saturating_sub(third));
    harness.renew(id, hour).await.expect("renewed");
    harness.advance(third);
    let left = hour.saturating_sub(third);
    assert_eq!(harness.peek(&requests, "ann").await.reset_after, left);
}

async fn a_named_hold_exists_once_and_is_found_by_its_key(harness: &Harness) {
    let tokens_of = harness.budget("tokens", "fixed-window 1000/h", Unit::Tokens);
    let name = HoldId::from(HoldId::random().expect("random numbers").get());
    let hold = async |attempt| {
        let kind = HoldKind::Named { attempt };
        let spec = HoldSpec { id: name, ttl: TTL, expiry: Expiry::Release, kind, quantity: None };
        let charges = [(&tokens_of, "org", 400), (&tokens_of, "team", 300)];
        harness.call(Op::Hold(spec), &charges).await
    };
    let found = async || {
        let parts = [&*harness.nonce, "org"];
        harness.engine.locate_hold(name, Key::of(&parts)).await.expect("an id")
    };
    let unknown = harness.settle(found().await, None).await.expect_err("no hold yet");
    assert_eq!(unknown.refusal(), Some(&Refusal::UnknownHold));
    for attempt in 1..3 {
        assert!(hold(attempt).await.expect("a decision").hold().is_some());
        let again = hold(7 * attempt).await.expect_err("it exists");
        assert_eq!(again.refusal(), Some(&Refusal::IdReused));
        let parts = [&*harness.nonce, "team"];
        let team = [RuleCost { key: Some(Key::of(&parts)), ..tokens(30)[0] }];
        let settled = harness.settle_at(found().await, Costs::Each(&team)).await;
        assert_eq!(charged(&settled.expect("a decision")), [(400, 400, 0), (300, 30, 0)]);
        let settled = harness.settle(found().await, None).await.expect_err("settled");
        assert_eq!(settled.refusal(), Some(&Refusal::UnknownHold), "its result is not stored");
    }
    assert!(!hold(1).await.expect("a decision").allowed(), "200 are left for the organisation");
}
