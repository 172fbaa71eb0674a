//! What is left to the hottest keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::cli::asked::encoded;
use crate::cli::client::Client;
use crate::live::Snapshot;
use crate::live::snapshot::HotKey;

/// By rule and key: what is left, and of how much.
#[derive(Default, Debug)]
pub(super) struct Left(HashMap<(String, String), (u64, u64)>);

impl Left {
    /// The most keys that are asked about every time.
    pub(super) const MAX: usize = 5;
    /// How long all of it may take.
    const DEADLINE: Duration = Duration::from_secs(2);

    /// Asks about the hottest keys of a snapshot, unless somebody does already.
    pub(super) fn ask(client: Arc<Client>, snapshot: &Snapshot, to: mpsc::Sender<Self>) {
        let keys: Vec<HotKey> = snapshot
            .hottest
            .iter()
            .filter(|hot| is_whole(&hot.key))
            .take(Self::MAX)
            .cloned()
            .collect();
        tokio::spawn(async move {
            // Room for what comes of it means that nobody else asks.
            let Ok(place) = to.try_reserve_owned() else { return };
            let mut left = Self::default();
            let asked = async {
                for HotKey { rule, key, .. } in keys {
                    let path = format!("/v1/keys?rule={}&key={}", encoded(&rule), encoded(&key));
                    let Ok(answer) = client.get(&path).await else { continue };
                    let limits = answer["limits"].as_array().into_iter().flatten();
                    let deciding = limits.filter(|limit| limit["shadow"] == false);
                    let number = |of: &serde_json::Value, name: &str| of[name].as_u64();
                    let left_of = deciding.filter_map(|limit| {
                        number(limit, "remaining").zip(number(limit, "capacity"))
                    });
                    if let Some(least) = left_of.min() {
                        left.0.insert((rule, key), least);
                    }
                }
            };
            let _ = tokio::time::timeout(Self::DEADLINE, asked).await;
            place.send(left);
        });
    }

    /// What is left to a key, and of how much, if it is known.
    pub(super) fn of(&self, hot: &HotKey) -> Option<(u64, u64)> {
        self.0.get(&(hot.rule.clone(), hot.key.clone())).copied()
    }

    #[cfg(test)]
    pub(super) fn with(rule: &str, key: &str, left: u64, of: u64) -> Self {
        Self(HashMap::from([((rule.into(), key.into()), (left, of))]))
    }
}

/// Is a key as it is shown the key itself? It is not where it was escaped, joined or cut.
fn is_whole(shown: &str) -> bool {
    !shown.is_empty() && !shown.contains(['\\', '|', '…'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_are_shown_whole_are_asked_about() {
        for (shown, whole) in
            [("alice", true), ("a|b", false), (r"a\n", false), ("aaa…", false), ("", false)]
        {
            assert_eq!(is_whole(shown), whole, "{shown}");
        }
    }
}
