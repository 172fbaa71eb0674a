//! The deadline that a caller sends with its request.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use tidegate::{CallerDeadline, Clock};

/// The header of gRPC clients, Envoy among them.
static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The header that Envoy adds to HTTP requests, in milliseconds.
static HTTP_TIMEOUT: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
/// How long before the end of its timeout the caller gets a response.
const MARGIN: Duration = Duration::from_millis(5);
/// The shortest wait for the store.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// Runs the handler of a request with the deadline that the request has, if any.
pub(crate) async fn within_deadline<F: Future>(
    timeout: Option<Duration>,
    clock: &Arc<dyn Clock>,
    handler: F,
) -> F::Output {
    let Some(timeout) = timeout else { return handler.await };
    let wait = timeout.saturating_sub(MARGIN).max(MIN_WAIT);
    CallerDeadline::at(clock.elapsed().saturating_add(wait.into())).scope(handler).await
}

/// The timeout of an HTTP request.
pub(crate) fn http_timeout(headers: &HeaderMap) -> Option<Duration> {
    let millis = headers.get(&HTTP_TIMEOUT)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(millis)).filter(|timeout| !timeout.is_zero())
}

/// The timeout of a gRPC request: at most eight digits and a unit.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(&GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let value = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(3_600 * value),
        "M" => Duration::from_secs(60 * value),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_from_headers() {
        let headers = |name: &HeaderName, value: &str| {
            HeaderMap::from_iter([(name.clone(), value.parse().unwrap())])
        };
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, expected) in [
            ("20m", ms(20)),
            ("1S", ms(1_000)),
            ("2M", ms(120_000)),
            ("1H", ms(3_600_000)),
            ("150000u", ms(150)),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("0m", ms(0)),
            ("", None),
            ("m", None),
            ("20", None),
            ("+20m", None),
            ("123456789m", None),
            ("20\u{b5}", None),
        ] {
            assert_eq!(grpc_timeout(&headers(&GRPC_TIMEOUT, text)), expected, "{text}");
        }
        for (text, expected) in [("150", ms(150)), ("0", None), ("-1", None), ("15s", None)] {
            assert_eq!(http_timeout(&headers(&HTTP_TIMEOUT, text)), expected, "{text}");
        }
        assert_eq!(http_timeout(&HeaderMap::new()), None);
    }
}
