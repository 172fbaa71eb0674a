//! Errors as pages.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use maud::html;

use super::layout;
use crate::transport::http::problem::HttpProblem;

/// A page with an error and its remedy.
#[derive(Clone, Debug)]
pub(crate) struct ErrorPage {
    status: StatusCode,
    detail: String,
}

impl ErrorPage {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(super) fn too_many_attempts() -> Self {
        let detail = "too many sign-in attempts from this address; wait a minute";
        Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
    }
}

impl From<HttpProblem> for ErrorPage {
    fn from(problem: HttpProblem) -> Self {
        let (status, detail) = problem.into_parts();
        Self::new(status, detail)
    }
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let Self { status, detail } = self;
        let title = status.canonical_reason().unwrap_or("Error");
        let body = html! {
            section.error {
                h1 { (title) }
                p { (detail) }
            }
        };
        (status, layout::bare(title, &body)).into_response()
    }
}
