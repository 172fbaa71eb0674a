//! The actual cost of a request, known only after the response.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    EachFromResponse(ResponseCosts),
    BodyBytes(NonZeroU64),
    Meter,
}

type ResponseCost = Arc<dyn Fn(&Parts) -> Option<u64> + Send + Sync>;
type ResponseCosts = Arc<dyn Fn(&Parts) -> CostsByRule + Send + Sync>;

/// Actual costs by the name of the rule.
pub(super) type CostsByRule = Vec<(String, u64)>;

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

    /// From the head of the response, for each rule by its name. Rules that are not named are
    /// charged the estimate.
    ///
    /// ```
    /// use tidegate_tower::Settlement;
    /// Settlement::each_from_response(|response| {
    ///     let tokens = response.headers.get("x-tokens").and_then(|n| n.to_str().ok());
    ///     let tokens = tokens.and_then(|n| n.parse().ok());
    ///     tokens.map(|tokens| ("tokens".to_string(), tokens)).into_iter().collect()
    /// });
    /// ```
    pub fn each_from_response(
        costs: impl Fn(&Parts) -> Vec<(String, u64)> + Send + Sync + 'static,
    ) -> Self {
        Self(SettlementKind::EachFromResponse(Arc::new(costs)))
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
            SettlementKind::EachFromResponse(_) => {
                f.write_str("Settlement::each_from_response(..)")
            }
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
#[derive(Clone, Default, Debug)]
pub struct CostMeter(Arc<ReportedCost>);

#[derive(Debug)]
struct ReportedCost {
    of_all: AtomicU64,
    by_rule: Mutex<CostsByRule>,
}

/// No cost was reported.
const NOT_REPORTED: u64 = u64::MAX;

impl Default for ReportedCost {
    fn default() -> Self {
        Self { of_all: AtomicU64::new(NOT_REPORTED), by_rule: Mutex::default() }
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
        let _ = self.0.of_all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Replaces the reported cost.
    pub fn set(&self, cost: u64) {
        self.0.of_all.store(cost.min(NOT_REPORTED - 1), Ordering::Relaxed);
    }

    /// Replaces the reported cost under the rule of this name. From then on the cost of all rules
    /// does not count: rules that are not named are charged the estimate.
    pub fn set_rule(&self, rule: &str, cost: u64) {
        let mut by_rule = self.0.by_rule.lock().unwrap_or_else(PoisonError::into_inner);
        match by_rule.iter_mut().find(|(name, _)| name == rule) {
            Some((_, known)) => *known = cost,
            None => by_rule.push((rule.into(), cost)),
        }
    }

    pub(super) fn by_rule(&self) -> CostsByRule {
        self.0.by_rule.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The reported cost, if any.
    pub fn total(&self) -> Option<u64> {
        Some(self.0.of_all.load(Ordering::Relaxed)).filter(|&reported| reported != NOT_REPORTED)
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
