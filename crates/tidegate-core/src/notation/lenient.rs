//! Reads other spellings of numbers and spans, for suggestions.

use alloc::format;
use alloc::string::{String, ToString};

use super::unit::TimeUnit;
use crate::{Micros, Span};

/// `1e3`, `1_000`, `1,000`, `+1000`, `0x3e8`, `1k`: as a whole number in digits.
pub(super) fn whole(text: &str) -> Option<u64> {
    let (number, tail) = leading_number(text)?;
    let times = multiplier(tail)?;
    (number.per == 1).then_some(number.count.checked_mul(times)?)
}

/// A rate whose count is not a whole number in digits: `5.5` per `s` is `11/2s`, exactly.
pub(super) fn rate(count: &str, per: &str) -> Option<String> {
    if let Some(count) = whole(count) {
        return Some(format!("{count}/{per}"));
    }
    let (number, tail) = leading_number(count)?;
    let number = Ratio { count: number.count.checked_mul(multiplier(tail)?)?, ..number }.reduced();
    let length = Segment::leading(per).filter(|s| s.rest.is_empty())?.micros()?;
    let per = plain(length.checked_mul(number.per)?)?;
    Some(format!("{}/{per}", number.count))
}

/// A span with a decimal (`1.5s`), of several parts (`1h30m`), in other words or in another case.
pub(super) fn span(text: &str) -> Option<String> {
    let first = Segment::leading(text)?;
    if first.rest.is_empty() && first.number.is_none_or(|n| n.per == 1) {
        let number = first.number.map(|n| n.count.to_string()).unwrap_or_default();
        return Some(number + first.unit.symbol());
    }
    let mut total = first.micros()?;
    let mut rest = first.rest;
    while !rest.is_empty() {
        let next = Segment::leading(rest)?;
        // A part needs a number: `sms` is not a second and a millisecond.
        next.number?;
        total = total.checked_add(next.micros()?)?;
        rest = next.rest;
    }
    plain(total)
}

/// A span with a misspelt unit: `30sec0nds`.
pub(super) fn misspelt_span(text: &str) -> Option<String> {
    let (number, word) = match leading_number(text) {
        Some((number, word)) => (Some(number).filter(|n| n.per == 1)?.count.to_string(), word),
        None => (String::new(), text),
    };
    Some(number + TimeUnit::guessed(word)?.symbol())
}

fn plain(micros: u64) -> Option<String> {
    let fits = micros > 0 && micros <= Span::MAX.get();
    fits.then(|| Span::Plain(Micros::new(micros)).to_string())
}

/// The factor of a suffix: `10k`, `10M`, and `10r/s`, where it has none.
fn multiplier(tail: &str) -> Option<u64> {
    match tail {
        "" | "r" | "req" | "reqs" | "request" | "requests" => Some(1),
        "k" | "K" => Some(1_000),
        "M" => Some(1_000_000),
        _ => None,
    }
}

/// The fraction `count / per`, reduced.
#[derive(Clone, Copy)]
struct Ratio {
    count: u64,
    per: u64,
}

impl Ratio {
    fn reduced(self) -> Self {
        let factor = gcd(self.count, self.per).max(1);
        Self { count: self.count / factor, per: self.per / factor }
    }
}

pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// One number and one unit of a span.
struct Segment<'a> {
    number: Option<Ratio>,
    unit: TimeUnit,
    rest: &'a str,
}

impl<'a> Segment<'a> {
    fn leading(text: &'a str) -> Option<Self> {
        let (number, text) = match leading_number(text.trim_start()) {
            Some((number, rest)) => (Some(number), rest),
            None => (None, text),
        };
        let text = text.trim_start();
        let end = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        Some(Self { number, unit: TimeUnit::understood(word)?, rest: rest.trim_start() })
    }

    /// Its length, if that is a whole number of microseconds.
    fn micros(&self) -> Option<u64> {
        let number = self.number.unwrap_or(Ratio { count: 1, per: 1 });
        let product = self.unit.micros()?.checked_mul(number.count)?;
        product.is_multiple_of(number.per).then_some(product / number.per)
    }
}

/// The number at the start of `text` in any notation, and the rest.
fn leading_number(text: &str) -> Option<(Ratio, &str)> {
    let text = text.strip_prefix(['+', '-', '\u{2212}']).unwrap_or(text);
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let count = u64::from_str_radix(hex, 16).ok()?;
        return Some((Ratio { count, per: 1 }, ""));
    }
    let (whole, rest) = leading_digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), leading_digits);
    let (exponent, rest) = leading_exponent(rest);
    let digits = whole.bytes().chain(fraction.bytes()).filter(u8::is_ascii_digit);
    digits.clone().next()?;
    let count = digits
        .map(|digit| u64::from(digit - b'0'))
        .try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(digit))?;
    let decimals = i32::try_from(fraction.bytes().filter(u8::is_ascii_digit).count()).ok()?;
    let shift = exponent.checked_sub(decimals)?;
    let power = 10_u64.checked_pow(shift.unsigned_abs())?;
    let number = if shift < 0 {
        Ratio { count, per: power }
    } else {
        Ratio { count: count.checked_mul(power)?, per: 1 }
    };
    Some((number.reduced(), rest))
}

/// Digits, with optional `_` or comma separators.
fn leading_digits(text: &str) -> (&str, &str) {
    let groups = |at: usize| text.as_bytes().get(at + 1..at + 4).is_some_and(all_digits);
    let belongs = |at: usize, c: char| c.is_ascii_digit() || c == '_' || c == ',' && groups(at);
    let end = text.char_indices().find(|&(at, c)| !belongs(at, c)).map_or(text.len(), |(at, _)| at);
    text.split_at(end)
}

/// `e3`, `E-3`; zero and the whole text without an exponent.
fn leading_exponent(text: &str) -> (i32, &str) {
    let Some(after) = text.strip_prefix(['e', 'E']) else { return (0, text) };
    let digits = after.strip_prefix(['+', '-']).unwrap_or(after);
    let length = digits.bytes().take_while(u8::is_ascii_digit).count();
    let end = after.len() - digits.len() + length;
    let (exponent, rest) = after.split_at(end);
    exponent.parse().map_or((0, text), |exponent| (exponent, rest))
}

fn all_digits(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_digit)
}
