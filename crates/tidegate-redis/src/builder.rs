//! Settings for the engine.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::Clock;
use tokio::sync::Semaphore;

use crate::address::Address;
use crate::batch::{Batcher, Together};
use crate::engine::Redis;
use crate::keys::{Names, Secret};
use crate::link::Settings;
use crate::resets::Resets;
use crate::route::Route;
use crate::seen::Seen;
use crate::tls::InvalidTls;
use crate::unheard::Unheard;
use crate::url::{InvalidUrl, RedisUrl};

/// Settings for a [`Redis`].
pub struct RedisBuilder {
    url: Result<RedisUrl, InvalidUrl>,
    namespace: String,
    secret: Option<Secret>,
    deadline: Duration,
    connect_deadline: Duration,
    test_clock: Option<Arc<dyn Clock>>,
    confirmed_by: u32,
    slots_apart: bool,
    batches: bool,
}

impl Redis {
    /// Settings for an engine on the servers at `url`, such as `redis://[user:password@]host:port[/db]`.
    /// A [`RedisUrl`] says which other forms there are; one that is none is refused by
    /// [`build`](RedisBuilder::build).
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url.parse())
    }
}

impl RedisUrl {
    /// Settings for an engine on the servers at this address.
    pub fn builder(self) -> RedisBuilder {
        RedisBuilder::new(Ok(self))
    }
}

impl RedisBuilder {
    /// By how many replicas a charge can have to be [confirmed](Self::confirmed_by).
    pub const MOST_REPLICAS: u32 = 8;

    fn new(url: Result<RedisUrl, InvalidUrl>) -> Self {
        Self {
            url,
            namespace: "tg".into(),
            secret: None,
            deadline: Duration::from_millis(25),
            connect_deadline: Duration::from_secs(1),
            test_clock: None,
            confirmed_by: 0,
            slots_apart: false,
            batches: true,
        }
    }

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

    /// Lets nothing pass before so many replicas have what was charged for it; 0 unless set, which is
    /// not to ask them. What they do not confirm within the deadline stays charged, and the call is
    /// [`Ambiguous`](tidegate::EngineError::Ambiguous). At most [`MOST_REPLICAS`](Self::MOST_REPLICAS).
    #[must_use]
    pub fn confirmed_by(mut self, replicas: u32) -> Self {
        self.confirmed_by = replicas;
        self
    }

    /// Sends the instants of this clock instead of letting Redis read its own. For tests only: two
    /// processes with two clocks would over-admit.
    #[must_use]
    pub fn test_clock(mut self, clock: impl Clock) -> Self {
        self.test_clock = Some(Arc::new(clock));
        self
    }

    /// Treats one server as if it were a Cluster, where no command may have keys of several slots.
    #[doc(hidden)]
    #[must_use]
    pub fn test_slots_apart(mut self) -> Self {
        self.slots_apart = true;
        self
    }

    /// Sends every check alone, whatever else is on its way. To compare with.
    #[doc(hidden)]
    #[must_use]
    pub fn test_unbatched(mut self) -> Self {
        self.batches = false;
        self
    }

    /// The engine. It connects by itself, now and whenever the connection is lost. The files that the
    /// address names are read now, and again for every connection.
    pub fn build(self) -> Result<Redis, InvalidSettings> {
        let address = Address::new(&self.url?)?;
        let resets = Resets::default();
        let settings = Settings {
            resets: Some(resets.clone()),
            deadline: self.deadline,
            connect_deadline: self.connect_deadline,
            confirmed_by: self.confirmed_by,
            ..Settings::default()
        };
        if self.secret.as_ref().is_some_and(Secret::is_empty) {
            return Err(InvalidSettings::EmptySecret);
        }
        if self.namespace.contains(['{', '}']) {
            return Err(InvalidSettings::Namespace(self.namespace.into()));
        }
        if self.confirmed_by > Self::MOST_REPLICAS {
            return Err(InvalidSettings::ConfirmedBy(self.confirmed_by));
        }
        let (route, seen) = (Route::new(address, settings), Arc::new(Seen::new()));
        let together = match self.batches {
            false => Together::Nothing,
            true if route.spans_slots() && !self.slots_apart => Together::Everything,
            true => Together::SameKeys,
        };
        let clock = self.test_clock.clone();
        let batcher = Batcher::new(route.clone(), Arc::clone(&seen), clock, together);
        Ok(Redis {
            route,
            names: Names::new(&self.namespace),
            configured_secret: self.secret,
            agreed: Mutex::new(None),
            seen,
            batcher,
            slots_apart: self.slots_apart,
            test_clock: self.test_clock,
            resets,
            enders: Semaphore::new(Unheard::MOST_AT_ONCE).into(),
        })
    }
}

/// Why there is no engine of these settings.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidSettings {
    /// A URL that is not one of a Redis. It is not quoted: it may contain a password.
    Url(InvalidUrl),
    /// Certificates or keys that cannot be used.
    Tls(InvalidTls),
    /// A secret of no bytes, which everybody knows.
    EmptySecret,
    /// A namespace with a brace: Redis would take its slot from there, and not from the subject.
    Namespace(Box<str>),
    /// More replicas than anybody has, to confirm every charge.
    ConfirmedBy(u32),
}

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(invalid) => invalid.fmt(f),
            Self::Tls(invalid) => invalid.fmt(f),
            Self::EmptySecret => {
                f.write_str("an empty secret; leave it out, or use 16 bytes or more")
            }
            Self::Namespace(namespace) => {
                write!(f, "the namespace {namespace:?} has a brace; use one without {{ and }}")
            }
            Self::ConfirmedBy(replicas) => {
                let most = RedisBuilder::MOST_REPLICAS;
                write!(f, "confirmed by {replicas} replicas; use at most {most}, or 0 for none")
            }
        }
    }
}

impl std::error::Error for InvalidSettings {}

impl From<InvalidUrl> for InvalidSettings {
    fn from(invalid: InvalidUrl) -> Self {
        Self::Url(invalid)
    }
}

impl From<InvalidTls> for InvalidSettings {
    fn from(invalid: InvalidTls) -> Self {
        Self::Tls(invalid)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn settings_that_nobody_could_have_meant_are_refused() {
        let fine = || Redis::builder("redis://127.0.0.1:1/0");
        assert!(fine().namespace("a:b").secret("s").confirmed_by(8).build().is_ok());
        for (builder, expected) in [
            (Redis::builder("redis://127.0.0.1:1/-1"), InvalidUrl::Database.into()),
            (Redis::builder("http://127.0.0.1"), InvalidUrl::Scheme.into()),
            (fine().secret(""), InvalidSettings::EmptySecret),
            (fine().namespace("a{b"), InvalidSettings::Namespace("a{b".into())),
            (fine().namespace("}"), InvalidSettings::Namespace("}".into())),
            (fine().confirmed_by(9), InvalidSettings::ConfirmedBy(9)),
            (fine().confirmed_by(u32::MAX), InvalidSettings::ConfirmedBy(u32::MAX)),
        ] {
            assert_eq!(builder.build().err(), Some(expected));
        }
    }

    #[test]
    fn files_are_read_when_it_is_built_if_there_is_tls_at_all() {
        let error = Redis::builder("rediss://h?ca=/nowhere/ca.pem").build().unwrap_err();
        let expected = match cfg!(feature = "tls") {
            true => InvalidTls::Unreadable("/nowhere/ca.pem".into(), ErrorKind::NotFound),
            false => InvalidTls::NotBuilt,
        };
        assert_eq!(error, expected.into());
    }
}
