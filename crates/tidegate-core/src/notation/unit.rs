//! The units of time in the notation.

use crate::did_you_mean::did_you_mean;
use crate::{CalendarUnit, Micros, Span};

/// A unit of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TimeUnit {
    Micro,
    Milli,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
}

/// The words of the notation.
const WORDS: [(&str, TimeUnit); 21] = [
    ("us", TimeUnit::Micro),
    ("ms", TimeUnit::Milli),
    ("s", TimeUnit::Second),
    ("sec", TimeUnit::Second),
    ("secs", TimeUnit::Second),
    ("m", TimeUnit::Minute),
    ("min", TimeUnit::Minute),
    ("mins", TimeUnit::Minute),
    ("minute", TimeUnit::Minute),
    ("minutes", TimeUnit::Minute),
    ("h", TimeUnit::Hour),
    ("hour", TimeUnit::Hour),
    ("hours", TimeUnit::Hour),
    ("d", TimeUnit::Day),
    ("day", TimeUnit::Day),
    ("days", TimeUnit::Day),
    ("w", TimeUnit::Week),
    ("week", TimeUnit::Week),
    ("weeks", TimeUnit::Week),
    ("month", TimeUnit::Month),
    ("months", TimeUnit::Month),
];

/// Words outside the notation with a clear meaning.
const OTHER_WORDS: [(&str, TimeUnit); 20] = [
    ("second", TimeUnit::Second),
    ("seconds", TimeUnit::Second),
    ("mo", TimeUnit::Month),
    ("mon", TimeUnit::Month),
    ("mth", TimeUnit::Month),
    ("hr", TimeUnit::Hour),
    ("hrs", TimeUnit::Hour),
    ("wk", TimeUnit::Week),
    ("wks", TimeUnit::Week),
    ("msec", TimeUnit::Milli),
    ("msecs", TimeUnit::Milli),
    ("millis", TimeUnit::Milli),
    ("millisecond", TimeUnit::Milli),
    ("milliseconds", TimeUnit::Milli),
    ("usec", TimeUnit::Micro),
    ("usecs", TimeUnit::Micro),
    ("micros", TimeUnit::Micro),
    ("microsecond", TimeUnit::Micro),
    ("microseconds", TimeUnit::Micro),
    ("\u{3bc}s", TimeUnit::Micro),
];

impl TimeUnit {
    /// The units of a fixed length, longest first.
    const BY_LENGTH: [Self; 7] =
        [Self::Week, Self::Day, Self::Hour, Self::Minute, Self::Second, Self::Milli, Self::Micro];

    /// The unit of this word in the notation.
    pub(super) fn named(word: &str) -> Option<Self> {
        WORDS.iter().find(|(name, _)| *name == word).map(|&(_, unit)| unit)
    }

    /// The unit that `word` clearly stands for, in any case or spelling.
    pub(super) fn understood(word: &str) -> Option<Self> {
        // Elsewhere `M` stands for both minutes and months.
        if word == "M" {
            return None;
        }
        // The micro sign and the Greek letter look the same.
        let word = word.to_lowercase().replace('\u{b5}', "\u{3bc}");
        let known = || WORDS.iter().chain(&OTHER_WORDS);
        known().find(|(name, _)| *name == word).map(|&(_, unit)| unit)
    }

    /// The unit whose word resembles `word` most.
    pub(super) fn guessed(word: &str) -> Option<Self> {
        let known = WORDS.iter().chain(&OTHER_WORDS).map(|(name, _)| *name);
        Self::understood(did_you_mean(word, known.filter(|_| word != "M"))?)
    }

    /// The longest unit that divides `length`, and how often.
    pub(super) fn dividing(length: Micros) -> (u64, Self) {
        let how_often = |unit: Self| {
            let micros = unit.micros().filter(|&micros| length.get().is_multiple_of(micros))?;
            Some((length.get() / micros, unit))
        };
        Self::BY_LENGTH.into_iter().find_map(how_often).unwrap_or((length.get(), Self::Micro))
    }

    /// The shortest unambiguous word.
    pub(super) const fn symbol(self) -> &'static str {
        match self {
            Self::Micro => "us",
            Self::Milli => "ms",
            Self::Second => "s",
            Self::Minute => "m",
            Self::Hour => "h",
            Self::Day => "d",
            Self::Week => "w",
            Self::Month => "month",
        }
    }

    /// Its length; `None` for a month, which has no fixed length.
    pub(super) const fn micros(self) -> Option<u64> {
        match self {
            Self::Micro => Some(1),
            Self::Milli => Some(1_000),
            Self::Second => Some(1_000_000),
            Self::Minute => Some(60_000_000),
            Self::Hour => Some(3_600_000_000),
            Self::Day => Some(Span::DAY_MICROS),
            Self::Week => Some(7 * Span::DAY_MICROS),
            Self::Month => None,
        }
    }

    /// The calendar unit of the same name.
    pub(super) const fn calendar(self) -> Option<CalendarUnit> {
        match self {
            Self::Day => Some(CalendarUnit::Day),
            Self::Week => Some(CalendarUnit::Week),
            Self::Month => Some(CalendarUnit::Month),
            _ => None,
        }
    }
}

impl From<CalendarUnit> for TimeUnit {
    fn from(page: CalendarUnit) -> Self {
        match page {
            CalendarUnit::Day => Self::Day,
            CalendarUnit::Week => Self::Week,
            CalendarUnit::Month => Self::Month,
        }
    }
}
