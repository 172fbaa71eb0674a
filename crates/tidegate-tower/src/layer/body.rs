//! Response bodies: of a denial, and one that holds a concurrency slot until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};
use pin_project_lite::pin_project;
use tidegate::{Cost, Costs, RuleCost, Slot};

use super::settlement::{CostMeter, CostsByRule, Settlement, SettlementKind};

/// A body that can carry a denial, and hold a [`RequestGuard`] until it ends.
///
/// It is implemented for the bodies of axum and tonic and for those that `http-body-util` boxes.
/// [`RateLimitLayer::any_body`](super::RateLimitLayer::any_body) wraps other bodies in a
/// [`LimitedBody`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a supported response body",
    note = "call `.any_body()` on the layer: the response body is then a `LimitedBody<{Self}>`"
)]
pub trait ResponseBody: Body + Sized {
    /// A body with these bytes.
    fn of_bytes(bytes: Bytes) -> Self;

    /// The same body, holding `guard` until it ends or is dropped.
    fn guarded(self, guard: RequestGuard) -> Self;
}

#[cfg(feature = "axum")]
impl ResponseBody for axum::body::Body {
    fn of_bytes(bytes: Bytes) -> Self {
        bytes.into()
    }

    fn guarded(self, guard: RequestGuard) -> Self {
        Self::new(LimitedBody::guarding(self, guard))
    }
}

#[cfg(feature = "tonic")]
impl ResponseBody for tonic::body::Body {
    fn of_bytes(bytes: Bytes) -> Self {
        Self::new(Full::new(bytes))
    }

    fn guarded(self, guard: RequestGuard) -> Self {
        Self::new(LimitedBody::guarding(self, guard))
    }
}

impl<E: 'static> ResponseBody for UnsyncBoxBody<Bytes, E> {
    fn of_bytes(bytes: Bytes) -> Self {
        Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
    }

    fn guarded(self, guard: RequestGuard) -> Self {
        LimitedBody::guarding(self, guard).boxed_unsync()
    }
}

impl<E: 'static> ResponseBody for BoxBody<Bytes, E> {
    fn of_bytes(bytes: Bytes) -> Self {
        Full::new(bytes).map_err(|never| match never {}).boxed()
    }

    fn guarded(self, guard: RequestGuard) -> Self {
        LimitedBody::guarding(self, guard).boxed()
    }
}

impl<B: Body<Data = Bytes>> ResponseBody for LimitedBody<B> {
    fn of_bytes(bytes: Bytes) -> Self {
        Self { body: BodySource::Denial { bytes: Some(bytes) }, guard: None }
    }

    fn guarded(mut self, guard: RequestGuard) -> Self {
        // Another layer may have set a guard.
        let guard = guard.unless_body_ended(&self).map(|guard| guard.after(self.guard.take()));
        Self { guard: guard.or(self.guard), body: self.body }
    }
}

pin_project! {
    /// The body of a service, or of a denial.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        body: BodySource<B>,
        guard: Option<RequestGuard>,
    }
}

pin_project! {
    #[project = BodySourceProjected]
    #[derive(Debug)]
    enum BodySource<B> {
        Service { #[pin] body: B },
        Denial { bytes: Option<Bytes> },
    }
}

impl<B: Body> LimitedBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body: BodySource::Service { body }, guard: None }
    }

    fn guarding(body: B, guard: RequestGuard) -> Self {
        let guard = guard.unless_body_ended(&body);
        Self { body: BodySource::Service { body }, guard }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = match this.body.as_mut().project() {
            BodySourceProjected::Service { body } => ready!(body.poll_frame(cx)),
            BodySourceProjected::Denial { bytes } => {
                bytes.take().filter(Bytes::has_remaining).map(|bytes| Ok(Frame::data(bytes)))
            }
        };
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let (Some(guard), Some(data)) = (&mut *this.guard, data) {
            guard.add_body_bytes(data.len());
        }
        let ended = match &frame {
            None => true,
            Some(Ok(_)) => this.body.is_end_stream(),
            Some(Err(_)) => false,
        };
        // Servers drop a body that has ended, but not always at once.
        drop(this.guard.take_if(|_| ended));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            BodySource::Service { body } => body.size_hint(),
            BodySource::Denial { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

impl<B: Body> BodySource<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Service { body } => body.is_end_stream(),
            Self::Denial { bytes } => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }
}

/// What a request holds until its response body ends: concurrency slots and a pending charge.
#[derive(Debug)]
pub struct RequestGuard {
    slot: Slot,
    due: PendingCharge,
    /// A response exists, so its body can be metered.
    responded: bool,
    /// The guard of another layer on the same body.
    other: Option<Box<Self>>,
}

#[derive(Debug)]
enum PendingCharge {
    /// No charge: only slots to release.
    None,
    /// Determined by the head of the response.
    FromHead(Settlement),
    /// This much; `None` charges the estimate.
    Known(Option<u64>),
    /// This much under each rule; the estimate under those that are not named.
    Each(CostsByRule),
    Bytes {
        each: u64,
        seen: u64,
    },
    Meter(CostMeter),
}

impl RequestGuard {
    pub(super) fn new(slot: Slot, settle: Option<Settlement>) -> Self {
        let due = match settle {
            None => PendingCharge::None,
            Some(Settlement(SettlementKind::BodyBytes(each))) => {
                PendingCharge::Bytes { each: each.get(), seen: 0 }
            }
            Some(Settlement(SettlementKind::Meter)) => PendingCharge::Meter(CostMeter::default()),
            Some(settle) => PendingCharge::FromHead(settle),
        };
        Self { slot, due, responded: false, other: None }
    }

    /// The same guard, which also owns another one.
    fn after(mut self, other: Option<Self>) -> Self {
        self.other = other.map(Box::new);
        self
    }

    /// The service returned an error: nothing is charged.
    pub(super) fn cancel_charge(mut self) {
        self.due = PendingCharge::Known(Some(0));
    }

    /// The meter of the service, if the cost comes from one.
    pub(super) fn meter(&self) -> Option<CostMeter> {
        match &self.due {
            PendingCharge::Meter(meter) => Some(meter.clone()),
            _ => None,
        }
    }

    /// Computes the charge that depends on the head, and moves the guard into the body.
    pub(super) fn respond<B: ResponseBody>(mut self, response: Response<B>) -> Response<B> {
        let (head, body) = response.into_parts();
        self.responded = true;
        if let PendingCharge::FromHead(Settlement(SettlementKind::Response(cost))) = &self.due {
            self.due = PendingCharge::Known(cost(&head));
        } else if let PendingCharge::FromHead(Settlement(SettlementKind::EachFromResponse(costs))) =
            &self.due
        {
            self.due = PendingCharge::Each(summed(costs(&head)));
        }
        Response::from_parts(head, body.guarded(self))
    }

    fn add_body_bytes(&mut self, len: usize) {
        if let PendingCharge::Bytes { seen, .. } = &mut self.due {
            *seen = seen.saturating_add(len as u64);
        }
        if let Some(other) = &mut self.other {
            other.add_body_bytes(len);
        }
    }

    /// The guard, or `None` (which releases it) if the body has already ended.
    fn unless_body_ended(self, body: &impl Body) -> Option<Self> {
        (!body.is_end_stream()).then_some(self)
    }
}

/// Each rule once: what a response names twice is added up.
fn summed(costs: CostsByRule) -> CostsByRule {
    let mut sums = CostsByRule::new();
    for (rule, cost) in costs {
        match sums.iter_mut().find(|(name, _)| *name == rule) {
            Some((_, sum)) => *sum = sum.saturating_add(cost),
            None => sums.push((rule, cost)),
        }
    }
    sums
}

/// Charges the known cost, otherwise the estimate, whether or not the body was sent whole:
/// disconnecting must not avoid the charge.
impl Drop for RequestGuard {
    fn drop(&mut self) {
        let by_rule = match &self.due {
            PendingCharge::Each(costs) => costs.clone(),
            PendingCharge::Meter(meter) => meter.by_rule(),
            _ => CostsByRule::new(),
        };
        let cost = match &self.due {
            PendingCharge::None => Some(0),
            PendingCharge::FromHead(_) | PendingCharge::Each(_) => None,
            PendingCharge::Known(cost) => *cost,
            PendingCharge::Bytes { each, seen } => self.responded.then(|| seen.div_ceil(*each)),
            PendingCharge::Meter(meter) => meter.total(),
        };
        let each = by_rule.iter().map(|(rule, cost)| RuleCost::new(rule, Cost::total(*cost)));
        let each: Vec<RuleCost<'_>> = each.collect();
        self.slot.charge_at_end(match cost {
            _ if !each.is_empty() => Costs::Each(&each),
            Some(cost) => Costs::All(Cost::total(cost)),
            None => Costs::AsHeld,
        });
    }
}
