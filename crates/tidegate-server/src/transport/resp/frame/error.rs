//! Protocol errors and their replies.

use std::error::Error;
use std::fmt;

/// An error after which the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The length of an array is not a number.
    InvalidArrayLength,
    /// The length of a bulk string is not a number.
    InvalidBulkLength,
    /// An element of an array is not a bulk string.
    ExpectedBulk,
    /// A bulk string is not followed by CRLF.
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
    /// An HTTP request.
    Http,
}

impl ProtocolError {
    /// The error to send before the connection is closed; none to HTTP.
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
        let text = self.reply().unwrap_or("HTTP request on the RESP listener");
        f.write_str(text.strip_prefix("ERR Protocol error: ").unwrap_or(text))
    }
}

impl Error for ProtocolError {}
