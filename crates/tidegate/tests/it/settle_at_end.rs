//! Slots and costs that are settled at the end of a request, while the store does not reply. The
//! clock is manual.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::now_or_never::now_or_panic;
use tidegate::{
    Breaker, Call, Clock, Cost, Costs, Decision, Engine, EngineError, EngineFuture, Fallback,
    Health, HoldId, Inspection, Key, Limiter, ManualClock, Memory, Micros, Op, Rule, RuleLimit,
    Slot,
};

const LEASE: Duration = Duration::from_secs(30);
const COST: u64 = 10;

/// What the store does with calls about holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Nothing is done.
    Unavailable,
    /// Done, and the reply is lost.
    ReplyLost,
}

/// A store on a network: decides when it is polled.
struct FaultyStore {
    memory: Memory,
    fault: Mutex<Fault>,
    /// Another store, without the holds of the first, decides.
    replaced: AtomicBool,
    replacement: Memory,
}

impl FaultyStore {
    fn decide(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        let fault = *self.fault.lock().unwrap();
        let cause = Arc::new(std::io::Error::other("made to fail"));
        if fault == Fault::Unavailable {
            return Err(EngineError::Unavailable(cause));
        }
        let decided = self.memory().decide(call).now();
        if fault == Fault::ReplyLost { Err(EngineError::Ambiguous(cause)) } else { decided }
    }

    fn memory(&self) -> &Memory {
        if self.replaced.load(Ordering::SeqCst) { &self.replacement } else { &self.memory }
    }
}

impl Engine for FaultyStore {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move { self.decide(call) }))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.memory().inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

struct Bench {
    clock: ManualClock,
    store: Arc<FaultyStore>,
    limiter: Limiter,
}

impl Bench {
    /// A limiter on the store alone, or behind a breaker and a fallback.
    fn new(limits: &[&str], layered: bool) -> Self {
        let clock = ManualClock::default();
        let memory = || Memory::builder().clock(clock.clone()).build();
        let store = Arc::new(FaultyStore {
            memory: memory(),
            fault: Mutex::new(Fault::None),
            replaced: AtomicBool::new(false),
            replacement: memory(),
        });
        let rule = Rule::new("work", limits.iter().map(|text| text.parse().unwrap())).unwrap();
        let limiter = match layered {
            true => {
                Limiter::with_rules(Fallback::new(Breaker::new(store.clone())), [rule]).unwrap()
            }
            false => Limiter::with_rules(store.clone(), [rule]).unwrap(),
        };
        Self { clock, store, limiter }
    }

    fn set(&self, fault: Fault) {
        *self.store.fault.lock().unwrap() = fault;
    }

    /// Used and held permits of the first limit, in the store.
    fn standing(&self) -> (u64, u64) {
        let rules = self.limiter.rules();
        let found = now_or_panic(self.store.inspect(&rules[0].limits()[0], "k".into())).unwrap();
        (found.standing.used, found.standing.held)
    }

    /// A request of [`COST`], to be charged at its end.
    async fn hold_for_request(&self) -> Slot {
        let policy = self.limiter.policy();
        let lists = tidegate::policy::ListMode::Evaluate;
        let cost = Cost::new(COST).unwrap();
        let plan = policy.plan_key("k".into(), cost, lists, self.clock.now()).unwrap();
        let op = Op::hold_for_request(HoldId::random().unwrap(), LEASE.into());
        let decision = self.limiter.decide(op, &plan).await.unwrap();
        let mut slot = Slot::of(&self.limiter, &decision, LEASE.into()).unwrap();
        slot.charge_at_end(Costs::All(cost));
        slot.record_if_lost(op, &plan);
        slot
    }

    /// Advances the clock in steps of 50 ms, and runs every task that becomes ready.
    async fn advance(&self, span: Duration) {
        const STEP: Duration = Duration::from_millis(50);
        for _ in 0..span.as_millis() / STEP.as_millis() {
            run_ready_tasks().await;
            self.clock.advance(STEP);
        }
        run_ready_tasks().await;
    }
}

async fn run_ready_tasks() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_slot_released_while_the_store_is_down_is_free_a_second_after_it_is_back() {
    for layered in [false, true] {
        for fault in [Fault::Unavailable, Fault::ReplyLost] {
            let bench = Bench::new(&["concurrency 5 lease 30s"], layered);
            let mut entered = Vec::new();
            for _ in 0..5 {
                entered.push(bench.limiter.enter("k").await.unwrap());
            }
            bench.set(fault);
            drop(entered);
            bench.advance(Duration::from_millis(300)).await;
            bench.set(Fault::None);
            bench.advance(Duration::from_secs(2)).await;
            assert_eq!(bench.standing(), (0, 0), "{fault:?}, layered {layered}");
            assert_eq!(bench.limiter.unsettled_holds(), 0);
            assert_eq!(bench.clock.next_wake(), None, "retries have ended");
        }
    }
}

#[tokio::test]
async fn a_cost_settled_while_the_store_is_down_is_charged_once() {
    for layered in [false, true] {
        for fault in [Fault::Unavailable, Fault::ReplyLost] {
            let bench = Bench::new(&["fixed-window 1000/d"], layered);
            for _ in 0..5 {
                let slot = bench.hold_for_request().await;
                bench.set(fault);
                drop(slot);
                bench.advance(Duration::from_millis(300)).await;
                bench.set(Fault::None);
                bench.advance(Duration::from_secs(2)).await;
            }
            assert_eq!(bench.standing(), (5 * COST, 0), "{fault:?}, layered {layered}");
        }
    }
}

#[tokio::test]
async fn the_cost_of_a_hold_that_the_store_has_lost_is_recorded() {
    let bench = Bench::new(&["fixed-window 1000/d"], false);
    let slot = bench.hold_for_request().await;
    let reservation = bench.limiter.reserve("k", 7).await.unwrap();
    let all = bench.limiter.reserve("k", 5).await.unwrap();
    let cancelled = bench.limiter.reserve("k", 3).await.unwrap();
    bench.store.replaced.store(true, Ordering::SeqCst);
    drop((slot, cancelled));
    let settled = reservation.commit(4).await.unwrap();
    assert!(settled.late() && !settled.overdrawn());
    assert!(all.commit_all().await.unwrap().late());
    bench.advance(Duration::from_secs(1)).await;
    assert_eq!(bench.standing(), (COST + 4 + 5, 0), "nothing for the one that is cancelled");
}

#[tokio::test]
async fn a_settlement_is_given_up_and_counted_when_the_hold_has_expired() {
    let bench = Bench::new(&["concurrency 5 lease 30s"], true);
    let entered = bench.limiter.enter("k").await.unwrap();
    bench.set(Fault::Unavailable);
    drop(entered);
    bench.advance(LEASE - Duration::from_secs(1)).await;
    assert_eq!(bench.limiter.unsettled_holds(), 0, "still retried");
    bench.advance(Duration::from_secs(1)).await;
    assert_eq!(bench.limiter.unsettled_holds(), 1);
    assert_eq!(bench.clock.next_wake(), None);
    assert_eq!(bench.standing(), (0, 0), "expired");
}

#[test]
fn a_slot_that_is_dropped_without_a_runtime_counts_as_not_settled() {
    let bench = Bench::new(&["concurrency 5 lease 30s"], false);
    drop(now_or_panic(bench.limiter.enter("k")).unwrap());
    assert_eq!((bench.standing(), bench.limiter.unsettled_holds()), ((0, 1), 1));
    bench.clock.advance(Micros::from(LEASE).into());
    assert_eq!(bench.standing(), (0, 0));
}
