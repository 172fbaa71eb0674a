//! Memory per key: bytes allocated, starting from the empty limiter.

use tidegate_model::CountingAllocator;

use crate::contenders::{ALL, Allowance, Make};
use crate::keys::Kind;
use crate::rounds::fill;
use crate::{Plan, print_line};

const KEYS: u64 = 1_000_000;

pub(crate) fn run(plan: &Plan) {
    let kinds =
        [Kind::Number, Kind::Text].map(|kind| (kind, format!("bytes per key at 1M, {kind}")));
    let wanted: Vec<_> = kinds.iter().filter(|(_, name)| plan.wants(name, false)).collect();
    if wanted.is_empty() {
        return;
    }
    print_line(&format!("\n{:40}{}", "", ALL.map(|(name, _)| format!("{name:>9}")).concat()));
    for (kind, name) in wanted {
        let bytes = ALL.map(|(_, make)| format!("{:9.1}", per_key(plan, make, *kind))).concat();
        print_line(&format!("{name:40}{bytes}"));
    }
}

fn per_key(plan: &Plan, make: Make, kind: Kind) -> f64 {
    let before = CountingAllocator::live_bytes();
    let contender = make(Allowance::Ample);
    let keys = KEYS / plan.divisor;
    fill(&*contender, kind, keys);
    (CountingAllocator::live_bytes() - before) as f64 / keys as f64
}
