//! Callers that wait for permits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tidegate_redis::Redis;
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{NAME, SECOND, TIMEOUT, client};
use testkit::redis::RedisServer;

/// A limiter that uses Redis's clock.
async fn limiter(server: &RedisServer, permits: u64, interval: Duration) -> RateLimiter {
    let limiter = RateLimiter::new(&client(&server.url()), NAME);
    let rate = Rate::new(Mode::Overall, permits, interval).unwrap();
    assert!(limiter.try_set_rate(rate).await.unwrap());
    limiter
}

/// Number of scripts that Redis has run.
fn scripts(server: &RedisServer) -> u64 {
    let info = server.cli(&["INFO", "commandstats"]);
    let calls = |name: &str| -> u64 {
        let line =
            info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    calls("evalsha") + calls("eval")
}

#[tokio::test]
async fn waiters_are_served_in_order_and_do_not_poll_redis() {
    const WAITERS: usize = 40;
    const SPAN: Duration = Duration::from_millis(100);
    let server = RedisServer::start();
    let limiter = limiter(&server, 4, SPAN).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let (before, begun) = (scripts(&server), Instant::now());
    let mut waiters = tokio::task::JoinSet::new();
    for nth in 0..WAITERS {
        let (limiter, served) = (limiter.clone(), Arc::clone(&served));
        waiters.spawn(async move {
            limiter.acquire(1 + u32::from(nth % 4 == 3)).await.unwrap();
            served.lock().unwrap().push(nth);
        });
        // The waiter is in the queue before the next one starts.
        sleep(Duration::from_millis(20)).await;
    }
    timeout(TIMEOUT, waiters.join_all()).await.expect("stuck");
    assert_eq!(*served.lock().unwrap(), (0..WAITERS).collect::<Vec<_>>());
    // 50 permits at 4 per span take at least eleven spans. Each of the 40 waiters makes at most two
    // attempts and reads the state once.
    assert!(begun.elapsed() >= 11 * SPAN, "{:?}", begun.elapsed());
    let calls = scripts(&server) - before;
    assert!(calls <= 4 * WAITERS as u64, "{calls} scripts for {WAITERS}");
}

#[tokio::test]
async fn one_script_serves_all_waiters_that_released_permits_suffice_for() {
    const WAITERS: usize = 30;
    let server = RedisServer::start();
    let limiter = limiter(&server, 30, Duration::from_secs(3_600)).await;
    limiter.acquire(30).await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for nth in 0..WAITERS {
        let (limiter, served) = (limiter.clone(), Arc::clone(&served));
        waiters.spawn(async move {
            // The last one needs more than is left.
            limiter.acquire(if nth == WAITERS - 1 { 2 } else { 1 }).await.unwrap();
            served.lock().unwrap().push(nth);
        });
    }
    // The first waiter has been denied.
    let begun = Instant::now();
    while scripts(&server) < 3 {
        assert!(begun.elapsed() < TIMEOUT);
        sleep(Duration::from_millis(5)).await;
    }
    sleep(Duration::from_millis(50)).await;
    let before = scripts(&server);
    assert_eq!(limiter.release(30).await.unwrap(), 30);
    while served.lock().unwrap().len() < WAITERS - 1 {
        assert!(begun.elapsed() < TIMEOUT);
        sleep(Duration::from_millis(5)).await;
    }
    // The release, whose script is loaded first; one request that all but the last share; and a
    // denied one of the last.
    let calls = scripts(&server) - before;
    assert!(calls <= 4, "{calls} scripts for {WAITERS}");
    assert_eq!(server.cli(&["ZCARD", "{orders}:permits"]), "29", "an entry each, as Java has them");
    limiter.release(1).await.unwrap();
    timeout(TIMEOUT, waiters.join_all()).await.expect("stuck");
    assert_eq!(*served.lock().unwrap(), (0..WAITERS).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_waiter_ends_although_the_task_of_the_head_is_not_polled() {
    let server = RedisServer::start();
    let deadline = Duration::from_secs(2);
    let redis = Redis::builder(&server.url()).deadline(deadline).connect_deadline(TIMEOUT);
    let limiter = RateLimiter::new(&redis.build().unwrap().client(), NAME);
    let rate = Rate::new(Mode::Overall, 1, Duration::from_secs(1)).unwrap();
    assert!(limiter.try_set_rate(rate).await.unwrap());
    limiter.acquire(1).await.unwrap();
    let mut head = pin!(limiter.acquire(1));
    assert!(timeout(Duration::from_millis(100), &mut head).await.is_err());
    let (second, wait) = (limiter.clone(), Duration::from_millis(1_500));
    let second = tokio::spawn(async move { second.try_acquire_for(1, wait).await });
    sleep(Duration::from_millis(100)).await;
    limiter.release(1).await.unwrap();
    // Sends a request for both.
    assert!(poll_fn(|cx| Poll::Ready(head.as_mut().poll(cx))).await.is_pending());
    let decision = timeout(TIMEOUT, second).await.expect("it waits for the head").unwrap();
    assert!(!decision.unwrap().allowed());
    timeout(TIMEOUT, head).await.expect("stuck").unwrap();
}

#[tokio::test]
async fn waiters_that_are_dropped_at_any_moment_leave_no_permit_taken() {
    const PERMITS: u64 = 1_000;
    let server = RedisServer::start();
    let limiter = limiter(&server, PERMITS, Duration::from_secs(3_600)).await;
    let acquired = Arc::new(AtomicU64::new(0));
    for us in 0..200 {
        let mut waiters = tokio::task::JoinSet::new();
        for nth in 1..=4 {
            let (limiter, acquired) = (limiter.clone(), Arc::clone(&acquired));
            waiters.spawn(async move {
                let time = Duration::from_micros(5 * us * nth);
                let is_ok = timeout(time, limiter.acquire(1)).await.is_ok();
                acquired.fetch_add(u64::from(is_ok), Ordering::Relaxed);
            });
        }
        waiters.join_all().await;
    }
    let (begun, acquired) = (Instant::now(), acquired.load(Ordering::Relaxed));
    while limiter.available_permits().await.unwrap() != PERMITS - acquired {
        assert!(begun.elapsed() < TIMEOUT, "{acquired} acquired");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_wait_that_would_exceed_the_timeout_is_denied_at_once() {
    let server = RedisServer::start();
    let limiter = limiter(&server, 5, Duration::from_secs(3_600)).await;
    assert!(limiter.try_acquire_for(5, Duration::ZERO).await.unwrap().allowed());
    let begun = Instant::now();
    let taken = limiter.try_acquire_for(1, Duration::from_secs(600)).await.unwrap();
    assert!(
        !taken.allowed() && taken.retry_after() > Some(Duration::from_secs(3_500)),
        "{taken:?}"
    );
    // So is a caller behind another that waits.
    let waiter = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(1).await }
    });
    sleep(Duration::from_millis(20)).await;
    let taken = limiter.try_acquire_for(1, Duration::from_secs(600)).await.unwrap();
    assert!(!taken.allowed(), "{taken:?}");
    assert!(begun.elapsed() < TIMEOUT);
    // Released permits go to the waiter at once.
    assert_eq!(limiter.release(2).await.unwrap(), 2);
    timeout(TIMEOUT, waiter).await.expect("stuck").unwrap().unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 1);
    // One permit is left, and the first waiter wants two.
    let waiter = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(2).await }
    });
    sleep(Duration::from_millis(20)).await;
    let taken = limiter.try_acquire_for(1, Duration::ZERO).await.unwrap();
    assert!(!taken.allowed(), "{taken:?}");
    assert_eq!(limiter.available_permits().await.unwrap(), 1);
    waiter.abort();
}

#[tokio::test]
async fn a_cancelled_waiter_leaves_the_queue_and_takes_nothing() {
    const SPAN: Duration = Duration::from_secs(4);
    let server = RedisServer::start();
    let limiter = limiter(&server, 1, SPAN).await;
    limiter.acquire(1).await.unwrap();
    let waiter = |limiter: RateLimiter| tokio::spawn(async move { limiter.acquire(1).await });
    let waiters: Vec<_> = (0..5).map(|_| waiter(limiter.clone())).collect();
    sleep(SPAN / 20).await;
    let (last, cancelled) = waiters.split_last().unwrap();
    cancelled.iter().for_each(|waiter| waiter.abort());
    let begun = Instant::now();
    while !last.is_finished() {
        assert!(begun.elapsed() < TIMEOUT, "stuck");
        sleep(Duration::from_millis(5)).await;
    }
    // One span is due. Each cancelled waiter that took a permit would add another.
    assert!(begun.elapsed() < 4 * SPAN, "{:?}: a cancelled waiter took a permit", begun.elapsed());
}

#[tokio::test]
async fn a_permit_taken_for_a_cancelled_call_is_released() {
    let server = RedisServer::start();
    let limiter = limiter(&server, 5, Duration::from_secs(3_600)).await;
    limiter.available_permits().await.unwrap();
    // The frozen server has received the calls, and replies after the callers have dropped them.
    server.freeze();
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(30), limiter.try_acquire(1)).await.is_err());
    }
    server.thaw();
    let begun = Instant::now();
    while limiter.available_permits().await.unwrap() < 5 {
        assert!(begun.elapsed() < TIMEOUT, "{}", server.cli(&["GET", "{orders}:value"]));
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.cli(&["ZCARD", "{orders}:permits"]), "0");
    // A call dropped at any other moment leaks nothing either.
    for us in 0..200 {
        let _ = timeout(Duration::from_micros(us * 5), limiter.try_acquire(5)).await;
        limiter.release(5).await.unwrap();
    }
    let begun = Instant::now();
    while limiter.available_permits().await.unwrap() < 5 {
        assert!(begun.elapsed() < TIMEOUT);
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_deadline_that_passes_is_an_error_and_the_permit_is_released() {
    let server = RedisServer::start();
    let builder = tidegate_redis::Redis::builder(&server.url());
    let engine = builder.deadline(Duration::from_millis(100)).build().unwrap();
    let limiter = RateLimiter::new(&engine.client(), NAME);
    let begun = Instant::now();
    let rate = Rate::new(Mode::Overall, 5, Duration::from_secs(3_600)).unwrap();
    while limiter.try_set_rate(rate).await.is_err() {
        assert!(begun.elapsed() < TIMEOUT, "no connection");
    }
    server.freeze();
    let error = limiter.try_acquire(1).await.unwrap_err();
    assert!(error.to_string().contains("may have been charged"), "{error}");
    assert!(limiter.try_acquire_for(1, SECOND).await.is_err());
    server.thaw();
    let left = || server.cli(&["GET", "{orders}:value"]);
    let begun = Instant::now();
    while server.cli(&["ZCARD", "{orders}:permits"]) != "0" || !["5", ""].contains(&&*left()) {
        assert!(begun.elapsed() < TIMEOUT, "{}", left());
        sleep(Duration::from_millis(5)).await;
    }
}
