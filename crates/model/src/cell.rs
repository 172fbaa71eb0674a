//! One limit on one key: all of its events, replayed for every call.

use tidegate_core::Expiry;

use crate::Spec;
use crate::consumption::{Consumption, Terms};
use crate::spec::MAX;

/// One limit on one key. Only its events are stored.
#[derive(Clone, Debug)]
pub struct ModelCell {
    first: Terms,
    happened: Vec<(i128, TimedEvent)>,
}

/// An event that changed a cell.
#[derive(Clone, Copy, Debug)]
pub enum CellEvent {
    /// A call found that the clock had stepped back, and changed nothing else.
    Rebased,
    /// A charge of a call that was allowed.
    Charge(i128),
    /// A charge, whether or not it fits.
    Record(i128),
    Refund(i128),
    /// Consumption and holds were removed.
    Reset,
    Hold(ModelHold),
    /// A hold was settled.
    Settle {
        /// The id of the hold.
        id: u128,
        /// What was charged then.
        due: i128,
    },
    /// A hold was renewed or extended.
    Renew {
        /// The id of the hold.
        id: u128,
        /// The number of permits, if it is another.
        cost: Option<i128>,
        /// Its new TTL from then on. Without one it keeps its deadline.
        ttl: Option<i128>,
    },
    Change(Spec),
}

/// Permits that are held.
#[derive(Clone, Copy, Debug)]
pub struct ModelHold {
    pub id: u128,
    /// The number of permits.
    pub cost: i128,
    pub deadline: i128,
    pub ttl: i128,
    /// What happens when it expires.
    pub expiry: Expiry,
}

#[derive(Clone, Copy, Debug)]
enum TimedEvent {
    Event(CellEvent),
    Change(Terms),
}

/// A cell at an instant.
#[derive(Clone, Debug)]
pub struct CellState {
    pub(crate) now: i128,
    pub(crate) terms: Terms,
    pub(crate) consumption: Option<Consumption>,
    pub(crate) holds: Vec<ModelHold>,
    pub(crate) was_ahead: bool,
    /// If the call is under another limit than the consumption.
    pub(crate) caller: Option<Caller>,
    /// The log of another limit, if both share it and its offset.
    pub(crate) other_log: Option<(Terms, Consumption)>,
}

/// The limit of a call that is decided on the consumption of another limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) terms: Terms,
    /// Does the consumption become that of the caller's limit if the call is allowed?
    pub(crate) takes_over: bool,
    /// The span after which a cost above the capacity of the other limit is decided anew.
    pub(crate) room_after: i128,
}

impl ModelCell {
    pub fn new(spec: Spec) -> Self {
        Self { first: Terms::new(spec), happened: Vec::new() }
    }

    pub fn push(&mut self, now: i128, event: CellEvent) {
        let timed = match event {
            CellEvent::Change(spec) => TimedEvent::Change(Terms::new(spec)),
            event => TimedEvent::Event(event),
        };
        self.happened.push((now, timed));
    }

    /// The state after all events, for a call at `now`.
    pub fn at(&self, now: i128) -> CellState {
        let mut situation = self.replayed();
        situation.rebase(now);
        situation.wait_until(now);
        situation
    }

    fn replayed(&self) -> CellState {
        let mut situation = CellState {
            now: 0,
            terms: self.first,
            consumption: None,
            holds: Vec::new(),
            was_ahead: false,
            caller: None,
            other_log: None,
        };
        for (now, timed) in &self.happened {
            situation.replay(*now, timed);
        }
        situation
    }
}

impl CellState {
    fn replay(&mut self, now: i128, timed: &TimedEvent) {
        self.rebase(now);
        if matches!(timed, TimedEvent::Event(CellEvent::Rebased)) {
            return;
        }
        self.wait_until(now);
        if self.used() == 0 {
            self.consumption = None;
        }
        match *timed {
            TimedEvent::Event(CellEvent::Rebased) => {}
            TimedEvent::Event(CellEvent::Charge(cost) | CellEvent::Record(cost)) => {
                self.charge(cost);
            }
            TimedEvent::Event(CellEvent::Refund(cost)) => {
                self.refund(cost);
            }
            TimedEvent::Event(CellEvent::Reset) => {
                self.consumption = None;
                self.holds.retain(|hold| hold.expiry == Expiry::Charge);
            }
            TimedEvent::Event(CellEvent::Hold(hold)) => self.holds.push(hold),
            TimedEvent::Event(CellEvent::Settle { id, due }) => {
                self.holds.retain(|hold| hold.id != id);
                self.charge(due);
            }
            TimedEvent::Event(CellEvent::Renew { id, cost, ttl }) => {
                renew_hold(&mut self.holds, now, id, cost, ttl);
            }
            TimedEvent::Event(CellEvent::Change(_)) => unreachable!("stored with its tick"),
            TimedEvent::Change(terms) => {
                self.consumption = terms.carry(&self.terms, self.consumption.take(), now);
                self.terms = terms;
            }
        }
    }

    /// A call at `now`: state that was written later is rebased.
    fn rebase(&mut self, now: i128) {
        self.now = now;
        self.was_ahead = rebase_holds(&mut self.holds, now);
        if let Some(consumption) = &mut self.consumption
            && self.terms.is_ahead(consumption, now)
        {
            self.terms.rebase(consumption, now);
            self.was_ahead = true;
        }
    }

    /// Was anything written after this instant?
    pub fn was_ahead(&self) -> bool {
        self.was_ahead
    }

    /// Time passes until `later` without calls. Holds expire, the earliest first.
    fn wait_until(&mut self, later: i128) {
        while let Some(ended) = take_ended(&mut self.holds, later) {
            if ended.expiry == Expiry::Charge {
                self.charge_end(ended.deadline, ended.cost);
            }
        }
        self.now = later;
    }

    /// Charges a hold that ends. A log that is empty begins with the offset of the other one.
    fn charge_end(&mut self, at: i128, cost: i128) {
        if let Some((terms, log)) = &mut self.other_log {
            let (others, offset) = terms.kept_log(Some(log), at);
            let (own, own_offset) = self.terms.kept_log(self.consumption.as_ref(), at);
            let offset = match (own.is_empty(), others.is_empty()) {
                (false, _) => own_offset,
                (true, false) => offset,
                (true, true) => 0,
            };
            *log = terms.charge_log(others, at + offset, offset, cost, false);
            if own.is_empty() && self.terms.spec.capacity() > 0 {
                let log = self.terms.charge_log(own, at + offset, offset, cost, false);
                self.consumption = Some(log);
                return;
            }
        }
        self.terms.charge(&mut self.consumption, at, cost);
    }

    /// The same cell after `span`, without calls.
    pub fn after(&self, span: i128) -> Self {
        let mut later = self.clone();
        later.wait_until(self.now + span);
        later
    }

    /// Does this hold still exist?
    pub fn has(&self, id: u128) -> bool {
        self.holds.iter().any(|hold| hold.id == id)
    }

    /// The sum of the holds.
    pub fn held(&self) -> i128 {
        self.holds.iter().map(|hold| hold.cost).sum()
    }

    /// The instants at which holds expire.
    pub fn deadlines(&self) -> impl Iterator<Item = i128> {
        self.holds.iter().map(|hold| hold.deadline)
    }

    /// Consumption, rounded up.
    pub fn used(&self) -> i128 {
        self.terms.used(self.consumption.as_ref(), self.now)
    }

    /// Does a cost of at least 1 fit?
    pub fn fits(&self, cost: i128) -> bool {
        self.used() + self.held() + cost <= self.room()
    }

    /// What fits at once: the capacity of the limit, and at most that of the caller's.
    fn room(&self) -> i128 {
        let own = self.terms.spec.capacity();
        match self.caller {
            Some(caller) if caller.takes_over => caller.terms.spec.capacity(),
            Some(caller) => own.min(caller.terms.spec.capacity()),
            None => own,
        }
    }

    /// The span after which a cost is decided anew that does not fit under the limit that decides
    /// now, but under the caller's.
    pub fn decided_anew_after(&self, cost: i128) -> Option<i128> {
        let caller = self.caller.filter(|caller| !caller.takes_over)?;
        (cost > self.terms.spec.capacity()).then_some(caller.room_after)
    }

    /// Is a cost allowed? Zero is a peek.
    pub fn allows(&self, cost: i128) -> bool {
        if cost == 0 { self.used() <= self.room() } else { self.fits(cost) }
    }

    /// The permits that are left.
    pub fn remaining(&self) -> i128 {
        (self.room() - self.used() - self.held()).max(0)
    }

    /// Is nothing used or held?
    pub fn is_unused(&self) -> bool {
        self.used() == 0 && self.held() == 0
    }

    /// The delay of a charge.
    pub fn delay(&self) -> i128 {
        match self.caller {
            Some(Caller { terms, takes_over: true, .. }) => {
                let carried = terms.carry(&self.terms, self.consumption.clone(), self.now);
                terms.delay(carried.as_ref(), self.now)
            }
            _ => self.terms.delay(self.consumption.as_ref(), self.now),
        }
    }

    /// The limit of the call.
    pub fn spec(&self) -> &Spec {
        self.caller.as_ref().map_or(&self.terms.spec, |caller| &caller.terms.spec)
    }

    /// The end of the present window, if it is defined by the calendar or the clock.
    pub fn window_end(&self) -> Option<i128> {
        self.terms.spec.window(self.now).map(|(_, end)| end)
    }

    pub fn now(&self) -> i128 {
        self.now
    }

    fn charge(&mut self, cost: i128) {
        self.terms.charge(&mut self.consumption, self.now, cost);
    }

    /// Refunds at most `cost` and returns how much was refunded.
    pub fn refund(&mut self, cost: i128) -> i128 {
        self.terms.refund(&mut self.consumption, self.now, cost)
    }
}

/// Shortens holds that were granted after `now`. Were there any?
pub(crate) fn rebase_holds(holds: &mut [ModelHold], now: i128) -> bool {
    let is_ahead = holds.iter().any(|hold| hold.deadline - hold.ttl > now);
    if is_ahead {
        for hold in holds {
            hold.deadline = hold.deadline.min(now + hold.ttl);
        }
    }
    is_ahead
}

/// Changes the cost or the TTL of a hold. Of several with one deadline, it expires last.
pub(crate) fn renew_hold(
    holds: &mut Vec<ModelHold>,
    now: i128,
    id: u128,
    cost: Option<i128>,
    ttl: Option<i128>,
) {
    if let Some(place) = holds.iter().position(|hold| hold.id == id) {
        let mut hold = holds.remove(place);
        hold.cost = cost.unwrap_or(hold.cost);
        if let Some(ttl) = ttl {
            (hold.ttl, hold.deadline) = (ttl, (now + ttl).min(MAX));
        }
        holds.push(hold);
    }
}

/// Removes the hold that expires first, if it has expired at `now`.
pub(crate) fn take_ended(holds: &mut Vec<ModelHold>, now: i128) -> Option<ModelHold> {
    let ended = holds.iter().filter(|hold| hold.deadline <= now && hold.deadline < MAX);
    let ended = *ended.min_by_key(|hold| hold.deadline)?;
    holds.retain(|hold| hold.id != ended.id);
    Some(ended)
}
