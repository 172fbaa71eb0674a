//! Takes back permits whose reply was lost.

use std::sync::Arc;
use std::time::Duration;

use tidegate::EngineError;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::calls::LimiterCalls;

/// An entry whose reply is pending. Unless the reply arrives, a background task takes the entry
/// back, since its permits are not used. If that fails as well, they return after their interval.
pub(crate) struct UndoOnDrop<'a> {
    calls: &'a LimiterCalls,
    permits: u32,
    id: Option<[u8; 16]>,
}

impl<'a> UndoOnDrop<'a> {
    const PAUSES: [Duration; 3] =
        [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1)];

    pub(crate) fn new(calls: &'a LimiterCalls, permits: u32, id: [u8; 16]) -> Self {
        Self { calls, permits, id: Some(id) }
    }

    /// The call has ended. The entry is kept unless the result is ambiguous.
    pub(crate) fn finish<T>(mut self, reply: Result<T, EngineError>) -> Result<T, EngineError> {
        if !matches!(reply, Err(EngineError::Ambiguous(_))) {
            self.id = None;
        }
        reply
    }
}

impl Drop for UndoOnDrop<'_> {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id, Handle::try_current()) else { return };
        let permits = Arc::clone(&self.calls.client.queues().undo_permits);
        let Ok(permit) = permits.try_acquire_owned() else { return };
        let (calls, permits) = (self.calls.clone(), self.permits);
        runtime.spawn(async move {
            let _permit = permit;
            for pause in Self::PAUSES {
                sleep(pause).await;
                if calls.undo(permits, id).await.is_ok() {
                    return;
                }
            }
        });
    }
}
