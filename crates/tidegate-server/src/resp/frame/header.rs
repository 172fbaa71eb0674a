//! The lengths that stand in front of arrays and bulk strings.

use super::ProtocolError;

/// The number behind a `*` or a `$`, and where its line ends.
pub(super) struct Header {
    pub(super) number: usize,
    pub(super) end: usize,
}

/// How many elements the array has; none if it is null.
pub(super) fn array_header(frame: &[u8], cap: usize) -> Result<Option<Header>, ProtocolError> {
    const NULL: &[u8] = b"*-1\r\n";
    if frame.get(1) == Some(&b'-') {
        return if frame.starts_with(NULL) {
            Ok(Some(Header { number: 0, end: NULL.len() }))
        } else if NULL.starts_with(frame) {
            Ok(None)
        } else {
            Err(ProtocolError::InvalidArrayLength)
        };
    }
    number(frame, 1, cap).or_invalid(ProtocolError::InvalidArrayLength, ProtocolError::TooManyWords)
}

/// How long the bulk string is that begins at `at`.
pub(super) fn bulk_header(
    frame: &[u8],
    at: usize,
    cap: usize,
) -> Result<Option<Header>, ProtocolError> {
    match frame.get(at) {
        None => Ok(None),
        Some(b'$') => number(frame, at + 1, cap)
            .or_invalid(ProtocolError::InvalidBulkLength, ProtocolError::BulkTooLong),
        Some(_) => Err(ProtocolError::ExpectedBulk),
    }
}

/// What became of reading a number.
enum Number {
    Unfinished,
    Invalid,
    TooBig,
    Read(Header),
}

impl Number {
    fn or_invalid(
        self,
        invalid: ProtocolError,
        too_big: ProtocolError,
    ) -> Result<Option<Header>, ProtocolError> {
        match self {
            Self::Unfinished => Ok(None),
            Self::Invalid => Err(invalid),
            Self::TooBig => Err(too_big),
            Self::Read(header) => Ok(Some(header)),
        }
    }
}

/// Digits without a sign or a needless zero, up to CRLF. It is too big at the first digit that
/// takes it beyond `cap`, so there is no end of digits to wait for.
fn number(frame: &[u8], start: usize, cap: usize) -> Number {
    let digits = frame.get(start..).unwrap_or_default();
    let mut number: usize = 0;
    for (place, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' if place == 0 || number > 0 => {
                number = number.saturating_mul(10).saturating_add(usize::from(byte - b'0'));
                if number > cap {
                    return Number::TooBig;
                }
            }
            b'\r' if place > 0 => {
                return match digits.get(place + 1) {
                    None => Number::Unfinished,
                    Some(b'\n') => Number::Read(Header { number, end: start + place + 2 }),
                    Some(_) => Number::Invalid,
                };
            }
            _ => return Number::Invalid,
        }
    }
    Number::Unfinished
}
