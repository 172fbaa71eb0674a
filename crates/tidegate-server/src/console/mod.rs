//! The console: HTML pages over the server. Imports: chart, check, observe, policy, text,
//! transport.

pub(crate) mod admin_form;
mod assets;
pub(crate) mod error_page;
mod form;
mod keys;
pub(crate) mod layout;
mod links;
mod live;
mod login;
pub(crate) mod middleware;
mod page;
mod playground;
mod rule_page;
mod rules;
mod sessions;
mod state;
mod try_command;
pub(crate) mod user;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use self::live::SectionCache;
pub use self::sessions::CookieSecurity;
pub use self::state::{ConsoleContext, ConsoleState};
use crate::transport::http::AppState;

/// State of the router: that of the handlers, and the cache of the live page.
#[derive(Clone)]
struct PagesState {
    context: ConsoleContext,
    live: Arc<SectionCache>,
}

impl FromRef<PagesState> for AppState {
    fn from_ref(pages: &PagesState) -> Self {
        pages.context.app.clone()
    }
}

impl FromRef<PagesState> for ConsoleContext {
    fn from_ref(pages: &PagesState) -> Self {
        pages.context.clone()
    }
}

impl FromRef<PagesState> for Arc<SectionCache> {
    fn from_ref(pages: &PagesState) -> Self {
        pages.live.clone()
    }
}

/// All pages, with their state.
pub fn router(context: ConsoleContext) -> Router {
    let pages = PagesState { context, live: Arc::default() };
    Router::new()
        .route("/", get(live::show))
        .route("/console/live", get(live::follow))
        .route("/keys", get(keys::show))
        .route("/keys/reset", post(keys::reset))
        .route("/keys/override", post(keys::set_override))
        .route("/keys/override/end", post(keys::end_override))
        .route("/keys/take-back", post(keys::revert_rule))
        .route("/playground", get(playground::show))
        .route("/playground/apply", post(playground::apply))
        .route("/rule", get(rule_page::show))
        .route("/rules", get(rules::list))
        .route("/rules/validate", post(rules::validate))
        .route("/rules/delete", post(rules::delete))
        .route("/login", get(login::show).post(login::sign_in))
        .route("/logout", post(login::sign_out))
        .route("/console/style.css", get(assets::style))
        .route("/console/console.js", get(assets::script))
        .route("/console/icon.svg", get(assets::icon))
        .route_layer(from_fn_with_state(pages.context.clone(), middleware::guard))
        .with_state(pages)
}
