//! Bugs of Redisson's own scripts, run as they are in its jar, and Tidegate's scripts at the same
//! instants.

use std::time::Duration;

use tidegate_redis::redisson::{Mode, Rate, RateLimiter};

use crate::fixture::{Fixture, NAME, client, overall};
use crate::redisson_scripts::RedissonScripts;

/// Redisson uses the clocks of its clients, and two machines' clocks differ.
#[tokio::test]
async fn a_client_clock_that_is_off_does_not_weaken_the_limit() {
    let fixture = Fixture::new();
    for mut redisson in RedissonScripts::all(&fixture.server) {
        redisson.begin(5);
        let taken = [10_000, 20_000, 10_000, 20_000, 30_000].map(|ms| redisson.take_at(ms, 5));
        let count = taken.iter().filter(|taken| **taken == Ok(None)).count();
        assert_eq!(count, 3, "{}: 15 at one instant by three clocks", redisson.version);
        redisson.begin(5);
    }
    fixture.server.cli(&["FLUSHALL"]);
    // Tidegate sends no time.
    let [one, other] = [client(&fixture.server.url()), client(&fixture.server.url())];
    let limiters = [&one, &other].map(|client| RateLimiter::new(client, NAME));
    let hour = Duration::from_secs(3_600);
    limiters[0].try_set_rate(Rate::new(Mode::Overall, 5, hour).unwrap()).await.unwrap();
    let mut taken = 0;
    for limiter in limiters.iter().cycle().take(10) {
        taken += u32::from(limiter.try_acquire(1).await.unwrap().allowed());
    }
    assert_eq!(taken, 5);
}

/// A Java clock that is 300 ms off shifts the expiry of entries by 300 ms, as seen from the other
/// side, and does nothing else.
#[tokio::test]
async fn a_java_clock_that_is_off_shifts_entries_by_as_much() {
    const OFF: u64 = 300;
    let fixture = Fixture::with_rate(5).await;
    for mut redisson in RedissonScripts::all(&fixture.server) {
        redisson.begin(5);
        // Ahead: its entry expires late for Rust, and Rust's entry early for Java.
        assert_eq!(redisson.take_at(10_000 + OFF, 5), Ok(None));
        assert_eq!(fixture.take_at(11_000, 1).await, Some(300));
        assert_eq!(fixture.take_at(11_300, 5).await, None);
        assert!(redisson.take_at(11_999 + OFF, 1).unwrap().is_some());
        assert_eq!(redisson.take_at(12_000 + OFF, 5), Ok(None));
        // Behind: the opposite.
        redisson.begin(5);
        assert_eq!(redisson.take_at(20_000 - OFF, 5), Ok(None));
        assert_eq!(fixture.take_at(20_699, 1).await, Some(1));
        assert_eq!(fixture.take_at(20_700, 5).await, None);
        assert!(redisson.take_at(21_999 - OFF, 1).unwrap().is_some());
        assert_eq!(redisson.take_at(22_000 - OFF, 5), Ok(None));
        // However far ahead the clock is, no wait exceeds an interval.
        redisson.begin(5);
        assert_eq!(redisson.take_at(30_000 + 3_600_000, 5), Ok(None));
        assert_eq!(fixture.take_at(30_000, 1).await, Some(1_001));
    }
}

#[tokio::test]
async fn the_wait_for_several_permits_ends_when_all_are_free() {
    let fixture = Fixture::with_rate(10).await;
    for mut redisson in RedissonScripts::all(&fixture.server) {
        redisson.begin(10);
        for (ms, permits) in [(10_000, 1), (10_400, 4), (10_500, 5)] {
            assert_eq!(redisson.take_at(ms, permits), Ok(None));
        }
        // Redisson waits for the oldest entry, which frees one permit: three rounds are needed.
        let rounds = [(10_600, 403), (11_003, 400), (11_403, 100)];
        for (ms, wait) in rounds {
            assert_eq!(redisson.take_at(ms, 10), Ok(Some(wait)), "{}", redisson.version);
        }
        redisson.begin(10);
    }
    for (ms, permits) in [(10_000, 1), (10_400, 4), (10_500, 5)] {
        assert_eq!(fixture.take_at(ms, permits).await, None);
    }
    for (permits, wait) in [(1, 400), (2, 800), (5, 800), (6, 900), (10, 900)] {
        assert_eq!(fixture.take_at(10_600, permits).await, Some(wait), "{permits}");
    }
    assert_eq!(fixture.take_at(11_500, 10).await, None);
}

/// Redisson's `release` leaves the entry, whose expiry frees the permits a second time.
#[tokio::test]
async fn released_permits_are_freed_once() {
    let fixture = Fixture::with_rate(10).await;
    let versions = RedissonScripts::all(&fixture.server);
    for mut redisson in versions {
        redisson.begin(10);
        assert_eq!(redisson.take_at(10_000, 10), Ok(None));
        redisson.release(10);
        assert_eq!(redisson.take_at(10_900, 10), Ok(None));
        let again = redisson.take_at(11_000, 10);
        assert_eq!(
            again,
            Ok(None),
            "{}: 20 within 100 ms, none released meanwhile",
            redisson.version
        );

        // The same, with a Tidegate call before the second expiry.
        redisson.begin(10);
        assert_eq!(redisson.take_at(10_000, 10), Ok(None));
        redisson.release(10);
        assert_eq!(fixture.take_at(10_900, 10).await, None);
        assert_eq!(fixture.take_at(11_000, 1).await, Some(900));
        assert_eq!(fixture.take_at(11_899, 1).await, Some(1));
        assert_eq!(fixture.take_at(11_900, 10).await, None);

        // Redisson also frees permits that Tidegate released only once.
        redisson.begin(10);
        assert_eq!(redisson.take_at(10_000, 10), Ok(None));
        fixture.at_ms(10_100);
        assert_eq!(fixture.limiter.release(10).await.unwrap(), 10);
        assert_eq!(redisson.take_at(10_900, 10), Ok(None));
        assert!(redisson.take_at(11_000, 1).unwrap().is_some());
        assert_eq!(redisson.take_at(11_900, 10), Ok(None));
        redisson.begin(10);
    }
    assert_eq!(fixture.take_at(20_000, 10).await, None);
    fixture.at_ms(20_100);
    assert_eq!(fixture.limiter.release(4).await.unwrap(), 4);
    assert_eq!(fixture.limiter.release(40).await.unwrap(), 6, "no more than was taken");
    assert_eq!(fixture.left().await, 10);
    assert_eq!(fixture.take_at(20_900, 10).await, None);
    assert_eq!(fixture.take_at(21_000, 1).await, Some(900));
}

/// Redisson stores 0 permits left, however far the taken ones are above the new rate, and gives
/// away the first that expire.
#[tokio::test]
async fn a_lowered_rate_applies_at_once() {
    let fixture = Fixture::with_rate(10).await;
    for mut redisson in RedissonScripts::all(&fixture.server) {
        let begin = |redisson: &mut RedissonScripts| {
            redisson.begin(10);
            assert_eq!(redisson.take_at(10_000, 5), Ok(None));
            assert_eq!(redisson.take_at(10_500, 5), Ok(None));
            redisson.update_at(10_600, 5)
        };
        if !begin(&mut redisson) {
            assert!(redisson.version.starts_with("3."));
            continue;
        }
        let taken = redisson.take_at(11_000, 5);
        assert_eq!(taken, Ok(None), "{}: 10 within 500 ms at a rate of 5", redisson.version);
        // Lowered by Redisson, taken by Tidegate.
        assert!(begin(&mut redisson));
        assert_eq!(fixture.take_at(11_000, 1).await, Some(500));
        assert_eq!(fixture.take_at(11_500, 5).await, None);
        // Lowered by Redisson, and half of it freed by Redisson before Tidegate's call.
        fixture.limiter.set_rate(overall(10)).await.unwrap();
        assert!(begin(&mut redisson));
        assert_eq!(redisson.available_at(11_000), 5, "{}: 5 more within 500 ms", redisson.version);
        assert_eq!(fixture.take_at(11_000, 1).await, Some(500));
        assert!(redisson.take_at(11_001, 1).unwrap().is_some(), "nor by Redisson from then on");
        assert_eq!(fixture.take_at(11_500, 5).await, None);
        // After a release, the taken permits are still above the rate.
        fixture.limiter.set_rate(overall(10)).await.unwrap();
        assert!(begin(&mut redisson));
        fixture.at_ms(10_700);
        assert_eq!(fixture.limiter.release(4).await.unwrap(), 4);
        assert_eq!(fixture.left().await, 0);
        assert_eq!(fixture.limiter.release(4).await.unwrap(), 4);
        assert_eq!(fixture.left().await, 3, "two of ten are taken");
        // Lowered by Tidegate, taken by Redisson.
        redisson.begin(10);
        assert_eq!(redisson.take_at(10_000, 5), Ok(None));
        assert_eq!(redisson.take_at(10_500, 5), Ok(None));
        fixture.at_ms(10_600);
        assert!(fixture.limiter.update_rate(overall(5)).await.unwrap());
        assert_eq!(redisson.take_at(11_000, 1), Ok(Some(503)));
        assert_eq!(redisson.take_at(11_500, 5), Ok(None));
    }
    fixture.limiter.set_rate(overall(10)).await.unwrap();
    assert_eq!(fixture.take_at(20_000, 3).await, None);
    assert_eq!(fixture.take_at(20_500, 5).await, None);
    fixture.at_ms(20_600);
    assert!(fixture.limiter.update_rate(overall(5)).await.unwrap());
    assert_eq!(fixture.left().await, 0);
    assert_eq!(fixture.take_at(21_000, 1).await, Some(500));
    assert_eq!(fixture.take_at(21_500, 5).await, None);
}

/// Redisson's `availablePermits` leaves a value without expiry, and uses it for a limiter that is
/// created again later.
#[tokio::test]
async fn a_stale_value_does_not_admit_more_than_the_rate() {
    let fixture = Fixture::new();
    for mut redisson in RedissonScripts::all(&fixture.server) {
        redisson.begin(10);
        assert_eq!(redisson.available_at(10_000), 10);
        fixture.server.cli(&["HSET", NAME, "rate", "4"]);
        assert_eq!(redisson.take_at(10_000, 4), Ok(None));
        let again = redisson.take_at(10_000, 4);
        assert_eq!(again, Ok(None), "{}: 8 at one instant at a rate of 4", redisson.version);
    }
    fixture.server.cli(&["FLUSHALL"]);
    fixture.limiter.try_set_rate(overall(4)).await.unwrap();
    fixture.server.cli(&["SET", "{orders}:value", "10"]);
    assert_eq!(fixture.left().await, 4);
    assert_eq!(fixture.take_at(10_000, 4).await, None);
    assert_eq!(fixture.take_at(10_000, 1).await, Some(1_000));
    // Without the value, the entries still count; Redisson starts from an unused limiter.
    fixture.server.cli(&["DEL", "{orders}:value"]);
    assert_eq!(fixture.take_at(10_300, 1).await, Some(700));
}

/// If the entries are lost and the value is not, every later call of Redisson fails.
#[tokio::test]
async fn an_empty_set_is_no_error_and_ends_after_an_interval() {
    let fixture = Fixture::new();
    for mut redisson in RedissonScripts::all(&fixture.server) {
        redisson.begin(5);
        assert_eq!(redisson.take_at(10_000, 5), Ok(None));
        fixture.server.cli(&["DEL", "{orders}:permits"]);
        for ms in [10_100, 20_000, 90_000_000] {
            let error = redisson.take_at(ms, 1).unwrap_err();
            assert!(error.contains("nil"), "{}: {error}", redisson.version);
        }
        // Tidegate repairs the state for both.
        assert_eq!(fixture.take_at(10_200, 1).await, Some(1_000));
        assert_eq!(redisson.take_at(10_300, 1), Ok(Some(903)));
        assert_eq!(redisson.take_at(11_200, 5), Ok(None));
    }
    fixture.server.cli(&["FLUSHALL"]);
    fixture.limiter.try_set_rate(overall(5)).await.unwrap();
    assert_eq!(fixture.take_at(10_000, 3).await, None);
    fixture.server.cli(&["DEL", "{orders}:permits"]);
    // The value says that two are left. When the other three were taken is unknown.
    assert_eq!(fixture.take_at(10_200, 2).await, None);
    assert_eq!(fixture.take_at(10_300, 5).await, Some(1_000));
    assert_eq!(fixture.take_at(11_299, 3).await, Some(1));
    assert_eq!(fixture.take_at(11_300, 5).await, None);
}

/// Three bugs that cost no permits: an expiry that stays, an entry that stays, and writes by
/// denials.
#[tokio::test]
async fn no_expiry_or_entry_stays_and_a_denial_writes_nothing() {
    let fixture = Fixture::new();
    let (ttl, entries) = (["PTTL", NAME], ["ZCARD", "{orders}:permits"]);
    let minute = Duration::from_secs(60);
    for mut redisson in RedissonScripts::all(&fixture.server) {
        redisson.begin(5);
        redisson.set(5, 60_000);
        redisson.set(5, 0);
        redisson.update_at(10_000, 5);
        assert_ne!(fixture.server.cli(&ttl), "-1", "{}: the limiter will expire", redisson.version);
        assert_eq!(redisson.take_at(10_000, 0), Ok(None));
        assert_eq!(redisson.take_at(90_000, 5), Ok(None));
        assert_eq!(fixture.server.cli(&entries), "2", "{}", redisson.version);
        assert_eq!(redisson.take_at(90_500, 1), Ok(Some(3 - 79_500)), "{}", redisson.version);

        redisson.begin(5);
        assert_eq!(redisson.take_at(10_000, 2), Ok(None));
        assert_eq!(redisson.take_at(10_500, 3), Ok(None));
        let before = fixture.changes();
        assert!(redisson.take_at(11_100, 3).unwrap().is_some());
        assert!(fixture.changes() > before, "{}", redisson.version);
    }
    fixture.limiter.set_rate(overall(5).keep_alive(minute).unwrap()).await.unwrap();
    fixture.limiter.set_rate(overall(5)).await.unwrap();
    assert_eq!(fixture.server.cli(&ttl), "-1");
    assert_eq!(fixture.take_at(10_000, 0).await, None);
    assert_eq!(fixture.server.cli(&entries), "0");
    assert_eq!(fixture.take_at(10_000, 2).await, None);
    assert_eq!(fixture.take_at(10_500, 3).await, None);
    let before = fixture.changes();
    assert_eq!(fixture.take_at(11_100, 3).await, Some(400));
    assert_eq!(fixture.changes(), before);
}
