//! Foreign bytes stay unchanged, no operation is half done, and all keys expire together.

use std::time::Duration;

use tidegate_redis::redisson::{Mode, Rate, RateLimiter};

use crate::fixture::{Fixture, NAME, client, overall};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn with_an_unreadable_entry_a_release_changes_nothing() {
    for entries in [5, 1_500] {
        let fixture = Fixture::with_rate(entries).await;
        let fill = format!(
            "for i = 1, {entries} do redis.call('ZADD', '{{orders}}:permits', 9500 + i, \
             struct.pack('Bc0I', 6, string.format('%06d', i), 1)) end \
             redis.call('ZADD', '{{orders}}:permits', 9503.5, 'unreadable') \
             return redis.call('SET', '{{orders}}:value', 0)"
        );
        fixture.server.cli(&["EVAL", &fill, "0"]);
        fixture.at_ms(10_000);
        let error = fixture.limiter.release(10).await.unwrap_err().to_string();
        assert!(error.contains("format"), "{error}");
        let count = fixture.server.cli(&["ZCARD", "{orders}:permits"]);
        assert_eq!(count, (entries + 1).to_string());
        assert_eq!(fixture.server.cli(&["GET", "{orders}:value"]), "0");
    }
}

#[tokio::test]
async fn an_unreadable_configuration_is_not_written_to() {
    let spoil: [(&str, &[&str]); 4] = [
        ("keepAliveTime", &["HSET", NAME, "keepAliveTime", "soon"]),
        ("keepAliveTime", &["HSET", NAME, "keepAliveTime", "1.5"]),
        ("type", &["HSET", NAME, "type", "both"]),
        ("rate", &["HSET", NAME, "rate", "many"]),
    ];
    for (field, words) in spoil {
        let fixture = Fixture::with_rate(5).await;
        assert_eq!(fixture.take_at(10_000, 2).await, None);
        fixture.server.cli(words);
        let before = fixture.changes();
        assert!(fixture.limiter.try_acquire(1).await.is_err(), "{words:?}");
        if field == "keepAliveTime" {
            let error = fixture.limiter.set_rate(overall(7)).await.unwrap_err().to_string();
            assert!(error.contains("keep-alive time is not an integer"), "{error}");
            let own = Rate::new(Mode::PerClient, 7, MINUTE).unwrap();
            assert!(fixture.limiter.update_rate(own).await.is_err());
        }
        if field != "type" {
            assert!(fixture.limiter.update_rate(overall(7)).await.is_err(), "{words:?}");
        }
        fixture.server.cli(&["CONFIG", "RESETSTAT"]);
        assert_eq!(fixture.changes(), before, "{words:?}");
        // Fields that are missing are not added to a hash that is not a limiter's.
        fixture.server.cli(&["HDEL", NAME, "interval"]);
        let before = fixture.changes();
        assert!(fixture.limiter.try_set_rate(overall(7)).await.is_err(), "{words:?}");
        assert_eq!(fixture.changes(), before, "{words:?}");
    }
}

#[tokio::test]
async fn without_a_keep_alive_time_no_key_expires() {
    let fixture = Fixture::new();
    let clients = [client(&fixture.server.url()), client(&fixture.server.url())];
    for mode in [Mode::Overall, Mode::PerClient] {
        let hour = Rate::new(mode, 5, Duration::from_secs(3_600)).unwrap();
        let limiters = clients.each_ref().map(|client| RateLimiter::new(client, NAME));
        limiters[0].set_rate(hour.keep_alive(2 * hour.interval()).unwrap()).await.unwrap();
        for limiter in &limiters {
            assert!(limiter.try_acquire(1).await.unwrap().allowed());
        }
        let expiring = || {
            let keys = fixture.server.cli(&["KEYS", "*"]);
            let ttl = |key: &str| fixture.server.cli(&["PTTL", key]) != "-1";
            keys.lines().filter(|key| ttl(key)).count()
        };
        assert!(expiring() >= 3, "{mode:?}");
        assert!(limiters[0].update_rate(hour).await.unwrap());
        // Keys of another client lose their expiry by its next use.
        assert!(limiters[1].try_acquire(1).await.unwrap().allowed());
        assert_eq!(expiring(), 0, "{mode:?}");
        assert_eq!(limiters[0].config().await.unwrap(), Some(hour));
        fixture.server.cli(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_denial_keeps_an_expiry_that_was_set() {
    let fixture = Fixture::with_rate(5).await;
    assert_eq!(fixture.take_at(10_000, 5).await, None);
    assert!(fixture.limiter.expire(MINUTE).await.unwrap());
    let before = fixture.changes();
    for _ in 0..5 {
        assert_eq!(fixture.take_at(10_500, 1).await, Some(500));
    }
    assert_eq!(fixture.changes(), before);
}

#[tokio::test]
async fn reading_a_limiter_that_was_never_used_writes_nothing() {
    let mut fixture = Fixture::with_rate(5).await;
    fixture.reconnect();
    let before = fixture.changes();
    assert_eq!((fixture.left().await, fixture.changes()), (5, before));
    assert_eq!(fixture.server.cli(&["KEYS", "*"]), NAME);
}

/// The progress of a count over many entries belongs to the limiter.
#[tokio::test]
async fn the_stored_count_expires_with_the_other_keys() {
    const COUNT: &str = "{orders}:permits:count";
    let fixture = Fixture::with_rate(5_000).await;
    // Only a part is counted, so that the count has no expiry.
    let begin = || {
        fixture.fill(3_000, 1, 9_500, 10);
        let take = include_str!("../../lua/redisson/take.lua");
        assert_eq!(fixture.run_part(take, 10_000, &["1", "take", "an id"]), "4");
        assert_eq!(fixture.server.cli(&["PTTL", COUNT]), "-1");
    };
    begin();
    assert!(fixture.limiter.expire(MINUTE).await.unwrap());
    let end: i64 = fixture.server.cli(&["PTTL", COUNT]).parse().unwrap();
    assert!((1..=60_000).contains(&end), "{end}");
    fixture.limiter.set_rate(overall(5_000)).await.unwrap();
    assert_eq!(fixture.server.cli(&["EXISTS", COUNT]), "0");
    fixture.server.cli(&["PERSIST", NAME]);
    begin();
    assert!(fixture.limiter.delete().await.unwrap());
    assert_eq!(fixture.server.cli(&["KEYS", "*"]), "");
}
