//! What is told to whom was turned away.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use tidegate::{Decision, EngineError, Micros, Source, Verdict, Wait};

use super::grpc;
use crate::problem::{self, Quota};

/// A request that was turned away, and why.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'a> {
    pub(super) request: &'a Parts,
    pub(super) reason: Reason<'a>,
    pub(super) violated: &'a [&'a str],
}

/// Why a request was turned away.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Reason<'a> {
    /// A limit denied it: 429.
    Limited(&'a Decision),
    /// It lacks the key that it is counted by: 429.
    NoKey,
    /// Its key is too long: 400.
    KeyTooLong,
    /// There is no decision: 503, or 500 if it is not one that can be answered.
    NoAnswer(&'a EngineError),
    /// The service is not set up to limit; what to do about it: 500.
    NotSetUp(&'static str),
}

impl Reason<'_> {
    /// What is told of a request that nobody was asked about.
    pub(super) fn without_asking(&self) -> Result<Decision, EngineError> {
        if let Self::NotSetUp(what_to_do) = self {
            return Err(EngineError::unavailable(NotSetUp(what_to_do)));
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

/// The service is not set up to limit.
#[derive(Clone, Copy, Debug)]
struct NotSetUp(&'static str);

impl fmt::Display for NotSetUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotSetUp {}

impl<'a> Denial<'a> {
    /// The request.
    pub fn request(&self) -> &'a Parts {
        self.request
    }

    /// Why.
    pub fn reason(&self) -> Reason<'a> {
        self.reason
    }

    /// The names of the limits that denied it, as they are in the headers.
    pub fn violated(&self) -> &'a [&'a str] {
        self.violated
    }

    /// When to come back, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::Limited(decision) => match decision.retry_after() {
                Wait::For(wait) => Some(wait.into()),
                Wait::Never => None,
            },
            _ => None,
        }
    }

    /// The status that it is answered with.
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Limited(_) | Reason::NoKey => StatusCode::TOO_MANY_REQUESTS,
            Reason::KeyTooLong => StatusCode::BAD_REQUEST,
            Reason::NoAnswer(error) if error.refusal().is_none() => StatusCode::SERVICE_UNAVAILABLE,
            Reason::NoAnswer(_) | Reason::NotSetUp(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The answer as `application/problem+json`.
    ///
    /// What is wrong with the service or its store is not told to strangers: that is for
    /// [`on_decision`](super::RateLimitLayer::on_decision) and for [`Denial::reason`].
    pub fn response(&self) -> Response<Bytes> {
        let body = match self.reason {
            Reason::Limited(decision) => {
                problem::quota(Quota::of(decision), self.status(), self.violated)
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

    /// In a sentence.
    fn detail(&self) -> &'static str {
        match self.reason {
            Reason::Limited(decision) => match decision.retry_after() {
                Wait::For(_) => "rate limited; come back later",
                Wait::Never => "rate limited; this request can never pass",
            },
            Reason::NoKey => "the request lacks the key that it is counted by",
            Reason::KeyTooLong => "the key of the request is too long",
            Reason::NoAnswer(_) => "no decision whether the request may pass; try again later",
            Reason::NotSetUp(_) => "the service cannot tell whom to count the request for",
        }
    }

    pub(super) fn is_grpc(&self) -> bool {
        grpc::is_grpc(&self.request.headers)
    }

    /// The answer to gRPC: a response of trailers alone.
    pub(super) fn grpc(&self) -> Response<Bytes> {
        let code = match self.reason {
            Reason::Limited(_) | Reason::NoKey => grpc::Code::ResourceExhausted,
            Reason::KeyTooLong => grpc::Code::InvalidArgument,
            Reason::NoAnswer(error) if error.refusal().is_none() => grpc::Code::Unavailable,
            Reason::NoAnswer(_) | Reason::NotSetUp(_) => grpc::Code::Internal,
        };
        let retry = match self.reason {
            Reason::Limited(decision) => Some(decision.retry_after()),
            Reason::NoKey => Some(Wait::Never),
            _ => None,
        };
        grpc::trailers_only(&self.request.headers, code, self.detail(), retry)
    }
}
