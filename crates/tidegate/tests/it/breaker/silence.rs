//! A store that sends no reply while calls are in flight.

use std::sync::Arc;
use std::time::Duration;

use testkit::engines::{BreakerFixture, StoreMode, charge, limit};
use tidegate::{Call, Circuit, Decision, Engine, EngineError, Op};
use tokio::task::JoinHandle;

type InFlight = JoinHandle<Result<Decision, EngineError>>;

/// Calls that the store has received and does not reply to.
async fn calls(bench: &Arc<BreakerFixture>, count: u64) -> Vec<InFlight> {
    bench.store.set(StoreMode::Hang);
    let received = bench.store.calls() + count;
    let call = |_| {
        let bench = bench.clone();
        tokio::spawn(async move {
            let limit = limit();
            let charges = [charge(&limit, "k")];
            let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
            bench.breaker.decide(call).await
        })
    };
    let calls = (0..count).map(call).collect();
    while bench.store.calls() < received {
        tokio::task::yield_now().await;
    }
    calls
}

/// Advances the clock by one millisecond at a time, and lets the calls notice it.
async fn advance(bench: &BreakerFixture, ms: u64) {
    for _ in 0..ms {
        bench.clock.advance(Duration::from_millis(1));
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn five_calls_without_a_reply_for_75_ms_open_the_circuit_and_end() {
    let bench = Arc::new(BreakerFixture::new(|breaker| breaker));
    let waiting = calls(&bench, 5).await;
    advance(&bench, 74).await;
    assert_eq!(bench.circuit(), Circuit::Closed);
    assert!(waiting.iter().all(|call| !call.is_finished()));
    advance(&bench, 1).await;
    assert_eq!(bench.circuit(), Circuit::Open);
    for call in waiting {
        assert!(call.is_finished());
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, EngineError::Ambiguous(_)), "{error:?}");
    }
    assert_eq!(bench.events(), ["opened 0: no reply from the store for 75ms"]);
    assert!(bench.check("k").is_err(), "and no further call waits");
}

#[tokio::test]
async fn a_fifth_call_counts_once_it_has_waited_for_25_ms() {
    let bench = Arc::new(BreakerFixture::new(|breaker| breaker));
    let mut waiting = calls(&bench, 4).await;
    advance(&bench, 60).await;
    waiting.extend(calls(&bench, 1).await);
    advance(&bench, 24).await;
    assert_eq!(bench.circuit(), Circuit::Closed, "it may still be answered in time");
    advance(&bench, 1).await;
    assert_eq!(bench.circuit(), Circuit::Open);
    assert!(waiting.iter().all(JoinHandle::is_finished));
}

#[tokio::test]
async fn a_stall_that_ends_before_75_ms_costs_no_decision() {
    let bench = Arc::new(BreakerFixture::new(|breaker| breaker));
    for _ in 0..20 {
        let waiting = calls(&bench, 50).await;
        advance(&bench, 74).await;
        // A reply to one call shows that the store is alive.
        bench.store.set(StoreMode::Reply);
        assert!(bench.check("k").is_ok());
        advance(&bench, 74).await;
        waiting.iter().for_each(JoinHandle::abort);
        advance(&bench, 1).await;
    }
    assert_eq!((bench.circuit(), bench.breaker.opened()), (Circuit::Closed, 0));
}

#[tokio::test]
async fn calls_that_are_dropped_no_longer_wait() {
    let bench = Arc::new(BreakerFixture::new(|breaker| breaker));
    let waiting = calls(&bench, 50).await;
    advance(&bench, 70).await;
    waiting[1..].iter().for_each(JoinHandle::abort);
    advance(&bench, 1_000).await;
    assert_eq!(bench.circuit(), Circuit::Closed, "one call");
    waiting[0].abort();
}

/// Its timers are due before it has read the replies that arrived meanwhile.
#[tokio::test]
async fn a_pause_of_this_process_is_no_silence_of_the_store() {
    let bench = Arc::new(BreakerFixture::new(|breaker| breaker));
    let waiting = calls(&bench, 50).await;
    bench.clock.advance(Duration::from_millis(900));
    advance(&bench, 24).await;
    assert_eq!(bench.circuit(), Circuit::Closed);
    advance(&bench, 2).await;
    assert_eq!(bench.circuit(), Circuit::Open, "it had the time to read them");
    assert!(waiting.iter().all(JoinHandle::is_finished));
}
