//! Permits that are borrowed from the store and spent here.
//!
//! # Layout
//!
//! - `account`: one key under one limit, and when to borrow how much for it. `loan`: what is borrowed.
//!   `rate`: how much a key spends. `terms`: sizes and times.
//! - `book`: the accounts. `subject`: a limit and a key that stay.
//! - `lender`: what is asked of the store in the background.

mod account;
mod book;
mod lender;
mod loan;
mod rate;
mod subject;
mod terms;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Micros, Verdict};

use self::account::Chores;
use self::lender::{Lender, id_of};
use crate::{
    Answer, Call, Charge, Clock, Decision, Engine, EngineError, Health, HoldId, Inspection, Key,
    Op, RuleLimit, Shards, Source,
};

/// An engine around another that borrows permits and decides by itself: whoever asks about a key that is
/// asked about often is answered from here, without waiting.
///
/// A rule allows it with [`Rule::lease`](crate::Rule::lease); all others are asked of the store every
/// time, and so are limits that count holders, queue or look on, calls with an id, and entries of a
/// `sliding-log` that are to have a name.
///
/// A loan is a hold in the store ([`Op::Lend`]) of two seconds, charged at its end. It is spent for at most
/// one and a half of them, counted from before it was asked for; then, or when it is spent, or when nobody
/// has asked for a quarter of a second, the store is told what was spent, and charges that. So
///
/// - what passes obeys the limit as if the store had been asked every time, since a loan lowers what is left
///   from before it is spent until it is charged. Charging late only makes others wait longer;
/// - what is lent and not spent nobody else can have: at most the loans of all processes. Near the limit
///   nothing is lent: a loan is at most a quarter of what remains, and at least 8 permits;
/// - of a process that dies, all that was lent to it is charged, spent or not.
///
/// A call over several limits is all or nothing, as ever: it is paid from what is borrowed if all of their rules
/// allow that and there is enough for every one, and otherwise the store is asked about all of them.
///
/// What differs from a store that is asked: `remaining` and `reset_after` of a decision made here
/// ([`Source::Lease`]) are estimates, of what was left when the store last answered; peeks and inspections are
/// asked of the store, which counts what is lent as held. A record, a refund and a reset first settle
/// what is borrowed here for the same key, and have to be awaited then. Loans need a Tokio runtime with
/// its timer; without one, the store is asked every time.
///
/// A process that stands still with its clock, as on a machine that is suspended, may spend what it had
/// borrowed when it wakes, though the store has charged it long ago.
///
/// It goes around the store and a [`DenyCache`](crate::DenyCache), and a [`Fallback`](crate::Fallback) goes around it.
/// Before the process ends, [`close`](Self::close) gives back what is left; dropping it tries to.
pub struct Lease<E: Engine> {
    lender: Arc<Lender<E>>,
}

impl<E: Engine> Lease<E> {
    /// How long a loan lasts: if its process dies, all of it is charged by then.
    pub const TTL: Micros = terms::TTL;

    /// An engine that borrows from `store`. It keeps account of up to 8,192 keys, in about 1 MB.
    pub fn new(store: E) -> Self {
        Self { lender: Arc::new(Lender::new(store)) }
    }

    /// Gives back what is borrowed, waits until the store knows, and borrows nothing after that. What is
    /// asked then is asked of the store.
    pub async fn close(&self) {
        self.lender.close().await;
    }

    /// Permits that are borrowed and not spent, by rule; nothing about rules that have no loan.
    pub fn outstanding(&self) -> BTreeMap<String, u64> {
        self.lender.book.outstanding()
    }

    /// The engine that it borrows from.
    pub fn store(&self) -> &E {
        &self.lender.store
    }

    /// Takes the cost from what is borrowed, if that is enough.
    fn spend(&self, charge: &Charge<'_>) -> Option<(HoldId, Verdict)> {
        let now = self.lender.clock.elapsed();
        let mut chores = Chores::default();
        let spend = |account: &mut account::Account| account.spend(charge, now, &mut chores);
        let spent = self.lender.book.with(id_of(charge), spend).flatten();
        self.lender.see_to(chores);
        spent
    }

    /// Takes the cost of every charge from what is borrowed, or of none.
    fn spend_each(&self, call: &Call<'_>) -> Option<Spent> {
        if call.charges.len() > 1 && (call.validate().is_err() || !are_distinct(call.charges)) {
            return None;
        }
        let mut spent = Spent::new();
        for charge in call.charges {
            let Some(one) = self.spend(charge) else {
                self.give_back(call, &spent);
                return None;
            };
            spent.push(one);
        }
        Some(spent)
    }

    fn give_back(&self, call: &Call<'_>, spent: &Spent) {
        for (charge, (id, _)) in call.charges.iter().zip(spent) {
            let back = |account: &mut account::Account| account.give_back(*id, charge.cost);
            self.lender.book.with(id_of(charge), back);
        }
    }

    /// Learns from what the store has said about charges that could be paid from a loan.
    fn learn(&self, call: &Call<'_>, answer: &Result<Decision, EngineError>) {
        let Ok(decision) = answer else { return };
        let charged = decision.allowed();
        let mut verdicts = decision.verdicts.iter();
        for charge in call.charges.iter().filter(|charge| !charge.limit.is_shadow()) {
            let verdict = verdicts.next().filter(|_| is_lent(charge));
            if let Some(verdict) = verdict {
                self.learn_one(charge, verdict, charged);
            }
        }
    }

    fn learn_one(&self, charge: &Charge<'_>, verdict: &Verdict, charged: bool) {
        let now = self.lender.clock.elapsed();
        let mut chores = Chores::default();
        self.lender.book.with_new(id_of(charge), now, |account| {
            account.learn(charge, verdict, charged, now, &mut chores);
        });
        self.lender.see_to(chores);
    }

    /// Decides a call of which every charge may be paid from a loan: all are, or the store is asked about all
    /// of them. Paid in part, it would have to be taken back when the store denies the rest, and by then the
    /// store may have been told of it.
    fn take<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        match self.spend_each(&call) {
            Some(spent) => {
                let verdicts = spent.into_iter().map(|(_, verdict)| verdict).collect();
                Answer::Ready(Ok(Decision::new(Source::Lease, verdicts)))
            }
            None => self.ask(call),
        }
    }

    /// Asks the store about all of it.
    fn ask<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        match self.lender.store.decide(call) {
            Answer::Ready(answer) => {
                self.learn(&call, &answer);
                Answer::Ready(answer)
            }
            Answer::Later(answer) => Answer::Later(Box::pin(async move {
                let answer = answer.await;
                self.learn(&call, &answer);
                answer
            })),
        }
    }

    /// Is anything borrowed for one of them?
    fn owes(&self, charges: &[Charge<'_>]) -> bool {
        let busy = |charge| self.lender.book.with(id_of(charge), |account| account.is_busy());
        charges
            .iter()
            .filter(|charge| charge.limit.lease_size().is_some())
            .any(|c| busy(c) == Some(true))
    }

    /// Settles what is borrowed for the charges of a call before the store is asked. A store that does not
    /// answer to the one is still asked the other: whoever waits, waits for a few answers and not for more tries.
    async fn settle_first(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        let mut chores = Chores::default();
        for charge in call.charges {
            self.lender.book.with(id_of(charge), |account| account.close(&mut chores));
        }
        self.lender.tell_all(chores).await;
        self.lender.store.decide(call).await
    }
}

/// What was paid for each charge, and from which loan.
type Spent = SmallVec<[(HoldId, Verdict); 2]>;

/// May this charge be paid from a loan? What has a name to be kept is for the store to keep.
fn is_lent(charge: &Charge<'_>) -> bool {
    charge.limit.lease_size().is_some()
        && !charge.cost.is_zero()
        && (charge.who.is_none() || charge.limit.limit().algorithm() != Algorithm::SlidingLog)
}

/// No two of them are added up.
fn are_distinct(charges: &[Charge<'_>]) -> bool {
    let ids: SmallVec<[u64; 4]> = charges.iter().map(id_of).collect();
    ids.iter().enumerate().all(|(i, id)| !ids[..i].contains(id))
}

impl<E: Engine> Engine for Lease<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        match call.op {
            Op::Check | Op::Enter { .. }
                if call.once.is_none()
                    && !call.charges.is_empty()
                    && call.charges.iter().all(is_lent) =>
            {
                self.take(call)
            }
            Op::Record | Op::Refund | Op::Reset if self.owes(call.charges) => {
                Answer::Later(Box::pin(self.settle_first(call)))
            }
            _ => self.lender.store.decide(call),
        }
    }

    #[inline]
    fn check_one(&self, charge: &Charge<'_>) -> Option<(Source, Verdict)> {
        if !is_lent(charge) {
            return self.lender.store.check_one(charge);
        }
        if let Some((_, verdict)) = self.spend(charge) {
            return Some((Source::Lease, verdict));
        }
        let (source, verdict) = self.lender.store.check_one(charge)?;
        self.learn_one(charge, &verdict, verdict.allowed);
        Some((source, verdict))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.lender.store.inspect(limit, key)
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.lender.store.shards(call)
    }

    fn health(&self) -> Health {
        let mut health = self.lender.store.health();
        health.memory_bytes += self.lender.book.bytes() as u64;
        health.lent = self.outstanding();
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.lender.clock.clone()
    }
}

impl<E: Engine> Drop for Lease<E> {
    fn drop(&mut self) {
        self.lender.abandon();
    }
}

impl<E: Engine> fmt::Debug for Lease<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
}
