//! How the server is.

use std::sync::LazyLock;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;
use tidegate::Circuit;

use super::{Door, calls, openapi, text};
use crate::metrics::Metrics;

/// How the server is.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct StatusBody {
    /// `ok`, or `degraded` if the store or the policy is not as it should be.
    status: &'static str,
    /// The version of the server.
    version: &'static str,
    /// The store.
    store: StoreBody,
    /// The policy.
    policy: PolicyBody,
}

/// How the store is.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct StoreBody {
    /// Does it answer?
    up: bool,
    /// Keys it has state for, where that is known.
    tracked_keys: Option<u64>,
    /// Bytes it uses in this process.
    memory_bytes: u64,
    /// What should be otherwise, though it answers, and what to do about it.
    warning: Option<String>,
    /// `closed` while it is asked; `open` while it is not, since it did not answer; `half-open` while it is
    /// tried. `null` if it cannot fall silent.
    circuit: Option<&'static str>,
    /// How often it may have lost what it had counted.
    resets: u64,
    /// What happened the last time.
    last_reset: Option<String>,
}

/// How the policy is.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct PolicyBody {
    /// How many rules are in force.
    rules: usize,
    /// When they were read, in seconds since 1970.
    loaded_at: u64,
    /// Why the file as it is now is not in force.
    error: Option<String>,
}

impl Door {
    fn status(&self) -> StatusBody {
        let (health, condition) = (self.service.health(), self.policies.condition());
        let good = health.up && health.warning.is_none() && condition.error.is_none();
        StatusBody {
            status: if good { "ok" } else { "degraded" },
            version: env!("CARGO_PKG_VERSION"),
            store: StoreBody {
                up: health.up,
                tracked_keys: health.tracked_keys,
                memory_bytes: health.memory_bytes,
                warning: health.warning.map(|warning| warning.to_string()),
                circuit: health.circuit.map(Circuit::name),
                resets: health.resets,
                last_reset: health.last_reset.map(|what| what.to_string()),
            },
            policy: PolicyBody {
                rules: self.service.active().policy.rules().len(),
                loaded_at: condition.loaded_at.get() / 1_000_000,
                error: condition.error,
            },
        }
    }
}

/// `GET /healthz`: the process lives; the body tells how it is.
pub(super) async fn health(State(door): State<Door>) -> Response {
    calls::json(StatusCode::OK, HeaderMap::new(), &door.status())
}

/// `GET /readyz`: the store answers.
pub(super) async fn ready(State(door): State<Door>) -> Response {
    let status = door.status();
    let code = if status.store.up { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    calls::json(code, HeaderMap::new(), &status)
}

/// `GET /metrics`
pub(super) async fn metrics(State(door): State<Door>) -> Response {
    let health = door.service.health();
    let theirs = door.envoy.stats().map(|stats| stats.render()).unwrap_or_default();
    let traces = door.service.tracer().map(|tracer| tracer.render()).unwrap_or_default();
    text(Metrics::CONTENT_TYPE, door.service.metrics().render(&health) + &theirs + &traces)
}

/// `GET /openapi.json`
pub(super) async fn openapi() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| openapi::document().to_string());
    text("application/json", DOCUMENT.as_str())
}
