//! Bugs of the scripts in the five articles that Tidegate grew from, each as a test of the memory
//! engine. The measured behaviour of the script is in the comment above each test.
//!
//! Some bugs cannot occur in memory and are tested on the Redis engine:
//!
//! - 004 §1, EXPIRE on the value instead of the key: nothing here expires by a command.
//! - 004 §2.2, a Lua boolean whose false becomes nil: there is no Lua here.
//! - 001 §2 and §3, 004 §4, 000, keys without a TTL: there are no TTLs. Tests below check that no
//!   key stays forever, and that a denial leaves none.
//! - 002, two keys without a hash tag (CROSSSLOT): there are no slots.
//! - 004 §4, undeclared keys: there is nothing to declare them to.
//! - 004 §4, HGETALL on every call: the benchmarks measure how much is read.
//! - 001 §2 and §3, writes on every denial that fill the replication stream: there is no stream. A
//!   test below checks that a denial changes nothing.
//! - 004 §5, a log line for every denial: this library logs nothing.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Clock, Health, Inspection, InvalidLimit, Key, Limit, LimitField, Limited, Limiter, ManualClock,
    Memory, Micros, Outcome, Refusal, Rule, Wait,
};

use Outcome::{Allow, Never, RetryAfter};

/// Ten permits by every algorithm that charges. None recovers within a minute.
const TEN: [&str; 12] = [
    "token-bucket 10/h",
    "token-bucket 10/h every 1h",
    "leaky-bucket 10/h",
    "leaky-bucket 10/h queue",
    "fixed-window 10/h",
    "fixed-window 10/d",
    "fixed-window 10/month tz Asia/Shanghai",
    "fixed-window 10/h first-hit",
    "sliding-log 10/h",
    "sliding-window 10/h",
    "sliding-window 10/h precision 7m",
    "sliding-window 10/h approximate",
];

// 003, the fixed window: 199 admitted in 0.2 s around the boundary at limit 100.

/// Windows that do not slide may admit two limits around a boundary; the others have a lower bound,
/// which is tested here. One request opens the window, so that it is the same for all. The other
/// requests arrive in the 0.2 s around its end.
#[test]
fn around_a_boundary_fixed_windows_admit_two_limits_and_sliding_ones_do_not() {
    for (limit, admitted) in [
        ("fixed-window 100/s", 199),
        ("fixed-window 100/s first-hit", 199),
        ("sliding-log 100/s", 100),
        // The first request counts until the end of the sub-window in which its second ends.
        ("sliding-window 100/s", 99),
        // A tenth of the previous window has left, one permit every 10 ms.
        ("sliding-window 100/s approximate", 108),
        // The burst, and the rate for the duration of the test.
        ("token-bucket 100/s", 119),
    ] {
        let (clock, limiter) = limiter(limit);
        let opened = clock.now();
        assert!(limiter.check_now("page").unwrap().allowed());
        let instants = (900_000..1_100_000).step_by(500).map(Micros::new);
        let passed = instants.filter(|since| {
            clock.set(opened.saturating_add(*since));
            limiter.check_now("page").unwrap().allowed()
        });
        assert_eq!(passed.count(), admitted, "{limit}");
    }
}

// 003, the fixed window: denied requests keep counting.

#[test]
fn denied_requests_do_not_count() {
    for limit in TEN {
        let (_, limiter) = limiter(limit);
        assert_eq!(admitted(&limiter, "page", 1_010), 10, "{limit}");
        assert_eq!(limiter.refund("page", 1).now().unwrap().refunded().get(), 1, "{limit}");
        assert_eq!(admitted(&limiter, "page", 10), 1, "{limit}");
    }
}

// 004 §1: `current > 10` before counting lets 11 pass, and more of them when GET and INCR race.

#[test]
fn a_limit_of_10_admits_10_and_not_11() {
    for limit in TEN {
        let (_, limiter) = limiter(limit);
        for left in (0..10).rev() {
            let decision = limiter.check_now("ip").unwrap();
            assert_eq!((decision.outcome(), decision.remaining()), (Allow, left), "{limit}");
        }
        assert!(!limiter.check_now("ip").unwrap().allowed(), "{limit}");
    }
}

#[test]
fn eight_threads_at_once_admit_10_together() {
    for limit in TEN {
        let (_, limiter) = limiter(limit);
        let total: usize = std::thread::scope(|scope| {
            let threads = [(); 8].map(|()| scope.spawn(|| admitted(&limiter, "ip", 1_000)));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(total, 10, "{limit}");
    }
}

// 004 §2.1: EXPIRE on every hit. At 1 request/s, 5 per 2 s denies: the window never ends.

#[test]
fn steady_traffic_below_the_limit_is_never_denied() {
    for limit in FIVE_IN_TWO_SECONDS {
        let (clock, limiter) = limiter(limit);
        for second in 0..1_000 {
            assert!(limiter.check_now("ip").unwrap().allowed(), "{limit} in second {second}");
            clock.advance(Duration::from_secs(1));
        }
    }
}

#[test]
fn a_window_ends_under_steady_traffic() {
    for limit in FIVE_IN_TWO_SECONDS {
        let (clock, limiter) = limiter(limit);
        let mut passed = 0;
        for _ in 0..1_000 {
            passed += admitted(&limiter, "ip", 1);
            clock.advance(Duration::from_millis(100));
        }
        // 5 per 2 s are 250 in these 100 s, and a bucket has its burst of 5 on top. Sub-windows of
        // 0.2 s make it 5 per 2.2 s. The approximate window rounds the rest of the previous one up,
        // which leaves 4 per 2 s of such a small limit.
        assert!((200..=255).contains(&passed), "{limit}: {passed}");
    }
}

const FIVE_IN_TWO_SECONDS: [&str; 8] = [
    "token-bucket 5/2s",
    "token-bucket 5/2s every 2s",
    "leaky-bucket 5/2s",
    "fixed-window 5/2s",
    "fixed-window 5/2s first-hit",
    "sliding-log 5/2s",
    "sliding-window 5/2s",
    "sliding-window 5/2s approximate",
];

// 001 §1: the member is the user, so a second request replaces the first: 1000 of 1000 at limit 10.

#[test]
fn a_thousand_requests_of_one_caller_count_each() {
    for limit in TEN {
        let (clock, limiter) = limiter(limit);
        let allowed = |_: &u64| {
            clock.advance(Duration::from_micros(1));
            limiter.check("route").caller("user-42").now().unwrap().allowed()
        };
        assert_eq!((0..1_000).filter(allowed).count(), 10, "{limit}");
    }
}

/// Only an idempotency key makes requests count once.
#[test]
fn only_a_request_that_is_repeated_under_its_id_counts_once() {
    for limit in TEN {
        let (_, limiter) = limiter(limit);
        for _ in 0..1_000 {
            let decision = limiter.check("route").idempotency_key("payment-17").now().unwrap();
            assert_eq!((decision.outcome(), decision.remaining()), (Allow, 9), "{limit}");
        }
        assert_eq!(admitted(&limiter, "route", 1_000), 9, "{limit}");
    }
}

// 001 §1: `permits` is described and not implemented.

#[test]
fn a_request_of_several_permits_takes_them_all_or_none() {
    for limit in TEN {
        let (_, limiter) = limiter(limit);
        for (permits, allowed, left) in
            [(4, true, 6), (4, true, 2), (4, false, 2), (3, false, 2), (2, true, 0)]
        {
            let decision = limiter.check("route").cost(permits).now().unwrap();
            assert_eq!(decision.allowed(), allowed, "{limit}, {permits} permits");
            assert_eq!(decision.remaining(), left, "{limit}, {permits} permits");
        }
    }
}

// 001 §2 and §3: a cost of 50 at capacity 10 gets "retry in 40 s" forever.

#[tokio::test]
async fn a_cost_above_the_capacity_is_never_allowed_and_gets_no_retry_after() {
    for limit in ["token-bucket 1/s burst 10", "leaky-bucket 1/s capacity 10"].iter().chain(&TEN) {
        let (clock, limiter) = limiter(limit);
        for _ in 0..3 {
            let decision = limiter.check("route").cost(50).now().unwrap();
            assert_eq!(decision.outcome(), Never, "{limit}");
            assert_eq!(decision.retry_after(), Wait::Never, "{limit}");
            assert_eq!(decision.remaining(), 10, "{limit}");
            clock.advance(Duration::from_secs(40));
        }
        // Nor does it wait: the clock is stopped, and it is denied all the same.
        let waited = limiter.check("route").cost(50).wait(Duration::from_secs(3_600)).await;
        assert!(matches!(waited, Err(Limited::Denied(denied)) if denied.outcome() == Never));
    }
}

// 001 §2 and §3: a cost of 0 or less becomes 1.

/// Costs are unsigned, so a negative one cannot be written. Cast to `u64`, it is larger than any
/// cost may be.
#[test]
fn a_cost_of_zero_charges_nothing_and_a_negative_one_is_refused() {
    for limit in TEN {
        let (_, limiter) = limiter(limit);
        for _ in 0..20 {
            let decision = limiter.check("route").cost(0).now().unwrap();
            assert_eq!((decision.outcome(), decision.remaining()), (Allow, 10), "{limit}");
        }
        for negative in [-1_i64, -50, i64::MIN] {
            let error = limiter.check("route").cost(negative.cast_unsigned()).now().unwrap_err();
            assert!(matches!(error.refusal(), Some(Refusal::Cost(_))), "{limit}: {error}");
        }
        assert_eq!(health(&limiter).tracked_keys, Some(0), "{limit}");
        assert_eq!(admitted(&limiter, "route", 20), 10, "{limit}");
    }
}

// 001 §2 and §3: a large capacity makes a TTL that Redis refuses, after the bucket was written.

#[test]
fn a_capacity_too_large_to_count_is_refused_while_nothing_is_written() {
    let (_, limiter) = limiter("leaky-bucket 10/s");
    assert!(limiter.check_now("route").unwrap().allowed());
    let before = (inspect(&limiter, "route"), health(&limiter));
    for (text, invalid) in [
        (
            "leaky-bucket 1/s capacity 4503599627370496",
            InvalidLimit::TooLarge { part: LimitField::Capacity, number: 1 << 52 },
        ),
        (
            "token-bucket 1/s burst 9223372036854775807",
            InvalidLimit::TooLarge { part: LimitField::Burst, number: i64::MAX.unsigned_abs() },
        ),
        // Thirds of a permit, and more of them than can be counted exactly.
        (
            "token-bucket 1/3s burst 4503599627370495",
            InvalidLimit::Inexact { part: LimitField::Burst, nearest: ((1 << 52) - 1) / 3 },
        ),
    ] {
        let error = text.parse::<Limit>().map(|limit| limit.to_string()).unwrap_err();
        assert_eq!(error.invalid(), Some(invalid), "{text}");
    }
    assert_eq!((inspect(&limiter, "route"), health(&limiter)), before);
}

#[test]
fn the_largest_capacity_that_can_be_counted_is_charged_and_recovers() {
    for limit in
        ["token-bucket 1/s burst 4503599627370495", "leaky-bucket 1/s capacity 4503599627370495"]
    {
        let (clock, limiter) = limiter(limit);
        let full = (1 << 52) - 1;
        let max_cost = 1 << 32;
        let decision = limiter.check("route").cost(max_cost).now().unwrap();
        assert_eq!((decision.outcome(), decision.remaining()), (Allow, full - max_cost), "{limit}");
        let recovered = decision.verdict().reset_after;
        assert_eq!(recovered, Micros::from_secs(max_cost), "{limit}");
        clock.advance(recovered.into());
        assert_eq!(limiter.check("route").peek().now().unwrap().remaining(), full, "{limit}");
    }
}

// 001 §2 and §3: every denial writes.

#[test]
fn a_denial_writes_nothing() {
    for limit in TEN {
        let (clock, limiter) = limiter(limit);
        limiter.record("route", 13).now().unwrap();
        for _ in 0..3 {
            clock.advance(Duration::from_secs(7));
            let before = (inspect(&limiter, "route"), health(&limiter));
            for _ in 0..1_000 {
                assert!(!limiter.check_now("route").unwrap().allowed(), "{limit}");
            }
            assert_eq!((inspect(&limiter, "route"), health(&limiter)), before, "{limit}");
        }
    }
}

// 002, and 000 too: the client's seconds are the clock. Two clients 10 s apart: 200 of 200 at 5.

/// No call takes an instant: a client's clock cannot influence a decision. The two clients take
/// turns, as in the measurement, and the engine's clock stands still.
#[test]
fn clients_of_one_engine_use_its_clock() {
    let memory = Arc::new(Memory::builder().clock(ManualClock::default()).build());
    let limit: Limit = "token-bucket 1/s burst 5".parse().unwrap();
    let clients = [(); 2].map(|()| Limiter::new(memory.clone(), limit.clone()));
    let mut passed = 0;
    for _ in 0..100 {
        passed += clients.iter().map(|client| admitted(client, "route", 1)).sum::<usize>();
    }
    assert_eq!(passed, 5);
}

// 002: capacity 10 at 100/s raises "invalid expire time", since a TTL of 0.2 s becomes 0.

#[test]
fn a_bucket_that_refills_in_a_tenth_of_a_second_works() {
    for limit in ["token-bucket 100/s burst 10", "leaky-bucket 100/s capacity 10"] {
        let (clock, limiter) = limiter(limit);
        for (after_ms, passed) in [(0, 10), (10, 1), (50, 5), (99, 9), (101, 10)] {
            clock.advance(Duration::from_millis(after_ms));
            assert_eq!(admitted(&limiter, "route", 20), passed, "{limit} after {after_ms} ms");
        }
    }
}

// 004 §3: the timestamp is the member, so several requests in one second count as one.

#[test]
fn requests_of_one_microsecond_count_each() {
    for limit in TEN {
        let (_, limiter) = limiter(limit);
        for counted in 1..=10 {
            assert!(limiter.check_now("ip").unwrap().allowed(), "{limit}");
            let used: Vec<u64> = inspect(&limiter, "ip").iter().map(|i| i.standing.used).collect();
            assert_eq!(used, [counted], "{limit}");
        }
    }
}

// 004 §4: counts n sub-windows where a window touches n + 1: 20 in 55 s at 10 per 60 s.

#[test]
fn no_60_s_hold_more_than_10_however_long_the_sub_windows_are() {
    let minute = Micros::from_secs(60);
    // The current sub-window and all earlier ones that a minute may touch, in milliseconds.
    for (precision, all_sub_windows) in [
        ("60ms", 60_060),
        ("1s", 61_000),
        ("6s", 66_000),
        ("7s", 70_000),
        ("10s", 70_000),
        ("25s", 100_000),
        ("30s", 90_000),
        ("59s", 177_000),
        ("60s", 120_000),
    ] {
        let (clock, limiter) = limiter(&format!("sliding-window 10/m precision {precision}"));
        // Five seconds into a sub-window of six, as in the measurement.
        clock.advance(Duration::from_secs(5));
        let mut passed = Vec::new();
        for _ in 0..10_000 {
            if limiter.check_now("ip").unwrap().allowed() {
                passed.push(clock.now());
            }
            clock.advance(Duration::from_millis(100));
        }
        for eleven in passed.windows(11) {
            let apart = eleven[10].saturating_sub(eleven[0]);
            assert!(apart >= minute, "11 in {apart:?} with a precision of {precision}");
        }
        // Beyond that span it denies no request.
        let due = 10 * (1_000_000 / all_sub_windows);
        assert!(passed.len() >= due, "{} of {due} with a precision of {precision}", passed.len());
    }
}

// 004 §4: a denial leaves a key behind.

#[test]
fn a_denial_leaves_no_key_behind() {
    for limit in TEN {
        let (_, limiter) = limiter(limit);
        for nth in 0..100 {
            let key = format!("ip-{nth}");
            assert!(!limiter.check(&key).cost(11).now().unwrap().allowed(), "{limit}");
            assert!(limiter.check(&key).peek().now().unwrap().allowed(), "{limit}");
        }
        assert_eq!(health(&limiter).tracked_keys, Some(0), "{limit}");
    }
}

#[test]
fn a_denial_by_one_rule_leaves_no_key_of_the_others() {
    for limit in TEN {
        let rules = [("strict", "fixed-window 0/h"), ("lenient", limit)];
        let rules = rules.map(|(name, text)| Rule::new(name, [text.parse().unwrap()]).unwrap());
        let memory = Memory::builder().clock(ManualClock::default()).build();
        let limiter = Limiter::with_rules(memory, rules).unwrap();
        for _ in 0..100 {
            assert!(!limiter.check_now("ip").unwrap().allowed(), "{limit}");
        }
        assert_eq!(health(&limiter).tracked_keys, Some(0), "{limit}");
    }
}

// 004 §5: after a burst of 10 nothing is refilled for 10 s: 90 in 100 s where 110 are due.

#[test]
fn after_a_burst_the_refill_continues() {
    for limit in [
        "token-bucket 1/s burst 10",
        "token-bucket 1/s burst 10 every 1s",
        "leaky-bucket 1/s capacity 10",
    ] {
        let (clock, limiter) = limiter(limit);
        let mut passed = admitted(&limiter, "ip", 20);
        assert_eq!(passed, 10, "{limit}");
        for tenth in 1..=1_000 {
            clock.advance(Duration::from_millis(100));
            passed += admitted(&limiter, "ip", 1);
            assert_eq!(passed, 10 + tenth / 10, "{limit} after {tenth} tenths of a second");
        }
        assert_eq!(passed, 110, "{limit}");
    }
}

// 000: the wait is that of the oldest entry, for every cost of the request.

#[test]
fn the_wait_is_until_the_whole_cost_fits_and_no_longer() {
    for limit in TEN {
        for permits in 1..=10 {
            let (clock, limiter) = limiter(limit);
            for (secs, cost) in [(1, 1), (400, 3), (700, 4), (100, 2)] {
                clock.advance(Duration::from_secs(secs));
                limiter.record("order", cost).now().unwrap();
            }
            let now = clock.now();
            let decision = limiter.check("order").cost(permits).now().unwrap();
            let RetryAfter(wait) = decision.outcome() else {
                assert_ne!(permits, 10, "{limit}: all ten in addition to the last charge");
                continue;
            };
            clock.set(now.saturating_add(wait).saturating_sub(Micros::new(1)));
            let decision = limiter.check("order").cost(permits).now().unwrap();
            assert_eq!(decision.outcome(), RetryAfter(Micros::new(1)), "{limit}, {permits}");
            clock.set(now.saturating_add(wait));
            let decision = limiter.check("order").cost(permits).now().unwrap();
            assert_eq!(decision.outcome(), Allow, "{limit}, {permits} after {wait:?}");
        }
    }
}

// 000: `rate - zcard` subtracts the number of entries and not their permits.

/// The script reaches that line when the rate was lowered: it then has 49 left of 50, with an entry
/// of 20 permits in the window.
#[test]
fn remaining_is_counted_in_permits_and_not_in_entries() {
    let (clock, limiter) = limiter("sliding-log 100/s");
    assert!(limiter.check("order").cost(10).now().unwrap().allowed());
    clock.advance(Duration::from_millis(500));
    assert!(limiter.check("order").cost(20).now().unwrap().allowed());
    limiter.set_limit("sliding-log 50/s".parse().unwrap()).unwrap();
    clock.advance(Duration::from_millis(500));
    assert_eq!(limiter.check("order").peek().now().unwrap().remaining(), 30);
    assert!(!limiter.check("order").cost(31).now().unwrap().allowed());
    assert!(limiter.check("order").cost(30).now().unwrap().allowed());
}

// 000: arithmetic on nil when there is no entry to wait for.

/// With everything held and nothing charged, a denial has only the holds to wait for.
#[tokio::test]
async fn a_denial_without_an_entry_still_has_a_retry_after() {
    for limit in TEN {
        let (clock, limiter) = limiter(limit);
        let reserved = limiter.reserve("order", 10).ttl(Duration::from_secs(30)).await.unwrap();
        clock.advance(Duration::from_secs(10));
        let decision = limiter.check_now("order").unwrap();
        assert_eq!(decision.outcome(), RetryAfter(Micros::from_secs(20)), "{limit}");
        assert_eq!(decision.remaining(), 0, "{limit}");
        reserved.cancel().await.unwrap();
        assert_eq!(admitted(&limiter, "order", 20), 10, "{limit}");
    }
}

// 000: no TTL, so every key stays forever.

#[test]
fn keys_that_have_recovered_make_room_for_others() {
    for limit in TEN {
        let (clock, limiter) = limiter(limit);
        for wave in 0..20 {
            for nth in 0..500 {
                let key = format!("order-{wave}-{nth}");
                assert!(limiter.check_now(&key).unwrap().allowed(), "{limit}");
            }
            clock.advance(Duration::from_secs(40 * 86_400));
        }
        // Of 10,000. Some recovered keys remain until a call touches their table.
        let tracked = health(&limiter).tracked_keys.unwrap();
        assert!(tracked <= 1_000, "{limit}: {tracked}");
    }
}

// 000: 118 bytes for every permit.

#[test]
fn a_request_in_a_log_takes_less_than_118_bytes_for_any_number_of_permits() {
    let bytes = |requests: u64, cost: u64| {
        let (clock, limiter) = limiter("sliding-log 1000000/h");
        for _ in 0..requests {
            clock.advance(Duration::from_micros(1));
            assert!(limiter.check("order").cost(cost).now().unwrap().allowed());
        }
        health(&limiter).memory_bytes
    };
    let for_each = bytes(10_000, 1) / 10_000;
    assert!(for_each < 118, "{for_each} bytes");
    assert_eq!(bytes(1, 1_000_000), bytes(1, 1));
}

/// A limiter of one limit, and its clock. It begins at the start of a month in Shanghai, which is a
/// whole hour everywhere, so that no window ends during a test.
fn limiter(limit: &str) -> (ManualClock, Limiter) {
    let clock = ManualClock::new(Micros::from_secs(1_698_768_000));
    let memory = Memory::builder().clock(clock.clone()).build();
    let limit: Limit = limit.parse().unwrap_or_else(|error| panic!("{limit}: {error}"));
    (clock, Limiter::new(memory, limit))
}

/// How many of `requests` requests pass.
fn admitted(limiter: &Limiter, key: &str, requests: usize) -> usize {
    let allowed = |_: &usize| limiter.check_now(key).is_ok_and(|decision| decision.allowed());
    (0..requests).filter(allowed).count()
}

fn inspect(limiter: &Limiter, key: &str) -> Vec<Inspection> {
    let rules = limiter.rules();
    let limits = rules.iter().flat_map(Rule::limits);
    let inspected = limits.map(|limit| limiter.engine().inspect(limit, Key::from(key)).now());
    inspected.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}"))
}

fn health(limiter: &Limiter) -> Health {
    limiter.engine().health()
}
