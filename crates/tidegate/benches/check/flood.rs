//! More keys than fit in memory: the cost for other keys, and whether the flood admits any request.

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tidegate::{Engine, Memory};
use tidegate_model::CountingAllocator;

use crate::contenders::{Allowance, Table};
use crate::{Plan, print_line};

const CAP: usize = 64 << 20;
const KEYS: u64 = 10_000_000;
/// Keys that have used up their limit before the flood.
const HELD: u64 = 1_000;
/// Keys of an ample limit that are checked before and during the flood.
const OTHERS: u64 = 1_000;
/// A limit that does not recover during the flood.
const STRICT: &str = "5/d";

pub(crate) fn run(plan: &Plan) {
    if !plan.wants("flood", true) {
        return;
    }
    let (keys, cap) = (KEYS / plan.divisor, CAP / plan.divisor as usize);
    let (mut quiet, mut during) = (Latencies::default(), Latencies::default());
    let before = CountingAllocator::live_bytes();
    let memory = Memory::builder().cap_bytes(cap).build().into();
    let strict = Table::on(&memory, "strict", STRICT);
    let ample = Table::on(&memory, "ample", &Allowance::Ample.notation());
    let passing = || (0..HELD).filter(|key| strict.check(&key.to_ne_bytes())).count();
    let used_up: usize = (0..5).map(|_| passing()).sum();
    assert_eq!((used_up as u64, passing()), (5 * HELD, 0));
    (0..100).for_each(|_| quiet.measure(&ample));

    let (max_heap, admitted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    let mut nanos_per_key = 0.0;
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let began = nanos();
            for key in HELD..HELD + keys {
                black_box(strict.check(&key.to_ne_bytes()));
                if key % 10_000 == 0 {
                    let heap = CountingAllocator::live_bytes() - before;
                    max_heap.fetch_max(heap, Ordering::Relaxed);
                    admitted.fetch_add(passing(), Ordering::Relaxed);
                }
            }
            is_over.store(true, Ordering::Relaxed);
            (nanos() - began) as f64 / keys as f64
        });
        while !is_over.load(Ordering::Relaxed) {
            during.measure(&ample);
        }
        nanos_per_key = flood.join().unwrap();
    });
    let admitted = admitted.into_inner() + passing();
    let (max_heap, reported) = (max_heap.into_inner(), memory.health().memory_bytes);
    print_line(&format!(
        "\nflood of {keys} keys against a cap of {cap} bytes, {nanos_per_key:.0} ns each"
    ));
    print_line(&format!(
        "  heap at most {max_heap} bytes; {reported} at the end, as reported by the engine"
    ));
    print_line(&format!("  {HELD} keys that were at their limit: {admitted} admitted"));
    print_line(&format!("  other keys, ns per check: before {quiet}; during {during}"));
    assert_eq!(admitted, 0);
}

/// Number of checks by duration in nanoseconds; the last slot counts all longer ones. Preallocated,
/// so that measuring allocates nothing.
struct Latencies(Vec<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(vec![0; 1_000_000])
    }
}

impl Latencies {
    fn measure(&mut self, table: &Table) {
        let last = self.0.len() - 1;
        for key in 0..OTHERS {
            let began = nanos();
            assert!(table.check(&key.to_ne_bytes()));
            let took = (nanos() - began) as usize;
            self.0[took.min(last)] += 1;
        }
    }

    /// Nanoseconds that all but one in `many` checks did not exceed.
    fn all_but_one_in(&self, many: u64) -> usize {
        let total: u64 = self.0.iter().sum();
        let mut longer = total / many;
        self.0
            .iter()
            .rposition(|count| {
                let is_reached = *count > longer;
                longer = longer.saturating_sub(*count);
                is_reached
            })
            .unwrap_or(0)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (half, p99, p999) =
            (self.all_but_one_in(2), self.all_but_one_in(100), self.all_but_one_in(1_000));
        write!(f, "p50 {half}, p99 {p99}, p99.9 {p999}")
    }
}

/// A check is too short for the microseconds of a `Clock`.
#[expect(clippy::disallowed_methods, reason = "a benchmark that measures nanoseconds")]
fn nanos() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
