//! Replays an access log through policies and reports denials. Imports: table.
//!
//! Each line is decided by the same policy code and the same engine as a request to a server, on a
//! clock set to the time of the line. Servers log requests when they end, so that times go back a
//! little; the clock does not, and such a line uses the time of the line before.

mod comparison;
mod counts;
mod error;
mod format;
mod input;
mod lines;
mod log_entry;
mod policy_run;
mod report_json;
mod report_text;
mod sizing;
mod time_jump;
mod timeline;
mod top_keys;

use std::fmt;
use std::io;

use jiff::Timestamp;
use tidegate::{Key, Micros, Wait};

use self::comparison::Comparison;
use self::counts::{CountOptions, RequestOutcome};
pub(crate) use self::error::ReplayError;
pub(crate) use self::format::AccessLogFormat;
use self::format::{EntryReader, ParsedLine};
pub(crate) use self::input::{LogInput, ReadProgress};
use self::lines::{LineReader, RawLine};
use self::log_entry::AccessLogEntry;
use self::policy_run::PolicyRun;
pub(crate) use self::report_text::OutputStyle;
pub(crate) use self::sizing::Percentile;
use self::time_jump::TimeJump;
use tidegate_config::LoadedPolicy;
use tidegate_server::internal::text::escape::display_key;

/// A replay of one log through one or two policies.
pub(crate) struct Replay {
    runs: Vec<PolicyRun>,
    comparison: Option<Comparison>,
    suggest: Option<Percentile>,
    summary: LogSummary,
}

/// Counts of lines and requests of the log.
#[derive(Default, Debug)]
struct LogSummary {
    log: String,
    format: Option<AccessLogFormat>,
    lines: u64,
    requests: u64,
    malformed: u64,
    examples: Vec<Malformed>,
    /// Lines older than a line before them.
    out_of_order: u64,
    without_address: u64,
    first: Option<Micros>,
    last: Option<Micros>,
    /// Error that ended the log early.
    cut_short: Option<String>,
    /// The first request, shown if no rule matches any.
    example: Option<String>,
}

/// A line that is not a request.
#[derive(Debug)]
struct Malformed {
    line: u64,
    why: &'static str,
    /// Start of the line, escaped.
    text: String,
}

/// A request that a policy denies.
#[derive(Debug)]
pub(crate) struct DeniedRequest<'a> {
    pub(crate) config: &'a str,
    /// Line number, from 1.
    pub(crate) line: u64,
    pub(crate) at: Micros,
    /// Rule of the most restrictive limit.
    pub(crate) rule: &'a str,
    /// As displayed.
    pub(crate) key: &'a str,
    /// `Retry-After` of the response.
    pub(crate) wait: Wait,
}

impl fmt::Display for DeniedRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, line, at, rule, key, wait } = self;
        let at = time_text(*at);
        write!(f, "{config}: line {line} at {at} denied by {rule}, key {key:?}, retry after {wait}")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ReplayOptions {
    /// Suggest limits at which this percentage of keys is never denied.
    pub(crate) suggest: Option<Percentile>,
    pub(crate) denials: bool,
}

impl Replay {
    pub(crate) const MAX_POLICIES: usize = 2;
    /// Malformed lines that are shown.
    const MAX_EXAMPLES: usize = 5;

    /// `policies` come with their file names.
    pub(crate) fn new(policies: Vec<(String, LoadedPolicy)>, options: ReplayOptions) -> Self {
        let compares = policies.len() == Self::MAX_POLICIES;
        let count_options =
            CountOptions { sizes: options.suggest.is_some(), denials: options.denials || compares };
        let runs = policies
            .into_iter()
            .map(|(name, loaded)| PolicyRun::new(name, loaded, count_options))
            .collect();
        let comparison = compares.then(Comparison::default);
        Self { runs, comparison, suggest: options.suggest, summary: LogSummary::default() }
    }

    /// Reads a log to its end. Calls `on_denial` for each denial if [`ReplayOptions::denials`] is
    /// set or two policies are compared, and `on_progress` with the number of lines read.
    pub(crate) fn run(
        &mut self,
        input: LogInput,
        format: Option<AccessLogFormat>,
        mut on_denial: impl FnMut(DeniedRequest<'_>) -> io::Result<()>,
        mut on_progress: impl FnMut(u64),
    ) -> Result<(), ReplayError> {
        const LINES_PER_PROGRESS: u64 = 8_192;
        let log: String = input.name().into();
        self.summary.log = log.clone();
        let fail = |error: io::Error| ReplayError::Unreadable(log.clone(), error);
        let mut lines = LineReader::new(input.open().map_err(fail)?);
        let beginning = lines.peek().map_err(fail)?;
        if beginning.trim_ascii().is_empty() {
            return Err(ReplayError::Empty(log));
        }
        let detected = format.or_else(|| AccessLogFormat::detect(beginning));
        let format = detected.ok_or_else(|| ReplayError::NoFormat(log.clone()))?;
        self.summary.format = Some(format);
        let mut reader = EntryReader::new(format);
        let mut jump: Option<TimeJump> = None;
        loop {
            let number = lines.number() + 1;
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) if self.summary.lines == 0 => return Err(fail(error)),
                Err(error) => {
                    self.summary.cut_short = Some(error.to_string());
                    break;
                }
            };
            self.summary.lines = number;
            let line = match line {
                RawLine::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                RawLine::Whole(line) => line,
                RawLine::TooLong(start) => {
                    self.summary.note_malformed(number, "longer than 65536 bytes", start);
                    continue;
                }
            };
            let mut suspect = None;
            match reader.read(line) {
                ParsedLine::Request(entry)
                    if jump.is_none() && !self.summary.jumps_to(entry.at) =>
                {
                    self.decide(&entry, number, &mut on_denial)?;
                }
                ParsedLine::Request(entry) => {
                    suspect = Some(TimeJump { number, line: line.to_vec(), at: entry.at });
                }
                ParsedLine::Header => {}
                ParsedLine::Malformed(why) => self.summary.note_malformed(number, why, line),
                ParsedLine::NoHeader(why) => return Err(ReplayError::NoHeader(log, why)),
            }
            if let Some(next) = suspect {
                jump = self.after_jump(&mut reader, jump.take(), next, &mut on_denial)?;
            }
            if number.is_multiple_of(LINES_PER_PROGRESS) {
                on_progress(number);
            }
        }
        // The last line cannot make a later line out of order.
        if let Some(jump) = jump {
            self.decide_held_back(&mut reader, &jump, &mut on_denial)?;
        }
        self.summary.require_requests(format)
    }

    /// Handles a line far ahead of those before it, or after such a line. Returns the line to hold
    /// back until the next one confirms its time.
    fn after_jump(
        &mut self,
        reader: &mut EntryReader,
        jump: Option<TimeJump>,
        next: TimeJump,
        on_denial: &mut impl FnMut(DeniedRequest<'_>) -> io::Result<()>,
    ) -> Result<Option<TimeJump>, ReplayError> {
        match jump {
            Some(before) if before.is_confirmed_by(&next) => {
                self.decide_held_back(reader, &before, on_denial)?;
            }
            Some(wrong) => self.summary.note_malformed(wrong.number, TimeJump::WHY, &wrong.line),
            None => {}
        }
        if self.summary.jumps_to(next.at) {
            return Ok(Some(next));
        }
        self.decide_held_back(reader, &next, on_denial)?;
        Ok(None)
    }

    /// Decides a line that was held back because of its time.
    fn decide_held_back(
        &mut self,
        reader: &mut EntryReader,
        jump: &TimeJump,
        on_denial: &mut impl FnMut(DeniedRequest<'_>) -> io::Result<()>,
    ) -> Result<(), ReplayError> {
        match reader.read(&jump.line) {
            ParsedLine::Request(entry) => self.decide(&entry, jump.number, on_denial),
            _ => Ok(()),
        }
    }

    fn decide(
        &mut self,
        entry: &AccessLogEntry<'_>,
        line: u64,
        on_denial: &mut impl FnMut(DeniedRequest<'_>) -> io::Result<()>,
    ) -> Result<(), ReplayError> {
        let now = self.summary.note(entry);
        let mut outcomes = [RequestOutcome::Pass, RequestOutcome::Pass];
        for (run, outcome) in self.runs.iter_mut().zip(&mut outcomes) {
            *outcome = run.decide(entry, now);
            if let RequestOutcome::Deny(Some(denial)) = outcome {
                on_denial(DeniedRequest {
                    config: &run.name,
                    line,
                    at: now,
                    rule: &run.counts.rules[denial.rule].name,
                    key: &denial.key,
                    wait: denial.wait,
                })
                .map_err(ReplayError::Output)?;
            }
        }
        if let Some(comparison) = &mut self.comparison {
            comparison.note(&outcomes);
        }
        Ok(())
    }
}

impl LogSummary {
    fn require_requests(&self, format: AccessLogFormat) -> Result<(), ReplayError> {
        if self.requests > 0 {
            return Ok(());
        }
        let example = self.examples.first();
        Err(ReplayError::NoRequests {
            log: self.log.clone(),
            malformed: self.malformed,
            format,
            why: example.map(|example| format!("{}: {}", example.why, example.text)),
        })
    }

    /// Counts a request and returns its time, which is never before that of an earlier line.
    fn note(&mut self, entry: &AccessLogEntry<'_>) -> Micros {
        let at = entry.at.unwrap_or(Micros::ZERO);
        let now = self.last.map_or(at, |last| last.max(at));
        self.requests += 1;
        self.out_of_order += u64::from(at < now);
        self.without_address += u64::from(entry.from.is_none());
        self.first.get_or_insert(now);
        self.last = Some(now);
        if self.example.is_none() {
            self.example =
                Some(display_key(Key::from(&format!("{} {}", entry.method, entry.path()))));
        }
        now
    }

    /// Whether this is more than a day ahead of all lines before, or the first line.
    fn jumps_to(&self, at: Option<Micros>) -> bool {
        let at = at.unwrap_or(Micros::ZERO);
        self.last.is_none_or(|last| at > last.saturating_add(TimeJump::LENGTH))
    }

    fn note_malformed(&mut self, line: u64, why: &'static str, bytes: &[u8]) {
        self.malformed += 1;
        if self.examples.len() < Replay::MAX_EXAMPLES {
            self.examples.push(Malformed { line, why, text: display_key(bytes.into()) });
        }
    }
}

/// RFC 3339, in UTC.
fn time_text(at: Micros) -> String {
    let micros = i64::try_from(at.get()).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros)
        .map_or_else(|_| format!("{} us", at.get()), |at| at.to_string())
}
