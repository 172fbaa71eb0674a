//! The live page: traffic, store, rules, hot keys and denials. Imports: error_page, form, layout,
//! links, page, state, try_command, user.

pub(crate) mod chart_columns;
pub(super) mod denials;
mod events;
mod format;
pub(crate) mod hot_keys;
pub(crate) mod query;
mod rules;
pub(super) mod sections;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use maud::html;

pub(super) use self::events::SectionCache;
use self::events::SectionEvents;
use self::query::LiveQuery;
use self::sections::wrapped;
use super::error_page::ErrorPage;
use super::form::FormFields;
use super::layout::NavItem;
use super::page::refreshed;
use super::state::ConsoleContext;
use super::user::ConsoleUser;
use crate::transport::http::{AppState, event_stream};

/// `GET /[?sort=..][&filter=..][&page=2]`
pub(super) async fn show(
    State(app): State<AppState>,
    State(cache): State<Arc<SectionCache>>,
    user: ConsoleUser,
    fields: FormFields,
) -> Response {
    let query = LiveQuery::read(&fields);
    let sections = cache.sections(&app, &query).await;
    let body = html! {
        div.bar {
            h1 { "Live" }
            p.now {
                span #following role="status" { "as of now" } " "
                button.quiet #pause type="button" aria-pressed="false" hidden { "Pause" }
            }
        }
        div.live data-events={ "/console/live" (query.encoded()) } data-state="following" {
            @for (id, section) in &*sections {
                // Outside of the section, so that updates do not replace a half-typed filter.
                @if *id == "rules" { (rules::bar(&query)) }
                (wrapped(id, section))
            }
        }
    };
    refreshed(&user, NavItem::Live, "Live", &body)
}

/// `GET /console/live`: the sections that have changed, every second.
pub(super) async fn follow(
    State(context): State<ConsoleContext>,
    State(cache): State<Arc<SectionCache>>,
    _: ConsoleUser,
    headers: HeaderMap,
    fields: FormFields,
) -> Result<Response, ErrorPage> {
    let (query, app) = (LiveQuery::read(&fields), context.app.clone());
    let events = SectionEvents { context, cache, query, headers, sent: [].into() };
    Ok(event_stream::follow(app, events)?)
}
