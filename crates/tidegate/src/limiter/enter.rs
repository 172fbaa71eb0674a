//! Builder of an entry, and its result: a decision and a concurrency slot.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use tidegate_core::Micros;

use super::check::Check;
use super::{Limited, Limiter, Reserve, Slot};
use crate::{Decision, EngineError, HoldId, Key, Op, Plan};

impl Limiter {
    /// Checks `key` and takes a concurrency slot, if every limit allows it. Rate limits are charged
    /// the cost, each `concurrency` limit one slot. The slot is held as long as the [`Slot`]
    /// exists; dropping it releases the slot.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Memory, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rule = Rule::new("reports", ["100/h".parse()?, "concurrency 1 lease 30s".parse()?])?;
    /// let limiter = Limiter::with_rules(Memory::default(), [rule])?;
    /// let entered = limiter.enter("user-42").cost(5).await?;
    /// assert!(limiter.enter("user-42").await.is_err(), "one at a time");
    /// drop(entered);
    /// limiter.enter("user-42").wait(Duration::from_secs(1)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn enter<'a>(&'a self, key: impl Into<Key<'a>>) -> Enter<'a> {
        Enter { check: Check::of_entry(self, key.into()) }
    }
}

/// An entry; made when awaited. See [`Limiter::enter`](crate::Limiter::enter).
#[must_use = "does nothing unless awaited"]
#[derive(Clone, Copy, Debug)]
pub struct Enter<'a> {
    check: Check<'a>,
}

/// The decision and the concurrency slot. Dropping it releases the slot.
#[must_use = "dropping releases the concurrency slot"]
#[derive(Debug)]
pub struct Entered {
    /// The decision: always allowed.
    pub decision: Decision,
    /// The slot; `None` without a `concurrency` limit.
    pub slot: Option<Slot>,
}

impl<'a> Enter<'a> {
    /// Sets the cost; 1 by default. A `concurrency` limit is charged one slot, whatever the cost.
    pub fn cost(self, permits: u64) -> Self {
        Self { check: self.check.cost(permits) }
    }

    /// Stores `caller` with the entry of a `sliding-log`.
    pub fn caller(self, caller: &'a str) -> Self {
        Self { check: self.check.caller(caller) }
    }

    /// Waits for permits and a free slot until `timeout`, first come, first served.
    ///
    /// The end of a holder cannot be predicted, so it waits for a slot until the timeout, however
    /// long the leases are. It returns at once if the rate limits would allow it too late, or if a
    /// slot can never be free. Releasing a slot of this limiter wakes the first waiter; slots of
    /// other processes are polled every 50 ms. Dropping the future leaves the queue, takes no slot
    /// and charges nothing that is not decided yet.
    pub async fn wait(self, timeout: Duration) -> Result<Entered, Limited> {
        let policy = self.check.limiter.policy();
        let (check, lease) =
            self.prepare(&*self.check.plan(&policy).map_err(EngineError::from)?)?;
        Ok(self.entered(check.wait(timeout).await?, lease))
    }

    async fn make(self) -> Result<Entered, Limited> {
        let policy = self.check.limiter.policy();
        let plan = self.check.plan(&policy).map_err(EngineError::from)?;
        let (check, lease) = self.prepare(&plan)?;
        let decision = check.decide(&plan).await?;
        if !decision.allowed() {
            return Err(Limited::denied(decision));
        }
        Ok(self.entered(decision, lease))
    }

    /// The check, and the lease of the slot. It is an entry even without a `concurrency` limit: the
    /// policy may change while it waits.
    fn prepare(self, plan: &Plan<'_>) -> Result<(Check<'a>, Micros), EngineError> {
        let lease = plan.lease().unwrap_or(Reserve::DEFAULT_TTL.into());
        let op = Op::enter(HoldId::random()?, lease);
        Ok((self.check.with(op), lease))
    }

    fn entered(self, decision: Decision, lease: Micros) -> Entered {
        let slot = Slot::of(self.check.limiter, &decision, lease);
        Entered { decision, slot }
    }
}

impl<'a> IntoFuture for Enter<'a> {
    type Output = Result<Entered, Limited>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.make())
    }
}
