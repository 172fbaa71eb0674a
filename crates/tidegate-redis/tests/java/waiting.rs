//! Those who wait for permits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tokio::time::{Instant, sleep, timeout};

use crate::lab::{NAME, PATIENCE, SECOND, client};
use crate::server::Server;

/// A limiter by Redis's own clock.
async fn limiter(server: &Server, permits: u64, interval: Duration) -> RateLimiter {
    let limiter = RateLimiter::new(&client(&server.url()), NAME);
    let rate = Rate::new(Mode::Overall, permits, interval).unwrap();
    assert!(limiter.try_set_rate(rate).await.unwrap());
    limiter
}

/// How many scripts were run.
fn scripts(server: &Server) -> u64 {
    let info = server.cli(&["INFO", "commandstats"]);
    let calls = |name: &str| -> u64 {
        let line =
            info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    calls("evalsha") + calls("eval")
}

#[tokio::test]
async fn who_comes_first_is_served_first_and_nobody_asks_before_it_can_be() {
    const WAITERS: usize = 40;
    const SPAN: Duration = Duration::from_millis(100);
    let server = Server::start();
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
        // It stands in the line before the next comes.
        sleep(Duration::from_millis(1)).await;
    }
    timeout(PATIENCE, waiters.join_all()).await.expect("stuck");
    assert_eq!(*served.lock().unwrap(), (0..WAITERS).collect::<Vec<_>>());
    // 50 permits by four: at least eleven spans, and each of 40 asks twice at the most and looks once.
    assert!(begun.elapsed() >= 11 * SPAN, "{:?}", begun.elapsed());
    let asked = scripts(&server) - before;
    assert!(asked <= 4 * WAITERS as u64, "{asked} scripts for {WAITERS}");
}

#[tokio::test]
async fn what_cannot_come_in_time_is_answered_at_once() {
    let server = Server::start();
    let limiter = limiter(&server, 5, Duration::from_secs(3_600)).await;
    assert!(limiter.try_acquire_for(5, Duration::ZERO).await.unwrap().allowed());
    let begun = Instant::now();
    let taken = limiter.try_acquire_for(1, Duration::from_secs(600)).await.unwrap();
    assert!(
        !taken.allowed() && taken.retry_after() > Some(Duration::from_secs(3_500)),
        "{taken:?}"
    );
    // So is whoever stands behind somebody who waits.
    let waiter = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(1).await }
    });
    sleep(Duration::from_millis(20)).await;
    let taken = limiter.try_acquire_for(1, Duration::from_secs(600)).await.unwrap();
    assert!(!taken.allowed(), "{taken:?}");
    assert!(begun.elapsed() < PATIENCE);
    // Given back, they go to whoever waits, at once.
    assert_eq!(limiter.release(2).await.unwrap(), 2);
    timeout(PATIENCE, waiter).await.expect("stuck").unwrap().unwrap();
    assert_eq!(limiter.available_permits().await.unwrap(), 1);
    // One is left, and whoever is first in line wants two.
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
async fn whoever_gives_up_leaves_the_line_and_takes_nothing() {
    const SPAN: Duration = Duration::from_secs(2);
    let server = Server::start();
    let limiter = limiter(&server, 1, SPAN).await;
    limiter.acquire(1).await.unwrap();
    let waiter = |limiter: RateLimiter| tokio::spawn(async move { limiter.acquire(1).await });
    let waiters: Vec<_> = (0..5).map(|_| waiter(limiter.clone())).collect();
    sleep(SPAN / 20).await;
    let (last, gone) = waiters.split_last().unwrap();
    gone.iter().for_each(|waiter| waiter.abort());
    let begun = Instant::now();
    while !last.is_finished() {
        assert!(begun.elapsed() < PATIENCE, "stuck");
        sleep(Duration::from_millis(5)).await;
    }
    assert!(begun.elapsed() < 4 * SPAN, "{:?}: nobody else took its turn", begun.elapsed());
}

#[tokio::test]
async fn what_was_taken_for_somebody_who_has_left_comes_back() {
    let server = Server::start();
    let limiter = limiter(&server, 5, Duration::from_secs(3_600)).await;
    limiter.available_permits().await.unwrap();
    // Frozen, it has been asked, and answers when nobody listens any more.
    server.freeze();
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(30), limiter.try_acquire(1)).await.is_err());
    }
    server.thaw();
    let begun = Instant::now();
    while limiter.available_permits().await.unwrap() < 5 {
        assert!(begun.elapsed() < PATIENCE, "{}", server.cli(&["GET", "{orders}:value"]));
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.cli(&["ZCARD", "{orders}:permits"]), "0");
    // Nor does one that is dropped somewhere on its way leak anything.
    for us in 0..200 {
        let _ = timeout(Duration::from_micros(us * 5), limiter.try_acquire(5)).await;
        limiter.release(5).await.unwrap();
    }
    let begun = Instant::now();
    while limiter.available_permits().await.unwrap() < 5 {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_deadline_that_passes_is_an_error_and_the_permit_comes_back() {
    let server = Server::start();
    let builder = tidegate_redis::Redis::builder(&server.url());
    let engine = builder.deadline(Duration::from_millis(100)).build().unwrap();
    let limiter = RateLimiter::new(&engine.client(), NAME);
    let begun = Instant::now();
    let rate = Rate::new(Mode::Overall, 5, Duration::from_secs(3_600)).unwrap();
    while limiter.try_set_rate(rate).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "no connection");
    }
    server.freeze();
    let error = limiter.try_acquire(1).await.unwrap_err();
    assert!(error.to_string().contains("perhaps charged"), "{error}");
    assert!(limiter.try_acquire_for(1, SECOND).await.is_err());
    server.thaw();
    let left = || server.cli(&["GET", "{orders}:value"]);
    let begun = Instant::now();
    while server.cli(&["ZCARD", "{orders}:permits"]) != "0" || !["5", ""].contains(&&*left()) {
        assert!(begun.elapsed() < PATIENCE, "{}", left());
        sleep(Duration::from_millis(5)).await;
    }
}
