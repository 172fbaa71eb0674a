//! Turns a decision into a pass or a denial.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use smallvec::SmallVec;
use tidegate::policy::Enforcement;
use tidegate::{Decision, EngineError, Micros, Op, Plan, Refusal, RuleLimit, Sleep, Slot};

use super::body::RequestGuard;
use super::denial::{Denial, DenialReason};
use super::settings::{Decider, DecisionEvent, HeaderMode, OnEngineError};
use super::settlement::{CostMeter, Settlement};
use crate::headers::RateLimitHeaders;
use crate::policy_names::PolicyNames;

/// The result for one request.
pub(super) enum Admission {
    Pass(Admitted),
    Deny(Response<Bytes>),
}

/// State of a request that passes.
#[derive(Default)]
pub(super) struct Admitted {
    pub(super) headers: Option<RateLimitHeaders>,
    /// Boxed, because most requests need none of it.
    pub(super) extras: Option<Box<AdmittedExtras>>,
}

#[derive(Default)]
pub(super) struct AdmittedExtras {
    /// Delay by a leaky bucket with a queue, to wait for before the service is called.
    pub(super) queue_delay: Option<Sleep>,
    /// Held until the response body ends.
    pub(super) guard: Option<RequestGuard>,
    /// Passed to the service as an extension, to report the actual cost.
    pub(super) meter: Option<CostMeter>,
}

impl Admitted {
    pub(super) fn is_queued(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.queue_delay.is_some())
    }

    pub(super) async fn wait_in_queue(&mut self) {
        if let Some(queue_delay) = self.extras.as_mut().and_then(|extras| extras.queue_delay.take())
        {
            queue_delay.await;
        }
    }
}

impl Decider {
    /// Turns the decision about these limits into an admission. The guard was made before the hook
    /// is called: if the hook panics, the slot is still released.
    pub(super) fn decided<'a>(
        &self,
        request: &Parts,
        limits: impl IntoIterator<Item = &'a Arc<RuleLimit>> + Clone,
        guard: Option<RequestGuard>,
        decision: &Decision,
    ) -> Admission {
        let allowed = decision.allowed();
        let passes = allowed || self.enforcement == Enforcement::Shadow;
        self.notify(DecisionEvent { request, decision: Ok(decision), passes });
        if !passes {
            let mut decision = decision.clone();
            self.retry_jitter.iter().for_each(|jitter| decision.jitter_retry_after(*jitter));
            let mut names = PolicyNames::default();
            let named = decision.pair(limits.clone()).map(|(limit, v)| (names.name(limit), v));
            let violated = named.filter(|(_, verdict)| !verdict.allowed).map(|(name, _)| name);
            let violated: SmallVec<[Cow<'_, str>; 4]> = violated.collect();
            let violated: SmallVec<[&str; 4]> = violated.iter().map(|name| &**name).collect();
            let headers = self.headers(&decision, limits);
            let reason = DenialReason::Limited(&decision);
            return self.deny(&Denial { request, reason, violated: &violated }, Some(&headers));
        }
        let send_headers = allowed
            && self.header_mode != HeaderMode::Omit
            && self.enforcement == Enforcement::Enforce
            && !decision.verdicts.is_empty();
        let queue_delay = self.queue_delay(decision);
        let meter = match &guard {
            Some(guard) => guard.meter(),
            None => self.settlement.as_ref().and_then(Settlement::meter),
        };
        let has_extras = guard.is_some() || queue_delay.is_some() || meter.is_some();
        Admission::Pass(Admitted {
            headers: send_headers.then(|| self.headers(decision, limits)),
            extras: has_extras.then(|| Box::new(AdmittedExtras { queue_delay, guard, meter })),
        })
    }

    fn headers<'a>(
        &self,
        decision: &Decision,
        limits: impl IntoIterator<Item = &'a Arc<RuleLimit>>,
    ) -> RateLimitHeaders {
        match self.header_mode {
            HeaderMode::Omit => RateLimitHeaders::new(decision, limits),
            HeaderMode::Send(style) => {
                RateLimitHeaders::in_style(style, &**self.limiter.clock(), decision, limits)
            }
        }
    }

    /// The delay of the queue, unless the limiter has waited for it already.
    fn queue_delay(&self, decision: &Decision) -> Option<Sleep> {
        let is_pending = self.enforcement == Enforcement::Enforce && self.wait.is_none();
        let delay = Some(decision.delay()).filter(|&delay| is_pending && delay > Micros::ZERO)?;
        let clock = self.limiter.clock();
        Some(clock.sleep_until(clock.elapsed().saturating_add(delay)))
    }

    /// Settles or releases what the call holds, if it holds anything.
    pub(super) fn guard(
        &self,
        op: Op<'_>,
        plan: &Plan<'_>,
        decision: &Decision,
    ) -> Option<RequestGuard> {
        let Op::Hold(hold) = op else { return None };
        let mut slot = Slot::of(&self.limiter, decision, hold.ttl)?;
        if self.settlement.is_some() {
            slot.record_if_lost(op, plan);
        }
        Some(RequestGuard::new(slot, self.settlement.clone()))
    }

    /// Passes a request without limits. The service still gets a meter if one is configured.
    pub(super) fn pass_unlimited(&self) -> Admission {
        let meter = self.settlement.as_ref().and_then(Settlement::meter);
        let extras = meter.map(|meter| {
            Box::new(AdmittedExtras { meter: Some(meter), ..AdmittedExtras::default() })
        });
        Admission::Pass(Admitted { headers: None, extras })
    }

    /// Handles a request for which the engine returned an error.
    pub(super) fn handle_engine_error(&self, request: &Parts, error: &EngineError) -> Admission {
        let refused = error.refusal().is_some();
        let passes = self.enforcement == Enforcement::Shadow
            || (!refused && self.on_engine_error == OnEngineError::Pass);
        self.notify(DecisionEvent { request, decision: Err(error), passes });
        if passes {
            return self.pass_unlimited();
        }
        let reason = match error.refusal() {
            Some(Refusal::KeyTooLong) => DenialReason::KeyTooLong,
            _ => DenialReason::EngineError(error),
        };
        self.deny(&Denial { request, reason, violated: &[] }, None)
    }

    /// Denies a request that is never sent to the engine. In shadow mode it passes.
    pub(super) fn deny_without_decision(
        &self,
        request: &Parts,
        reason: DenialReason<'static>,
    ) -> Box<Admission> {
        let passes = self.enforcement == Enforcement::Shadow;
        let result = reason.event_result();
        self.notify(DecisionEvent { request, decision: result.as_ref(), passes });
        Box::new(match passes {
            true => self.pass_unlimited(),
            false => self.deny(&Denial { request, reason, violated: &[] }, None),
        })
    }

    fn deny(&self, denial: &Denial<'_>, headers: Option<&RateLimitHeaders>) -> Admission {
        let mut response = match &self.render {
            _ if denial.is_grpc() => denial.grpc(),
            Some(render) => render(denial),
            None => denial.response(),
        };
        if let Some(headers) = headers {
            match self.header_mode {
                HeaderMode::Send(_) => headers.write(response.headers_mut()),
                HeaderMode::Omit => headers.write_retry_after(response.headers_mut()),
            }
        }
        Admission::Deny(response)
    }

    fn notify(&self, event: DecisionEvent<'_>) {
        if let Some(hook) = &self.on_decision {
            hook(&event);
        }
    }
}
