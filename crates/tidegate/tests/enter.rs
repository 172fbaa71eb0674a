//! Passing and taking a place in one step, and keeping the place while work goes on. The clock is
//! turned by hand.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/ready.rs"]
mod ready;

use std::borrow::Cow;
use std::future::{Future, IntoFuture, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::policy::Request;
use tidegate::{
    Answer, Call, Charge, Clock, Cost, Decision, Engine, EngineError, Entered, Health, Inspection,
    Key, Limited, Limiter, ManualClock, Memory, Micros, Op, Policy, PolicyRule, Refusal, Rule,
    RuleDraft, RuleLimit, Slot, Wait,
};

use crate::ready::ready;

const HOUR: Duration = Duration::from_secs(3_600);
const LEASE: Duration = Duration::from_secs(30);
/// The rule of most tests: one place, and more requests than anybody makes.
const ONE: &[&str] = &["fixed-window 1000/h", "concurrency 1 lease 30s"];

// --- places ------------------------------------------------------------------------------------

#[test]
fn of_128_who_come_at_once_64_get_the_64_places() {
    let bench = Bench::new(&["fixed-window 1000/h", "concurrency 64 lease 30s"]);
    let (barrier, inside, most) = (Barrier::new(8), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        barrier.wait();
        let mut slots: Vec<Entered> =
            (0..16).filter_map(|_| ready(bench.limiter.enter("k")).ok()).collect();
        let got = slots.len();
        barrier.wait();
        slots.clear();
        for _ in 0..10_000 {
            let Ok(entered) = ready(bench.limiter.enter("k").cost(0)) else { continue };
            let now_inside = inside.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now_inside, Ordering::SeqCst);
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
    assert_eq!(got, 64, "who came at once");
    assert!(most.into_inner() <= 64);
    assert_eq!(bench.standing("k"), (64, 0), "each charged once, and all have left");
}

#[test]
fn a_request_that_costs_five_is_one_holder() {
    let bench = Bench::new(&["fixed-window 12/h", "concurrency 3 lease 30s"]);
    let first = ready(bench.limiter.enter("k").cost(5)).unwrap();
    assert_eq!(first.decision.verdicts[0].remaining, 7);
    assert_eq!(first.decision.verdicts[1].remaining, 2);
    let second = ready(bench.limiter.enter("k").cost(5)).unwrap();
    assert_eq!(bench.standing("k"), (10, 2));
    // The third finds a place, but not as many requests; and then the other way round.
    let denied = denied(ready(bench.limiter.enter("k").cost(5)));
    assert_eq!(denied.verdicts.iter().map(|v| v.allowed).collect::<Vec<_>>(), [false, true]);
    let third = ready(bench.limiter.enter("k")).unwrap();
    let denied = self::denied(ready(bench.limiter.enter("k")));
    assert_eq!(denied.verdicts.iter().map(|v| v.allowed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(bench.standing("k"), (11, 3), "what was denied was charged to none");
    drop((first, second, third));
    assert_eq!(bench.standing("k"), (11, 0));
}

/// There is one for every request, so whatever each leaves behind would add up.
#[test]
fn those_who_have_left_are_forgotten() {
    let bench = Bench::new(&["fixed-window 1000000/h", "concurrency 1 lease 30s"]);
    let mut bytes = Vec::new();
    // Enough to have come by every shard.
    for _ in 0..3 {
        for _ in 0..8_000 {
            drop(ready(bench.limiter.enter("k")).unwrap());
        }
        bytes.push(bench.limiter.engine().health().memory_bytes);
    }
    assert_eq!(bytes, [bytes[0]; 3]);
}

#[test]
fn without_a_limit_that_counts_holders_there_is_no_place_to_keep() {
    let bench = Bench::new(&["fixed-window 2/h"]);
    for _ in 0..2 {
        assert!(ready(bench.limiter.enter("k")).unwrap().slot.is_none());
    }
    denied(ready(bench.limiter.enter("k")));
    let bench = Bench::new(&["concurrency 2 lease 30s"]);
    let entered = ready(bench.limiter.enter("k")).unwrap();
    let slot = entered.slot.unwrap();
    assert_eq!(entered.decision.hold(), Some(slot.id()));
    assert!(!ready(slot.leave()).unwrap().expired());
    assert_eq!(ready(bench.limiter.inspect("k")).unwrap()[0].standing.held, 0);
}

// --- keeping it --------------------------------------------------------------------------------

#[tokio::test]
async fn a_place_is_kept_for_many_leases_and_given_back_at_once() {
    let bench = Bench::new(ONE);
    let entered = bench.limiter.enter("k").await.unwrap();
    for _ in 0..12 {
        bench.turn(LEASE / 3).await;
        assert_eq!(bench.standing("k"), (1, 1));
        denied(bench.limiter.enter("k").await);
    }
    assert_eq!(bench.count(is_renewal), 12, "three times in a lease");
    drop(entered);
    assert_eq!(bench.standing("k"), (1, 0));
    bench.turn(LEASE).await;
    assert_eq!(bench.count(is_renewal), 12, "nobody renews what was given back");
    assert_eq!(bench.clock.next_wake(), None);
}

#[tokio::test]
async fn whoever_leaves_is_told_when_it_is_done_and_whether_the_place_was_kept() {
    for later in [false, true] {
        let bench = Bench::with(ONE, |engine| engine.later = later);
        let slot = bench.limiter.enter("k").await.unwrap().slot.unwrap();
        assert!(!slot.leave().await.unwrap().expired());
        assert_eq!(bench.standing("k"), (1, 0));
        let slot = bench.limiter.enter("k").await.unwrap().slot.unwrap();
        // So far that the renewal comes too late.
        bench.turn(LEASE).await;
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
    bench.turn(LEASE / 3).await;
    assert_eq!(bench.count(is_renewal), 1);
    for nth in 2..=6 {
        bench.turn(LEASE / 10).await;
        assert_eq!(bench.count(is_renewal), nth);
    }
    bench.engine.fails.store(false, Ordering::Relaxed);
    bench.turn(LEASE / 10).await;
    bench.turn(LEASE / 3).await;
    assert_eq!(bench.standing("k"), (1, 1), "in time");
    drop(entered);
    assert_eq!(bench.standing("k"), (1, 0));
}

#[tokio::test]
async fn a_place_that_is_gone_is_not_renewed_any_more() {
    for lose in [
        |bench: &Bench| drop(bench.limiter.reset("k").now().unwrap()),
        |bench: &Bench| bench.clock.advance(LEASE),
    ] {
        let bench = Bench::new(ONE);
        let entered = bench.limiter.enter("k").await.unwrap();
        lose(&bench);
        bench.turn(LEASE / 3).await;
        assert_eq!(bench.count(is_renewal), 1);
        assert_eq!(bench.clock.next_wake(), None, "the task has ended");
        let next = bench.limiter.enter("k").await.unwrap();
        drop(entered);
        denied(bench.limiter.enter("k").await);
        drop(next);
    }
}

/// A place that cannot be kept must not keep a processor busy either.
#[tokio::test]
async fn a_lease_of_a_microsecond_is_over_and_nobody_is_busy_with_it() {
    let bench = Bench::new(&["concurrency 1 lease 1us"]);
    let entered = bench.limiter.enter("k").await.unwrap();
    bench.turn(Duration::from_millis(1)).await;
    assert_eq!(bench.count(is_renewal), 1);
    drop(entered);
}

#[test]
fn a_place_ends_with_its_lease_when_nobody_renews_it() {
    let bench = Bench::new(ONE);
    // Without a runtime there is nobody.
    let entered = ready(bench.limiter.enter("k")).unwrap();
    bench.clock.advance(LEASE - Duration::from_micros(1));
    assert_eq!(bench.standing("k"), (1, 1));
    bench.clock.advance(Duration::from_micros(1));
    assert_eq!(bench.standing("k"), (1, 0));
    drop(entered);
    // Nor when the runtime has gone down with everything on it, and nobody has dropped the slot.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        std::mem::forget(bench.limiter.enter("k").await.unwrap());
        bench.turn(LEASE / 2).await;
    });
    drop(runtime);
    assert_eq!(bench.standing("k"), (2, 1));
    bench.clock.advance(LEASE);
    assert_eq!(bench.standing("k"), (2, 0));
    assert!(ready(bench.limiter.enter("k")).is_ok());
}

// --- waiting -----------------------------------------------------------------------------------

#[tokio::test]
async fn whoever_waits_for_a_place_gets_it_in_order_as_soon_as_somebody_leaves() {
    for later in [false, true] {
        let bench = Bench::with(ONE, |engine| engine.later = later);
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
        // Some give up: those behind them move up.
        [3, 4, 19].into_iter().for_each(|nth: usize| waiters[nth].abort());
        drop(first);
        for _ in 0..20 {
            bench.settle().await;
        }
        let expected: Vec<i32> = (0..19).filter(|nth| ![3, 4].contains(nth)).collect();
        assert_eq!(*passed.lock().unwrap(), expected, "though the clock has not moved");
        assert_eq!(bench.standing("k"), (18, 0), "and nobody else was charged");
        assert_eq!(bench.clock.next_wake(), None);
    }
}

#[tokio::test]
async fn a_place_that_somebody_elsewhere_gives_back_is_found_within_50_ms() {
    let bench = Bench::new(ONE);
    // On the same engine, but nobody tells those who wait here.
    let elsewhere = Limiter::with_rules(bench.engine.clone(), bench.limiter.rules()).unwrap();
    let first = elsewhere.enter("k").await.unwrap();
    let waits = {
        let limiter = bench.limiter.clone();
        tokio::spawn(async move { limiter.enter("k").wait(HOUR).await.map(drop) })
    };
    for _ in 0..20 {
        bench.turn(Duration::from_millis(50)).await;
    }
    assert!(!waits.is_finished());
    assert_eq!(bench.count(is_entry), 22, "asked when it came, and once in 50 ms");
    bench.turn(Duration::from_millis(1)).await;
    drop(first);
    bench.turn(Duration::from_millis(48)).await;
    assert!(!waits.is_finished());
    bench.turn(Duration::from_millis(1)).await;
    assert!(waits.is_finished());
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn whoever_waits_for_a_place_waits_until_its_time_is_over() {
    let bench = Bench::new(&["fixed-window 1000/h", "concurrency 1 lease 1h"]);
    let first = bench.limiter.enter("k").await.unwrap();
    let wait = |timeout| {
        let limiter = bench.limiter.clone();
        tokio::spawn(async move { limiter.enter("k").wait(timeout).await })
    };
    let waiters = [990, 1_000, 70, 0].map(|millis| wait(Duration::from_millis(millis)));
    bench.settle().await;
    for (millis, over) in [(0, 1), (69, 1), (70, 2), (989, 2), (990, 3), (999, 3), (1_000, 4)] {
        bench.turn(Duration::from_micros(millis * 1_000) - bench.passed()).await;
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
async fn what_no_holder_can_help_is_denied_at_once() {
    // Too late by the limit that counts requests; no such place ever; nobody on this list.
    let late = Bench::new(&["fixed-window 1/h first-hit", "concurrency 1 lease 30s"]);
    let held = late.limiter.enter("k").await.unwrap();
    let none = Bench::new(&["100/h", "concurrency 0"]);
    let costly = Bench::new(&["100/h", "concurrency 1"]);
    for (bench, cost) in [(&late, 1), (&none, 1), (&costly, 101)] {
        let answer = ready(bench.limiter.enter("k").cost(cost).wait(HOUR - LEASE));
        denied(answer);
    }
    assert_eq!(none.standing("k"), (0, 0));
    drop(held);
    // In time, if barely: it waits for both.
    let limiter = late.limiter.clone();
    let waits = tokio::spawn(async move { limiter.enter("k").wait(HOUR).await.map(drop) });
    late.settle().await;
    assert!(!waits.is_finished());
    late.turn(HOUR).await;
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn only_what_takes_can_wait_and_only_without_an_id() {
    let bench = Bench::new(ONE);
    let policy = bench.limiter.policy();
    let plan = policy.plan_key("k".into(), Cost::ONE, bench.clock.now()).unwrap();
    let plan = plan.entering().unwrap();
    let asking = bench.limiter.ask(plan.passing().unwrap(), &plan);
    for refused in
        [asking.once("id").await.unwrap_err(), no_answer(asking.once("id").wait(HOUR).await)]
    {
        assert_eq!(refused.refusal(), Some(&Refusal::EnterTakesNoId));
    }
    for op in [Op::Record, Op::Refund, Op::Reset] {
        let refused = no_answer(bench.limiter.ask(op, &plan).wait(HOUR).await);
        assert_eq!(refused.refusal(), Some(&Refusal::OnlyChecksWait));
    }
    assert_eq!(bench.standing("k"), (0, 0));
    let id = tidegate::HoldId::random().unwrap();
    let op = Op::Hold { id, ttl: LEASE.into(), expiry: tidegate::Expiry::Release };
    let held = bench.limiter.ask(op, &plan).wait(HOUR).await.unwrap();
    assert_eq!(held.hold(), Some(id));
    assert_eq!(bench.standing("k"), (0, 1));
}

// --- giving up ---------------------------------------------------------------------------------

/// Dropped after any number of polls, by an engine that answers at once or takes its time.
#[tokio::test]
async fn a_future_that_is_dropped_leaves_no_place_taken() {
    for later in [false, true] {
        for polls in 0..8 {
            let bench = Bench::with(ONE, |engine| engine.later = later);
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
            assert_eq!(bench.standing("k").1, 0, "{polls} polls, while somebody was in");
            assert_eq!(bench.clock.next_wake(), None);
        }
    }
}

/// The turn of a queue has been given with the place, because somebody was faster.
#[tokio::test]
async fn whoever_gives_up_before_its_turn_gives_its_place_back() {
    let limits = &["leaky-bucket 1/s capacity 10 queue", "concurrency 1 lease 30s"];
    let bench = Bench::with(limits, |engine| engine.overtaken = true);
    {
        let mut waits = pin!(bench.limiter.enter("k").wait(HOUR));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(bench.standing("k").1, 1, "it waits for its turn with the place in hand");
    }
    assert_eq!(bench.standing("k").1, 0);
    let entered = bench.limiter.enter("other").wait(HOUR);
    let mut entered = pin!(entered);
    assert!(entered.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    bench.clock.advance(Duration::from_secs(1));
    let entered = entered.await.unwrap();
    assert_eq!(bench.standing("other").1, 1, "kept by whoever waited for it");
    drop(entered);
    assert_eq!(bench.standing("other").1, 0);
}

// --- plans -------------------------------------------------------------------------------------

#[test]
fn a_plan_of_a_request_counts_holders_only_if_it_is_entering() {
    let bench = Bench::new(&["fixed-window 10/h", "concurrency 2 lease 30s"]);
    let policy = policy(&[&["fixed-window 10/h", "concurrency 2 lease 9s"], &["concurrency 5"]]);
    bench.limiter.set_policy(policy);
    let policy = bench.limiter.policy();
    let plan = policy.plan_request(&Get, bench.clock.now()).unwrap();
    assert_eq!((plan.limits().count(), plan.lease()), (1, None));
    assert_eq!(plan.passing().unwrap(), Op::Check);
    let plan = plan.entering().unwrap();
    assert_eq!((plan.limits().count(), plan.lease()), (3, Some(Micros::from_secs(9))));
    let op = plan.passing().unwrap();
    assert!(matches!(op, Op::Enter { ttl, .. } if ttl == Micros::from_secs(9)), "{op:?}");
    assert_ne!(op, plan.passing().unwrap(), "a new name every time");
    let decision = bench.limiter.ask(op, &plan).now().unwrap();
    let slot = Slot::of(&bench.limiter, &decision, plan.lease().unwrap()).unwrap();
    let held = ready(slot.leave()).unwrap();
    assert_eq!(held.held().iter().map(|limit| limit.rule()).collect::<Vec<_>>(), ["r0", "r1"]);
    assert!(Slot::of(&bench.limiter, &held, Micros::from_secs(9)).is_none());
}

#[test]
fn a_plan_that_names_its_key_takes_one_place_whatever_the_cost() {
    let bench = Bench::new(&["fixed-window 10/h", "concurrency 2 lease 30s"]);
    let policy = bench.limiter.policy();
    let now = bench.clock.now();
    let costs = |plan: &tidegate::Plan<'_>| -> Vec<u64> {
        plan.charges().iter().map(|charge| charge.cost.get()).collect()
    };
    for cost in [0, 1, 5] {
        let plan = policy.plan_key("k".into(), Cost::new(cost).unwrap(), now).unwrap();
        assert_eq!(costs(&plan), [cost, cost]);
        let plan = plan.entering().unwrap();
        assert_eq!(costs(&plan), [cost, 1]);
        let asking = bench.limiter.ask(plan.passing().unwrap(), &plan);
        let decision = asking.now().unwrap();
        drop(Slot::of(&bench.limiter, &decision, plan.lease().unwrap()).unwrap());
    }
    assert_eq!(bench.standing("k"), (6, 0));
}

#[test]
fn a_plan_that_would_grow_too_large_by_entering_is_refused() {
    let limits = [&["10/h"; 15][..], &["concurrency 5"]].concat();
    let four: Vec<&[&str]> = vec![&limits; 4];
    let now = ManualClock::default().now();
    let policy = self::policy(&four);
    let full = policy.plan_request(&Get, now).unwrap().entering().unwrap();
    assert_eq!(full.limits().count(), Call::MAX_CHARGES);
    let policy = self::policy(&[&four[..], &[&["concurrency 5"]]].concat());
    let plan = policy.plan_request(&Get, now).unwrap();
    assert_eq!(plan.limits().count(), 60);
    assert_eq!(plan.entering().unwrap_err(), Refusal::ChargeCount(65));
}

// --- the bench ---------------------------------------------------------------------------------

struct Bench {
    clock: ManualClock,
    engine: Arc<Watched>,
    limiter: Limiter,
}

impl Bench {
    fn new(limits: &[&str]) -> Self {
        Self::with(limits, |_| {})
    }

    fn with(limits: &[&str], set: impl FnOnce(&mut Watched)) -> Self {
        let clock = ManualClock::default();
        let mut engine = Watched {
            memory: Memory::builder().clock(clock.clone()).build(),
            asked: Mutex::default(),
            fails: false.into(),
            later: false,
            overtaken: false,
        };
        set(&mut engine);
        let engine = Arc::new(engine);
        let rule = Rule::new("r", limits.iter().map(|text| text.parse().unwrap())).unwrap();
        let limiter = Limiter::with_rules(engine.clone(), [rule]).unwrap();
        Self { clock, engine, limiter }
    }

    /// What the key has used of the first limit, and holds of the last.
    fn standing(&self, key: &str) -> (u64, u64) {
        let found = ready(self.limiter.inspect(key)).unwrap();
        (found[0].standing.used, found[found.len() - 1].standing.held)
    }

    fn count(&self, what: fn(&Op) -> bool) -> usize {
        self.engine.asked.lock().unwrap().iter().filter(|op| what(op)).count()
    }

    /// How long the clock has been turned.
    fn passed(&self) -> Duration {
        self.clock.now().saturating_sub(ManualClock::default().now()).into()
    }

    /// Turns the clock, and lets everybody do what they have waited for.
    async fn turn(&self, span: Duration) {
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

/// Keeps what it was asked.
struct Watched {
    memory: Memory,
    asked: Mutex<Vec<Op>>,
    /// Nothing is renewed.
    fails: AtomicBool,
    /// It answers when it is polled for the second time.
    later: bool,
    /// Somebody is charged just before everybody who enters.
    overtaken: bool,
}

impl Watched {
    fn answer(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        self.asked.lock().unwrap().push(call.op);
        if is_renewal(&call.op) && self.fails.load(Ordering::Relaxed) {
            return Err(EngineError::unavailable(Refusal::NotImmediate));
        }
        if is_entry(&call.op) && self.overtaken {
            let first: &[Charge<'_>] = &call.charges[..1];
            self.memory.decide(Call { op: Op::Check, charges: first, once: None }).now()?;
        }
        self.memory.decide(call).now()
    }
}

impl Engine for Watched {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        if !self.later {
            return Answer::Ready(self.answer(call));
        }
        let mut asked = false;
        Answer::Later(Box::pin(poll_fn(move |cx| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(self.answer(call));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

fn is_renewal(op: &Op) -> bool {
    matches!(op, Op::Renew { .. })
}

fn is_entry(op: &Op) -> bool {
    matches!(op, Op::Enter { .. })
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

fn denied<T>(answer: Result<T, Limited>) -> Decision {
    match answer {
        Err(Limited::Denied(decision)) => *decision,
        Err(Limited::NoAnswer(error)) => panic!("{error}"),
        Ok(_) => panic!("it passed"),
    }
}

fn no_answer<T>(answer: Result<T, Limited>) -> EngineError {
    match answer {
        Err(Limited::NoAnswer(error)) => error,
        Err(Limited::Denied(decision)) => panic!("{decision:?}"),
        Ok(_) => panic!("it passed"),
    }
}

/// A policy of rules `r0`, `r1`, .. of these limits, which every request comes under.
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

    fn is_vouched_for(&self) -> bool {
        false
    }
}
