//! The bucket of Spring Cloud Gateway, beside the script in its own jar.

use redis::{Connection, RedisError};
use tidegate::{Clock as _, ManualClock, Micros, Outcome};
use tidegate_redis::Redis;
use tidegate_redis::spring::{Bucket, InvalidBucket, RateLimiter};

use crate::driver::{Version, folder};
use crate::lab::{PATIENCE, client, say};
use crate::server::Server;

const ID: &str = "orders.user-42";
const KEYS: [&str; 2] = [
    "request_rate_limiter.{orders.user-42}.tokens",
    "request_rate_limiter.{orders.user-42}.timestamp",
];

struct Lab {
    server: Server,
    clock: ManualClock,
    limiter: RateLimiter,
}

impl Lab {
    fn new(rate: u32, capacity: u32) -> Self {
        let server = Server::start();
        let clock = ManualClock::new(Micros::from_millis(1_700_000_000_000));
        let builder = Redis::builder(&server.url()).deadline(PATIENCE).connect_deadline(PATIENCE);
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

/// The script in the real jar, run with the words that the gateway sends.
struct Gateway {
    connection: Connection,
    script: String,
}

impl Gateway {
    fn new(server: &Server) -> Option<Self> {
        let version = Version::of("4.")?;
        let jar = folder().join("gateway/lib/spring-cloud-gateway-server-webflux.jar");
        if !jar.is_file() {
            say("not beside a real Spring Cloud Gateway; interop/redisson/fetch gets it");
            return None;
        }
        let script = version.read_in(&jar, "META-INF/scripts/request_rate_limiter.lua").remove(0);
        // How the keys are put together: the route, a dot, and the key of the request.
        let class = "org/springframework/cloud/gateway/filter/ratelimit/RedisRateLimiter.class";
        let texts = version.read_in(&jar, class);
        let pattern = "request_rate_limiter.{\u{1}.\u{1}}.".to_owned();
        assert!(texts.contains(&pattern) && texts.contains(&"\u{1}timestamp".to_owned()));
        let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        Some(Self { connection, script })
    }

    /// With an empty time, the script reads Redis's own; so does the gateway.
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
async fn it_refills_at_whole_seconds() {
    use Outcome::{Allow, Never, RetryAfter};
    let lab = Lab::new(10, 20);
    let wait = |ms| RetryAfter(Micros::from_millis(ms));
    for (ms, tokens, expected) in [
        (900, 20, (Allow, 0)),
        (999, 1, (wait(1), 0)),
        // All ten at once, 100 ms after twenty.
        (1_000, 10, (Allow, 0)),
        (1_300, 11, (wait(1_700), 0)),
        (2_000, 11, (wait(1_000), 10)),
        (3_500, 11, (Allow, 9)),
        (3_500, 21, (Never, 9)),
        (9_000, 20, (Allow, 0)),
    ] {
        assert_eq!(lab.take_at(ms, tokens).await, expected, "{tokens} at {ms}");
    }
}

#[tokio::test]
async fn what_lies_in_redis_is_what_spring_writes() {
    let lab = Lab::new(10, 20);
    assert_eq!(lab.take_at(500, 3).await, (Outcome::Allow, 17));
    let cli = |words: &[&str]| lab.server.cli(words);
    assert_eq!(cli(&["MGET", KEYS[0], KEYS[1]]), "17\n1700000000");
    // Twice the two seconds in which it fills.
    assert_eq!(KEYS.map(|key| cli(&["TTL", key])), ["4", "4"]);
    let before = cli(&["INFO", "persistence"]);
    assert_eq!(lab.take_at(501, 18).await.1, 17);
    let changes =
        |info: &str| info.lines().find(|l| l.starts_with("rdb_changes")).map(str::to_owned);
    assert_eq!(
        changes(&cli(&["INFO", "persistence"])),
        changes(&before),
        "a denial writes nothing"
    );
}

#[tokio::test]
async fn a_bucket_that_fills_in_less_than_half_a_second_is_not_kept() {
    let (small, kept) = (Bucket::new(100, 49).unwrap(), Bucket::new(100, 50).unwrap());
    assert!(!small.is_kept() && kept.is_kept());
    assert_eq!(Bucket::new(0, 5), Err(InvalidBucket::Rate));
    let lab = Lab::new(100, 49);
    for _ in 0..3 {
        assert_eq!(lab.take_at(0, 49).await, (Outcome::Allow, 0), "as in Spring");
    }
    assert_eq!(lab.server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn what_is_not_a_bucket_is_refused() {
    for words in [["SET", KEYS[0], "nan"], ["SET", KEYS[1], "soon"], ["LPUSH", KEYS[0], "1"]] {
        let lab = Lab::new(10, 20);
        lab.server.cli(&words);
        let error = lab.limiter.try_acquire(ID, 1).await.unwrap_err();
        assert!(error.is_answer(), "{words:?}: {error}");
    }
}

/// One bucket, one request of ours and one of the real script in turns, at random instants: the same as the real
/// script alone on another server.
#[tokio::test]
async fn beside_the_real_script_every_answer_is_that_of_one_gateway() {
    let (lab, other) = (Lab::new(7, 20), Server::start());
    let (Some(mut beside), Some(mut alone)) = (Gateway::new(&lab.server), Gateway::new(&other))
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
            0 => lab.take_at(ms, tokens).await,
            _ => {
                let [allowed, left] = beside.take(7, 20, &now, tokens).unwrap();
                let denied = Outcome::RetryAfter(Micros::ZERO);
                let outcome = if allowed == 1 { Outcome::Allow } else { denied };
                (outcome, u64::try_from(left).unwrap())
            }
        };
        let got = [i64::from(outcome == Outcome::Allow), i64::try_from(left).unwrap()];
        assert_eq!(got, expected, "step {step}: {tokens} at {ms}");
    }
    say("beside Spring Cloud Gateway's script: 2000 steps, every answer that of one gateway");
}

/// Both by Redis's own clock, as fast as they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_the_real_script_neither_takes_more_than_the_bucket_has() {
    const RATE: u32 = 40;
    const CAPACITY: u32 = 60;
    let server = Server::start();
    let Some(mut gateway) = Gateway::new(&server) else { return };
    let limiter = RateLimiter::new(&client(&server.url()), Bucket::new(RATE, CAPACITY).unwrap());
    let clock = tidegate::SystemClock;
    let (begun, span) = (clock.now(), Micros::from_millis(2_000));
    let theirs = tokio::task::spawn_blocking(move || {
        let mut taken = 0;
        while clock.now().saturating_sub(begun) < span {
            taken += gateway.take(RATE, CAPACITY, "", 1).unwrap()[0];
        }
        taken
    });
    let mut ours = 0;
    while clock.now().saturating_sub(begun) < span {
        ours += i64::from(limiter.try_acquire(ID, 1).await.unwrap().allowed());
    }
    let theirs = theirs.await.unwrap();
    let seconds = (clock.now().get() / 1_000_000 - begun.get() / 1_000_000) as i64;
    let most = i64::from(CAPACITY) + seconds * i64::from(RATE);
    say(&format!("raced Spring's script: {theirs} by theirs, {ours} by ours, {most} at most"));
    assert!(theirs + ours <= most && theirs > 0 && ours > 0);
    assert!(theirs + ours >= i64::from(CAPACITY) + i64::from(RATE), "it refilled");
}
