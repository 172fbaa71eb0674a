//! Why a connection cannot go on, and what is said about it.

use std::error::Error;
use std::fmt;

/// Why a connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The length of an array is not a number.
    InvalidArrayLength,
    /// The length of a bulk string is not a number.
    InvalidBulkLength,
    /// An element of an array is not a bulk string.
    ExpectedBulk,
    /// A bulk string goes on behind its end.
    UnendedBulk,
    /// A quote that is not closed, or not followed by a space.
    UnbalancedQuotes,
    /// More elements or words than [`Caps::words`](super::Caps::words).
    TooManyWords,
    /// A bulk string or a word longer than [`Caps::bulk`](super::Caps::bulk).
    BulkTooLong,
    /// An array longer than [`Caps::frame`](super::Caps::frame).
    FrameTooLong,
    /// A line longer than [`Caps::line`](super::Caps::line).
    LineTooLong,
    /// A request that is meant for a web server.
    Http,
}

impl ProtocolError {
    /// The error to send before the connection is closed. To HTTP nothing is said.
    pub const fn reply(self) -> Option<&'static str> {
        Some(match self {
            Self::InvalidArrayLength => "ERR Protocol error: invalid multibulk length",
            Self::InvalidBulkLength => "ERR Protocol error: invalid bulk length",
            Self::ExpectedBulk => {
                "ERR Protocol error: expected '$'; send a flat array of bulk strings"
            }
            Self::UnendedBulk => "ERR Protocol error: expected CRLF at the end of a bulk string",
            Self::UnbalancedQuotes => "ERR Protocol error: unbalanced quotes in request",
            Self::TooManyWords => {
                "ERR Protocol error: too many arguments; send fewer, or authenticate first"
            }
            Self::BulkTooLong => {
                "ERR Protocol error: bulk string too long; send less, or authenticate first"
            }
            Self::FrameTooLong => {
                "ERR Protocol error: request too long; send less, or authenticate first"
            }
            Self::LineTooLong => {
                "ERR Protocol error: too big inline request; send an array of bulk strings"
            }
            Self::Http => return None,
        })
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.reply().unwrap_or("an HTTP request came to the port of the Redis protocol");
        f.write_str(text.strip_prefix("ERR Protocol error: ").unwrap_or(text))
    }
}

impl Error for ProtocolError {}
