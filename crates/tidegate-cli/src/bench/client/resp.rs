//! RESP (Redis protocol) client.

use std::sync::Arc;

use super::response::{BenchResponse, RequestError};
use super::stream::BufferedStream;
use crate::bench::request_template::RequestTemplate;
use crate::endpoint::ByteStream;

/// One connection to a RESP listener.
pub(crate) struct RespClient {
    stream: BufferedStream,
    template: Arc<RequestTemplate>,
    requests: Vec<u8>,
}

impl RespClient {
    /// Authenticates if there is a token.
    pub(crate) async fn new(
        stream: Box<dyn ByteStream>,
        template: Arc<RequestTemplate>,
        token: Option<&str>,
    ) -> Result<Self, RequestError> {
        let mut stream = BufferedStream::new(stream);
        if let Some(token) = token {
            stream.send(&command(&["AUTH", token])).await?;
            let (len, reply) = read(&mut stream).await?;
            stream.consume(len);
            if let RespValue::Error(message) = reply {
                return Err(error_reply(&message));
            }
        }
        Ok(Self { stream, template, requests: Vec::new() })
    }

    pub(crate) async fn check(
        &mut self,
        keys: &[u32],
        responses: &mut Vec<BenchResponse>,
    ) -> Result<(), RequestError> {
        self.requests.clear();
        keys.iter().for_each(|key| self.template.write(*key, &mut self.requests));
        self.stream.send(&self.requests).await?;
        for _ in keys {
            let (len, reply) = read(&mut self.stream).await?;
            self.stream.consume(len);
            responses.push(match reply {
                RespValue::Array(Some(1)) => BenchResponse::Allow,
                RespValue::Array(Some(0)) => BenchResponse::Deny,
                RespValue::Error(message) => BenchResponse::Error(error_reply(&message)),
                RespValue::Array(_) | RespValue::Other => {
                    return Err(RequestError::garbled(
                        "unexpected reply; is it a tidegate server?",
                    ));
                }
            });
        }
        Ok(())
    }
}

/// Bytes of a command.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
    bytes.into_bytes()
}

/// The first word of an error reply is its kind.
fn error_reply(message: &str) -> RequestError {
    let kind = message.split(' ').next().filter(|kind| kind.len() <= 16).unwrap_or("ERR");
    RequestError::new(format!("resp {kind}"), message)
}

/// The parts of a reply that matter here.
#[derive(PartialEq, Eq, Debug)]
enum RespValue {
    Error(String),
    /// First element of an array, if it is a number.
    Array(Option<i64>),
    Other,
}

/// The next reply and its length in bytes.
async fn read(stream: &mut BufferedStream) -> Result<(usize, RespValue), RequestError> {
    loop {
        match parse(stream.received())? {
            Some(parsed) => return Ok(parsed),
            None => stream.receive().await?,
        }
    }
}

/// The first reply and its length in bytes; `None` if it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(usize, RespValue)>, RequestError> {
    let Some((line, mut len)) = line(bytes) else { return Ok(None) };
    let (kind, text) = line.split_first().ok_or_else(garbled)?;
    match kind {
        b'-' => Ok(Some((len, RespValue::Error(String::from_utf8_lossy(text).into_owned())))),
        b'*' => {
            let mut first = None;
            for nth in 0..number(text)?.max(0) {
                let Some((more, value)) = element(&bytes[len..])? else { return Ok(None) };
                len += more;
                first = if nth == 0 { value } else { first };
            }
            Ok(Some((len, RespValue::Array(first))))
        }
        _ => Ok(element(bytes)?.map(|(len, _)| (len, RespValue::Other))),
    }
}

/// Length of a reply that is not an array, and its value if it is an integer.
fn element(bytes: &[u8]) -> Result<Option<(usize, Option<i64>)>, RequestError> {
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

/// The first line, and its length including the line end.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

fn number(text: &[u8]) -> Result<i64, RequestError> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(garbled)
}

fn garbled() -> RequestError {
    RequestError::garbled("not the Redis protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_parsed_once_it_is_complete() {
        let cases: [(&[u8], RespValue); 7] = [
            (
                b"*8\r\n:1\r\n:5\r\n:4\r\n:0\r\n:1\r\n:0\r\n$5\r\nadhoc\r\n$6\r\nmemory\r\n",
                RespValue::Array(Some(1)),
            ),
            (b"*2\r\n:0\r\n$-1\r\n", RespValue::Array(Some(0))),
            (b"*1\r\n$3\r\na\nb\r\n", RespValue::Array(None)),
            (b"*0\r\n", RespValue::Array(None)),
            (b"-NORULE no such rule\r\n", RespValue::Error("NORULE no such rule".into())),
            (b"+OK\r\n", RespValue::Other),
            (b"$2\r\nhi\r\n", RespValue::Other),
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
