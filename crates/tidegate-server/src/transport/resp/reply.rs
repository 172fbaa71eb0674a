//! RESP2 and RESP3 encoder. Imports nothing of the crate.

/// Protocol version of a connection; `HELLO` sets it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum RespVersion {
    /// Until `HELLO` sets another.
    #[default]
    Resp2,
    /// Has maps and a null type.
    Resp3,
}

impl RespVersion {
    /// Its number, as in `HELLO 3`.
    pub const fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Encodes replies one after the other, in the protocol version of the connection.
///
/// Simple strings are `'static`, and line breaks in errors become spaces: bytes of a caller cannot
/// end a reply.
///
/// ```
/// use tidegate_server::internal::transport::resp::reply::ReplyEncoder;
/// let mut replies = ReplyEncoder::default();
/// replies.simple("OK").array(2).integer(-1).bulk(b"a\r\nb");
/// assert_eq!(replies.as_bytes(), b"+OK\r\n*2\r\n:-1\r\n$4\r\na\r\nb\r\n");
/// ```
#[derive(Clone, Default, Debug)]
pub struct ReplyEncoder {
    bytes: Vec<u8>,
    protocol: RespVersion,
}

impl ReplyEncoder {
    /// Protocol version of the replies.
    pub fn protocol(&self) -> RespVersion {
        self.protocol
    }

    /// Sets the version of the replies that follow.
    pub fn set_protocol(&mut self, protocol: RespVersion) {
        self.protocol = protocol;
    }

    /// The bytes since the last `clear`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes since the last `clear`, without a copy.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Number of bytes since the last `clear`.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// No bytes since the last `clear`.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Removes the bytes after the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Bytes that the buffer takes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Clears the buffer and keeps at most `keep` bytes of capacity, so that one long reply does
    /// not take memory for as long as its connection.
    pub fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }

    /// A simple string, such as `OK`. Control characters become spaces.
    pub fn simple(&mut self, text: &'static str) -> &mut Self {
        self.line(b'+', text)
    }

    /// An error. The first word of `text` is its code, such as `ERR` or `NOAUTH`. Control
    /// characters become spaces.
    pub fn error(&mut self, text: &str) -> &mut Self {
        self.line(b'-', text)
    }

    /// A number in decimal digits.
    pub fn integer(&mut self, value: i64) -> &mut Self {
        let sign = if value < 0 { Sign::Minus } else { Sign::None };
        self.number(b':', sign, value.unsigned_abs())
    }

    /// A bulk string of any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// An absent value: a null bulk string in RESP2.
    pub fn null(&mut self) -> &mut Self {
        self.bytes.extend_from_slice(match self.protocol {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
        self
    }

    /// Begins an array; the next `len` replies are its elements.
    pub fn array(&mut self, len: usize) -> &mut Self {
        self.count(b'*', len)
    }

    /// Begins a map; the next `len` pairs of replies are its keys and values. In RESP2 it is a flat
    /// array.
    pub fn map(&mut self, len: usize) -> &mut Self {
        match self.protocol {
            RespVersion::Resp2 => self.array(len.saturating_mul(2)),
            RespVersion::Resp3 => self.count(b'%', len),
        }
    }

    fn line(&mut self, kind: u8, text: &str) -> &mut Self {
        self.bytes.push(kind);
        self.bytes.extend(text.bytes().map(|b| if b.is_ascii_control() { b' ' } else { b }));
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    fn count(&mut self, kind: u8, count: usize) -> &mut Self {
        self.number(kind, Sign::None, count as u64)
    }

    /// Formats from the last digit to the first, and then copies once.
    fn number(&mut self, kind: u8, sign: Sign, mut value: u64) -> &mut Self {
        const MAX_DIGITS: usize = 20;
        let mut line = [b'\r'; 2 + MAX_DIGITS + 2];
        let mut first = line.len() - 1;
        line[first] = b'\n';
        first -= 1;
        loop {
            first -= 1;
            line[first] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        if sign == Sign::Minus {
            first -= 1;
            line[first] = b'-';
        }
        first -= 1;
        line[first] = kind;
        self.bytes.extend_from_slice(&line[first..]);
        self
    }
}

/// Sign of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sign {
    None,
    Minus,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(
        protocol: RespVersion,
        write: impl FnOnce(&mut ReplyEncoder) -> &mut ReplyEncoder,
    ) -> String {
        let mut encoder = ReplyEncoder::default();
        encoder.set_protocol(protocol);
        write(&mut encoder);
        String::from_utf8(encoder.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn each_version_has_its_encoding() {
        type Write = fn(&mut ReplyEncoder) -> &mut ReplyEncoder;
        let table: [(Write, &str, &str); 12] = [
            (|e| e.simple("OK"), "+OK\r\n", "+OK\r\n"),
            (|e| e.error("ERR no"), "-ERR no\r\n", "-ERR no\r\n"),
            (|e| e.integer(42), ":42\r\n", ":42\r\n"),
            (|e| e.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (|e| e.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n"),
            (|e| e.bulk(&[b'x'; 10]), "$10\r\nxxxxxxxxxx\r\n", "$10\r\nxxxxxxxxxx\r\n"),
            (|e| e.null(), "$-1\r\n", "_\r\n"),
            (|e| e.array(0), "*0\r\n", "*0\r\n"),
            (|e| e.array(64), "*64\r\n", "*64\r\n"),
            (|e| e.map(0), "*0\r\n", "%0\r\n"),
            (|e| e.map(3), "*6\r\n", "%3\r\n"),
            (|e| e.map(1).simple("a").null(), "*2\r\n+a\r\n$-1\r\n", "%1\r\n+a\r\n_\r\n"),
        ];
        for (write, second, third) in table {
            assert_eq!(written(RespVersion::Resp2, write), second);
            assert_eq!(written(RespVersion::Resp3, write), third);
        }
    }

    #[test]
    fn integers_read_as_the_standard_library_writes_them() {
        let mut values = vec![0, i64::MIN, i64::MIN + 1, i64::MAX, i64::MAX - 1];
        for place in 0..19 {
            let power = 10_i64.pow(place);
            values.extend([power - 1, power, power + 1, -power - 1, -power, 1 - power]);
        }
        for value in values {
            let text = written(RespVersion::Resp2, |e| e.integer(value));
            assert_eq!(text, format!(":{value}\r\n"));
        }
        assert_eq!(
            written(RespVersion::Resp2, |e| e.array(usize::MAX)),
            format!("*{}\r\n", usize::MAX)
        );
        assert_eq!(
            written(RespVersion::Resp2, |e| e.map(usize::MAX)),
            format!("*{}\r\n", usize::MAX)
        );
    }

    #[test]
    fn a_line_has_no_control_characters() {
        let text = "ERR a\r\nb\nc\0\u{7f}\u{e9}";
        assert_eq!(written(RespVersion::Resp3, |e| e.error(text)), "-ERR a  b c  \u{e9}\r\n");
        assert_eq!(written(RespVersion::Resp3, |e| e.simple(text)), "+ERR a  b c  \u{e9}\r\n");
    }

    #[test]
    fn clear_keeps_the_version_and_little_memory() {
        let mut encoder = ReplyEncoder::default();
        assert!(encoder.is_empty());
        encoder.set_protocol(RespVersion::Resp3);
        encoder.bulk(&[0; 100_000]);
        assert_eq!(encoder.len(), 100_011);
        encoder.clear(4_096);
        assert!(encoder.is_empty() && encoder.bytes.capacity() < 8_192);
        assert_eq!(encoder.protocol().number(), 3);
        assert_eq!(encoder.null().as_bytes(), b"_\r\n");
    }
}
