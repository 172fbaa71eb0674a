//! One key under one limit: what is known about it, and whether to borrow for it.
//!
//! Nothing in here waits, reads the time or asks the store.

use std::sync::Arc;

use tidegate_core::{Cost, Micros, Verdict, Wait};

use super::loan::{AllEnded, Ended, Loan, Loans};
use super::rate::Rate;
use super::subject::Subject;
use super::terms;
use crate::{Charge, HoldId, LeaseSize, RuleLimit};

/// One key under one limit. Most have nothing borrowed, and only their rate is known.
pub(super) struct Account {
    pub(super) fingerprint: u64,
    /// When it was last asked about.
    pub(super) seen: Micros,
    rate: Rate,
    /// What the store said last about permits that are nobody's.
    said: Said,
    /// Until then the store is asked every time.
    strict_until: Micros,
    /// Until then a question for more is on its way; zero if there is none.
    asking_until: Micros,
    loans: Option<Box<Loans>>,
}

#[derive(Clone, Copy)]
struct Said {
    at: Micros,
    remaining: u64,
    reset_after: Micros,
}

/// What has to be asked of the store, beside what the caller wanted.
#[derive(Default)]
pub(super) struct Chores {
    pub(super) ended: AllEnded,
    pub(super) ask: Option<Wanted>,
}

/// So much is to be borrowed.
pub(super) struct Wanted {
    pub(super) subject: Arc<Subject>,
    pub(super) size: Cost,
}

impl Account {
    pub(super) fn new(fingerprint: u64, now: Micros) -> Self {
        Self {
            fingerprint,
            seen: now,
            rate: Rate::new(now),
            said: Said { at: now, remaining: 0, reset_after: Micros::ZERO },
            strict_until: Micros::ZERO,
            asking_until: Micros::ZERO,
            loans: None,
        }
    }

    /// Something is borrowed, or about to be.
    pub(super) fn is_busy(&self) -> bool {
        self.loans.is_some()
    }

    /// Takes the cost from what is borrowed, if there is enough. The name of the loan that it was taken
    /// from comes with the verdict.
    pub(super) fn spend(
        &mut self,
        charge: &Charge<'_>,
        now: Micros,
        chores: &mut Chores,
    ) -> Option<(HoldId, Verdict)> {
        if !self.is_under(charge, chores) {
            return None;
        }
        let loans = self.loans.as_mut()?;
        let id = loans.spend(charge.cost.get(), now, &mut chores.ended)?;
        let is_time = loans.needs_one_more(now);
        self.seen = now;
        self.rate.count(charge.cost.get(), now);
        if is_time {
            self.ask_for_more(charge, now, chores);
        }
        Some((id, self.verdict(charge.limit, now)))
    }

    /// Takes back what was spent from `id`, unless that loan has ended: then it is told to the store
    /// already.
    pub(super) fn give_back(&mut self, id: HoldId, cost: Cost) {
        let loans = self.loans.as_mut();
        if loans.is_some_and(|loans| loans.give_back(id, cost.get())) {
            self.rate.uncount(cost.get());
        }
    }

    /// Learns from what the store has answered to a check.
    pub(super) fn learn(
        &mut self,
        charge: &Charge<'_>,
        verdict: &Verdict,
        charged: bool,
        now: Micros,
        chores: &mut Chores,
    ) {
        self.seen = now;
        if !self.is_under(charge, chores) {
            return;
        }
        self.hear(verdict, now);
        if charged {
            self.rate.count(charge.cost.get(), now);
            self.ask_for_more(charge, now, chores);
        } else if !verdict.allowed {
            self.strict_until = now.saturating_add(terms::STRICT_AFTER_DENIAL);
            // What is denied might fit if we gave back what we have. So the next one is told the truth.
            let left = self.left();
            if left > 0 && left.saturating_add(verdict.remaining) >= charge.cost.get() {
                self.end(chores);
            }
        }
    }

    fn hear(&mut self, verdict: &Verdict, now: Micros) {
        let Verdict { remaining, reset_after, .. } = *verdict;
        self.said = Said { at: now, remaining, reset_after };
    }

    /// The store has lent something, for `verdict` after that.
    pub(super) fn lend(
        &mut self,
        subject: &Arc<Subject>,
        loan: Loan,
        verdict: &Verdict,
        now: Micros,
        chores: &mut Chores,
    ) {
        let loans = self.loans.as_mut().filter(|loans| Arc::ptr_eq(loans.subject(), subject));
        let refused = match loans {
            Some(loans) => {
                self.asking_until = Micros::ZERO;
                loans.put(loan, now).err()
            }
            // It was asked for by another name.
            None => Some(loan),
        };
        match refused {
            Some(loan) => chores.ended.push(Ended { subject: subject.clone(), loan }),
            None => self.hear(verdict, now),
        }
    }

    /// The store has lent nothing, because a limit denies it or because it does not answer.
    pub(super) fn lend_nothing(&mut self, verdict: Option<&Verdict>, now: Micros) {
        self.asking_until = Micros::ZERO;
        let pause = match verdict {
            Some(verdict) => {
                self.hear(verdict, now);
                terms::STRICT_AFTER_DENIAL
            }
            None => terms::STRICT_AFTER_SILENCE,
        };
        self.strict_until = now.saturating_add(pause);
        self.loans.take_if(|loans| loans.is_empty());
    }

    /// Gives back what has lasted its time, and all of it if nobody spends it.
    pub(super) fn tidy(&mut self, now: Micros, chores: &mut Chores) {
        let Some(loans) = &mut self.loans else { return };
        loans.tidy(now, &mut chores.ended);
        if loans.is_empty() && now >= self.asking_until {
            self.loans = None;
        }
    }

    /// Gives everything back.
    pub(super) fn end(&mut self, chores: &mut Chores) {
        if let Some(loans) = &mut self.loans {
            loans.end(&mut chores.ended);
        }
    }

    /// The same, and forgets whom it was for: an answer on its way finds nobody.
    pub(super) fn close(&mut self, chores: &mut Chores) {
        self.end(chores);
        self.loans = None;
        self.asking_until = Micros::ZERO;
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let bytes = |loans: &Loans| size_of::<Loans>() + loans.subject().bytes();
        self.loans.as_deref().map_or(0, bytes)
    }

    /// Permits that are borrowed and not spent.
    pub(super) fn left(&self) -> u64 {
        self.loans.as_ref().map_or(0, |loans| loans.left())
    }

    /// The rule that something is borrowed under.
    pub(super) fn rule(&self) -> Option<&str> {
        self.loans.as_ref().map(|loans| loans.subject().limit().rule())
    }

    /// Is what is borrowed borrowed under the limit of this charge? One that has changed ends it. A limit
    /// older than ours is a call's that was on its way when it changed: it is none of our business.
    #[inline]
    fn is_under(&mut self, charge: &Charge<'_>, chores: &mut Chores) -> bool {
        match &self.loans {
            Some(loans) if !Arc::ptr_eq(loans.subject().limit(), charge.limit) => {
                self.comes_under(charge, chores)
            }
            _ => true,
        }
    }

    fn comes_under(&mut self, charge: &Charge<'_>, chores: &mut Chores) -> bool {
        let Some(loans) = &mut self.loans else { return true };
        let (own, limit) = (loans.subject().limit(), charge.limit);
        let same = own.limit() == limit.limit() && own.lease_size() == limit.lease_size();
        let is_newer = limit.is_newer_than(own);
        if same && is_newer && !limit.comes_with_call() {
            loans.goes_by(charge);
            // What is on its way was asked for by another name.
            self.asking_until = Micros::ZERO;
        }
        if !same && is_newer {
            self.close(chores);
            self.said.remaining = 0;
        }
        same
    }

    /// Decides whether to borrow more, and how much.
    fn ask_for_more(&mut self, charge: &Charge<'_>, now: Micros, chores: &mut Chores) {
        if now < self.asking_until || now < self.strict_until {
            return;
        }
        if self.loans.as_ref().is_some_and(|loans| !loans.needs_one_more(now)) {
            return;
        }
        let Some(lease_size) = charge.limit.lease_size() else { return };
        let spent = self.rate.per_moment(now);
        let (asked, least) = match lease_size {
            LeaseSize::Auto => (spent, terms::LEAST),
            LeaseSize::Of(_) if spent < terms::LEAST_IN_A_MOMENT => return,
            LeaseSize::Of(size) => (u64::from(size.get()), terms::LEAST.min(size.get().into())),
        };
        // All that we have, with this, is a part of what nobody else has.
        let left = self.left();
        let rest = self.said.remaining.saturating_add(left) / terms::PARTS_OF_THE_REST;
        let size = asked.min(rest.saturating_sub(left));
        if size < least.max(charge.cost.get().saturating_mul(2)) {
            return;
        }
        let Ok(size) = Cost::new(size.min(Cost::MAX.get())) else { return };
        let loans = self.loans.get_or_insert_with(|| Loans::new(charge, now));
        self.asking_until = now.saturating_add(terms::TTL);
        chores.ask = Some(Wanted { subject: loans.subject().clone(), size });
    }

    /// What may be said of a charge that was paid from what is borrowed: what the store had left, and
    /// what we have left of it.
    fn verdict(&self, limit: &RuleLimit, now: Micros) -> Verdict {
        let passed = now.saturating_sub(self.said.at);
        let limit = limit.limit().capacity();
        Verdict {
            allowed: true,
            retry_after: Wait::NONE,
            delay: Micros::ZERO,
            limit,
            remaining: self.said.remaining.saturating_add(self.left()).min(limit),
            reset_after: self.said.reset_after.saturating_sub(passed),
        }
    }
}
