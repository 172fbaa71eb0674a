//! Budgets of tokens: what is really consumed, from raw logs, while calls outlive the window, the
//! estimates are wrong, and callers die between reserve and commit.

use std::time::Duration;

use testkit::now_or_never::now_or_panic;
use tidegate::{
    Cost, HoldId, Limiter, ManualClock, Memory, Micros, Refusal, Rule, RuleCheck, RuleCost, Unit,
};
use tidegate_model::{TraceRng, print_line};

const K: u64 = 1_000;
const WINDOW: u64 = 60_000;
/// Milliseconds of traffic: ten windows.
const END: u64 = 10 * WINDOW;

/// How a gateway spends a budget.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Gateway {
    /// Looks whether anything is left, and records what was used at the end.
    CheckThenCharge,
    /// Charges the estimate, and refunds or records the difference at the end.
    RefundDifference,
    Hold,
}

/// What the real cost is, compared with the estimate.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Estimates {
    /// Up to ten times too high.
    High,
    /// Ten times too low.
    Low,
}

struct CallInFlight {
    id: Option<HoldId>,
    estimate: u64,
    real: u64,
    start: u64,
    end: u64,
    /// The caller dies before it reports anything.
    dies: bool,
}

fn limiter(clock: &ManualClock, limit: &str) -> Limiter {
    clock.set(Micros::from_secs(1_700_000_040));
    let memory = Memory::builder().clock(clock.clone()).build();
    let rule = Rule::new("tokens", [limit.parse().unwrap()]).unwrap().unit(Unit::Tokens);
    Limiter::with_rules(memory, [rule]).unwrap()
}

/// Instants in milliseconds and tokens of all consumption.
fn consumption(gateway: Gateway, estimates: Estimates, limit: &str, seed: u64) -> Vec<(u64, u64)> {
    let clock = ManualClock::default();
    let (limiter, mut rng) = (limiter(&clock, limit), TraceRng::new(seed));
    let (mut flying, mut log): (Vec<CallInFlight>, _) = (Vec::new(), Vec::new());
    for now in (0..END).step_by(250) {
        let (ended, rest) = flying.into_iter().partition(|call: &CallInFlight| call.end <= now);
        flying = rest;
        let ended: Vec<CallInFlight> = ended;
        for call in ended {
            // Consumed at any instants of the call: hostile ones, at its ends.
            let within = rng.between(call.start, call.end - 1);
            let at = rng.pick(&[call.start, call.end - 1, within]);
            log.push((at, call.real));
            finish(gateway, &limiter, &call);
        }
        clock.advance(Duration::from_millis(250));
        let estimate = rng.between(20, 200);
        let real = match estimates {
            Estimates::High => rng.between(estimate / 10, estimate),
            Estimates::Low => estimate * 10,
        };
        let (length, dies) = (rng.between(100, 3 * WINDOW), rng.one_in(10));
        let ttl = Duration::from_millis(length);
        let (is_granted, id) = match gateway {
            Gateway::CheckThenCharge => {
                (limiter.check("k").peek().now().unwrap().remaining() > 0, None)
            }
            Gateway::RefundDifference => {
                (limiter.check("k").cost(estimate).now().unwrap().allowed(), None)
            }
            Gateway::Hold => {
                let name = format!("{now}");
                let reserve = limiter.reserve("k", estimate).ttl(ttl).idempotency_key(&name);
                let made = now_or_panic(reserve).ok().map(tidegate::Reservation::keep);
                if rng.one_in(5) {
                    // A retry under the id holds nothing more.
                    let again = limiter.reserve("k", estimate).ttl(ttl).idempotency_key(&name);
                    let again = now_or_panic(again).ok().map(tidegate::Reservation::keep);
                    assert_eq!(made, again);
                }
                (made.is_some(), made)
            }
        };
        if is_granted {
            let start = now + 250;
            flying.push(CallInFlight { id, estimate, real, start, end: start + length, dies });
        }
    }
    log
}

fn finish(gateway: Gateway, limiter: &Limiter, call: &CallInFlight) {
    let &CallInFlight { id, estimate, real, dies, .. } = call;
    match (gateway, id) {
        _ if dies => {}
        (Gateway::Hold, Some(id)) => drop(now_or_panic(limiter.reservation(id).commit(real))),
        (Gateway::RefundDifference, _) if real <= estimate => {
            drop(now_or_panic(limiter.refund("k", estimate - real)));
        }
        (Gateway::RefundDifference, _) => {
            drop(now_or_panic(limiter.record("k", real - estimate)));
        }
        _ => drop(now_or_panic(limiter.record("k", real))),
    }
}

/// The most tokens in one aligned window.
fn worst_window(log: &[(u64, u64)]) -> u64 {
    // The clock starts at a multiple of the window.
    let of = |window: u64| {
        let inside = log.iter().filter(|(at, _)| at / WINDOW == window);
        inside.map(|(_, tokens)| tokens).sum::<u64>()
    };
    (0..END / WINDOW + 4).map(of).max().unwrap_or(0)
}

/// The most tokens above `allowed(length)` in any interval from one consumption to another.
fn most_above(log: &[(u64, u64)], allowed: impl Fn(u64) -> u64) -> u64 {
    let mut log = log.to_vec();
    log.sort_unstable();
    let mut most = 0;
    for (i, (from, _)) in log.iter().enumerate() {
        let mut sum = 0;
        for (to, tokens) in &log[i..] {
            sum += tokens;
            most = most.max(u64::saturating_sub(sum, allowed(to - from)));
        }
    }
    most
}

#[test]
fn holds_keep_the_bound_that_other_gateways_exceed() {
    let limit = "fixed-window 1000/60s";
    for estimates in [Estimates::High, Estimates::Low] {
        let worst = |gateway| {
            let runs = (0..30).map(|seed| consumption(gateway, estimates, limit, seed));
            runs.map(|log| worst_window(&log)).max().unwrap()
        };
        let [check, refund, hold] =
            [Gateway::CheckThenCharge, Gateway::RefundDifference, Gateway::Hold].map(worst);
        print_line(&format!(
            "worst window of {limit}, estimates {estimates:?}: check before, charge after {} %, \
             refund the difference {} %, hold {} %",
            check * 100 / K,
            refund * 100 / K,
            hold * 100 / K
        ));
        let factor = if estimates == Estimates::Low { 10 } else { 1 };
        assert!(hold <= factor * K, "{estimates:?}: {hold}");
        assert!(hold > K / 2, "the traffic uses the budget");
        assert!(check > factor * K && (factor > 1 || refund > K), "{check} {refund}");
    }
}

#[test]
fn no_interval_has_more_than_the_bound_of_its_algorithm() {
    for seed in 0..30 {
        let of = |limit| consumption(Gateway::Hold, Estimates::High, limit, seed);
        // In every interval shorter than the window.
        let window = |length| if length < WINDOW { K } else { u64::MAX };
        assert_eq!(most_above(&of("sliding-log 1000/60s"), window), 0, "seed {seed}");
        let rate = |length: u64| K + (length * K).div_ceil(WINDOW);
        assert_eq!(most_above(&of("1000/60s"), rate), 0, "seed {seed}");
    }
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
