//! Reservations that are extended while the work goes on.

use std::sync::Arc;

use tidegate_core::{Cost, Micros, Wait};

use super::harness::{EVERY_LIMIT, Harness, wait_of};
use crate::{
    Costs, Decision, EngineError, Extension, HoldId, Key, Refusal, RuleCost, RuleLimit, Unit,
};

pub(super) async fn run(new: impl Fn() -> Harness) {
    totals_are_held_and_a_repeated_call_does_nothing(&new()).await;
    a_denial_changes_nothing(&new()).await;
    as_much_as_fits_is_held_down_to_a_minimum(&new()).await;
    an_expired_reservation_is_refused(&new()).await;
    a_ttl_moves_the_deadline_of_every_rule(&new()).await;
    what_was_extended_is_charged_at_the_deadline(&new()).await;
    a_repeated_extension_is_granted_if_the_limit_is_overdrawn(&new()).await;
    keys_are_extended_one_by_one(&new()).await;
    an_extended_reservation_is_found_by_its_id(&new()).await;
    invalid_extensions_are_refused(&new()).await;
}

const TTL: Micros = Micros::from_secs(5);

fn total(rule: &str, cost: u64) -> [RuleCost<'_>; 1] {
    [RuleCost::new(rule, Cost::total(cost))]
}

fn to<'a>(totals: &'a [RuleCost<'a>]) -> Extension<'a> {
    Extension { totals, min: None, ttl: None }
}

fn reserved(decision: &Decision) -> Vec<u64> {
    decision.reserved().iter().map(|cost| cost.get()).collect()
}

fn refusal(result: Result<Decision, EngineError>) -> Option<Refusal> {
    result.expect_err("refused").refusal().cloned()
}

/// A request that is charged at the start, tokens and plain permits, each of 10.
struct ThreeRules {
    requests: Arc<RuleLimit>,
    tokens: Arc<RuleLimit>,
    plain: Arc<RuleLimit>,
}

impl ThreeRules {
    fn new(harness: &Harness, limit: &str) -> Self {
        Self {
            requests: harness.budget("requests", limit, Unit::Requests),
            tokens: harness.budget("tokens", limit, Unit::Tokens),
            plain: harness.limit("plain", limit),
        }
    }

    async fn reserve(&self, harness: &Harness, tokens: u64, plain: u64) -> HoldId {
        let charges = [
            (&self.requests, "ann", 1),
            (&self.tokens, "ann", tokens),
            (&self.plain, "ann", plain),
        ];
        let (_, hold) = harness.hold(TTL);
        harness.call(hold, &charges).await.expect("a decision").hold().expect("a hold")
    }

    async fn held(&self, harness: &Harness) -> [u64; 2] {
        let tokens = harness.inspect(&self.tokens, "ann").await.standing.held;
        [tokens, harness.inspect(&self.plain, "ann").await.standing.held]
    }
}

fn is_queue(limit: &str) -> bool {
    limit.ends_with("queue")
}

async fn totals_are_held_and_a_repeated_call_does_nothing(harness: &Harness) {
    for text in EVERY_LIMIT.into_iter().filter(|text| !is_queue(text)) {
        let rules = ThreeRules::new(harness, text);
        let id = rules.reserve(harness, 3, 2).await;
        for _ in 0..2 {
            let extended = harness.extend(id, to(&total("tokens", 7))).await.expect("a decision");
            assert!(extended.allowed() && !extended.expired(), "{text}");
            assert_eq!(reserved(&extended), [1, 7, 2], "{text}");
            let left = extended.verdicts.iter().map(|verdict| verdict.remaining);
            assert_eq!(left.collect::<Vec<_>>(), [9, 3, 8], "{text}");
            let names = extended.held().iter().map(|limit| limit.rule());
            assert_eq!(names.collect::<Vec<_>>(), ["requests", "tokens", "plain"]);
        }
        let smaller = harness.extend(id, to(&total("tokens", 2))).await.expect("a decision");
        assert_eq!(reserved(&smaller), [1, 7, 2], "an extension never shrinks, {text}");
        assert_eq!(rules.held(harness).await, [7, 2], "{text}");
        let settled = harness.settle(id, None).await.expect("a decision");
        let charged = settled.settled().iter().map(|one| (one.reserved.get(), one.charged.get()));
        assert_eq!(charged.collect::<Vec<_>>(), [(1, 1), (7, 7), (2, 2)], "as held, {text}");
        let again = harness.extend(id, to(&total("tokens", 8))).await;
        assert_eq!(refusal(again), Some(Refusal::AlreadySettled), "{text}");
        let forget = [(&rules.requests, "ann", 0), (&rules.tokens, "ann", 0)];
        harness.call(crate::Op::Reset, &forget).await.expect("reset");
        harness.one(crate::Op::Reset, &rules.plain, "ann", 0).await;
    }
}

async fn a_denial_changes_nothing(harness: &Harness) {
    let rules = ThreeRules::new(harness, "fixed-window 10/60s first-hit");
    let id = rules.reserve(harness, 3, 2).await;
    harness.check(&rules.tokens, "ann", 5).await;
    let both = [total("tokens", 6)[0], total("plain", 4)[0]];
    let call = Extension { ttl: Some(Micros::from_secs(60)), ..to(&both) };
    let denied = harness.extend(id, call).await.expect("a decision");
    assert!(!denied.allowed());
    assert_eq!(reserved(&denied), [1, 3, 2]);
    let [requests, tokens, plain] = denied.verdicts[..] else { panic!("{denied:?}") };
    assert_eq!((requests.allowed, requests.retry_after), (true, Wait::NONE));
    assert_eq!((plain.allowed, plain.remaining), (true, 8));
    // What was reserved is charged at its deadline, and then there is less room than before.
    assert_eq!(wait_of(&tokens), Micros::from_secs(60));
    assert_eq!(rules.held(harness).await, [3, 2], "all or none");
    let never = harness.extend(id, to(&total("tokens", 14))).await.expect("a decision");
    assert_eq!(never.verdicts[1].retry_after, Wait::Never, "11 more than the limit of 10");
    harness.advance(TTL);
    assert_eq!(rules.held(harness).await, [0, 0], "its deadline is the same, too");
}

async fn as_much_as_fits_is_held_down_to_a_minimum(harness: &Harness) {
    let rules = ThreeRules::new(harness, "sliding-log 10/60s");
    let id = rules.reserve(harness, 3, 2).await;
    harness.check(&rules.tokens, "ann", 1).await;
    harness.check(&rules.plain, "ann", 3).await;
    let both = [total("tokens", 9)[0], total("plain", 9)[0]];
    let at_least = |min| Extension { min: Some(Cost::total(min)), ..to(&both) };
    let denied = harness.extend(id, at_least(8)).await.expect("a decision");
    assert!(!denied.allowed(), "7 of the plain ones are left");
    assert_eq!(rules.held(harness).await, [3, 2]);
    for _ in 0..2 {
        let extended = harness.extend(id, at_least(5)).await.expect("a decision");
        assert_eq!((extended.allowed(), reserved(&extended)), (true, vec![1, 7, 7]));
        assert_eq!(rules.held(harness).await, [7, 7], "one quantity");
    }
}

async fn an_expired_reservation_is_refused(harness: &Harness) {
    let rules = ThreeRules::new(harness, "fixed-window 10/60s");
    let id = rules.reserve(harness, 3, 2).await;
    harness.advance(TTL.saturating_sub(Micros::new(1)));
    assert!(harness.extend(id, to(&total("tokens", 4))).await.expect("in time").allowed());
    harness.advance(Micros::new(1));
    for rule in ["tokens", "plain"] {
        let late = harness.extend(id, to(&total(rule, 5))).await;
        assert_eq!(refusal(late), Some(Refusal::HoldExpired), "charged or released: {rule}");
    }
    assert_eq!(harness.inspect(&rules.tokens, "ann").await.standing.used, 4);
    assert_eq!(harness.inspect(&rules.plain, "ann").await.standing.used, 0);
    let unknown = harness.extend(HoldId::from(77), to(&total("tokens", 5))).await;
    assert_eq!(refusal(unknown), Some(Refusal::UnknownHold));
}

async fn a_ttl_moves_the_deadline_of_every_rule(harness: &Harness) {
    let rules = ThreeRules::new(harness, "sliding-log 10/h");
    let id = rules.reserve(harness, 3, 2).await;
    harness.advance(Micros::from_secs(4));
    let tokens = total("tokens", 5);
    let call = Extension { ttl: Some(Micros::from_secs(30)), ..to(&tokens) };
    assert!(harness.extend(id, call).await.expect("a decision").allowed());
    harness.advance(Micros::from_secs(29));
    assert_eq!(rules.held(harness).await, [5, 2]);
    harness.advance(Micros::from_secs(1));
    assert_eq!(rules.held(harness).await, [0, 0]);
}

async fn what_was_extended_is_charged_at_the_deadline(harness: &Harness) {
    let rules = ThreeRules::new(harness, "sliding-log 10/h");
    let id = rules.reserve(harness, 3, 2).await;
    let both = [total("tokens", 6)[0], total("plain", 4)[0]];
    assert!(harness.extend(id, to(&both)).await.expect("a decision").allowed());
    harness.advance(TTL);
    assert_eq!(harness.inspect(&rules.tokens, "ann").await.standing.used, 6);
    let late = harness.settle_at(id, Costs::Each(&total("tokens", 7))).await.expect("late");
    assert!(late.expired());
    let charged = late.settled().iter().map(|one| (one.reserved.get(), one.charged.get()));
    assert_eq!(charged.collect::<Vec<_>>(), [(1, 1), (6, 7), (4, 4)]);
    assert_eq!(harness.inspect(&rules.tokens, "ann").await.standing.used, 7);
}

async fn a_repeated_extension_is_granted_if_the_limit_is_overdrawn(harness: &Harness) {
    let rules = ThreeRules::new(harness, "fixed-window 10/60s");
    let id = rules.reserve(harness, 3, 2).await;
    assert!(harness.extend(id, to(&total("tokens", 6))).await.expect("a decision").allowed());
    harness.one(crate::Op::Record, &rules.tokens, "ann", 15).await;
    let again = harness.extend(id, to(&total("tokens", 6))).await.expect("a decision");
    assert_eq!((again.allowed(), reserved(&again)), (true, vec![1, 6, 2]));
    assert!(!harness.extend(id, to(&total("tokens", 7))).await.expect("a decision").allowed());
}

async fn keys_are_extended_one_by_one(harness: &Harness) {
    let tokens = harness.budget("tokens", "fixed-window 100/h", Unit::Tokens);
    let (_, hold) = harness.hold(TTL);
    let charges = [(&tokens, "org", 40), (&tokens, "team", 40)];
    let id = harness.call(hold, &charges).await.expect("a decision").hold().expect("a hold");
    let unclear = harness.extend(id, to(&total("tokens", 50))).await;
    assert_eq!(refusal(unclear), Some(Refusal::CostOfSeveral("tokens".into())));
    let parts = [&*harness.nonce, "team"];
    let team = [RuleCost { key: Some(Key::of(&parts)), ..total("tokens", 50)[0] }];
    let extended = harness.extend(id, to(&team)).await.expect("a decision");
    assert_eq!(reserved(&extended), [40, 50]);
    // Both were reserved at one cost, whatever they hold now.
    let settled = harness.settle(id, Some(7)).await.expect("a decision");
    assert_eq!(settled.verdicts.iter().map(|v| v.remaining).collect::<Vec<_>>(), [93, 93]);
}

async fn an_extended_reservation_is_found_by_its_id(harness: &Harness) {
    let tokens = harness.budget("tokens", "fixed-window 100/h", Unit::Tokens);
    let reserve = async || {
        let (_, hold) = harness.hold(TTL);
        harness.call_with_id(hold, &[(&tokens, "ann", 10)], Some("req-1")).await.expect("decided")
    };
    let first = reserve().await;
    let id = first.hold().expect("a hold");
    assert!(harness.extend(id, to(&total("tokens", 30))).await.expect("a decision").allowed());
    let again = reserve().await;
    assert_eq!((again.hold(), again.repeated()), (first.hold(), true));
    assert_eq!(harness.inspect(&tokens, "ann").await.standing.held, 30);
}

async fn invalid_extensions_are_refused(harness: &Harness) {
    let rules = ThreeRules::new(harness, "sliding-log 10/h");
    let id = rules.reserve(harness, 3, 2).await;
    for rule in ["requests", "unknown"] {
        let refused = harness.extend(id, to(&total(rule, 5))).await;
        assert_eq!(refusal(refused), Some(Refusal::NotHeld(rule.into())));
    }
    let tokens = total("tokens", 5);
    let different = [tokens[0], total("plain", 4)[0]];
    for (totals, min) in [(&tokens[..], 0), (&tokens, 6), (&different, 3)] {
        let call = Extension { min: Some(Cost::total(min)), ..to(totals) };
        assert_eq!(refusal(harness.extend(id, call).await), Some(Refusal::MinCost), "{min}");
    }
    for ttl in [Micros::ZERO, Micros::from_secs(3_601)] {
        let call = Extension { ttl: Some(ttl), ..to(&tokens) };
        assert_eq!(refusal(harness.extend(id, call).await), Some(Refusal::HoldLength));
    }
    let large = Cost::MAX.get() + 1;
    let refused = harness.extend(id, to(&total("tokens", large))).await;
    assert!(matches!(refusal(refused), Some(Refusal::Cost(_))));
    assert_eq!(rules.held(harness).await, [3, 2]);
    let queue = harness.limit("queue", "leaky-bucket 2/s capacity 10 queue");
    let id = harness.held(TTL, &queue, "ann", 2).await;
    let refused = harness.extend(id, to(&total("queue", 3))).await;
    assert_eq!(refusal(refused), Some(Refusal::QueueExtended("queue".into())));
}
