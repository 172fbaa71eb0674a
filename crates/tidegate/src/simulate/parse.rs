//! Reading the notation of traffic, word by word.

use std::ops::Range;
use std::str::FromStr;

use tidegate_core::{Limit, Micros, ParseLimitError, Quoted, Span, closest};

use super::error::{InvalidTraffic, ParseTrafficError};
use super::traffic::{Part, Pattern, Rate, Traffic};

/// The longest text that is looked at.
const MAX_BYTES: usize = 1_024;
/// How many faults of one text are repaired before it is given up on.
const MOST_REPAIRS: usize = 12;

const PATTERNS: [&str; 4] = ["steady", "poisson", "burst", "ramp"];
const OPTIONS: [&str; 3] = ["keys", "after", "for"];
const EXAMPLE: &str = "write traffic like steady 120/s for 60s";

/// Reads the notation, the reverse of its `Display`.
impl FromStr for Traffic {
    type Err = ParseTrafficError;

    fn from_str(text: &str) -> Result<Self, ParseTrafficError> {
        read(text).map_err(|mut error| {
            // A repair mends one fault. The text may have more, so it is read and mended again.
            let mut candidate = error.take_suggestion();
            for _ in 0..MOST_REPAIRS {
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

/// One reading. A suggestion in the error may have faults of its own.
fn read(text: &str) -> Result<Traffic, ParseTrafficError> {
    check_outline(text)?;
    let mut reader = Reader::new(text);
    let (mut parts, mut places) = (Vec::new(), Vec::new());
    loop {
        let start = reader.place();
        parts.push(reader.part()?);
        places.push(start..reader.end());
        match reader.next() {
            Some(plus) if reader.words.len() == reader.taken => {
                return Err(ParseTrafficError::new(
                    plus.range(),
                    "nothing is behind the \"+\"",
                    EXAMPLE,
                ));
            }
            Some(_) => {}
            None => break,
        }
    }
    let others_end = parts.iter().filter_map(Open::end).max();
    let ends = others_end.unwrap_or(Traffic::DEFAULT_SPAN);
    let parts = parts.into_iter().map(|open| open.close(ends)).collect();
    Traffic::of(parts).map_err(|(place, invalid)| {
        let position = places.get(place).cloned().unwrap_or(0..text.len());
        ParseTrafficError::refused(position, invalid)
    })
}

/// What must hold before there are words to look at.
fn check_outline(text: &str) -> Result<(), ParseTrafficError> {
    if text.len() > MAX_BYTES {
        let reason = format!("{} bytes are too long", text.len());
        let start = (0..=MAX_BYTES).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        return Err(ParseTrafficError::new(start..text.len(), reason, "use at most 1024"));
    }
    if text.trim().is_empty() {
        return Err(ParseTrafficError::new(0..text.len(), "nothing is written", EXAMPLE));
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
struct Word<'a> {
    text: &'a str,
    start: usize,
}

impl Word<'_> {
    fn range(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }
}

/// A part that may not know yet how long it lasts.
struct Open {
    pattern: Pattern,
    keys: Option<u32>,
    zipf: Option<u32>,
    after: Option<Micros>,
    lasts: Option<Micros>,
}

impl Open {
    fn end(&self) -> Option<Micros> {
        Some(self.lasts?.saturating_add(self.after.unwrap_or_default()))
    }

    /// The part; without a length of its own it lasts until `ends`.
    fn close(self, ends: Micros) -> Part {
        let after = self.after.unwrap_or_default();
        let lasts = self.lasts.unwrap_or_else(|| ends.saturating_sub(after));
        Part { pattern: self.pattern, keys: self.keys.unwrap_or(1), zipf: self.zipf, after, lasts }
    }
}

struct Reader<'a> {
    text: &'a str,
    words: Vec<Word<'a>>,
    taken: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let mut start = 0;
        let words = text.split(' ').map(|text| {
            let word = Word { text, start };
            start += text.len() + 1;
            word
        });
        let words = words.collect();
        Self { text, words, taken: 0 }
    }

    /// Where the next word begins.
    fn place(&self) -> usize {
        self.words.get(self.taken).map_or(self.text.len(), |word| word.start)
    }

    /// Where the last word ended.
    fn end(&self) -> usize {
        self.words[..self.taken].last().map_or(0, |word| word.range().end)
    }

    fn next(&mut self) -> Option<Word<'a>> {
        let word = self.words.get(self.taken).copied()?;
        self.taken += 1;
        Some(word)
    }

    /// The next word, unless the part has ended.
    fn next_in_part(&mut self) -> Option<Word<'a>> {
        self.words.get(self.taken).filter(|word| word.text != "+")?;
        self.next()
    }

    fn part(&mut self) -> Result<Open, ParseTrafficError> {
        let pattern = self.pattern()?;
        let mut part = Open { pattern, keys: None, zipf: None, after: None, lasts: None };
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
                let reason = format!("{} is there twice", Quoted(option.text));
                return Err(ParseTrafficError::new(option.range(), reason, "leave one out"));
            }
        }
        Ok(part)
    }

    fn pattern(&mut self) -> Result<Pattern, ParseTrafficError> {
        let Some(word) = self.next_in_part() else {
            let place = self.place();
            return Err(ParseTrafficError::new(place..place, "a part is missing", EXAMPLE));
        };
        match word.text {
            "steady" => self.rate(word).map(Pattern::Steady),
            "poisson" => self.rate(word).map(Pattern::Poisson),
            "burst" => {
                let count = self.number(word, "500")?;
                let every = self.keyword("every", "like burst 500 every 10s")?;
                Ok(Pattern::Burst { count, every: self.span(every)? })
            }
            "ramp" => {
                let from = self.rate(word)?;
                let to = self.keyword("to", "like ramp 0/s to 200/s")?;
                Ok(Pattern::Ramp { from, to: self.rate(to)? })
            }
            _ => Err(self.unknown_pattern(word)),
        }
    }

    /// The word that has to stand here.
    fn keyword(&mut self, keyword: &str, like: &str) -> Result<Word<'a>, ParseTrafficError> {
        match self.next_in_part() {
            Some(word) if word.text == keyword => Ok(word),
            Some(word) => {
                let reason = format!("{} where \"{keyword}\" belongs", Quoted(word.text));
                let meant = closest(word.text, [keyword].into_iter());
                let repaired = meant.map(|meant| self.spliced(word, meant));
                Err(ParseTrafficError::new(word.range(), reason, format!("write it {like}"))
                    .or_write(repaired))
            }
            None => {
                let end = self.end();
                let reason = format!("\"{keyword}\" is missing");
                Err(ParseTrafficError::new(end..end, reason, format!("write it {like}")))
            }
        }
    }

    /// The value of an option or a pattern.
    fn value(&mut self, of: Word<'a>, example: &str) -> Result<Word<'a>, ParseTrafficError> {
        self.next_in_part().ok_or_else(|| {
            let reason = format!("{} needs a value", Quoted(of.text));
            ParseTrafficError::new(
                of.range(),
                reason,
                format!("add one, like {} {example}", of.text),
            )
        })
    }

    fn rate(&mut self, of: Word<'a>) -> Result<Rate, ParseTrafficError> {
        let word = self.value(of, "120/s")?;
        if !word.text.starts_with(|c: char| c.is_ascii_digit()) {
            let reason = format!("{} is not a rate", Quoted(word.text));
            return Err(ParseTrafficError::new(word.range(), reason, "write one like 120/s"));
        }
        // A rate is written as a limit is, and what is wrong with one is known there.
        let limit: Limit = word.text.parse().map_err(|error| self.passed_on(word, &error))?;
        // A rate of nothing has no span to tell apart.
        let per = limit.recovery().unwrap_or(Micros::from_secs(1));
        Ok(Rate { count: limit.capacity(), per })
    }

    fn span(&mut self, of: Word<'a>) -> Result<Micros, ParseTrafficError> {
        let word = self.value(of, "10s")?;
        let span: Span = word.text.parse().map_err(|error| self.passed_on(word, &error))?;
        span.length().ok_or_else(|| {
            let repaired = self.spliced(word, "30d");
            ParseTrafficError::new(word.range(), "a month has no fixed length", "use 30d")
                .or_write(Some(repaired))
        })
    }

    fn keys(&mut self, of: Word<'a>) -> Result<u32, ParseTrafficError> {
        let place = self.place();
        let number = self.number(of, "1000")?;
        u32::try_from(number).ok().filter(|keys| (1..=Traffic::MAX_KEYS).contains(keys)).ok_or_else(
            || {
                let invalid = InvalidTraffic::Keys(u32::try_from(number).unwrap_or(u32::MAX));
                ParseTrafficError::refused(place..self.end(), invalid)
            },
        )
    }

    fn number(&mut self, of: Word<'a>, example: &str) -> Result<u64, ParseTrafficError> {
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

    /// In thousandths.
    fn exponent(&mut self, of: Word<'a>) -> Result<u32, ParseTrafficError> {
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

    fn unknown_pattern(&self, word: Word<'a>) -> ParseTrafficError {
        let reason = format!("unknown pattern {}", Quoted(word.text));
        let meant = closest(word.text, PATTERNS.into_iter()).map(String::from);
        // A rate alone is one that is kept.
        let meant = meant
            .or_else(|| word.text.parse::<Limit>().ok().map(|_| format!("steady {}", word.text)));
        let repaired = meant.map(|meant| self.spliced(word, &meant));
        ParseTrafficError::new(word.range(), reason, "use steady, poisson, burst or ramp")
            .or_write(repaired)
    }

    fn unknown_option(&self, word: Word<'a>) -> ParseTrafficError {
        if word.text == "zipf" {
            let reason = "\"zipf\" says how keys differ, and there are none";
            return ParseTrafficError::new(
                word.range(),
                reason,
                "write it behind them, like keys 1000 zipf 1.1",
            );
        }
        let reason = format!("unknown option {}", Quoted(word.text));
        let joined = PATTERNS.contains(&word.text).then(|| format!("+ {}", word.text));
        let meant = joined
            .or_else(|| closest(word.text, OPTIONS.into_iter().chain(["zipf"])).map(String::from));
        let repaired = meant.map(|meant| self.spliced(word, &meant));
        let advice = "use keys, zipf, after or for, or join another part with +";
        ParseTrafficError::new(word.range(), reason, advice).or_write(repaired)
    }

    /// What the notation of limits says about a word.
    fn passed_on(&self, word: Word<'a>, error: &ParseLimitError) -> ParseTrafficError {
        let position = error.position();
        let position = word.start + position.start..word.start + position.end;
        match error.suggestion() {
            Some(text) => ParseTrafficError::new(position, error.reason(), format!("write {text}"))
                .or_write(Some(self.spliced(word, text))),
            None => ParseTrafficError::new(position, error.to_string(), ""),
        }
    }

    /// The text with another word in the place of this one.
    fn spliced(&self, word: Word<'a>, replacement: &str) -> String {
        let mut mended = String::from(self.text);
        mended.replace_range(word.range(), replacement);
        mended
    }
}
