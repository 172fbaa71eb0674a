//! What a reader says about a limit that it could read and that is not a good one.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Display;

use super::error::ParseLimitError;
use super::loose::gcd;
use super::parse::Reader;
use super::spliced;
use crate::{Algorithm, Draft, InvalidLimit, Micros, Part, Span};

impl Reader<'_> {
    /// Points at the part at fault and, where there is a nearest good limit, suggests it.
    pub(super) fn refused(&self, draft: &Draft, invalid: InvalidLimit) -> ParseLimitError {
        let part = part_at_fault(draft, invalid);
        // A burst or capacity that was left out is the count.
        let place = self.place(part).or_else(|| self.place(Part::Count));
        let place = place.unwrap_or(0..self.text.len());
        let written = &self.text[place.clone()];
        let remedy = self.remedy(draft, part, invalid);
        ParseLimitError::refused(place, written, invalid).or_write(remedy)
    }

    fn remedy(&self, draft: &Draft, part: Part, invalid: InvalidLimit) -> Option<String> {
        use InvalidLimit as I;
        match invalid {
            I::SpanTooLong { .. } => self.with(part, Span::Plain(Span::MAX)),
            I::ZeroSize { .. } => self.with(part, 1),
            I::Inexact { nearest, .. } => self.with(part, Some(nearest).filter(|&n| n > 0)?),
            I::PrecisionTooFine { finest } => self.with(part, Span::Plain(Micros::new(finest))),
            I::Month => self.with(part, "30d"),
            I::EveryDoesNotDivide | I::EveryNotWhole => self.with(part, nearest_step(draft)?),
            I::SizeOfNothing { .. } | I::Conflict { .. } | I::PrecisionTooLong => {
                self.without(part)
            }
            I::ZoneWithoutCalendar => self.by_the_calendar(draft),
            I::LogTooLarge => Some(self.by(Algorithm::SlidingWindow)),
            I::Foreign { algorithm, home, .. } => self.at_home(draft, part, algorithm, home),
            // Nobody means the largest number, or the shortest span.
            I::TooLarge { .. } | I::ZeroSpan { .. } | I::ZoneName => None,
        }
    }

    /// 24 hours and seven days become what has a zone; other spans lose theirs.
    fn by_the_calendar(&self, draft: &Draft) -> Option<String> {
        const WEEK: u64 = 7 * Span::DAY_MICROS;
        match draft.span.length()?.get() {
            Span::DAY_MICROS => self.with(Part::Span, Span::DAY),
            WEEK => self.with(Part::Span, Span::WEEK),
            _ => self.without(Part::Tz),
        }
    }

    /// An option where it belongs.
    fn at_home(
        &self,
        draft: &Draft,
        part: Part,
        algorithm: Algorithm,
        home: Algorithm,
    ) -> Option<String> {
        let written = self.algorithm.is_some();
        let instead = |name: Part, size: Option<u64>| {
            Some(spliced(self.text, self.place(part)?, &format!("{} {}", name.name(), size?)))
        };
        match (part, algorithm) {
            // One thing by two names.
            (Part::Burst, Algorithm::LeakyBucket) => instead(Part::Capacity, draft.burst),
            (Part::Capacity, Algorithm::TokenBucket) if written => {
                instead(Part::Burst, draft.capacity)
            }
            (Part::Lease, _) => self.without(part),
            (Part::Tz, _) if !matches!(draft.span, Span::Calendar(_)) => self.without(part),
            // The algorithm was left out, so the option says which one is meant.
            _ if !written => Some(self.by(home)),
            _ => self.without(part),
        }
    }

    fn by(&self, algorithm: Algorithm) -> String {
        match self.algorithm {
            Some(word) => spliced(self.text, word.range(), algorithm.name()),
            None => format!("{} {}", algorithm.name(), self.text),
        }
    }

    fn with(&self, part: Part, value: impl Display) -> Option<String> {
        let place = self.place(part);
        match (part, place) {
            (Part::Count | Part::Span, place) => {
                Some(spliced(self.text, place?, &value.to_string()))
            }
            (_, Some(place)) => {
                Some(spliced(self.text, place, &format!("{} {value}", part.name())))
            }
            (_, None) => Some(format!("{} {} {value}", self.text, part.name())),
        }
    }

    fn without(&self, part: Part) -> Option<String> {
        let place = self.place(part)?;
        Some(spliced(self.text, place.start.saturating_sub(1)..place.end, ""))
    }
}

/// A month may also have been given as an option's span.
fn part_at_fault(draft: &Draft, invalid: InvalidLimit) -> Part {
    let spans = [
        (Part::Span, Some(draft.span)),
        (Part::Every, draft.every),
        (Part::Precision, draft.precision),
        (Part::Lease, draft.lease),
    ];
    match invalid {
        InvalidLimit::Month => spans.into_iter().find(|(_, span)| *span == Some(Span::MONTH)),
        _ => None,
    }
    .map_or(invalid.part(), |(part, _)| part)
}

/// The next longer step that divides the span and brings a whole number, or the span itself.
fn nearest_step(draft: &Draft) -> Option<Span> {
    const MOST_TRIES: usize = 1_000;
    let span = draft.span.length()?.get();
    let every = draft.every?.length()?.get();
    // Every good step is `least` times a divisor of `most`.
    let most = gcd(draft.count, span);
    let least = span.checked_div(most)?;
    let from = every.div_ceil(least);
    let times = (from..=most).take(MOST_TRIES).find(|&times| most.is_multiple_of(times));
    Some(Span::Plain(Micros::new(least * times.unwrap_or(most))))
}
