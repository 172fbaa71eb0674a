//! What went wrong, as a page.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use maud::html;

use super::page;
use crate::http::problem::Problem;

/// A page that says what happened and what to do.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    status: StatusCode,
    detail: String,
}

impl Trouble {
    /// With this status.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(super) fn too_many_attempts() -> Self {
        let detail = "too many tokens were tried from this address; wait a minute";
        Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
    }
}

impl From<Problem> for Trouble {
    fn from(problem: Problem) -> Self {
        let (status, detail) = problem.told();
        Self::new(status, detail)
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let Self { status, detail } = self;
        let title = status.canonical_reason().unwrap_or("Error");
        let body = html! {
            section.trouble {
                h1 { (title) }
                p { (detail) }
            }
        };
        (status, page::bare(title, &body)).into_response()
    }
}
