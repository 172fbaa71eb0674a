//! Permits set aside before the work, settled after it.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use tidegate_core::{Cost, Expiry, Micros};

use super::asking::Asking;
use super::held::Held;
use super::{Limited, Limiter};
use crate::engine::Refusal;
use crate::{Decision, EngineError, HoldId, Op};

/// A reservation in the making; made when it is awaited.
#[must_use = "nothing is reserved before it is awaited"]
#[derive(Debug)]
pub struct Reserve<'a> {
    asking: Asking<'a>,
    ttl: Option<Duration>,
}

impl<'a> Reserve<'a> {
    /// How long a reservation lasts unless told otherwise. `concurrency` has its lease instead.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(60);

    pub(super) fn new(asking: Asking<'a>) -> Self {
        Self { asking, ttl: None }
    }

    /// Lets it last this long, at most an hour.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Reserves at most once under `id`: asked again within an hour, it is the same reservation.
    pub fn once(mut self, id: &'a str) -> Self {
        self.asking = self.asking.once(id);
        self
    }

    /// The shortest lease among the limits, or the default.
    fn ttl_or_default(&self) -> Micros {
        let policy = self.asking.limiter.policy();
        let leases = policy.limits().filter_map(|limit| limit.limit().lease());
        self.ttl.map(Micros::from).or(leases.min()).unwrap_or(Self::DEFAULT_TTL.into())
    }

    async fn make(self) -> Result<Reservation, Limited> {
        let op =
            Op::Hold { id: HoldId::random()?, ttl: self.ttl_or_default(), expiry: Expiry::Release };
        let decision = self.asking.with(op).await?;
        let Some(id) = decision.hold() else { return Err(Limited::denied(decision)) };
        let mut held = Held::made(self.asking.limiter, id);
        if decision.repeated() {
            // Whoever made it first is the one to cancel it.
            held.keep();
        }
        Ok(Reservation { held, decision: Some(decision) })
    }
}

impl<'a> IntoFuture for Reserve<'a> {
    type Output = Result<Reservation, Limited>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.make())
    }
}

/// Permits that are set aside. Dropped, they are given back; left alone, they go back at the
/// deadline.
#[must_use = "dropped, it is cancelled"]
pub struct Reservation {
    held: Held,
    decision: Option<Decision>,
}

impl Reservation {
    pub(super) fn found(limiter: &Limiter, id: HoldId) -> Self {
        Self { held: Held::found(limiter, id), decision: None }
    }

    /// The name by which any process on the same store can settle it.
    pub fn id(&self) -> HoldId {
        self.held.id()
    }

    /// What was decided when it was made; `None` if it was found by its id.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Ends it and charges `cost`, which may be less or more than was reserved. After the deadline
    /// it is charged all the same, and the decision says `expired`.
    ///
    /// If this fails or is dropped, the reservation stands until its deadline: the work was done,
    /// so it must not be cancelled. It can still be settled by its id.
    pub fn commit(
        mut self,
        cost: u64,
    ) -> impl Future<Output = Result<Decision, EngineError>> + Send {
        // Before the future is made: it may be dropped without being polled.
        self.held.keep();
        async move {
            let cost = Cost::new(cost).map_err(Refusal::from)?;
            self.held.settle(Some(cost)).await
        }
    }

    /// Ends it and charges what was reserved. See [`commit`](Self::commit).
    pub fn commit_all(mut self) -> impl Future<Output = Result<Decision, EngineError>> + Send {
        self.held.keep();
        self.held.settle(None)
    }

    /// Ends it and charges nothing; for `concurrency`, leaves.
    pub async fn cancel(self) -> Result<Decision, EngineError> {
        self.held.settle(Some(Cost::ZERO)).await
    }

    /// Lets it last `ttl` from now. If the decision says `expired`, it had ended already.
    pub async fn renew(&self, ttl: Duration) -> Result<Decision, EngineError> {
        self.held.renew(ttl.into()).await
    }

    /// Lets it stand until somebody settles it by its id, or until the deadline.
    pub fn keep(mut self) -> HoldId {
        self.held.keep()
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("id", &self.id()).finish_non_exhaustive()
    }
}
