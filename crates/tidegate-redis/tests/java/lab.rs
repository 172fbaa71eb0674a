//! A limiter of ours on a real Redis, by a clock that the test turns or by Redis's own.

use std::io::Write;
use std::time::Duration;

use tidegate::{ManualClock, Micros, Outcome};
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tidegate_redis::{Client, Redis};

use crate::server::Server;

/// For what has to happen, but not in a given time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NAME: &str = "orders";

/// A server, a clock that stands still, and a limiter that goes by it.
pub(crate) struct Lab {
    pub(crate) server: Server,
    pub(crate) clock: ManualClock,
    pub(crate) limiter: RateLimiter,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let server = Server::start();
        let clock = ManualClock::new(Micros::from_millis(10_000));
        let limiter = limiter(&server, &clock);
        Self { server, clock, limiter }
    }

    /// From now on it is another client that asks, which knows nothing yet.
    pub(crate) fn forget(&mut self) {
        self.limiter = limiter(&self.server, &self.clock);
    }

    /// One of so many permits per second.
    pub(crate) async fn with_rate(permits: u64) -> Self {
        let lab = Self::new();
        assert!(lab.limiter.try_set_rate(overall(permits)).await.unwrap());
        lab
    }

    /// One of so many permits in ten minutes, in which what Redis keeps for an interval lasts for the test.
    pub(crate) async fn with_slow_rate(permits: u64) -> Self {
        let lab = Self::new();
        let rate = Rate::new(Mode::Overall, permits, Duration::from_secs(600)).unwrap();
        assert!(lab.limiter.try_set_rate(rate).await.unwrap());
        lab
    }

    pub(crate) fn at_ms(&self, ms: u64) {
        self.clock.set(Micros::from_millis(ms));
    }

    /// Takes so many at that instant, or says how many ms later there may be enough.
    pub(crate) async fn take_at(&self, ms: u64, permits: u32) -> Option<u64> {
        self.at_ms(ms);
        match self.limiter.try_acquire(permits).await.unwrap().outcome() {
            Outcome::Allow => None,
            Outcome::RetryAfter(span) => Some(span.get().div_ceil(1_000)),
            Outcome::Never => panic!("nobody says so"),
        }
    }

    pub(crate) async fn left(&self) -> u64 {
        self.limiter.available_permits().await.unwrap()
    }

    /// How often anything in Redis was changed.
    pub(crate) fn changes(&self) -> u64 {
        let info = self.server.cli(&["INFO", "persistence"]);
        let line = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.unwrap().trim().parse().unwrap()
    }
}

fn limiter(server: &Server, clock: &ManualClock) -> RateLimiter {
    let builder = Redis::builder(&server.url()).deadline(PATIENCE).connect_deadline(PATIENCE);
    let client = builder.test_clock(clock.clone()).build().unwrap().client();
    RateLimiter::new(&client, NAME)
}

/// A client by Redis's own clock.
pub(crate) fn client(url: &str) -> Client {
    let builder = Redis::builder(url).deadline(PATIENCE).connect_deadline(PATIENCE);
    builder.build().unwrap().client()
}

pub(crate) fn overall(permits: u64) -> Rate {
    Rate::new(Mode::Overall, permits, SECOND).unwrap()
}

/// On standard error at once, whether the test is watched or not.
pub(crate) fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}
