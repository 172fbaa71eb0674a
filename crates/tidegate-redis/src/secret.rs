//! Agreeing on the secret of a namespace.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redis::Value;
use tidegate::EngineError;
use tokio::time::Instant;

use crate::engine::Redis;
use crate::keys::Secret;
use crate::reply::unavailable;
use crate::resets::Life;
use crate::slot::Slot;

/// The secret that this engine and its namespace agree on, and on which connection they did.
#[derive(Clone)]
pub(crate) struct Agreed {
    pub(crate) secret: Secret,
    stored: Vec<u8>,
    generation: u64,
    /// Who had it then.
    by: Option<Arc<Life>>,
    /// None if the namespace has another one by now.
    asked: Option<Instant>,
}

impl Redis {
    /// What keys the hash of subjects: as configured, or as the first process has stored it. Asked
    /// again on every new connection, which may lead to a server that has another, and every
    /// second, since somebody may have flushed it: whoever still knows it sets it again.
    ///
    /// On the same connection one call in a second asks, with half of its time, and the others go on: a
    /// server that is silent has nobody wait for this. If nobody answers it stays as it was agreed. In a
    /// Cluster it lies on one shard, and the others have to go on without that one, so it is the same
    /// there on a new connection.
    pub(crate) async fn secret(&self, until: Instant) -> Result<Secret, EngineError> {
        const ASK_AGAIN: Duration = Duration::from_secs(1);
        let agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let generation = self.route.generation(Slot::of(&self.names.secret()));
        let is_recent = |a: &Agreed| a.asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN);
        let is_fresh = |a: &&Agreed| a.generation == generation && is_recent(a);
        if let Some(agreed) = agreed.as_ref().filter(is_fresh) {
            return Ok(agreed.secret.clone());
        }
        let now = Instant::now();
        let stays = |a: &&Agreed| a.generation == generation || !self.route.spans_slots();
        let goes_on = agreed.as_ref().filter(|a| a.asked.is_some()).filter(stays);
        let goes_on = goes_on.map(|agreed| agreed.secret.clone());
        let mut asked_until = until;
        if goes_on.is_some() {
            self.note(|agreed| (agreed.asked, agreed.generation) = (Some(now), generation));
            asked_until = now + until.saturating_duration_since(now) / 2;
        }
        let before = agreed.as_ref().map(|agreed| agreed.by.clone());
        let (ours, stored) = match (agreed, &self.configured_secret) {
            (Some(agreed), _) => (Some(agreed.secret), agreed.stored),
            (None, Some(secret)) => {
                let check = secret.tag([&b"tidegate"[..]].into_iter());
                (Some(secret.clone()), format!("check:{check}").into_bytes())
            }
            (None, None) => {
                let mut random = [0; 32];
                getrandom::fill(&mut random).map_err(EngineError::unavailable)?;
                (None, [b"secret:", &random[..]].concat())
            }
        };
        let found = match self.set_if_absent(&self.names.secret(), &stored, asked_until).await {
            Ok(Kept::Found(found)) => found,
            Ok(Kept::Set(set)) => {
                self.notice_loss(before);
                set
            }
            Err(error) => return goes_on.ok_or(error),
        };
        let secret = match (ours, found.strip_prefix(b"secret:")) {
            (Some(secret), _) if found == stored => secret,
            (None, Some(secret)) => Secret::new(secret),
            _ => {
                self.note(|agreed| agreed.asked = None);
                return Err(EngineError::unavailable(SecretMismatch));
            }
        };
        let slot = Slot::of(&self.names.secret());
        let (generation, by) = (self.route.generation(slot), self.route.life(slot));
        let asked = Some(Instant::now());
        let agreed = Agreed { secret: secret.clone(), stored: found, generation, by, asked };
        *self.agreed.lock().unwrap_or_else(PoisonError::into_inner) = Some(agreed);
        Ok(secret)
    }

    fn note(&self, what: impl FnOnce(&mut Agreed)) {
        let mut agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agreed) = &mut *agreed {
            what(agreed);
        }
    }

    /// It was there `before`, and is not any more. A server that is another one now has been counted
    /// for that already.
    fn notice_loss(&self, before: Option<Option<Arc<Life>>>) {
        let Some(before) = before else { return };
        let now = self.route.life(Slot::of(&self.names.secret()));
        let is_other = match (&before, &now) {
            (Some(before), Some(now)) => !before.is_same_process(now),
            _ => false,
        };
        if !is_other {
            self.resets.note_once(&Emptied { key: self.names.secret(), by: now });
        }
    }

    /// Sets a value if there is none, and returns the one that is there then.
    async fn set_if_absent(
        &self,
        key: &str,
        value: &[u8],
        until: Instant,
    ) -> Result<Kept, EngineError> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        let mut set = redis::cmd("SET");
        set.arg(key).arg(value).arg("NX");
        let slot = Slot::of(key);
        // Read first: a full store takes no write, and needs none.
        let mut kept: fn(Vec<u8>) -> Kept = Kept::Found;
        for _ in 0..2 {
            let found = self.route.call_until(until, slot, &get).await;
            if let Value::BulkString(found) = found.map_err(|error| unavailable(error, false))? {
                return Ok(kept(found));
            }
            kept = Kept::Set;
            let set = self.route.call_until(until, slot, &set).await;
            set.map_err(|error| unavailable(error, false))?;
        }
        Ok(kept(value.to_vec()))
    }
}

/// What lies there.
enum Kept {
    Found(Vec<u8>),
    /// It was set now, by this engine or by another at the same time.
    Set(Vec<u8>),
}

/// Nothing takes the secret away but what takes the counts as well.
struct Emptied {
    key: String,
    by: Option<Arc<Life>>,
}

impl fmt::Display for Emptied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redis")?;
        if let Some(by) = &self.by {
            write!(f, " at {}", by.place)?;
        }
        write!(f, " was emptied, by FLUSHALL or FLUSHDB perhaps: {:?} is gone", self.key)?;
        f.write_str("; limits begin anew")
    }
}

/// Two ideas of the secret in one namespace.
#[derive(Debug)]
struct SecretMismatch;

impl fmt::Display for SecretMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the secret differs from the one this namespace was used with; \
             set the same secret everywhere, or use another namespace",
        )
    }
}

impl std::error::Error for SecretMismatch {}
