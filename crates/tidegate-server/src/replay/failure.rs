//! Why a log cannot be replayed.

use std::error::Error;
use std::{fmt, io};

use super::Format;

/// Why a log cannot be replayed.
#[derive(Debug)]
pub enum Failure {
    /// It cannot be read.
    Unreadable(String, io::Error),
    /// There is nothing in it.
    Empty(String),
    /// Nobody knows how it is written.
    NoFormat(String),
    /// The first row of a table does not say what the columns are.
    NoHeader(String, &'static str),
    /// Not one line is a request.
    NoRequests {
        /// The log.
        log: String,
        /// How many lines could not be read.
        malformed: u64,
        /// What they were taken for.
        format: Format,
        /// What is wrong with the first of them.
        why: Option<String>,
    },
    /// Whoever wants to know of denials cannot be told.
    Telling(io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KNOWN: &str = "combined (nginx, Apache), json (a JSON object per line, as Envoy writes) or csv (with a header row)";
        match self {
            Self::Unreadable(log, _) => {
                write!(f, "cannot read {log:?}; name an access log, or - for standard input")
            }
            Self::Empty(log) => {
                write!(f, "{log:?} is empty; name a log with requests in it, perhaps yesterday's")
            }
            Self::NoFormat(log) => {
                write!(
                    f,
                    "cannot tell how {log:?} is written; if it is {KNOWN}, say so with --format"
                )
            }
            Self::NoHeader(log, why) => write!(
                f,
                "{log:?}: {why}; the first row names the columns, like time,method,path,host,client_ip,header:x-api-key"
            ),
            Self::NoRequests { log, malformed, format, why } => {
                let why = why.as_deref().unwrap_or("no line but the first");
                write!(
                    f,
                    "none of {malformed} lines of {log:?} can be read as {} ({why}); --format says that it is {KNOWN}",
                    format.name()
                )
            }
            Self::Telling(_) => f.write_str("cannot write the report"),
        }
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreadable(_, error) | Self::Telling(error) => Some(error),
            _ => None,
        }
    }
}
