//! `enter`: passes and takes a concurrency slot in one step, and keeps the slot while work goes on.
//! The clock is manual.

use std::borrow::Cow;
use std::future::{Future, IntoFuture, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::policy::ListMode;
use tidegate::policy::Request;
use tidegate::{
    Call, Charge, Clock, Cost, Costs, Decision, Engine, EngineError, EngineFuture, Entered, Health,
    HoldSpec, Inspection, Key, Limited, Limiter, ManualClock, Memory, Micros, Op, Policy,
    PolicyRule, Refusal, Rule, RuleDraft, RuleLimit, Slot, Wait,
};

use testkit::now_or_never::now_or_panic;

const HOUR: Duration = Duration::from_secs(3_600);
const LEASE: Duration = Duration::from_secs(30);
/// The rule of most tests: one slot, and more requests than any test makes.
const ONE: &[&str] = &["fixed-window 1000/h", "concurrency 1 lease 30s"];

// --- slots --------------------------------------------------------------------------------------

#[test]
fn of_128_concurrent_requests_64_get_the_64_slots() {
    let bench = Bench::new(&["fixed-window 1000/h", "concurrency 64 lease 30s"]);
    let (barrier, inside, max_inside) = (Barrier::new(8), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        barrier.wait();
        let mut slots: Vec<Entered> =
            (0..16).filter_map(|_| now_or_panic(bench.limiter.enter("k")).ok()).collect();
        let got = slots.len();
        barrier.wait();
        slots.clear();
        for _ in 0..10_000 {
            let Ok(entered) = now_or_panic(bench.limiter.enter("k").cost(0)) else { continue };
            let now_inside = inside.fetch_add(1, Ordering::SeqCst) + 1;
            max_inside.fetch_max(now_inside, Ordering::SeqCst);
            slots.push(entered);
            if slots.len() > 12 {
                inside.fetch_sub(slots.len(), Ordering::SeqCst);
                slots.clear();
            }
        }
        inside.fetch_sub(slots.len(), Ordering::SeqCst);
        got
    };
    let got: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(got, 64, "of the concurrent requests");
    assert!(max_inside.into_inner() <= 64);
    assert_eq!(bench.standing("k"), (64, 0), "each charged once, and all slots released");
}

#[test]
fn a_request_that_costs_five_is_one_holder() {
    let bench = Bench::new(&["fixed-window 12/h", "concurrency 3 lease 30s"]);
    let first = now_or_panic(bench.limiter.enter("k").cost(5)).unwrap();
    assert_eq!(first.decision.verdicts[0].remaining, 7);
    assert_eq!(first.decision.verdicts[1].remaining, 2);
    let second = now_or_panic(bench.limiter.enter("k").cost(5)).unwrap();
    assert_eq!(bench.standing("k"), (10, 2));
    // The third finds a slot, but too few permits; and then the other way round.
    let denied = denied(now_or_panic(bench.limiter.enter("k").cost(5)));
    assert_eq!(denied.verdicts.iter().map(|v| v.allowed).collect::<Vec<_>>(), [false, true]);
    let third = now_or_panic(bench.limiter.enter("k")).unwrap();
    let denied = self::denied(now_or_panic(bench.limiter.enter("k")));
    assert_eq!(denied.verdicts.iter().map(|v| v.allowed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(bench.standing("k"), (11, 3), "denied requests are not charged");
    drop((first, second, third));
    assert_eq!(bench.standing("k"), (11, 0));
}

/// Every request enters once, so anything that it left behind would add up.
#[test]
fn released_slots_leave_no_memory_behind() {
    let bench = Bench::new(&["fixed-window 1000000/h", "concurrency 1 lease 30s"]);
    let mut bytes = Vec::new();
    // Enough to touch every shard.
    for _ in 0..3 {
        for _ in 0..8_000 {
            drop(now_or_panic(bench.limiter.enter("k")).unwrap());
        }
        bytes.push(bench.limiter.engine().health().memory_bytes);
    }
    assert_eq!(bytes, [bytes[0]; 3]);
}

#[test]
fn without_a_concurrency_limit_there_is_no_slot() {
    let bench = Bench::new(&["fixed-window 2/h"]);
    for _ in 0..2 {
        assert!(now_or_panic(bench.limiter.enter("k")).unwrap().slot.is_none());
    }
    denied(now_or_panic(bench.limiter.enter("k")));
    let bench = Bench::new(&["concurrency 2 lease 30s"]);
    let entered = now_or_panic(bench.limiter.enter("k")).unwrap();
    let slot = entered.slot.unwrap();
    assert_eq!(entered.decision.hold(), Some(slot.id()));
    assert!(!now_or_panic(slot.leave()).unwrap().expired());
    assert_eq!(now_or_panic(bench.limiter.inspect("k")).unwrap()[0].standing.held, 0);
}

// --- renewal ------------------------------------------------------------------------------------

#[tokio::test]
async fn a_slot_is_kept_for_many_leases_and_released_at_once() {
    let bench = Bench::new(ONE);
    let entered = bench.limiter.enter("k").await.unwrap();
    for _ in 0..12 {
        bench.advance(LEASE / 3).await;
        assert_eq!(bench.standing("k"), (1, 1));
        denied(bench.limiter.enter("k").await);
    }
    assert_eq!(bench.count(is_renewal), 12, "three times in a lease");
    drop(entered);
    assert_eq!(bench.standing("k"), (1, 0));
    bench.advance(LEASE).await;
    assert_eq!(bench.count(is_renewal), 12, "a released slot is not renewed");
    assert_eq!(bench.clock.next_wake(), None);
}

#[tokio::test]
async fn leave_returns_when_it_is_done_and_whether_the_slot_had_expired() {
    for slow in [false, true] {
        let bench = Bench::with(ONE, |engine| engine.slow = slow);
        let slot = bench.limiter.enter("k").await.unwrap().slot.unwrap();
        assert!(!slot.leave().await.unwrap().expired());
        assert_eq!(bench.standing("k"), (1, 0));
        let slot = bench.limiter.enter("k").await.unwrap().slot.unwrap();
        // So far that the renewal is too late.
        bench.advance(LEASE).await;
        assert!(slot.leave().await.unwrap().expired());
        let unpolled = bench.limiter.enter("k").await.unwrap().slot.unwrap().leave();
        drop(unpolled);
        bench.settle().await;
        assert_eq!(bench.standing("k"), (3, 0));
        assert_eq!(bench.clock.next_wake(), None);
    }
}

#[tokio::test]
async fn a_renewal_that_fails_is_tried_again_sooner_and_never_without_a_pause() {
    let bench = Bench::new(ONE);
    let entered = bench.limiter.enter("k").await.unwrap();
    bench.engine.fails.store(true, Ordering::Relaxed);
    bench.advance(LEASE / 3).await;
    assert_eq!(bench.count(is_renewal), 1);
    for nth in 2..=6 {
        bench.advance(LEASE / 10).await;
        assert_eq!(bench.count(is_renewal), nth);
    }
    bench.engine.fails.store(false, Ordering::Relaxed);
    bench.advance(LEASE / 10).await;
    bench.advance(LEASE / 3).await;
    assert_eq!(bench.standing("k"), (1, 1), "in time");
    drop(entered);
    assert_eq!(bench.standing("k"), (1, 0));
}

#[tokio::test]
async fn a_lost_slot_is_not_renewed_any_more() {
    for lose in [
        |bench: &Bench| drop(bench.limiter.reset("k").now().unwrap()),
        |bench: &Bench| bench.clock.advance(LEASE),
    ] {
        let bench = Bench::new(ONE);
        let entered = bench.limiter.enter("k").await.unwrap();
        lose(&bench);
        bench.advance(LEASE / 3).await;
        assert_eq!(bench.count(is_renewal), 1);
        assert_eq!(bench.clock.next_wake(), None, "the task has ended");
        let next = bench.limiter.enter("k").await.unwrap();
        drop(entered);
        denied(bench.limiter.enter("k").await);
        drop(next);
    }
}

/// A slot that cannot be kept must not keep a processor busy either.
#[tokio::test]
async fn a_lease_of_a_microsecond_ends_without_a_busy_loop() {
    let bench = Bench::new(&["concurrency 1 lease 1us"]);
    let entered = bench.limiter.enter("k").await.unwrap();
    bench.advance(Duration::from_millis(1)).await;
    assert_eq!(bench.count(is_renewal), 1);
    drop(entered);
}

#[test]
fn a_slot_that_is_not_renewed_ends_with_its_lease() {
    let bench = Bench::new(ONE);
    // Without a runtime there is no renewal.
    let entered = now_or_panic(bench.limiter.enter("k")).unwrap();
    bench.clock.advance(LEASE - Duration::from_micros(1));
    assert_eq!(bench.standing("k"), (1, 1));
    bench.clock.advance(Duration::from_micros(1));
    assert_eq!(bench.standing("k"), (1, 0));
    drop(entered);
    // Nor when the runtime was shut down with its tasks, and the slot was not dropped.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        std::mem::forget(bench.limiter.enter("k").await.unwrap());
        bench.advance(LEASE / 2).await;
    });
    drop(runtime);
    assert_eq!(bench.standing("k"), (2, 1));
    bench.clock.advance(LEASE);
    assert_eq!(bench.standing("k"), (2, 0));
    assert!(now_or_panic(bench.limiter.enter("k")).is_ok());
}

// --- waiting -----------------------------------------------------------------------------------

#[tokio::test]
async fn waiters_get_slots_in_order_as_soon_as_one_is_released() {
    for slow in [false, true] {
        let bench = Bench::with(ONE, |engine| engine.slow = slow);
        let first = bench.limiter.enter("k").await.unwrap();
        let passed = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for nth in 0..20 {
            let (limiter, passed) = (bench.limiter.clone(), passed.clone());
            waiters.push(tokio::spawn(async move {
                let entered = limiter.enter("k").wait(HOUR).await.unwrap();
                passed.lock().unwrap().push(nth);
                tokio::task::yield_now().await;
                drop(entered);
            }));
            bench.settle().await;
        }
        assert!(passed.lock().unwrap().is_empty());
        // Some are dropped; the waiters behind them move up.
        [3, 4, 19].into_iter().for_each(|nth: usize| waiters[nth].abort());
        drop(first);
        for _ in 0..20 {
            bench.settle().await;
        }
        let expected: Vec<i32> = (0..19).filter(|nth| ![3, 4].contains(nth)).collect();
        assert_eq!(*passed.lock().unwrap(), expected, "though the clock has not moved");
        assert_eq!(bench.standing("k"), (18, 0), "and no other request was charged");
        assert_eq!(bench.clock.next_wake(), None);
    }
}

#[tokio::test]
async fn a_slot_released_by_another_limiter_is_found_within_50_ms() {
    let bench = Bench::new(ONE);
    // On the same engine, but its releases do not wake the waiters here.
    let other_limiter = Limiter::with_rules(bench.engine.clone(), bench.limiter.rules()).unwrap();
    let first = other_limiter.enter("k").await.unwrap();
    let waits = {
        let limiter = bench.limiter.clone();
        tokio::spawn(async move { limiter.enter("k").wait(HOUR).await.map(drop) })
    };
    for _ in 0..20 {
        bench.advance(Duration::from_millis(50)).await;
    }
    assert!(!waits.is_finished());
    assert_eq!(bench.count(|op| op.is_entry()), 22, "one try on arrival, and one every 50 ms");
    bench.advance(Duration::from_millis(1)).await;
    drop(first);
    bench.advance(Duration::from_millis(48)).await;
    assert!(!waits.is_finished());
    bench.advance(Duration::from_millis(1)).await;
    assert!(waits.is_finished());
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_waiter_for_a_slot_waits_until_its_timeout() {
    let bench = Bench::new(&["fixed-window 1000/h", "concurrency 1 lease 1h"]);
    let first = bench.limiter.enter("k").await.unwrap();
    let wait = |timeout| {
        let limiter = bench.limiter.clone();
        tokio::spawn(async move { limiter.enter("k").wait(timeout).await })
    };
    let waiters = [990, 1_000, 70, 0].map(|millis| wait(Duration::from_millis(millis)));
    bench.settle().await;
    for (millis, over) in [(0, 1), (69, 1), (70, 2), (989, 2), (990, 3), (999, 3), (1_000, 4)] {
        bench.advance(Duration::from_micros(millis * 1_000) - bench.passed()).await;
        let finished = waiters.iter().filter(|waiter| waiter.is_finished()).count();
        assert_eq!(finished, over, "after {millis} ms");
    }
    for waiter in waiters {
        let denied = denied(waiter.await.unwrap());
        assert!(matches!(denied.retry_after(), Wait::For(span) if span > Micros::from_secs(3_500)));
    }
    assert_eq!(bench.standing("k"), (1, 1));
    drop(first);
}

#[tokio::test]
async fn a_request_that_no_released_slot_could_admit_is_denied_at_once() {
    // Too late by the rate limit; a limit; a cost without slots; a cost above the limit.
    let late = Bench::new(&["fixed-window 1/h first-hit", "concurrency 1 lease 30s"]);
    let held = late.limiter.enter("k").await.unwrap();
    let without_slots = Bench::new(&["100/h", "concurrency 0"]);
    let costly = Bench::new(&["100/h", "concurrency 1"]);
    for (bench, cost) in [(&late, 1), (&without_slots, 1), (&costly, 101)] {
        let result = now_or_panic(bench.limiter.enter("k").cost(cost).wait(HOUR - LEASE));
        denied(result);
    }
    assert_eq!(without_slots.standing("k"), (0, 0));
    drop(held);
    // Just in time: it waits for both limits.
    let limiter = late.limiter.clone();
    let waits = tokio::spawn(async move { limiter.enter("k").wait(HOUR).await.map(drop) });
    late.settle().await;
    assert!(!waits.is_finished());
    late.advance(HOUR).await;
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn only_checks_and_holds_can_wait_and_enter_takes_no_id() {
    let bench = Bench::new(ONE);
    let policy = bench.limiter.policy();
    let plan =
        policy.plan_key("k".into(), Cost::ONE, ListMode::Evaluate, bench.clock.now()).unwrap();
    let plan = plan.with_slots().unwrap();
    let entering = bench.limiter.decide(plan.op().unwrap(), &plan);
    for refused in [
        entering.idempotency_key("id").await.unwrap_err(),
        engine_error(entering.idempotency_key("id").wait(HOUR).await),
    ] {
        assert_eq!(refused.refusal(), Some(&Refusal::EnterTakesNoId));
    }
    for op in [Op::Record, Op::Refund, Op::Reset] {
        let refused = engine_error(bench.limiter.decide(op, &plan).wait(HOUR).await);
        assert_eq!(refused.refusal(), Some(&Refusal::OnlyChecksWait));
    }
    assert_eq!(bench.standing("k"), (0, 0));
    let id = tidegate::HoldId::random().unwrap();
    let op = Op::hold(id, LEASE.into(), tidegate::Expiry::Release);
    let held = bench.limiter.decide(op, &plan).wait(HOUR).await.unwrap();
    assert_eq!(held.hold(), Some(id));
    assert_eq!(bench.standing("k"), (0, 1));
}

// --- cancellation -------------------------------------------------------------------------------

/// Dropped after any number of polls, on an engine that decides at once or after a poll.
#[tokio::test]
async fn a_future_that_is_dropped_leaves_no_slot_taken() {
    for slow in [false, true] {
        for polls in 0..8 {
            let bench = Bench::with(ONE, |engine| engine.slow = slow);
            for _ in 0..3 {
                poll_and_drop(bench.limiter.enter("k").into_future(), polls).await;
                poll_and_drop(bench.limiter.enter("k").wait(HOUR), polls).await;
            }
            bench.settle().await;
            assert_eq!(bench.standing("k").1, 0, "{polls} polls");
            let first = bench.limiter.enter("k").await.unwrap();
            poll_and_drop(bench.limiter.enter("k").wait(HOUR), polls).await;
            drop(first);
            bench.settle().await;
            assert_eq!(bench.standing("k").1, 0, "{polls} polls, while the slot was taken");
            assert_eq!(bench.clock.next_wake(), None);
        }
    }
}

/// Another request takes the first turn of the queue, so the waiter holds a slot until the next.
#[tokio::test]
async fn a_waiter_dropped_before_its_turn_releases_its_slot() {
    let limits = &["leaky-bucket 1/s capacity 10 queue", "concurrency 1 lease 30s"];
    let bench = Bench::with(limits, |engine| engine.overtaken = true);
    {
        let mut waits = pin!(bench.limiter.enter("k").wait(HOUR));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(bench.standing("k").1, 1, "it waits for its turn and holds the slot");
    }
    assert_eq!(bench.standing("k").1, 0);
    let entered = bench.limiter.enter("other").wait(HOUR);
    let mut entered = pin!(entered);
    assert!(entered.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    bench.clock.advance(Duration::from_secs(1));
    let entered = entered.await.unwrap();
    assert_eq!(bench.standing("other").1, 1, "kept by the waiter");
    drop(entered);
    assert_eq!(bench.standing("other").1, 0);
}

// --- plans -------------------------------------------------------------------------------------

#[test]
fn the_plan_of_a_request_takes_slots_only_with_enter() {
    let bench = Bench::new(&["fixed-window 10/h", "concurrency 2 lease 30s"]);
    let policy = policy(&[&["fixed-window 10/h", "concurrency 2 lease 9s"], &["concurrency 5"]]);
    bench.limiter.set_policy(policy);
    let policy = bench.limiter.policy();
    let plan = policy.plan_request(&Get, bench.clock.now()).unwrap();
    assert_eq!((plan.limits().count(), plan.lease()), (1, None));
    assert_eq!(plan.op().unwrap(), Op::Check);
    let plan = plan.with_slots().unwrap();
    assert_eq!((plan.limits().count(), plan.lease()), (3, Some(Micros::from_secs(9))));
    let op = plan.op().unwrap();
    assert!(
        matches!(op, Op::Hold(hold) if hold.ttl == Micros::from_secs(9) && op.is_entry()),
        "{op:?}"
    );
    assert_ne!(op, plan.op().unwrap(), "a new id every time");
    let decision = bench.limiter.decide(op, &plan).now().unwrap();
    let slot = Slot::of(&bench.limiter, &decision, plan.lease().unwrap()).unwrap();
    let held = now_or_panic(slot.leave()).unwrap();
    assert_eq!(held.held().iter().map(|limit| limit.rule()).collect::<Vec<_>>(), ["r0", "r1"]);
    assert!(Slot::of(&bench.limiter, &held, Micros::from_secs(9)).is_none());
}

#[test]
fn a_plan_of_a_named_key_takes_one_slot_at_any_cost() {
    let bench = Bench::new(&["fixed-window 10/h", "concurrency 2 lease 30s"]);
    let policy = bench.limiter.policy();
    let now = bench.clock.now();
    let costs = |plan: &tidegate::Plan<'_>| -> Vec<u64> {
        plan.charges(None).iter().map(|charge| charge.cost.get()).collect()
    };
    for cost in [0, 1, 5] {
        let plan =
            policy.plan_key("k".into(), Cost::new(cost).unwrap(), ListMode::Evaluate, now).unwrap();
        assert_eq!(costs(&plan), [cost, cost]);
        let plan = plan.with_slots().unwrap();
        assert_eq!(costs(&plan), [cost, 1]);
        let entering = bench.limiter.decide(plan.op().unwrap(), &plan);
        let decision = entering.now().unwrap();
        drop(Slot::of(&bench.limiter, &decision, plan.lease().unwrap()).unwrap());
    }
    assert_eq!(bench.standing("k"), (6, 0));
}

#[test]
fn a_plan_that_slots_make_too_large_is_refused() {
    let limits = [&["10/h"; 15][..], &["concurrency 5"]].concat();
    let four: Vec<&[&str]> = vec![&limits; 4];
    let now = ManualClock::default().now();
    let policy = self::policy(&four);
    let full = policy.plan_request(&Get, now).unwrap().with_slots().unwrap();
    assert_eq!(full.limits().count(), Call::MAX_CHARGES);
    let policy = self::policy(&[&four[..], &[&["concurrency 5"]]].concat());
    let plan = policy.plan_request(&Get, now).unwrap();
    assert_eq!(plan.limits().count(), 60);
    assert_eq!(plan.with_slots().unwrap_err(), Refusal::ChargeCount(65));
}

// --- test bench ---------------------------------------------------------------------------------

struct Bench {
    clock: ManualClock,
    engine: Arc<RecordingEngine>,
    limiter: Limiter,
}

impl Bench {
    fn new(limits: &[&str]) -> Self {
        Self::with(limits, |_| {})
    }

    fn with(limits: &[&str], set: impl FnOnce(&mut RecordingEngine)) -> Self {
        let clock = ManualClock::default();
        let mut engine = RecordingEngine {
            memory: Memory::builder().clock(clock.clone()).build(),
            ops: Mutex::default(),
            fails: false.into(),
            slow: false,
            overtaken: false,
        };
        set(&mut engine);
        let engine = Arc::new(engine);
        let rule = Rule::new("r", limits.iter().map(|text| text.parse().unwrap())).unwrap();
        let limiter = Limiter::with_rules(engine.clone(), [rule]).unwrap();
        Self { clock, engine, limiter }
    }

    /// Used permits of the first limit, and held slots of the last.
    fn standing(&self, key: &str) -> (u64, u64) {
        let found = now_or_panic(self.limiter.inspect(key)).unwrap();
        (found[0].standing.used, found[found.len() - 1].standing.held)
    }

    fn count(&self, is_op: fn(&Op<'static>) -> bool) -> usize {
        self.engine.ops.lock().unwrap().iter().filter(|op| is_op(op)).count()
    }

    /// How far the clock has been advanced.
    fn passed(&self) -> Duration {
        self.clock.now().saturating_sub(ManualClock::default().now()).into()
    }

    /// Advances the clock, and runs every task that becomes ready.
    async fn advance(&self, span: Duration) {
        self.settle().await;
        self.clock.advance(span);
        self.settle().await;
    }

    async fn settle(&self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
}

/// Records the operations of all calls.
struct RecordingEngine {
    memory: Memory,
    ops: Mutex<Vec<Op<'static>>>,
    /// Renewals fail.
    fails: AtomicBool,
    /// Decides when it is polled for the second time.
    slow: bool,
    /// A competing charge of the first limit precedes every `enter`.
    overtaken: bool,
}

impl RecordingEngine {
    fn record(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        self.ops.lock().unwrap().push(owned_op(call.op));
        if is_renewal(&call.op) && self.fails.load(Ordering::Relaxed) {
            return Err(EngineError::unavailable(Refusal::NotImmediate));
        }
        if call.op.is_entry() && self.overtaken {
            let first: &[Charge<'_>] = &call.charges[..1];
            self.memory
                .decide(Call { op: Op::Check, charges: first, idempotency_key: None })
                .now()?;
        }
        self.memory.decide(call).now()
    }
}

impl Engine for RecordingEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        if !self.slow {
            return EngineFuture::Ready(self.record(call));
        }
        let mut polled = false;
        EngineFuture::Pending(Box::pin(poll_fn(move |cx| {
            if std::mem::replace(&mut polled, true) {
                return Poll::Ready(self.record(call));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })))
    }

    fn is_synchronous(&self) -> bool {
        !self.slow
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

/// The operation for longer than its call. No test that records operations settles rules by name.
pub(crate) fn owned_op(op: Op<'_>) -> Op<'static> {
    match op {
        Op::Settle { id, costs: Costs::AsHeld } => Op::Settle { id, costs: Costs::AsHeld },
        Op::Settle { id, costs: Costs::All(cost) } => Op::Settle { id, costs: Costs::All(cost) },
        Op::Renew { id, ttl } => Op::Renew { id, ttl },
        Op::Hold(hold) => Op::Hold(HoldSpec { quantity: None, ..hold }),
        Op::Check => Op::Check,
        Op::Peek => Op::Peek,
        Op::Record => Op::Record,
        Op::Refund => Op::Refund,
        Op::Reset => Op::Reset,
        op => panic!("{op:?} is not recorded"),
    }
}

fn is_renewal(op: &Op) -> bool {
    matches!(op, Op::Renew { .. })
}

async fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if polled.is_ready() {
            return;
        }
    }
}

fn denied<T>(result: Result<T, Limited>) -> Decision {
    match result {
        Err(Limited::Denied(decision)) => *decision,
        Err(Limited::NoAnswer(error)) => panic!("{error}"),
        Ok(_) => panic!("it passed"),
    }
}

fn engine_error<T>(result: Result<T, Limited>) -> EngineError {
    match result {
        Err(Limited::NoAnswer(error)) => error,
        Err(Limited::Denied(decision)) => panic!("{decision:?}"),
        Ok(_) => panic!("it passed"),
    }
}

/// A policy of rules `r0`, `r1`, .. with these limits, which match every request.
fn policy(rules: &[&[&str]]) -> Policy {
    let rule = |(nth, limits): (usize, &&[&str])| {
        PolicyRule::new(RuleDraft {
            name: format!("r{nth}"),
            limits: limits.iter().map(|text| text.parse().unwrap()).collect(),
            ..RuleDraft::default()
        })
        .unwrap()
    };
    Policy::new(rules.iter().enumerate().map(rule)).unwrap()
}

/// A plain request.
struct Get;

impl Request for Get {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        "/"
    }

    fn host(&self) -> &str {
        "example.com"
    }

    fn header(&self, _: &str) -> Option<&str> {
        None
    }

    fn query(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn cookie(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        None
    }

    fn client_ip(&self) -> Option<IpAddr> {
        None
    }

    fn is_from_trusted_proxy(&self) -> bool {
        false
    }
}
