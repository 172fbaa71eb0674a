//! How often to ask, and when each question is due.

use std::fmt;
use std::str::FromStr;

use tidegate::{Micros, Span};

/// So many questions in a span, evenly: `5000/s`, `90000/min`, or a number alone for a second.
///
/// ```
/// use tidegate::Micros;
/// use tidegate_server::bench::Rate;
/// let rate: Rate = "3/s".parse()?;
/// assert_eq!([0, 1, 2, 3].map(|nth| rate.due(nth).get()), [0, 333_333, 666_666, 1_000_000]);
/// assert_eq!(rate.due_before(Micros::from_secs(10)), 30);
/// # Ok::<(), tidegate_server::bench::InvalidRate>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    count: u64,
    /// In microseconds, and not 0.
    span: u64,
}

impl Rate {
    /// The most in a second; the least is 1.
    pub const MOST: u64 = 10_000_000;

    /// How long after the first the `nth` is due, from 0.
    pub fn due(self, nth: u64) -> Micros {
        let micros = u128::from(nth) * u128::from(self.span) / u128::from(self.count);
        Micros::new(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// How many are due earlier than `span` after the first.
    pub fn due_before(self, span: Micros) -> u64 {
        let count = u128::from(span.get()) * u128::from(self.count);
        u64::try_from(count.div_ceil(u128::from(self.span))).unwrap_or(u64::MAX)
    }

    /// How many there are in a second, rounded down.
    pub fn per_second(self) -> u64 {
        let count = u128::from(self.count) * 1_000_000 / u128::from(self.span);
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let (count, span) = text.split_once('/').unwrap_or((text, "s"));
        let is_number = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
        let count = count.parse().ok().filter(|_| is_number);
        let span = span.parse::<Span>().ok().and_then(Span::length).map(Micros::get);
        let (Some(count), Some(span @ 1..)) = (count, span) else {
            return Err(InvalidRate::Notation);
        };
        let rate = Self { count, span };
        let is_whole = u128::from(count) * 1_000_000 <= u128::from(Self::MOST) * u128::from(span);
        match is_whole && rate.per_second() >= 1 {
            true => Ok(rate),
            false => Err(InvalidRate::Range),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = Span::Plain(Micros::new(self.span)).to_string();
        // One of a unit is just the unit.
        let unit = span.strip_prefix('1').filter(|unit| !unit.starts_with(char::is_numeric));
        write!(f, "{}/{}", self.count, unit.unwrap_or(&span))
    }
}

/// Why a text is no rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidRate {
    /// It is not written like one.
    Notation,
    /// It is too small or too large.
    Range,
}

impl fmt::Display for InvalidRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notation => f.write_str("write a rate like 5000/s, 90000/min or 5000"),
            Self::Range => write!(f, "write a rate from 1/s to {}/s", Rate::MOST),
        }
    }
}

impl std::error::Error for InvalidRate {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_a_second_unless_it_says_otherwise() {
        for (text, expected) in [
            ("5000", Ok((5_000, "5000/s"))),
            ("5000/s", Ok((5_000, "5000/s"))),
            ("90/min", Ok((1, "90/m"))),
            ("90000/min", Ok((1_500, "90000/m"))),
            ("10/10ms", Ok((1_000, "10/10ms"))),
            ("10000000", Ok((10_000_000, "10000000/s"))),
            ("10000001", Err(InvalidRate::Range)),
            ("18446744073709551615/us", Err(InvalidRate::Range)),
            ("0", Err(InvalidRate::Range)),
            ("1/min", Err(InvalidRate::Range)),
            ("", Err(InvalidRate::Notation)),
            ("/s", Err(InvalidRate::Notation)),
            ("+5/s", Err(InvalidRate::Notation)),
            ("-1", Err(InvalidRate::Notation)),
            ("1.5/s", Err(InvalidRate::Notation)),
            ("5k", Err(InvalidRate::Notation)),
            ("5/parsec", Err(InvalidRate::Notation)),
            ("5/month", Err(InvalidRate::Notation)),
            ("99999999999999999999", Err(InvalidRate::Notation)),
        ] {
            let rate = text.parse::<Rate>();
            let told = rate.map(|rate| (rate.per_second(), rate.to_string()));
            assert_eq!(told, expected.map(|(count, shown)| (count, shown.to_string())), "{text}");
        }
    }

    #[test]
    fn what_is_due_before_an_instant_is_counted_as_it_is_planned() {
        for text in ["1", "3", "7/10ms", "999983/s", "10000000", "100/min"] {
            let rate: Rate = text.parse().unwrap();
            for micros in [0, 1, 2, 999, 1_000, 333_333, 333_334, 1_000_000, 86_400_000_000] {
                let count = rate.due_before(Micros::new(micros));
                assert!(rate.due(count).get() >= micros, "{text} {micros}");
                assert!(count == 0 || rate.due(count - 1).get() < micros, "{text} {micros}");
            }
        }
    }
}
