//! The numbers of a limit, derived when it is built.

use alloc::vec;
use alloc::vec::Vec;

use crate::bucket::Bucket;
use crate::builder::{LimitBuilder, default_precision};
use crate::concurrency::Concurrency;
use crate::fixed_window::{FixedWindow, Window};
use crate::invalid_limit::{InvalidLimit, LimitField};
use crate::sliding_counter::SlidingCounter;
use crate::sliding_log::SlidingLog;
use crate::stepped_bucket::SteppedBucket;
use crate::{Algorithm, Cost, Holds, Limit, Micros, Moment, Span, Standing, Verdict};

/// The numbers of each algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AlgorithmParams {
    Bucket(Bucket),
    Steps(SteppedBucket),
    Fixed(FixedWindow),
    Logged(SlidingLog),
    Approximate(SlidingCounter),
    Concurrency(Concurrency),
}

impl AlgorithmParams {
    /// The numbers of a canonical builder.
    pub(crate) fn new(builder: &LimitBuilder) -> Result<Self, InvalidLimit> {
        let count = builder.count;
        let length = builder.span.length();
        let Some(span) = length.filter(|_| !matches!(builder.span, Span::Calendar(_))) else {
            let unit = match builder.span {
                Span::Calendar(unit) => unit,
                Span::Plain(_) => return Err(InvalidLimit::Month),
            };
            return Ok(Self::Fixed(FixedWindow { limit: count, window: Window::Calendar(unit) }));
        };
        let given = |span: Option<Span>| span.and_then(Span::length);
        Ok(match builder.algorithm {
            Algorithm::TokenBucket => {
                let size = builder.burst.unwrap_or(count);
                match given(builder.every) {
                    Some(every) => Self::Steps(SteppedBucket::new(count, span, every, size)?),
                    None => Self::Bucket(Bucket::new(count, span, size, false, LimitField::Burst)?),
                }
            }
            Algorithm::LeakyBucket => {
                let size = builder.capacity.unwrap_or(count);
                Self::Bucket(Bucket::new(count, span, size, builder.queue, LimitField::Capacity)?)
            }
            Algorithm::FixedWindow if builder.first_hit => {
                Self::Fixed(FixedWindow { limit: count, window: Window::FirstHit(span.get()) })
            }
            Algorithm::FixedWindow => {
                Self::Fixed(FixedWindow { limit: count, window: Window::Aligned(span.get()) })
            }
            Algorithm::SlidingLog if count > Limit::MAX_LOG => {
                return Err(InvalidLimit::LogTooLarge);
            }
            Algorithm::SlidingLog => Self::Logged(SlidingLog::exact(count, span)),
            Algorithm::SlidingWindow if builder.approximate => {
                Self::Approximate(SlidingCounter::new(count, span)?)
            }
            Algorithm::SlidingWindow => {
                let precision = given(builder.precision).unwrap_or_else(|| default_precision(span));
                Self::Logged(sub_windows(count, span, precision)?)
            }
            Algorithm::Concurrency => {
                let lease = given(builder.lease).unwrap_or(LimitBuilder::DEFAULT_LEASE);
                Self::Concurrency(Concurrency { limit: count, lease })
            }
        })
    }
}

fn sub_windows(count: u64, span: Micros, precision: Micros) -> Result<SlidingLog, InvalidLimit> {
    if precision > span {
        return Err(InvalidLimit::PrecisionTooLong);
    }
    if span.get().div_ceil(precision.get()) > Limit::MAX_SUB_WINDOWS {
        let finest = span.get().div_ceil(Limit::MAX_SUB_WINDOWS);
        return Err(InvalidLimit::PrecisionTooFine { finest });
    }
    Ok(SlidingLog::sub_windows(count, span, precision))
}

impl Limit {
    /// The number of the algorithm in stored states, and its parameters in the order that the
    /// scripts expect.
    pub fn numbers(&self) -> (u8, Vec<u64>) {
        match &self.params {
            AlgorithmParams::Bucket(b) => {
                let queue = u64::from(b.queue);
                (1, vec![b.tick.span().get(), b.permit, b.drain, b.size, queue])
            }
            AlgorithmParams::Steps(s) => (2, vec![s.every, s.amount, s.size]),
            AlgorithmParams::Fixed(FixedWindow { limit, window: Window::Aligned(w) }) => {
                (3, vec![0, *limit, *w])
            }
            AlgorithmParams::Fixed(FixedWindow { limit, window: Window::Calendar(_) }) => {
                (3, vec![1, *limit, 0])
            }
            AlgorithmParams::Fixed(FixedWindow { limit, window: Window::FirstHit(w) }) => {
                (3, vec![2, *limit, *w])
            }
            AlgorithmParams::Logged(l) => (4, vec![l.limit, l.grain, l.window]),
            AlgorithmParams::Approximate(a) => (5, vec![a.tick.span().get(), a.limit, a.window]),
            AlgorithmParams::Concurrency(c) => (6, vec![c.limit]),
        }
    }

    /// How many numbers a script stores as the state of this limit; `None` if their meaning is not
    /// known here.
    pub fn stored_len(&self) -> Option<usize> {
        match &self.params {
            AlgorithmParams::Bucket(_) | AlgorithmParams::Approximate(_) => Some(3),
            AlgorithmParams::Fixed(_) => Some(2),
            AlgorithmParams::Steps(_)
            | AlgorithmParams::Logged(_)
            | AlgorithmParams::Concurrency(_) => None,
        }
    }

    /// As [`look`](Self::look), of a state as a script stores it: its numbers in their order, all 0
    /// for an unused key.
    pub fn look_at_stored(&self, numbers: &[u64], at: &Moment, cost: Cost) -> Verdict {
        self.look(self.stored_state(numbers).as_ref(), &Holds::default(), at, cost)
    }

    /// The same. If `cost` is allowed, `remaining` and `reset_after` are those after its charge.
    pub fn charge_stored(&self, numbers: &[u64], at: &Moment, cost: Cost) -> Verdict {
        let mut state = self.stored_state(numbers);
        let holds = Holds::default();
        let verdict = self.look(state.as_ref(), &holds, at, cost);
        if !verdict.allowed {
            return verdict;
        }
        self.charge(&mut state, at, cost, None);
        let Standing { remaining, reset_after, .. } = self.standing(state.as_ref(), &holds, at);
        Verdict { remaining, reset_after, ..verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_get_these_numbers_in_this_order() {
        const DAY: u64 = Span::DAY_MICROS;
        for (limit, algorithm, numbers) in [
            // The tick, units per permit, units drained per tick, the size, whether it queues.
            ("10/s", 1, vec![1, 100_000, 1, 10, 0]),
            ("3/s burst 10", 1, vec![1, 1_000_000, 3, 10, 0]),
            ("leaky-bucket 10/s capacity 30", 1, vec![1, 100_000, 1, 30, 0]),
            ("leaky-bucket 10/s capacity 30 queue", 1, vec![1, 100_000, 1, 30, 1]),
            // The step, what it adds, the size.
            ("10/s burst 50 every 500ms", 2, vec![500_000, 5, 50]),
            // The kind of window, the count, its length if that is fixed.
            ("fixed-window 100/24h", 3, vec![0, 100, DAY]),
            ("fixed-window 100/d", 3, vec![1, 100, 0]),
            ("fixed-window 100/month tz Asia/Tokyo", 3, vec![1, 100, 0]),
            ("fixed-window 100/d first-hit", 3, vec![2, 100, DAY]),
            // The count, the grain, for how many grains a charge counts.
            ("sliding-log 5/m", 4, vec![5, 1, 60_000_000]),
            ("sliding-window 240/h precision 1m", 4, vec![240, 60_000_000, 61]),
            // The tick, the count, the window in ticks.
            ("sliding-window 240/h approximate", 5, vec![1, 240, 3_600_000_000]),
            // The holders.
            ("concurrency 20 lease 45s", 6, vec![20]),
        ] {
            let parsed: Limit = limit.parse().unwrap();
            assert_eq!(parsed.numbers(), (algorithm, numbers), "{limit}");
        }
    }
}
