//! The span of a limit: a length of time, or a calendar unit.

use core::time::Duration;

use crate::Micros;

/// A calendar unit. Its length varies with months and daylight saving.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday.
    Week,
    /// From the first to the last of the month.
    Month,
}

/// The span of a limit.
///
/// `1d`, `1w` and `1month` are calendar units for a fixed window. All other algorithms use 24 hours
/// for a day and seven days for a week, and refuse a month.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Span {
    /// A length of time.
    Plain(Micros),
    /// Exactly one day, week or month.
    Calendar(CalendarUnit),
}

impl Span {
    /// The longest span, 36,500 days.
    pub const MAX: Micros = Micros::new(36_500 * Self::DAY_MICROS);
    /// One second.
    pub const SECOND: Self = Self::Plain(Micros::from_secs(1));
    /// One minute.
    pub const MINUTE: Self = Self::Plain(Micros::from_secs(60));
    /// One hour.
    pub const HOUR: Self = Self::Plain(Micros::from_secs(3_600));
    /// A calendar day, from midnight.
    pub const DAY: Self = Self::Calendar(CalendarUnit::Day);
    /// A calendar week, from Monday.
    pub const WEEK: Self = Self::Calendar(CalendarUnit::Week);
    /// A calendar month, from the first.
    pub const MONTH: Self = Self::Calendar(CalendarUnit::Month);

    pub(crate) const DAY_MICROS: u64 = 86_400_000_000;

    /// The length, if it is fixed.
    pub const fn length(self) -> Option<Micros> {
        match self {
            Self::Plain(length) => Some(length),
            Self::Calendar(CalendarUnit::Day) => Some(Micros::new(Self::DAY_MICROS)),
            Self::Calendar(CalendarUnit::Week) => Some(Micros::new(7 * Self::DAY_MICROS)),
            Self::Calendar(CalendarUnit::Month) => None,
        }
    }
}

impl From<Micros> for Span {
    fn from(length: Micros) -> Self {
        Self::Plain(length)
    }
}

impl From<Duration> for Span {
    fn from(length: Duration) -> Self {
        Self::Plain(length.into())
    }
}
