//! What a limiter costs, beside limits of ours: the figures of `docs/redisson.md`.

use std::time::Duration;

use tidegate::{Limit, Limiter};
use tidegate_redis::Redis;
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};

use crate::lab::{Lab, NAME, PATIENCE, client, overall, say};
use crate::server::Server;

const PERMITS: u64 = 1_000;
const CALLS: u32 = 100;

/// A line of Redis's slow log: its number, when, the us that it took, the words, and by whom.
type Slow = (u64, u64, u64, Vec<Vec<u8>>, String, String);

#[tokio::test]
async fn what_a_limiter_costs_for_a_thousand_permits() {
    let server = Server::start();
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
    // At its limit all the time: each call gives one back and takes it.
    let short = Duration::from_secs(2);
    limiter.update_rate(Rate::new(Mode::Overall, PERMITS, short).unwrap()).await.unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]);
    for _ in 0..CALLS {
        limiter.acquire(1).await.unwrap();
    }
    let taken = micros(&server);
    say(&format!(
        "Redisson's limiter with {PERMITS} permits: {bytes} bytes; {denied} us of Redis for a denial, {taken} us for one \
         of those that come and go"
    ));
    server.cli(&["FLUSHALL"]);
    for limit in ["sliding-log 1000/1h", "token-bucket 1000/1h"] {
        let engine =
            Redis::builder(&server.url()).deadline(PATIENCE).secret("cost").build().unwrap();
        let limiter = Limiter::new(engine, limit.parse::<Limit>().unwrap());
        for _ in 0..PERMITS {
            assert!(limiter.check(NAME).await.unwrap().allowed());
        }
        let bytes = self::bytes(&server);
        server.cli(&["CONFIG", "RESETSTAT"]);
        for _ in 0..CALLS {
            limiter.check(NAME).await.unwrap();
        }
        say(&format!("{limit}: {bytes} bytes; {} us of Redis for a denial", micros(&server)));
        server.cli(&["FLUSHALL"]);
    }
    // The whole set is read when one of a thousand goes. Many times that would be too long for a script.
    assert!(taken < 20_000.0 && denied < 20_000.0);
}

/// The longest that anybody else waits in Redis for a script, by its own slow log.
#[tokio::test]
async fn the_longest_script_of_many_entries() {
    let mut longest = 0;
    for (entries, expired_ms) in [(1_000, 0), (1_000, 500), (20_000, 0), (20_000, 500)] {
        let lab = Lab::with_rate(entries).await;
        lab.fill(entries, 1, 9_000, entries / 1_000);
        lab.set_left(0);
        let all = u32::try_from(entries).unwrap();
        lab.take_at(9_999, all).await;
        lab.server.cli(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
        lab.server.cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        lab.take_at(9_999 + expired_ms, all).await;
        lab.limiter.release(all).await.unwrap();
        assert!(lab.limiter.update_rate(overall(entries / 2)).await.unwrap());
        lab.take_at(9_999 + expired_ms, all / 2).await;
        let client = redis::Client::open(lab.server.url()).unwrap();
        let log: Vec<Slow> = redis::cmd("SLOWLOG")
            .arg("GET")
            .arg(-1)
            .query(&mut client.get_connection().unwrap())
            .unwrap();
        let scripts = log.iter().filter(|entry| entry.3[0].eq_ignore_ascii_case(b"evalsha"));
        let took = scripts.map(|entry| entry.2).max().unwrap();
        say(&format!(
            "{entries} entries, {expired_ms} ms of them expired: no script above {took} us"
        ));
        longest = longest.max(took);
    }
    assert!(longest < 200_000, "{longest} us");
}

/// What all keys take in Redis's memory.
fn bytes(server: &Server) -> u64 {
    let keys = server.cli(&["KEYS", "*"]);
    let usage =
        |key: &str| server.cli(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).parse::<u64>().unwrap();
    keys.lines().map(usage).sum()
}

/// For how long a script runs, on average.
fn micros(server: &Server) -> f64 {
    let info = server.cli(&["INFO", "commandstats"]);
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    let word = line.split(',').find_map(|word| word.strip_prefix("usec_per_call="));
    word.unwrap().parse().unwrap()
}
