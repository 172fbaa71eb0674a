//! Why a log cannot be replayed.

use std::error::Error;
use std::{fmt, io};

use super::AccessLogFormat;

/// Why a log cannot be replayed.
#[derive(Debug)]
pub(crate) enum ReplayError {
    Unreadable(String, io::Error),
    Empty(String),
    /// The format was not given and cannot be detected.
    NoFormat(String),
    /// The first row of a CSV file has no column for the time or the path.
    NoHeader(String, &'static str),
    /// No line is a request.
    NoRequests {
        log: String,
        /// Number of malformed lines.
        malformed: u64,
        format: AccessLogFormat,
        /// Error and start of the first malformed line.
        why: Option<String>,
    },
    /// A denial could not be written.
    Output(io::Error),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KNOWN: &str = "combined (nginx, Apache), json (one JSON object per line, as written \
                             by Envoy) or csv (with a header row)";
        match self {
            Self::Unreadable(log, _) => {
                write!(f, "cannot read {log:?}; name an access log, or - for standard input")
            }
            Self::Empty(log) => write!(f, "{log:?} is empty"),
            Self::NoFormat(log) => {
                write!(f, "cannot detect the format of {log:?}; set --format to {KNOWN}")
            }
            Self::NoHeader(log, why) => write!(
                f,
                "{log:?}: {why}; the first row must name the columns, for example \
                 time,method,path,host,client_ip,header:x-api-key"
            ),
            Self::NoRequests { log, malformed, format, why } => {
                let why = why.as_deref().unwrap_or("only a header row");
                write!(
                    f,
                    "none of {malformed} lines of {log:?} is valid {} ({why}); set --format to \
                     {KNOWN}",
                    format.name()
                )
            }
            Self::Output(_) => f.write_str("cannot write the report"),
        }
    }
}

impl Error for ReplayError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreadable(_, error) | Self::Output(error) => Some(error),
            _ => None,
        }
    }
}
