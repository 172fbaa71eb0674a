//! Permits that were perhaps taken for somebody who will not hear of it.

use std::sync::Arc;
use std::time::Duration;

use tidegate::EngineError;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::limiter::RateLimiter;

/// An entry on its way. Unless it is heard of, it is taken back by a task of its own, since nobody uses what it
/// stands for. If that fails as well, it comes back after its interval.
pub(super) struct Unheard<'a> {
    limiter: &'a RateLimiter,
    permits: u32,
    id: Option<[u8; 16]>,
}

impl<'a> Unheard<'a> {
    const PAUSES: [Duration; 3] =
        [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1)];

    pub(super) fn new(limiter: &'a RateLimiter, permits: u32, id: [u8; 16]) -> Self {
        Self { limiter, permits, id: Some(id) }
    }

    /// This is how it ended, which somebody hears unless nobody knows.
    pub(super) fn hear<T>(mut self, answer: Result<T, EngineError>) -> Result<T, EngineError> {
        if !matches!(answer, Err(EngineError::Ambiguous(_))) {
            self.id = None;
        }
        answer
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id, Handle::try_current()) else { return };
        let enders = Arc::clone(&self.limiter.client().lines().enders);
        let Ok(place) = enders.try_acquire_owned() else { return };
        let (limiter, permits) = (self.limiter.clone(), self.permits);
        runtime.spawn(async move {
            let _place = place;
            for pause in Self::PAUSES {
                sleep(pause).await;
                if limiter.undo(permits, id).await.is_ok() {
                    return;
                }
            }
        });
    }
}
