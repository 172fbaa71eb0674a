//! Reservations that grant as much of a quantity as fits.

use std::sync::Arc;

use tidegate_core::{Cost, Expiry, Micros, Wait};

use super::harness::{EVERY_LIMIT, Harness, wait_of};
use crate::{
    Decision, EngineError, HoldId, HoldKind, HoldSpec, Key, Op, Quantity, Refusal, Rule, RuleCost,
    RuleLimit, Unit, UnitCharge, UnitCost,
};

pub(super) async fn run(new: impl Fn() -> Harness) {
    as_much_as_fits_is_held_under_every_limit(&new()).await;
    one_quantity_has_a_cost_of_its_own_under_each_rule(&new()).await;
    less_than_the_minimum_is_denied_and_changes_nothing(&new()).await;
    a_repeated_id_returns_the_quantity_that_was_granted(&new()).await;
    what_was_granted_is_settled_extended_and_charged_at_the_deadline(&new()).await;
    a_shadow_limit_bounds_no_quantity(&new()).await;
    a_quantity_without_charges_is_granted_as_a_whole(&new()).await;
    invalid_quantities_are_refused(&new()).await;
}

const TTL: Micros = Micros::from_secs(5);

/// One rule, its base cost, and the cost of a unit.
type QuantityPart<'a> = (&'a Arc<RuleLimit>, u64, UnitCost);

fn per_unit(num: u32, den: u32) -> UnitCost {
    UnitCost::new(num, den).expect("a fraction of the suite")
}

/// Reserves a quantity for `ann`.
async fn reserve(
    harness: &Harness,
    parts: &[QuantityPart<'_>],
    (min, want): (u64, u64),
    id: Option<&str>,
) -> Result<Decision, EngineError> {
    let key = [&*harness.nonce, "ann"];
    let flexible = parts.iter().filter(|(_, _, per_unit)| !per_unit.is_zero());
    let units = flexible.map(|(limit, _, per_unit)| UnitCharge {
        state: limit.state(),
        key: Key::of(&key),
        per_unit: *per_unit,
    });
    let units: Vec<UnitCharge<'_>> = units.collect();
    let (min, want) = (Cost::total(min), Cost::total(want));
    let quantity = Quantity { min, want, charges: &units };
    let hold = HoldSpec {
        id: HoldId::random().expect("the system has random numbers"),
        ttl: TTL,
        expiry: Expiry::Release,
        kind: HoldKind::Reservation,
        quantity: Some(&quantity),
    };
    let cost = |(_, base, per_unit): &QuantityPart<'_>| base + per_unit.of(min).get();
    let charges: Vec<_> = parts.iter().map(|part| (part.0, "ann", cost(part))).collect();
    harness.call_with_id(Op::Hold(hold), &charges, id).await
}

async fn granted(
    harness: &Harness,
    parts: &[QuantityPart<'_>],
    quantity: (u64, u64),
) -> Option<u64> {
    let decision = reserve(harness, parts, quantity, None).await.expect("a decision");
    assert_eq!(decision.allowed(), decision.granted().is_some(), "{decision:?}");
    assert_eq!(decision.allowed(), decision.hold().is_some(), "{decision:?}");
    decision.granted().map(Cost::get)
}

async fn held(harness: &Harness, limit: &Arc<RuleLimit>) -> u64 {
    harness.inspect(limit, "ann").await.standing.held
}

fn refusal(result: Result<Decision, EngineError>) -> Option<Refusal> {
    result.expect_err("refused").refusal().cloned()
}

async fn as_much_as_fits_is_held_under_every_limit(harness: &Harness) {
    for text in EVERY_LIMIT.into_iter().filter(|text| !text.ends_with("queue")) {
        let limit = harness.limit("tokens", text);
        let tokens = (&limit, 0, UnitCost::ONE);
        harness.check(&limit, "ann", 2).await;
        assert_eq!(granted(harness, &[tokens], (1, 5)).await, Some(5), "{text}");
        assert_eq!(granted(harness, &[tokens], (2, 5)).await, Some(3), "{text}");
        assert_eq!(held(harness, &limit).await, 8, "{text}");
        assert_eq!(granted(harness, &[tokens], (1, 5)).await, None, "{text}");
        harness.one(Op::Reset, &limit, "ann", 0).await;
    }
}

async fn one_quantity_has_a_cost_of_its_own_under_each_rule(harness: &Harness) {
    let requests = harness.budget("requests", "fixed-window 10/h", Unit::Requests);
    let tokens = harness.budget("tokens", "fixed-window 1000/h", Unit::Tokens);
    let spend = harness.budget("spend", "fixed-window 5000/h", Unit::Money);
    let slots = harness.limit("slots", "concurrency 2");
    let parts = [
        (&requests, 1, UnitCost::ZERO),
        (&tokens, 100, UnitCost::ONE),
        (&spend, 700, per_unit(15, 2)),
        (&slots, 1, UnitCost::ZERO),
    ];
    // floor((5000 - 700) * 2 / 15) = 573, and 573 * 15 / 2 = 4297.5.
    assert_eq!(granted(harness, &parts, (10, 900)).await, Some(573));
    assert_eq!(held(harness, &tokens).await, 673);
    assert_eq!(held(harness, &spend).await, 4_998, "rounded up, once");
    assert_eq!(held(harness, &slots).await, 1);
    assert_eq!(harness.peek(&requests, "ann").await.remaining, 9);
    assert_eq!(granted(harness, &parts, (10, 900)).await, None, "no money is left");
    assert_eq!(harness.peek(&requests, "ann").await.remaining, 9, "all or none");
}

async fn less_than_the_minimum_is_denied_and_changes_nothing(harness: &Harness) {
    let tokens = harness.limit("tokens", "fixed-window 10/60s first-hit");
    harness.check(&tokens, "ann", 7).await;
    let parts = [(&tokens, 1, UnitCost::ONE)];
    let denied = reserve(harness, &parts, (3, 50), None).await.expect("a decision");
    assert!(!denied.allowed() && denied.granted().is_none() && denied.hold().is_none());
    assert_eq!(wait_of(&denied.verdict()), Micros::from_secs(60), "that of the minimum");
    assert_eq!(denied.remaining(), 3);
    assert_eq!(granted(harness, &parts, (2, 50)).await, Some(2), "more than the limit is no error");
    let never = reserve(harness, &parts, (10, 50), None).await.expect("a decision");
    assert_eq!(never.verdict().retry_after, Wait::Never, "11 of 10");
    assert_eq!(held(harness, &tokens).await, 3);
}

async fn a_repeated_id_returns_the_quantity_that_was_granted(harness: &Harness) {
    let tokens = harness.budget("tokens", "fixed-window 100/h", Unit::Tokens);
    let spend = harness.budget("spend", "fixed-window 1000/h", Unit::Money);
    let parts = [(&tokens, 20, UnitCost::ONE), (&spend, 0, per_unit(5, 1))];
    let first = reserve(harness, &parts, (10, 500), Some("req-1")).await.expect("a decision");
    assert_eq!((first.granted(), first.repeated()), (Some(Cost::total(80)), false));
    let again = reserve(harness, &parts, (10, 500), Some("req-1")).await.expect("a decision");
    assert_eq!((again.granted(), again.repeated()), (Some(Cost::total(80)), true));
    assert_eq!(again.hold(), first.hold());
    assert_eq!(held(harness, &tokens).await, 100);
    for other in [(9, 500), (10, 499)] {
        let reused = reserve(harness, &parts, other, Some("req-1")).await;
        assert_eq!(refusal(reused), Some(Refusal::IdReused), "{other:?}");
    }
    // A reload has added a shadow limit to the rule.
    let [limit, shadow] = ["fixed-window 100/h", "10/h"].map(|text| text.parse());
    let shadow = [shadow.expect("a limit of the suite")];
    let rule = Rule::with_shadow("tokens", [limit.expect("a limit of the suite")], shadow);
    let rule = rule.expect("a rule of the suite").unit(Unit::Tokens);
    let reloaded = [parts[0], (&rule.limits()[1], 20, UnitCost::ONE), parts[1]];
    let again = reserve(harness, &reloaded, (10, 500), Some("req-1")).await.expect("a decision");
    assert_eq!((again.granted(), again.repeated()), (Some(Cost::total(80)), true));
    let dearer = [parts[0], (&spend, 0, per_unit(6, 1))];
    // The same cost of the minimum, and another one of a unit.
    let cheaper = [parts[0], (&spend, 10, per_unit(4, 1))];
    for parts in [dearer, cheaper] {
        let reused = reserve(harness, &parts, (10, 500), Some("req-1")).await;
        assert_eq!(refusal(reused), Some(Refusal::IdReused));
    }
}

async fn what_was_granted_is_settled_extended_and_charged_at_the_deadline(harness: &Harness) {
    let tokens = harness.budget("tokens", "fixed-window 100/h", Unit::Tokens);
    let plain = harness.limit("plain", "fixed-window 100/h");
    let parts = [(&tokens, 20, UnitCost::ONE), (&plain, 0, per_unit(1, 2))];
    let made = reserve(harness, &parts, (10, 40), None).await.expect("a decision");
    let id = made.hold().expect("a hold");
    assert_eq!(made.verdicts.iter().map(|v| v.remaining).collect::<Vec<_>>(), [40, 80]);
    let totals = [RuleCost::new("tokens", Cost::total(70))];
    let to = crate::Extension { totals: &totals, min: None, ttl: None };
    assert!(harness.extend(id, to).await.expect("a decision").allowed());
    let one = harness.settle(id, Some(7)).await;
    assert_eq!(refusal(one), Some(Refusal::DifferentCosts(2)));
    let settled = harness.settle(id, None).await.expect("a decision");
    let costs = settled.settled().iter().map(|one| (one.reserved.get(), one.charged.get()));
    assert_eq!(costs.collect::<Vec<_>>(), [(70, 70), (20, 20)]);
    // The rest of it is charged at its deadline, by the rule that says so.
    assert_eq!(granted(harness, &parts, (1, 40)).await, Some(10));
    harness.advance(TTL);
    assert_eq!(harness.inspect(&tokens, "ann").await.standing.used, 100);
    assert_eq!(harness.inspect(&plain, "ann").await.standing.used, 20);
}

async fn a_shadow_limit_bounds_no_quantity(harness: &Harness) {
    let limit = |text: &str| text.parse().expect("a limit of the suite");
    let rule = Rule::with_shadow("pair", [limit("fixed-window 100/h")], [limit("10/h burst 10")]);
    let rule = rule.expect("a rule of the suite");
    let [tokens, shadow] = rule.limits() else { panic!("two limits") };
    let parts = [(tokens, 0, UnitCost::ONE), (shadow, 0, UnitCost::ONE)];
    assert_eq!(granted(harness, &parts, (1, 50)).await, Some(50));
    assert_eq!((held(harness, tokens).await, held(harness, shadow).await), (50, 0));
    assert_eq!(granted(harness, &parts, (1, 8)).await, Some(8));
    assert_eq!(held(harness, shadow).await, 8);
}

async fn a_quantity_without_charges_is_granted_as_a_whole(harness: &Harness) {
    let tokens = harness.limit("tokens", "fixed-window 10/h");
    let fixed = [(&tokens, 4, UnitCost::ZERO)];
    assert_eq!(granted(harness, &fixed, (1, 50)).await, Some(50));
    assert_eq!(granted(harness, &fixed, (1, 50)).await, Some(50));
    assert_eq!(granted(harness, &fixed, (1, 50)).await, None, "8 of 10 are held");
}

async fn invalid_quantities_are_refused(harness: &Harness) {
    let tokens = harness.limit("tokens", "fixed-window 10/h");
    let parts = [(&tokens, 0, UnitCost::ONE)];
    for quantity in [(0, 5), (6, 5), (1, Cost::MAX.get() + 1)] {
        let refused = reserve(harness, &parts, quantity, None).await;
        assert_eq!(refusal(refused), Some(Refusal::MinCost), "{quantity:?}");
    }
    let dear = [(&tokens, 0, per_unit(2, 1))];
    let refused = reserve(harness, &dear, (1, Cost::MAX.get()), None).await;
    assert!(matches!(refusal(refused), Some(Refusal::Cost(_))));
    let twice = [parts[0], parts[0]];
    let refused = reserve(harness, &twice, (1, 5), None).await;
    assert_eq!(refusal(refused), Some(Refusal::CostOfSeveral("tokens".into())));
    let requests = harness.budget("requests", "60/m", Unit::Requests);
    let slots = harness.limit("slots", "concurrency 9");
    for limit in [&requests, &slots] {
        let refused = reserve(harness, &[parts[0], (limit, 0, UnitCost::ONE)], (1, 5), None).await;
        assert_eq!(refusal(refused), Some(Refusal::NotHeld(limit.rule().into())));
    }
    let queue = harness.limit("queue", "leaky-bucket 2/s capacity 10 queue");
    let refused = reserve(harness, &[(&queue, 0, UnitCost::ONE)], (1, 5), None).await;
    assert_eq!(refusal(refused), Some(Refusal::QueueExtended("queue".into())));
    assert_eq!(held(harness, &tokens).await, 0);
}
