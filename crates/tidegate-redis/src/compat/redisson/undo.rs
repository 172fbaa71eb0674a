//! Takes back permits whose reply was lost.

use std::sync::Arc;
use std::time::Duration;

use tidegate::EngineError;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::calls::LimiterCalls;
use crate::compat::wait_ticket::PermitsEntry;

/// Entries whose reply is pending. Unless the reply arrives, a background task takes them back,
/// since their permits are not used. If that fails as well, they return after their interval.
pub(crate) struct UndoOnDrop<'a> {
    calls: &'a LimiterCalls,
    entries: Vec<PermitsEntry>,
}

impl<'a> UndoOnDrop<'a> {
    const PAUSES: [Duration; 3] =
        [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1)];

    pub(crate) fn new(calls: &'a LimiterCalls, entries: Vec<PermitsEntry>) -> Self {
        Self { calls, entries }
    }

    /// The call has ended. The entries are kept unless the result is ambiguous.
    pub(crate) fn finish<T>(mut self, reply: Result<T, EngineError>) -> Result<T, EngineError> {
        if !matches!(reply, Err(EngineError::Ambiguous(_))) {
            self.entries.clear();
        }
        reply
    }
}

impl Drop for UndoOnDrop<'_> {
    fn drop(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        let (false, Ok(runtime)) = (entries.is_empty(), Handle::try_current()) else { return };
        let permits = Arc::clone(&self.calls.client.queues().undo_permits);
        let Ok(permit) = permits.try_acquire_owned() else { return };
        let calls = self.calls.clone();
        runtime.spawn(async move {
            let _permit = permit;
            let mut entries = entries.into_iter();
            let mut entry = entries.next();
            for pause in Self::PAUSES {
                sleep(pause).await;
                while let Some(PermitsEntry { permits, id }) = entry {
                    if calls.undo(permits, id).await.is_err() {
                        break;
                    }
                    entry = entries.next();
                }
                if entry.is_none() {
                    return;
                }
            }
        });
    }
}
