//! How full a Rust client alone keeps the window, under the load of Redisson's own `testRateValue`.

use std::time::Duration;

use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::fixture::{NAME, SECOND, client, is_long, print_line};
use testkit::redis::RedisServer;

const CALLERS: u32 = 200;
const SAMPLES: u32 = 20;
/// How many of the samples have to be full, as in Redisson's test.
const FULL_SAMPLES: usize = 16;

/// The permits that were taken within the last interval in ms, by Redis's clock.
const IN_WINDOW: &str = "local time = redis.call('TIME') \
     local ms = time[1] * 1000 + math.floor(time[2] / 1000) \
     return redis.call('ZCOUNT', '{orders}:permits', '(' .. (ms - ARGV[1]), '+inf')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_alone_keeps_the_window_full() {
    let (runs, rate, interval) =
        if is_long() { (5, 10_000, 10 * SECOND) } else { (1, 200, SECOND) };
    for _ in 0..runs {
        let samples = samples_under_load(rate, interval).await;
        let full = samples.iter().filter(|permits| **permits * 100 >= rate * 98).count();
        print_line(&format!(
            "Rust alone at {rate} per {interval:?}: 98 % full in {full} of {SAMPLES} samples: {samples:?}"
        ));
        assert!(samples.iter().all(|permits| *permits <= rate));
        let last = samples.last().unwrap();
        assert!(*last * 2 >= rate, "less than half full");
        assert!(full >= FULL_SAMPLES || !is_long(), "{full} of {SAMPLES}");
    }
}

/// Ten samples per interval while many callers take single permits, from the start.
async fn samples_under_load(rate: u64, interval: Duration) -> Vec<u64> {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(&client(&server.url()), NAME);
    limiter.set_rate(Rate::new(Mode::Overall, rate, interval).unwrap()).await.unwrap();
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let limiter = limiter.clone();
        callers.spawn(async move {
            loop {
                limiter.acquire(1).await.unwrap();
            }
        });
    }
    let mut samples = Vec::new();
    let ms = interval.as_millis().to_string();
    for nth in 0..SAMPLES {
        sleep_until(begun + interval / 10 * nth).await;
        let permits = server.cli(&["EVAL", IN_WINDOW, "0", &ms]);
        samples.push(permits.parse().unwrap_or_else(|_| panic!("{permits}")));
    }
    callers.shutdown().await;
    samples
}
