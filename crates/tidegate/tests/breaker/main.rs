//! A store that does not answer is left alone, and found again when it does.
#![expect(clippy::unwrap_used, reason = "a test")]

mod flapping;
mod shards;
mod store;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use store::{Bench, Fate, RULE, charge, limit};
use tidegate::{
    Answer, Breaker, Call, Charge, Circuit, Clock, Cost, Engine, EngineError, Expiry, HoldId,
    ManualClock, Micros, Op, Refusal,
};

#[test]
fn after_a_few_failures_nothing_is_sent_and_nobody_waits() {
    for fate in [Fate::Unavailable, Fate::Ambiguous] {
        let bench = Bench::new(|breaker| breaker);
        assert!(bench.check("k").is_ok());
        assert_eq!(bench.circuit(), Circuit::Closed);
        bench.store.set(fate);
        for _ in 0..5 {
            assert!(bench.check("k").is_err());
        }
        let asked = bench.store.asked();
        for _ in 0..1_000 {
            let error = bench.check("k").unwrap_err();
            let told = "no decision, nothing charged: the store is left alone for a moment";
            assert!(error.to_string().starts_with(told), "{error}");
            assert!(error.to_string().contains("made to fail"), "why: {error}");
            assert!(matches!(error, EngineError::Unavailable(_)), "{error:?}");
        }
        assert_eq!(bench.store.asked(), asked, "{fate:?}");
        assert_eq!((bench.breaker.opened(), bench.breaker.refused()), (1, 1_000));
        assert_eq!(bench.circuit(), Circuit::Open);
        assert_eq!(bench.events(), ["opened 0: made to fail"]);
    }
}

#[test]
fn a_store_that_is_back_is_found_within_a_quarter_of_a_second() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Unavailable);
    // Half a minute, in which somebody asks every millisecond.
    bench.ask_for(Duration::from_secs(30), "k");
    let asked = bench.store.asked();
    assert!((150..310).contains(&asked), "{asked} probes in half a minute");
    bench.store.set(Fate::Answer);
    let before = bench.clock.elapsed();
    while bench.circuit() != Circuit::Closed {
        bench.clock.advance(Duration::from_millis(1));
        let _ = bench.check("k");
    }
    let took = bench.clock.elapsed().saturating_sub(before);
    assert!(took < Micros::from_millis(250), "{took:?}");
    let (opened, closed) = (&bench.events()[0], &bench.events()[1]);
    assert!(opened.starts_with("opened") && closed.starts_with("closed 0 after 30"), "{closed}");
    assert_eq!(bench.events().len(), 2, "one line for each transition");
}

#[test]
fn a_store_that_says_that_it_is_gone_is_asked_by_hardly_anybody() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Unavailable);
    bench.store.set_up(false);
    bench.ask_for(Duration::from_secs(30), "k");
    let asked = bench.store.asked();
    assert!((37..=85).contains(&asked), "{asked}: once in 0.4 to 0.8 s");
    bench.store.set_up(true);
    bench.store.set(Fate::Answer);
    let before = bench.clock.elapsed();
    bench.ask_for(Duration::from_millis(25), "k");
    assert_eq!(bench.circuit(), Circuit::Closed, "since {before:?}");
}

/// One that has loaded its data may only learn that it is back by being asked.
#[test]
fn a_store_that_is_wrong_about_being_gone_is_found_as_well() {
    for answers_later in [false, true] {
        let bench = Bench::new(|breaker| breaker);
        if answers_later {
            bench.store.answer_later();
        }
        bench.store.set(Fate::Unavailable);
        bench.store.set_up(false);
        bench.ask_for(Duration::from_secs(5), "k");
        let asked = bench.store.asked() - 5;
        assert!((5..=12).contains(&asked), "{asked} in 5 s");
        bench.store.set(Fate::Answer);
        bench.ask_for(Duration::from_secs(1), "k");
        assert_eq!(bench.circuit(), Circuit::Closed, "{answers_later}");
    }
}

/// Whoever is not polled any more keeps his place for a while, and not for ever.
#[test]
fn a_probe_that_nobody_polls_is_not_waited_for_without_end() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Unavailable);
    bench.ask_for(Duration::from_millis(10), "k");
    bench.clock.advance(Duration::from_millis(100));
    bench.store.set(Fate::Never);
    let limit = limit();
    let charges = [charge(&limit, "k")];
    let mut parked = bench.breaker.decide(Call { op: Op::Check, charges: &charges, once: None });
    poll(&mut parked);
    bench.store.set(Fate::Answer);
    bench.ask_for(Duration::from_millis(1_900), "k");
    assert_eq!(bench.circuit(), Circuit::HalfOpen);
    bench.ask_for(Duration::from_millis(200), "k");
    assert_eq!(bench.circuit(), Circuit::Closed);
    drop(parked);
    assert_eq!(bench.circuit(), Circuit::Closed);
}

#[test]
fn a_store_that_nobody_asks_any_more_is_forgotten() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Unavailable);
    bench.ask_for(Duration::from_millis(10), "k");
    bench.clock.advance(Duration::from_secs(9));
    assert_eq!(bench.circuit(), Circuit::Open);
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.circuit(), Circuit::Closed);
    assert!(bench.events()[1].starts_with("forgot 0 after 10."), "{:?}", bench.events());
}

#[test]
fn denials_refusals_errors_about_a_key_and_calls_that_are_dropped_are_no_failures() {
    let bench = Bench::new(|breaker| breaker);
    for _ in 0..200 {
        bench.check("denied").unwrap();
        let nothing = Call { op: Op::Check, charges: &[], once: None };
        assert!(bench.breaker.decide(nothing).now().unwrap_err().refusal().is_some());
    }
    assert!(!bench.check("denied").unwrap().allowed());
    bench.store.set(Fate::Misfit);
    (0..200).for_each(|_| drop(bench.check("k").unwrap_err()));
    bench.store.set(Fate::Never);
    let limit = limit();
    for _ in 0..200 {
        let charges = [charge(&limit, "k")];
        let call = Call { op: Op::Check, charges: &charges, once: None };
        poll_and_drop(bench.breaker.decide(call));
    }
    assert_eq!((bench.circuit(), bench.breaker.opened()), (Circuit::Closed, 0));
}

/// An engine looks at a call before it asks its store, and may refuse it however gone that is.
#[test]
fn what_is_refused_before_the_store_is_asked_neither_closes_it_nor_keeps_it_closed() {
    let bench = Bench::new(|breaker| breaker);
    let limit = limit();
    let charges = [Charge { cost: Cost::ZERO, ..charge(&limit, "k") }];
    let (id, ttl, expiry) = (HoldId::from(7), Micros::from_secs(1), Expiry::Release);
    let empty = Call { op: Op::Hold { id, ttl, expiry }, charges: &charges, once: None };
    let ask = || bench.breaker.decide(empty).now().unwrap_err().refusal().cloned();
    bench.store.set(Fate::Unavailable);
    for _ in 0..5 {
        assert!((0..10).all(|_| ask() == Some(Refusal::EmptyHold)));
        assert!(bench.check("k").is_err());
    }
    assert_eq!((bench.circuit(), bench.store.asked()), (Circuit::Open, 5));
    let mut refused = 0;
    for _ in 0..1_000 {
        bench.clock.advance(Duration::from_millis(1));
        refused += usize::from(ask().is_some());
    }
    assert!(refused > 3, "{refused} were let through");
    assert_eq!((bench.circuit(), bench.events().len()), (Circuit::Open, 1));
    // None of them has taken the place of the one who finds that it is back.
    bench.store.set(Fate::Answer);
    (0..3).for_each(|_| drop(bench.check("k").unwrap()));
    assert_eq!(bench.circuit(), Circuit::Closed);
}

#[test]
fn a_probe_that_is_dropped_leaves_its_place_to_the_next() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Unavailable);
    bench.ask_for(Duration::from_millis(20), "k");
    bench.store.set(Fate::Never);
    let limit = limit();
    let charges = [charge(&limit, "k")];
    let call = Call { op: Op::Check, charges: &charges, once: None };
    bench.clock.advance(Duration::from_millis(200));
    for _ in 0..100 {
        // Never polled: nobody was asked, and the place is free.
        let unpolled = bench.breaker.decide(call);
        assert!(matches!(unpolled, Answer::Later(_)));
        let asked = bench.store.asked();
        let mut probe = bench.breaker.decide(call);
        poll(&mut probe);
        assert_eq!(bench.store.asked(), asked + 1);
        assert_eq!(bench.circuit(), Circuit::HalfOpen);
        // Polled when there is another already.
        let Answer::Later(mut late) = unpolled else { panic!("it was one") };
        let refused = poll_once(late.as_mut());
        assert!(matches!(refused, Some(Err(EngineError::Unavailable(_)))));
        assert!(bench.check("k").is_err(), "one at a time");
        drop(probe);
        assert_eq!(bench.circuit(), Circuit::Open);
    }
    bench.store.set(Fate::Answer);
    for _ in 0..3 {
        bench.check("k").unwrap();
    }
    assert_eq!(bench.circuit(), Circuit::Closed);
}

#[test]
fn an_answer_that_comes_late_is_passed_on_and_counts_as_a_failure() {
    let bench = Bench::new(|breaker| breaker.slow_after(Duration::from_millis(10)));
    bench.store.set(Fate::After(Duration::from_millis(10)));
    (0..20).for_each(|_| drop(bench.check("k").unwrap()));
    assert_eq!(bench.circuit(), Circuit::Closed);
    bench.store.set(Fate::After(Duration::from_millis(11)));
    let answered = (0..200).filter(|_| bench.check("k").is_ok()).count();
    assert_eq!(bench.circuit(), Circuit::Open);
    assert!(answered >= 5, "{answered}");
    assert!(bench.events()[0].contains("answered after 11ms"), "{:?}", bench.events());
}

#[test]
fn whatever_is_asked_is_guarded() {
    let bench = Bench::new(|breaker| breaker);
    let limit = limit();
    let charges = [charge(&limit, "k")];
    let call = |op| Call { op, charges: &charges, once: None };
    let about = |op| Call { op, charges: &[], once: None };
    let (id, ttl) = (HoldId::from(7), Micros::from_secs(1));
    bench.store.set(Fate::Unavailable);
    for _ in 0..5 {
        assert!(bench.breaker.inspect(&limit, "k".into()).now().is_err(), "and counts");
    }
    assert_eq!(bench.circuit(), Circuit::Open);
    let asked = bench.store.asked();
    for op in [
        Op::Check,
        Op::Peek,
        Op::Record,
        Op::Refund,
        Op::Reset,
        Op::Hold { id, ttl, expiry: Expiry::Release },
        Op::Enter { id, ttl },
        Op::Visit { id, ttl },
        Op::Lend { id, ttl },
    ] {
        assert!(bench.breaker.decide(call(op)).now().is_err(), "{op:?}");
    }
    for op in [Op::Settle { id, cost: Some(Cost::ONE) }, Op::Renew { id, ttl }] {
        assert!(bench.breaker.decide(about(op)).now().is_err(), "{op:?}");
    }
    assert!(bench.breaker.inspect(&limit, "k".into()).now().is_err());
    assert_eq!(bench.breaker.check_one(&charges[0]), None);
    assert_eq!(bench.store.asked(), asked);
}

#[test]
fn what_is_quickly_done_passes_while_it_is_closed() {
    let clock = ManualClock::default();
    let memory = tidegate::Memory::builder().clock(clock.clone()).build();
    let breaker = Breaker::new(memory);
    let limit = limit();
    let charges = [charge(&limit, "k")];
    breaker.decide(Call { op: Op::Check, charges: &charges, once: None }).now().unwrap();
    assert!(breaker.check_one(&charges[0]).is_some());
    assert_eq!(breaker.health().circuit, Some(Circuit::Closed));
    assert!(breaker.engine().health().circuit.is_none(), "nobody guards that one");
    assert_eq!(limit.rule(), RULE);
}

fn poll_and_drop<T: Unpin>(mut answer: Answer<'_, T>) {
    poll(&mut answer);
}

/// It is not answered yet.
fn poll<T: Unpin>(answer: &mut Answer<'_, T>) {
    assert!(poll_once(std::pin::Pin::new(answer)).is_none());
}

fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let waker = Arc::new(Nobody).into();
    match future.poll(&mut std::task::Context::from_waker(&waker)) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

struct Nobody;

impl std::task::Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}
