//! Eight threads at once on the memory engine: the bounds hold, nothing deadlocks, nothing is
//! charged twice or partly.
//!
//! Every figure is computed from the raw log of the decisions as their callers saw them.

use std::future::IntoFuture;
use std::io::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use tidegate::{
    Call, Clock, Decision, Engine, EngineFuture, Health, Inspection, Key, Limit, Limited, Limiter,
    ManualClock, Memory, Micros, Reservation, Rule, RuleCheck, RuleLimit, SystemClock,
};
use tidegate_model::TraceRng;

use testkit::bounds::{IntervalBound, LoggedDecision};
use testkit::now_or_never::now_or_panic;

const THREADS: usize = 8;
const MANY_KEYS: u64 = 100_000;
const SECOND: u64 = 1_000_000;
/// A thread that has not ended by then is taken to be stuck.
const TIMEOUT: Duration = Duration::from_secs(60);

// --- one limit ---------------------------------------------------------------------------------

#[test]
fn while_the_clock_stands_still_one_key_admits_exactly_its_capacity() {
    for notation in [
        "1000/m burst 1000",
        "leaky-bucket 1000/m",
        "token-bucket 1000/m burst 1000 every 6s",
        "fixed-window 1000/1m",
        "fixed-window 1000/1m first-hit",
        "sliding-log 1000/1m",
        "sliding-window 1000/1m",
        "sliding-window 1000/1m approximate",
    ] {
        let clock = ManualClock::default();
        let limiter = limiter(notation, clock.clone());
        let log = on_all_threads(|_, log| {
            for _ in 0..500 {
                log.push(check(&limiter, &clock, 0, 1));
            }
        });
        let admitted = log.iter().filter(|entry| entry.allowed).count();
        print_figure(&format!(
            "threads: 8 on one key, {notation}, clock standing still: {} decisions, admitted \
             {admitted}, bound 1000, over-admitted {}",
            log.len(),
            admitted.saturating_sub(1_000)
        ));
        assert_eq!(admitted, 1_000, "{notation}");
    }
}

#[test]
fn while_the_clock_stands_still_each_of_many_keys_admits_exactly_its_capacity() {
    let clock = ManualClock::default();
    let limiter = limiter("5/m burst 5", clock.clone());
    // All threads visit the same keys, each with another offset and stride.
    let log = on_all_threads(|thread, log| {
        let stride = 1 + 2 * (thread as u64 + 7);
        for i in 0..MANY_KEYS {
            log.push(check(&limiter, &clock, (i * stride + thread as u64) % MANY_KEYS, 1));
        }
    });
    let mut admitted = vec![0_u64; MANY_KEYS as usize];
    let mut requested = admitted.clone();
    for entry in &log {
        requested[entry.key as usize] += 1;
        admitted[entry.key as usize] += u64::from(entry.allowed);
    }
    let wrong = admitted
        .iter()
        .zip(&requested)
        .filter(|(got, requested)| **got != (**requested).min(5))
        .count();
    let over: u64 = admitted.iter().map(|got| got.saturating_sub(5)).sum();
    print_figure(&format!(
        "threads: 8 on {MANY_KEYS} keys, 5/m burst 5, clock standing still: {} decisions, admitted \
         {}, bound {}, over-admitted {over}, keys with another count than due {wrong}",
        log.len(),
        admitted.iter().sum::<u64>(),
        5 * MANY_KEYS
    ));
    assert_eq!((over, wrong), (0, 0));
}

#[test]
fn while_another_thread_moves_the_clock_one_key_keeps_its_bound() {
    let bucket = IntervalBound::Bucket { burst: 20, count: 100, period: SECOND };
    let window = IntervalBound::Window { limit: 50, window: SECOND };
    for (notation, bound) in [
        ("100/s burst 20", bucket),
        ("leaky-bucket 100/s capacity 20", bucket),
        ("sliding-log 50/1s", window),
        ("sliding-window 50/1s precision 50ms", window),
    ] {
        let clock = ManualClock::default();
        let limiter = limiter(notation, clock.clone());
        let pace = ClockPacer::new(&clock, 10 * SECOND, 100);
        let log = on_all_threads(|_, log| {
            while pace.advance() {
                log.push(check(&limiter, &clock, 0, 1));
            }
        });
        let found = bound.check(&log);
        print_figure(&format!(
            "threads: 8 on one key, {notation}, clock moving by 10 s: {} decisions, admitted {}, \
             over-admitted {}",
            found.decisions, found.admitted, found.over
        ));
        assert_eq!(found.over, 0, "{notation}");
        // Requests were continuous, so most of the permits that were due were admitted.
        assert!(found.admitted > 400, "{notation}: only {} admitted", found.admitted);
    }
}

#[test]
fn while_another_thread_moves_the_clock_many_keys_keep_their_bounds() {
    let bucket = IntervalBound::Bucket { burst: 3, count: 1, period: SECOND };
    let window = IntervalBound::Window { limit: 3, window: SECOND };
    for (notation, bound) in [("1/s burst 3", bucket), ("sliding-log 3/1s", window)] {
        let clock = ManualClock::default();
        let limiter = limiter(notation, clock.clone());
        let pace = ClockPacer::new(&clock, 4 * SECOND, 20);
        let log = on_all_threads(|thread, log| {
            let mut rng = TraceRng::new(thread as u64);
            while pace.advance() {
                // Half of the calls use a few keys, so that these reach their limit.
                let among = if rng.below(2) == 0 { 100 } else { MANY_KEYS };
                log.push(check(&limiter, &clock, rng.below(among), 1 + rng.below(3)));
            }
        });
        let found = bound.check(&log);
        print_figure(&format!(
            "threads: 8 on {MANY_KEYS} keys, {notation}, clock moving by 4 s: {} decisions, \
             admitted {}, over-admitted {}",
            found.decisions, found.admitted, found.over
        ));
        assert_eq!(found.over, 0, "{notation}");
    }
}

#[test]
fn with_the_system_clock_one_key_and_many_keep_their_bounds() {
    let bucket = |burst, count| IntervalBound::Bucket { burst, count, period: SECOND };
    let window = |limit| IntervalBound::Window { limit, window: SECOND / 10 };
    for (notation, keys, bound) in [
        ("2000/s burst 100", 1, bucket(100, 2_000)),
        ("sliding-log 100/100ms", 1, window(100)),
        ("5/s burst 2", MANY_KEYS, bucket(2, 5)),
        ("sliding-log 2/100ms", MANY_KEYS, window(2)),
    ] {
        let limiter = Limiter::new(Memory::default(), limit(notation));
        let end = SystemClock.now().saturating_add(Micros::from_millis(150));
        let log = on_all_threads(|thread, log| {
            let mut rng = TraceRng::new(thread as u64);
            while SystemClock.now() < end {
                // Mostly the same few keys, so that they reach their limit.
                let among = if rng.below(4) > 0 { keys.min(1_000) } else { keys };
                log.push(check(&limiter, &SystemClock, rng.below(among), 1));
            }
        });
        let found = bound.check(&log);
        print_figure(&format!(
            "threads: 8 on {keys} keys, {notation}, system clock for 150 ms: {} decisions, \
             admitted {}, over-admitted {}",
            found.decisions, found.admitted, found.over
        ));
        assert_eq!(found.over, 0, "{notation}");
    }
}

// --- several limits ----------------------------------------------------------------------------

#[test]
fn calls_over_several_rules_in_any_order_never_deadlock_and_charge_all_or_none() {
    const KEYS: u64 = 20;
    const RULES: [(&str, &str, u64); 3] = [
        ("bucket", "300/h burst 300", 300),
        ("window", "fixed-window 500/1h", 500),
        ("log", "sliding-log 700/1h", 700),
    ];
    let rules = RULES.map(|(name, notation, _)| Rule::new(name, [limit(notation)]).unwrap());
    let memory = Memory::builder().clock(ManualClock::default()).build();
    let limiter = Limiter::with_rules(memory, rules).unwrap();
    let shared_limiter = limiter.clone();
    // The allowed calls of each thread: the keys under the three rules.
    let allowed: Vec<Vec<[u64; 3]>> = on_threads_with_timeout(move |thread| {
        let mut rng = TraceRng::new(thread as u64);
        let mut allowed = Vec::new();
        for _ in 0..5_000 {
            let keys: [u64; 3] = std::array::from_fn(|_| rng.below(KEYS));
            let bytes = keys.map(u64::to_ne_bytes);
            let mut checks = [0, 1, 2].map(|rule| RuleCheck::new(RULES[rule].0, &bytes[rule][..]));
            checks.swap(0, rng.below(3) as usize);
            checks.swap(1, 1 + rng.below(2) as usize);
            if shared_limiter.check_each(&checks).now().unwrap().allowed() {
                allowed.push(keys);
            }
        }
        allowed
    });

    // The remaining permits of each key under each rule: exactly the capacity less the allowed
    // calls.
    let (mut calls, mut half_charged, mut over) = (0, 0, 0);
    for (rule, (name, _, capacity)) in RULES.iter().enumerate() {
        let mut admitted = 0;
        for key in 0..KEYS {
            let allowed_count =
                allowed.iter().flatten().filter(|keys| keys[rule] == key).count() as u64;
            let bytes = key.to_ne_bytes();
            let checks = [RuleCheck::new(name, &bytes[..])];
            let left = (0..=*capacity)
                .take_while(|_| limiter.check_each(&checks).now().unwrap().allowed())
                .count() as u64;
            over += allowed_count.saturating_sub(*capacity);
            half_charged += u64::from(allowed_count + left != *capacity);
            admitted += allowed_count;
        }
        calls = calls.max(admitted);
        assert_eq!(admitted, allowed.iter().flatten().count() as u64);
    }
    print_figure(&format!(
        "threads: 8 with three rules in random order: {} calls, {calls} allowed, over-admitted \
         {over}, keys charged other than once per allowed call {half_charged}, stuck 0",
        THREADS * 5_000
    ));
    assert_eq!((over, half_charged), (0, 0));
}

#[test]
fn every_kind_of_call_at_once_in_little_memory_never_deadlocks() {
    let rules = [
        Rule::new("bucket", [limit("50/s burst 50")]).unwrap(),
        Rule::new("log", [limit("sliding-log 50/1s"), limit("fixed-window 500/1m")]).unwrap(),
    ];
    let clock = ManualClock::default();
    // So little that keys overflow and holds are refused.
    let memory = Memory::builder().cap_bytes(64 << 10).clock(clock.clone()).build();
    let limiter = Limiter::with_rules(memory, rules).unwrap();
    let calls: u64 = on_threads_with_timeout(move |thread| {
        let mut rng = TraceRng::new(thread as u64);
        let mut held: Vec<Reservation> = Vec::new();
        for call in 0..10_000_u64 {
            any_call(&limiter, &mut rng, &mut held);
            if thread == 0 && call % 20 == 0 {
                clock.advance(Duration::from_millis(rng.below(50)));
            }
        }
        10_000_u64
    })
    .iter()
    .sum();
    print_figure(&format!("threads: 8 with every kind of call in 64 KiB: {calls} calls, stuck 0"));
}

/// One call of a random kind on a random key. Whether it is refused does not matter here.
fn any_call(limiter: &Limiter, rng: &mut TraceRng, held: &mut Vec<Reservation>) {
    let bytes = rng.below(2_000).to_ne_bytes();
    let other = rng.below(2_000).to_ne_bytes();
    let (key, other) = (&bytes[..], &other[..]);
    let id = format!("id-{}", rng.below(50));
    let cost = 1 + rng.below(3);
    match rng.below(12) {
        0 => drop(limiter.check_now(key)),
        1 => drop(
            limiter
                .check_each(&[RuleCheck::new("log", key), RuleCheck::new("bucket", other)])
                .now(),
        ),
        2 => drop(limiter.check(key).idempotency_key(&id).now()),
        3 => drop(limiter.record(key, cost).now()),
        4 => drop(limiter.refund(key, cost).now()),
        5 => drop(limiter.reset(key).now()),
        6 => drop(now_or_panic(limiter.inspect(key))),
        7 => drop(limiter.engine().health()),
        8 => {
            let notation = format!("{0}/s burst {0}", 10 + rng.below(90));
            limiter.set_rule(Rule::new("bucket", [limit(&notation)]).unwrap()).unwrap();
        }
        9 => held.extend(now_or_panic(limiter.reserve(key, cost).ttl(Duration::from_secs(1)))),
        10 => drop(held.last().map(|last| now_or_panic(last.renew(Duration::from_secs(2))))),
        _ => drop(held.pop().map(|last| now_or_panic(last.commit(cost)))),
    }
    held.truncate(20);
}

// --- holds -------------------------------------------------------------------------------------

#[test]
fn there_are_never_more_holders_than_slots() {
    const MAX: i64 = 16;
    let clock = ManualClock::default();
    let limiter = limiter("concurrency 16", clock);
    let (holders, max_holders, granted, denied) =
        (AtomicI64::new(0), AtomicI64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    // Counted after a grant and before a release, so never too many.
    let enter = || {
        let now = 1 + holders.fetch_add(1, Ordering::SeqCst);
        max_holders.fetch_max(now, Ordering::SeqCst);
    };
    let leave = || holders.fetch_sub(1, Ordering::SeqCst);
    on_all_threads(|thread, _| {
        let mut rng = TraceRng::new(thread as u64);
        let mut held: Vec<Reservation> = Vec::new();
        for _ in 0..10_000 {
            match rng.below(8) {
                0..=3 => match now_or_panic(limiter.reserve("pool", 1)) {
                    Ok(reservation) => {
                        enter();
                        granted.fetch_add(1, Ordering::Relaxed);
                        held.push(reservation);
                    }
                    Err(Limited::Denied(_)) => drop(denied.fetch_add(1, Ordering::Relaxed)),
                    Err(Limited::NoAnswer(error)) => panic!("{error}"),
                },
                4 => {
                    if let Some(last) = held.last() {
                        assert!(
                            !now_or_panic(last.renew(Duration::from_secs(30))).unwrap().expired()
                        );
                    }
                }
                kind => {
                    let Some(reservation) = held.pop() else { continue };
                    leave();
                    match kind {
                        5 => drop(now_or_panic(reservation.commit_all()).unwrap()),
                        6 => drop(now_or_panic(reservation.cancel()).unwrap()),
                        _ => drop(reservation),
                    }
                }
            }
        }
        for reservation in held {
            leave();
            drop(reservation);
        }
    });
    let (max_holders, granted) = (max_holders.into_inner(), granted.into_inner());
    let left = (0..MAX)
        .filter(|_| now_or_panic(limiter.reserve("pool", 1)).map(Reservation::keep).is_ok());
    let left = left.count();
    print_figure(&format!(
        "threads: 8 on concurrency 16: {granted} reserved, {} denied, at most {max_holders} holders at a \
         time, {} held at the end",
        denied.into_inner(),
        16 - left
    ));
    assert!(max_holders <= MAX);
    assert!(max_holders == MAX, "all sixteen slots were taken at least once");
    assert_eq!(left, 16);
    assert_eq!(holders.into_inner(), 0);
}

#[test]
fn there_are_never_more_holders_within_their_lease_than_slots_while_the_clock_moves() {
    const LEASE: u64 = SECOND;
    let clock = ManualClock::default();
    let limiter = limiter("concurrency 16 lease 1s", clock.clone());
    let pace = ClockPacer::new(&clock, 4 * SECOND, 25);
    let spans = on_all_threads(|thread, spans| {
        let mut rng = TraceRng::new(thread as u64);
        let mut held: Vec<(Reservation, LoggedDecision)> = Vec::new();
        while pace.advance() {
            let before = clock.now().get();
            if held.is_empty() || (held.len() < 4 && rng.one_in(2)) {
                if let Ok(reservation) = now_or_panic(limiter.reserve("pool", 1)) {
                    held.push((reservation, certain_span(clock.now().get(), before + LEASE)));
                }
                continue;
            }
            let one = rng.below(held.len() as u64) as usize;
            let renewed = now_or_panic(held[one].0.renew(Duration::from_micros(LEASE))).unwrap();
            // A hold that had ended before stays ended.
            if !renewed.expired() {
                held[one].1.after = before + LEASE;
            }
            if renewed.expired() || rng.one_in(4) {
                let (reservation, mut span) = held.swap_remove(one);
                span.after = span.after.min(clock.now().get());
                spans.push(span);
                // Some are never released; the end of the lease releases them.
                if rng.one_in(1_000) {
                    reservation.keep();
                }
            }
        }
        let now = clock.now().get();
        spans.extend(
            held.iter().map(|(_, span)| LoggedDecision { after: span.after.min(now), ..*span }),
        );
    });
    let mut ends: Vec<(u64, i64)> = Vec::new();
    for span in spans.iter().filter(|span| span.before < span.after) {
        ends.extend([(span.before, 1), (span.after, -1)]);
    }
    // At one instant, releases precede grants.
    ends.sort_unstable();
    let (mut holders, mut max_holders) = (0, 0);
    for (_, change) in &ends {
        holders += change;
        max_holders = max_holders.max(holders);
    }
    clock.advance(Duration::from_secs(2));
    let left =
        (0..16).filter(|_| now_or_panic(limiter.reserve("pool", 1)).map(Reservation::keep).is_ok());
    let left = left.count();
    print_figure(&format!(
        "threads: 8 on concurrency 16 with leases of 1 s, clock moving by 4 s: {} reserved, at \
         most {max_holders} holders within their lease, {} held after the last lease",
        spans.len(),
        16 - left
    ));
    assert!(max_holders <= 16);
    assert!(max_holders > 4, "several threads held at a time");
    assert_eq!(left, 16);
}

/// A span in which a thread certainly held a slot. It begins at the clock reading after the grant
/// and ends at the reading before the release, at most one lease after the reading before the grant
/// or the last renewal.
fn certain_span(start: u64, end: u64) -> LoggedDecision {
    LoggedDecision { key: 0, cost: 1, allowed: true, before: start, after: end }
}

// --- idempotency -------------------------------------------------------------------------------

#[test]
fn the_same_ids_from_every_thread_are_charged_once_and_get_equal_decisions() {
    const IDS: usize = 1_000;
    const CAPACITY: usize = 1_500;
    for notation in ["1500/h burst 1500", "sliding-log 1500/1h"] {
        let limiter = limiter(notation, ManualClock::default());
        let ids: Vec<String> = (0..IDS).map(|id| format!("order-{id}")).collect();
        let barrier = Barrier::new(THREADS);
        let decisions: Vec<Vec<Decision>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (limiter, ids, barrier) = (&limiter, &ids, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        // Half of the threads use the reverse order.
                        let index = |i| if thread % 2 == 0 { i } else { IDS - 1 - i };
                        let mut decisions: Vec<Option<Decision>> = vec![None; IDS];
                        for i in (0..IDS).map(index) {
                            decisions[i] =
                                Some(limiter.check("k").idempotency_key(&ids[i]).now().unwrap());
                        }
                        decisions.into_iter().flatten().collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let different = (0..IDS)
            .filter(|id| decisions.iter().any(|t| t[*id].verdicts != decisions[0][*id].verdicts))
            .count();
        let denied = decisions.iter().flatten().filter(|decision| !decision.allowed()).count();
        // The remaining permits show what was charged.
        let left = (0..=CAPACITY).filter(|_| limiter.check_now("k").unwrap().allowed()).count();
        print_figure(&format!(
            "threads: 8 with the same {IDS} ids, {notation}: charged {}, due {IDS}, ids with \
             different decisions {different}, denied {denied}",
            CAPACITY - left
        ));
        assert_eq!(CAPACITY - left, IDS, "{notation}");
        assert_eq!((different, denied), (0, 0), "{notation}");
    }
}

// --- changing limits ---------------------------------------------------------------------------

const CHANGES: u64 = 10_000;
/// Enough to use up what a change may add.
const DECISIONS_PER_CHANGE: u64 = 20;

#[test]
fn limits_that_change_at_random_admit_no_more_than_their_increases() {
    for [head, tail] in [["token-bucket ", "/h"], ["fixed-window ", "/1h"], ["sliding-log ", "/1h"]]
    {
        let mut rng = TraceRng::new(50);
        let capacities: Vec<u64> = (0..=CHANGES).map(|_| 1 + rng.below(100)).collect();
        let found = change(&capacities, |capacity| format!("{head}{capacity}{tail}"));
        found.print_figure(&format!("{head}1..100{tail}, changed at random"));
        assert!(found.admitted <= found.bound, "{head}");
    }
}

/// The strictest case: no permit is ever added, so nothing beyond the first capacity may pass. A
/// call that began under the previous limit must not make that limit active again.
#[test]
fn limits_that_only_shrink_admit_no_more_than_the_first() {
    for [head, tail] in [["token-bucket ", "/h"], ["fixed-window ", "/1h"]] {
        let capacities: Vec<u64> = (1..=CHANGES + 1).rev().collect();
        let found = change(&capacities, |capacity| format!("{head}{capacity}{tail}"));
        found.print_figure(&format!("{head}{}{tail}, smaller by one {CHANGES} times", CHANGES + 1));
        assert!(found.admitted <= found.bound, "{head}");
    }
}

#[test]
fn a_call_that_began_under_a_larger_limit_does_not_make_it_active_again() {
    let memory = Memory::builder().clock(ManualClock::default()).build();
    let limiter = Limiter::new(PolledEngine(memory), limit("10/h"));
    let mut admitted = u64::from(now_or_panic(limiter.check("k").cost(10)).unwrap().allowed()) * 10;
    for capacity in (1..10).rev() {
        let begun = limiter.check("k").into_future();
        limiter.set_limit(limit(&format!("{capacity}/h"))).unwrap();
        admitted += u64::from(now_or_panic(limiter.check("k")).unwrap().allowed());
        admitted += u64::from(now_or_panic(begun).unwrap().allowed());
    }
    print_figure(&format!(
        "threads: 10/h smaller by one 9 times, each during a call: admitted {admitted}, bound 10, \
         over-admitted {}",
        admitted.saturating_sub(10)
    ));
    assert_eq!(admitted, 10);
}

/// Two limiters on one engine stand for two threads, one of which has not seen the change yet.
#[test]
fn an_inspection_under_an_older_limit_reads_the_state_as_the_newer_one_wrote_it() {
    let memory = Arc::new(Memory::builder().clock(ManualClock::default()).build());
    let rule = |text: &str| Rule::new("rule", [limit(text)]).unwrap();
    let older = Limiter::with_rules(memory.clone(), [rule("5/s")]).unwrap();
    let newer = Limiter::with_rules(memory, [rule("100/h")]).unwrap();
    assert!(newer.check("k").cost(50).now().unwrap().allowed());
    let used = |limiter: &Limiter| now_or_panic(limiter.inspect("k")).unwrap()[0].standing.used;
    assert_eq!((used(&newer), used(&older)), (50, 50));
}

/// Decides when it is polled and not before, as a remote engine does.
struct PolledEngine(Memory);

impl Engine for PolledEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move { self.0.decide(call).await }))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.0.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}

/// Admissions while a limit changed, and their bound: the first capacity and every increase after
/// that.
struct LimitChangeResult {
    decisions: usize,
    admitted: u64,
    bound: u64,
}

impl LimitChangeResult {
    fn print_figure(&self, what: &str) {
        let Self { decisions, admitted, bound } = self;
        print_figure(&format!(
            "threads: 8 on one key, {what}: {decisions} decisions, admitted {admitted}, bound \
             {bound}, over-admitted {}",
            admitted.saturating_sub(*bound)
        ));
    }
}

/// Changes the limit of a key through all the capacities while eight threads use it up.
fn change(capacities: &[u64], notation: impl Fn(u64) -> String) -> LimitChangeResult {
    let clock = ManualClock::default();
    let limits: Vec<Limit> = capacities.iter().map(|c| limit(&notation(*c))).collect();
    let memory = Memory::builder().clock(clock.clone()).build();
    let limiter = Limiter::new(memory, limits[0].clone());
    // Used up before the first change, so that every permit too many shows.
    let mut log: Vec<LoggedDecision> =
        (0..capacities[0]).map(|_| check(&limiter, &clock, 0, 1)).collect();
    let next = Mutex::new(limits[1..].iter());
    // Every `DECISIONS_PER_CHANGE` decisions, the thread that made the last one changes the limit,
    // during the calls of the others.
    let decided = AtomicU64::new(0);
    log.extend(on_all_threads(|_, log| {
        loop {
            log.push(check(&limiter, &clock, 0, 1));
            let made = decided.fetch_add(1, Ordering::Relaxed);
            if !made.is_multiple_of(DECISIONS_PER_CHANGE) {
                continue;
            }
            let mut next = next.lock().unwrap();
            match next.next() {
                Some(limit) => limiter.set_limit(limit.clone()).unwrap(),
                None => return,
            }
        }
    }));
    let increases: u64 = capacities.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).sum();
    LimitChangeResult {
        decisions: log.len(),
        admitted: log.iter().filter(|entry| entry.allowed).count() as u64,
        bound: capacities[0] + increases,
    }
}

// --- threads -----------------------------------------------------------------------------------

/// Runs `work` on eight threads that begin together, and returns their logs.
fn on_all_threads(work: impl Fn(usize, &mut Vec<LoggedDecision>) + Sync) -> Vec<LoggedDecision> {
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    let mut log = Vec::new();
                    barrier.wait();
                    work(thread, &mut log);
                    log
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Advances a clock while threads work: every call advances it a little, in the middle of the calls
/// of other threads. So time passes by the amount of work done, on a fast machine and on a slow
/// one.
struct ClockPacer<'a> {
    clock: &'a ManualClock,
    end: u64,
    /// The average advance per call, in microseconds.
    mean: u64,
    rng: Mutex<TraceRng>,
}

impl<'a> ClockPacer<'a> {
    fn new(clock: &'a ManualClock, span: u64, mean: u64) -> Self {
        Self { clock, end: clock.now().get() + span, mean, rng: Mutex::new(TraceRng::new(span)) }
    }

    /// Advances the clock; returns whether the end is not reached yet.
    fn advance(&self) -> bool {
        let mut rng = self.rng.lock().unwrap();
        self.clock.advance(Duration::from_micros(rng.below(2 * self.mean)));
        self.clock.now().get() < self.end
    }
}

/// Runs `work` on eight threads and returns their results; panics if one gets stuck, rather than
/// waiting forever.
fn on_threads_with_timeout<T: Send + 'static>(
    work: impl Fn(usize) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let work = Arc::new(work);
    let barrier = Arc::new(Barrier::new(THREADS));
    let (sender, receiver) = mpsc::channel();
    for thread in 0..THREADS {
        let (work, barrier, sender) = (work.clone(), barrier.clone(), sender.clone());
        std::thread::spawn(move || {
            barrier.wait();
            sender.send(work(thread)).unwrap();
        });
    }
    drop(sender);
    (0..THREADS)
        .map(|done| match receiver.recv_timeout(TIMEOUT) {
            Ok(found) => found,
            Err(RecvTimeoutError::Timeout) => panic!("{} threads are stuck", THREADS - done),
            Err(RecvTimeoutError::Disconnected) => panic!("a thread has panicked"),
        })
        .collect()
}

fn check(limiter: &Limiter, clock: &impl Clock, key: u64, cost: u64) -> LoggedDecision {
    let before = clock.now().get();
    let decision = limiter.check(&key.to_ne_bytes()[..]).cost(cost).now();
    let after = clock.now().get();
    LoggedDecision { key, cost, allowed: decision.unwrap().allowed(), before, after }
}

fn limiter(notation: &str, clock: ManualClock) -> Limiter {
    Limiter::new(Memory::builder().clock(clock).build(), limit(notation))
}

fn limit(notation: &str) -> Limit {
    notation.parse().unwrap()
}

/// Prints a figure to stderr past the test harness, which captures `eprintln!`.
fn print_figure(figure: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{figure}").unwrap();
}
