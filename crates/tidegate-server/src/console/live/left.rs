//! What is left of the keys that are asked about most.

use std::time::Duration;

use tidegate::{Key, Micros};

use crate::active::Active;
use crate::hottest::Hottest;
use crate::http::Door;
use crate::live::snapshot::HotKey;
use crate::service::{Ask, Target, Verb};

/// What is left of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Left {
    pub(super) remaining: u64,
    pub(super) limit: u64,
    pub(super) reset_after: Micros,
}

/// The most keys that are asked about.
pub(super) const MOST_KEYS: usize = 10;
/// How long all of it may take. What is not known by then is not shown.
const DEADLINE: Duration = Duration::from_millis(250);

/// Asks about the first keys. It charges nothing.
pub(super) async fn of(door: &Door, keys: &[HotKey]) -> Vec<Option<Left>> {
    let mut left = vec![None; keys.len()];
    let active = door.service.active();
    let asking = async {
        for (key, left) in keys.iter().zip(&mut left).take(MOST_KEYS) {
            *left = one(door, &active, key).await;
        }
    };
    // What was learnt until then stays.
    let _ = tokio::time::timeout(DEADLINE, asking).await;
    left
}

async fn one(door: &Door, active: &Active, hot: &HotKey) -> Option<Left> {
    let parts = parts(active, hot)?;
    let key = Key::of(&parts);
    let ask = Ask { target: Target::Rule(&hot.rule), key, cost: 0 };
    let answer = door.service.ask(Verb::Peek, &[ask], None).await.ok()?;
    let (_, verdict) = answer.speaker()?;
    let (remaining, limit) = (verdict.remaining, verdict.limit);
    Some(Left { remaining, limit, reset_after: verdict.reset_after })
}

/// The key itself, as far as it can be told from what is shown of it.
fn parts<'h>(active: &Active, hot: &'h HotKey) -> Option<Vec<&'h str>> {
    let rule = active.policy.rule(&hot.rule)?;
    // It may have been cut, or written otherwise than it is.
    if hot.key.len() + 4 > Hottest::MAX_KEY_LEN || hot.key.contains('\\') {
        return None;
    }
    let is_joined = hot.key.contains(Hottest::SEPARATOR);
    match rule.key().len() {
        // Whoever names a rule may give it more parts than it has.
        0 | 1 if is_joined => None,
        0 => Some(if hot.key.is_empty() { Vec::new() } else { vec![&hot.key] }),
        1 => Some(vec![&hot.key]),
        count => {
            let parts: Vec<&str> = hot.key.split(Hottest::SEPARATOR).collect();
            (parts.len() == count).then_some(parts)
        }
    }
}
