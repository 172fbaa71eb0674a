//! What a request has cost in the end.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::response::Parts;

/// How it is known what a request has cost.
///
/// The cost that the layer was told is set aside before the request, so that nobody gets by the limit
/// by asking for much at once. When the body of the response has ended, or was dropped, what
/// the request has really cost is charged, be it less or more; until then what was set aside stays so.
/// More than the limit has left becomes a debt.
#[derive(Clone)]
pub struct Settle(pub(super) How);

#[derive(Clone)]
pub(super) enum How {
    Response(CostOf),
    BodyBytes(NonZeroU64),
    Spent,
}

type CostOf = Arc<dyn Fn(&Parts) -> Option<u64> + Send + Sync>;

impl Settle {
    /// From the head of the response: `None` charges what was set aside, 0 nothing.
    ///
    /// ```
    /// use tidegate_tower::Settle;
    /// // Failed attempts count, others do not.
    /// Settle::from_response(|response| Some(u64::from(response.status == 401)));
    /// ```
    pub fn from_response(cost: impl Fn(&Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self(How::Response(Arc::new(cost)))
    }

    /// One for every `bytes` of the body that were sent, and for what is left at its end.
    pub fn body_bytes(bytes: NonZeroU64) -> Self {
        Self(How::BodyBytes(bytes))
    }

    /// What the service says by the [`Spent`] that it finds among the extensions of every request.
    pub fn spent() -> Self {
        Self(How::Spent)
    }

    /// For the service to tell in, if it is to.
    pub(super) fn account(&self) -> Option<Spent> {
        matches!(self.0, How::Spent).then(Spent::default)
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            How::Response(_) => f.write_str("Settle::from_response(..)"),
            How::BodyBytes(bytes) => write!(f, "Settle::body_bytes({bytes})"),
            How::Spent => f.write_str("Settle::spent()"),
        }
    }
}

/// For a service to tell what a request has cost, while it is at it or at the end: tokens of a model,
/// rows of a query. Clones are the same account.
///
/// For a service that says nothing, what was set aside is charged, whether or not the body of its response
/// comes to its end. One that streams had better say what it has spent as it goes: then that is what is charged
/// if the client goes away in the middle.
#[derive(Clone, Debug)]
pub struct Spent(Arc<AtomicU64>);

/// Nothing was said.
const UNSAID: u64 = u64::MAX;

impl Default for Spent {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNSAID)))
    }
}

impl Spent {
    /// So much more was spent.
    pub fn add(&self, cost: u64) {
        let sum = |said: u64| {
            let before = if said == UNSAID { 0 } else { said };
            Some(before.saturating_add(cost).min(UNSAID - 1))
        };
        // The closure always gives a sum.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// So much was spent in all.
    pub fn set(&self, cost: u64) {
        self.0.store(cost.min(UNSAID - 1), Ordering::Relaxed);
    }

    /// What was said so far.
    pub fn total(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&said| said != UNSAID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_adds_up_and_does_not_wrap() {
        let spent = Spent::default();
        assert_eq!(spent.total(), None);
        spent.add(0);
        assert_eq!(spent.total(), Some(0));
        spent.clone().add(7);
        spent.add(3);
        assert_eq!(spent.total(), Some(10));
        spent.set(u64::MAX);
        spent.add(u64::MAX);
        assert_eq!(spent.total(), Some(u64::MAX - 1));
    }
}
