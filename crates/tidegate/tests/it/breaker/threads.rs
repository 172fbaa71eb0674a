//! Many concurrent calls, on the system's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use tidegate::{
    Breaker, BreakerEvent, Call, Circuit, Clock, Decision, Engine, EngineError, EngineFuture,
    Health, Inspection, Key, Memory, Op, RuleLimit, SystemClock,
};

use testkit::engines::{charge, limit};

/// A store that may fail, and counts the calls in it at once.
struct CountingStore {
    memory: Memory,
    fails: AtomicBool,
    inside: AtomicI64,
    max_inside: AtomicI64,
}

impl Engine for CountingStore {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move {
            let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
            self.max_inside.fetch_max(inside, Ordering::SeqCst);
            std::thread::yield_now();
            let fails = self.fails.load(Ordering::SeqCst);
            self.inside.fetch_sub(1, Ordering::SeqCst);
            match fails {
                true => Err(EngineError::unavailable(std::io::Error::other("made to fail"))),
                false => self.memory.decide(call).await,
            }
        }))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        Health::up(None, 0)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn under_any_number_of_calls_there_is_one_probe_and_the_circuit_closes_again() {
    let store = Arc::new(CountingStore {
        memory: Memory::default(),
        fails: AtomicBool::new(false),
        inside: AtomicI64::new(0),
        max_inside: AtomicI64::new(0),
    });
    let balance = Arc::new(AtomicI64::new(0));
    let event_balance = balance.clone();
    let breaker = Breaker::new(store.clone()).on_event(move |event| {
        let step = if matches!(event, BreakerEvent::Opened { .. }) { 1 } else { -1 };
        event_balance.fetch_add(step, Ordering::SeqCst);
    });
    let breaker = Arc::new(breaker);
    let stop = Arc::new(AtomicBool::new(false));
    let calls: Arc<[AtomicU64; 16]> = Arc::default();
    let tasks = std::array::from_fn::<_, 16, _>(|task| {
        let (breaker, stop, calls) = (breaker.clone(), stop.clone(), calls.clone());
        tokio::spawn(async move {
            let limit = limit();
            while !stop.load(Ordering::SeqCst) {
                let charges = [charge(&limit, "k")];
                let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
                let _ = breaker.decide(call).await;
                calls[task].fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        })
    });
    let calls_per_task =
        || calls.iter().map(|calls| calls.load(Ordering::SeqCst)).collect::<Vec<_>>();
    for round in 1..=3 {
        store.fails.store(true, Ordering::SeqCst);
        wait_for(|| breaker.health().circuit == Some(Circuit::Open)).await;
        // Until the calls that were admitted before the circuit opened have ended.
        let before = calls_per_task();
        wait_for(|| calls_per_task().iter().zip(&before).all(|(now, before)| *now >= before + 2))
            .await;
        store.max_inside.store(0, Ordering::SeqCst);
        wait_for(|| store.max_inside.load(Ordering::SeqCst) > 0).await;
        assert_eq!(store.max_inside.load(Ordering::SeqCst), 1, "one probe at a time");
        store.fails.store(false, Ordering::SeqCst);
        wait_for(|| breaker.health().circuit == Some(Circuit::Closed)).await;
        wait_for(|| balance.load(Ordering::SeqCst) == 0).await;
        assert_eq!(breaker.opened(), round);
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    assert!(breaker.refused() > 1_000, "{}", breaker.refused());
}

async fn wait_for(mut condition: impl FnMut() -> bool) {
    let begun = SystemClock.elapsed();
    while !condition() {
        let waited = SystemClock.elapsed().saturating_sub(begun);
        assert!(waited.get() < 30_000_000, "condition not met within 30 s");
        tokio::task::yield_now().await;
    }
}
