//! More entries than a script reads in one call.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate_redis::Redis;
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tokio::time::Instant;

use crate::fixture::{Fixture, NAME, TIMEOUT, client, print_line};
use testkit::redis::RedisServer;

#[tokio::test]
async fn a_large_take_gets_the_permits_of_thousands_of_expired_entries() {
    const ENTRIES: u64 = 5_000;
    let fixture = Fixture::with_rate(ENTRIES).await;
    fixture.fill(ENTRIES, 1, 9_000, 10);
    fixture.set_left(0);
    assert_eq!(
        fixture.take_at(9_999, 3_000).await,
        Some(100),
        "until the 1,000th entry expires; then the caller retries"
    );
    assert_eq!(
        fixture.take_at(10_498, 5_000).await,
        Some(1),
        "5,000 are free when the last entry expires"
    );
    assert_eq!(fixture.take_at(10_499, 5_000).await, None);
    assert_eq!((fixture.left().await, fixture.entries(), fixture.sum()), (0, 1, 5_000));
    let end: i64 = fixture.server.cli(&["PTTL", "{orders}:permits:count"]).parse().unwrap();
    assert!(end == -2 || (0..=1_000).contains(&end), "{end}: the count expires soon");
    // Reading the available permits counts all of them, too.
    fixture.server.cli(&["DEL", "{orders}:permits"]);
    fixture.fill(ENTRIES, 1, 20_000, 10);
    fixture.at_ms(30_000);
    assert_eq!(fixture.left().await, ENTRIES);
}

#[tokio::test]
async fn each_call_removes_500_entries_and_the_last_call_decides() {
    const ENTRIES: u64 = 20_000;
    let fixture = Fixture::with_rate(ENTRIES).await;
    fixture.fill(ENTRIES, 1, 9_000, 20);
    fixture.set_left(0);
    // The scripts are compiled, and the entries counted once.
    assert_eq!(fixture.take_at(9_999, 1).await, Some(1));
    fixture.server.cli(&["CONFIG", "RESETSTAT"]);
    assert_eq!(fixture.take_at(11_000, 20_000).await, None);
    let scripts = fixture.calls("evalsha");
    assert!((35..=80).contains(&scripts), "{scripts}");
    let each = fixture.stat("evalsha", "usec").unwrap() / scripts;
    print_line(&format!("{ENTRIES} expired entries: {scripts} scripts of {each} us"));
    assert_eq!(fixture.entries(), 1);
}

/// A denial that has read all entries stores the count, so that the next denial reads none.
#[tokio::test]
async fn a_denial_does_not_read_all_entries_each_time() {
    for entries in [900, 5_000] {
        for (what, value) in [("a value above the rate", Some("99999999")), ("no value", None)] {
            let fixture = Fixture::with_slow_rate(entries).await;
            fixture.fill(entries, 1, 9_500, 10);
            fixture.server.cli(&["DEL", "{orders}:value"]);
            if let Some(value) = value {
                fixture.server.cli(&["SET", "{orders}:value", value]);
            }
            assert!(fixture.limiter.expire(Duration::from_secs(60)).await.unwrap());
            assert_denied_in_one_read(&fixture, what).await;
            assert_ne!(
                fixture.server.cli(&["PTTL", "{orders}:value"]),
                "-1",
                "{what}: expires with the other keys"
            );
        }
        // Java lowered the rate while entries had expired.
        let fixture = Fixture::with_slow_rate(entries).await;
        fixture.fill(entries, 2, 8_990, 10);
        fixture.set_left(0);
        assert_denied_in_one_read(&fixture, "twice the rate").await;
    }
}

async fn assert_denied_in_one_read(fixture: &Fixture, what: &str) {
    let rate = fixture.limiter.config().await.unwrap().unwrap().permits();
    let all = u32::try_from(rate).unwrap();
    assert!(fixture.take_at(609_000, all).await.is_some(), "{what}");
    let (reads, changes) = (fixture.calls("zrange"), fixture.changes());
    for _ in 0..10 {
        assert!(fixture.take_at(609_000, all).await.is_some(), "{what}");
    }
    // One read for the wait, which follows from the oldest entries, at most 1,000.
    assert_eq!(
        (fixture.calls("zrange") - reads, fixture.changes() - changes),
        (10, 0),
        "{what} of {rate}"
    );
    assert_eq!(u64::try_from(fixture.sum()), Ok(rate), "{what}");
}

/// Redisson's `release` leaves the entries in the set. Their permits must be freed only once.
#[tokio::test]
async fn permits_that_java_releases_of_many_entries_are_freed_once() {
    for (entries, permits) in [(2_000, 5), (10_000, 1)] {
        let fixture = Fixture::with_rate(10_000).await;
        fixture.fill(entries, permits, 9_000, entries / 1_000);
        fixture.set_left(4_000);
        assert_eq!(fixture.take_at(9_999, 4_000).await, None);
        assert!(fixture.take_at(9_999, 1).await.is_some());
        // The oldest 4,000 are free already; the entries that count start at 9,400.
        assert_eq!(fixture.take_at(10_399, 1).await, Some(1));
        assert_eq!(fixture.take_at(10_400, 10).await, None);
        assert!(fixture.take_at(10_400, 1).await.is_some());
        assert_eq!(fixture.sum(), 10_000);
    }
}

#[tokio::test]
async fn entries_that_were_lost_of_many_count_as_taken_now() {
    let fixture = Fixture::with_rate(10_000).await;
    fixture.fill(2_000, 3, 9_500, 4);
    fixture.set_left(1_000);
    assert_eq!(fixture.take_at(10_000, 1_001).await, Some(500));
    assert_eq!(fixture.sum(), 10_000);
    assert_eq!(
        fixture.take_at(10_999, 7_001).await,
        Some(1),
        "3,000 were lost, and count from 10,000 on"
    );
    assert_eq!(fixture.take_at(11_000, 10_000).await, None);
}

/// Java goes on while Rust counts. No permit may be lost or counted twice.
#[tokio::test]
async fn writes_of_java_during_a_count_lose_no_permits() {
    let fixture = Fixture::with_rate(10_000).await;
    let keys = |text: &mut String, ms: u64| {
        // One entry expires, and another is added with a score that is a little late.
        write!(
            text,
            "local v = '{{orders}}:value' local p = '{{orders}}:permits' local n = 0 \
             for _, m in ipairs(redis.call('ZRANGEBYSCORE', p, 0, {ms} - 1000)) do \
             local _, k = struct.unpack('Bc0I', m) n = n + k end \
             redis.call('ZREMRANGEBYSCORE', p, 0, {ms} - 1000) \
             redis.call('INCRBY', v, n) redis.call('DECRBY', v, 2) \
             redis.call('ZADD', p, {ms} - 3, struct.pack('Bc0I', 16, string.format('%016d', {ms}), 2))"
        )
        .unwrap();
    };
    fixture.fill(3_000, 3, 9_000, 3);
    fixture.set_left(1_000);
    let mut unfinished = 0;
    for ms in 9_999..10_400 {
        let mut java = String::new();
        keys(&mut java, ms);
        fixture.server.cli(&["EVAL", &java, "0"]);
        fixture.at_ms(ms);
        // One call of the count, by a program that then stops.
        let words = ["0", "look", "an id"];
        unfinished += u32::from(
            fixture.run_part(include_str!("../../lua/redisson/take.lua"), ms, &words) == "4",
        );
        assert_eq!(fixture.sum(), 10_000, "at {ms}");
    }
    assert!(unfinished >= 3, "{unfinished}");
}

/// Java frees more entries in between than a call counts. The next calls then count more.
#[tokio::test]
async fn a_count_that_is_overtaken_reads_more_per_call() {
    const RATE: i64 = 20_000;
    let fixture = Fixture::with_slow_rate(20_000).await;
    fixture.fill(20_000, 1, 9_000, 20);
    // There is no stored value, so that all entries have to be counted.
    let mut ms = 608_999;
    for nth in 0.. {
        let words = ["0", "look", "an id"];
        let reply = fixture.run_part(include_str!("../../lua/redisson/take.lua"), ms, &words);
        if reply != "4" {
            assert_eq!(reply.lines().next(), Some("1"));
            break;
        }
        assert!(nth < 20, "no end");
        ms += 75;
        let end = (ms - 600_000).to_string();
        fixture.server.cli(&["ZREMRANGEBYSCORE", "{orders}:permits", "0", &end]);
        fixture.server.cli(&["INCRBY", "{orders}:value", "1500"]);
        fixture.fill(1_500, 1, ms, 1_500);
        fixture.server.cli(&["DECRBY", "{orders}:value", "1500"]);
    }
    assert_eq!(fixture.sum(), RATE);
}

/// Permits that Java releases all the time do not keep Rust from a result, and are freed once.
#[tokio::test]
async fn java_may_release_between_every_two_calls_of_a_count() {
    const RATE: i64 = 5_000;
    for each in [1, 7, 200] {
        let fixture = Fixture::with_slow_rate(5_000).await;
        fixture.fill(5_000, 1, 9_000, 5);
        fixture.set_left(0);
        let words = ["0", "look", "an id"];
        let mut released = 0;
        let reply = (0..60).find_map(|_| {
            let reply =
                fixture.run_part(include_str!("../../lua/redisson/take.lua"), 10_000, &words);
            if reply != "4" {
                return Some(reply);
            }
            fixture.server.cli(&["INCRBY", "{orders}:value", &each.to_string()]);
            released += each;
            None
        });
        let reply = reply.expect("no end");
        assert_eq!(reply.lines().take(2).collect::<Vec<_>>(), ["1", &released.to_string()]);
        assert_eq!(fixture.sum(), RATE, "{each} at a time");
    }
}

/// The value is missing. The script remembers that when a count starts again, takes long, or is
/// no longer needed.
#[tokio::test]
async fn a_missing_value_is_not_mistaken_for_lost_entries() {
    for (freed, entries) in [(0, 3_000), (700, 2_300), (2_500, 500), (3_000, 0)] {
        let fixture = Fixture::with_slow_rate(5_000).await;
        fixture.fill(3_000, 1, 9_000, 5);
        let take = include_str!("../../lua/redisson/take.lua");
        assert_eq!(fixture.run_part(take, 10_000, &["1", "take", "an id"]), "4");
        assert_eq!(fixture.server.cli(&["PTTL", "{orders}:permits:count"]), "-1");
        // Java removes entries that have expired by its clock; some of them are not counted yet.
        if freed > 0 {
            let last = (freed - 1).to_string();
            fixture.server.cli(&["ZREMRANGEBYRANK", "{orders}:permits", "0", &last]);
            fixture.server.cli(&["INCRBY", "{orders}:value", &freed.to_string()]);
        }
        let part = |_| {
            Some(fixture.run_part(take, 10_000, &["1", "take", "an id"])).filter(|it| it != "4")
        };
        let reply = (0..20).find_map(part).expect("no end");
        let left = (4_999 - entries).to_string();
        assert_eq!(reply.lines().take(2).collect::<Vec<_>>(), ["1", &left], "{freed}");
        assert_eq!((fixture.entries(), fixture.sum()), (entries + 1, 5_000), "{freed}");
        assert_ne!(fixture.server.cli(&["PTTL", "{orders}:permits:count"]), "-1", "{freed}");
    }
}

/// A short deadline bounds all calls of a count together, and the next attempt resumes the count.
#[tokio::test]
async fn a_count_that_exceeds_the_deadline_is_resumed_by_the_next_call() {
    let server = RedisServer::start();
    let filler = RateLimiter::new(&client(&server.url()), NAME);
    let rate = Rate::new(Mode::Overall, 400_010, Duration::from_secs(3_600)).unwrap();
    filler.set_rate(rate).await.unwrap();
    let fill = "local now = redis.call('TIME')[1] * 1000 for i = 1, 400000 do \
                redis.call('ZADD', '{orders}:permits', string.format('%.0f', now), \
                struct.pack('Bc0I', 16, string.format('%016d', i), 1)) end \
                return redis.call('SET', '{orders}:value', 10)";
    assert_eq!(server.cli(&["EVAL", fill, "0"]), "OK");
    let engine = Redis::builder(&server.url()).deadline(Duration::from_millis(25)).build();
    let limiter = RateLimiter::new(&engine.unwrap().client(), NAME);
    let (begun, mut timed_out) = (Instant::now(), 0);
    let taken = loop {
        match limiter.try_acquire_for(1, Duration::ZERO).await {
            Ok(taken) => break taken,
            Err(error) => timed_out += u32::from(error.to_string().contains("too many entries")),
        }
        assert!(begun.elapsed() < 3 * TIMEOUT, "no end");
    };
    assert!(taken.allowed() && timed_out > 0, "{taken:?} after {timed_out}");
}
