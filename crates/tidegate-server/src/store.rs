//! Where the counts are kept.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{DenyCache, Engine, Fallback, Health, Lease, Memory, StoreEvent};
use tidegate_redis::{InvalidSettings, InvalidUrl, RedisBuilder, RedisUrl};
use tracing::{info, warn};

use crate::config::Settings;
use crate::metrics::Metrics;

/// A store, by its address. It is never shown whole, since it may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Store(Kind);

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Memory,
    Redis(Box<RedisUrl>),
}

/// An engine with its layers.
pub struct Layers {
    /// What to ask.
    pub engine: Arc<dyn Engine>,
    lease: Option<Arc<Lease<Arc<dyn Engine>>>>,
}

impl Layers {
    /// Gives back what is borrowed, for when nobody asks any more.
    pub async fn close(&self) {
        if let Some(lease) = &self.lease {
            lease.close().await;
        }
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers").finish_non_exhaustive()
    }
}

impl Store {
    /// How often to look how it is. Until the first time it may take to connect.
    const LOOK_PAUSE: Duration = Duration::from_secs(1);

    /// In this process.
    pub const MEMORY: Self = Self(Kind::Memory);

    /// Can it fall silent while this process goes on?
    fn may_be_gone(&self) -> bool {
        self.0 != Kind::Memory
    }

    /// The engine on this store, for whoever asks all the time: it remembers denials, borrows permits for
    /// rules that allow it, and knows what each rule says for the time when the store does not answer.
    pub fn engine_with_layers(
        &self,
        settings: &Settings,
        metrics: &Arc<Metrics>,
    ) -> Result<Layers, StoreError> {
        let mut engine = self.engine(settings)?;
        if !self.may_be_gone() {
            return Ok(Layers { engine, lease: None });
        }
        if settings.deny_cache {
            engine = Arc::new(DenyCache::new(engine));
        }
        let lease = Arc::new(Lease::new(engine));
        let (metrics, store) = (metrics.clone(), self.to_string());
        let engine = Arc::new(Fallback::new(lease.clone()).watched_by(move |event| match event {
            StoreEvent::NoAnswer { error, first, covered } => {
                // What nobody answers is counted by whoever asked.
                if covered {
                    metrics.count_store_error(error);
                }
                if first {
                    warn!(store, %error, "no answer from the store, rules go by on_store_failure");
                }
            }
            StoreEvent::Back => info!(store, "the store answers again"),
            _ => {}
        }));
        Ok(Layers { engine, lease: Some(lease) })
    }

    /// Logs that there is no connection, if there is none soon; and what the store should be otherwise,
    /// when that appears. Never completes.
    pub(crate) async fn tell(&self, health: impl Fn() -> Health) {
        if !self.may_be_gone() {
            return std::future::pending().await;
        }
        tokio::time::sleep(Self::LOOK_PAUSE).await;
        if !health().up {
            warn!(store = %self, "no connection to the store yet, rules go by on_store_failure");
        }
        let mut told = None;
        loop {
            let warning = health().warning;
            if let Some(text) = warning.filter(|text| told.as_ref() != Some(text)) {
                warn!(store = %self, warning = %text, "the store is not set up as it should be");
                told = Some(text);
            }
            tokio::time::sleep(Self::LOOK_PAUSE).await;
        }
    }

    /// The engine on this store, under the settings of the policy file. It needs a Tokio runtime.
    pub fn engine(&self, settings: &Settings) -> Result<Arc<dyn Engine>, StoreError> {
        self.engine_with(settings, |builder| builder)
    }

    /// The same for one who asks once: there is no connection yet, and a call may take so long.
    pub fn engine_within(
        &self,
        settings: &Settings,
        deadline: Duration,
    ) -> Result<Arc<dyn Engine>, StoreError> {
        self.engine_with(settings, |builder| builder.deadline(deadline).connect_deadline(deadline))
    }

    fn engine_with(
        &self,
        settings: &Settings,
        set: impl FnOnce(RedisBuilder) -> RedisBuilder,
    ) -> Result<Arc<dyn Engine>, StoreError> {
        let url = match &self.0 {
            Kind::Memory => return Ok(Arc::new(Memory::default())),
            Kind::Redis(url) => url,
        };
        let mut builder = set(url.as_ref().clone().builder());
        if let Some(namespace) = &settings.namespace {
            builder = builder.namespace(namespace);
        }
        let secret = settings.secret.as_ref().map(|secret| secret.expose().to_string());
        if let Some(secret) = secret.or_else(|| std::env::var("TIDEGATE_SECRET").ok()) {
            builder = builder.secret(secret);
        }
        Ok(Arc::new(builder.build()?))
    }
}

impl FromStr for Store {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text == "memory" {
            return Ok(Self::MEMORY);
        }
        match text.parse() {
            Ok(url) => Ok(Self(Kind::Redis(Box::new(url)))),
            Err(InvalidUrl::Scheme) => Err(StoreError::Unknown),
            Err(error) => Err(StoreError::Settings(error.into())),
        }
    }
}

/// Without the password.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Memory => f.write_str("memory"),
            Kind::Redis(url) => url.fmt(f),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a store cannot be used. It does not show the address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// Nobody knows such a store.
    Unknown,
    /// The address or the settings are not good.
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
            ("rediss-cluster://a,b", "rediss-cluster://a:6379,b:6379"),
        ] {
            let store = text.parse::<Store>().unwrap();
            assert_eq!((store.to_string(), format!("{store:?}")), (shown.into(), shown.into()));
        }
    }

    #[test]
    fn what_is_no_store_is_told_without_its_password() {
        for (text, told) in [
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
            assert!(error.to_string().contains(told), "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
