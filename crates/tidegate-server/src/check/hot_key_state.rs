//! The hot keys, with what remains for them.

use std::time::Duration;

use tidegate::{Key, Micros, RuleCheck};

use super::active_policy::ActivePolicy;
use super::request::Operation;
use super::service::CheckService;
use crate::observe::hot_keys::{HotKey, HotKeyState};
use crate::text::escape;

/// Upper bound of the keys that are read from the store.
const MAX_KEYS: usize = 10;
/// Deadline for all keys together. Keys after it have no state.
const DEADLINE: Duration = Duration::from_millis(250);

impl CheckService {
    /// The `n` hottest keys. The first ones are read from the store, without charging them.
    pub(crate) async fn hottest(&self, n: usize, now: Micros) -> Vec<HotKey> {
        let mut keys = self.hot_keys().top(n, now);
        let active = self.active();
        if self.health().up {
            let reads = async {
                for key in keys.iter_mut().take(MAX_KEYS) {
                    key.state = self.hot_key_state(&active, key).await;
                }
            };
            // After a timeout the keys read so far have a state.
            let _ = tokio::time::timeout(DEADLINE, reads).await;
        }
        keys
    }

    async fn hot_key_state(&self, active: &ActivePolicy, hot: &HotKey) -> Option<HotKeyState> {
        let parts = parts(active, hot)?;
        let check = RuleCheck::new(&hot.rule, Key::of(&parts)).cost(0);
        let decision = self.run(Operation::Peek, &[check], None).await.ok()?;
        let (_, verdict) = decision.most_restrictive()?;
        let reset_after_ms = verdict.reset_after.get().div_ceil(1_000);
        Some(HotKeyState { remaining: verdict.remaining, limit: verdict.limit, reset_after_ms })
    }
}

/// The parts of the key, if its displayed form is unambiguous.
fn parts<'h>(active: &ActivePolicy, hot: &'h HotKey) -> Option<Vec<&'h str>> {
    let rule = active.policy.rule(&hot.rule)?;
    // The plan of the key is not known.
    if rule.plans().next().is_some() {
        return None;
    }
    // The key may be truncated or escaped.
    if hot.key.len() + 4 > escape::MAX_KEY_LEN || hot.key.contains('\\') {
        return None;
    }
    let is_joined = hot.key.contains(escape::KEY_SEPARATOR);
    match rule.key().len() {
        // A check by rule name may have more parts than the rule.
        0 | 1 if is_joined => None,
        0 => Some(if hot.key.is_empty() { Vec::new() } else { vec![&hot.key] }),
        1 => Some(vec![&hot.key]),
        count => {
            let parts: Vec<&str> = hot.key.split(escape::KEY_SEPARATOR).collect();
            (parts.len() == count).then_some(parts)
        }
    }
}
