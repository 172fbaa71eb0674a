//! Decisions of each rule while the store is unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::engines::{BreakerFixture, StoreMode};
use testkit::now_or_never::now_or_panic;
use tidegate::policy::ListMode;
use tidegate::{
    Call, CallerDeadline, Charge, Clock, Cost, Costs, Decision, Engine, EngineError, EngineFuture,
    Expiry, Fallback, FleetSize, Fraction, Health, HoldId, HoldKind, HoldSpec, Inspection, Key,
    Limited, Limiter, ManualClock, Memory, Micros, OnStoreFailure, Op, Outcome, Refusal, Rule,
    RuleCheck, RuleCost, RuleLimit, Slot, Source, StoreEvent, Wait,
};

/// A store that can be turned off.
struct SwitchableStore {
    memory: Memory,
    off: Arc<AtomicBool>,
}

impl SwitchableStore {
    fn error(&self) -> Option<EngineError> {
        let off = self.off.load(Ordering::SeqCst);
        off.then(|| EngineError::unavailable(std::io::Error::other("turned off")))
    }
}

impl Engine for SwitchableStore {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        match self.error() {
            Some(error) => EngineFuture::Ready(Err(error)),
            None => self.memory.decide(call),
        }
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        match self.error() {
            Some(error) => EngineFuture::Ready(Err(error)),
            None => self.memory.inspect(limit, key),
        }
    }

    fn health(&self) -> Health {
        self.memory.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}

struct Bench {
    limiter: Limiter,
    clock: ManualClock,
    off: Arc<AtomicBool>,
}

impl Bench {
    fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::of(Arc::default(), rules)
    }

    fn of(fleet: Arc<FleetSize>, rules: impl IntoIterator<Item = Rule>) -> Self {
        let (clock, off) = (ManualClock::default(), Arc::new(AtomicBool::new(false)));
        let memory = Memory::builder().clock(clock.clone()).build();
        let store = SwitchableStore { memory, off: off.clone() };
        let engine = Fallback::new(store).fleet_size(fleet);
        Self { limiter: Limiter::with_rules(engine, rules).unwrap(), clock, off }
    }

    fn set_off(&self, off: bool) {
        self.off.store(off, Ordering::SeqCst);
    }

    fn check(&self, rule: &str, cost: u64) -> Decision {
        self.limiter.check_each(&[RuleCheck::new(rule, "k").cost(cost)]).now().unwrap()
    }

    fn passes(&self, rule: &str, of: usize) -> usize {
        (0..of).filter(|_| self.check(rule, 1).allowed()).count()
    }
}

fn rule(name: &str, limit: &str, what: OnStoreFailure) -> Rule {
    Rule::new(name, [limit.parse().unwrap()]).unwrap().on_store_failure(what)
}

fn share(millionths: u64) -> OnStoreFailure {
    OnStoreFailure::Fallback(Fraction::from_millionths(millionths).unwrap())
}

const LIMITS: [(&str, u64); 10] = [
    ("10/h", 5),
    ("1/h", 1),
    ("0/h", 0),
    ("10/h burst 10 every 1h", 5),
    ("leaky-bucket 7/h", 3),
    ("fixed-window 10/h", 5),
    ("fixed-window 10/h first-hit", 5),
    ("sliding-log 11/h", 5),
    ("sliding-window 10/h", 5),
    ("sliding-window 10/h approximate", 5),
];

#[test]
fn a_share_of_every_limit_is_granted_and_does_not_count_in_the_store() {
    for (limit, expected) in LIMITS {
        let bench = Bench::new([rule("r", limit, OnStoreFailure::default())]);
        bench.set_off(true);
        let first = bench.check("r", 1);
        assert_eq!(first.source, Source::Fallback);
        let passed = usize::from(first.allowed()) + bench.passes("r", 50);
        assert_eq!(passed as u64, expected, "{limit}");
        bench.set_off(false);
        let capacity = bench.limiter.rules()[0].limits()[0].limit().capacity();
        let back = bench.check("r", capacity);
        assert_eq!((back.source, back.allowed()), (Source::Memory, true), "{limit}");
    }
}

/// Otherwise the window in which the store fails would have a second budget.
#[test]
fn what_the_store_has_allowed_counts_against_the_share() {
    for (limit, share) in LIMITS {
        for allowed in 0..=12 {
            let bench = Bench::new([rule("r", limit, OnStoreFailure::default())]);
            let by_store = bench.passes("r", allowed) as u64;
            bench.set_off(true);
            let passed = bench.passes("r", 50) as u64;
            assert_eq!(passed, share.saturating_sub(by_store), "{limit} after {by_store}");
        }
    }
}

#[test]
fn a_cost_beyond_the_share_counts_up_to_the_share() {
    let bench = Bench::new([rule("r", "sliding-log 20/h", OnStoreFailure::default())]);
    for (cost, left) in [(7, 3), (7, 0)] {
        assert!(bench.check("r", cost).allowed());
        bench.set_off(true);
        let peek = bench.limiter.check("k").peek().now().unwrap();
        assert_eq!((peek.source, peek.remaining()), (Source::Fallback, left));
        bench.set_off(false);
    }
    bench.limiter.record("other", 1_000).now().unwrap();
    bench.set_off(true);
    let peek = bench.limiter.check("other").peek().now().unwrap();
    assert_eq!(peek.remaining(), 0);
    bench.clock.advance(Duration::from_secs(3_600));
    assert_eq!(bench.passes("r", 50), 10, "no debt beyond the share");
}

#[test]
fn what_the_store_has_added_to_a_reservation_counts_against_the_share() {
    for limit in ["fixed-window 100/h", "sliding-log 100/h", "100/h"] {
        let bench = Bench::new([rule("r", limit, share(500_000)), rule("other", limit, share(1))]);
        let left = || {
            bench.set_off(true);
            let plan = [RuleCheck::new("r", "k")];
            let peek = bench.limiter.check_each(&plan).peek().now().unwrap();
            bench.set_off(false);
            assert_eq!(peek.source, Source::Fallback);
            peek.remaining()
        };
        let reserve = || {
            let parts = [RuleCheck::new("other", "k"), RuleCheck::new("r", "k").cost(10)];
            now_or_panic(bench.limiter.reserve_each(&parts)).unwrap()
        };
        let mut reserved = reserve();
        assert_eq!(left(), 40, "{limit}");
        for (total, expected) in [(25, 25), (25, 25), (101, 25), (5, 25)] {
            let totals = [RuleCost::new("r", Cost::total(total))];
            let _ = now_or_panic(reserved.extend_to(&totals));
            assert_eq!(left(), expected, "{limit}, extended to {total}");
        }
        let costs = [RuleCost::new("r", Cost::total(32))];
        now_or_panic(reserved.commit_each(&costs)).unwrap();
        assert_eq!(left(), 18, "{limit}: more was used than reserved");
        let costs = [RuleCost::new("r", Cost::total(2))];
        now_or_panic(reserve().commit_each(&costs)).unwrap();
        assert_eq!(left(), 8, "{limit}: nothing is given back");
    }
}

#[test]
fn a_denied_and_a_repeated_check_count_for_nothing() {
    let bench = Bench::new([rule("r", "sliding-log 20/h", OnStoreFailure::default())]);
    let once = || bench.limiter.check("k").cost(4).idempotency_key("id").now().unwrap();
    assert!(!once().repeated() && once().repeated() && once().repeated());
    assert!(!bench.check("r", 17).allowed());
    bench.set_off(true);
    assert_eq!(bench.limiter.check("k").peek().now().unwrap().remaining(), 6, "of 10");
}

#[test]
fn the_share_follows_the_number_of_processes() {
    let fleet = Arc::new(FleetSize::default());
    for (limit, shares) in [("sliding-log 100/h", [50, 50, 25, 5]), ("3/h", [1, 1, 1, 1])] {
        for (processes, expected) in [1, 2, 4, 20].into_iter().zip(shares) {
            let bench = Bench::of(fleet.clone(), [rule("r", limit, OnStoreFailure::default())]);
            fleet.record(bench.clock.elapsed(), processes);
            bench.set_off(true);
            assert_eq!(bench.passes("r", 100), expected, "{limit}, {processes} processes");
            fleet.record(bench.clock.elapsed().saturating_add(Micros::from_secs(61)), 1);
        }
    }
}

#[test]
fn consumption_counts_under_a_changed_share() {
    let fleet = Arc::new(FleetSize::default());
    let rules = [rule("r", "sliding-log 100/h", OnStoreFailure::default())];
    let bench = Bench::of(fleet.clone(), rules);
    let mut record = {
        let mut at = bench.clock.elapsed();
        move |processes| {
            at = at.saturating_add(Micros::from_secs(61));
            fleet.record(at, processes);
        }
    };
    bench.set_off(true);
    for (processes, passed) in [(4, 25), (2, 25), (10, 0)] {
        record(processes);
        assert_eq!(bench.passes("r", 100), passed, "{processes} processes");
    }
    bench.clock.advance(Duration::from_secs(3_600));
    assert_eq!(bench.passes("r", 100), 10);
}

#[test]
fn keys_of_the_store_leave_room_for_those_that_the_fallback_counts() {
    const KEYS: u32 = 60_000;
    let (clock, off) = (ManualClock::default(), Arc::new(AtomicBool::new(false)));
    let memory = Memory::builder().clock(clock.clone()).build();
    let store = SwitchableStore { memory, off: off.clone() };
    let engine = Fallback::new(store).cap_bytes(2 << 20);
    let limiter = Limiter::new(engine, "10/h".parse().unwrap());
    let of_store = Memory::builder().clock(clock.clone()).build();
    let same = Limiter::new(of_store, "10/h".parse().unwrap());
    for key in 0..KEYS {
        assert!(limiter.check_now(&key.to_string()).unwrap().allowed());
        assert!(same.check_now(&key.to_string()).unwrap().allowed());
    }
    let by_store = same.engine().health().memory_bytes;
    let local = limiter.engine().health().memory_bytes - by_store;
    assert!((1 << 17..1 << 20).contains(&local), "{local} bytes of 2 MiB");
    off.store(true, Ordering::SeqCst);
    for key in KEYS..KEYS + 5_000 {
        let passed =
            (0..9).filter(|_| limiter.check_now(&key.to_string()).unwrap().allowed()).count();
        assert_eq!(passed, 5, "key {key} has a count of its own");
    }
}

#[test]
fn a_cost_that_only_the_whole_limit_holds_may_be_retried() {
    let bench = Bench::new([rule("r", "sliding-log 10/h", share(500_000))]);
    bench.set_off(true);
    let denied = bench.check("r", 6);
    assert!(matches!(denied.outcome(), Outcome::RetryAfter(span) if span.get() >= 1_000_000));
    assert_eq!(bench.check("r", 11).outcome(), Outcome::Never, "above the whole limit");
    assert!(bench.check("r", 5).allowed());
    assert!(matches!(bench.check("r", 6).outcome(), Outcome::RetryAfter(_)));
}

#[test]
fn a_rule_may_deny_or_allow_instead() {
    let bench = Bench::new([
        rule("closed", "10/h", OnStoreFailure::Deny),
        rule("open", "10/h", OnStoreFailure::Allow),
        rule("counted", "10/h", share(300_000)),
    ]);
    bench.set_off(true);
    assert_eq!(bench.passes("closed", 20), 0);
    assert_eq!(bench.check("closed", 1).retry_after(), Wait::For(Duration::from_secs(1).into()));
    assert_eq!(bench.passes("open", 1_000), 1_000);
    let all = [
        RuleCheck::new("open", "k"),
        RuleCheck::new("counted", "k"),
        RuleCheck::new("closed", "k"),
    ];
    for _ in 0..10 {
        let denied = bench.limiter.check_each(&all).now().unwrap();
        assert_eq!(
            denied.verdicts.iter().map(|v| v.allowed).collect::<Vec<_>>(),
            [true, true, false]
        );
    }
    assert_eq!(bench.passes("counted", 20), 3, "a denial by one rule charges none");
}

#[test]
fn records_count_and_refunds_and_resets_need_the_store() {
    let bench = Bench::new([rule("r", "sliding-log 10/h", share(500_000))]);
    bench.set_off(true);
    bench.limiter.record("k", 4).now().unwrap();
    assert_eq!(bench.passes("r", 20), 1);
    assert!(bench.limiter.refund("k", 4).now().is_err());
    assert!(bench.limiter.reset("k").now().is_err());
    let once = || bench.limiter.check("other").idempotency_key("id").now().unwrap();
    assert!(!once().repeated() && once().repeated(), "an id counts here too");
}

/// The plan of `enter` under the only rule, for the key `k`.
macro_rules! entering {
    ($bench:expr, $policy:ident, $plan:ident) => {
        let $policy = $bench.limiter.policy();
        let $plan = $policy
            .plan_key("k".into(), Cost::ONE, ListMode::Evaluate, $bench.clock.now())
            .unwrap()
            .with_slots()
            .unwrap();
    };
}

#[test]
fn enter_is_limited_to_the_share_and_slots_are_released_when_the_store_is_back() {
    let limits = ["sliding-log 10/h".parse().unwrap(), "concurrency 5".parse().unwrap()];
    let rule = Rule::new("r", limits).unwrap();
    let bench = Bench::new([rule.on_store_failure(share(500_000))]);
    entering!(bench, policy, plan);
    let enter = || {
        let decision = bench.limiter.decide(plan.op().unwrap(), &plan).now().unwrap();
        let slot = Slot::of(&bench.limiter, &decision, plan.lease().unwrap());
        (decision, slot)
    };
    let (_, of_store) = enter();
    bench.set_off(true);
    let (first, mut slots) = (enter(), Vec::new());
    assert_eq!((first.0.source, first.0.verdicts[1].remaining), (Source::Fallback, 1));
    slots.push(first.1.expect("a slot"));
    slots.push(enter().1.expect("a slot"));
    let (denied, no_slot) = enter();
    assert!(!denied.allowed() && no_slot.is_none(), "two are half of five");
    assert_eq!(denied.verdicts[0].remaining, 2, "a denied request is not charged");
    // A slot of the store cannot be released now; it expires with its lease.
    drop(of_store);
    bench.set_off(false);
    assert_eq!(enter().0.verdicts[1].remaining, 3);
    // A local slot is released locally.
    slots.pop();
    bench.set_off(true);
    assert!(enter().1.is_some());
    drop(slots);
    bench.clock.advance(Duration::from_secs(30));
    bench.set_off(false);
    let (decision, slot) = enter();
    assert_eq!((decision.source, decision.verdicts[1].remaining), (Source::Memory, 4));
    drop(slot);
}

#[test]
fn a_slot_is_kept_while_it_is_renewed_and_ends_with_its_lease_otherwise() {
    let bench = Bench::new([rule("r", "concurrency 2 lease 10s", share(500_000))]);
    bench.set_off(true);
    let reserve = || now_or_panic(bench.limiter.reserve("k", 1));
    let reserved = reserve().unwrap();
    assert_eq!(reserved.decision().unwrap().source, Source::Fallback);
    for store_is_gone in [true, false, false, true, false] {
        bench.set_off(store_is_gone);
        bench.clock.advance(Duration::from_secs(9));
        let renewed = now_or_panic(reserved.renew(Duration::from_secs(10))).unwrap();
        assert_eq!((renewed.source, renewed.expired()), (Source::Fallback, false));
        bench.set_off(true);
        assert!(matches!(reserve(), Err(Limited::Denied(_))));
    }
    bench.clock.advance(Duration::from_secs(10));
    let other = reserve().expect("its lease is over");
    assert!(now_or_panic(reserved.renew(Duration::from_secs(10))).unwrap().expired());
    assert!(now_or_panic(reserved.cancel()).unwrap().late());
    drop(other);
    drop(reserve().expect("it was released by the drop"));
    drop(reserve().expect("again"));
}

#[test]
fn a_local_reservation_is_settled_locally_and_one_of_the_store_needs_the_store() {
    let bench = Bench::new([rule("r", "sliding-log 100/h", share(500_000))]);
    let left = |key| bench.limiter.check(key).peek().now().unwrap().remaining();
    let of_store = now_or_panic(bench.limiter.reserve("k", 30)).unwrap();
    bench.set_off(true);
    let local = now_or_panic(bench.limiter.reserve("k", 20)).unwrap();
    assert_eq!(left("k"), 0, "of 50, less the reservation in the store");
    let id = of_store.keep();
    let lost = now_or_panic(bench.limiter.reservation(id).commit(30)).unwrap_err();
    assert!(matches!(lost, EngineError::Unavailable(_)), "{lost}");
    bench.set_off(false);
    assert_eq!(left("k"), 70, "the store has its own reservation");
    // By its id alone, written and parsed, as a client does.
    let id = local.keep().to_string().parse().unwrap();
    let settled = now_or_panic(bench.limiter.reservation(id).commit(15)).unwrap();
    assert_eq!((settled.source(), settled.remaining()), (Source::Fallback, 5));
    assert_eq!(settled.limits().next().unwrap().0.rule(), "r");
    assert_eq!(
        now_or_panic(bench.limiter.reservation(id).commit(15)).unwrap(),
        settled,
        "repeated"
    );
    let other = now_or_panic(bench.limiter.reservation(id).cancel()).unwrap_err();
    assert_eq!(other.refusal(), Some(&Refusal::AlreadySettled));
    assert_eq!(left("k"), 70);
    let unknown = "f".repeat(32) + &"7".repeat(32);
    let unknown = bench.limiter.reservation(unknown.parse().unwrap());
    let unknown = now_or_panic(unknown.cancel()).unwrap_err();
    assert_eq!(unknown.refusal(), Some(&Refusal::UnknownHold), "unknown to both");
}

#[test]
fn a_reservation_under_an_id_is_the_same_one_locally_too() {
    let bench = Bench::new([rule("r", "sliding-log 100/h", share(500_000))]);
    bench.set_off(true);
    let reserve = || now_or_panic(bench.limiter.reserve("k", 20).idempotency_key("id")).unwrap();
    let (first, repeated) = (reserve(), reserve());
    assert_eq!(first.id(), repeated.id());
    assert!(repeated.decision().unwrap().repeated());
    drop(repeated);
    assert!(!now_or_panic(first.commit(20)).unwrap().late());
}

#[test]
fn a_named_hold_is_found_where_it_was_made() {
    let bench = Bench::new([rule("r", "sliding-log 100/h", share(500_000))]);
    let hold = |number: u128| {
        let id = HoldId::from(number);
        let kind = HoldKind::Named { attempt: 1 };
        let spec = HoldSpec {
            id,
            ttl: Micros::from_secs(60),
            expiry: Expiry::Release,
            kind,
            quantity: None,
        };
        let rules = bench.limiter.rules();
        let limit = &rules[0].limits()[0];
        let cost = Cost::new(20).unwrap();
        let charge = Charge { limit, key: "k".into(), cost, caller: None };
        let call = Call { op: Op::Hold(spec), charges: &[charge], idempotency_key: None };
        now_or_panic(bench.limiter.engine().decide(call)).unwrap().hold().unwrap()
    };
    let commit = |number: u128| {
        let engine = bench.limiter.engine();
        let id = now_or_panic(engine.locate_hold(HoldId::from(number), "k".into())).unwrap();
        now_or_panic(bench.limiter.reservation(id).commit(10)).map(|settled| settled.source())
    };
    let of_store = hold(1);
    bench.set_off(true);
    hold(2);
    assert_eq!(commit(2).unwrap(), Source::Fallback);
    // The twin of a hold in the store, made here because the reply was late.
    hold(1);
    bench.set_off(false);
    let settled = now_or_panic(bench.limiter.reservation(of_store).commit(10)).unwrap();
    assert_eq!(settled.source(), Source::Memory, "an id of the store is settled there");
}

/// For any length of an outage, no more passes than the share; holds count like charges.
#[test]
fn holds_and_checks_together_stay_within_the_share() {
    for (limit, expected) in [("sliding-log 10/h", 5), ("concurrency 10", 5), ("concurrency 1", 1)]
    {
        let bench = Bench::new([rule("r", limit, share(500_000))]);
        bench.set_off(true);
        let mut held = Vec::new();
        let mut passed = 0;
        for step in 0..40 {
            if step % 2 == 0 && limit.starts_with("sliding") {
                passed += usize::from(bench.check("r", 1).allowed());
            } else if let Ok(reserved) = now_or_panic(bench.limiter.reserve("k", 1)) {
                held.push(reserved);
            }
        }
        assert_eq!(passed + held.len(), expected, "{limit}");
    }
}

#[test]
fn a_rule_that_denies_holds_nothing_and_one_that_allows_admits_every_hold() {
    let bench = |what| Bench::new([rule("r", "concurrency 2", what)]);
    let closed = bench(OnStoreFailure::Deny);
    closed.set_off(true);
    match now_or_panic(closed.limiter.reserve("k", 1)) {
        Err(Limited::Denied(decision)) => {
            assert_eq!(decision.retry_after(), Wait::For(Duration::from_secs(1).into()));
        }
        other => panic!("{other:?}"),
    }
    let open = bench(OnStoreFailure::Allow);
    open.set_off(true);
    let before = open.limiter.engine().health().memory_bytes;
    let reserved: Vec<_> =
        (0..100).map(|_| now_or_panic(open.limiter.reserve("k", 1)).unwrap()).collect();
    for (i, reserved) in reserved.into_iter().enumerate() {
        open.set_off(i % 2 == 0);
        let renewed = now_or_panic(reserved.renew(Duration::from_secs(5))).unwrap();
        assert!(renewed.allowed() && !renewed.expired());
        match i % 4 {
            0 => drop(now_or_panic(reserved.cancel()).unwrap()),
            1 => drop(now_or_panic(reserved.commit(1)).unwrap()),
            2 => drop(now_or_panic(reserved.commit_all()).unwrap()),
            _ => drop(reserved),
        }
    }
    assert_eq!(open.limiter.engine().health().memory_bytes, before, "nothing is kept");
    entering!(open, policy, plan);
    open.set_off(true);
    for _ in 0..10 {
        let decision = open.limiter.decide(plan.op().unwrap(), &plan).now().unwrap();
        assert!(decision.allowed());
        assert!(Slot::of(&open.limiter, &decision, plan.lease().unwrap()).is_none());
    }
    let too_long = open.limiter.reserve("k", 1).ttl(Duration::from_secs(7_200));
    let refusal = now_or_panic(too_long).unwrap_err();
    assert!(matches!(refusal, Limited::NoAnswer(EngineError::Refused(Refusal::HoldLength))));
}

#[test]
fn among_rules_that_differ_the_hold_covers_the_ones_counted_locally() {
    let bench = Bench::new([
        rule("open", "sliding-log 10/h", OnStoreFailure::Allow),
        rule("counted", "sliding-log 10/h", share(500_000)),
        rule("closed", "sliding-log 10/h", OnStoreFailure::Deny),
    ]);
    bench.set_off(true);
    let (engine, rules) = (bench.limiter.engine(), bench.limiter.rules());
    let hold = |indexes: &[usize]| {
        let charge = |index: &usize| Charge {
            limit: &rules[*index].limits()[0],
            key: "k".into(),
            cost: Cost::new(3).unwrap(),
            caller: None,
        };
        let charges: Vec<_> = indexes.iter().map(charge).collect();
        let (id, ttl) = (HoldId::random().unwrap(), Duration::from_secs(60).into());
        let op = Op::hold(id, ttl, Expiry::Release);
        engine.decide(Call { op, charges: &charges, idempotency_key: None }).now().unwrap()
    };
    for _ in 0..10 {
        let denied = hold(&[0, 1, 2]);
        assert!(!denied.allowed() && denied.hold().is_none());
        let left: Vec<_> = denied.verdicts.iter().map(|verdict| verdict.remaining).collect();
        assert_eq!(left, [10, 5, 0], "nothing was held");
    }
    let held = hold(&[0, 1]);
    assert_eq!(held.verdicts.iter().map(|v| v.remaining).collect::<Vec<_>>(), [10, 2]);
    assert!(!hold(&[1, 0]).allowed());
    let end = Op::Settle { id: held.hold().unwrap(), costs: Costs::AsHeld };
    let settled =
        engine.decide(Call { op: end, charges: &[], idempotency_key: None }).now().unwrap();
    assert_eq!(settled.held().iter().map(|limit| limit.rule()).collect::<Vec<_>>(), ["counted"]);
    assert_eq!(settled.verdicts[0].remaining, 2);
}

#[test]
fn the_callback_gets_an_event_for_every_failed_call() {
    let (clock, off) = (ManualClock::default(), Arc::new(AtomicBool::new(false)));
    let memory = Memory::builder().clock(clock).build();
    let events = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = events.clone();
    let engine =
        Fallback::new(SwitchableStore { memory, off: off.clone() }).on_event(move |event| {
            if let StoreEvent::NoAnswer { error, covered } = event {
                assert!(error.to_string().contains("turned off"), "{error}");
                log.lock().unwrap().push(covered);
            }
        });
    let limiter = Limiter::new(engine, "10/h".parse().unwrap());
    for turned_off in [false, true, true, false, true] {
        off.store(turned_off, Ordering::SeqCst);
        limiter.check_now("k").unwrap();
        assert_eq!(limiter.refund("k", 1).now().is_err(), turned_off);
    }
    assert_eq!(*events.lock().unwrap(), [true, false, true, false, true, false]);
}

#[test]
fn a_refusal_is_no_failure_of_the_store() {
    for what in [share(500_000), OnStoreFailure::Deny, OnStoreFailure::Allow] {
        let bench = Bench::new([rule("r", "concurrency 3", what)]);
        // While the store is off it cannot validate the call; the call is refused anyway.
        for turned_off in [false, true] {
            bench.set_off(turned_off);
            let refused = bench.limiter.check("k").now().unwrap_err();
            assert_eq!(refused.refusal(), Some(&Refusal::ConcurrencyNeedsHold), "{what:?}");
        }
    }
}

#[test]
fn the_local_count_recovers_with_time_and_follows_a_changed_limit() {
    let bench = Bench::new([rule("r", "sliding-log 10/m", share(500_000))]);
    bench.set_off(true);
    assert_eq!(bench.passes("r", 20), 5);
    bench.limiter.set_rule(rule("r", "sliding-log 20/m", share(500_000))).unwrap();
    assert_eq!(bench.passes("r", 20), 5, "5 of 10 were used");
    bench.limiter.set_rule(rule("r", "sliding-log 10/m", share(500_000))).unwrap();
    assert_eq!(bench.passes("r", 20), 0);
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(bench.passes("r", 20), 5);
}

/// Otherwise the caller would give up, and get no decision at all.
#[tokio::test]
async fn the_fallback_decides_at_the_deadline_of_the_caller() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Hang);
    let limiter = Limiter::new(Fallback::new(bench.store.clone()), "10/h".parse().unwrap());
    let until = bench.clock.elapsed().saturating_add(Micros::from_millis(15));
    let decided = tokio::spawn(CallerDeadline::at(until).scope(async move {
        let first = limiter.check("k").await.unwrap().source;
        // The deadline has passed: it is decided at once.
        (first, limiter.check("k").await.unwrap().source, limiter.refund("k", 1).await.is_err())
    }));
    for ms in 0..15 {
        assert!(!decided.is_finished(), "after {ms} ms");
        bench.clock.advance(Duration::from_millis(1));
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(decided.await.unwrap(), (Source::Fallback, Source::Fallback, true));
}
