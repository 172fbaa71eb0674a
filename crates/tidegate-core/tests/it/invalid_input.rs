//! Invalid numbers and texts give a typed error with a remedy, `Never`, or a denial. Nothing wraps,
//! nothing panics, and no instant admits more than the limit.
//!
//! The first half is about what becomes a limit or a cost. The second half takes limits from all
//! over the domain to its edges: the first and the last instant, the smallest and the largest cost,
//! forwards and backwards. Overflow checks are on in tests, so a number that wraps is a panic.

use std::time::Duration;

use tidegate_core::{
    Algorithm, Cost, Expiry, Hold, Holds, InvalidLimit, Limit, LimitBuilder, LimitField, Micros,
    Moment, Outcome, ParseLimitError, Span, State, Tick, Verdict, Wait,
};

use InvalidLimit::{
    EveryNotWhole, Inexact, LogTooLarge, PrecisionTooFine, SizeOfNothing, SpanTooLong, TooLarge,
    ZeroSize, ZeroSpan,
};

/// The smallest number that is too large for a count, burst or capacity.
const TOO_LARGE: u64 = 1 << 52;

// Limits.

#[test]
fn an_odd_number_that_is_a_limit_keeps_its_meaning() {
    let max = TOO_LARGE - 1;
    for (text, canonical, capacity, tick) in [
        ("0/s", "0/s", 0, Tick::Micro),
        ("00/s", "0/s", 0, Tick::Micro),
        ("0/s every 1s", "0/s every 1s", 0, Tick::Micro),
        ("leaky-bucket 0/s queue", "leaky-bucket 0/s queue", 0, Tick::Micro),
        ("fixed-window 0/month", "fixed-window 0/month", 0, Tick::Micro),
        ("sliding-log 0/s", "sliding-log 0/s", 0, Tick::Micro),
        ("sliding-window 0/s", "sliding-window 0/s", 0, Tick::Micro),
        ("sliding-window 0/s approximate", "sliding-window 0/s approximate", 0, Tick::Micro),
        ("concurrency 0", "concurrency 0", 0, Tick::Micro),
        ("1/us", "1/us", 1, Tick::Micro),
        ("1/36500d", "1/36500d", 1, Tick::Micro),
        ("1/3153600000000000us", "1/36500d", 1, Tick::Micro),
        ("7/36500d", "7/36500d", 7, Tick::Milli),
        ("77777/d", "77777/d", 77_777, Tick::Milli),
        ("1/d burst 100000", "1/d burst 100000", 100_000, Tick::Milli),
        ("1000001/36500d", "1000001/36500d", 1_000_001, Tick::Second),
        ("4503599627370495/s", "4503599627370495/s", max, Tick::Second),
        ("1/s burst 4503599627370495", "1/s burst 4503599627370495", max, Tick::Second),
        ("4503599627370495/us", "4503599627370495/us", max, Tick::Micro),
        ("sliding-log 1000000/us", "sliding-log 1000000/us", 1_000_000, Tick::Micro),
        (
            "fixed-window 4503599627370495/36500d",
            "fixed-window 4503599627370495/36500d",
            max,
            Tick::Micro,
        ),
        (
            "sliding-window 4503599627370495/s approximate",
            "sliding-window 4503599627370495/s approximate",
            max,
            Tick::Second,
        ),
    ] {
        let limit = limit(text);
        assert_eq!(limit.to_string(), canonical, "{text}");
        assert_eq!(canonical.parse(), Ok(limit.clone()), "{text}");
        assert_eq!((limit.capacity(), limit.tick()), (capacity, tick), "{text}");
    }
}

/// Limits that follow the grammar and are refused: text, error, end of the message.
#[rustfmt::skip]
const REFUSED: &[(&str, InvalidLimit, &str)] = &[
    ("5/0s", ZeroSpan { part: LimitField::Span }, "; use at least 1us"),
    ("fixed-window 5/0d", ZeroSpan { part: LimitField::Span }, "; use at least 1us"),
    ("5/s every 0us", ZeroSpan { part: LimitField::Every }, "; use at least 1us"),
    ("sliding-window 5/s precision 0s", ZeroSpan { part: LimitField::Precision }, "; use at least 1us"),
    ("concurrency 5 lease 0s", ZeroSpan { part: LimitField::Lease }, "; use at least 1us"),
    ("5/s burst 0", ZeroSize { part: LimitField::Burst }, "; write 5/s burst 1"),
    ("0/s burst 0", ZeroSize { part: LimitField::Burst }, "; write 0/s"),
    ("0/s burst 5", SizeOfNothing { part: LimitField::Burst }, "; write 0/s"),
    ("leaky-bucket 5/s capacity 0", ZeroSize { part: LimitField::Capacity }, "; write leaky-bucket 5/s capacity 1"),
    ("leaky-bucket 0/s capacity 5", SizeOfNothing { part: LimitField::Capacity }, "; write leaky-bucket 0/s"),
    ("4503599627370496/s", TooLarge { part: LimitField::Count, number: TOO_LARGE }, "; at most 4503599627370495"),
    ("9007199254740992/s", TooLarge { part: LimitField::Count, number: 1 << 53 }, "; at most 4503599627370495"),
    ("9223372036854775808/s", TooLarge { part: LimitField::Count, number: 1 << 63 }, "; at most 4503599627370495"),
    ("18446744073709551615/s", TooLarge { part: LimitField::Count, number: u64::MAX }, "; at most 4503599627370495"),
    ("5/s burst 4503599627370496", TooLarge { part: LimitField::Burst, number: TOO_LARGE }, "; at most 4503599627370495"),
    ("leaky-bucket 5/s capacity 9223372036854775808", TooLarge { part: LimitField::Capacity, number: 1 << 63 }, "; at most 4503599627370495"),
    ("fixed-window 4503599627370496/d", TooLarge { part: LimitField::Count, number: TOO_LARGE }, "; at most 4503599627370495"),
    ("concurrency 4503599627370496", TooLarge { part: LimitField::Count, number: TOO_LARGE }, "; at most 4503599627370495"),
    ("sliding-log 1000001/s", LogTooLarge, "; write sliding-window 1000001/s"),
    ("1/36501d", SpanTooLong { part: LimitField::Span }, "; write 1/36500d"),
    ("1/3153600000000001us", SpanTooLong { part: LimitField::Span }, "; write 1/36500d"),
    ("1/18446744073709551616s", SpanTooLong { part: LimitField::Span }, "; write 1/36500d"),
    ("1/1000000000000000000000000000000w", SpanTooLong { part: LimitField::Span }, "; write 1/36500d"),
    ("concurrency 5 lease 36501d", SpanTooLong { part: LimitField::Lease }, "; write concurrency 5 lease 36500d"),
    ("1428571/36500d", Inexact { part: LimitField::Count, nearest: 1_428_570 }, "; write 1428570/36500d"),
    ("4503599627370495/36500d", Inexact { part: LimitField::Burst, nearest: 21_421_231 }, "; write 4503599627370495/36500d burst 21421231"),
    ("1/3s burst 4503599627370495", Inexact { part: LimitField::Burst, nearest: 1_501_199_875_790_165 }, "; write 1/3s burst 1501199875790165"),
    ("sliding-window 4503599627370495/m approximate", Inexact { part: LimitField::Count, nearest: 75_059_993_789_508 }, "; write sliding-window 75059993789508/m approximate"),
    ("sliding-window 5/s precision 999us", PrecisionTooFine { finest: 1_000 }, "; write sliding-window 5/s precision 1ms"),
    ("10/s every 1us", EveryNotWhole, "; write 10/s every 100ms"),
];

#[test]
fn numbers_that_make_no_limit_are_refused_with_their_field() {
    for (text, invalid, remedy) in REFUSED {
        let error = refusal(text);
        assert_eq!(error.invalid(), Some(*invalid), "{text}: {error}");
        assert!(error.to_string().ends_with(remedy), "{text}: {error}");
    }
}

/// Texts that do not parse: text, reason, remedy.
const UNREADABLE: &[(&str, &str, &str)] = &[
    ("", "empty text", "write a limit like 100/s"),
    (" ", "empty text", "write a limit like 100/s"),
    ("\n\n", "empty text", "write a limit like 100/s"),
    ("18446744073709551616/s", r#"count "18446744073709551616" is too large"#, AT_MOST),
    (
        "1000000000000000000000000000000/s",
        r#"count "1000000000000000000000000000000" is too large"#,
        AT_MOST,
    ),
    ("1/s burst 18446744073709551616", r#"burst "18446744073709551616" is too large"#, AT_MOST),
    ("-1/s", r#"count "-1" is not a whole number in plain digits"#, "write 1/s"),
    ("-0/s", r#"count "-0" is not a whole number in plain digits"#, "write 0/s"),
    ("+1/s", r#"count "+1" is not a whole number in plain digits"#, "write 1/s"),
    ("NaN/s", r#"count "NaN" is not a whole number in plain digits"#, "use one like 100"),
    ("nan/s", r#"count "nan" is not a whole number in plain digits"#, "use one like 100"),
    ("inf/s", r#"count "inf" is not a whole number in plain digits"#, "use one like 100"),
    ("-inf/s", r#"count "-inf" is not a whole number in plain digits"#, "use one like 100"),
    ("1e309/s", r#"count "1e309" is not a whole number in plain digits"#, "use one like 100"),
    ("0x10/s", r#"count "0x10" is not a whole number in plain digits"#, "write 16/s"),
    ("1.5/s", r#"count "1.5" is not a whole number in plain digits"#, "write 3/2s"),
    ("0.5/s", r#"count "0.5" is not a whole number in plain digits"#, "write 1/2s"),
    ("1/1.5s", r#"span "1.5s" is not one whole number and one unit"#, "write 1/1500ms"),
    ("1/-1s", r#"span "-1s" is not one whole number and one unit"#, "write 1/1s"),
    ("1/NaNs", r#"unknown unit "NaNs""#, UNITS),
    ("1/infs", r#"unknown unit "infs""#, UNITS),
    ("1/parsec", r#"unknown unit "parsec""#, UNITS),
    ("1/s burst -5", r#"burst "-5" is not a whole number in plain digits"#, "write 1/s burst 5"),
    ("1/s burst NaN", r#"burst "NaN" is not a whole number in plain digits"#, "use one like 100"),
    (
        "concurrency -1",
        r#"count "-1" is not a whole number in plain digits"#,
        "write concurrency 1",
    ),
    ("fixed-window 5/0month", r#""0month" is not one month"#, "use one month, or days"),
    // Digits in Unicode, not in ASCII.
    ("１００/s", r#"count "１００" is not a whole number in plain digits"#, "use one like 100"),
    ("٣/s", r#"count "٣" is not a whole number in plain digits"#, "use one like 100"),
    ("²/s", r#"count "²" is not a whole number in plain digits"#, "use one like 100"),
    ("1/１s", r#"span "１s" is not one whole number and one unit"#, "write it like 90s or 1500ms"),
    // Control characters.
    ("\u{0}1/s", r#"count "\01" is not a whole number in plain digits"#, "use one like 100"),
    ("1\u{0}0/s", r#"count "1\00" is not a whole number in plain digits"#, "use one like 100"),
    ("1/s\u{0}", r#"unknown unit "s\0""#, UNITS),
    ("1/s\n", r#"misplaced whitespace "\n""#, "write 1/s"),
    ("1/s\r\n", r#"misplaced whitespace "\r\n""#, "write 1/s"),
    ("1/s\nburst 5", r#"misplaced whitespace "\n""#, "write 1/s burst 5"),
];

const AT_MOST: &str = "at most 4503599627370495";
const UNITS: &str = "use us, ms, s, min, h, d, w or month";

#[test]
fn a_text_that_is_no_limit_is_refused_with_a_remedy() {
    for (text, reason, remedy) in UNREADABLE {
        let error = refusal(text);
        assert_eq!(error.invalid(), None, "{text:?}: {error}");
        assert_eq!(error.to_string(), format!("{reason}; {remedy}"), "{text:?}");
    }
}

#[test]
fn a_suggestion_is_a_limit_and_a_message_is_one_short_line() {
    let texts = REFUSED.iter().map(|row| row.0).chain(UNREADABLE.iter().map(|row| row.0));
    for text in texts {
        let error = refusal(text);
        let message = error.to_string();
        assert!(!message.contains(char::is_control), "{message:?}");
        assert!(message.len() <= 200, "{message}");
        assert!(text.get(error.position()).is_some(), "{message}");
        assert!(error.suggestion().is_none_or(|s| s.parse::<Limit>().is_ok()), "{message}");
    }
}

#[test]
fn the_message_for_64_kib_quotes_only_the_length() {
    for piece in ["x", "9", "1/s ", "\u{0}", "\n", "burst 5 ", "é", "🦀"] {
        let text = piece.repeat((64 << 10) / piece.len());
        let message = refusal(&text).to_string();
        assert_eq!(message, "65536 bytes are too long; use at most 256", "{piece:?}");
    }
}

#[test]
fn malformed_numbers_are_refused_in_every_position() {
    let malformed = [
        "-1", "-0", "+1", "NaN", "nan", "inf", "-inf", "Infinity", "1e3", "1e309", "0x10", "0b1",
        "1.5", "1.0", ".5", "1_000", "1,000", "１", "٣", "²", "½", "\u{0}", "1\u{0}", "1\n",
        "１e9",
    ];
    for (before, after) in [
        ("", "/s"),
        ("1/", "s"),
        ("1/s burst ", ""),
        ("10/s every ", "s"),
        ("fixed-window ", "/d"),
        ("fixed-window 1/", "d"),
        ("leaky-bucket 1/s capacity ", ""),
        ("sliding-log ", "/m"),
        ("sliding-window 5/h precision ", "m"),
        ("sliding-window ", "/m approximate"),
        ("concurrency ", ""),
        ("concurrency 5 lease ", "s"),
    ] {
        for number in malformed {
            let text = format!("{before}{number}{after}");
            assert_eq!(refusal(&text).invalid(), None, "{text:?}");
        }
    }
}

#[test]
fn a_builder_refuses_what_the_notation_refuses() {
    let one_nanosecond = Duration::from_nanos(1);
    assert_eq!(Limit::per(1, one_nanosecond).build(), Ok(limit("1/us")));
    let refused: [(LimitBuilder, InvalidLimit); 9] = [
        (Limit::per(1, Duration::ZERO), ZeroSpan { part: LimitField::Span }),
        (Limit::per(1, Duration::MAX), SpanTooLong { part: LimitField::Span }),
        (Limit::per(1, Micros::MAX), SpanTooLong { part: LimitField::Span }),
        (Limit::per_second(1).burst(0), ZeroSize { part: LimitField::Burst }),
        (Limit::per_second(0).burst(5), SizeOfNothing { part: LimitField::Burst }),
        (Limit::per_second(u64::MAX), TooLarge { part: LimitField::Count, number: u64::MAX }),
        (
            Limit::leaky_bucket(1, Span::SECOND).capacity(TOO_LARGE),
            TooLarge { part: LimitField::Capacity, number: TOO_LARGE },
        ),
        (Limit::concurrency(5).lease(Micros::ZERO), ZeroSpan { part: LimitField::Lease }),
        (Limit::sliding_log(1_000_001, Span::SECOND), LogTooLarge),
    ];
    for (builder, invalid) in refused {
        assert_eq!(builder.clone().build(), Err(invalid), "{builder}");
    }
}

// Costs.

#[test]
fn a_cost_is_at_most_two_to_the_32() {
    for (permits, valid) in [
        (0, true),
        (1, true),
        (1 << 31, true),
        ((1 << 32) - 1, true),
        (1 << 32, true),
        ((1 << 32) + 1, false),
        (1 << 53, false),
        (1 << 63, false),
        (u64::MAX, false),
    ] {
        match Cost::new(permits) {
            Ok(cost) => assert!(valid && cost.get() == permits, "{permits}"),
            Err(invalid) => {
                let message =
                    format!("cost {permits} is too large; at most 4294967296 per request");
                assert_eq!(invalid.to_string(), message);
                assert!(!valid, "{permits}");
            }
        }
    }
}

#[test]
fn a_cost_fits_an_unused_limit_up_to_its_capacity_and_never_beyond() {
    for limit in domain() {
        let (capacity, now) = (limit.capacity(), Moment::new(Micros::from_secs(1_700_000_000)));
        for permits in [1, capacity / 2, capacity, capacity + 1, 2 * capacity, 1 << 31, 1 << 32] {
            let fits = if permits <= capacity { Outcome::Allow } else { Outcome::Never };
            let verdict = limit.look(None, Holds::NONE, &now, weight(permits));
            assert_eq!(verdict.outcome(), fits, "{permits} of {limit}");
        }
    }
}

#[test]
fn a_limit_of_zero_allows_a_look_and_nothing_else() {
    let zero_limits: Vec<Limit> = domain().into_iter().filter(|l| l.capacity() == 0).collect();
    assert!(zero_limits.len() >= Algorithm::ALL.len());
    for limit in zero_limits {
        for now in INSTANTS.map(Moment::new) {
            // A charge without a check leaves no state either.
            let mut state = None;
            limit.charge(&mut state, &now, Cost::MAX, None);
            assert_eq!(state, None, "{limit}");
            let peek = limit.look(state.as_ref(), Holds::NONE, &now, Cost::ZERO);
            assert_eq!((peek.allowed, peek.retry_after), (true, Wait::Never), "{limit}");
            for cost in [Cost::ONE, Cost::MAX] {
                let verdict = limit.look(state.as_ref(), Holds::NONE, &now, cost);
                assert_eq!(verdict.outcome(), Outcome::Never, "{limit}");
            }
        }
    }
}

// Edges of the domain.

/// Limits from all over the domain: every algorithm, every tick, capacities of zero, one and the
/// maximum, in the shortest and in the longest span.
#[rustfmt::skip]
const DOMAIN: [&str; 48] = [
    "0/s", "1/us", "3/7us", "10/s", "77777/d", "1/36500d", "7/36500d", "1000001/36500d",
    "4503599627370495/us", "4503599627370495/s", "4503599627370495/s burst 1",
    "1/s burst 4503599627370495", "1/d burst 100000", "100/s burst 20",
    "0/s every 1s", "10/s burst 50 every 1s", "4503599627370495/s every 1s",
    "1/us burst 4503599627370495 every 1us", "1/36500d every 36500d",
    "leaky-bucket 0/s", "leaky-bucket 0/s queue", "leaky-bucket 1/us", "leaky-bucket 10/s capacity 30",
    "leaky-bucket 10/s capacity 30 queue", "leaky-bucket 1/36500d queue",
    "leaky-bucket 4503599627370495/us queue",
    "fixed-window 0/d", "fixed-window 1/us", "fixed-window 5/d", "fixed-window 5/w",
    "fixed-window 4503599627370495/36500d",
    "fixed-window 5/us first-hit", "fixed-window 4503599627370495/36500d first-hit",
    "sliding-log 0/s", "sliding-log 1/us", "sliding-log 5/m", "sliding-log 1000000/36500d",
    "sliding-window 0/s", "sliding-window 5/us", "sliding-window 5/h precision 7m",
    "sliding-window 4503599627370495/36500d precision 36500d",
    "sliding-window 0/s approximate", "sliding-window 10/s approximate",
    "sliding-window 1/36500d approximate", "sliding-window 4503599627370495/s approximate",
    "concurrency 0", "concurrency 5 lease 36500d", "concurrency 4503599627370495",
];

fn domain() -> Vec<Limit> {
    DOMAIN.into_iter().map(limit).collect()
}

/// The first and the last instants, those next to a second and a day, and one of this century.
const INSTANTS: [Micros; 12] = [
    Micros::ZERO,
    Micros::new(1),
    Micros::new(999_999),
    Micros::new(1_000_000),
    Micros::new(1_000_001),
    Micros::new(1_999_999),
    Micros::new(86_400_000_000 - 1),
    Micros::new(86_400_000_000),
    Micros::new(1_700_000_000_123_456),
    Micros::new(1 << 52),
    Micros::new(Micros::MAX.get() - 1),
    Micros::MAX,
];

/// Costs next to the capacity, and the largest. Costs above [`Cost::MAX`] come from several charges
/// to one state in one call, which are added up.
fn edge_costs(limit: &Limit) -> [u64; 6] {
    let capacity = limit.capacity();
    [1, capacity / 2, capacity, capacity + 1, 2 * capacity, Cost::MAX.get()]
}

#[test]
fn no_edge_makes_an_algorithm_panic_wrap_or_contradict_itself() {
    for limit in domain() {
        go_to_every_edge(&limit, &edge_costs(&limit));
    }
}

/// Separate and with fewer costs, because finding calendar months takes longer than all
/// the rest.
#[test]
fn no_edge_makes_a_calendar_month_panic_wrap_or_contradict_itself() {
    go_to_every_edge(&limit("fixed-window 5/month"), &[1, 5]);
}

fn go_to_every_edge(limit: &Limit, costs: &[u64]) {
    for [first, second] in pairs() {
        for charged in costs {
            let mut walk = Walk::new(limit);
            walk.to(first).charge(*charged).to(second).check();
            for next in costs {
                walk.clone().charge(*next).check();
                walk.clone().refund(*next).check();
            }
        }
    }
}

#[test]
fn no_path_between_edges_makes_an_algorithm_panic_wrap_or_contradict_itself() {
    for limit in domain() {
        let capacity = limit.capacity();
        for [first, second] in pairs() {
            for (charged, next, back) in [
                (1, 1, 1),
                (capacity, 1, 2 * capacity),
                (2 * capacity, 2 * capacity, 1),
                (1, capacity, capacity / 2),
            ] {
                let mut walk = Walk::new(&limit);
                walk.to(first).charge(charged).to(second).charge(next);
                for third in INSTANTS {
                    walk.clone().to(third).check();
                    walk.clone().to(third).refund(back).charge(1).check();
                }
            }
        }
    }
}

#[test]
fn no_edge_makes_a_hold_panic_wrap_or_outlast_its_span() {
    for limit in domain() {
        for [first, second] in pairs() {
            for ttl in [Micros::new(1), Micros::from_secs(3_600), Micros::MAX] {
                for expiry in [Expiry::Release, Expiry::Charge] {
                    let mut walk = Walk::new(&limit);
                    walk.to(first).charge(1).hold(limit.capacity() / 2, ttl, expiry);
                    walk.to(second).hold(1, ttl, expiry).charge(1).check();
                    for third in INSTANTS {
                        let mut walk = walk.clone();
                        walk.to(third).check();
                        // The last instant stands for all later ones, so it ends no hold.
                        let lasts = |hold: &Hold| {
                            let left = hold.deadline.saturating_sub(third);
                            left <= ttl && (hold.deadline > third || third == Micros::MAX)
                        };
                        assert!(walk.holds.iter().all(lasts), "{walk:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_instant_admits_more_than_fits_even_if_the_clock_steps_back_to_it() {
    for limit in domain() {
        let (capacity, half) = (limit.capacity(), limit.capacity() / 2);
        for [first, second] in pairs() {
            let mut walk = Walk::new(&limit);
            let admitted = walk.to(first).admit([half, capacity - half, 1, 1 << 32]);
            assert_eq!(admitted, capacity, "{walk:?}");
            let more = walk.to(second).admit([1, half, capacity, 1 << 32]);
            let max = if second > first { capacity } else { 0 };
            assert!(more <= max, "{more} more: {walk:?}");
        }
    }
}

#[test]
fn at_every_edge_a_limit_can_become_any_other_with_no_more_used_than_fits() {
    let domain = domain();
    for old in &domain {
        for [first, second] in pairs() {
            for charged in [1, old.capacity(), 2 * old.capacity()] {
                let mut walk = Walk::new(old);
                walk.to(first).charge(charged).to(second);
                let used = walk.used();
                let Some(state) = walk.state.take() else { continue };
                for new in &domain {
                    let carried = new.carry(old, &walk.at, state.clone(), &walk.at);
                    let becomes = Walk { limit: new, state: carried, ..walk.clone() };
                    assert!(becomes.used() <= new.capacity(), "{old}: {becomes:?}");
                    assert!(used > 0 || becomes.state.is_none(), "{old}: {becomes:?}");
                    becomes.check();
                }
            }
        }
    }
}

/// A state must be [carried](Limit::carry) to another limit. A caller that forgets it gets a
/// meaningless decision, but one that does not contradict itself.
#[test]
fn a_state_under_another_limit_makes_no_algorithm_panic_or_wrap() {
    let domain = domain();
    for old in &domain {
        for [first, second] in few_pairs() {
            for charged in [1, old.capacity(), 2 * old.capacity()] {
                let mut walk = Walk::new(old);
                walk.to(first).charge(charged);
                for new in &domain {
                    use_foreign_state(new, walk.state.clone(), second);
                }
            }
        }
    }
}

/// Makes every call on a state of another limit.
fn use_foreign_state(limit: &Limit, state: Option<State>, now: Micros) {
    let at = Moment::new(now);
    for permits in [0, 1, limit.capacity(), 2 * limit.capacity(), Cost::MAX.get()] {
        let (mut state, mut holds) = (state.clone(), Holds::default());
        let verdict = limit.look(state.as_ref(), &holds, &at, weight(permits));
        assert!(verdict.remaining <= limit.capacity(), "{state:?} under {limit}: {verdict:?}");
        let _ = limit.standing(state.as_ref(), &holds, &at);
        let _ = limit.entries(state.as_ref(), &at).count();
        let _ = limit.is_ahead(state.as_ref(), &holds, &at);
        let mut refunded = state.clone();
        limit.refund(&mut refunded, &at, weight(permits));
        let mut compacted = state.clone();
        limit.compact(&mut compacted, &at);
        limit.expire(&mut state, &mut holds, &at);
        limit.charge(&mut state, &at, weight(permits), None);
        // From here on the state belongs to this limit, and may be a debt.
        let after = limit.look(state.as_ref(), &holds, &at, Cost::ONE);
        let fits = limit.capacity() > 0 && after.remaining > 0;
        assert_eq!(after.allowed, fits, "{state:?} under {limit}: {after:?}");
    }
}

/// Fewer than all [`pairs`], because every limit is combined with every other.
fn few_pairs() -> [[Micros; 2]; 4] {
    let (now, later) = (Micros::new(1_700_000_000_123_456), Micros::new(1_700_000_061_000_000));
    [[now, now], [now, later], [later, now], [Micros::MAX, Micros::ZERO]]
}

#[test]
fn holds_of_more_than_there_are_numbers_can_all_be_removed() {
    let mut max = Cost::MAX;
    for _ in 0..40 {
        max = max.saturating_add(max);
    }
    assert_eq!(max.get(), u64::MAX);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut holds = Holds::default();
        for (id, cost) in [(0, max), (1, max), (2, Cost::ONE)] {
            let (deadline, ttl) = (Micros::from_secs(9), Micros::from_secs(1));
            holds.insert(Hold { id, cost, deadline, ttl, expiry: Expiry::Release });
        }
        assert_eq!(holds.held(), u64::MAX);
        for id in order {
            assert_eq!(holds.remove(id).map(|hold| hold.id), Some(id));
        }
        assert_eq!((holds.held(), holds.is_empty()), (0, true));
    }
}

/// A wait is a span, and a span may end after the last instant. Only a span above 2^53 - 1 us is
/// cut to that.
#[test]
fn the_end_of_time_cuts_no_wait_short() {
    let second = Micros::from_secs(1);
    let rest_of_second = Micros::new(1_000_000 - Micros::MAX.get() % 1_000_000);
    for (text, wait) in [
        ("1/s", second),
        ("1/s every 1s", rest_of_second),
        ("leaky-bucket 1/s", second),
        ("fixed-window 1/s", rest_of_second),
        ("fixed-window 1/s first-hit", second),
        ("sliding-log 1/s", second),
    ] {
        let limit = limit(text);
        let mut walk = Walk::new(&limit);
        walk.to(Micros::MAX).charge(1);
        let verdict = walk.look(1);
        assert_eq!(verdict.outcome(), Outcome::RetryAfter(wait), "{text}");
        assert_eq!(verdict.reset_after, wait, "{text}");
    }
}

/// The state and holds of a limit, moved from instant to instant.
#[derive(Clone, Debug)]
struct Walk<'a> {
    limit: &'a Limit,
    state: Option<State>,
    holds: Holds,
    at: Moment,
}

impl<'a> Walk<'a> {
    fn new(limit: &'a Limit) -> Self {
        Self { limit, state: None, holds: Holds::default(), at: Moment::new(Micros::ZERO) }
    }

    /// Moves to an instant, later or earlier. Moving back makes nothing less used.
    fn to(&mut self, now: Micros) -> &mut Self {
        let (before, used) = (self.at.now(), self.used());
        self.at = Moment::new(now);
        let seen = self.look(1);
        self.limit.expire(&mut self.state, &mut self.holds, &self.at);
        assert_eq!(self.look(1), seen, "a look sees what will be written: {self:?}");
        assert!(!self.limit.is_ahead(self.state.as_ref(), &self.holds, &self.at), "{self:?}");
        assert!(now > before || self.used() >= used, "{used} used at {before:?}: {self:?}");
        self
    }

    /// Charges, whether it fits or not.
    fn charge(&mut self, permits: u64) -> &mut Self {
        let used = self.used();
        self.limit.charge(&mut self.state, &self.at, weight(permits), None);
        let max = if self.limit.lease().is_some() { 0 } else { 2 * self.limit.capacity() };
        assert_eq!(self.used(), (used + permits).min(max), "{permits} on {used}: {self:?}");
        self
    }

    /// Refunds. A bucket refunds fractions too, and reports the number rounded up.
    fn refund(&mut self, permits: u64) -> &mut Self {
        let used = self.used();
        let given = self.limit.refund(&mut self.state, &self.at, weight(permits)).get();
        assert!(given <= permits.min(used), "{given} of {used}: {self:?}");
        assert!(self.used() <= used && used <= self.used() + given, "{given} of {used}: {self:?}");
        self
    }

    /// Holds permits if they fit.
    fn hold(&mut self, permits: u64, ttl: Micros, expiry: Expiry) -> &mut Self {
        if permits > 0 && self.look(permits).allowed {
            let deadline = self.at.now().saturating_add(ttl);
            let id = self.holds.iter().count() as u128;
            self.holds.insert(Hold { id, cost: weight(permits), deadline, ttl, expiry });
        }
        self
    }

    /// Checks and charges each cost; returns the sum of the admitted ones.
    fn admit(&mut self, costs: [u64; 4]) -> u64 {
        let mut admitted = 0;
        for permits in costs.into_iter().filter(|&permits| permits > 0) {
            if self.look(permits).allowed {
                admitted += permits;
                match self.limit.lease() {
                    Some(_) => self.hold(permits, Micros::new(1), Expiry::Release),
                    None => self.charge(permits),
                };
            }
        }
        admitted
    }

    fn used(&self) -> u64 {
        self.limit.standing(self.state.as_ref(), &self.holds, &self.at).used
    }

    fn look(&self, permits: u64) -> Verdict {
        self.limit.look(self.state.as_ref(), &self.holds, &self.at, weight(permits))
    }

    /// As [`look`](Self::look), after an idle span without traffic; `None` if that is beyond the
    /// last instant.
    fn look_after(&self, span: Micros, permits: u64) -> Option<Verdict> {
        let at = Moment::new(self.at.now().saturating_add(span));
        let look = || self.limit.look(self.state.as_ref(), &self.holds, &at, weight(permits));
        (at.now() < Micros::MAX).then(look)
    }

    /// Checks what is documented for every state at every instant.
    fn check(&self) {
        let capacity = self.limit.capacity();
        let standing = self.limit.standing(self.state.as_ref(), &self.holds, &self.at);
        assert!(standing.used <= 2 * capacity, "{self:?}");
        let taken = standing.used + standing.held;
        assert_eq!(standing.remaining, capacity.saturating_sub(taken), "{self:?}");
        assert_eq!(standing.reset_after == Micros::ZERO, taken == 0, "{self:?}");
        if let Some(recovered) = self.look_after(standing.reset_after, 0) {
            assert_eq!(recovered.remaining, capacity, "{self:?}");
        }
        let peek = self.look(0);
        assert_eq!(peek.allowed, standing.used <= capacity, "{self:?}");
        assert_eq!(peek.retry_after, self.look(1).retry_after, "{self:?}");
        for permits in edge_costs(self.limit).into_iter().filter(|&permits| permits > 0) {
            let verdict = self.look(permits);
            let fits = taken + permits <= capacity;
            assert_eq!(verdict.allowed, fits, "{permits} with {standing:?}: {self:?}");
            assert_eq!(verdict.remaining, standing.remaining, "{self:?}");
            match verdict.retry_after {
                Wait::Never => assert!(permits > capacity, "{permits}: {self:?}"),
                Wait::For(Micros::ZERO) => assert!(fits, "{permits}: {self:?}"),
                Wait::For(span) => self.check_wait(permits, span),
            }
        }
    }

    /// The cost fits after the wait, and not a microsecond earlier.
    fn check_wait(&self, permits: u64, wait: Micros) {
        let one = Micros::new(1);
        for (span, fits) in [(wait, true), (wait.saturating_sub(one), false)] {
            if let Some(verdict) = self.look_after(span, permits) {
                assert_eq!(verdict.allowed, fits, "{permits} in {span:?}: {self:?}");
            }
        }
    }
}

/// Every pair of edge instants, in both orders.
fn pairs() -> impl Iterator<Item = [Micros; 2]> {
    INSTANTS.into_iter().flat_map(|first| INSTANTS.map(|second| [first, second]))
}

/// Any number of permits as one cost.
fn weight(permits: u64) -> Cost {
    Cost::new(permits).unwrap_or_else(|_| {
        let half = weight(permits / 2);
        half.saturating_add(half).saturating_add(weight(permits % 2))
    })
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> ParseLimitError {
    match text.parse::<Limit>() {
        Ok(limit) => panic!("{text:?} was read as {limit}"),
        Err(error) => error,
    }
}
