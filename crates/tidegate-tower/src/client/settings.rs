//! Settings shared by an [`OutgoingLayer`](super::OutgoingLayer) and its services.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use tidegate::{Limiter, Micros};

use super::advice::ResponseAdvice;
use super::wait::{PauseGate, PausedTooLong, PendingCall};
use super::{Head, NotSent};

/// The settings of one layer. Its services share them.
#[derive(Clone)]
pub(super) struct OutgoingSettings {
    pub(super) limiter: Option<Limiter>,
    pub(super) gate: Arc<PauseGate>,
    pub(super) wait: Micros,
    pub(super) max_pause: Micros,
    pub(super) advice_mode: AdviceMode,
    pub(super) key: Arc<dyn Fn(&Head<'_>) -> String + Send + Sync>,
    pub(super) cost: Arc<dyn Fn(&Head<'_>) -> u64 + Send + Sync>,
}

/// Which responses can start a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AdviceMode {
    All,
    RejectionsOnly,
}

impl OutgoingSettings {
    /// Key and cost of a call.
    pub(super) fn describe(&self, head: &Head<'_>) -> (String, u64) {
        ((self.key)(head), (self.cost)(head))
    }

    /// Waits until a call may be sent.
    pub(super) async fn admit(&self, key: String, cost: u64) -> Result<PendingCall, NotSent> {
        let mut call = self.gate.start_waiting(&key, self.wait);
        loop {
            if let Err(PausedTooLong { retry_after, hint }) = call.wait_for_pause().await {
                return Err(NotSent::Paused { key, retry_after: retry_after.into(), hint });
            }
            if let Some(limiter) = &self.limiter {
                let permit = limiter.check(&key).cost(cost).wait(call.time_left().into());
                match call.unless_paused(permit).await {
                    Some(Ok(_)) => {}
                    Some(Err(limited)) => return Err(NotSent::Limited { key, limited }),
                    // The permit is given up: otherwise all calls that hold one would be sent at
                    // once when the pause ends. A new permit is waited for after the pause.
                    None => continue,
                }
            }
            // A pause that began just now costs the permit, which errs on the safe side.
            if call.mark_sent() {
                return Ok(call);
            }
        }
    }

    /// Starts or lengthens a pause, as the response demands.
    pub(super) fn apply_advice(&self, call: PendingCall, status: StatusCode, headers: &HeaderMap) {
        let mut response = ResponseAdvice::of(status, headers, self.gate.clock().now());
        if self.max_pause == Micros::ZERO
            || (response.served && self.advice_mode == AdviceMode::RejectionsOnly)
        {
            response.advice = None;
        }
        call.finish(response, self.max_pause);
    }
}

impl fmt::Debug for OutgoingSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingLayer")
            .field("limiter", &self.limiter)
            .field("wait", &self.wait)
            .field("max_pause", &self.max_pause)
            .field("advice_mode", &self.advice_mode)
            .finish_non_exhaustive()
    }
}
