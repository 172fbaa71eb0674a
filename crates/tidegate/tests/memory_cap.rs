//! A flood of keys against a small memory cap: memory stays bounded, and no request passes because
//! of it.
//!
//! Memory is counted by the allocator of this test binary, and compared with the engine's own
//! report. Admissions are checked from the raw log of every decision.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{
    Call, Charge, Clock, Cost, Costs, Decision, Engine, EngineError, Expiry, HoldId,
    IdempotencyKey, Limit, Limited, Limiter, ManualClock, Memory, Micros, Op, Reservation, Rule,
    RuleCheck, Sleep,
};
use tidegate_model::{CountingAllocator, TraceRng};

use testkit::bounds::{IntervalBound, LoggedDecision};
use testkit::now_or_never::now_or_panic;

const CAP: usize = 1 << 20;
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

// --- floods -------------------------------------------------------------------------------------

#[test]
fn a_flood_of_keys_stays_below_the_cap_and_admits_no_key_that_was_at_its_limit() {
    flood(CAP, 300_000);
    if std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1") {
        flood(64 << 20, 10_000_000);
    }
}

fn flood(cap: usize, keys: u64) {
    const LIMITED: u64 = 1_000;
    const PERMITS: u64 = 5;
    let fixture = CappedMemory::new(cap);
    let first = fixture.limiter(&[("first", "5/m burst 5")]);
    let second = fixture.limiter(&[("second", "5/m burst 5")]);

    let mut over_admitted = 0;
    for key in 0..LIMITED {
        let passed = (0..=PERMITS).filter(|_| fixture.allows(&first, key)).count() as u64;
        assert_eq!(passed, PERMITS);
    }
    let mut peak = PeakMemory::default();
    for i in 0..keys {
        fixture.allows(&first, LIMITED + i);
        if i % 100 == 0 {
            over_admitted += u64::from(fixture.allows(&first, i / 100 % LIMITED));
            peak.sample(&fixture);
        }
    }
    over_admitted += (0..LIMITED).filter(|key| fixture.allows(&first, *key)).count() as u64;

    // The keys of a second limit arrive when there is no room, except for the last entries that a
    // table had in reserve. Keys without an entry share sixteen buckets, however many they are.
    let new_keys = keys / 10;
    let mut shared = 0;
    for key in 0..new_keys {
        let allowed = fixture.allows(&second, key);
        shared += u64::from(allowed && fixture.is_shared(&second, key));
    }
    peak.sample(&fixture);
    print_figure(&format!(
        "memory: cap {cap}, {keys} keys: {peak}; {LIMITED} keys at their limit, over-admitted \
         {over_admitted}; {new_keys} keys without room admitted {shared}, bound {}",
        16 * PERMITS
    ));
    assert_eq!(over_admitted, 0);
    assert!(shared <= 16 * PERMITS);
    assert!(shared > 0, "overflow buckets admit something");
    peak.assert_below(cap);
}

#[test]
fn after_the_flood_has_recovered_new_keys_have_a_full_limit_of_their_own() {
    for notation in ["5/m burst 5", "fixed-window 5/1m first-hit", "sliding-log 5/1m"] {
        let fixture = CappedMemory::new(CAP);
        let limiter = fixture.limiter(&[("flood", notation)]);
        fixture.fill(&limiter);
        assert!((100_000..100_400).any(|key| !fixture.allows(&limiter, key)), "overflow fills up");
        fixture.clock.advance(Duration::from_secs(61));
        let mut peak = PeakMemory::default();
        let mut admitted = 0;
        for key in 200_000..201_000 {
            let passed = (0..7).filter(|_| fixture.allows(&limiter, key)).count() as u64;
            assert_eq!(passed, 5, "{notation}, key {key}");
            admitted += passed;
            peak.sample(&fixture);
        }
        print_figure(&format!(
            "memory: {notation} after the flood: 1000 new keys admitted {admitted}, due 5000"
        ));
        peak.assert_below(CAP);
    }
}

#[test]
fn keys_of_one_call_that_share_an_overflow_bucket_add_up_their_costs() {
    let fixture = CappedMemory::new(CAP);
    fixture.fill(&fixture.limiter(&[("flood", "5/m burst 5")]));
    let limiter = fixture.limiter(&[("late", "5/m burst 5")]);
    let names: Vec<String> = (0..16_000).map(|key| format!("late-{key}")).collect();
    let mut shared = 0;
    for call in names.chunks(64) {
        let checks: Vec<RuleCheck<'_>> =
            call.iter().map(|key| RuleCheck::new("late", key)).collect();
        let allowed = limiter.check_each(&checks).now().is_ok_and(|decision| decision.allowed());
        let is_shared = |key: &String| now_or_panic(limiter.inspect(key)).unwrap()[0].shared;
        shared += if allowed { call.iter().filter(|key| is_shared(key)).count() } else { 0 };
    }
    print_figure(&format!(
        "memory: calls of 64 keys without room admitted {shared}, bound {}",
        16 * 5
    ));
    assert!(shared <= 16 * 5);
}

#[test]
fn a_key_that_shared_an_overflow_bucket_never_gets_more_than_its_limit_afterwards() {
    let window = IntervalBound::Window { limit: 5, window: MINUTE };
    let bucket = IntervalBound::Bucket { burst: 5, count: 5, period: MINUTE };
    let mut over = 0;
    for (notation, bound) in [
        ("5/m burst 5", bucket),
        ("fixed-window 5/1m first-hit", window),
        ("sliding-log 5/1m", window),
        ("sliding-window 5/1m precision 10s", window),
    ] {
        let fixture = CappedMemory::new(CAP);
        let flood = fixture.limiter(&[("flood", "5/s burst 5")]);
        let limiter = fixture.limiter(&[("slow", notation)]);
        let mut rng = TraceRng::new(5);
        let mut log = Vec::with_capacity(100_000);
        for round in 0..40 {
            // In some rounds memory is full, in others all of the flood has recovered; the keys of
            // the slow limit come and go in between.
            if round % 2 == 0 {
                fixture.fill_from(&flood, round * 1_000_000, 24_000);
            }
            for _ in 0..500 {
                log.push(fixture.entry(&limiter, rng.below(100), 1 + rng.below(3)));
                fixture.clock.advance(Duration::from_micros(rng.below(4_000)));
            }
            fixture.clock.advance(Duration::from_micros(rng.below(2 * MINUTE / 5)));
        }
        // A first-hit window may be followed at once by the next.
        let bound = match bound {
            IntervalBound::Window { window, .. } if notation.contains("first-hit") => {
                IntervalBound::Window { limit: 10, window }
            }
            bound => bound,
        };
        let found = bound.check(&log);
        print_figure(&format!(
            "memory: {notation}, keys between overflow and their own cells: {} decisions, \
             admitted {}, over-admitted {}",
            found.decisions, found.admitted, found.over
        ));
        assert!(found.admitted > 500, "{notation}");
        over += found.over;
    }
    assert_eq!(over, 0);
}

#[test]
fn eight_threads_flooding_at_once_stay_below_the_cap() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("flood", "5/m burst 5")]);
    let mut peak = PeakMemory::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (fixture, limiter) = (&fixture, &limiter);
                scope.spawn(move || {
                    for i in 0..5_000 {
                        fixture.allows(limiter, thread << 32 | i);
                    }
                })
            })
            .collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            peak.sample(&fixture);
            std::thread::yield_now();
        }
    });
    peak.sample(&fixture);
    print_figure(&format!("memory: cap {CAP}, 8 threads: {peak}"));
    peak.assert_below(CAP);
}

// --- overflow buckets --------------------------------------------------------------------------

/// Ten new users a second, one request each, under a rule whose overflow buckets are always in use.
/// If buckets were left only when they are empty, they never would be.
#[test]
fn a_busy_rule_leaves_its_overflow_buckets_once_there_is_room_again() {
    let fixture = CappedMemory::new(CAP);
    let fillers = fixture.limiter(&[("fill", "1/h")]);
    let busy = fixture.limiter(&[("busy", "5/m")]);
    fixture.fill(&fillers);
    let mut users = 0..;
    let mut denied_in = |seconds: u64| {
        let arrivals = users.by_ref().take(10 * seconds as usize);
        arrivals
            .filter(|user| {
                fixture.clock.advance(Duration::from_millis(100));
                !fixture.allows(&busy, *user)
            })
            .count()
    };
    let (without_room, recovering, afterwards) = (denied_in(3_500), denied_in(400), denied_in(600));
    print_figure(&format!(
        "memory: cap {CAP}, 10 new users a second at 5/m: {without_room} of 35000 denied while there \
         is no room, {recovering} of 4000 while it recovers, {afterwards} of 6000 afterwards"
    ));
    assert!(without_room > 10_000, "they share overflow buckets");
    assert_eq!(afterwards, 0);
}

#[test]
fn no_key_exceeds_its_limit_when_it_leaves_an_overflow_bucket() {
    let bucket = IntervalBound::Bucket { burst: 5, count: 5, period: MINUTE };
    let window = IntervalBound::Window { limit: 5, window: MINUTE };
    for (notation, bound) in [
        ("5/m", bucket),
        ("leaky-bucket 5/m", bucket),
        ("sliding-log 5/1m", window),
        ("sliding-window 5/1m precision 10s", window),
    ] {
        let fixture = CappedMemory::new(CAP);
        let fillers = fixture.limiter(&[("fill", "1/5m")]);
        let busy = fixture.limiter(&[("busy", notation)]);
        let mut rng = TraceRng::new(24);
        let mut log = Vec::with_capacity(30_000);
        let (mut shared, mut own) = (0, 0);
        for _ in 0..2 {
            fixture.fill(&fillers);
            // Many new users and, among them, the same hundred all the time.
            for i in 0..12_000_u64 {
                let key = if rng.one_in(2) { rng.below(100) } else { 1_000 + rng.below(1 << 40) };
                let is_known = key < 100;
                log.push(fixture.entry(&busy, key, 1 + rng.below(2)));
                fixture.clock.advance(Duration::from_micros(rng.below(2 * MINUTE / 1_500)));
                if is_known && i % 8 == 0 {
                    let in_bucket = fixture.is_shared(&busy, key);
                    shared += u64::from(in_bucket);
                    own += u64::from(!in_bucket);
                }
            }
        }
        let found = bound.check(&log);
        print_figure(&format!(
            "memory: {notation}, leaving overflow under traffic: {} decisions, admitted {}, \
             over-admitted {}; found in overflow {shared} times, in its own cell {own} times",
            found.decisions, found.admitted, found.over
        ));
        assert!(shared > 100 && own > 100, "{notation}: users are found in both");
        assert_eq!(found.over, 0, "{notation}");
    }
}

#[test]
fn a_refund_or_reset_in_an_overflow_bucket_returns_no_permits_of_others() {
    for notation in ["100/h", "fixed-window 100/h", "sliding-log 100/h"] {
        let fixture = CappedMemory::new(CAP);
        fixture.fill(&fixture.limiter(&[("fill", "1/30d")]));
        let late = fixture.limiter(&[("late", notation)]);
        let keys = BucketKeys::find(&fixture, &late, 20);
        for key in &keys.0[1..] {
            let key = key.to_ne_bytes();
            let refunded = late.refund(&key[..], 100).now().unwrap().refunded();
            assert_eq!(refunded, Cost::ZERO, "{notation}");
            late.reset(&key[..]).now().unwrap();
        }
        let passed = keys.0.iter().filter(|key| fixture.allows(&late, **key)).count();
        assert_eq!(passed, 0, "{notation}: the usage of the first remains");
    }
}

/// A thread that has read the clock and is slow to lock the bucket comes after another that is
/// later and faster. The bucket must not take the old instant for a clock that stepped back.
#[test]
fn an_overflow_bucket_keeps_its_bound_when_a_thread_is_slow_after_reading_the_clock() {
    const ROUNDS: u64 = 15;
    for (notation, bound) in [
        ("10/s", IntervalBound::Bucket { burst: 10, count: 10, period: SECOND }),
        ("sliding-log 10/s", IntervalBound::Window { limit: 10, window: SECOND }),
    ] {
        let time = ManualClock::default();
        let gate = Arc::new(Gate::default());
        let clock = SlowClock { time: time.clone(), gate: gate.clone() };
        let fixture = CappedMemory::with_clock(CAP, time.clone(), clock);
        fixture.fill_to_the_last_byte(&fixture.limiter(&[("fill", "1/30d")]));
        let late = fixture.limiter(&[("late", notation)]);
        let keys = BucketKeys::find(&fixture, &late, 20);
        // All keys of a bucket are one key to the checker.
        let entry = |key: u64| {
            let before = time.now().get();
            let allowed = fixture.allows(&late, key);
            LoggedDecision { key: 0, cost: 1, allowed, before, after: time.now().get() }
        };
        let now = time.now().get();
        let mut log =
            vec![LoggedDecision { key: 0, cost: 10, allowed: true, before: now, after: now }];
        let mut overtaken = 0;
        for round in 0..ROUNDS {
            let slow_one = keys.0[1 + round as usize % (keys.0.len() - 1)];
            gate.close();
            let entry = &entry;
            std::thread::scope(|scope| {
                let slow = scope.spawn(|| {
                    IS_SLOW.set(true);
                    entry(slow_one)
                });
                gate.wait_for_arrival();
                time.advance(Duration::from_millis(100));
                let (sender, done) = std::sync::mpsc::channel();
                let first = keys.0[0];
                let fast = scope.spawn(move || {
                    let entry = entry(first);
                    sender.send(()).unwrap();
                    entry
                });
                // Two keys in the same shard wait for each other, and then no thread is overtaken.
                overtaken += u64::from(done.recv_timeout(Duration::from_millis(20)).is_ok());
                gate.open();
                log.extend([slow.join().unwrap(), fast.join().unwrap()]);
            });
        }
        let found = bound.check(&log);
        print_figure(&format!(
            "memory: one overflow bucket, {notation}, a slow thread overtaken {overtaken} times of \
             {ROUNDS}: admitted {}, over-admitted {}",
            found.admitted, found.over
        ));
        assert_eq!(found.over, 0, "{notation}");
        // Nor is it strict by denying every request.
        assert!(found.admitted >= 18, "{notation}: {}", found.admitted);
    }
}

/// Keys of one overflow bucket, which the first of them has used up.
struct BucketKeys(Vec<u64>);

impl BucketKeys {
    fn find(fixture: &CappedMemory, limiter: &Limiter, count: usize) -> Self {
        let capacity = limiter.rules()[0].limits()[0].limit().capacity();
        let takes_all = |key: &u64| {
            let taken = limiter.check(&key.to_ne_bytes()[..]).cost(capacity).now();
            taken.unwrap().allowed() && fixture.is_shared(limiter, *key)
        };
        let first = (0..10_000).find(takes_all).unwrap();
        // Of the sixteen buckets only the first one's is in use, apart from keys with their own
        // entry.
        let is_full = |key: &u64| {
            let peek = limiter.check(&key.to_ne_bytes()[..]).peek().now().unwrap();
            peek.remaining() == 0 && fixture.is_shared(limiter, *key)
        };
        let keys = (1 << 20..).filter(is_full).take(count - 1);
        Self([first].into_iter().chain(keys).collect())
    }
}

thread_local! {
    /// This thread is slow to continue once it has read the clock.
    static IS_SLOW: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Blocks the first call of a slow thread after it has read the time.
struct SlowClock {
    time: ManualClock,
    gate: Arc<Gate>,
}

impl Clock for SlowClock {
    fn now(&self) -> Micros {
        let now = self.time.now();
        if IS_SLOW.replace(false) {
            self.gate.pass();
        }
        now
    }

    fn elapsed(&self) -> Micros {
        self.time.elapsed()
    }

    fn sleep_until(&self, elapsed: Micros) -> Sleep {
        self.time.sleep_until(elapsed)
    }
}

/// A gate for one thread at a time.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_open: bool,
    has_arrived: bool,
}

impl Gate {
    fn close(&self) {
        *self.state.lock().unwrap() = GateState::default();
    }

    fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.has_arrived = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.is_open).unwrap());
    }

    fn wait_for_arrival(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.has_arrived).unwrap());
    }
}

// --- settled reservations and old logs ----------------------------------------------------------

type End = fn(Reservation);

#[test]
fn settled_reservations_make_room_for_new_ones_and_for_new_keys() {
    let ends: [(&str, End); 3] = [
        ("cancelled", |reservation| drop(now_or_panic(reservation.cancel()).unwrap())),
        ("committed", |reservation| drop(now_or_panic(reservation.commit_all()).unwrap())),
        ("dropped", |reservation| drop(reservation)),
    ];
    for (how, end) in ends {
        let fixture = CappedMemory::new(CAP);
        let pool = fixture.limiter(&[("pool", "concurrency 20 lease 30s")]);
        let login = fixture.limiter(&[("login", "5/m")]);
        let mut peak = PeakMemory::default();
        for nth in 0..20_000_u64 {
            let reserved = now_or_panic(pool.reserve("k", 1));
            end(reserved.unwrap_or_else(|refused| panic!("the {nth}th, {how}: {refused}")));
            fixture.clock.advance(Duration::from_millis(150));
            peak.sample(&fixture);
        }
        let shared = (0..2_000).filter(|user| {
            assert!(fixture.allows(&login, *user), "{how}: the first request of user {user}");
            fixture.is_shared(&login, *user)
        });
        assert_eq!(shared.count(), 0, "{how}");
        print_figure(&format!(
            "memory: cap {CAP}, 20000 reservations in 50 minutes, all {how}: {peak}"
        ));
        peak.assert_below(CAP);
    }
}

/// Every third second for 51 minutes, and then there is no room to log another.
#[test]
fn a_log_without_room_is_halved_and_not_collapsed() {
    const ENTRIES: usize = 1_024;
    let fixture = CappedMemory::new(CAP);
    let logs = fixture.limiter(&[("log", "sliding-log 2000/h")]);
    let limit = logs.rules()[0].limits()[0].clone();
    let key = 1_u64.to_ne_bytes();
    let inspect = || {
        let found = fixture.memory.inspect(&limit, key[..].into()).now().unwrap();
        (found.entries.len(), found.standing.used)
    };
    for _ in 0..ENTRIES {
        assert!(fixture.allows(&logs, 1));
        fixture.clock.advance(Duration::from_secs(3));
    }
    assert_eq!(inspect(), (ENTRIES, ENTRIES as u64));
    fixture.fill_to_the_last_byte(&fixture.limiter(&[("fill", "1/30d")]));
    let mut fewest = ENTRIES;
    for _ in 0..10 {
        assert!(fixture.allows(&logs, 1));
        fixture.clock.advance(Duration::from_secs(3));
        fewest = fewest.min(inspect().0);
    }
    print_figure(&format!(
        "memory: a log of {ENTRIES} entries without room: at least {fewest} left"
    ));
    assert!((ENTRIES / 2..=ENTRIES).contains(&fewest), "{fewest}");
    let (_, used) = inspect();
    assert_eq!(used, ENTRIES as u64 + 10, "no permit is lost");
    // When the first 523 are an hour old, an exact log has 511 left. Of two joined entries, the
    // earlier leaves with the later.
    fixture.clock.advance(Duration::from_secs(3_600 - 3 * 512));
    let (_, left) = inspect();
    assert!((511..=512).contains(&left), "{left} of {used} left");
}

// --- states larger than a cell ------------------------------------------------------------------

#[test]
fn logs_without_room_lose_precision_and_never_over_admit() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("log", "sliding-log 1000/1m")]);
    let mut rng = TraceRng::new(9);
    let mut log = Vec::with_capacity(200_000);
    fixture.rebase();
    let mut peak = PeakMemory::default();
    for i in 0..150_000_u64 {
        log.push(fixture.entry(&limiter, rng.below(2_000), 1 + rng.below(60)));
        fixture.clock.advance(Duration::from_micros(rng.below(2_400)));
        if i % 100 == 0 {
            peak.sample(&fixture);
        }
    }
    let found = IntervalBound::Window { limit: 1_000, window: MINUTE }.check(&log);
    let denied = log.iter().filter(|entry| !entry.allowed).count();
    print_figure(&format!(
        "memory: cap {CAP}, sliding-log 1000/1m, 2000 keys: {peak}; {} decisions, {denied} denied, \
         admitted {}, over-admitted {}",
        found.decisions, found.admitted, found.over
    ));
    assert_eq!(found.over, 0);
    peak.assert_below(CAP);
}

#[test]
fn logs_in_the_cells_of_recovered_buckets_stay_below_the_cap() {
    fill_with_logs_after_buckets(None);
}

#[test]
fn names_in_logs_in_the_cells_of_recovered_buckets_stay_below_the_cap() {
    fill_with_logs_after_buckets(Some(&"n".repeat(1_000)));
}

/// Buckets need no memory except their cell; logs that take over the cells do.
fn fill_with_logs_after_buckets(caller: Option<&str>) {
    let fixture = CappedMemory::new(CAP);
    let buckets = fixture.limiter(&[("bucket", "5/s burst 5")]);
    let logs = fixture.limiter(&[("log", "sliding-log 1000/1m")]);
    fixture.fill(&buckets);
    fixture.clock.advance(Duration::from_secs(2));
    let mut peak = PeakMemory::default();
    for key in 0..10_000_u64 {
        for _ in 0..2 {
            let key = key.to_ne_bytes();
            let check = logs.check(&key[..]);
            let _ = caller.map_or(check, |caller| check.caller(caller)).now();
            fixture.clock.advance(Duration::from_micros(1));
        }
        peak.sample(&fixture);
    }
    let names = caller.map_or(0, str::len);
    print_figure(&format!(
        "memory: cap {CAP}, logs with names of {names} bytes after buckets: {peak}"
    ));
    peak.assert_below(CAP);
}

#[test]
fn names_in_logs_stay_below_the_cap() {
    let fixture = CappedMemory::new(CAP);
    let logs = fixture.limiter(&[("log", "sliding-log 1000/1m")]);
    let name = "n".repeat(1_000);
    fixture.rebase();
    let mut peak = PeakMemory::default();
    for key in 0..10_000_u64 {
        let _ = logs.check(&key.to_ne_bytes()[..]).caller(&name).now();
        peak.sample(&fixture);
    }
    print_figure(&format!("memory: cap {CAP}, names of 1000 bytes in logs: {peak}"));
    peak.assert_below(CAP);
}

#[test]
fn a_name_of_any_length_stays_below_the_cap() {
    let fixture = CappedMemory::new(CAP);
    let logs = fixture.limiter(&[("log", "sliding-log 1000/1m")]);
    let name = "n".repeat(4 * CAP);
    fixture.rebase();
    let mut peak = PeakMemory::default();
    let result = logs.check("k").caller(&name).now().map(|decision| decision.allowed());
    peak.sample(&fixture);
    print_figure(&format!(
        "memory: cap {CAP}, a name of {} bytes in a log: {peak}, {result:?}",
        name.len()
    ));
    peak.assert_below(CAP);
}

#[test]
fn a_reservation_without_room_is_refused_and_changes_nothing() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("login", "5/m burst 5")]);
    assert!(fixture.allows(&limiter, 1));
    // The rule has its share, so others may still have room.
    for key in 2..30_000_u64 {
        let _id = now_or_panic(limiter.reserve(&key.to_ne_bytes()[..], 1)).map(Reservation::keep);
    }
    let key = 1_u64.to_ne_bytes();
    for _ in 0..100 {
        let reserved = now_or_panic(limiter.reserve(&key[..], 1));
        assert!(
            matches!(reserved, Err(Limited::NoAnswer(EngineError::Unavailable(_)))),
            "{reserved:?}"
        );
    }
    let left = (0..6).filter(|_| fixture.allows(&limiter, 1)).count();
    print_figure(&format!(
        "memory: 100 reservations without room refused, permits lost {}",
        4 - left
    ));
    assert_eq!(left, 4);
}

#[test]
fn an_idempotent_call_without_room_is_refused_and_changes_nothing() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("login", "5/m burst 5")]);
    assert!(fixture.allows(&limiter, 1));
    // The rule has its share, so others may still have room.
    for other in 2..30_000_u64 {
        let _ =
            limiter.check(&other.to_ne_bytes()[..]).idempotency_key(&format!("of-{other}")).now();
    }
    let key = 1_u64.to_ne_bytes();
    for i in 0..100 {
        let id = format!("id-{i}");
        let result = limiter.check(&key[..]).idempotency_key(&id).now();
        assert!(matches!(result, Err(EngineError::Unavailable(_))), "{result:?}");
    }
    let left = (0..6).filter(|_| fixture.allows(&limiter, 1)).count();
    print_figure(&format!(
        "memory: 100 idempotent calls without room refused, permits lost {}",
        4 - left
    ));
    assert_eq!(left, 4);
}

#[test]
fn a_flood_of_reservations_stays_below_the_cap() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("pool", "concurrency 1000000")]);
    let mut peak = PeakMemory::default();
    let (mut held, mut refused) = (0, 0);
    for key in 0..30_000_u64 {
        match now_or_panic(limiter.reserve(&(key % 500).to_ne_bytes()[..], 1)) {
            Ok(reservation) => {
                let _id = reservation.keep();
                held += 1;
            }
            Err(Limited::NoAnswer(EngineError::Unavailable(_))) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        peak.sample(&fixture);
    }
    print_figure(&format!(
        "memory: cap {CAP}, 30000 reservations: {held} held, {refused} refused; {peak}"
    ));
    assert!(held > 0 && refused > 0);
    peak.assert_below(CAP);
}

#[test]
fn a_flood_of_idempotent_calls_stays_below_the_cap() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("pay", "1000000/s")]);
    let mut peak = PeakMemory::default();
    let mut id = String::with_capacity(32);
    let (mut charged, mut refused) = (0, 0);
    for i in 0..30_000_u64 {
        id.clear();
        write!(id, "id-{i}").unwrap();
        match limiter.check(&(i % 500).to_ne_bytes()[..]).idempotency_key(&id).now() {
            Ok(_) => charged += 1,
            Err(EngineError::Unavailable(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        peak.sample(&fixture);
    }
    print_figure(&format!(
        "memory: cap {CAP}, 30000 ids: {charged} charged, {refused} refused; {peak}"
    ));
    assert!(charged > 0 && refused > 0);
    peak.assert_below(CAP);
}

#[test]
fn settling_reservations_of_many_limits_stays_below_the_cap() {
    let fixture = CappedMemory::new(CAP);
    let names: Vec<String> = (0..64).map(|i| format!("r{i}")).collect();
    let rules: Vec<Rule> =
        names.iter().map(|name| Rule::new(name, [limit("1000000/s")]).unwrap()).collect();
    let charges: Vec<Charge<'_>> = rules
        .iter()
        .map(|rule| Charge {
            limit: &rule.limits()[0],
            key: "k".into(),
            cost: Cost::ONE,
            caller: None,
        })
        .collect();
    let mut ids = Vec::with_capacity(10_000);
    fixture.rebase();
    for id in 0..2_000_u128 {
        let id = HoldId::from(id << 96 | id);
        let op = Op::hold(id, Micros::from_secs(60), Expiry::Release);
        if fixture.decide(op, &charges, None).is_ok() {
            ids.push(id);
        }
    }
    let mut peak = PeakMemory::default();
    peak.sample(&fixture);
    print_figure(&format!(
        "memory: cap {CAP}, {} reservations of 64 limits held: {peak}",
        ids.len()
    ));
    for id in &ids {
        fixture.decide(Op::Settle { id: *id, costs: Costs::AsHeld }, &[], None).unwrap();
        peak.sample(&fixture);
    }
    print_figure(&format!(
        "memory: cap {CAP}, {} reservations of 64 limits settled: {peak}",
        ids.len()
    ));
    peak.assert_below(CAP);
}

#[test]
fn calls_of_many_charges_stay_below_the_cap() {
    for cap in [CAP, 64 << 10] {
        let peak = flood_of_long_calls(cap);
        print_figure(&format!("memory: cap {cap}, calls of 64 charges: {peak}"));
        peak.assert_below(cap);
    }
}

fn flood_of_long_calls(cap: usize) -> PeakMemory {
    let fixture = CappedMemory::new(cap);
    let names: Vec<String> = (0..64).map(|i| format!("r{i}")).collect();
    let rules: Vec<Rule> =
        names.iter().map(|name| Rule::new(name, [limit("5/m")]).unwrap()).collect();
    fixture.rebase();
    let mut peak = PeakMemory::default();
    for key in 0..1_000_u64 {
        let key = key.to_ne_bytes();
        let charges: Vec<Charge<'_>> = rules
            .iter()
            .map(|rule| Charge {
                limit: &rule.limits()[0],
                key: key[..].into(),
                cost: Cost::ONE,
                caller: None,
            })
            .collect();
        let _ = fixture.decide(Op::Check, &charges, None);
        drop(charges);
        peak.sample(&fixture);
    }
    peak
}

#[test]
fn many_distinct_adhoc_limits_are_refused_without_room_and_stay_below_the_cap() {
    let fixture = CappedMemory::new(CAP);
    let mut peak = PeakMemory::default();
    let (mut admitted, mut refused) = (0, 0);
    let mut notation = String::with_capacity(64);
    for i in 0..20_000_u64 {
        notation.clear();
        write!(notation, "5/{}s", 60 + i).unwrap();
        let rule = Rule::adhoc(limit(&notation));
        let charge =
            Charge { limit: &rule.limits()[0], key: "k".into(), cost: Cost::ONE, caller: None };
        match fixture.decide(Op::Check, &[charge], None) {
            Ok(decision) => admitted += u64::from(decision.allowed()),
            Err(EngineError::Unavailable(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        drop(rule);
        peak.sample(&fixture);
    }
    print_figure(&format!(
        "memory: cap {CAP}, 20000 ad-hoc limits: {admitted} admitted, {refused} refused; {peak}"
    ));
    assert!(admitted > 0 && refused > 0);
    peak.assert_below(CAP);
}

// --- after the flood ----------------------------------------------------------------------------

#[test]
fn after_the_flood_has_recovered_reservations_are_possible_again() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("login", "5/m burst 5")]);
    fixture.fill(&limiter);
    fixture.clock.advance(Duration::from_secs(61));
    // Ordinary traffic for a while, so that incremental cleanup is done.
    for key in 500_000..501_000 {
        fixture.allows(&limiter, key);
    }
    fixture.clock.advance(Duration::from_secs(61));
    let key = 1_u64.to_ne_bytes();
    let reserve = |_: &i32| {
        fixture.clock.advance(Duration::from_millis(1));
        now_or_panic(limiter.reserve(&key[..], 1)).is_ok()
    };
    let made = (0..100).filter(reserve).count();
    print_figure(&format!(
        "memory: after the flood, 100 reservations one after the other: {made} made"
    ));
    assert_eq!(made, 100);
}

#[test]
fn after_the_flood_has_recovered_idempotent_calls_are_possible_again() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("login", "5/m burst 5")]);
    fixture.fill(&limiter);
    fixture.clock.advance(Duration::from_secs(61));
    for key in 500_000..501_000 {
        fixture.allows(&limiter, key);
    }
    fixture.clock.advance(Duration::from_secs(61));
    let check = |key: &u64| {
        fixture.clock.advance(Duration::from_millis(1));
        limiter.check(&key.to_ne_bytes()[..]).idempotency_key("id").now().is_ok()
    };
    let made = (0..100_u64).filter(check).count();
    print_figure(&format!("memory: after the flood, 100 idempotent calls: {made} decided"));
    assert_eq!(made, 100);
}

#[test]
fn after_the_flood_has_recovered_logs_are_exact_again() {
    let fixture = CappedMemory::new(CAP);
    let buckets = fixture.limiter(&[("bucket", "5/m burst 5")]);
    let logs = fixture.limiter(&[("log", "sliding-log 100/1m")]);
    fixture.fill(&buckets);
    fixture.clock.advance(Duration::from_secs(61));
    for key in 500_000..501_000 {
        fixture.allows(&buckets, key);
    }
    fixture.clock.advance(Duration::from_secs(61));
    // One request a second is 60 a minute where 100 are allowed: an exact log denies none.
    let denied = (0..600)
        .filter(|_| {
            fixture.clock.advance(Duration::from_secs(1));
            !fixture.allows(&logs, 1)
        })
        .count();
    print_figure(&format!(
        "memory: after the flood, sliding-log 100/1m at 60/m: {denied} of 600 denied"
    ));
    assert_eq!(denied, 0);
}

#[test]
fn changing_limits_under_logs_does_not_use_up_the_cap() {
    let fixture = CappedMemory::new(CAP);
    let limiter = Limiter::new(fixture.memory.clone(), limit("sliding-log 1000/1m"));
    fixture.rebase();
    let mut peak = PeakMemory::default();
    for round in 0..400 {
        let large = if round % 2 == 0 { "sliding-log 1000/1m" } else { "sliding-log 1/1m" };
        limiter.set_limit(limit(large)).unwrap();
        for _ in 0..200 {
            fixture.allows(&limiter, 1);
            fixture.clock.advance(Duration::from_micros(1));
        }
        peak.sample(&fixture);
    }
    print_figure(&format!("memory: one log under 400 changes of its limit: {peak}"));
    // One key with 1000 entries of some tens of bytes.
    assert!(
        peak.reported_bytes < 200_000,
        "the engine counts {} bytes for one log",
        peak.reported_bytes
    );
    peak.assert_below(CAP);
}

#[test]
fn the_reported_memory_is_accurate_while_keys_come_and_go() {
    let fixture = CappedMemory::new(CAP);
    let limiter = fixture.limiter(&[("flood", "5/s burst 5")]);
    let mut rng = TraceRng::new(3);
    let mut worst = 0;
    for _ in 0..200_000 {
        fixture.allows(&limiter, rng.below(1 << 40));
        fixture.clock.advance(Duration::from_micros(rng.below(150)));
        let (reported, grown) = (fixture.reported_bytes(), fixture.grown());
        worst = worst.max(reported.abs_diff(grown));
    }
    print_figure(&format!(
        "memory: 200000 keys coming and going: reported {}, true {}, at most {worst} apart",
        fixture.reported_bytes(),
        fixture.grown()
    ));
    assert!(worst < CAP / 10);
}

// --- fixture ------------------------------------------------------------------------------------

/// An engine with a cap and a manual clock. No other test of this process runs meanwhile.
struct CappedMemory {
    memory: Arc<Memory>,
    clock: ManualClock,
    empty: AtomicUsize,
    _alone: MutexGuard<'static, ()>,
}

impl CappedMemory {
    fn new(cap: usize) -> Self {
        let clock = ManualClock::default();
        Self::with_clock(cap, clock.clone(), clock)
    }

    /// With another clock for the engine, which follows the manual clock.
    fn with_clock(cap: usize, clock: ManualClock, engines: impl Clock) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = AtomicUsize::new(CountingAllocator::live_bytes());
        let memory = Memory::builder().cap_bytes(cap).clock(engines).build();
        Self { memory: Arc::new(memory), clock, empty, _alone: alone }
    }

    /// Counts heap growth from here, without earlier allocations of the test.
    fn rebase(&self) {
        self.empty.store(CountingAllocator::live_bytes(), Ordering::Relaxed);
    }

    /// A limiter over the engine; its own memory does not count as growth.
    fn limiter(&self, rules: &[(&str, &str)]) -> Limiter {
        let before = CountingAllocator::live_bytes();
        let rules =
            rules.iter().map(|(name, notation)| Rule::new(name, [limit(notation)]).unwrap());
        let limiter = Limiter::with_rules(self.memory.clone(), rules).unwrap();
        self.empty.fetch_add(CountingAllocator::live_bytes() - before, Ordering::Relaxed);
        limiter
    }

    fn allows(&self, limiter: &Limiter, key: u64) -> bool {
        limiter.check_now(&key.to_ne_bytes()[..]).is_ok_and(|decision| decision.allowed())
    }

    fn is_shared(&self, limiter: &Limiter, key: u64) -> bool {
        now_or_panic(limiter.inspect(&key.to_ne_bytes()[..])).unwrap()[0].shared
    }

    fn entry(&self, limiter: &Limiter, key: u64, cost: u64) -> LoggedDecision {
        let now = self.clock.now().get();
        let result = limiter.check(&key.to_ne_bytes()[..]).cost(cost).now();
        let allowed = result.is_ok_and(|decision| decision.allowed());
        LoggedDecision { key, cost, allowed, before: now, after: now }
    }

    fn decide(
        &self,
        op: Op<'_>,
        charges: &[Charge<'_>],
        once: Option<IdempotencyKey<'_>>,
    ) -> Result<Decision, EngineError> {
        self.memory.decide(Call { op, charges, idempotency_key: once }).now()
    }

    /// Uses keys until there is no room for another.
    fn fill(&self, limiter: &Limiter) {
        self.fill_from(limiter, 1 << 32, 60_000);
    }

    /// Small keys grow by whole tables; larger states take the rest.
    fn fill_to_the_last_byte(&self, limiter: &Limiter) {
        self.fill(limiter);
        self.fill(&self.limiter(&[("log", "sliding-log 5/30d")]));
    }

    /// One rule leaves some room to others, so there are more rules of the same limit.
    fn fill_from(&self, limiter: &Limiter, first: u64, keys: u64) {
        let use_up = |limiter: &Limiter, keys: u64| {
            (first..first + keys).filter(|key| self.allows(limiter, *key)).count()
        };
        use_up(limiter, keys);
        let notation = limiter.rules()[0].limits()[0].limit().to_string();
        for name in ["fill-1", "fill-2", "fill-3"] {
            use_up(&self.limiter(&[(name, &notation)]), keys / 8);
        }
    }

    fn grown(&self) -> usize {
        CountingAllocator::live_bytes().saturating_sub(self.empty.load(Ordering::Relaxed))
    }

    fn reported_bytes(&self) -> usize {
        usize::try_from(self.memory.health().memory_bytes).unwrap()
    }
}

/// Peak memory, by the allocator and by the engine's own report.
#[derive(Default)]
struct PeakMemory {
    grown: usize,
    reported_bytes: usize,
}

impl PeakMemory {
    fn sample(&mut self, fixture: &CappedMemory) {
        self.grown = self.grown.max(fixture.grown());
        self.reported_bytes = self.reported_bytes.max(fixture.reported_bytes());
    }

    /// A tenth above the cap is allowed for what a table has in reserve. The heap has a little more
    /// for the harness, which starts and ends other tests meanwhile.
    fn assert_below(&self, cap: usize) {
        const HARNESS: usize = 4 << 10;
        assert!(
            self.grown <= cap + cap / 10 + HARNESS,
            "the heap grew by {} with a cap of {cap}",
            self.grown
        );
        assert!(
            self.reported_bytes <= cap + cap / 10,
            "the engine reported {} with a cap of {cap}",
            self.reported_bytes
        );
    }
}

impl std::fmt::Display for PeakMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "heap grew by {}, engine reported {}", self.grown, self.reported_bytes)
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

fn limit(notation: &str) -> Limit {
    notation.parse().unwrap()
}

/// Prints a figure to stderr past the test harness, which captures `eprintln!`.
fn print_figure(figure: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{figure}").unwrap();
}
