//! Contenders that take turns.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::{Clock, SystemClock};

use crate::Plan;
use crate::contenders::Contender;
use crate::keys::{Keys, Kind};

/// How many parts of the drawn keys there are: each round takes the next, so that what a round has
/// left in the caches is of little use to the one after.
pub(crate) const PARTS: usize = 4;

/// Nanoseconds per check of each contender. There is a thread for each list of keys.
pub(crate) fn medians(
    plan: &Plan,
    contenders: &[&dyn Contender],
    draws: &[Keys],
    all_allowed: bool,
) -> Vec<f64> {
    let mut nanos = vec![Vec::new(); contenders.len()];
    // The first round warms up.
    for round in 0..=plan.rounds {
        for turn in 0..contenders.len() {
            // Nobody always comes after the same.
            let place = (turn + round) % contenders.len();
            let (time, allowed) = measure(plan, contenders[place], draws, round);
            let asked = plan.checks * draws.len();
            assert_eq!(allowed, if all_allowed { asked } else { 0 }, "contender {place}");
            if round > 0 {
                nanos[place].push(time);
            }
        }
    }
    nanos.into_iter().map(median).collect()
}

/// Asks about every key from 0 to `count` once.
pub(crate) fn fill(contender: &dyn Contender, kind: Kind, count: u64) {
    const AT_ONCE: u64 = 100_000;
    for first in (0..count).step_by(AT_ONCE as usize) {
        let keys = first..count.min(first + AT_ONCE);
        let expected = (keys.end - keys.start) as usize;
        assert_eq!(contender.allowed(Keys::new(kind, keys).all()), expected);
    }
}

/// From the first thread's beginning to the last one's end: where there are too few processors, all
/// contenders wait for them alike, whether or not they fit into a slice of time.
fn measure(plan: &Plan, contender: &dyn Contender, draws: &[Keys], round: usize) -> (f64, usize) {
    let ready = AtomicUsize::new(0);
    let work = |keys: &Keys| {
        let keys = keys.part(round, plan.checks);
        // A thread that had to be woken would come when the other has done most of its work.
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < draws.len() {
            spin_loop();
        }
        let start = SystemClock.elapsed();
        let allowed = contender.allowed(keys);
        (start, SystemClock.elapsed(), allowed)
    };
    let done = match draws {
        [only] => vec![work(only)],
        _ => std::thread::scope(|scope| {
            let threads: Vec<_> = draws.iter().map(|keys| scope.spawn(|| work(keys))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        }),
    };
    let start = done.iter().map(|(start, ..)| *start).min().unwrap();
    let end = done.iter().map(|(_, end, _)| *end).max().unwrap();
    let nanos = 1_000.0 * end.saturating_sub(start).get() as f64 / plan.checks as f64;
    (nanos, done.iter().map(|(.., allowed)| allowed).sum())
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
