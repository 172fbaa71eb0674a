//! `GET /v1/live`: one traffic snapshot, or a stream of one per second.

use std::borrow::Cow;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use tidegate_tower::extract;

use crate::observe::traffic::WindowSeconds;
use crate::transport::auth::AccessLevel;
use crate::transport::http::event_stream::{self, EVENT_STREAM, EventSource, PendingBytes};
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::state::AppState;

/// `GET /v1/live[?seconds=60]`
pub(crate) async fn live(
    State(app): State<AppState>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    app.admit(AccessLevel::Check, &headers)?;
    let seconds = seconds(query.as_deref().unwrap_or_default())?;
    if wants_stream(&headers) {
        return event_stream::follow(app, SnapshotEvents(seconds));
    }
    let live = app.service.traffic();
    let json = live.json(seconds, app.current_status()).await.unwrap_or_default();
    let permit = live.hold(json.len()).filter(|_| !json.is_empty());
    if permit.is_none() {
        let detail = "too many slow readers; retry later";
        return Err(HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    Ok((headers, event_stream::one(PendingBytes { rest: json, _permit: permit })).into_response())
}

/// A snapshot per second.
struct SnapshotEvents(WindowSeconds);

impl EventSource for SnapshotEvents {
    async fn event(&mut self, app: &AppState) -> Option<Option<PendingBytes>> {
        let live = app.service.traffic();
        let rest = live.event(self.0, app.current_status()).await?;
        // The second is skipped if other readers use up the memory budget.
        let permit = live.hold(rest.len());
        Some(permit.is_some().then_some(PendingBytes { rest, _permit: permit }))
    }
}

fn seconds(query: &str) -> Result<WindowSeconds, HttpProblem> {
    let mut seconds = None;
    for (name, value) in extract::query_pairs(query) {
        match (name.as_deref(), value.as_deref()) {
            (Some("seconds"), Some(value)) if seconds.is_none() => {
                let number = value.parse().ok().and_then(WindowSeconds::new);
                let refused = || HttpProblem::field("seconds", "use a number from 1 to 900");
                seconds = Some(number.ok_or_else(refused)?);
            }
            (name, _) => {
                let name = Cow::from(name.unwrap_or("query").to_owned());
                return Err(HttpProblem::field(name, "only seconds is allowed, once"));
            }
        }
    }
    Ok(seconds.unwrap_or(WindowSeconds::DEFAULT))
}

/// Whether `Accept` names the event stream. Wildcards select JSON.
fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let mut ranges = accepted.flat_map(|value| value.split(','));
    ranges.any(|range| {
        let kind = range.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case(EVENT_STREAM)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_may_only_have_a_number_of_seconds() {
        for (query, expected) in [
            ("", Ok(60)),
            ("seconds=1", Ok(1)),
            ("seconds=900", Ok(900)),
            ("seconds=0", Err("seconds")),
            ("seconds=901", Err("seconds")),
            ("seconds=-1", Err("seconds")),
            ("seconds=", Err("seconds")),
            ("seconds=%ff", Err("seconds")),
            ("seconds=5&seconds=5", Err("seconds")),
            ("second=5", Err("second")),
            ("%ff=5", Err("query")),
        ] {
            let read = seconds(query).map(WindowSeconds::get);
            let field = |problem: HttpProblem| {
                serde_json::to_value(problem.body()).unwrap()["field"].as_str().unwrap().to_string()
            };
            assert_eq!(read.map_err(field), expected.map_err(String::from), "{query}");
        }
    }

    #[test]
    fn events_are_sent_if_accept_names_them() {
        for (accept, expected) in [
            ("text/event-stream", true),
            ("Text/Event-Stream; q=0.9, application/json", true),
            ("application/json, text/event-stream", true),
            ("*/*", false),
            ("text/*", false),
            ("application/json", false),
            ("text/event-streams", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            assert_eq!(wants_stream(&headers), expected, "{accept}");
        }
        assert!(!wants_stream(&HeaderMap::new()));
    }
}
