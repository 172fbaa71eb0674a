//! Builder of limits, and the checks that every limit passes.

use alloc::boxed::Box;

use crate::algorithm_params::AlgorithmParams;
use crate::invalid_limit::{InvalidLimit, LimitField};
use crate::limit::Limit;
use crate::{CalendarUnit, Micros, Span};

/// The algorithm of a limit, and the word for it in the notation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Algorithm {
    /// `token-bucket`: a burst, refilled at a rate.
    TokenBucket,
    /// `leaky-bucket`: a bucket that drains at a rate, as a meter or as a queue.
    LeakyBucket,
    /// `fixed-window`: a count per window.
    FixedWindow,
    /// `sliding-log`: a count in every window, exact.
    SlidingLog,
    /// `sliding-window`: a count in every window, from sub-windows or two counters.
    SlidingWindow,
    /// `concurrency`: holders at the same time.
    Concurrency,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 6] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingWindow,
        Self::Concurrency,
    ];

    /// The word in the notation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::FixedWindow => "fixed-window",
            Self::SlidingLog => "sliding-log",
            Self::SlidingWindow => "sliding-window",
            Self::Concurrency => "concurrency",
        }
    }
}

/// Builds a limit. The parser and the constructors of [`Limit`] both make one;
/// [`LimitBuilder::build`] checks it.
///
/// ```
/// use tidegate_core::Limit;
/// let built = Limit::per_second(100).burst(20).build()?;
/// assert_eq!(built, "100/s burst 20".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LimitBuilder {
    pub(crate) algorithm: Algorithm,
    pub(crate) count: u64,
    pub(crate) span: Span,
    pub(crate) burst: Option<u64>,
    pub(crate) every: Option<Span>,
    pub(crate) tz: Option<Box<str>>,
    pub(crate) first_hit: bool,
    pub(crate) precision: Option<Span>,
    pub(crate) approximate: bool,
    pub(crate) capacity: Option<u64>,
    pub(crate) queue: bool,
    pub(crate) lease: Option<Span>,
}

impl LimitBuilder {
    pub(crate) const DEFAULT_LEASE: Micros = Micros::from_secs(30);

    /// `count` per `span`, without options. For `concurrency` the span is the lease.
    pub(crate) fn new(algorithm: Algorithm, count: u64, span: Span) -> Self {
        Self {
            algorithm,
            count,
            span,
            burst: None,
            every: None,
            tz: None,
            first_hit: false,
            precision: None,
            approximate: false,
            capacity: None,
            queue: false,
            lease: None,
        }
    }

    /// Token bucket: the most that may pass at once. The default is the count.
    #[must_use]
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Token bucket: refill in steps of this span, aligned to the epoch, not continuously.
    #[must_use]
    pub fn every(mut self, span: impl Into<Span>) -> Self {
        self.every = Some(span.into());
        self
    }

    /// Fixed window of one calendar day, week or month: the time zone, an IANA name.
    #[must_use]
    pub fn tz(mut self, zone: &str) -> Self {
        self.tz = Some(zone.into());
        self
    }

    /// Fixed window: begins with the first request instead of a boundary.
    #[must_use]
    pub fn first_hit(mut self) -> Self {
        self.first_hit = true;
        self
    }

    /// Sliding window: the length of a sub-window. The default is a tenth of the window.
    #[must_use]
    pub fn precision(mut self, span: impl Into<Span>) -> Self {
        self.precision = Some(span.into());
        self
    }

    /// Sliding window: two counters instead of sub-windows.
    #[must_use]
    pub fn approximate(mut self) -> Self {
        self.approximate = true;
        self
    }

    /// Leaky bucket: its capacity. The default is the count.
    #[must_use]
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// Leaky bucket: delays requests so that they pass at the rate.
    #[must_use]
    pub fn queue(mut self) -> Self {
        self.queue = true;
        self
    }

    /// Concurrency: how long a slot is held without a renewal. The default is 30 s.
    #[must_use]
    pub fn lease(mut self, span: impl Into<Span>) -> Self {
        self.lease = Some(span.into());
        self
    }

    /// The limit, or why it is invalid.
    pub fn build(self) -> Result<Limit, InvalidLimit> {
        let builder = self.canonical()?;
        let params = AlgorithmParams::new(&builder)?;
        Ok(Limit { builder, params })
    }

    /// The canonical form among builders of the same meaning: without defaults, and with calendar
    /// units only for fixed windows. Refuses options that do not go together.
    fn canonical(mut self) -> Result<Self, InvalidLimit> {
        self.refuse_foreign_options()?;
        for (part, number) in [
            (LimitField::Count, Some(self.count)),
            (LimitField::Burst, self.burst),
            (LimitField::Capacity, self.capacity),
        ] {
            if let Some(number) = number.filter(|&n| n >= 1 << 52) {
                return Err(InvalidLimit::TooLarge { part, number });
            }
        }
        for (part, size) in [(LimitField::Burst, self.burst), (LimitField::Capacity, self.capacity)]
        {
            match (size, self.count) {
                (Some(0), _) => return Err(InvalidLimit::ZeroSize { part }),
                (Some(_), 0) => return Err(InvalidLimit::SizeOfNothing { part }),
                _ => {}
            }
        }
        let calendar = self.algorithm == Algorithm::FixedWindow && !self.first_hit;
        if !calendar {
            self.span = Span::Plain(self.span.length().ok_or(InvalidLimit::Month)?);
        }
        check_span(LimitField::Span, Some(self.span))?;
        for (part, span) in [
            (LimitField::Every, &mut self.every),
            (LimitField::Precision, &mut self.precision),
            (LimitField::Lease, &mut self.lease),
        ] {
            check_span(part, *span)?;
            if let Some(span) = span {
                *span = Span::Plain(span.length().ok_or(InvalidLimit::Month)?);
            }
        }
        if let Some(zone) = &self.tz {
            if !matches!(self.span, Span::Calendar(_)) {
                return Err(InvalidLimit::ZoneWithoutCalendar);
            }
            if !is_zone_name(zone) {
                return Err(InvalidLimit::ZoneName);
            }
        }
        self.drop_defaults();
        Ok(self)
    }

    fn drop_defaults(&mut self) {
        self.burst = self.burst.filter(|&burst| burst != self.count);
        self.capacity = self.capacity.filter(|&capacity| capacity != self.count);
        self.tz = self.tz.take().filter(|zone| &**zone != "UTC");
        self.lease = self.lease.filter(|&lease| lease != Span::Plain(Self::DEFAULT_LEASE));
        let default_precision = self.span.length().map(default_precision).map(Span::Plain);
        self.precision = self.precision.filter(|&p| Some(p) != default_precision);
    }

    fn refuse_foreign_options(&self) -> Result<(), InvalidLimit> {
        use Algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
        for (part, present, home) in [
            (LimitField::Burst, self.burst.is_some(), TokenBucket),
            (LimitField::Every, self.every.is_some(), TokenBucket),
            (LimitField::Tz, self.tz.is_some(), FixedWindow),
            (LimitField::FirstHit, self.first_hit, FixedWindow),
            (LimitField::Precision, self.precision.is_some(), SlidingWindow),
            (LimitField::Approximate, self.approximate, SlidingWindow),
            (LimitField::Capacity, self.capacity.is_some(), LeakyBucket),
            (LimitField::Queue, self.queue, LeakyBucket),
            (LimitField::Lease, self.lease.is_some(), Concurrency),
        ] {
            if present && self.algorithm != home {
                return Err(InvalidLimit::Foreign { part, algorithm: self.algorithm, home });
            }
        }
        if self.tz.is_some() && self.first_hit {
            return Err(InvalidLimit::Conflict {
                part: LimitField::Tz,
                with: LimitField::FirstHit,
            });
        }
        if self.precision.is_some() && self.approximate {
            return Err(InvalidLimit::Conflict {
                part: LimitField::Precision,
                with: LimitField::Approximate,
            });
        }
        Ok(())
    }
}

/// A tenth of the window, rounded up.
pub(crate) fn default_precision(window: Micros) -> Micros {
    Micros::new(window.get().div_ceil(10))
}

pub(crate) fn check_span(part: LimitField, span: Option<Span>) -> Result<(), InvalidLimit> {
    match span.and_then(Span::length) {
        Some(Micros::ZERO) => Err(InvalidLimit::ZeroSpan { part }),
        Some(length) if length > Span::MAX => Err(InvalidLimit::SpanTooLong { part }),
        _ => Ok(()),
    }
}

/// Checks the characters of IANA zone names. Whether the zone exists is up to the zone database.
fn is_zone_name(zone: &str) -> bool {
    let starts_with_letter = zone.starts_with(|c: char| c.is_ascii_alphabetic());
    starts_with_letter
        && zone.len() <= 64
        && zone.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+-/".contains(&b))
}

impl Limit {
    /// A token bucket of `count` per `span`.
    pub fn per(count: u64, span: impl Into<Span>) -> LimitBuilder {
        LimitBuilder::new(Algorithm::TokenBucket, count, span.into())
    }

    /// A token bucket of `count` per second.
    pub fn per_second(count: u64) -> LimitBuilder {
        Self::per(count, Span::SECOND)
    }

    /// A token bucket of `count` per minute.
    pub fn per_minute(count: u64) -> LimitBuilder {
        Self::per(count, Span::MINUTE)
    }

    /// A token bucket of `count` per hour.
    pub fn per_hour(count: u64) -> LimitBuilder {
        Self::per(count, Span::HOUR)
    }

    /// A token bucket of `count` per 24 hours. For calendar days see [`Limit::fixed_window`].
    pub fn per_day(count: u64) -> LimitBuilder {
        Self::per(count, Span::DAY)
    }

    /// A leaky bucket that drains `count` per `span`.
    pub fn leaky_bucket(count: u64, span: impl Into<Span>) -> LimitBuilder {
        LimitBuilder::new(Algorithm::LeakyBucket, count, span.into())
    }

    /// `count` per window. [`Span::DAY`], [`Span::WEEK`] and [`Span::MONTH`] follow the calendar.
    pub fn fixed_window(count: u64, span: impl Into<Span>) -> LimitBuilder {
        LimitBuilder::new(Algorithm::FixedWindow, count, span.into())
    }

    /// `count` in every window of length `span`, from a log of requests.
    pub fn sliding_log(count: u64, span: impl Into<Span>) -> LimitBuilder {
        LimitBuilder::new(Algorithm::SlidingLog, count, span.into())
    }

    /// `count` in every window of length `span`, from sub-windows.
    pub fn sliding_window(count: u64, span: impl Into<Span>) -> LimitBuilder {
        LimitBuilder::new(Algorithm::SlidingWindow, count, span.into())
    }

    /// At most `holders` at the same time.
    pub fn concurrency(holders: u64) -> LimitBuilder {
        LimitBuilder::new(Algorithm::Concurrency, holders, Span::Plain(LimitBuilder::DEFAULT_LEASE))
    }

    /// The calendar unit that the limit counts in, and the zone if it is not UTC.
    pub fn calendar(&self) -> Option<(CalendarUnit, Option<&str>)> {
        match self.builder.span {
            Span::Calendar(unit) => Some((unit, self.builder.tz.as_deref())),
            Span::Plain(_) => None,
        }
    }
}
