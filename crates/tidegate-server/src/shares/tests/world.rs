//! Envoys, a server, and the streams between them, driven by a seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidegate::Micros;
use tidegate::simulate::Rng;

use super::envoy::EnvoyBucket;
use super::judge::Judge;
use crate::shares::allocator::{Allocator, Message, Outbox};
use crate::shares::ledger::{BrokenRule, HolderId, ShareTiming};
use tidegate_config::envoy::ShareLimit;

/// What can go wrong, each in thousandths of the occasions.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Faults {
    /// Of reports: lost, repeated.
    pub(super) lost: u64,
    pub(super) repeated: u64,
    /// Of messages of the server: the stream is stuck for up to three seconds.
    pub(super) stuck: u64,
    /// Of seconds of an Envoy: its stream breaks, it restarts.
    pub(super) breaks: u64,
    pub(super) restarts: u64,
    /// Of seconds: the server restarts, the limit changes.
    pub(super) server_restarts: u64,
    pub(super) limit_changes: u64,
    /// Delays of messages are anything up to the guard, else a millisecond.
    pub(super) delays: bool,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mutant {
    Ledger(BrokenRule),
    /// An Envoy that restarts is taken for the holder that it was.
    RestartIsSameHolder,
    /// A server that starts lends at once.
    NoWaitAtStart,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum QuotaWorldEvent {
    Request(usize),
    Report(usize),
    /// A report arrives: Envoy, stream, requests.
    Arrive(usize, u64, u64),
    /// A message of the server arrives at this Envoy on this stream.
    Apply(usize, u64),
    Resume(usize, u64),
    Connect(usize),
    CentralCall,
    Second,
}

/// One Envoy and its stream.
pub(super) struct EnvoyPeer {
    pub(super) bucket: EnvoyBucket,
    /// Requests a second.
    pub(super) demand: f64,
    pub(super) admitted: u64,
    stream: u64,
    is_connected: bool,
    holder: Option<HolderId>,
    /// Decided, not yet written.
    queue: VecDeque<(Micros, Message)>,
    stuck: bool,
    /// Written, not yet applied.
    flight: VecDeque<Message>,
    last_arrival: Micros,
    last_report: Micros,
}

pub(super) struct QuotaWorld {
    pub(super) peers: Vec<EnvoyPeer>,
    pub(super) judge: Judge,
    pub(super) now: Micros,
    pub(super) central_demand: f64,
    pub(super) central_admitted: u64,
    limits: Vec<ShareLimit>,
    limit: ShareLimit,
    allocator: Allocator,
    events: BinaryHeap<Reverse<(Micros, u64, QuotaWorldEvent)>>,
    sequence: u64,
    next_holder: u64,
    rng: Rng,
    faults: Faults,
    mutant: Option<Mutant>,
    shifts_demand: bool,
}

const TIMING: ShareTiming = ShareTiming { ttl: Micros::from_secs(8), guard: Micros::from_secs(2) };

impl QuotaWorld {
    pub(super) fn new(seed: u64, limits: Vec<ShareLimit>, peers: usize, faults: Faults) -> Self {
        let limit = limits[0];
        let rng = Rng::new(seed);
        let peer = |_| EnvoyPeer {
            bucket: EnvoyBucket::default(),
            demand: 0.0,
            admitted: 0,
            stream: 0,
            is_connected: false,
            holder: None,
            queue: VecDeque::new(),
            stuck: false,
            flight: VecDeque::new(),
            last_arrival: Micros::ZERO,
            last_report: Micros::ZERO,
        };
        let mut world = Self {
            peers: (0..peers).map(peer).collect(),
            judge: Judge::new(limit),
            now: Micros::ZERO,
            central_demand: 0.0,
            central_admitted: 0,
            allocator: Allocator::starting(limit, TIMING, Micros::ZERO),
            limits,
            limit,
            events: BinaryHeap::new(),
            sequence: 0,
            next_holder: 0,
            rng,
            faults,
            mutant: None,
            shifts_demand: false,
        };
        for index in 0..peers {
            let start = Micros::new(world.rng.below(5_000_000));
            world.at(start, QuotaWorldEvent::Connect(index));
            world.at(start, QuotaWorldEvent::Report(index));
            world.at(start, QuotaWorldEvent::Request(index));
        }
        world.at(Micros::ZERO, QuotaWorldEvent::Second);
        world.at(Micros::ZERO, QuotaWorldEvent::CentralCall);
        world
    }

    pub(super) fn with_mutant(mut self, mutant: Option<Mutant>) -> Self {
        self.mutant = mutant;
        self.break_ledger();
        self
    }

    /// Demand of every Envoy changes at random.
    pub(super) fn with_shifts(mut self) -> Self {
        self.shifts_demand = true;
        self
    }

    fn break_ledger(&mut self) {
        if let Some(Mutant::Ledger(rule)) = self.mutant {
            self.allocator.ledger_mut().broken = Some(rule);
        }
    }

    fn at(&mut self, at: Micros, event: QuotaWorldEvent) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn after(&mut self, micros: u64, event: QuotaWorldEvent) {
        self.at(self.now.saturating_add(Micros::new(micros)), event);
    }

    fn happens(&mut self, thousandths: u64) -> bool {
        self.rng.below(1_000) < thousandths
    }

    fn unit(&mut self) -> f64 {
        self.rng.below(1 << 53) as f64 / (1_u64 << 53) as f64
    }

    /// Time to the next request at `rate` a second.
    fn gap(&mut self, rate: f64) -> u64 {
        let unit = self.unit();
        // Without demand, look again after a second.
        if rate <= 0.0 { 1_000_000 } else { (-(1.0 - unit).ln() / rate * 1e6).min(1e6) as u64 + 1 }
    }

    pub(super) fn run_until(&mut self, end: Micros) {
        while let Some(Reverse((at, _, _))) = self.events.peek() {
            if *at > end {
                break;
            }
            if let Some(Reverse((at, _, event))) = self.events.pop() {
                self.now = at;
                self.step(event);
            }
        }
        self.now = end;
    }

    fn step(&mut self, event: QuotaWorldEvent) {
        match event {
            QuotaWorldEvent::Request(index) => self.request(index),
            QuotaWorldEvent::Report(index) => self.report(index),
            QuotaWorldEvent::Arrive(index, stream, count) => self.arrive(index, stream, count),
            QuotaWorldEvent::Apply(index, stream) => self.apply(index, stream),
            QuotaWorldEvent::Resume(index, stream) if self.peers[index].stream == stream => {
                self.peers[index].stuck = false;
                self.flush(index);
            }
            QuotaWorldEvent::Resume(..) => {}
            QuotaWorldEvent::Connect(index) => self.connect(index),
            QuotaWorldEvent::CentralCall => self.central_call(),
            QuotaWorldEvent::Second => self.second(),
        }
    }

    fn request(&mut self, index: usize) {
        let demand = self.peers[index].demand;
        let gap = self.gap(demand);
        self.after(gap, QuotaWorldEvent::Request(index));
        // Without demand, and where the gap was cut to a second, it is no request.
        if demand <= 0.0 || gap >= 1_000_000 {
            return;
        }
        let (now, peer) = (self.now, &mut self.peers[index]);
        if peer.bucket.request(now) {
            peer.admitted += 1;
            self.judge.admit(now);
        }
    }

    fn report(&mut self, index: usize) {
        let jitter = if self.faults.delays { self.rng.below(1_500_000) } else { 0 };
        self.after(5_000_000 + jitter, QuotaWorldEvent::Report(index));
        let peer = &mut self.peers[index];
        let (allowed, denied) = peer.bucket.counted();
        if !peer.is_connected || self.happens(self.faults.lost) {
            return;
        }
        let times = 1 + u64::from(self.happens(self.faults.repeated));
        for _ in 0..times {
            let delay = self.delay();
            let peer = &mut self.peers[index];
            let arrival = self.now.saturating_add(delay).max(peer.last_report);
            peer.last_report = arrival;
            let stream = peer.stream;
            self.at(arrival, QuotaWorldEvent::Arrive(index, stream, allowed + denied));
        }
    }

    /// Anything up to half the guard; often one of the ends.
    fn delay(&mut self) -> Micros {
        let longest = TIMING.guard.get() / 2;
        Micros::new(match self.rng.below(4) {
            _ if !self.faults.delays => 1_000,
            0 => 0,
            1 => longest,
            _ => self.rng.below(longest),
        })
    }

    fn arrive(&mut self, index: usize, stream: u64, count: u64) {
        let peer = &mut self.peers[index];
        if peer.stream != stream || !peer.is_connected {
            return;
        }
        let mut out = Outbox::new();
        match peer.holder {
            Some(holder) => self.allocator.report(self.now, holder, count, &mut out),
            None => {
                self.next_holder += 1;
                let holder = HolderId(self.next_holder);
                peer.holder = Some(holder);
                self.allocator.join(self.now, holder, &mut out);
            }
        }
        self.dispatch(out);
    }

    fn dispatch(&mut self, out: Outbox) {
        for (holder, message) in out {
            let found = self.peers.iter().position(|peer| peer.holder == Some(holder));
            let Some(index) = found else { continue };
            let now = self.now;
            self.peers[index].queue.push_back((now, message));
            if !self.peers[index].stuck && self.happens(self.faults.stuck) {
                self.peers[index].stuck = true;
                let (span, stream) = (self.rng.below(3_000_000), self.peers[index].stream);
                self.after(span, QuotaWorldEvent::Resume(index, stream));
            }
            if !self.peers[index].stuck {
                self.flush(index);
            }
        }
    }

    /// Writes what is queued. What is too old is dropped, and what came after it.
    fn flush(&mut self, index: usize) {
        let mut dropped = false;
        while let Some((decided, message)) = self.peers[index].queue.pop_front() {
            let half = Micros::new(TIMING.guard.get() / 2);
            let is_late = self.now.saturating_sub(decided) > half;
            if matches!(message, Message::Assign(_)) && (is_late || dropped) {
                dropped = true;
                if let Some(holder) = self.peers[index].holder {
                    self.allocator.dropped(holder);
                }
                continue;
            }
            let delay = self.delay();
            let now = self.now;
            let peer = &mut self.peers[index];
            let arrival = now.saturating_add(delay).max(peer.last_arrival);
            peer.last_arrival = arrival;
            peer.flight.push_back(message);
            let stream = peer.stream;
            self.at(arrival, QuotaWorldEvent::Apply(index, stream));
        }
    }

    fn apply(&mut self, index: usize, stream: u64) {
        let (now, peer) = (self.now, &mut self.peers[index]);
        if peer.stream != stream {
            return;
        }
        match peer.flight.pop_front() {
            Some(Message::Assign(assignment)) => peer.bucket.assign(now, &assignment, TIMING.ttl),
            Some(Message::DenyAll) => peer.bucket.deny(now, TIMING.ttl),
            None => {}
        }
    }

    fn connect(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        peer.stream += 1;
        peer.is_connected = true;
        (peer.queue, peer.flight, peer.stuck) = (VecDeque::new(), VecDeque::new(), false);
        (peer.last_arrival, peer.last_report) = (self.now, self.now);
    }

    fn break_stream(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        peer.is_connected = false;
        peer.stream += 1;
        let mut out = Outbox::new();
        if let Some(holder) = peer.holder.take() {
            self.allocator.leave(self.now, holder, &mut out);
        }
        self.dispatch(out);
        let pause = self.rng.below(4_000_000);
        self.after(pause, QuotaWorldEvent::Connect(index));
    }

    fn central_call(&mut self) {
        let demand = self.central_demand;
        let gap = self.gap(demand);
        self.after(gap, QuotaWorldEvent::CentralCall);
        if demand <= 0.0 || gap >= 1_000_000 {
            return;
        }
        let mut out = Outbox::new();
        if self.allocator.take(self.now, 1, &mut out) {
            self.central_admitted += 1;
            self.judge.admit(self.now);
        }
        self.dispatch(out);
    }

    fn second(&mut self) {
        self.after(1_000_000, QuotaWorldEvent::Second);
        let mut out = Outbox::new();
        self.allocator.tick(self.now, &mut out);
        self.dispatch(out);
        for index in 0..self.peers.len() {
            if self.happens(self.faults.restarts) {
                self.restart(index);
            } else if self.peers[index].is_connected && self.happens(self.faults.breaks) {
                self.break_stream(index);
            }
            if self.shifts_demand && self.happens(80) {
                let per_second = self.per_second();
                let share = [0.0, 0.2, 1.0, 4.0][self.rng.below(4) as usize];
                self.peers[index].demand = (per_second * share).min(60.0);
            }
        }
        if self.shifts_demand && self.happens(80) {
            let share = [0.0, 0.0, 0.5, 2.0][self.rng.below(4) as usize];
            self.central_demand = (self.per_second() * share).min(60.0);
        }
        if self.happens(self.faults.server_restarts) {
            self.restart_server();
        }
        if self.happens(self.faults.limit_changes) {
            let next = self.rng.below(self.limits.len() as u64) as usize;
            self.limit = self.limits[next];
            self.allocator.set_limit(self.limit);
            self.judge.set_limit(self.now, self.limit);
        }
    }

    fn per_second(&self) -> f64 {
        let micros = self.limit.interval.length().get() as f64;
        (self.limit.tokens as f64 * 1e6 / micros).max(0.5)
    }

    fn restart(&mut self, index: usize) {
        self.peers[index].bucket.restart();
        if self.mutant == Some(Mutant::RestartIsSameHolder) {
            return;
        }
        if self.peers[index].is_connected {
            self.break_stream(index);
        }
    }

    fn restart_server(&mut self) {
        let mut from = self.now.saturating_add(TIMING.lifetime());
        if self.mutant == Some(Mutant::NoWaitAtStart) {
            from = self.now;
        }
        for index in 0..self.peers.len() {
            if self.peers[index].is_connected {
                self.break_stream(index);
            }
        }
        self.allocator = Allocator::starting(self.limit, TIMING, from);
        self.break_ledger();
    }
}
