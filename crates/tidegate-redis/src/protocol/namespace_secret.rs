//! Agrees with the namespace on its HMAC secret.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tidegate::EngineError;
use tokio::time::Instant;

use crate::connection::server_identity::ServerIdentity;
use crate::durability::data_loss::DataLossLog;
use crate::protocol::keys::{HashSecret, KeyNames};
use crate::protocol::reply::engine_error;
use crate::topology::hash_slot::HashSlot;
use crate::topology::router::Router;

/// The secret of a namespace: as configured, or as the first process has stored it.
pub(crate) struct NamespaceSecret {
    configured: Option<HashSecret>,
    agreed: Mutex<Option<AgreedSecret>>,
    router: Router,
    key: String,
    slot: HashSlot,
    data_loss: DataLossLog,
    /// Set if the latest check found another secret.
    conflict: Mutex<Option<SecretConflict>>,
}

/// The secret that this engine and its namespace agree on.
#[derive(Clone)]
struct AgreedSecret {
    secret: HashSecret,
    stored: Vec<u8>,
    /// The connection on which they agreed.
    generation: u64,
    /// The server that stored it then.
    server: Option<Arc<ServerIdentity>>,
    /// The latest check; None if the namespace has another secret now.
    checked: Option<Instant>,
}

impl NamespaceSecret {
    pub(crate) fn new(
        configured: Option<HashSecret>,
        router: Router,
        names: &KeyNames,
        data_loss: DataLossLog,
    ) -> Self {
        let key = names.secret();
        let slot = HashSlot::of(&key);
        let (agreed, conflict) = (Mutex::new(None), Mutex::new(None));
        Self { configured, agreed, router, key, slot, data_loss, conflict }
    }

    /// The secret, if one has been agreed on. Sends nothing.
    pub(crate) fn known(&self) -> Option<HashSecret> {
        self.lock().as_ref().map(|agreed| agreed.secret.clone())
    }

    /// Set if no call is decided, because the namespace has another secret than this engine.
    pub(crate) fn conflict(&self) -> Option<SecretConflict> {
        *self.lock_conflict()
    }

    fn lock_conflict(&self) -> MutexGuard<'_, Option<SecretConflict>> {
        self.conflict.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The secret. Checks it again on every new connection, which may lead to a server with another
    /// one, and every second, since `FLUSHALL` may have deleted it: then this process stores it
    /// again.
    ///
    /// On the same connection one call a second makes that check, with half of its time, and the
    /// others go on: a server that does not reply delays no other call. Without a reply the agreed
    /// secret stays. In a Cluster the secret is on one shard, and the others must work without that
    /// one, so a new connection is treated in the same way there.
    ///
    /// A server that came back without the data of this namespace may have got another secret by
    /// another process. This engine then uses it, unless it has a configured one: what was counted
    /// under the old one is gone.
    pub(crate) async fn get(&self, until: Instant) -> Result<HashSecret, EngineError> {
        const CHECK_INTERVAL: Duration = Duration::from_secs(1);
        let agreed = self.lock().clone();
        let generation = self.router.generation(self.slot);
        let is_recent =
            |a: &AgreedSecret| a.checked.is_some_and(|checked| checked.elapsed() < CHECK_INTERVAL);
        let is_fresh = |a: &&AgreedSecret| a.generation == generation && is_recent(a);
        if let Some(agreed) = agreed.as_ref().filter(is_fresh) {
            return Ok(agreed.secret.clone());
        }
        let now = Instant::now();
        let stays = |a: &&AgreedSecret| a.generation == generation || !self.router.spans_slots();
        let usable = agreed.as_ref().filter(|a| a.checked.is_some()).filter(stays);
        let usable = usable.map(|agreed| agreed.secret.clone());
        let mut check_until = until;
        if usable.is_some() {
            self.update(|agreed| (agreed.checked, agreed.generation) = (Some(now), generation));
            check_until = now + until.saturating_duration_since(now) / 2;
        }
        let before = agreed.as_ref().map(|agreed| agreed.server.clone());
        let known_before = agreed.is_some();
        let (known, stored) = match (agreed, &self.configured) {
            (Some(agreed), _) => (Some(agreed.secret), agreed.stored),
            (None, Some(secret)) => {
                let check = secret.hash([&b"tidegate"[..]].into_iter());
                (Some(secret.clone()), format!("check:{check}").into_bytes())
            }
            (None, None) => {
                let mut random = [0; 32];
                getrandom::fill(&mut random).map_err(EngineError::unavailable)?;
                (None, [b"secret:", &random[..]].concat())
            }
        };
        let (found, was_missing) = match self.set_if_absent(&stored, check_until).await {
            Ok(StoredSecret::Found(found)) => (found, false),
            Ok(StoredSecret::Set(set)) => {
                self.record_loss(before.clone());
                (set, true)
            }
            Err(error) => return usable.ok_or(error),
        };
        let is_lost = || was_missing || self.has_lost_data(before.flatten().as_deref());
        let secret = match (known, found.strip_prefix(b"secret:")) {
            (Some(secret), _) if found == stored => secret,
            (None, Some(secret)) => HashSecret::new(secret),
            (Some(_), Some(secret)) if self.configured.is_none() && is_lost() => {
                HashSecret::new(secret)
            }
            _ => {
                self.update(|agreed| agreed.checked = None);
                let conflict = match (&self.configured, known_before) {
                    (Some(_), _) => SecretConflict::Configured,
                    (None, false) => SecretConflict::ConfiguredElsewhere,
                    (None, true) => SecretConflict::Replaced,
                };
                *self.lock_conflict() = Some(conflict);
                return Err(EngineError::unavailable(conflict));
            }
        };
        *self.lock_conflict() = None;
        *self.lock() = Some(AgreedSecret {
            secret: secret.clone(),
            stored: found,
            generation: self.router.generation(self.slot),
            server: self.router.identity(self.slot),
            checked: Some(Instant::now()),
        });
        Ok(secret)
    }

    fn lock(&self) -> MutexGuard<'_, Option<AgreedSecret>> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut AgreedSecret)) {
        if let Some(agreed) = &mut *self.lock() {
            change(agreed);
        }
    }

    /// Whether the server that stored the secret has come back without its data: the process at its
    /// address was restarted, or the one that took over was empty, and the history of its data is
    /// another one. The secret has no TTL, so a server that restored its data would have it.
    fn has_lost_data(&self, before: Option<&ServerIdentity>) -> bool {
        let now = self.router.identity(self.slot);
        let (Some(before), Some(now)) = (before, now) else { return false };
        let is_restarted = before.endpoint == now.endpoint || now.is_empty;
        is_restarted && !before.is_same_process(&now) && !now.continues(before)
    }

    /// The secret was stored on server `before` and was missing now. If another process has
    /// replaced that server, the loss was recorded on connect.
    fn record_loss(&self, before: Option<Option<Arc<ServerIdentity>>>) {
        let Some(before) = before else { return };
        let now = self.router.identity(self.slot);
        let is_other = match (&before, &now) {
            (Some(before), Some(now)) => !before.is_same_process(now),
            _ => false,
        };
        if !is_other {
            self.data_loss.record_once(&NamespaceEmptied { key: &self.key, server: now });
        }
    }

    /// Stores `value` if there is none, and returns the stored one.
    async fn set_if_absent(
        &self,
        value: &[u8],
        until: Instant,
    ) -> Result<StoredSecret, EngineError> {
        let mut get = redis::cmd("GET");
        get.arg(&self.key);
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(value).arg("NX");
        // Reads first: a full server refuses writes, and mostly none is needed.
        let mut result: fn(Vec<u8>) -> StoredSecret = StoredSecret::Found;
        for _ in 0..2 {
            let found = self.router.call_until(until, self.slot, &get).await;
            if let Value::BulkString(found) = found.map_err(|error| engine_error(error, false))? {
                return Ok(result(found));
            }
            result = StoredSecret::Set;
            let set = self.router.call_until(until, self.slot, &set).await;
            set.map_err(|error| engine_error(error, false))?;
        }
        Ok(result(value.to_vec()))
    }
}

/// The namespace has another secret than this engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SecretConflict {
    /// This engine has a configured one.
    Configured,
    /// This engine has none, and others have a configured one.
    ConfiguredElsewhere,
    /// The namespace had the secret of this engine before, and nothing shows that its data is gone.
    Replaced,
}

impl fmt::Display for SecretConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the secret differs from the one this namespace was used with; ")?;
        f.write_str(match self {
            Self::Configured => "set the same secret everywhere, or use another namespace",
            Self::ConfiguredElsewhere => {
                "other processes have a configured one: set the same secret everywhere"
            }
            Self::Replaced => {
                "another process has stored a new one: restart this process, and set the same \
                 secret everywhere to prevent this"
            }
        })
    }
}

impl Error for SecretConflict {}

/// The secret in Redis.
enum StoredSecret {
    Found(Vec<u8>),
    /// It was missing, and was set by this engine or by another one at the same time.
    Set(Vec<u8>),
}

/// The secret is gone. It has no TTL, so the counts are gone as well.
struct NamespaceEmptied<'a> {
    key: &'a str,
    server: Option<Arc<ServerIdentity>>,
}

impl fmt::Display for NamespaceEmptied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redis")?;
        if let Some(server) = &self.server {
            write!(f, " at {}", server.endpoint)?;
        }
        write!(f, " was emptied (FLUSHALL or FLUSHDB?): {:?} is gone; ", self.key)?;
        f.write_str("all limits are reset")
    }
}
