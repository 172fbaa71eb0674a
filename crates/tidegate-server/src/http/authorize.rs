//! Forward-auth: a proxy asks whether it may pass a request on.

use std::borrow::Cow;

use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use tidegate::Refusal;
use tidegate_tower::extract::{Described, OriginalRequest};

use super::Door;
use super::connection::Peer;
use super::problem::{Problem, limit_headers};
use crate::active::Active;
use crate::service::Failure;

#[derive(Deserialize)]
pub(super) struct Options {
    deny_status: Option<String>,
}

/// `ANY /v1/authorize[?deny_status=403]`
pub(super) async fn authorize(
    State(door): State<Door>,
    options: Result<Query<Options>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let headers = request.headers();
    if door.tokens.guards_checks() {
        // The client's own Authorization comes along, and is not for us.
        let shown = headers.get("x-tidegate-token").map(HeaderValue::as_bytes);
        if shown.and_then(|token| door.tokens.access_with(token)).is_none() {
            let detail = "let the proxy show the token as X-Tidegate-Token";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, detail));
        }
    }
    let options = options.map_err(|_| Problem::field("deny_status", "cannot be read"))?;
    let deny_status = deny_status(options.0.deny_status.as_deref())?;
    // What a client can bring about must be a denial to the proxy too, or a client could choose to be
    // a failure, which some proxies let through.
    let refusal = |field: &str, detail: String| match options.0.deny_status {
        Some(_) => Problem::new(deny_status, detail),
        None => Problem::field(field, detail),
    };
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    if let Some([one, other]) = OriginalRequest::contradiction(headers) {
        // A proxy sets one family of headers, and a client can add the other.
        let detail = format!("{one} and {other} contradict each other; let the proxy clear one");
        return Err(refusal(one, detail));
    }
    let original = OriginalRequest::new(headers);
    let uris = ["x-forwarded-uri", "x-original-uri", "x-original-url"];
    let Some(path) = original.path else {
        if let Some(name) = uris.into_iter().find(|name| headers.contains_key(*name)) {
            return Err(refusal(name, "cannot be read".into()));
        }
        let detail = "which request? let the proxy set X-Forwarded-Uri or X-Original-URI, and the \
                      method likewise";
        return Err(Problem::field("x-forwarded-uri", detail));
    };
    let host = original.host.unwrap_or_default();
    // Some proxies ask with the method of the request itself.
    let method = original.method.as_ref().unwrap_or(request.method()).as_str();
    let asked = |active: &Active| Described {
        headers,
        method,
        path: Cow::Borrowed(&*path),
        query: original.query.unwrap_or_default(),
        host: Cow::Borrowed(&*host),
        client_ip: peer.map(|peer| active.trusted.client_ip(peer, headers)),
        is_vouched_for: peer.is_some_and(|peer| active.trusted.contains(peer)),
        cost: None,
    };
    let answer = match door.service.authorize(asked).await {
        Err(failure @ Failure::Refused(Refusal::KeyTooLong)) => {
            return Err(refusal("key", failure.to_string()));
        }
        answer => answer?,
    };
    if answer.decision.allowed() {
        return Ok((StatusCode::OK, limit_headers(&answer)).into_response());
    }
    let problem = Problem::denied(&answer, deny_status);
    let mut headers = limit_headers(&answer);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
    let body = serde_json::to_vec(problem.body()).unwrap_or_default();
    Ok((deny_status, headers, body).into_response())
}

/// The status of a denial: 429, or one that a proxy understands.
fn deny_status(given: Option<&str>) -> Result<StatusCode, Problem> {
    let Some(text) = given else { return Ok(StatusCode::TOO_MANY_REQUESTS) };
    let status = text.parse::<StatusCode>().ok();
    let is_denial = |status: &StatusCode| status.is_client_error() || status.is_server_error();
    let refused = || Problem::field("deny_status", "must be a status from 400 to 599");
    status.filter(is_denial).ok_or_else(refused)
}
