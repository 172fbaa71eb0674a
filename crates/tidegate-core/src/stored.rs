//! Limits and states as a store has them: numbers without the notation.

use crate::algorithm_params::AlgorithmParams;
use crate::bucket::BucketLevel;
use crate::fixed_window::WindowCount;
use crate::sliding_counter::CounterPair;
use crate::state::{Kind, State};
use crate::stepped_bucket::SteppedLevel;
use crate::{Limit, Micros, Span};

/// The first number of a fixed window that follows the calendar.
const CALENDAR: u64 = 1;

impl Limit {
    /// The limit that has these [`numbers`](Self::numbers). A window that follows the calendar has
    /// the length of its present window as the last one, by which its unit is known; the zone is
    /// not.
    ///
    /// `None` for a log, for `concurrency`, and for numbers that no limit has.
    pub fn from_numbers(algorithm: u8, numbers: &[u64]) -> Option<Self> {
        let built = match (algorithm, numbers) {
            (1, &[tick, permit, drain, size, queue]) => {
                let span = span(permit.checked_mul(tick)?)?;
                let bucket = match queue {
                    1 => Self::leaky_bucket(drain, span).queue(),
                    _ => Self::per(drain, span),
                };
                match (queue, size) {
                    (_, 0) => bucket,
                    (1, _) => bucket.capacity(size),
                    _ => bucket.burst(size),
                }
            }
            (2, &[every, amount, size]) => {
                let steps = Self::per(amount, span(every)?).every(span(every)?);
                if size > 0 { steps.burst(size) } else { steps }
            }
            (3, &[CALENDAR, size, length]) => Self::fixed_window(size, unit(length)),
            (3, &[2, size, length]) => Self::fixed_window(size, span(length)?).first_hit(),
            (3, &[_, size, length]) => Self::fixed_window(size, span(length)?),
            (5, &[tick, size, window]) => {
                Self::sliding_window(size, span(window.checked_mul(tick)?)?).approximate()
            }
            _ => return None,
        };
        let limit = built.build().ok()?;
        let (_, same) = limit.numbers();
        let is_calendar = limit.calendar().is_some();
        let compared = if is_calendar { numbers.len() - 1 } else { numbers.len() };
        (same[..compared] == numbers[..compared]).then_some(limit)
    }

    /// The state with these numbers, in the order in which a store has them; `None` for an unused
    /// key, whose numbers are all 0, and if they are of another algorithm.
    pub fn stored_state(&self, numbers: &[u64]) -> Option<State> {
        if numbers.iter().all(|number| *number == 0) {
            return None;
        }
        Some(State(match (&self.params, numbers) {
            (AlgorithmParams::Bucket(_), &[units, at, last]) => {
                Kind::Level(BucketLevel { units, at, last })
            }
            (AlgorithmParams::Steps(_), &[used, step]) => {
                Kind::Stepped(SteppedLevel { used, step })
            }
            (AlgorithmParams::Fixed(_), &[used, start]) => Kind::Count(WindowCount { used, start }),
            (AlgorithmParams::Approximate(_), &[previous, present, index]) => {
                Kind::Pair(CounterPair { previous, present, index })
            }
            _ => return None,
        }))
    }
}

impl State {
    /// The numbers of a state, in the order in which a store has them; the last one is 0 for an
    /// algorithm that has two. `None` for a log.
    pub fn stored_numbers(&self) -> Option<[u64; 3]> {
        match &self.0 {
            Kind::Level(BucketLevel { units, at, last }) => Some([*units, *at, *last]),
            Kind::Stepped(SteppedLevel { used, step }) => Some([*used, *step, 0]),
            Kind::Count(WindowCount { used, start }) => Some([*used, *start, 0]),
            Kind::Pair(CounterPair { previous, present, index }) => {
                Some([*previous, *present, *index])
            }
            Kind::Log(_) => None,
        }
    }
}

fn span(micros: u64) -> Option<Micros> {
    let span = Micros::new(micros);
    (span.get() == micros).then_some(span)
}

/// The calendar unit of which a window of this length is one, in any zone.
fn unit(length: u64) -> Span {
    match length.div_ceil(Span::DAY_MICROS) {
        0..=2 => Span::DAY,
        3..=8 => Span::WEEK,
        _ => Span::MONTH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, Moment};

    const LIMITS: [&str; 14] = [
        "5/s",
        "5/m burst 7",
        "0/s",
        "1000000/s burst 3",
        "3/36500d burst 9",
        "5/s every 1s burst 9",
        "leaky-bucket 5/s capacity 3",
        "leaky-bucket 5/s queue",
        "fixed-window 5/90s",
        "fixed-window 5/s first-hit",
        "fixed-window 5/d",
        "fixed-window 0/w",
        "fixed-window 5/month",
        "sliding-window 5/h approximate",
    ];

    #[test]
    fn a_limit_is_found_by_its_numbers() {
        for text in LIMITS {
            let limit: Limit = text.parse().unwrap();
            let (algorithm, mut numbers) = limit.numbers();
            if let Some((unit, _)) = limit.calendar() {
                let days = [1, 7, 28][unit as usize];
                numbers[2] = days * Span::DAY_MICROS;
            }
            let found = Limit::from_numbers(algorithm, &numbers).unwrap();
            let (mut expected, mut numbers) = (limit.numbers(), found.numbers());
            if limit.calendar().is_some() {
                assert_eq!(limit, found, "{text}");
                (expected.1[2], numbers.1[2]) = (0, 0);
            }
            assert_eq!(expected, numbers, "{text}");
        }
    }

    #[test]
    fn numbers_of_no_limit_are_refused() {
        for (algorithm, numbers) in [
            (1, &[2, 1, 1, 5, 0][..]),
            (1, &[1, 0, 1, 5, 0]),
            (1, &[1, 4, 2, 5, 0]),
            (1, &[1, 1, 0, 5, 0]),
            (1, &[1, 1, 1, 1 << 52, 0]),
            (1, &[1, u64::MAX, 1, 5, 0]),
            (1, &[1, 1, 1, 5, 2]),
            (1, &[1, 1, 1, 5]),
            (2, &[0, 1, 5]),
            (3, &[0, 5, 0]),
            (3, &[3, 5, 1]),
            (4, &[5, 1, 60]),
            (5, &[7, 5, 60]),
            (6, &[5]),
            (7, &[]),
        ] {
            assert_eq!(Limit::from_numbers(algorithm, numbers), None, "{algorithm}: {numbers:?}");
        }
    }

    #[test]
    fn a_state_survives_as_its_numbers() {
        let now = Moment::new(Micros::from_secs(1_000_000));
        for text in LIMITS {
            let limit: Limit = text.parse().unwrap();
            let mut state = None;
            limit.charge(&mut state, &now, Cost::ONE, None);
            let numbers = state.as_ref().map_or([0; 3], |state| state.stored_numbers().unwrap());
            let len = if matches!(limit.numbers().0, 1 | 5) { 3 } else { 2 };
            assert_eq!(limit.stored_state(&numbers[..len]), state, "{text}");
        }
        let log: Limit = "sliding-log 5/s".parse().unwrap();
        let mut state = None;
        log.charge(&mut state, &now, Cost::ONE, None);
        assert_eq!(state.unwrap().stored_numbers(), None);
    }
}
