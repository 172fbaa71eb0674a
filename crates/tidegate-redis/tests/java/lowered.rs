//! A rate that is lowered while many permits are out. Every permit is written down, and at every instant all that count have to
//! be within the rate.

use crate::lab::{Lab, NAME, overall};
use crate::theirs::Theirs;

/// What was admitted, by whomever, and when.
#[derive(Default)]
struct Ledger(Vec<(u64, u64)>);

impl Ledger {
    /// What counts at that instant.
    fn live(&self, ms: u64) -> u64 {
        self.0
            .iter()
            .filter(|(at, _)| *at <= ms && at + 1_000 > ms)
            .map(|(_, permits)| permits)
            .sum()
    }
}

/// Takes what there is, by sizes that change, at every 10th ms of two intervals, and checks each time that all that counts
/// is within `rate`.
async fn take_all(lab: &Lab, ledger: &mut Ledger, from: u64, rate: u64) -> u64 {
    let mut taken = 0;
    for ms in (from..from + 2_000).step_by(10) {
        for permits in [700, 7, 1] {
            while lab.take_at(ms, permits).await.is_none() {
                let before = ledger.live(ms);
                ledger.0.push((ms, permits.into()));
                taken += u64::from(permits);
                let live = ledger.live(ms);
                assert!(live <= rate, "{live} of {rate} at {ms}, {before} before");
                if permits == 700 {
                    break;
                }
                assert!(ledger.0.len() <= 20_000, "no end");
            }
        }
    }
    taken
}

/// 2,000 entries of five permits, and Java halves the rate.
#[tokio::test]
async fn after_java_lowers_the_rate_of_many_entries_nothing_above_it_is_given() {
    const RATE: u64 = 5_000;
    for (lowered_ms, is_known) in [(9_990, true), (10_200, true), (10_200, false)] {
        let mut lab = Lab::with_rate(2 * RATE).await;
        let mut versions: Vec<_> = Theirs::all(&lab.server);
        lab.fill(2_000, 5, 9_000, 2);
        lab.set_left(0);
        let mut ledger = Ledger((0..2_000).map(|nth| (9_000 + nth / 2, 5)).collect());
        // Java takes back what has expired and leaves 0 if there is more than the rate.
        let done = versions.last_mut().is_some_and(|theirs| theirs.update_at(lowered_ms, RATE));
        if !done {
            lab.server.cli(&["HSET", NAME, "rate", &RATE.to_string()]);
            let end = (lowered_ms - 1_000).to_string();
            lab.server.cli(&["ZREMRANGEBYSCORE", "{orders}:permits", "0", &end]);
        }
        assert_eq!(lab.server.cli(&["GET", "{orders}:value"]), "0");
        if !is_known {
            lab.forget();
        }
        let taken = take_all(&lab, &mut ledger, lowered_ms, RATE).await;
        assert!(taken >= RATE * 3 / 2, "{taken}: all of it is used");
        assert_eq!(lab.sum(), RATE as i64);
    }
}

/// The same after an entry was taken back of which nobody had heard.
#[tokio::test]
async fn what_is_taken_back_after_a_lowered_rate_gives_nobody_more_than_that() {
    const RATE: u64 = 5_000;
    for (entries, permits) in [(2_000, 3), (500, 12)] {
        let lab = Lab::with_rate(2 * RATE).await;
        lab.fill(entries, permits, 9_000, 2);
        let unheard = "redis.call('ZADD', '{orders}:permits', 9999, struct.pack('Bc0I', 16, ('u'):rep(16), 4000))";
        lab.server.cli(&["EVAL", unheard, "0"]);
        lab.set_left(0);
        lab.server.cli(&["HSET", NAME, "rate", &RATE.to_string()]);
        let given = undo(&lab, 9_999, 4_000, &"u".repeat(16));
        assert!(given <= 4_000);
        let in_each = |nth| (9_000 + nth / 2, permits);
        let mut ledger = Ledger((0..entries).map(in_each).collect());
        take_all(&lab, &mut ledger, 9_999, RATE).await;
    }
}

/// Runs the script by which an entry is taken back, until it has.
fn undo(lab: &Lab, ms: u64, permits: u64, id: &str) -> u64 {
    for _ in 0..100 {
        let answer =
            lab.part(include_str!("../../lua/redisson/undo.lua"), ms, &[&permits.to_string(), id]);
        match answer.lines().collect::<Vec<_>>()[..] {
            ["4"] => {}
            ["1", given] => return given.parse().unwrap(),
            _ => panic!("{answer}"),
        }
    }
    panic!("no end");
}

#[tokio::test]
async fn a_rate_changed_by_ours_counts_all_of_many_entries() {
    for (entries, permits) in [(2_000, 5), (10_000, 1)] {
        let lab = Lab::with_rate(10_000).await;
        lab.fill(entries, permits, 9_000, entries / 1_000);
        lab.set_left(0);
        let all = (0..entries).map(|nth| (9_000 + nth * 1_000 / entries, permits)).collect();
        let mut ledger = Ledger(all);
        lab.at_ms(9_999);
        assert!(lab.limiter.update_rate(overall(15_000)).await.unwrap());
        assert_eq!((lab.left().await, lab.sum()), (5_000, 15_000));
        assert!(lab.limiter.update_rate(overall(4_000)).await.unwrap());
        assert_eq!((lab.left().await, lab.sum()), (0, 4_000));
        let taken = take_all(&lab, &mut ledger, 10_000, 4_000).await;
        assert!(taken >= 6_000, "{taken}");
    }
}
