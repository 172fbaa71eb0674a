//! Client of Envoy's rate limit service, gRPC over HTTP/2.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::percent_decode_str;
use prost::Message;

use super::response::{BenchResponse, RequestError};
use crate::bench::request_template::RequestTemplate;
use crate::endpoint::ByteStream;
use tidegate_server::internal::transport::envoy::proto::{
    Code, DescriptorStatus, RateLimitRequest, RateLimitResponse,
};

/// One connection to a gRPC listener.
pub(crate) struct GrpcClient {
    sender: SendRequest<Full<Bytes>>,
    call: Arc<GrpcCall>,
    /// Whether a limit matched in the last response.
    is_limited: bool,
}

/// Common to all calls.
pub(crate) struct GrpcCall {
    uri: Uri,
    authorization: Option<HeaderValue>,
    template: RequestTemplate,
}

/// Bound for a response body.
const MAX_BYTES: usize = 1 << 20;
/// Prefix of a message: compression flag (1 byte) and length (4 bytes).
const FRAME: usize = 5;
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const OK: &str = "0";

impl GrpcCall {
    /// `host` is `name:port`.
    pub(crate) fn new(
        scheme: &str,
        host: &str,
        token: Option<&str>,
        template: RequestTemplate,
    ) -> Result<Self, http::Error> {
        let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(PATH).build()?;
        let header = |token: &str| HeaderValue::try_from(format!("Bearer {token}"));
        Ok(Self { uri, authorization: token.map(header).transpose()?, template })
    }

    fn request(&self, key: u32) -> Request<Full<Bytes>> {
        let mut message = Vec::new();
        self.template.write(key, &mut message);
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

/// The request with its gRPC prefix.
pub(crate) fn framed(request: &RateLimitRequest) -> Vec<u8> {
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0][..], &length, &message].concat()
}

impl GrpcClient {
    pub(crate) async fn new(
        stream: Box<dyn ByteStream>,
        call: Arc<GrpcCall>,
    ) -> Result<Self, RequestError> {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(RequestError::connect)?;
        tokio::spawn(async move { connection.await.ok() });
        Ok(Self { sender, call, is_limited: true })
    }

    pub(crate) fn note(&self) -> Option<&'static str> {
        let note = "no limit matches, so everything is allowed; set --domain and --descriptor as \
                    in the server's --envoy-config";
        (!self.is_limited).then_some(note)
    }

    pub(crate) async fn check(
        &mut self,
        keys: &[u32],
        responses: &mut Vec<BenchResponse>,
    ) -> Result<(), RequestError> {
        for key in keys {
            self.sender.ready().await.map_err(RequestError::closed)?;
            let sent = self.sender.send_request(self.call.request(*key));
            let response = match read(sent.await.map_err(RequestError::closed)?).await? {
                Err(error) => BenchResponse::Error(error),
                Ok(response) => {
                    let has_limit = |status: &DescriptorStatus| status.current_limit.is_some();
                    self.is_limited = response.statuses.iter().any(has_limit);
                    match response.overall_code() {
                        Code::Ok => BenchResponse::Allow,
                        Code::OverLimit => BenchResponse::Deny,
                        Code::Unknown => return Err(RequestError::garbled("unexpected response")),
                    }
                }
            };
            responses.push(response);
        }
        Ok(())
    }
}

/// The message, or the server's error status. The outer error means that this is not gRPC.
async fn read(
    response: Response<Incoming>,
) -> Result<Result<RateLimitResponse, RequestError>, RequestError> {
    let status = response.status();
    if status != StatusCode::OK {
        return Ok(Err(RequestError::new(format!("http {}", status.as_u16()), status)));
    }
    let headers = response.headers().clone();
    let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
    let body = body.map_err(RequestError::closed)?;
    // A call that fails at once has its status in the headers.
    let trailers = body.trailers().unwrap_or(&headers);
    match text(trailers, "grpc-status") {
        OK => {}
        "" => return Err(RequestError::garbled("response without grpc-status")),
        code => {
            let message = percent_decode_str(text(trailers, "grpc-message")).decode_utf8_lossy();
            return Ok(Err(RequestError::new(format!("grpc {code}"), message)));
        }
    }
    let body = body.to_bytes();
    let message = body.get(FRAME..).filter(|_| body.first() == Some(&0));
    let response = message.and_then(|message| RateLimitResponse::decode(message).ok());
    response.map(Ok).ok_or_else(|| RequestError::garbled("invalid Envoy message"))
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}
