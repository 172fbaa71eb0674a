//! An access log through candidate policies: who would have been denied, when, and by which rule.
//!
//! Every line goes through the same policy and the same engine as a request to a server would, on a clock that shows
//! the time of the line. Logs are written at the end of requests, so that times go back a little here and there; the
//! clock does not, and such a line counts as now.
//!
//! # Layout
//!
//! - `source`: files, standard input and gzip. `lines`: what they say line by line.
//! - `format`: what kind of log it is; `combined`, `json` and `csv` read one kind each. `field`: what members and columns
//!   mean. `instant`: times. `leap`: times that cannot be believed. `entry`: a line as a request.
//! - `candidate`: a policy on these requests. `tally`: its counts. `top`: who is denied most. `timeline`: when. `need`: how
//!   large a limit would have had to be. `comparison`: two policies side by side.
//! - `report`: what is told about it, for people, in `figures` that are easy to read; `objects`: the same in JSON.
//!   `failure`: why there is nothing to tell.

mod candidate;
mod combined;
mod comparison;
mod csv;
mod entry;
mod failure;
mod field;
mod figures;
mod format;
mod instant;
mod json;
mod leap;
mod lines;
mod need;
mod objects;
mod report;
mod source;
mod tally;
mod timeline;
mod top;

use std::fmt;
use std::io;

use jiff::Timestamp;
use tidegate::{Micros, Wait};

use self::candidate::Candidate;
use self::comparison::Comparison;
pub use self::failure::Failure;
pub use self::format::Format;
use self::format::{Read, Reader};
use self::leap::Leap;
use self::lines::{Line, Lines};
pub use self::need::Percentile;
pub use self::report::Look;
pub use self::source::{Progress, Source};
use self::tally::{Fate, Questions};
use crate::config::Loaded;
use crate::logs::is_hidden;

/// A log that is replayed.
pub struct Replay {
    candidates: Vec<Candidate>,
    comparison: Option<Comparison>,
    suggest: Option<Percentile>,
    read: Log,
}

/// What was read.
#[derive(Default, Debug)]
struct Log {
    log: String,
    format: Option<Format>,
    lines: u64,
    requests: u64,
    malformed: u64,
    examples: Vec<Malformed>,
    /// Lines that were older than one before them.
    out_of_order: u64,
    without_address: u64,
    first: Option<Micros>,
    last: Option<Micros>,
    /// Why the rest of the log could not be read.
    cut_short: Option<String>,
    /// A request, to show when no rule is about any.
    example: Option<String>,
}

/// A line that could not be read.
#[derive(Debug)]
struct Malformed {
    line: u64,
    why: &'static str,
    /// The beginning, for people to read.
    text: String,
}

/// A request that a policy denies.
#[derive(Debug)]
pub struct Denied<'a> {
    /// The policy's file.
    pub config: &'a str,
    /// The number of the line.
    pub line: u64,
    /// When it came.
    pub at: Micros,
    /// The rule that says so.
    pub rule: &'a str,
    /// Whom it counts, for people to read.
    pub key: &'a str,
    /// What the client would have been told.
    pub wait: Wait,
}

impl fmt::Display for Denied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, line, at, rule, key, wait } = self;
        let at = instant_text(*at);
        write!(f, "{config}: line {line} at {at} denied by {rule}, key {key:?}, retry after {wait}")
    }
}

/// What is wanted beside the counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wanted {
    /// The limit at which so many keys would never have been denied.
    pub suggest: Option<Percentile>,
    /// Every denial, as it happens.
    pub denials: bool,
}

impl Replay {
    /// The most policies side by side.
    pub const MAX_POLICIES: usize = 2;
    /// The most malformed lines that are shown.
    const EXAMPLES: usize = 5;

    /// A replay through these policies, each with the name of its file.
    pub fn new(policies: Vec<(String, Loaded)>, wanted: Wanted) -> Self {
        let compares = policies.len() == Self::MAX_POLICIES;
        let questions =
            Questions { needs: wanted.suggest.is_some(), denials: wanted.denials || compares };
        let candidates = policies
            .into_iter()
            .map(|(name, loaded)| Candidate::new(name, loaded, questions))
            .collect();
        let comparison = compares.then(Comparison::default);
        Self { candidates, comparison, suggest: wanted.suggest, read: Log::default() }
    }

    /// Reads a log to its end. Tells of every denial, if that is wanted, and now and then that it is still reading.
    pub fn run(
        &mut self,
        source: Source,
        format: Option<Format>,
        mut on_denial: impl FnMut(Denied<'_>) -> io::Result<()>,
        mut on_progress: impl FnMut(u64),
    ) -> Result<(), Failure> {
        const LINES_PER_PROGRESS: u64 = 8_192;
        self.read.log = source.name().into();
        let fail = |error: io::Error, log: &str| Failure::Unreadable(log.into(), error);
        let reader = source.open().map_err(|error| fail(error, &self.read.log))?;
        let mut lines = Lines::new(reader);
        let beginning = lines.peek().map_err(|error| fail(error, &self.read.log))?;
        if beginning.trim_ascii().is_empty() {
            return Err(Failure::Empty(self.read.log.clone()));
        }
        let detected = format.or_else(|| Format::detect(beginning));
        let format = detected.ok_or_else(|| Failure::NoFormat(self.read.log.clone()))?;
        self.read.format = Some(format);
        let mut reader = Reader::new(format);
        let mut leap: Option<Leap> = None;
        loop {
            let number = lines.number() + 1;
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) if self.read.lines == 0 => return Err(fail(error, &self.read.log)),
                Err(error) => {
                    self.read.cut_short = Some(error.to_string());
                    break;
                }
            };
            self.read.lines = number;
            let line = match line {
                Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                Line::Whole(line) => line,
                Line::TooLong(start) => {
                    self.read.note_malformed(number, "longer than 65536 bytes", start);
                    continue;
                }
            };
            let mut doubted = None;
            match reader.read(line) {
                Read::Request(entry) if leap.is_none() && !self.read.leaps_to(entry.at) => {
                    self.decide(&entry, number, &mut on_denial)?;
                }
                Read::Request(entry) => {
                    doubted = Some(Leap { number, line: line.to_vec(), at: entry.at });
                }
                Read::Header => {}
                Read::Malformed(why) => self.read.note_malformed(number, why, line),
                Read::NoHeader(why) => return Err(Failure::NoHeader(self.read.log.clone(), why)),
            }
            if let Some(next) = doubted {
                match leap.take() {
                    Some(before) if before.is_borne_out_by(&next) => {
                        self.decide_late(&mut reader, &before, &mut on_denial)?;
                    }
                    Some(wrong) => {
                        self.read.note_malformed(wrong.number, Leap::WHY, &wrong.line);
                    }
                    None => {}
                }
                if self.read.leaps_to(next.at) {
                    leap = Some(next);
                } else {
                    self.decide_late(&mut reader, &next, &mut on_denial)?;
                }
            }
            if number.is_multiple_of(LINES_PER_PROGRESS) {
                on_progress(number);
            }
        }
        // Nothing comes after it that it could be in the way of.
        if let Some(leap) = leap {
            self.decide_late(&mut reader, &leap, &mut on_denial)?;
        }
        if self.read.requests == 0 {
            let Log { log, malformed, examples, .. } = &self.read;
            let why = examples.first().map(|example| format!("{}: {}", example.why, example.text));
            return Err(Failure::NoRequests {
                log: log.clone(),
                malformed: *malformed,
                format,
                why,
            });
        }
        Ok(())
    }

    /// Decides a line that had to wait.
    fn decide_late(
        &mut self,
        reader: &mut Reader,
        leap: &Leap,
        on_denial: &mut impl FnMut(Denied<'_>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        match reader.read(&leap.line) {
            Read::Request(entry) => self.decide(&entry, leap.number, on_denial),
            _ => Ok(()),
        }
    }

    fn decide(
        &mut self,
        entry: &entry::Entry<'_>,
        line: u64,
        on_denial: &mut impl FnMut(Denied<'_>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let now = self.read.note(entry);
        let mut fates = [Fate::Pass, Fate::Pass];
        for (candidate, fate) in self.candidates.iter_mut().zip(&mut fates) {
            *fate = candidate.decide(entry, now);
            if let Fate::Deny(Some(denial)) = fate {
                on_denial(Denied {
                    config: &candidate.name,
                    line,
                    at: now,
                    rule: &candidate.tally.rules[denial.rule].name,
                    key: &denial.key,
                    wait: denial.wait,
                })
                .map_err(Failure::Telling)?;
            }
        }
        if let Some(comparison) = &mut self.comparison {
            comparison.note(&fates);
        }
        Ok(())
    }
}

impl Log {
    /// Counts a request and says when it comes: never before one that came earlier.
    fn note(&mut self, entry: &entry::Entry<'_>) -> Micros {
        let at = entry.at.unwrap_or(Micros::ZERO);
        let now = self.last.map_or(at, |last| last.max(at));
        self.requests += 1;
        self.out_of_order += u64::from(at < now);
        self.without_address += u64::from(entry.from.is_none());
        self.first.get_or_insert(now);
        self.last = Some(now);
        if self.example.is_none() {
            self.example = Some(shown(format!("{} {}", entry.method, entry.path()).as_bytes()));
        }
        now
    }

    /// Is this a day or more ahead of everything before, or the very first?
    fn leaps_to(&self, at: Option<Micros>) -> bool {
        let at = at.unwrap_or(Micros::ZERO);
        self.last.is_none_or(|last| at > last.saturating_add(Leap::LENGTH))
    }

    fn note_malformed(&mut self, line: u64, why: &'static str, bytes: &[u8]) {
        self.malformed += 1;
        if self.examples.len() < Replay::EXAMPLES {
            self.examples.push(Malformed { line, why, text: shown(bytes) });
        }
    }
}

/// The beginning of a text that somebody else wrote, with everything escaped that acts instead of being seen.
fn shown(bytes: &[u8]) -> String {
    const MAX_LEN: usize = 120;
    let mut text = String::new();
    for chunk in bytes[..bytes.len().min(MAX_LEN)].utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_hidden(c) { text.extend(c.escape_default()) } else { text.push(c) }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|byte| text.extend(std::ascii::escape_default(*byte).map(char::from)));
    }
    if bytes.len() > MAX_LEN {
        text.push('…');
    }
    text
}

/// An instant for people to read, in UTC.
fn instant_text(at: Micros) -> String {
    let micros = i64::try_from(at.get()).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros)
        .map_or_else(|_| format!("{} us", at.get()), |at| at.to_string())
}
