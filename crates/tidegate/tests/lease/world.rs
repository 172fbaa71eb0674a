//! A store, the links to it, and the log.

use std::collections::HashSet;
use std::future::{Future, pending};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{
    Answer, Call, Charge, Clock, Cost, Decision, Engine, EngineError, Health, Inspection, Key,
    Lease, ManualClock, Memory, Micros, Op, Rule, RuleLimit, Sleep, Source,
};
use tidegate_model::Rng;

/// What happened to a key under a rule, at the instant at which it did.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Admit {
        at: u64,
        permits: u64,
    },
    Refund {
        at: u64,
        permits: u64,
    },
    /// A limit of another capacity came into force.
    Change {
        at: u64,
        from: u64,
        to: u64,
    },
}

impl Event {
    pub(crate) fn at(&self) -> u64 {
        match *self {
            Self::Admit { at, .. } | Self::Refund { at, .. } | Self::Change { at, .. } => at,
        }
    }
}

/// The store and the true time.
pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<Memory>,
    pub(crate) log: Mutex<Vec<Event>>,
    /// The limits that come into force one after the other, and which of them is.
    pub(crate) limits: Vec<Arc<RuleLimit>>,
    in_force: AtomicU64,
    /// Checks that the store has seen, by the name they came with.
    seen: Mutex<HashSet<String>>,
    /// Permits that the store lent and of which nobody heard.
    pub(crate) unheard: AtomicU64,
    /// How many decisions it was not asked about.
    pub(crate) local: AtomicU64,
}

impl World {
    pub(crate) fn new(limits: Vec<Arc<RuleLimit>>) -> Arc<Self> {
        let clock = ManualClock::new(Micros::new(1_700_000_000_000_500));
        let store = Arc::new(Memory::builder().clock(clock.clone()).build());
        Arc::new(Self {
            clock,
            store,
            log: Mutex::default(),
            limits,
            in_force: AtomicU64::new(0),
            seen: Mutex::default(),
            unheard: AtomicU64::new(0),
            local: AtomicU64::new(0),
        })
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().get()
    }

    /// A process has decided by itself, at this instant.
    fn admit_locally(&self, at: u64, permits: u64) {
        self.local.fetch_add(1, Ordering::Relaxed);
        self.admit(at, permits);
    }

    fn admit(&self, at: u64, permits: u64) {
        let mut log = self.log.lock().unwrap();
        let later = log.iter().rev().take_while(|event| event.at() > at).count();
        let place = log.len() - later;
        log.insert(place, Event::Admit { at, permits });
    }

    pub(crate) fn admitted(&self) -> u64 {
        let permits = |event: &Event| match event {
            Event::Admit { permits, .. } => *permits,
            _ => 0,
        };
        self.log.lock().unwrap().iter().map(permits).sum()
    }

    /// Has the store been asked about the whole of this call?
    pub(crate) fn has_seen(&self, name: &str) -> bool {
        self.seen.lock().unwrap().contains(name)
    }

    /// What the store says, unasked by any process.
    pub(crate) fn remaining(&self, limit: &Arc<RuleLimit>) -> u64 {
        self.store.inspect(limit, "k".into()).now().unwrap().standing.remaining
    }

    /// Lets this much time pass, and everybody do what they wait for meanwhile.
    pub(crate) async fn pass(&self, span: Duration) {
        let end = self.clock.elapsed().saturating_add(span.into());
        loop {
            quiet().await;
            match self.clock.next_wake().filter(|wake| *wake <= end) {
                Some(wake) => self.clock.set(wake),
                None => break,
            }
        }
        self.clock.set(end);
        quiet().await;
    }

    /// The store decides. What it admits is written down as it does.
    fn decide(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        for charge in call.charges {
            self.notice(charge.limit);
        }
        let answer = self.store.decide(call).now();
        let Ok(decision) = &answer else { return answer };
        if call.op == Op::Check && decision.allowed() {
            for charge in call.charges.iter().filter(|charge| charge.limit.rule() == LEASED) {
                self.admit(self.now(), charge.cost.get());
                self.seen.lock().unwrap().extend(charge.who.map(str::to_string));
            }
        }
        if call.op == Op::Refund {
            let (at, permits) = (self.now(), decision.refunded().get());
            self.log.lock().unwrap().push(Event::Refund { at, permits });
        }
        answer
    }

    fn notice(&self, limit: &Arc<RuleLimit>) {
        let Some(place) = self.limits.iter().position(|known| Arc::ptr_eq(known, limit)) else {
            return;
        };
        let before = self.in_force.fetch_max(place as u64, Ordering::Relaxed);
        if before < place as u64 {
            let from = self.limits[usize::try_from(before).unwrap()].limit().capacity();
            let to = limit.limit().capacity();
            let at = self.now();
            self.log.lock().unwrap().push(Event::Change { at, from, to });
        }
    }
}

/// The rule that is leased in every test.
pub(crate) const LEASED: &str = "leased";

/// A rule of that name.
pub(crate) fn leased(notation: &str, size: tidegate::LeaseSize) -> Arc<RuleLimit> {
    let rule = Rule::new(LEASED, [notation.parse().unwrap()]).unwrap().lease(size);
    rule.limits()[0].clone()
}

pub(crate) fn charge<'a>(limit: &'a Arc<RuleLimit>, key: &'a str, cost: u64) -> Charge<'a> {
    Charge { limit, key: key.into(), cost: Cost::new(cost).unwrap(), who: None }
}

/// One process.
pub(crate) struct Node {
    pub(crate) lease: Arc<Lease<Link>>,
    pub(crate) state: Arc<LinkState>,
}

impl Node {
    pub(crate) fn new(world: &Arc<World>, quality: Quality, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let clock = Skewed {
            clock: world.clock.clone(),
            began: world.clock.elapsed(),
            per_mille: rng.between(1_000 - quality.drift, 1_000 + quality.drift),
        };
        let state = Arc::new(LinkState {
            dead: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            rng: Mutex::new(rng),
        });
        let link = Link { world: world.clone(), clock, state: state.clone(), quality };
        Self { lease: Arc::new(Lease::new(link)), state }
    }

    /// A good link and a good clock.
    pub(crate) fn good(world: &Arc<World>) -> Self {
        Self::new(world, Quality { latency: 500, loses_one_in: 0, drift: 0 }, 7)
    }

    /// It dies: it neither sends nor hears anything from now on. What is left of what it borrowed is
    /// lost.
    pub(crate) fn kill(&self) -> u64 {
        self.state.dead.store(true, Ordering::Relaxed);
        self.unspent()
    }

    pub(crate) fn calls(&self) -> u64 {
        self.state.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn unspent(&self) -> u64 {
        self.lease.outstanding().values().sum()
    }

    /// Asks for `cost`, and writes down what the store does not see.
    pub(crate) async fn check(
        &self,
        world: &World,
        limit: &Arc<RuleLimit>,
        cost: u64,
    ) -> Result<Decision, EngineError> {
        let charges = [charge(limit, "k", cost)];
        let call = Call { op: Op::Check, charges: &charges, once: None };
        let answer = self.lease.decide(call).await;
        if let Ok(decision) = &answer
            && decision.source == Source::Lease
        {
            assert!(decision.allowed(), "nothing is denied here");
            world.admit_locally(world.now(), cost);
        }
        answer
    }
}

impl Node {
    /// Asks for `cost` of the leased limit and for one of another that is not. The call has a name, by
    /// which it is known how much of it the store was asked about.
    pub(crate) async fn check_both(
        &self,
        world: &World,
        limit: &Arc<RuleLimit>,
        other: &Arc<RuleLimit>,
        (name, cost): (&str, u64),
    ) -> Result<Decision, EngineError> {
        let start = world.now();
        let both = [Charge { who: Some(name), ..charge(limit, "k", cost) }, charge(other, "k", 1)];
        let answer = self.lease.decide(Call { op: Op::Check, charges: &both, once: None }).await;
        let allowed = answer.as_ref().is_ok_and(Decision::allowed);
        if allowed && !world.has_seen(name) {
            world.admit_locally(start, cost);
        }
        answer
    }
}

/// How bad a link and a clock may be.
#[derive(Clone, Copy)]
pub(crate) struct Quality {
    /// The longest way, in microseconds.
    pub(crate) latency: u64,
    /// 0: it loses nothing.
    pub(crate) loses_one_in: u64,
    /// By how many thousandths the clock runs fast or slow, at most.
    pub(crate) drift: u64,
}

/// The way from a process to the store.
pub(crate) struct Link {
    world: Arc<World>,
    clock: Skewed,
    state: Arc<LinkState>,
    quality: Quality,
}

pub(crate) struct LinkState {
    dead: AtomicBool,
    calls: AtomicU64,
    rng: Mutex<Rng>,
}

impl Link {
    async fn on_the_way(&self) {
        let span = self.state.rng.lock().unwrap().between(0, self.quality.latency);
        let arrival = self.world.clock.elapsed().saturating_add(Micros::new(span));
        self.world.clock.sleep_until(arrival).await;
    }

    fn loses(&self) -> bool {
        let one_in = self.quality.loses_one_in;
        one_in > 0 && self.state.rng.lock().unwrap().one_in(one_in)
    }

    /// What is on its way when its process dies arrives, or does not.
    async fn or_dies(&self) {
        if self.state.dead.load(Ordering::Relaxed) && self.state.rng.lock().unwrap().one_in(2) {
            pending::<()>().await;
        }
    }

    async fn time_out(&self) -> EngineError {
        let end = self.world.clock.elapsed().saturating_add(Micros::from_millis(25));
        self.world.clock.sleep_until(end).await;
        EngineError::Ambiguous(Arc::new(io::Error::other("no answer")))
    }

    async fn carry(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        if self.state.dead.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        self.state.calls.fetch_add(1, Ordering::Relaxed);
        if self.loses() {
            return Err(EngineError::unavailable(io::Error::other("not sent")));
        }
        self.on_the_way().await;
        self.or_dies().await;
        if self.loses() {
            return Err(self.time_out().await);
        }
        let answer = self.world.decide(call);
        let lent = match (call.op, &answer) {
            (Op::Lend { .. }, Ok(decision)) if decision.allowed() => call.charges[0].cost.get(),
            _ => 0,
        };
        // Whoever drops this before the end has not heard.
        let mut unheard = Unheard(&self.world.unheard, lent);
        self.on_the_way().await;
        if self.state.dead.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        if self.loses() {
            return Err(self.time_out().await);
        }
        unheard.1 = 0;
        answer
    }
}

struct Unheard<'a>(&'a AtomicU64, u64);

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(self.1, Ordering::Relaxed);
    }
}

impl Engine for Link {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(self.carry(call)))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.world.store.inspect(limit, key)
    }

    fn health(&self) -> Health {
        Health::up(None, 0)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }
}

/// A clock that runs fast or slow, and shows a wrong time of day.
#[derive(Clone)]
struct Skewed {
    clock: ManualClock,
    began: Micros,
    per_mille: u64,
}

impl Clock for Skewed {
    fn now(&self) -> Micros {
        self.clock.now().saturating_add(Micros::from_secs(3_600))
    }

    fn elapsed(&self) -> Micros {
        let passed = self.clock.elapsed().saturating_sub(self.began).get();
        Micros::new(passed * self.per_mille / 1_000)
    }

    fn sleep_until(&self, elapsed: Micros) -> Sleep {
        let passed = (elapsed.get() * 1_000).div_ceil(self.per_mille);
        self.clock.sleep_until(self.began.saturating_add(Micros::new(passed)))
    }
}

/// Runs it on one thread, in the same order every time.
pub(crate) fn run<T>(what: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(what)
}

/// Lets everybody do what they can do now.
pub(crate) async fn quiet() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}
