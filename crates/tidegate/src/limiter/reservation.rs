//! Permits reserved before the work, settled after it.

use std::borrow::Cow;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::time::Duration;

use tidegate_core::{Cost, Expiry, Micros};

use super::check::Check;
use super::hold_guard::HoldGuard;
use super::hold_settlement::OwnedCosts;
use super::settlement::Settled;
use super::{Limited, Limiter};
use crate::{
    Costs, Decision, EngineError, Extension, HoldId, HoldKind, HoldSpec, Key, Op, Quantity,
    RuleCheck, RuleCost,
};

impl Limiter {
    /// Reserves `cost` for `key`; commit or cancel it. Dropping cancels.
    pub fn reserve<'a>(&'a self, key: impl Into<Key<'a>>, cost: u64) -> Reserve<'a> {
        Reserve::new(Check::of_all(self, Op::Peek, key.into()).cost(cost))
    }

    /// Reserves several rules and keys, each at its own cost: all or none. See
    /// [`reserve`](Self::reserve) and [`Reservation::commit_each`].
    pub fn reserve_each<'a>(&'a self, checks: &'a [RuleCheck<'a>]) -> Reserve<'a> {
        Reserve::new(self.check_each(checks))
    }

    /// Reserves as much of a quantity as fits, for `key` under every rule: from the first number,
    /// below which it is denied, to the last one. Rules that count requests cost 1.
    /// [`Reservation::granted`] is what fits.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter, Memory};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Memory::default(), "fixed-window 1000/h".parse::<Limit>()?);
    /// let first = limiter.reserve_at_most("tenant-7", 100..=800).await?;
    /// assert_eq!(first.granted(), Some(800));
    /// let second = limiter.reserve_at_most("tenant-7", 100..=800).await?;
    /// assert_eq!(second.granted(), Some(200));
    /// assert!(limiter.reserve_at_most("tenant-7", 100..=800).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve_at_most<'a>(
        &'a self,
        key: impl Into<Key<'a>>,
        quantity: RangeInclusive<u64>,
    ) -> Reserve<'a> {
        let every = self.reserve(key, 0).at_most(quantity);
        Reserve { is_of_every_rule: true, ..every }
    }

    /// The reservation of this id, made here or by another process on the same store.
    pub fn reservation(&self, id: HoldId) -> Reservation {
        Reservation { guard: HoldGuard::from_id(self, id), decision: None }
    }
}

/// A reservation; made when awaited.
#[must_use = "does nothing unless awaited"]
#[derive(Debug)]
pub struct Reserve<'a> {
    check: Check<'a>,
    ttl: Option<Duration>,
    expiry: Expiry,
    quantity: Option<RangeInclusive<u64>>,
    /// The quantity is the cost of every rule.
    is_of_every_rule: bool,
}

impl<'a> Reserve<'a> {
    /// Default duration. A `concurrency` limit uses its lease instead.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(60);

    fn new(check: Check<'a>) -> Self {
        let (expiry, quantity) = (Expiry::Release, None);
        Self { check, ttl: None, expiry, quantity, is_of_every_rule: false }
    }

    /// Charges what is reserved when the reservation expires, under every rule. By default each
    /// rule decides: [`Rule::on_expiry`](crate::Rule::on_expiry).
    pub fn charge_on_expiry(mut self) -> Self {
        self.expiry = Expiry::Charge;
        self
    }

    /// Sets the duration, at most an hour.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Reserves at most once under `id`: a repeated call within an hour returns the same
    /// reservation.
    pub fn idempotency_key(mut self, id: &'a str) -> Self {
        self.check = self.check.idempotency_key(id);
        self
    }

    /// Reserves as much of a quantity as fits, in one step: from the first number, below which it
    /// is denied, to the last one. Each check costs its [`cost`](RuleCheck::cost) and, for each
    /// unit that is granted, [`per_unit`](RuleCheck::per_unit); see [`Reservation::granted`]. So
    /// the tokens of a response and their price are bounded by one number:
    ///
    /// ```
    /// use tidegate::{Limiter, Memory, Rule, RuleCheck, Unit, UnitCost};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = [
    ///     Rule::new("tokens", ["fixed-window 10000/m".parse()?])?.unit(Unit::Tokens),
    ///     Rule::new("spend", ["fixed-window 9000/d".parse()?])?.unit(Unit::Money),
    /// ];
    /// let limiter = Limiter::with_rules(Memory::default(), rules)?;
    /// // 1,200 tokens of input for 3,000 units of money; a token of output is 2.5 units.
    /// let output_price = UnitCost::new(5, 2).expect("a price");
    /// let checks = [
    ///     RuleCheck::new("tokens", "ann").cost(1_200).per_unit(UnitCost::ONE),
    ///     RuleCheck::new("spend", "ann").cost(3_000).per_unit(output_price),
    /// ];
    /// let reserved = limiter.reserve_each(&checks).at_most(100..=4_000).await?;
    /// assert_eq!(reserved.granted(), Some(2_400), "money for 2,400 tokens is left");
    /// # Ok(())
    /// # }
    /// ```
    pub fn at_most(mut self, quantity: RangeInclusive<u64>) -> Self {
        self.quantity = Some(quantity);
        self
    }

    /// The shortest lease among the limits, or the default.
    fn ttl_or_default(&self) -> Micros {
        let policy = self.check.limiter.policy();
        let leases = policy.limits().filter_map(|limit| limit.limit().lease());
        self.ttl.map(Micros::from).or(leases.min()).unwrap_or(Self::DEFAULT_TTL.into())
    }

    async fn make(self) -> Result<Reservation, Limited> {
        let (id, ttl) = (HoldId::random()?, self.ttl_or_default());
        let (expiry, kind) = (self.expiry, HoldKind::Reservation);
        let policy = self.check.limiter.policy();
        let mut hold = HoldSpec { id, ttl, expiry, kind, quantity: None };
        let plan = self.check.with(Op::Hold(hold)).plan(&policy).map_err(EngineError::from)?;
        let range = self.quantity.as_ref().map(|range| (*range.start(), *range.end()));
        let (min, want) = range.unwrap_or_default();
        let plan = match range {
            None => plan,
            Some(_) => {
                let plan = plan.into_owned();
                let of_each =
                    if self.is_of_every_rule { plan.per_unit_of_each_rule() } else { plan };
                let planned = of_each.with_quantity(Cost::total(min));
                Cow::Owned(planned.map_err(EngineError::from)?)
            }
        };
        let charges = &plan.unit_charges()[..];
        let quantity = Quantity { min: Cost::total(min), want: Cost::total(want), charges };
        hold.quantity = range.map(|_| &quantity);
        let mut decision = self.check.with(Op::Hold(hold)).decide(&plan).await?;
        if range.is_some() && decision.allowed() && decision.granted().is_none() {
            // No limit counts it: the fallback allows it.
            decision.details_mut().granted = Some(quantity.want);
        }
        let Some(mut guard) = HoldGuard::of(self.check.limiter, &decision, ttl) else {
            return Err(Limited::denied(decision));
        };
        guard.set_charges(hold, decision.granted(), &plan);
        if decision.repeated() {
            // Only the value that made the reservation cancels it on drop.
            guard.keep();
        }
        Ok(Reservation { guard, decision: Some(decision) })
    }
}

impl<'a> IntoFuture for Reserve<'a> {
    type Output = Result<Reservation, Limited>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.make())
    }
}

/// Reserved permits. Dropping cancels; otherwise they expire.
///
/// ```
/// use tidegate::{Limit, Limiter, Memory};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Memory::default(), "fixed-window 1000/h".parse::<Limit>()?);
/// let reserved = limiter.reserve("tenant-7", 400).await?;      // an upper bound
/// // .. the work, which costs 120 ..
/// reserved.commit(120).await?;
/// assert_eq!(limiter.check("tenant-7").peek().now()?.remaining(), 880);
///
/// let unused = limiter.reserve("tenant-7", 400).await?;
/// drop(unused);                                                // as `cancel`
/// assert_eq!(limiter.check("tenant-7").peek().now()?.remaining(), 880);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping cancels the reservation"]
pub struct Reservation {
    guard: HoldGuard,
    decision: Option<Decision>,
}

impl Reservation {
    /// The id by which any process on the same store can settle it.
    pub fn id(&self) -> HoldId {
        self.guard.id()
    }

    /// The decision that made it; `None` if it was found by its id.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// The quantity that it was granted, if it is one of [at most](Reserve::at_most) some quantity.
    /// `None` if it was found by its id.
    pub fn granted(&self) -> Option<u64> {
        self.decision.as_ref()?.granted().map(Cost::get)
    }

    /// Settles the reservation and charges `cost`, which may be less or more than was reserved, to
    /// each rule. Refused if the rules were reserved at different costs: see
    /// [`commit_each`](Self::commit_each). After expiry the cost is charged all the same, and the
    /// settlement is [`late`](Settled::late); so it is if the store has lost the reservation,
    /// unless it was found by its id.
    ///
    /// If this fails or is dropped, the reservation stays until it expires: the work was done, so
    /// it must not be cancelled. It can still be settled by its id.
    pub fn commit(
        self,
        cost: u64,
    ) -> impl Future<Output = Result<Settled, EngineError>> + Send + use<> {
        self.settle(Costs::All(Cost::total(cost)))
    }

    /// Settles the reservation and charges what was reserved. See [`commit`](Self::commit).
    pub fn commit_all(self) -> impl Future<Output = Result<Settled, EngineError>> + Send + use<> {
        self.settle(Costs::AsHeld)
    }

    /// Settles the reservation and charges each rule its own cost; rules that are not named are
    /// charged what was reserved. See [`commit`](Self::commit).
    ///
    /// ```
    /// # async fn settle(reservation: tidegate::Reservation) -> Result<(), tidegate::EngineError> {
    /// use tidegate::{Cost, RuleCost};
    /// let settled = reservation.commit_each(&[RuleCost::new("tokens", Cost::total(312))]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn commit_each(
        self,
        costs: &[RuleCost<'_>],
    ) -> impl Future<Output = Result<Settled, EngineError>> + Send + use<> {
        self.settle(Costs::Each(costs))
    }

    fn settle(
        mut self,
        costs: Costs<'_>,
    ) -> impl Future<Output = Result<Settled, EngineError>> + Send + use<> {
        // Before the future is made: it may be dropped unpolled.
        self.guard.keep();
        let costs = OwnedCosts::from(costs);
        async move { self.guard.settle(costs).await.map(Settled::new) }
    }

    /// Settles the reservation and charges nothing; releases slots of a `concurrency` limit.
    pub async fn cancel(self) -> Result<Settled, EngineError> {
        self.guard.settle(OwnedCosts::All(Cost::ZERO)).await.map(Settled::new)
    }

    /// Extends the reservation to `ttl` from now. It had expired if the decision is marked
    /// `expired`.
    pub async fn renew(&self, ttl: Duration) -> Result<Decision, EngineError> {
        self.guard.renew(ttl.into()).await
    }

    /// Reserves more while the work goes on, for example while a response streams: `totals` are
    /// what each rule has reserved then, not what is added, so that a repeated call does nothing.
    /// Rules that are not named stay as they are.
    ///
    /// If a limit denies it, nothing changes: end the work, and commit what it has used. An expired
    /// reservation is refused ([`Refusal::HoldExpired`](crate::Refusal::HoldExpired)). What is
    /// added may be used only after this returns.
    ///
    /// ```
    /// # async fn stream(mut reserved: tidegate::Reservation) -> Result<(), tidegate::Limited> {
    /// use tidegate::{Cost, RuleCost};
    /// reserved.extend_to(&[RuleCost::new("tokens", Cost::total(2_000))]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn extend_to<'a>(&'a mut self, totals: &'a [RuleCost<'a>]) -> Extend<'a> {
        Extend { reservation: self, to: Extension { totals, min: None, ttl: None } }
    }

    /// Keeps the reservation beyond this value; settle it by id.
    pub fn keep(mut self) -> HoldId {
        self.guard.keep()
    }
}

/// The extension of a reservation; made when awaited.
#[must_use = "does nothing unless awaited"]
#[derive(Debug)]
pub struct Extend<'a> {
    reservation: &'a mut Reservation,
    to: Extension<'a>,
}

impl Extend<'_> {
    /// Reserves as much as fits, but at least `min`, in total: one quantity for all rules, which
    /// must name the same total. [`Decision::reserved`] has what was granted.
    pub fn at_least(mut self, min: u64) -> Self {
        self.to.min = Some(Cost::total(min));
        self
    }

    /// Lets the reservation last `ttl` from now, if the extension is granted.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.to.ttl = Some(ttl.into());
        self
    }
}

impl<'a> IntoFuture for Extend<'a> {
    type Output = Result<Decision, Limited>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let decision = self.reservation.guard.extend(self.to).await?;
            if decision.allowed() { Ok(decision) } else { Err(Limited::denied(decision)) }
        })
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("id", &self.id()).finish_non_exhaustive()
    }
}
