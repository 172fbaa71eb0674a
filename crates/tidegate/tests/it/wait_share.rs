//! Callers that wait, and checks that do not, on one key. The clock is manual.

use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::now_or_never::now_or_panic;
use tidegate::{
    Call, Clock, Decision, Engine, EngineFuture, Health, Inspection, Key, Limit, Limited, Limiter,
    ManualClock, Memory, Micros, Rule, RuleLimit, SystemClock, Wait,
};

const TICK: Duration = Duration::from_millis(20);
const MINUTE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(5);

/// An engine on a network: decides when it is polled for the second time.
struct SlowEngine(Memory);

impl Engine for SlowEngine {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            self.0.decide(call).now()
        }))
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

struct Bench {
    clock: ManualClock,
    limiter: Limiter,
    /// Whether each caller that waited was served, and how long it waited.
    waits: Arc<Mutex<Vec<(bool, Micros)>>>,
}

impl Bench {
    fn new(notation: &str, is_slow: bool) -> Self {
        let clock = ManualClock::default();
        let memory = Memory::builder().clock(clock.clone()).build();
        let rule = Rule::new("work", [notation.parse::<Limit>().unwrap()]).unwrap();
        let limiter = match is_slow {
            true => Limiter::with_rules(SlowEngine(memory), [rule]).unwrap(),
            false => Limiter::with_rules(memory, [rule]).unwrap(),
        };
        Self { clock, limiter, waits: Arc::default() }
    }

    /// Starts a caller that waits for `cost`.
    fn wait(&self, cost: u64) {
        let (limiter, waits) = (self.limiter.clone(), Arc::clone(&self.waits));
        let clock = self.clock.clone();
        tokio::spawn(async move {
            let begun = clock.elapsed();
            let result = limiter.check("k").cost(cost).wait(TIMEOUT).await;
            waits.lock().unwrap().push((result.is_ok(), clock.elapsed().saturating_sub(begun)));
        });
    }

    async fn settle(&self) {
        for _ in 0..30 {
            tokio::task::yield_now().await;
        }
    }

    /// A check once per tick, and a caller that waits for `cost` once per `every`, for a minute.
    async fn run(&self, cost: u64, every: Duration) -> Totals {
        let mut plain = 0;
        for tick in 0..MINUTE.as_millis() / TICK.as_millis() {
            if tick.is_multiple_of(every.as_millis() / TICK.as_millis()) {
                self.wait(cost);
            }
            self.settle().await;
            plain += u64::from(self.limiter.check("k").await.unwrap().allowed());
            self.clock.advance(TICK);
        }
        self.settle().await;
        let waits = self.waits.lock().unwrap();
        let served = waits.iter().filter(|(is_served, _)| *is_served);
        let gave_up = waits.iter().filter(|(is_served, took)| !is_served && took.get() > 0);
        Totals {
            plain,
            waiting: served.clone().count() as u64 * cost,
            gave_up: gave_up.count(),
            longest: served.map(|(_, took)| *took).max().unwrap_or_default().into(),
        }
    }
}

/// What a minute of load got.
#[derive(Debug)]
struct Totals {
    /// Permits of checks that do not wait.
    plain: u64,
    /// Permits of callers that wait.
    waiting: u64,
    /// Callers that waited in vain.
    gave_up: usize,
    longest: Duration,
}

#[tokio::test]
async fn waiters_are_served_in_time_while_others_check_at_five_times_the_rate() {
    for is_slow in [false, true] {
        // Half of the limit, and all of it.
        for (cost, every, bound) in [(5, 2, 600), (10, 5, 1_100)] {
            let bench = Bench::new("10/s", is_slow);
            let totals = bench.run(cost, Duration::from_secs(every)).await;
            print_figure(&format!("a waiter for {cost} of 10/s every {every} s: {totals:?}"));
            assert_eq!(totals.gave_up, 0, "{totals:?}");
            assert!(totals.waiting >= 60 / every * cost - cost, "{totals:?}");
            assert!(totals.longest <= Duration::from_millis(bound), "{totals:?}");
            assert!(totals.plain + totals.waiting >= 590, "no permit is wasted: {totals:?}");
        }
    }
}

#[tokio::test]
async fn waiters_above_the_rate_and_plain_checks_get_half_each() {
    for is_slow in [false, true] {
        let bench = Bench::new("10/s", is_slow);
        let totals = bench.run(2, Duration::from_millis(100)).await;
        print_figure(&format!("waiters for 2 of 10/s every 0.1 s: {totals:?}"));
        let sum = totals.plain + totals.waiting;
        assert!((600..=610).contains(&sum), "{totals:?}");
        assert!(totals.waiting * 100 >= sum * 48 && totals.plain * 100 >= sum * 45, "{totals:?}");
        assert_eq!(totals.gave_up, 0, "denied at once instead: {totals:?}");
    }
}

#[tokio::test]
async fn a_check_behind_waiters_is_denied_for_as_long_as_they_need() {
    let bench = Bench::new("10/s", false);
    assert!(now_or_panic(bench.limiter.check("k").cost(10)).unwrap().allowed());
    bench.wait(5);
    bench.settle().await;
    bench.clock.advance(Duration::from_millis(200));
    // Two permits are there, and the waiter needs them. All ways to check are alike.
    let checks = [
        bench.limiter.check_now("k").unwrap(),
        bench.limiter.check("k").await.unwrap(),
        bench.limiter.check("k").idempotency_key("id").await.unwrap(),
    ];
    for decision in checks {
        assert!(!decision.allowed());
        assert_eq!(decision.retry_after(), Wait::For(Micros::from_millis(400)));
    }
    assert!(matches!(bench.limiter.enter("k").await, Err(Limited::Denied(_))));
    assert!(matches!(bench.limiter.reserve("k", 1).await, Err(Limited::Denied(_))));
    assert!(!bench.limiter.allow("k").unwrap());
    assert!(bench.limiter.check_now("other").unwrap().allowed());
    // What costs nothing takes nothing away.
    assert!(bench.limiter.check("k").cost(0).await.unwrap().allowed());
    bench.clock.advance(Duration::from_millis(400));
    bench.settle().await;
    assert!(bench.waits.lock().unwrap()[0].0);
    assert!(bench.limiter.check_now("k").unwrap().allowed(), "the line has ended");
}

#[tokio::test]
async fn an_id_that_was_charged_gets_its_decision_behind_waiters_too() {
    let bench = Bench::new("10/s", false);
    let first = bench.limiter.check("k").cost(10).idempotency_key("id").await.unwrap();
    bench.wait(5);
    bench.settle().await;
    let again = bench.limiter.check("k").cost(10).idempotency_key("id").await.unwrap();
    assert!(again.repeated() && again.allowed());
    assert_eq!(again.verdicts, first.verdicts);
}

#[tokio::test]
async fn checks_are_free_again_when_the_waiters_have_given_up() {
    let bench = Bench::new("10/s", false);
    assert!(now_or_panic(bench.limiter.check("k").cost(10)).unwrap().allowed());
    let waiter = bench.limiter.clone();
    let waiter = tokio::spawn(async move { waiter.acquire("k", TIMEOUT).await });
    bench.settle().await;
    waiter.abort();
    bench.settle().await;
    bench.clock.advance(Duration::from_millis(100));
    assert!(bench.limiter.check_now("k").unwrap().allowed());
}

/// Only permits that recover with time are kept for waiters: a slot may be taken for long.
#[tokio::test]
async fn a_waiter_for_a_slot_keeps_no_check_from_passing() {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    let limits = ["100/s", "concurrency 1 lease 30s"].map(|text| text.parse().unwrap());
    let limiter = Limiter::with_rules(memory, [Rule::new("work", limits).unwrap()]).unwrap();
    let first = limiter.enter("k").await.unwrap();
    let other = limiter.clone();
    let waiter = tokio::spawn(async move { other.enter("k").wait(TIMEOUT).await.is_ok() });
    for _ in 0..30 {
        tokio::task::yield_now().await;
    }
    drop(first);
    assert!(limiter.enter("k").await.is_ok(), "as without waiters");
    assert!(waiter.await.unwrap());
}

#[tokio::test]
#[ignore = "prints how long a check takes beside waiters of other keys; run it with --release"]
async fn measure_checks_beside_waiters() {
    const CHECKS: u32 = 100_000;
    let bench = Bench::new("10/s", false);
    let measure = |what: &str| {
        let mut best = Duration::MAX;
        for _ in 0..100 {
            let begun = SystemClock.elapsed();
            for _ in 0..CHECKS {
                std::hint::black_box(bench.limiter.allow("other").unwrap());
            }
            best = best.min(SystemClock.elapsed().saturating_sub(begun).into());
        }
        print_figure(&format!("{what}: {:?} a check", best / CHECKS));
    };
    measure("no waiters");
    assert!(bench.limiter.check("k").cost(10).await.unwrap().allowed());
    bench.wait(10);
    bench.settle().await;
    measure("a waiter for another key");
}

fn print_figure(figure: &str) {
    writeln!(std::io::stderr().lock(), "{figure}").unwrap();
}
