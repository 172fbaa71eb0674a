//! Shadow limits.

use std::sync::Arc;

use tidegate_core::{Cost, Micros};

use super::harness::{EVERY_LIMIT, Harness};
use crate::{Decision, Extension, Op, Rule, RuleCost, RuleLimit};

pub(super) async fn run(new: impl Fn() -> Harness) {
    a_shadow_limit_denies_nothing_and_returns_its_verdict(&new()).await;
    a_shadow_limit_is_charged_when_both_allow(&new()).await;
    a_reservation_holds_a_shadow_limit_only_if_it_fits(&new()).await;
    an_extension_holds_more_of_a_shadow_limit_only_if_it_fits(&new()).await;
    a_rule_of_shadow_limits_allows_everything(&new()).await;
}

/// An enforced limit and a shadow limit.
fn pair(enforced: &str, shadow: &str) -> [Arc<RuleLimit>; 2] {
    let parse = |text: &str| text.parse().expect("a limit of the suite");
    let rule = Rule::with_shadow("pair", [parse(enforced)], [parse(shadow)]);
    let rule = rule.expect("a rule of the suite");
    [rule.limits()[0].clone(), rule.limits()[1].clone()]
}

impl Harness {
    async fn both(
        &self,
        op: Op<'_>,
        limits: &[Arc<RuleLimit>; 2],
        key: &str,
        cost: u64,
    ) -> Decision {
        let charges = [(&limits[0], key, cost), (&limits[1], key, cost)];
        self.call(op, &charges).await.expect("a decision")
    }
}

async fn a_shadow_limit_denies_nothing_and_returns_its_verdict(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limits = pair("fixed-window 100/h", text);
        let first = harness.both(Op::Check, &limits, text, 10).await;
        assert!(first.allowed() && first.shadow()[0].allowed, "{text}");
        assert_eq!((first.verdicts.len(), first.shadow().len()), (1, 1));
        let second = harness.both(Op::Check, &limits, text, 10).await;
        assert!(second.allowed(), "the enforced limit has room, {text}");
        assert!(!second.shadow()[0].allowed, "{text}");
        assert_eq!(second.verdict().remaining, 80);
        assert_eq!(harness.inspect(&limits[1], text).await.standing.used, 10, "{text}");
    }
}

async fn a_shadow_limit_is_charged_when_both_allow(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limits = pair("sliding-log 4/60s", text);
        assert!(harness.both(Op::Check, &limits, text, 4).await.allowed());
        let denied = harness.both(Op::Check, &limits, text, 4).await;
        assert!(!denied.allowed() && denied.shadow()[0].allowed, "{text}");
        assert_eq!(harness.inspect(&limits[1], text).await.standing.used, 4, "a denial, {text}");
        let peek = harness.both(Op::Peek, &limits, text, 0).await;
        assert_eq!(peek.shadow()[0].remaining, 6, "{text}");
        harness.both(Op::Reset, &limits, text, 0).await;
        assert_eq!(harness.inspect(&limits[1], text).await.standing.used, 0, "{text}");
        harness.advance(Micros::from_secs(120));
    }
}

async fn a_reservation_holds_a_shadow_limit_only_if_it_fits(harness: &Harness) {
    for text in EVERY_LIMIT.into_iter().filter(|text| !text.ends_with("queue")) {
        let limits = pair("fixed-window 100/h", text);
        let reserve = async |cost| {
            let (_, hold) = harness.hold(Micros::from_secs(60));
            harness.both(hold, &limits, text, cost).await.hold().expect("a hold")
        };
        let (small, large) = (reserve(6).await, reserve(8).await);
        let held = async |i: usize| harness.inspect(&limits[i], text).await.standing.held;
        assert_eq!((held(0).await, held(1).await), (14, 6), "8 more do not fit into 10, {text}");
        let settled = harness.settle(large, Some(3)).await.expect("a decision");
        assert!(!settled.expired(), "{text}");
        assert_eq!(settled.held().len(), 1);
        assert_eq!((settled.held()[0].rule(), settled.verdicts.len()), ("pair", 1));
        let settled = harness.settle(small, Some(2)).await.expect("a decision");
        assert!(!settled.expired(), "{text}");
        let used = async |i: usize| harness.inspect(&limits[i], text).await.standing.used;
        assert_eq!((used(0).await, used(1).await), (5, 2), "{text}");
        assert_eq!((held(0).await, held(1).await), (0, 0), "{text}");
    }
}

async fn an_extension_holds_more_of_a_shadow_limit_only_if_it_fits(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limits = pair("fixed-window 100/h", text);
        let (_, hold) = harness.hold(Micros::from_secs(60));
        let id = harness.both(hold, &limits, text, 6).await.hold().expect("a hold");
        for (total, in_shadow) in [(9, 9), (12, 9), (10, 10)] {
            let totals = [RuleCost::new("pair", Cost::total(total))];
            let to = Extension { totals: &totals, min: None, ttl: None };
            let extended = harness.extend(id, to).await.expect("a decision");
            assert!(extended.allowed(), "{text}");
            assert_eq!(extended.shadow()[0].allowed, total <= 10, "{text}");
            let held = harness.inspect(&limits[1], text).await.standing.held;
            assert_eq!(held, in_shadow, "{text}");
        }
        assert_eq!(harness.inspect(&limits[0], text).await.standing.held, 12, "{text}");
        harness.settle(id, Some(0)).await.expect("cancelled");
    }
}

async fn a_rule_of_shadow_limits_allows_everything(harness: &Harness) {
    let limit = "sliding-log 1/60s".parse().expect("a limit of the suite");
    let rule = Rule::with_shadow("only", [], [limit]).expect("a rule of the suite");
    for index in 0..3 {
        let decision = harness.call(Op::Check, &[(&rule.limits()[0], "k", 1)]).await;
        let decision = decision.expect("a decision");
        assert!(decision.allowed() && decision.verdicts.is_empty());
        assert_eq!(decision.shadow()[0].allowed, index == 0);
    }
}
