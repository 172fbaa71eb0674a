//! Replies, written as bytes.

/// The version of the protocol that a connection speaks. `HELLO` chooses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Protocol {
    /// What every connection speaks at first.
    #[default]
    Resp2,
    /// With maps and a null of its own.
    Resp3,
}

impl Protocol {
    /// Its number, as in `HELLO 3`.
    pub const fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Writes replies one behind the other, in the protocol of the connection.
///
/// A line of text or an error takes only what was written into this program; what a caller sent
/// goes back as a bulk string, behind its length, or not at all.
///
/// ```
/// use tidegate_server::resp::reply::Encoder;
/// let mut replies = Encoder::default();
/// replies.simple("OK").array(2).integer(-1).bulk(b"a\r\nb");
/// assert_eq!(replies.as_bytes(), b"+OK\r\n*2\r\n:-1\r\n$4\r\na\r\nb\r\n");
/// ```
#[derive(Clone, Default, Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    protocol: Protocol,
}

impl Encoder {
    /// The protocol it writes.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Writes `protocol` from here on. What is written already stays as it is.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// What was written since it was last cleared.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many bytes were written since it was last cleared.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing was written since it was last cleared.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes back what was written beyond the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Forgets what was written, once it is sent, and keeps at most `keep` bytes of memory for what
    /// comes: one long reply does not stay in memory for as long as its connection.
    pub fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }

    /// A line of text, such as `OK`. A control character in it would be written as a space.
    pub fn simple(&mut self, text: &'static str) -> &mut Self {
        self.line(b'+', text)
    }

    /// An error. The first word of `text` is its kind, such as `ERR` or `NOAUTH`. A control
    /// character in it would be written as a space.
    pub fn error(&mut self, text: &'static str) -> &mut Self {
        self.line(b'-', text)
    }

    /// A whole number.
    pub fn integer(&mut self, value: i64) -> &mut Self {
        let sign = if value < 0 { Sign::Minus } else { Sign::None };
        self.number(b':', sign, value.unsigned_abs())
    }

    /// A string of any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// No value.
    pub fn null(&mut self) -> &mut Self {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
        self
    }

    /// Begins an array: the next `len` replies are its elements.
    pub fn array(&mut self, len: usize) -> &mut Self {
        self.count(b'*', len)
    }

    /// Begins a map: the next `len` pairs of replies are its keys and values. RESP2 has no maps and
    /// gets an array of them all.
    pub fn map(&mut self, len: usize) -> &mut Self {
        match self.protocol {
            Protocol::Resp2 => self.array(len.saturating_mul(2)),
            Protocol::Resp3 => self.count(b'%', len),
        }
    }

    fn line(&mut self, kind: u8, text: &'static str) -> &mut Self {
        self.bytes.push(kind);
        self.bytes.extend(text.bytes().map(|b| if b.is_ascii_control() { b' ' } else { b }));
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    fn count(&mut self, kind: u8, count: usize) -> &mut Self {
        self.number(kind, Sign::None, count as u64)
    }

    /// Written from its end to its front, and then copied in one go.
    fn number(&mut self, kind: u8, sign: Sign, mut value: u64) -> &mut Self {
        const MOST_DIGITS: usize = 20;
        let mut line = [b'\r'; 2 + MOST_DIGITS + 2];
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

/// What is written before the digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sign {
    None,
    Minus,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Encoder) -> &mut Encoder) -> String {
        let mut encoder = Encoder::default();
        encoder.set_protocol(protocol);
        write(&mut encoder);
        String::from_utf8(encoder.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn each_protocol_has_its_bytes() {
        type Write = fn(&mut Encoder) -> &mut Encoder;
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
            assert_eq!(written(Protocol::Resp2, write), second);
            assert_eq!(written(Protocol::Resp3, write), third);
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
            let text = written(Protocol::Resp2, |e| e.integer(value));
            assert_eq!(text, format!(":{value}\r\n"));
        }
        assert_eq!(
            written(Protocol::Resp2, |e| e.array(usize::MAX)),
            format!("*{}\r\n", usize::MAX)
        );
        assert_eq!(written(Protocol::Resp2, |e| e.map(usize::MAX)), format!("*{}\r\n", usize::MAX));
    }

    #[test]
    fn a_line_is_one_line_whatever_its_text() {
        let text = "ERR a\r\nb\nc\0\u{7f}\u{e9}";
        assert_eq!(written(Protocol::Resp3, |e| e.error(text)), "-ERR a  b c  \u{e9}\r\n");
        assert_eq!(written(Protocol::Resp3, |e| e.simple(text)), "+ERR a  b c  \u{e9}\r\n");
    }

    #[test]
    fn a_cleared_encoder_keeps_its_protocol_and_little_memory() {
        let mut encoder = Encoder::default();
        assert!(encoder.is_empty());
        encoder.set_protocol(Protocol::Resp3);
        encoder.bulk(&[0; 100_000]);
        assert_eq!(encoder.len(), 100_011);
        encoder.clear(4_096);
        assert!(encoder.is_empty() && encoder.bytes.capacity() < 8_192);
        assert_eq!(encoder.protocol().number(), 3);
        assert_eq!(encoder.null().as_bytes(), b"_\r\n");
    }
}
