//! The worked examples of the five articles that Tidegate grew from, as tables.
//!
//! Every example has the number of its article and, where there is one, of its section. The numbers
//! are the article's. Where its script decides differently, a comment says why Tidegate's decision
//! is the correct one. Bugs of the scripts are in `known_script_bugs.rs`.

use tidegate::{Limit, Limiter, ManualClock, Memory, Micros, Outcome, Rule, Wait};

use Outcome::{Allow, Never, RetryAfter};

// 000: 100 permits per 1000 ms, kept as a sorted set of (instant, permits).

/// The article's fourth column reads nil, nil, 803, nil.
///
/// Its 803 ms are 3 ms of slack and the 800 ms until the oldest entry leaves. That entry frees 5
/// permits, and the request needs all 100: it fits when the second entry, of 10100 ms, has left
/// too. That is 900 ms away, without any slack: an entry counts for exactly one interval.
#[test]
fn four_requests_of_000_are_allowed_allowed_denied_and_allowed() {
    let (clock, limiter) = limiter("sliding-log 100/1000ms");
    for (ms, permits, outcome, remaining) in [
        (10_000, 5, Allow, 95),
        (10_100, 30, Allow, 65),
        (10_200, 100, RetryAfter(Micros::from_millis(900)), 65),
        (11_200, 50, Allow, 50),
    ] {
        clock.set(Micros::from_millis(ms));
        let decision = limiter.check("order").cost(permits).now().unwrap();
        assert_eq!(decision.outcome(), outcome, "{permits} permits at {ms} ms");
        assert_eq!(decision.remaining(), remaining, "{permits} permits at {ms} ms");
    }
}

#[test]
fn the_803_ms_of_000_are_too_short_and_900_ms_are_exactly_enough() {
    let (clock, limiter) = limiter("sliding-log 100/1000ms");
    for (ms, permits) in [(10_000, 5), (10_100, 30)] {
        clock.set(Micros::from_millis(ms));
        assert!(limiter.check("order").cost(permits).now().unwrap().allowed());
    }
    for (us, outcome) in [
        (10_200_000 + 803_000, RetryAfter(Micros::from_millis(97))),
        (10_200_000 + 899_999, RetryAfter(Micros::new(1))),
        (10_200_000 + 900_000, Allow),
    ] {
        clock.set(Micros::new(us));
        let decision = limiter.check("order").cost(100).now().unwrap();
        assert_eq!(decision.outcome(), outcome, "at {us} us");
    }
}

/// The article waits 503 ms here: again 3 ms of slack. There is only one entry, so the rest agrees.
#[test]
fn behind_a_single_entry_000_waits_for_the_rest_of_its_interval() {
    let (clock, limiter) = limiter("sliding-log 100/1000ms");
    clock.set(Micros::from_millis(5_000));
    assert!(limiter.check("order").cost(100).now().unwrap().allowed());
    clock.set(Micros::from_millis(5_500));
    let decision = limiter.check("order").now().unwrap();
    assert_eq!(decision.outcome(), RetryAfter(Micros::from_millis(500)));
}

/// The article reclaims the scores 0 to 10000 - 1000, both included.
#[tokio::test]
async fn at_10000_ms_000_has_reclaimed_what_came_up_to_9000_ms() {
    let (clock, limiter) = limiter("sliding-log 100/1000ms");
    for caller in ["8000", "9000", "9500", "10000"] {
        clock.set(Micros::from_millis(caller.parse().unwrap()));
        assert!(limiter.check("order").caller(caller).now().unwrap().allowed());
    }
    assert_eq!(logged(&limiter, "order").await, ["9500", "10000"]);
}

/// The script raises an error here. A cost that can never fit is a normal decision.
#[test]
fn a_rate_of_100_in_000_admits_50_at_once_but_never_150() {
    for (permits, outcome) in [(50, Allow), (150, Never)] {
        let (_, limiter) = limiter("sliding-log 100/1000ms");
        let decision = limiter.check("order").cost(permits).now().unwrap();
        assert_eq!(decision.outcome(), outcome, "{permits} permits");
    }
}

// 002: a token bucket.

#[test]
fn ten_seconds_of_rest_at_rate_1_and_capacity_10_give_10_at_once() {
    for limit in ["token-bucket 1/s burst 10", "leaky-bucket 1/s capacity 10"] {
        let (clock, limiter) = limiter(limit);
        let start = Micros::from_secs(1_700_000_000);
        for (secs, admitted) in [(0, 10), (10, 10), (11, 1), (14, 3), (100, 10)] {
            clock.set(start.saturating_add(Micros::from_secs(secs)));
            assert_eq!(admit_all(&limiter, "route"), admitted, "{limit} after {secs} s");
            let wait = limiter.check("route").now().unwrap().retry_after();
            assert_eq!(wait, Wait::For(Micros::from_secs(1)), "{limit} after {secs} s");
        }
    }
}

// 004 §1.2: the list pattern, which stores the callers.

#[tokio::test]
async fn a_log_lists_the_callers_in_the_order_of_their_calls() {
    let (clock, limiter) = limiter("sliding-log 10/s");
    let callers = ["192.168.1.100", "192.168.1.101", "192.168.1.100"];
    for caller in callers {
        assert!(limiter.check("api").caller(caller).now().unwrap().allowed());
        clock.advance(std::time::Duration::from_millis(100));
    }
    assert_eq!(logged(&limiter, "api").await, callers);
}

#[tokio::test]
async fn a_log_no_longer_lists_callers_from_before_its_window() {
    let (clock, limiter) = limiter("sliding-log 10/s");
    assert!(limiter.check("api").caller("192.168.1.100").now().unwrap().allowed());
    clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(logged(&limiter, "api").await, [""; 0]);
}

// 004 §2.1: 2 requests per 3 s. Printed: true true false, 3 s, true true, 2 s, false.

/// The script restarts its 3 s with every request that passes. Tidegate counts them from the first
/// request, from the epoch or from each request. The printed lines are the same.
#[test]
fn the_printed_lines_of_004_2_1_are_reproduced() {
    for limit in ["fixed-window 2/3s first-hit", "fixed-window 2/3s", "sliding-log 2/3s"] {
        let (clock, limiter) = limiter(limit);
        let start = Micros::from_secs(3 * 500_000_000);
        for (line, (secs, printed, retry_secs)) in
            [(0, true, 0), (0, true, 0), (0, false, 3), (3, true, 0), (3, true, 0), (5, false, 1)]
                .into_iter()
                .enumerate()
        {
            clock.set(start.saturating_add(Micros::from_secs(secs)));
            let decision = limiter.check("192.168.1.100").now().unwrap();
            let retry_after = Wait::For(Micros::from_secs(retry_secs));
            assert_eq!(decision.allowed(), printed, "{limit}, line {line}");
            assert_eq!(decision.retry_after(), retry_after, "{limit}, line {line}");
        }
    }
}

// 004 §2.4: 240 per hour, and 200 calls at 6:59 PM.

/// The burst that an aligned window cannot prevent, and a sliding one does.
#[test]
fn at_7_pm_a_fixed_window_admits_240_more_and_a_sliding_one_40() {
    for (limit, at_seven, minutes_for_200_more) in [
        ("fixed-window 240/h", 240, 60),
        ("sliding-log 240/h", 40, 59),
        // A call of 6:59 counts until the end of the sub-window that contains 7:59.
        ("sliding-window 240/h precision 1m", 40, 60),
        ("sliding-window 240/h precision 5m", 40, 60),
        ("sliding-window 240/h precision 15m", 40, 60),
    ] {
        let (clock, limiter) = limiter(limit);
        clock.set(of_the_day("18:59:00"));
        assert!(limiter.check("api").cost(200).now().unwrap().allowed(), "{limit}");
        clock.set(of_the_day("19:00:00"));
        assert_eq!(admit_all(&limiter, "api"), at_seven, "{limit}");
        let decision = limiter.check("api").cost(200).now().unwrap();
        let wait = Micros::from_secs(60 * minutes_for_200_more);
        assert_eq!(decision.outcome(), RetryAfter(wait), "{limit}");
    }
}

// 004 §3: 1 request per second and 5 per minute, from one log of requests.

/// The last two columns are the article's, where null stands for false.
#[test]
fn the_printed_lines_of_004_3_are_reproduced() {
    let rules = |name: &str, limits: &[&str]| {
        let limits = limits.iter().map(|text| text.parse::<Limit>().unwrap());
        Rule::new(name, limits).unwrap()
    };
    for rules in [
        vec![rules("second", &["sliding-log 1/s"]), rules("minute", &["sliding-log 5/m"])],
        vec![rules("both", &["sliding-log 1/s", "sliding-log 5/m"])],
    ] {
        let clock = ManualClock::default();
        let memory = Memory::builder().clock(clock.clone()).build();
        let limiter = Limiter::with_rules(memory, rules).unwrap();
        for (secs, per_second, per_minute, retry_secs) in [
            (1_484_551_710, true, true, 0),
            // Denied by one rule, it is charged to neither: four more pass below.
            (1_484_551_710, false, true, 1),
            (1_484_551_711, true, true, 0),
            (1_484_551_712, true, true, 0),
            (1_484_551_713, true, true, 0),
            (1_484_551_714, true, true, 0),
            (1_484_551_715, true, false, 55),
            (1_484_551_776, true, true, 0),
        ] {
            clock.set(Micros::from_secs(secs));
            let decision = limiter.check("192.168.1.100").now().unwrap();
            let allowed: Vec<bool> = decision.verdicts.iter().map(|v| v.allowed).collect();
            let retry_after = Wait::For(Micros::from_secs(retry_secs));
            assert_eq!(allowed, [per_second, per_minute], "at {secs}");
            assert_eq!(decision.retry_after(), retry_after, "at {secs}");
        }
    }
}

#[tokio::test]
async fn at_12_34_31_a_request_retries_in_4_s_and_at_12_34_40_one_passes() {
    let limits = ["sliding-log 5/m", "sliding-log 1/s"].map(|text| text.parse::<Limit>().unwrap());
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    let limiter = Limiter::with_rules(memory, [Rule::new("api", limits).unwrap()]).unwrap();
    for (time, outcome) in [
        ("12:33:35", Allow),
        ("12:33:37", Allow),
        ("12:34:14", Allow),
        ("12:34:26", Allow),
        ("12:34:28", Allow),
        ("12:34:31", RetryAfter(Micros::from_secs(4))),
        ("12:34:40", Allow),
    ] {
        clock.set(of_the_day(time));
        let decision = limiter.check("192.168.1.100").caller(time).now().unwrap();
        assert_eq!(decision.outcome(), outcome, "at {time}");
    }
    // The article keeps the five latest, of which 12:33:37 is over a minute old and no longer
    // counts.
    let counted = ["12:34:14", "12:34:26", "12:34:28", "12:34:40"];
    assert_eq!(logged(&limiter, "192.168.1.100").await, counted);
}

/// A limiter of one limit, and its clock.
fn limiter(limit: &str) -> (ManualClock, Limiter) {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    let limit: Limit = limit.parse().unwrap_or_else(|error| panic!("{limit}: {error}"));
    (clock, Limiter::new(memory, limit))
}

/// How many requests pass before one is denied.
fn admit_all(limiter: &Limiter, key: &str) -> usize {
    let allowed = || limiter.check_now(key).is_ok_and(|decision| decision.allowed());
    std::iter::from_fn(|| allowed().then_some(())).count()
}

/// The callers in the log of the first limit, oldest first.
async fn logged(limiter: &Limiter, key: &str) -> Vec<String> {
    let inspected = limiter.inspect(key).await.unwrap_or_else(|error| panic!("{error}"));
    let entries = inspected.into_iter().next().map(|first| first.entries).unwrap_or_default();
    entries.into_iter().map(|(caller, _)| caller.unwrap_or_default().into()).collect()
}

/// The instant of an `hh:mm:ss` on some day.
fn of_the_day(time: &str) -> Micros {
    let midnight = 86_400 * 17_000;
    let secs = time.split(':').fold(0, |sum, part| 60 * sum + part.parse::<u64>().unwrap_or(0));
    Micros::from_secs(midnight + secs)
}
