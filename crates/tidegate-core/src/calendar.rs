//! Calendar days, weeks and months in UTC, for limits without a zone.

use crate::span::Span;
use crate::{CalendarUnit, Micros, Moment};

/// A calendar window in microseconds; the end is exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CalendarWindow {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The window of `at`, or the one around it in UTC.
pub(crate) fn page(unit: CalendarUnit, at: &Moment) -> CalendarWindow {
    match at.window() {
        Some((start, end)) => CalendarWindow { start: start.get(), end: end.get() },
        None => utc(unit, at.now()),
    }
}

fn utc(unit: CalendarUnit, now: Micros) -> CalendarWindow {
    let today = now.get() / Span::DAY_MICROS;
    let (first, days) = match unit {
        CalendarUnit::Day => (today, 1),
        CalendarUnit::Week => {
            // The epoch was a Thursday. The first week starts at the epoch and is four days long.
            let since_monday = (today + 3) % 7;
            match today.checked_sub(since_monday) {
                Some(monday) => (monday, 7),
                None => (0, 4),
            }
        }
        CalendarUnit::Month => month(today),
    };
    CalendarWindow { start: first * Span::DAY_MICROS, end: (first + days) * Span::DAY_MICROS }
}

/// The first day of the month of day number `today`, and how many days it has.
///
/// Years are counted from March, so that the leap day is the last of a year and the months before
/// it follow one formula: month n begins on day `(153*n + 2) / 5`.
fn month(today: u64) -> (u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    const EPOCH_SINCE_MARCH_OF_YEAR_0: u64 = 719_468;
    let day = (today + EPOCH_SINCE_MARCH_OF_YEAR_0) % DAYS_IN_400_YEARS;
    // Without the leap days of the four-year, hundred-year and 400-year cycles, all years are
    // equal.
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let begins = |month: u64| (153 * month + 2) / 5;
    let month = (5 * day_of_year + 2) / 153;
    let divides = |by: u64| (year + 1).is_multiple_of(by);
    let days = match month {
        11 if divides(4) && (!divides(100) || divides(400)) => 29,
        11 => 28,
        _ => begins(month + 1) - begins(month),
    };
    (today - (day_of_year - begins(month)), days)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(unit: CalendarUnit, today: u64) -> (u64, u64) {
        let now = Micros::new(today * Span::DAY_MICROS + 1);
        let page = utc(unit, now);
        assert_eq!(page.start % Span::DAY_MICROS, 0);
        (page.start / Span::DAY_MICROS, page.end / Span::DAY_MICROS)
    }

    #[test]
    fn calendar_windows_match_known_dates() {
        use CalendarUnit::{Day, Month, Week};
        for (unit, today, first, end) in [
            (Day, 0, 0, 1),
            (Day, 20_000, 20_000, 20_001),
            (Week, 0, 0, 4),   // Thursday 1970-01-01
            (Week, 3, 0, 4),   // Sunday
            (Week, 4, 4, 11),  // Monday 1970-01-05
            (Week, 10, 4, 11), // Sunday
            (Week, 11, 11, 18),
            (Month, 0, 0, 31),               // January 1970
            (Month, 31, 31, 59),             // February
            (Month, 790, 790, 821),          // March 1972, after a leap day
            (Month, 789, 761, 790),          // 1972-02-29
            (Month, 11_016, 10_988, 11_017), // 2000-02-29: a century that is a leap year
            (Month, 47_540, 47_513, 47_541), // 2100-02-28: a century that is not
            (Month, 47_541, 47_541, 47_572), // 2100-03-01
            (Month, 20_772, 20_758, 20_788), // 2026-11-15
        ] {
            assert_eq!(day(unit, today), (first, end), "{unit:?} around day {today}");
        }
    }

    #[test]
    fn an_instant_on_a_boundary_belongs_to_the_window_that_begins() {
        let midnight = Micros::new(Span::DAY_MICROS);
        let eve = Micros::new(Span::DAY_MICROS - 1);
        assert_eq!(utc(CalendarUnit::Day, midnight).start, Span::DAY_MICROS);
        assert_eq!(utc(CalendarUnit::Day, eve).start, 0);
        assert_eq!(utc(CalendarUnit::Day, eve).end, Span::DAY_MICROS);
    }
}
