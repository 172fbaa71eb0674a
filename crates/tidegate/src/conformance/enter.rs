//! Entering: limits that count requests are charged, those that count holders have one more, in one
//! step.

use std::sync::Arc;

use tidegate_core::Micros;

use super::{Bench, EVERY_LIMIT, wait_of};
use crate::{Decision, HoldId, Op, Refusal, Rule, RuleLimit};

pub(super) async fn run(new: impl Fn() -> Bench) {
    an_entry_charges_once_and_takes_a_place(&new()).await;
    whoever_denies_leaves_the_others_untouched(&new()).await;
    what_was_charged_recovers_from_the_beginning(&new()).await;
    a_place_is_given_back_at_its_deadline(&new()).await;
    a_renewed_place_is_kept_and_charges_nothing(&new()).await;
    every_place_of_an_entry_is_given_back(&new()).await;
    without_holders_an_entry_is_a_check(&new()).await;
    a_place_is_of_something_and_has_a_name_of_its_own(&new()).await;
    what_looks_on_takes_part_as_in_a_check(&new()).await;
    a_visit_sets_aside_and_is_forgotten_when_it_is_settled(&new()).await;
}

const TTL: Micros = Micros::from_secs(5);

impl Bench {
    fn enter(&self, ttl: Micros) -> (HoldId, Op) {
        let id = HoldId::random().expect("the system has random numbers");
        (id, Op::Enter { id, ttl })
    }

    /// Enters with these, and returns what was decided.
    async fn entered(&self, asks: &[(&Arc<RuleLimit>, &str, u64)]) -> Decision {
        let (_, enter) = self.enter(TTL);
        self.ask(enter, asks).await.expect("a decision")
    }

    async fn used_and_held(&self, limit: &Arc<RuleLimit>, key: &str) -> (u64, u64) {
        let standing = self.inspect(limit, key).await.standing;
        (standing.used, standing.held)
    }
}

fn remaining(decision: &Decision) -> Vec<u64> {
    decision.verdicts.iter().map(|verdict| verdict.remaining).collect()
}

async fn an_entry_charges_once_and_takes_a_place(bench: &Bench) {
    let holders = bench.limit("holders", "concurrency 2 lease 5s");
    for text in EVERY_LIMIT {
        let limit = bench.limit("charged", text);
        let (id, enter) = bench.enter(TTL);
        let asks = [(&limit, text, 4), (&holders, text, 1)];
        let entered = bench.ask(enter, &asks).await.expect("a decision");
        assert_eq!((entered.allowed(), remaining(&entered)), (true, vec![6, 1]), "{text}");
        assert_eq!(entered.hold().map(HoldId::get), Some(id.get()), "{text}");
        assert_eq!(bench.used_and_held(&limit, text).await, (4, 0), "{text}");
        assert_eq!(bench.used_and_held(&holders, text).await, (0, 1), "{text}");
        let left =
            bench.settle(entered.hold().expect("a place"), Some(0)).await.expect("a decision");
        assert_eq!((left.expired(), remaining(&left)), (false, vec![2]), "{text}");
        assert_eq!(left.held(), vec![holders.clone()], "the place alone, {text}");
        assert_eq!(bench.used_and_held(&limit, text).await, (4, 0), "{text}");
        assert_eq!(bench.used_and_held(&holders, text).await, (0, 0), "{text}");
    }
}

async fn whoever_denies_leaves_the_others_untouched(bench: &Bench) {
    let holders = bench.limit("few", "concurrency 1 lease 5s");
    for text in EVERY_LIMIT {
        let limit = bench.limit("both", text);
        let by_limit = bench.entered(&[(&limit, text, 11), (&holders, text, 1)]).await;
        let each: Vec<bool> = by_limit.verdicts.iter().map(|verdict| verdict.allowed).collect();
        assert_eq!((each, by_limit.hold()), (vec![false, true], None), "{text}");
        assert_eq!(bench.used_and_held(&holders, text).await, (0, 0), "{text}");
        let first = bench.entered(&[(&limit, text, 4), (&holders, text, 1)]).await;
        assert!(first.allowed(), "{text}");
        for asks in
            [[(&limit, text, 4), (&holders, text, 1)], [(&holders, text, 1), (&limit, text, 4)]]
        {
            let (id, enter) = bench.enter(TTL);
            let by_holders = bench.ask(enter, &asks).await.expect("a decision");
            assert_eq!((by_holders.allowed(), by_holders.hold()), (false, None), "{text}");
            assert_eq!(wait_of(&by_holders.verdict()), TTL, "{text}");
            let refused = bench.settle(id, Some(0)).await.expect_err("never made");
            assert_eq!(refused.refusal(), Some(&Refusal::UnknownHold), "{text}");
        }
        assert_eq!(bench.used_and_held(&limit, text).await, (4, 0), "{text}");
        assert_eq!(bench.used_and_held(&holders, text).await, (0, 1), "{text}");
    }
}

/// However long the work takes: what a hold would charge at its end is charged at the beginning.
async fn what_was_charged_recovers_from_the_beginning(bench: &Bench) {
    let holders = bench.limit("long", "concurrency 2 lease 5s");
    for text in EVERY_LIMIT {
        let limit = bench.limit("recovers", text);
        let checked = format!("{text} checked");
        bench.check(&limit, &checked, 7).await;
        let entered = bench.entered(&[(&limit, text, 7), (&holders, text, 1)]).await;
        for _ in 0..4 {
            bench.advance(Micros::from_secs(3));
            bench.renew(entered.hold().expect("a place"), TTL).await.expect("a decision");
            assert_eq!(
                bench.peek(&limit, text).await,
                bench.peek(&limit, &checked).await,
                "{text}"
            );
        }
        bench.settle(entered.hold().expect("a place"), None).await.expect("a decision");
        assert_eq!(bench.peek(&limit, text).await, bench.peek(&limit, &checked).await, "{text}");
    }
}

async fn a_place_is_given_back_at_its_deadline(bench: &Bench) {
    let (limit, holders) =
        (bench.limit("day", "fixed-window 10/d"), bench.limit("one", "concurrency 1 lease 5s"));
    let asks = [(&limit, "k", 2), (&holders, "k", 1)];
    let first = bench.entered(&asks).await.hold().expect("a place");
    bench.advance(TTL.saturating_sub(Micros::new(1)));
    assert_eq!(wait_of(&bench.entered(&asks).await.verdict()), Micros::new(1));
    bench.advance(Micros::new(1));
    let second = bench.entered(&asks).await;
    assert_eq!((second.allowed(), remaining(&second)), (true, vec![6, 0]));
    let late = bench.settle(first, Some(0)).await.expect("a decision");
    assert!(late.expired(), "the place was gone");
    assert_eq!(bench.used_and_held(&holders, "k").await, (0, 1), "the second stays");
    assert_eq!(bench.used_and_held(&limit, "k").await, (4, 0), "and what was charged as well");
}

async fn a_renewed_place_is_kept_and_charges_nothing(bench: &Bench) {
    let (limit, holders) =
        (bench.limit("log", "sliding-log 10/d"), bench.limit("kept", "concurrency 1 lease 5s"));
    let asks = [(&limit, "k", 2), (&holders, "k", 1)];
    let id = bench.entered(&asks).await.hold().expect("a place");
    for _ in 0..3 {
        bench.advance(Micros::from_secs(4));
        let renewed = bench.renew(id, TTL).await.expect("a decision");
        assert_eq!((renewed.expired(), renewed.held()), (false, &[holders.clone()][..]));
        assert!(!bench.entered(&asks).await.allowed());
    }
    assert_eq!(bench.used_and_held(&limit, "k").await, (2, 0));
    bench.advance(TTL);
    assert!(bench.renew(id, TTL).await.expect("a decision").expired(), "too late");
    assert!(bench.entered(&asks).await.allowed());
}

async fn every_place_of_an_entry_is_given_back(bench: &Bench) {
    let limits = [
        bench.limit("first", "concurrency 5 lease 5s"),
        bench.limit("second", "10/h"),
        bench.limit("third", "concurrency 7 lease 9s"),
        bench.limit("fourth", "sliding-log 10/h"),
    ];
    let [first, second, third, fourth] = &limits;
    // The same place twice is two places.
    let asks =
        [(second, "k", 1), (first, "k", 1), (fourth, "k", 2), (third, "l", 3), (first, "k", 1)];
    let entered = bench.entered(&asks).await;
    assert_eq!(remaining(&entered), [9, 3, 8, 4, 3]);
    let id = entered.hold().expect("places");
    let renewed = bench.renew(id, TTL).await.expect("a decision");
    assert_eq!((renewed.expired(), remaining(&renewed)), (false, vec![3, 4]));
    let left = bench.settle(id, Some(0)).await.expect("a decision");
    assert_eq!((left.expired(), remaining(&left)), (false, vec![5, 7]));
    assert_eq!(left.held(), [first.clone(), third.clone()]);
    for again in [bench.settle(id, Some(0)).await, bench.renew(id, TTL).await] {
        let refused = again.expect_err("there is one for every request, so it is forgotten");
        assert_eq!(refused.refusal(), Some(&Refusal::UnknownHold));
    }
    assert_eq!(bench.used_and_held(second, "k").await, (1, 0));
    assert_eq!(bench.used_and_held(fourth, "k").await, (2, 0));
}

async fn without_holders_an_entry_is_a_check(bench: &Bench) {
    for text in EVERY_LIMIT {
        let (limit, twin) = (bench.limit("enter", text), bench.limit("check", text));
        // Nothing is held, so that nobody asks for how long.
        for (cost, ttl) in [(6, TTL), (0, TTL), (5, Micros::ZERO), (4, Micros::MAX), (1, TTL)] {
            let (_, enter) = bench.enter(ttl);
            let entered = bench.one(enter, &limit, text, cost).await;
            let checked = bench.one(Op::Check, &twin, text, cost).await;
            assert_eq!(entered, checked, "{text} {cost}");
        }
    }
}

async fn a_place_is_of_something_and_has_a_name_of_its_own(bench: &Bench) {
    let (limit, holders) =
        (bench.limit("named", "10/h"), bench.limit("named-holders", "concurrency 3 lease 5s"));
    let refusal = async |op, asks: &[_], once| {
        let refused = bench.ask_once(op, asks, once).await.expect_err("refused");
        refused.refusal().cloned().expect("a refusal")
    };
    let asks = [(&limit, "k", 1), (&holders, "k", 1)];
    let (_, enter) = bench.enter(TTL);
    let nothing = [(&limit, "k", 1), (&holders, "k", 0)];
    assert_eq!(refusal(enter, &nothing, None).await, Refusal::EmptyHold);
    assert_eq!(refusal(enter, &asks, Some("id")).await, Refusal::EnterTakesNoId);
    let without = [(&limit, "k", 1)];
    assert_eq!(refusal(enter, &without, Some("id")).await, Refusal::EnterTakesNoId);
    let long = HoldId::MAX_TTL.saturating_add(Micros::new(1));
    for ttl in [Micros::ZERO, long, Micros::MAX] {
        let (_, enter) = bench.enter(ttl);
        assert_eq!(refusal(enter, &asks, None).await, Refusal::HoldLength, "{ttl:?}");
    }
    assert_eq!(bench.used_and_held(&limit, "k").await, (0, 0), "nothing was charged");
    // A place alone: what is charged may cost nothing.
    let entered = bench.ask(enter, &[(&limit, "k", 0), (&holders, "k", 1)]).await;
    assert!(entered.expect("a decision").allowed());
    assert_eq!(refusal(enter, &asks, None).await, Refusal::IdReused);
    assert_eq!(bench.used_and_held(&limit, "k").await, (0, 0), "nor now");
    assert_eq!(bench.used_and_held(&holders, "k").await, (0, 1));
}

async fn what_looks_on_takes_part_as_in_a_check(bench: &Bench) {
    let parse = |text: &str| text.parse().expect("a limit of the suite");
    let shadow = [parse("sliding-log 3/h"), parse("concurrency 1 lease 5s")];
    let rule = Rule::with_shadow("looked-at", [parse("10/h")], shadow);
    let rule = rule.expect("a rule of the suite");
    let asks: Vec<_> = rule.limits().iter().zip([2, 2, 1]).map(|(l, n)| (l, "k", n)).collect();
    let [_, log, holders] = rule.limits() else { unreachable!("three limits") };
    let first = bench.entered(&asks).await;
    assert!(first.allowed() && first.shadow().iter().all(|verdict| verdict.allowed));
    let id = first.hold().expect("a place, if only where it is looked at");
    let second = bench.entered(&asks).await;
    assert!(second.allowed() && second.shadow().iter().all(|verdict| !verdict.allowed));
    assert_eq!(second.hold(), None, "nothing was held");
    assert_eq!(bench.used_and_held(log, "k").await, (2, 0));
    assert_eq!(bench.used_and_held(holders, "k").await, (0, 1));
    let left = bench.settle(id, Some(0)).await.expect("a decision");
    assert_eq!((left.expired(), left.verdicts.len(), left.held().len()), (false, 0, 0));
    assert_eq!(bench.used_and_held(holders, "k").await, (0, 0));
    assert_eq!(bench.peek(&rule.limits()[0], "k").await.remaining, 6, "both have passed");
}

async fn a_visit_sets_aside_and_is_forgotten_when_it_is_settled(bench: &Bench) {
    let holders = bench.limit("visitors", "concurrency 2 lease 5s");
    for text in EVERY_LIMIT {
        let limit = bench.limit("visited", text);
        let id = HoldId::random().expect("the system has random numbers");
        let asks = [(&limit, text, 4), (&holders, text, 1)];
        let visit = bench.ask(Op::Visit { id, ttl: TTL }, &asks).await.expect("a decision");
        assert_eq!((visit.allowed(), remaining(&visit)), (true, vec![6, 1]), "{text}");
        assert_eq!(bench.used_and_held(&limit, text).await, (0, 4), "{text}");
        assert_eq!(bench.used_and_held(&holders, text).await, (0, 1), "{text}");
        let id = visit.hold().expect("a hold");
        let settled = bench.settle(id, Some(3)).await.expect("a decision");
        assert_eq!((settled.expired(), settled.held().len()), (false, 2), "{text}");
        assert_eq!(bench.used_and_held(&limit, text).await, (3, 0), "{text}");
        assert_eq!(bench.used_and_held(&holders, text).await, (0, 0), "{text}");
        let again = bench.settle(id, Some(3)).await.expect_err("it is forgotten");
        assert_eq!(again.refusal(), Some(&Refusal::UnknownHold), "{text}");
    }
}
