//! Concurrent calls of the memory engine under shuttle, in many schedules: random ones, and ones
//! with a few preemptions at chosen points.
//!
//! `TIDEGATE_LONG=1` tries more schedules. Compiled only if the engine uses shuttle's locks:
//! `RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test -p tidegate --test
//! shuttle`.

#![cfg(shuttle)]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use shuttle::rand::Rng as _;
use shuttle::thread;
use tidegate::{
    Call, Charge, Cost, Costs, Decision, Engine, Expiry, HoldId, ManualClock, Memory, Micros, Op,
    Rule, RuleLimit,
};

const KEY: &[u8] = b"key";

/// Upper bound of the preemptions of the second scheduler.
const MAX_PREEMPTIONS: usize = 5;

#[test]
fn threads_on_one_key_admit_exactly_its_capacity() {
    // A packed state; a cell; a packed state that becomes a cell briefly with every peek.
    for (notation, peeks) in [("3/d", false), ("sliding-log 3/d", false), ("3/d", true)] {
        explore(move || {
            let (memory, limit) = (memory(1), limit("r", notation));
            let threads = [(); 3].map(|()| {
                let (memory, limit) = (memory.clone(), limit.clone());
                thread::spawn(move || {
                    let allowed = (0..2).filter(|_| check(&memory, &limit)).count();
                    if peeks {
                        decide(&memory, Op::Peek, &[charge(&limit, KEY, 0)]);
                    }
                    allowed
                })
            });
            let allowed: usize = threads.map(|thread| thread.join().unwrap()).iter().sum();
            assert_eq!(allowed, 3, "{notation}");
            assert_eq!(used(&memory, &limit, KEY), 3, "{notation}");
        });
    }
}

#[test]
fn calls_over_two_rules_in_any_order_never_deadlock_and_charge_both_or_none() {
    explore(|| {
        // The second rule would allow one more.
        let (memory, limits) = (memory(16), [limit("a", "3/d"), limit("b", "4/d")]);
        // Other keys are in other shards.
        let key: [u8; 8] = shuttle::rand::thread_rng().r#gen();
        let threads = [[0, 1], [1, 0], [0, 1]].map(|order| {
            let (memory, limits) = (memory.clone(), limits.clone());
            thread::spawn(move || {
                let charges = order.map(|i| charge(&limits[i], &key, 1));
                (0..2).filter(|_| decide(&memory, Op::Check, &charges).allowed()).count()
            })
        });
        let allowed: usize = threads.map(|thread| thread.join().unwrap()).iter().sum();
        assert_eq!(allowed, 3);
        assert_eq!(limits.each_ref().map(|limit| used(&memory, limit, &key)), [3, 3]);
    });
}

#[test]
fn no_charge_is_lost_while_limits_come_and_go() {
    explore(|| {
        let memory = memory(1);
        let threads = [(); 3].map(|()| {
            let memory = memory.clone();
            thread::spawn(move || {
                // Each has a number until it is dropped; the numbers are soon reused.
                (0..4).for_each(|_| assert!(check(&memory, &new_limit())));
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(used(&memory, &new_limit(), KEY), 12);
    });
}

#[test]
fn no_charge_is_lost_when_a_packed_state_becomes_a_cell_for_a_hold_and_is_packed_again() {
    explore(|| {
        let (memory, limit) = (memory(1), new_limit());
        let checks = {
            let (memory, limit) = (memory.clone(), limit.clone());
            thread::spawn(move || (0..3).for_each(|_| assert!(check(&memory, &limit))))
        };
        let holds = [1, 2].map(|id| {
            let (memory, limit) = (memory.clone(), limit.clone());
            thread::spawn(move || hold_and_settle(&memory, &limit, id))
        });
        checks.join().unwrap();
        holds.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(used(&memory, &limit, KEY), 3 + 2);
    });
}

#[test]
fn no_charge_is_lost_when_holds_come_and_go_under_an_older_limit() {
    explore(|| {
        // A call that was in flight for long: the limits that replaced its own are dropped by all
        // but the entry that they left behind.
        let (memory, old) = (memory(1), new_limit());
        let replacing = [(); 2].map(|()| {
            let memory = memory.clone();
            thread::spawn(move || (0..3).for_each(|_| assert!(check(&memory, &new_limit()))))
        });
        hold_and_settle(&memory, &old, 1);
        hold_and_settle(&memory, &old, 2);
        replacing.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(used(&memory, &new_limit(), KEY), 6 + 2);
    });
}

/// Tries many schedules, each on a new engine.
fn explore(run: impl Fn() + Send + Sync + Clone + 'static) {
    let long = std::env::var("TIDEGATE_LONG").is_ok_and(|value| value == "1");
    let runs = if long { 1_000_000 } else { 30_000 };
    shuttle::check_random(run.clone(), runs);
    shuttle::check_pct(run, runs, MAX_PREEMPTIONS);
}

/// Holds two permits and charges one of them.
fn hold_and_settle(memory: &Memory, limit: &Arc<RuleLimit>, id: u128) {
    let (id, ttl) = (HoldId::from(id), Micros::from_secs(60));
    let hold = Op::hold(id, ttl, Expiry::Release);
    assert!(decide(memory, hold, &[charge(limit, KEY, 2)]).allowed());
    let settle = Op::Settle { id, costs: Costs::All(Cost::ONE) };
    assert!(!decide(memory, settle, &[]).expired());
}

fn check(memory: &Memory, limit: &Arc<RuleLimit>) -> bool {
    decide(memory, Op::Check, &[charge(limit, KEY, 1)]).allowed()
}

fn decide(memory: &Memory, op: Op<'_>, charges: &[Charge<'_>]) -> Decision {
    memory.decide(Call { op, charges, idempotency_key: None }).now().unwrap()
}

fn charge<'a>(limit: &'a Arc<RuleLimit>, key: &'a [u8], cost: u64) -> Charge<'a> {
    Charge { limit, key: key.into(), cost: Cost::new(cost).unwrap(), caller: None }
}

fn used(memory: &Memory, limit: &Arc<RuleLimit>, key: &[u8]) -> u64 {
    memory.inspect(limit, key.into()).now().unwrap().standing.used
}

/// Another limit of the same rule, newer than all before.
fn new_limit() -> Arc<RuleLimit> {
    limit("r", "1000/d")
}

fn limit(rule: &str, notation: &str) -> Arc<RuleLimit> {
    Rule::new(rule, [notation.parse().unwrap()]).unwrap().limits()[0].clone()
}

/// An engine of `shards` shards, whose clock stands still.
fn memory(shards: usize) -> Arc<Memory> {
    let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
    Arc::new(Memory::builder().cap_bytes(shards << 16).clock(clock).build())
}
