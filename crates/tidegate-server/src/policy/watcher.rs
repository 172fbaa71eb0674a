//! Polls the files of the policy and reloads it when one of them has changed.
//!
//! Polling works on every file system and however a file is replaced. Kubernetes swaps a symlink
//! above it, editors rename a new file over it, and some file systems send no notifications.
//!
//! A changed file is reloaded only after two polls in a row find it in the same state: half of a
//! policy that is still being written may be a valid policy too.

use std::sync::Arc;
use std::time::Duration;

use super::files::FileChange;
use super::loader_thread::run_on_loader;
use super::manager::PolicyManager;
use crate::shutdown::Shutdown;

/// The time between two polls.
pub(crate) const INTERVAL: Duration = Duration::from_millis(250);

/// Reloads the policy on change, until the server drains.
pub(crate) async fn watch(policies: Arc<PolicyManager>, mut drain: Shutdown) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = drain.begun() => return,
        }
        // A disk that hangs must not delay the drain.
        tokio::select! {
            seen = poll(&policies, before.take()) => before = seen,
            () = drain.begun() => return,
        }
    }
}

/// Reloads the policy if the files have changed and are as they were `before`. Returns a change
/// that is not loaded yet.
async fn poll(policies: &Arc<PolicyManager>, before: Option<FileChange>) -> Option<FileChange> {
    let change = file_change(policies.clone()).await;
    if change.is_some() && change == before {
        reload(policies).await;
        return None;
    }
    change
}

/// Looks at the files outside of the threads that serve requests: a disk can be slow.
async fn file_change(policies: Arc<PolicyManager>) -> Option<FileChange> {
    tokio::task::spawn_blocking(move || policies.file_change()).await.ok().flatten()
}

/// Reloads the policy, on the thread for that.
pub async fn reload(policies: &Arc<PolicyManager>) {
    // A failure is already logged, and shown by the health endpoint.
    let policies = policies.clone();
    run_on_loader(move || policies.reload().is_ok()).await;
}
