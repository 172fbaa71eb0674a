//! Many holds expire together without blocking the server.

use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::time::Duration;

use testkit::redis::RedisServer;
use testkit::timing::compare_with_goal;
use tidegate::{
    Call, Charge, Cost, Costs, Decision, Engine, EngineError, Expiry, HoldId, Key, Limit,
    ManualClock, Micros, Op, Rule, RuleLimit,
};
use tidegate_redis::Redis;

const HOLDS: u64 = 10_000;
const TTL: Micros = Micros::from_secs(30);
/// Goal of a script, in microseconds of the server's CPU. Most scripts take a tenth of it.
const MAX_SCRIPT_MICROS: u64 = 10_000;

struct HoldsFixture {
    server: RedisServer,
    engine: Redis,
    clock: ManualClock,
    limit: Arc<RuleLimit>,
    longest: u64,
}

impl HoldsFixture {
    async fn new(text: &str) -> Self {
        let server = RedisServer::start();
        let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
        let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(60));
        let engine = builder.test_clock(clock.clone()).build().unwrap();
        let limit: Limit = text.parse().unwrap();
        let limit = Rule::new("many", [limit]).unwrap().limits()[0].clone();
        let mut fixture = Self { server, engine, clock, limit, longest: 0 };
        fixture.decide(Op::Peek, 0).await.unwrap();
        fixture
    }

    async fn decide(&mut self, op: Op<'_>, cost: u64) -> Result<Decision, EngineError> {
        let key = Key::from("k");
        let charge = Charge { limit: &self.limit, key, cost: Cost::total(cost), caller: None };
        let of_a_hold = matches!(op, Op::Settle { .. } | Op::Renew { .. });
        let charges = if of_a_hold { &[][..] } else { &[charge] };
        let before = self.cpu_micros();
        let result = self.engine.decide(Call { op, charges, idempotency_key: None }).await;
        self.longest = self.longest.max(self.cpu_micros() - before);
        result
    }

    async fn hold(&mut self, ttl: Micros, expiry: Expiry, cost: u64) -> Decision {
        let id = HoldId::random().unwrap();
        self.decide(Op::hold(id, ttl, expiry), cost).await.unwrap()
    }

    /// CPU time of the server in microseconds.
    fn cpu_micros(&self) -> u64 {
        let path = format!("/proc/{}/schedstat", self.server.pid());
        let stat = std::fs::read_to_string(path).expect("Linux with schedstat");
        stat.split(' ').next().unwrap().parse::<u64>().unwrap() / 1_000
    }

    fn print_longest(&mut self, what: &str) {
        let longest = std::mem::take(&mut self.longest);
        writeln!(stderr().lock(), "{HOLDS} holds, {what}: longest script {longest} us").unwrap();
        judge(what, longest, MAX_SCRIPT_MICROS);
    }
}

/// Leases of cost 1, as `concurrency` has them, only need to be counted.
#[tokio::test]
async fn leases_that_expire_together_do_not_block_the_server() {
    let mut fixture = HoldsFixture::new("concurrency 10000 lease 30s").await;
    let mut first = None;
    for _ in 0..HOLDS {
        let made = fixture.hold(TTL, Expiry::Release, 1).await;
        first = first.or(made.hold());
    }
    fixture.print_longest("taken one by one");
    assert!(!fixture.hold(TTL, Expiry::Release, 1).await.allowed());
    assert!(!fixture.hold(TTL, Expiry::Release, 5_000).await.allowed());
    fixture.print_longest("denied");
    fixture.clock.advance(TTL.into());
    for _ in 0..10 {
        assert_eq!(fixture.decide(Op::Peek, 0).await.unwrap().remaining(), 10_000);
    }
    fixture.print_longest("expired, then peeked");
    let settle = Op::Settle { id: first.unwrap(), costs: Costs::AsHeld };
    assert!(fixture.decide(settle, 0).await.unwrap().expired());
    for left in (9_980..10_000).rev() {
        assert_eq!(fixture.hold(TTL, Expiry::Release, 1).await.remaining(), left);
    }
    fixture.print_longest("expired, then taken again");
    assert_eq!(fixture.server.cli(&["ZCARD", &holds(&fixture.server)]), "20", "all are dropped");
    assert_eq!(fixture.decide(Op::Reset, 0).await.unwrap().remaining(), 10_000);
    fixture.print_longest("reset");
}

/// Holds of several costs expire in small groups, and those not yet processed stay held. Never
/// more than the limit passes, each hold is charged once, and denials process them, too.
#[tokio::test]
async fn holds_of_several_costs_expire_in_groups_and_each_once() {
    for (text, expiry) in [
        ("fixed-window 30000/d", Expiry::Release),
        ("fixed-window 30000/d", Expiry::Charge),
        ("30000/d", Expiry::Charge),
        ("sliding-log 30000/d", Expiry::Charge),
        ("sliding-window 30000/d", Expiry::Charge),
        ("sliding-window 30000/d approximate", Expiry::Charge),
    ] {
        let mut fixture = HoldsFixture::new(text).await;
        let mut held = 0;
        for i in 0..HOLDS {
            let ttl = TTL.saturating_add(Micros::new(i));
            fixture.hold(ttl, expiry, 1 + i % 3).await;
            held += 1 + i % 3;
        }
        fixture.print_longest(&format!("{text}, {expiry:?}, taken one by one"));
        fixture.clock.advance(Duration::from_secs(31));
        let stays = if expiry == Expiry::Charge { held } else { 0 };
        let mut calls = 0;
        loop {
            let denied = fixture.decide(Op::Check, 30_000).await.unwrap();
            assert!(!denied.allowed() || stays == 0, "{text}");
            calls += 1;
            let left = fixture.decide(Op::Peek, 0).await.unwrap().remaining();
            assert!(left <= 30_000 - stays, "{text}, {expiry:?}: {left} left");
            // This charge comes before those of holds that are not processed yet.
            if calls == 5 && expiry == Expiry::Charge {
                fixture.decide(Op::Record, 7).await.unwrap();
            }
            let limit = fixture.limit.clone();
            let standing = fixture.engine.inspect(&limit, "k".into()).await.unwrap().standing;
            if standing.held == 0 {
                let recorded = if stays > 0 { 7 } else { standing.used };
                assert_eq!(standing.used, stays + recorded, "{text}, {expiry:?}");
                break;
            }
            assert!(calls < 100, "{text}: {standing:?} after {calls} calls");
        }
        fixture.print_longest(&format!("{text}, {expiry:?}, expired within {calls} calls"));
    }
}

/// A refund, a reset and a changed limit process expired holds as well.
#[tokio::test]
async fn a_reset_of_many_holds_takes_no_longer_than_reading_them() {
    let mut fixture = HoldsFixture::new("30000/d").await;
    for i in 0..HOLDS {
        let expiry = if i % 2 == 0 { Expiry::Release } else { Expiry::Charge };
        fixture.hold(TTL, expiry, 1).await;
    }
    fixture.longest = 0;
    let after = fixture.decide(Op::Reset, 0).await.unwrap();
    assert_eq!(after.remaining(), 25_000, "holds that will be charged stay");
    let took = std::mem::take(&mut fixture.longest);
    writeln!(stderr().lock(), "{HOLDS} holds, reset, half of them stay: {took} us").unwrap();
    judge("reset", took, 10 * MAX_SCRIPT_MICROS);
}

/// A virtual machine counts time that its host used, so that only ten times the goal is an error.
fn judge(what: &str, micros: u64, goal: u64) {
    let [took, goal] = [micros, goal].map(Duration::from_micros);
    compare_with_goal(what, took, goal);
    assert!(took <= 10 * goal, "{what}: {took:?}");
}

fn holds(server: &RedisServer) -> String {
    let keys = server.cli(&["KEYS", "*:holds"]);
    keys.lines().next().unwrap().to_owned()
}
