//! State of the simulation: stores, processes, and packets in flight.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate::{Call, Decision, EngineError, Source};
use tidegate_model::TraceRng;

use crate::fault_simulation::broken_layers::Mutation;
use crate::fault_simulation::log::{Log, Outcome, Sent};
use crate::fault_simulation::network::{Incarnation, ReplySlot, SendResult};
use crate::fault_simulation::node::Node;
use crate::fault_simulation::plan::{Plan, Subject};
use crate::fault_simulation::store::{Packet, Power, Server};
use crate::fault_simulation::time::{BEGIN, Timeline};

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) mutation: Mutation,
    pub(crate) timeline: Arc<Timeline>,
    state: Mutex<State>,
}

pub(crate) struct State {
    /// All stores of the history; the last is the primary.
    pub(crate) servers: Vec<Server>,
    /// Index of the store that each process calls.
    pub(crate) routes: Vec<usize>,
    /// Until when each process is cut off, and whether its calls fail at once.
    pub(crate) cuts: Vec<(u64, bool)>,
    pub(crate) slow: (u64, u64),
    /// Faults have ended: nothing is lost any more.
    pub(crate) faults_ended: bool,
    pub(crate) nodes: Vec<Option<Arc<Node>>>,
    pub(crate) log: Log,
    /// The charges of every hold.
    holds: HashMap<u128, Vec<(usize, u64)>>,
    /// How many equal packets each process has sent.
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
            faults_ended: false,
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
        incarnation: &Arc<Incarnation>,
        call: &Call<'_>,
        row: Option<usize>,
    ) -> (usize, SendResult) {
        self.timeline.note_activity();
        let (now, state) = (self.now(), &mut *self.state());
        let packet = state.pack(call, incarnation, row);
        let mut rng = state.fate(self.plan.seed, &packet);
        state.log.sent.push(Sent { incarnation: incarnation.number, row, at: now, result: None });
        let number = state.log.sent.len() - 1;
        let (cut_until, refuses) = state.cuts[incarnation.node];
        let cut = now < cut_until;
        if cut && (refuses || rng.one_in(2)) {
            return (
                number,
                SendResult::Refused(if refuses { rng.below(1_000) } else { u64::MAX / 4 }),
            );
        }
        let lost = cut || state.loses(&mut rng, self.plan.links.loses_one_in);
        if lost && rng.one_in(3) {
            return (number, SendResult::Refused(rng.below(1_000)));
        }
        let reply_slot: Arc<ReplySlot> = Arc::default();
        if !lost {
            let arrives = now + state.latency_of(&mut rng, self.plan.links.latency, now);
            let server = state.routes[incarnation.node];
            let (incarnation, reply_slot) = (incarnation.clone(), reply_slot.clone());
            let packet = Arc::new(packet);
            self.timeline.plan(arrives, move |world| {
                world.arrive(server, incarnation, packet, reply_slot, rng)
            });
        }
        (number, SendResult::Sent(reply_slot))
    }

    /// A call reaches a store.
    fn arrive(
        self: &Arc<Self>,
        server: usize,
        incarnation: Arc<Incarnation>,
        packet: Arc<Packet>,
        reply_slot: Arc<ReplySlot>,
        mut rng: TraceRng,
    ) {
        let (now, state) = (self.now(), &mut *self.state());
        let reply = match state.servers[server].power {
            Power::Off if rng.one_in(2) => return,
            Power::Off => Err(EngineError::unavailable(std::io::Error::other("refused"))),
            Power::Frozen => {
                let later = move |world: &Arc<Self>| {
                    world.arrive(server, incarnation, packet, reply_slot, rng)
                };
                return state.servers[server].backlog.push(Box::new(later));
            }
            Power::On => {
                let number = state.log.executions.len();
                let done = self.mutation.corrupt_packet(&packet, number);
                let server = &mut state.servers[server];
                let mut execution =
                    server.execute(number, (packet, done), now, &self.plan.subjects);
                if let Ok(decision) = &mut execution.reply {
                    decision.source = Source::Redis;
                }
                state.log.executions.push(execution.clone());
                execution.reply
            }
        };
        if state.loses(&mut rng, self.plan.links.loses_one_in) {
            return;
        }
        let returns = now + state.latency_of(&mut rng, self.plan.links.latency, now);
        self.timeline.plan(returns, move |world| {
            let is_cut = world.now() < world.state().cuts[incarnation.node].0;
            if !is_cut && !incarnation.is_dead() {
                reply_slot.set(reply);
                world.timeline.note_activity();
            }
        });
    }

    /// A reply has reached a process, or its deadline has passed.
    pub(crate) fn returned(&self, sent: usize, reply: &Result<Decision, EngineError>) {
        self.timeline.note_activity();
        self.state().log.sent[sent].result = Some((self.now(), Outcome::of(reply)));
    }

    /// Whether the process sees a connection to the store.
    pub(crate) fn is_connected(&self, incarnation: &Incarnation) -> bool {
        let state = self.state();
        let (until, refuses) = state.cuts[incarnation.node];
        let server = &state.servers[state.routes[incarnation.node]];
        !(refuses && self.now() < until) && server.power != Power::Off
    }
}

impl State {
    fn pack(&mut self, call: &Call<'_>, incarnation: &Incarnation, row: Option<usize>) -> Packet {
        let of =
            |charge: &tidegate::Charge<'_>| (Subject::number_of(charge.limit), charge.cost.get());
        let charges: Vec<(usize, u64)> = call.charges.iter().map(of).collect();
        if let tidegate::Op::Hold(hold) = call.op {
            self.holds.insert(hold.id.get(), charges.clone());
        }
        let once = call.idempotency_key.map(|id| id.as_str().to_string());
        let kind = row.map(|row| self.log.rows[row].request.kind.clone());
        let op = crate::enter::owned_op(call.op);
        Packet { op, charges, once, kind, row, incarnation: incarnation.number }
    }

    /// The fate of a packet depends on its content and on the number of equal packets before it. It
    /// does not depend on the order of packets for different subjects, which may differ from run to
    /// run.
    fn fate(&mut self, seed: u64, packet: &Packet) -> TraceRng {
        let mut key = Hash::new(seed);
        key.add(packet.incarnation as u64);
        let charges = match packet.op {
            tidegate::Op::Settle { id, .. } | tidegate::Op::Renew { id, .. } => {
                key.add(1);
                self.holds.get(&id.get())
            }
            op => {
                key.add(if matches!(op, tidegate::Op::Hold(_)) { 2 } else { 3 });
                Some(&packet.charges)
            }
        };
        for (subject, _) in charges.into_iter().flatten() {
            key.add(*subject as u64);
        }
        let count = self.counts.entry((packet.incarnation, key.0)).or_default();
        *count += 1;
        key.add(*count);
        TraceRng::new(key.0)
    }

    fn loses(&self, rng: &mut TraceRng, one_in: u64) -> bool {
        // Drawn in any case, so that later draws are the same.
        let lost = one_in > 0 && rng.one_in(one_in);
        lost && !self.faults_ended
    }

    fn latency_of(&self, rng: &mut TraceRng, latency: u64, now: u64) -> u64 {
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
        self.0 = TraceRng::new(self.0.rotate_left(7) ^ word).any();
    }
}
