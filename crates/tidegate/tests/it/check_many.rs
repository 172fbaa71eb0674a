//! Independent checks at once: each is decided as if alone.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Call, Charge, Clock, Cost, Decision, Engine, EngineError, EngineFuture, Health, IdempotencyKey,
    Inspection, Key, Limit, Limiter, ManualClock, Memory, Micros, Op, Refusal, Rule, RuleCheck,
    RuleLimit,
};
use tidegate_model::{CountingAllocator, TraceRng, run_size};

const LIMITS: [&str; 9] = [
    "5/s",
    "20/s burst 3",
    "leaky-bucket 5/s",
    "leaky-bucket 5/s queue",
    "fixed-window 5/1s",
    "fixed-window 5/1s first-hit",
    "sliding-log 5/1s",
    "sliding-window 10/1s",
    "1000000/s",
];

/// Limits of rules and of calls, each of its own instance: an engine notes its numbers in them.
fn limits() -> Vec<Arc<RuleLimit>> {
    let parsed = || LIMITS.iter().map(|text| text.parse::<Limit>().unwrap());
    let named =
        parsed().enumerate().map(|(i, limit)| Rule::new(&format!("r{i}"), [limit]).unwrap());
    let all = named.chain(parsed().map(Rule::adhoc)).chain(parsed().map(Rule::throttle));
    all.map(|rule| rule.limits()[0].clone()).collect()
}

/// One call, as numbers.
#[derive(Clone, Debug)]
struct RandomCall {
    op: Op<'static>,
    /// Limit, key and cost.
    charges: Vec<(usize, String, u64)>,
    id: Option<String>,
}

impl RandomCall {
    fn draw(rng: &mut TraceRng) -> Self {
        let op = match rng.below(20) {
            0 => Op::Peek,
            1 => Op::Record,
            2 => Op::Refund,
            3 => Op::Reset,
            _ => Op::Check,
        };
        let charge = |rng: &mut TraceRng| {
            let key = match rng.below(50) {
                0 => "x".repeat(2_000),
                number => format!("k{}", number % 7),
            };
            (rng.index(3 * LIMITS.len()), key, rng.pick(&[1, 1, 1, 2, 5, 0, 30]))
        };
        let charges = if rng.one_in(5) { rng.between(2, 3) } else { 1 };
        let id = rng.one_in(10).then(|| format!("id{}", rng.below(5)));
        Self { op, charges: (0..charges).map(|_| charge(rng)).collect(), id }
    }

    fn charges<'a>(&'a self, limits: &'a [Arc<RuleLimit>]) -> Vec<Charge<'a>> {
        let charge = |(limit, key, cost): &'a (usize, String, u64)| Charge {
            limit: &limits[*limit],
            key: Key::from(key),
            cost: Cost::total(*cost),
            caller: None,
        };
        self.charges.iter().map(charge).collect()
    }

    fn call<'a>(&'a self, charges: &'a [Charge<'a>]) -> Call<'a> {
        let idempotency_key = self.id.as_deref().map(|id| IdempotencyKey::new(id).unwrap());
        Call { op: self.op, charges, idempotency_key }
    }
}

fn text(result: &Result<Decision, EngineError>) -> String {
    match result {
        Ok(decision) => format!("{decision:?}"),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn calls_decided_together_decide_as_one_after_the_other() {
    let (mut allowed, mut denied, mut refused) = (0, 0, 0);
    for seed in 0..run_size(3, 60, 1_000) {
        let mut rng = TraceRng::new(seed);
        let clock = ManualClock::default();
        clock.set(Micros::new(1_000_000_000));
        let engine = || Memory::builder().clock(clock.clone()).build();
        let ((alone, own), (together, others)) = ((engine(), limits()), (engine(), limits()));
        for _ in 0..40 {
            let count = rng.between(1, 40);
            let calls: Vec<RandomCall> = (0..count).map(|_| RandomCall::draw(&mut rng)).collect();
            let charges: Vec<Vec<Charge<'_>>> =
                calls.iter().map(|call| call.charges(&others)).collect();
            let batch: Vec<Call<'_>> =
                calls.iter().zip(&charges).map(|(call, charges)| call.call(charges)).collect();
            let decided = together.decide_many(&batch).now().unwrap();
            assert_eq!(decided.len(), calls.len());
            for (call, decided) in calls.iter().zip(&decided) {
                let expected = alone.decide_now(&call.call(&call.charges(&own)));
                assert_eq!(text(decided), text(&expected), "seed {seed}, {call:?}");
                match &expected {
                    Ok(decision) if decision.allowed() => allowed += 1,
                    Ok(_) => denied += 1,
                    Err(_) => refused += 1,
                }
            }
            clock.advance(Duration::from_micros(rng.magnitude(2_000_000)));
        }
    }
    let least = run_size(500, 5_000, 50_000);
    assert!(
        allowed > least && denied > least && refused > least / 10,
        "{allowed} {denied} {refused}"
    );
}

/// What a batch allocates does not depend on the number of its calls.
#[test]
fn no_call_of_a_batch_allocates() {
    let (memory, limits) = (Memory::default(), limits());
    let keys: Vec<String> = (0..256).map(|i| format!("k{i}")).collect();
    for limit in [&limits[0], &limits[LIMITS.len()]] {
        let charges: Vec<[Charge<'_>; 1]> = keys
            .iter()
            .map(|key| [Charge { limit, key: Key::from(key), cost: Cost::ONE, caller: None }])
            .collect();
        let calls: Vec<Call<'_>> = charges
            .iter()
            .map(|charges| Call { op: Op::Check, charges, idempotency_key: None })
            .collect();
        let counted = || {
            let before = CountingAllocator::allocations();
            let decided = memory.decide_many(&calls).now().unwrap();
            assert!(decided.iter().all(|one| one.as_ref().unwrap().allowed()));
            CountingAllocator::allocations() - before
        };
        // The tables grow at first.
        counted();
        assert_eq!(counted(), 1, "the results");
    }
}

/// A memory engine that has to wait, and decides when it is polled for the second time.
struct Waiting(Memory);

impl Engine for Waiting {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            self.0.decide_now(&call)
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

#[tokio::test]
async fn checks_of_a_limiter_are_independent_and_in_order_on_any_engine() {
    let rules = || [Rule::new("one", ["1/h".parse().unwrap()]).unwrap()];
    let checks = [
        RuleCheck::new("one", "a"),
        RuleCheck::new("one", "a"),
        RuleCheck::new("none", "a"),
        RuleCheck::new("one", "b"),
        RuleCheck::new("one", "c").cost(2),
        RuleCheck::new("one", "c"),
    ];
    let outcomes = |results: Vec<Result<Decision, EngineError>>| {
        let outcome = |one: Result<Decision, EngineError>| match one {
            Ok(decision) => Ok(decision.allowed()),
            Err(EngineError::Refused(refusal)) => Err(refusal),
            Err(other) => panic!("{other}"),
        };
        results.into_iter().map(outcome).collect::<Vec<_>>()
    };
    let unknown = Err(Refusal::UnknownRule { name: "none".into(), meant: Some("one".into()) });
    let expected = [Ok(true), Ok(false), unknown, Ok(true), Ok(false), Ok(true)];
    let memory = Limiter::with_rules(Memory::default(), rules()).unwrap();
    assert_eq!(outcomes(memory.check_many_now(&checks)), expected);
    let waiting = Limiter::with_rules(Waiting(Memory::default()), rules()).unwrap();
    assert_eq!(
        outcomes(waiting.check_many_now(&checks)),
        vec![Err(Refusal::NotImmediate); checks.len()],
        "nothing was charged"
    );
    assert_eq!(outcomes(waiting.check_many(&checks).await), expected);
    assert_eq!(outcomes(memory.check_many_now(&[])), []);
}
