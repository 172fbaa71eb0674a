//! Cost of a limiter, compared with Tidegate's own limits: the figures of `docs/use/redisson.md`.

use std::time::Duration;

use tidegate::{Limit, Limiter};
use tidegate_redis::Redis;
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};

use crate::fixture::{Fixture, NAME, TIMEOUT, client, overall, print_line};
use testkit::redis::RedisServer;

const PERMITS: u64 = 1_000;
const CALLS: u32 = 100;

/// An entry of Redis's slow log: number, time, duration in us, words, client address and name.
type SlowLogEntry = (u64, u64, u64, Vec<Vec<u8>>, String, String);

#[tokio::test]
async fn what_a_limiter_costs_for_a_thousand_permits() {
    let server = RedisServer::start();
    let client = client(&server.url());
    let limiter = RateLimiter::new(&client, NAME);
    let hour = Duration::from_secs(3_600);
    limiter.set_rate(Rate::new(Mode::Overall, PERMITS, hour).unwrap()).await.unwrap();
    for _ in 0..PERMITS {
        assert!(limiter.try_acquire(1).await.unwrap().allowed());
    }
    let bytes = bytes(&server);
    server.cli(&["CONFIG", "RESETSTAT"]);
    for _ in 0..CALLS {
        assert!(!limiter.try_acquire(1).await.unwrap().allowed());
    }
    let denied = micros(&server);
    // Always at the limit: for each call, one permit expires and is taken again.
    let short = Duration::from_secs(2);
    limiter.update_rate(Rate::new(Mode::Overall, PERMITS, short).unwrap()).await.unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]);
    for _ in 0..CALLS {
        limiter.acquire(1).await.unwrap();
    }
    let taken = micros(&server);
    print_line(&format!(
        "Redisson's limiter with {PERMITS} permits: {bytes} bytes; {denied} us of Redis for a denial, {taken} us for a \
         permit at the limit"
    ));
    server.cli(&["FLUSHALL"]);
    for limit in ["sliding-log 1000/1h", "token-bucket 1000/1h"] {
        let engine =
            Redis::builder(&server.url()).deadline(TIMEOUT).secret("cost").build().unwrap();
        let limiter = Limiter::new(engine, limit.parse::<Limit>().unwrap());
        for _ in 0..PERMITS {
            assert!(limiter.check(NAME).await.unwrap().allowed());
        }
        let bytes = self::bytes(&server);
        server.cli(&["CONFIG", "RESETSTAT"]);
        for _ in 0..CALLS {
            limiter.check(NAME).await.unwrap();
        }
        print_line(&format!(
            "{limit}: {bytes} bytes; {} us of Redis for a denial",
            micros(&server)
        ));
        server.cli(&["FLUSHALL"]);
    }
    // The whole set is read when one of a thousand entries expires. Many times that duration would
    // be too long for a script.
    assert!(taken < 20_000.0 && denied < 20_000.0);
}

/// The longest that other clients of Redis wait for a script, by the slow log.
#[tokio::test]
async fn the_longest_script_of_many_entries() {
    let mut longest = 0;
    for (entries, expired_ms) in [(1_000, 0), (1_000, 500), (20_000, 0), (20_000, 500)] {
        let fixture = Fixture::with_rate(entries).await;
        fixture.fill(entries, 1, 9_000, entries / 1_000);
        fixture.set_left(0);
        let all = u32::try_from(entries).unwrap();
        fixture.take_at(9_999, all).await;
        fixture.server.cli(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
        fixture.server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        fixture.take_at(9_999 + expired_ms, all).await;
        fixture.limiter.release(all).await.unwrap();
        assert!(fixture.limiter.update_rate(overall(entries / 2)).await.unwrap());
        fixture.take_at(9_999 + expired_ms, all / 2).await;
        let client = redis::Client::open(fixture.server.url()).unwrap();
        let log: Vec<SlowLogEntry> = redis::cmd("SLOWLOG")
            .arg("GET")
            .arg(-1)
            .query(&mut client.get_connection().unwrap())
            .unwrap();
        let scripts = log.iter().filter(|entry| entry.3[0].eq_ignore_ascii_case(b"evalsha"));
        let took = scripts.map(|entry| entry.2).max().unwrap();
        print_line(&format!(
            "{entries} entries, {expired_ms} ms of them expired: longest script {took} us"
        ));
        longest = longest.max(took);
    }
    assert!(longest < 200_000, "{longest} us");
}

/// Memory of all keys in Redis.
fn bytes(server: &RedisServer) -> u64 {
    let keys = server.cli(&["KEYS", "*"]);
    let usage =
        |key: &str| server.cli(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).parse::<u64>().unwrap();
    keys.lines().map(usage).sum()
}

/// Average duration of a script, or of a function that was called in its place.
fn micros(server: &RedisServer) -> f64 {
    let info = server.cli(&["INFO", "commandstats"]);
    let of = |line: &str, name: &str| -> f64 {
        let words = line.split([':', ',']);
        words.filter_map(|word| word.strip_prefix(name)).next().unwrap().parse().unwrap()
    };
    let kinds = ["cmdstat_evalsha:", "cmdstat_fcall:"];
    let lines = info.lines().filter(|line| kinds.iter().any(|kind| line.starts_with(kind)));
    let sums = lines.fold((0.0, 0.0), |(micros, calls), line| {
        (micros + of(line, "usec="), calls + of(line, "calls="))
    });
    assert!(sums.1 > 0.0, "{info}");
    sums.0 / sums.1
}
