//! Background calls to the store: borrow, settle, sweep.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use tidegate_core::Cost;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::account::{LoanRequest, StoreWork};
use super::account_table::Accounts;
use super::constants;
use super::loan::{EndedLoan, Loan, SavedChecks};
use super::waste::WasteAccount;
use crate::engine::Refusal;
use crate::fingerprint::fingerprint;
use crate::{Call, Charge, Clock, Costs, Decision, Engine, EngineError, EngineFuture, HoldId, Op};

/// The store and the loans from it.
pub(crate) struct LoanManager<E> {
    pub(crate) store: E,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) accounts: Accounts,
    pub(crate) waste: WasteAccount,
    /// Set when no more is borrowed.
    closed: AtomicBool,
    /// Whether the sweep task runs.
    sweeping: AtomicBool,
    /// Loan requests in flight.
    requests_in_flight: AtomicUsize,
    /// The first runtime seen, for later calls from outside a runtime.
    runtime: OnceLock<Handle>,
}

impl<E: Engine> LoanManager<E> {
    /// Loans settled concurrently when all have to be.
    const MAX_CONCURRENT_SETTLEMENTS: usize = 256;

    pub(crate) fn new(store: E) -> Self {
        Self {
            clock: store.clock(),
            store,
            accounts: Accounts::new(),
            waste: WasteAccount::default(),
            closed: AtomicBool::new(false),
            sweeping: AtomicBool::new(false),
            requests_in_flight: AtomicUsize::new(0),
            runtime: OnceLock::new(),
        }
    }

    /// Runs the calls in tasks.
    #[inline]
    pub(crate) fn spawn(self: &Arc<Self>, work: StoreWork) {
        if work.request.is_some() || !work.ended.is_empty() {
            self.spawn_all(work);
        }
    }

    #[cold]
    fn spawn_all(self: &Arc<Self>, work: StoreWork) {
        let runtime = self.runtime();
        for ended in work.ended {
            self.waste.end_loan(ended.loan.saved.count);
            match &runtime {
                Some(runtime) => _ = runtime.spawn(settle(self.clone(), ended)),
                // An engine that decides without waiting is sent the settlement; in any other, the
                // loan expires.
                None => drop(self.settle_once(&ended).now()),
            }
        }
        let Some(request) = work.request else { return };
        // Without a runtime nothing is borrowed: the caller would have to wait for the request.
        let runtime = runtime.filter(|_| !self.closed.load(Ordering::Acquire));
        let Some(runtime) = runtime else { return self.loan_failed(&request, None) };
        if !self.waste.take_loan() {
            let now = self.clock.elapsed();
            let id = id_of(&request.charge.charge(request.size));
            self.accounts.with(id, |account| account.loan_postponed(now));
            return;
        }
        runtime.spawn(borrow(PendingLoan::new(self.clone()), request));
        if !self.sweeping.swap(true, Ordering::SeqCst) {
            runtime.spawn(SweepTask(Arc::downgrade(self)).run(self.clock.clone()));
        }
    }

    fn runtime(&self) -> Option<Handle> {
        match Handle::try_current() {
            Ok(runtime) => {
                self.runtime.get_or_init(|| runtime.clone());
                Some(runtime)
            }
            Err(_) => self.runtime.get().cloned(),
        }
    }

    fn loan_failed(&self, request: &LoanRequest, denial: Option<&Decision>) {
        let verdict = denial.map(Decision::verdict);
        let now = self.clock.elapsed();
        self.accounts.with(id_of(&request.charge.charge(request.size)), |account| {
            account.loan_failed(verdict.as_ref(), now);
        });
    }

    fn settle_once(&self, ended: &EndedLoan) -> EngineFuture<'_, Decision> {
        let op = Op::Settle { id: ended.loan.id, costs: Costs::All(Cost::total(ended.loan.spent)) };
        self.store.decide(Call { op, charges: &[], idempotency_key: None })
    }

    /// Stops borrowing, gives everything back, and waits until the store has confirmed.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.settle_all(self.accounts.close()).await;
        // Requests in flight give their loan back when the reply arrives.
        let latest = self.clock.elapsed().saturating_add(constants::TTL);
        while self.requests_in_flight.load(Ordering::Acquire) > 0 && self.clock.elapsed() < latest {
            let soon = self.clock.elapsed().saturating_add(constants::SETTLE_RETRY_PAUSE);
            self.clock.sleep_until(soon).await;
        }
        self.settle_all(self.accounts.close()).await;
    }

    /// The same without waiting, when the layer is dropped.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.spawn(self.accounts.close());
    }

    /// Settles ended loans, and waits for one attempt each. Failed attempts are retried in the
    /// background.
    pub(crate) async fn settle_all_once(self: &Arc<Self>, work: StoreWork) {
        for ended in &work.ended {
            self.waste.end_loan(ended.loan.saved.count);
        }
        // Each task continues if the waiting caller is dropped.
        let settle_one = |ended| {
            let (manager, runtime) = (self.clone(), self.runtime());
            async move {
                let Some(progress) = try_settle(&manager, &ended, SettleProgress::NotSettled).await
                else {
                    return;
                };
                if let Some(runtime) = runtime {
                    runtime.spawn(retry_settle(manager, ended, progress));
                }
            }
        };
        let Some(runtime) = self.runtime() else {
            for ended in work.ended {
                settle_one(ended).await;
            }
            return;
        };
        let tasks: Vec<JoinHandle<()>> =
            work.ended.into_iter().map(|ended| runtime.spawn(settle_one(ended))).collect();
        for task in tasks {
            _ = task.await;
        }
    }

    /// Settles ended loans, and waits until the store has confirmed.
    async fn settle_all(self: &Arc<Self>, work: StoreWork) {
        let Some(runtime) = self.runtime() else {
            for ended in work.ended {
                settle(self.clone(), ended).await;
            }
            return;
        };
        let mut ended = work.ended.into_iter().peekable();
        while ended.peek().is_some() {
            let batch = ended.by_ref().take(Self::MAX_CONCURRENT_SETTLEMENTS);
            // Each task continues if the waiting caller is dropped.
            let tasks: Vec<JoinHandle<()>> =
                batch.map(|ended| runtime.spawn(settle(self.clone(), ended))).collect();
            for task in tasks {
                _ = task.await;
            }
        }
    }
}

/// Fingerprint of a limit and a key.
pub(crate) fn id_of(charge: &Charge<'_>) -> u64 {
    fingerprint(charge.limit.tag(), charge.key)
}

/// A loan request in flight.
struct PendingLoan<E: Engine>(Arc<LoanManager<E>>);

impl<E: Engine> PendingLoan<E> {
    fn new(manager: Arc<LoanManager<E>>) -> Self {
        manager.requests_in_flight.fetch_add(1, Ordering::AcqRel);
        Self(manager)
    }
}

impl<E: Engine> Drop for PendingLoan<E> {
    fn drop(&mut self) {
        self.0.requests_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Requests a loan. A store that does not reply may have made it; that loan is not spent.
async fn borrow<E: Engine>(pending: PendingLoan<E>, request: LoanRequest) {
    let manager = &pending.0;
    let charge = request.charge.charge(request.size);
    // The loan's time starts before the request is sent, whatever the store's clock and the
    // latency.
    let requested_at = manager.clock.elapsed();
    let result = match HoldId::random() {
        Ok(id) => {
            let op = Op::loan(id, constants::TTL);
            manager.store.decide(Call { op, charges: &[charge], idempotency_key: None }).await
        }
        Err(error) => Err(error),
    };
    let decision = match result {
        Ok(decision) => decision,
        Err(_) => return manager.loan_failed(&request, None),
    };
    let Some(id) = decision.hold().filter(|_| decision.allowed()) else {
        manager.waste.loan_denied();
        return manager.loan_failed(&request, Some(&decision));
    };
    let (mut work, now) = (StoreWork::default(), manager.clock.elapsed());
    let new = || {
        let saved = SavedChecks::new(now.saturating_sub(requested_at));
        Loan { id, granted: request.size.get(), spent: 0, requested_at, saved }
    };
    let lent = manager.accounts.with(id_of(&charge), |account| {
        // Read under the account's lock, so that closing all accounts comes before or after this.
        if manager.closed.load(Ordering::Acquire) {
            work.ended.push(EndedLoan { charge: request.charge.clone(), loan: new() });
        } else {
            account.add_loan(&request.charge, new(), &decision.verdict(), now, &mut work);
        }
    });
    if lent.is_none() {
        work.ended.push(EndedLoan { charge: request.charge.clone(), loan: new() });
    }
    for ended in work.ended {
        settle(manager.clone(), ended).await;
    }
}

/// Settles a loan, with retries until the store confirms or refuses. Settled twice, it is charged
/// once; not settled, all of it is charged.
async fn settle<E: Engine>(manager: Arc<LoanManager<E>>, ended: EndedLoan) {
    if let Some(progress) = try_settle(&manager, &ended, SettleProgress::NotSettled).await {
        retry_settle(manager, ended, progress).await;
    }
}

/// Whether an earlier attempt may have settled the loan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SettleProgress {
    NotSettled,
    Unknown,
}

/// Settles a loan in one attempt. `None`: done.
async fn try_settle<E: Engine>(
    manager: &LoanManager<E>,
    ended: &EndedLoan,
    progress: SettleProgress,
) -> Option<SettleProgress> {
    match manager.settle_once(ended).await {
        Err(EngineError::Refused(Refusal::UnknownHold))
            if progress == SettleProgress::NotSettled =>
        {
            record(manager, ended).await;
            None
        }
        Ok(_) | Err(EngineError::Refused(_)) => None,
        Err(EngineError::Ambiguous(_)) => Some(SettleProgress::Unknown),
        Err(EngineError::Unavailable(_)) => Some(progress),
    }
}

/// Retries the settlement until the loan expires by itself.
async fn retry_settle<E: Engine>(
    manager: Arc<LoanManager<E>>,
    ended: EndedLoan,
    mut progress: SettleProgress,
) {
    let mut pause = constants::SETTLE_RETRY_PAUSE;
    loop {
        let next = manager.clock.elapsed().saturating_add(pause);
        if next >= ended.loan.expires() {
            return;
        }
        manager.clock.sleep_until(next).await;
        match try_settle(&manager, &ended, progress).await {
            Some(latest) => progress = latest,
            None => return,
        }
        pause = pause.saturating_add(pause);
    }
}

/// Records the permits spent from a loan that the store has lost, for example when a replica was
/// promoted before the hold was replicated.
async fn record<E: Engine>(manager: &LoanManager<E>, ended: &EndedLoan) {
    if ended.loan.spent > 0 {
        let charge = ended.charge.charge(Cost::total(ended.loan.spent));
        let call = Call { op: Op::Record, charges: &[charge], idempotency_key: None };
        // A store that does not reply to this either has lost more than this.
        drop(manager.store.decide(call).await);
    }
}

/// Sweeps the accounts while loans exist, and clears `sweeping` when it ends, for whatever reason.
struct SweepTask<E: Engine>(Weak<LoanManager<E>>);

impl<E: Engine> SweepTask<E> {
    async fn run(mut self, clock: Arc<dyn Clock>) {
        loop {
            clock.sleep_until(clock.elapsed().saturating_add(constants::SWEEP_INTERVAL)).await;
            let Some(manager) = self.0.upgrade() else { return };
            let (mut work, now) = (StoreWork::default(), clock.elapsed());
            let busy = manager.accounts.each(|account| account.sweep(now, &mut work));
            manager.spawn(work);
            if busy > 0 {
                continue;
            }
            // A loan made between these two steps is seen by the second, or starts a new task.
            manager.sweeping.store(false, Ordering::SeqCst);
            if manager.accounts.each(|_| {}) == 0 || manager.sweeping.swap(true, Ordering::SeqCst) {
                // Another task sweeps from here on; its flag must stay set.
                self.0 = Weak::new();
                return;
            }
        }
    }
}

impl<E: Engine> Drop for SweepTask<E> {
    fn drop(&mut self) {
        if let Some(manager) = self.0.upgrade() {
            // A runtime without a timer: loans would not be given back in time.
            if std::thread::panicking() {
                manager.closed.store(true, Ordering::Release);
            }
            manager.sweeping.store(false, Ordering::SeqCst);
        }
    }
}
