//! Tables of the advice in responses: when to retry. The headers come from untrusted upstreams.
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tidegate::{Limiter, ManualClock, Memory, Micros, Rule};
use tidegate_model::TraceRng;
use tidegate_tower::client::{Advice, Hint, advice};
use tidegate_tower::headers::{HeaderStyle, RateLimitHeaders};

/// In November 2023.
const NOW: u64 = 1_700_000_000;

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

/// Headers as lines, `name: value`.
fn headers(lines: &[&str]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        map.append(HeaderName::try_from(name).unwrap(), value);
    }
    map
}

fn advise(status: StatusCode, lines: &[&str]) -> Option<Advice> {
    advice(status, &headers(lines), Micros::from_secs(NOW))
}

fn pause(seconds: u64, hint: Hint) -> Option<Advice> {
    Some(Advice::Pause { span: Micros::from_secs(seconds).into(), hint })
}

#[test]
fn a_retry_after_counts_on_refusals_alone() {
    let five = pause(5, Hint::RetryAfter);
    for (status, expected) in [
        (TOO_MANY, five),
        (UNAVAILABLE, five),
        (OK, None),
        (StatusCode::MOVED_PERMANENTLY, None),
        (StatusCode::PAYLOAD_TOO_LARGE, None),
        (StatusCode::INTERNAL_SERVER_ERROR, None),
    ] {
        assert_eq!(advise(status, &["retry-after: 5"]), expected, "{status}");
    }
    assert_eq!(advise(OK, &["grpc-status: 8", "retry-after: 5"]), five);
    assert_eq!(advise(OK, &["grpc-status: 14", "retry-after: 5"]), five);
    assert_eq!(advise(OK, &["grpc-status: 5", "retry-after: 5"]), None);
}

#[test]
fn a_retry_after_is_seconds_or_a_date_and_garbage_is_missing() {
    let date = "date: Tue, 14 Nov 2023 22:13:20 GMT";
    let forever = Micros::MAX.get() / 1_000_000;
    for (value, expected) in [
        ("1", Some(1)),
        ("007", Some(7)),
        ("3600", Some(3_600)),
        ("9007199254", Some(9_007_199_254)),
        ("Tue, 14 Nov 2023 22:13:21 GMT", Some(1)),
        ("Tuesday, 14-Nov-23 22:14:20 GMT", Some(60)),
        ("Tue Nov 14 23:13:20 2023", Some(3_600)),
        ("0", None),
        ("Tue, 14 Nov 2023 22:13:20 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 GMT", None),
        ("Tue, 14 Nov 2023 22:13:21", None),
        ("Mon, 14 Nov 2023 22:13:21 GMT", None),
        ("Thu, 30 Feb 2024 00:00:00 GMT", None),
        ("Tue, 14 Nov 2023 24:13:21 GMT", None),
        ("", None),
        ("-1", None),
        ("+5", None),
        ("1.5", None),
        ("1e3", None),
        ("5 s", None),
        ("0x10", None),
        ("\u{0665}", None),
        ("soon", None),
    ] {
        let expected = match expected {
            Some(seconds) => pause(seconds, Hint::RetryAfter),
            None => Some(Advice::BackOff),
        };
        let line = format!("retry-after: {value}");
        assert_eq!(advise(TOO_MANY, &[&line, date]), expected, "{value}");
        assert_eq!(advise(TOO_MANY, &[&line]), expected, "{value}, the clocks agree");
    }
    for endless in
        ["99999999999999999999999999", "18446744073709551615", "Fri, 31 Dec 9999 23:59:59 GMT"]
    {
        match advise(TOO_MANY, &[&format!("retry-after: {endless}")]) {
            Some(Advice::Pause { span, hint: Hint::RetryAfter }) => {
                assert!(span.as_secs() > forever / 10, "{endless}: {span:?}");
            }
            other => panic!("{endless}: {other:?}"),
        }
    }
    assert_eq!(
        advise(TOO_MANY, &["retry-after: x", "retry-after: 7", "retry-after: 3"]),
        pause(7, Hint::RetryAfter)
    );
}

#[test]
fn dates_are_relative_to_the_clock_of_the_upstream() {
    let ten_later = "Wed, 01 Jan 2025 00:00:10 GMT";
    let epoch_of_ten_later = 1_735_689_610;
    let retry_after = format!("retry-after: {ten_later}");
    let reset = format!("x-ratelimit-reset: {epoch_of_ten_later}");
    let date = "date: Wed, 01 Jan 2025 00:00:00 GMT";
    assert_eq!(advise(TOO_MANY, &[&retry_after, date]), pause(10, Hint::RetryAfter));
    let nothing_left = "x-ratelimit-remaining: 0";
    assert_eq!(advise(OK, &[nothing_left, &reset, date]), pause(10, Hint::Reset));
    let ahead = epoch_of_ten_later - NOW;
    assert_eq!(advise(TOO_MANY, &[&retry_after]), pause(ahead, Hint::RetryAfter));
    assert_eq!(advise(OK, &[nothing_left, &reset, "date: ?"]), pause(ahead, Hint::Reset));
}

#[test]
fn a_ratelimit_with_nothing_remaining_counts_on_every_response() {
    for (value, expected) in [
        (r#""a";r=0;t=12"#, 12),
        (r#""a";r=0;t=12, "b";r=71;t=40000"#, 12),
        (r#""a";r=0;t=12, "b";r=0;t=60, "c";r=0;t=3"#, 60),
        (r#""a";t=12;r=0"#, 12),
        (r#""a" ; r=0"#, 0),
        (r#""a";pk=:dHJpYWw=:;r=0;t=5;x;y="\"z;r=1\"""#, 5),
        (r#"a;r=0;t=5"#, 5),
        (r#""a\\,";r=0;t=5"#, 5),
        // Of two parameters with one name the last one counts.
        (r#""a";r=1;t=5;r=0"#, 5),
        (r#""a";r=0;t=5;r=1"#, 0),
        (r#""a";r=0;t=5;t=x"#, 0),
        (r#""a";r=0;t=999999999999999"#, 999_999_999_999_999),
        (r#""a";r=1;t=12"#, 0),
        (r#""a";r=0;t=0"#, 0),
        (r#""a";r=0"#, 0),
        (r#""a";t=12"#, 0),
        (r#""a";r=0;t=-5"#, 0),
        (r#""a";r=-0;t=5"#, 5),
        (r#""a";r=-1;t=5"#, 0),
        (r#""a";r=0.0;t=5"#, 0),
        (r#""a";r=0;t=5.5"#, 0),
        (r#""a";r="0";t="5""#, 0),
        (r#"("a";r=0;t=5)"#, 0),
        (r#"("a");r=0;t=5"#, 0),
        // Draft -07.
        (r#"limit=10, remaining=0, reset=5"#, 5),
        // Not a valid list, so all of it is ignored.
        (r#""a";r=0;t=12,"#, 0),
        (r#""a";r=0;t=12 "b""#, 0),
        (r#""a;r=0;t=12"#, 0),
        (r#""a";r=0;t=12, "b";;"#, 0),
        (r#""a";r=0;t=9999999999999999"#, 0),
        ("\"\u{e9}\";r=0;t=5", 0),
        ("", 0),
    ] {
        let line = format!("ratelimit: {value}");
        let expected = if expected > 0 { pause(expected, Hint::RateLimit) } else { None };
        assert_eq!(advise(OK, &[&line]), expected, "{value}");
        assert_eq!(advise(StatusCode::NOT_FOUND, &[&line]), expected, "{value}");
        assert_eq!(advise(TOO_MANY, &[&line]), expected.or(Some(Advice::BackOff)), "{value}");
    }
    assert_eq!(
        advise(OK, &[r#"ratelimit: "a";r=3;t=1"#, r#"ratelimit: "b";r=0;t=8"#]),
        pause(8, Hint::RateLimit),
        "a list continues in the next line"
    );
}

#[test]
fn a_reset_is_a_span_or_an_instant_and_counts_without_a_ratelimit_alone() {
    for (remaining, reset, expected) in [
        ("0", "30", 30),
        ("00", "30", 30),
        ("0", "99999999", 99_999_999),
        ("0", "100000000", 0),
        ("0", "1699999999", 0),
        ("0", "1700000000", 0),
        ("0", "1700000042", 42),
        ("1", "30", 0),
        ("-0", "30", 0),
        ("", "30", 0),
        ("0", "", 0),
        ("0", "-30", 0),
        ("0", "30.5", 0),
        ("0", "6m0s", 0),
    ] {
        for family in ["x-ratelimit", "ratelimit", "x-rate-limit"] {
            let lines =
                [format!("{family}-remaining: {remaining}"), format!("{family}-reset: {reset}")];
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let expected = if expected > 0 { pause(expected, Hint::Reset) } else { None };
            assert_eq!(advise(OK, &lines), expected, "{lines:?}");
            let more = [&lines[..], &[r#"ratelimit: "a";r=1;t=9"#]].concat();
            assert_eq!(advise(OK, &more), None, "{more:?}");
            let more = [&lines[..], &["ratelimit: limit=10"]].concat();
            assert_eq!(advise(OK, &more), expected, "{more:?}");
        }
    }
    assert_eq!(advise(OK, &["x-ratelimit-remaining: 0", "ratelimit-reset: 5"]), None);
}

#[test]
fn a_pushback_counts_with_a_grpc_status_that_is_no_success() {
    let pushback =
        |millis| Some(Advice::Pause { span: Duration::from_millis(millis), hint: Hint::Pushback });
    for (status, value, expected) in [
        ("grpc-status: 14", "250", pushback(250)),
        ("grpc-status: 8", "1", pushback(1)),
        ("grpc-status: 13", "250", pushback(250)),
        ("grpc-status: 0", "250", None),
        ("other: 14", "250", None),
        ("grpc-status: 14", "-1", None),
        ("grpc-status: 14", "0", None),
        ("grpc-status: 14", "soon", None),
    ] {
        let line = format!("grpc-retry-pushback-ms: {value}");
        assert_eq!(advise(OK, &[status, &line]), expected, "{status} {value}");
    }
    assert_eq!(advise(OK, &["grpc-status: 8"]), None, "one message may have been too large");
}

#[test]
fn the_longest_hint_counts_and_of_equals_the_first() {
    let lines = ["retry-after: 5", r#"ratelimit: "a";r=0;t=9"#];
    assert_eq!(advise(TOO_MANY, &lines), pause(9, Hint::RateLimit));
    let lines = ["retry-after: 9", r#"ratelimit: "a";r=0;t=9"#];
    assert_eq!(advise(TOO_MANY, &lines), pause(9, Hint::RetryAfter));
    assert_eq!(advise(TOO_MANY, &[]), Some(Advice::BackOff));
    assert_eq!(advise(UNAVAILABLE, &[]), Some(Advice::BackOff));
    assert_eq!(advise(OK, &[]), None);
}

#[test]
fn headers_of_tidegate_are_understood() {
    for (limits, until_denied) in [
        (["5/m", "fixed-window 100/d"], 12),
        (["sliding-log 5/m", "100/s"], 60),
        (["fixed-window 5/h", "100/s burst 200"], 2_800),
    ] {
        let rule = Rule::new("api", limits.map(|limit| limit.parse().unwrap())).unwrap();
        // The clock is 800 s past the hour.
        let clock = ManualClock::new(Micros::from_secs(NOW));
        let engine = Memory::builder().clock(clock).build();
        let limiter = Limiter::with_rules(engine, [rule.clone()]).unwrap();
        for call in 1..=6 {
            let decision = limiter.check_now("k").unwrap();
            let mut map = HeaderMap::new();
            RateLimitHeaders::new(&decision, rule.limits()).write(&mut map);
            let status = if decision.allowed() { OK } else { TOO_MANY };
            let advised = advice(status, &map, Micros::from_secs(NOW));
            match call {
                1..=4 => assert_eq!(advised, None, "{limits:?}: {map:?}"),
                5 => assert!(
                    matches!(advised, Some(Advice::Pause { hint: Hint::RateLimit, .. })),
                    "{limits:?}: nothing remains, so {advised:?}"
                ),
                _ => assert_eq!(advised, pause(until_denied, Hint::RetryAfter), "{limits:?}"),
            }
        }
    }
}

#[test]
fn every_style_of_tidegate_is_understood() {
    let rule = Rule::new("api", ["fixed-window 5/h".parse().unwrap()]).unwrap();
    for (style, hint) in [
        (HeaderStyle::Draft8, Hint::RateLimit),
        (HeaderStyle::Draft7, Hint::RateLimit),
        (HeaderStyle::Draft6, Hint::Reset),
        (HeaderStyle::Epoch, Hint::Reset),
    ] {
        let clock = ManualClock::new(Micros::from_secs(NOW));
        let engine = Memory::builder().clock(clock.clone()).build();
        let limiter = Limiter::with_rules(engine, [rule.clone()]).unwrap();
        for call in 1..=5 {
            let decision = limiter.check_now("k").unwrap();
            let mut map = HeaderMap::new();
            RateLimitHeaders::in_style(style, &clock, &decision, rule.limits()).write(&mut map);
            let advised = advice(OK, &map, Micros::from_secs(NOW));
            let expected = if call < 5 { None } else { pause(2_800, hint) };
            assert_eq!(advised, expected, "{style:?}: {map:?}");
        }
    }
    for (line, seconds) in [
        ("limit=10, remaining=0, reset=12", Some(12)),
        ("limit=10;w=60,remaining=0;x,  reset=12", Some(12)),
        ("remaining=0, reset=12", Some(12)),
        ("limit=10, remaining=3, reset=12", None),
        ("limit=10, remaining=0", None),
        ("limit=10, remaining=x, reset=12", None),
        ("limit=10, remaining=0, reset=-1", None),
        ("remaining=0, reset", None),
    ] {
        let advised =
            advice(OK, &headers(&[&format!("ratelimit: {line}")]), Micros::from_secs(NOW));
        assert_eq!(advised, seconds.and_then(|span| pause(span, Hint::RateLimit)), "{line}");
    }
}

#[test]
fn no_bytes_make_it_panic() {
    let mut rng = TraceRng::new(7);
    let seeds = [
        r#""a";r=0;t=12, "b";pk=:dHJpYWw=:;r=71;t=40000"#,
        "Tue, 14 Nov 2023 22:13:21 GMT",
        "Tuesday, 14-Nov-23 22:14:20 GMT",
        "Tue Nov 14 23:13:20 2023",
        "99999999999",
    ];
    let names = ["retry-after", "ratelimit", "date", "x-ratelimit-reset", "grpc-retry-pushback-ms"];
    let mut understood = 0;
    for _ in 0..50_000 {
        let mut map = headers(&["x-ratelimit-remaining: 0", "grpc-status: 8"]);
        for name in names {
            let mut bytes = rng.pick(&seeds).as_bytes().to_vec();
            for _ in 0..rng.below(3) {
                let index = rng.below(bytes.len() as u64) as usize;
                bytes[index] = rng.any() as u8;
            }
            bytes.truncate(rng.magnitude(200) as usize);
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                map.append(name, value);
            }
        }
        let status = rng.pick(&[OK, TOO_MANY, UNAVAILABLE]);
        understood += u32::from(advice(status, &map, Micros::from_secs(NOW)).is_some());
    }
    assert!(understood > 10_000, "{understood}");
}
