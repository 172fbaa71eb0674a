//! The notation with random limits and random text. The seed is fixed.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::{Limit, LimitBuilder, Micros, Span};

const ROUND_TRIPS: usize = 200_000;
const TEXTS: usize = 500_000;

/// A mutation run repeats the whole suite hundreds of times.
fn fewer_for_mutants(count: usize) -> usize {
    if std::env::var_os("TIDEGATE_MUTANTS").is_some() { count / 50 } else { count }
}

#[test]
fn a_printed_limit_parses_as_the_same_limit() {
    let mut random = Random(7);
    let mut good = 0;
    while good < fewer_for_mutants(ROUND_TRIPS) {
        let Ok(limit) = random.builder().build() else { continue };
        good += 1;
        let printed = limit.to_string();
        let read: Limit = printed.parse().unwrap_or_else(|error| panic!("{printed}: {error}"));
        assert_eq!(read, limit, "{printed}");
        assert_eq!(read.to_string(), printed);
    }
}

#[test]
fn no_text_makes_the_parser_panic_or_point_outside() {
    let mut random = Random(11);
    for _ in 0..fewer_for_mutants(TEXTS) {
        let text = random.text();
        if let Err(error) = text.parse::<Limit>() {
            let position = error.position();
            assert!(text.get(position.clone()).is_some(), "{text:?} {position:?}");
            let message = error.to_string();
            assert!(!message.contains(|c: char| c.is_control()), "{text:?} {message:?}");
            if let Some(suggestion) = error.suggestion() {
                assert!(suggestion.parse::<Limit>().is_ok(), "{text:?} {suggestion:?}");
            }
        }
    }
}

#[test]
fn no_text_makes_the_span_parser_panic_or_point_outside() {
    let mut random = Random(13);
    for _ in 0..fewer_for_mutants(TEXTS / 10) {
        let text = random.text();
        let text = text.split('/').next_back().unwrap_or(&text);
        if let Err(error) = text.parse::<Span>() {
            assert!(text.get(error.position()).is_some(), "{text:?} {error:?}");
            assert_eq!(error.underline(text).lines().count(), 2, "{text:?}");
            let good = error.suggestion().is_none_or(|s| s.parse::<Span>().is_ok());
            assert!(good, "{text:?} {error}");
        }
    }
}

/// Valid and invalid texts to start from.
const CORPUS: [&str; 24] = [
    "100/s",
    "10/30s",
    "5/min",
    "100/s burst 20",
    "token-bucket 10/s burst 50 every 1s",
    "fixed-window 1000/d tz Asia/Shanghai",
    "fixed-window 100/60s first-hit",
    "fixed-window 5/month",
    "sliding-log 5/1m",
    "sliding-window 240/1h precision 1m",
    "sliding-window 240/1h approximate",
    "leaky-bucket 10/s capacity 30 queue",
    "concurrency 20 lease 30s",
    "5.5e-3/1h30m burst=20, every 1.5 s",
    "Token Bucket 1_000 / S",
    "5 requests per 30 seconds",
    "100rps",
    "-0x10k/sec0nds",
    "\u{b5}s \u{2212}5/\u{e9}\u{1f980}",
    "fixed-window 4503599627370496/36501d",
    "18446744073709551616/18446744073709551616us",
    "concurrency=20/s lease:1month",
    "5/s first hit timezone Z",
    "  5/s\t\u{a0}",
];

const PIECES: [&str; 20] = [
    " ",
    "/",
    "=",
    ",",
    ":",
    "0",
    "9",
    "e",
    "-",
    ".",
    "_",
    "\0",
    "\u{e9}",
    "\u{1f980}",
    " burst ",
    " tz ",
    " per ",
    "month",
    "ms",
    "9999999",
];

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 32).unwrap() % end.max(1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Mostly small numbers, sometimes of any size.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => self.next() >> (12 + self.below(52)),
            1 => 0,
            _ => self.next() % 1_000,
        }
    }

    fn span(&mut self) -> Span {
        const UNITS: [u64; 7] =
            [1, 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, 604_800_000_000];
        match self.below(10) {
            0 => Span::DAY,
            1 => Span::WEEK,
            2 => Span::MONTH,
            3 => Span::Plain(Micros::new(86_400_000_000)),
            4 => Span::Plain(Micros::new(7 * 86_400_000_000)),
            5 => Span::Plain(Micros::new(self.next() >> (11 + self.below(53)))),
            _ => Span::Plain(Micros::new(self.pick(&UNITS) * (1 + self.next() % 100))),
        }
    }

    /// With options of its algorithm, and rarely of another one.
    fn builder(&mut self) -> LimitBuilder {
        let (count, span) = (self.number(), self.span());
        let kind = self.below(6);
        let mut builder = match kind {
            0 => Limit::per(count, span),
            1 => Limit::leaky_bucket(count, span),
            2 => Limit::fixed_window(count, span),
            3 => Limit::sliding_log(count, span),
            4 => Limit::sliding_window(count, span),
            _ => Limit::concurrency(count),
        };
        let options = if self.one_in(50) { self.below(6) } else { kind };
        for _ in 0..self.below(3) {
            builder = match (options, self.below(2)) {
                (0, 0) => builder.burst(self.number()),
                (0, _) => builder.every(self.step(span)),
                (1, 0) => builder.capacity(self.number()),
                (1, _) => builder.queue(),
                (2, 0) => builder.tz(self.pick(&["UTC", "Asia/Shanghai", "Etc/GMT+5", "a_b-c"])),
                (2, _) => builder.first_hit(),
                (4, 0) => builder.precision(self.step(span)),
                (4, _) => builder.approximate(),
                (5, _) => builder.lease(self.span()),
                _ => builder,
            };
        }
        builder
    }

    /// A part of `span`, usually a whole one.
    fn step(&mut self, span: Span) -> Span {
        match span.length() {
            Some(length) if !self.one_in(8) => {
                Span::Plain(Micros::new(length.get() / self.pick(&[1, 2, 3, 5, 10, 60, 100])))
            }
            _ => self.span(),
        }
    }

    fn text(&mut self) -> String {
        if self.one_in(10) {
            let length = self.below(300);
            let bytes: Vec<u8> = (0..length).map(|_| self.next().to_le_bytes()[0]).collect();
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        let mut chars: Vec<char> = self.pick(&CORPUS).chars().collect();
        for _ in 0..self.below(4) {
            self.mutate(&mut chars);
        }
        chars.into_iter().collect()
    }

    fn mutate(&mut self, chars: &mut Vec<char>) {
        let at = self.below(chars.len() + 1);
        match self.below(5) {
            0 => chars.truncate(at),
            1 if at < chars.len() => drop(chars.remove(at)),
            2 if at < chars.len() => {
                let other = self.below(chars.len());
                chars.swap(at, other);
            }
            3 => {
                let other: Vec<char> = self.pick(&CORPUS).chars().collect();
                let from = self.below(other.len());
                chars.truncate(at);
                chars.extend(&other[from..]);
            }
            _ => drop(chars.splice(at..at, self.pick(&PIECES).chars())),
        }
    }
}
