//! Messages and suggestions for limits that parse and are invalid.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Display;

use super::error::ParseLimitError;
use super::lenient::gcd;
use super::parse::Reader;
use super::spliced;
use crate::{Algorithm, InvalidLimit, LimitBuilder, LimitField, Micros, Span};

impl Reader<'_> {
    /// Points at the invalid field and suggests the nearest valid limit, if there is one.
    pub(super) fn refused(&self, builder: &LimitBuilder, invalid: InvalidLimit) -> ParseLimitError {
        let part = part_at_fault(builder, invalid);
        // Without burst or capacity, the count is used for it.
        let place = self.place(part).or_else(|| self.place(LimitField::Count));
        let place = place.unwrap_or(0..self.text.len());
        let written = &self.text[place.clone()];
        let remedy = self.remedy(builder, part, invalid);
        ParseLimitError::refused(place, written, invalid).or_write(remedy)
    }

    fn remedy(
        &self,
        builder: &LimitBuilder,
        part: LimitField,
        invalid: InvalidLimit,
    ) -> Option<String> {
        use InvalidLimit as I;
        match invalid {
            I::SpanTooLong { .. } => self.with(part, Span::Plain(Span::MAX)),
            I::ZeroSize { .. } => self.with(part, 1),
            I::Inexact { nearest, .. } => self.with(part, Some(nearest).filter(|&n| n > 0)?),
            I::PrecisionTooFine { finest } => self.with(part, Span::Plain(Micros::new(finest))),
            I::Month => self.with(part, "30d"),
            I::EveryDoesNotDivide | I::EveryNotWhole => self.with(part, nearest_step(builder)?),
            I::SizeOfNothing { .. } | I::Conflict { .. } | I::PrecisionTooLong => {
                self.without(part)
            }
            I::ZoneWithoutCalendar => self.with_calendar_span(builder),
            I::LogTooLarge => Some(self.with_algorithm(Algorithm::SlidingWindow)),
            I::Foreign { algorithm, home, .. } => {
                self.for_home_algorithm(builder, part, algorithm, home)
            }
            // The largest number or the shortest span is never intended.
            I::TooLarge { .. } | I::ZeroSpan { .. } | I::ZoneName => None,
        }
    }

    /// 24 hours and seven days become the calendar unit; other spans lose their zone.
    fn with_calendar_span(&self, builder: &LimitBuilder) -> Option<String> {
        const WEEK: u64 = 7 * Span::DAY_MICROS;
        match builder.span.length()?.get() {
            Span::DAY_MICROS => self.with(LimitField::Span, Span::DAY),
            WEEK => self.with(LimitField::Span, Span::WEEK),
            _ => self.without(LimitField::Tz),
        }
    }

    /// Moves an option to the algorithm that it belongs to.
    fn for_home_algorithm(
        &self,
        builder: &LimitBuilder,
        part: LimitField,
        algorithm: Algorithm,
        home: Algorithm,
    ) -> Option<String> {
        let written = self.algorithm.is_some();
        let instead = |name: LimitField, size: Option<u64>| {
            Some(spliced(self.text, self.place(part)?, &format!("{} {}", name.name(), size?)))
        };
        match (part, algorithm) {
            // One option with two names.
            (LimitField::Burst, Algorithm::LeakyBucket) => {
                instead(LimitField::Capacity, builder.burst)
            }
            (LimitField::Capacity, Algorithm::TokenBucket) if written => {
                instead(LimitField::Burst, builder.capacity)
            }
            (LimitField::Lease, _) => self.without(part),
            (LimitField::Tz, _) if !matches!(builder.span, Span::Calendar(_)) => self.without(part),
            // The algorithm was left out, so the option determines it.
            _ if !written => Some(self.with_algorithm(home)),
            _ => self.without(part),
        }
    }

    fn with_algorithm(&self, algorithm: Algorithm) -> String {
        match self.algorithm {
            Some(word) => spliced(self.text, word.range(), algorithm.name()),
            None => format!("{} {}", algorithm.name(), self.text),
        }
    }

    fn with(&self, part: LimitField, value: impl Display) -> Option<String> {
        let place = self.place(part);
        match (part, place) {
            (LimitField::Count | LimitField::Span, place) => {
                Some(spliced(self.text, place?, &value.to_string()))
            }
            (_, Some(place)) => {
                Some(spliced(self.text, place, &format!("{} {value}", part.name())))
            }
            (_, None) => Some(format!("{} {} {value}", self.text, part.name())),
        }
    }

    fn without(&self, part: LimitField) -> Option<String> {
        let place = self.place(part)?;
        Some(spliced(self.text, place.start.saturating_sub(1)..place.end, ""))
    }
}

/// A month may also be the span of an option.
fn part_at_fault(builder: &LimitBuilder, invalid: InvalidLimit) -> LimitField {
    let spans = [
        (LimitField::Span, Some(builder.span)),
        (LimitField::Every, builder.every),
        (LimitField::Precision, builder.precision),
        (LimitField::Lease, builder.lease),
    ];
    match invalid {
        InvalidLimit::Month => spans.into_iter().find(|(_, span)| *span == Some(Span::MONTH)),
        _ => None,
    }
    .map_or(invalid.part(), |(part, _)| part)
}

/// The next longer step that divides the span and adds a whole number, or the span itself.
fn nearest_step(builder: &LimitBuilder) -> Option<Span> {
    const MAX_TRIES: usize = 1_000;
    let span = builder.span.length()?.get();
    let every = builder.every?.length()?.get();
    // Every valid step is `least` times a divisor of `most`.
    let most = gcd(builder.count, span);
    let least = span.checked_div(most)?;
    let from = every.div_ceil(least);
    let times = (from..=most).take(MAX_TRIES).find(|&times| most.is_multiple_of(times));
    Some(Span::Plain(Micros::new(least * times.unwrap_or(most))))
}
