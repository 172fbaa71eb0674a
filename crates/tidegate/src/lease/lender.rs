//! What is asked of the store in the background: for a loan, and what is due when one ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use tidegate_core::Cost;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::account::{Chores, Wanted};
use super::book::Book;
use super::loan::{Ended, Loan};
use super::terms;
use crate::engine::Refusal;
use crate::fingerprint::fingerprint;
use crate::{Answer, Call, Charge, Clock, Decision, Engine, EngineError, HoldId, Op};

/// The store, and what is borrowed from it.
pub(super) struct Lender<E> {
    pub(super) store: E,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) book: Book,
    /// Nothing is borrowed any more.
    closed: AtomicBool,
    /// Somebody looks for what is to be given back.
    kept: AtomicBool,
    /// Questions for a loan that are on their way.
    asking: AtomicUsize,
    /// For those who ask from outside a runtime once somebody has asked from inside one.
    runtime: OnceLock<Handle>,
}

impl<E: Engine> Lender<E> {
    /// Loans that are settled at the same time when all have to be.
    const SETTLED_AT_ONCE: usize = 256;

    pub(super) fn new(store: E) -> Self {
        Self {
            clock: store.clock(),
            store,
            book: Book::new(),
            closed: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            asking: AtomicUsize::new(0),
            runtime: OnceLock::new(),
        }
    }

    /// Sees to the chores in tasks of their own.
    #[inline]
    pub(super) fn see_to(self: &Arc<Self>, chores: Chores) {
        if chores.ask.is_some() || !chores.ended.is_empty() {
            self.see_to_them(chores);
        }
    }

    #[cold]
    fn see_to_them(self: &Arc<Self>, chores: Chores) {
        let runtime = self.runtime();
        for ended in chores.ended {
            match &runtime {
                Some(runtime) => _ = runtime.spawn(settle(self.clone(), ended)),
                // Who answers at once is told; from anybody else, the end of its time takes it.
                None => drop(self.tell(&ended).now()),
            }
        }
        let Some(wanted) = chores.ask else { return };
        // Without a runtime nothing can be borrowed: it would take whoever asks the time of a question.
        let runtime = runtime.filter(|_| !self.closed.load(Ordering::Acquire));
        let Some(runtime) = runtime else { return self.lend_nothing(&wanted, None) };
        runtime.spawn(borrow(Asking::new(self.clone()), wanted));
        if !self.kept.swap(true, Ordering::SeqCst) {
            runtime.spawn(Kept(Arc::downgrade(self)).keep(self.clock.clone()));
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

    fn lend_nothing(&self, wanted: &Wanted, denial: Option<&Decision>) {
        let verdict = denial.map(Decision::verdict);
        let now = self.clock.elapsed();
        self.book.with(id_of(&wanted.subject.charge(wanted.size)), |account| {
            account.lend_nothing(verdict.as_ref(), now);
        });
    }

    fn tell(&self, ended: &Ended) -> Answer<'_, Decision> {
        let op = Op::Settle { id: ended.loan.id, cost: Some(Cost::total(ended.loan.spent)) };
        self.store.decide(Call { op, charges: &[], once: None })
    }

    /// Borrows nothing from now on, gives everything back, and waits until the store knows.
    pub(super) async fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.settle_all(self.book.close()).await;
        // What was asked for before is given back by whoever asked, when the answer comes.
        let latest = self.clock.elapsed().saturating_add(terms::TTL);
        while self.asking.load(Ordering::Acquire) > 0 && self.clock.elapsed() < latest {
            let soon = self.clock.elapsed().saturating_add(terms::TELL_AGAIN_AFTER);
            self.clock.sleep_until(soon).await;
        }
        self.settle_all(self.book.close()).await;
    }

    /// The same without waiting, for whoever goes without a word.
    pub(super) fn abandon(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.see_to(self.book.close());
    }

    /// Tells the store of what has ended, and waits until it has heard or has not answered once. Then it
    /// is told again without anybody waiting for that.
    pub(super) async fn tell_all(self: &Arc<Self>, chores: Chores) {
        // Each goes on if whoever waits for it does not.
        let told = |ended| {
            let (lender, runtime) = (self.clone(), self.runtime());
            async move {
                let Some(heard) = tell(&lender, &ended, Heard::No).await else { return };
                if let Some(runtime) = runtime {
                    runtime.spawn(tell_again(lender, ended, heard));
                }
            }
        };
        let Some(runtime) = self.runtime() else {
            for ended in chores.ended {
                told(ended).await;
            }
            return;
        };
        let tasks: Vec<JoinHandle<()>> =
            chores.ended.into_iter().map(|ended| runtime.spawn(told(ended))).collect();
        for task in tasks {
            _ = task.await;
        }
    }

    /// Settles what has ended, and waits until the store knows.
    async fn settle_all(self: &Arc<Self>, chores: Chores) {
        let Some(runtime) = self.runtime() else {
            for ended in chores.ended {
                settle(self.clone(), ended).await;
            }
            return;
        };
        let mut ended = chores.ended.into_iter().peekable();
        while ended.peek().is_some() {
            let some = ended.by_ref().take(Self::SETTLED_AT_ONCE);
            // Each goes on if whoever waits for it does not.
            let tasks: Vec<JoinHandle<()>> =
                some.map(|ended| runtime.spawn(settle(self.clone(), ended))).collect();
            for task in tasks {
                _ = task.await;
            }
        }
    }
}

/// Stands for a limit and a key.
pub(super) fn id_of(charge: &Charge<'_>) -> u64 {
    fingerprint(charge.limit.tag(), charge.key)
}

/// A question for a loan that is on its way.
struct Asking<E: Engine>(Arc<Lender<E>>);

impl<E: Engine> Asking<E> {
    fn new(lender: Arc<Lender<E>>) -> Self {
        lender.asking.fetch_add(1, Ordering::AcqRel);
        Self(lender)
    }
}

impl<E: Engine> Drop for Asking<E> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Asks for a loan. A store that does not answer may have made it; nobody spends it then.
async fn borrow<E: Engine>(asking: Asking<E>, wanted: Wanted) {
    let lender = &asking.0;
    let charge = wanted.subject.charge(wanted.size);
    // Its time begins before it is sent, whatever the store's clock says and however long it takes.
    let asked_at = lender.clock.elapsed();
    let answer = match HoldId::random() {
        Ok(id) => {
            let op = Op::Lend { id, ttl: terms::TTL };
            lender.store.decide(Call { op, charges: &[charge], once: None }).await
        }
        Err(error) => Err(error),
    };
    let decision = match answer {
        Ok(decision) => decision,
        Err(_) => return lender.lend_nothing(&wanted, None),
    };
    let Some(id) = decision.hold().filter(|_| decision.allowed()) else {
        return lender.lend_nothing(&wanted, Some(&decision));
    };
    let new = || Loan { id, granted: wanted.size.get(), spent: 0, asked_at };
    let (mut chores, now) = (Chores::default(), lender.clock.elapsed());
    let lent = lender.book.with(id_of(&charge), |account| {
        // Read under the account's lock: whoever closes all accounts comes before or after.
        if lender.closed.load(Ordering::Acquire) {
            chores.ended.push(Ended { subject: wanted.subject.clone(), loan: new() });
        } else {
            account.lend(&wanted.subject, new(), &decision.verdict(), now, &mut chores);
        }
    });
    if lent.is_none() {
        chores.ended.push(Ended { subject: wanted.subject.clone(), loan: new() });
    }
    for ended in chores.ended {
        settle(lender.clone(), ended).await;
    }
}

/// Tells the store what was spent, until it has heard or does not want to know any more. Told twice, it
/// charges once; not told, it charges all that was lent.
async fn settle<E: Engine>(lender: Arc<Lender<E>>, ended: Ended) {
    if let Some(heard) = tell(&lender, &ended, Heard::No).await {
        tell_again(lender, ended, heard).await;
    }
}

/// Has the store heard of the end of a loan?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    No,
    Perhaps,
}

/// Tells the store once what was spent. `None`: that is done.
async fn tell<E: Engine>(lender: &Lender<E>, ended: &Ended, heard: Heard) -> Option<Heard> {
    match lender.tell(ended).await {
        Err(EngineError::Refused(Refusal::UnknownHold)) if heard == Heard::No => {
            record(lender, ended).await;
            None
        }
        Ok(_) | Err(EngineError::Refused(_)) => None,
        Err(EngineError::Ambiguous(_)) => Some(Heard::Perhaps),
        Err(EngineError::Unavailable(_)) => Some(heard),
    }
}

/// Tells it again and again, until the loan would end by itself.
async fn tell_again<E: Engine>(lender: Arc<Lender<E>>, ended: Ended, mut heard: Heard) {
    let mut pause = terms::TELL_AGAIN_AFTER;
    loop {
        let next = lender.clock.elapsed().saturating_add(pause);
        if next >= ended.loan.ends() {
            return;
        }
        lender.clock.sleep_until(next).await;
        match tell(&lender, &ended, heard).await {
            Some(perhaps) => heard = perhaps,
            None => return,
        }
        pause = pause.saturating_add(pause);
    }
}

/// The store has lost the hold, as one does that was promoted before it had heard of it. What was
/// spent is not to be lost as well.
async fn record<E: Engine>(lender: &Lender<E>, ended: &Ended) {
    if ended.loan.spent > 0 {
        let charge = ended.subject.charge(Cost::total(ended.loan.spent));
        let call = Call { op: Op::Record, charges: &[charge], once: None };
        // Whoever does not hear that either has lost more than this.
        drop(lender.store.decide(call).await);
    }
}

/// Looks for what is to be given back as long as something is borrowed, and says so when it ends,
/// however it ends.
struct Kept<E: Engine>(Weak<Lender<E>>);

impl<E: Engine> Kept<E> {
    async fn keep(mut self, clock: Arc<dyn Clock>) {
        loop {
            clock.sleep_until(clock.elapsed().saturating_add(terms::TIDY_EVERY)).await;
            let Some(lender) = self.0.upgrade() else { return };
            let (mut chores, now) = (Chores::default(), clock.elapsed());
            let busy = lender.book.each(|account| account.tidy(now, &mut chores));
            lender.see_to(chores);
            if busy > 0 {
                continue;
            }
            // Whoever borrows between these two steps is seen by the second, or finds nobody here.
            lender.kept.store(false, Ordering::SeqCst);
            if lender.book.each(|_| {}) == 0 || lender.kept.swap(true, Ordering::SeqCst) {
                // What is said from here on is said by another.
                self.0 = Weak::new();
                return;
            }
        }
    }
}

impl<E: Engine> Drop for Kept<E> {
    fn drop(&mut self) {
        if let Some(lender) = self.0.upgrade() {
            // A runtime without a timer: nobody would give anything back in time.
            if std::thread::panicking() {
                lender.closed.store(true, Ordering::Release);
            }
            lender.kept.store(false, Ordering::SeqCst);
        }
    }
}
