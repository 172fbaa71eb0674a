//! Where the counts are kept.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Breaker, BreakerEvent, DenyCache, Engine, Fallback, Health, Lease, Memory, StoreEvent,
};
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

    /// Do parts of it fail by themselves?
    fn has_shards(&self) -> bool {
        self.to_string().split("://").next().is_some_and(|scheme| scheme.ends_with("-cluster"))
    }

    /// The engine on this store, for whoever asks all the time: it leaves a store alone that does not answer,
    /// remembers denials, borrows permits for rules that allow it, and knows what each rule says for the time
    /// when the store does not answer.
    pub fn engine_with_layers(
        &self,
        settings: &Settings,
        metrics: &Arc<Metrics>,
    ) -> Result<Layers, StoreError> {
        let mut engine = self.engine(settings)?;
        if !self.may_be_gone() {
            return Ok(Layers { engine, lease: None });
        }
        engine = Arc::new(self.guarded(engine, metrics.clone()));
        if settings.deny_cache {
            engine = Arc::new(DenyCache::new(engine));
        }
        let lease = Arc::new(Lease::new(engine));
        let metrics = metrics.clone();
        let engine = Fallback::new(lease.clone()).watched_by(move |event| {
            // What nobody answers is counted by whoever asked.
            if let StoreEvent::NoAnswer { error, covered: true } = event {
                metrics.count_store_error(error);
            }
        });
        Ok(Layers { engine: Arc::new(engine), lease: Some(lease) })
    }

    /// Tells in the log when it is left alone, and when it answers again.
    fn guarded(&self, engine: Arc<dyn Engine>, metrics: Arc<Metrics>) -> Breaker<Arc<dyn Engine>> {
        let (store, has_shards) = (self.to_string(), self.has_shards());
        Breaker::new(engine).watched_by(move |event| match event {
            BreakerEvent::Opened { shard, error, .. } => {
                metrics.count_breaker_opened();
                let shard = has_shards.then_some(shard);
                warn!(store, shard, %error, "no answers from the store, rules go by on_store_failure");
            }
            BreakerEvent::Closed { shard, after, .. } => {
                let (shard, after) = (has_shards.then_some(shard), after.as_millis() as u64);
                info!(store, shard, open_ms = after, "the store answers again");
            }
            BreakerEvent::Forgotten { shard, after, .. } => {
                let (shard, after) = (has_shards.then_some(shard), after.as_millis() as u64);
                info!(store, shard, open_ms = after, "nobody has asked the store for a while");
            }
            _ => {}
        })
    }

    /// Logs that there is no connection, if there is none soon; and what the store should be otherwise, and
    /// that it may have lost what it had counted, when that appears; and each minute that calls had no answer,
    /// which need not be enough to leave it alone. Never completes.
    pub(crate) async fn tell(&self, health: impl Fn() -> Health, unanswered: impl Fn() -> u64) {
        if !self.may_be_gone() {
            return std::future::pending().await;
        }
        tokio::time::sleep(Self::LOOK_PAUSE).await;
        if !health().up {
            warn!(store = %self, "no connection to the store yet, rules go by on_store_failure");
        }
        let mut told = Told::default();
        loop {
            let health = health();
            if let Some(warning) = told.new_warning(&health) {
                warn!(store = %self, %warning, "the store is not set up as it should be");
            }
            if let Some(what) = told.new_reset(&health) {
                let resets = health.resets;
                warn!(store = %self, %what, resets, "the store may have lost what it had counted");
            }
            if let Some(calls) = told.new_unanswered(unanswered()) {
                warn!(store = %self, calls, "calls of the last minute had no answer from the store");
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
        let mut builder = url.as_ref().clone().builder().confirmed_by(settings.confirmed_by);
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
        Ok(Arc::new(builder.build()?))
    }
}

/// What has been told about a store.
#[derive(Default)]
struct Told {
    warning: Option<Arc<str>>,
    resets: u64,
    unanswered: u64,
    /// How often it was looked since that was told.
    looks: u32,
}

impl Told {
    /// How many more there are, each minute.
    fn new_unanswered(&mut self, calls: u64) -> Option<u64> {
        const LOOKS: u32 = 60;
        self.looks += 1;
        if self.looks < LOOKS {
            return None;
        }
        self.looks = 0;
        let more = calls - std::mem::replace(&mut self.unanswered, calls);
        (more > 0).then_some(more)
    }

    fn new_warning(&mut self, health: &Health) -> Option<Arc<str>> {
        let warning = health.warning.clone().filter(|text| self.warning.as_ref() != Some(text))?;
        self.warning = Some(warning.clone());
        Some(warning)
    }

    fn new_reset(&mut self, health: &Health) -> Option<Arc<str>> {
        let is_new = health.resets > std::mem::replace(&mut self.resets, health.resets);
        is_new.then(|| health.last_reset.clone().unwrap_or_else(|| "not known how".into()))
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
    fn only_a_cluster_fails_in_parts() {
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
    fn warnings_and_resets_are_told_when_they_are_new() {
        let mut told = Told::default();
        let mut health = Health::up(None, 0);
        for (warning, resets, last, expected) in [
            (None, 0, None, (None, None)),
            (Some("w"), 1, Some("x"), (Some("w"), Some("x"))),
            (Some("w"), 1, Some("x"), (None, None)),
            (None, 2, Some("x"), (None, Some("x"))),
            (Some("w"), 2, Some("x"), (None, None)),
            (Some("v"), 5, None, (Some("v"), Some("not known how"))),
        ] {
            health.warning = warning.map(Arc::from);
            (health.resets, health.last_reset) = (resets, last.map(Arc::from));
            let news = (told.new_warning(&health), told.new_reset(&health));
            assert_eq!((news.0.as_deref(), news.1.as_deref()), expected);
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
