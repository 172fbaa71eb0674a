//! A limit as plain numbers, and which limits are invalid.

use tidegate_core::{
    CalendarUnit, InvalidLimit, Limit, LimitBuilder, LimitField as Word, Micros, Moment, Span,
};

use crate::calendar::{self, TestZone};

/// The last instant and the longest span that is reported: 2^53 - 1.
pub const MAX: i128 = (1 << 53) - 1;

const TICKS: [i128; 3] = [1, 1_000, 1_000_000];
const TOO_LARGE: i128 = 1 << 52;
const LONGEST: i128 = 36_500 * 86_400_000_000;

/// The kind of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketKind {
    /// `token-bucket`
    Token,
    /// `leaky-bucket`
    Meter,
    /// `leaky-bucket .. queue`
    Queue,
}

/// Where the windows of a `fixed-window` begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowKind {
    /// At multiples of their length.
    Aligned(u64),
    /// At the first charge outside of a window.
    FirstHit(u64),
    /// With a calendar unit in UTC.
    Calendar(CalendarUnit),
    /// At boundaries that the caller passes in.
    Zoned(CalendarUnit, TestZone),
}

/// A limit as plain numbers; spans are in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the word of the notation it names")]
pub enum Spec {
    Bucket { kind: BucketKind, count: u64, period: u64, size: Option<u64> },
    Steps { count: u64, period: u64, every: u64, burst: Option<u64> },
    Fixed { count: u64, window: WindowKind },
    Log { count: u64, window: u64 },
    SubWindows { count: u64, window: u64, precision: Option<u64> },
    Approximate { count: u64, window: u64 },
    Concurrency { holders: u64 },
}

impl Spec {
    /// Does it count holders? Such a limit is never charged.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Concurrency { .. })
    }

    /// Is it a queue?
    pub fn is_queue(&self) -> bool {
        matches!(self, Self::Bucket { kind: BucketKind::Queue, .. })
    }

    /// Does it store a list of entries?
    pub fn is_log(&self) -> bool {
        matches!(self, Self::Log { .. } | Self::SubWindows { .. })
    }

    /// Are its windows those of a calendar?
    pub fn is_calendar(&self) -> bool {
        let Self::Fixed { window, .. } = self else { return false };
        matches!(window, WindowKind::Calendar(_) | WindowKind::Zoned(..))
    }

    /// The limit, built by the builders.
    pub fn limit(&self) -> Result<Limit, InvalidLimit> {
        self.draft().build()
    }

    fn draft(&self) -> LimitBuilder {
        let span = |span: u64| Span::Plain(Micros::new(span));
        match *self {
            Self::Bucket { kind: BucketKind::Token, count, period, size } => {
                let draft = Limit::per(count, span(period));
                size.map_or(draft.clone(), |size| draft.burst(size))
            }
            Self::Bucket { kind, count, period, size } => {
                let draft = Limit::leaky_bucket(count, span(period));
                let draft = size.map_or(draft.clone(), |size| draft.capacity(size));
                if kind == BucketKind::Queue { draft.queue() } else { draft }
            }
            Self::Steps { count, period, every, burst } => {
                let draft = Limit::per(count, span(period)).every(span(every));
                burst.map_or(draft.clone(), |burst| draft.burst(burst))
            }
            Self::Fixed { count, window } => match window {
                WindowKind::Aligned(length) => Limit::fixed_window(count, span(length)),
                WindowKind::FirstHit(length) => {
                    Limit::fixed_window(count, span(length)).first_hit()
                }
                WindowKind::Calendar(unit) => Limit::fixed_window(count, Span::Calendar(unit)),
                WindowKind::Zoned(unit, _) => {
                    Limit::fixed_window(count, Span::Calendar(unit)).tz("Europe/Berlin")
                }
            },
            Self::Log { count, window } => Limit::sliding_log(count, span(window)),
            Self::SubWindows { count, window, precision } => {
                let draft = Limit::sliding_window(count, span(window));
                precision.map_or(draft.clone(), |precision| draft.precision(span(precision)))
            }
            Self::Approximate { count, window } => {
                Limit::sliding_window(count, span(window)).approximate()
            }
            Self::Concurrency { holders } => Limit::concurrency(holders),
        }
    }

    /// The value of a field: a count, burst or capacity.
    pub fn number(&self, word: Word) -> u64 {
        match *self {
            _ if word != Word::Count => self.capacity() as u64,
            Self::Bucket { count, .. } | Self::Steps { count, .. } => count,
            _ => self.capacity() as u64,
        }
    }

    /// The same limit with another value of the field. A size that equals the count changes with
    /// it.
    #[must_use]
    pub fn with(mut self, word: Word, number: u64) -> Self {
        match &mut self {
            Self::Bucket { size, count, .. } | Self::Steps { burst: size, count, .. } => {
                if word == Word::Count {
                    *size = size.filter(|size| size != count);
                    *count = number;
                } else {
                    *size = Some(number);
                }
            }
            Self::Fixed { count, .. }
            | Self::Log { count, .. }
            | Self::SubWindows { count, .. }
            | Self::Approximate { count, .. }
            | Self::Concurrency { holders: count } => *count = number,
        }
        self
    }

    /// Is this limit invalid?
    pub fn refused(&self) -> bool {
        let numbers = match *self {
            Self::Bucket { count, size: other, .. } | Self::Steps { count, burst: other, .. } => {
                // A size of zero, or a size on a limit of zero.
                if other.is_some_and(|size| size == 0 || count == 0) {
                    return true;
                }
                [count, other.unwrap_or(0)]
            }
            Self::Fixed { count, .. }
            | Self::Log { count, .. }
            | Self::SubWindows { count, .. }
            | Self::Approximate { count, .. }
            | Self::Concurrency { holders: count } => [count, 0],
        };
        let spans = match *self {
            Self::Bucket { period, .. } => [period, 1],
            Self::Steps { period, every, .. } => [period, every],
            Self::Fixed {
                window: WindowKind::Aligned(length) | WindowKind::FirstHit(length),
                ..
            } => [length, 1],
            Self::Log { window, .. } | Self::Approximate { window, .. } => [window, 1],
            Self::SubWindows { window, precision, .. } => [window, precision.unwrap_or(1)],
            Self::Fixed { .. } | Self::Concurrency { .. } => [1, 1],
        };
        numbers.iter().any(|&number| i128::from(number) >= TOO_LARGE)
            || spans.iter().any(|&span| span == 0 || i128::from(span) > LONGEST)
            || self.refused_for_its_algorithm()
    }

    fn refused_for_its_algorithm(&self) -> bool {
        match *self {
            Self::Bucket { .. } | Self::Approximate { .. } => self.finest_tick().is_none(),
            Self::Steps { count, period, every, .. } => {
                period % every != 0
                    || i128::from(count) * i128::from(every) % i128::from(period) != 0
            }
            Self::Log { count, .. } => count > 1_000_000,
            Self::SubWindows { window, .. } => {
                let length = self.grain();
                length > i128::from(window) || ceil(i128::from(window), length) > 1_000
            }
            Self::Fixed { .. } | Self::Concurrency { .. } => false,
        }
    }

    /// `K`, the most that fits at once.
    pub fn capacity(&self) -> i128 {
        i128::from(match *self {
            Self::Bucket { count, size, .. } => size.unwrap_or(count),
            Self::Steps { count, burst, .. } => burst.unwrap_or(count),
            Self::Fixed { count, .. }
            | Self::Log { count, .. }
            | Self::SubWindows { count, .. }
            | Self::Approximate { count, .. }
            | Self::Concurrency { holders: count } => count,
        })
    }

    /// `T`, the tick in microseconds.
    pub fn tick(&self) -> i128 {
        self.finest_tick().unwrap()
    }

    fn finest_tick(&self) -> Option<i128> {
        TICKS.into_iter().find(|&tick| match *self {
            Self::Bucket { period, .. } => {
                self.capacity() * (i128::from(period) / self.unit(tick)) < TOO_LARGE
            }
            Self::Approximate { window, .. } => {
                let window = i128::from(window);
                window % tick == 0 && self.capacity() * (window / tick) < TOO_LARGE
            }
            _ => true,
        })
    }

    /// A bucket counts fractions of a permit: the period is a permit, and a tick drains `C*T` of
    /// them. The definition counts in the largest unit that divides both, which matters only where
    /// it rounds.
    pub(crate) fn unit(&self, tick: i128) -> i128 {
        match *self {
            Self::Bucket { count, period, .. } => gcd(i128::from(count) * tick, i128::from(period)),
            _ => 1,
        }
    }

    /// The length of time that a log counts as one instant.
    pub(crate) fn grain(&self) -> i128 {
        match *self {
            Self::SubWindows { precision: Some(precision), .. } => i128::from(precision),
            Self::SubWindows { window, precision: None, .. } => ceil(i128::from(window), 10),
            _ => 1,
        }
    }

    /// The window in which a fixed window counts `now`, unless it begins with the first hit.
    pub(crate) fn window(&self, now: i128) -> Option<(i128, i128)> {
        let Self::Fixed { window, .. } = *self else { return None };
        match window {
            WindowKind::Aligned(length) => {
                let length = i128::from(length);
                let start = now / length * length;
                Some((start, start + length))
            }
            WindowKind::FirstHit(_) => None,
            WindowKind::Calendar(unit) => Some(calendar::utc(unit, now)),
            WindowKind::Zoned(_, zone) => Some(zone.page(now)),
        }
    }

    /// The end of the window around `now`, if it is defined by the calendar or the clock.
    pub fn window_end(&self, now: u64) -> Option<i128> {
        self.window(i128::from(now)).map(|(_, end)| end)
    }

    /// The moment `now` for the core, with the boundaries of a zone.
    pub fn moment(&self, now: u64) -> Moment {
        match self.zone() {
            None => Moment::new(Micros::new(now)),
            Some(zone) => {
                let (start, end) = zone.page(i128::from(now));
                let micros = |instant: i128| Micros::new(instant.max(0) as u64);
                Moment::within(Micros::new(now), micros(start), micros(end)).unwrap()
            }
        }
    }

    /// The zone whose boundaries come with the call.
    pub fn zone(&self) -> Option<TestZone> {
        match *self {
            Self::Fixed { window: WindowKind::Zoned(_, zone), .. } => Some(zone),
            _ => None,
        }
    }

    /// Algorithm and mode.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bucket { kind: BucketKind::Token, .. } => "token-bucket",
            Self::Bucket { kind: BucketKind::Meter, .. } => "leaky-bucket",
            Self::Bucket { kind: BucketKind::Queue, .. } => "leaky-bucket queue",
            Self::Steps { .. } => "token-bucket every",
            Self::Fixed { window: WindowKind::Aligned(_), .. } => "fixed-window",
            Self::Fixed { window: WindowKind::FirstHit(_), .. } => "fixed-window first-hit",
            Self::Fixed { window: WindowKind::Calendar(_), .. } => "fixed-window calendar",
            Self::Fixed { window: WindowKind::Zoned(..), .. } => "fixed-window zoned",
            Self::Log { .. } => "sliding-log",
            Self::SubWindows { .. } => "sliding-window",
            Self::Approximate { .. } => "sliding-window approximate",
            Self::Concurrency { .. } => "concurrency",
        }
    }
}

pub(crate) fn ceil(dividend: i128, divisor: i128) -> i128 {
    -(-dividend).div_euclid(divisor)
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
