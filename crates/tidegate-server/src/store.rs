//! Store address -> engine with its layers.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Breaker, BreakerEvent, DenyCache, Engine, Fallback, FleetSize, Lease, Memory, StoreEvent,
};
use tidegate_config::ServerSettings;
use tidegate_redis::{InvalidSettings, InvalidUrl, RedisBuilder, RedisUrl, RuntimeHash};
use tracing::{info, warn};

use crate::observe::metrics::Metrics;

/// The address of a store. It is displayed without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Store(StoreKind);

#[derive(Clone, PartialEq, Eq)]
enum StoreKind {
    Memory,
    Redis(Box<RedisUrl>),
}

/// An engine with its layers.
#[derive(Clone)]
pub struct EngineStack {
    /// The outermost layer.
    pub engine: Arc<dyn Engine>,
    lease: Option<Arc<Lease<Arc<dyn Engine>>>>,
    /// The circuit breaker, if the store can fail independently of this process.
    pub(crate) breaker: Option<Arc<Breaker<Arc<dyn Engine>>>>,
    /// The deadline of a call to the store.
    pub(crate) deadline: Duration,
    /// The run-time rules and overrides of the fleet, if the store has them.
    pub(crate) runtime: Option<RuntimeHash>,
    /// The number of servers on this store, by which the fallback divides limits.
    pub(crate) fleet: Arc<FleetSize>,
}

impl EngineStack {
    /// Returns leased permits to the store. Call it after the last check.
    pub async fn close(&self) {
        if let Some(lease) = &self.lease {
            lease.close().await;
        }
    }
}

impl fmt::Debug for EngineStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineStack").finish_non_exhaustive()
    }
}

impl Store {
    /// State in this process.
    pub const MEMORY: Self = Self(StoreKind::Memory);

    /// Whether the address contains a password.
    pub fn has_password(&self) -> bool {
        match &self.0 {
            StoreKind::Memory => false,
            StoreKind::Redis(url) => url.has_password(),
        }
    }

    /// Whether the store is outside this process: it can fail independently, and other servers may
    /// use it.
    pub(crate) fn is_external(&self) -> bool {
        self.0 != StoreKind::Memory
    }

    /// Whether parts of the store fail separately.
    fn has_shards(&self) -> bool {
        self.to_string().split("://").next().is_some_and(|scheme| scheme.ends_with("-cluster"))
    }

    /// The engine on this store with all layers of a server: circuit breaker, deny cache, leases,
    /// and the fallback of each rule while the store is unavailable.
    pub fn engine_with_layers(
        &self,
        settings: &ServerSettings,
        metrics: &Arc<Metrics>,
    ) -> Result<EngineStack, StoreError> {
        let (mut engine, runtime) = self.engine_with(settings, |builder| builder)?;
        let deadline = settings.store_deadline.unwrap_or(RedisBuilder::DEADLINE);
        if !self.is_external() {
            let (lease, breaker, fleet) = (None, None, Arc::default());
            return Ok(EngineStack { engine, lease, breaker, deadline, runtime, fleet });
        }
        let breaker = Arc::new(self.guarded(engine, metrics.clone()));
        engine = breaker.clone();
        if settings.deny_cache {
            engine = Arc::new(DenyCache::new(engine));
        }
        let lease = Arc::new(Lease::new(engine));
        let metrics = metrics.clone();
        let fleet = Arc::<FleetSize>::default();
        let fallback = Fallback::new(lease.clone())
            .cap_bytes(settings.memory.bytes())
            .fleet_size(fleet.clone());
        let engine = fallback.on_event(move |event| {
            // An error without a fallback decision is counted by the service.
            if let StoreEvent::NoAnswer { error, covered: true } = event {
                metrics.count_store_error(error);
            }
        });
        let (engine, lease, breaker) = (Arc::new(engine), Some(lease), Some(breaker));
        Ok(EngineStack { engine, lease, breaker, deadline, runtime, fleet })
    }

    /// Adds the circuit breaker, and logs its changes.
    fn guarded(&self, engine: Arc<dyn Engine>, metrics: Arc<Metrics>) -> Breaker<Arc<dyn Engine>> {
        let (store, has_shards) = (self.to_string(), self.has_shards());
        Breaker::new(engine).on_event(move |event| match event {
            BreakerEvent::Opened { shard, error, .. } => {
                metrics.count_breaker_opened();
                let shard = has_shards.then_some(shard);
                warn!(store, shard, %error, "circuit open: store not responding, on_store_failure applies");
            }
            BreakerEvent::Closed { shard, after, .. } => {
                let (shard, after) = (has_shards.then_some(shard), after.as_millis() as u64);
                info!(store, shard, open_ms = after, "circuit closed: store responding again");
            }
            BreakerEvent::IdleReset { shard, after, .. } => {
                let (shard, after) = (has_shards.then_some(shard), after.as_millis() as u64);
                info!(store, shard, open_ms = after, "circuit state of an idle shard dropped");
            }
            _ => {}
        })
    }

    /// The engine on this store, under the settings of the policy file. It needs a Tokio runtime.
    pub fn engine(&self, settings: &ServerSettings) -> Result<Arc<dyn Engine>, StoreError> {
        self.engine_with(settings, |builder| builder).map(|(engine, _)| engine)
    }

    /// The same for a single call, whose deadline includes the connection.
    pub fn engine_within(
        &self,
        settings: &ServerSettings,
        deadline: Duration,
    ) -> Result<Arc<dyn Engine>, StoreError> {
        let set = |builder: RedisBuilder| builder.deadline(deadline).connect_deadline(deadline);
        self.engine_with(settings, set).map(|(engine, _)| engine)
    }

    fn engine_with(
        &self,
        settings: &ServerSettings,
        set: impl FnOnce(RedisBuilder) -> RedisBuilder,
    ) -> Result<(Arc<dyn Engine>, Option<RuntimeHash>), StoreError> {
        let url = match &self.0 {
            StoreKind::Memory => {
                let memory = Memory::builder().cap_bytes(settings.memory.bytes()).build();
                return Ok((Arc::new(memory), None));
            }
            StoreKind::Redis(url) => url,
        };
        let mut builder = url.as_ref().clone().builder().wait_for_replicas(settings.confirmed_by);
        if let Some(deadline) = settings.store_deadline {
            builder = builder.deadline(deadline);
        }
        builder = set(builder);
        if let Some(namespace) = &settings.namespace {
            builder = builder.namespace(namespace);
        }
        let secret = settings.secret.as_ref().map(|secret| secret.expose().to_string());
        if let Some(secret) = secret.or_else(|| std::env::var("TIDEGATE_SECRET").ok()) {
            builder = builder.secret(secret);
        }
        let redis = builder.build()?;
        let runtime = redis.runtime_hash();
        Ok((Arc::new(redis), Some(runtime)))
    }
}

impl FromStr for Store {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text == "memory" {
            return Ok(Self::MEMORY);
        }
        match text.parse() {
            Ok(url) => Ok(Self(StoreKind::Redis(Box::new(url)))),
            Err(InvalidUrl::Scheme) => Err(StoreError::Unknown),
            Err(error) => Err(StoreError::Settings(error.into())),
        }
    }
}

/// Without the password.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            StoreKind::Memory => f.write_str("memory"),
            StoreKind::Redis(url) => url.fmt(f),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a store cannot be used. The message does not contain the address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// The scheme is unknown.
    Unknown,
    /// The address or the settings are invalid.
    Settings(InvalidSettings),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                let schemes = RedisUrl::SCHEMES.join("://.., ");
                write!(f, "unknown store; use memory, {schemes}://..")
            }
            Self::Settings(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<InvalidSettings> for StoreError {
    fn from(error: InvalidSettings) -> Self {
        Self::Settings(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_shown_without_its_password() {
        for (text, shown) in [
            ("memory", "memory"),
            ("redis://127.0.0.1/2", "redis://127.0.0.1:6379/2"),
            ("redis://user:p@w:x@host", "redis://user:***@host:6379"),
            ("unix:///run/redis.sock?password=pw", "unix:///run/redis.sock?password=***"),
            ("redis-sentinel://:pw@a,b/main", "redis-sentinel://:***@a:26379,b:26379/main"),
            (
                "redis-sentinel://a/main?sentinel_password=pw",
                "redis-sentinel://a:26379/main?sentinel_password=***",
            ),
            ("rediss-cluster://a,b", "rediss-cluster://a:6379,b:6379"),
        ] {
            let store = text.parse::<Store>().unwrap();
            assert_eq!((store.to_string(), format!("{store:?}")), (shown.into(), shown.into()));
            assert_eq!(store.has_password(), shown.contains("***"), "{shown}");
        }
    }

    #[test]
    fn only_a_cluster_has_shards() {
        for (text, expected) in [
            ("memory", false),
            ("redis://a-cluster", false),
            ("redis-sentinel://a,b/c-cluster", false),
            ("redis-cluster://a,b", true),
            ("rediss-cluster://a,b", true),
        ] {
            assert_eq!(text.parse::<Store>().unwrap().has_shards(), expected, "{text}");
        }
    }

    #[test]
    fn an_invalid_store_is_reported_without_its_password() {
        for (text, message) in [
            (
                "mysql://u:hunter2@h",
                "unknown store; use memory, redis://.., rediss://.., unix://..",
            ),
            ("", "unknown store"),
            ("redis://hunter2@h", "a login without a password"),
            ("redis://h/1?password=hunter2", "unknown parameter"),
            ("redis://u:hunter2@h:0", "a port"),
        ] {
            let error = text.parse::<Store>().unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
