//! Asks the Redis door.

use std::sync::Arc;

use super::wire::{Stream, Wire};
use super::{Answer, Trouble};
use crate::bench::template::Template;

/// One connection to the Redis door.
pub(crate) struct Resp {
    wire: Wire,
    question: Arc<Template>,
    asked: Vec<u8>,
}

impl Resp {
    /// Shows the token, if there is one.
    pub(crate) async fn new(
        stream: Box<dyn Stream>,
        question: Arc<Template>,
        token: Option<&str>,
    ) -> Result<Self, Trouble> {
        let mut wire = Wire::new(stream);
        if let Some(token) = token {
            wire.send(&command(&["AUTH", token])).await?;
            let (len, reply) = read(&mut wire).await?;
            wire.consume(len);
            if let Reply::Error(told) = reply {
                return Err(refusal(&told));
            }
        }
        Ok(Self { wire, question, asked: Vec::new() })
    }

    pub(crate) async fn ask(
        &mut self,
        keys: &[u32],
        answers: &mut Vec<Answer>,
    ) -> Result<(), Trouble> {
        self.asked.clear();
        keys.iter().for_each(|key| self.question.write(*key, &mut self.asked));
        self.wire.send(&self.asked).await?;
        for _ in keys {
            let (len, reply) = read(&mut self.wire).await?;
            self.wire.consume(len);
            answers.push(match reply {
                Reply::Array(Some(1)) => Answer::Allow,
                Reply::Array(Some(0)) => Answer::Deny,
                Reply::Error(told) => Answer::Trouble(refusal(&told)),
                Reply::Array(_) | Reply::Other => {
                    return Err(Trouble::garbled("this is no decision; is it a tidegate server?"));
                }
            });
        }
        Ok(())
    }
}

/// The bytes of a command.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
    bytes.into_bytes()
}

/// An error by its first word, which is its kind.
fn refusal(told: &str) -> Trouble {
    let kind = told.split(' ').next().filter(|kind| kind.len() <= 16).unwrap_or("ERR");
    Trouble::new(format!("resp {kind}"), told)
}

/// A reply, as far as it matters here.
#[derive(PartialEq, Eq, Debug)]
enum Reply {
    Error(String),
    /// An array, by its first element if that is a number.
    Array(Option<i64>),
    Other,
}

/// The next reply and its length.
async fn read(wire: &mut Wire) -> Result<(usize, Reply), Trouble> {
    loop {
        match parse(wire.received())? {
            Some(parsed) => return Ok(parsed),
            None => wire.receive().await?,
        }
    }
}

/// The first reply of these bytes and its length; `None` if it is not all there.
fn parse(bytes: &[u8]) -> Result<Option<(usize, Reply)>, Trouble> {
    let Some((line, mut len)) = line(bytes) else { return Ok(None) };
    let (kind, text) = line.split_first().ok_or_else(garbled)?;
    match kind {
        b'-' => Ok(Some((len, Reply::Error(String::from_utf8_lossy(text).into_owned())))),
        b'*' => {
            let mut first = None;
            for nth in 0..number(text)?.max(0) {
                let Some((more, value)) = element(&bytes[len..])? else { return Ok(None) };
                len += more;
                first = if nth == 0 { value } else { first };
            }
            Ok(Some((len, Reply::Array(first))))
        }
        _ => Ok(element(bytes)?.map(|(len, _)| (len, Reply::Other))),
    }
}

/// The length of a reply that holds no others, and its number if it is one.
fn element(bytes: &[u8]) -> Result<Option<(usize, Option<i64>)>, Trouble> {
    let Some((line, len)) = line(bytes) else { return Ok(None) };
    let (kind, text) = line.split_first().ok_or_else(garbled)?;
    match kind {
        b':' => Ok(Some((len, Some(number(text)?)))),
        b'+' | b'-' | b'_' | b',' | b'#' => Ok(Some((len, None))),
        b'$' => {
            let Ok(text) = usize::try_from(number(text)?) else { return Ok(Some((len, None))) };
            let whole = len.saturating_add(text).saturating_add(2);
            Ok((bytes.len() >= whole).then_some((whole, None)))
        }
        _ => Err(garbled()),
    }
}

/// The first line, and its length with its end.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

fn number(text: &[u8]) -> Result<i64, Trouble> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(garbled)
}

fn garbled() -> Trouble {
    Trouble::garbled("this is not the Redis protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_once_it_is_all_there() {
        let cases: [(&[u8], Reply); 7] = [
            (
                b"*8\r\n:1\r\n:5\r\n:4\r\n:0\r\n:1\r\n:0\r\n$5\r\nadhoc\r\n$6\r\nmemory\r\n",
                Reply::Array(Some(1)),
            ),
            (b"*2\r\n:0\r\n$-1\r\n", Reply::Array(Some(0))),
            (b"*1\r\n$3\r\na\nb\r\n", Reply::Array(None)),
            (b"*0\r\n", Reply::Array(None)),
            (b"-NORULE no such rule\r\n", Reply::Error("NORULE no such rule".into())),
            (b"+OK\r\n", Reply::Other),
            (b"$2\r\nhi\r\n", Reply::Other),
        ];
        for (bytes, expected) in cases {
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len]).unwrap(), None, "{len} of {bytes:?}");
            }
            let more = [bytes, b":7\r\n"].concat();
            assert_eq!(parse(&more).unwrap(), Some((bytes.len(), expected)));
        }
        for bytes in
            [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"\r\n", b":x\r\n", b"*x\r\n", b"*1\r\n*1\r\n"]
        {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
