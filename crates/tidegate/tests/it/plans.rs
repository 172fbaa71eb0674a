//! Plans of a rule: limits by what a customer has booked, on consumption that they share.

use std::borrow::Cow;
use std::net::IpAddr;

use tidegate::policy::{Enforcement, KeyPart, ListMode, Override, PlanDraft, Request};
use tidegate::{
    Clock, Decision, EngineError, Key, Limit, Limiter, ManualClock, Memory, Micros, Op, Policy,
    PolicyRule, Refusal, Rule, RuleCheck, RuleDraft,
};
use tidegate_model::TraceRng;

fn limits(texts: &[&str]) -> Vec<Limit> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A rule with these plans, the first of which is the default.
fn planned(plans: &[(&str, &[&str])]) -> RuleDraft {
    RuleDraft {
        name: "api".into(),
        key: vec![KeyPart::Header("x-key".into())],
        plans: Some(PlanDraft {
            plans: plans.iter().map(|(name, texts)| ((*name).into(), limits(texts))).collect(),
            default_plan: plans[0].0.into(),
            header: Some("X-Plan".into()),
        }),
        ..RuleDraft::default()
    }
}

struct Fixture {
    limiter: Limiter,
    clock: ManualClock,
}

impl Fixture {
    fn new(draft: RuleDraft) -> Self {
        let clock = ManualClock::default();
        let memory = Memory::builder().clock(clock.clone()).build();
        Self { limiter: Limiter::with_policy(memory, policy(draft)), clock }
    }

    fn try_check(&self, key: &str, plan: &str, cost: u64) -> Result<Decision, EngineError> {
        let check = RuleCheck::new("api", key).cost(cost);
        let checks = [if plan.is_empty() { check } else { check.plan(plan) }];
        self.limiter.check_each(&checks).now()
    }

    fn check(&self, key: &str, plan: &str, cost: u64) -> Decision {
        self.try_check(key, plan, cost).unwrap()
    }

    fn remaining(&self, key: &str, plan: &str) -> u64 {
        let policy = self.limiter.policy();
        let check = [RuleCheck::new("api", key).plan(plan)];
        let plan = policy.plan_checks(&check, ListMode::Evaluate, self.clock.now()).unwrap();
        self.limiter.decide(Op::Check, &plan).peek().now().unwrap().verdicts[0].remaining
    }
}

fn policy(draft: RuleDraft) -> Policy {
    Policy::new([PolicyRule::new(draft).unwrap()]).unwrap()
}

#[test]
fn a_key_that_changes_its_plan_keeps_what_was_used() {
    for (free, pro) in [
        ("10/h", "100/h"),
        ("fixed-window 10/h", "fixed-window 100/h"),
        ("sliding-window 10/h", "sliding-window 100/h"),
        ("sliding-log 10/h", "sliding-log 100/h"),
        ("leaky-bucket 10/h", "leaky-bucket 100/h"),
    ] {
        let fixture = Fixture::new(planned(&[("free", &[free]), ("pro", &[pro])]));
        assert!(fixture.check("k", "", 10).allowed(), "{free}");
        assert!(!fixture.check("k", "free", 1).allowed(), "{free}");
        assert_eq!(fixture.remaining("k", "pro"), 90, "{free}");
        assert!(fixture.check("k", "pro", 30).allowed(), "{free}");
        assert_eq!(fixture.remaining("k", "pro"), 60, "{free}");
        let denied = fixture.check("k", "free", 1);
        assert!(!denied.allowed(), "{free}");
        // A downgrade waits until what was used fits, and the wait that was reported is true.
        let wait = denied.retry_after().span().unwrap();
        fixture.clock.advance(wait.into());
        assert!(fixture.check("k", "free", 1).allowed(), "{free}: after {wait}");
        assert_eq!(fixture.remaining("other", "pro"), 100, "{free}");
    }
}

#[test]
fn no_change_of_plans_grants_more_than_the_largest_one() {
    for (small, large, per_second) in [("20/s", "80/s", 80), ("10/s burst 50", "40/s", 40)] {
        for seed in 0..20 {
            let draft = planned(&[("free", &[small]), ("pro", &[large])]);
            let largest = limits(&[small, large]).iter().map(Limit::capacity).max().unwrap();
            let fixture = Fixture::new(draft);
            let (mut rng, mut admitted, mut elapsed) = (TraceRng::new(seed), 0, 0);
            for _ in 0..3_000 {
                let plan = if rng.below(2) == 0 { "free" } else { "pro" };
                let cost = 1 + rng.below(5);
                admitted += cost * u64::from(fixture.check("k", plan, cost).allowed());
                let bound = largest * 1_000_000 + per_second * elapsed;
                assert!(admitted * 1_000_000 <= bound, "{small} {large} {seed}: {admitted}");
                let span = rng.below(20_000);
                elapsed += span;
                fixture.clock.advance(Micros::new(span).into());
            }
            assert!(admitted > largest, "{small} {large} {seed}: {admitted}");
        }
    }
}

#[test]
fn a_request_has_the_plan_of_its_header_if_a_trusted_proxy_sent_it() {
    let fixture = Fixture::new(planned(&[("free", &["2/h"]), ("pro", &["5/h"])]));
    let policy = fixture.limiter.policy();
    for (plan, is_trusted, expected) in [
        (Some("pro"), true, (5, "pro")),
        (Some(" pro "), true, (5, "pro")),
        (Some("free"), true, (2, "free")),
        (Some("pro"), false, (2, "free")),
        (Some("gold"), true, (2, "free")),
        (Some(""), true, (2, "free")),
        (None, true, (2, "free")),
    ] {
        let request = PlanRequest { plan, is_trusted };
        let planned = policy.plan_request(&request, Micros::ZERO).unwrap();
        let step = &planned.steps()[0];
        let capacity = step.limits().next().unwrap().limit().capacity();
        assert_eq!((capacity, step.plan().unwrap()), expected, "{plan:?} {is_trusted}");
    }
}

#[test]
fn a_call_with_an_unknown_plan_is_refused_with_the_plans() {
    let fixture = Fixture::new(planned(&[("free", &["2/h"]), ("pro", &["5/h"])]));
    let error = fixture.try_check("k", "gold", 1).unwrap_err();
    assert_eq!(error.to_string(), r#"rule "api" has no plan "gold"; its plans: free, pro"#);
    let plain = Fixture::new(RuleDraft {
        name: "api".into(),
        limits: limits(&["2/h"]),
        ..RuleDraft::default()
    });
    let error = plain.try_check("k", "pro", 1).unwrap_err();
    assert_eq!(error.to_string(), r#"rule "api" has no plans; leave out plan "pro""#);
    let own = Rule::new("own", limits(&["2/h"])).unwrap();
    let target = tidegate::policy::RuleTarget::Own(&own);
    let check = [RuleCheck::of(target, "k", 1).plan("pro")];
    let refused = plain.limiter.check_each(&check).now().unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::UnknownPlan(_))), "{refused}");
}

#[test]
fn usage_survives_the_change_from_limits_to_plans_and_back() {
    let plain =
        || RuleDraft { limits: limits(&["fixed-window 10/h"]), plans: None, ..planned(&PLANS) };
    const PLANS: [(&str, &[&str]); 2] =
        [("free", &["fixed-window 10/h"]), ("pro", &["fixed-window 20/h"])];
    let fixture = Fixture::new(plain());
    assert!(fixture.check("k", "", 7).allowed());
    fixture.limiter.set_policy(policy(planned(&PLANS)));
    assert_eq!(fixture.remaining("k", "free"), 3);
    assert!(fixture.check("k", "pro", 5).allowed());
    fixture.limiter.set_policy(policy(plain()));
    assert!(!fixture.check("k", "", 1).allowed());
}

#[test]
fn an_override_takes_precedence_over_every_plan_until_it_ends() {
    let now = ManualClock::default().now();
    let until = Some(now.saturating_add(Micros::from_secs(60)));
    let overrides = vec![Override { key: vec!["vip".into()], limits: limits(&["50/h"]), until }];
    let draft = RuleDraft { overrides, ..planned(&[("free", &["2/h"]), ("pro", &["5/h"])]) };
    let fixture = Fixture::new(draft);
    let limit = |key: &str, plan: &str| fixture.check(key, plan, 1).verdict().limit;
    assert_eq!([limit("vip", ""), limit("vip", "pro"), limit("k", "pro")], [50, 50, 5]);
    fixture.clock.advance(Micros::from_secs(61).into());
    assert_eq!([limit("vip", "pro"), limit("vip", "free")], [5, 2]);
}

#[test]
fn each_limit_of_a_plan_shares_the_usage_of_its_own_kind() {
    let fixture = Fixture::new(planned(&[
        ("free", &["5/h", "fixed-window 10/d"]),
        ("pro", &["50/h", "fixed-window 100/d"]),
    ]));
    assert!(fixture.check("k", "free", 4).allowed());
    let remaining: Vec<u64> =
        fixture.check("k", "pro", 1).verdicts.iter().map(|verdict| verdict.remaining).collect();
    assert_eq!(remaining, [45, 95]);
    let shadow = RuleDraft {
        enforcement: Enforcement::Shadow,
        ..planned(&[("free", &["1/h"]), ("pro", &["3/h"])])
    };
    let fixture = Fixture::new(shadow);
    assert!((0..5).all(|_| fixture.check("k", "free", 1).allowed()));
}

#[test]
fn invalid_plans_are_refused_with_the_reason() {
    let ok = || planned(&[("free", &["2/h"]), ("pro", &["5/h"])]);
    let with = |change: &dyn Fn(&mut PlanDraft)| {
        let mut draft = ok();
        change(draft.plans.as_mut().unwrap());
        draft
    };
    let both = RuleDraft { limits: limits(&["1/s"]), ..ok() };
    let many = with(&|plans| {
        plans.plans = (0..65).map(|i| (format!("p{i}").into(), limits(&["1/s"]))).collect();
    });
    for (draft, message) in [
        (both, "limits and plans exclude each other; move the limits into a plan"),
        (many, "65 plans; use at most 64"),
        (with(&|plans| plans.plans[1].0 = "a.b".into()), "plan name \"a.b\"; use 1 to 64 of"),
        (with(&|plans| plans.plans[1].0 = "free".into()), "two plans named \"free\"; rename one"),
        (with(&|plans| plans.default_plan = "".into()), "default_plan is required with plans"),
        (with(&|plans| plans.default_plan = "x".into()), "the default plan \"x\" is not in plans"),
        (
            with(&|plans| plans.plans[1].1 = limits(&["fixed-window 5/h"])),
            "plan \"pro\" has fixed-window, but plan \"free\" has token-bucket; use the same",
        ),
        (
            with(&|plans| plans.plans[1].1 = Vec::new()),
            "plan \"pro\" has no limits, but plan \"free\" has token-bucket",
        ),
        (RuleDraft { estimate: Some(3), ..ok() }, "estimate 3; use 1 to 2"),
    ] {
        let error = PolicyRule::new(draft).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

/// A request of the key `k`.
struct PlanRequest {
    plan: Option<&'static str>,
    is_trusted: bool,
}

impl Request for PlanRequest {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        "/"
    }

    fn host(&self) -> &str {
        ""
    }

    fn header(&self, name: &str) -> Option<&str> {
        match name {
            "x-key" => Some("k"),
            "x-plan" => self.plan,
            _ => None,
        }
    }

    fn query(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn cookie(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        None
    }

    fn client_ip(&self) -> Option<IpAddr> {
        None
    }

    fn is_from_trusted_proxy(&self) -> bool {
        self.is_trusted
    }
}

/// The memory of ad-hoc limits is bounded separately: a flood of them must not reach plans.
#[test]
fn a_flood_of_adhoc_limits_leaves_plans_their_own_memory() {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).cap_bytes(1 << 20).build();
    let rule = planned(&[("free", &["2/h"]), ("pro", &["5/h"])]);
    let limiter = Limiter::with_policy(memory, policy(rule));
    let adhoc = Rule::adhoc("1/h".parse().unwrap());
    for i in 0..50_000 {
        let key = format!("adhoc-{i}");
        let target = tidegate::policy::RuleTarget::Own(&adhoc);
        // Denied or refused when the memory is full.
        let _ = limiter.check_each(&[RuleCheck::of(target, Key::from(&key), 1)]).now();
    }
    for i in 0..1_000 {
        let key = format!("k{i}");
        let check = |plan| limiter.check_each(&[RuleCheck::new("api", &key).plan(plan)]).now();
        assert_eq!(check("pro").unwrap().verdicts[0].remaining, 4, "{key}");
        assert_eq!(check("free").unwrap().verdicts[0].remaining, 0, "{key}");
    }
}
