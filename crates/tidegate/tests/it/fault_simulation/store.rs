//! A store: a `Memory` whose state results from a list of calls. A replica that is promoted knows a
//! prefix of that list.

use std::sync::Arc;

use tidegate::{
    Call, Charge, Cost, Decision, Engine, EngineError, IdempotencyKey, ManualClock, Memory, Micros,
    Op,
};

use crate::fault_simulation::plan::Subject;
use crate::fault_simulation::time::ScheduledEvent;
use crate::fault_simulation::traffic::Kind;

/// A call in flight, with everything that it refers to.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) op: Op<'static>,
    /// Subjects by number, each with a cost.
    pub(crate) charges: Vec<(usize, u64)>,
    pub(crate) once: Option<String>,
    /// The kind of the request that caused it.
    pub(crate) kind: Option<Kind>,
    /// The request that it was sent for, if it was not sent in the background.
    pub(crate) row: Option<usize>,
    /// The incarnation of the process that sent it.
    pub(crate) incarnation: usize,
}

impl Packet {
    /// Whether a caller holds the permits, and not a process.
    pub(crate) fn is_reservation(&self) -> bool {
        matches!(self.kind, Some(Kind::Reserve { .. }))
    }

    /// The kind of its request, and the first subject.
    pub(crate) fn kind_and_subject(&self) -> Option<(&Kind, usize)> {
        Some((self.kind.as_ref()?, self.charges.first()?.0))
    }
}

/// One call that a store executed.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    pub(crate) packet: Arc<Packet>,
    /// The packet that was executed instead, if the store has a bug.
    done: Arc<Packet>,
    /// True time, and the time of the store's clock.
    pub(crate) at: u64,
    pub(crate) shown: u64,
    pub(crate) reply: Result<Decision, EngineError>,
}

impl Execution {
    pub(crate) fn allowed(&self) -> bool {
        self.reply.as_ref().is_ok_and(Decision::allowed)
    }

    /// Whether it granted something now, and not before under the same id.
    pub(crate) fn grants(&self) -> bool {
        self.allowed() && self.reply.as_ref().is_ok_and(|decision| !decision.repeated())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Power {
    On,
    /// It receives calls and executes them when it thaws.
    Frozen,
    Off,
}

pub(crate) struct Server {
    memory: Memory,
    probes: Subject,
    clock: ManualClock,
    /// How far its clock is ahead of true time, in microseconds.
    pub(crate) ahead: i64,
    /// Steps of its clock: instant and size.
    pub(crate) steps: Vec<(u64, i64)>,
    /// The executions of this store, by number.
    pub(crate) log: Vec<usize>,
    pub(crate) power: Power,
    /// Calls that arrived while it was frozen.
    pub(crate) backlog: Vec<ScheduledEvent>,
    /// Span in which some process used it as the primary.
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Server {
    pub(crate) fn new(from: u64) -> Self {
        let clock = ManualClock::default();
        Self {
            memory: Memory::builder().cap_bytes(1 << 20).clock(clock.clone()).build(),
            probes: Subject::of_probes(),
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

    /// A store that knows the first `known` calls of another, and whose clock is `ahead`.
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

    /// The time of its clock.
    pub(crate) fn shown(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.ahead)
    }

    /// The number of its clock's steps until then, and its time.
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
        let reply = self.decide(&done, shown, subjects);
        self.log.push(number);
        Execution { packet, done, at: now, shown, reply }
    }

    fn decide(
        &self,
        packet: &Packet,
        shown: u64,
        subjects: &[Subject],
    ) -> Result<Decision, EngineError> {
        self.clock.set(Micros::new(shown));
        let subject = |number| match number {
            Subject::PROBES => &self.probes,
            number => &subjects[number],
        };
        let charges: Vec<Charge<'_>> = packet
            .charges
            .iter()
            .map(|&(number, cost)| subject(number).charge(Cost::total(cost)))
            .collect();
        let once = packet.once.as_deref().map(|id| IdempotencyKey::new(id).unwrap());
        self.memory.decide(Call { op: packet.op, charges: &charges, idempotency_key: once }).now()
    }

    /// Whether the store would grant this now. A store whose clock stepped back is not inspected: a
    /// peek rebases its state, and a promoted replica would not know of that.
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
            incarnation: 0,
        };
        let never_back = self.steps.iter().all(|(_, by)| *by > 0);
        never_back
            && self.decide(&packet, self.shown(now), subjects).is_ok_and(|reply| reply.allowed())
    }

    /// Permits used and held of a subject.
    pub(crate) fn used_and_held(&self, subject: &Subject, now: u64) -> (u64, u64) {
        self.clock.set(Micros::new(self.shown(now)));
        let standing =
            self.memory.inspect(&subject.limit, (&*subject.key).into()).now().unwrap().standing;
        (standing.used, standing.held)
    }
}
