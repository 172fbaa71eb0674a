//! The canonical text of limits and spans.

use core::fmt;

use super::unit::Unit;
use crate::{Algorithm, Draft, Limit, Micros, Part, Span};

/// The canonical notation: of all texts that mean this limit, the one that it prints.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.draft.fmt(f)
    }
}

/// The notation of the draft as it stands. Only [`Draft::build`] makes it canonical.
impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.algorithm != Algorithm::TokenBucket {
            write!(f, "{} ", self.algorithm.name())?;
        }
        write!(f, "{}", self.count)?;
        if self.algorithm != Algorithm::Concurrency {
            write!(f, "/{}", Brief(self.span_written()))?;
        }
        write_value(f, Part::Burst, self.burst)?;
        write_value(f, Part::Every, self.every.map(Written::as_length))?;
        write_value(f, Part::Tz, self.tz.as_deref())?;
        write_flag(f, self.first_hit.then_some(Part::FirstHit))?;
        write_value(f, Part::Precision, self.precision.map(Written::as_length))?;
        write_flag(f, self.approximate.then_some(Part::Approximate))?;
        write_value(f, Part::Capacity, self.capacity)?;
        write_flag(f, self.queue.then_some(Part::Queue))?;
        write_value(f, Part::Lease, self.lease.map(Written::as_length))
    }
}

impl Draft {
    fn span_written(&self) -> Written {
        let calendar = self.algorithm == Algorithm::FixedWindow && !self.first_hit;
        if calendar { Written::exactly(self.span) } else { Written::as_length(self.span) }
    }
}

/// The longest unit that divides it, with its number: `1s`, `90m`. A length of one day is `24h`
/// and of one week `7d`, since `1d` and `1w` are pages of the calendar.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Written::exactly(*self).fmt(f)
    }
}

/// A number and a unit.
#[derive(Clone, Copy)]
struct Written {
    number: u64,
    unit: Unit,
}

impl Written {
    /// Keeps a day of the calendar apart from 24 hours.
    fn exactly(span: Span) -> Self {
        const DAY: Micros = Micros::new(Span::DAY_MICROS);
        const WEEK: Micros = Micros::new(7 * Span::DAY_MICROS);
        match span {
            Span::Plain(DAY) => Self { number: 24, unit: Unit::Hour },
            Span::Plain(WEEK) => Self { number: 7, unit: Unit::Day },
            _ => Self::as_length(span),
        }
    }

    /// For the places where a day is 24 hours.
    fn as_length(span: Span) -> Self {
        match span {
            // Every unit divides it; the most common one it is.
            Span::Plain(Micros::ZERO) => Self { number: 0, unit: Unit::Second },
            Span::Plain(length) => {
                let (number, unit) = Unit::dividing(length);
                Self { number, unit }
            }
            Span::Calendar(page) => Self { number: 1, unit: page.into() },
        }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, self.unit.symbol())
    }
}

/// After a `/`, where one second is `s`.
struct Brief(Written);

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Written { number: 1, unit } => f.write_str(unit.symbol()),
            written => written.fmt(f),
        }
    }
}

fn write_value(
    f: &mut fmt::Formatter<'_>,
    option: Part,
    value: Option<impl fmt::Display>,
) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {} {value}", option.name()))
}

fn write_flag(f: &mut fmt::Formatter<'_>, option: Option<Part>) -> fmt::Result {
    option.map_or(Ok(()), |option| write!(f, " {}", option.name()))
}
