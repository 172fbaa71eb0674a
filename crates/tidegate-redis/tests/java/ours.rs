//! What a limiter of ours promises, with nobody else on it.

use std::time::Duration;

use tidegate::{Micros, Outcome};
use tidegate_redis::redisson::{Error, Mode, Rate, RateLimiter};

use crate::lab::{Lab, NAME, SECOND, client, overall};
use crate::theirs::Theirs;

/// The article's worked example: 100 permits per second. Its third answer is 803, which is 3 ms of slack and the
/// 800 ms until the oldest entry goes. That gives 5 back and 35 are missing: ours says 900, when both have gone.
#[tokio::test]
async fn the_four_requests_of_the_article_leave_50() {
    const TABLE: [(u64, u32, [Option<u64>; 2], u64); 4] = [
        // ms, permits, its answer and ours, left
        (10_000, 5, [None, None], 95),
        (10_100, 30, [None, None], 65),
        (10_200, 100, [Some(803), Some(900)], 65),
        (11_200, 50, [None, None], 50),
    ];
    let lab = Lab::with_rate(100).await;
    for (ms, permits, [_, answer], left) in TABLE {
        assert_eq!(lab.take_at(ms, permits).await, answer, "{permits} at {ms}");
        assert_eq!(lab.left().await, left, "{permits} at {ms}");
    }
    for mut theirs in Theirs::all(&lab.server) {
        theirs.begin(100);
        for (ms, permits, [answer, _], left) in TABLE {
            let said = theirs.take_at(ms, permits).unwrap().map(i64::unsigned_abs);
            assert_eq!(said, answer, "{permits} at {ms}");
            assert_eq!(theirs.available_at(ms), i64::try_from(left).unwrap());
        }
    }
}

#[tokio::test]
async fn what_lies_in_redis_is_what_redisson_writes() {
    let lab = Lab::with_rate(100).await;
    assert_eq!(lab.take_at(10_000, 7).await, None);
    let cli = |words: &[&str]| lab.server.cli(words);
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
    let lab = Lab::with_rate(100).await;
    let old = "redis.call('ZADD', '{orders}:permits', 9900, struct.pack('Lc0I', 16, ('x'):rep(16), 60)) \
               return redis.call('SET', '{orders}:value', 40)";
    lab.server.cli(&["EVAL", old, "0"]);
    assert_eq!(lab.take_at(10_000, 50).await, Some(900));
    assert_eq!(lab.take_at(10_000, 40).await, None);
    assert_eq!(lab.take_at(10_900, 60).await, None);
    assert_eq!(lab.left().await, 0);
    // Given back in part, it becomes one of today's.
    lab.server.cli(&["DEL", "{orders}:permits"]);
    lab.server.cli(&["EVAL", old, "0"]);
    lab.at_ms(10_500);
    assert_eq!(lab.limiter.release(20).await.unwrap(), 20);
    assert_eq!(lab.left().await, 60);
    assert_eq!(lab.take_at(10_500, 61).await, Some(400));
}

#[tokio::test]
async fn a_permit_counts_for_the_whole_interval_and_no_longer() {
    let lab = Lab::with_rate(1).await;
    // Taken within a millisecond, it is written as the next.
    lab.clock.set(Micros::new(10_000_300));
    assert!(lab.limiter.try_acquire(1).await.unwrap().allowed());
    for (us, outcome) in [
        (10_000_300, Outcome::RetryAfter(Micros::new(1_000_700))),
        (11_000_300, Outcome::RetryAfter(Micros::new(700))),
        (11_000_999, Outcome::RetryAfter(Micros::new(1))),
        (11_001_000, Outcome::Allow),
    ] {
        lab.clock.set(Micros::new(us));
        let taken = lab.limiter.try_acquire(1).await.unwrap();
        assert_eq!(taken.outcome(), outcome, "at {us}");
    }
}

#[tokio::test]
async fn without_a_rate_there_is_no_limiter() {
    let lab = Lab::new();
    let limiter = &lab.limiter;
    let says = |error: Error| {
        assert!(matches!(error, Error::NotInitialized), "{error:?}");
        assert!(error.to_string().starts_with(Error::NOT_INITIALIZED), "{error}");
    };
    says(limiter.try_acquire(1).await.unwrap_err());
    says(limiter.try_acquire_for(1, SECOND).await.unwrap_err());
    says(limiter.acquire(1).await.unwrap_err());
    says(limiter.release(1).await.unwrap_err());
    says(limiter.available_permits().await.unwrap_err());
    assert_eq!(limiter.config().await.unwrap(), None);
    assert!(!limiter.update_rate(overall(5)).await.unwrap());
    assert!(!limiter.expire(SECOND).await.unwrap());
    assert!(!limiter.delete().await.unwrap());
    assert_eq!(lab.server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn more_than_the_rate_is_an_error_and_none_takes_nothing() {
    let lab = Lab::with_rate(5).await;
    for permits in [6, u32::MAX] {
        let error = lab.limiter.try_acquire(permits).await.unwrap_err();
        assert!(matches!(error, Error::AboveRate { rate: 5, .. }), "{error:?}");
        assert!(error.to_string().starts_with(Error::ABOVE_RATE), "{error}");
    }
    assert!(lab.limiter.acquire(6).await.is_err());
    let before = lab.changes();
    assert!(lab.limiter.try_acquire(0).await.unwrap().allowed());
    assert_eq!(lab.limiter.release(0).await.unwrap(), 0);
    assert_eq!(lab.left().await, 5);
    assert_eq!(lab.changes(), before);
}

#[tokio::test]
async fn a_denial_and_a_look_write_nothing() {
    let lab = Lab::with_rate(3).await;
    assert_eq!(lab.take_at(10_000, 2).await, None);
    let before = lab.changes();
    for _ in 0..10 {
        assert_eq!(lab.take_at(10_100, 2).await, Some(900));
        assert_eq!(lab.left().await, 1);
    }
    assert_eq!(lab.changes(), before);
}

#[tokio::test]
async fn a_rate_is_set_once_or_anew_or_kept() {
    let lab = Lab::with_rate(10).await;
    assert!(!lab.limiter.try_set_rate(overall(99)).await.unwrap());
    assert_eq!(lab.limiter.config().await.unwrap(), Some(overall(10)));
    assert_eq!(lab.take_at(10_000, 8).await, None);
    assert!(lab.limiter.update_rate(overall(20)).await.unwrap());
    assert_eq!(lab.left().await, 12);
    lab.limiter.set_rate(overall(9)).await.unwrap();
    assert_eq!(lab.left().await, 9);
    assert_eq!(lab.take_at(10_000, 9).await, None);
    // Another mode has another state.
    let own = Rate::new(Mode::PerClient, 4, SECOND).unwrap();
    assert!(lab.limiter.update_rate(own).await.unwrap());
    assert_eq!(lab.limiter.config().await.unwrap(), Some(own));
    assert_eq!(lab.left().await, 4);
    assert_eq!(lab.server.cli(&["DBSIZE"]), "1");
}

#[tokio::test]
async fn each_client_has_permits_of_its_own() {
    let lab = Lab::new();
    let [one, other] = [client(&lab.server.url()), client(&lab.server.url())];
    let limiters = [&one, &one, &other].map(|client| RateLimiter::new(client, NAME));
    let rate = Rate::new(Mode::PerClient, 5, Duration::from_secs(3_600)).unwrap();
    assert!(limiters[0].try_set_rate(rate).await.unwrap());
    assert!(limiters[0].try_acquire(4).await.unwrap().allowed());
    assert!(!limiters[1].try_acquire(4).await.unwrap().allowed(), "the same client");
    assert!(limiters[2].try_acquire(5).await.unwrap().allowed(), "another client");
    let own = lab.server.cli(&["EXISTS", &format!("{{orders}}:value:{}", one.id())]);
    assert_eq!(own, "1");
    assert!(limiters[0].delete().await.unwrap());
    assert!(matches!(limiters[0].try_acquire(1).await, Err(Error::NotInitialized)));
}

#[tokio::test]
async fn everything_lives_as_long_as_the_configuration() {
    let lab = Lab::new();
    let ttl = |key: &str| lab.server.cli(&["PTTL", key]).parse::<i64>().unwrap();
    let all = || [NAME, "{orders}:value", "{orders}:permits"].map(ttl);
    let minute = Duration::from_secs(60);
    let kept = overall(5).keep_alive(minute).unwrap();
    assert!(lab.limiter.try_set_rate(kept).await.unwrap());
    assert_eq!(lab.limiter.config().await.unwrap(), Some(kept));
    assert!((50_000..=60_000).contains(&ttl(NAME)));
    assert_eq!(lab.take_at(10_000, 5).await, None);
    assert!(all().iter().all(|ttl| (50_000..=60_000).contains(ttl)), "{:?}", all());
    // Whoever is turned away uses it, too.
    lab.server.cli(&["PEXPIRE", NAME, "30000"]);
    assert_eq!(lab.take_at(10_001, 5).await, Some(999));
    assert!(ttl(NAME) > 50_000);
    // Without such a time it stays, and its end can be set for all.
    lab.limiter.set_rate(overall(5)).await.unwrap();
    assert_eq!(ttl(NAME), -1);
    assert_eq!(lab.take_at(10_002, 1).await, None);
    assert!(lab.limiter.expire(minute).await.unwrap());
    assert!(all().iter().all(|ttl| (50_000..=60_000).contains(ttl)), "{:?}", all());
    assert_eq!(lab.take_at(10_003, 1).await, None);
    assert!(all().iter().all(|ttl| (50_000..=60_000).contains(ttl)), "{:?}", all());
    assert!(lab.limiter.delete().await.unwrap());
    assert_eq!(lab.server.cli(&["DBSIZE"]), "0");
}

/// Somebody else's bytes are an error and stay as they are.
#[tokio::test]
async fn what_is_not_a_limiter_is_refused_untouched() {
    let spoil: [(&str, &[&str]); 8] = [
        ("the rate", &["HSET", NAME, "rate", "many"]),
        ("the rate", &["HSET", NAME, "rate", "99999999999999999999"]),
        ("the interval", &["HSET", NAME, "interval", "1e3"]),
        ("what is left", &["SET", "{orders}:value", "nan"]),
        ("WRONGTYPE", &["LPUSH", "{orders}:value", "1"]),
        ("WRONGTYPE", &["SET", "{orders}:permits", "1"]),
        ("shape", &["ZADD", "{orders}:permits", "1", "x"]),
        ("shape", &["ZADD", "{orders}:permits", "1", "0123456789abcdef"]),
    ];
    for (what, words) in spoil {
        let lab = Lab::with_rate(5).await;
        lab.server.cli(words);
        let before = lab.changes();
        let error = lab.limiter.try_acquire(1).await.unwrap_err();
        let Error::Engine(engine) = &error else { panic!("{words:?}: {error:?}") };
        assert!(engine.is_answer() && error.to_string().contains(what), "{words:?}: {error}");
        assert!(lab.limiter.release(1).await.is_err(), "{words:?}");
        assert!(lab.limiter.available_permits().await.is_err(), "{words:?}");
        assert_eq!(lab.changes(), before, "{words:?}");
    }
    // What Java lets anybody set, though nobody can take anything of it.
    for rate in ["0", "-5"] {
        let lab = Lab::with_rate(5).await;
        lab.server.cli(&["HSET", NAME, "rate", rate]);
        let error = lab.limiter.try_acquire(1).await.unwrap_err();
        assert!(matches!(error, Error::AboveRate { rate: 0, .. }), "{error:?}");
    }
}
