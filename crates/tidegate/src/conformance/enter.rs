//! Entries: rate limits are charged and a slot of each `concurrency` limit is taken, in one step.

use std::sync::Arc;

use tidegate_core::Micros;

use super::harness::{EVERY_LIMIT, Harness, wait_of};
use crate::{Decision, HoldId, Op, Refusal, Rule, RuleLimit};

pub(super) async fn run(new: impl Fn() -> Harness) {
    an_entry_charges_once_and_takes_a_slot(&new()).await;
    a_denial_by_one_limit_changes_no_other(&new()).await;
    a_charge_recovers_from_the_time_of_entry(&new()).await;
    a_slot_is_released_at_its_deadline(&new()).await;
    a_renewed_slot_is_held_and_charges_nothing(&new()).await;
    every_slot_of_an_entry_is_released(&new()).await;
    without_a_concurrency_limit_an_entry_is_a_check(&new()).await;
    an_entry_needs_a_slot_and_a_new_id(&new()).await;
    shadow_limits_are_evaluated_as_in_a_check(&new()).await;
    a_hold_for_a_request_is_forgotten_when_it_is_settled(&new()).await;
}

const TTL: Micros = Micros::from_secs(5);

impl Harness {
    fn enter(&self, ttl: Micros) -> (HoldId, Op<'static>) {
        let id = HoldId::random().expect("the system has random numbers");
        (id, Op::enter(id, ttl))
    }

    /// Enters with these charges, and returns the decision.
    async fn entered(&self, charges: &[(&Arc<RuleLimit>, &str, u64)]) -> Decision {
        let (_, enter) = self.enter(TTL);
        self.call(enter, charges).await.expect("a decision")
    }

    async fn used_and_held(&self, limit: &Arc<RuleLimit>, key: &str) -> (u64, u64) {
        let standing = self.inspect(limit, key).await.standing;
        (standing.used, standing.held)
    }
}

fn remaining(decision: &Decision) -> Vec<u64> {
    decision.verdicts.iter().map(|verdict| verdict.remaining).collect()
}

async fn an_entry_charges_once_and_takes_a_slot(harness: &Harness) {
    let holders = harness.limit("holders", "concurrency 2 lease 5s");
    for text in EVERY_LIMIT {
        let limit = harness.limit("charged", text);
        let (id, enter) = harness.enter(TTL);
        let charges = [(&limit, text, 4), (&holders, text, 1)];
        let entered = harness.call(enter, &charges).await.expect("a decision");
        assert_eq!((entered.allowed(), remaining(&entered)), (true, vec![6, 1]), "{text}");
        assert_eq!(entered.hold().map(HoldId::get), Some(id.get()), "{text}");
        assert_eq!(harness.used_and_held(&limit, text).await, (4, 0), "{text}");
        assert_eq!(harness.used_and_held(&holders, text).await, (0, 1), "{text}");
        let left =
            harness.settle(entered.hold().expect("a slot"), Some(0)).await.expect("a decision");
        assert_eq!((left.expired(), remaining(&left)), (false, vec![2]), "{text}");
        assert_eq!(left.held(), vec![holders.clone()], "the slot alone, {text}");
        assert_eq!(harness.used_and_held(&limit, text).await, (4, 0), "{text}");
        assert_eq!(harness.used_and_held(&holders, text).await, (0, 0), "{text}");
    }
}

async fn a_denial_by_one_limit_changes_no_other(harness: &Harness) {
    let holders = harness.limit("few", "concurrency 1 lease 5s");
    for text in EVERY_LIMIT {
        let limit = harness.limit("both", text);
        let by_limit = harness.entered(&[(&limit, text, 11), (&holders, text, 1)]).await;
        let each: Vec<bool> = by_limit.verdicts.iter().map(|verdict| verdict.allowed).collect();
        assert_eq!((each, by_limit.hold()), (vec![false, true], None), "{text}");
        assert_eq!(harness.used_and_held(&holders, text).await, (0, 0), "{text}");
        let first = harness.entered(&[(&limit, text, 4), (&holders, text, 1)]).await;
        assert!(first.allowed(), "{text}");
        for charges in
            [[(&limit, text, 4), (&holders, text, 1)], [(&holders, text, 1), (&limit, text, 4)]]
        {
            let (id, enter) = harness.enter(TTL);
            let by_holders = harness.call(enter, &charges).await.expect("a decision");
            assert_eq!((by_holders.allowed(), by_holders.hold()), (false, None), "{text}");
            assert_eq!(wait_of(&by_holders.verdict()), TTL, "{text}");
            let refused = harness.settle(id, Some(0)).await.expect_err("never made");
            assert_eq!(refused.refusal(), Some(&Refusal::UnknownHold), "{text}");
        }
        assert_eq!(harness.used_and_held(&limit, text).await, (4, 0), "{text}");
        assert_eq!(harness.used_and_held(&holders, text).await, (0, 1), "{text}");
    }
}

/// Regardless of the length of the work: a hold would charge at its end, an entry charges at its
/// start.
async fn a_charge_recovers_from_the_time_of_entry(harness: &Harness) {
    let holders = harness.limit("long", "concurrency 2 lease 5s");
    for text in EVERY_LIMIT {
        let limit = harness.limit("recovers", text);
        let checked = format!("{text} checked");
        harness.check(&limit, &checked, 7).await;
        let entered = harness.entered(&[(&limit, text, 7), (&holders, text, 1)]).await;
        for _ in 0..4 {
            harness.advance(Micros::from_secs(3));
            harness.renew(entered.hold().expect("a slot"), TTL).await.expect("a decision");
            assert_eq!(
                harness.peek(&limit, text).await,
                harness.peek(&limit, &checked).await,
                "{text}"
            );
        }
        harness.settle(entered.hold().expect("a slot"), None).await.expect("a decision");
        assert_eq!(
            harness.peek(&limit, text).await,
            harness.peek(&limit, &checked).await,
            "{text}"
        );
    }
}

async fn a_slot_is_released_at_its_deadline(harness: &Harness) {
    let (limit, holders) =
        (harness.limit("day", "fixed-window 10/d"), harness.limit("one", "concurrency 1 lease 5s"));
    let charges = [(&limit, "k", 2), (&holders, "k", 1)];
    let first = harness.entered(&charges).await.hold().expect("a slot");
    harness.advance(TTL.saturating_sub(Micros::new(1)));
    assert_eq!(wait_of(&harness.entered(&charges).await.verdict()), Micros::new(1));
    harness.advance(Micros::new(1));
    let second = harness.entered(&charges).await;
    assert_eq!((second.allowed(), remaining(&second)), (true, vec![6, 0]));
    let late = harness.settle(first, Some(0)).await.expect("a decision");
    assert!(late.expired(), "the slot had expired");
    assert_eq!(harness.used_and_held(&holders, "k").await, (0, 1), "the second stays");
    assert_eq!(harness.used_and_held(&limit, "k").await, (4, 0), "and so does the charge");
}

async fn a_renewed_slot_is_held_and_charges_nothing(harness: &Harness) {
    let (limit, holders) =
        (harness.limit("log", "sliding-log 10/d"), harness.limit("kept", "concurrency 1 lease 5s"));
    let charges = [(&limit, "k", 2), (&holders, "k", 1)];
    let id = harness.entered(&charges).await.hold().expect("a slot");
    for _ in 0..3 {
        harness.advance(Micros::from_secs(4));
        let renewed = harness.renew(id, TTL).await.expect("a decision");
        assert_eq!((renewed.expired(), renewed.held()), (false, &[holders.clone()][..]));
        assert!(!harness.entered(&charges).await.allowed());
    }
    assert_eq!(harness.used_and_held(&limit, "k").await, (2, 0));
    harness.advance(TTL);
    assert!(harness.renew(id, TTL).await.expect("a decision").expired(), "too late");
    assert!(harness.entered(&charges).await.allowed());
}

async fn every_slot_of_an_entry_is_released(harness: &Harness) {
    let limits = [
        harness.limit("first", "concurrency 5 lease 5s"),
        harness.limit("second", "10/h"),
        harness.limit("third", "concurrency 7 lease 9s"),
        harness.limit("fourth", "sliding-log 10/h"),
    ];
    let [first, second, third, fourth] = &limits;
    // The same limit and key twice takes two slots.
    let charges =
        [(second, "k", 1), (first, "k", 1), (fourth, "k", 2), (third, "l", 3), (first, "k", 1)];
    let entered = harness.entered(&charges).await;
    assert_eq!(remaining(&entered), [9, 3, 8, 4, 3]);
    let id = entered.hold().expect("slots");
    let renewed = harness.renew(id, TTL).await.expect("a decision");
    assert_eq!((renewed.expired(), remaining(&renewed)), (false, vec![3, 4]));
    let left = harness.settle(id, Some(0)).await.expect("a decision");
    assert_eq!((left.expired(), remaining(&left)), (false, vec![5, 7]));
    assert_eq!(left.held(), [first.clone(), third.clone()]);
    for again in [harness.settle(id, Some(0)).await, harness.renew(id, TTL).await] {
        let refused = again.expect_err("forgotten, since there is one for every request");
        assert_eq!(refused.refusal(), Some(&Refusal::UnknownHold));
    }
    assert_eq!(harness.used_and_held(second, "k").await, (1, 0));
    assert_eq!(harness.used_and_held(fourth, "k").await, (2, 0));
}

async fn without_a_concurrency_limit_an_entry_is_a_check(harness: &Harness) {
    for text in EVERY_LIMIT {
        let (limit, other) = (harness.limit("enter", text), harness.limit("check", text));
        // Nothing is held, so the length is not checked.
        for (cost, ttl) in [(6, TTL), (0, TTL), (5, Micros::ZERO), (4, Micros::MAX), (1, TTL)] {
            let (_, enter) = harness.enter(ttl);
            let entered = harness.one(enter, &limit, text, cost).await;
            let checked = harness.one(Op::Check, &other, text, cost).await;
            assert_eq!(entered, checked, "{text} {cost}");
        }
    }
}

async fn an_entry_needs_a_slot_and_a_new_id(harness: &Harness) {
    let (limit, holders) =
        (harness.limit("named", "10/h"), harness.limit("named-holders", "concurrency 3 lease 5s"));
    let refusal = async |op, charges: &[_], once| {
        let refused = harness.call_with_id(op, charges, once).await.expect_err("refused");
        refused.refusal().cloned().expect("a refusal")
    };
    let charges = [(&limit, "k", 1), (&holders, "k", 1)];
    let (_, enter) = harness.enter(TTL);
    let nothing = [(&limit, "k", 1), (&holders, "k", 0)];
    assert_eq!(refusal(enter, &nothing, None).await, Refusal::EmptyHold);
    assert_eq!(refusal(enter, &charges, Some("id")).await, Refusal::EnterTakesNoId);
    let without = [(&limit, "k", 1)];
    assert_eq!(refusal(enter, &without, Some("id")).await, Refusal::EnterTakesNoId);
    let long = HoldId::MAX_TTL.saturating_add(Micros::new(1));
    for ttl in [Micros::ZERO, long, Micros::MAX] {
        let (_, enter) = harness.enter(ttl);
        assert_eq!(refusal(enter, &charges, None).await, Refusal::HoldLength, "{ttl:?}");
    }
    assert_eq!(harness.used_and_held(&limit, "k").await, (0, 0), "nothing was charged");
    // A slot alone: rate limits may be charged nothing.
    let entered = harness.call(enter, &[(&limit, "k", 0), (&holders, "k", 1)]).await;
    assert!(entered.expect("a decision").allowed());
    assert_eq!(refusal(enter, &charges, None).await, Refusal::IdReused);
    assert_eq!(harness.used_and_held(&limit, "k").await, (0, 0), "nor now");
    assert_eq!(harness.used_and_held(&holders, "k").await, (0, 1));
}

async fn shadow_limits_are_evaluated_as_in_a_check(harness: &Harness) {
    let parse = |text: &str| text.parse().expect("a limit of the suite");
    let shadow = [parse("sliding-log 3/h"), parse("concurrency 1 lease 5s")];
    let rule = Rule::with_shadow("shadowed", [parse("10/h")], shadow);
    let rule = rule.expect("a rule of the suite");
    let charges: Vec<_> = rule.limits().iter().zip([2, 2, 1]).map(|(l, n)| (l, "k", n)).collect();
    let [_, log, holders] = rule.limits() else { unreachable!("three limits") };
    let first = harness.entered(&charges).await;
    assert!(first.allowed() && first.shadow().iter().all(|verdict| verdict.allowed));
    let id = first.hold().expect("a slot of the shadow limit");
    let second = harness.entered(&charges).await;
    assert!(second.allowed() && second.shadow().iter().all(|verdict| !verdict.allowed));
    assert_eq!(second.hold(), None, "nothing was held");
    assert_eq!(harness.used_and_held(log, "k").await, (2, 0));
    assert_eq!(harness.used_and_held(holders, "k").await, (0, 1));
    let left = harness.settle(id, Some(0)).await.expect("a decision");
    assert_eq!((left.expired(), left.verdicts.len(), left.held().len()), (false, 0, 0));
    assert_eq!(harness.used_and_held(holders, "k").await, (0, 0));
    assert_eq!(harness.peek(&rule.limits()[0], "k").await.remaining, 6, "both passed");
}

async fn a_hold_for_a_request_is_forgotten_when_it_is_settled(harness: &Harness) {
    let holders = harness.limit("request-holders", "concurrency 2 lease 5s");
    for text in EVERY_LIMIT {
        let limit = harness.limit("request", text);
        let id = HoldId::random().expect("the system has random numbers");
        let charges = [(&limit, text, 4), (&holders, text, 1)];
        let held = harness.call(Op::hold_for_request(id, TTL), &charges).await.expect("a decision");
        assert_eq!((held.allowed(), remaining(&held)), (true, vec![6, 1]), "{text}");
        assert_eq!(harness.used_and_held(&limit, text).await, (0, 4), "{text}");
        assert_eq!(harness.used_and_held(&holders, text).await, (0, 1), "{text}");
        let id = held.hold().expect("a hold");
        let settled = harness.settle(id, Some(3)).await.expect("a decision");
        assert_eq!((settled.expired(), settled.held().len()), (false, 2), "{text}");
        assert_eq!(harness.used_and_held(&limit, text).await, (3, 0), "{text}");
        assert_eq!(harness.used_and_held(&holders, text).await, (0, 0), "{text}");
        let again = harness.settle(id, Some(3)).await.expect_err("forgotten");
        assert_eq!(again.refusal(), Some(&Refusal::UnknownHold), "{text}");
    }
}
