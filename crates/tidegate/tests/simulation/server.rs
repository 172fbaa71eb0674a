//! A store: a `Memory` that is the outcome of a list of calls. Whoever takes its place knows the
//! beginning of that list.

use std::sync::Arc;

use tidegate::{
    Call, CallId, Charge, Cost, Decision, Engine, EngineError, ManualClock, Memory, Micros, Op,
};

use crate::plan::Subject;
use crate::time::Happening;
use crate::traffic::Kind;

/// A call on its way, with everything that it refers to.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) op: Op,
    /// Subjects by number, each with a cost.
    pub(crate) charges: Vec<(usize, u64)>,
    pub(crate) once: Option<String>,
    /// What its caller wanted, by its own words.
    pub(crate) kind: Option<Kind>,
    /// The request that it was sent for, if it was not sent in the background.
    pub(crate) row: Option<usize>,
    /// The life of the process that sent it.
    pub(crate) life: usize,
}

impl Packet {
    /// Something is set aside for a caller, and not for a process.
    pub(crate) fn is_reservation(&self) -> bool {
        matches!(self.kind, Some(Kind::Reserve { .. }))
    }

    /// What its caller wanted, and of which subject first.
    pub(crate) fn asked_for(&self) -> Option<(&Kind, usize)> {
        Some((self.kind.as_ref()?, self.charges.first()?.0))
    }
}

/// What a store did at one instant.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    pub(crate) packet: Arc<Packet>,
    /// What was done instead, if there is something wrong with the store.
    done: Arc<Packet>,
    /// True time, and what the store's clock showed.
    pub(crate) at: u64,
    pub(crate) shown: u64,
    pub(crate) answer: Result<Decision, EngineError>,
}

impl Execution {
    pub(crate) fn allowed(&self) -> bool {
        self.answer.as_ref().is_ok_and(Decision::allowed)
    }

    /// It granted something now, and not before under the same id.
    pub(crate) fn grants(&self) -> bool {
        self.allowed() && self.answer.as_ref().is_ok_and(|decision| !decision.repeated())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Power {
    On,
    /// It hears everything and does nothing until it goes on.
    Frozen,
    Off,
}

pub(crate) struct Server {
    memory: Memory,
    clock: ManualClock,
    /// By how much its clock is ahead of true time, and when that changed by how much.
    pub(crate) ahead: i64,
    pub(crate) steps: Vec<(u64, i64)>,
    /// What it has done, by number.
    pub(crate) log: Vec<usize>,
    pub(crate) power: Power,
    /// What came while it was frozen.
    pub(crate) backlog: Vec<Happening>,
    /// From when to when it was the one that counts for somebody.
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Server {
    pub(crate) fn new(from: u64) -> Self {
        let clock = ManualClock::default();
        Self {
            memory: Memory::builder().cap_bytes(1 << 20).clock(clock.clone()).build(),
            clock,
            ahead: 0,
            steps: Vec::new(),
            log: Vec::new(),
            power: Power::On,
            backlog: Vec::new(),
            from,
            until: u64::MAX,
        }
    }

    /// One that knows the first `known` of the calls of another, and whose clock is `ahead`.
    pub(crate) fn promoted(
        old: &Self,
        known: usize,
        (now, ahead): (u64, i64),
        executions: &[Execution],
        subjects: &[Subject],
    ) -> Self {
        let mut new = Self::new(now);
        new.log = old.log[..known].to_vec();
        for &number in &new.log {
            let Execution { done, shown, .. } = &executions[number];
            drop(new.decide(done, *shown, subjects));
        }
        new.steps.clone_from(&old.steps);
        new.ahead = old.ahead;
        new.step(now, ahead - old.ahead);
        new
    }

    pub(crate) fn step(&mut self, now: u64, by: i64) {
        if by != 0 {
            self.ahead += by;
            self.steps.push((now, by));
        }
    }

    /// What its clock shows.
    pub(crate) fn shown(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.ahead)
    }

    /// What its clock showed then, and after how many steps.
    pub(crate) fn shown_at(&self, at: u64) -> (usize, u64) {
        let (mut ahead, mut count) = (0, 0);
        for (when, by) in &self.steps {
            if *when <= at {
                ahead += by;
                count += 1;
            }
        }
        (count, at.saturating_add_signed(ahead))
    }

    pub(crate) fn execute(
        &mut self,
        number: usize,
        (packet, done): (Arc<Packet>, Arc<Packet>),
        now: u64,
        subjects: &[Subject],
    ) -> Execution {
        let shown = self.shown(now);
        let answer = self.decide(&done, shown, subjects);
        self.log.push(number);
        Execution { packet, done, at: now, shown, answer }
    }

    fn decide(
        &self,
        packet: &Packet,
        shown: u64,
        subjects: &[Subject],
    ) -> Result<Decision, EngineError> {
        self.clock.set(Micros::new(shown));
        let charges: Vec<Charge<'_>> = packet
            .charges
            .iter()
            .map(|&(subject, cost)| subjects[subject].charge(Cost::total(cost)))
            .collect();
        let once = packet.once.as_deref().map(|id| CallId::new(id).unwrap());
        self.memory.decide(Call { op: packet.op, charges: &charges, once }).now()
    }

    /// Would it grant this now? Not asked of one whose clock was set back: to look at a state from the future
    /// brings it to the present, and whoever takes the store's place would not know of that.
    pub(crate) fn would_grant(
        &self,
        charges: &[(usize, u64)],
        now: u64,
        subjects: &[Subject],
    ) -> bool {
        let packet = Packet {
            op: Op::Peek,
            charges: charges.to_vec(),
            once: None,
            kind: None,
            row: None,
            life: 0,
        };
        let never_back = self.steps.iter().all(|(_, by)| *by > 0);
        never_back
            && self.decide(&packet, self.shown(now), subjects).is_ok_and(|answer| answer.allowed())
    }

    /// Permits used and held of a subject.
    pub(crate) fn used_and_held(&self, subject: &Subject, now: u64) -> (u64, u64) {
        self.clock.set(Micros::new(self.shown(now)));
        let standing =
            self.memory.inspect(&subject.limit, (&*subject.key).into()).now().unwrap().standing;
        (standing.used, standing.held)
    }
}
