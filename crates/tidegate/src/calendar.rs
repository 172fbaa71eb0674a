//! Calendar windows in time zones, for limits per day, week or month.

use std::sync::{Mutex, PoisonError};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use tidegate_core::{CalendarUnit, Micros, Moment};

/// A time zone and a calendar unit, with the last computed window cached.
#[derive(Debug)]
pub(crate) struct Calendar {
    zone: TimeZone,
    unit: CalendarUnit,
    window: Mutex<(Micros, Micros)>,
}

impl Calendar {
    /// `None` if there is no such zone.
    pub(crate) fn new(unit: CalendarUnit, zone: &str) -> Option<Self> {
        let zone = TimeZone::get(zone).ok()?;
        Some(Self { zone, unit, window: Mutex::new((Micros::ZERO, Micros::ZERO)) })
    }

    /// The instant with the window around it.
    pub(crate) fn moment(&self, now: Micros) -> Moment {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if !(window.0 <= now && now < window.1) {
            *window = self.window_around(now).unwrap_or(*window);
        }
        Moment::within(now, window.0, window.1).unwrap_or(Moment::new(now))
    }

    /// Boundaries of the window around `now` and of its neighbours, in order.
    pub(crate) fn boundaries(&self, now: Micros) -> Vec<Micros> {
        let Some((start, end)) = self.window_around(now) else { return Vec::new() };
        let before = self.window_around(start.saturating_sub(Micros::new(1)));
        let after = self.window_around(end);
        let first = before.map(|(first, _)| first).filter(|first| *first < start);
        first.into_iter().chain([start, end]).chain(after.map(|(_, last)| last)).collect()
    }

    fn window_around(&self, now: Micros) -> Option<(Micros, Micros)> {
        let timestamp = Timestamp::from_microsecond(i64::try_from(now.get()).ok()?).ok()?;
        let today = timestamp.to_zoned(self.zone.clone()).date();
        let first = match self.unit {
            CalendarUnit::Day => today,
            CalendarUnit::Week => {
                let since_monday = today.weekday().to_monday_zero_offset();
                today.checked_sub(i64::from(since_monday).days()).ok()?
            }
            CalendarUnit::Month => today.first_of_month(),
        };
        let next = first
            .checked_add(match self.unit {
                CalendarUnit::Day => 1.day(),
                CalendarUnit::Week => 1.week(),
                CalendarUnit::Month => 1.month(),
            })
            .ok()?;
        Some((self.start_of(first)?, self.start_of(next)?))
    }

    /// The first instant of a date. If midnight is skipped, the instant after the gap; before 1970,
    /// the epoch.
    fn start_of(&self, date: Date) -> Option<Micros> {
        let start = date.to_zoned(self.zone.clone()).ok()?.timestamp().as_microsecond();
        Some(Micros::new(u64::try_from(start).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(unit: CalendarUnit, zone: &str, now: &str) -> (String, u64) {
        let calendar = Calendar::new(unit, zone).unwrap();
        let now: Timestamp = now.parse().unwrap();
        let now = Micros::new(u64::try_from(now.as_microsecond()).unwrap());
        let (start, end) = calendar.window_around(now).unwrap();
        let start_text = Timestamp::from_microsecond(i64::try_from(start.get()).unwrap()).unwrap();
        assert!(start <= now && now < end);
        assert_eq!(calendar.moment(now), Moment::within(now, start, end).unwrap());
        (start_text.to_string(), end.saturating_sub(start).get() / 3_600_000_000)
    }

    #[test]
    fn windows_begin_at_local_midnight_and_last_as_long_as_the_day_does() {
        use CalendarUnit::{Day, Month, Week};
        for (unit, zone, now, start, length) in [
            (Day, "Asia/Shanghai", "2026-11-15T15:59:59Z", "2026-11-14T16:00:00Z", 24),
            (Day, "Asia/Shanghai", "2026-11-15T16:00:00Z", "2026-11-15T16:00:00Z", 24),
            (Day, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", 23),
            (Day, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", 25),
            (Week, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-18T22:00:00Z", 169),
            (Month, "America/New_York", "2026-03-15T00:00:00Z", "2026-03-01T05:00:00Z", 743),
            (Month, "UTC", "2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z", 696),
            // Beirut skips midnight in spring; Samoa skipped a whole day.
            (Day, "Asia/Beirut", "2022-03-27T12:00:00Z", "2022-03-26T22:00:00Z", 23),
            (Day, "Pacific/Apia", "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", 24),
            (Day, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", 24),
        ] {
            let expected = (start.to_string(), length);
            assert_eq!(hours(unit, zone, now), expected, "{unit:?} in {zone} at {now}");
        }
    }

    #[test]
    fn a_zone_that_does_not_exist_is_not_a_calendar() {
        assert!(Calendar::new(CalendarUnit::Day, "Mars/Olympus_Mons").is_none());
    }
}
