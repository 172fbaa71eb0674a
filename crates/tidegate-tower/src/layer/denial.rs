//! The response to a denied request.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use tidegate::{Decision, EngineError, Micros, Source, Verdict, Wait};

use super::grpc;
use crate::problem::{self, QuotaProblem};

/// A denied request and the reason.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'a> {
    pub(super) request: &'a Parts,
    pub(super) reason: DenialReason<'a>,
    pub(super) violated: &'a [&'a str],
}

/// Why a request was denied.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DenialReason<'a> {
    /// A limit denied the request: 429.
    Limited(&'a Decision),
    /// The request has no rate-limit key: 429.
    MissingKey,
    /// The key is too long: 400.
    KeyTooLong,
    /// The engine returned an error: 503, or 500 if it refused the call as invalid.
    EngineError(&'a EngineError),
    /// The layer is misconfigured; the text says what to change: 500.
    Misconfigured(&'static str),
}

impl DenialReason<'_> {
    /// The result to report to `on_decision` for a request that was not sent to the engine.
    pub(super) fn event_result(&self) -> Result<Decision, EngineError> {
        if let Self::Misconfigured(remedy) = self {
            log_misconfigured(remedy);
            return Err(EngineError::unavailable(Misconfigured(remedy)));
        }
        let never = Verdict {
            allowed: false,
            retry_after: Wait::Never,
            delay: Micros::ZERO,
            limit: 0,
            remaining: 0,
            reset_after: Micros::ZERO,
        };
        Ok(Decision::new(Source::Policy, [never].into_iter().collect()))
    }
}

/// Logs what to change, once for each process: otherwise every request would repeat it.
fn log_misconfigured(remedy: &'static str) {
    static LOGGED: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if !logged.contains(&remedy) {
        logged.push(remedy);
        tracing::error!("rate limit layer misconfigured, requests are denied with 500: {remedy}");
    }
}

/// A misconfigured layer, as the source of an [`EngineError`].
#[derive(Clone, Copy, Debug)]
struct Misconfigured(&'static str);

impl fmt::Display for Misconfigured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Misconfigured {}

impl<'a> Denial<'a> {
    /// The request.
    pub fn request(&self) -> &'a Parts {
        self.request
    }

    /// The reason for the denial.
    pub fn reason(&self) -> DenialReason<'a> {
        self.reason
    }

    /// The names of the limits that denied it, as in the headers.
    pub fn violated(&self) -> &'a [&'a str] {
        self.violated
    }

    /// Time until a retry can be allowed, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            DenialReason::Limited(decision) => match decision.retry_after() {
                Wait::For(wait) => Some(wait.into()),
                Wait::Never => None,
            },
            _ => None,
        }
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        match self.reason {
            DenialReason::Limited(_) | DenialReason::MissingKey => StatusCode::TOO_MANY_REQUESTS,
            DenialReason::KeyTooLong => StatusCode::BAD_REQUEST,
            DenialReason::EngineError(error) if error.refusal().is_none() => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            DenialReason::EngineError(_) | DenialReason::Misconfigured(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    /// The response as `application/problem+json`.
    ///
    /// It does not reveal errors of the service or its store. They are reported to
    /// [`on_decision`](super::RateLimitLayer::on_decision) and by [`Denial::reason`].
    pub fn response(&self) -> Response<Bytes> {
        let body = match self.reason {
            DenialReason::Limited(decision) => {
                problem::quota(QuotaProblem::of(decision), self.status(), self.violated)
            }
            _ => problem::plain(self.status(), self.detail()),
        };
        let mut response = Response::new(body.into());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(problem::CONTENT_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// One sentence for the client.
    fn detail(&self) -> &'static str {
        match self.reason {
            DenialReason::Limited(decision) => match decision.retry_after() {
                Wait::For(_) => "rate limited; retry later",
                Wait::Never => "rate limited; this request is never allowed",
            },
            DenialReason::MissingKey => "the request has no rate-limit key",
            DenialReason::KeyTooLong => "the rate-limit key of the request is too long",
            DenialReason::EngineError(_) => "rate limiter unavailable; retry later",
            DenialReason::Misconfigured(_) => "rate limiter misconfigured",
        }
    }

    pub(super) fn is_grpc(&self) -> bool {
        grpc::is_grpc(&self.request.headers)
    }

    /// The response to a gRPC call: trailers only.
    pub(super) fn grpc(&self) -> Response<Bytes> {
        let code = match self.reason {
            DenialReason::Limited(_) | DenialReason::MissingKey => {
                grpc::GrpcCode::ResourceExhausted
            }
            DenialReason::KeyTooLong => grpc::GrpcCode::InvalidArgument,
            DenialReason::EngineError(error) if error.refusal().is_none() => {
                grpc::GrpcCode::Unavailable
            }
            DenialReason::EngineError(_) | DenialReason::Misconfigured(_) => {
                grpc::GrpcCode::Internal
            }
        };
        let retry = match self.reason {
            DenialReason::Limited(decision) => Some(decision.retry_after()),
            DenialReason::MissingKey => Some(Wait::Never),
            _ => None,
        };
        grpc::trailers_only(&self.request.headers, code, self.detail(), retry)
    }
}
