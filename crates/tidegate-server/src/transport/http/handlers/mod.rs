//! HTTP handlers, one file per group of endpoints. Imports: event_stream, json, problem, read_body,
//! response, run_blocking, state.

pub(crate) mod check;
pub(crate) mod check_many;
pub(crate) mod envoy_json;
pub(crate) mod forward_auth;
pub(crate) mod keys;
pub(crate) mod live;
pub(crate) mod overrides;
pub(crate) mod reservation;
pub(crate) mod rules;
pub(crate) mod simulate;
pub(crate) mod status;
