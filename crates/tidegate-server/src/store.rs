//! Where the counts are kept.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Engine, Fallback, Memory, StoreEvent};
use tidegate_redis::{Redis, RedisBuilder};
use tracing::{info, warn};

use crate::config::Settings;
use crate::metrics::Metrics;

/// A store, by its address. It is never shown whole, since it may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Store(Kind);

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Memory,
    Redis(String),
}

impl Store {
    /// In this process.
    pub const MEMORY: Self = Self(Kind::Memory);

    /// Can it fall silent while this process goes on?
    fn may_be_gone(&self) -> bool {
        self.0 != Kind::Memory
    }

    /// The engine on this store, with what each rule says for the time when it does not answer.
    pub fn engine_with_fallback(
        &self,
        settings: &Settings,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<dyn Engine>, StoreError> {
        let engine = self.engine(settings)?;
        if !self.may_be_gone() {
            return Ok(engine);
        }
        let (metrics, store) = (metrics.clone(), self.to_string());
        Ok(Arc::new(Fallback::new(engine).watched_by(move |event| match event {
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
        })))
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
        let mut builder = set(Redis::builder(url));
        if let Some(namespace) = &settings.namespace {
            builder = builder.namespace(namespace);
        }
        let secret = settings.secret.as_ref().map(|secret| secret.expose().to_string());
        if let Some(secret) = secret.or_else(|| std::env::var("TIDEGATE_SECRET").ok()) {
            builder = builder.secret(secret);
        }
        let redis = builder.build().map_err(|error| StoreError::Settings(error.to_string()))?;
        Ok(Arc::new(redis))
    }
}

impl FromStr for Store {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text == "memory" {
            return Ok(Self::MEMORY);
        }
        match text.split_once("://") {
            Some(("redis", _)) => Ok(Self(Kind::Redis(text.into()))),
            Some((
                "rediss" | "unix" | "redis-sentinel" | "redis-cluster" | "rediss-sentinel"
                | "rediss-cluster",
                _,
            )) => Err(StoreError::NotYet),
            _ => Err(StoreError::Unknown),
        }
    }
}

/// Without the password.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = match &self.0 {
            Kind::Memory => return f.write_str("memory"),
            Kind::Redis(url) => url.strip_prefix("redis://").unwrap_or(url),
        };
        // A password may hold an `@`, and whoever forgot the colon meant a password.
        let (user, host) = match url.rsplit_once('@') {
            Some((user, host)) => match user.split_once(':') {
                Some((user, _)) => (format!("{user}:***@"), host),
                None => ("***@".into(), host),
            },
            None => (String::new(), url),
        };
        let place = host.split('?').next().unwrap_or_default();
        write!(f, "redis://{user}{place}")
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
    /// A kind of store that is not there yet.
    NotYet,
    /// The settings are not good.
    Settings(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("unknown store; use memory or redis://[user:password@]host:port[/db]")
            }
            Self::NotYet => f.write_str(
                "this kind of store is not supported yet; use memory or \
                 redis://[user:password@]host:port[/db]",
            ),
            Self::Settings(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_shown_without_its_password() {
        for (text, shown) in [
            ("memory", "memory"),
            ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
            ("redis://user:pw@host:6379", "redis://user:***@host:6379"),
            ("redis://:pw@host", "redis://:***@host"),
            ("redis://pw@host", "redis://***@host"),
            ("redis://user:p@w:x@host", "redis://user:***@host"),
            ("redis://host/1?password=pw", "redis://host/1"),
        ] {
            assert_eq!(text.parse::<Store>().unwrap().to_string(), shown);
        }
        assert_eq!("rediss://h".parse::<Store>(), Err(StoreError::NotYet));
        assert_eq!("mysql://h".parse::<Store>(), Err(StoreError::Unknown));
        assert_eq!("".parse::<Store>(), Err(StoreError::Unknown));
    }
}
