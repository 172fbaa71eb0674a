//! No admission above the bound, and a violation as soon as one rule is broken.

use tidegate::Micros;
use tidegate::simulate::Rng;
use tidegate_model::run_size;

use super::world::{Faults, Mutant, QuotaWorld};
use crate::shares::ledger::BrokenRule;
use tidegate_config::envoy::ShareLimit;

fn limits(rng: &mut Rng) -> Vec<ShareLimit> {
    let limit =
        |burst, count, secs| ShareLimit::of_rate(burst, count, Micros::from_secs(secs)).unwrap();
    let most = [4, 20, 100][rng.below(3) as usize];
    let burst = 1 + rng.below(most);
    match rng.below(4) {
        // The same numbers of tokens, in another interval.
        0 => vec![limit(burst, 1, 1), limit(burst, 3_600, 86_400)],
        1 => vec![limit(burst, 1 + rng.below(20), 1), limit(1 + rng.below(100), 2, 1)],
        2 => vec![limit(burst, 1 + rng.below(20), 60), limit(burst, 1 + rng.below(5), 1)],
        _ => vec![limit(burst, 1 + rng.below(10), 1)],
    }
}

/// Admissions above the bound, and all of them.
fn run(seed: u64, mutant: Option<Mutant>) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let limits = limits(&mut rng);
    let mut often = |most| if rng.below(2) == 0 { 0 } else { rng.below(most) };
    let faults = Faults {
        lost: often(200),
        repeated: often(200),
        stuck: often(300),
        breaks: often(60),
        restarts: often(60),
        server_restarts: often(20),
        limit_changes: often(60),
        delays: true,
    };
    let peers = 1 + rng.below(6) as usize;
    let mut world = QuotaWorld::new(seed, limits, peers, faults).with_mutant(mutant).with_shifts();
    world.run_until(Micros::from_secs(60 + rng.below(120)));
    (world.judge.violations, world.judge.admitted)
}

#[test]
fn nothing_is_admitted_above_the_bound() {
    let mut admitted = 0;
    for seed in 0..run_size(100, 3_000, 100_000) {
        let (violations, all) = run(seed, None);
        assert_eq!(violations, 0, "seed {seed}");
        admitted += all;
    }
    assert!(admitted > 10_000, "{admitted}");
}

#[test]
fn each_broken_rule_is_caught() {
    let mutants = [
        Mutant::Ledger(BrokenRule::GrowthNotPaid),
        Mutant::Ledger(BrokenRule::BurstNotPaid),
        Mutant::Ledger(BrokenRule::NoGuard),
        Mutant::Ledger(BrokenRule::RenewalTakenForKept),
        Mutant::Ledger(BrokenRule::IntervalAloneChanged),
        Mutant::Ledger(BrokenRule::CentralRateNotReduced),
        Mutant::Ledger(BrokenRule::ShrunkAtOnce),
        Mutant::Ledger(BrokenRule::DroppedTakenForWritten),
        Mutant::RestartIsSameHolder,
        Mutant::NoWaitAtStart,
    ];
    for mutant in mutants {
        let caught = (0..3_000).find(|&seed| run(seed, Some(mutant)).0 > 0);
        assert!(caught.is_some(), "{mutant:?}");
    }
}
