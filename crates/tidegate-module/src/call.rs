//! What a command needs from the server, and its reply.

use crate::value::Found;

/// One call of a command: its arguments, the clock, and the keys that it names.
pub trait CommandCall<'a> {
    /// An open key.
    type Key;

    /// An argument; 0 is the name of the command.
    fn argument(&self, index: usize) -> Option<&'a [u8]>;

    /// The clock, in us since the Unix epoch.
    fn now(&self) -> u64;

    /// Opens the key that an argument names.
    fn open(&mut self, argument: usize) -> Option<Self::Key>;

    /// What is stored under a key.
    fn read(&mut self, key: &Self::Key) -> Found;

    /// Replaces bytes of the string that was found, and keeps its TTL.
    fn overwrite(&mut self, key: &mut Self::Key, offset: usize, bytes: &[u8]);

    /// Sets a string that expires at an instant, in ms since the Unix epoch.
    fn set(&mut self, key: &mut Self::Key, value: &[u8], expires_ms: u64);
}

/// The reply of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A bulk string.
    Bytes(Vec<u8>),
    /// One integer.
    Integer(i64),
    /// The five integers of redis-cell.
    Throttle([i64; 5]),
    /// The six integers and two names of a decision.
    Decision([i64; 6]),
}

/// The reply, or the text of an error.
pub type ReplyResult = Result<Reply, &'static str>;

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";

/// An integer from 0 to 2^53, in decimal digits. A leading zero is refused, as the server does when
/// it reads the number of keys: it would find no keys and check neither permissions nor slots.
pub(crate) fn integer(word: &[u8]) -> Result<u64, &'static str> {
    const MAX_DIGITS: usize = 16;
    let is_padded = word.len() > 1 && word.starts_with(b"0");
    if !(1..=MAX_DIGITS).contains(&word.len()) || is_padded || !word.iter().all(u8::is_ascii_digit)
    {
        return Err(NOT_AN_INTEGER);
    }
    let number = word.iter().fold(0, |number, digit| 10 * number + u64::from(digit - b'0'));
    if number <= 1 << 53 { Ok(number) } else { Err(NOT_AN_INTEGER) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_that_the_server_reads_as_a_number_of_keys() {
        assert_eq!(["0", "1", "10"].map(|word| integer(word.as_bytes())), [Ok(0), Ok(1), Ok(10)]);
        for word in ["", "01", "00", "+1", "-1", " 1", "1 ", "9007199254740993", "x"] {
            assert_eq!(integer(word.as_bytes()), Err(NOT_AN_INTEGER), "{word:?}");
        }
    }
}
