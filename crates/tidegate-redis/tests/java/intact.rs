//! What is not Redisson's stays as it is, and nothing is half done; and everything ends together.

use std::time::Duration;

use tidegate_redis::redisson::{Mode, Rate, RateLimiter};

use crate::lab::{Lab, NAME, client, overall};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_entry_that_nobody_can_read_leaves_no_half_of_a_release() {
    for entries in [5, 1_500] {
        let lab = Lab::with_rate(entries).await;
        let fill = format!(
            "for i = 1, {entries} do redis.call('ZADD', '{{orders}}:permits', 9500 + i, \
             struct.pack('Bc0I', 6, string.format('%06d', i), 1)) end \
             redis.call('ZADD', '{{orders}}:permits', 9503.5, 'what is this') \
             return redis.call('SET', '{{orders}}:value', 0)"
        );
        lab.server.cli(&["EVAL", &fill, "0"]);
        lab.at_ms(10_000);
        let error = lab.limiter.release(10).await.unwrap_err().to_string();
        assert!(error.contains("shape"), "{error}");
        let count = lab.server.cli(&["ZCARD", "{orders}:permits"]);
        assert_eq!(count, (entries + 1).to_string());
        assert_eq!(lab.server.cli(&["GET", "{orders}:value"]), "0");
    }
}

#[tokio::test]
async fn a_configuration_that_nobody_can_read_is_not_written_to() {
    let spoil: [(&str, &[&str]); 4] = [
        ("keepAliveTime", &["HSET", NAME, "keepAliveTime", "soon"]),
        ("keepAliveTime", &["HSET", NAME, "keepAliveTime", "1.5"]),
        ("type", &["HSET", NAME, "type", "both"]),
        ("rate", &["HSET", NAME, "rate", "many"]),
    ];
    for (field, words) in spoil {
        let lab = Lab::with_rate(5).await;
        assert_eq!(lab.take_at(10_000, 2).await, None);
        lab.server.cli(words);
        let before = lab.changes();
        assert!(lab.limiter.try_acquire(1).await.is_err(), "{words:?}");
        if field == "keepAliveTime" {
            let error = lab.limiter.set_rate(overall(7)).await.unwrap_err().to_string();
            assert!(error.contains("keep-alive time is no whole number"), "{error}");
            let own = Rate::new(Mode::PerClient, 7, MINUTE).unwrap();
            assert!(lab.limiter.update_rate(own).await.is_err());
        }
        if field != "type" {
            assert!(lab.limiter.update_rate(overall(7)).await.is_err(), "{words:?}");
        }
        lab.server.cli(&["CONFIG", "RESETSTAT"]);
        assert_eq!(lab.changes(), before, "{words:?}");
        // Nor is what is missing added to what is not a limiter's.
        lab.server.cli(&["HDEL", NAME, "interval"]);
        let before = lab.changes();
        assert!(lab.limiter.try_set_rate(overall(7)).await.is_err(), "{words:?}");
        assert_eq!(lab.changes(), before, "{words:?}");
    }
}

#[tokio::test]
async fn without_the_keep_alive_time_nothing_has_an_end() {
    let lab = Lab::new();
    let clients = [client(&lab.server.url()), client(&lab.server.url())];
    for mode in [Mode::Overall, Mode::PerClient] {
        let hour = Rate::new(mode, 5, Duration::from_secs(3_600)).unwrap();
        let limiters = clients.each_ref().map(|client| RateLimiter::new(client, NAME));
        limiters[0].set_rate(hour.keep_alive(2 * hour.interval()).unwrap()).await.unwrap();
        for limiter in &limiters {
            assert!(limiter.try_acquire(1).await.unwrap().allowed());
        }
        let ends = || {
            let keys = lab.server.cli(&["KEYS", "*"]);
            let ttl = |key: &str| lab.server.cli(&["PTTL", key]) != "-1";
            keys.lines().filter(|key| ttl(key)).count()
        };
        assert!(ends() >= 3, "{mode:?}");
        assert!(limiters[0].update_rate(hour).await.unwrap());
        // Keys of another client, by its next use.
        assert!(limiters[1].try_acquire(1).await.unwrap().allowed());
        assert_eq!(ends(), 0, "{mode:?}");
        assert_eq!(limiters[0].config().await.unwrap(), Some(hour));
        lab.server.cli(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_denial_leaves_an_end_that_was_set_as_it_is() {
    let lab = Lab::with_rate(5).await;
    assert_eq!(lab.take_at(10_000, 5).await, None);
    assert!(lab.limiter.expire(MINUTE).await.unwrap());
    let before = lab.changes();
    for _ in 0..5 {
        assert_eq!(lab.take_at(10_500, 1).await, Some(500));
    }
    assert_eq!(lab.changes(), before);
}

#[tokio::test]
async fn a_look_at_a_limiter_that_nobody_has_used_writes_nothing() {
    let mut lab = Lab::with_rate(5).await;
    lab.forget();
    let before = lab.changes();
    assert_eq!((lab.left().await, lab.changes()), (5, before));
    assert_eq!(lab.server.cli(&["KEYS", "*"]), NAME);
}

/// How far many entries are counted belongs to the limiter.
#[tokio::test]
async fn what_is_counted_goes_with_the_rest() {
    const COUNT: &str = "{orders}:permits:count";
    let lab = Lab::with_rate(5_000).await;
    // All but one part of it has yet to be counted, so that it has no end of its own.
    let begin = || {
        lab.fill(3_000, 1, 9_500, 10);
        let take = include_str!("../../lua/redisson/take.lua");
        assert_eq!(lab.part(take, 10_000, &["1", "take", "an id"]), "4");
        assert_eq!(lab.server.cli(&["PTTL", COUNT]), "-1");
    };
    begin();
    assert!(lab.limiter.expire(MINUTE).await.unwrap());
    let end: i64 = lab.server.cli(&["PTTL", COUNT]).parse().unwrap();
    assert!((1..=60_000).contains(&end), "{end}");
    lab.limiter.set_rate(overall(5_000)).await.unwrap();
    assert_eq!(lab.server.cli(&["EXISTS", COUNT]), "0");
    lab.server.cli(&["PERSIST", NAME]);
    begin();
    assert!(lab.limiter.delete().await.unwrap());
    assert_eq!(lab.server.cli(&["KEYS", "*"]), "");
}
