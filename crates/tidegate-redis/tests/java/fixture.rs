//! A Redisson-compatible limiter on a real Redis, with a manual clock or with Redis's clock.

use std::env;
use std::io::Write;
use std::time::Duration;

use tidegate::{ManualClock, Micros, Outcome};
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tidegate_redis::{Redis, RedisClient};

use testkit::redis::RedisServer;
use testkit::timing::goals_are_bounds;

/// Upper bound for events without a deadline of their own.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NAME: &str = "orders";

/// A server, a manual clock, and a limiter that uses both.
pub(crate) struct Fixture {
    pub(crate) server: RedisServer,
    pub(crate) clock: ManualClock,
    pub(crate) limiter: RateLimiter,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let server = RedisServer::start();
        let clock = ManualClock::new(Micros::from_millis(10_000));
        let limiter = limiter(&server, &clock);
        Self { server, clock, limiter }
    }

    /// Replaces the limiter with one of a new client, which has no cached state.
    pub(crate) fn reconnect(&mut self) {
        self.limiter = limiter(&self.server, &self.clock);
    }

    /// Sets a rate of `permits` per second.
    pub(crate) async fn with_rate(permits: u64) -> Self {
        let fixture = Self::new();
        assert!(fixture.limiter.try_set_rate(overall(permits)).await.unwrap());
        fixture
    }

    /// Sets a rate of `permits` in ten minutes, so that keys which Redis keeps for an interval
    /// outlive the test.
    pub(crate) async fn with_slow_rate(permits: u64) -> Self {
        let fixture = Self::new();
        let rate = Rate::new(Mode::Overall, permits, Duration::from_secs(600)).unwrap();
        assert!(fixture.limiter.try_set_rate(rate).await.unwrap());
        fixture
    }

    pub(crate) fn at_ms(&self, ms: u64) {
        self.clock.set(Micros::from_millis(ms));
    }

    /// Takes permits at that instant. A denial returns the wait in ms.
    pub(crate) async fn take_at(&self, ms: u64, permits: u32) -> Option<u64> {
        self.at_ms(ms);
        match self.limiter.try_acquire(permits).await.unwrap().outcome() {
            Outcome::Allow => None,
            Outcome::RetryAfter(span) => Some(span.get().div_ceil(1_000)),
            Outcome::Never => panic!("permits within the rate are never denied for good"),
        }
    }

    pub(crate) async fn left(&self) -> u64 {
        self.limiter.available_permits().await.unwrap()
    }

    /// Number of writes to Redis so far.
    pub(crate) fn changes(&self) -> u64 {
        let info = self.server.cli(&["INFO", "persistence"]);
        let line = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.unwrap().trim().parse().unwrap()
    }
}

fn limiter(server: &RedisServer, clock: &ManualClock) -> RateLimiter {
    let builder = Redis::builder(&server.url()).deadline(TIMEOUT).connect_deadline(TIMEOUT);
    let client = builder.test_clock(clock.clone()).build().unwrap().client();
    RateLimiter::new(&client, NAME)
}

/// A client that uses Redis's clock.
pub(crate) fn client(url: &str) -> RedisClient {
    let builder = Redis::builder(url).deadline(TIMEOUT).connect_deadline(TIMEOUT);
    builder.build().unwrap().client()
}

pub(crate) fn overall(permits: u64) -> Rate {
    Rate::new(Mode::Overall, permits, SECOND).unwrap()
}

/// Whether to run for minutes, and to assert figures that only an idle machine reaches.
pub(crate) fn is_long() -> bool {
    env::var("TIDEGATE_LONG").as_deref() == Ok("1") || goals_are_bounds()
}

/// Prints to standard error at once, also if the test harness captures output.
pub(crate) fn print_line(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}
