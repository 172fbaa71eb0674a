//! More entries than a script looks at in one call.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate_redis::Redis;
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tokio::time::Instant;

use crate::lab::{Lab, NAME, PATIENCE, client, say};
use crate::server::Server;

#[tokio::test]
async fn a_large_take_gets_what_thousands_of_entries_have_given_back() {
    const ENTRIES: u64 = 5_000;
    let lab = Lab::with_rate(ENTRIES).await;
    lab.fill(ENTRIES, 1, 9_000, 10);
    lab.set_left(0);
    assert_eq!(
        lab.take_at(9_999, 3_000).await,
        Some(100),
        "of the 1,000th that goes; then it asks again"
    );
    assert_eq!(lab.take_at(10_498, 5_000).await, Some(1), "5,000 are back when the last is");
    assert_eq!(lab.take_at(10_499, 5_000).await, None);
    assert_eq!((lab.left().await, lab.entries(), lab.sum()), (0, 1, 5_000));
    let end: i64 = lab.server.cli(&["PTTL", "{orders}:permits:count"]).parse().unwrap();
    assert!(end == -2 || (0..=1_000).contains(&end), "{end}: soon gone");
    // And whoever only looks sees all of it.
    lab.server.cli(&["DEL", "{orders}:permits"]);
    lab.fill(ENTRIES, 1, 20_000, 10);
    lab.at_ms(30_000);
    assert_eq!(lab.left().await, ENTRIES);
}

#[tokio::test]
async fn each_call_takes_out_500_entries_and_the_last_one_answers() {
    const ENTRIES: u64 = 20_000;
    let lab = Lab::with_rate(ENTRIES).await;
    lab.fill(ENTRIES, 1, 9_000, 20);
    lab.set_left(0);
    // Compiled, and counted once.
    assert_eq!(lab.take_at(9_999, 1).await, Some(1));
    lab.server.cli(&["CONFIG", "RESETSTAT"]);
    assert_eq!(lab.take_at(11_000, 20_000).await, None);
    let scripts = lab.calls("evalsha");
    assert!((35..=80).contains(&scripts), "{scripts}");
    let each = lab.stat("evalsha", "usec").unwrap() / scripts;
    say(&format!("{ENTRIES} expired entries: {scripts} scripts of {each} us"));
    assert_eq!(lab.entries(), 1);
}

/// A denial that has read everything leaves it so that the next has nothing to read.
#[tokio::test]
async fn a_denial_does_not_read_all_entries_each_time() {
    for entries in [900, 5_000] {
        for (what, value) in [("a number above the rate", Some("99999999")), ("no number", None)] {
            let lab = Lab::with_slow_rate(entries).await;
            lab.fill(entries, 1, 9_500, 10);
            lab.server.cli(&["DEL", "{orders}:value"]);
            if let Some(value) = value {
                lab.server.cli(&["SET", "{orders}:value", value]);
            }
            assert!(lab.limiter.expire(Duration::from_secs(60)).await.unwrap());
            denied_in_one_read(&lab, what).await;
            assert_ne!(
                lab.server.cli(&["PTTL", "{orders}:value"]),
                "-1",
                "{what}: it ends with the rest"
            );
        }
        // Lowered by Java while something had expired.
        let lab = Lab::with_slow_rate(entries).await;
        lab.fill(entries, 2, 8_990, 10);
        lab.set_left(0);
        denied_in_one_read(&lab, "twice the rate").await;
    }
}

async fn denied_in_one_read(lab: &Lab, what: &str) {
    let rate = lab.limiter.config().await.unwrap().unwrap().permits();
    let all = u32::try_from(rate).unwrap();
    assert!(lab.take_at(609_000, all).await.is_some(), "{what}");
    let (reads, changes) = (lab.calls("zrange"), lab.changes());
    for _ in 0..10 {
        assert!(lab.take_at(609_000, all).await.is_some(), "{what}");
    }
    // One for the wait: it is told from the oldest entries, and no more than 1,000.
    assert_eq!((lab.calls("zrange") - reads, lab.changes() - changes), (10, 0), "{what} of {rate}");
    assert_eq!(u64::try_from(lab.sum()), Ok(rate), "{what}");
}

/// What Java gives back stays in the set. Of many entries, too, it comes back once.
#[tokio::test]
async fn what_java_gives_back_of_many_entries_comes_back_once() {
    for (entries, permits) in [(2_000, 5), (10_000, 1)] {
        let lab = Lab::with_rate(10_000).await;
        lab.fill(entries, permits, 9_000, entries / 1_000);
        lab.set_left(4_000);
        assert_eq!(lab.take_at(9_999, 4_000).await, None);
        assert!(lab.take_at(9_999, 1).await.is_some());
        // The oldest 4,000 had come back already, and the entries go on from 9,400 on.
        assert_eq!(lab.take_at(10_399, 1).await, Some(1));
        assert_eq!(lab.take_at(10_400, 10).await, None);
        assert!(lab.take_at(10_400, 1).await.is_some());
        assert_eq!(lab.sum(), 10_000);
    }
}

#[tokio::test]
async fn entries_that_were_lost_of_many_count_as_taken_now() {
    let lab = Lab::with_rate(10_000).await;
    lab.fill(2_000, 3, 9_500, 4);
    lab.set_left(1_000);
    assert_eq!(lab.take_at(10_000, 1_001).await, Some(500));
    assert_eq!(lab.sum(), 10_000);
    assert_eq!(
        lab.take_at(10_999, 7_001).await,
        Some(1),
        "3,000 were lost, and count from 10,000 on"
    );
    assert_eq!(lab.take_at(11_000, 10_000).await, None);
}

/// Java goes on while Rust counts. Nothing of that may be lost or be counted twice.
#[tokio::test]
async fn what_java_does_while_many_are_counted_changes_nothing() {
    let lab = Lab::with_rate(10_000).await;
    let keys = |text: &mut String, ms: u64| {
        // One expires and comes back, another is taken, a little late.
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
    lab.fill(3_000, 3, 9_000, 3);
    lab.set_left(1_000);
    let mut parts = 0;
    for ms in 9_999..10_400 {
        let mut java = String::new();
        keys(&mut java, ms);
        lab.server.cli(&["EVAL", &java, "0"]);
        lab.at_ms(ms);
        // One part of what is to be counted, by a program that then leaves.
        let words = ["0", "look", "an id"];
        parts +=
            u32::from(lab.part(include_str!("../../lua/redisson/take.lua"), ms, &words) == "4");
        assert_eq!(lab.sum(), 10_000, "at {ms}");
    }
    assert!(parts >= 3, "{parts}");
}

/// Java takes back more in the meantime than a call counts. Then a call counts more.
#[tokio::test]
async fn whoever_is_overtaken_counts_more_at_a_time() {
    const RATE: i64 = 20_000;
    let lab = Lab::with_slow_rate(20_000).await;
    lab.fill(20_000, 1, 9_000, 20);
    // It is not known, so that all have to be counted.
    let mut ms = 608_999;
    for nth in 0.. {
        let words = ["0", "look", "an id"];
        let answer = lab.part(include_str!("../../lua/redisson/take.lua"), ms, &words);
        if answer != "4" {
            assert_eq!(answer.lines().next(), Some("1"));
            break;
        }
        assert!(nth < 20, "no end");
        ms += 75;
        let end = (ms - 600_000).to_string();
        lab.server.cli(&["ZREMRANGEBYSCORE", "{orders}:permits", "0", &end]);
        lab.server.cli(&["INCRBY", "{orders}:value", "1500"]);
        lab.fill(1_500, 1, ms, 1_500);
        lab.server.cli(&["DECRBY", "{orders}:value", "1500"]);
    }
    assert_eq!(lab.sum(), RATE);
}

/// What Java gives back all the time does not keep Rust from an answer, and comes back once.
#[tokio::test]
async fn java_gives_back_between_every_two_parts() {
    const RATE: i64 = 5_000;
    for each in [1, 7, 200] {
        let lab = Lab::with_slow_rate(5_000).await;
        lab.fill(5_000, 1, 9_000, 5);
        lab.set_left(0);
        let words = ["0", "look", "an id"];
        let mut given = 0;
        let answer = (0..60).find_map(|_| {
            let answer = lab.part(include_str!("../../lua/redisson/take.lua"), 10_000, &words);
            if answer != "4" {
                return Some(answer);
            }
            lab.server.cli(&["INCRBY", "{orders}:value", &each.to_string()]);
            given += each;
            None
        });
        let answer = answer.expect("no end");
        assert_eq!(answer.lines().take(2).collect::<Vec<_>>(), ["1", &given.to_string()]);
        assert_eq!(lab.sum(), RATE, "{each} at a time");
    }
}

/// Nobody knows what is left, and that is not forgotten when counting begins anew, takes long, or is no longer needed.
#[tokio::test]
async fn a_number_that_is_not_known_is_not_taken_for_lost_entries() {
    for (back, entries) in [(0, 3_000), (700, 2_300), (2_500, 500), (3_000, 0)] {
        let lab = Lab::with_slow_rate(5_000).await;
        lab.fill(3_000, 1, 9_000, 5);
        let take = include_str!("../../lua/redisson/take.lua");
        assert_eq!(lab.part(take, 10_000, &["1", "take", "an id"]), "4");
        assert_eq!(lab.server.cli(&["PTTL", "{orders}:permits:count"]), "-1");
        // Java takes back what has expired by its own clock, some of it not counted yet.
        if back > 0 {
            let last = (back - 1).to_string();
            lab.server.cli(&["ZREMRANGEBYRANK", "{orders}:permits", "0", &last]);
            lab.server.cli(&["INCRBY", "{orders}:value", &back.to_string()]);
        }
        let part = |_| Some(lab.part(take, 10_000, &["1", "take", "an id"])).filter(|it| it != "4");
        let answer = (0..20).find_map(part).expect("no end");
        let left = (4_999 - entries).to_string();
        assert_eq!(answer.lines().take(2).collect::<Vec<_>>(), ["1", &left], "{back}");
        assert_eq!((lab.entries(), lab.sum()), (entries + 1, 5_000), "{back}");
        assert_ne!(lab.server.cli(&["PTTL", "{orders}:permits:count"]), "-1", "{back}");
    }
}

/// A short timeout bounds all parts together, and the next goes on where it ended.
#[tokio::test]
async fn who_has_no_time_to_count_all_goes_on_next_time() {
    let server = Server::start();
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
    let (begun, mut ended) = (Instant::now(), 0);
    let taken = loop {
        match limiter.try_acquire_for(1, Duration::ZERO).await {
            Ok(taken) => break taken,
            Err(error) => ended += u32::from(error.to_string().contains("too many entries")),
        }
        assert!(begun.elapsed() < 3 * PATIENCE, "no end");
    };
    assert!(taken.allowed() && ended > 0, "{taken:?} after {ended}");
}
