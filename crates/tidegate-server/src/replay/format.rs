//! What kind of log it is.

use super::combined;
use super::csv::Columns;
use super::entry::{Entry, Fault};
use super::instant::CommonTime;
use super::json;

/// How a log is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// The common or combined format of nginx and Apache.
    Combined,
    /// A JSON object per line.
    Json,
    /// A table with a header row.
    Csv,
}

impl Format {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Json => "json",
            Self::Csv => "csv",
        }
    }

    /// The format of a log that begins like this, by the first of its lines that tells.
    pub(super) fn detect(beginning: &[u8]) -> Option<Self> {
        const LINES: usize = 50;
        let lines = beginning
            .split(|&b| b == b'\n')
            .map(<[u8]>::trim_ascii)
            .filter(|line| !line.is_empty());
        let of_line = |(i, line): (usize, &[u8])| {
            if line.starts_with(b"{") {
                Some(Self::Json)
            } else if combined::parse(line, &mut CommonTime::default()).is_ok() {
                Some(Self::Combined)
            } else {
                (i == 0 && Columns::new(line).is_ok()).then_some(Self::Csv)
            }
        };
        lines.take(LINES).enumerate().find_map(of_line)
    }
}

/// Makes requests of lines.
#[derive(Debug)]
pub(super) enum Reader {
    Combined(CommonTime),
    Json,
    /// Its header row comes first.
    Csv(Option<Columns>),
}

/// What a line turned out to be.
#[expect(clippy::large_enum_variant, reason = "made once a line, and never kept")]
pub(super) enum Read<'a> {
    Request(Entry<'a>),
    /// It tells what the others mean.
    Header,
    Malformed(Fault),
    /// No other line can be read without it.
    NoHeader(Fault),
}

impl Reader {
    pub(super) fn new(format: Format) -> Self {
        match format {
            Format::Combined => Self::Combined(CommonTime::default()),
            Format::Json => Self::Json,
            Format::Csv => Self::Csv(None),
        }
    }

    pub(super) fn read<'a>(&'a mut self, line: &'a [u8]) -> Read<'a> {
        let entry = match self {
            Self::Combined(time) => combined::parse(line, time),
            Self::Json => json::parse(line),
            Self::Csv(Some(columns)) => columns.parse(line),
            Self::Csv(columns) => {
                return match Columns::new(line) {
                    Ok(read) => {
                        *columns = Some(read);
                        Read::Header
                    }
                    Err(fault) => Read::NoHeader(fault),
                };
            }
        };
        match entry {
            Ok(entry) => Read::Request(entry),
            Err(fault) => Read::Malformed(fault),
        }
    }
}
