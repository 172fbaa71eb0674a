//! Asks the HTTP door, with no more than that needs: what is measured is the target.

use std::sync::Arc;

use memchr::memmem;
use serde_json::Value;

use super::wire::{Stream, Wire};
use super::{Answer, Trouble};
use crate::bench::template::Template;

/// One connection to the HTTP door.
pub(crate) struct Http {
    wire: Wire,
    question: Arc<Template>,
    asked: Vec<u8>,
    is_over: bool,
}

impl Http {
    pub(crate) fn new(stream: Box<dyn Stream>, question: Arc<Template>) -> Self {
        Self { wire: Wire::new(stream), question, asked: Vec::new(), is_over: false }
    }

    /// The server has said that it closes the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) async fn ask(
        &mut self,
        keys: &[u32],
        answers: &mut Vec<Answer>,
    ) -> Result<(), Trouble> {
        for key in keys {
            self.asked.clear();
            self.question.write(*key, &mut self.asked);
            self.wire.send(&self.asked).await?;
            let (head, whole) = loop {
                if let Some(head) = Head::parse(self.wire.received())? {
                    let whole = head.len.saturating_add(head.body);
                    if self.wire.received().len() >= whole {
                        break (head, whole);
                    }
                }
                self.wire.receive().await?;
            };
            answers.push(match head.status {
                200 => Answer::Allow,
                429 => Answer::Deny,
                status => {
                    let body = &self.wire.received()[head.len..whole];
                    Answer::Trouble(Trouble::new(format!("http {status}"), detail(body)))
                }
            });
            self.wire.consume(whole);
            self.is_over = head.closes;
        }
        Ok(())
    }
}

/// A request to ask, as bytes.
pub(crate) fn request(host: &str, token: Option<&str>, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let length = body.len();
    format!(
        "POST /v1/check HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         {token}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// What a problem says about itself.
fn detail(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let field = body["field"].as_str().map(|field| format!("{field}: ")).unwrap_or_default();
    let told = body["detail"].as_str().or(body["title"].as_str());
    format!("{field}{}", told.unwrap_or("no reason given"))
}

/// What an answer begins with, as far as it matters here.
#[derive(PartialEq, Eq, Debug)]
struct Head {
    status: u16,
    /// How long it is itself.
    len: usize,
    /// How long what follows it is.
    body: usize,
    closes: bool,
}

impl Head {
    /// `None` if it is not all there.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, Trouble> {
        const START: &[u8] = b"HTTP/1.1 ";
        if !bytes.iter().zip(START).all(|(a, b)| a == b) {
            return Err(Trouble::garbled("this is not HTTP/1.1"));
        }
        let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
        let status = bytes.get(START.len()..START.len() + 3);
        let status = status.and_then(digits).and_then(|status| u16::try_from(status).ok());
        let status = status.ok_or_else(|| Trouble::garbled("an answer without a status"))?;
        let (mut body, mut closes) = (None, false);
        for line in bytes[..end].split(|b| *b == b'\n').skip(1) {
            let Some(colon) = memchr::memchr(b':', line) else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                body = digits(value);
            } else if name.eq_ignore_ascii_case(b"connection") {
                closes = value.eq_ignore_ascii_case(b"close");
            }
        }
        // Some proxies would rather send it in chunks, and then it is they that are measured.
        let body = body.ok_or_else(|| {
            Trouble::garbled("an answer without content-length; ask the server itself")
        })?;
        Ok(Some(Self { status, len: end + 4, body, closes }))
    }
}

fn digits(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_all_there() {
        let bytes = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 12\r\nx: y:z\r\nConnection: close\r\n\r\n{}";
        for len in 0..bytes.len() - 2 {
            assert_eq!(Head::parse(&bytes[..len]).unwrap(), None, "{len}");
        }
        let head = Head { status: 429, len: bytes.len() - 2, body: 12, closes: true };
        assert_eq!(Head::parse(bytes).unwrap(), Some(head));
        for (bytes, told) in [
            (&b"-ERR unknown command\r\n"[..], "not HTTP/1.1"),
            (b"HTTP/1.0 200 OK\r\n\r\n", "not HTTP/1.1"),
            (b"HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n", "without a status"),
            (b"HTTP/1.1 \r\n\r\n", "without a status"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "without content-length"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "without content-length"),
        ] {
            let trouble = Head::parse(bytes).unwrap_err();
            assert!(trouble.told.contains(told), "{trouble}");
        }
    }

    #[test]
    fn a_problem_tells_what_it_is_about() {
        for (body, told) in [
            (
                &br#"{"detail":"no rule named \"x\"","field":"rule"}"#[..],
                "rule: no rule named \"x\"",
            ),
            (br#"{"title":"Unauthorized"}"#, "Unauthorized"),
            (b"<html>", "no reason given"),
        ] {
            assert_eq!(detail(body), told);
        }
    }
}
