//! Parses text into a builder, word by word.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use super::error::{MAX_BYTES, ParseLimitError, Quoted, char_boundary};
use super::unit::TimeUnit;
use crate::builder::check_span;
use crate::{Algorithm, Limit, LimitBuilder, LimitField, Micros, Span};

/// Parses `text` once. The suggestion of the error may have errors itself.
pub(super) fn limit(text: &str) -> Result<Limit, ParseLimitError> {
    check_outline(text, "write a limit like 100/s")?;
    let mut reader = Reader::new(text);
    let builder = reader.builder()?;
    builder.clone().build().map_err(|invalid| reader.refused(&builder, invalid))
}

/// Parses a span that is not part of a limit, like [`limit`].
pub(super) fn span(text: &str) -> Result<Span, ParseLimitError> {
    check_outline(text, "write a span like 30s")?;
    let word = Word { text, start: 0 };
    let span = Reader::of(text, Vec::new()).span(word)?;
    match check_span(LimitField::Span, Some(span)) {
        Ok(()) => Ok(span),
        Err(invalid) => Err(ParseLimitError::refused(0..text.len(), text, invalid)),
    }
}

/// Checks length and whitespace before the text is split into words.
fn check_outline(text: &str, advice: &'static str) -> Result<(), ParseLimitError> {
    if text.len() > MAX_BYTES {
        let position = char_boundary(text, MAX_BYTES)..text.len();
        let reason = format!("{} bytes are too long", text.len());
        return Err(ParseLimitError::new(position, reason, "use at most 256"));
    }
    if text.trim().is_empty() {
        return Err(ParseLimitError::new(0..text.len(), "empty text", advice));
    }
    let Some(space) = misplaced_space(text) else { return Ok(()) };
    let reason = format!("misplaced whitespace {}", Quoted(&text[space.clone()]));
    let spaced = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(ParseLimitError::new(space, reason, "put exactly one space between words")
        .or_write(Some(spaced)))
}

/// The first whitespace other than one space between two words.
fn misplaced_space(text: &str) -> Option<Range<usize>> {
    let mut from = 0;
    while let Some(length) = text[from..].find(char::is_whitespace) {
        let start = from + length;
        let after = text[start..].trim_start();
        let end = text.len() - after.len();
        if start == 0 || after.is_empty() || &text[start..end] != " " {
            return Some(start..end);
        }
        from = end;
    }
    None
}

/// A word and its position.
#[derive(Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    pub(super) start: usize,
}

impl<'a> Word<'a> {
    pub(super) fn end(self) -> usize {
        self.start + self.text.len()
    }

    pub(super) fn range(self) -> Range<usize> {
        self.start..self.end()
    }

    /// The words before and after the first `mark`.
    pub(super) fn split_at_mark(self, mark: char) -> Option<(Self, Self)> {
        let (before, after) = self.text.split_once(mark)?;
        let start = self.end() - after.len();
        Some((Self { text: before, ..self }, Self { text: after, start }))
    }
}

pub(super) const OPTIONS: [LimitField; 9] = [
    LimitField::Burst,
    LimitField::Every,
    LimitField::Tz,
    LimitField::FirstHit,
    LimitField::Precision,
    LimitField::Approximate,
    LimitField::Capacity,
    LimitField::Queue,
    LimitField::Lease,
];

pub(super) fn option_named(word: &str) -> Option<LimitField> {
    OPTIONS.into_iter().find(|part| part.name() == word)
}

pub(super) fn algorithm_named(word: &str) -> Option<Algorithm> {
    Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == word)
}

/// Reads the words of a limit in order, and stores the position of each field.
///
/// Its error messages are in `syntax_error` and `invalid`.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    words: Vec<Word<'a>>,
    taken: usize,
    pub(super) algorithm: Option<Word<'a>>,
    places: Vec<(LimitField, Range<usize>)>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let mut start = 0;
        let words = text.split(' ').map(|text| {
            let word = Word { text, start };
            start = word.end() + 1;
            word
        });
        let words = words.collect();
        Self::of(text, words)
    }

    fn of(text: &'a str, words: Vec<Word<'a>>) -> Self {
        Self { text, words, taken: 0, algorithm: None, places: Vec::new() }
    }

    /// The words that were not read yet.
    pub(super) fn ahead(&self) -> &[Word<'a>] {
        self.words.get(self.taken..).unwrap_or(&[])
    }

    /// The position of a field.
    pub(super) fn place(&self, part: LimitField) -> Option<Range<usize>> {
        self.places.iter().find(|(placed, _)| *placed == part).map(|(_, place)| place.clone())
    }

    fn next(&mut self) -> Option<Word<'a>> {
        let word = self.ahead().first().copied()?;
        self.taken += 1;
        Some(word)
    }

    fn builder(&mut self) -> Result<LimitBuilder, ParseLimitError> {
        let mut builder = match self.algorithm()? {
            Algorithm::Concurrency => Limit::concurrency(self.holders()?),
            algorithm => {
                let (count, span) = self.rate()?;
                LimitBuilder::new(algorithm, count, span)
            }
        };
        while let Some(word) = self.next() {
            self.option(word, &mut builder)?;
        }
        Ok(builder)
    }

    fn algorithm(&mut self) -> Result<Algorithm, ParseLimitError> {
        let Some(&first) = self.ahead().first() else { return Ok(Algorithm::TokenBucket) };
        if let Some(algorithm) = algorithm_named(first.text) {
            self.algorithm = self.next();
            return Ok(algorithm);
        }
        // A rate, valid or not; `NaN/s` is an invalid one.
        if !first.text.starts_with(char::is_alphabetic) || first.text.contains('/') {
            return Ok(Algorithm::TokenBucket);
        }
        Err(self.unknown_algorithm(first))
    }

    fn holders(&mut self) -> Result<u64, ParseLimitError> {
        let word = self.next().ok_or_else(|| self.no_count())?;
        if let Some((count, _)) = word.split_at_mark('/') {
            return Err(self.holders_per_span(word, count));
        }
        self.places.push((LimitField::Count, word.range()));
        self.number(LimitField::Count, word)
    }

    fn rate(&mut self) -> Result<(u64, Span), ParseLimitError> {
        let word = self.next().ok_or_else(|| self.no_count())?;
        let (count, span) = word.split_at_mark('/').ok_or_else(|| self.no_span(word))?;
        self.places.push((LimitField::Count, count.range()));
        self.places.push((LimitField::Span, span.range()));
        let number = self.number(LimitField::Count, count).map_err(|e| self.in_rate(e, word))?;
        Ok((number, self.span(span)?))
    }

    fn option(
        &mut self,
        word: Word<'a>,
        builder: &mut LimitBuilder,
    ) -> Result<(), ParseLimitError> {
        let part = option_named(word.text).ok_or_else(|| self.unknown_option(word))?;
        if self.place(part).is_some() {
            return Err(self.repeated(part, word));
        }
        match part {
            LimitField::Burst => builder.burst = Some(self.number_of(part, word)?),
            LimitField::Every => builder.every = Some(self.span_of(part, word)?),
            LimitField::Tz => builder.tz = Some(self.value_of(part, word)?.text.into()),
            LimitField::FirstHit => builder.first_hit = true,
            LimitField::Precision => builder.precision = Some(self.span_of(part, word)?),
            LimitField::Approximate => builder.approximate = true,
            LimitField::Capacity => builder.capacity = Some(self.number_of(part, word)?),
            LimitField::Queue => builder.queue = true,
            LimitField::Lease => builder.lease = Some(self.span_of(part, word)?),
            LimitField::Count | LimitField::Span => {}
        }
        let end = self.ahead().first().map_or(self.text.len(), |next| next.start - 1);
        self.places.push((part, word.start..end));
        Ok(())
    }

    fn number_of(&mut self, part: LimitField, option: Word<'a>) -> Result<u64, ParseLimitError> {
        let value = self.value_of(part, option)?;
        self.number(part, value)
    }

    fn span_of(&mut self, part: LimitField, option: Word<'a>) -> Result<Span, ParseLimitError> {
        let value = self.value_of(part, option)?;
        self.span(value)
    }

    fn value_of(
        &mut self,
        part: LimitField,
        option: Word<'a>,
    ) -> Result<Word<'a>, ParseLimitError> {
        match self.ahead().first() {
            Some(word) if option_named(word.text).is_none() => {}
            _ => return Err(self.no_value(part, option)),
        }
        self.next().ok_or_else(|| self.no_value(part, option))
    }

    fn number(&self, part: LimitField, word: Word<'a>) -> Result<u64, ParseLimitError> {
        if word.text.is_empty() || !word.text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.not_whole(part, word));
        }
        word.text.parse().map_err(|_| self.too_large(part, word))
    }

    fn span(&self, word: Word<'a>) -> Result<Span, ParseLimitError> {
        let digits = word.text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = word.text.split_at(digits);
        let unit = TimeUnit::named(unit).ok_or_else(|| self.not_a_span(word, digits))?;
        // A number that does not fit is longer than any span, and is refused as too long.
        let number = if number.is_empty() { 1 } else { number.parse().unwrap_or(u64::MAX) };
        match (number, unit.calendar(), unit.micros()) {
            (1, Some(page), _) => Ok(Span::Calendar(page)),
            (_, _, Some(micros)) => Ok(Span::Plain(Micros::new(number.saturating_mul(micros)))),
            (_, _, None) => Err(self.several_months(word, number)),
        }
    }
}
