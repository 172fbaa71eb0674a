//! Request rate and schedule of an open loop.

use std::fmt;
use std::str::FromStr;

use tidegate::{Micros, Span};

/// Evenly spaced requests: `5000/s`, `90000/min`, or `5000` for requests per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestRate {
    count: u64,
    /// In microseconds, above 0.
    span: u64,
}

impl RequestRate {
    /// Upper bound; the lower bound is 1 per second.
    pub(crate) const MAX_PER_SECOND: u64 = 10_000_000;

    /// Time from the first request to the `nth`, counted from 0.
    pub(crate) fn due(self, nth: u64) -> Micros {
        let micros = u128::from(nth) * u128::from(self.span) / u128::from(self.count);
        Micros::new(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Number of requests due earlier than `span` after the first.
    pub(crate) fn due_before(self, span: Micros) -> u64 {
        let count = u128::from(span.get()) * u128::from(self.count);
        u64::try_from(count.div_ceil(u128::from(self.span))).unwrap_or(u64::MAX)
    }

    /// Rounded down.
    pub(crate) fn per_second(self) -> u64 {
        let count = u128::from(self.count) * 1_000_000 / u128::from(self.span);
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

impl FromStr for RequestRate {
    type Err = InvalidRequestRate;

    fn from_str(text: &str) -> Result<Self, InvalidRequestRate> {
        let (count, span) = text.split_once('/').unwrap_or((text, "s"));
        let is_number = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
        let count = count.parse().ok().filter(|_| is_number);
        let span = span.parse::<Span>().ok().and_then(Span::length).map(Micros::get);
        let (Some(count), Some(span @ 1..)) = (count, span) else {
            return Err(InvalidRequestRate::Notation);
        };
        let rate = Self { count, span };
        let is_whole =
            u128::from(count) * 1_000_000 <= u128::from(Self::MAX_PER_SECOND) * u128::from(span);
        match is_whole && rate.per_second() >= 1 {
            true => Ok(rate),
            false => Err(InvalidRequestRate::Range),
        }
    }
}

impl fmt::Display for RequestRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = Span::Plain(Micros::new(self.span)).to_string();
        // `5/s`, not `5/1s`.
        let unit = span.strip_prefix('1').filter(|unit| !unit.starts_with(char::is_numeric));
        write!(f, "{}/{}", self.count, unit.unwrap_or(&span))
    }
}

/// Why a rate is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InvalidRequestRate {
    Notation,
    /// Below 1/s or above [`RequestRate::MAX_PER_SECOND`].
    Range,
}

impl fmt::Display for InvalidRequestRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notation => f.write_str("expected a rate like 5000/s, 90000/min or 5000"),
            Self::Range => {
                write!(f, "expected a rate from 1/s to {}/s", RequestRate::MAX_PER_SECOND)
            }
        }
    }
}

impl std::error::Error for InvalidRequestRate {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_without_a_unit_is_per_second() {
        for (text, expected) in [
            ("5000", Ok((5_000, "5000/s"))),
            ("5000/s", Ok((5_000, "5000/s"))),
            ("90/min", Ok((1, "90/m"))),
            ("90000/min", Ok((1_500, "90000/m"))),
            ("10/10ms", Ok((1_000, "10/10ms"))),
            ("10000000", Ok((10_000_000, "10000000/s"))),
            ("10000001", Err(InvalidRequestRate::Range)),
            ("18446744073709551615/us", Err(InvalidRequestRate::Range)),
            ("0", Err(InvalidRequestRate::Range)),
            ("1/min", Err(InvalidRequestRate::Range)),
            ("", Err(InvalidRequestRate::Notation)),
            ("/s", Err(InvalidRequestRate::Notation)),
            ("+5/s", Err(InvalidRequestRate::Notation)),
            ("-1", Err(InvalidRequestRate::Notation)),
            ("1.5/s", Err(InvalidRequestRate::Notation)),
            ("5k", Err(InvalidRequestRate::Notation)),
            ("5/parsec", Err(InvalidRequestRate::Notation)),
            ("5/month", Err(InvalidRequestRate::Notation)),
            ("99999999999999999999", Err(InvalidRequestRate::Notation)),
        ] {
            let rate = text.parse::<RequestRate>();
            let parsed = rate.map(|rate| (rate.per_second(), rate.to_string()));
            assert_eq!(parsed, expected.map(|(count, shown)| (count, shown.to_string())), "{text}");
        }
    }

    #[test]
    fn due_before_agrees_with_the_schedule() {
        let rate: RequestRate = "3/s".parse().unwrap();
        assert_eq!([0, 1, 2, 3].map(|nth| rate.due(nth).get()), [0, 333_333, 666_666, 1_000_000]);
        assert_eq!(rate.due_before(Micros::from_secs(10)), 30);
        for text in ["1", "3", "7/10ms", "999983/s", "10000000", "100/min"] {
            let rate: RequestRate = text.parse().unwrap();
            for micros in [0, 1, 2, 999, 1_000, 333_333, 333_334, 1_000_000, 86_400_000_000] {
                let count = rate.due_before(Micros::new(micros));
                assert!(rate.due(count).get() >= micros, "{text} {micros}");
                assert!(count == 0 || rate.due(count - 1).get() < micros, "{text} {micros}");
            }
        }
    }
}
