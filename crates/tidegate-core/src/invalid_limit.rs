//! Why a limit is invalid.

use core::fmt;

use crate::{Algorithm, Span};

/// A field of a limit, named by its word in the notation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "each is the word it names")]
pub enum LimitField {
    Count,
    Span,
    Burst,
    Every,
    Tz,
    FirstHit,
    Precision,
    Approximate,
    Capacity,
    Queue,
    Lease,
}

impl LimitField {
    /// The word in the notation; count and span have none.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Span => "span",
            Self::Burst => "burst",
            Self::Every => "every",
            Self::Tz => "tz",
            Self::FirstHit => "first-hit",
            Self::Precision => "precision",
            Self::Approximate => "approximate",
            Self::Capacity => "capacity",
            Self::Queue => "queue",
            Self::Lease => "lease",
        }
    }
}

/// Why a limit is refused. The message says what to write instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidLimit {
    /// A count, burst or capacity of 2^52 or more.
    TooLarge {
        /// The field.
        part: LimitField,
        /// Its value.
        number: u64,
    },
    /// A span, step, precision or lease of zero length.
    ZeroSpan {
        /// The field.
        part: LimitField,
    },
    /// A span longer than [`Span::MAX`].
    SpanTooLong {
        /// The field.
        part: LimitField,
    },
    /// A burst or capacity of 0.
    ZeroSize {
        /// The field.
        part: LimitField,
    },
    /// A burst or capacity for a limit of 0, which never allows anything.
    SizeOfNothing {
        /// The field.
        part: LimitField,
    },
    /// A month where a fixed length is needed.
    Month,
    /// A zone for a span that is not one day, week or month.
    ZoneWithoutCalendar,
    /// A zone that cannot be an IANA name.
    ZoneName,
    /// An option of another algorithm.
    Foreign {
        /// The option.
        part: LimitField,
        /// The algorithm it was given to.
        algorithm: Algorithm,
        /// The algorithm it belongs to.
        home: Algorithm,
    },
    /// Two options that exclude each other.
    Conflict {
        /// One of them.
        part: LimitField,
        /// The other one.
        with: LimitField,
    },
    /// Steps that do not divide the span.
    EveryDoesNotDivide,
    /// Steps that would each add a fraction of a permit.
    EveryNotWhole,
    /// Sub-windows longer than the window.
    PrecisionTooLong,
    /// More sub-windows than [`Limit::MAX_SUB_WINDOWS`](crate::Limit::MAX_SUB_WINDOWS).
    PrecisionTooFine {
        /// The finest precision in microseconds.
        finest: u64,
    },
    /// A log of more than [`Limit::MAX_LOG`](crate::Limit::MAX_LOG).
    LogTooLarge,
    /// Numbers whose product does not fit even on a tick of one second.
    Inexact {
        /// The field to change.
        part: LimitField,
        /// The nearest valid number for it.
        nearest: u64,
    },
}

impl InvalidLimit {
    /// The field that is invalid.
    pub const fn part(&self) -> LimitField {
        match *self {
            Self::TooLarge { part, .. }
            | Self::ZeroSpan { part }
            | Self::SpanTooLong { part }
            | Self::ZeroSize { part }
            | Self::SizeOfNothing { part }
            | Self::Foreign { part, .. }
            | Self::Conflict { part, .. }
            | Self::Inexact { part, .. } => part,
            Self::Month => LimitField::Span,
            Self::ZoneWithoutCalendar | Self::ZoneName => LimitField::Tz,
            Self::EveryDoesNotDivide | Self::EveryNotWhole => LimitField::Every,
            Self::PrecisionTooLong | Self::PrecisionTooFine { .. } => LimitField::Precision,
            Self::LogTooLarge => LimitField::Count,
        }
    }
}

impl fmt::Display for InvalidLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooLarge { part, number } => {
                write!(f, "{} {number} is too large; at most {}", part.name(), (1_u64 << 52) - 1)
            }
            Self::ZeroSpan { part } => {
                write!(f, "the {} is zero; use at least 1us", part.name())
            }
            Self::SpanTooLong { part } => {
                let days = Span::MAX.get() / Span::DAY_MICROS;
                write!(f, "the {} is too long; at most {days}d", part.name())
            }
            Self::ZeroSize { part } => {
                write!(f, "{0} 0 would never allow anything; use {0} 1 or more", part.name())
            }
            Self::SizeOfNothing { part } => {
                let part = part.name();
                write!(f, "{part} on a limit of 0, which never allows anything; leave {part} out")
            }
            Self::Month => {
                f.write_str("a month has no fixed length; use 30d, or fixed-window with /month")
            }
            Self::ZoneWithoutCalendar => {
                f.write_str("tz needs a span of exactly 1d, 1w or 1month; leave tz out")
            }
            Self::ZoneName => {
                f.write_str("not the name of a time zone; use one like Europe/Berlin or UTC")
            }
            Self::Foreign { part, algorithm, home } => write!(
                f,
                "{} is an option of {}, not of {}",
                part.name(),
                home.name(),
                algorithm.name()
            ),
            Self::Conflict { part, with } => {
                write!(f, "{} and {} exclude each other; leave one out", part.name(), with.name())
            }
            Self::EveryDoesNotDivide => {
                f.write_str("every must divide the span; use one that does, like a tenth of it")
            }
            Self::EveryNotWhole => f.write_str(
                "every step must bring a whole number, count * every / span; use a longer step",
            ),
            Self::PrecisionTooLong => {
                f.write_str("precision is longer than the window; use a tenth of the window")
            }
            Self::PrecisionTooFine { finest } => {
                write!(f, "precision is too fine; use at least {finest}us")
            }
            Self::LogTooLarge => write!(
                f,
                "a sliding-log keeps every request; at most {}, or use sliding-window",
                crate::Limit::MAX_LOG
            ),
            Self::Inexact { part, nearest } => write!(
                f,
                "these numbers cannot be counted exactly; the nearest {0} that can is {nearest}",
                part.name()
            ),
        }
    }
}

impl core::error::Error for InvalidLimit {}
