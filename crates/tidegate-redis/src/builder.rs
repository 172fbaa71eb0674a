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
    pub fn build(self) -> Result<Redis, InvalidUrl> {
        let settings = Settings {
            deadline: self.deadline,
            connect_deadline: self.connect_deadline,
            ..Settings::new(self.url).map_err(|_| InvalidUrl)?
        };
        Ok(Redis {
            link: Link::new(settings),
            names: Names::new(&self.namespace),
            configured_secret: self.secret,
            agreed: Mutex::new(None),
            test_clock: self.test_clock,
        })
    }
}

/// A store URL that is not one. It does not quote the URL, which may contain a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidUrl;

impl fmt::Display for InvalidUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a redis url; use redis://[user:password@]host:port[/db]")
    }
}

impl std::error::Error for InvalidUrl {}
