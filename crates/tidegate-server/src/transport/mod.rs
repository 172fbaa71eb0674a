//! Network protocols: HTTP, RESP and gRPC. Imports: chart, check, observe, policy, readiness,
//! shares, shutdown, tls.

pub(crate) mod allowed_hosts;
pub(crate) mod auth;
pub(crate) mod caller_deadline;
pub(crate) mod cross_site;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod listener;
pub(crate) mod resp;
