//! A rate that is lowered while many permits count. The test logs every permit, and at every
//! instant all permits that count have to be within the rate.

use crate::fixture::{Fixture, NAME, overall};
use crate::redisson_scripts::RedissonScripts;

/// Admitted permits and their instants, of all clients.
#[derive(Default)]
struct PermitLog(Vec<(u64, u64)>);

impl PermitLog {
    /// Permits that count at that instant.
    fn active(&self, ms: u64) -> u64 {
        self.0
            .iter()
            .filter(|(at, _)| *at <= ms && at + 1_000 > ms)
            .map(|(_, permits)| permits)
            .sum()
    }
}

/// Takes all available permits, in changing amounts, every 10 ms of two intervals. Checks after
/// each that the permits that count are within `rate`.
async fn take_all(fixture: &Fixture, log: &mut PermitLog, from: u64, rate: u64) -> u64 {
    let mut taken = 0;
    for ms in (from..from + 2_000).step_by(10) {
        for permits in [700, 7, 1] {
            while fixture.take_at(ms, permits).await.is_none() {
                let before = log.active(ms);
                log.0.push((ms, permits.into()));
                taken += u64::from(permits);
                let active = log.active(ms);
                assert!(active <= rate, "{active} of {rate} at {ms}, {before} before");
                if permits == 700 {
                    break;
                }
                assert!(log.0.len() <= 20_000, "no end");
            }
        }
    }
    taken
}

/// 2,000 entries of five permits, and Java halves the rate.
#[tokio::test]
async fn after_java_lowers_the_rate_of_many_entries_it_is_not_exceeded() {
    const RATE: u64 = 5_000;
    for (lowered_ms, is_known) in [(9_990, true), (10_200, true), (10_200, false)] {
        let mut fixture = Fixture::with_rate(2 * RATE).await;
        let mut versions: Vec<_> = RedissonScripts::all(&fixture.server);
        fixture.fill(2_000, 5, 9_000, 2);
        fixture.set_left(0);
        let mut log = PermitLog((0..2_000).map(|nth| (9_000 + nth / 2, 5)).collect());
        // Java frees expired entries and stores 0 if more than the rate is taken.
        let done = versions.last_mut().is_some_and(|redisson| redisson.update_at(lowered_ms, RATE));
        if !done {
            fixture.server.cli(&["HSET", NAME, "rate", &RATE.to_string()]);
            let end = (lowered_ms - 1_000).to_string();
            fixture.server.cli(&["ZREMRANGEBYSCORE", "{orders}:permits", "0", &end]);
        }
        assert_eq!(fixture.server.cli(&["GET", "{orders}:value"]), "0");
        if !is_known {
            fixture.reconnect();
        }
        let taken = take_all(&fixture, &mut log, lowered_ms, RATE).await;
        assert!(taken >= RATE * 3 / 2, "{taken}: the rate is used up");
        assert_eq!(fixture.sum(), RATE as i64);
    }
}

/// The same after the entry of a cancelled call was removed.
#[tokio::test]
async fn undoing_a_cancelled_call_after_a_lowered_rate_frees_no_more_than_it() {
    const RATE: u64 = 5_000;
    for (entries, permits) in [(2_000, 3), (500, 12)] {
        let fixture = Fixture::with_rate(2 * RATE).await;
        fixture.fill(entries, permits, 9_000, 2);
        let cancelled = "redis.call('ZADD', '{orders}:permits', 9999, struct.pack('Bc0I', 16, ('u'):rep(16), 4000))";
        fixture.server.cli(&["EVAL", cancelled, "0"]);
        fixture.set_left(0);
        fixture.server.cli(&["HSET", NAME, "rate", &RATE.to_string()]);
        let freed = undo(&fixture, 9_999, 4_000, &"u".repeat(16));
        assert!(freed <= 4_000);
        let in_each = |nth| (9_000 + nth / 2, permits);
        let mut log = PermitLog((0..entries).map(in_each).collect());
        take_all(&fixture, &mut log, 9_999, RATE).await;
    }
}

/// Runs the script that removes an entry until it has finished.
fn undo(fixture: &Fixture, ms: u64, permits: u64, id: &str) -> u64 {
    for _ in 0..100 {
        let reply = fixture.run_part(
            include_str!("../../lua/redisson/undo.lua"),
            ms,
            &[&permits.to_string(), id],
        );
        match reply.lines().collect::<Vec<_>>()[..] {
            ["4"] => {}
            ["1", freed] => return freed.parse().unwrap(),
            _ => panic!("{reply}"),
        }
    }
    panic!("no end");
}

#[tokio::test]
async fn a_rate_changed_by_tidegate_counts_all_of_many_entries() {
    for (entries, permits) in [(2_000, 5), (10_000, 1)] {
        let fixture = Fixture::with_rate(10_000).await;
        fixture.fill(entries, permits, 9_000, entries / 1_000);
        fixture.set_left(0);
        let all = (0..entries).map(|nth| (9_000 + nth * 1_000 / entries, permits)).collect();
        let mut log = PermitLog(all);
        fixture.at_ms(9_999);
        assert!(fixture.limiter.update_rate(overall(15_000)).await.unwrap());
        assert_eq!((fixture.left().await, fixture.sum()), (5_000, 15_000));
        assert!(fixture.limiter.update_rate(overall(4_000)).await.unwrap());
        assert_eq!((fixture.left().await, fixture.sum()), (0, 4_000));
        let taken = take_all(&fixture, &mut log, 10_000, 4_000).await;
        assert!(taken >= 6_000, "{taken}");
    }
}
