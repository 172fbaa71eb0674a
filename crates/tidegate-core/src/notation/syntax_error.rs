//! Messages and suggestions for text that does not parse.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::error::{ParseLimitError, Quoted};
use super::parse::{OPTIONS, Reader, Word, algorithm_named, option_named};
use super::unit::TimeUnit;
use super::{lenient, spliced};
use crate::did_you_mean::did_you_mean;
use crate::{Algorithm, LimitField};

const ALGORITHMS: &str =
    "use token-bucket, leaky-bucket, fixed-window, sliding-log, sliding-window or concurrency";
const OPTION_WORDS: &str =
    "use burst, every, tz, first-hit, precision, approximate, capacity, queue or lease";
const UNITS: &str = "use us, ms, s, min, h, d, w or month";

impl Reader<'_> {
    pub(super) fn unknown_algorithm(&self, word: Word<'_>) -> ParseLimitError {
        if option_named(word.text).is_some() {
            let reason = format!("the option {} before the limit", Quoted(word.text));
            return ParseLimitError::new(word.range(), reason, "begin with the count, like 100/s");
        }
        let names = Algorithm::ALL.into_iter().map(Algorithm::name);
        let next = self.ahead().get(1).copied();
        let fix = self
            .without_mark(word)
            .or_else(|| self.hyphenated(word, next, names))
            .or_else(|| Some(spliced(self.text, word.range(), algorithm_meant(word.text)?)));
        let reason = format!("unknown algorithm {}", Quoted(word.text));
        ParseLimitError::new(word.range(), reason, ALGORITHMS).or_write(fix)
    }

    pub(super) fn no_count(&self) -> ParseLimitError {
        let advice = match self.algorithm.and_then(|word| algorithm_named(word.text)) {
            Some(Algorithm::Concurrency) => "add one, like concurrency 20",
            _ => "add one, like 100/s",
        };
        let reason = format!("no count after {}", Quoted(self.text));
        ParseLimitError::new(self.text.len()..self.text.len(), reason, advice)
    }

    pub(super) fn holders_per_span(&self, word: Word<'_>, count: Word<'_>) -> ParseLimitError {
        let text = Quoted(word.text);
        let reason = format!("{text} has a span, but concurrency counts holders");
        let fix = spliced(self.text, count.end()..word.end(), "");
        ParseLimitError::new(word.range(), reason, "leave the span out").or_write(Some(fix))
    }

    /// A count without a slash, and other ways to write "per".
    pub(super) fn no_span(&self, word: Word<'_>) -> ParseLimitError {
        let fix = self.slash_for_per(word).or_else(|| self.slash_for_rps(word));
        if self.ahead().first().is_some_and(|next| next.text.starts_with('/')) {
            return space_at_slash(word.end(), "before").or_write(fix);
        }
        let reason = format!("no span after {}", Quoted(word.text));
        ParseLimitError::new(word.range(), reason, "add a span, like 100/s").or_write(fix)
    }

    /// `5 / s`, `5 per s`, `5 requests/s`, `5 requests per s`.
    fn slash_for_per(&self, word: Word<'_>) -> Option<String> {
        let is_per = |word: &Word<'_>| word.text.eq_ignore_ascii_case("per");
        let (from, to) = match self.ahead() {
            [next, ..] if next.text.starts_with('/') => (word.end(), next.start + 1),
            [per, span, ..] if is_per(per) => (word.end(), span.start),
            [_, per, span, ..] if is_per(per) => (word.end(), span.start),
            [next, ..] => (word.end(), next.split_at_mark('/')?.1.start),
            [] => return None,
        };
        Some(spliced(self.text, from..to, "/"))
    }

    /// `5rps`, `5 rpm`.
    fn slash_for_rps(&self, word: Word<'_>) -> Option<String> {
        let digits = word.text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let rate = match (&word.text[digits.len()..], self.ahead()) {
            ("", [next, ..]) => *next,
            (_, _) => Word { text: &word.text[digits.len()..], start: word.start + digits.len() },
        };
        let per = match rate.text {
            "rps" | "qps" | "tps" => "/s",
            "rpm" | "qpm" => "/m",
            "rph" => "/h",
            "rpd" => "/d",
            _ => return None,
        };
        Some(spliced(self.text, word.start + digits.len()..rate.end(), per))
    }

    /// A number with a sign, a fraction or an exponent, or no number.
    pub(super) fn not_whole(&self, part: LimitField, word: Word<'_>) -> ParseLimitError {
        if word.text.is_empty() {
            let reason = format!("no {} before \"/\"", part.name());
            return ParseLimitError::new(word.range(), reason, "add one, like 100/s");
        }
        let fix = lenient::whole(word.text)
            .map(|number| spliced(self.text, word.range(), &format!("{number}")))
            .or_else(|| self.without_commas(word));
        let (part, text) = (part.name(), Quoted(word.text));
        let reason = format!("{part} {text} is not a whole number in plain digits");
        ParseLimitError::new(word.range(), reason, "use one like 100").or_write(fix)
    }

    /// The error about the count of a rate, which a longer span can make whole.
    pub(super) fn in_rate(&self, error: ParseLimitError, rate: Word<'_>) -> ParseLimitError {
        let whole = rate.split_at_mark('/').and_then(|(c, span)| lenient::rate(c.text, span.text));
        match whole {
            Some(whole) => error.or_write(Some(spliced(self.text, rate.range(), &whole))),
            None => error,
        }
    }

    /// Too large even for [`InvalidLimit::TooLarge`](crate::InvalidLimit).
    pub(super) fn too_large(&self, part: LimitField, word: Word<'_>) -> ParseLimitError {
        let reason = format!("{} {} is too large", part.name(), Quoted(word.text));
        ParseLimitError::new(word.range(), reason, "at most 4503599627370495")
    }

    /// Not digits followed by a unit; there are `digits` digits.
    pub(super) fn not_a_span(&self, word: Word<'_>, digits: usize) -> ParseLimitError {
        let unit = Word { text: &word.text[digits..], start: word.start + digits };
        let fix = self.span_meant(word);
        if let Some(mark) = word.text.find([',', ';']).filter(|_| fix.is_none()) {
            return self.unexpected_comma(word, mark);
        }
        let error = match (digits, unit.text) {
            (0, "") if fix.is_some() => space_at_slash(word.start, "after"),
            (0, "") => ParseLimitError::new(unit.range(), "no span after \"/\"", "add one, like s"),
            (_, "") => {
                let reason = format!("no unit after {}", Quoted(word.text));
                ParseLimitError::new(word.range(), reason, UNITS)
            }
            (0, text) if text.starts_with(char::is_alphabetic) => unknown_unit(unit),
            (_, text) if text.chars().all(char::is_alphabetic) => unknown_unit(unit),
            _ => {
                let text = Quoted(word.text);
                let reason = format!("span {text} is not one whole number and one unit");
                ParseLimitError::new(word.range(), reason, "write it like 90s or 1500ms")
            }
        };
        error.or_write(fix)
    }

    fn unexpected_comma(&self, word: Word<'_>, at: usize) -> ParseLimitError {
        let mark = word.start + at..word.start + at + 1;
        let reason = format!("unexpected {}", Quoted(&self.text[mark.clone()]));
        let advice = "put a space between options, and write every limit by itself";
        ParseLimitError::new(mark, reason, advice).or_write(self.without_commas(word))
    }

    /// The span in this word, or in this word and the next, as in `30 s`.
    fn span_meant(&self, word: Word<'_>) -> Option<String> {
        let next = self.ahead().first().filter(|next| option_named(next.text).is_none());
        let both = next.and_then(|next| {
            let range = word.start..next.end();
            Some((range.clone(), lenient::span(self.text.get(range)?)?))
        });
        let (range, span) = both.or_else(|| {
            let alone = lenient::span(word.text).or_else(|| lenient::misspelt_span(word.text))?;
            Some((word.range(), alone))
        })?;
        Some(spliced(self.text, range, &span))
    }

    pub(super) fn several_months(&self, word: Word<'_>, number: u64) -> ParseLimitError {
        let reason = format!("{} is not one month", Quoted(word.text));
        let fix = number
            .checked_mul(30)
            .map(|days| spliced(self.text, word.range(), &format!("{days}d")));
        ParseLimitError::new(word.range(), reason, "use one month, or days").or_write(fix)
    }

    pub(super) fn no_value(&self, part: LimitField, option: Word<'_>) -> ParseLimitError {
        let (value, advice) = match part {
            LimitField::Every => ("a span", "add one, like every 1s"),
            LimitField::Precision => ("a span", "add one, like precision 1m"),
            LimitField::Lease => ("a span", "add one, like lease 30s"),
            LimitField::Tz => ("a zone", "add one, like tz Europe/Berlin"),
            LimitField::Capacity => ("a number", "add one, like capacity 30"),
            _ => ("a number", "add one, like burst 20"),
        };
        let reason = format!("{} needs {value}", Quoted(option.text));
        ParseLimitError::new(option.range(), reason, advice)
    }

    pub(super) fn repeated(&self, part: LimitField, word: Word<'_>) -> ParseLimitError {
        let reason = format!("{} is written twice", Quoted(word.text));
        let takes_value =
            !matches!(part, LimitField::FirstHit | LimitField::Approximate | LimitField::Queue);
        let value =
            self.ahead().first().filter(|next| takes_value && option_named(next.text).is_none());
        let end = value.map_or(word.end(), |value| value.end());
        let fix = spliced(self.text, word.start.saturating_sub(1)..end, "");
        ParseLimitError::new(word.range(), reason, "leave one out").or_write(Some(fix))
    }

    pub(super) fn unknown_option(&self, word: Word<'_>) -> ParseLimitError {
        if word.text.contains('/') && word.text.starts_with(|c: char| c.is_ascii_digit()) {
            let reason = format!("a second limit {}", Quoted(word.text));
            return ParseLimitError::new(word.range(), reason, "write every limit by itself");
        }
        if algorithm_named(word.text).is_some() {
            return self.late_algorithm(word);
        }
        let names = OPTIONS.into_iter().map(LimitField::name);
        let next = self.ahead().first().copied();
        let fix = self
            .without_mark(word)
            .or_else(|| self.second_half_of_span(word))
            .or_else(|| self.hyphenated(word, next, names))
            .or_else(|| Some(spliced(self.text, word.range(), option_meant(word.text)?)))
            .or_else(|| self.without_commas(word));
        let reason = format!("unknown option {}", Quoted(word.text));
        ParseLimitError::new(word.range(), reason, OPTION_WORDS).or_write(fix)
    }

    fn late_algorithm(&self, word: Word<'_>) -> ParseLimitError {
        let reason = format!("the algorithm {} after the count", Quoted(word.text));
        let fix = self.algorithm.is_none().then(|| {
            let rest = spliced(self.text, word.start.saturating_sub(1)..word.end(), "");
            format!("{} {rest}", word.text)
        });
        ParseLimitError::new(word.range(), reason, "name one algorithm, in front").or_write(fix)
    }

    /// `1h 30m`: the space is removed, and the span is fixed next.
    fn second_half_of_span(&self, word: Word<'_>) -> Option<String> {
        let digits = word.text.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_span = digits.len() < word.text.len() && TimeUnit::named(digits).is_some();
        is_span.then(|| spliced(self.text, word.start.saturating_sub(1)..word.start, ""))
    }

    /// `burst=20`, `burst:20`: replaced by a space, if the word before it is known.
    fn without_mark(&self, word: Word<'_>) -> Option<String> {
        let at = word.text.find(['=', ':'])?;
        let name = &word.text[..at];
        option_meant(name).or_else(|| algorithm_meant(name))?;
        let mark = word.start + at;
        Some(spliced(self.text, mark..mark + 1, " "))
    }

    /// `sliding log`, `first hit`: two words that should be one.
    fn hyphenated<'w>(
        &self,
        word: Word<'_>,
        next: Option<Word<'_>>,
        mut names: impl Iterator<Item = &'w str>,
    ) -> Option<String> {
        let next = next?;
        let both = format!("{}-{}", word.text, next.text).to_lowercase();
        let name = names.find(|name| *name == both)?;
        Some(spliced(self.text, word.start..next.end(), name))
    }

    /// Removes commas and semicolons between words, from this word on.
    fn without_commas(&self, word: Word<'_>) -> Option<String> {
        let (before, after) = self.text.split_at(word.start);
        // Between digits it may be a decimal comma, so the intended number is unknown.
        let in_number = |w: &[u8]| w[0].is_ascii_digit() && w[1] == b',' && w[2].is_ascii_digit();
        if !after.contains([',', ';']) || after.as_bytes().windows(3).any(in_number) {
            return None;
        }
        let after = after.replace([',', ';'], " ");
        let after = after.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(format!("{before}{after}"))
    }
}

fn unknown_unit(unit: Word<'_>) -> ParseLimitError {
    let reason = format!("unknown unit {}", Quoted(unit.text));
    ParseLimitError::new(unit.range(), reason, UNITS)
}

/// A space before or after the slash; it begins at byte `at`.
fn space_at_slash(at: usize, side: &str) -> ParseLimitError {
    let reason = format!("a space {side} \"/\"");
    ParseLimitError::new(at..at + 1, reason, "leave it out")
}

/// The algorithm that `word` is meant to be.
fn algorithm_meant(word: &str) -> Option<&'static str> {
    match word {
        // Another name of the same algorithm.
        "gcra" | "GCRA" => Some(Algorithm::TokenBucket.name()),
        _ => did_you_mean(word, Algorithm::ALL.into_iter().map(Algorithm::name)),
    }
}

/// The option that `word` is meant to be.
fn option_meant(word: &str) -> Option<&'static str> {
    match word {
        "timezone" | "time-zone" | "zone" => Some(LimitField::Tz.name()),
        _ => did_you_mean(word, OPTIONS.into_iter().map(LimitField::name)),
    }
}
