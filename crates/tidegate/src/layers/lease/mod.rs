//! Layer that spends permits borrowed from the store. Imports: nothing.
//!
//! - `account`: loans and demand of one key; when to borrow. `loan`: permits borrowed for one key.
//!   `demand`: permits a key spends per 250 ms. `constants`: durations and sizes.
//! - `account_table`: fixed-size table of accounts. `waste`: what loans may cost the process in
//!   vain. `background`: background calls: borrow, settle, sweep.

mod account;
mod account_table;
mod background;
mod constants;
mod demand;
mod loan;
mod waste;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Micros, Verdict};

use self::account::StoreWork;
use self::background::{LoanManager, id_of};
use crate::{
    Call, Charge, Clock, Decision, Engine, EngineError, EngineFuture, Health, HoldId, Inspection,
    Key, Op, RuleLimit, Shards, Source,
};

/// An engine that borrows permits from another and decides by itself: checks of busy keys are
/// decided in this process, without waiting.
///
/// A rule enables it with [`Rule::lease`](crate::Rule::lease). The store decides checks of all
/// other rules, of `concurrency` limits, queues and shadow limits, calls with an id, and charges of
/// a `sliding-log` that store a caller.
///
/// A loan is a hold in the store ([`Op::loan`]) of two seconds that is charged when it expires.
/// It is spent for at most one and a half of them, counted from before it was requested. It is
/// settled after that time, when it is spent, or when the key had no checks for 250 ms; the store
/// then charges the permits spent. So
///
/// - admissions obey the limit as if the store had decided every check: a loan reduces the
///   remaining permits from before it is spent until it is charged. Charging late only makes other
///   callers wait longer;
/// - permits borrowed and not spent are unavailable to other processes: at most the loans of all
///   processes. Near the limit nothing is borrowed: a loan is at most a quarter of what remains,
///   and at least 32 times the cost;
/// - if a process dies, all of its loans are charged, spent or not.
///
/// A loan costs the store about as much as 32 checks in batches. So only a key with 32 checks or
/// more in 250 ms gets one, and twice as many are needed after each loan that saved fewer. All
/// loans of a process that are open or saved too little cost at most 5 % of its checks; the first
/// 64 are free.
///
/// A call over several limits is all or none: it is paid from loans if all of its rules allow that
/// and every loan is large enough; otherwise the store decides all of it.
///
/// What differs from a store that decides every check: `remaining` and `reset_after` of a decision
/// made here ([`Source::Lease`]) are estimates, based on the store's last verdict. Peeks and
/// inspections go to the store, which counts loans as held. A record, a refund and a reset first
/// settle the loans of the same key in this process, and have to be awaited then. Loans need a
/// Tokio runtime with its timer; without one, the store decides every check.
///
/// A process whose clock stops, as on a suspended machine, may spend its loans after it resumes,
/// though the store has charged them already.
///
/// The lease goes around the store and a [`DenyCache`](crate::DenyCache); a
/// [`Fallback`](crate::Fallback) goes around the lease. Before the process ends,
/// [`close`](Self::close) gives back what is left; dropping it tries to.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::{Lease, LeaseSize, Limiter, Memory, Policy, PolicyRule, Rule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redis = Memory::default();
/// let api = Rule::new("api", ["10000/s".parse()?])?.lease(LeaseSize::Auto);
/// let engine = Arc::new(Lease::new(redis));
/// let policy = Policy::new([PolicyRule::from(api)])?;
/// let limiter = Limiter::with_engine(engine.clone(), policy);
/// assert!(limiter.check("tenant-7").await?.allowed());
/// engine.close().await;                      // before the process ends
/// # Ok(())
/// # }
/// ```
pub struct Lease<E: Engine> {
    loans: Arc<LoanManager<E>>,
}

impl<E: Engine> Lease<E> {
    /// How long a loan lasts: if its process dies, all of it is charged by then.
    pub const TTL: Micros = constants::TTL;

    /// An engine that borrows from `store`. It tracks up to 8,192 keys in about 1 MB.
    pub fn new(store: E) -> Self {
        Self { loans: Arc::new(LoanManager::new(store)) }
    }

    /// Gives back all loans, waits until the store has confirmed, and stops borrowing. Later checks
    /// go to the store.
    pub async fn close(&self) {
        self.loans.close().await;
    }

    /// Permits borrowed and not spent, by rule; rules without a loan are omitted.
    pub fn outstanding(&self) -> BTreeMap<String, u64> {
        self.loans.accounts.outstanding()
    }

    /// The engine behind the lease.
    pub fn store(&self) -> &E {
        &self.loans.store
    }

    /// Spends the cost from a loan, if enough is left.
    fn spend(&self, charge: &Charge<'_>) -> Option<(HoldId, Verdict)> {
        let now = self.loans.clock.elapsed();
        let mut work = StoreWork::default();
        let spend = |account: &mut account::Account| account.spend(charge, now, &mut work);
        let spent = self.loans.accounts.with(id_of(charge), spend).flatten();
        self.loans.spawn(work);
        spent
    }

    /// Spends the cost of every charge from loans, or of none.
    fn spend_each(&self, call: &Call<'_>) -> Option<SpentLoans> {
        if call.charges.len() > 1 && (call.validate().is_err() || !are_distinct(call.charges)) {
            return None;
        }
        let mut spent = SpentLoans::new();
        for charge in call.charges {
            let Some(one) = self.spend(charge) else {
                self.unspend(call, &spent);
                return None;
            };
            spent.push(one);
        }
        Some(spent)
    }

    fn unspend(&self, call: &Call<'_>, spent: &SpentLoans) {
        for (charge, (id, _)) in call.charges.iter().zip(spent) {
            let unspend = |account: &mut account::Account| account.unspend(*id, charge.cost);
            self.loans.accounts.with(id_of(charge), unspend);
        }
    }

    /// Updates the accounts of charges that could be paid from a loan, by the store's verdicts.
    fn update(&self, call: &Call<'_>, result: &Result<Decision, EngineError>) {
        let Ok(decision) = result else { return };
        let charged = decision.allowed();
        for (charge, verdict) in decision.pair(call.charges).filter(|(one, _)| can_lease(one)) {
            let now = self.loans.clock.elapsed();
            let mut work = StoreWork::default();
            self.loans.waste.add_sent();
            self.loans.accounts.with_new(id_of(charge), now, |account| {
                account.update(charge, verdict, charged, now, &mut work);
            });
            self.loans.spawn(work);
        }
    }

    /// Decides a call whose charges may all be paid from loans: all are, or the store decides all
    /// of them. A partial payment would have to be undone if the store denies the rest, and the
    /// store may have been sent it by then.
    fn decide_or_send<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        match self.spend_each(&call) {
            Some(spent) => {
                let verdicts = spent.into_iter().map(|(_, verdict)| verdict).collect();
                EngineFuture::Ready(Ok(Decision::new(Source::Lease, verdicts)))
            }
            None => self.send(call),
        }
    }

    /// Sends the whole call to the store.
    fn send<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        match self.loans.store.decide(call) {
            EngineFuture::Ready(result) => {
                self.update(&call, &result);
                EngineFuture::Ready(result)
            }
            EngineFuture::Pending(result) => EngineFuture::Pending(Box::pin(async move {
                let result = result.await;
                self.update(&call, &result);
                result
            })),
        }
    }

    /// Whether a loan exists for one of the charges.
    fn has_loan(&self, charges: &[Charge<'_>]) -> bool {
        let busy = |charge| self.loans.accounts.with(id_of(charge), |account| account.is_busy());
        charges
            .iter()
            .filter(|charge| charge.limit.lease_size().is_some())
            .any(|c| busy(c) == Some(true))
    }

    /// Settles the loans of the charges before the call is sent. If a settlement gets no reply, the
    /// call is still sent: the caller waits for one attempt each, not for retries.
    async fn settle_first(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        let mut work = StoreWork::default();
        for charge in call.charges {
            self.loans.accounts.with(id_of(charge), |account| account.close(&mut work));
        }
        self.loans.settle_all_once(work).await;
        self.loans.store.decide(call).await
    }
}

/// The loan and the verdict of each charge.
type SpentLoans = SmallVec<[(HoldId, Verdict); 2]>;

/// Whether this charge may be paid from a loan. Only the store can store a caller.
fn can_lease(charge: &Charge<'_>) -> bool {
    charge.limit.lease_size().is_some()
        && !charge.cost.is_zero()
        && (charge.caller.is_none() || charge.limit.limit().algorithm() != Algorithm::SlidingLog)
}

/// Whether no two charges are on the same state.
fn are_distinct(charges: &[Charge<'_>]) -> bool {
    let ids: SmallVec<[u64; 4]> = charges.iter().map(id_of).collect();
    ids.iter().enumerate().all(|(i, id)| !ids[..i].contains(id))
}

impl<E: Engine> Engine for Lease<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        match call.op {
            op if (op == Op::Check || op.is_entry())
                && call.idempotency_key.is_none()
                && !call.charges.is_empty()
                && call.charges.iter().all(can_lease) =>
            {
                self.decide_or_send(call)
            }
            Op::Record | Op::Refund | Op::Reset if self.has_loan(call.charges) => {
                EngineFuture::Pending(Box::pin(self.settle_first(call)))
            }
            _ => self.loans.store.decide(call),
        }
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.loans.store.inspect(limit, key)
    }

    fn locate_hold<'a>(&'a self, id: HoldId, key: Key<'a>) -> EngineFuture<'a, HoldId> {
        self.loans.store.locate_hold(id, key)
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.loans.store.shards(call)
    }

    fn health(&self) -> Health {
        let mut health = self.loans.store.health();
        health.memory_bytes += self.loans.accounts.bytes() as u64;
        health.lent = self.outstanding();
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.loans.clock.clone()
    }
}

impl<E: Engine> Drop for Lease<E> {
    fn drop(&mut self) {
        self.loans.abandon();
    }
}

impl<E: Engine> fmt::Debug for Lease<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
}
