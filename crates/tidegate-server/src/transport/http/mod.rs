//! HTTP API: JSON calls, forward-auth, OpenAPI document. Imports: allowed_hosts, auth,
//! caller_deadline, cross_site, envoy, listener.

pub(crate) mod event_stream;
mod guard;
pub(crate) mod handlers;
mod health_listener;
pub(crate) mod json;
mod measure;
mod openapi;
pub(crate) mod problem;
pub(crate) mod read_body;
pub(crate) mod response;
mod router;
pub(crate) mod run_blocking;
mod state;

pub use self::handlers::keys::inspection_json;
pub(crate) use self::health_listener::{serve_health, serve_metrics};
pub use self::json::decision_json;
#[doc(hidden)]
pub use self::openapi::live_example;
pub use self::router::router;
pub(crate) use self::router::{HttpService, ratelimit_router};
pub use self::state::{AppContext, AppState};
