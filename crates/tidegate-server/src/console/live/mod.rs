//! What goes on now: the page that most people look at most.
//!
//! # Layout
//!
//! - `view`: what somebody wants to see of it. `shared`: made once a second for all who want the same.
//! - `sections`: the parts of the page. `rules`, `keys`, `denials`: the longer ones. `columns`: seconds, as they are
//!   drawn. `left`: what is left of a key.
//! - `events`: the sections again, every second.

mod columns;
mod denials;
mod events;
mod keys;
mod left;
mod rules;
mod sections;
mod shared;
mod view;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use maud::{PreEscaped, html};

pub(super) use self::shared::Shared;
use self::view::View;
use super::form::Fields;
use super::page::{Nav, refreshed};
use super::trouble::Trouble;
use super::visitor::Visitor;
use crate::http::Door;
use crate::http::activity::Lasts;
use crate::live::Live;

/// `GET /[?sort=..][&filter=..][&page=2]`
pub(super) async fn show(State(door): State<Door>, visitor: Visitor, fields: Fields) -> Response {
    let view = View::read(&fields);
    let sections = door.console.live.sections(&door, &view).await;
    let body = html! {
        div.bar {
            h1 { "Live" }
            p.now {
                span #following role="status" { "as of now" } " "
                button.quiet #pause type="button" aria-pressed="false" hidden { "Pause" }
            }
        }
        div.live data-events={ "/console/live" (view.query()) } data-state="following" {
            @for (id, section) in &*sections {
                // Not a part of what is replaced while somebody types into it.
                @if *id == "rules" { (rules::bar(&view)) }
                (wrapped(id, section))
            }
        }
    };
    refreshed(&visitor, Nav::Live, "Live", &body)
}

/// `GET /console/live`: the sections that have changed, every second.
pub(super) async fn follow(
    State(door): State<Door>,
    _: Visitor,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Trouble> {
    let Some(place) = door.service.live().follow() else {
        let detail = format!("{} follow already; try again later", Live::MAX_STREAMS);
        return Err(Trouble::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let events = events::Events::new(door, View::read(&fields), headers, place);
    let body = axum::body::Body::new(events);
    let mut response = ([(CONTENT_TYPE, "text/event-stream")], body).into_response();
    response.extensions_mut().insert(Lasts::AsLongAsWanted);
    Ok(response)
}

/// A section, in what the script finds it by.
fn wrapped(id: &str, section: &str) -> PreEscaped<String> {
    html! { section id=(id) aria-labelledby={ (id) "-title" } { (PreEscaped(section)) } }
}
