//! What each rule does while the store does not answer.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/ready.rs"]
mod ready;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ready::ready;
use tidegate::{
    Answer, Ask, Call, Charge, Clock, Cost, Decision, Engine, EngineError, Expiry, Fallback,
    Health, HoldId, Inspection, Key, Limited, Limiter, ManualClock, Memory, OnStoreFailure, Op,
    Outcome, Refusal, Rule, RuleLimit, Share, Slot, Source, StoreEvent, Wait,
};

/// A store that can be turned off.
struct Store {
    memory: Memory,
    off: Arc<AtomicBool>,
}

impl Store {
    fn error(&self) -> Option<EngineError> {
        let off = self.off.load(Ordering::SeqCst);
        off.then(|| EngineError::unavailable(std::io::Error::other("turned off")))
    }
}

impl Engine for Store {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        match self.error() {
            Some(error) => Answer::Ready(Err(error)),
            None => self.memory.decide(call),
        }
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        match self.error() {
            Some(error) => Answer::Ready(Err(error)),
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
        let (clock, off) = (ManualClock::default(), Arc::new(AtomicBool::new(false)));
        let memory = Memory::builder().clock(clock.clone()).build();
        let engine = Fallback::new(Store { memory, off: off.clone() });
        Self { limiter: Limiter::with_rules(engine, rules).unwrap(), clock, off }
    }

    fn turn(&self, off: bool) {
        self.off.store(off, Ordering::SeqCst);
    }

    fn check(&self, rule: &str, cost: u64) -> Decision {
        self.limiter.check_each(&[Ask::new(rule, "k").cost(cost)]).now().unwrap()
    }

    fn passes(&self, rule: &str, of: usize) -> usize {
        (0..of).filter(|_| self.check(rule, 1).allowed()).count()
    }
}

fn rule(name: &str, limit: &str, what: OnStoreFailure) -> Rule {
    Rule::new(name, [limit.parse().unwrap()]).unwrap().on_store_failure(what)
}

fn share(millionths: u64) -> OnStoreFailure {
    OnStoreFailure::Fallback(Share::from_millionths(millionths).unwrap())
}

#[test]
fn a_share_of_every_limit_is_granted_in_a_key_space_of_its_own() {
    for (limit, expected) in [
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
    ] {
        let bench = Bench::new([rule("r", limit, OnStoreFailure::default())]);
        let capacity = bench.limiter.rules()[0].limits()[0].limit().capacity();
        assert!(bench.check("r", capacity).allowed(), "{limit}");
        bench.turn(true);
        let first = bench.check("r", 1);
        assert_eq!(first.source, Source::Fallback);
        let passed = usize::from(first.allowed()) + bench.passes("r", 50);
        assert_eq!(passed, expected, "what the store has counted does not matter here, {limit}");
        bench.turn(false);
        let back = bench.check("r", 1);
        assert_eq!(back.source, Source::Memory);
        assert!(!back.allowed(), "nor the other way round, {limit}");
    }
}

#[test]
fn a_cost_that_only_the_whole_limit_holds_may_come_back() {
    let bench = Bench::new([rule("r", "sliding-log 10/h", share(500_000))]);
    bench.turn(true);
    let denied = bench.check("r", 6);
    assert!(matches!(denied.outcome(), Outcome::RetryAfter(span) if span.get() >= 1_000_000));
    assert_eq!(bench.check("r", 11).outcome(), Outcome::Never, "no store could grant that");
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
    bench.turn(true);
    assert_eq!(bench.passes("closed", 20), 0);
    assert_eq!(bench.check("closed", 1).retry_after(), Wait::For(Duration::from_secs(1).into()));
    assert_eq!(bench.passes("open", 1_000), 1_000);
    let all = [Ask::new("open", "k"), Ask::new("counted", "k"), Ask::new("closed", "k")];
    for _ in 0..10 {
        let denied = bench.limiter.check_each(&all).now().unwrap();
        assert_eq!(
            denied.verdicts.iter().map(|v| v.allowed).collect::<Vec<_>>(),
            [true, true, false]
        );
    }
    assert_eq!(bench.passes("counted", 20), 3, "what one rule denied was charged to none");
}

#[test]
fn records_count_and_what_gives_back_waits_for_the_store() {
    let bench = Bench::new([rule("r", "sliding-log 10/h", share(500_000))]);
    bench.turn(true);
    bench.limiter.record("k", 4).now().unwrap();
    assert_eq!(bench.passes("r", 20), 1);
    assert!(bench.limiter.refund("k", 4).now().is_err());
    assert!(bench.limiter.reset("k").now().is_err());
    let once = || bench.limiter.check("other").once("id").now().unwrap();
    assert!(!once().repeated() && once().repeated(), "an id counts here too");
}

/// The plan of entering under the only rule, for one who is known as `k`.
macro_rules! entering {
    ($bench:expr, $policy:ident, $plan:ident) => {
        let $policy = $bench.limiter.policy();
        let $plan = $policy
            .plan_key("k".into(), Cost::ONE, $bench.clock.now())
            .unwrap()
            .entering()
            .unwrap();
    };
}

#[test]
fn so_many_enter_without_the_store_as_their_share_is_and_leave_when_it_is_back() {
    let limits = ["sliding-log 10/h".parse().unwrap(), "concurrency 5".parse().unwrap()];
    let rule = Rule::new("r", limits).unwrap();
    let bench = Bench::new([rule.on_store_failure(share(500_000))]);
    entering!(bench, policy, plan);
    let enter = || {
        let decision = bench.limiter.ask(plan.passing().unwrap(), &plan).now().unwrap();
        let slot = Slot::of(&bench.limiter, &decision, plan.lease().unwrap());
        (decision, slot)
    };
    let (_, in_the_store) = enter();
    bench.turn(true);
    let (first, mut slots) = (enter(), Vec::new());
    assert_eq!((first.0.source, first.0.verdicts[1].remaining), (Source::Fallback, 1));
    slots.push(first.1.expect("a place"));
    slots.push(enter().1.expect("a place"));
    let (denied, none) = enter();
    assert!(!denied.allowed() && none.is_none(), "two are half of five");
    assert_eq!(denied.verdicts[0].remaining, 3, "whoever is denied is charged nothing");
    // Whoever is in by the store cannot leave; its lease ends the place.
    drop(in_the_store);
    bench.turn(false);
    assert_eq!(enter().0.verdicts[1].remaining, 3);
    // What was taken here is given back here.
    slots.pop();
    bench.turn(true);
    assert!(enter().1.is_some());
    drop(slots);
    bench.clock.advance(Duration::from_secs(30));
    bench.turn(false);
    let (decision, slot) = enter();
    assert_eq!((decision.source, decision.verdicts[1].remaining), (Source::Memory, 4));
    drop(slot);
}

#[test]
fn a_place_is_kept_while_it_is_renewed_and_ends_with_its_lease_otherwise() {
    let bench = Bench::new([rule("r", "concurrency 2 lease 10s", share(500_000))]);
    bench.turn(true);
    let reserve = || ready(bench.limiter.reserve("k", 1));
    let reserved = reserve().unwrap();
    assert_eq!(reserved.decision().unwrap().source, Source::Fallback);
    for store_is_gone in [true, false, false, true, false] {
        bench.turn(store_is_gone);
        bench.clock.advance(Duration::from_secs(9));
        let renewed = ready(reserved.renew(Duration::from_secs(10))).unwrap();
        assert_eq!((renewed.source, renewed.expired()), (Source::Fallback, false));
        bench.turn(true);
        assert!(matches!(reserve(), Err(Limited::Denied(_))));
    }
    bench.clock.advance(Duration::from_secs(10));
    let other = reserve().expect("its lease is over");
    assert!(ready(reserved.renew(Duration::from_secs(10))).unwrap().expired());
    assert!(ready(reserved.cancel()).unwrap().expired());
    drop(other);
    drop(reserve().expect("dropped, it is given back"));
    drop(reserve().expect("again"));
}

#[test]
fn a_reservation_made_here_is_settled_here_and_one_of_the_store_waits_for_it() {
    let bench = Bench::new([rule("r", "sliding-log 100/h", share(500_000))]);
    let left = |key| bench.limiter.check(key).peek().now().unwrap().remaining();
    let in_the_store = ready(bench.limiter.reserve("k", 30)).unwrap();
    bench.turn(true);
    let here = ready(bench.limiter.reserve("k", 20)).unwrap();
    assert_eq!(left("k"), 30, "of 50");
    let id = in_the_store.keep();
    let lost = ready(bench.limiter.reservation(id).commit(30)).unwrap_err();
    assert!(matches!(lost, EngineError::Unavailable(_)), "{lost}");
    bench.turn(false);
    assert_eq!(left("k"), 70, "the store knows of its own");
    // By its id alone, written and read, as a client does.
    let id = here.keep().to_string().parse().unwrap();
    let settled = ready(bench.limiter.reservation(id).commit(15)).unwrap();
    assert_eq!((settled.source, settled.verdicts[0].remaining), (Source::Fallback, 35));
    assert_eq!(settled.held()[0].rule(), "r");
    assert_eq!(ready(bench.limiter.reservation(id).commit(15)).unwrap(), settled, "told twice");
    let other = ready(bench.limiter.reservation(id).cancel()).unwrap_err();
    assert_eq!(other.refusal(), Some(&Refusal::AlreadySettled));
    assert_eq!(left("k"), 70);
    let unknown = "f".repeat(32) + &"7".repeat(32);
    let unknown = bench.limiter.reservation(unknown.parse().unwrap());
    let unknown = ready(unknown.cancel()).unwrap_err();
    assert_eq!(unknown.refusal(), Some(&Refusal::UnknownHold), "by nobody");
}

#[test]
fn a_reservation_under_an_id_is_the_same_one_here_too() {
    let bench = Bench::new([rule("r", "sliding-log 100/h", share(500_000))]);
    bench.turn(true);
    let reserve = || ready(bench.limiter.reserve("k", 20).once("id")).unwrap();
    let (first, again) = (reserve(), reserve());
    assert_eq!(first.id(), again.id());
    assert!(again.decision().unwrap().repeated());
    drop(again);
    assert!(!ready(first.commit(20)).unwrap().expired());
}

/// However long the store is gone, no more passes than its share; holds count like charges.
#[test]
fn holds_and_checks_together_stay_within_the_share() {
    for (limit, expected) in [("sliding-log 10/h", 5), ("concurrency 10", 5), ("concurrency 1", 1)]
    {
        let bench = Bench::new([rule("r", limit, share(500_000))]);
        bench.turn(true);
        let mut held = Vec::new();
        let mut passed = 0;
        for turn in 0..40 {
            if turn % 2 == 0 && limit.starts_with("sliding") {
                passed += usize::from(bench.check("r", 1).allowed());
            } else if let Ok(reserved) = ready(bench.limiter.reserve("k", 1)) {
                held.push(reserved);
            }
        }
        assert_eq!(passed + held.len(), expected, "{limit}");
    }
}

#[test]
fn a_rule_that_denies_holds_nothing_and_one_that_allows_holds_for_everybody() {
    let bench = |what| Bench::new([rule("r", "concurrency 2", what)]);
    let closed = bench(OnStoreFailure::Deny);
    closed.turn(true);
    match ready(closed.limiter.reserve("k", 1)) {
        Err(Limited::Denied(decision)) => {
            assert_eq!(decision.retry_after(), Wait::For(Duration::from_secs(1).into()));
        }
        other => panic!("{other:?}"),
    }
    let open = bench(OnStoreFailure::Allow);
    open.turn(true);
    let before = open.limiter.engine().health().memory_bytes;
    let reserved: Vec<_> = (0..100).map(|_| ready(open.limiter.reserve("k", 1)).unwrap()).collect();
    for (i, reserved) in reserved.into_iter().enumerate() {
        open.turn(i % 2 == 0);
        let renewed = ready(reserved.renew(Duration::from_secs(5))).unwrap();
        assert!(renewed.allowed() && !renewed.expired());
        match i % 4 {
            0 => drop(ready(reserved.cancel()).unwrap()),
            1 => drop(ready(reserved.commit(1)).unwrap()),
            2 => drop(ready(reserved.commit_all()).unwrap()),
            _ => drop(reserved),
        }
    }
    assert_eq!(open.limiter.engine().health().memory_bytes, before, "nothing is kept");
    entering!(open, policy, plan);
    open.turn(true);
    for _ in 0..10 {
        let decision = open.limiter.ask(plan.passing().unwrap(), &plan).now().unwrap();
        assert!(decision.allowed());
        assert!(Slot::of(&open.limiter, &decision, plan.lease().unwrap()).is_none());
    }
    let endless = open.limiter.reserve("k", 1).ttl(Duration::from_secs(7_200));
    let refusal = ready(endless).unwrap_err();
    assert!(matches!(refusal, Limited::NoAnswer(EngineError::Refused(Refusal::HoldLength))));
}

#[test]
fn among_rules_that_differ_the_hold_covers_what_is_counted_here() {
    let bench = Bench::new([
        rule("open", "sliding-log 10/h", OnStoreFailure::Allow),
        rule("counted", "sliding-log 10/h", share(500_000)),
        rule("closed", "sliding-log 10/h", OnStoreFailure::Deny),
    ]);
    bench.turn(true);
    let (engine, rules) = (bench.limiter.engine(), bench.limiter.rules());
    let hold = |places: &[usize]| {
        let charge = |place: &usize| Charge {
            limit: &rules[*place].limits()[0],
            key: "k".into(),
            cost: Cost::new(3).unwrap(),
            who: None,
        };
        let charges: Vec<_> = places.iter().map(charge).collect();
        let (id, ttl) = (HoldId::random().unwrap(), Duration::from_secs(60).into());
        let op = Op::Hold { id, ttl, expiry: Expiry::Release };
        engine.decide(Call { op, charges: &charges, once: None }).now().unwrap()
    };
    for _ in 0..10 {
        let denied = hold(&[0, 1, 2]);
        assert!(!denied.allowed() && denied.hold().is_none());
        let left: Vec<_> = denied.verdicts.iter().map(|verdict| verdict.remaining).collect();
        assert_eq!(left, [10, 5, 0], "nothing was set aside");
    }
    let held = hold(&[0, 1]);
    assert_eq!(held.verdicts.iter().map(|v| v.remaining).collect::<Vec<_>>(), [10, 2]);
    assert!(!hold(&[1, 0]).allowed());
    let end = Op::Settle { id: held.hold().unwrap(), cost: None };
    let settled = engine.decide(Call { op: end, charges: &[], once: None }).now().unwrap();
    assert_eq!(settled.held().iter().map(|limit| limit.rule()).collect::<Vec<_>>(), ["counted"]);
    assert_eq!(settled.verdicts[0].remaining, 2);
}

#[test]
fn whoever_watches_is_told_of_every_call_without_an_answer() {
    let (clock, off) = (ManualClock::default(), Arc::new(AtomicBool::new(false)));
    let memory = Memory::builder().clock(clock).build();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = told.clone();
    let engine = Fallback::new(Store { memory, off: off.clone() }).watched_by(move |event| {
        if let StoreEvent::NoAnswer { error, covered } = event {
            assert!(error.to_string().contains("turned off"), "{error}");
            tell.lock().unwrap().push(covered);
        }
    });
    let limiter = Limiter::new(engine, "10/h".parse().unwrap());
    for turned_off in [false, true, true, false, true] {
        off.store(turned_off, Ordering::SeqCst);
        limiter.check_now("k").unwrap();
        assert_eq!(limiter.refund("k", 1).now().is_err(), turned_off);
    }
    assert_eq!(*told.lock().unwrap(), [true, false, true, false, true, false]);
}

#[test]
fn a_refusal_is_no_failure_of_the_store() {
    for what in [share(500_000), OnStoreFailure::Deny, OnStoreFailure::Allow] {
        let bench = Bench::new([rule("r", "concurrency 3", what)]);
        // Nobody has looked at it while the store is gone; it is refused all the same.
        for turned_off in [false, true] {
            bench.turn(turned_off);
            let refused = bench.limiter.check("k").now().unwrap_err();
            assert_eq!(refused.refusal(), Some(&Refusal::ConcurrencyNeedsHold), "{what:?}");
        }
    }
}

#[test]
fn the_local_count_recovers_with_time_and_follows_a_changed_limit() {
    let bench = Bench::new([rule("r", "sliding-log 10/m", share(500_000))]);
    bench.turn(true);
    assert_eq!(bench.passes("r", 20), 5);
    bench.limiter.set_rule(rule("r", "sliding-log 20/m", share(500_000))).unwrap();
    assert_eq!(bench.passes("r", 20), 5, "5 of 10 were used");
    bench.limiter.set_rule(rule("r", "sliding-log 10/m", share(500_000))).unwrap();
    assert_eq!(bench.passes("r", 20), 0);
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(bench.passes("r", 20), 5);
}
