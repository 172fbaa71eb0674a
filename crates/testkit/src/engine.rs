//! Single checks on a Redis engine, and their results.

use std::time::Duration;

use tidegate::{Limit, Limiter};
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep};

use crate::redis::RedisServer;
use crate::timing::HANG;

/// HMAC secret of every engine in these tests.
pub const TEST_SECRET: &str = "the same for all tests";
/// Upper bound for events without a deadline of their own.
pub const TEST_TIMEOUT: Duration = HANG;

pub fn engine(url: &str) -> Redis {
    Redis::builder(url).deadline(TEST_TIMEOUT).connect_deadline(TEST_TIMEOUT).build().unwrap()
}

/// Loads the library of functions, unless the server has no functions. Engines find it loaded, and
/// load nothing in the background.
pub fn preload_functions(server: &RedisServer) {
    let client = redis::Client::open(server.url()).unwrap();
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg(tidegate_redis::function_library());
    let loaded = load.query::<String>(&mut client.get_connection().unwrap());
    if let Err(error) = loaded {
        assert!(error.to_string().contains("unknown command"), "{error}");
    }
}

/// Checks once at `url`; panics unless the check is allowed.
pub async fn assert_admits(url: &str) {
    let limiter = Limiter::new(engine(url), "1000/h".parse::<Limit>().unwrap());
    let decision = limiter.check("someone").await;
    assert!(decision.as_ref().is_ok_and(|decision| decision.allowed()), "{decision:?}");
}

/// The error of a connection to `url` that must fail.
pub async fn connect_error(url: &str) -> String {
    connect_error_within(TEST_TIMEOUT, url).await
}

/// As [`connect_error`], for a server that may not reply within this time.
pub async fn connect_error_within(connect_deadline: Duration, url: &str) -> String {
    let builder = Redis::builder(url).deadline(Duration::from_millis(50));
    let engine = builder.connect_deadline(connect_deadline).build().unwrap();
    let limiter = Limiter::new(engine, "1000/h".parse::<Limit>().unwrap());
    let start = Instant::now();
    loop {
        let error = match limiter.check("someone").await {
            Ok(decision) => panic!("{url} decides: {decision:?}"),
            Err(error) => error.to_string(),
        };
        assert!(!limiter.engine().health().up, "{error}");
        if !error.contains(" yet; retry") {
            return error;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{error}");
    }
}

/// Completes once the condition holds.
pub async fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TEST_TIMEOUT, "the condition never holds");
        sleep(Duration::from_millis(5)).await;
    }
}
