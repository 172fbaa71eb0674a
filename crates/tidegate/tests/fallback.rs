//! What each rule does while the store does not answer.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::{
    Answer, Ask, Call, Clock, Decision, Engine, EngineError, Fallback, Health, Inspection, Key,
    Limiter, ManualClock, Memory, OnStoreFailure, Outcome, Rule, RuleLimit, Share, Source,
    StoreEvent, Wait,
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
fn records_count_and_reservations_wait_for_the_store() {
    let bench = Bench::new([rule("r", "sliding-log 10/h", share(500_000))]);
    bench.turn(true);
    bench.limiter.record("k", 4).now().unwrap();
    assert_eq!(bench.passes("r", 20), 1);
    assert!(bench.limiter.refund("k", 4).now().is_err());
    assert!(bench.limiter.reset("k").now().is_err());
    let once = || bench.limiter.check("other").once("id").now().unwrap();
    assert!(!once().repeated() && once().repeated(), "an id counts here too");
}

/// Who is in was counted by the store, and nobody else knows.
#[test]
fn nobody_enters_without_the_store_and_nothing_is_charged_for_it() {
    let limits = ["sliding-log 10/h".parse().unwrap(), "concurrency 2".parse().unwrap()];
    let rule = Rule::new("r", limits).unwrap();
    let bench = Bench::new([rule.on_store_failure(share(500_000))]);
    let policy = bench.limiter.policy();
    let now = bench.clock.now();
    let plan = policy.plan_key("k".into(), tidegate::Cost::ONE, now).unwrap().entering().unwrap();
    let enter = || bench.limiter.ask(plan.passing().unwrap(), &plan).now();
    let decision = enter().unwrap();
    let slot = tidegate::Slot::of(&bench.limiter, &decision, plan.lease().unwrap()).unwrap();
    bench.turn(true);
    assert!(matches!(enter(), Err(EngineError::Unavailable(_))));
    let peeked = bench.limiter.ask(tidegate::Op::Peek, &plan).now().unwrap();
    assert_eq!(peeked.verdicts.iter().map(|v| v.remaining).collect::<Vec<_>>(), [5, 1]);
    // Nor does it leave: its lease ends the place.
    drop(slot);
    bench.turn(false);
    assert_eq!(enter().unwrap().verdicts[1].remaining, 0);
    bench.clock.advance(Duration::from_secs(30));
    assert_eq!(enter().unwrap().verdicts[1].remaining, 1);
}

#[test]
fn whoever_watches_is_told_of_every_failure_and_of_the_return() {
    let (clock, off) = (ManualClock::default(), Arc::new(AtomicBool::new(false)));
    let memory = Memory::builder().clock(clock).build();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = told.clone();
    let engine = Fallback::new(Store { memory, off: off.clone() }).watched_by(move |event| {
        tell.lock().unwrap().push(match event {
            StoreEvent::NoAnswer { first: true, .. } => "lost",
            StoreEvent::NoAnswer { .. } => "still",
            StoreEvent::Back => "back",
            _ => "?",
        });
    });
    let limiter = Limiter::new(engine, "10/h".parse().unwrap());
    for turned_off in [false, true, true, false, false, true, false] {
        off.store(turned_off, Ordering::SeqCst);
        limiter.check_now("k").unwrap();
    }
    assert_eq!(*told.lock().unwrap(), ["lost", "still", "back", "lost", "back"]);
}

#[test]
fn a_refusal_is_no_failure_of_the_store() {
    let bench = Bench::new([rule("r", "concurrency 3", share(500_000))]);
    assert!(bench.limiter.check("k").now().unwrap_err().refusal().is_some());
    bench.turn(true);
    assert!(bench.limiter.check("k").now().is_err());
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
