//! Traffic of an attacker on one key, and the log of its admissions.

use tidegate_core::{Cost, Expiry, Hold, Holds, Limit, Micros, Moment, State, Verdict, Wait};
use tidegate_model::TraceRng;

use super::bound::{BoundAllowance, Case};

/// One key under attack. The true clock only goes forward; the limit sees `clock`, which may step.
pub(crate) struct Attacker {
    pub(crate) rng: TraceRng,
    pub(crate) case: Case,
    state: Option<State>,
    holds: Holds,
    /// True time.
    pub(crate) now: u64,
    /// Time that the limit sees.
    pub(crate) clock: u64,
    pub(crate) log: Vec<Event>,
    retry_at: Option<u64>,
    next_id: u128,
}

/// One entry of the log, in true time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Admit { at: u64, permits: u64 },
    Refund { permits: u64 },
    Back,
    Forward { span: u64 },
}

impl Attacker {
    pub(crate) fn new(mut rng: TraceRng, case: Case) -> Self {
        let now = 1_700_000_000_000_000 + rng.below(1_000_000_000_000);
        let holds = Holds::default();
        let log = Vec::new();
        Self { rng, case, state: None, holds, now, clock: now, log, retry_at: None, next_id: 0 }
    }

    /// Lets time pass, often to an instant at which the state changes.
    pub(crate) fn wait(&mut self) {
        let Case { edge, scale, recovery, .. } = self.case;
        let rng = &mut self.rng;
        let to_clock = match rng.below(12) {
            0 | 1 => self.clock,
            2 => self.clock + 1,
            3 => self.clock + rng.around(edge),
            4 | 5 => rng.around((self.clock / edge + 1) * edge),
            6 | 7 => self.retry_at.unwrap_or(self.clock),
            8 => self.clock + rng.around(recovery),
            9 => self.clock + rng.magnitude(recovery),
            _ => self.clock + rng.magnitude(2 * scale),
        };
        let span = to_clock.saturating_sub(self.clock);
        self.end_holds(self.clock + span);
        self.now += span;
        self.clock += span;
    }

    /// Checks for a random cost, or for all that remains and then for one more.
    pub(crate) fn attack(&mut self) {
        if self.rng.one_in(4) {
            let cost = self.rng.magnitude(self.case.limit.capacity());
            self.check(cost);
            return;
        }
        let remaining = self.look(0).remaining;
        if remaining > 0 {
            assert!(self.check(remaining), "the remaining permits were denied: {:?}", self.case);
        }
        assert!(!self.check(1), "more than the remaining permits were admitted: {:?}", self.case);
    }

    /// Checks for `cost` permits and charges them if they are allowed.
    pub(crate) fn check(&mut self, cost: u64) -> bool {
        let verdict = self.look(cost);
        if verdict.allowed {
            let (limit, at) = (self.case.limit.clone(), self.at());
            limit.expire(&mut self.state, &mut self.holds, &at);
            limit.charge(&mut self.state, &at, permits(cost), None);
            self.log.push(Event::Admit { at: self.now, permits: cost });
        }
        verdict.allowed
    }

    fn look(&mut self, cost: u64) -> Verdict {
        let (limit, at) = (self.case.limit.clone(), self.at());
        let verdict = limit.look(self.state.as_ref(), &self.holds, &at, permits(cost));
        if limit.is_ahead(self.state.as_ref(), &self.holds, &at) {
            limit.rebase(&mut self.state, &mut self.holds, &at);
        }
        if let Wait::For(wait) = verdict.retry_after {
            self.retry_at = Some(self.clock + wait.get());
        }
        verdict
    }

    fn at(&self) -> Moment {
        Moment::new(Micros::new(self.clock))
    }

    /// Refunds a random number of permits.
    pub(crate) fn refund(&mut self) {
        let (limit, at) = (self.case.limit.clone(), self.at());
        let cost = permits(self.rng.magnitude(limit.capacity()));
        limit.expire(&mut self.state, &mut self.holds, &at);
        let back = limit.refund(&mut self.state, &at, cost).get();
        self.log.push(Event::Refund { permits: back });
    }

    /// Holds some of the remaining permits, with a random expiry.
    pub(crate) fn hold(&mut self) {
        let remaining = self.look(0).remaining;
        if remaining == 0 {
            return;
        }
        let cost = permits(self.rng.between(1, remaining));
        let (limit, at) = (self.case.limit.clone(), self.at());
        limit.expire(&mut self.state, &mut self.holds, &at);
        let ttl = Micros::new(self.rng.magnitude(2 * self.case.scale));
        let expiry = self.rng.pick(&[Expiry::Release, Expiry::Charge]);
        self.next_id += 1;
        let deadline = at.now().saturating_add(ttl);
        self.holds.insert(Hold { id: self.next_id, cost, deadline, ttl, expiry });
    }

    /// Settles the hold with the earliest deadline, for at most its cost.
    pub(crate) fn settle(&mut self) {
        let Some(&Hold { id, cost, .. }) = self.holds.iter().next() else { return };
        let (limit, at) = (self.case.limit.clone(), self.at());
        limit.expire(&mut self.state, &mut self.holds, &at);
        self.holds.remove(id).expect("it has not ended");
        let charged = self.rng.between(0, cost.get());
        limit.charge(&mut self.state, &at, permits(charged), None);
        if charged > 0 {
            self.log.push(Event::Admit { at: self.now, permits: charged });
        }
    }

    /// Ends the holds that are due. A hold that charges at its end is admitted at its end.
    fn end_holds(&mut self, until: u64) {
        for hold in self.holds.iter().filter(|hold| hold.deadline.get() <= until) {
            if hold.expiry == Expiry::Charge {
                let at = self.now + (hold.deadline.get() - self.clock);
                self.log.push(Event::Admit { at, permits: hold.cost.get() });
            }
        }
        let at = Moment::new(Micros::new(until));
        self.case.limit.clone().expire(&mut self.state, &mut self.holds, &at);
    }

    /// Steps the clock back and checks that the key still recovers within its recovery time.
    pub(crate) fn step_back(&mut self) {
        let span = match self.rng.below(4) {
            0 => self.rng.magnitude(3 * self.case.edge),
            1 => self.rng.magnitude(self.case.scale),
            2 => self.rng.magnitude(8 * self.case.recovery),
            _ => 1,
        };
        self.clock = self.clock.saturating_sub(span);
        self.log.push(Event::Back);
        if self.rng.one_in(2) {
            let verdict = self.look(0);
            let reset_after = verdict.reset_after.get();
            assert!(
                reset_after <= self.case.recovery,
                "recovers too late: {verdict:?} {:?}",
                self.case
            );
        }
    }

    /// Steps the clock forward.
    pub(crate) fn step_forward(&mut self) {
        let span = match self.rng.below(3) {
            0 => self.rng.magnitude(3 * self.case.edge),
            1 => self.rng.magnitude(self.case.scale),
            _ => self.rng.magnitude(4 * self.case.recovery),
        };
        self.clock += span;
        self.log.push(Event::Forward { span });
    }

    /// Compares every interval that begins with an admission with the bound. Returns the number of
    /// intervals, and how many of them had no room for one more permit.
    pub(crate) fn check_intervals(&self) -> (u64, u64) {
        let mut intervals = 0;
        let mut full = 0;
        for (index, first) in self.log.iter().enumerate() {
            let &Event::Admit { at: start, .. } = first else { continue };
            let mut admitted = 0;
            let mut allowance = BoundAllowance::default();
            for (length, event) in self.log[index..].iter().enumerate() {
                match *event {
                    Event::Admit { at, permits } => {
                        admitted += permits;
                        intervals += 1;
                        let holds_for = |n| self.case.bound.holds_for(n, at - start, &allowance);
                        full += u64::from(!holds_for(admitted + 1));
                        assert!(
                            holds_for(admitted),
                            "{admitted} in {} us, {allowance:?}\n{:?}\n{:?}",
                            at - start,
                            self.case,
                            &self.log[index..=index + length]
                        );
                    }
                    Event::Refund { permits } => allowance.refunded += permits,
                    Event::Back => {
                        allowance.steps_back += u64::from(self.case.repeats_after_step_back);
                    }
                    Event::Forward { span } => {
                        allowance.forward += span;
                        allowance.windows += self.case.bound.windows(span);
                    }
                }
            }
        }
        (intervals, full)
    }

    /// Replaces the limit and carries its state over.
    pub(crate) fn change(&mut self, limit: Limit) {
        let at = self.at();
        let old = std::mem::replace(&mut self.case.limit, limit);
        old.expire(&mut self.state, &mut self.holds, &at);
        let carried = self.state.take();
        self.state = carried.and_then(|state| self.case.limit.carry(&old, &at, state, &at));
    }
}

pub(crate) fn permits(number: u64) -> Cost {
    Cost::new(number).expect("at most 2^32")
}
