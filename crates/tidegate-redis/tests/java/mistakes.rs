//! Where Redisson's own scripts err, run as they are in its jar, and ours beside them, at the same instants.

use std::time::Duration;

use tidegate_redis::redisson::{Mode, Rate, RateLimiter};

use crate::lab::{Lab, NAME, client, overall};
use crate::theirs::Theirs;

/// Their clocks count, and the clocks of two machines are not the same.
#[tokio::test]
async fn a_clock_that_is_off_takes_nothing_from_the_limit() {
    let lab = Lab::new();
    for mut theirs in Theirs::all(&lab.server) {
        theirs.begin(5);
        let taken = [10_000, 20_000, 10_000, 20_000, 30_000].map(|ms| theirs.take_at(ms, 5));
        let count = taken.iter().filter(|taken| **taken == Ok(None)).count();
        assert_eq!(count, 3, "{}: 15 at one instant by three clocks", theirs.version);
        theirs.begin(5);
    }
    lab.server.cli(&["FLUSHALL"]);
    // Ours send no time at all.
    let [one, other] = [client(&lab.server.url()), client(&lab.server.url())];
    let limiters = [&one, &other].map(|client| RateLimiter::new(client, NAME));
    let hour = Duration::from_secs(3_600);
    limiters[0].try_set_rate(Rate::new(Mode::Overall, 5, hour).unwrap()).await.unwrap();
    let mut taken = 0;
    for limiter in limiters.iter().cycle().take(10) {
        taken += u32::from(limiter.try_acquire(1).await.unwrap().allowed());
    }
    assert_eq!(taken, 5);
}

/// What a Java clock that is 300 ms off does to the two: nothing more than to shift what is on its own side of
/// an entry by just that.
#[tokio::test]
async fn a_java_clock_that_is_off_shifts_entries_by_as_much() {
    const OFF: u64 = 300;
    let lab = Lab::with_rate(5).await;
    for mut theirs in Theirs::all(&lab.server) {
        theirs.begin(5);
        // Ahead: its entry comes back to Rust late, and that of Rust to Java early.
        assert_eq!(theirs.take_at(10_000 + OFF, 5), Ok(None));
        assert_eq!(lab.take_at(11_000, 1).await, Some(300));
        assert_eq!(lab.take_at(11_300, 5).await, None);
        assert!(theirs.take_at(11_999 + OFF, 1).unwrap().is_some());
        assert_eq!(theirs.take_at(12_000 + OFF, 5), Ok(None));
        // Behind: the other way round.
        theirs.begin(5);
        assert_eq!(theirs.take_at(20_000 - OFF, 5), Ok(None));
        assert_eq!(lab.take_at(20_699, 1).await, Some(1));
        assert_eq!(lab.take_at(20_700, 5).await, None);
        assert!(theirs.take_at(21_999 - OFF, 1).unwrap().is_some());
        assert_eq!(theirs.take_at(22_000 - OFF, 5), Ok(None));
        // However far ahead it is, nobody is told to wait for longer than an interval.
        theirs.begin(5);
        assert_eq!(theirs.take_at(30_000 + 3_600_000, 5), Ok(None));
        assert_eq!(lab.take_at(30_000, 1).await, Some(1_001));
    }
}

#[tokio::test]
async fn whoever_wants_several_is_told_when_there_are_as_many() {
    let lab = Lab::with_rate(10).await;
    for mut theirs in Theirs::all(&lab.server) {
        theirs.begin(10);
        for (ms, permits) in [(10_000, 1), (10_400, 4), (10_500, 5)] {
            assert_eq!(theirs.take_at(ms, permits), Ok(None));
        }
        // The oldest gives one back; it takes three rounds.
        let rounds = [(10_600, 403), (11_003, 400), (11_403, 100)];
        for (ms, wait) in rounds {
            assert_eq!(theirs.take_at(ms, 10), Ok(Some(wait)), "{}", theirs.version);
        }
        theirs.begin(10);
    }
    for (ms, permits) in [(10_000, 1), (10_400, 4), (10_500, 5)] {
        assert_eq!(lab.take_at(ms, permits).await, None);
    }
    for (permits, wait) in [(1, 400), (2, 800), (5, 800), (6, 900), (10, 900)] {
        assert_eq!(lab.take_at(10_600, permits).await, Some(wait), "{permits}");
    }
    assert_eq!(lab.take_at(11_500, 10).await, None);
}

/// Theirs leaves the entry of what is given back, which comes back once more with it.
#[tokio::test]
async fn what_is_released_comes_back_once() {
    let lab = Lab::with_rate(10).await;
    let versions = Theirs::all(&lab.server);
    for mut theirs in versions {
        theirs.begin(10);
        assert_eq!(theirs.take_at(10_000, 10), Ok(None));
        theirs.release(10);
        assert_eq!(theirs.take_at(10_900, 10), Ok(None));
        let again = theirs.take_at(11_000, 10);
        assert_eq!(
            again,
            Ok(None),
            "{}: 20 within 100 ms, none released meanwhile",
            theirs.version
        );

        // The same, and a limiter of ours that looks before it comes to that.
        theirs.begin(10);
        assert_eq!(theirs.take_at(10_000, 10), Ok(None));
        theirs.release(10);
        assert_eq!(lab.take_at(10_900, 10).await, None);
        assert_eq!(lab.take_at(11_000, 1).await, Some(900));
        assert_eq!(lab.take_at(11_899, 1).await, Some(1));
        assert_eq!(lab.take_at(11_900, 10).await, None);

        // And what ours gives back, theirs counts once as well.
        theirs.begin(10);
        assert_eq!(theirs.take_at(10_000, 10), Ok(None));
        lab.at_ms(10_100);
        assert_eq!(lab.limiter.release(10).await.unwrap(), 10);
        assert_eq!(theirs.take_at(10_900, 10), Ok(None));
        assert!(theirs.take_at(11_000, 1).unwrap().is_some());
        assert_eq!(theirs.take_at(11_900, 10), Ok(None));
        theirs.begin(10);
    }
    assert_eq!(lab.take_at(20_000, 10).await, None);
    lab.at_ms(20_100);
    assert_eq!(lab.limiter.release(4).await.unwrap(), 4);
    assert_eq!(lab.limiter.release(40).await.unwrap(), 6, "no more than was taken");
    assert_eq!(lab.left().await, 10);
    assert_eq!(lab.take_at(20_900, 10).await, None);
    assert_eq!(lab.take_at(21_000, 1).await, Some(900));
}

/// Theirs keeps 0 as what is left, however far above the new rate it was, and gives the first that come back.
#[tokio::test]
async fn a_lowered_rate_holds_from_then_on() {
    let lab = Lab::with_rate(10).await;
    for mut theirs in Theirs::all(&lab.server) {
        let begin = |theirs: &mut Theirs| {
            theirs.begin(10);
            assert_eq!(theirs.take_at(10_000, 5), Ok(None));
            assert_eq!(theirs.take_at(10_500, 5), Ok(None));
            theirs.update_at(10_600, 5)
        };
        if !begin(&mut theirs) {
            assert!(theirs.version.starts_with("3."));
            continue;
        }
        let taken = theirs.take_at(11_000, 5);
        assert_eq!(taken, Ok(None), "{}: 10 within 500 ms at a rate of 5", theirs.version);
        // Lowered by theirs, asked by ours.
        assert!(begin(&mut theirs));
        assert_eq!(lab.take_at(11_000, 1).await, Some(500));
        assert_eq!(lab.take_at(11_500, 5).await, None);
        // Lowered by theirs, and half of it taken back by theirs before ours is asked.
        lab.limiter.set_rate(overall(10)).await.unwrap();
        assert!(begin(&mut theirs));
        assert_eq!(theirs.available_at(11_000), 5, "{}: 5 more within 500 ms", theirs.version);
        assert_eq!(lab.take_at(11_000, 1).await, Some(500));
        assert!(theirs.take_at(11_001, 1).unwrap().is_some(), "nor by theirs from then on");
        assert_eq!(lab.take_at(11_500, 5).await, None);
        // What is given back then is still above the rate.
        lab.limiter.set_rate(overall(10)).await.unwrap();
        assert!(begin(&mut theirs));
        lab.at_ms(10_700);
        assert_eq!(lab.limiter.release(4).await.unwrap(), 4);
        assert_eq!(lab.left().await, 0);
        assert_eq!(lab.limiter.release(4).await.unwrap(), 4);
        assert_eq!(lab.left().await, 3, "two of ten are taken");
        // Lowered by ours, asked by theirs.
        theirs.begin(10);
        assert_eq!(theirs.take_at(10_000, 5), Ok(None));
        assert_eq!(theirs.take_at(10_500, 5), Ok(None));
        lab.at_ms(10_600);
        assert!(lab.limiter.update_rate(overall(5)).await.unwrap());
        assert_eq!(theirs.take_at(11_000, 1), Ok(Some(503)));
        assert_eq!(theirs.take_at(11_500, 5), Ok(None));
    }
    lab.limiter.set_rate(overall(10)).await.unwrap();
    assert_eq!(lab.take_at(20_000, 3).await, None);
    assert_eq!(lab.take_at(20_500, 5).await, None);
    lab.at_ms(20_600);
    assert!(lab.limiter.update_rate(overall(5)).await.unwrap());
    assert_eq!(lab.left().await, 0);
    assert_eq!(lab.take_at(21_000, 1).await, Some(500));
    assert_eq!(lab.take_at(21_500, 5).await, None);
}

/// Looking leaves a number without an end behind, and a limiter that is set up again later goes by it.
#[tokio::test]
async fn a_number_that_was_left_behind_gives_nobody_more_than_the_rate() {
    let lab = Lab::new();
    for mut theirs in Theirs::all(&lab.server) {
        theirs.begin(10);
        assert_eq!(theirs.available_at(10_000), 10);
        lab.server.cli(&["HSET", NAME, "rate", "4"]);
        assert_eq!(theirs.take_at(10_000, 4), Ok(None));
        let again = theirs.take_at(10_000, 4);
        assert_eq!(again, Ok(None), "{}: 8 at one instant at a rate of 4", theirs.version);
    }
    lab.server.cli(&["FLUSHALL"]);
    lab.limiter.try_set_rate(overall(4)).await.unwrap();
    lab.server.cli(&["SET", "{orders}:value", "10"]);
    assert_eq!(lab.left().await, 4);
    assert_eq!(lab.take_at(10_000, 4).await, None);
    assert_eq!(lab.take_at(10_000, 1).await, Some(1_000));
    // Without the number, what was taken still counts; theirs begins anew.
    lab.server.cli(&["DEL", "{orders}:value"]);
    assert_eq!(lab.take_at(10_300, 1).await, Some(700));
}

/// When the entries are lost and the number is not, theirs reckons with nothing, for ever.
#[tokio::test]
async fn an_empty_set_is_no_error_and_ends_after_an_interval() {
    let lab = Lab::new();
    for mut theirs in Theirs::all(&lab.server) {
        theirs.begin(5);
        assert_eq!(theirs.take_at(10_000, 5), Ok(None));
        lab.server.cli(&["DEL", "{orders}:permits"]);
        for ms in [10_100, 20_000, 90_000_000] {
            let error = theirs.take_at(ms, 1).unwrap_err();
            assert!(error.contains("nil"), "{}: {error}", theirs.version);
        }
        // Ours heals it for both.
        assert_eq!(lab.take_at(10_200, 1).await, Some(1_000));
        assert_eq!(theirs.take_at(10_300, 1), Ok(Some(903)));
        assert_eq!(theirs.take_at(11_200, 5), Ok(None));
    }
    lab.server.cli(&["FLUSHALL"]);
    lab.limiter.try_set_rate(overall(5)).await.unwrap();
    assert_eq!(lab.take_at(10_000, 3).await, None);
    lab.server.cli(&["DEL", "{orders}:permits"]);
    // Two are left by its word. Of when the others were, nobody knows.
    assert_eq!(lab.take_at(10_200, 2).await, None);
    assert_eq!(lab.take_at(10_300, 5).await, Some(1_000));
    assert_eq!(lab.take_at(11_299, 3).await, Some(1));
    assert_eq!(lab.take_at(11_300, 5).await, None);
}

/// Three that cost no permits: an end that stays, an entry that stays, and writes by whoever is turned away.
#[tokio::test]
async fn nothing_stays_behind_and_a_denial_writes_nothing() {
    let lab = Lab::new();
    let (ttl, entries) = (["PTTL", NAME], ["ZCARD", "{orders}:permits"]);
    let minute = Duration::from_secs(60);
    for mut theirs in Theirs::all(&lab.server) {
        theirs.begin(5);
        theirs.set(5, 60_000);
        theirs.set(5, 0);
        theirs.update_at(10_000, 5);
        assert_ne!(lab.server.cli(&ttl), "-1", "{}: it will be gone", theirs.version);
        assert_eq!(theirs.take_at(10_000, 0), Ok(None));
        assert_eq!(theirs.take_at(90_000, 5), Ok(None));
        assert_eq!(lab.server.cli(&entries), "2", "{}", theirs.version);
        assert_eq!(theirs.take_at(90_500, 1), Ok(Some(3 - 79_500)), "{}", theirs.version);

        theirs.begin(5);
        assert_eq!(theirs.take_at(10_000, 2), Ok(None));
        assert_eq!(theirs.take_at(10_500, 3), Ok(None));
        let before = lab.changes();
        assert!(theirs.take_at(11_100, 3).unwrap().is_some());
        assert!(lab.changes() > before, "{}", theirs.version);
    }
    lab.limiter.set_rate(overall(5).keep_alive(minute).unwrap()).await.unwrap();
    lab.limiter.set_rate(overall(5)).await.unwrap();
    assert_eq!(lab.server.cli(&ttl), "-1");
    assert_eq!(lab.take_at(10_000, 0).await, None);
    assert_eq!(lab.server.cli(&entries), "0");
    assert_eq!(lab.take_at(10_000, 2).await, None);
    assert_eq!(lab.take_at(10_500, 3).await, None);
    let before = lab.changes();
    assert_eq!(lab.take_at(11_100, 3).await, Some(400));
    assert_eq!(lab.changes(), before);
}
