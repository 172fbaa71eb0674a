//! Decisions that the cache of denials may return, and those that it must not.
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{
    Call, Charge, Clock, Cost, Costs, Decision, DenyCache, Engine, EngineError, EngineFuture,
    Expiry, Health, HoldId, Inspection, Key, ManualClock, Memory, Micros, Op, Refusal, Rule,
    RuleLimit, Source, Wait,
};

/// A store that counts its calls.
struct CountingEngine {
    memory: Arc<Memory>,
    calls: Arc<AtomicU64>,
    /// Calls are decided, and their replies lost.
    loses_replies: Arc<AtomicBool>,
}

impl Engine for CountingEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let decided = self.memory.decide(call);
        match self.loses_replies.load(Ordering::Relaxed) {
            true => EngineFuture::Ready(Err(EngineError::Ambiguous(Arc::new(Refusal::IdReused)))),
            false => decided,
        }
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.memory.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

struct Bench {
    cache: DenyCache<CountingEngine>,
    /// The same store, as another process would see it.
    store: Arc<Memory>,
    calls: Arc<AtomicU64>,
    loses_replies: Arc<AtomicBool>,
    clock: ManualClock,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::new(Micros::new(1_700_000_000_000_500));
        let store = Arc::new(Memory::builder().clock(clock.clone()).build());
        let calls = Arc::default();
        let loses_replies: Arc<AtomicBool> = Arc::default();
        let counted = CountingEngine {
            memory: Arc::clone(&store),
            calls: Arc::clone(&calls),
            loses_replies: Arc::clone(&loses_replies),
        };
        Self { cache: DenyCache::new(counted), store, calls, loses_replies, clock }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

fn limit(rule: &str, notation: &str) -> Arc<RuleLimit> {
    Rule::new(rule, [notation.parse().unwrap()]).unwrap().limits()[0].clone()
}

fn charge<'a>(limit: &'a Arc<RuleLimit>, key: &'a str, cost: u64) -> Charge<'a> {
    Charge { limit, key: key.into(), cost: Cost::new(cost).unwrap(), caller: None }
}

fn decide(engine: &impl Engine, op: Op<'_>, charges: &[Charge<'_>]) -> Decision {
    engine.decide(Call { op, charges, idempotency_key: None }).now().unwrap()
}

fn check(engine: &impl Engine, limit: &Arc<RuleLimit>, cost: u64) -> Decision {
    decide(engine, Op::Check, &[charge(limit, "k", cost)])
}

#[test]
fn a_denial_is_served_from_the_cache_until_it_ends_and_counts_down() {
    let bench = Bench::new();
    let limit = limit("r", "1/500ms burst 5");
    assert_eq!((0..5).filter(|_| check(&bench.cache, &limit, 1).allowed()).count(), 5);
    let first = check(&bench.cache, &limit, 1);
    assert_eq!((first.allowed(), first.source, bench.calls()), (false, Source::Memory, 6));
    for passed in 1..500 {
        bench.clock.advance(Duration::from_millis(1));
        let denied = check(&bench.cache, &limit, 1);
        let truth = decide(&*bench.store, Op::Peek, &[charge(&limit, "k", 0)]);
        assert_eq!(denied.source, Source::DenyCache, "after {passed} ms");
        assert_eq!(denied.retry_after(), truth.retry_after(), "after {passed} ms");
        let (one, other) = (denied.verdict(), truth.verdict());
        assert_eq!((one.remaining, one.reset_after), (other.remaining, other.reset_after));
    }
    assert_eq!(bench.calls(), 6);
    bench.clock.advance(Duration::from_millis(1));
    assert!(check(&bench.cache, &limit, 1).allowed());
}

#[test]
fn an_entry_lasts_a_second_at_most_and_serves_higher_costs_but_no_lower_ones() {
    let bench = Bench::new();
    let limit = limit("r", "1/m burst 10");
    check(&bench.cache, &limit, 8);
    assert!(!check(&bench.cache, &limit, 4).allowed());
    let at = bench.calls();
    let larger = check(&bench.cache, &limit, 6);
    assert_eq!((larger.source, larger.allowed()), (Source::DenyCache, false));
    let truth = Wait::For(Micros::from_secs(240));
    assert!(larger.retry_after() < truth, "a lower bound, or less than the truth");
    assert_eq!(check(&bench.cache, &limit, 11).retry_after(), Wait::Never);
    assert_eq!(bench.calls(), at);
    assert!(check(&bench.cache, &limit, 2).allowed(), "a smaller cost goes to the store");
    assert_eq!(bench.calls(), at + 1);
    check(&bench.cache, &limit, 4);
    bench.clock.advance(Duration::from_millis(999));
    assert_eq!(check(&bench.cache, &limit, 4).source, Source::DenyCache);
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(check(&bench.cache, &limit, 4).source, Source::Memory);
}

/// A client that retries too early is denied again.
#[test]
fn what_is_charged_or_held_through_it_lengthens_the_wait_at_once() {
    let minute = Micros::from_secs(60);
    let changes = ["record", "check", "check with an id", "hold", "renew", "reply lost"];
    for change in changes {
        let bench = Bench::new();
        let limit = limit("r", "sliding-log 10/1h");
        let held = HoldId::random().unwrap();
        decide(&bench.cache, Op::hold(held, minute, Expiry::Release), &[charge(&limit, "k", 2)]);
        check(&bench.cache, &limit, 6);
        let before = check(&bench.cache, &limit, 3);
        assert_eq!((before.allowed(), before.source), (false, Source::Memory));
        assert_eq!(check(&bench.cache, &limit, 3).source, Source::DenyCache, "cached");
        bench.clock.advance(Duration::from_millis(100));
        let one = [charge(&limit, "k", 2)];
        let call = |op| Call { op, charges: &one, idempotency_key: None };
        let made = match change {
            "record" => bench.cache.decide(call(Op::Record)),
            "check" => bench.cache.decide(call(Op::Check)),
            "check with an id" => {
                let id = tidegate::IdempotencyKey::new("id").unwrap();
                bench.cache.decide(Call { idempotency_key: Some(id), ..call(Op::Check) })
            }
            "hold" => {
                let id = HoldId::random().unwrap();
                bench.cache.decide(call(Op::hold(id, Micros::from_secs(600), Expiry::Release)))
            }
            "renew" => {
                let op = Op::Renew { id: held, ttl: Micros::from_secs(600) };
                bench.cache.decide(Call { charges: &[], ..call(op) })
            }
            _ => {
                bench.loses_replies.store(true, Ordering::Relaxed);
                let lost = bench.cache.decide(call(Op::Check)).now().unwrap_err();
                bench.loses_replies.store(false, Ordering::Relaxed);
                assert!(matches!(lost, EngineError::Ambiguous(_)));
                bench.cache.decide(call(Op::Peek))
            }
        };
        made.now().unwrap();
        let truth = check(&*bench.store, &limit, 3);
        assert!(truth.retry_after() > before.retry_after(), "{change}: the wait is longer");
        assert_eq!(check(&bench.cache, &limit, 3).retry_after(), truth.retry_after(), "{change}");
    }
}

#[test]
fn permits_returned_through_it_are_seen_at_once_and_others_after_a_second() {
    let holds = |id| Op::hold(id, Micros::from_secs(60), Expiry::Release);
    let notation = "fixed-window 5/1h";
    for case in ["refund", "reset", "settle", "raise", "elsewhere"] {
        let bench = Bench::new();
        let limit_of = |notation: &str| limit("r", notation);
        let limit = limit_of(notation);
        let id = HoldId::random().unwrap();
        decide(&bench.cache, holds(id), &[charge(&limit, "k", 2)]);
        check(&bench.cache, &limit, 3);
        assert!(!check(&bench.cache, &limit, 1).allowed());
        assert_eq!(check(&bench.cache, &limit, 1).source, Source::DenyCache);
        let back = &[charge(&limit, "k", 1)];
        let noticed = match case {
            "refund" => decide(&bench.cache, Op::Refund, back).allowed(),
            "reset" => decide(&bench.cache, Op::Reset, back).allowed(),
            "settle" => {
                let op = Op::Settle { id, costs: Costs::All(Cost::ZERO) };
                decide(&bench.cache, op, &[]);
                true
            }
            "raise" => {
                assert!(check(&bench.cache, &limit_of("fixed-window 6/1h"), 1).allowed());
                continue;
            }
            _ => {
                decide(&*bench.store, Op::Refund, back);
                false
            }
        };
        assert_eq!(check(&bench.cache, &limit, 1).allowed(), noticed, "{case}");
        bench.clock.advance(Duration::from_secs(1));
        assert!(noticed || check(&bench.cache, &limit, 1).allowed(), "{case}");
    }
}

#[test]
fn calls_with_an_id_peeks_and_sums_go_to_the_store() {
    let bench = Bench::new();
    let limit = limit("r", "1/m burst 3");
    check(&bench.cache, &limit, 3);
    check(&bench.cache, &limit, 1);
    let id = tidegate::IdempotencyKey::new("id").unwrap();
    let at = bench.calls();
    let charges = [charge(&limit, "k", 1)];
    let call = Call { op: Op::Check, charges: &charges, idempotency_key: Some(id) };
    assert_eq!(bench.cache.decide(call).now().unwrap().source, Source::Memory);
    let twice = [charges[0], charges[0]];
    assert_eq!(decide(&bench.cache, Op::Check, &twice).source, Source::Memory);
    assert_eq!(decide(&bench.cache, Op::Peek, &charges).source, Source::Memory);
    assert_eq!(bench.calls(), at + 3);
}

#[test]
fn a_call_over_several_limits_needs_a_cached_entry_for_all_of_them() {
    let bench = Bench::new();
    let (wide, narrow) = (limit("wide", "1/m burst 100"), limit("narrow", "1/m burst 1"));
    let both = |key| [charge(&wide, "all", 1), charge(&narrow, key, 1)];
    assert!(decide(&bench.cache, Op::Check, &both("a")).allowed());
    let denied = decide(&bench.cache, Op::Check, &both("a"));
    assert_eq!((denied.allowed(), denied.source), (false, Source::Memory));
    let repeated = decide(&bench.cache, Op::Check, &both("a"));
    assert_eq!((repeated.source, &repeated.verdicts), (Source::DenyCache, &denied.verdicts));
    // There is no entry for this key, and it may pass.
    assert!(decide(&bench.cache, Op::Check, &both("b")).allowed());
    assert!(check(&bench.cache, &wide, 1).allowed());
}

/// All calls go through the cache, and its decisions must equal those of the store.
#[test]
fn it_decides_as_the_store_on_random_traffic() {
    const STEPS: u64 = 40_000;
    let notations = [
        "10/s",
        "5/s burst 10 every 1s",
        "leaky-bucket 2/s capacity 10 queue",
        "fixed-window 10/2s",
        "fixed-window 10/2s first-hit",
        "sliding-log 10/2s",
        "sliding-window 10/2s precision 300ms",
        "sliding-window 10/2s approximate",
    ];
    let (mut denials, mut from_cache) = (0_u64, 0_u64);
    // With one cost, a denial from the cache is the store's; with several, its wait may be shorter.
    let runs = notations.into_iter().flat_map(|notation| [(notation, 4), (notation, 1)]);
    for (seed, (notation, costs)) in runs.enumerate() {
        let (bench, twin) = (Bench::new(), Bench::new());
        let limits = ["a", "b"].map(|rule| limit(rule, notation));
        let mut random = Random(seed as u64 + 1);
        let mut holds = Vec::new();
        for step in 0..STEPS {
            let cost = 1 + random.below(costs);
            let of = random.below(2) as usize;
            let key = ["x", "y"][random.below(2) as usize];
            let one = [charge(&limits[of], key, cost)];
            let several = [one[0], charge(&limits[1 - of], "z", 1 + random.below(costs.min(2)))];
            let charges = if random.below(4) == 0 { &several[..] } else { &one[..] };
            let op = match random.below(100) {
                0 => Op::Refund,
                1 if random.below(10) == 0 => Op::Reset,
                2 => Op::Record,
                3..5 => {
                    let id = HoldId::random().unwrap();
                    holds.push(id);
                    Op::hold(id, Micros::from_secs(3), Expiry::Release)
                }
                5..7 if !holds.is_empty() => {
                    let id = holds.swap_remove(random.below(holds.len() as u64) as usize);
                    Op::Settle { id, costs: Costs::All(Cost::new(random.below(3)).unwrap()) }
                }
                _ => Op::Check,
            };
            let charges = if matches!(op, Op::Settle { .. }) { &[] } else { charges };
            let call = Call { op, charges, idempotency_key: None };
            let (cached, direct) = (bench.cache.decide(call).now(), twin.store.decide(call).now());
            // A hold that was denied cannot be settled in either.
            let (Ok(cached), Ok(direct)) = (cached, direct) else { continue };
            assert_eq!(cached.allowed(), direct.allowed(), "{notation}, step {step}, {op:?}");
            if cached.source == Source::DenyCache {
                from_cache += 1;
                let [wait, truth] = [&cached, &direct].map(Decision::retry_after);
                assert!(wait == truth || (costs > 1 && wait < truth), "{notation}, step {step}");
            }
            denials += u64::from(!cached.allowed());
            let pause = Duration::from_millis(random.below(40));
            bench.clock.advance(pause);
            twin.clock.advance(pause);
        }
    }
    writeln!(
        std::io::stderr(),
        "deny cache: {denials} denials, {from_cache} of them without the store, 0 differ"
    )
    .unwrap();
    assert!(from_cache > denials / 4, "too few denials came from the cache");
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
