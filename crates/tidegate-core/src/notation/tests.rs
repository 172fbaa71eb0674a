//! Tables of the notation: what is parsed, printed and refused, and the messages.

use alloc::string::ToString;
use core::ops::Range;
use std::time::Duration;

use crate::{
    Algorithm, CalendarUnit, InvalidLimit, Limit, LimitField, Micros, ParseLimitError, Span,
};

fn limit(text: &str) -> Limit {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn parse_error(text: &str) -> ParseLimitError {
    match text.parse::<Limit>() {
        Ok(limit) => panic!("{text:?} was read as {limit}"),
        Err(error) => error,
    }
}

const fn secs(secs: u64) -> Micros {
    Micros::from_secs(secs)
}

#[test]
fn a_limit_prints_in_one_canonical_way() {
    for (written, canonical) in [
        ("100/s", "100/s"),
        ("100/1s", "100/s"),
        ("100/1000ms", "100/s"),
        ("100/1000000us", "100/s"),
        ("007/s", "7/s"),
        ("0/s", "0/s"),
        ("10/30s", "10/30s"),
        ("5/min", "5/m"),
        ("5/60sec", "5/m"),
        ("5/120secs", "5/2m"),
        ("5/mins", "5/m"),
        ("5/minutes", "5/m"),
        ("5/3hours", "5/3h"),
        ("5/1hour", "5/h"),
        ("5/24h", "5/d"),
        ("5/day", "5/d"),
        ("5/2days", "5/2d"),
        ("5/7d", "5/w"),
        ("5/14d", "5/2w"),
        ("5/weeks", "5/w"),
        ("5/36500d", "5/36500d"),
        ("5/1500us", "5/1500us"),
        ("5/1500ms", "5/1500ms"),
        ("100/s burst 20", "100/s burst 20"),
        ("100/s burst 100", "100/s"),
        ("token-bucket 10/s burst 50 every 1s", "10/s burst 50 every 1s"),
        ("token-bucket 10/s every 1s burst 50", "10/s burst 50 every 1s"),
        ("14/w every d", "14/w every 1d"),
        ("fixed-window 1000/d", "fixed-window 1000/d"),
        ("fixed-window 1000/1day tz UTC", "fixed-window 1000/d"),
        ("fixed-window 1000/d tz Asia/Shanghai", "fixed-window 1000/d tz Asia/Shanghai"),
        ("fixed-window 1000/24h", "fixed-window 1000/24h"),
        ("fixed-window 1000/1440m", "fixed-window 1000/24h"),
        ("fixed-window 1000/7d", "fixed-window 1000/7d"),
        ("fixed-window 1000/168h", "fixed-window 1000/7d"),
        ("fixed-window 1000/week", "fixed-window 1000/w"),
        ("fixed-window 1000/14d", "fixed-window 1000/2w"),
        ("fixed-window 1000/1month", "fixed-window 1000/month"),
        ("fixed-window 1000/months", "fixed-window 1000/month"),
        ("fixed-window 100/60s first-hit", "fixed-window 100/m first-hit"),
        ("fixed-window 100/24h first-hit", "fixed-window 100/d first-hit"),
        ("fixed-window 100/d first-hit", "fixed-window 100/d first-hit"),
        ("fixed-window 100/7d first-hit", "fixed-window 100/w first-hit"),
        ("sliding-log 5/1m", "sliding-log 5/m"),
        ("sliding-window 240/1h precision 1m", "sliding-window 240/h precision 1m"),
        ("sliding-window 240/1h precision 6m", "sliding-window 240/h"),
        ("sliding-window 240/1h approximate", "sliding-window 240/h approximate"),
        ("leaky-bucket 10/s capacity 30", "leaky-bucket 10/s capacity 30"),
        ("leaky-bucket 10/s queue", "leaky-bucket 10/s queue"),
        ("leaky-bucket 10/s queue capacity 30", "leaky-bucket 10/s capacity 30 queue"),
        ("concurrency 20 lease 30s", "concurrency 20"),
        ("concurrency 20 lease 45s", "concurrency 20 lease 45s"),
        ("concurrency 20 lease 24h", "concurrency 20 lease 1d"),
        ("concurrency 0", "concurrency 0"),
    ] {
        assert_eq!(limit(written).to_string(), canonical, "{written}");
        assert_eq!(limit(canonical), limit(written), "{written}");
    }
}

#[test]
fn the_notation_and_the_builders_agree() {
    let minute = Duration::from_secs(60);
    for (written, builder) in [
        ("100/s", Limit::per_second(100)),
        ("5/min", Limit::per_minute(5)),
        ("100/s burst 20", Limit::per_second(100).burst(20)),
        ("10/s burst 50 every 1s", Limit::per_second(10).burst(50).every(Span::SECOND)),
        ("1000/d", Limit::per_day(1000)),
        ("1000/24h", Limit::per_day(1000)),
        ("fixed-window 9/1d tz Asia/Tokyo", Limit::fixed_window(9, Span::DAY).tz("Asia/Tokyo")),
        ("fixed-window 9/24h", Limit::fixed_window(9, secs(86_400))),
        ("fixed-window 9/month", Limit::fixed_window(9, Span::MONTH)),
        ("fixed-window 9/60s first-hit", Limit::fixed_window(9, minute).first_hit()),
        ("sliding-log 5/1m", Limit::sliding_log(5, minute)),
        ("sliding-window 9/h precision 1m", Limit::sliding_window(9, Span::HOUR).precision(minute)),
        ("sliding-window 9/h approximate", Limit::sliding_window(9, Span::HOUR).approximate()),
        ("leaky-bucket 10/s capacity 30", Limit::leaky_bucket(10, Span::SECOND).capacity(30)),
        ("leaky-bucket 10/s queue", Limit::leaky_bucket(10, Span::SECOND).queue()),
        ("concurrency 20 lease 45s", Limit::concurrency(20).lease(secs(45))),
    ] {
        assert_eq!(Ok(limit(written)), builder.build(), "{written}");
    }
}

#[test]
fn a_calendar_day_is_not_24_hours() {
    assert_ne!(limit("fixed-window 5/d"), limit("fixed-window 5/24h"));
    assert_ne!(limit("fixed-window 5/w"), limit("fixed-window 5/7d"));
    assert_eq!(limit("fixed-window 5/d first-hit"), limit("fixed-window 5/24h first-hit"));
    assert_eq!(limit("sliding-log 5/d"), limit("sliding-log 5/24h"));
}

#[test]
fn a_span_is_read_and_printed_by_itself() {
    for (written, span, canonical) in [
        ("s", Span::SECOND, "1s"),
        ("1s", Span::SECOND, "1s"),
        ("5min", Span::Plain(secs(300)), "5m"),
        ("90m", Span::Plain(secs(5_400)), "90m"),
        ("1us", Span::Plain(Micros::new(1)), "1us"),
        ("5ms", Span::Plain(Micros::new(5_000)), "5ms"),
        ("d", Span::Calendar(CalendarUnit::Day), "1d"),
        ("1day", Span::Calendar(CalendarUnit::Day), "1d"),
        ("24h", Span::Plain(secs(86_400)), "24h"),
        ("1w", Span::Calendar(CalendarUnit::Week), "1w"),
        ("7d", Span::Plain(secs(604_800)), "7d"),
        ("month", Span::Calendar(CalendarUnit::Month), "1month"),
        ("36500d", Span::Plain(Span::MAX), "36500d"),
    ] {
        assert_eq!(written.parse(), Ok(span), "{written}");
        assert_eq!(span.to_string(), canonical, "{written}");
        assert_eq!(canonical.parse(), Ok(span), "{written}");
    }
}

#[test]
fn a_bad_span_is_refused_with_a_span_as_suggestion() {
    for (written, position, suggestion) in [
        ("", 0..0, None),
        ("5", 0..1, None),
        ("5parsec", 1..7, None),
        ("1h30m", 0..5, Some("90m")),
        ("1h 30m", 0..6, Some("90m")),
        ("23h60m", 0..6, Some("24h")),
        ("1.5s", 0..4, Some("1500ms")),
        (".5h", 0..3, Some("30m")),
        ("30 s", 0..4, Some("30s")),
        (" 30s", 0..1, Some("30s")),
        ("1_000ms", 0..7, Some("1000ms")),
        ("1S", 1..2, Some("1s")),
        ("1 Day", 0..5, Some("1d")),
        ("3mo", 1..3, Some("90d")),
        ("-5s", 0..3, Some("5s")),
        ("0s", 0..2, None),
        ("36501d", 0..6, None),
        ("99999999999999999999999d", 0..24, None),
        ("5/s", 0..3, None),
    ] {
        let error = written.parse::<Span>().unwrap_err();
        assert_eq!(error.position(), position, "{written}: {error}");
        assert_eq!(error.suggestion(), suggestion, "{written}: {error}");
    }
}

/// An invalid text, the position of the error, and the suggestion.
type ErrorCase = (&'static str, Range<usize>, Option<&'static str>);

#[rustfmt::skip]
const SYNTAX_ERRORS: &[ErrorCase] = &[
    // Empty text and misplaced space.
    ("", 0..0, None),
    ("  ", 0..2, None),
    (" 100/s", 0..1, Some("100/s")),
    ("100/s ", 5..6, Some("100/s")),
    ("100/s\n", 5..6, Some("100/s")),
    ("100/s  burst 20", 5..7, Some("100/s burst 20")),
    ("100/s\tburst 20", 5..6, Some("100/s burst 20")),
    ("100/s\u{a0}burst 20", 5..7, Some("100/s burst 20")),
    ("100 / s", 3..4, Some("100/s")),
    ("100 /s", 3..4, Some("100/s")),
    ("100/ s", 4..5, Some("100/s")),
    // Counts.
    ("5.5/s", 0..3, Some("11/2s")),
    ("2.5/30s", 0..3, Some("5/1m")),
    ("0.1/min", 0..3, Some("1/10m")),
    ("5.0/s", 0..3, Some("5/s")),
    (".5/s", 0..2, Some("1/2s")),
    ("fixed-window 2.5/month", 13..16, None),
    ("1e3/s", 0..3, Some("1000/s")),
    ("1.5e3/s", 0..5, Some("1500/s")),
    ("1e-3/s", 0..4, Some("1/1000s")),
    ("1e99/s", 0..4, None),
    ("1_000/s", 0..5, Some("1000/s")),
    ("1,000/s", 0..5, Some("1000/s")),
    ("1,5/s", 0..3, None),
    ("10k/s", 0..3, Some("10000/s")),
    ("10r/s", 0..3, Some("10/s")),
    ("-5/s", 0..2, Some("5/s")),
    ("+5/s", 0..2, Some("5/s")),
    ("0x10/s", 0..4, Some("16/s")),
    ("NaN/s", 0..3, None),
    ("inf/s", 0..3, None),
    ("\u{665}/s", 0..2, None),
    ("5\0/s", 0..2, None),
    ("99999999999999999999/s", 0..20, None),
    ("/s", 0..0, None),
    ("sliding-log", 11..11, None),
    // Spans.
    ("100", 0..3, None),
    ("100/", 4..4, None),
    ("100/30", 4..6, None),
    ("100/30 s", 4..6, Some("100/30s")),
    ("5 per minute", 0..1, Some("5/minute")),
    ("5 requests per 30 seconds", 0..1, Some("5/30s")),
    ("5 requests/minute", 0..1, Some("5/minute")),
    ("100rps", 0..6, Some("100/s")),
    ("100 rpm", 0..3, Some("100/m")),
    ("100/parsec", 4..10, None),
    ("100/sec0nds", 4..11, Some("100/s")),
    ("100/second", 4..10, Some("100/s")),
    ("100/S", 4..5, Some("100/s")),
    ("100/MS", 4..6, Some("100/ms")),
    ("100/M", 4..5, None),
    ("100/\u{b5}s", 4..7, Some("100/us")),
    ("fixed-window 5/1mo", 16..18, Some("fixed-window 5/1month")),
    ("fixed-window 5/2month", 15..21, Some("fixed-window 5/60d")),
    ("fixed-window 5/0month", 15..21, None),
    ("100/1h30m", 4..9, Some("100/90m")),
    ("100/1m5s", 4..8, Some("100/65s")),
    ("100/1h 30m", 7..10, Some("100/90m")),
    ("100/m s", 6..7, None),
    ("100/1.5s", 4..8, Some("100/1500ms")),
    ("100/0.5us", 4..9, None),
    ("100/-5s", 4..7, Some("100/5s")),
    ("100/s/user", 4..10, None),
    ("100/s;1000/h", 5..6, None),
    ("100/s 1000/h", 6..12, None),
    // Algorithms.
    ("token_bucket 100/s", 0..12, Some("token-bucket 100/s")),
    ("Token Bucket 100/s", 0..5, Some("token-bucket 100/s")),
    ("TOKEN-BUCKET 100/S BURST=20", 0..12, Some("token-bucket 100/s burst 20")),
    ("sliding-widnow 5/m", 0..14, Some("sliding-window 5/m")),
    ("sliding 5/m", 0..7, None),
    ("gcra 5/m", 0..4, Some("token-bucket 5/m")),
    ("magic 5/m", 0..5, None),
    ("5/m sliding-log", 4..15, Some("sliding-log 5/m")),
    ("sliding-log 5/m sliding-log", 16..27, None),
    ("burst 20 100/s", 0..5, None),
    // Options.
    ("100/s burst=20", 6..14, Some("100/s burst 20")),
    ("100/s burst:20", 6..14, Some("100/s burst 20")),
    ("100/s, burst 20", 5..6, Some("100/s burst 20")),
    ("100/s, burst 200", 5..6, Some("100/s burst 200")),
    ("100/s burst 20, every 1s", 12..15, Some("100/s burst 20 every 1s")),
    ("100/s brust 20", 6..11, Some("100/s burst 20")),
    ("100/s Burst 20", 6..11, Some("100/s burst 20")),
    ("100/s xyzzy", 6..11, None),
    ("100/s burst", 6..11, None),
    ("100/s burst every 1s", 6..11, None),
    ("100/s every", 6..11, None),
    ("fixed-window 5/d tz", 17..19, None),
    ("100/s burst 2.5", 12..15, None),
    ("100/s burst 1e1", 12..15, Some("100/s burst 10")),
    ("100/s burst 99999999999999999999", 12..32, None),
    ("100/s every 1 s", 12..13, Some("100/s every 1s")),
    ("100/s burst 20 30", 15..17, None),
    ("100/s burst 20 burst 30", 15..20, Some("100/s burst 20")),
    ("100/s burst 20 burst every 1s", 15..20, Some("100/s burst 20 every 1s")),
    ("leaky-bucket 9/s queue queue", 23..28, Some("leaky-bucket 9/s queue")),
    ("fixed-window 5/m first hit", 17..22, Some("fixed-window 5/m first-hit")),
    ("fixed-window 5/m first_hit", 17..26, Some("fixed-window 5/m first-hit")),
    ("fixed-window 5/d zone UTC", 17..21, Some("fixed-window 5/d tz UTC")),
    // Holders.
    ("concurrency", 11..11, None),
    ("concurrency 20/s", 12..16, Some("concurrency 20")),
    ("concurrency=20", 0..14, Some("concurrency 20")),
    ("concurrency 20 lease", 15..20, None),
    ("concurrency 20 30s", 15..18, None),
    ("concurrency 2.5", 12..15, None),
];

#[test]
fn a_syntax_error_is_reported_at_its_position() {
    for (written, position, suggestion) in SYNTAX_ERRORS {
        let error = parse_error(written);
        assert_eq!(error.position(), *position, "{written:?}: {error}");
        assert_eq!(error.suggestion(), *suggestion, "{written:?}: {error}");
        assert_eq!(error.invalid(), None, "{written:?}: {error}");
    }
}

#[rustfmt::skip]
const INVALID: &[ErrorCase] = &[
    ("9007199254740993/s", 0..16, None),
    ("5/s burst 4503599627370496", 4..26, None),
    ("5/s burst 0", 4..11, Some("5/s burst 1")),
    ("0/s burst 5", 4..11, Some("0/s")),
    ("5/0s", 2..4, None),
    ("5/s every 0ms", 4..13, None),
    ("5/36501d", 2..8, Some("5/36500d")),
    ("5/99999999999999999999w", 2..23, Some("5/36500d")),
    ("5/month", 2..7, Some("5/30d")),
    ("5/s every month", 4..15, Some("5/s every 1s")),
    ("concurrency 5 lease month", 14..25, Some("concurrency 5 lease 30d")),
    ("5/s every 3s", 4..12, Some("5/s every 1s")),
    ("100/s every 333ms", 6..17, Some("100/s every 500ms")),
    ("100/s every 251ms", 6..17, Some("100/s every 500ms")),
    ("7/s every 500ms", 4..15, Some("7/s every 1s")),
    ("fixed-window 5/h tz Asia/Tokyo", 17..30, Some("fixed-window 5/h")),
    ("fixed-window 5/24h tz Asia/Tokyo", 19..32, Some("fixed-window 5/1d tz Asia/Tokyo")),
    ("fixed-window 5/7d tz Asia/Tokyo", 18..31, Some("fixed-window 5/1w tz Asia/Tokyo")),
    ("fixed-window 5/d tz !", 17..21, None),
    ("fixed-window 5/d tz Asia/Tokyo first-hit", 17..30, Some("fixed-window 5/d first-hit")),
    ("5/d tz Asia/Tokyo", 4..17, Some("fixed-window 5/d tz Asia/Tokyo")),
    ("5/s tz Asia/Tokyo", 4..17, Some("5/s")),
    ("5/s lease 30s", 4..13, Some("5/s")),
    ("10/s queue", 5..10, Some("leaky-bucket 10/s queue")),
    ("leaky-bucket 10/s burst 30", 18..26, Some("leaky-bucket 10/s capacity 30")),
    ("token-bucket 10/s capacity 30", 18..29, Some("token-bucket 10/s burst 30")),
    ("sliding-log 5/m burst 3", 16..23, Some("sliding-log 5/m")),
    ("concurrency 20 burst 5", 15..22, Some("concurrency 20")),
    ("sliding-log 2000000/m", 12..19, Some("sliding-window 2000000/m")),
    ("sliding-window 9/h precision 1s", 19..31, Some("sliding-window 9/h precision 3600ms")),
    ("sliding-window 9/h precision 2h", 19..31, Some("sliding-window 9/h")),
    ("sliding-window 9/h approximate precision 6m", 31..43, Some("sliding-window 9/h approximate")),
];

#[test]
fn an_invalid_limit_is_reported_at_the_invalid_field() {
    for (written, position, suggestion) in INVALID {
        let error = parse_error(written);
        assert_eq!(error.position(), *position, "{written:?}: {error}");
        assert_eq!(error.suggestion(), *suggestion, "{written:?}: {error}");
        assert!(error.invalid().is_some(), "{written:?}: {error}");
    }
    let too_large = InvalidLimit::TooLarge { part: LimitField::Count, number: 1 << 52 };
    assert_eq!(parse_error("4503599627370496/s").invalid(), Some(too_large));
}

#[test]
fn a_removed_word_leaves_no_space_behind() {
    for (written, repaired) in [
        ("5/s lease 30s", "5/s"),
        ("5/d lease 30s burst 3", "5/d burst 3"),
        ("100/s burst 20 burst 30", "100/s burst 20"),
        ("100/s burst 20 burst 30 every 1s", "100/s burst 20 every 1s"),
        ("5/m sliding-log", "sliding-log 5/m"),
        ("9/h sliding-window precision 6m", "sliding-window 9/h precision 6m"),
    ] {
        // One reading; an extra space would be another error, fixed by another reading.
        let error = super::parse::limit(written).unwrap_err();
        assert_eq!(error.suggestion(), Some(repaired), "{written}");
    }
}

#[test]
fn every_suggestion_is_itself_a_limit() {
    for (written, ..) in SYNTAX_ERRORS.iter().chain(INVALID) {
        if let Some(suggestion) = parse_error(written).suggestion() {
            limit(suggestion);
        }
    }
}

#[test]
fn the_message_says_what_is_wrong_and_what_to_do() {
    for (written, message) in [
        ("100/parsec", r#"unknown unit "parsec"; use us, ms, s, min, h, d, w or month"#),
        ("5.5/s", r#"count "5.5" is not a whole number in plain digits; write 11/2s"#),
        ("100/s burst", r#""burst" needs a number; add one, like burst 20"#),
        (
            "concurrency 20/s",
            "\"20/s\" has a span, but concurrency counts holders; write concurrency 20",
        ),
        (
            "fixed-window 5/d tz \u{1b}[2J",
            "in \"tz \\u{1b}[2J\": not the name of a time zone; use one like Europe/Berlin or UTC",
        ),
    ] {
        assert_eq!(parse_error(written).to_string(), message);
    }
}

#[test]
fn a_message_is_one_line_in_lower_case_without_a_full_stop() {
    for (written, ..) in SYNTAX_ERRORS.iter().chain(INVALID) {
        let message = parse_error(written).to_string();
        assert!(!message.contains(|c: char| c.is_control()), "{message:?}");
        assert!(!message.starts_with(|c: char| c.is_uppercase()), "{message}");
        assert!(!message.ends_with('.'), "{message}");
        assert!(message.starts_with(parse_error(written).reason()), "{message}");
    }
}

#[test]
fn a_long_value_is_cut_short_in_the_message() {
    let long = "x".repeat(200);
    let message = parse_error(&long).to_string();
    assert!(message.starts_with(&std::format!("unknown algorithm \"{}\"...;", "x".repeat(40))));
}

#[test]
fn a_text_of_more_than_256_bytes_is_not_parsed() {
    let longest = std::format!("{}1/s", "0".repeat(253));
    assert_eq!(limit(&longest), limit("1/s"));
    for too_long in ["0".to_string() + &longest, "\u{e9}".repeat(200)] {
        let error = parse_error(&too_long);
        assert_eq!(error.position(), 256..too_long.len());
        assert!(error.reason().contains("too long"), "{error}");
        assert!(error.underline(&too_long).ends_with("^^^"), "{error}");
    }
}

#[test]
fn the_carets_are_under_the_error() {
    for (written, underlined) in [
        ("100/parsec", "100/parsec\n    ^^^^^^"),
        ("100/", "100/\n    ^"),
        ("", "\n^"),
        ("100/s\tburst 1", "100/s\\tburst 1\n     ^^"),
        ("\u{1b}5/s", "\\u{1b}5/s\n^^^^^^^"),
        ("5/\u{e9}\u{e9}", "5/\\u{e9}\\u{e9}\n  ^^^^^^^^^^^^"),
    ] {
        assert_eq!(parse_error(written).underline(written), underlined);
    }
}

#[test]
fn underlining_another_text_does_not_panic() {
    let error = parse_error("100/parsec");
    for other in ["", "1", "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}"] {
        assert!(error.underline(other).ends_with('^'));
    }
}

#[test]
fn every_algorithm_is_parsed_by_its_name() {
    for algorithm in Algorithm::ALL {
        let text = match algorithm {
            Algorithm::Concurrency => "concurrency 5".to_string(),
            _ => std::format!("{} 5/m", algorithm.name()),
        };
        assert_eq!(limit(&text).algorithm(), algorithm);
    }
}
