//! Denials of gRPC calls.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use tidegate::{Micros, Wait};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
static GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
static GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// gRPC status codes.
#[derive(Clone, Copy)]
pub(super) enum GrpcCode {
    InvalidArgument = 3,
    ResourceExhausted = 8,
    Internal = 13,
    Unavailable = 14,
}

/// Is it a gRPC or gRPC-Web request?
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    const PREFIX: &[u8] = b"application/grpc";
    let rest = kind.split_at_checked(PREFIX.len());
    rest.is_some_and(|(prefix, rest)| {
        prefix.eq_ignore_ascii_case(PREFIX)
            && matches!(rest.first(), None | Some(b'+' | b';' | b'-'))
    })
}

/// A response without messages: its status is in the headers.
///
/// The retry delay is sent twice: as `RetryInfo` in the status details, which programs read, and as
/// `grpc-retry-pushback-ms`, which the retry logic of gRPC libraries obeys. There, -1 forbids a
/// retry.
pub(super) fn trailers_only(
    request: &HeaderMap,
    code: GrpcCode,
    message: &str,
    retry: Option<Wait>,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    // gRPC or gRPC-Web, like the request.
    let kind = request.get(CONTENT_TYPE).cloned();
    headers.insert(CONTENT_TYPE, kind.unwrap_or(HeaderValue::from_static("application/grpc")));
    headers.insert(&GRPC_STATUS, (code as u16).into());
    // The messages are ASCII and need no escapes.
    if let Ok(message) = HeaderValue::from_str(message) {
        headers.insert(&GRPC_MESSAGE, message);
    }
    match retry {
        None => {}
        Some(Wait::Never) => {
            headers.insert(&GRPC_PUSHBACK, HeaderValue::from_static("-1"));
        }
        Some(Wait::For(wait)) => {
            headers.insert(&GRPC_PUSHBACK, wait.get().div_ceil(1_000).max(1).into());
            let details = base64(&status_with_retry_info(code, message, wait));
            if let Ok(details) = HeaderValue::try_from(details) {
                headers.insert(&GRPC_DETAILS, details);
            }
        }
    }
    response
}

/// A `google.rpc.Status` with one detail, a `google.rpc.RetryInfo`, encoded as protobuf.
fn status_with_retry_info(code: GrpcCode, message: &str, wait: Micros) -> Vec<u8> {
    const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
    let mut duration = Vec::new();
    number(&mut duration, 1, wait.get() / 1_000_000);
    number(&mut duration, 2, wait.get() % 1_000_000 * 1_000);
    let mut retry_info = Vec::new();
    bytes(&mut retry_info, 1, &duration);
    let mut any = Vec::new();
    bytes(&mut any, 1, RETRY_INFO.as_bytes());
    bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    number(&mut status, 1, code as u64);
    bytes(&mut status, 2, message.as_bytes());
    bytes(&mut status, 3, &any);
    status
}

/// A varint field. Zero is the default value and is not written.
fn number(message: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        message.push(field << 3);
        varint(message, value);
    }
}

/// A length-delimited field: a string or a message.
fn bytes(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// Base64 without padding, the encoding of binary gRPC headers.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=chunk.len() {
            text.push(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize].into());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_call_is_recognized_by_its_content_type() {
        for (kind, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web+proto", true),
            ("Application/GRPC", true),
            ("application/grpcx", false),
            ("application/json", false),
            ("", false),
        ] {
            let headers = [(CONTENT_TYPE, HeaderValue::from_static(kind))].into_iter().collect();
            assert_eq!(is_grpc(&headers), expected, "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn base64_follows_the_rfc_without_padding() {
        let pairs = [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")];
        for (plain, encoded) in pairs {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }
}
