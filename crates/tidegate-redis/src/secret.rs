//! Agreeing on the secret of a namespace.

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use redis::Value;
use tidegate::EngineError;
use tokio::time::Instant;

use crate::engine::Redis;
use crate::keys::Secret;
use crate::reply::unavailable;
use crate::slot::Slot;

/// The secret that this engine and its namespace agree on, and on which connection they did.
#[derive(Clone)]
pub(crate) struct Agreed {
    secret: Secret,
    stored: Vec<u8>,
    generation: u64,
    /// None if the namespace has another one by now.
    asked: Option<Instant>,
}

impl Redis {
    /// What keys the hash of subjects: as configured, or as the first process has stored it. Asked
    /// again on every new connection, which may lead to a server that has another, and every
    /// second, since somebody may have flushed it: whoever still knows it sets it again.
    ///
    /// In a Cluster it lies on one shard, and the others have to go on without that one: one call in
    /// a second asks, with half of its time, and if nobody answers it stays as it was agreed.
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
        let elsewhere = |a: &&Agreed| a.asked.is_some() && !self.route.spans_slots();
        let goes_on = agreed.as_ref().filter(elsewhere).map(|agreed| agreed.secret.clone());
        let mut asked_until = until;
        if goes_on.is_some() {
            self.note(|agreed| (agreed.asked, agreed.generation) = (Some(now), generation));
            asked_until = now + until.saturating_duration_since(now) / 2;
        }
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
            Ok(found) => found,
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
        let generation = self.route.generation(Slot::of(&self.names.secret()));
        let asked = Some(Instant::now());
        let agreed = Agreed { secret: secret.clone(), stored: found, generation, asked };
        *self.agreed.lock().unwrap_or_else(PoisonError::into_inner) = Some(agreed);
        Ok(secret)
    }

    fn note(&self, what: impl FnOnce(&mut Agreed)) {
        let mut agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agreed) = &mut *agreed {
            what(agreed);
        }
    }

    /// Sets a value if there is none, and returns the one that is there then.
    async fn set_if_absent(
        &self,
        key: &str,
        value: &[u8],
        until: Instant,
    ) -> Result<Vec<u8>, EngineError> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        let mut set = redis::cmd("SET");
        set.arg(key).arg(value).arg("NX");
        let slot = Slot::of(key);
        // Read first: a full store takes no write, and needs none.
        for _ in 0..2 {
            let found = self.route.call_until(until, slot, &get).await;
            if let Value::BulkString(found) = found.map_err(|error| unavailable(error, false))? {
                return Ok(found);
            }
            let set = self.route.call_until(until, slot, &set).await;
            set.map_err(|error| unavailable(error, false))?;
        }
        Ok(value.to_vec())
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
