//! Settings for the engine.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::Clock;

use crate::engine::Redis;
use crate::keys::{Names, Secret};
use crate::link::{Link, Settings};

/// Settings for a [`Redis`].
pub struct RedisBuilder {
    url: String,
    namespace: String,
    secret: Option<Secret>,
    deadline: Duration,
    connect_deadline: Duration,
    test_clock: Option<Arc<dyn Clock>>,
}

impl Redis {
    /// Settings for an engine on the server at `url`: `redis://[user:pw@]host:port[/db]`.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder {
            url: url.into(),
            namespace: "tg".into(),
            secret: None,
            deadline: Duration::from_millis(25),
            connect_deadline: Duration::from_secs(1),
            test_clock: None,
        }
    }
}

impl RedisBuilder {
    /// The prefix of every key; `tg` unless set.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// What keys the hash of subjects. Without one, the first process stores a random one.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(Secret::new(secret.into()));
        self
    }

    /// How long a call may take; 25 ms unless set.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long connecting may take, the handshake included; 1 s unless set.
    #[must_use]
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = deadline;
        self
    }

    /// Sends the instants of this clock instead of letting Redis read its own. For tests only: two
    /// processes with two clocks would over-admit.
    #[must_use]
    pub fn test_clock(mut self, clock: impl Clock) -> Self {
        self.test_clock = Some(Arc::new(clock));
        self
    }

    /// The engine. It connects by itself, now and whenever the connection is lost.
    pub fn build(self) -> Result<Redis, InvalidSettings> {
        let settings = Settings {
            deadline: self.deadline,
            connect_deadline: self.connect_deadline,
            ..Settings::new(self.url).map_err(|_| InvalidSettings::Url)?
        };
        if settings.client.get_connection_info().redis.db < 0 {
            return Err(InvalidSettings::Url);
        }
        if self.secret.as_ref().is_some_and(Secret::is_empty) {
            return Err(InvalidSettings::EmptySecret);
        }
        if self.namespace.contains(['{', '}']) {
            return Err(InvalidSettings::Namespace(self.namespace.into()));
        }
        Ok(Redis {
            link: Link::new(settings),
            names: Names::new(&self.namespace),
            configured_secret: self.secret,
            agreed: Mutex::new(None),
            test_clock: self.test_clock,
        })
    }
}

/// Why there is no engine of these settings.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidSettings {
    /// A URL that is not one of a Redis. It is not quoted: it may contain a password.
    Url,
    /// A secret of no bytes, which everybody knows.
    EmptySecret,
    /// A namespace with a brace: Redis would take its slot from there, and not from the subject.
    Namespace(Box<str>),
}

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url => f.write_str("not a redis url; use redis://[user:password@]host:port[/db]"),
            Self::EmptySecret => {
                f.write_str("an empty secret; leave it out, or use 16 bytes or more")
            }
            Self::Namespace(namespace) => {
                write!(f, "the namespace {namespace:?} has a brace; use one without {{ and }}")
            }
        }
    }
}

impl std::error::Error for InvalidSettings {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_nobody_could_have_meant_are_refused() {
        let fine = || Redis::builder("redis://127.0.0.1:1/0");
        assert!(fine().namespace("a:b").secret("s").build().is_ok());
        for (builder, expected) in [
            (Redis::builder("redis://127.0.0.1:1/-1"), InvalidSettings::Url),
            (Redis::builder("http://127.0.0.1"), InvalidSettings::Url),
            (fine().secret(""), InvalidSettings::EmptySecret),
            (fine().namespace("a{b"), InvalidSettings::Namespace("a{b".into())),
            (fine().namespace("}"), InvalidSettings::Namespace("}".into())),
        ] {
            assert_eq!(builder.build().err(), Some(expected));
        }
    }
}
