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

impl ReadyWhen {
    /// Whether a server with a store of this health is ready.
    pub(crate) fn is_met(self, health: &Health) -> bool {
        match self {
            Self::Always => true,
            Self::Store => health.up,
        }
    }
}
