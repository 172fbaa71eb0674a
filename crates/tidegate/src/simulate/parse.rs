//! Parser of the traffic notation.

use std::ops::Range;
use std::str::FromStr;

use tidegate_core::{Limit, Micros, ParseLimitError, Quoted, Span, did_you_mean};

use super::error::{InvalidTraffic, ParseTrafficError};
use super::traffic::{ArrivalPattern, ArrivalRate, Traffic, TrafficPart};

/// Longest text that is parsed.
const MAX_BYTES: usize = 1_024;
/// Corrections tried for a suggestion.
const MAX_CORRECTIONS: usize = 12;

const PATTERNS: [&str; 4] = ["steady", "poisson", "burst", "ramp"];
const OPTIONS: [&str; 3] = ["keys", "after", "for"];
const EXAMPLE: &str = "write traffic like steady 120/s for 60s";

/// Parses the notation that `Display` writes.
impl FromStr for Traffic {
    type Err = ParseTrafficError;

    fn from_str(text: &str) -> Result<Self, ParseTrafficError> {
        read(text).map_err(|mut error| {
            // A suggestion corrects one error. The text may have more, so it is parsed and
            // corrected again.
            let mut candidate = error.take_suggestion();
            for _ in 0..MAX_CORRECTIONS {
                let Some(text) = candidate else { return error };
                match read(&text) {
                    Ok(_) => return error.or_write(Some(text)),
                    Err(mut next) => candidate = next.take_suggestion(),
                }
            }
            error
        })
    }
}

/// One attempt. The suggestion in the error may itself be invalid.
fn read(text: &str) -> Result<Traffic, ParseTrafficError> {
    check_outline(text)?;
    let mut reader = TrafficReader::new(text);
    let (mut parts, mut positions) = (Vec::new(), Vec::new());
    loop {
        let start = reader.position();
        parts.push(reader.part()?);
        positions.push(start..reader.end());
        match reader.next() {
            Some(plus) if reader.words.len() == reader.taken => {
                return Err(ParseTrafficError::new(plus.range(), "nothing after \"+\"", EXAMPLE));
            }
            Some(_) => {}
            None => break,
        }
    }
    let others_end = parts.iter().filter_map(OpenPart::end).max();
    let ends = others_end.unwrap_or(Traffic::DEFAULT_SPAN);
    let parts = parts.into_iter().map(|open| open.close(ends)).collect();
    Traffic::of(parts).map_err(|(index, invalid)| {
        let position = positions.get(index).cloned().unwrap_or(0..text.len());
        ParseTrafficError::refused(position, invalid)
    })
}

/// Checks before the text is split into words.
fn check_outline(text: &str) -> Result<(), ParseTrafficError> {
    if text.len() > MAX_BYTES {
        let reason = format!("{} bytes are too long", text.len());
        let start = (0..=MAX_BYTES).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        return Err(ParseTrafficError::new(start..text.len(), reason, "use at most 1024"));
    }
    if text.trim().is_empty() {
        return Err(ParseTrafficError::new(0..text.len(), "empty text", EXAMPLE));
    }
    let spaced = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if spaced == text {
        return Ok(());
    }
    let same = text.bytes().zip(spaced.bytes()).take_while(|(a, b)| a == b).count();
    let start = (0..=same).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let space = text[start..].len() - text[start..].trim_start().len();
    let reason = "misplaced whitespace";
    Err(ParseTrafficError::new(
        start..start + space.max(1).min(text.len() - start),
        reason,
        "put exactly one space between words",
    )
    .or_write(Some(spaced)))
}

#[derive(Clone, Copy)]
struct TrafficWord<'a> {
    text: &'a str,
    start: usize,
}

impl TrafficWord<'_> {
    fn range(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }
}

/// A part whose length may not be known yet.
struct OpenPart {
    pattern: ArrivalPattern,
    keys: Option<u32>,
    zipf: Option<u32>,
    after: Option<Micros>,
    lasts: Option<Micros>,
}

impl OpenPart {
    fn end(&self) -> Option<Micros> {
        Some(self.lasts?.saturating_add(self.after.unwrap_or_default()))
    }

    /// The part; without a length it lasts until `ends`.
    fn close(self, ends: Micros) -> TrafficPart {
        let after = self.after.unwrap_or_default();
        let lasts = self.lasts.unwrap_or_else(|| ends.saturating_sub(after));
        TrafficPart {
            pattern: self.pattern,
            keys: self.keys.unwrap_or(1),
            zipf: self.zipf,
            after,
            lasts,
        }
    }
}

struct TrafficReader<'a> {
    text: &'a str,
    words: Vec<TrafficWord<'a>>,
    taken: usize,
}

impl<'a> TrafficReader<'a> {
    fn new(text: &'a str) -> Self {
        let mut start = 0;
        let words = text.split(' ').map(|text| {
            let word = TrafficWord { text, start };
            start += text.len() + 1;
            word
        });
        let words = words.collect();
        Self { text, words, taken: 0 }
    }

    /// Start of the next word.
    fn position(&self) -> usize {
        self.words.get(self.taken).map_or(self.text.len(), |word| word.start)
    }

    /// End of the last word.
    fn end(&self) -> usize {
        self.words[..self.taken].last().map_or(0, |word| word.range().end)
    }

    fn next(&mut self) -> Option<TrafficWord<'a>> {
        let word = self.words.get(self.taken).copied()?;
        self.taken += 1;
        Some(word)
    }

    /// The next word, unless the part has ended.
    fn next_in_part(&mut self) -> Option<TrafficWord<'a>> {
        self.words.get(self.taken).filter(|word| word.text != "+")?;
        self.next()
    }

    fn part(&mut self) -> Result<OpenPart, ParseTrafficError> {
        let pattern = self.pattern()?;
        let mut part = OpenPart { pattern, keys: None, zipf: None, after: None, lasts: None };
        while let Some(option) = self.next_in_part() {
            let given = match option.text {
                "keys" => part.keys.replace(self.keys(option)?).is_some(),
                "zipf" if part.keys.is_some() => {
                    part.zipf.replace(self.exponent(option)?).is_some()
                }
                "after" => part.after.replace(self.span(option)?).is_some(),
                "for" => part.lasts.replace(self.span(option)?).is_some(),
                _ => return Err(self.unknown_option(option)),
            };
            if given {
                let reason = format!("duplicate {}", Quoted(option.text));
                return Err(ParseTrafficError::new(option.range(), reason, "remove one"));
            }
        }
        Ok(part)
    }

    fn pattern(&mut self) -> Result<ArrivalPattern, ParseTrafficError> {
        let Some(word) = self.next_in_part() else {
            let position = self.position();
            return Err(ParseTrafficError::new(position..position, "a part is missing", EXAMPLE));
        };
        match word.text {
            "steady" => self.rate(word).map(ArrivalPattern::Steady),
            "poisson" => self.rate(word).map(ArrivalPattern::Poisson),
            "burst" => {
                let count = self.number(word, "500")?;
                let every = self.keyword("every", "like burst 500 every 10s")?;
                Ok(ArrivalPattern::Burst { count, every: self.span(every)? })
            }
            "ramp" => {
                let from = self.rate(word)?;
                let to = self.keyword("to", "like ramp 0/s to 200/s")?;
                Ok(ArrivalPattern::Ramp { from, to: self.rate(to)? })
            }
            _ => Err(self.unknown_pattern(word)),
        }
    }

    /// The next word, which must be `keyword`.
    fn keyword(&mut self, keyword: &str, like: &str) -> Result<TrafficWord<'a>, ParseTrafficError> {
        match self.next_in_part() {
            Some(word) if word.text == keyword => Ok(word),
            Some(word) => {
                let reason = format!("{} where \"{keyword}\" belongs", Quoted(word.text));
                let meant = did_you_mean(word.text, [keyword].into_iter());
                let corrected = meant.map(|meant| self.spliced(word, meant));
                Err(ParseTrafficError::new(word.range(), reason, format!("write it {like}"))
                    .or_write(corrected))
            }
            None => {
                let end = self.end();
                let reason = format!("\"{keyword}\" is missing");
                Err(ParseTrafficError::new(end..end, reason, format!("write it {like}")))
            }
        }
    }

    /// The value after an option or a pattern.
    fn value(
        &mut self,
        of: TrafficWord<'a>,
        example: &str,
    ) -> Result<TrafficWord<'a>, ParseTrafficError> {
        self.next_in_part().ok_or_else(|| {
            let reason = format!("{} needs a value", Quoted(of.text));
            ParseTrafficError::new(
                of.range(),
                reason,
                format!("add one, like {} {example}", of.text),
            )
        })
    }

    fn rate(&mut self, of: TrafficWord<'a>) -> Result<ArrivalRate, ParseTrafficError> {
        let word = self.value(of, "120/s")?;
        if !word.text.starts_with(|c: char| c.is_ascii_digit()) {
            let reason = format!("{} is not a rate", Quoted(word.text));
            return Err(ParseTrafficError::new(word.range(), reason, "write one like 120/s"));
        }
        // Rates use the notation of limits, including its errors.
        let limit: Limit = word.text.parse().map_err(|error| self.limit_error(word, &error))?;
        // A rate of zero needs no span.
        let per = limit.recovery().unwrap_or(Micros::from_secs(1));
        Ok(ArrivalRate { count: limit.capacity(), per })
    }

    fn span(&mut self, of: TrafficWord<'a>) -> Result<Micros, ParseTrafficError> {
        let word = self.value(of, "10s")?;
        let span: Span = word.text.parse().map_err(|error| self.limit_error(word, &error))?;
        span.length().ok_or_else(|| {
            let corrected = self.spliced(word, "30d");
            ParseTrafficError::new(word.range(), "a month has no fixed length", "use 30d")
                .or_write(Some(corrected))
        })
    }

    fn keys(&mut self, of: TrafficWord<'a>) -> Result<u32, ParseTrafficError> {
        let position = self.position();
        let number = self.number(of, "1000")?;
        u32::try_from(number).ok().filter(|keys| (1..=Traffic::MAX_KEYS).contains(keys)).ok_or_else(
            || {
                let invalid = InvalidTraffic::Keys(u32::try_from(number).unwrap_or(u32::MAX));
                ParseTrafficError::refused(position..self.end(), invalid)
            },
        )
    }

    fn number(&mut self, of: TrafficWord<'a>, example: &str) -> Result<u64, ParseTrafficError> {
        let word = self.value(of, example)?;
        let digits = Some(word.text).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| {
            let reason = format!("{} is not a whole number in plain digits", Quoted(word.text));
            ParseTrafficError::new(
                word.range(),
                reason,
                format!("write one like {} {example}", of.text),
            )
        })
    }

    /// The exponent in thousandths.
    fn exponent(&mut self, of: TrafficWord<'a>) -> Result<u32, ParseTrafficError> {
        let word = self.value(of, "1.1")?;
        let (whole, decimals) = word.text.split_once('.').unwrap_or((word.text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let written = digits(whole) && digits(decimals) && decimals.len() <= 3 && whole.len() <= 2;
        let thousandths = || format!("{whole}{decimals:0<3}").parse().ok();
        let exponent = written.then(thousandths).flatten();
        exponent.filter(|exponent| (1..=10_000).contains(exponent)).ok_or_else(|| {
            let reason = format!("{} is not an exponent", Quoted(word.text));
            ParseTrafficError::new(word.range(), reason, "use one from 0.001 to 10, like zipf 1.1")
        })
    }

    fn unknown_pattern(&self, word: TrafficWord<'a>) -> ParseTrafficError {
        let reason = format!("unknown pattern {}", Quoted(word.text));
        let meant = did_you_mean(word.text, PATTERNS.into_iter()).map(String::from);
        // A rate without a pattern is a steady one.
        let meant = meant
            .or_else(|| word.text.parse::<Limit>().ok().map(|_| format!("steady {}", word.text)));
        let corrected = meant.map(|meant| self.spliced(word, &meant));
        ParseTrafficError::new(word.range(), reason, "use steady, poisson, burst or ramp")
            .or_write(corrected)
    }

    fn unknown_option(&self, word: TrafficWord<'a>) -> ParseTrafficError {
        if word.text == "zipf" {
            let reason = "\"zipf\" needs keys";
            return ParseTrafficError::new(
                word.range(),
                reason,
                "write it after them, like keys 1000 zipf 1.1",
            );
        }
        let reason = format!("unknown option {}", Quoted(word.text));
        let joined = PATTERNS.contains(&word.text).then(|| format!("+ {}", word.text));
        let meant = joined.or_else(|| {
            did_you_mean(word.text, OPTIONS.into_iter().chain(["zipf"])).map(String::from)
        });
        let corrected = meant.map(|meant| self.spliced(word, &meant));
        let advice = "use keys, zipf, after or for, or join another part with +";
        ParseTrafficError::new(word.range(), reason, advice).or_write(corrected)
    }

    /// An error of the limit notation, at this word.
    fn limit_error(&self, word: TrafficWord<'a>, error: &ParseLimitError) -> ParseTrafficError {
        let position = error.position();
        let position = word.start + position.start..word.start + position.end;
        match error.suggestion() {
            Some(text) => ParseTrafficError::new(position, error.reason(), format!("write {text}"))
                .or_write(Some(self.spliced(word, text))),
            None => ParseTrafficError::new(position, error.to_string(), ""),
        }
    }

    /// The text with this word replaced.
    fn spliced(&self, word: TrafficWord<'a>, replacement: &str) -> String {
        let mut corrected = String::from(self.text);
        corrected.replace_range(word.range(), replacement);
        corrected
    }
}
