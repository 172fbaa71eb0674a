//! Settings of the engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Clock;
use tokio::sync::Semaphore;

use crate::batch::{BatchMode, Batcher};
use crate::connection::supervisor::ConnectionSettings;
use crate::connection::tls::InvalidTls;
use crate::connection::url::{InvalidUrl, RedisUrl};
use crate::cross_slot::abandoned_holds::AbandonedHolds;
use crate::durability::data_loss::DataLossLog;
use crate::engine::Redis;
use crate::executor::ScriptExecutor;
use crate::protocol::functions::FunctionSupport;
use crate::protocol::hold_hints::HoldHints;
use crate::protocol::keys::{HashSecret, KeyNames};
use crate::protocol::namespace_secret::NamespaceSecret;
use crate::protocol::sender::ScriptSender;
use crate::topology::deployment::Deployment;
use crate::topology::router::Router;

/// Settings for a [`Redis`].
///
/// ```no_run
/// use std::time::Duration;
/// use tidegate_redis::Redis;
///
/// // Connects with the first call, not before.
/// let redis = Redis::builder("rediss://app:secret@redis.internal:6380/2")
///     .namespace("billing")                    // keys begin with it
///     .deadline(Duration::from_millis(50))     // of each call, retries included
///     .wait_for_replicas(1)                    // a permit is granted once a replica has it
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedisBuilder {
    url: Result<RedisUrl, InvalidUrl>,
    namespace: String,
    secret: Option<HashSecret>,
    deadline: Duration,
    connect_deadline: Duration,
    test_clock: Option<Arc<dyn Clock>>,
    wait_for_replicas: u32,
    force_cross_slot: bool,
    batches: bool,
    uses_lean: bool,
    uses_functions: bool,
}

impl Redis {
    /// Settings for an engine on the servers at `url`, such as
    /// `redis://[user:password@]host:port[/db]`. [`RedisUrl`] lists the other forms.
    /// [`build`](RedisBuilder::build) returns an error for an invalid URL.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url.parse())
    }
}

impl RedisUrl {
    /// Settings for an engine on the servers of this URL.
    pub fn builder(self) -> RedisBuilder {
        RedisBuilder::new(Ok(self))
    }
}

impl RedisBuilder {
    /// The [deadline](Self::deadline) unless set. Longer than short stalls of a healthy server; a
    /// breaker keeps calls from waiting so long once the server is silent.
    pub const DEADLINE: Duration = Duration::from_millis(100);
    /// The most replicas to [wait for](Self::wait_for_replicas).
    pub const MAX_REPLICAS: u32 = 8;

    fn new(url: Result<RedisUrl, InvalidUrl>) -> Self {
        Self {
            url,
            namespace: "tg".into(),
            secret: None,
            deadline: Self::DEADLINE,
            connect_deadline: Duration::from_secs(1),
            test_clock: None,
            wait_for_replicas: 0,
            force_cross_slot: false,
            batches: true,
            uses_lean: true,
            uses_functions: true,
        }
    }

    /// The prefix of every key; `tg` unless set.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// HMAC secret for keys. Without one, the first process stores a random one in Redis.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(HashSecret::new(secret.into()));
        self
    }

    /// Deadline of a call, with the time in the queue; 100 ms unless set.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Deadline for connecting, including the handshake; 1 s unless set.
    #[must_use]
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = deadline;
        self
    }

    /// Number of replicas that must confirm a charge (`WAIT`) before it counts; 0 unless set. A
    /// charge that is not confirmed within the deadline stays charged, and the call fails as
    /// [`Ambiguous`](tidegate::EngineError::Ambiguous). At most
    /// [`MAX_REPLICAS`](Self::MAX_REPLICAS).
    #[must_use]
    pub fn wait_for_replicas(mut self, replicas: u32) -> Self {
        self.wait_for_replicas = replicas;
        self
    }

    /// Sends the time of this clock to Redis, which then does not read its own. For tests only: two
    /// processes with different clocks would admit too much.
    #[must_use]
    pub fn test_clock(mut self, clock: impl Clock) -> Self {
        self.test_clock = Some(Arc::new(clock));
        self
    }

    /// Treats one server as a Cluster, in which no command may have keys of several slots (tests).
    #[doc(hidden)]
    #[must_use]
    pub fn test_force_cross_slot(mut self) -> Self {
        self.force_cross_slot = true;
        self
    }

    /// Disables batching (tests).
    #[doc(hidden)]
    #[must_use]
    pub fn test_no_batching(mut self) -> Self {
        self.batches = false;
        self
    }

    /// Decides plain checks by the script for all checks, too (tests).
    #[doc(hidden)]
    #[must_use]
    pub fn test_no_lean_script(mut self) -> Self {
        self.uses_lean = false;
        self
    }

    /// Sends scripts also to a server that has functions (tests).
    #[doc(hidden)]
    #[must_use]
    pub fn test_no_functions(mut self) -> Self {
        self.uses_functions = false;
        self
    }

    /// Builds the engine. It connects in the background, now and whenever the connection is lost.
    /// The files that the URL names are read now, and again for every connection.
    pub fn build(self) -> Result<Redis, InvalidSettings> {
        let deployment = Deployment::new(&self.url?)?;
        let settings = ConnectionSettings {
            deadline: self.deadline,
            connect_deadline: self.connect_deadline,
            wait_for_replicas: self.wait_for_replicas,
            ..ConnectionSettings::default()
        };
        if self.secret.as_ref().is_some_and(HashSecret::is_empty) {
            return Err(InvalidSettings::EmptySecret);
        }
        if self.namespace.contains(['{', '}']) {
            return Err(InvalidSettings::Namespace(self.namespace.into()));
        }
        if self.wait_for_replicas > Self::MAX_REPLICAS {
            return Err(InvalidSettings::TooManyReplicas(self.wait_for_replicas));
        }
        let data_loss = DataLossLog::default();
        let router = Router::new(deployment, settings, data_loss.clone());
        let (names, hold_hints) = (KeyNames::new(&self.namespace), Arc::new(HoldHints::new()));
        let general_hints = Arc::new(HoldHints::new());
        let uses_lean = self.uses_lean;
        let mode = match self.batches {
            false => BatchMode::Off,
            true if router.spans_slots() && !self.force_cross_slot => BatchMode::All,
            true => BatchMode::SameKeys,
        };
        let secret = NamespaceSecret::new(self.secret, router.clone(), &names, data_loss.clone());
        let functions = FunctionSupport::new(self.uses_functions);
        let sender = ScriptSender { router, test_clock: self.test_clock, functions };
        let batcher = Batcher::new(sender.clone(), mode);
        Ok(Redis {
            secret,
            executor: ScriptExecutor {
                sender,
                names,
                hold_hints,
                general_hints,
                uses_lean,
                batcher,
            },
            force_cross_slot: self.force_cross_slot,
            data_loss,
            cleanup: Semaphore::new(AbandonedHolds::MAX_CLEANUP_TASKS).into(),
        })
    }
}

/// Why settings are invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidSettings {
    /// Not a Redis URL. It is not quoted, because it may contain a password.
    Url(InvalidUrl),
    /// Certificates or keys that cannot be used.
    Tls(InvalidTls),
    /// An empty secret.
    EmptySecret,
    /// A namespace with a brace: it would become the hash tag instead of the subject.
    Namespace(Box<str>),
    /// Above [`RedisBuilder::MAX_REPLICAS`].
    TooManyReplicas(u32),
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
            Self::TooManyReplicas(replicas) => {
                let max = RedisBuilder::MAX_REPLICAS;
                write!(f, "{replicas} replicas to wait for; use at most {max}, or 0 for none")
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
    fn invalid_settings_are_refused() {
        let fine = || Redis::builder("redis://127.0.0.1:1/0");
        assert!(fine().namespace("a:b").secret("s").wait_for_replicas(8).build().is_ok());
        for (builder, expected) in [
            (Redis::builder("redis://127.0.0.1:1/-1"), InvalidUrl::Database.into()),
            (Redis::builder("http://127.0.0.1"), InvalidUrl::Scheme.into()),
            (fine().secret(""), InvalidSettings::EmptySecret),
            (fine().namespace("a{b"), InvalidSettings::Namespace("a{b".into())),
            (fine().namespace("}"), InvalidSettings::Namespace("}".into())),
            (fine().wait_for_replicas(9), InvalidSettings::TooManyReplicas(9)),
            (fine().wait_for_replicas(u32::MAX), InvalidSettings::TooManyReplicas(u32::MAX)),
        ] {
            assert_eq!(builder.build().err(), Some(expected));
        }
    }

    #[test]
    fn files_are_read_by_build_if_tls_is_compiled_in() {
        let error = Redis::builder("rediss://h?ca=/nowhere/ca.pem").build().unwrap_err();
        let expected = match cfg!(feature = "tls") {
            true => InvalidTls::Unreadable("/nowhere/ca.pem".into(), ErrorKind::NotFound),
            false => InvalidTls::NotBuilt,
        };
        assert_eq!(error, expected.into());
    }
}
