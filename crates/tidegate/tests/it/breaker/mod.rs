//! The circuit breaker: it opens when the store fails, and closes when the store has recovered.
mod flapping;
mod shards;
mod silence;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use testkit::engines::{BreakerFixture, RULE, StoreMode, charge, limit};
use tidegate::{
    Breaker, Call, Charge, Circuit, Clock, Cost, Costs, Engine, EngineError, EngineFuture, Expiry,
    HoldId, ManualClock, Micros, Op, Refusal,
};

#[test]
fn after_a_few_failures_nothing_is_sent_and_no_call_waits() {
    for mode in [StoreMode::Unavailable, StoreMode::Ambiguous] {
        let bench = BreakerFixture::new(|breaker| breaker);
        assert!(bench.check("k").is_ok());
        assert_eq!(bench.circuit(), Circuit::Closed);
        bench.store.set(mode);
        for _ in 0..5 {
            assert!(bench.check("k").is_err());
        }
        let calls_before = bench.store.calls();
        for _ in 0..1_000 {
            let error = bench.check("k").unwrap_err();
            let expected = "no decision; not charged: circuit open; store not contacted";
            assert!(error.to_string().starts_with(expected), "{error}");
            assert!(error.to_string().contains("made to fail"), "cause: {error}");
            assert!(matches!(error, EngineError::Unavailable(_)), "{error:?}");
        }
        assert_eq!(bench.store.calls(), calls_before, "{mode:?}");
        assert_eq!((bench.breaker.opened(), bench.breaker.refused()), (1, 1_000));
        assert_eq!(bench.circuit(), Circuit::Open);
        assert_eq!(bench.events(), ["opened 0: made to fail"]);
    }
}

#[test]
fn a_store_that_recovered_is_used_again_within_a_quarter_of_a_second() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Unavailable);
    // Half a minute with one check every millisecond.
    bench.check_for(Duration::from_secs(30), "k");
    let calls_before = bench.store.calls();
    assert!((150..310).contains(&calls_before), "{calls_before} probes in half a minute");
    bench.store.set(StoreMode::Reply);
    let before = bench.clock.elapsed();
    while bench.circuit() != Circuit::Closed {
        bench.clock.advance(Duration::from_millis(1));
        let _ = bench.check("k");
    }
    let took = bench.clock.elapsed().saturating_sub(before);
    assert!(took < Micros::from_millis(250), "{took:?}");
    let (opened, closed) = (&bench.events()[0], &bench.events()[1]);
    assert!(opened.starts_with("opened") && closed.starts_with("closed 0 after "), "{closed}");
    assert_eq!(bench.events().len(), 2, "one event for each transition");
}

#[test]
fn a_store_that_reports_itself_down_gets_few_probes() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Unavailable);
    bench.store.set_up(false);
    bench.check_for(Duration::from_secs(30), "k");
    let calls_before = bench.store.calls();
    assert!((37..=85).contains(&calls_before), "{calls_before}: one probe in 0.4 to 0.8 s");
    bench.store.set_up(true);
    bench.store.set(StoreMode::Reply);
    let before = bench.clock.elapsed();
    bench.check_for(Duration::from_millis(25), "k");
    assert_eq!(bench.circuit(), Circuit::Closed, "since {before:?}");
}

/// A store that has loaded its data may only report itself up after a call.
#[test]
fn a_store_that_wrongly_reports_itself_down_is_used_again_too() {
    for asynchronous in [false, true] {
        let bench = BreakerFixture::new(|breaker| breaker);
        if asynchronous {
            bench.store.return_pending_futures();
        }
        bench.store.set(StoreMode::Unavailable);
        bench.store.set_up(false);
        bench.check_for(Duration::from_secs(5), "k");
        let calls_before = bench.store.calls() - 5;
        assert!((5..=12).contains(&calls_before), "{calls_before} in 5 s");
        bench.store.set(StoreMode::Reply);
        bench.check_for(Duration::from_secs(1), "k");
        assert_eq!(bench.circuit(), Circuit::Closed, "{asynchronous}");
    }
}

/// A probe that is no longer polled keeps its slot for a while, not forever.
#[test]
fn a_probe_that_is_no_longer_polled_blocks_others_for_a_bounded_time() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Unavailable);
    bench.check_for(Duration::from_millis(10), "k");
    bench.clock.advance(Duration::from_millis(100));
    bench.store.set(StoreMode::Hang);
    let limit = limit();
    let charges = [charge(&limit, "k")];
    let mut parked =
        bench.breaker.decide(Call { op: Op::Check, charges: &charges, idempotency_key: None });
    poll(&mut parked);
    bench.store.set(StoreMode::Reply);
    bench.check_for(Duration::from_millis(1_900), "k");
    assert_eq!(bench.circuit(), Circuit::HalfOpen);
    bench.check_for(Duration::from_millis(200), "k");
    assert_eq!(bench.circuit(), Circuit::Closed);
    drop(parked);
    assert_eq!(bench.circuit(), Circuit::Closed);
}

#[test]
fn the_circuit_of_an_idle_store_is_dropped() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Unavailable);
    bench.check_for(Duration::from_millis(10), "k");
    bench.clock.advance(Duration::from_secs(9));
    assert_eq!(bench.circuit(), Circuit::Open);
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.circuit(), Circuit::Closed);
    assert!(bench.events()[1].starts_with("forgot 0 after 10."), "{:?}", bench.events());
}

#[test]
fn denials_refusals_errors_about_a_key_and_calls_that_are_dropped_are_no_failures() {
    let bench = BreakerFixture::new(|breaker| breaker);
    for _ in 0..200 {
        bench.check("denied").unwrap();
        let nothing = Call { op: Op::Check, charges: &[], idempotency_key: None };
        assert!(bench.breaker.decide(nothing).now().unwrap_err().refusal().is_some());
    }
    assert!(!bench.check("denied").unwrap().allowed());
    bench.store.set(StoreMode::ForeignState);
    (0..200).for_each(|_| drop(bench.check("k").unwrap_err()));
    bench.store.set(StoreMode::Hang);
    let limit = limit();
    for _ in 0..200 {
        let charges = [charge(&limit, "k")];
        let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
        poll_and_drop(bench.breaker.decide(call));
    }
    assert_eq!((bench.circuit(), bench.breaker.opened()), (Circuit::Closed, 0));
}

/// An engine validates a call before it contacts its store, and may refuse it while the store is
/// down.
#[test]
fn a_refusal_without_a_store_call_neither_closes_the_circuit_nor_keeps_it_closed() {
    let bench = BreakerFixture::new(|breaker| breaker);
    let limit = limit();
    let charges = [Charge { cost: Cost::ZERO, ..charge(&limit, "k") }];
    let (id, ttl, expiry) = (HoldId::from(7), Micros::from_secs(1), Expiry::Release);
    let empty = Call { op: Op::hold(id, ttl, expiry), charges: &charges, idempotency_key: None };
    let refusal = || bench.breaker.decide(empty).now().unwrap_err().refusal().cloned();
    bench.store.set(StoreMode::Unavailable);
    for _ in 0..5 {
        assert!((0..10).all(|_| refusal() == Some(Refusal::EmptyHold)));
        assert!(bench.check("k").is_err());
    }
    assert_eq!((bench.circuit(), bench.store.calls()), (Circuit::Open, 5));
    for _ in 0..1_000 {
        bench.clock.advance(Duration::from_millis(1));
        assert_eq!(refusal_of(bench.breaker.decide(empty)), None, "the circuit is open");
    }
    assert_eq!((bench.circuit(), bench.events().len()), (Circuit::Open, 1));
    bench.store.set(StoreMode::Reply);
    bench.clock.advance(Duration::from_millis(200));
    bench.close("k");
}

/// Outside a Tokio runtime a caller runs the probe, and may be dropped.
#[test]
fn a_probe_that_is_dropped_leaves_its_slot_to_the_next() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Unavailable);
    bench.check_for(Duration::from_millis(20), "k");
    bench.store.set(StoreMode::Hang);
    let limit = limit();
    let charges = [charge(&limit, "k")];
    let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
    bench.clock.advance(Duration::from_millis(200));
    for _ in 0..100 {
        // Never polled: nothing is sent, and the slot is free.
        let unpolled = bench.breaker.decide(call);
        assert!(matches!(unpolled, EngineFuture::Pending(_)));
        let calls_before = bench.store.calls();
        let mut probe = bench.breaker.decide(call);
        poll(&mut probe);
        assert_eq!(bench.store.calls(), calls_before + 1);
        assert_eq!(bench.circuit(), Circuit::HalfOpen);
        // Polled when there is another probe already.
        let EngineFuture::Pending(mut late) = unpolled else { panic!("it was pending") };
        let refused = poll_once(late.as_mut());
        assert!(matches!(refused, Some(Err(EngineError::Unavailable(_)))));
        assert!(bench.check("k").is_err(), "one at a time");
        drop(probe);
        assert_eq!(bench.circuit(), Circuit::Open);
    }
    bench.store.set(StoreMode::Reply);
    bench.close("k");
}

/// The store never replies, and no call waits for the probe that finds that out.
#[tokio::test]
async fn in_a_runtime_no_call_waits_for_a_probe() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Unavailable);
    bench.check_for(Duration::from_millis(10), "k");
    assert_eq!(bench.circuit(), Circuit::Open);
    bench.store.set(StoreMode::Hang);
    let calls_before = bench.store.calls();
    for _ in 0..1_000 {
        bench.clock.advance(Duration::from_millis(1));
        // The fixture panics if the decision is pending.
        assert!(bench.check("k").is_err());
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.store.calls(), calls_before + 1, "one probe, in the background");
    bench.store.set(StoreMode::Reply);
    // A probe that hangs is given up.
    bench.clock.advance(Duration::from_secs(2));
    for _ in 0..3 {
        assert!(bench.check("k").is_err(), "three probes close the circuit");
        tokio::task::yield_now().await;
    }
    assert!(bench.check("k").is_ok());
}

/// They would wait for their deadline, though the store is known not to reply.
#[tokio::test]
async fn calls_in_flight_when_the_circuit_opens_fail_at_once_and_may_have_been_charged() {
    let bench = Arc::new(BreakerFixture::new(|breaker| breaker));
    bench.store.set(StoreMode::Hang);
    let in_flight = ["k", "b"].map(|key| {
        let bench = bench.clone();
        tokio::spawn(async move {
            let limit = limit();
            let charges = [charge(&limit, key)];
            let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
            bench.breaker.decide(call).await
        })
    });
    while bench.store.calls() < 2 {
        tokio::task::yield_now().await;
    }
    bench.store.set(StoreMode::Unavailable);
    (0..5).for_each(|_| _ = bench.check("k"));
    let [same_shard, other_shard] = in_flight;
    let error = same_shard.await.unwrap().unwrap_err();
    assert!(matches!(error, EngineError::Ambiguous(_)), "{error:?}");
    assert!(error.to_string().contains("circuit opened before the reply"), "{error}");
    assert!(!other_shard.is_finished());
    other_shard.abort();
}

/// What probes charge does not count for the keys of callers.
#[test]
fn a_probe_has_a_key_of_its_own() {
    let bench = BreakerFixture::new(|breaker| breaker);
    let before = bench.check("k").unwrap().verdicts[0].remaining;
    bench.store.set(StoreMode::Unavailable);
    bench.check_for(Duration::from_secs(1), "k");
    bench.store.set(StoreMode::Reply);
    bench.clock.advance(Duration::from_millis(200));
    bench.close("k");
    // The call that closed the circuit, and this one.
    assert_eq!(bench.check("k").unwrap().verdicts[0].remaining, before - 2);
}

#[test]
fn health_names_the_cause_and_since_when_until_the_circuit_is_closed() {
    let bench = BreakerFixture::new(|breaker| breaker);
    let status = || {
        let health = bench.breaker.health();
        (health.up, health.error.as_deref().map(str::to_owned), health.since)
    };
    assert_eq!(status(), (true, None, None));
    bench.clock.advance(Duration::from_secs(7));
    bench.store.set(StoreMode::Unavailable);
    bench.check_for(Duration::from_millis(5), "k");
    let since = bench.clock.now().saturating_sub(Micros::from_millis(1));
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(status(), (false, Some("made to fail".into()), Some(since)));
    bench.store.set(StoreMode::Reply);
    assert!(bench.check("k").is_err(), "the first of three probes");
    assert_eq!(status(), (false, Some("made to fail".into()), Some(since)), "half-open");
    assert!(bench.check("k").is_err() && bench.check("k").is_ok());
    assert_eq!(status(), (true, None, None));
    // A store that reports itself down is not contacted to know it.
    let now = bench.clock.now();
    bench.store.set_up(false);
    assert_eq!(status(), (false, None, Some(now)));
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(status(), (false, None, Some(now)));
}

/// Without traffic, a process finds out by probes of its own.
#[test]
fn probes_without_traffic_open_and_close_the_circuit() {
    let bench = BreakerFixture::new(|breaker| breaker);
    assert!(bench.probe().is_ok());
    bench.store.set(StoreMode::Unavailable);
    for _ in 0..5 {
        assert!(bench.probe().unwrap_err().to_string().contains("made to fail"));
    }
    assert_eq!(bench.circuit(), Circuit::Open);
    for _ in 0..1_000 {
        bench.clock.advance(Duration::from_millis(50));
        assert!(bench.probe().is_err());
    }
    assert_eq!(bench.circuit(), Circuit::Open, "it is not idle");
    bench.store.set(StoreMode::Reply);
    for _ in 0..8 {
        bench.clock.advance(Duration::from_millis(50));
        let _ = bench.probe();
    }
    assert_eq!((bench.circuit(), bench.breaker.opened()), (Circuit::Closed, 1));
}

#[test]
fn a_late_reply_is_passed_on_and_counts_as_a_failure() {
    let bench = BreakerFixture::new(|breaker| breaker.slow_after(Duration::from_millis(10)));
    bench.store.set(StoreMode::ReplyAfter(Duration::from_millis(10)));
    (0..20).for_each(|_| drop(bench.check("k").unwrap()));
    assert_eq!(bench.circuit(), Circuit::Closed);
    bench.store.set(StoreMode::ReplyAfter(Duration::from_millis(11)));
    let replies = (0..200).filter(|_| bench.check("k").is_ok()).count();
    assert_eq!(bench.circuit(), Circuit::Open);
    assert!(replies >= 5, "{replies}");
    assert!(bench.events()[0].contains("slow reply from the store (11ms)"), "{:?}", bench.events());
}

#[test]
fn every_operation_is_guarded() {
    let bench = BreakerFixture::new(|breaker| breaker);
    let limit = limit();
    let charges = [charge(&limit, "k")];
    let call = |op| Call { op, charges: &charges, idempotency_key: None };
    let of_hold = |op| Call { op, charges: &[], idempotency_key: None };
    let (id, ttl) = (HoldId::from(7), Micros::from_secs(1));
    bench.store.set(StoreMode::Unavailable);
    for _ in 0..5 {
        assert!(bench.breaker.inspect(&limit, "k".into()).now().is_err(), "and counts");
    }
    assert_eq!(bench.circuit(), Circuit::Open);
    let calls_before = bench.store.calls();
    for op in [
        Op::Check,
        Op::Peek,
        Op::Record,
        Op::Refund,
        Op::Reset,
        Op::hold(id, ttl, Expiry::Release),
        Op::enter(id, ttl),
        Op::hold_for_request(id, ttl),
        Op::loan(id, ttl),
    ] {
        assert!(bench.breaker.decide(call(op)).now().is_err(), "{op:?}");
    }
    for op in [Op::Settle { id, costs: Costs::All(Cost::ONE) }, Op::Renew { id, ttl }] {
        assert!(bench.breaker.decide(of_hold(op)).now().is_err(), "{op:?}");
    }
    assert!(bench.breaker.inspect(&limit, "k".into()).now().is_err());
    assert_eq!(bench.store.calls(), calls_before);
}

#[test]
fn a_synchronous_engine_stays_synchronous() {
    let clock = ManualClock::default();
    let memory = tidegate::Memory::builder().clock(clock.clone()).build();
    let breaker = Breaker::new(memory);
    let limit = limit();
    let charges = [charge(&limit, "k")];
    let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
    assert!(breaker.is_synchronous() && breaker.decide_now(&call).is_ok());
    assert_eq!(breaker.health().circuit, Some(Circuit::Closed));
    assert!(breaker.engine().health().circuit.is_none(), "the inner engine has no breaker");
    assert_eq!(limit.rule(), RULE);
}

/// The refusal of a call that ends at the first poll, if it is refused.
fn refusal_of<T: Unpin>(mut future: EngineFuture<'_, T>) -> Option<Refusal> {
    let result = poll_once(std::pin::Pin::new(&mut future)).unwrap();
    result.err().and_then(|error| error.refusal().cloned())
}

fn poll_and_drop<T: Unpin>(mut future: EngineFuture<'_, T>) {
    poll(&mut future);
}

/// Polls once; the future must be pending.
fn poll<T: Unpin>(future: &mut EngineFuture<'_, T>) {
    assert!(poll_once(std::pin::Pin::new(future)).is_none());
}

fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let waker = Arc::new(NoopWaker).into();
    match future.poll(&mut std::task::Context::from_waker(&waker)) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

struct NoopWaker;

impl std::task::Wake for NoopWaker {
    fn wake(self: Arc<Self>) {}
}
