//! Contenders take turns.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::{Clock, SystemClock};

use crate::Plan;
use crate::contenders::Contender;
use crate::keys::{Keys, Kind};

/// Number of parts of the drawn keys. Each round uses the next part, so that it benefits little
/// from the caches of the previous round.
pub(crate) const PARTS: usize = 4;

/// Nanoseconds per check of each contender. Each list of keys has a thread.
pub(crate) fn medians(
    plan: &Plan,
    contenders: &[&dyn Contender],
    draws: &[Keys],
    all_allowed: bool,
) -> Vec<f64> {
    let mut nanos = vec![Vec::new(); contenders.len()];
    // The first round is a warm-up.
    for round in 0..=plan.rounds {
        for turn in 0..contenders.len() {
            // The order rotates, so that no contender always follows the same one.
            let index = (turn + round) % contenders.len();
            let (time, allowed) = measure(plan, contenders[index], draws, round);
            let checked = plan.checks * draws.len();
            assert_eq!(allowed, if all_allowed { checked } else { 0 }, "contender {index}");
            if round > 0 {
                nanos[index].push(time);
            }
        }
    }
    nanos.into_iter().map(median).collect()
}

/// Checks every key from 0 to `count` once.
pub(crate) fn fill(contender: &dyn Contender, kind: Kind, count: u64) {
    const BATCH: u64 = 100_000;
    for first in (0..count).step_by(BATCH as usize) {
        let keys = first..count.min(first + BATCH);
        let expected = (keys.end - keys.start) as usize;
        assert_eq!(contender.allowed(Keys::new(kind, keys).all()), expected);
    }
}

/// Measured from the first thread's start to the last one's end: with too few CPUs, all contenders
/// wait for them alike, even if their work fits into one time slice.
fn measure(plan: &Plan, contender: &dyn Contender, draws: &[Keys], round: usize) -> (f64, usize) {
    let ready = AtomicUsize::new(0);
    let work = |keys: &Keys| {
        let keys = keys.part(round, plan.checks);
        // Spins, because a thread that has to be woken would start when the other is nearly done.
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
