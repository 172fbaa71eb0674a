//! Everything that there is: stores, processes, and what is on its way.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate::{Call, Decision, EngineError, Source};
use tidegate_model::Rng;

use crate::log::{Log, Outcome, Sent};
use crate::mutants::Mutation;
use crate::network::{Letter, Life, Trip};
use crate::node::Node;
use crate::plan::{Plan, Subject};
use crate::server::{Packet, Power, Server};
use crate::time::{BEGIN, Timeline};

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) mutation: Mutation,
    pub(crate) timeline: Arc<Timeline>,
    state: Mutex<State>,
}

pub(crate) struct State {
    /// All that there were; the last is the one that counts.
    pub(crate) servers: Vec<Server>,
    /// Which of them each process talks to.
    pub(crate) routes: Vec<usize>,
    /// Until when each process is cut off, and whether it knows.
    pub(crate) cuts: Vec<(u64, bool)>,
    pub(crate) slow: (u64, u64),
    /// Nothing is lost any more.
    pub(crate) well: bool,
    pub(crate) nodes: Vec<Option<Arc<Node>>>,
    pub(crate) log: Log,
    /// What every hold is of.
    holds: HashMap<u128, Vec<(usize, u64)>>,
    /// How often the same was sent by the same process.
    counts: BTreeMap<(usize, u64), u64>,
}

impl World {
    pub(crate) fn new(plan: Plan, mutation: Mutation) -> Arc<Self> {
        let nodes = plan.nodes();
        let state = State {
            servers: vec![Server::new(BEGIN)],
            routes: vec![0; nodes],
            cuts: vec![(0, false); nodes],
            slow: (0, 0),
            well: false,
            nodes: vec![None; nodes],
            log: Log::default(),
            holds: HashMap::new(),
            counts: BTreeMap::new(),
        };
        let timeline = Timeline::new();
        Arc::new(Self { plan, mutation, timeline, state: Mutex::new(state) })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn now(&self) -> u64 {
        self.timeline.now()
    }

    /// A call leaves a process.
    pub(crate) fn depart(
        self: &Arc<Self>,
        life: &Arc<Life>,
        call: &Call<'_>,
        row: Option<usize>,
    ) -> (usize, Trip) {
        self.timeline.act();
        let (now, state) = (self.now(), &mut *self.state());
        let packet = state.pack(call, life, row);
        let mut rng = state.fate(self.plan.seed, &packet);
        state.log.sent.push(Sent { life: life.number, row, at: now, back: None });
        let number = state.log.sent.len() - 1;
        let (cut_until, refuses) = state.cuts[life.node];
        let cut = now < cut_until;
        if cut && (refuses || rng.one_in(2)) {
            return (number, Trip::Refused(if refuses { rng.below(1_000) } else { u64::MAX / 4 }));
        }
        let lost = cut || state.loses(&mut rng, self.plan.links.loses_one_in);
        if lost && rng.one_in(3) {
            return (number, Trip::Refused(rng.below(1_000)));
        }
        let letter: Arc<Letter> = Arc::default();
        if !lost {
            let arrives = now + state.way(&mut rng, self.plan.links.latency, now);
            let server = state.routes[life.node];
            let (life, letter) = (life.clone(), letter.clone());
            let packet = Arc::new(packet);
            self.timeline
                .plan(arrives, move |world| world.arrive(server, life, packet, letter, rng));
        }
        (number, Trip::Sent(letter))
    }

    /// A call reaches a store.
    fn arrive(
        self: &Arc<Self>,
        server: usize,
        life: Arc<Life>,
        packet: Arc<Packet>,
        letter: Arc<Letter>,
        mut rng: Rng,
    ) {
        let (now, state) = (self.now(), &mut *self.state());
        let answer = match state.servers[server].power {
            Power::Off if rng.one_in(2) => return,
            Power::Off => Err(EngineError::unavailable(std::io::Error::other("refused"))),
            Power::Frozen => {
                let later =
                    move |world: &Arc<Self>| world.arrive(server, life, packet, letter, rng);
                return state.servers[server].backlog.push(Box::new(later));
            }
            Power::On => {
                let number = state.log.executions.len();
                let done = self.mutation.of_the_store(&packet, number);
                let server = &mut state.servers[server];
                let mut execution =
                    server.execute(number, (packet, done), now, &self.plan.subjects);
                if let Ok(decision) = &mut execution.answer {
                    decision.source = Source::Redis;
                }
                state.log.executions.push(execution.clone());
                execution.answer
            }
        };
        if state.loses(&mut rng, self.plan.links.loses_one_in) {
            return;
        }
        let returns = now + state.way(&mut rng, self.plan.links.latency, now);
        self.timeline.plan(returns, move |world| {
            let is_cut = world.now() < world.state().cuts[life.node].0;
            if !is_cut && !life.is_dead() {
                letter.answer(answer);
                world.timeline.act();
            }
        });
    }

    /// An answer has come back to a process, or has not.
    pub(crate) fn returned(&self, sent: usize, answer: &Result<Decision, EngineError>) {
        self.timeline.act();
        self.state().log.sent[sent].back = Some((self.now(), Outcome::of(answer)));
    }

    /// Does the process believe that the store is there?
    pub(crate) fn is_connected(&self, life: &Life) -> bool {
        let state = self.state();
        let (until, refuses) = state.cuts[life.node];
        let server = &state.servers[state.routes[life.node]];
        !(refuses && self.now() < until) && server.power != Power::Off
    }
}

impl State {
    fn pack(&mut self, call: &Call<'_>, life: &Life, row: Option<usize>) -> Packet {
        let of =
            |charge: &tidegate::Charge<'_>| (Subject::number_of(charge.limit), charge.cost.get());
        let charges: Vec<(usize, u64)> = call.charges.iter().map(of).collect();
        if let Some((id, ..)) = call.op.hold() {
            self.holds.insert(id.get(), charges.clone());
        }
        let once = call.once.map(|id| id.as_str().to_string());
        let kind = row.map(|row| self.log.rows[row].request.kind.clone());
        Packet { op: call.op, charges, once, kind, row, life: life.number }
    }

    /// What happens to a packet depends on what it is and on how many of the kind there were before, not
    /// on the order in which packets about different things are sent: that may differ from run to run.
    fn fate(&mut self, seed: u64, packet: &Packet) -> Rng {
        let mut key = Hash::new(seed);
        key.add(packet.life as u64);
        let charges = match packet.op {
            tidegate::Op::Settle { id, .. } | tidegate::Op::Renew { id, .. } => {
                key.add(1);
                self.holds.get(&id.get())
            }
            op => {
                key.add(if op.hold().is_some() { 2 } else { 3 });
                Some(&packet.charges)
            }
        };
        for (subject, _) in charges.into_iter().flatten() {
            key.add(*subject as u64);
        }
        let count = self.counts.entry((packet.life, key.0)).or_default();
        *count += 1;
        key.add(*count);
        Rng::new(key.0)
    }

    fn loses(&self, rng: &mut Rng, one_in: u64) -> bool {
        // Drawn in any case, so that what comes after is the same.
        let lost = one_in > 0 && rng.one_in(one_in);
        lost && !self.well
    }

    fn way(&self, rng: &mut Rng, latency: u64, now: u64) -> u64 {
        match self.slow {
            (until, slow) if now < until => rng.between(slow / 3, slow),
            _ => rng.between(10, latency),
        }
    }
}

/// A hash that is the same in every run.
pub(crate) struct Hash(pub(crate) u64);

impl Hash {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn add(&mut self, word: u64) {
        self.0 = Rng::new(self.0.rotate_left(7) ^ word).any();
    }
}
