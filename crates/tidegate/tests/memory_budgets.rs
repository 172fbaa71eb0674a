//! Budgets of the memory engine: no kind of call takes the room of another, and the memory that is
//! reported is the memory that is used.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::policy::ListMode;
use tidegate::{
    Cost, Costs, Engine, EngineError, Expiry, HoldId, IdempotencyKey, Limit, Limited, Limiter,
    ManualClock, Memory, MemoryFull, MemoryKind, MemoryUse, Micros, Op, Refusal, Rule, RuleCheck,
    Slot,
};
use tidegate_model::CountingAllocator;

use testkit::now_or_never::now_or_panic;

/// A 32nd of the default cap.
const CAP: usize = 8 << 20;

// --- no kind takes the room of another ---------------------------------------------------------

#[test]
fn ids_of_one_key_leave_room_for_new_keys_reservations_and_adhoc_limits() {
    let fixture = Fixture::new(CAP);
    fixture.fill_with_ids(60_000, Duration::from_millis(5));
    fixture.assert_others_are_served("ids");
}

#[test]
fn reservations_that_are_never_settled_leave_room_for_new_keys_ids_and_adhoc_limits() {
    let fixture = Fixture::new(CAP);
    fixture.fill_with_reservations(60_000);
    fixture.assert_others_are_served("reservations");
}

#[test]
fn distinct_adhoc_limits_leave_room_for_new_keys_ids_and_reservations() {
    let fixture = Fixture::new(CAP);
    assert!(fixture.adhoc_allows(&Fixture::plan(), 1 << 32), "a limit that is known before");
    fixture.fill_with_adhoc_limits(30_000);
    fixture.assert_others_are_served("ad-hoc limits");
}

#[test]
fn all_kinds_at_once_leave_room_for_new_keys() {
    let fixture = Fixture::new(CAP);
    fixture.fill_with_adhoc_limits(20_000);
    fixture.fill_with_reservations(40_000);
    fixture.fill_with_ids(40_000, Duration::from_millis(5));
    assert_eq!(fixture.first_logins(), 1_000);
    let (memory, grown) = (fixture.health(), fixture.grown());
    print_figure(&format!("all kinds: heap grew by {grown}, {memory:?}"));
    assert!(grown <= CAP + CAP / 10, "{grown}");
}

#[test]
fn a_flood_of_one_rule_leaves_room_for_new_keys_of_another() {
    for flood in ["5/h", "sliding-log 5/h"] {
        for other in ["5/h", "sliding-log 5/h"] {
            let fixture = Fixture::new(CAP);
            let (flooded, late) = (fixture.rule("flood", flood), fixture.rule("late", other));
            (0..200_000_u64).for_each(|key| drop(flooded.check_now(&key.to_ne_bytes()[..])));
            let passes = |key: &u64| {
                let key = key.to_ne_bytes();
                (0..5).all(|_| late.check_now(&key[..]).is_ok_and(|decision| decision.allowed()))
            };
            let passed = (0..200).filter(passes).count();
            let used = fixture.health().of(MemoryKind::State).bytes;
            print_figure(&format!(
                "flood of {flood}, {used} bytes of state: {passed} of 200 new keys of {other} have \
                 their whole limit"
            ));
            assert_eq!(passed, 200, "{flood}, {other}");
        }
    }
}

#[test]
fn active_reservations_of_one_rule_leave_room_for_those_of_another() {
    let fixture = Fixture::new(CAP);
    let [flooded, other] = ["llm", "other"].map(|name| fixture.rule(name, "1000000/s"));
    let reserve = |rule: &Limiter, n: u64| {
        let key = (n % 1_000).to_ne_bytes();
        let reserved = now_or_panic(rule.reserve(&key[..], 1).ttl(Duration::from_secs(3_600)));
        reserved.map(tidegate::Reservation::keep)
    };
    let flood: Vec<HoldId> = (0..100_000).map_while(|n| reserve(&flooded, n).ok()).collect();
    let Err(Limited::NoAnswer(refused)) = reserve(&flooded, 0) else { panic!("there is room") };
    assert_eq!(refused.memory_full(), Some(MemoryFull(MemoryKind::Reservations)));
    let passed = (0..1_000).filter(|n| reserve(&other, *n).is_ok()).count();
    let used = fixture.health().of(MemoryKind::Reservations).bytes;
    print_figure(&format!(
        "{} active reservations of one rule, {used} bytes: {passed} of 1000 of another",
        flood.len()
    ));
    assert_eq!(passed, 1_000);
    // A settled one makes room for another as soon as a refused call has swept its shard.
    now_or_panic(flooded.reservation(flood[0]).commit(1)).unwrap();
    let again = (0..1_000).filter(|n| reserve(&flooded, *n).is_ok()).count();
    assert!((1..10).contains(&again), "{again}");
}

#[test]
fn ids_of_one_rule_neither_refuse_nor_shorten_those_of_another() {
    let fixture = Fixture::new(CAP);
    let [flooded, other] = ["llm", "other"].map(|name| fixture.rule(name, "1000000/s"));
    let check = |rule: &Limiter, key: u64, id: u64| {
        rule.check(&key.to_ne_bytes()[..]).idempotency_key(&format!("id-{id}")).now()
    };
    let repeated = |ids: std::ops::Range<u64>| {
        ids.filter(|id| check(&other, *id, *id).unwrap().repeated()).count()
    };
    (0..500).for_each(|id| drop(check(&other, id, id).unwrap()));
    fixture.clock.advance(Duration::from_secs(120));
    // 100 a second for ten minutes have no room.
    for id in 0..60_000 {
        check(&flooded, id % 300, id).unwrap();
        fixture.clock.advance(Duration::from_millis(10));
    }
    let retention = fixture.health().id_retention;
    assert!(retention < Micros::from_secs(300), "{retention}");
    assert_eq!(repeated(0..500), 500, "older than any of the flood");
    // All at once.
    let refused = (0..120_000).find_map(|id| check(&flooded, id % 300, 1 << 32 | id).err());
    assert_eq!(refused.unwrap().memory_full(), Some(MemoryFull(MemoryKind::Ids)));
    let stored = (1_000..2_000).filter(|id| check(&other, *id, *id).is_ok()).count();
    print_figure(&format!("ids of one rule, kept for {retention}: {stored} of 1000 of another"));
    assert_eq!((stored, repeated(0..500), repeated(1_000..2_000)), (1_000, 500, 1_000));
}

/// The default cap, and as many calls as ten minutes at a few thousand a second.
#[test]
fn a_quarter_of_a_million_throttled_keys_of_one_limit_are_all_counted_alone() {
    let fixture = Fixture::new(64 << 20);
    let plan = Rule::throttle(limit("5/1d"));
    for key in 0..250_000_u64 {
        assert!(fixture.adhoc_allows(&plan, key), "{key}");
    }
    let adhoc = fixture.health().of(MemoryKind::Adhoc);
    let each = (adhoc.bytes as usize, fixture.grown()).map_each(250_000);
    print_figure(&format!("throttled keys: reported {} bytes each, heap {}", each.0, each.1));
    assert_eq!(adhoc.overflows, 0);
    assert!(each.0 <= 60 && each.1 <= 60, "{each:?}");
}

// --- ids are kept for a shorter time before they are refused -----------------------------------

#[test]
fn without_room_ids_are_kept_for_a_shorter_time_and_refused_only_below_a_minute() {
    let fixture = Fixture::new(CAP);
    let key = fixture.rule("llm", "1000000/s");
    let check = |id: u64| key.check("gateway").idempotency_key(&format!("id-{id}")).now();
    // 100 a second: an hour of them has no room, some minutes have.
    for id in 0..60_000 {
        check(id).unwrap();
        fixture.clock.advance(Duration::from_millis(10));
    }
    let memory = fixture.health();
    let retention = memory.id_retention;
    print_figure(&format!("100 ids a second are kept for {retention}"));
    assert!(retention < IdempotencyKey::TTL && retention > Micros::from_secs(60), "{retention}");
    assert!(memory.of(MemoryKind::Ids).is_full && memory.of(MemoryKind::Ids).overflows > 0);
    let kept = retention.get() / 10_000 - 100;
    assert!(check(60_000 - kept).unwrap().repeated(), "younger ones are remembered");
    assert!(!check(60_000 - kept - 1_000).unwrap().repeated(), "the oldest are forgotten first");
    // All at once.
    let refused = (100_000..160_000).find_map(|id| check(id).err()).unwrap();
    assert_eq!(refused.memory_full(), Some(MemoryFull(MemoryKind::Ids)));
    assert!(refused.to_string().contains("memory is full (ids)"), "{refused}");
    assert!(key.check_now("gateway").unwrap().allowed(), "without an id it is decided");
    assert_eq!(fixture.health().id_retention, Micros::from_secs(60), "the minimum");
    // Other keys, whose ids are in other shards, find room as soon as the minute is over.
    fixture.clock.advance(Duration::from_secs(60));
    assert!(key.check("other").idempotency_key("id").now().unwrap().allowed());
    fixture.clock.advance(Duration::from_secs(61));
    assert_eq!(fixture.health().id_retention, IdempotencyKey::TTL, "over after a minute");
    assert!(!fixture.health().of(MemoryKind::Ids).is_full);
}

// --- expired reservations ----------------------------------------------------------------------

#[test]
fn expired_reservations_are_forgotten_after_the_settled_ones_and_the_oldest_first() {
    let fixture = Fixture::new(64 << 10);
    let rule = fixture.rule("llm", "1000000/s");
    let reserve = |ttl| {
        let reserved = now_or_panic(rule.reserve("gateway", 1).ttl(ttl));
        reserved.map(tidegate::Reservation::keep)
    };
    let commit = |id: HoldId| now_or_panic(rule.reservation(id).commit(1));
    let is_unknown =
        |id: HoldId| matches!(commit(id), Err(EngineError::Refused(Refusal::UnknownHold)));
    let old = reserve(Duration::from_millis(1)).unwrap();
    fixture.clock.advance(Duration::from_secs(1));
    let settled = reserve(Duration::from_secs(60)).unwrap();
    commit(settled).unwrap();
    let young = reserve(Duration::from_millis(1)).unwrap();
    fixture.clock.advance(Duration::from_secs(1));
    // Fills up with reservations that are active, until one has to go.
    let mut active = Vec::new();
    let forgotten = |id| now_or_panic(rule.reservation(id).renew(Duration::from_secs(1))).is_err();
    while !forgotten(settled) || active.len() < 2 {
        active.push(reserve(Duration::from_secs(3_600)).unwrap());
    }
    assert!(!is_unknown(old), "the settled one goes first");
    // `old` is settled now and goes, then `young`; active ones never.
    let refused = (0..10_000).find_map(|_| reserve(Duration::from_secs(3_600)).err()).unwrap();
    let Limited::NoAnswer(refused) = refused else { panic!("{refused}") };
    assert_eq!(refused.memory_full(), Some(MemoryFull(MemoryKind::Reservations)));
    assert!(is_unknown(old) && is_unknown(young));
    assert!(active.into_iter().all(|id| commit(id).is_ok()), "no active one is forgotten");
}

#[test]
fn the_cost_of_a_reservation_that_was_forgotten_is_recorded_at_its_commit() {
    for (keys, all) in [(&["tenant", "user"][..], false), (&["user"], true)] {
        let fixture = Fixture::new(64 << 10);
        let budget = fixture.rule("budget", "fixed-window 1000/1d");
        let key = tidegate::Key::of(keys);
        let reserved = now_or_panic(budget.reserve(key, 500).ttl(Duration::from_millis(1)));
        let reserved = reserved.unwrap();
        fixture.clock.advance(Duration::from_secs(1));
        // Of the same rule: another one would not have it forgotten.
        let mut reserve = |_| now_or_panic(budget.reserve("k", 1)).map(tidegate::Reservation::keep);
        assert!((0..10_000).map(&mut reserve).any(|reserved| reserved.is_err()), "no room");
        let renewed = now_or_panic(reserved.renew(Duration::from_secs(1))).unwrap_err();
        assert_eq!(renewed.refusal(), Some(&Refusal::UnknownHold), "it is forgotten");
        let committed = match all {
            true => now_or_panic(reserved.commit_all()),
            false => now_or_panic(reserved.commit(312)),
        };
        let (committed, due) = (committed.unwrap(), if all { 500 } else { 312 });
        assert!(committed.late());
        assert_eq!((committed.remaining(), committed.limits().count()), (1_000 - due, 1));
        assert_eq!(budget.check(key).peek().now().unwrap().remaining(), 1_000 - due);
    }
}

#[test]
fn what_a_forgotten_hold_was_charged_at_its_expiry_is_not_recorded_again() {
    for (cost, due) in [(800, 800), (300, 500)] {
        let fixture = Fixture::new(64 << 10);
        let budget = fixture.rule("budget", "fixed-window 1000/1d");
        let policy = budget.policy();
        let checks = [RuleCheck::new("budget", "user").cost(500)];
        let plan = policy.plan_checks(&checks, ListMode::Evaluate, Micros::ZERO).unwrap();
        let ttl = Micros::from_millis(1);
        let hold = Op::hold(HoldId::from(1), ttl, Expiry::Charge);
        let decision = now_or_panic(budget.decide(hold, &plan)).unwrap();
        let mut slot = Slot::of(&budget, &decision, ttl).unwrap();
        slot.record_if_lost(hold, &plan);
        slot.charge_at_end(Costs::All(Cost::new(cost).unwrap()));
        fixture.clock.advance(Duration::from_secs(1));
        let mut reserve = |_| now_or_panic(budget.reserve("k", 1)).map(tidegate::Reservation::keep);
        assert!((0..10_000).map(&mut reserve).any(|reserved| reserved.is_err()), "no room");
        let remaining = || budget.check("user").peek().now().unwrap().remaining();
        assert_eq!(remaining(), 500, "charged when it expired");
        drop(slot);
        assert_eq!(remaining(), 1_000 - due);
    }
}

// --- sizes -------------------------------------------------------------------------------------

#[test]
fn an_id_needs_110_bytes_and_a_reservation_300_and_both_are_reported_as_they_are() {
    const COUNT: usize = 20_000;
    let fixture = Fixture::new(64 << 20);
    let rule = fixture.rule("llm", "1000000/s");
    let before = fixture.grown();
    for id in 0..COUNT {
        let id = format!("id-{id}");
        assert!(rule.check("gateway").idempotency_key(&id).now().unwrap().allowed());
    }
    let ids = fixture.health().of(MemoryKind::Ids).bytes as usize;
    let each = (ids, fixture.grown() - before).map_each(COUNT);
    print_figure(&format!("an id: reported {} bytes, heap {}", each.0, each.1));
    assert!(each.0 <= 110 && each.1 <= 110, "{each:?}");
    let before = fixture.grown();
    for n in 0..COUNT {
        // Some holds are on the same key, as those of a gateway are.
        let key = format!("gateway-{}", n % 100);
        let _id = now_or_panic(rule.reserve(&key, 1)).unwrap().keep();
    }
    let holds = fixture.health().of(MemoryKind::Reservations).bytes as usize;
    let each = (holds, fixture.grown() - before).map_each(COUNT);
    print_figure(&format!("a reservation: reported {} bytes, heap {}", each.0, each.1));
    assert!(each.0 <= 300 && each.1 <= 300, "{each:?}");
    let (reported, grown) = (fixture.memory.health().memory_bytes as usize, fixture.grown());
    assert!(reported.abs_diff(grown) <= grown / 10, "reported {reported}, heap {grown}");
}

#[test]
fn unused_adhoc_limits_are_freed() {
    let fixture = Fixture::new(CAP);
    fixture.fill_with_adhoc_limits(30_000);
    let full = fixture.health().of(MemoryKind::Adhoc);
    assert!(full.is_full && full.overflows > 0);
    fixture.clock.advance(Duration::from_secs(2 * 86_400));
    let mut refused = 0;
    for n in 0..30_000 {
        fixture.clock.advance(Duration::from_millis(10));
        let rule = Rule::adhoc(limit(&format!("fixed-window {}/1s", 1_000_000 + n)));
        refused += u32::from(!fixture.adhoc_allows(&rule, 1));
    }
    let left = fixture.health().of(MemoryKind::Adhoc).bytes;
    print_figure(&format!(
        "new ad-hoc limits after the flood: {refused} refused, {left} bytes left"
    ));
    assert_eq!(refused, 0);
}

// --- fixture -----------------------------------------------------------------------------------

/// An engine with a cap and a manual clock. No other test of this process runs meanwhile.
struct Fixture {
    memory: Arc<Memory>,
    clock: ManualClock,
    empty: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Fixture {
    fn new(cap: usize) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = CountingAllocator::live_bytes();
        let clock = ManualClock::default();
        let memory = Arc::new(Memory::builder().cap_bytes(cap).clock(clock.clone()).build());
        Self { memory, clock, empty, _alone: alone }
    }

    /// A limit that comes with calls.
    fn plan() -> Rule {
        Rule::throttle(limit("5/1h"))
    }

    fn rule(&self, name: &str, notation: &str) -> Limiter {
        let rule = Rule::new(name, [limit(notation)]).unwrap();
        Limiter::with_rules(self.memory.clone(), [rule]).unwrap()
    }

    fn health(&self) -> MemoryUse {
        self.memory.health().memory
    }

    fn grown(&self) -> usize {
        CountingAllocator::live_bytes().saturating_sub(self.empty)
    }

    fn fill_with_ids(&self, count: u32, pause: Duration) {
        let llm = self.rule("llm", "1000000/s");
        for id in 0..count {
            drop(llm.check("gateway").idempotency_key(&format!("id-{id}")).now());
            self.clock.advance(pause);
        }
    }

    /// Reservations of a millisecond that are never settled.
    fn fill_with_reservations(&self, count: u32) {
        let llm = self.rule("llm", "1000000/s");
        for _ in 0..count {
            let reserved = now_or_panic(llm.reserve("gateway", 1).ttl(Duration::from_millis(1)));
            if let Ok(reservation) = reserved {
                let _id = reservation.keep();
            }
            self.clock.advance(Duration::from_micros(500));
        }
    }

    fn fill_with_adhoc_limits(&self, count: u32) {
        for n in 1..=count {
            self.adhoc_allows(&Rule::adhoc(limit(&format!("fixed-window {n}/1d"))), 1);
        }
    }

    fn adhoc_allows(&self, rule: &Rule, key: u64) -> bool {
        let limiter = Limiter::with_rules(self.memory.clone(), [rule.clone()]).unwrap();
        limiter.check_now(&key.to_ne_bytes()[..]).is_ok_and(|decision| decision.allowed())
    }

    /// How many of 1,000 new users may log in, each counted alone.
    fn first_logins(&self) -> usize {
        let login = self.rule("login", "5/1m");
        let passes = |user: &u64| {
            let key = user.to_ne_bytes();
            let allowed = login.check_now(&key[..]).is_ok_and(|decision| decision.allowed());
            allowed && !now_or_panic(login.inspect(&key[..])).unwrap()[0].shared
        };
        (0..1_000).filter(passes).count()
    }

    fn assert_others_are_served(&self, flood: &str) {
        let memory = self.health();
        let logins = self.first_logins();
        let other = self.rule("other", "5/1m");
        let reserved = (0..100_u64).filter(|key| {
            let reserved = now_or_panic(other.reserve(&key.to_ne_bytes()[..], 1));
            reserved.is_ok_and(|reservation| reservation.keep() != HoldId::from(0))
        });
        let reserved = reserved.count();
        self.clock.advance(Duration::from_secs(60));
        let with_id = (200..300_u64).filter(|key| {
            let check = other.check(&key.to_ne_bytes()[..]).idempotency_key("id").now();
            check.is_ok_and(|decision| decision.allowed())
        });
        let with_id = with_id.count();
        let plan = Self::plan();
        let throttled = (0..100).filter(|key| self.adhoc_allows(&plan, *key)).count();
        let grown = self.grown();
        print_figure(&format!(
            "after a flood of {flood}: {logins} of 1000 first logins, {reserved} of 100 \
             reservations, {with_id} of 100 calls with an id, {throttled} of 100 throttled keys; \
             heap grew by {grown}; {memory:?}"
        ));
        assert_eq!((logins, reserved, with_id, throttled), (1_000, 100, 100, 100));
        assert!(grown <= CAP + CAP / 10, "{grown}");
    }
}

trait MapEach {
    fn map_each(self, count: usize) -> (usize, usize);
}

impl MapEach for (usize, usize) {
    /// Both divided by `count`, rounded up.
    fn map_each(self, count: usize) -> (usize, usize) {
        (self.0.div_ceil(count), self.1.div_ceil(count))
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
    writeln!(stderr, "memory: {figure}").unwrap();
}
