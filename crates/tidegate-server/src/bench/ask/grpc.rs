//! Asks as Envoy does, over HTTP/2.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;

use super::wire::Stream;
use super::{Answer, Trouble};
use crate::bench::template::Template;
use crate::envoy::proto::{Code, DescriptorStatus, RateLimitRequest, RateLimitResponse};

/// One connection to the gRPC door.
pub(crate) struct Grpc {
    sender: SendRequest<Full<Bytes>>,
    call: Arc<Call>,
    /// Did a limit have a say in the last answer?
    is_limited: bool,
}

/// What every call has in common.
pub(crate) struct Call {
    uri: Uri,
    authorization: Option<HeaderValue>,
    question: Template,
}

/// The longest answer in bytes.
const MOST: usize = 1 << 20;
/// A message is sent behind a byte that says that it is not compressed, and its length.
const FRAME: usize = 5;
/// What is called.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The status of a call that went well.
const OK: &str = "0";

impl Call {
    /// A call of the server at `host`, which is known to be an authority.
    pub(crate) fn new(
        scheme: &str,
        host: &str,
        token: Option<&str>,
        question: Template,
    ) -> Result<Self, http::Error> {
        let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(PATH).build()?;
        let header = |token: &str| HeaderValue::try_from(format!("Bearer {token}"));
        Ok(Self { uri, authorization: token.map(header).transpose()?, question })
    }

    fn about(&self, key: u32) -> Request<Full<Bytes>> {
        let mut message = Vec::new();
        self.question.write(key, &mut message);
        let mut request = Request::new(Full::new(Bytes::from(message)));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        request
    }
}

/// A request as gRPC sends it.
pub(crate) fn framed(request: &RateLimitRequest) -> Vec<u8> {
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0][..], &length, &message].concat()
}

impl Grpc {
    pub(crate) async fn new(stream: Box<dyn Stream>, call: Arc<Call>) -> Result<Self, Trouble> {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(Trouble::connect)?;
        tokio::spawn(async move { connection.await.ok() });
        Ok(Self { sender, call, is_limited: true })
    }

    pub(crate) fn note(&self) -> Option<&'static str> {
        let told = "no limit applies, so that everything passes; name --domain and --descriptor as \
                    the server's --envoy-config has them";
        (!self.is_limited).then_some(told)
    }

    pub(crate) async fn ask(
        &mut self,
        keys: &[u32],
        answers: &mut Vec<Answer>,
    ) -> Result<(), Trouble> {
        for key in keys {
            self.sender.ready().await.map_err(Trouble::closed)?;
            let sent = self.sender.send_request(self.call.about(*key));
            let answer = match read(sent.await.map_err(Trouble::closed)?).await? {
                Err(trouble) => Answer::Trouble(trouble),
                Ok(response) => {
                    let has_limit = |status: &DescriptorStatus| status.current_limit.is_some();
                    self.is_limited = response.statuses.iter().any(has_limit);
                    match response.overall_code() {
                        Code::Ok => Answer::Allow,
                        Code::OverLimit => Answer::Deny,
                        Code::Unknown => return Err(Trouble::garbled("this is no decision")),
                    }
                }
            };
            answers.push(answer);
        }
        Ok(())
    }
}

/// The message, or why the server has none; trouble if this is not gRPC.
async fn read(response: Response<Incoming>) -> Result<Result<RateLimitResponse, Trouble>, Trouble> {
    let status = response.status();
    if status != StatusCode::OK {
        return Ok(Err(Trouble::new(format!("http {}", status.as_u16()), status)));
    }
    let headers = response.headers().clone();
    let body = Limited::new(response.into_body(), MOST).collect().await;
    let body = body.map_err(Trouble::closed)?;
    // A call that goes wrong at once has its status in the headers.
    let trailers = body.trailers().unwrap_or(&headers);
    match text(trailers, "grpc-status") {
        OK => {}
        "" => return Err(Trouble::garbled("an answer without a grpc-status")),
        code => {
            let told = decoded(text(trailers, "grpc-message"));
            return Ok(Err(Trouble::new(format!("grpc {code}"), told)));
        }
    }
    let body = body.to_bytes();
    let message = body.get(FRAME..).filter(|_| body.first() == Some(&0));
    let response = message.and_then(|message| RateLimitResponse::decode(message).ok());
    response.map(Ok).ok_or_else(|| Trouble::garbled("this is no message of Envoy's"))
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// Without the percent-encoding that gRPC has in messages.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code.filter(|_| *byte == b'%') {
            Some(code) => decoded.push(code),
            None => decoded.push(*byte),
        }
        at += if code.is_some() && *byte == b'%' { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_meant() {
        for (written, meant) in [
            ("plain", "plain"),
            ("100%25 of %22it%22", "100% of \"it\""),
            ("%e2%9c%93", "\u{2713}"),
            ("%", "%"),
            ("%zz%4", "%zz%4"),
        ] {
            assert_eq!(decoded(written), meant);
        }
    }
}
