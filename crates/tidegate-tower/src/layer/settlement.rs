//! The actual cost of a request, known only after the response.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::response::Parts;

/// How the actual cost of a request is determined.
///
/// The layer holds the estimated cost during the request, so that expensive requests cannot exceed
/// the limit by running at once. When the response body has ended or was dropped, the actual cost
/// is charged, less or more than the estimate. A cost above what the limit has left becomes debt.
///
/// ```
/// use tidegate::{Limiter, Memory};
/// use tidegate_tower::{ClientIp, RateLimitLayer, Settlement};
///
/// // Failed logins count, successful ones do not. Attempts in flight are held: many at once
/// // cannot exceed the limit.
/// let limiter = Limiter::new(Memory::default(), "sliding-log 5/m".parse()?);
/// let failed = |response: &http::response::Parts| Some(u64::from(response.status == 401));
/// let layer = RateLimitLayer::new(limiter, ClientIp::default())
///     .settle(Settlement::from_response(failed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Settlement(pub(super) SettlementKind);

#[derive(Clone)]
pub(super) enum SettlementKind {
    Response(ResponseCost),
    BodyBytes(NonZeroU64),
    Meter,
}

type ResponseCost = Arc<dyn Fn(&Parts) -> Option<u64> + Send + Sync>;

impl Settlement {
    /// From the head of the response. `None` charges the estimate, 0 charges nothing.
    ///
    /// ```
    /// use tidegate_tower::Settlement;
    /// // Failed attempts count, others do not.
    /// Settlement::from_response(|response| Some(u64::from(response.status == 401)));
    /// ```
    pub fn from_response(cost: impl Fn(&Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self(SettlementKind::Response(Arc::new(cost)))
    }

    /// 1 for every started block of `bytes` bytes of the body that was sent.
    pub fn body_bytes(bytes: NonZeroU64) -> Self {
        Self(SettlementKind::BodyBytes(bytes))
    }

    /// What the service reports to the [`CostMeter`] in the extensions of every request.
    pub fn from_meter() -> Self {
        Self(SettlementKind::Meter)
    }

    /// A meter for the service, if the cost comes from one.
    pub(super) fn meter(&self) -> Option<CostMeter> {
        matches!(self.0, SettlementKind::Meter).then(CostMeter::default)
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            SettlementKind::Response(_) => f.write_str("Settlement::from_response(..)"),
            SettlementKind::BodyBytes(bytes) => write!(f, "Settlement::body_bytes({bytes})"),
            SettlementKind::Meter => f.write_str("Settlement::from_meter()"),
        }
    }
}

/// The actual cost of a request, reported by the service during or after the work: tokens of a
/// model, rows of a query. Clones share one count.
///
/// If the service reports nothing, the estimate is charged, even if the response body does not end.
/// A service that streams should report as it goes: then that much is charged if the client
/// disconnects.
///
/// ```
/// use axum::Extension;
/// use tidegate_tower::CostMeter;
///
/// /// A handler behind a layer with `.settle(Settlement::from_meter())`.
/// async fn complete(Extension(meter): Extension<CostMeter>) -> String {
///     let (text, tokens) = ("hello".to_owned(), 42);
///     meter.add(tokens);
///     text
/// }
/// ```
#[derive(Clone, Debug)]
pub struct CostMeter(Arc<AtomicU64>);

/// No cost was reported.
const NOT_REPORTED: u64 = u64::MAX;

impl Default for CostMeter {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(NOT_REPORTED)))
    }
}

impl CostMeter {
    /// Adds to the reported cost.
    pub fn add(&self, cost: u64) {
        let sum = |reported: u64| {
            let before = if reported == NOT_REPORTED { 0 } else { reported };
            Some(before.saturating_add(cost).min(NOT_REPORTED - 1))
        };
        // The closure always returns a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Replaces the reported cost.
    pub fn set(&self, cost: u64) {
        self.0.store(cost.min(NOT_REPORTED - 1), Ordering::Relaxed);
    }

    /// The reported cost, if any.
    pub fn total(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&reported| reported != NOT_REPORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_costs_add_up_and_do_not_wrap() {
        let meter = CostMeter::default();
        assert_eq!(meter.total(), None);
        meter.add(0);
        assert_eq!(meter.total(), Some(0));
        meter.clone().add(7);
        meter.add(3);
        assert_eq!(meter.total(), Some(10));
        meter.set(u64::MAX);
        meter.add(u64::MAX);
        assert_eq!(meter.total(), Some(u64::MAX - 1));
    }
}
