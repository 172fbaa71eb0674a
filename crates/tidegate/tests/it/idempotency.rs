//! Requests under an idempotency key: charged once, also if the rule or the clock changes
//! meanwhile.
use std::time::Duration;

use tidegate::{Clock, Key, Limit, Limiter, ManualClock, Memory, Micros, Refusal, Rule};

const YEAR: Duration = Duration::from_secs(365 * 86_400);

// --- a rule that changes -----------------------------------------------------------------------

/// The limits of a rule when a request arrives first, and when it is repeated.
const CHANGES: &[(&[&str], &[&str])] = &[
    (&["100/h"], &["200/h"]),
    (&["100/h"], &["sliding-log 100/h"]),
    (&["100/h"], &["100/h", "1000/d"]),
    (&["100/h"], &["fixed-window 50/h", "100/h", "1000/d"]),
    (&["100/h", "1000/d"], &["100/h"]),
    (&["100/h", "sliding-log 1000/d"], &["sliding-log 1000/d"]),
    (&["100/h", "1000/d"], &["1000/d", "100/h"]),
];

#[test]
fn a_rule_that_gets_another_limit_still_knows_its_ids() {
    for (before, after) in CHANGES {
        let (_, limiter) = limiter(before);
        let first = limiter.check("k").cost(7).idempotency_key("id").now().unwrap();
        assert!(first.allowed() && !first.repeated());
        limiter.set_rule(rule(after)).unwrap();
        let used = remaining(&limiter);
        let repeated = limiter.check("k").cost(7).idempotency_key("id").now().unwrap();
        assert!(repeated.repeated(), "{before:?}, then {after:?}");
        assert_eq!(repeated.verdicts, first.verdicts, "{before:?}, then {after:?}");
        assert_eq!(remaining(&limiter), used, "charged twice: {before:?}, then {after:?}");
    }
}

#[test]
fn a_rule_that_gets_another_limit_still_refuses_another_request_under_an_id() {
    for (before, after) in CHANGES {
        let (_, limiter) = limiter(before);
        limiter.check("k").cost(7).idempotency_key("id").now().unwrap();
        limiter.set_rule(rule(after)).unwrap();
        let used = remaining(&limiter);
        for other_request in [
            limiter.check("k").cost(8).idempotency_key("id").now(),
            limiter.record("k", 7).idempotency_key("id").now(),
            limiter.refund("k", 7).idempotency_key("id").now(),
        ] {
            let refused = other_request.unwrap_err();
            assert_eq!(refused.refusal(), Some(&Refusal::IdReused), "{before:?}, then {after:?}");
        }
        assert_eq!(remaining(&limiter), used, "{before:?}, then {after:?}");
    }
}

// --- a clock that steps ------------------------------------------------------------------------

#[test]
fn an_id_is_known_for_an_hour() {
    for (after, known) in [(0, true), (3_599, true), (3_600, false), (86_400, false)] {
        let (clock, limiter) = limiter(&["10/h"]);
        limiter.check("k").idempotency_key("id").now().unwrap();
        clock.advance(Duration::from_secs(after));
        let repeated = limiter.check("k").idempotency_key("id").now().unwrap();
        assert_eq!(repeated.repeated(), known, "after {after} s");
    }
}

#[test]
fn an_id_that_is_seen_when_the_clock_stepped_back_is_known_for_one_more_hour() {
    for (after, known) in [(0, true), (3_599, true), (3_600, false), (86_400, false)] {
        let (clock, limiter) = charged_a_year_ahead();
        assert!(limiter.check("k").idempotency_key("id").now().unwrap().repeated());
        clock.advance(Duration::from_secs(after));
        let repeated = limiter.check("k").idempotency_key("id").now().unwrap();
        assert_eq!(repeated.repeated(), known, "after {after} s");
    }
}

/// A request under an id was charged, and then the clock stepped back by a year.
fn charged_a_year_ahead() -> (ManualClock, Limiter) {
    let (clock, limiter) = limiter(&["10/h"]);
    clock.advance(YEAR);
    assert!(limiter.check("k").idempotency_key("id").now().unwrap().allowed());
    clock.set(clock.now().saturating_sub(Micros::from(YEAR)));
    (clock, limiter)
}

// --- ambiguous names ----------------------------------------------------------------------------

/// Ids that begin like the rest of a longer key would, if it were written before them without an
/// end mark.
#[test]
fn no_id_is_mistaken_for_a_part_of_a_key_nor_a_part_for_an_id() {
    let framed = |part: &str, rest: &str| {
        let len = String::from_utf8(part.len().to_ne_bytes().into()).unwrap();
        format!("{len}{part}{rest}")
    };
    let counted = |count: usize, rest: &str| {
        format!("{}{rest}", String::from_utf8(count.to_ne_bytes().into()).unwrap())
    };
    let parts = ["a", "b"];
    for (id, victim) in [
        (framed("b", "Y"), "Y"),
        (framed("b", &framed("Y", "")), "Y"),
        (counted(1, &framed("b", "Y")), "Y"),
        ("bY".to_string(), "Y"),
        ("b\u{0}Y".to_string(), "Y"),
        ("Y".to_string(), "Y"),
    ] {
        // So little memory that all names share one shard.
        let memory = Memory::builder().cap_bytes(64 << 10).clock(ManualClock::default()).build();
        let limiter = Limiter::with_rules(memory, [rule(&["10/h"])]).unwrap();
        assert!(!limiter.check("a").idempotency_key(&id).now().unwrap().repeated());
        let own = limiter.check(Key::of(&parts)).idempotency_key(victim).now();
        let own = own.unwrap_or_else(|error| panic!("{id:?}: {error}"));
        assert!(own.allowed() && !own.repeated(), "{id:?}");
    }
}

#[test]
fn an_id_belongs_to_its_key_and_to_all_of_its_parts() {
    let (_, limiter) = limiter(&["10/h"]);
    for parts in [&["a"][..], &["a", "b"], &["ab"], &["", "ab"], &["ab", ""], &["a", "b", ""]] {
        let first = limiter.check(Key::of(parts)).idempotency_key("id").now().unwrap();
        assert!(!first.repeated(), "{parts:?}");
        assert!(
            limiter.check(Key::of(parts)).idempotency_key("id").now().unwrap().repeated(),
            "{parts:?}"
        );
    }
}

// --- support -----------------------------------------------------------------------------------

fn limiter(limits: &[&str]) -> (ManualClock, Limiter) {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    (clock, Limiter::with_rules(memory, [rule(limits)]).unwrap())
}

fn rule(limits: &[&str]) -> Rule {
    let limits = limits.iter().map(|text| text.parse::<Limit>().unwrap());
    Rule::new("pay", limits).unwrap()
}

/// Remaining permits of the most restrictive limit for the key.
fn remaining(limiter: &Limiter) -> u64 {
    limiter.check("k").peek().now().unwrap().remaining()
}
