//! A store, the links of the processes to it, and the log of admissions.

use std::collections::HashSet;
use std::future::{Future, pending};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{
    Call, Charge, Clock, Cost, Decision, Engine, EngineError, EngineFuture, Health, Inspection,
    Key, Lease, ManualClock, Memory, Micros, Op, Rule, RuleLimit, Sleep, Source,
};
use tidegate_model::TraceRng;

/// An event of the leased key, with its instant.
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
    /// A limit of another capacity became active.
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
pub(crate) struct LeaseCluster {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<Memory>,
    pub(crate) log: Mutex<Vec<Event>>,
    /// The limits that become active one after the other.
    pub(crate) limits: Vec<Arc<RuleLimit>>,
    active: AtomicU64,
    /// Names of the checks that reached the store.
    seen: Mutex<HashSet<String>>,
    /// Permits of loans whose reply was lost.
    pub(crate) lost_loan: AtomicU64,
    /// Decisions made without the store.
    pub(crate) local: AtomicU64,
}

impl LeaseCluster {
    pub(crate) fn new(limits: Vec<Arc<RuleLimit>>) -> Arc<Self> {
        let clock = ManualClock::new(Micros::new(1_700_000_000_000_500));
        let store = Arc::new(Memory::builder().clock(clock.clone()).build());
        Arc::new(Self {
            clock,
            store,
            log: Mutex::default(),
            limits,
            active: AtomicU64::new(0),
            seen: Mutex::default(),
            lost_loan: AtomicU64::new(0),
            local: AtomicU64::new(0),
        })
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().get()
    }

    /// Logs a decision that a process made locally.
    fn admit_locally(&self, at: u64, permits: u64) {
        self.local.fetch_add(1, Ordering::Relaxed);
        self.admit(at, permits);
    }

    fn admit(&self, at: u64, permits: u64) {
        let mut log = self.log.lock().unwrap();
        let later = log.iter().rev().take_while(|event| event.at() > at).count();
        let index = log.len() - later;
        log.insert(index, Event::Admit { at, permits });
    }

    pub(crate) fn admitted(&self) -> u64 {
        let permits = |event: &Event| match event {
            Event::Admit { permits, .. } => *permits,
            _ => 0,
        };
        self.log.lock().unwrap().iter().map(permits).sum()
    }

    /// Whether the store has received the whole call.
    pub(crate) fn has_seen(&self, name: &str) -> bool {
        self.seen.lock().unwrap().contains(name)
    }

    /// The remaining permits, read directly from the store.
    pub(crate) fn remaining(&self, limit: &Arc<RuleLimit>) -> u64 {
        self.store.inspect(limit, "k".into()).now().unwrap().standing.remaining
    }

    /// Advances the clock by `span` and runs every task that becomes ready meanwhile.
    pub(crate) async fn pass(&self, span: Duration) {
        let end = self.clock.elapsed().saturating_add(span.into());
        loop {
            run_ready_tasks().await;
            match self.clock.next_wake().filter(|wake| *wake <= end) {
                Some(wake) => self.clock.set(wake),
                None => break,
            }
        }
        self.clock.set(end);
        run_ready_tasks().await;
    }

    /// Decides in the store and logs what it admits.
    fn decide(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        for charge in call.charges {
            self.notice(charge.limit);
        }
        let result = self.store.decide(call).now();
        let Ok(decision) = &result else { return result };
        if call.op == Op::Check && decision.allowed() {
            for charge in call.charges.iter().filter(|charge| charge.limit.rule() == LEASED) {
                self.admit(self.now(), charge.cost.get());
                self.seen.lock().unwrap().extend(charge.caller.map(str::to_string));
            }
        }
        if call.op == Op::Refund {
            let (at, permits) = (self.now(), decision.refunded().get());
            self.log.lock().unwrap().push(Event::Refund { at, permits });
        }
        result
    }

    fn notice(&self, limit: &Arc<RuleLimit>) {
        let Some(index) = self.limits.iter().position(|known| Arc::ptr_eq(known, limit)) else {
            return;
        };
        let before = self.active.fetch_max(index as u64, Ordering::Relaxed);
        if before < index as u64 {
            let from = self.limits[usize::try_from(before).unwrap()].limit().capacity();
            let to = limit.limit().capacity();
            let at = self.now();
            self.log.lock().unwrap().push(Event::Change { at, from, to });
        }
    }
}

/// The rule that is leased in every test.
pub(crate) const LEASED: &str = "leased";

pub(crate) fn leased(notation: &str, size: tidegate::LeaseSize) -> Arc<RuleLimit> {
    let rule = Rule::new(LEASED, [notation.parse().unwrap()]).unwrap().lease(size);
    rule.limits()[0].clone()
}

pub(crate) fn charge<'a>(limit: &'a Arc<RuleLimit>, key: &'a str, cost: u64) -> Charge<'a> {
    Charge { limit, key: key.into(), cost: Cost::new(cost).unwrap(), caller: None }
}

/// One process.
pub(crate) struct Node {
    pub(crate) lease: Arc<Lease<Link>>,
    pub(crate) state: Arc<LinkState>,
}

impl Node {
    pub(crate) fn new(cluster: &Arc<LeaseCluster>, quality: Quality, seed: u64) -> Self {
        let mut rng = TraceRng::new(seed);
        let clock = SkewedClock {
            clock: cluster.clock.clone(),
            began: cluster.clock.elapsed(),
            per_mille: rng.between(1_000 - quality.drift, 1_000 + quality.drift),
        };
        let state = Arc::new(LinkState {
            dead: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            rng: Mutex::new(rng),
        });
        let link = Link { cluster: cluster.clone(), clock, state: state.clone(), quality };
        Self { lease: Arc::new(Lease::new(link)), state }
    }

    /// A process with a reliable link and an exact clock.
    pub(crate) fn reliable(cluster: &Arc<LeaseCluster>) -> Self {
        Self::new(cluster, Quality { latency: 500, loses_one_in: 0, drift: 0 }, 7)
    }

    /// Kills the process: it neither sends nor receives from now on. Returns its unspent permits,
    /// which are lost.
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

    /// Checks for `cost` permits and logs what the store does not see.
    pub(crate) async fn check(
        &self,
        cluster: &LeaseCluster,
        limit: &Arc<RuleLimit>,
        cost: u64,
    ) -> Result<Decision, EngineError> {
        let charges = [charge(limit, "k", cost)];
        let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
        let result = self.lease.decide(call).await;
        if let Ok(decision) = &result
            && decision.source == Source::Lease
        {
            assert!(decision.allowed(), "nothing is denied here");
            cluster.admit_locally(cluster.now(), cost);
        }
        result
    }
}

impl Node {
    /// Checks for `cost` permits of the leased limit and for one of another limit that is not
    /// leased. The name of the call shows whether it reached the store.
    pub(crate) async fn check_both(
        &self,
        cluster: &LeaseCluster,
        limit: &Arc<RuleLimit>,
        other: &Arc<RuleLimit>,
        (name, cost): (&str, u64),
    ) -> Result<Decision, EngineError> {
        let start = cluster.now();
        let both =
            [Charge { caller: Some(name), ..charge(limit, "k", cost) }, charge(other, "k", 1)];
        let result =
            self.lease.decide(Call { op: Op::Check, charges: &both, idempotency_key: None }).await;
        let allowed = result.as_ref().is_ok_and(Decision::allowed);
        if allowed && !cluster.has_seen(name) {
            cluster.admit_locally(start, cost);
        }
        result
    }
}

/// How unreliable a link and a clock may be.
#[derive(Clone, Copy)]
pub(crate) struct Quality {
    /// Maximum latency of one direction, in microseconds.
    pub(crate) latency: u64,
    /// 0 if nothing is lost.
    pub(crate) loses_one_in: u64,
    /// Maximum deviation of the clock's rate, in thousandths.
    pub(crate) drift: u64,
}

/// The link of a process to the store.
pub(crate) struct Link {
    cluster: Arc<LeaseCluster>,
    clock: SkewedClock,
    state: Arc<LinkState>,
    quality: Quality,
}

pub(crate) struct LinkState {
    dead: AtomicBool,
    calls: AtomicU64,
    rng: Mutex<TraceRng>,
}

impl Link {
    async fn travel(&self) {
        let span = self.state.rng.lock().unwrap().between(0, self.quality.latency);
        let arrival = self.cluster.clock.elapsed().saturating_add(Micros::new(span));
        self.cluster.clock.sleep_until(arrival).await;
    }

    fn loses(&self) -> bool {
        let one_in = self.quality.loses_one_in;
        one_in > 0 && self.state.rng.lock().unwrap().one_in(one_in)
    }

    /// A call that is in flight when its process dies may or may not arrive.
    async fn drop_if_dead(&self) {
        if self.state.dead.load(Ordering::Relaxed) && self.state.rng.lock().unwrap().one_in(2) {
            pending::<()>().await;
        }
    }

    async fn time_out(&self) -> EngineError {
        let end = self.cluster.clock.elapsed().saturating_add(Micros::from_millis(25));
        self.cluster.clock.sleep_until(end).await;
        EngineError::Ambiguous(Arc::new(io::Error::other("no reply")))
    }

    async fn send(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        if self.state.dead.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        self.state.calls.fetch_add(1, Ordering::Relaxed);
        if self.loses() {
            return Err(EngineError::unavailable(io::Error::other("not sent")));
        }
        self.travel().await;
        self.drop_if_dead().await;
        if self.loses() {
            return Err(self.time_out().await);
        }
        let result = self.cluster.decide(call);
        let lent = match (call.op, &result) {
            (Op::Hold(hold), Ok(decision)) if hold.is_loan() && decision.allowed() => {
                call.charges[0].cost.get()
            }
            _ => 0,
        };
        // If this future is dropped before its end, the reply is lost.
        let mut lost_loan = LostLoan(&self.cluster.lost_loan, lent);
        self.travel().await;
        if self.state.dead.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        if self.loses() {
            return Err(self.time_out().await);
        }
        lost_loan.1 = 0;
        result
    }
}

struct LostLoan<'a>(&'a AtomicU64, u64);

impl Drop for LostLoan<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(self.1, Ordering::Relaxed);
    }
}

impl Engine for Link {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(self.send(call)))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.cluster.store.inspect(limit, key)
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
struct SkewedClock {
    clock: ManualClock,
    began: Micros,
    per_mille: u64,
}

impl Clock for SkewedClock {
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

/// Runs on one thread, in the same order every time.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Runs every task that is ready.
pub(crate) async fn run_ready_tasks() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}
