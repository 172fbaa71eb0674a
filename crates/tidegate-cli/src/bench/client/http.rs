//! Minimal HTTP/1.1 client, so that the target is measured and not the client.

use std::sync::Arc;

use memchr::memmem;
use serde_json::Value;

use super::response::{BenchResponse, RequestError};
use super::stream::BufferedStream;
use crate::bench::request_template::RequestTemplate;
use crate::endpoint::ByteStream;

/// One connection to an HTTP listener.
pub(crate) struct HttpConnection {
    stream: BufferedStream,
    template: Arc<RequestTemplate>,
    request: Vec<u8>,
    is_closed: bool,
}

impl HttpConnection {
    pub(crate) fn new(stream: Box<dyn ByteStream>, template: Arc<RequestTemplate>) -> Self {
        let stream = BufferedStream::new(stream);
        Self { stream, template, request: Vec::new(), is_closed: false }
    }

    /// Whether the last response had `connection: close`.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(crate) async fn check(
        &mut self,
        keys: &[u32],
        responses: &mut Vec<BenchResponse>,
    ) -> Result<(), RequestError> {
        for key in keys {
            self.request.clear();
            self.template.write(*key, &mut self.request);
            self.stream.send(&self.request).await?;
            let (head, whole) = loop {
                if let Some(head) = ResponseHead::parse(self.stream.received())? {
                    let whole = head.len.saturating_add(head.body);
                    if self.stream.received().len() >= whole {
                        break (head, whole);
                    }
                }
                self.stream.receive().await?;
            };
            responses.push(match head.status {
                200 => BenchResponse::Allow,
                429 => BenchResponse::Deny,
                status => {
                    let body = &self.stream.received()[head.len..whole];
                    BenchResponse::Error(RequestError::new(format!("http {status}"), detail(body)))
                }
            });
            self.stream.consume(whole);
            self.is_closed = head.closes;
        }
        Ok(())
    }
}

/// Bytes of a check request.
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

/// Field and detail of a problem response.
fn detail(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let field = body["field"].as_str().map(|field| format!("{field}: ")).unwrap_or_default();
    let text = body["detail"].as_str().or(body["title"].as_str());
    format!("{field}{}", text.unwrap_or("no detail given"))
}

/// The parts of a response head that matter here.
#[derive(PartialEq, Eq, Debug)]
struct ResponseHead {
    status: u16,
    /// Length of the head in bytes.
    len: usize,
    /// Length of the body in bytes.
    body: usize,
    closes: bool,
}

impl ResponseHead {
    /// `None` if the head is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, RequestError> {
        const START: &[u8] = b"HTTP/1.1 ";
        if !bytes.iter().zip(START).all(|(a, b)| a == b) {
            return Err(RequestError::garbled("not HTTP/1.1"));
        }
        let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
        let status = bytes.get(START.len()..START.len() + 3);
        let status = status.and_then(digits).and_then(|status| u16::try_from(status).ok());
        let status = status.ok_or_else(|| RequestError::garbled("response without a status"))?;
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
        // A chunked response comes from a proxy, which would be measured instead of the server.
        let body = body.ok_or_else(|| {
            RequestError::garbled(
                "response without content-length; connect to the server without a proxy",
            )
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
    fn a_head_is_parsed_once_it_is_complete() {
        let bytes = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 12\r\nx: y:z\r\nConnection: close\r\n\r\n{}";
        for len in 0..bytes.len() - 2 {
            assert_eq!(ResponseHead::parse(&bytes[..len]).unwrap(), None, "{len}");
        }
        let head = ResponseHead { status: 429, len: bytes.len() - 2, body: 12, closes: true };
        assert_eq!(ResponseHead::parse(bytes).unwrap(), Some(head));
        for (bytes, message) in [
            (&b"-ERR unknown command\r\n"[..], "not HTTP/1.1"),
            (b"HTTP/1.0 200 OK\r\n\r\n", "not HTTP/1.1"),
            (b"HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n", "without a status"),
            (b"HTTP/1.1 \r\n\r\n", "without a status"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "without content-length"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "without content-length"),
        ] {
            let error = ResponseHead::parse(bytes).unwrap_err();
            assert!(error.message.contains(message), "{error}");
        }
    }

    #[test]
    fn a_problem_is_shown_with_field_and_detail() {
        for (body, expected) in [
            (
                &br#"{"detail":"no rule named \"x\"","field":"rule"}"#[..],
                "rule: no rule named \"x\"",
            ),
            (br#"{"title":"Unauthorized"}"#, "Unauthorized"),
            (b"<html>", "no detail given"),
        ] {
            assert_eq!(detail(body), expected);
        }
    }
}
