//! Length prefixes of arrays and bulk strings.

use super::error::ProtocolError;

/// The number after `*` or `$`, and the end of its line.
pub(crate) struct LengthHeader {
    pub(crate) number: usize,
    pub(crate) end: usize,
}

/// Number of elements of the array, 0 if it is null; `None` if the line is incomplete.
pub(crate) fn array_header(
    frame: &[u8],
    cap: usize,
) -> Result<Option<LengthHeader>, ProtocolError> {
    const NULL: &[u8] = b"*-1\r\n";
    if frame.get(1) == Some(&b'-') {
        return if frame.starts_with(NULL) {
            Ok(Some(LengthHeader { number: 0, end: NULL.len() }))
        } else if NULL.starts_with(frame) {
            Ok(None)
        } else {
            Err(ProtocolError::InvalidArrayLength)
        };
    }
    number(frame, 1, cap).or_invalid(ProtocolError::InvalidArrayLength, ProtocolError::TooManyWords)
}

/// Length of the bulk string at `at`; `None` if the line is incomplete.
pub(crate) fn bulk_header(
    frame: &[u8],
    at: usize,
    cap: usize,
) -> Result<Option<LengthHeader>, ProtocolError> {
    match frame.get(at) {
        None => Ok(None),
        Some(b'$') => number(frame, at + 1, cap)
            .or_invalid(ProtocolError::InvalidBulkLength, ProtocolError::BulkTooLong),
        Some(_) => Err(ProtocolError::ExpectedBulk),
    }
}

/// Result of parsing a length.
enum LengthField {
    Incomplete,
    Invalid,
    TooBig,
    Read(LengthHeader),
}

impl LengthField {
    fn or_invalid(
        self,
        invalid: ProtocolError,
        too_big: ProtocolError,
    ) -> Result<Option<LengthHeader>, ProtocolError> {
        match self {
            Self::Incomplete => Ok(None),
            Self::Invalid => Err(invalid),
            Self::TooBig => Err(too_big),
            Self::Read(header) => Ok(Some(header)),
        }
    }
}

/// Digits up to CRLF, without a sign or a leading zero. Too big at the first digit that exceeds
/// `cap`, so that a client cannot send digits without end.
fn number(frame: &[u8], start: usize, cap: usize) -> LengthField {
    let digits = frame.get(start..).unwrap_or_default();
    let mut number: usize = 0;
    for (place, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' if place == 0 || number > 0 => {
                number = number.saturating_mul(10).saturating_add(usize::from(byte - b'0'));
                if number > cap {
                    return LengthField::TooBig;
                }
            }
            b'\r' if place > 0 => {
                return match digits.get(place + 1) {
                    None => LengthField::Incomplete,
                    Some(b'\n') => {
                        LengthField::Read(LengthHeader { number, end: start + place + 2 })
                    }
                    Some(_) => LengthField::Invalid,
                };
            }
            _ => return LengthField::Invalid,
        }
    }
    LengthField::Incomplete
}
