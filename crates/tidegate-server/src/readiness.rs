//! When the server reports that it is ready.

use tidegate::Health;

/// When `/readyz`, gRPC health and `/healthcheck` report that the server is ready.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ReadyWhen {
    /// As long as it serves. Without the store, `on_store_failure` of each rule applies: a store
    /// that fails must not make a whole fleet unready.
    #[default]
    Always,
    /// While decisions come from the store.
    Store,
}

/// What a server needs to be ready.
#[derive(Clone, Copy, Default, Debug)]
pub struct Readiness {
    when: ReadyWhen,
    needs_limits: bool,
}

impl Readiness {
    /// `needs_limits`: not before the first configuration of a control plane.
    pub(crate) fn new(when: ReadyWhen, needs_limits: bool) -> Self {
        Self { when, needs_limits }
    }

    /// Whether a server with a store of this health is ready. `has_limits` is whether the limits of
    /// Envoy's domains are known.
    pub(crate) fn is_met(self, health: &Health, has_limits: bool) -> bool {
        let by_store = match self.when {
            ReadyWhen::Always => true,
            ReadyWhen::Store => health.up,
        };
        by_store && (has_limits || !self.needs_limits)
    }
}
