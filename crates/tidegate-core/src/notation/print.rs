//! The canonical text of limits and spans.

use core::fmt;

use super::unit::TimeUnit;
use crate::{Algorithm, Limit, LimitBuilder, LimitField, Micros, Span};

/// The canonical notation: the one that all texts of the same meaning print as.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.builder.fmt(f)
    }
}

/// The notation of the builder as it is. Only [`LimitBuilder::build`] makes it canonical.
impl fmt::Display for LimitBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.algorithm != Algorithm::TokenBucket {
            write!(f, "{} ", self.algorithm.name())?;
        }
        write!(f, "{}", self.count)?;
        if self.algorithm != Algorithm::Concurrency {
            write!(f, "/{}", ShortUnitText(self.span_written()))?;
        }
        write_value(f, LimitField::Burst, self.burst)?;
        write_value(f, LimitField::Every, self.every.map(UnitText::as_length))?;
        write_value(f, LimitField::Tz, self.tz.as_deref())?;
        write_flag(f, self.first_hit.then_some(LimitField::FirstHit))?;
        write_value(f, LimitField::Precision, self.precision.map(UnitText::as_length))?;
        write_flag(f, self.approximate.then_some(LimitField::Approximate))?;
        write_value(f, LimitField::Capacity, self.capacity)?;
        write_flag(f, self.queue.then_some(LimitField::Queue))?;
        write_value(f, LimitField::Lease, self.lease.map(UnitText::as_length))
    }
}

impl LimitBuilder {
    fn span_written(&self) -> UnitText {
        let calendar = self.algorithm == Algorithm::FixedWindow && !self.first_hit;
        if calendar { UnitText::exactly(self.span) } else { UnitText::as_length(self.span) }
    }
}

/// The longest unit that divides the span, with its number: `1s`, `90m`. A length of one day is
/// `24h` and of one week `7d`, because `1d` and `1w` are calendar units.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        UnitText::exactly(*self).fmt(f)
    }
}

/// A number and a unit.
#[derive(Clone, Copy)]
struct UnitText {
    number: u64,
    unit: TimeUnit,
}

impl UnitText {
    /// Distinguishes a calendar day from 24 hours.
    fn exactly(span: Span) -> Self {
        const DAY: Micros = Micros::new(Span::DAY_MICROS);
        const WEEK: Micros = Micros::new(7 * Span::DAY_MICROS);
        match span {
            Span::Plain(DAY) => Self { number: 24, unit: TimeUnit::Hour },
            Span::Plain(WEEK) => Self { number: 7, unit: TimeUnit::Day },
            _ => Self::as_length(span),
        }
    }

    /// For fields in which a day is 24 hours.
    fn as_length(span: Span) -> Self {
        match span {
            // Every unit divides it; seconds are the most common.
            Span::Plain(Micros::ZERO) => Self { number: 0, unit: TimeUnit::Second },
            Span::Plain(length) => {
                let (number, unit) = TimeUnit::dividing(length);
                Self { number, unit }
            }
            Span::Calendar(page) => Self { number: 1, unit: page.into() },
        }
    }
}

impl fmt::Display for UnitText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, self.unit.symbol())
    }
}

/// After a `/`, where one second is `s`.
struct ShortUnitText(UnitText);

impl fmt::Display for ShortUnitText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            UnitText { number: 1, unit } => f.write_str(unit.symbol()),
            written => written.fmt(f),
        }
    }
}

fn write_value(
    f: &mut fmt::Formatter<'_>,
    option: LimitField,
    value: Option<impl fmt::Display>,
) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {} {value}", option.name()))
}

fn write_flag(f: &mut fmt::Formatter<'_>, option: Option<LimitField>) -> fmt::Result {
    option.map_or(Ok(()), |option| write!(f, " {}", option.name()))
}
