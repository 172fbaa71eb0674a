//! Passing and taking a place, in one step.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use tidegate_core::Micros;

use super::asking::Asking;
use super::{Limited, Reserve, Slot};
use crate::{Decision, EngineError, HoldId, Op};

/// An entry in the making; made when it is awaited. See [`Limiter::enter`](crate::Limiter::enter).
#[must_use = "nobody enters before it is awaited"]
#[derive(Clone, Copy, Debug)]
pub struct Entering<'a> {
    asking: Asking<'a>,
}

/// What was decided, and the place that was given. Dropped, the place is given back.
#[must_use = "dropped, the place is given back"]
#[derive(Debug)]
pub struct Entered {
    /// What was decided: allowed.
    pub decision: Decision,
    /// The place; `None` where nobody counts holders.
    pub slot: Option<Slot>,
}

impl<'a> Entering<'a> {
    pub(super) fn new(asking: Asking<'a>) -> Self {
        Self { asking }
    }

    /// Charges this much instead of 1. It is one holder all the same.
    pub fn cost(self, permits: u64) -> Self {
        Self { asking: self.asking.cost(permits) }
    }

    /// Keeps `who` with the entry of a `sliding-log`.
    pub fn who(self, who: &'a str) -> Self {
        Self { asking: self.asking.who(who) }
    }

    /// Waits until it may pass and there is a place, first come first served, but no longer than
    /// `timeout`.
    ///
    /// Nobody knows when a holder will leave, so it waits for a place until the time is over, however
    /// long the leases are. It answers at once if the limits that count requests let it pass too late,
    /// or if there can never be a place. Holders that leave this limiter wake whoever is first in
    /// line; for those in other processes it looks again every 50 ms. Dropping the future leaves the
    /// line, takes no place and charges nothing that was not decided yet.
    pub async fn wait(self, timeout: Duration) -> Result<Entered, Limited> {
        let (asking, lease) = self.to_ask()?;
        let decision = asking.wait(timeout).await?;
        Ok(self.entered(decision, lease))
    }

    async fn make(self) -> Result<Entered, Limited> {
        let (asking, lease) = self.to_ask()?;
        let decision = asking.await?;
        if !decision.allowed() {
            return Err(Limited::denied(decision));
        }
        Ok(self.entered(decision, lease))
    }

    /// The question, and how long the place lasts unless it is renewed. It is an entry even if nobody
    /// counts holders: by the time it is decided, the limits may be others.
    fn to_ask(self) -> Result<(Asking<'a>, Micros), EngineError> {
        let policy = self.asking.limiter.policy();
        let lease = self.asking.plan(&policy)?.lease().unwrap_or(Reserve::DEFAULT_TTL.into());
        let op = Op::Enter { id: HoldId::random()?, ttl: lease };
        Ok((self.asking.with(op), lease))
    }

    fn entered(self, decision: Decision, lease: Micros) -> Entered {
        let slot = Slot::of(self.asking.limiter, &decision, lease);
        Entered { decision, slot }
    }
}

impl<'a> IntoFuture for Entering<'a> {
    type Output = Result<Entered, Limited>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.make())
    }
}
