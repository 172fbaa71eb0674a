//! Guarantees of the Redisson-compatible limiter, without other programs on its keys.

use std::time::Duration;

use tidegate::{Micros, Outcome};
use tidegate_redis::redisson::{Error, Mode, Rate, RateLimiter};

use crate::fixture::{Fixture, NAME, SECOND, client, overall};
use crate::redisson_scripts::RedissonScripts;

/// The article's worked example: 100 permits per second. Its third result is 803: 3 ms of slack
/// and the 800 ms until the oldest entry expires. That frees 5 permits and 35 are missing, so
/// Tidegate returns 900, when both entries have expired.
#[tokio::test]
async fn the_four_requests_of_the_article_leave_50() {
    const TABLE: [(u64, u32, [Option<u64>; 2], u64); 4] = [
        // ms, permits, results of Redisson and Tidegate, left
        (10_000, 5, [None, None], 95),
        (10_100, 30, [None, None], 65),
        (10_200, 100, [Some(803), Some(900)], 65),
        (11_200, 50, [None, None], 50),
    ];
    let fixture = Fixture::with_rate(100).await;
    for (ms, permits, [_, expected], left) in TABLE {
        assert_eq!(fixture.take_at(ms, permits).await, expected, "{permits} at {ms}");
        assert_eq!(fixture.left().await, left, "{permits} at {ms}");
    }
    for mut redisson in RedissonScripts::all(&fixture.server) {
        redisson.begin(100);
        for (ms, permits, [expected, _], left) in TABLE {
            let wait = redisson.take_at(ms, permits).unwrap().map(i64::unsigned_abs);
            assert_eq!(wait, expected, "{permits} at {ms}");
            assert_eq!(redisson.available_at(ms), i64::try_from(left).unwrap());
        }
    }
}

#[tokio::test]
async fn the_stored_format_is_that_of_redisson() {
    let fixture = Fixture::with_rate(100).await;
    assert_eq!(fixture.take_at(10_000, 7).await, None);
    let cli = |words: &[&str]| fixture.server.cli(words);
    let fields = cli(&["HMGET", NAME, "rate", "interval", "type", "keepAliveTime"]);
    assert_eq!(fields, "100\n1000\n0\n0");
    assert_eq!(cli(&["HLEN", NAME]), "4");
    assert_eq!(cli(&["GET", "{orders}:value"]), "93");
    let bytes = |text: &str| cli(&["EVAL", text, "0"]);
    let entry = bytes(
        "local m = redis.call('ZRANGE', '{orders}:permits', 0, -1, 'WITHSCORES') \
         return { #m, #m[1], m[1]:byte(1), struct.unpack('<I', m[1], 18), m[2] }",
    );
    assert_eq!(entry, "2\n21\n16\n7\n10000", "entries, bytes, length of the id, permits, score");
    assert_eq!(cli(&["DBSIZE"]), "3");
    for key in [NAME, "{orders}:value", "{orders}:permits"] {
        assert_eq!(cli(&["PTTL", key]), "-1", "{key}");
    }
}

#[tokio::test]
async fn entries_of_older_versions_are_read() {
    let fixture = Fixture::with_rate(100).await;
    let old = "redis.call('ZADD', '{orders}:permits', 9900, struct.pack('Lc0I', 16, ('x'):rep(16), 60)) \
               return redis.call('SET', '{orders}:value', 40)";
    fixture.server.cli(&["EVAL", old, "0"]);
    assert_eq!(fixture.take_at(10_000, 50).await, Some(900));
    assert_eq!(fixture.take_at(10_000, 40).await, None);
    assert_eq!(fixture.take_at(10_900, 60).await, None);
    assert_eq!(fixture.left().await, 0);
    // A partial release rewrites the entry in the current format.
    fixture.server.cli(&["DEL", "{orders}:permits"]);
    fixture.server.cli(&["EVAL", old, "0"]);
    fixture.at_ms(10_500);
    assert_eq!(fixture.limiter.release(20).await.unwrap(), 20);
    assert_eq!(fixture.left().await, 60);
    assert_eq!(fixture.take_at(10_500, 61).await, Some(400));
}

#[tokio::test]
async fn a_permit_counts_for_the_whole_interval_and_no_longer() {
    let fixture = Fixture::with_rate(1).await;
    // Taken within a millisecond, it is stored with the next millisecond.
    fixture.clock.set(Micros::new(10_000_300));
    assert!(fixture.limiter.try_acquire(1).await.unwrap().allowed());
    for (us, outcome) in [
        (10_000_300, Outcome::RetryAfter(Micros::new(1_000_700))),
        (11_000_300, Outcome::RetryAfter(Micros::new(700))),
        (11_000_999, Outcome::RetryAfter(Micros::new(1))),
        (11_001_000, Outcome::Allow),
    ] {
        fixture.clock.set(Micros::new(us));
        let taken = fixture.limiter.try_acquire(1).await.unwrap();
        assert_eq!(taken.outcome(), outcome, "at {us}");
    }
}

#[tokio::test]
async fn without_a_rate_every_operation_reports_no_limiter() {
    let fixture = Fixture::new();
    let limiter = &fixture.limiter;
    let assert_not_initialized = |error: Error| {
        assert!(matches!(error, Error::NotInitialized), "{error:?}");
        assert!(error.to_string().starts_with(Error::NOT_INITIALIZED), "{error}");
    };
    assert_not_initialized(limiter.try_acquire(1).await.unwrap_err());
    assert_not_initialized(limiter.try_acquire_for(1, SECOND).await.unwrap_err());
    assert_not_initialized(limiter.acquire(1).await.unwrap_err());
    assert_not_initialized(limiter.release(1).await.unwrap_err());
    assert_not_initialized(limiter.available_permits().await.unwrap_err());
    assert_eq!(limiter.config().await.unwrap(), None);
    assert!(!limiter.update_rate(overall(5)).await.unwrap());
    assert!(!limiter.expire(SECOND).await.unwrap());
    assert!(!limiter.delete().await.unwrap());
    assert_eq!(fixture.server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn more_than_the_rate_is_an_error_and_zero_permits_take_nothing() {
    let fixture = Fixture::with_rate(5).await;
    for permits in [6, u32::MAX] {
        let error = fixture.limiter.try_acquire(permits).await.unwrap_err();
        assert!(matches!(error, Error::AboveRate { rate: 5, .. }), "{error:?}");
        assert!(error.to_string().starts_with(Error::ABOVE_RATE), "{error}");
    }
    assert!(fixture.limiter.acquire(6).await.is_err());
    let before = fixture.changes();
    assert!(fixture.limiter.try_acquire(0).await.unwrap().allowed());
    assert_eq!(fixture.limiter.release(0).await.unwrap(), 0);
    assert_eq!(fixture.left().await, 5);
    assert_eq!(fixture.changes(), before);
}

#[tokio::test]
async fn a_denial_and_a_read_write_nothing() {
    let fixture = Fixture::with_rate(3).await;
    assert_eq!(fixture.take_at(10_000, 2).await, None);
    let before = fixture.changes();
    for _ in 0..10 {
        assert_eq!(fixture.take_at(10_100, 2).await, Some(900));
        assert_eq!(fixture.left().await, 1);
    }
    assert_eq!(fixture.changes(), before);
}

#[tokio::test]
async fn a_rate_is_set_once_or_replaced_or_updated_with_its_state() {
    let fixture = Fixture::with_rate(10).await;
    assert!(!fixture.limiter.try_set_rate(overall(99)).await.unwrap());
    assert_eq!(fixture.limiter.config().await.unwrap(), Some(overall(10)));
    assert_eq!(fixture.take_at(10_000, 8).await, None);
    assert!(fixture.limiter.update_rate(overall(20)).await.unwrap());
    assert_eq!(fixture.left().await, 12);
    fixture.limiter.set_rate(overall(9)).await.unwrap();
    assert_eq!(fixture.left().await, 9);
    assert_eq!(fixture.take_at(10_000, 9).await, None);
    // The other mode has its own state.
    let own = Rate::new(Mode::PerClient, 4, SECOND).unwrap();
    assert!(fixture.limiter.update_rate(own).await.unwrap());
    assert_eq!(fixture.limiter.config().await.unwrap(), Some(own));
    assert_eq!(fixture.left().await, 4);
    assert_eq!(fixture.server.cli(&["DBSIZE"]), "1");
}

#[tokio::test]
async fn each_client_has_its_own_permits() {
    let fixture = Fixture::new();
    let [one, other] = [client(&fixture.server.url()), client(&fixture.server.url())];
    let limiters = [&one, &one, &other].map(|client| RateLimiter::new(client, NAME));
    let rate = Rate::new(Mode::PerClient, 5, Duration::from_secs(3_600)).unwrap();
    assert!(limiters[0].try_set_rate(rate).await.unwrap());
    assert!(limiters[0].try_acquire(4).await.unwrap().allowed());
    assert!(!limiters[1].try_acquire(4).await.unwrap().allowed(), "the same client");
    assert!(limiters[2].try_acquire(5).await.unwrap().allowed(), "another client");
    let own = fixture.server.cli(&["EXISTS", &format!("{{orders}}:value:{}", one.id())]);
    assert_eq!(own, "1");
    assert!(limiters[0].delete().await.unwrap());
    assert!(matches!(limiters[0].try_acquire(1).await, Err(Error::NotInitialized)));
}

#[tokio::test]
async fn all_keys_expire_with_the_configuration() {
    let fixture = Fixture::new();
    let ttl = |key: &str| fixture.server.cli(&["PTTL", key]).parse::<i64>().unwrap();
    let all = || [NAME, "{orders}:value", "{orders}:permits"].map(ttl);
    let minute = Duration::from_secs(60);
    let kept = overall(5).keep_alive(minute).unwrap();
    assert!(fixture.limiter.try_set_rate(kept).await.unwrap());
    assert_eq!(fixture.limiter.config().await.unwrap(), Some(kept));
    assert!((50_000..=60_000).contains(&ttl(NAME)));
    assert_eq!(fixture.take_at(10_000, 5).await, None);
    assert!(all().iter().all(|ttl| (50_000..=60_000).contains(ttl)), "{:?}", all());
    // A denial renews the keep-alive time, too.
    fixture.server.cli(&["PEXPIRE", NAME, "30000"]);
    assert_eq!(fixture.take_at(10_001, 5).await, Some(999));
    assert!(ttl(NAME) > 50_000);
    // Without a keep-alive time the keys stay, and `expire` sets the expiry of all of them.
    fixture.limiter.set_rate(overall(5)).await.unwrap();
    assert_eq!(ttl(NAME), -1);
    assert_eq!(fixture.take_at(10_002, 1).await, None);
    assert!(fixture.limiter.expire(minute).await.unwrap());
    assert!(all().iter().all(|ttl| (50_000..=60_000).contains(ttl)), "{:?}", all());
    assert_eq!(fixture.take_at(10_003, 1).await, None);
    assert!(all().iter().all(|ttl| (50_000..=60_000).contains(ttl)), "{:?}", all());
    assert!(fixture.limiter.delete().await.unwrap());
    assert_eq!(fixture.server.cli(&["DBSIZE"]), "0");
}

/// Foreign bytes cause an error and are not changed.
#[tokio::test]
async fn keys_that_hold_no_limiter_are_refused_unchanged() {
    let spoil: [(&str, &[&str]); 8] = [
        ("the rate", &["HSET", NAME, "rate", "many"]),
        ("the rate", &["HSET", NAME, "rate", "99999999999999999999"]),
        ("the interval", &["HSET", NAME, "interval", "1e3"]),
        ("the number of remaining permits", &["SET", "{orders}:value", "nan"]),
        ("WRONGTYPE", &["LPUSH", "{orders}:value", "1"]),
        ("WRONGTYPE", &["SET", "{orders}:permits", "1"]),
        ("format", &["ZADD", "{orders}:permits", "1", "x"]),
        ("format", &["ZADD", "{orders}:permits", "1", "0123456789abcdef"]),
    ];
    for (what, words) in spoil {
        let fixture = Fixture::with_rate(5).await;
        fixture.server.cli(words);
        let before = fixture.changes();
        let error = fixture.limiter.try_acquire(1).await.unwrap_err();
        let Error::Engine(engine) = &error else { panic!("{words:?}: {error:?}") };
        assert!(
            engine.is_store_healthy() && error.to_string().contains(what),
            "{words:?}: {error}"
        );
        assert!(fixture.limiter.release(1).await.is_err(), "{words:?}");
        assert!(fixture.limiter.available_permits().await.is_err(), "{words:?}");
        assert_eq!(fixture.changes(), before, "{words:?}");
    }
    // Java accepts these rates, though no permit can be taken.
    for rate in ["0", "-5"] {
        let fixture = Fixture::with_rate(5).await;
        fixture.server.cli(&["HSET", NAME, "rate", rate]);
        let error = fixture.limiter.try_acquire(1).await.unwrap_err();
        assert!(matches!(error, Error::AboveRate { rate: 0, .. }), "{error:?}");
    }
}
