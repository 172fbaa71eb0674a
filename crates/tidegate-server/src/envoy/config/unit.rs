//! The spans of envoyproxy/ratelimit.

use tidegate::{InvalidLimit, Limit, Micros, Span};

/// A span of time that a `rate_limit` counts in. All of them are plain lengths of time, aligned to
/// the epoch: a month is 30 days and a year 365.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Unit {
    /// One second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All of them, the shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The unit of this name; case does not matter.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit that is just as long, if there is one.
    pub fn from_length(length: Micros) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.length() == length)
    }

    /// Its name in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// How long it is.
    pub const fn length(self) -> Micros {
        Micros::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        })
    }

    /// So many in each of them: a plain fixed window, not a page of the calendar. None never
    /// allows.
    pub fn limit(self, requests: u32) -> Result<Limit, InvalidLimit> {
        Limit::fixed_window(requests.into(), Span::Plain(self.length())).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_a_plain_span_and_no_page_of_the_calendar() {
        let cases = [
            (Unit::Second, "fixed-window 5/s"),
            (Unit::Minute, "fixed-window 5/min"),
            (Unit::Hour, "fixed-window 5/h"),
            (Unit::Day, "fixed-window 5/24h"),
            (Unit::Week, "fixed-window 5/7d"),
            (Unit::Month, "fixed-window 5/30d"),
            (Unit::Year, "fixed-window 5/365d"),
        ];
        for (unit, limit) in cases {
            let built = unit.limit(5).unwrap();
            assert_eq!(built, limit.parse().unwrap(), "{built}");
            assert_eq!(built.calendar(), None);
            assert_eq!(Unit::from_length(unit.length()), Some(unit));
            assert_eq!(Unit::from_name(&unit.name().to_uppercase()), Some(unit));
            for requests in [0, 1, u32::MAX] {
                assert_eq!(unit.limit(requests).unwrap().capacity(), u64::from(requests));
            }
        }
        assert_eq!(Unit::from_name("unknown"), None);
    }
}
