//! Spring Cloud Gateway's bucket, compared with the script in the real jar.

use redis::{Connection, RedisError};
use tidegate::{Clock as _, ManualClock, Micros, Outcome};
use tidegate_redis::Redis;
use tidegate_redis::spring::{Bucket, InvalidBucket, RateLimiter};

use crate::fixture::{TIMEOUT, client, print_line};
use crate::jvm::{Version, folder};
use testkit::redis::RedisServer;

const ID: &str = "orders.user-42";
const KEYS: [&str; 2] = [
    "request_rate_limiter.{orders.user-42}.tokens",
    "request_rate_limiter.{orders.user-42}.timestamp",
];

struct SpringFixture {
    server: RedisServer,
    clock: ManualClock,
    limiter: RateLimiter,
}

impl SpringFixture {
    fn new(rate: u32, capacity: u32) -> Self {
        let server = RedisServer::start();
        let clock = ManualClock::new(Micros::from_millis(1_700_000_000_000));
        let builder = Redis::builder(&server.url()).deadline(TIMEOUT).connect_deadline(TIMEOUT);
        let client = builder.test_clock(clock.clone()).build().unwrap().client();
        let limiter = RateLimiter::new(&client, Bucket::new(rate, capacity).unwrap());
        Self { server, clock, limiter }
    }

    async fn take_at(&self, ms: u64, tokens: u32) -> (Outcome, u64) {
        self.clock.set(Micros::from_millis(1_700_000_000_000 + ms));
        let taken = self.limiter.try_acquire(ID, tokens).await.unwrap();
        (taken.outcome(), taken.remaining())
    }
}

/// The script of the real jar, called with the arguments that the gateway sends.
struct Gateway {
    connection: Connection,
    script: String,
}

impl Gateway {
    fn new(server: &RedisServer) -> Option<Self> {
        let version = Version::of("4.")?;
        let jar = folder().join("gateway/lib/spring-cloud-gateway-server-webflux.jar");
        if !jar.is_file() {
            print_line("skipped: no real Spring Cloud Gateway; interop/redisson/fetch installs it");
            return None;
        }
        let script = version.read_in(&jar, "META-INF/scripts/request_rate_limiter.lua").remove(0);
        // Format of the keys: the route, a dot, and the key of the request.
        let class = "org/springframework/cloud/gateway/filter/ratelimit/RedisRateLimiter.class";
        let texts = version.read_in(&jar, class);
        let pattern = "request_rate_limiter.{\u{1}.\u{1}}.".to_owned();
        assert!(texts.contains(&pattern) && texts.contains(&"\u{1}timestamp".to_owned()));
        let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        Some(Self { connection, script })
    }

    /// With an empty time the script reads Redis's clock, as it does for the gateway.
    fn take(
        &mut self,
        rate: u32,
        capacity: u32,
        now: &str,
        tokens: u32,
    ) -> Result<[i64; 2], RedisError> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(&self.script).arg(2).arg(&KEYS).arg(rate).arg(capacity).arg(now).arg(tokens);
        eval.query(&mut self.connection)
    }
}

#[tokio::test]
async fn the_bucket_refills_at_whole_seconds() {
    use Outcome::{Allow, Never, RetryAfter};
    let fixture = SpringFixture::new(10, 20);
    let wait = |ms| RetryAfter(Micros::from_millis(ms));
    for (ms, tokens, expected) in [
        (900, 20, (Allow, 0)),
        (999, 1, (wait(1), 0)),
        // Ten tokens at once, 100 ms after twenty were taken.
        (1_000, 10, (Allow, 0)),
        (1_300, 11, (wait(1_700), 0)),
        (2_000, 11, (wait(1_000), 10)),
        (3_500, 11, (Allow, 9)),
        (3_500, 21, (Never, 9)),
        (9_000, 20, (Allow, 0)),
    ] {
        assert_eq!(fixture.take_at(ms, tokens).await, expected, "{tokens} at {ms}");
    }
}

#[tokio::test]
async fn the_stored_format_is_that_of_spring() {
    let fixture = SpringFixture::new(1, 2_000);
    assert_eq!(fixture.take_at(500, 3).await, (Outcome::Allow, 1_997));
    let cli = |words: &[&str]| fixture.server.cli(words);
    assert_eq!(cli(&["MGET", KEYS[0], KEYS[1]]), "1997\n1700000000");
    // Twice the 2,000 seconds in which the bucket fills, and some of them have passed.
    for ttl in KEYS.map(|key| cli(&["TTL", key]).parse::<u64>().unwrap()) {
        assert!((3_900..=4_000).contains(&ttl), "{ttl}");
    }
    let before = cli(&["INFO", "persistence"]);
    assert_eq!(fixture.take_at(501, 1_998).await.1, 1_997);
    let changes =
        |info: &str| info.lines().find(|l| l.starts_with("rdb_changes")).map(str::to_owned);
    assert_eq!(
        changes(&cli(&["INFO", "persistence"])),
        changes(&before),
        "a denial writes nothing"
    );
}

#[tokio::test]
async fn a_bucket_that_fills_in_less_than_half_a_second_is_not_stored() {
    let (small, kept) = (Bucket::new(100, 49).unwrap(), Bucket::new(100, 50).unwrap());
    assert!(!small.is_kept() && kept.is_kept());
    assert_eq!(Bucket::new(0, 5), Err(InvalidBucket::Rate));
    let fixture = SpringFixture::new(100, 49);
    for _ in 0..3 {
        assert_eq!(fixture.take_at(0, 49).await, (Outcome::Allow, 0), "as in Spring");
    }
    assert_eq!(fixture.server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn keys_that_hold_no_bucket_are_refused() {
    for words in [["SET", KEYS[0], "nan"], ["SET", KEYS[1], "soon"], ["LPUSH", KEYS[0], "1"]] {
        let fixture = SpringFixture::new(10, 20);
        fixture.server.cli(&words);
        let error = fixture.limiter.try_acquire(ID, 1).await.unwrap_err();
        assert!(error.is_store_healthy(), "{words:?}: {error}");
    }
}

/// One bucket, with calls by Tidegate and by the real script at random instants, has the same
/// results as the real script alone on another server.
#[tokio::test]
async fn alongside_the_real_script_every_decision_is_that_of_one_gateway() {
    let (fixture, other) = (SpringFixture::new(7, 20), RedisServer::start());
    let (Some(mut shared), Some(mut alone)) = (Gateway::new(&fixture.server), Gateway::new(&other))
    else {
        return;
    };
    let (mut ms, mut dice) = (0_u64, 1_u64);
    for step in 0..2_000 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ms += (dice >> 33) % 700;
        let tokens = u32::try_from(1 + (dice >> 40) % 9).unwrap();
        let now = (1_700_000_000 + ms / 1_000).to_string();
        let expected = alone.take(7, 20, &now, tokens).unwrap();
        let (outcome, left) = match dice >> 50 & 1 {
            0 => fixture.take_at(ms, tokens).await,
            _ => {
                let [allowed, left] = shared.take(7, 20, &now, tokens).unwrap();
                let denied = Outcome::RetryAfter(Micros::ZERO);
                let outcome = if allowed == 1 { Outcome::Allow } else { denied };
                (outcome, u64::try_from(left).unwrap())
            }
        };
        let got = [i64::from(outcome == Outcome::Allow), i64::try_from(left).unwrap()];
        assert_eq!(got, expected, "step {step}: {tokens} at {ms}");
    }
    print_line(
        "alongside Spring Cloud Gateway's script: 2000 steps, every decision that of one gateway",
    );
}

/// Both use Redis's clock and run as fast as they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_the_real_script_neither_takes_more_than_the_bucket_has() {
    const RATE: u32 = 40;
    const CAPACITY: u32 = 60;
    let server = RedisServer::start();
    let Some(mut gateway) = Gateway::new(&server) else { return };
    let limiter = RateLimiter::new(&client(&server.url()), Bucket::new(RATE, CAPACITY).unwrap());
    let clock = tidegate::SystemClock;
    let (begun, span) = (clock.now(), Micros::from_millis(2_000));
    let by_spring = tokio::task::spawn_blocking(move || {
        let mut taken = 0;
        while clock.now().saturating_sub(begun) < span {
            taken += gateway.take(RATE, CAPACITY, "", 1).unwrap()[0];
        }
        taken
    });
    let mut by_tidegate = 0;
    while clock.now().saturating_sub(begun) < span {
        by_tidegate += i64::from(limiter.try_acquire(ID, 1).await.unwrap().allowed());
    }
    let by_spring = by_spring.await.unwrap();
    let seconds = (clock.now().get() / 1_000_000 - begun.get() / 1_000_000) as i64;
    let max = i64::from(CAPACITY) + seconds * i64::from(RATE);
    print_line(&format!(
        "raced Spring's script: {by_spring} by Spring, {by_tidegate} by Tidegate, {max} at most"
    ));
    assert!(by_spring + by_tidegate <= max && by_spring > 0 && by_tidegate > 0);
    assert!(by_spring + by_tidegate >= i64::from(CAPACITY) + i64::from(RATE), "it refilled");
}
