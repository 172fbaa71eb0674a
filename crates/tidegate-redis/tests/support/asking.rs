//! Whoever asks an engine once, and is told how it went.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::Duration;

use tidegate::{Engine, Limit, Limiter};
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep};

/// For what has to happen, but not in a given time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn engine(url: &str) -> Redis {
    Redis::builder(url).deadline(PATIENCE).connect_deadline(PATIENCE).build().unwrap()
}

/// Makes a decision at `url`, or panics.
pub(crate) async fn admitted(url: &str) {
    let limiter = Limiter::new(engine(url), "1000/h".parse::<Limit>().unwrap());
    let decision = limiter.check("someone").await;
    assert!(decision.as_ref().is_ok_and(|decision| decision.allowed()), "{decision:?}");
}

/// Why there is no connection to `url`.
pub(crate) async fn refused(url: &str) -> String {
    refused_within(PATIENCE, url).await
}

/// The same, if the server may also be silent for so long.
pub(crate) async fn refused_within(connect_deadline: Duration, url: &str) -> String {
    let builder = Redis::builder(url).deadline(Duration::from_millis(50));
    let engine = builder.connect_deadline(connect_deadline).build().unwrap();
    let limiter = Limiter::new(engine, "1000/h".parse::<Limit>().unwrap());
    let begun = Instant::now();
    loop {
        let error = match limiter.check("someone").await {
            Ok(decision) => panic!("{url} is answered: {decision:?}"),
            Err(error) => error.to_string(),
        };
        assert!(!limiter.engine().health().up, "{error}");
        if !error.contains(" yet; wait a moment") {
            return error;
        }
        assert!(begun.elapsed() < PATIENCE, "{error}");
    }
}

/// Completes when it is so.
pub(crate) async fn until(so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "it does not come about");
        sleep(Duration::from_millis(5)).await;
    }
}
