//! Reads the retry and rate-limit headers of a response.

use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use sfv::visitor::{
    EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor,
};
use sfv::{BareItemFromInput, KeyRef, Parser};
use tidegate::Micros;

use crate::headers::RATELIMIT;

/// What to do before the next call to the same upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Send no call for this long; longer than zero.
    Pause {
        /// How long, from now.
        span: Duration,
        /// The header that demands it.
        hint: Hint,
    },
    /// The upstream rejected the call without a hint.
    BackOff,
}

/// The header that demands a pause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Hint {
    /// `Retry-After`.
    RetryAfter,
    /// `RateLimit`, with nothing remaining.
    RateLimit,
    /// `X-RateLimit-Reset` or a variant of it, with nothing remaining.
    Reset,
    /// `grpc-retry-pushback-ms`.
    Pushback,
}

impl Hint {
    /// The name of the header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RetryAfter => "Retry-After",
            Self::RateLimit => "RateLimit",
            Self::Reset => "X-RateLimit-Reset",
            Self::Pushback => "grpc-retry-pushback-ms",
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a response demands of later calls; `None` if nothing.
///
/// | header | is read |
/// |---|---|
/// | `Retry-After`, in seconds or as a date | on 429 and 503, and on a gRPC status of 8 or 14 |
/// | `grpc-retry-pushback-ms` | on a gRPC status other than 0 |
/// | `RateLimit` (draft-ietf-httpapi-ratelimit-headers, from -08 on): the longest `t` among the items with `r=0`; or draft -07: `reset` if `remaining` is 0 | on every response |
/// | `X-RateLimit-Remaining: 0` with `X-RateLimit-Reset`, likewise without `X-` or as `X-Rate-Limit-..` | on every response without a readable `RateLimit` |
///
/// The longest of them wins. A reset of 10^8 or more is read as seconds since the epoch, a smaller
/// one as seconds from now. Dates are relative to the `Date` of the response, so the two clocks
/// need not agree. Without a `Date`, they are relative to `now`, the time since the epoch.
///
/// A 429 or 503 without any of them means [`BackOff`](Advice::BackOff). So does one whose hints are
/// zero, such as `Retry-After: 0`, which is usually a fraction of a second rounded down. A header
/// that does not parse counts as missing.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, StatusCode};
/// use tidegate::{Clock, SystemClock};
/// use tidegate_tower::client::{Advice, Hint, advice};
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", r#""minute";r=0;t=12, "day";r=71;t=40000"#.parse()?);
/// let span = Duration::from_secs(12);
/// assert_eq!(
///     advice(StatusCode::OK, &headers, SystemClock.now()),
///     Some(Advice::Pause { span, hint: Hint::RateLimit })
/// );
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
pub fn advice(status: StatusCode, headers: &HeaderMap, now: Micros) -> Option<Advice> {
    let upstream_now = date(headers).unwrap_or(now);
    let hints = [
        is_rejection(status, headers)
            .then(|| retry_after(headers, upstream_now))
            .flatten()
            .map(|span| (span, Hint::RetryAfter)),
        pushback(headers).map(|span| (span, Hint::Pushback)),
        match rate_limit(headers) {
            Some(span) => Some((span, Hint::RateLimit)),
            None => reset(headers, upstream_now).map(|span| (span, Hint::Reset)),
        },
    ];
    // The first of equal hints wins; `max_by_key` returns the last, hence `rev`.
    let longest = hints.into_iter().rev().flatten().max_by_key(|(span, _)| *span);
    match longest.filter(|(span, _)| *span > Micros::ZERO) {
        Some((span, hint)) => Some(Advice::Pause { span: span.into(), hint }),
        None => is_http_rejection(status).then_some(Advice::BackOff),
    }
}

/// What the layer needs from a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseAdvice {
    pub(super) advice: Option<Advice>,
    /// Neither rejected nor failed: the cause of earlier rejections is gone.
    pub(super) served: bool,
}

impl ResponseAdvice {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap, now: Micros) -> Self {
        let served = !status.is_server_error() && !is_rejection(status, headers);
        Self { advice: advice(status, headers, now), served }
    }
}

fn is_rejection(status: StatusCode, headers: &HeaderMap) -> bool {
    /// `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    const GRPC_REJECTIONS: [&str; 2] = ["8", "14"];
    is_http_rejection(status)
        || headers.get(GRPC_STATUS).is_some_and(|code| GRPC_REJECTIONS.iter().any(|r| code == r))
}

/// Without a hint, only these cause a backoff. A gRPC status of 8 can also mean that one message
/// was too large, which is no reason to delay other calls.
fn is_http_rejection(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// The delay of `Retry-After`; the longest of several.
fn retry_after(headers: &HeaderMap, upstream_now: Micros) -> Option<Micros> {
    let span = |value: &HeaderValue| match number(value) {
        Some(seconds) => Some(Micros::from_secs(seconds)),
        None => Some(instant(value)?.saturating_sub(upstream_now)),
    };
    headers.get_all(RETRY_AFTER).iter().filter_map(span).max()
}

/// A negative value forbids a retry of this call. It is ignored here, because it concerns only
/// retries.
fn pushback(headers: &HeaderMap) -> Option<Micros> {
    let failed = headers.get(GRPC_STATUS).is_some_and(|code| code != "0");
    failed
        .then(|| headers.get("grpc-retry-pushback-ms").and_then(number))
        .flatten()
        .map(Micros::from_millis)
}

/// The longest reset of `RateLimit` items with nothing remaining, otherwise zero; `None` if the
/// header does not parse, in neither version.
fn rate_limit(headers: &HeaderMap) -> Option<Micros> {
    let lines: Vec<&[u8]> = headers.get_all(&RATELIMIT).iter().map(HeaderValue::as_bytes).collect();
    if lines.is_empty() {
        return None;
    }
    // A list may continue in the next line of the same name.
    let line = lines.join(b", ".as_slice());
    let list = Parser::new(&line).parse_list_with_visitor(ExhaustedVisitor::default());
    list.ok().or_else(|| rate_limit_draft_7(&line))
}

/// Reads `limit=10, remaining=0, reset=12`, as draft -07 has it.
fn rate_limit_draft_7(line: &[u8]) -> Option<Micros> {
    let (mut remaining, mut reset) = (None, None);
    for member in std::str::from_utf8(line).ok()?.split(',') {
        let (name, value) = member.trim().split_once('=')?;
        let value = value.split(';').next().and_then(|value| value.trim().parse().ok());
        match name {
            "remaining" => remaining = value,
            "reset" => reset = value,
            _ => {}
        }
    }
    let reset: u64 = reset?;
    Some(if remaining? == 0_u64 { Micros::from_secs(reset) } else { Micros::ZERO })
}

/// The longest reset of a pair of headers with nothing remaining.
fn reset(headers: &HeaderMap, upstream_now: Micros) -> Option<Micros> {
    /// As seconds since the epoch this is in 1973; as a span it is more than three years.
    const EPOCH_FROM: u64 = 100_000_000;
    let number_of = |name: &str| headers.get(name).and_then(number);
    let span = |(remaining, reset): &(&str, &str)| {
        number_of(remaining).filter(|remaining| *remaining == 0)?;
        Some(match number_of(reset)? {
            seconds if seconds < EPOCH_FROM => Micros::from_secs(seconds),
            epoch => Micros::from_secs(epoch).saturating_sub(upstream_now),
        })
    };
    RESET_HEADERS.iter().filter_map(span).max()
}

/// Pairs of headers: what remains, and when it is reset.
const RESET_HEADERS: [(&str, &str); 3] = [
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
];

const GRPC_STATUS: &str = "grpc-status";

fn date(headers: &HeaderMap) -> Option<Micros> {
    headers.get(DATE).and_then(instant)
}

/// An HTTP-date in any of its three formats.
fn instant(value: &HeaderValue) -> Option<Micros> {
    let date = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
    Some(Micros::from_secs(date.duration_since(UNIX_EPOCH).ok()?.as_secs()))
}

/// Only digits. A number above `u64::MAX` is read as `u64::MAX`.
fn number(value: &HeaderValue) -> Option<u64> {
    let digits = value.to_str().ok().filter(|text| !text.is_empty())?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Finds the longest `t` of the items with `r=0`.
#[derive(Default)]
struct ExhaustedVisitor(Micros);

/// One member of the list.
struct ListMember<'a>(&'a mut Micros);

/// The parameters of one item. Of several with the same name the last counts.
struct ItemParams<'a> {
    exhausted: &'a mut Micros,
    remaining: Option<u64>,
    seconds: Option<u64>,
}

impl<'de> ListVisitor<'de> for ExhaustedVisitor {
    type Out = Micros;
    type Error = Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Infallible> {
        Ok(ListMember(&mut self.0))
    }

    fn finish(self) -> Result<Micros, Infallible> {
        Ok(self.0)
    }
}

impl<'de> EntryVisitor<'de> for ListMember<'_> {
    type Error = Infallible;

    fn item(self) -> Result<impl ItemVisitor<'de>, Infallible> {
        let item = ItemParams { exhausted: self.0, remaining: None, seconds: None };
        Ok(|_name: BareItemFromInput<'de>| Ok::<_, Infallible>(item))
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Infallible> {
        Ok(Ignored)
    }
}

impl<'de> ParameterVisitor<'de> for ItemParams<'_> {
    type Out = ();
    type Error = Infallible;

    fn parameter(
        &mut self,
        key: &'de KeyRef,
        value: BareItemFromInput<'de>,
    ) -> Result<(), Infallible> {
        let number = match value {
            BareItemFromInput::Integer(number) => u64::try_from(i64::from(number)).ok(),
            _ => None,
        };
        match key.as_str() {
            "r" => self.remaining = number,
            "t" => self.seconds = number,
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Infallible> {
        if let (Some(0), Some(seconds)) = (self.remaining, self.seconds) {
            *self.exhausted = (*self.exhausted).max(Micros::from_secs(seconds));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_response_that_neither_rejects_nor_fails_is_served() {
        let served = |status: u16, grpc_status: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(code) = grpc_status {
                headers.insert(GRPC_STATUS, HeaderValue::from_static(code));
            }
            ResponseAdvice::of(StatusCode::from_u16(status).unwrap(), &headers, Micros::ZERO).served
        };
        for (status, grpc_status) in [(200, None), (304, None), (404, None), (200, Some("5"))] {
            assert!(served(status, grpc_status), "{status} {grpc_status:?}");
        }
        for (status, grpc_status) in [
            (429, None),
            (503, None),
            (500, None),
            (502, None),
            (200, Some("8")),
            (200, Some("14")),
        ] {
            assert!(!served(status, grpc_status), "{status} {grpc_status:?}");
        }
    }
}
