//! Duration, trace and caller's deadline of calls.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::Method;

use super::problem::HttpProblem;
use super::state::AppState;
use crate::observe::metrics::ListenerKind;
use crate::observe::otlp::{RequestSpan, Tracer};
use crate::transport::auth::AccessLevel;
use crate::transport::caller_deadline::{http_timeout, within_deadline};

/// Observes the duration of a call, and runs it in a span if it is sampled, with the deadline of
/// its caller.
pub(super) async fn measure<F>(
    app: AppState,
    request: Request,
    handler: impl FnOnce(State<AppState>, Request) -> F,
) -> Response
where
    F: Future<Output = Result<Response, HttpProblem>> + Send,
{
    let clock = app.service.clock();
    let before = clock.elapsed();
    let begin = |tracer: &Arc<Tracer>| {
        // Without access, the caller's traceparent does not decide whether there is a span.
        let headers =
            Some(request.headers()).filter(|it| app.admit(AccessLevel::Check, it).is_ok());
        tracer.begin(ListenerKind::Http, headers)
    };
    let span = app.service.tracer().and_then(begin).map(|span| name_span(span, &request));
    let timeout = http_timeout(request.headers());
    // Pinned: a request that waits for permits would else hold its future several times.
    let handled = pin!(handler(State(app.clone()), request));
    let response = match span {
        None => within_deadline(timeout, clock, handled).await.into_response(),
        Some(span) => Box::pin(within_deadline(timeout, clock, traced(span, handled))).await,
    };
    let took: Duration = clock.elapsed().saturating_sub(before).into();
    app.service.metrics().observe(ListenerKind::Http, took);
    response
}

/// Names a span by the method and path of its call.
fn name_span(span: RequestSpan, request: &Request) -> RequestSpan {
    // Paths of calls contain nothing of the caller's; a method may.
    let route = request.uri().path().to_owned();
    let known = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::HEAD];
    let method = known.into_iter().find(|method| method == request.method());
    match method {
        Some(method) => {
            let span = span.named(format!("{method} {route}"));
            span.with("http.request.method", method.as_str().to_owned())
        }
        None => span.named(format!("HTTP {route}")).with("http.request.method", "_OTHER"),
    }
    .with("http.route", route)
}

/// Runs a call in a span.
async fn traced(mut span: RequestSpan, handled: impl Future<Output: IntoResponse>) -> Response {
    let response = span.around(handled).await.into_response();
    span.set("http.response.status_code", response.status().as_u16().into());
    if response.status().is_server_error() {
        span.fail();
    }
    response
}
