//! Units of time of envoyproxy/ratelimit.

use tidegate::{InvalidLimit, Limit, Micros, Span};

/// The unit of time of a `rate_limit`. Each is a fixed duration aligned to the epoch: a month has
/// 30 days and a year 365.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum EnvoyUnit {
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

/// The algorithm that a `rate_limit` of envoyproxy/ratelimit stands for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum EnvoyWindows {
    /// Windows aligned to the epoch, as in envoyproxy/ratelimit: up to twice the limit around a
    /// boundary.
    #[default]
    Fixed,
    /// A sliding window: the limit in any interval of the unit's length.
    Sliding,
    /// A token bucket: the limit at once, then refilled evenly over the unit.
    Bucket,
}

impl EnvoyWindows {
    /// All algorithms, with their names.
    pub const NAMES: [(&'static str, Self); 3] =
        [("fixed", Self::Fixed), ("sliding", Self::Sliding), ("bucket", Self::Bucket)];

    /// The limit of `requests` per `unit`. With 0 requests it never allows. A bucket refuses
    /// numbers of billions that it cannot count exactly.
    pub fn limit(self, unit: EnvoyUnit, requests: u32) -> Result<Limit, InvalidLimit> {
        let (count, span) = (u64::from(requests), Span::Plain(unit.length()));
        match self {
            Self::Sliding if requests > 0 => Limit::sliding_window(count, span).build(),
            Self::Bucket if requests > 0 => Limit::per(count, span).burst(count).build(),
            _ => unit.limit(requests),
        }
    }
}

impl EnvoyUnit {
    /// All units, the shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The unit with this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit with this duration.
    pub fn from_length(length: Micros) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.length() == length)
    }

    /// The name in files.
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

    /// The duration.
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

    /// A fixed window of this duration, not of a calendar month or year. With 0 requests it never
    /// allows.
    pub fn limit(self, requests: u32) -> Result<Limit, InvalidLimit> {
        Limit::fixed_window(requests.into(), Span::Plain(self.length())).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_stands_for_the_chosen_algorithm_with_the_same_length() {
        for (windows, limit) in [
            (EnvoyWindows::Fixed, "fixed-window 5/24h"),
            (EnvoyWindows::Sliding, "sliding-window 5/24h"),
            (EnvoyWindows::Bucket, "5/24h burst 5"),
        ] {
            let built = windows.limit(EnvoyUnit::Day, 5).unwrap();
            assert_eq!(built, limit.parse().unwrap(), "{built}");
            for unit in EnvoyUnit::ALL {
                for requests in [0, 1, 1_000_000] {
                    let built = windows.limit(unit, requests).unwrap();
                    assert_eq!(built.capacity(), u64::from(requests), "{windows:?} {unit:?}");
                }
            }
        }
    }

    #[test]
    fn a_unit_is_a_fixed_duration_and_not_a_calendar_period() {
        let cases = [
            (EnvoyUnit::Second, "fixed-window 5/s"),
            (EnvoyUnit::Minute, "fixed-window 5/min"),
            (EnvoyUnit::Hour, "fixed-window 5/h"),
            (EnvoyUnit::Day, "fixed-window 5/24h"),
            (EnvoyUnit::Week, "fixed-window 5/7d"),
            (EnvoyUnit::Month, "fixed-window 5/30d"),
            (EnvoyUnit::Year, "fixed-window 5/365d"),
        ];
        for (unit, limit) in cases {
            let built = unit.limit(5).unwrap();
            assert_eq!(built, limit.parse().unwrap(), "{built}");
            assert_eq!(built.calendar(), None);
            assert_eq!(EnvoyUnit::from_length(unit.length()), Some(unit));
            assert_eq!(EnvoyUnit::from_name(&unit.name().to_uppercase()), Some(unit));
            for requests in [0, 1, u32::MAX] {
                assert_eq!(unit.limit(requests).unwrap().capacity(), u64::from(requests));
            }
        }
        assert_eq!(EnvoyUnit::from_name("unknown"), None);
    }
}
