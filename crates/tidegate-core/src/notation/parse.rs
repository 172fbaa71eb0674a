//! Reading text into a draft, word by word.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use super::error::{MAX_BYTES, ParseLimitError, Quoted, char_boundary};
use super::unit::Unit;
use crate::draft::check_span;
use crate::{Algorithm, Draft, Limit, Micros, Part, Span};

/// One reading of `text`. A suggestion in the error may have faults of its own.
pub(super) fn limit(text: &str) -> Result<Limit, ParseLimitError> {
    check_outline(text, "write a limit like 100/s")?;
    let mut reader = Reader::new(text);
    let draft = reader.draft()?;
    draft.clone().build().map_err(|invalid| reader.refused(&draft, invalid))
}

/// As [`limit`], for a span that stands alone.
pub(super) fn span(text: &str) -> Result<Span, ParseLimitError> {
    check_outline(text, "write a span like 30s")?;
    let word = Word { text, start: 0 };
    let span = Reader::of(text, Vec::new()).span(word)?;
    match check_span(Part::Span, Some(span)) {
        Ok(()) => Ok(span),
        Err(invalid) => Err(ParseLimitError::refused(0..text.len(), text, invalid)),
    }
}

/// What must hold before there are words to look at.
fn check_outline(text: &str, advice: &'static str) -> Result<(), ParseLimitError> {
    if text.len() > MAX_BYTES {
        let position = char_boundary(text, MAX_BYTES)..text.len();
        let reason = format!("{} bytes are too long", text.len());
        return Err(ParseLimitError::new(position, reason, "use at most 256"));
    }
    if text.trim().is_empty() {
        return Err(ParseLimitError::new(0..text.len(), "nothing is written", advice));
    }
    let Some(space) = misplaced_space(text) else { return Ok(()) };
    let reason = format!("misplaced whitespace {}", Quoted(&text[space.clone()]));
    let spaced = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(ParseLimitError::new(space, reason, "put exactly one space between words")
        .or_write(Some(spaced)))
}

/// The first whitespace that is anything but one space between two words.
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

/// A word and where it begins.
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

/// The options by their words.
pub(super) const OPTIONS: [Part; 9] = [
    Part::Burst,
    Part::Every,
    Part::Tz,
    Part::FirstHit,
    Part::Precision,
    Part::Approximate,
    Part::Capacity,
    Part::Queue,
    Part::Lease,
];

pub(super) fn option_named(word: &str) -> Option<Part> {
    OPTIONS.into_iter().find(|part| part.name() == word)
}

pub(super) fn algorithm_named(word: &str) -> Option<Algorithm> {
    Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == word)
}

/// Reads the words of a limit in order, and remembers where each part stands.
///
/// What it says about words it cannot read is in `repair`.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    words: Vec<Word<'a>>,
    taken: usize,
    pub(super) algorithm: Option<Word<'a>>,
    places: Vec<(Part, Range<usize>)>,
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

    /// The words that have not been read.
    pub(super) fn ahead(&self) -> &[Word<'a>] {
        self.words.get(self.taken..).unwrap_or(&[])
    }

    /// Where `part` was written.
    pub(super) fn place(&self, part: Part) -> Option<Range<usize>> {
        self.places.iter().find(|(placed, _)| *placed == part).map(|(_, place)| place.clone())
    }

    fn next(&mut self) -> Option<Word<'a>> {
        let word = self.ahead().first().copied()?;
        self.taken += 1;
        Some(word)
    }

    fn draft(&mut self) -> Result<Draft, ParseLimitError> {
        let mut draft = match self.algorithm()? {
            Algorithm::Concurrency => Limit::concurrency(self.holders()?),
            algorithm => {
                let (count, span) = self.rate()?;
                Draft::new(algorithm, count, span)
            }
        };
        while let Some(word) = self.next() {
            self.option(word, &mut draft)?;
        }
        Ok(draft)
    }

    fn algorithm(&mut self) -> Result<Algorithm, ParseLimitError> {
        let Some(&first) = self.ahead().first() else { return Ok(Algorithm::TokenBucket) };
        if let Some(algorithm) = algorithm_named(first.text) {
            self.algorithm = self.next();
            return Ok(algorithm);
        }
        // A rate, good or bad; `NaN/s` is a bad one.
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
        self.places.push((Part::Count, word.range()));
        self.number(Part::Count, word)
    }

    fn rate(&mut self) -> Result<(u64, Span), ParseLimitError> {
        let word = self.next().ok_or_else(|| self.no_count())?;
        let (count, span) = word.split_at_mark('/').ok_or_else(|| self.no_span(word))?;
        self.places.push((Part::Count, count.range()));
        self.places.push((Part::Span, span.range()));
        let number = self.number(Part::Count, count).map_err(|e| self.in_rate(e, word))?;
        Ok((number, self.span(span)?))
    }

    fn option(&mut self, word: Word<'a>, draft: &mut Draft) -> Result<(), ParseLimitError> {
        let part = option_named(word.text).ok_or_else(|| self.unknown_option(word))?;
        if self.place(part).is_some() {
            return Err(self.repeated(part, word));
        }
        match part {
            Part::Burst => draft.burst = Some(self.number_of(part, word)?),
            Part::Every => draft.every = Some(self.span_of(part, word)?),
            Part::Tz => draft.tz = Some(self.value_of(part, word)?.text.into()),
            Part::FirstHit => draft.first_hit = true,
            Part::Precision => draft.precision = Some(self.span_of(part, word)?),
            Part::Approximate => draft.approximate = true,
            Part::Capacity => draft.capacity = Some(self.number_of(part, word)?),
            Part::Queue => draft.queue = true,
            Part::Lease => draft.lease = Some(self.span_of(part, word)?),
            Part::Count | Part::Span => {}
        }
        let end = self.ahead().first().map_or(self.text.len(), |next| next.start - 1);
        self.places.push((part, word.start..end));
        Ok(())
    }

    fn number_of(&mut self, part: Part, option: Word<'a>) -> Result<u64, ParseLimitError> {
        let value = self.value_of(part, option)?;
        self.number(part, value)
    }

    fn span_of(&mut self, part: Part, option: Word<'a>) -> Result<Span, ParseLimitError> {
        let value = self.value_of(part, option)?;
        self.span(value)
    }

    fn value_of(&mut self, part: Part, option: Word<'a>) -> Result<Word<'a>, ParseLimitError> {
        match self.ahead().first() {
            Some(word) if option_named(word.text).is_none() => {}
            _ => return Err(self.no_value(part, option)),
        }
        self.next().ok_or_else(|| self.no_value(part, option))
    }

    fn number(&self, part: Part, word: Word<'a>) -> Result<u64, ParseLimitError> {
        if word.text.is_empty() || !word.text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.not_whole(part, word));
        }
        word.text.parse().map_err(|_| self.too_large(part, word))
    }

    fn span(&self, word: Word<'a>) -> Result<Span, ParseLimitError> {
        let digits = word.text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = word.text.split_at(digits);
        let unit = Unit::named(unit).ok_or_else(|| self.not_a_span(word, digits))?;
        // What does not fit is longer than any span, and is refused as that.
        let number = if number.is_empty() { 1 } else { number.parse().unwrap_or(u64::MAX) };
        match (number, unit.calendar(), unit.micros()) {
            (1, Some(page), _) => Ok(Span::Calendar(page)),
            (_, _, Some(micros)) => Ok(Span::Plain(Micros::new(number.saturating_mul(micros)))),
            (_, _, None) => Err(self.several_months(word, number)),
        }
    }
}
