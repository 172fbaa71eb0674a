//! Concurrency slots shared by several processes: entered in one step with the charge, renewed
//! while work goes on, and never lost.

use std::future::{IntoFuture, poll_fn};
use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use testkit::redis::RedisServer;
use testkit::timing::{HANG, compare_with_goal};
use tidegate::policy::ListMode;
use tidegate::{
    Breaker, Clock as _, Cost, Costs, EngineError, Entered, Fallback, HoldId, Limited, Limiter,
    Micros, Op, Rule, RuleCheck, Slot, Source, SystemClock,
};
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const TIMEOUT: Duration = HANG;
/// The default.
const DEADLINE: Duration = Duration::from_millis(25);
const PLENTY: &str = "fixed-window 1000000/d";

/// A limiter with a separate engine, as in another process.
fn limiter(server: &RedisServer, deadline: Duration, limits: &[&str]) -> Limiter {
    let engine = Redis::builder(&server.url()).deadline(deadline).build().unwrap();
    let rule = Rule::new("work", limits.iter().map(|text| text.parse().unwrap())).unwrap();
    Limiter::with_rules(engine, [rule]).unwrap()
}

/// With the default deadline, as a program uses it: on Redis alone, or with a fallback.
fn impatient(server: &RedisServer, limits: &[&str], layered: bool) -> Limiter {
    let plain = limiter(server, DEADLINE, limits);
    if !layered {
        return plain;
    }
    let engine = Redis::builder(&server.url()).deadline(DEADLINE).build().unwrap();
    Limiter::with_rules(Fallback::new(Breaker::new(engine)), plain.rules()).unwrap()
}

/// Permits used of the first limit, and held of the last.
async fn standing(limiter: &Limiter, key: &str) -> (u64, u64) {
    let found = limiter.inspect(key).await.unwrap();
    (found[0].standing.used, found[found.len() - 1].standing.held)
}

async fn until_all_slots_are_free(limiter: &Limiter, key: &str) {
    let waiting = async {
        while standing(limiter, key).await.1 > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, waiting).await.expect("a slot is never freed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_eight_slots() {
    let server = RedisServer::start();
    let limits = [PLENTY, "concurrency 8 lease 1h"];
    let two = [(); 2].map(|()| limiter(&server, TIMEOUT, &limits));
    let mut tasks = JoinSet::new();
    for nth in 0..32 {
        let limiter = two[nth % 2].clone();
        tasks.spawn(async move { limiter.enter("k").await.ok() });
    }
    let entered: Vec<Entered> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(entered.len(), 8, "of 32 calls at once");
    assert_eq!(standing(&two[0], "k").await, (8, 8), "only these were charged");
    drop(entered);
    until_all_slots_are_free(&two[1], "k").await;

    let (inside, max) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for nth in 0..32 {
        let (limiter, inside, max) = (two[nth % 2].clone(), inside.clone(), max.clone());
        tasks.spawn(async move {
            for _ in 0..5 {
                let entered = limiter.enter("k").wait(TIMEOUT).await.unwrap();
                max.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                entered.slot.unwrap().leave().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert!(max.load(Ordering::SeqCst) <= 8);
    assert_eq!(standing(&two[0], "k").await, (8 + 32 * 5, 0), "each charged once");
    assert_eq!(server.cli(&["DBSIZE"]), "2", "the secret and the window; no record of freed slots");
}

#[tokio::test]
async fn a_waiter_gets_a_slot_that_another_process_has_freed() {
    const ROUNDS: usize = 9;
    let server = RedisServer::start();
    let limits = [PLENTY, "concurrency 1 lease 1h"];
    let two = [(); 2].map(|()| limiter(&server, TIMEOUT, &limits));
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let first = two[0].enter("k").await.unwrap();
        let other = two[1].clone();
        let waiter = tokio::spawn(async move {
            let entered = other.enter("k").wait(TIMEOUT).await.unwrap();
            let at = SystemClock.elapsed();
            entered.slot.unwrap().leave().await.unwrap();
            at
        });
        sleep(Duration::from_millis(120)).await;
        assert!(!waiter.is_finished());
        first.slot.unwrap().leave().await.unwrap();
        let left = SystemClock.elapsed();
        took.push(waiter.await.unwrap().saturating_sub(left));
    }
    took.sort_unstable();
    let [median, longest] = [took[ROUNDS / 2], took[ROUNDS - 1]].map(Micros::get);
    let line = format!(
        "enter: wait for a slot freed by another process: median {median} us, max {longest} us"
    );
    writeln!(stderr().lock(), "{line}").unwrap();
    let goal = Duration::from_millis(100);
    compare_with_goal("wait for a freed slot", Duration::from_micros(median), goal);
}

#[tokio::test]
async fn a_cancelled_entry_takes_no_slot() {
    let server = RedisServer::start();
    let limiter = limiter(&server, TIMEOUT, &[PLENTY, "concurrency 1000 lease 1h"]);
    limiter.check("k").peek().await.unwrap();
    for round in 0..100 {
        let entering = limiter.enter("k");
        let mut call = match round % 2 {
            0 => entering.into_future(),
            _ => Box::pin(entering.wait(TIMEOUT)),
        };
        for _ in 0..round % 5 {
            if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    until_all_slots_are_free(&limiter, "k").await;
    let (used, _) = standing(&limiter, "k").await;
    assert!(used > 10, "hardly any call was sent: {used} charged");
}

#[tokio::test]
async fn an_entry_without_a_reply_frees_its_slot_and_stays_charged() {
    let server = RedisServer::start();
    let limits = [PLENTY, "concurrency 50 lease 1h"];
    let patient = limiter(&server, TIMEOUT, &limits);
    let hasty = limiter(&server, Duration::from_secs(1), &limits);
    while hasty.check("k").peek().await.is_err() {}
    server.freeze();
    let lost = hasty.enter("k").cost(3).await;
    server.thaw();
    assert!(matches!(lost, Err(Limited::NoAnswer(EngineError::Ambiguous(_)))), "{lost:?}");
    let entered = async {
        while standing(&patient, "k").await.0 == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, entered).await.expect("the entry is never made");
    until_all_slots_are_free(&patient, "k").await;
    assert_eq!(standing(&patient, "k").await, (3, 0));
}

#[tokio::test]
async fn a_slot_outlasts_its_lease_while_it_is_kept_and_no_longer() {
    let server = RedisServer::start();
    let limiter = limiter(&server, TIMEOUT, &[PLENTY, "concurrency 1 lease 1s"]);
    let entered = limiter.enter("k").await.unwrap();
    for _ in 0..16 {
        sleep(Duration::from_millis(200)).await;
        assert_eq!(standing(&limiter, "k").await, (1, 1));
        assert!(limiter.enter("k").await.is_err());
    }
    drop(entered);
    until_all_slots_are_free(&limiter, "k").await;
    // A slot that is no longer renewed ends with its lease.
    let abandoned = tokio::task::spawn_blocking({
        let limiter = limiter.clone();
        move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let entered = runtime.block_on(limiter.enter("k").into_future());
            std::mem::forget(entered.unwrap());
        }
    });
    abandoned.await.unwrap();
    assert_eq!(standing(&limiter, "k").await, (2, 1));
    until_all_slots_are_free(&limiter, "k").await;
}

/// A fork or a failover stops the store for a moment. Without retries these slots would be taken
/// until their lease ends.
#[tokio::test]
async fn slots_released_while_redis_stands_still_are_free_when_it_goes_on() {
    for layered in [false, true] {
        let server = RedisServer::start();
        let limits = [PLENTY, "concurrency 5 lease 30s"];
        let patient = limiter(&server, TIMEOUT, &limits);
        let limiter = impatient(&server, &limits, layered);
        let mut entered = Vec::new();
        while entered.len() < 5 {
            // A busy machine may miss the deadline, and the fallback has slots of its own.
            match limiter.enter("k").await {
                Ok(made) if made.decision.source == Source::Redis => entered.push(made),
                _ => {}
            }
        }
        server.freeze();
        drop(entered);
        sleep(Duration::from_millis(300)).await;
        server.thaw();
        let thawed = SystemClock.elapsed();
        until_all_slots_are_free(&patient, "k").await;
        let took: Duration = SystemClock.elapsed().saturating_sub(thawed).into();
        let line = format!("slots free {took:?} after a pause of 0.3 s, layered {layered}");
        writeln!(stderr().lock(), "{line}").unwrap();
        assert!(took < Duration::from_secs(25), "{line}: only with the end of their lease");
        compare_with_goal("slots are free again", took, Duration::from_millis(1_500));
        assert_eq!(limiter.unsettled_holds(), 0);
    }
}

/// The middleware reserves permits and charges the actual cost when the response has ended.
#[tokio::test]
async fn costs_of_requests_that_end_while_redis_stands_still_are_charged_when_it_goes_on() {
    for layered in [false, true] {
        let server = RedisServer::start();
        let limits = ["fixed-window 1000/d"];
        let patient = limiter(&server, TIMEOUT, &limits);
        let limiter = impatient(&server, &limits, layered);
        let (policy, ttl) = (limiter.policy(), Micros::from_secs(30));
        let checks = [RuleCheck::new("work", "k").cost(10)];
        let plan = policy.plan_checks(&checks, ListMode::Evaluate, SystemClock.now()).unwrap();
        let mut requests = Vec::new();
        while requests.len() < 5 {
            let hold = Op::hold_for_request(HoldId::random().unwrap(), ttl);
            // A busy machine may miss the deadline, and the fallback has permits of its own.
            match limiter.decide(hold, &plan).await {
                Ok(decision) if decision.source == Source::Redis => {
                    let mut slot = Slot::of(&limiter, &decision, ttl).unwrap();
                    slot.charge_at_end(Costs::All(Cost::new(10).unwrap()));
                    slot.record_if_lost(hold, &plan);
                    requests.push(slot);
                }
                _ => {}
            }
        }
        server.freeze();
        drop(requests);
        sleep(Duration::from_millis(300)).await;
        server.thaw();
        let all_charged = async {
            while standing(&patient, "k").await.0 < 50 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let charged = timeout(TIMEOUT, all_charged).await;
        assert!(charged.is_ok(), "layered {layered}: {:?} of 50", standing(&patient, "k").await);
        // A settlement without a reply may be sent again, and charges nothing then.
        sleep(Duration::from_millis(600)).await;
        let line =
            format!("charged {:?} of (50, 0), layered {layered}", standing(&patient, "k").await);
        writeln!(stderr().lock(), "{line}").unwrap();
        assert_eq!(
            (standing(&patient, "k").await, limiter.unsettled_holds()),
            ((50, 0), 0),
            "{line}"
        );
    }
}
