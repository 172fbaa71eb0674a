//! Permits held before the work and settled after it, through a retry, a deadline, a caller that
//! disconnects, or a reset.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{
    Call, Charge, Clock, Cost, Costs, Decision, Engine, EngineError, EngineFuture, Expiry, Health,
    HoldId, Inspection, Key, Limit, Limited, Limiter, ManualClock, Memory, Micros, Op, Refusal,
    Reservation, Rule, RuleCost, RuleLimit,
};

use testkit::now_or_never::now_or_panic;

const HOUR: Duration = Duration::from_secs(3_600);

// --- in debt ------------------------------------------------------------------------------------

/// Other charges were recorded meanwhile, until nothing more fits into the debt. They leave the
/// window before the settled charge does.
#[test]
fn a_settlement_in_debt_counts_after_the_debt_has_left() {
    for notation in ["sliding-log 10/1s", "sliding-window 10/1s precision 100ms"] {
        let clock = ManualClock::default();
        clock.set(Micros::from_secs(1_000));
        let memory = Memory::builder().clock(clock.clone()).build();
        let rule = Rule::new("r", [notation.parse().unwrap()]).unwrap();
        let limit = rule.limits()[0].clone();
        let decide = |op, cost| {
            let cost = Cost::total(cost);
            let charges = [Charge { limit: &limit, key: "k".into(), cost, caller: None }];
            memory.decide(Call { op, charges: &charges, idempotency_key: None }).now().unwrap()
        };
        let (id, ttl, expiry) = (HoldId::from(7), Micros::from_secs(10), Expiry::Release);
        let held = decide(Op::hold(id, ttl, expiry), 4);
        assert!(held.allowed());
        decide(Op::Record, 20);
        clock.set(Micros::from_millis(1_000_500));
        let op = Op::Settle { id: held.hold().unwrap(), costs: Costs::All(Cost::total(4)) };
        memory.decide(Call { op, charges: &[], idempotency_key: None }).now().unwrap();
        clock.set(Micros::from_millis(1_001_200));
        assert!(!decide(Op::Check, 7).allowed(), "{notation}: eleven in 0.7 s");
        assert!(decide(Op::Check, 6).allowed(), "{notation}");
    }
}

// --- idempotency keys ---------------------------------------------------------------------------

#[test]
fn while_it_lasts_a_repeated_reservation_is_the_same() {
    let (clock, limiter) = limiter("concurrency 1 lease 30s");
    let first = now_or_panic(limiter.reserve("k", 1).idempotency_key("id")).unwrap();
    for second in [0, 10, 20, 29] {
        clock.set(Micros::from_secs(1_700_000_000 + second));
        let repeated = now_or_panic(limiter.reserve("k", 1).idempotency_key("id")).unwrap();
        assert_eq!(repeated.id(), first.id(), "in second {second}");
        assert!(repeated.decision().unwrap().repeated(), "in second {second}");
        repeated.keep();
    }
    assert!(!first.decision().unwrap().repeated());
    assert_eq!(held(&limiter), 1);
}

#[test]
fn dropping_a_repeated_reservation_does_not_end_the_first() {
    let (_, limiter) = limiter("concurrency 1 lease 30s");
    let first = now_or_panic(limiter.reserve("k", 1).idempotency_key("id")).unwrap();
    drop(now_or_panic(limiter.reserve("k", 1).idempotency_key("id")).unwrap());
    assert_eq!(held(&limiter), 1, "the first still holds it");
    assert!(is_denied(now_or_panic(limiter.reserve("k", 1))));
    drop(first);
    assert_eq!(held(&limiter), 0);
}

type End = fn(&ManualClock, Reservation);

/// Ways in which a reservation ends before it is requested again with its id.
const ENDS: [(&str, End); 5] = [
    ("dropped", |_, reservation| drop(reservation)),
    ("cancelled", |_, reservation| drop(now_or_panic(reservation.cancel()).unwrap())),
    ("committed", |_, reservation| drop(now_or_panic(reservation.commit_all()).unwrap())),
    ("expired", |clock, reservation| {
        reservation.keep();
        clock.advance(Duration::from_secs(30));
    }),
    ("expired an hour ago", |clock, reservation| {
        reservation.keep();
        clock.advance(HOUR);
    }),
];

#[test]
fn a_reservation_that_is_over_is_not_returned_again() {
    for (how, end) in ENDS {
        let (clock, limiter) = limiter("concurrency 1 lease 30s");
        let first = now_or_panic(limiter.reserve("k", 1).idempotency_key("id")).unwrap();
        let ended = first.id();
        end(&clock, first);
        let next = now_or_panic(limiter.reserve("k", 1).idempotency_key("id")).unwrap();
        assert!(!next.decision().unwrap().repeated(), "{how}");
        assert_ne!(next.id(), ended, "{how}");
        assert_eq!(held(&limiter), 1, "{how}");
        assert!(is_denied(now_or_panic(limiter.reserve("k", 1))), "{how}: a second holder");
    }
}

#[test]
fn an_ended_reservation_gives_its_id_no_slot_next_to_the_next_holder() {
    for (how, end) in ENDS {
        let (clock, limiter) = limiter("concurrency 1 lease 30s");
        let first = now_or_panic(limiter.reserve("k", 1).idempotency_key("id")).unwrap();
        end(&clock, first);
        let next = now_or_panic(limiter.reserve("k", 1)).unwrap();
        let repeated = now_or_panic(limiter.reserve("k", 1).idempotency_key("id"));
        assert!(is_denied(repeated), "{how}: two holders of one slot");
        drop(next);
        assert!(now_or_panic(limiter.reserve("k", 1).idempotency_key("id")).is_ok(), "{how}");
    }
}

// --- a commit without a reply -------------------------------------------------------------------

#[tokio::test]
async fn a_commit_that_is_dropped_before_its_reply_leaves_the_reservation_active() {
    for polls in 1..4 {
        drop_commit_after(polls).await;
    }
}

#[tokio::test]
async fn a_commit_that_is_dropped_unpolled_leaves_the_reservation_active() {
    drop_commit_after(0).await;
}

/// Must be called in a runtime, from which a cancellation could be sent.
async fn drop_commit_after(polls: usize) {
    for all in [true, false] {
        let (_, engine, limiter) = on_stallable_engine("10/h");
        let reservation = limiter.reserve("k", 6).await.unwrap();
        let id = reservation.id();
        engine.stall();
        if all {
            poll_and_drop(reservation.commit_all(), polls);
        } else {
            poll_and_drop(reservation.commit(6), polls);
        }
        engine.resume();
        tokio::task::yield_now().await;
        assert_eq!(held(&limiter), 6, "dropped after {polls} polls");
        // The work was done, so a later commit charges it.
        let settled = limiter.reservation(id).commit(6).await.unwrap();
        assert_eq!((settled.late(), settled.remaining()), (false, 4), "after {polls} polls");
    }
}

fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}

#[test]
fn a_commit_is_never_refused_for_its_size_and_reports_what_was_cut_off() {
    let (_, limiter) = limiter("10/h");
    let reservation = now_or_panic(limiter.reserve("k", 6)).unwrap();
    let settled = now_or_panic(reservation.commit(1 << 33)).unwrap();
    assert!(settled.overdrawn() && !settled.late());
    let (_, cost, _) = settled.limits().next().unwrap();
    let numbers = (cost.reserved.get(), cost.charged.get(), cost.uncharged.get());
    assert_eq!(numbers, (6, 20, (1 << 33) - 20), "twice the capacity");
}

#[tokio::test]
async fn a_commit_that_fails_leaves_the_reservation_active() {
    for all in [true, false] {
        let (_, engine, limiter) = on_stallable_engine("10/h");
        let reservation = limiter.reserve("k", 6).await.unwrap();
        let id = reservation.id();
        engine.fail();
        let result = if all { reservation.commit_all().await } else { reservation.commit(2).await };
        assert!(matches!(result, Err(EngineError::Unavailable(_))), "{result:?}");
        engine.resume();
        tokio::task::yield_now().await;
        assert_eq!(held(&limiter), 6);
        assert_eq!(limiter.reservation(id).commit(2).await.unwrap().remaining(), 8);
    }
}

// --- extensions ---------------------------------------------------------------------------------

#[test]
fn a_reservation_grows_while_it_lasts_and_is_cancelled_as_a_whole() {
    let (clock, limiter) = limiter("fixed-window 10/1d");
    let total = |cost| [RuleCost::new("work", Cost::total(cost))];
    let mut reservation = now_or_panic(limiter.reserve("k", 4)).unwrap();
    let extended = now_or_panic(reservation.extend_to(&total(7))).unwrap();
    assert_eq!((extended.reserved(), extended.remaining()), (&[Cost::total(7)][..], 3));
    let denied = now_or_panic(reservation.extend_to(&total(11)));
    assert!(matches!(denied, Err(Limited::Denied(_))), "{denied:?}");
    assert_eq!(held(&limiter), 7, "a denial changes nothing");
    let wanted = total(12);
    let part = reservation.extend_to(&wanted).at_least(8).ttl(2 * HOUR / 3);
    let part = now_or_panic(part).unwrap();
    assert_eq!(part.reserved(), [Cost::total(10)]);
    clock.advance(HOUR / 2);
    assert_eq!(held(&limiter), 10, "longer than the default of a minute");
    drop(reservation);
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
    let mut expired = now_or_panic(limiter.reserve("k", 4)).unwrap();
    clock.advance(HOUR);
    let late = now_or_panic(expired.extend_to(&total(5)));
    let Err(Limited::NoAnswer(error)) = late else { panic!("{late:?}") };
    assert_eq!(error.refusal(), Some(&Refusal::HoldExpired));
}

#[test]
fn an_extended_reservation_that_the_store_has_forgotten_is_charged_its_new_total() {
    let (clock, limiter) = limiter("fixed-window 10/1d");
    let mut reservation = now_or_panic(limiter.reserve("k", 4)).unwrap();
    let total = [RuleCost::new("work", Cost::total(7))];
    now_or_panic(reservation.extend_to(&total)).unwrap();
    clock.advance(2 * HOUR);
    let settled = now_or_panic(reservation.commit_all()).unwrap();
    assert_eq!((settled.late(), settled.remaining()), (true, 3));
}

#[test]
fn extensions_of_several_threads_never_hold_more_than_the_limit() {
    let (_, limiter) = limiter("fixed-window 10/1d");
    let (spendable, extended) = (AtomicU64::new(0), AtomicU64::new(0));
    let spend = || {
        for n in 0..2_000 {
            let Ok(mut reservation) = now_or_panic(limiter.reserve("k", 1)) else { continue };
            let total = [RuleCost::new("work", Cost::total(2 + n % 9))];
            let granted = now_or_panic(reservation.extend_to(&total).at_least(1)).unwrap();
            let granted = granted.reserved()[0].get();
            extended.fetch_add(granted - 1, Ordering::Relaxed);
            let all = spendable.fetch_add(granted, Ordering::SeqCst) + granted;
            assert!(all <= 10, "{all}");
            spendable.fetch_sub(granted, Ordering::SeqCst);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(spend))));
    assert!(extended.into_inner() > 2_000);
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
}

// --- reservations that are not settled ----------------------------------------------------------

#[test]
fn a_dropped_reservation_is_cancelled_and_a_kept_one_is_not() {
    let (clock, limiter) = limiter("10/h");
    drop(now_or_panic(limiter.reserve("k", 6)).unwrap());
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
    let kept = now_or_panic(limiter.reserve("k", 6)).unwrap().keep();
    assert_eq!((held(&limiter), remaining(&limiter)), (6, 4));
    // Dropping a handle found by its id does not cancel the reservation.
    drop(limiter.reservation(kept));
    assert_eq!(held(&limiter), 6);
    clock.advance(Duration::from_secs(60));
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
}

#[tokio::test]
async fn a_reservation_dropped_on_an_asynchronous_engine_is_cancelled() {
    let (_, _, limiter) = on_stallable_engine("10/h");
    drop(limiter.reserve("k", 6).await.unwrap());
    tokio::task::yield_now().await;
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
}

#[test]
fn without_a_runtime_a_reservation_dropped_on_an_asynchronous_engine_ends_at_its_deadline() {
    let (clock, _, limiter) = on_stallable_engine("10/h");
    drop(now_or_panic(limiter.reserve("k", 6)).unwrap());
    assert_eq!(held(&limiter), 6);
    clock.advance(Duration::from_secs(60));
    assert_eq!(held(&limiter), 0);
}

// --- a lease -----------------------------------------------------------------------------------

/// A lease was lent out, and the permits may have been used: a reset cannot take them back.
#[test]
fn a_lease_survives_a_reset_and_is_charged_at_its_end() {
    for text in ["10/h", "fixed-window 10/h", "sliding-log 10/h", "sliding-window 10/h"] {
        let (clock, limiter) = limiter(text);
        let id = hold(&limiter, 6, Expiry::Charge);
        limiter.record("k", 4).now().unwrap();
        limiter.reset("k").now().unwrap();
        assert_eq!((held(&limiter), remaining(&limiter)), (6, 4), "{text}");
        clock.advance(Duration::from_secs(59));
        assert_eq!((held(&limiter), remaining(&limiter)), (6, 4), "{text}");
        clock.advance(Duration::from_secs(1));
        assert_eq!((held(&limiter), remaining(&limiter)), (0, 4), "{text}: charged");
        // Permits charged at the end are not charged again.
        let settled = settle(&limiter, id, 6).unwrap();
        assert_eq!((settled.expired(), settled.remaining()), (true, 4), "{text}");
    }
}

#[test]
fn a_lease_that_is_settled_after_a_reset_is_charged_once_and_at_once() {
    let (clock, limiter) = limiter("sliding-log 10/h");
    let id = hold(&limiter, 10, Expiry::Charge);
    limiter.reset("k").now().unwrap();
    let settled = settle(&limiter, id, 10).unwrap();
    assert_eq!((settled.expired(), settled.remaining()), (false, 0));
    assert!(!limiter.check_now("k").unwrap().allowed());
    clock.advance(HOUR);
    assert_eq!(remaining(&limiter), 10);
}

#[test]
fn a_reset_forgets_holds_that_would_be_released() {
    let (_, limiter) = limiter("sliding-log 10/h");
    let id = hold(&limiter, 6, Expiry::Release);
    limiter.reset("k").now().unwrap();
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
    let late = settle(&limiter, id, 6).unwrap();
    assert_eq!((late.expired(), late.remaining()), (true, 4), "still charged");
}

// --- turns and leases of limits ----------------------------------------------------------------

#[test]
fn commits_to_a_queue_get_turns_one_after_the_other() {
    let (_, limiter) = limiter("leaky-bucket 10/s capacity 30 queue");
    let reserved: Vec<Reservation> =
        (0..30).map(|_| now_or_panic(limiter.reserve("k", 1)).unwrap()).collect();
    assert!(is_denied(now_or_panic(limiter.reserve("k", 1))), "no room for a thirty-first");
    let turns: Vec<u64> = reserved
        .into_iter()
        .zip([true, false].into_iter().cycle())
        .map(
            |(one, all)| {
                if all { now_or_panic(one.commit_all()) } else { now_or_panic(one.commit(1)) }
            },
        )
        .map(|commit| commit.unwrap().delay().get())
        .collect();
    let due: Vec<u64> = (0..30).map(|nth| nth * 100_000).collect();
    assert_eq!(turns, due);
}

#[test]
fn a_commit_and_a_check_of_a_queue_do_not_get_the_same_turn() {
    let (clock, limiter) = limiter("leaky-bucket 10/s capacity 30 queue");
    let reservation = now_or_panic(limiter.reserve("k", 1)).unwrap();
    let checks: Vec<u64> =
        (0..3).map(|_| limiter.check_now("k").unwrap().delay().get() / 1_000).collect();
    let commit = now_or_panic(reservation.commit_all()).unwrap().delay().get() / 1_000;
    let mut turns = checks.clone();
    turns.push(commit);
    turns.sort_unstable();
    turns.dedup();
    assert_eq!(turns.len(), 4, "checks at {checks:?} ms, the commit at {commit} ms");
    clock.advance(Duration::from_secs(1));
    let cancelled = now_or_panic(limiter.reserve("k", 1)).unwrap();
    assert_eq!(now_or_panic(cancelled.cancel()).unwrap().delay(), Micros::ZERO);
}

#[test]
fn a_holder_may_stay_for_a_whole_lease_of_any_length() {
    let (clock, limiter) = limiter("concurrency 5 lease 2h");
    let holder = now_or_panic(limiter.reserve("k", 1)).unwrap();
    clock.advance(2 * HOUR - Duration::from_micros(1));
    assert_eq!(held(&limiter), 1);
    assert!(!now_or_panic(holder.renew(2 * HOUR)).unwrap().expired());
    clock.advance(2 * HOUR - Duration::from_micros(1));
    assert_eq!(held(&limiter), 1);
    clock.advance(Duration::from_micros(1));
    assert_eq!(held(&limiter), 0);
    assert!(now_or_panic(holder.renew(2 * HOUR)).unwrap().expired());
}

#[test]
fn no_holder_may_stay_for_longer_than_an_hour_or_the_lease() {
    for (text, longest_ttl) in [
        ("10/h", HOUR),
        ("concurrency 5", HOUR),
        ("concurrency 5 lease 2h", 2 * HOUR),
        ("concurrency 5 lease 36500d", 24 * 36_500 * HOUR),
    ] {
        let (_, limiter) = limiter(text);
        let too_long = longest_ttl + Duration::from_micros(1);
        let longest = now_or_panic(limiter.reserve("k", 1).ttl(longest_ttl)).unwrap();
        for ttl in [too_long, Duration::ZERO] {
            let made = now_or_panic(limiter.reserve("k", 1).ttl(ttl));
            let refused = match made {
                Err(Limited::NoAnswer(error)) => error,
                other => panic!("{text}, {ttl:?}: {other:?}"),
            };
            assert_eq!(refused.refusal(), Some(&Refusal::HoldLength), "{text}, {ttl:?}");
            let refused = now_or_panic(longest.renew(ttl)).unwrap_err();
            assert_eq!(refused.refusal(), Some(&Refusal::HoldLength), "{text}, {ttl:?}");
        }
        assert_eq!(held(&limiter), 1, "{text}");
    }
}

// --- many --------------------------------------------------------------------------------------

/// Each hold has another deadline. A list walked for every hold would take too long for a
/// test.
#[test]
fn twenty_thousand_hold_one_key_and_all_of_them_expire() {
    const HOLDERS: u64 = 20_000;
    let (clock, limiter) = limiter("concurrency 20000 lease 30s");
    for holder in 0..HOLDERS {
        // Later ones end earlier, so that no insertion is a plain append.
        let ttl = Duration::from_micros(30_000_000 - holder);
        now_or_panic(limiter.reserve("k", 1).ttl(ttl)).unwrap().keep();
    }
    assert!(is_denied(now_or_panic(limiter.reserve("k", 1))));
    clock.advance(Duration::from_micros(30_000_000 - HOLDERS / 2));
    // Among so many, some end slightly late, and none too early.
    assert!(held(&limiter) >= HOLDERS / 2);
    clock.advance(Duration::from_secs(1));
    assert_eq!(held(&limiter), 0);
    assert!(now_or_panic(limiter.reserve("k", HOLDERS)).is_ok());
}

// --- support -----------------------------------------------------------------------------------

/// Decides when polled, or stalls or fails on request.
struct StallableEngine {
    memory: Memory,
    stalls: AtomicBool,
    fails: AtomicBool,
}

impl StallableEngine {
    fn stall(&self) {
        self.stalls.store(true, Ordering::Relaxed);
    }

    fn fail(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    fn resume(&self) {
        self.stalls.store(false, Ordering::Relaxed);
        self.fails.store(false, Ordering::Relaxed);
    }
}

impl Engine for StallableEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(std::future::poll_fn(move |_| {
            if self.stalls.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            if self.fails.load(Ordering::Relaxed) {
                return Poll::Ready(Err(EngineError::unavailable(Refusal::NotImmediate)));
            }
            Poll::Ready(self.memory.decide(call).now())
        })))
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

fn limiter(text: &str) -> (ManualClock, Limiter) {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    (clock, Limiter::with_rules(memory, [rule(text)]).unwrap())
}

fn on_stallable_engine(text: &str) -> (ManualClock, Arc<StallableEngine>, Limiter) {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    let engine = Arc::new(StallableEngine { memory, stalls: false.into(), fails: false.into() });
    (clock, engine.clone(), Limiter::with_rules(engine, [rule(text)]).unwrap())
}

fn rule(text: &str) -> Rule {
    Rule::new("work", [text.parse::<Limit>().unwrap()]).unwrap()
}

/// Holds `cost` for a minute, as a direct call to the engine.
fn hold(limiter: &Limiter, cost: u64, expiry: Expiry) -> HoldId {
    let rules = limiter.rules();
    let (limit, cost) = (&rules[0].limits()[0], Cost::new(cost).unwrap());
    let op = Op::hold(HoldId::random().unwrap(), Micros::from_secs(60), expiry);
    let charges = [Charge { limit, key: "k".into(), cost, caller: None }];
    let made = limiter.engine().decide(Call { op, charges: &charges, idempotency_key: None });
    made.now().unwrap().hold().unwrap()
}

fn settle(limiter: &Limiter, id: HoldId, cost: u64) -> Result<Decision, EngineError> {
    let op = Op::Settle { id, costs: Costs::All(Cost::new(cost).unwrap()) };
    limiter.engine().decide(Call { op, charges: &[], idempotency_key: None }).now()
}

/// Held permits of the key.
fn held(limiter: &Limiter) -> u64 {
    now_or_panic(limiter.inspect("k")).unwrap()[0].standing.held
}

fn remaining(limiter: &Limiter) -> u64 {
    now_or_panic(limiter.inspect("k")).unwrap()[0].standing.remaining
}

fn is_denied(made: Result<Reservation, Limited>) -> bool {
    matches!(made, Err(Limited::Denied(_)))
}
