//! Limits that change while a key is in use: entries of several limits, and limits that come with
//! the call.

use std::sync::Arc;
use std::time::Duration;

use testkit::redis::RedisServer;
use tidegate::{
    Call, Charge, Clock as _, Cost, Costs, Decision, Engine as _, Expiry, HoldId, IdempotencyKey,
    Limit, ManualClock, Micros, Op, Rule, RuleLimit, Verdict, Wait,
};
use tidegate_model::TraceRng;
use tidegate_redis::Redis;

const HOUR: Duration = Duration::from_secs(3_600);
/// The flag of a value with further entries.
const HAS_OTHERS: u8 = 16;
/// A used-up limit and the limit that replaces it, of every algorithm.
const CHANGES: [(&str, &str); 8] = [
    ("fixed-window 1000/1h", "fixed-window 10/2s"),
    ("fixed-window 1000/1h first-hit", "fixed-window 10/2s first-hit"),
    ("1000/1h", "10/2s"),
    ("3600/1h burst 1000 every 1s", "10/2s every 1s"),
    ("leaky-bucket 1000/1h", "leaky-bucket 10/2s"),
    ("sliding-window 1000/1h approximate", "sliding-window 10/2s approximate"),
    ("sliding-window 1000/1h", "sliding-window 10/2s"),
    ("sliding-log 1000/1h", "sliding-log 10/2s"),
];

/// A server, an engine with a clock that the test sets, and one key.
struct ChangingKey {
    server: RedisServer,
    engine: Redis,
    clock: ManualClock,
    /// Calls with an idempotency key are decided by the other script.
    by_id: bool,
    calls: u64,
}

impl ChangingKey {
    fn new(by_id: bool) -> Self {
        let (server, clock) = (RedisServer::start(), ManualClock::default());
        let engine = Self::connect(&server, &clock);
        Self { server, engine, clock, by_id, calls: 0 }
    }

    fn connect(server: &RedisServer, clock: &ManualClock) -> Redis {
        let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(30));
        builder.test_clock(clock.clone()).build().unwrap()
    }

    async fn decide(&mut self, op: Op<'_>, limit: &Arc<RuleLimit>, cost: u64) -> Decision {
        self.calls += 1;
        let id = format!("call-{}", self.calls);
        let idempotency_key =
            (self.by_id && op == Op::Check).then(|| IdempotencyKey::new(&id).unwrap());
        let charges = [Charge { limit, key: "key".into(), cost: Cost::total(cost), caller: None }];
        let charges = if matches!(op, Op::Settle { .. }) { &[][..] } else { &charges };
        self.engine.decide(Call { op, charges, idempotency_key }).await.unwrap()
    }

    async fn check(&mut self, limit: &Arc<RuleLimit>, cost: u64) -> Verdict {
        self.decide(Op::Check, limit, cost).await.verdict()
    }

    async fn peek(&mut self, limit: &Arc<RuleLimit>) -> Verdict {
        self.decide(Op::Peek, limit, 0).await.verdict()
    }

    async fn used(&self, limit: &Arc<RuleLimit>) -> u64 {
        self.engine.inspect(limit, "key".into()).await.unwrap().standing.used
    }

    /// Uses all of the limit, one hundredth after the other.
    async fn fill(&mut self, limit: &Arc<RuleLimit>) {
        let all = limit.limit().capacity();
        for _ in 0..10 {
            assert!(self.check(limit, all / 10).await.allowed, "{limit:?}");
        }
        assert!(!self.check(limit, 1).await.allowed, "{limit:?}");
    }

    /// Waits for as long as each denial says, and returns the time until a permit is allowed. The
    /// second try has to be.
    async fn wait_until_allowed(&mut self, limit: &Arc<RuleLimit>) -> Duration {
        let verdict = self.check(limit, 1).await;
        if verdict.allowed {
            return Duration::ZERO;
        }
        let Wait::For(span) = verdict.retry_after else { panic!("{limit:?}: {verdict:?}") };
        self.clock.advance(Duration::from_micros(span.get() - 1));
        let early = self.check(limit, 1).await;
        assert!(!early.allowed, "{limit:?}: earlier than {span:?}: {early:?}");
        self.clock.advance(Duration::from_micros(1));
        let again = self.check(limit, 1).await;
        assert!(again.allowed, "{limit:?}: denied after {span:?}: {again:?}");
        Duration::from_micros(span.get())
    }

    /// The stored value of the only state.
    fn value(&self) -> Vec<u8> {
        let mut admin = redis::Client::open(self.server.url()).unwrap().get_connection().unwrap();
        let keys: Vec<String> = redis::cmd("KEYS").arg("tg:{*}:rule:*1").query(&mut admin).unwrap();
        assert_eq!(keys.len(), 1, "{keys:?}");
        redis::cmd("GET").arg(&keys[0]).query(&mut admin).unwrap()
    }

    fn has_other_entries(&self) -> bool {
        self.value()[2] & HAS_OTHERS != 0
    }

    /// The TTL of the only state in seconds, rounded up.
    fn ttl(&self) -> u64 {
        let keys = self.server.cli(&["KEYS", "tg:{*}:rule:*1"]);
        self.server.cli(&["PTTL", keys.trim()]).trim().parse::<u64>().unwrap().div_ceil(1_000)
    }
}

fn limit(text: &str) -> Arc<RuleLimit> {
    let limit: Limit = text.parse().unwrap();
    Rule::new("rule", [limit]).unwrap().limits()[0].clone()
}

/// A limit that comes with the call.
fn per_call(text: &str) -> Arc<RuleLimit> {
    let limit: Limit = text.parse().unwrap();
    Rule::per_call("rule", [limit]).unwrap().limits()[0].clone()
}

#[tokio::test]
async fn after_a_lowered_limit_a_key_is_served_within_its_window_and_every_wait_is_true() {
    for by_id in [false, true] {
        for (old, new) in CHANGES {
            let mut key = ChangingKey::new(by_id);
            let (old, new) = (limit(old), limit(new));
            key.fill(&old).await;
            // Sub-windows are 0.2 s; an approximate window counts in the next one as well.
            let bound = match new.limit().to_string() {
                text if text.contains("approximate") => 4_000,
                text if text.starts_with("sliding-window") => 2_200,
                _ => 2_000,
            };
            let first = key.wait_until_allowed(&new).await;
            assert!(first <= Duration::from_millis(bound), "{new:?}: {first:?}");
            for _ in 0..15 {
                key.wait_until_allowed(&new).await;
            }
            // Within the hour the old limit still knows what was used.
            assert!(!key.check(&old, 1).await.allowed, "{old:?}");
            assert!(key.used(&old).await > 1_000 - 30, "{old:?}");
            key.wait_until_allowed(&new).await;
        }
    }
}

#[tokio::test]
async fn after_an_override_of_one_key_ends_the_rule_serves_it_within_its_window() {
    let mut key = ChangingKey::new(false);
    let (raised, rule) = (limit("fixed-window 1000/1h"), limit("fixed-window 5/2s"));
    assert!(key.check(&rule, 1).await.allowed);
    assert!(key.check(&raised, 50).await.allowed);
    // The override ends: 51 are used, more than the rule has.
    assert!(!key.check(&rule, 1).await.allowed);
    for _ in 0..20 {
        assert!(key.wait_until_allowed(&rule).await <= Duration::from_secs(2));
    }
    // The override begins again.
    let remaining = key.peek(&raised).await.remaining;
    assert!((900..949).contains(&remaining), "{remaining}");
}

/// Two processes during a roll-out that goes back and forth.
#[tokio::test]
async fn two_limits_in_turns_admit_no_more_than_the_larger_burst_and_the_higher_rate() {
    let mut key = ChangingKey::new(false);
    let mut other = ChangingKey::connect(&key.server, &key.clock);
    for (a, b, burst, rate) in [
        ("10/1s burst 100", "20/1s burst 10", 100, 20),
        ("leaky-bucket 30/1s", "leaky-bucket 10/1s capacity 60", 60, 30),
    ] {
        let limits = [limit(a), limit(b)];
        let mut rng = TraceRng::new(7);
        // What a bucket of the larger burst and the higher rate would hold, in 10^-6 permits.
        let (mut level, mut admitted) = (0, 0);
        for flip in 0..5_000 {
            let millis = rng.below(40);
            key.clock.advance(Duration::from_millis(millis));
            level = u64::saturating_sub(level, rate * millis * 1_000);
            let (limit, cost) = (&limits[flip % 2], 1 + rng.below(4));
            if key.check(limit, cost).await.allowed {
                level += cost * 1_000_000;
                admitted += cost;
            }
            assert!(level <= burst * 1_000_000, "{a}, {b}: {level} after {flip} flips");
            std::mem::swap(&mut key.engine, &mut other);
        }
        assert!(admitted > 2 * burst, "{a}, {b}: {admitted}");
    }
}

#[tokio::test]
async fn what_is_charged_under_one_limit_is_charged_to_all() {
    for (old, new) in CHANGES {
        let mut key = ChangingKey::new(false);
        let (old, new) = (limit(old), limit(new));
        let used = async |key: &ChangingKey| (key.used(&old).await, key.used(&new).await);
        assert!(key.check(&old, 1).await.allowed);
        assert!(key.check(&new, 2).await.allowed);
        assert_eq!(used(&key).await, (3, 3), "{new:?}");
        key.decide(Op::Record, &old, 3).await;
        assert_eq!(used(&key).await, (6, 6), "{new:?}");
        let refunded = key.decide(Op::Refund, &new, 2).await.refunded();
        assert_eq!(refunded, Cost::total(2), "{new:?}");
        assert_eq!(used(&key).await, (4, 4), "{new:?}");
        let ttl = Micros::from_millis(10);
        let charging = Op::hold(HoldId::random().unwrap(), ttl, Expiry::Charge);
        assert!(key.decide(charging, &new, 3).await.allowed());
        let kept = Op::hold(HoldId::random().unwrap(), Micros::from_secs(60), Expiry::Release);
        let id = key.decide(kept, &old, 2).await.hold().unwrap();
        assert_eq!(key.peek(&old).await.remaining, 1_000 - 9, "{old:?}");
        assert_eq!(key.peek(&new).await.remaining, 1, "{new:?}");
        key.clock.advance(Duration::from_millis(10));
        assert_eq!(used(&key).await, (7, 7), "{new:?}");
        key.decide(Op::Settle { id, costs: Costs::All(Cost::ONE) }, &new, 0).await;
        assert_eq!(used(&key).await, (8, 8), "{new:?}");
        assert!(key.has_other_entries());
        key.decide(Op::Reset, &new, 0).await;
        assert_eq!(used(&key).await, (0, 0), "{new:?}");
    }
}

#[tokio::test]
async fn an_entry_goes_out_of_use_after_twice_its_recovery_unless_denied_calls_use_it() {
    let mut key = ChangingKey::new(false);
    let (short, long) = (limit("fixed-window 10/2s"), limit("fixed-window 100/1h"));
    assert!(key.check(&short, 10).await.allowed);
    assert!(key.check(&long, 1).await.allowed);
    let second = Duration::from_secs(1);
    // Calls that are denied are calls: each second, for longer than four seconds.
    for _ in 0..8 {
        assert!(key.check(&long, 1).await.allowed);
        key.decide(Op::Record, &long, 10).await;
        key.clock.advance(second);
        assert!(!key.check(&short, 11).await.allowed);
    }
    assert!(key.has_other_entries());
    key.clock.advance(4 * second - Duration::from_micros(1));
    assert!(key.decide(Op::Refund, &long, 1).await.allowed());
    assert!(key.has_other_entries());
    key.clock.advance(Duration::from_micros(1));
    assert!(!key.check(&long, 101).await.allowed);
    assert!(key.has_other_entries(), "a denial writes nothing");
    assert!(key.decide(Op::Refund, &long, 1).await.allowed());
    assert!(!key.has_other_entries());
}

#[tokio::test]
async fn a_key_lives_until_all_its_limits_have_recovered() {
    let day = 86_400;
    for (short, long) in
        [("10/2d", "100/30d"), ("fixed-window 10/2d first-hit", "fixed-window 100/30d first-hit")]
    {
        let mut key = ChangingKey::new(false);
        let (short, long) = (limit(short), limit(long));
        assert!(key.check(&long, 100).await.allowed);
        assert_eq!(key.ttl(), 30 * day + 1, "{long:?}");
        // The entry of the short limit is written by a denial.
        assert!(!key.check(&short, 1).await.allowed);
        assert_eq!(key.ttl(), 30 * day + 1, "{long:?}");
        key.clock.advance(25 * 24 * HOUR);
        assert!(key.check(&short, 1).await.allowed);
        assert!((5 * day..15 * day).contains(&key.ttl()), "{long:?}: {}", key.ttl());
    }
}

#[tokio::test]
async fn a_fourth_limit_is_decided_by_the_largest_until_an_entry_is_out_of_use() {
    let mut key = ChangingKey::new(false);
    let [a, b, c] = ["10/1s", "20/10s", "30/30s"].map(limit);
    for used in [&c, &b, &a] {
        assert!(key.check(used, 2).await.allowed);
    }
    let (small, large) = (limit("8/1h"), limit("100/1h"));
    assert_eq!(key.peek(&small).await.remaining, 2);
    assert!(key.check(&small, 2).await.allowed);
    assert!(!key.check(&small, 1).await.allowed);
    // 8 of 30 are used; it fits once one permit of `c` has drained.
    assert_eq!(key.check(&small, 1).await.retry_after, Wait::For(Micros::from_secs(1)));
    assert_eq!(key.check(&small, 9).await.retry_after, Wait::Never);
    assert_eq!(key.check(&large, 101).await.retry_after, Wait::Never);
    assert_eq!(key.peek(&large).await.remaining, 22);
    // Above the capacity of the entry that decides: as soon as the first one is out of use.
    let denied = key.check(&large, 31).await;
    assert_eq!(denied.retry_after, Wait::For(Micros::from_secs(2)));
    key.clock.advance(Duration::from_secs(2));
    assert!(key.check(&large, 31).await.allowed);
}

/// Approximate windows and sub-windows share a state, and a list if one of them needs it.
#[tokio::test]
async fn a_window_may_become_approximate_and_exact_again() {
    for by_id in [false, true] {
        let mut key = ChangingKey::new(by_id);
        let texts = ["10/1m", "20/1m approximate", "15/1m precision 7s"];
        let [exact, approximate, other] =
            texts.map(|text| limit(&format!("sliding-window {text}")));
        for (n, limit) in [&exact, &approximate, &exact, &other, &approximate].iter().enumerate() {
            assert!(key.check(limit, 2).await.allowed);
            assert_eq!(key.used(limit).await, 2 * (n as u64 + 1));
        }
        assert!(!key.check(&exact, 1).await.allowed);
        key.wait_until_allowed(&exact).await;
        assert!(key.check(&other, 1).await.allowed);
    }
}

#[tokio::test]
async fn a_full_store_decides_the_first_denial_after_a_change() {
    for (old, new) in CHANGES {
        let mut key = ChangingKey::new(false);
        let (old, new) = (limit(old), limit(new));
        key.fill(&old).await;
        key.server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(!key.check(&new, 1).await.allowed);
        assert!(key.has_other_entries(), "{new:?}");
    }
}

/// The clock steps back: every entry begins again now.
#[tokio::test]
async fn after_a_clock_step_every_entry_recovers_from_then_on() {
    for (old, new) in CHANGES {
        let mut key = ChangingKey::new(false);
        let (old, new) = (limit(old), limit(new));
        key.clock.advance(24 * HOUR);
        key.fill(&old).await;
        assert!(!key.check(&new, 1).await.allowed);
        key.clock.set(key.clock.now().saturating_sub(Micros::from_secs(12 * 3_600)));
        assert!(!key.check(&old, 1).await.allowed);
        let bound = Duration::from_millis(4_100);
        assert!(key.wait_until_allowed(&new).await <= bound, "{new:?}");
        key.wait_until_allowed(&old).await;
    }
}

#[tokio::test]
async fn a_limit_of_the_call_waits_until_the_earlier_consumption_fits_and_denials_write_nothing() {
    for by_id in [false, true] {
        for (old, new) in CHANGES {
            let mut key = ChangingKey::new(by_id);
            let (old, new) = (per_call(old), per_call(new));
            key.fill(&old).await;
            let before = key.value();
            let Wait::For(span) = key.check(&new, 1).await.retry_after else { panic!("{new:?}") };
            assert!(span > Micros::from_secs(60), "{new:?}: {span:?}");
            assert_eq!(key.check(&new, 11).await.retry_after, Wait::Never);
            assert_eq!(key.peek(&new).await.remaining, 0);
            assert_eq!(key.value(), before, "{new:?}");
            let waited = key.wait_until_allowed(&new).await;
            assert_eq!(waited, Duration::from_micros(span.get()), "{new:?}");
            // From then on it recovers as the new limit says.
            for _ in 0..12 {
                assert!(key.wait_until_allowed(&new).await <= Duration::from_secs(5), "{new:?}");
            }
            assert!(!key.has_other_entries());
        }
    }
}

#[tokio::test]
async fn a_larger_limit_of_the_call_has_what_the_smaller_one_left() {
    for (large, small) in CHANGES {
        let mut key = ChangingKey::new(false);
        let (large, small) = (per_call(large), per_call(small));
        assert!(key.check(&small, 10).await.allowed);
        assert_eq!(key.peek(&large).await.remaining, 990, "{large:?}");
        assert!(key.check(&large, 990).await.allowed);
        assert!(!key.check(&large, 1).await.allowed);
        // Recorded and refunded without a change of the limit.
        key.decide(Op::Record, &small, 5).await;
        assert_eq!(key.used(&large).await, 1_005, "{large:?}");
        key.decide(Op::Refund, &small, 5).await;
        assert_eq!(key.used(&large).await, 1_000, "{large:?}");
        key.decide(Op::Reset, &small, 0).await;
        assert!(key.check(&small, 10).await.allowed);
    }
}
