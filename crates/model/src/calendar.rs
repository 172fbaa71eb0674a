//! Days, weeks and months in UTC by counting them, and artificial zones.

use std::sync::OnceLock;

use tidegate_core::CalendarUnit;

use crate::TraceRng;

const DAY: i128 = 86_400_000_000;

/// A calendar that the core does not know: its boundaries come with every call. The windows have
/// about the same length; each boundary is moved by its own random span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestZone {
    /// The windows are between half and one and a half times as long.
    pub page: u64,
    /// The seed of the boundaries.
    pub seed: u64,
}

impl TestZone {
    /// The window around `now`.
    pub(crate) fn page(&self, now: i128) -> (i128, i128) {
        let near = now.div_euclid(i128::from(self.page));
        let first = (near - 1..=near).rev().find(|&number| self.boundary(number) <= now).unwrap();
        (self.boundary(first), self.boundary(first + 1))
    }

    /// Boundary `number` lies in the first half of the span from `number * page`.
    fn boundary(&self, number: i128) -> i128 {
        let late = TraceRng::new(self.seed ^ number as u64).below(self.page / 2 + 1);
        number * i128::from(self.page) + i128::from(late)
    }
}

/// The day, week or month in UTC around `now`.
pub(crate) fn utc(unit: CalendarUnit, now: i128) -> (i128, i128) {
    match unit {
        CalendarUnit::Day => {
            let start = now.div_euclid(DAY) * DAY;
            (start, start + DAY)
        }
        CalendarUnit::Week => {
            // The epoch was a Thursday, so the first whole week began four days later.
            let monday = 4 * DAY;
            let start = (now - monday).div_euclid(7 * DAY) * 7 * DAY + monday;
            (start, start + 7 * DAY)
        }
        CalendarUnit::Month => {
            let starts = months();
            let next = starts.partition_point(|&start| start <= now);
            (starts[next - 1], starts[next])
        }
    }
}

/// The first instant of every month from 1970 for a thousand years.
fn months() -> &'static [i128] {
    static STARTS: OnceLock<Vec<i128>> = OnceLock::new();
    STARTS.get_or_init(|| {
        let mut starts = vec![0];
        for year in 1970..2970 {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let february = if leap { 29 } else { 28 };
            for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
                starts.push(starts[starts.len() - 1] + days * DAY);
            }
        }
        starts
    })
}
