use tidegate_model::TraceRng;

use super::*;

const ANY: fn(Source) -> bool = |_| true;
const WINDOW: Bound = Bound::Window { limit: 3, window: 100 };
/// One permit each 10 microseconds.
const BUCKET: Bound = Bound::Bucket { burst: 3, count: 1, period: 10 };

/// Admissions by Redis at these instants, each of the same length.
fn admitted(instants: &[u64], took: u64) -> Vec<LoggedCall> {
    let entry = |begun: &u64| LoggedCall {
        begun: *begun,
        ended: begun + took,
        key: 1,
        cost: 1,
        client: 0,
        result: CallResult::Allow(Source::Redis),
    };
    instants.iter().map(entry).collect()
}

#[test]
fn a_log_within_its_bound_has_no_excess_and_one_beyond_it_has() {
    for (bound, instants, took, worst) in [
        (WINDOW, &[][..], 0, 0),
        (WINDOW, &[0, 50, 99][..], 0, 3),
        (WINDOW, &[0, 50, 99, 100, 150, 199][..], 0, 3),
        // One too many at an instant, and in the last microsecond of a window.
        (WINDOW, &[5, 5, 5, 5], 0, 4),
        (WINDOW, &[0, 50, 60, 99], 0, 4),
        (WINDOW, &[0, 50, 60, 100], 0, 3),
        (WINDOW, &[0, 90, 95, 100, 110, 300], 0, 4),
        // The decision may have been made outside the window.
        (WINDOW, &[0, 50, 60, 99], 1, 3),
        (WINDOW, &[0, 50, 60, 98], 1, 4),
        (BUCKET, &[0, 0, 0, 10, 20, 30], 0, 3),
        (BUCKET, &[0, 0, 0, 0], 0, 4),
        (BUCKET, &[0, 0, 0, 9], 0, 4),
        (BUCKET, &[0, 0, 0, 9], 1, 3),
        // The second burst starts before the bucket is full again.
        (BUCKET, &[0, 0, 0, 30, 30, 30], 0, 3),
        (BUCKET, &[0, 0, 0, 29, 29, 29], 0, 4),
        (BUCKET, &[0, 0, 0, 30, 30, 30, 30], 0, 4),
    ] {
        let found = bound.worst(&admitted(instants, took), ANY);
        assert_eq!(found.admitted, worst, "{bound:?} {instants:?} {took}");
        assert_eq!(found.admitted > bound.at_once(), worst > 3);
    }
}

#[test]
fn costs_count_keys_do_not_mix_and_denials_do_not_count() {
    let mut log = admitted(&[0, 1, 2, 3], 0);
    log[0].cost = 3;
    log[1].key = 2;
    log[2].result = CallResult::Deny(Source::Redis);
    log[3].result = CallResult::MaybeCharged;
    assert_eq!(WINDOW.worst(&log, ANY), WorstInterval { admitted: 3, key: 1, at: 0 });
    log[2].result = CallResult::Allow(Source::Fallback);
    assert_eq!(WINDOW.worst(&log, ANY).admitted, 4);
    assert_eq!(WINDOW.worst(&log, |source| source == Source::Redis).admitted, 3);
    assert_eq!(WINDOW.worst(&log, |source| source == Source::Fallback).admitted, 1);
    assert_eq!(by_source(&log), [("redis", 2), ("fallback", 1), (NO_SOURCE, 1)]);
}

#[test]
fn lost_state_and_the_fallback_ratio_change_the_bound() {
    for (bound, forgotten, half) in [
        (WINDOW, 6, 1),
        (BUCKET, 6, 1),
        (Bound::Window { limit: 1, window: 9 }, 2, 1),
        (Bound::Bucket { burst: 0, count: 0, period: 9 }, 0, 0),
    ] {
        assert_eq!(bound.after(1).at_once(), forgotten, "{bound:?}");
        assert_eq!(bound.half().at_once(), half, "{bound:?}");
        assert_eq!(bound.and(bound.half()).at_once(), bound.at_once() + half, "{bound:?}");
    }
    // At half the rate, 30 microseconds add one and a half permits.
    let log = admitted(&[0, 20, 39, 60], 0);
    assert_eq!(BUCKET.half().worst(&log, ANY).admitted, 2);
    assert_eq!(BUCKET.and(BUCKET.half()).worst(&log, ANY).admitted, 1);
}

/// Checks every interval, one by one.
fn slow_worst(bound: Bound, log: &[LoggedCall]) -> u64 {
    let mut worst = 0;
    for start in log.iter().map(|entry| entry.begun) {
        for end in log.iter().map(|entry| entry.ended).filter(|end| *end >= start) {
            let inside = log.iter().filter(|e| e.begun >= start && e.ended <= end);
            let sum: u64 = inside.map(|entry| u64::from(entry.cost)).sum();
            worst = worst.max(match bound {
                Bound::Window { window, .. } if end - start >= window => 0,
                Bound::Window { .. } => sum,
                Bound::Bucket { count, period, .. } => {
                    (sum * period).saturating_sub(count * (end - start)).div_ceil(period)
                }
            });
        }
    }
    worst
}

#[test]
fn the_worst_of_all_intervals_is_found() {
    let mut rng = TraceRng::new(1);
    for _ in 0..500 {
        let bucket =
            Bound::Bucket { burst: 5, count: rng.between(1, 7), period: rng.between(1, 50) };
        let window = Bound::Window { limit: 5, window: rng.between(1, 300) };
        let mut entry = || {
            let begun = rng.below(400);
            let (ended, cost) = (begun + rng.below(40), rng.between(1, 4) as u32);
            LoggedCall { ended, cost, ..admitted(&[begun], 0)[0] }
        };
        let log: Vec<LoggedCall> = (0..30).map(|_| entry()).collect();
        for bound in [bucket, window] {
            let found = bound.worst(&log, ANY).admitted;
            assert_eq!(found, slow_worst(bound, &log), "{bound:?} {log:?}");
        }
    }
}

#[test]
fn quantiles_are_of_the_sorted_values() {
    for (values, per_mille, expected) in [
        (&mut [][..], 990, 0),
        (&mut [7], 990, 7),
        (&mut [3, 1, 2], 500, 2),
        (&mut [3, 1, 2], 1000, 3),
        (&mut (1..=100).collect::<Vec<_>>()[..], 990, 99),
    ] {
        assert_eq!(quantile(values, per_mille), expected);
    }
}
