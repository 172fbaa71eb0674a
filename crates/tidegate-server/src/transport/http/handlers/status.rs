//! `/healthz`, `/readyz` and `/metrics`.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use tidegate::Health;

use crate::observe::memory::MemoryState;
use crate::observe::metrics::Metrics;
use crate::observe::traffic::snapshot::{PolicyState, StoreState};
use crate::transport::http::response;
use crate::transport::http::state::AppState;

/// Server status.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct StatusBody {
    /// `ok`, or `degraded` if there is a reason.
    status: &'static str,
    /// Why the status is `degraded`; empty if it is `ok`.
    reasons: Vec<String>,
    /// The version of the server.
    version: &'static str,
    /// The store.
    store: StoreState,
    /// Memory of this process.
    memory: MemoryState,
    /// The policy.
    policy: PolicyState,
}

impl AppState {
    fn status(&self, health: Health) -> StatusBody {
        let memory = MemoryState::from(health.memory);
        let (store, policy) = (StoreState::from(health), self.policy_state());
        let reasons = store.reasons().chain(policy.reasons()).chain(memory.reasons());
        let reasons: Vec<String> = reasons.collect();
        StatusBody {
            status: if reasons.is_empty() { "ok" } else { "degraded" },
            reasons,
            version: env!("CARGO_PKG_VERSION"),
            store,
            memory,
            policy,
        }
    }
}

/// `GET /healthz`: always 200; the body has the details.
pub(crate) async fn health(State(app): State<AppState>) -> Response {
    response::ok(&app.status(app.service.health()))
}

/// `GET /readyz`: 200 if the server is ready, with the same body.
pub(crate) async fn ready(State(app): State<AppState>) -> Response {
    let health = app.service.health();
    let code = match app.is_ready(&health) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    response::json(code, HeaderMap::new(), &app.status(health))
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<AppState>) -> Response {
    let health = app.service.health();
    let envoy = app.envoy.stats().map(|stats| stats.render()).unwrap_or_default();
    let traces = app.service.tracer().map(|tracer| tracer.render()).unwrap_or_default();
    response::text(Metrics::CONTENT_TYPE, app.service.render_metrics(&health) + &envoy + &traces)
}
