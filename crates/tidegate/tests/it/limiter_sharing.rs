//! State that two limiters on one engine share, usage that survives a changed limit, refused rules,
//! and the text of every error.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Call, Cost, Decision, EngineError, GlobalInUse, InvalidRule, Limit, Limited, Limiter,
    ManualClock, Memory, Micros, Refusal, Rule, Wait,
};

use testkit::now_or_never::now_or_panic;

// --- shared state -------------------------------------------------------------------------------

#[test]
fn two_limiters_on_one_engine_count_together_if_their_limits_are_the_same() {
    for (one, other, together) in [
        ("5/m", "5/m", true),
        // Another notation of the same limit.
        ("5/m", "5/60s", true),
        ("5/m", "token-bucket 5/m burst 5", true),
        ("5/m", "1000/s", false),
        ("5/m", "5/m burst 6", false),
        ("5/m", "6/m", false),
        ("5/m", "leaky-bucket 5/m", false),
        ("sliding-log 5/m", "sliding-window 5/m", false),
        ("fixed-window 5/d", "fixed-window 5/d tz Asia/Tokyo", false),
    ] {
        let memory = memory();
        let [one_limiter, other_limiter] =
            [one, other].map(|text| Limiter::new(memory.clone(), limit(text)));
        let capacity = limit(other).capacity();
        assert_eq!(admitted(&one_limiter, 6), 5, "{one}");
        let left = if together { 0 } else { capacity };
        assert_eq!(admitted(&other_limiter, capacity + 1), left, "{one} and then {other}");
        assert_eq!(admitted(&one_limiter, 1), 0, "{one}, after {other} was used");
    }
}

#[test]
fn a_replaced_limit_counts_for_every_way_to_check() {
    let limiter = Limiter::new(memory(), limit("5/m"));
    assert!(limiter.allow("k").unwrap() && limiter.check_now("k").unwrap().allowed());
    limiter.set_limit(limit("3/m")).unwrap();
    assert_eq!(limiter.check_now("k").unwrap().remaining(), 0);
    assert!(!limiter.allow("k").unwrap());
    limiter.set_limit(limit("9/m")).unwrap();
    assert!(limiter.allow("k").unwrap());
    assert_eq!(limiter.check_now("k").unwrap().remaining(), 4);
}

#[test]
fn a_number_is_a_key_without_formatting() {
    let limiter = Limiter::new(memory(), limit("1/m"));
    let allow = |id: u64| limiter.allow(&id.to_be_bytes()).unwrap();
    assert_eq!([allow(7), allow(8), allow(7)], [true, true, false]);
    assert!(!limiter.check_now(7_u64.to_be_bytes().as_slice()).unwrap().allowed());
}

/// Limits do not depend on the order in which limiters are created or first used.
#[test]
fn a_larger_limit_on_the_same_key_does_not_weaken_a_smaller_one() {
    let memory = memory();
    let login = Limiter::new(memory.clone(), limit("5/m"));
    let api = Limiter::new(memory, limit("1000/s"));
    assert_eq!(admitted(&api, 1), 1);
    assert_eq!(admitted(&login, 2_000), 5);
    assert_eq!(login.check("k").peek().now().unwrap().verdict().limit, 5);
}

#[test]
fn clones_are_one_limiter() {
    let limiter = Limiter::new(memory(), limit("5/m"));
    let clone = limiter.clone();
    assert_eq!(admitted(&limiter, 3), 3);
    limiter.set_limit(limit("4/m")).unwrap();
    assert_eq!(admitted(&clone, 5), 1);
}

// --- changed limits -----------------------------------------------------------------------------

#[test]
fn a_changed_limit_keeps_its_usage_if_the_algorithm_is_the_same() {
    for (before, after, used, left) in [
        ("10/h", "10/h", 7, 3),
        ("10/h", "20/h", 7, 13),
        ("10/h", "8/h", 7, 1),
        ("10/h", "5/h", 7, 0),
        ("10/h", "10/h burst 9", 7, 2),
        ("leaky-bucket 10/h", "leaky-bucket 20/h", 7, 13),
        ("fixed-window 10/h", "fixed-window 20/h", 7, 13),
        ("fixed-window 10/h", "fixed-window 20/d", 7, 13),
        ("sliding-log 10/h", "sliding-log 20/d", 7, 13),
        ("sliding-window 10/h", "sliding-window 8/h", 7, 1),
        ("sliding-window 10/h approximate", "sliding-window 20/h approximate", 7, 13),
        // Another algorithm starts unused.
        ("10/h", "sliding-log 10/h", 7, 10),
        ("sliding-log 10/h", "fixed-window 10/h", 10, 10),
    ] {
        let limiter = Limiter::new(memory(), limit(before));
        assert_eq!(admitted(&limiter, used), used, "{before}");
        limiter.set_limit(limit(after)).unwrap();
        assert_eq!(admitted(&limiter, 100), left, "{before}, then {after}");
    }
}

#[test]
fn a_change_there_and_back_admits_no_more_than_the_first_limit() {
    let limiter = Limiter::new(memory(), limit("100/h"));
    let mut total = admitted(&limiter, 300);
    for text in ["99/h", "100/h burst 100", "99/h", "100/h"] {
        limiter.set_limit(limit(text)).unwrap();
        total += admitted(&limiter, 300);
    }
    // Each of the two increases is by one.
    assert_eq!(total, 100 + 2);
}

#[test]
fn an_unknown_rule_cannot_be_set() {
    let named = Limiter::with_rules(memory(), [rule("login", &["5/m"])]).unwrap();
    let other = Err(Refusal::UnknownRule("logout".into()));
    assert_eq!(named.set_rule(rule("logout", &["5/m"])), other);
    let default = Err(Refusal::UnknownRule(Limiter::DEFAULT_RULE.into()));
    assert_eq!(named.set_limit(limit("5/m")), default);
    assert_eq!(named.rules().len(), 1);
}

// --- refused rules ------------------------------------------------------------------------------

#[test]
fn a_limiter_has_1_to_64_limits_in_all() {
    for (limits, valid) in [
        (&[][..], false),
        (&[1], true),
        (&[16, 16, 16, 16], true),
        (&[16, 16, 16, 15, 1], true),
        (&[16, 16, 16, 16, 1], false),
        (&[16, 16, 16, 16, 16], false),
    ] {
        let rules = limits.iter().enumerate().map(|(i, count)| {
            let limits = (1..=*count).map(|minutes| limit(&format!("5/{minutes}m")));
            Rule::new(&format!("rule-{i}"), limits).unwrap()
        });
        let made = Limiter::with_rules(memory(), rules);
        let sum: usize = limits.iter().sum();
        match made {
            // Every limiter that can be built can be used.
            Ok(limiter) => {
                assert!(valid && limiter.check_now("k").unwrap().allowed(), "{limits:?}")
            }
            Err(invalid) => {
                assert!(!valid && invalid == InvalidRule::LimitCount(sum), "{limits:?}: {invalid}");
            }
        }
    }
}

#[test]
fn a_rule_cannot_grow_beyond_64_limits_in_all() {
    let sixteen: Vec<String> = (1..=16).map(|minutes| format!("5/{minutes}m")).collect();
    let sixteen: Vec<&str> = sixteen.iter().map(String::as_str).collect();
    let mut rules: Vec<Rule> = (0..4).map(|i| rule(&format!("rule-{i}"), &sixteen)).collect();
    rules.pop();
    rules.extend(["a", "b"].map(|name| rule(name, &["5/m"])));
    let limiter = Limiter::with_rules(memory(), rules).unwrap();
    assert!(limiter.set_rule(rule("a", &sixteen)).is_err(), "65 limits");
    assert!(limiter.check_now("k").unwrap().allowed());
}

#[test]
fn two_rules_of_one_name_are_refused() {
    let twice = [rule("login", &["5/m"]), rule("api", &["5/m"]), rule("login", &["9/m"])];
    let refused = Limiter::with_rules(memory(), twice).map(|_| ());
    assert_eq!(refused, Err(InvalidRule::Duplicate("login".into())));
}

// --- error texts --------------------------------------------------------------------------------

#[test]
fn every_error_is_one_line_with_the_cause_and_a_remedy() {
    for (error, text) in [
        (text_of(denied("1/s", 1, 1)), "rate limited; retry after 1s"),
        (text_of(denied("2/s", 2, 1)), "rate limited; retry after 500ms"),
        (text_of(denied("1/90s", 1, 1)), "rate limited; retry after 1m 30s"),
        (text_of(denied("5/s", 0, 6)), "rate limited; the cost is larger than the whole limit"),
        (
            text_of(Limited::from(EngineError::unavailable(CutCable))),
            "no decision; not charged: the cable is cut",
        ),
        (text_of(EngineError::unavailable(CutCable)), "no decision; not charged: the cable is cut"),
        (
            text_of(EngineError::Ambiguous(Arc::new(CutCable))),
            "no decision; may have been charged: the cable is cut",
        ),
        (
            text_of(EngineError::from(Refusal::IdReused)),
            "the id was used for another request; use a new one",
        ),
        (
            text_of(Refusal::ChargeCount(65)),
            "a call of 65 charges; use 1 to 64, or none about a reservation",
        ),
        (
            text_of(Refusal::KeyTooLong),
            "the key is too long; at most 1024 bytes in 16 parts, or send a hash",
        ),
        (text_of(Refusal::KeyNotWritten), "the key's Display implementation returned an error"),
        (text_of(Refusal::CostRange), "the cost must be a number from 0 to 4294967296"),
        (
            text_of(GlobalInUse),
            "the process-wide limiter is already initialized; call set_global once, at the start of main",
        ),
        (
            text_of(Refusal::from(Cost::new(1 << 33).unwrap_err())),
            "cost 8589934592 is too large; at most 4294967296 per request",
        ),
        (text_of(Refusal::IdLength(65)), "an id of 65 bytes; use 1 to 64"),
        (text_of(Refusal::IdReused), "the id was used for another request; use a new one"),
        (text_of(Refusal::UnknownHold), "no such reservation, or its record was forgotten"),
        (text_of(Refusal::AlreadySettled), "the reservation was already settled with another cost"),
        (text_of(Refusal::EmptyHold), "empty reservation; use a cost of 1 or more"),
        (text_of(Refusal::HoldLength), "a reservation must last from 1us to 1h, or its lease"),
        (
            text_of(Refusal::ConcurrencyNeedsHold),
            "concurrency counts holders; reserve to enter, and cancel to leave",
        ),
        (text_of(Refusal::EnterTakesNoId), "`enter` takes no id; use `reserve` for idempotency"),
        (
            text_of(Refusal::UnknownZone("Mars/Base".into())),
            r#"unknown time zone "Mars/Base"; use an IANA name like Europe/Berlin"#,
        ),
        (text_of(Refusal::UnknownRule("logn".into())), r#"no rule named "logn""#),
        (
            text_of(Refusal::OnlyChecksWait),
            "only checks, reservations and entries can wait; await other operations directly",
        ),
        (text_of(Refusal::NotImmediate), "this engine is asynchronous; use `.await`"),
        (text_of(Refusal::AlreadyPolled), "polled after completion"),
        (
            text_of(InvalidRule::LimitCount(0)),
            "0 limits; use 1 to 16 in a rule and at most 64 in all",
        ),
        (text_of(InvalidRule::Duplicate("login".into())), r#"two rules named "login"; rename one"#),
    ] {
        assert_eq!(error, text);
        let printable = text.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        assert!(printable && !text.ends_with('.') && text.len() < 100, "{text}");
    }
}

#[test]
fn a_wait_reads_as_a_duration_or_never() {
    for (wait, text) in [
        (Wait::NONE, "0s"),
        (Wait::For(Micros::new(1)), "1us"),
        (Wait::For(Micros::from_millis(250)), "250ms"),
        (Wait::For(Micros::from_millis(1_500)), "1.5s"),
        (Wait::For(Micros::from_secs(3_600)), "1h"),
        (Wait::Never, "never"),
    ] {
        assert_eq!(wait.to_string(), text);
    }
}

#[test]
fn an_error_leads_to_its_cause() {
    let (broken, refused) =
        (EngineError::unavailable(CutCable), EngineError::from(Refusal::EmptyHold));
    assert_eq!(cause(&broken), Some(CutCable.to_string()));
    assert_eq!(cause(&Limited::from(broken)), Some(CutCable.to_string()));
    // A refusal has no source: an error chain would print it twice.
    assert_eq!(cause(&refused), None);
    assert_eq!(cause(&Limited::from(refused)), None);
    assert_eq!(cause(&denied("1/s", 1, 1)), None);
}

// --- support -----------------------------------------------------------------------------------

#[derive(Debug)]
struct CutCable;

impl fmt::Display for CutCable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cable is cut")
    }
}

impl Error for CutCable {}

/// The text of an error, which must be `Send`, `Sync` and `'static`.
fn text_of(error: impl Error + Send + Sync + 'static) -> String {
    error.to_string()
}

/// The text of the innermost source of an error.
fn cause(error: &dyn Error) -> Option<String> {
    let deeper = error.source()?;
    cause(deeper).or_else(|| Some(deeper.to_string()))
}

/// The denial of `cost` when `used` is used.
fn denied(text: &str, used: u64, cost: u64) -> Limited {
    let limiter = Limiter::new(memory(), limit(text));
    limiter.record("k", used).now().unwrap();
    now_or_panic(limiter.check("k").cost(cost).wait(Duration::ZERO)).unwrap_err()
}

/// How many of `requests` requests of one key pass.
fn admitted(limiter: &Limiter, requests: u64) -> u64 {
    (0..requests).map(|_| limiter.check_now("k").unwrap()).filter(Decision::allowed).count() as u64
}

fn memory() -> Arc<Memory> {
    Arc::new(Memory::builder().clock(ManualClock::default()).build())
}

fn rule(name: &str, limits: &[&str]) -> Rule {
    Rule::new(name, limits.iter().map(|text| limit(text))).unwrap()
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// A limiter may have as many limits as a call may have charges.
const _: () = assert!(Call::MAX_CHARGES == 64);
