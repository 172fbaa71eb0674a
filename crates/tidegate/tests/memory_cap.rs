//! A flood of keys against a small memory cap (F22): memory stays bounded, and nobody gets through
//! because of it.
//!
//! Memory is what the allocator of this test binary counts, beside what the engine says of itself.
//! Who was let through when is judged from the raw log of every decision.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/checker.rs"]
mod checker;
#[path = "support/ready.rs"]
mod ready;

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{
    Ask, Call, CallId, Charge, Clock, Cost, Decision, Engine, EngineError, Expiry, HoldId, Limit,
    Limited, Limiter, ManualClock, Memory, Micros, Op, Reservation, Rule, Sleep,
};
use tidegate_model::{Counting, Rng};

use crate::checker::{Bound, Entry};
use crate::ready::ready;

const CAP: usize = 1 << 20;
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

// --- the flood ---------------------------------------------------------------------------------

#[test]
fn a_flood_of_keys_stays_below_the_cap_and_lets_no_key_through_that_was_at_its_limit() {
    flood(CAP, 300_000);
    if std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1") {
        flood(64 << 20, 10_000_000);
    }
}

fn flood(cap: usize, keys: u64) {
    const LIMITED: u64 = 1_000;
    const PERMITS: u64 = 5;
    let world = World::new(cap);
    let first = world.limiter(&[("first", "5/m burst 5")]);
    let second = world.limiter(&[("second", "5/m burst 5")]);

    let mut let_through = 0;
    for key in 0..LIMITED {
        let passed = (0..=PERMITS).filter(|_| world.allows(&first, key)).count() as u64;
        assert_eq!(passed, PERMITS);
    }
    let mut watch = Watch::default();
    for i in 0..keys {
        world.allows(&first, LIMITED + i);
        if i % 100 == 0 {
            let_through += u64::from(world.allows(&first, i / 100 % LIMITED));
            watch.look(&world);
        }
    }
    let_through += (0..LIMITED).filter(|key| world.allows(&first, *key)).count() as u64;

    // The keys of a second limit come when there is no room, but for the last places that a table
    // had in reserve. Those without a place share sixteen buckets, however many they are.
    let newcomers = keys / 10;
    let mut shared = 0;
    for key in 0..newcomers {
        let allowed = world.allows(&second, key);
        shared += u64::from(allowed && world.is_shared(&second, key));
    }
    watch.look(&world);
    say(&format!(
        "memory: cap {cap}, {keys} keys: {watch}; {LIMITED} keys at their limit, let through \
         {let_through}; {newcomers} keys without room admitted {shared}, bound {}",
        16 * PERMITS
    ));
    assert_eq!(let_through, 0);
    assert!(shared <= 16 * PERMITS);
    assert!(shared > 0, "overflow buckets admit something");
    watch.hold_to(cap);
}

#[test]
fn after_the_flood_has_recovered_new_keys_have_a_full_limit_of_their_own() {
    for notation in ["5/m burst 5", "fixed-window 5/1m first-hit", "sliding-log 5/1m"] {
        let world = World::new(CAP);
        let limiter = world.limiter(&[("flood", notation)]);
        world.fill(&limiter);
        assert!((100_000..100_400).any(|key| !world.allows(&limiter, key)), "overflow fills up");
        world.clock.advance(Duration::from_secs(61));
        let mut watch = Watch::default();
        let mut admitted = 0;
        for key in 200_000..202_000 {
            let passed = (0..7).filter(|_| world.allows(&limiter, key)).count() as u64;
            assert_eq!(passed, 5, "{notation}, key {key}");
            admitted += passed;
            watch.look(&world);
        }
        say(&format!(
            "memory: {notation} after the flood: 2000 new keys admitted {admitted}, due 10000"
        ));
        watch.hold_to(CAP);
    }
}

#[test]
fn keys_of_one_call_that_share_an_overflow_bucket_want_it_together() {
    let world = World::new(CAP);
    world.fill(&world.limiter(&[("flood", "5/m burst 5")]));
    let limiter = world.limiter(&[("late", "5/m burst 5")]);
    let names: Vec<String> = (0..16_000).map(|key| format!("late-{key}")).collect();
    let mut shared = 0;
    for call in names.chunks(64) {
        let asks: Vec<Ask<'_>> = call.iter().map(|key| Ask::new("late", key)).collect();
        let allowed = limiter.check_each(&asks).now().is_ok_and(|decision| decision.allowed());
        let is_shared = |key: &String| ready(limiter.inspect(key)).unwrap()[0].shared;
        shared += if allowed { call.iter().filter(|key| is_shared(key)).count() } else { 0 };
    }
    say(&format!("memory: calls of 64 keys without room admitted {shared}, bound {}", 16 * 5));
    assert!(shared <= 16 * 5);
}

#[test]
fn a_key_that_shared_an_overflow_bucket_never_gets_more_than_its_limit_afterwards() {
    let window = Bound::Window { limit: 5, window: MINUTE };
    let bucket = Bound::Bucket { burst: 5, count: 5, period: MINUTE };
    let mut over = 0;
    for (notation, bound) in [
        ("5/m burst 5", bucket),
        ("fixed-window 5/1m first-hit", window),
        ("sliding-log 5/1m", window),
        ("sliding-window 5/1m precision 10s", window),
    ] {
        let world = World::new(CAP);
        let flood = world.limiter(&[("flood", "5/s burst 5")]);
        let limiter = world.limiter(&[("slow", notation)]);
        let mut rng = Rng::new(5);
        let mut log = Vec::with_capacity(100_000);
        for round in 0..40 {
            // In some rounds memory is full, in others all of the flood has recovered; the slow
            // limit's own keys come and go between.
            if round % 2 == 0 {
                world.fill_from(&flood, round * 1_000_000, 24_000);
            }
            for _ in 0..500 {
                log.push(world.entry(&limiter, rng.below(100), 1 + rng.below(3)));
                world.clock.advance(Duration::from_micros(rng.below(4_000)));
            }
            world.clock.advance(Duration::from_micros(rng.below(2 * MINUTE / 5)));
        }
        // A first-hit window may be followed at once by the next.
        let bound = match bound {
            Bound::Window { window, .. } if notation.contains("first-hit") => {
                Bound::Window { limit: 10, window }
            }
            bound => bound,
        };
        let found = bound.check(&log);
        say(&format!(
            "memory: {notation}, keys between overflow and cells of their own: {} decisions, \
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
    let world = World::new(CAP);
    let limiter = world.limiter(&[("flood", "5/m burst 5")]);
    let mut watch = Watch::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (world, limiter) = (&world, &limiter);
                scope.spawn(move || {
                    for i in 0..5_000 {
                        world.allows(limiter, thread << 32 | i);
                    }
                })
            })
            .collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            watch.look(&world);
            std::thread::yield_now();
        }
    });
    watch.look(&world);
    say(&format!("memory: cap {CAP}, 8 threads: {watch}"));
    watch.hold_to(CAP);
}

// --- overflow buckets --------------------------------------------------------------------------

/// Ten new users a second, each asking once, at a rule whose overflow buckets are in use all the
/// time. Were they left only when they are empty, they never would be.
#[test]
fn a_busy_rule_leaves_its_overflow_buckets_once_there_is_room_again() {
    let world = World::new(CAP);
    let fillers = world.limiter(&[("fill", "1/h")]);
    let busy = world.limiter(&[("busy", "5/m")]);
    world.fill(&fillers);
    let mut users = 0..;
    let mut denied_in = |seconds: u64| {
        let come = users.by_ref().take(10 * seconds as usize);
        come.filter(|user| {
            world.clock.advance(Duration::from_millis(100));
            !world.allows(&busy, *user)
        })
        .count()
    };
    let (without_room, recovering, afterwards) = (denied_in(3_500), denied_in(400), denied_in(600));
    say(&format!(
        "memory: cap {CAP}, 10 new users a second at 5/m: {without_room} of 35000 denied while there \
         is no room, {recovering} of 4000 while it comes back, {afterwards} of 6000 afterwards"
    ));
    assert!(without_room > 10_000, "they share overflow buckets");
    assert_eq!(afterwards, 0);
}

#[test]
fn nobody_exceeds_its_limit_on_the_way_out_of_an_overflow_bucket() {
    let bucket = Bound::Bucket { burst: 5, count: 5, period: MINUTE };
    let window = Bound::Window { limit: 5, window: MINUTE };
    for (notation, bound) in [
        ("5/m", bucket),
        ("leaky-bucket 5/m", bucket),
        ("sliding-log 5/1m", window),
        ("sliding-window 5/1m precision 10s", window),
    ] {
        let world = World::new(CAP);
        let fillers = world.limiter(&[("fill", "1/5m")]);
        let busy = world.limiter(&[("busy", notation)]);
        let mut rng = Rng::new(24);
        let mut log = Vec::with_capacity(30_000);
        let (mut shared, mut own) = (0, 0);
        for _ in 0..2 {
            world.fill(&fillers);
            // Many new users and, among them, the same hundred all the time.
            for i in 0..12_000_u64 {
                let key = if rng.one_in(2) { rng.below(100) } else { 1_000 + rng.below(1 << 40) };
                let is_known = key < 100;
                log.push(world.entry(&busy, key, 1 + rng.below(2)));
                world.clock.advance(Duration::from_micros(rng.below(2 * MINUTE / 1_500)));
                if is_known && i % 8 == 0 {
                    let in_bucket = world.is_shared(&busy, key);
                    shared += u64::from(in_bucket);
                    own += u64::from(!in_bucket);
                }
            }
        }
        let found = bound.check(&log);
        say(&format!(
            "memory: {notation}, out of overflow under traffic: {} decisions, admitted {}, \
             over-admitted {}; found in overflow {shared} times, in a cell of its own {own} times",
            found.decisions, found.admitted, found.over
        ));
        assert!(shared > 100 && own > 100, "{notation}: users are found on both sides");
        assert_eq!(found.over, 0, "{notation}");
    }
}

#[test]
fn a_refund_or_reset_in_an_overflow_bucket_gives_back_nothing_of_others() {
    for notation in ["100/h", "fixed-window 100/h", "sliding-log 100/h"] {
        let world = World::new(CAP);
        world.fill(&world.limiter(&[("fill", "1/30d")]));
        let late = world.limiter(&[("late", notation)]);
        let mates = Mates::find(&world, &late, 20);
        for mate in &mates.0[1..] {
            let key = mate.to_ne_bytes();
            let refunded = late.refund(&key[..], 100).now().unwrap().refunded();
            assert_eq!(refunded, Cost::ZERO, "{notation}");
            late.reset(&key[..]).now().unwrap();
        }
        let passed = mates.0.iter().filter(|mate| world.allows(&late, **mate)).count();
        assert_eq!(passed, 0, "{notation}: what the first has used is still used");
    }
}

/// A thread that has read the clock and is slow to lock the bucket comes behind another that is
/// later and faster. The bucket must not take the old instant for a clock that stepped back.
#[test]
fn an_overflow_bucket_keeps_its_bound_when_a_thread_is_slow_after_reading_the_clock() {
    const ROUNDS: u64 = 15;
    for (notation, bound) in [
        ("10/s", Bound::Bucket { burst: 10, count: 10, period: SECOND }),
        ("sliding-log 10/s", Bound::Window { limit: 10, window: SECOND }),
    ] {
        let time = ManualClock::default();
        let gate = Arc::new(Gate::default());
        let clock = SlowClock { time: time.clone(), gate: gate.clone() };
        let world = World::with_clock(CAP, time.clone(), clock);
        world.fill_to_the_last_byte(&world.limiter(&[("fill", "1/30d")]));
        let late = world.limiter(&[("late", notation)]);
        let mates = Mates::find(&world, &late, 20);
        // All keys of a bucket are one to the checker.
        let entry = |mate: u64| {
            let before = time.now().get();
            let allowed = world.allows(&late, mate);
            Entry { key: 0, cost: 1, allowed, before, after: time.now().get() }
        };
        let now = time.now().get();
        let mut log = vec![Entry { key: 0, cost: 10, allowed: true, before: now, after: now }];
        let mut overtaken = 0;
        for round in 0..ROUNDS {
            let slow_one = mates.0[1 + round as usize % (mates.0.len() - 1)];
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
                let first = mates.0[0];
                let fast = scope.spawn(move || {
                    let entry = entry(first);
                    sender.send(()).unwrap();
                    entry
                });
                // Two keys in the same shard wait for each other, and then nobody is overtaken.
                overtaken += u64::from(done.recv_timeout(Duration::from_millis(20)).is_ok());
                gate.open();
                log.extend([slow.join().unwrap(), fast.join().unwrap()]);
            });
        }
        let found = bound.check(&log);
        say(&format!(
            "memory: one overflow bucket, {notation}, a slow thread overtaken {overtaken} times of \
             {ROUNDS}: admitted {}, over-admitted {}",
            found.admitted, found.over
        ));
        assert_eq!(found.over, 0, "{notation}");
        // Nor is it strict by denying everybody.
        assert!(found.admitted >= 18, "{notation}: {}", found.admitted);
    }
}

/// Keys of one overflow bucket, which the first of them has used up.
struct Mates(Vec<u64>);

impl Mates {
    fn find(world: &World, limiter: &Limiter, count: usize) -> Self {
        let capacity = limiter.rules()[0].limits()[0].limit().capacity();
        let takes_all = |key: &u64| {
            let taken = limiter.check(&key.to_ne_bytes()[..]).cost(capacity).now();
            taken.unwrap().allowed() && world.is_shared(limiter, *key)
        };
        let first = (0..10_000).find(takes_all).unwrap();
        // Of the sixteen buckets, the first one's alone is in use, but for places of one's own.
        let is_full = |key: &u64| {
            let look = limiter.check(&key.to_ne_bytes()[..]).peek().now().unwrap();
            look.remaining() == 0 && world.is_shared(limiter, *key)
        };
        let mates = (1 << 20..).filter(is_full).take(count - 1);
        Self([first].into_iter().chain(mates).collect())
    }
}

thread_local! {
    /// This thread is slow to go on once it has read the clock.
    static IS_SLOW: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Holds up the first call of a slow thread, with the time in hand.
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

// --- what is settled or old --------------------------------------------------------------------

type End = fn(Reservation);

#[test]
fn settled_reservations_make_room_for_new_ones_and_for_new_keys() {
    let ends: [(&str, End); 3] = [
        ("cancelled", |reservation| drop(ready(reservation.cancel()).unwrap())),
        ("committed", |reservation| drop(ready(reservation.commit_all()).unwrap())),
        ("dropped", |reservation| drop(reservation)),
    ];
    for (how, end) in ends {
        let world = World::new(CAP);
        let pool = world.limiter(&[("pool", "concurrency 20 lease 30s")]);
        let login = world.limiter(&[("login", "5/m")]);
        let mut watch = Watch::default();
        for nth in 0..20_000_u64 {
            let reserved = ready(pool.reserve("k", 1));
            end(reserved.unwrap_or_else(|refused| panic!("the {nth}th, {how}: {refused}")));
            world.clock.advance(Duration::from_millis(150));
            watch.look(&world);
        }
        let shared = (0..2_000).filter(|user| {
            assert!(world.allows(&login, *user), "{how}: the first request of user {user}");
            world.is_shared(&login, *user)
        });
        assert_eq!(shared.count(), 0, "{how}");
        say(&format!("memory: cap {CAP}, 20000 reservations in 50 minutes, all {how}: {watch}"));
        watch.hold_to(CAP);
    }
}

/// Every third second for 51 minutes, and then there is no room to note another.
#[test]
fn a_log_without_room_is_halved_and_not_collapsed() {
    const ENTRIES: usize = 1_024;
    let world = World::new(CAP);
    let logs = world.limiter(&[("log", "sliding-log 2000/h")]);
    let limit = logs.rules()[0].limits()[0].clone();
    let key = 1_u64.to_ne_bytes();
    let look = || {
        let found = world.memory.inspect(&limit, key[..].into()).now().unwrap();
        (found.entries.len(), found.standing.used)
    };
    for _ in 0..ENTRIES {
        assert!(world.allows(&logs, 1));
        world.clock.advance(Duration::from_secs(3));
    }
    assert_eq!(look(), (ENTRIES, ENTRIES as u64));
    world.fill_from(&world.limiter(&[("fill", "1/30d")]), 0, 40_000);
    let mut fewest = ENTRIES;
    for _ in 0..10 {
        assert!(world.allows(&logs, 1));
        world.clock.advance(Duration::from_secs(3));
        fewest = fewest.min(look().0);
    }
    say(&format!("memory: a log of {ENTRIES} entries without room: at least {fewest} left"));
    assert!((ENTRIES / 2..=ENTRIES).contains(&fewest), "{fewest}");
    let (_, used) = look();
    assert_eq!(used, ENTRIES as u64 + 10, "nothing is forgotten");
    // When the first 523 are an hour old, an exact log has 511 left. Of two that were joined, the
    // earlier leaves with the later.
    world.clock.advance(Duration::from_secs(3_600 - 3 * 512));
    let (_, left) = look();
    assert!((511..=512).contains(&left), "{left} of {used} left");
}

// --- what takes more than a cell ---------------------------------------------------------------

#[test]
fn logs_without_room_get_coarser_and_never_over_admit() {
    let world = World::new(CAP);
    let limiter = world.limiter(&[("log", "sliding-log 1000/1m")]);
    let mut rng = Rng::new(9);
    let mut log = Vec::with_capacity(200_000);
    world.rebase();
    let mut watch = Watch::default();
    for i in 0..150_000_u64 {
        log.push(world.entry(&limiter, rng.below(2_000), 1 + rng.below(60)));
        world.clock.advance(Duration::from_micros(rng.below(2_400)));
        if i % 100 == 0 {
            watch.look(&world);
        }
    }
    let found = Bound::Window { limit: 1_000, window: MINUTE }.check(&log);
    let denied = log.iter().filter(|entry| !entry.allowed).count();
    say(&format!(
        "memory: cap {CAP}, sliding-log 1000/1m, 2000 keys: {watch}; {} decisions, {denied} denied, \
         admitted {}, over-admitted {}",
        found.decisions, found.admitted, found.over
    ));
    assert_eq!(found.over, 0);
    watch.hold_to(CAP);
}

#[test]
fn logs_in_the_places_of_recovered_buckets_stay_below_the_cap() {
    fill_with_logs_after_buckets(None);
}

#[test]
fn names_in_logs_in_the_places_of_recovered_buckets_stay_below_the_cap() {
    fill_with_logs_after_buckets(Some(&"n".repeat(1_000)));
}

/// Buckets need no memory beside their cell; logs that take over the cells do.
fn fill_with_logs_after_buckets(who: Option<&str>) {
    let world = World::new(CAP);
    let buckets = world.limiter(&[("bucket", "5/s burst 5")]);
    let logs = world.limiter(&[("log", "sliding-log 1000/1m")]);
    world.fill(&buckets);
    world.clock.advance(Duration::from_secs(2));
    let mut watch = Watch::default();
    for key in 0..10_000_u64 {
        for _ in 0..2 {
            let key = key.to_ne_bytes();
            let asking = logs.check(&key[..]);
            let _ = who.map_or(asking, |who| asking.who(who)).now();
            world.clock.advance(Duration::from_micros(1));
        }
        watch.look(&world);
    }
    let names = who.map_or(0, str::len);
    say(&format!("memory: cap {CAP}, logs with names of {names} bytes after buckets: {watch}"));
    watch.hold_to(CAP);
}

#[test]
fn names_in_logs_stay_below_the_cap() {
    let world = World::new(CAP);
    let logs = world.limiter(&[("log", "sliding-log 1000/1m")]);
    let name = "n".repeat(1_000);
    world.rebase();
    let mut watch = Watch::default();
    for key in 0..10_000_u64 {
        let _ = logs.check(&key.to_ne_bytes()[..]).who(&name).now();
        watch.look(&world);
    }
    say(&format!("memory: cap {CAP}, names of 1000 bytes in logs: {watch}"));
    watch.hold_to(CAP);
}

#[test]
fn a_name_of_any_length_stays_below_the_cap() {
    let world = World::new(CAP);
    let logs = world.limiter(&[("log", "sliding-log 1000/1m")]);
    let name = "n".repeat(4 * CAP);
    world.rebase();
    let mut watch = Watch::default();
    let answer = logs.check("k").who(&name).now().map(|decision| decision.allowed());
    watch.look(&world);
    say(&format!(
        "memory: cap {CAP}, a name of {} bytes in a log: {watch}, {answer:?}",
        name.len()
    ));
    watch.hold_to(CAP);
}

#[test]
fn a_reservation_without_room_is_refused_and_changes_nothing() {
    let world = World::new(CAP);
    let limiter = world.limiter(&[("login", "5/m burst 5")]);
    assert!(world.allows(&limiter, 1));
    world.fill_to_the_last_byte(&limiter);
    let key = 1_u64.to_ne_bytes();
    for _ in 0..100 {
        let reserved = ready(limiter.reserve(&key[..], 1));
        assert!(
            matches!(reserved, Err(Limited::NoAnswer(EngineError::Unavailable(_)))),
            "{reserved:?}"
        );
    }
    let left = (0..6).filter(|_| world.allows(&limiter, 1)).count();
    say(&format!("memory: 100 reservations without room refused, permits lost {}", 4 - left));
    assert_eq!(left, 4);
}

#[test]
fn an_idempotent_call_without_room_is_refused_and_changes_nothing() {
    let world = World::new(CAP);
    let limiter = world.limiter(&[("login", "5/m burst 5")]);
    assert!(world.allows(&limiter, 1));
    world.fill_to_the_last_byte(&limiter);
    let key = 1_u64.to_ne_bytes();
    for i in 0..100 {
        let id = format!("id-{i}");
        let answer = limiter.check(&key[..]).once(&id).now();
        assert!(matches!(answer, Err(EngineError::Unavailable(_))), "{answer:?}");
    }
    let left = (0..6).filter(|_| world.allows(&limiter, 1)).count();
    say(&format!("memory: 100 idempotent calls without room refused, permits lost {}", 4 - left));
    assert_eq!(left, 4);
}

#[test]
fn a_flood_of_reservations_stays_below_the_cap() {
    let world = World::new(CAP);
    let limiter = world.limiter(&[("pool", "concurrency 1000000")]);
    let mut watch = Watch::default();
    let (mut held, mut refused) = (0, 0);
    for key in 0..30_000_u64 {
        match ready(limiter.reserve(&(key % 500).to_ne_bytes()[..], 1)) {
            Ok(reservation) => {
                let _id = reservation.keep();
                held += 1;
            }
            Err(Limited::NoAnswer(EngineError::Unavailable(_))) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        watch.look(&world);
    }
    say(&format!("memory: cap {CAP}, 30000 reservations: {held} held, {refused} refused; {watch}"));
    assert!(held > 0 && refused > 0);
    watch.hold_to(CAP);
}

#[test]
fn a_flood_of_idempotent_calls_stays_below_the_cap() {
    let world = World::new(CAP);
    let limiter = world.limiter(&[("pay", "1000000/s")]);
    let mut watch = Watch::default();
    let mut id = String::with_capacity(32);
    let (mut charged, mut refused) = (0, 0);
    for i in 0..30_000_u64 {
        id.clear();
        write!(id, "id-{i}").unwrap();
        match limiter.check(&(i % 500).to_ne_bytes()[..]).once(&id).now() {
            Ok(_) => charged += 1,
            Err(EngineError::Unavailable(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        watch.look(&world);
    }
    say(&format!("memory: cap {CAP}, 30000 ids: {charged} charged, {refused} refused; {watch}"));
    assert!(charged > 0 && refused > 0);
    watch.hold_to(CAP);
}

#[test]
fn settling_reservations_of_many_limits_stays_below_the_cap() {
    let world = World::new(CAP);
    let names: Vec<String> = (0..64).map(|i| format!("r{i}")).collect();
    let rules: Vec<Rule> =
        names.iter().map(|name| Rule::new(name, [limit("1000000/s")]).unwrap()).collect();
    let charges: Vec<Charge<'_>> = rules
        .iter()
        .map(|rule| Charge {
            limit: &rule.limits()[0],
            key: "k".into(),
            cost: Cost::ONE,
            who: None,
        })
        .collect();
    let mut ids = Vec::with_capacity(10_000);
    world.rebase();
    for id in 0..2_000_u128 {
        let id = HoldId::from(id << 96 | id);
        let op = Op::Hold { id, ttl: Micros::from_secs(60), expiry: Expiry::Release };
        if world.decide(op, &charges, None).is_ok() {
            ids.push(id);
        }
    }
    let mut watch = Watch::default();
    watch.look(&world);
    say(&format!("memory: cap {CAP}, {} reservations of 64 limits held: {watch}", ids.len()));
    for id in &ids {
        world.decide(Op::Settle { id: *id, cost: None }, &[], None).unwrap();
        watch.look(&world);
    }
    say(&format!("memory: cap {CAP}, {} reservations of 64 limits settled: {watch}", ids.len()));
    watch.hold_to(CAP);
}

#[test]
fn calls_of_many_charges_stay_below_the_cap() {
    for cap in [CAP, 64 << 10] {
        let watch = flood_of_long_calls(cap);
        say(&format!("memory: cap {cap}, calls of 64 charges: {watch}"));
        watch.hold_to(cap);
    }
}

fn flood_of_long_calls(cap: usize) -> Watch {
    let world = World::new(cap);
    let names: Vec<String> = (0..64).map(|i| format!("r{i}")).collect();
    let rules: Vec<Rule> =
        names.iter().map(|name| Rule::new(name, [limit("5/m")]).unwrap()).collect();
    world.rebase();
    let mut watch = Watch::default();
    for key in 0..1_000_u64 {
        let key = key.to_ne_bytes();
        let charges: Vec<Charge<'_>> = rules
            .iter()
            .map(|rule| Charge {
                limit: &rule.limits()[0],
                key: key[..].into(),
                cost: Cost::ONE,
                who: None,
            })
            .collect();
        let _ = world.decide(Op::Check, &charges, None);
        drop(charges);
        watch.look(&world);
    }
    watch
}

#[test]
fn many_distinct_adhoc_limits_are_refused_without_room_and_stay_below_the_cap() {
    let world = World::new(CAP);
    let mut watch = Watch::default();
    let (mut admitted, mut refused) = (0, 0);
    let mut notation = String::with_capacity(64);
    for i in 0..20_000_u64 {
        notation.clear();
        write!(notation, "5/{}s", 60 + i).unwrap();
        let rule = Rule::adhoc(limit(&notation));
        let charge =
            Charge { limit: &rule.limits()[0], key: "k".into(), cost: Cost::ONE, who: None };
        match world.decide(Op::Check, &[charge], None) {
            Ok(decision) => admitted += u64::from(decision.allowed()),
            Err(EngineError::Unavailable(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        drop(rule);
        watch.look(&world);
    }
    say(&format!(
        "memory: cap {CAP}, 20000 ad-hoc limits: {admitted} admitted, {refused} refused; {watch}"
    ));
    assert!(admitted > 0 && refused > 0);
    watch.hold_to(CAP);
}

// --- afterwards --------------------------------------------------------------------------------

#[test]
fn after_the_flood_has_recovered_reservations_are_possible_again() {
    let world = World::new(CAP);
    let limiter = world.limiter(&[("login", "5/m burst 5")]);
    world.fill(&limiter);
    world.clock.advance(Duration::from_secs(61));
    // The ordinary traffic of a while, so that whatever is done in passing has been done.
    for key in 500_000..501_000 {
        world.allows(&limiter, key);
    }
    world.clock.advance(Duration::from_secs(61));
    let key = 1_u64.to_ne_bytes();
    let reserve = |_: &i32| {
        world.clock.advance(Duration::from_millis(1));
        ready(limiter.reserve(&key[..], 1)).is_ok()
    };
    let made = (0..100).filter(reserve).count();
    say(&format!("memory: after the flood, 100 reservations one after the other: {made} made"));
    assert_eq!(made, 100);
}

#[test]
fn after_the_flood_has_recovered_idempotent_calls_are_possible_again() {
    let world = World::new(CAP);
    let limiter = world.limiter(&[("login", "5/m burst 5")]);
    world.fill(&limiter);
    world.clock.advance(Duration::from_secs(61));
    for key in 500_000..501_000 {
        world.allows(&limiter, key);
    }
    world.clock.advance(Duration::from_secs(61));
    let check = |key: &u64| {
        world.clock.advance(Duration::from_millis(1));
        limiter.check(&key.to_ne_bytes()[..]).once("id").now().is_ok()
    };
    let made = (0..100_u64).filter(check).count();
    say(&format!("memory: after the flood, 100 idempotent calls: {made} answered"));
    assert_eq!(made, 100);
}

#[test]
fn after_the_flood_has_recovered_logs_are_exact_again() {
    let world = World::new(CAP);
    let buckets = world.limiter(&[("bucket", "5/m burst 5")]);
    let logs = world.limiter(&[("log", "sliding-log 100/1m")]);
    world.fill(&buckets);
    world.clock.advance(Duration::from_secs(61));
    for key in 500_000..501_000 {
        world.allows(&buckets, key);
    }
    world.clock.advance(Duration::from_secs(61));
    // One request a second is 60 a minute where 100 are allowed: an exact log denies none.
    let denied = (0..600)
        .filter(|_| {
            world.clock.advance(Duration::from_secs(1));
            !world.allows(&logs, 1)
        })
        .count();
    say(&format!("memory: after the flood, sliding-log 100/1m at 60/m: {denied} of 600 denied"));
    assert_eq!(denied, 0);
}

#[test]
fn changing_limits_under_logs_does_not_use_up_the_cap() {
    let world = World::new(CAP);
    let limiter = Limiter::new(world.memory.clone(), limit("sliding-log 1000/1m"));
    world.rebase();
    let mut watch = Watch::default();
    for round in 0..400 {
        let large = if round % 2 == 0 { "sliding-log 1000/1m" } else { "sliding-log 1/1m" };
        limiter.set_limit(limit(large)).unwrap();
        for _ in 0..200 {
            world.allows(&limiter, 1);
            world.clock.advance(Duration::from_micros(1));
        }
        watch.look(&world);
    }
    say(&format!("memory: one log under 400 changes of its limit: {watch}"));
    // One key with 1000 entries of some tens of bytes.
    assert!(watch.told < 200_000, "the engine counts {} bytes for one log", watch.told);
    watch.hold_to(CAP);
}

#[test]
fn what_the_engine_says_of_its_memory_stays_true_when_keys_come_and_go() {
    let world = World::new(CAP);
    let limiter = world.limiter(&[("flood", "5/s burst 5")]);
    let mut rng = Rng::new(3);
    let mut worst = 0;
    for _ in 0..200_000 {
        world.allows(&limiter, rng.below(1 << 40));
        world.clock.advance(Duration::from_micros(rng.below(150)));
        let (told, grown) = (world.told(), world.grown());
        worst = worst.max(told.abs_diff(grown));
    }
    say(&format!(
        "memory: 200000 keys coming and going: told {}, true {}, at most {worst} apart",
        world.told(),
        world.grown()
    ));
    assert!(worst < CAP / 10);
}

// --- the world ---------------------------------------------------------------------------------

/// An engine with a cap and a clock that stands still; alone in this process while it lives.
struct World {
    memory: Arc<Memory>,
    clock: ManualClock,
    empty: AtomicUsize,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new(cap: usize) -> Self {
        let clock = ManualClock::default();
        Self::with_clock(cap, clock.clone(), clock)
    }

    /// With an engine that goes by a clock of its own, which follows the one to turn.
    fn with_clock(cap: usize, clock: ManualClock, engines: impl Clock) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = AtomicUsize::new(Counting::live_bytes());
        let memory = Memory::builder().cap_bytes(cap).clock(engines).build();
        Self { memory: Arc::new(memory), clock, empty, _alone: alone }
    }

    /// Counts heap growth from here, without what the test has allocated for itself since.
    fn rebase(&self) {
        self.empty.store(Counting::live_bytes(), Ordering::Relaxed);
    }

    /// A limiter over the engine; its own memory does not count as growth.
    fn limiter(&self, rules: &[(&str, &str)]) -> Limiter {
        let before = Counting::live_bytes();
        let rules =
            rules.iter().map(|(name, notation)| Rule::new(name, [limit(notation)]).unwrap());
        let limiter = Limiter::with_rules(self.memory.clone(), rules).unwrap();
        self.empty.fetch_add(Counting::live_bytes() - before, Ordering::Relaxed);
        limiter
    }

    fn allows(&self, limiter: &Limiter, key: u64) -> bool {
        limiter.check_now(&key.to_ne_bytes()[..]).is_ok_and(|decision| decision.allowed())
    }

    fn is_shared(&self, limiter: &Limiter, key: u64) -> bool {
        ready(limiter.inspect(&key.to_ne_bytes()[..])).unwrap()[0].shared
    }

    fn entry(&self, limiter: &Limiter, key: u64, cost: u64) -> Entry {
        let now = self.clock.now().get();
        let answer = limiter.check(&key.to_ne_bytes()[..]).cost(cost).now();
        let allowed = answer.is_ok_and(|decision| decision.allowed());
        Entry { key, cost, allowed, before: now, after: now }
    }

    fn decide(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        once: Option<CallId<'_>>,
    ) -> Result<Decision, EngineError> {
        self.memory.decide(Call { op, charges, once }).now()
    }

    /// Uses keys until there is no room for another.
    fn fill(&self, limiter: &Limiter) {
        self.fill_from(limiter, 1 << 32, 60_000);
    }

    /// Small keys grow by whole tables, and what that leaves is taken by larger ones.
    fn fill_to_the_last_byte(&self, limiter: &Limiter) {
        self.fill(limiter);
        self.fill(&self.limiter(&[("log", "sliding-log 5/30d")]));
    }

    fn fill_from(&self, limiter: &Limiter, first: u64, keys: u64) {
        for key in first..first + keys {
            self.allows(limiter, key);
        }
    }

    fn grown(&self) -> usize {
        Counting::live_bytes().saturating_sub(self.empty.load(Ordering::Relaxed))
    }

    fn told(&self) -> usize {
        usize::try_from(self.memory.health().memory_bytes).unwrap()
    }
}

/// The most memory that was in use, by the allocator's count and by the engine's own.
#[derive(Default)]
struct Watch {
    grown: usize,
    told: usize,
}

impl Watch {
    fn look(&mut self, world: &World) {
        self.grown = self.grown.max(world.grown());
        self.told = self.told.max(world.told());
    }

    /// A tenth above the cap is allowed for what a table has in reserve; and on the heap a little for
    /// the harness, which starts and ends other tests meanwhile.
    fn hold_to(&self, cap: usize) {
        const HARNESS: usize = 4 << 10;
        assert!(
            self.grown <= cap + cap / 10 + HARNESS,
            "the heap grew by {} with a cap of {cap}",
            self.grown
        );
        assert!(self.told <= cap + cap / 10, "the engine told {} with a cap of {cap}", self.told);
    }
}

impl std::fmt::Display for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "heap grew by {}, engine told {}", self.grown, self.told)
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn limit(notation: &str) -> Limit {
    notation.parse().unwrap()
}

/// Prints a figure past the harness, which captures what goes through `eprintln!`.
fn say(figure: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{figure}").unwrap();
}
