//! Permits set aside before the work and settled after it, whatever happens in between: a retry, a
//! deadline, a caller that goes away, a reset.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/ready.rs"]
mod ready;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{
    Answer, Call, Charge, Clock, Cost, Decision, Engine, EngineError, Expiry, Health, HoldId,
    Inspection, Key, Limit, Limited, Limiter, ManualClock, Memory, Micros, Op, Refusal,
    Reservation, Rule, RuleLimit,
};

use crate::ready::ready;

const HOUR: Duration = Duration::from_secs(3_600);

// --- in debt ------------------------------------------------------------------------------------

/// Others were recorded meanwhile, until nothing more fits into the debt, and leave before it does.
#[test]
fn what_is_settled_in_debt_counts_when_the_debt_has_left() {
    for notation in ["sliding-log 10/1s", "sliding-window 10/1s precision 100ms"] {
        let clock = ManualClock::default();
        clock.set(Micros::from_secs(1_000));
        let memory = Memory::builder().clock(clock.clone()).build();
        let rule = Rule::new("r", [notation.parse().unwrap()]).unwrap();
        let limit = rule.limits()[0].clone();
        let ask = |op, cost| {
            let cost = Cost::total(cost);
            let charges = [Charge { limit: &limit, key: "k".into(), cost, who: None }];
            memory.decide(Call { op, charges: &charges, once: None }).now().unwrap()
        };
        let (id, ttl, expiry) = (HoldId::from(7), Micros::from_secs(10), Expiry::Release);
        let held = ask(Op::Hold { id, ttl, expiry }, 4);
        assert!(held.allowed());
        ask(Op::Record, 20);
        clock.set(Micros::from_millis(1_000_500));
        let op = Op::Settle { id: held.hold().unwrap(), cost: Some(Cost::total(4)) };
        memory.decide(Call { op, charges: &[], once: None }).now().unwrap();
        clock.set(Micros::from_millis(1_001_200));
        assert!(!ask(Op::Check, 7).allowed(), "{notation}: eleven in 0.7 s");
        assert!(ask(Op::Check, 6).allowed(), "{notation}");
    }
}

// --- under an id -------------------------------------------------------------------------------

#[test]
fn while_it_lasts_a_reservation_asked_for_again_is_the_same() {
    let (clock, limiter) = limiter("concurrency 1 lease 30s");
    let first = ready(limiter.reserve("k", 1).once("id")).unwrap();
    for second in [0, 10, 20, 29] {
        clock.set(Micros::from_secs(1_700_000_000 + second));
        let again = ready(limiter.reserve("k", 1).once("id")).unwrap();
        assert_eq!(again.id(), first.id(), "in second {second}");
        assert!(again.decision().unwrap().repeated(), "in second {second}");
        again.keep();
    }
    assert!(!first.decision().unwrap().repeated());
    assert_eq!(held(&limiter), 1);
}

#[test]
fn dropping_a_reservation_that_was_answered_again_does_not_end_the_first() {
    let (_, limiter) = limiter("concurrency 1 lease 30s");
    let first = ready(limiter.reserve("k", 1).once("id")).unwrap();
    drop(ready(limiter.reserve("k", 1).once("id")).unwrap());
    assert_eq!(held(&limiter), 1, "the first still works under it");
    assert!(is_denied(ready(limiter.reserve("k", 1))));
    drop(first);
    assert_eq!(held(&limiter), 0);
}

type End = fn(&ManualClock, Reservation);

/// How a reservation may be over before somebody asks for it again under its id.
const ENDS: [(&str, End); 5] = [
    ("dropped", |_, reservation| drop(reservation)),
    ("cancelled", |_, reservation| drop(ready(reservation.cancel()).unwrap())),
    ("committed", |_, reservation| drop(ready(reservation.commit_all()).unwrap())),
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
fn a_reservation_that_is_over_is_not_handed_out_again() {
    for (how, end) in ENDS {
        let (clock, limiter) = limiter("concurrency 1 lease 30s");
        let first = ready(limiter.reserve("k", 1).once("id")).unwrap();
        let over = first.id();
        end(&clock, first);
        let anew = ready(limiter.reserve("k", 1).once("id")).unwrap();
        assert!(!anew.decision().unwrap().repeated(), "{how}");
        assert_ne!(anew.id(), over, "{how}");
        assert_eq!(held(&limiter), 1, "{how}");
        assert!(is_denied(ready(limiter.reserve("k", 1))), "{how}: a second holder");
    }
}

#[test]
fn a_reservation_that_is_over_gives_its_id_no_place_beside_the_next_holder() {
    for (how, end) in ENDS {
        let (clock, limiter) = limiter("concurrency 1 lease 30s");
        let first = ready(limiter.reserve("k", 1).once("id")).unwrap();
        end(&clock, first);
        let next = ready(limiter.reserve("k", 1)).unwrap();
        let again = ready(limiter.reserve("k", 1).once("id"));
        assert!(is_denied(again), "{how}: two holders of one place");
        drop(next);
        assert!(ready(limiter.reserve("k", 1).once("id")).is_ok(), "{how}");
    }
}

// --- a commit that is not answered -------------------------------------------------------------

#[tokio::test]
async fn a_commit_that_is_dropped_before_its_answer_leaves_the_reservation_standing() {
    for polls in 1..4 {
        drop_commit_after(polls).await;
    }
}

#[tokio::test]
async fn a_commit_that_is_dropped_unpolled_leaves_the_reservation_standing() {
    drop_commit_after(0).await;
}

/// To be called in a runtime, from which a cancellation could be sent.
async fn drop_commit_after(polls: usize) {
    for all in [true, false] {
        let (_, engine, limiter) = later("10/h");
        let reservation = limiter.reserve("k", 6).await.unwrap();
        let id = reservation.id();
        engine.stall();
        if all {
            poll_and_drop(reservation.commit_all(), polls);
        } else {
            poll_and_drop(reservation.commit(6), polls);
        }
        engine.go_on();
        tokio::task::yield_now().await;
        assert_eq!(held(&limiter), 6, "dropped after {polls} polls");
        // The work was done, so somebody will see to it that it is charged.
        let settled = limiter.reservation(id).commit(6).await.unwrap();
        assert_eq!((settled.expired(), settled.remaining()), (false, 4), "after {polls} polls");
    }
}

fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}

#[test]
fn a_commit_of_too_large_a_cost_leaves_the_reservation_standing() {
    let (_, limiter) = limiter("10/h");
    let reservation = ready(limiter.reserve("k", 6)).unwrap();
    let id = reservation.id();
    let refused = ready(reservation.commit(1 << 33)).unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::Cost(_))), "{refused}");
    assert_eq!(held(&limiter), 6);
    let settled = ready(limiter.reservation(id).commit(6)).unwrap();
    assert_eq!((settled.expired(), settled.remaining()), (false, 4));
}

#[tokio::test]
async fn a_commit_that_nobody_answers_leaves_the_reservation_standing() {
    for all in [true, false] {
        let (_, engine, limiter) = later("10/h");
        let reservation = limiter.reserve("k", 6).await.unwrap();
        let id = reservation.id();
        engine.fail();
        let answer = if all { reservation.commit_all().await } else { reservation.commit(2).await };
        assert!(matches!(answer, Err(EngineError::Unavailable(_))), "{answer:?}");
        engine.go_on();
        tokio::task::yield_now().await;
        assert_eq!(held(&limiter), 6);
        assert_eq!(limiter.reservation(id).commit(2).await.unwrap().remaining(), 8);
    }
}

// --- without being settled ---------------------------------------------------------------------

#[test]
fn a_dropped_reservation_is_cancelled_and_a_kept_one_is_not() {
    let (clock, limiter) = limiter("10/h");
    drop(ready(limiter.reserve("k", 6)).unwrap());
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
    let kept = ready(limiter.reserve("k", 6)).unwrap().keep();
    assert_eq!((held(&limiter), remaining(&limiter)), (6, 4));
    // Found by its id, it is nobody's to drop.
    drop(limiter.reservation(kept));
    assert_eq!(held(&limiter), 6);
    clock.advance(Duration::from_secs(60));
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
}

#[tokio::test]
async fn a_reservation_dropped_in_front_of_an_engine_that_answers_later_is_cancelled() {
    let (_, _, limiter) = later("10/h");
    drop(limiter.reserve("k", 6).await.unwrap());
    tokio::task::yield_now().await;
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
}

#[test]
fn without_a_runtime_a_dropped_reservation_of_such_an_engine_ends_at_its_deadline() {
    let (clock, _, limiter) = later("10/h");
    drop(ready(limiter.reserve("k", 6)).unwrap());
    assert_eq!(held(&limiter), 6);
    clock.advance(Duration::from_secs(60));
    assert_eq!(held(&limiter), 0);
}

// --- a lease -----------------------------------------------------------------------------------

/// A lease was lent out, and what was lent may have been used: a reset cannot take it back.
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
        // What was charged at the end is not charged again.
        let settled = settle(&limiter, id, 6).unwrap();
        assert_eq!((settled.expired(), settled.remaining()), (true, 4), "{text}");
    }
}

#[test]
fn a_lease_that_is_settled_after_a_reset_is_charged_once_and_in_time() {
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
fn a_reset_forgets_what_would_be_released() {
    let (_, limiter) = limiter("sliding-log 10/h");
    let id = hold(&limiter, 6, Expiry::Release);
    limiter.reset("k").now().unwrap();
    assert_eq!((held(&limiter), remaining(&limiter)), (0, 10));
    let late = settle(&limiter, id, 6).unwrap();
    assert_eq!((late.expired(), late.remaining()), (true, 4), "charged all the same");
}

// --- turns and leases of limits ----------------------------------------------------------------

#[test]
fn commits_to_a_queue_are_given_turns_one_after_the_other() {
    let (_, limiter) = limiter("leaky-bucket 10/s capacity 30 queue");
    let reserved: Vec<Reservation> =
        (0..30).map(|_| ready(limiter.reserve("k", 1)).unwrap()).collect();
    assert!(is_denied(ready(limiter.reserve("k", 1))), "no room for a thirty-first");
    let turns: Vec<u64> = reserved
        .into_iter()
        .zip([true, false].into_iter().cycle())
        .map(|(one, all)| if all { ready(one.commit_all()) } else { ready(one.commit(1)) })
        .map(|commit| commit.unwrap().delay().get())
        .collect();
    let due: Vec<u64> = (0..30).map(|nth| nth * 100_000).collect();
    assert_eq!(turns, due);
}

#[test]
fn a_commit_and_a_check_of_a_queue_are_not_given_the_same_turn() {
    let (clock, limiter) = limiter("leaky-bucket 10/s capacity 30 queue");
    let reservation = ready(limiter.reserve("k", 1)).unwrap();
    let checks: Vec<u64> =
        (0..3).map(|_| limiter.check_now("k").unwrap().delay().get() / 1_000).collect();
    let commit = ready(reservation.commit_all()).unwrap().delay().get() / 1_000;
    let mut turns = checks.clone();
    turns.push(commit);
    turns.sort_unstable();
    turns.dedup();
    assert_eq!(turns.len(), 4, "checks at {checks:?} ms, the commit at {commit} ms");
    clock.advance(Duration::from_secs(1));
    let cancelled = ready(limiter.reserve("k", 1)).unwrap();
    assert_eq!(ready(cancelled.cancel()).unwrap().delay(), Micros::ZERO);
}

#[test]
fn a_holder_may_stay_for_a_whole_lease_however_long_that_is() {
    let (clock, limiter) = limiter("concurrency 5 lease 2h");
    let holder = ready(limiter.reserve("k", 1)).unwrap();
    clock.advance(2 * HOUR - Duration::from_micros(1));
    assert_eq!(held(&limiter), 1);
    assert!(!ready(holder.renew(2 * HOUR)).unwrap().expired());
    clock.advance(2 * HOUR - Duration::from_micros(1));
    assert_eq!(held(&limiter), 1);
    clock.advance(Duration::from_micros(1));
    assert_eq!(held(&limiter), 0);
    assert!(ready(holder.renew(2 * HOUR)).unwrap().expired());
}

#[test]
fn nobody_may_stay_for_longer_than_an_hour_or_the_lease() {
    for (text, most) in [
        ("10/h", HOUR),
        ("concurrency 5", HOUR),
        ("concurrency 5 lease 2h", 2 * HOUR),
        ("concurrency 5 lease 36500d", 24 * 36_500 * HOUR),
    ] {
        let (_, limiter) = limiter(text);
        let too_long = most + Duration::from_micros(1);
        let longest = ready(limiter.reserve("k", 1).ttl(most)).unwrap();
        for ttl in [too_long, Duration::ZERO] {
            let made = ready(limiter.reserve("k", 1).ttl(ttl));
            let refused = match made {
                Err(Limited::NoAnswer(error)) => error,
                other => panic!("{text}, {ttl:?}: {other:?}"),
            };
            assert_eq!(refused.refusal(), Some(&Refusal::HoldLength), "{text}, {ttl:?}");
            let refused = ready(longest.renew(ttl)).unwrap_err();
            assert_eq!(refused.refusal(), Some(&Refusal::HoldLength), "{text}, {ttl:?}");
        }
        assert_eq!(held(&limiter), 1, "{text}");
    }
}

// --- many --------------------------------------------------------------------------------------

/// Each with a deadline of its own. A list that is walked for every one of them would not end within
/// the patience of whoever runs the tests.
#[test]
fn twenty_thousand_hold_one_key_and_all_of_them_expire() {
    const HOLDERS: u64 = 20_000;
    let (clock, limiter) = limiter("concurrency 20000 lease 30s");
    for holder in 0..HOLDERS {
        // Later ones end earlier, so that none is simply put behind the last.
        let ttl = Duration::from_micros(30_000_000 - holder);
        ready(limiter.reserve("k", 1).ttl(ttl)).unwrap().keep();
    }
    assert!(is_denied(ready(limiter.reserve("k", 1))));
    clock.advance(Duration::from_micros(30_000_000 - HOLDERS / 2));
    assert_eq!(held(&limiter), HOLDERS / 2);
    clock.advance(Duration::from_secs(1));
    assert_eq!(held(&limiter), 0);
    assert!(ready(limiter.reserve("k", HOLDERS)).is_ok());
}

// --- support -----------------------------------------------------------------------------------

/// Decides when it is polled and not before, unless it is told not to decide at all.
struct Later {
    memory: Memory,
    stalls: AtomicBool,
    fails: AtomicBool,
}

impl Later {
    fn stall(&self) {
        self.stalls.store(true, Ordering::Relaxed);
    }

    fn fail(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    fn go_on(&self) {
        self.stalls.store(false, Ordering::Relaxed);
        self.fails.store(false, Ordering::Relaxed);
    }
}

impl Engine for Later {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(std::future::poll_fn(move |_| {
            if self.stalls.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            if self.fails.load(Ordering::Relaxed) {
                return Poll::Ready(Err(EngineError::unavailable(Refusal::NotImmediate)));
            }
            Poll::Ready(self.memory.decide(call).now())
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

fn limiter(text: &str) -> (ManualClock, Limiter) {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    (clock, Limiter::with_rules(memory, [rule(text)]).unwrap())
}

fn later(text: &str) -> (ManualClock, Arc<Later>, Limiter) {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    let engine = Arc::new(Later { memory, stalls: false.into(), fails: false.into() });
    (clock, engine.clone(), Limiter::with_rules(engine, [rule(text)]).unwrap())
}

fn rule(text: &str) -> Rule {
    Rule::new("work", [text.parse::<Limit>().unwrap()]).unwrap()
}

/// Sets `cost` aside for a minute, as an engine is asked to.
fn hold(limiter: &Limiter, cost: u64, expiry: Expiry) -> HoldId {
    let rules = limiter.rules();
    let (limit, cost) = (&rules[0].limits()[0], Cost::new(cost).unwrap());
    let op = Op::Hold { id: HoldId::random().unwrap(), ttl: Micros::from_secs(60), expiry };
    let charges = [Charge { limit, key: "k".into(), cost, who: None }];
    let made = limiter.engine().decide(Call { op, charges: &charges, once: None });
    made.now().unwrap().hold().unwrap()
}

fn settle(limiter: &Limiter, id: HoldId, cost: u64) -> Result<Decision, EngineError> {
    let op = Op::Settle { id, cost: Some(Cost::new(cost).unwrap()) };
    limiter.engine().decide(Call { op, charges: &[], once: None }).now()
}

/// What is set aside for the key.
fn held(limiter: &Limiter) -> u64 {
    ready(limiter.inspect("k")).unwrap()[0].standing.held
}

fn remaining(limiter: &Limiter) -> u64 {
    ready(limiter.inspect("k")).unwrap()[0].standing.remaining
}

fn is_denied(made: Result<Reservation, Limited>) -> bool {
    matches!(made, Err(Limited::Denied(_)))
}
