//! How much of a limit is used, how fairly, and how fast a shift of demand is followed.

use tidegate::Micros;

use super::world::{Faults, QuotaWorld};
use tidegate_config::envoy::ShareLimit;

struct DemandCase {
    peers: usize,
    count: u64,
    burst: u64,
}

fn world(case: &DemandCase) -> QuotaWorld {
    let limit = ShareLimit::of_rate(case.burst, case.count, Micros::from_secs(1)).unwrap();
    QuotaWorld::new(7, vec![limit], case.peers, Faults::default())
}

fn admitted(world: &QuotaWorld) -> Vec<u64> {
    world.peers.iter().map(|peer| peer.admitted).collect()
}

/// Per cent of the limit that is admitted in two minutes, after one minute; and the shares of each.
fn used(world: &mut QuotaWorld, count: u64) -> (f64, Vec<u64>) {
    world.run_until(Micros::from_secs(60));
    let before = admitted(world);
    world.run_until(Micros::from_secs(180));
    let shares: Vec<u64> =
        admitted(world).iter().zip(&before).map(|(after, before)| after - before).collect();
    assert_eq!(world.judge.violations, 0);
    (100.0 * shares.iter().sum::<u64>() as f64 / (count * 120) as f64, shares)
}

/// Jain's index: 1 if all are equal.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    sum * sum / squares / shares.len() as f64
}

#[test]
fn steady_demand_of_twice_the_limit_uses_it_and_is_shared_evenly() {
    for (case, least) in [
        (DemandCase { peers: 3, count: 100, burst: 100 }, 95.0),
        (DemandCase { peers: 10, count: 100, burst: 100 }, 95.0),
        (DemandCase { peers: 50, count: 100, burst: 200 }, 90.0),
        // Below a request a second for each, or a burst of four: use RLS there.
        (DemandCase { peers: 3, count: 5, burst: 5 }, 50.0),
        (DemandCase { peers: 10, count: 5, burst: 20 }, 50.0),
        (DemandCase { peers: 50, count: 5, burst: 100 }, 40.0),
    ] {
        let mut world = world(&case);
        for peer in &mut world.peers {
            peer.demand = 2.0 * case.count as f64 / case.peers as f64;
        }
        let (used, shares) = used(&mut world, case.count);
        let DemandCase { peers, count, burst } = case;
        println!("{peers} x {count}/s burst {burst}: {used:.1} %, Jain {:.4}", jain(&shares));
        assert!(used >= least && used <= 101.0, "{peers} x {count}/s burst {burst}: {used:.1} %");
        assert!(count < 100 || jain(&shares) > 0.99, "{shares:?}");
    }
}

#[test]
fn skewed_demand_is_met() {
    for peers in [3, 10, 50] {
        let case = DemandCase { peers, count: 100, burst: 200 };
        let mut world = world(&case);
        for (index, peer) in world.peers.iter_mut().enumerate() {
            peer.demand = if index == 0 { 80.0 } else { 60.0 / (peers - 1) as f64 };
        }
        let (used, _) = used(&mut world, case.count);
        println!("skew, {peers}: {used:.1} %");
        assert!(used >= 80.0, "{peers}: {used:.1} %");
    }
}

#[test]
fn after_a_total_shift_of_demand_the_limit_is_used_within_20_seconds() {
    for peers in [4, 10, 50] {
        let case = DemandCase { peers, count: 100, burst: 200 };
        let mut world = world(&case);
        let demand = 200.0 / (peers / 2) as f64;
        for (index, peer) in world.peers.iter_mut().enumerate() {
            peer.demand = if index % 2 == 0 { demand } else { 0.0 };
        }
        world.run_until(Micros::from_secs(120));
        for (index, peer) in world.peers.iter_mut().enumerate() {
            peer.demand = if index % 2 == 1 { demand } else { 0.0 };
        }
        world.run_until(Micros::from_secs(140));
        let before = admitted(&world);
        world.run_until(Micros::from_secs(150));
        let new: Vec<u64> = admitted(&world).iter().zip(&before).map(|(a, b)| a - b).collect();
        let used = new.iter().sum::<u64>() as f64 / 10.0;
        println!("shift, {peers}: {used:.1} % after 20 s");
        assert!(used >= 90.0, "{peers}: {used:.1} %");
    }
}

#[test]
fn callers_of_the_central_bucket_get_their_part() {
    let case = DemandCase { peers: 3, count: 100, burst: 100 };
    let mut world = world(&case);
    world.central_demand = 100.0;
    for peer in &mut world.peers {
        peer.demand = 100.0;
    }
    let (used, shares) = used(&mut world, case.count);
    let central = world.central_admitted as f64 / 180.0;
    println!("{used:.1} % to holders, {central:.1} a second to central callers, {shares:?}");
    assert!((18.0..=32.0).contains(&central), "{central}");
    assert!(used + central >= 90.0, "{used} {central}");
}
