//! State of all HTTP handlers, and the access check that they share.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use tidegate::Health;

use super::problem::HttpProblem;
use crate::check::CheckService;
use crate::observe::metrics::ListenerKind;
use crate::observe::traffic::CurrentStatus;
use crate::observe::traffic::snapshot::{ConnectionCounts, PolicyState};
use crate::policy::{Actor, PolicyManager, PolicyStatus};
use crate::readiness::Readiness;
use crate::shutdown::Shutdown;
use crate::transport::allowed_hosts::AllowedHosts;
use crate::transport::auth::{AccessLevel, AuthTokens, token_from_headers};
use crate::transport::envoy::service::EnvoyService;
use crate::transport::listener::http_connection::ConnectionInfo;

/// State of all HTTP handlers. One pointer: each request clones it several times.
#[derive(Clone)]
pub struct AppState(Arc<AppContext>);

/// What an [`AppState`] points to.
pub struct AppContext {
    /// Shared with the other listeners.
    pub service: Arc<CheckService>,
    /// The address of the store, without a password.
    pub store_address: String,
    /// Lists, sets and deletes rules.
    pub policies: Arc<PolicyManager>,
    /// Tokens that grant access.
    pub tokens: Arc<AuthTokens>,
    /// Host names of the HTTP listener.
    pub hosts: Arc<AllowedHosts>,
    /// Decides requests of `POST /json`.
    pub envoy: Arc<EnvoyService>,
    /// Reports that the server drains.
    pub drain: Shutdown,
    /// When the server is ready.
    pub ready_when: Readiness,
}

impl From<AppContext> for AppState {
    fn from(context: AppContext) -> Self {
        Self(Arc::new(context))
    }
}

impl Deref for AppState {
    type Target = AppContext;

    fn deref(&self) -> &AppContext {
        &self.0
    }
}

impl AppState {
    /// Refuses a request whose token grants less than `needed`.
    pub(crate) fn admit(
        &self,
        needed: AccessLevel,
        headers: &HeaderMap,
    ) -> Result<(), HttpProblem> {
        if self.tokens.access() >= needed {
            return Ok(());
        }
        let granted = token_from_headers(headers).and_then(|token| self.tokens.access_with(token));
        if granted >= Some(needed) {
            return Ok(());
        }
        if needed == AccessLevel::Admin && !self.tokens.has_admin() {
            let detail = "admin token required, and the server has none; set TIDEGATE_ADMIN_TOKEN";
            return Err(HttpProblem::new(StatusCode::FORBIDDEN, detail));
        }
        if granted.is_some() {
            return Err(HttpProblem::new(StatusCode::FORBIDDEN, "admin token required"));
        }
        let detail = "missing or invalid token; send Authorization: Bearer or X-Tidegate-Token";
        Err(HttpProblem::new(StatusCode::UNAUTHORIZED, detail))
    }

    /// Number of rules, and the last reload.
    pub(crate) fn policy_state(&self) -> PolicyState {
        let PolicyStatus { loaded_at, error, control_plane, runtime } = self.policies.status();
        let rules = self.service.active().policy.rules().len();
        let loaded_at = loaded_at.get() / 1_000_000;
        PolicyState { rules, loaded_at, error, control_plane, runtime }
    }

    /// Whether a server with a store of this health is ready.
    pub(crate) fn is_ready(&self, health: &Health) -> bool {
        self.ready_when.is_met(health, self.policies.has_limits())
    }

    /// Refuses a change without admin access; returns who makes it.
    pub(crate) fn admit_change(&self, parts: &Parts) -> Result<Actor, HttpProblem> {
        self.admit(AccessLevel::Admin, &parts.headers)?;
        Ok(Actor { token: Some(AccessLevel::Admin.name()), address: self.client_ip(parts) })
    }

    /// The client address of a request, considering trusted proxies.
    pub(crate) fn client_ip(&self, parts: &Parts) -> Option<IpAddr> {
        let peer = ConnectionInfo::of(&parts.extensions)?.peer?;
        Some(self.service.active().trusted.client_ip(peer, &parts.headers))
    }

    /// The part of a traffic snapshot that is not history.
    pub(crate) async fn current_status(&self) -> CurrentStatus {
        let service = &self.service;
        let (now, elapsed) = (service.clock().now(), service.clock().elapsed());
        let open = |listener| service.metrics().connections(listener);
        CurrentStatus {
            now,
            elapsed,
            health: service.health(),
            hottest: service.hottest(CurrentStatus::MAX_HOTTEST, now).await,
            policy: self.policy_state(),
            connections: ConnectionCounts {
                http: open(ListenerKind::Http),
                resp: open(ListenerKind::Resp),
                grpc: open(ListenerKind::Grpc),
            },
            store_address: self.store_address.clone(),
        }
    }
}
