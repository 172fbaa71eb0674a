//! One limit on one key: everything that happened to it, replayed for every question.

use tidegate_core::Expiry;

use crate::Spec;
use crate::consumption::{Consumption, Terms};
use crate::spec::MAX;

/// One limit on one key. All that is kept is what happened.
#[derive(Clone, Debug)]
pub struct Cell {
    first: Terms,
    happened: Vec<(i128, Happening)>,
}

/// Something that changed a cell.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A call noticed that the clock had stepped back, and changed nothing else.
    BroughtBack,
    /// A charge, whether or not it fitted.
    Charge(i128),
    /// A refund.
    Refund(i128),
    /// Consumption and holds were forgotten.
    Reset,
    /// Permits were set aside.
    Hold(Hold),
    /// A hold ended, and `cost` was charged.
    Settle {
        /// The hold as it was granted.
        hold: Hold,
        /// What was named.
        cost: i128,
    },
    /// A hold was to last `ttl` from then on.
    Renew {
        /// The name of the hold.
        id: u128,
        /// How long it was to last.
        ttl: i128,
    },
    /// Another limit took over.
    Change(Spec),
}

/// Permits set aside.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Its name.
    pub id: u128,
    /// How many.
    pub cost: i128,
    /// Until when.
    pub deadline: i128,
    /// For how long.
    pub ttl: i128,
    /// What happens then.
    pub expiry: Expiry,
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Event(Event),
    Change(Terms),
}

/// A cell at an instant.
#[derive(Clone, Debug)]
pub struct Situation {
    now: i128,
    terms: Terms,
    consumption: Option<Consumption>,
    holds: Vec<Hold>,
    was_ahead: bool,
}

impl Cell {
    /// An unused cell.
    pub fn new(spec: Spec) -> Self {
        Self { first: Terms::new(spec), happened: Vec::new() }
    }

    /// Adds an event.
    pub fn push(&mut self, now: i128, event: Event) {
        let happening = match event {
            Event::Change(spec) => Happening::Change(Terms::new(spec)),
            event => Happening::Event(event),
        };
        self.happened.push((now, happening));
    }

    /// Everything that happened, replayed, as a call at `now` finds it.
    pub fn at(&self, now: i128) -> Situation {
        let mut situation = self.replayed();
        situation.bring_back(now);
        situation.wait_until(now);
        situation
    }

    fn replayed(&self) -> Situation {
        let mut situation = Situation {
            now: 0,
            terms: self.first,
            consumption: None,
            holds: Vec::new(),
            was_ahead: false,
        };
        for (now, happening) in &self.happened {
            situation.replay(*now, happening);
        }
        situation
    }
}

impl Situation {
    fn replay(&mut self, now: i128, happening: &Happening) {
        self.bring_back(now);
        if matches!(happening, Happening::Event(Event::BroughtBack)) {
            return;
        }
        self.wait_until(now);
        if self.used() == 0 {
            self.consumption = None;
        }
        match *happening {
            Happening::Event(Event::BroughtBack) => {}
            Happening::Event(Event::Charge(cost)) => self.charge(cost),
            Happening::Event(Event::Refund(cost)) => {
                self.refund(cost);
            }
            Happening::Event(Event::Reset) => {
                self.consumption = None;
                self.holds.retain(|hold| hold.expiry == Expiry::Charge);
            }
            Happening::Event(Event::Hold(hold)) => self.holds.push(hold),
            Happening::Event(Event::Settle { hold, cost }) => {
                if self.has(hold.id) {
                    self.holds.retain(|other| other.id != hold.id);
                    self.charge(cost);
                } else {
                    let charged = if hold.expiry == Expiry::Charge { hold.cost } else { 0 };
                    self.charge((cost - charged).max(0));
                }
            }
            Happening::Event(Event::Renew { id, ttl }) => {
                if let Some(place) = self.holds.iter().position(|hold| hold.id == id) {
                    let hold = self.holds.remove(place);
                    self.holds.push(Hold { deadline: (now + ttl).min(MAX), ttl, ..hold });
                }
            }
            Happening::Event(Event::Change(_)) => unreachable!("kept with its tick"),
            Happening::Change(terms) => {
                self.consumption = terms.carry(&self.terms, self.consumption.take(), now);
                self.terms = terms;
            }
        }
    }

    /// A call at `now`: whatever was written later is brought back.
    fn bring_back(&mut self, now: i128) {
        self.now = now;
        self.was_ahead = false;
        if let Some(consumption) = &mut self.consumption
            && self.terms.is_ahead(consumption, now)
        {
            self.terms.bring_back(consumption, now);
            self.was_ahead = true;
        }
        if self.holds.iter().any(|hold| hold.deadline - hold.ttl > now) {
            for hold in &mut self.holds {
                hold.deadline = hold.deadline.min(now + hold.ttl);
            }
            self.was_ahead = true;
        }
    }

    /// Had anything been written after this instant?
    pub fn was_ahead(&self) -> bool {
        self.was_ahead
    }

    /// Time passes until `later`, and nobody comes. Holds end, the earliest first.
    fn wait_until(&mut self, later: i128) {
        while let Some(ended) = self
            .holds
            .iter()
            .filter(|hold| hold.deadline <= later && hold.deadline < MAX)
            .min_by_key(|hold| hold.deadline)
        {
            let ended = *ended;
            self.holds.retain(|hold| hold.id != ended.id);
            if ended.expiry == Expiry::Charge {
                self.terms.charge(&mut self.consumption, ended.deadline, ended.cost);
            }
        }
        self.now = later;
    }

    /// The same cell after `span`, if nobody comes.
    pub fn after(&self, span: i128) -> Self {
        let mut later = self.clone();
        later.wait_until(self.now + span);
        later
    }

    /// Would this hold still be there?
    pub fn has(&self, id: u128) -> bool {
        self.holds.iter().any(|hold| hold.id == id)
    }

    /// The sum of the holds.
    pub fn held(&self) -> i128 {
        self.holds.iter().map(|hold| hold.cost).sum()
    }

    /// The instants at which holds end.
    pub fn deadlines(&self) -> impl Iterator<Item = i128> {
        self.holds.iter().map(|hold| hold.deadline)
    }

    /// Consumption, rounded up.
    pub fn used(&self) -> i128 {
        self.terms.used(self.consumption.as_ref(), self.now)
    }

    /// Does a cost of at least 1 fit?
    pub fn fits(&self, cost: i128) -> bool {
        self.used() + self.held() + cost <= self.spec().capacity()
    }

    /// Is a cost allowed? Zero is a peek.
    pub fn allows(&self, cost: i128) -> bool {
        if cost == 0 { self.used() <= self.spec().capacity() } else { self.fits(cost) }
    }

    /// What is left.
    pub fn remaining(&self) -> i128 {
        (self.spec().capacity() - self.used() - self.held()).max(0)
    }

    /// Is nothing used or held?
    pub fn is_unused(&self) -> bool {
        self.used() == 0 && self.held() == 0
    }

    /// The delay a charge would be given.
    pub fn delay(&self) -> i128 {
        self.terms.delay(self.consumption.as_ref(), self.now)
    }

    /// The limit.
    pub fn spec(&self) -> &Spec {
        &self.terms.spec
    }

    /// Where the present window ends, if the calendar or the clock says so.
    pub fn window_end(&self) -> Option<i128> {
        self.spec().window(self.now).map(|(_, end)| end)
    }

    /// The instant.
    pub fn now(&self) -> i128 {
        self.now
    }

    fn charge(&mut self, cost: i128) {
        self.terms.charge(&mut self.consumption, self.now, cost);
    }

    /// Takes back at most `cost` and returns how much came back.
    pub fn refund(&mut self, cost: i128) -> i128 {
        self.terms.refund(&mut self.consumption, self.now, cost)
    }
}
