//! Budgets of tokens: what is really consumed, from raw logs, while calls outlive the window, the
//! estimates are wrong, and callers die between reserve and commit.

use std::time::Duration;

use testkit::bounds::families::LIMIT_FAMILIES;
use testkit::budget_traffic::{
    BUDGET, Estimates, GatewayKind, Overshoot, WINDOW, consumption, limiter_in_memory,
};
use testkit::now_or_never::now_or_panic;
use tidegate::{
    Cost, Limiter, ManualClock, Memory, Micros, Refusal, Rule, RuleCheck, RuleCost, Unit,
};
use tidegate_model::print_line;

const GATEWAYS: [GatewayKind; 4] = [
    GatewayKind::CheckThenCharge,
    GatewayKind::RefundDifference,
    GatewayKind::Hold,
    GatewayKind::AtMost,
];

/// The same traffic through four gateways: only holds, of an estimate or of as much of it as is
/// left, keep the bound of every algorithm, in every interval.
#[test]
fn holds_keep_the_bounds_that_other_gateways_exceed() {
    let (seeds, windows) = (1..=5, 6);
    print_line(&format!(
        "most tokens within one window, in % of the budget; intervals above the bound; seeds {seeds:?}"
    ));
    print_line(
        "limit                      | estimates | check, charge after | refund difference | hold        \
         | hold at most",
    );
    let mut above = [0; 4];
    for (name, make) in LIMIT_FAMILIES {
        let (limit, bound) = make(BUDGET, WINDOW);
        for estimates in Estimates::ALL {
            let found = GATEWAYS.map(|gateway| {
                let runs = seeds.clone().map(|seed| {
                    let clock = ManualClock::default();
                    let limiter = limiter_in_memory(&clock, &limit);
                    let way = (gateway, estimates);
                    let log = now_or_panic(consumption(&limiter, &clock, way, windows, seed));
                    Overshoot::of(&log, bound, estimates)
                });
                runs.fold(Overshoot::default(), Overshoot::and)
            });
            let [check, refund, hold, at_most] =
                found.map(|found| format!("{} % / {}", found.worst, found.violations));
            let estimates = format!("{estimates:?}");
            print_line(&format!(
                "{name:<26} | {estimates:<9} | {check:<19} | {refund:<17} | {hold:<11} | {at_most}"
            ));
            for found in &found[2..] {
                assert_eq!(found.violations, 0, "{limit}, {estimates}");
                assert!(found.worst >= 50, "{limit}, {estimates}: the traffic uses the budget");
            }
            above.iter_mut().zip(found).for_each(|(above, found)| *above += found.violations);
        }
    }
    assert!(above[0] > 0 && above[1] > 0, "the traffic is hostile enough: {above:?}");
}

#[test]
fn each_rule_is_reserved_and_settled_at_its_own_cost() {
    let clock = ManualClock::default();
    clock.set(Micros::from_secs(1_700_000_040));
    let memory = Memory::builder().clock(clock.clone()).build();
    let rule =
        |name, limit: &str, unit| Rule::new(name, [limit.parse().unwrap()]).unwrap().unit(unit);
    let rules = [
        rule("requests", "60/m", Unit::Requests),
        rule("tokens", "fixed-window 10000/1h", Unit::Tokens),
        rule("money", "fixed-window 5000000/1d", Unit::Money),
    ];
    let limiter = Limiter::with_rules(memory, rules).unwrap();
    let left = || {
        let peek = limiter.check("ann").peek().now().unwrap();
        peek.verdicts.iter().map(|verdict| verdict.remaining).collect::<Vec<_>>()
    };
    let checks = [
        RuleCheck::new("requests", "ann"),
        RuleCheck::new("tokens", "ann").cost(1_500),
        RuleCheck::new("money", "ann").cost(90_000),
    ];
    let reserve = || now_or_panic(limiter.reserve_each(&checks).ttl(Duration::from_secs(90)));
    let reserved = reserve().unwrap();
    assert_eq!(left(), [59, 8_500, 4_910_000]);
    let unclear = now_or_panic(limiter.reservation(reserved.id()).commit(312)).unwrap_err();
    assert_eq!(unclear.refusal(), Some(&Refusal::DifferentCosts(2)));
    let costs = [("tokens", 312), ("money", 1_873)];
    let costs = costs.map(|(rule, cost)| RuleCost::new(rule, Cost::total(cost)));
    let settled = now_or_panic(reserved.commit_each(&costs)).unwrap();
    assert!(!settled.late() && !settled.overdrawn());
    let charged: Vec<(&str, u64)> =
        settled.limits().map(|(limit, cost, _)| (limit.rule(), cost.charged.get())).collect();
    assert_eq!(charged, [("requests", 1), ("tokens", 312), ("money", 1_873)]);
    assert_eq!(left(), [59, 9_688, 4_998_127]);
    // Dropped, the estimate is released; the request was one.
    drop(reserve().unwrap());
    assert_eq!(left(), [58, 9_688, 4_998_127]);
    // Not settled by its deadline, it is charged.
    reserve().unwrap().keep();
    clock.advance(Duration::from_secs(90));
    assert_eq!(left(), [60, 8_188, 4_908_127]);
    // One cost for all rules is that of one request.
    let all = now_or_panic(limiter.reserve("bob", 700)).unwrap();
    assert_eq!(all.decision().unwrap().verdicts[0].remaining, 59);
}
