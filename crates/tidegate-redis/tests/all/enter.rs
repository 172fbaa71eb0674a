//! Places that several processes share: taken in one step with what is charged, kept while work goes
//! on, and never lost.

use std::future::{IntoFuture, poll_fn};
use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::server;
use server::Server;
use tidegate::{Clock as _, EngineError, Entered, Limited, Limiter, Micros, Rule, SystemClock};
use tidegate_redis::Redis;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
const PLENTY: &str = "fixed-window 1000000/d";

/// A limiter with an engine of its own, as another process has.
fn limiter(server: &Server, deadline: Duration, limits: &[&str]) -> Limiter {
    let engine = Redis::builder(&server.url()).deadline(deadline).build().unwrap();
    let rule = Rule::new("work", limits.iter().map(|text| text.parse().unwrap())).unwrap();
    Limiter::with_rules(engine, [rule]).unwrap()
}

/// What the key has used of the first limit, and holds of the last.
async fn standing(limiter: &Limiter, key: &str) -> (u64, u64) {
    let found = limiter.inspect(key).await.unwrap();
    (found[0].standing.used, found[found.len() - 1].standing.held)
}

async fn until_nobody_is_in(limiter: &Limiter, key: &str) {
    let waiting = async {
        while standing(limiter, key).await.1 > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("a place is taken for ever");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_eight_places() {
    let server = Server::start();
    let limits = [PLENTY, "concurrency 8 lease 1h"];
    let two = [(); 2].map(|()| limiter(&server, PATIENCE, &limits));
    let mut tasks = JoinSet::new();
    for nth in 0..32 {
        let limiter = two[nth % 2].clone();
        tasks.spawn(async move { limiter.enter("k").await.ok() });
    }
    let entered: Vec<Entered> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(entered.len(), 8, "of 32 who came at once");
    assert_eq!(standing(&two[0], "k").await, (8, 8), "and only they were charged");
    drop(entered);
    until_nobody_is_in(&two[1], "k").await;

    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for nth in 0..32 {
        let (limiter, inside, most) = (two[nth % 2].clone(), inside.clone(), most.clone());
        tasks.spawn(async move {
            for _ in 0..5 {
                let entered = limiter.enter("k").wait(PATIENCE).await.unwrap();
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                entered.slot.unwrap().leave().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert!(most.load(Ordering::SeqCst) <= 8);
    assert_eq!(standing(&two[0], "k").await, (8 + 32 * 5, 0), "each charged once");
    assert_eq!(
        server.cli(&["DBSIZE"]),
        "2",
        "the secret and the window: who has left is forgotten"
    );
}

#[tokio::test]
async fn whoever_waits_finds_a_place_that_another_process_has_given_back() {
    const ROUNDS: usize = 9;
    let server = Server::start();
    let limits = [PLENTY, "concurrency 1 lease 1h"];
    let two = [(); 2].map(|()| limiter(&server, PATIENCE, &limits));
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let first = two[0].enter("k").await.unwrap();
        let other = two[1].clone();
        let waits = tokio::spawn(async move {
            let entered = other.enter("k").wait(PATIENCE).await.unwrap();
            let at = SystemClock.elapsed();
            entered.slot.unwrap().leave().await.unwrap();
            at
        });
        sleep(Duration::from_millis(120)).await;
        assert!(!waits.is_finished());
        first.slot.unwrap().leave().await.unwrap();
        let left = SystemClock.elapsed();
        took.push(waits.await.unwrap().saturating_sub(left));
    }
    took.sort_unstable();
    let [median, longest] = [took[ROUNDS / 2], took[ROUNDS - 1]].map(Micros::get);
    let line =
        format!("enter: a place given back elsewhere: median {median} us, {longest} at most");
    writeln!(stderr().lock(), "{line}").unwrap();
    assert!(median < 100_000, "{took:?}");
}

#[tokio::test]
async fn an_entry_that_was_dropped_on_its_way_takes_no_place() {
    let server = Server::start();
    let limiter = limiter(&server, PATIENCE, &[PLENTY, "concurrency 1000 lease 1h"]);
    limiter.check("k").peek().await.unwrap();
    for round in 0..100 {
        let entering = limiter.enter("k");
        let mut call = match round % 2 {
            0 => entering.into_future(),
            _ => Box::pin(entering.wait(PATIENCE)),
        };
        for _ in 0..round % 5 {
            if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    until_nobody_is_in(&limiter, "k").await;
    let (used, _) = standing(&limiter, "k").await;
    assert!(used > 10, "hardly any was sent: {used} were charged");
}

#[tokio::test]
async fn an_entry_without_an_answer_gives_its_place_back_and_stays_charged() {
    let server = Server::start();
    let limits = [PLENTY, "concurrency 50 lease 1h"];
    let patient = limiter(&server, PATIENCE, &limits);
    let hasty = limiter(&server, Duration::from_millis(100), &limits);
    hasty.check("k").peek().await.unwrap();
    server.cli(&["CLIENT", "PAUSE", "400", "ALL"]);
    let lost = hasty.enter("k").cost(3).await;
    assert!(matches!(lost, Err(Limited::NoAnswer(EngineError::Ambiguous(_)))), "{lost:?}");
    assert_eq!(standing(&patient, "k").await, (3, 1), "it was made");
    until_nobody_is_in(&patient, "k").await;
    assert_eq!(standing(&patient, "k").await, (3, 0));
}

#[tokio::test]
async fn a_place_outlasts_its_lease_while_it_is_kept_and_no_longer() {
    let server = Server::start();
    let limiter = limiter(&server, PATIENCE, &[PLENTY, "concurrency 1 lease 1s"]);
    let entered = limiter.enter("k").await.unwrap();
    for _ in 0..16 {
        sleep(Duration::from_millis(200)).await;
        assert_eq!(standing(&limiter, "k").await, (1, 1));
        assert!(limiter.enter("k").await.is_err());
    }
    drop(entered);
    until_nobody_is_in(&limiter, "k").await;
    // Whoever is not there any more to renew it loses it.
    let gone = tokio::task::spawn_blocking({
        let limiter = limiter.clone();
        move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let entered = runtime.block_on(limiter.enter("k").into_future());
            std::mem::forget(entered.unwrap());
        }
    });
    gone.await.unwrap();
    assert_eq!(standing(&limiter, "k").await, (2, 1));
    until_nobody_is_in(&limiter, "k").await;
}
