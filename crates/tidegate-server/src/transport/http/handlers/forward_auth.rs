//! `/v1/authorize`: forward-auth for proxies.

use std::borrow::Cow;

use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use tidegate::Refusal;
use tidegate_tower::extract::{OriginalRequest, PolicyRequest};

use crate::check::ActivePolicy;
use crate::check::{CheckDecision, CheckError, Operation};
use crate::observe::metrics::ListenerKind;
use crate::transport::auth::own_token;
use crate::transport::http::problem::{HttpProblem, limit_headers};
use crate::transport::http::state::AppState;
use crate::transport::listener::http_connection::ConnectionInfo;

#[derive(Deserialize)]
pub(crate) struct AuthorizeQuery {
    deny_status: Option<String>,
    missing_key_status: Option<String>,
}

/// `ANY /v1/authorize[?deny_status=403][&missing_key_status=401]`
pub(crate) async fn authorize(
    State(app): State<AppState>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let headers = request.headers();
    if app.tokens.guards_checks() {
        // A proxy passes on the client's Authorization, which is not meant for this server.
        if own_token(headers).and_then(|token| app.tokens.access_with(token)).is_none() {
            let detail = "missing or invalid token; let the proxy send it as X-Tidegate-Token";
            return Err(HttpProblem::new(StatusCode::UNAUTHORIZED, detail));
        }
    }
    let Ok(Query(options)) = Query::<AuthorizeQuery>::try_from_uri(request.uri()) else {
        return Err(HttpProblem::field("deny_status", "invalid query"));
    };
    let deny_status = status("deny_status", options.deny_status.as_deref())?
        .unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let missing_key_status = status("missing_key_status", options.missing_key_status.as_deref())?;
    // A refusal that the client can cause must be a denial to the proxy too. Some proxies let a
    // request through if its check fails.
    let refusal = |field: &str, detail: String| match options.deny_status {
        Some(_) => HttpProblem::new(deny_status, detail),
        None => HttpProblem::field(field, detail),
    };
    let peer = ConnectionInfo::of(request.extensions()).and_then(|connection| connection.peer);
    if let Some([one, other]) = OriginalRequest::contradiction(headers) {
        // A proxy sets one family of headers, and a client can add the other, or a second line.
        let detail = match one == other {
            true => format!("{one} has two different values; let the proxy set it"),
            false => format!("{one} and {other} contradict each other; clear one in the proxy"),
        };
        return Err(refusal(one, detail));
    }
    let original = OriginalRequest::new(headers);
    let uris = ["x-forwarded-uri", "x-original-uri", "x-original-url"];
    let Some(path) = original.path else {
        if let Some(name) = uris.into_iter().find(|name| headers.contains_key(*name)) {
            return Err(refusal(name, "invalid header value".into()));
        }
        let detail = "missing request: let the proxy set X-Forwarded-Uri or X-Original-URI, and \
                      the method likewise";
        return Err(HttpProblem::field("x-forwarded-uri", detail));
    };
    let host = original.host.unwrap_or_default();
    // Some proxies use the method of the request for the subrequest.
    let method = original.method.as_ref().unwrap_or(request.method()).as_str();
    let describe = |active: &ActivePolicy| PolicyRequest {
        headers,
        method,
        path: Cow::Borrowed(&*path),
        query: original.query.unwrap_or_default(),
        host: Cow::Borrowed(&*host),
        client_ip: peer.map(|peer| active.trusted.client_ip(peer, headers)),
        is_from_trusted_proxy: peer.is_some_and(|peer| active.trusted.contains(peer)),
        cost: None,
    };
    let result = app.service.authorize(describe).await;
    app.service.count_request(ListenerKind::Http, Operation::Check, &result);
    let decision = match result {
        Err(failure @ CheckError::Refused(Refusal::KeyTooLong)) => {
            return Err(refusal("key", failure.to_string()));
        }
        decision => decision?,
    };
    if decision.decision.allowed() {
        return Ok((StatusCode::OK, limit_headers(&decision)).into_response());
    }
    let of_missing = missing_key_status.filter(|_| decision.missing_key.is_some());
    Ok(denied(&decision, of_missing.unwrap_or(deny_status)))
}

fn denied(decision: &CheckDecision, status: StatusCode) -> Response {
    let mut response = HttpProblem::denied(decision, status).into_response();
    response.headers_mut().extend(limit_headers(decision));
    response
}

/// The status of a denial, if it is given.
fn status(field: &str, given: Option<&str>) -> Result<Option<StatusCode>, HttpProblem> {
    let Some(text) = given else { return Ok(None) };
    let status = text.parse::<StatusCode>().ok();
    let is_denial = |status: &StatusCode| status.is_client_error() || status.is_server_error();
    let refused = || HttpProblem::field(field, "must be a status from 400 to 599");
    status.filter(is_denial).map(Some).ok_or_else(refused)
}
