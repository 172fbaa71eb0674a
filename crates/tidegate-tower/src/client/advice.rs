//! What an answer says about when to come back.

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

/// What to do after an answer, before the next call to the same far side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Leave it alone for this long, which is more than nothing.
    Pause {
        /// How long, from now.
        span: Duration,
        /// What said so.
        hint: Hint,
    },
    /// It refused and did not say for how long.
    BackOff,
}

/// The header that asked for a pause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Hint {
    /// `Retry-After`.
    RetryAfter,
    /// `RateLimit`, with nothing remaining.
    RateLimit,
    /// `X-RateLimit-Reset` or one of its kind, with nothing remaining.
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

/// What an answer says about the calls after it; `None` if nothing.
///
/// | header | is read |
/// |---|---|
/// | `Retry-After`, in seconds or as a date | on 429 and 503, and on a gRPC status of 8 or 14 |
/// | `grpc-retry-pushback-ms` | on a gRPC status that is no success |
/// | `RateLimit` (draft-ietf-httpapi-ratelimit-headers, from -08 on): the longest `t` among the items with `r=0` | on every answer |
/// | `X-RateLimit-Remaining: 0` with `X-RateLimit-Reset`, likewise without `X-` or as `X-Rate-Limit-..` | on every answer without a readable `RateLimit` |
///
/// The longest of them counts. A reset from 10^8 on is taken for seconds since the epoch, a smaller
/// one for seconds from now. Dates are reckoned from the answer's own `Date`, so that the two clocks
/// need not agree; from `now`, the time since the epoch, if there is none.
///
/// A 429 or 503 with none of them is to [`BackOff`](Advice::BackOff), and so is one whose hints come
/// to nothing, such as `Retry-After: 0`: that is mostly a fraction of a second rounded down. What
/// cannot be read counts as missing.
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
    let far_now = date(headers).unwrap_or(now);
    let hints = [
        is_refusal(status, headers)
            .then(|| retry_after(headers, far_now))
            .flatten()
            .map(|span| (span, Hint::RetryAfter)),
        pushback(headers).map(|span| (span, Hint::Pushback)),
        match rate_limit(headers) {
            Some(span) => Some((span, Hint::RateLimit)),
            None => reset(headers, far_now).map(|span| (span, Hint::Reset)),
        },
    ];
    // Of equal ones the first speaks, and `max_by_key` takes the last.
    let longest = hints.into_iter().rev().flatten().max_by_key(|(span, _)| *span);
    match longest.filter(|(span, _)| *span > Micros::ZERO) {
        Some((span, hint)) => Some(Advice::Pause { span: span.into(), hint }),
        None => is_plain_refusal(status).then_some(Advice::BackOff),
    }
}

/// What the layer takes from an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub(super) advice: Option<Advice>,
    /// The far side did its work, or could have: whatever made it refuse before is over.
    pub(super) well: bool,
}

impl Heard {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap, now: Micros) -> Self {
        let well = !status.is_server_error() && !is_refusal(status, headers);
        Self { advice: advice(status, headers, now), well }
    }
}

fn is_refusal(status: StatusCode, headers: &HeaderMap) -> bool {
    /// `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    const GRPC_REFUSALS: [&str; 2] = ["8", "14"];
    is_plain_refusal(status)
        || headers.get(GRPC_STATUS).is_some_and(|code| GRPC_REFUSALS.iter().any(|r| code == r))
}

/// Without a hint, only these make one back off: a gRPC status of 8 may as well mean that one
/// message was too large, which is no reason to hold back the others.
fn is_plain_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// When `Retry-After` says to come back; of several the longest.
fn retry_after(headers: &HeaderMap, far_now: Micros) -> Option<Micros> {
    let span = |value: &HeaderValue| match number(value) {
        Some(seconds) => Some(Micros::from_secs(seconds)),
        None => Some(instant(value)?.saturating_sub(far_now)),
    };
    headers.get_all(RETRY_AFTER).iter().filter_map(span).max()
}

/// A negative number says not to try again at all, which is for whoever retries to heed.
fn pushback(headers: &HeaderMap) -> Option<Micros> {
    let failed = headers.get(GRPC_STATUS).is_some_and(|code| code != "0");
    failed
        .then(|| headers.get("grpc-retry-pushback-ms").and_then(number))
        .flatten()
        .map(Micros::from_millis)
}

/// How long nothing remains by `RateLimit`, be it not at all; `None` if it cannot be read.
fn rate_limit(headers: &HeaderMap) -> Option<Micros> {
    let lines: Vec<&[u8]> = headers.get_all(&RATELIMIT).iter().map(HeaderValue::as_bytes).collect();
    if lines.is_empty() {
        return None;
    }
    // A list may go on in the next line of the same name.
    Parser::new(&lines.join(b", ".as_slice())).parse_list_with_visitor(Spent::default()).ok()
}

/// How long nothing remains by those who say so in two headers.
fn reset(headers: &HeaderMap, far_now: Micros) -> Option<Micros> {
    /// As seconds since the epoch it lies in 1973; as a span it is more than three years.
    const EPOCH_FROM: u64 = 100_000_000;
    let number_of = |name: &str| headers.get(name).and_then(number);
    let span = |(remaining, reset): &(&str, &str)| {
        number_of(remaining).filter(|remaining| *remaining == 0)?;
        Some(match number_of(reset)? {
            seconds if seconds < EPOCH_FROM => Micros::from_secs(seconds),
            epoch => Micros::from_secs(epoch).saturating_sub(far_now),
        })
    };
    RESETS.iter().filter_map(span).max()
}

/// Who says what remains, and when it is reset.
const RESETS: [(&str, &str); 3] = [
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
];

const GRPC_STATUS: &str = "grpc-status";

fn date(headers: &HeaderMap) -> Option<Micros> {
    headers.get(DATE).and_then(instant)
}

/// An HTTP-date in any of its three forms.
fn instant(value: &HeaderValue) -> Option<Micros> {
    let date = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
    Some(Micros::from_secs(date.duration_since(UNIX_EPOCH).ok()?.as_secs()))
}

/// Digits alone. What is too large for us is as good as endless.
fn number(value: &HeaderValue) -> Option<u64> {
    let digits = value.to_str().ok().filter(|text| !text.is_empty())?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().unwrap_or(u64::MAX))
}

/// The longest `t` among the items of a list that have nothing remaining.
#[derive(Default)]
struct Spent(Micros);

/// One member of the list.
struct Member<'a>(&'a mut Micros);

/// The parameters of one item. Of several with the same name the last counts, whatever it is.
struct Item<'a> {
    spent: &'a mut Micros,
    remaining: Option<u64>,
    seconds: Option<u64>,
}

impl<'de> ListVisitor<'de> for Spent {
    type Out = Micros;
    type Error = Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Infallible> {
        Ok(Member(&mut self.0))
    }

    fn finish(self) -> Result<Micros, Infallible> {
        Ok(self.0)
    }
}

impl<'de> EntryVisitor<'de> for Member<'_> {
    type Error = Infallible;

    fn item(self) -> Result<impl ItemVisitor<'de>, Infallible> {
        let item = Item { spent: self.0, remaining: None, seconds: None };
        Ok(|_name: BareItemFromInput<'de>| Ok::<_, Infallible>(item))
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Infallible> {
        Ok(Ignored)
    }
}

impl<'de> ParameterVisitor<'de> for Item<'_> {
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
            *self.spent = (*self.spent).max(Micros::from_secs(seconds));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_neither_refused_nor_failed_is_well() {
        let well = |status: u16, grpc_status: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(code) = grpc_status {
                headers.insert(GRPC_STATUS, HeaderValue::from_static(code));
            }
            Heard::of(StatusCode::from_u16(status).unwrap(), &headers, Micros::ZERO).well
        };
        for (status, grpc_status) in [(200, None), (304, None), (404, None), (200, Some("5"))] {
            assert!(well(status, grpc_status), "{status} {grpc_status:?}");
        }
        for (status, grpc_status) in [
            (429, None),
            (503, None),
            (500, None),
            (502, None),
            (200, Some("8")),
            (200, Some("14")),
        ] {
            assert!(!well(status, grpc_status), "{status} {grpc_status:?}");
        }
    }
}
