//! Log formats: detection and parsing of lines. Imports: log_entry.

mod combined;
mod csv;
mod field;
mod json;
mod timestamp;

use self::csv::CsvColumns;
use self::timestamp::CommonLogTime;
use super::log_entry::{AccessLogEntry, LineError};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessLogFormat {
    /// The common or combined format of nginx and Apache.
    Combined,
    /// One JSON object per line.
    Json,
    /// CSV with a header row.
    Csv,
}

impl AccessLogFormat {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Json => "json",
            Self::Csv => "csv",
        }
    }

    /// Detects the format by the first line that matches one.
    pub(crate) fn detect(beginning: &[u8]) -> Option<Self> {
        const LINES: usize = 50;
        let lines = beginning
            .split(|&b| b == b'\n')
            .map(<[u8]>::trim_ascii)
            .filter(|line| !line.is_empty());
        let of_line = |(i, line): (usize, &[u8])| {
            if line.starts_with(b"{") {
                Some(Self::Json)
            } else if combined::parse(line, &mut CommonLogTime::default()).is_ok() {
                Some(Self::Combined)
            } else {
                (i == 0 && CsvColumns::new(line).is_ok()).then_some(Self::Csv)
            }
        };
        lines.take(LINES).enumerate().find_map(of_line)
    }
}

/// Parses lines to requests.
#[derive(Debug)]
pub(crate) enum EntryReader {
    Combined(CommonLogTime),
    Json,
    /// `None` until the header row is read.
    Csv(Option<Box<CsvColumns>>),
}

#[expect(clippy::large_enum_variant, reason = "made once a line, and never kept")]
pub(crate) enum ParsedLine<'a> {
    Request(AccessLogEntry<'a>),
    /// Header row of a CSV file.
    Header,
    Malformed(LineError),
    /// The header row is invalid; no other line can be parsed.
    NoHeader(LineError),
}

impl EntryReader {
    pub(crate) fn new(format: AccessLogFormat) -> Self {
        match format {
            AccessLogFormat::Combined => Self::Combined(CommonLogTime::default()),
            AccessLogFormat::Json => Self::Json,
            AccessLogFormat::Csv => Self::Csv(None),
        }
    }

    pub(crate) fn read<'a>(&'a mut self, line: &'a [u8]) -> ParsedLine<'a> {
        let entry = match self {
            Self::Combined(time) => combined::parse(line, time),
            Self::Json => json::parse(line),
            Self::Csv(Some(columns)) => columns.parse(line),
            Self::Csv(columns) => {
                return match CsvColumns::new(line) {
                    Ok(read) => {
                        *columns = Some(Box::new(read));
                        ParsedLine::Header
                    }
                    Err(error) => ParsedLine::NoHeader(error),
                };
            }
        };
        match entry {
            Ok(entry) => ParsedLine::Request(entry),
            Err(error) => ParsedLine::Malformed(error),
        }
    }
}
