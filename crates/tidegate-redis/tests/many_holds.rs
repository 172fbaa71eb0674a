//! Many holds: they end together, and the server is not kept busy by it.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/server.rs"]
mod server;

use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::time::Duration;

use server::Server;
use tidegate::{
    Call, Charge, Cost, Decision, Engine, EngineError, Expiry, HoldId, Key, Limit, ManualClock,
    Micros, Op, Rule, RuleLimit,
};
use tidegate_redis::Redis;

const HOLDS: u64 = 10_000;
const TTL: Micros = Micros::from_secs(30);
/// The longest that a script may take, in microseconds of the server's processor. Most take a tenth of it; a
/// virtual machine counts what its host took as well.
const LONGEST: u64 = 10_000;

struct Bench {
    server: Server,
    engine: Redis,
    clock: ManualClock,
    limit: Arc<RuleLimit>,
    longest: u64,
}

impl Bench {
    async fn new(text: &str) -> Self {
        let server = Server::start();
        let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
        let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(60));
        let engine = builder.test_clock(clock.clone()).build().unwrap();
        let limit: Limit = text.parse().unwrap();
        let limit = Rule::new("many", [limit]).unwrap().limits()[0].clone();
        let mut bench = Self { server, engine, clock, limit, longest: 0 };
        bench.ask(Op::Peek, 0).await.unwrap();
        bench
    }

    async fn ask(&mut self, op: Op, cost: u64) -> Result<Decision, EngineError> {
        let key = Key::from("k");
        let charge = Charge { limit: &self.limit, key, cost: Cost::total(cost), who: None };
        let of_a_hold = matches!(op, Op::Settle { .. } | Op::Renew { .. });
        let charges = if of_a_hold { &[][..] } else { &[charge] };
        let before = self.busy();
        let answer = self.engine.decide(Call { op, charges, once: None }).await;
        self.longest = self.longest.max(self.busy() - before);
        answer
    }

    async fn hold(&mut self, ttl: Micros, expiry: Expiry, cost: u64) -> Decision {
        let id = HoldId::random().unwrap();
        self.ask(Op::Hold { id, ttl, expiry }, cost).await.unwrap()
    }

    /// For how many microseconds the server has run.
    fn busy(&self) -> u64 {
        let path = format!("/proc/{}/schedstat", self.server.pid());
        let stat = std::fs::read_to_string(path).expect("Linux with schedstat");
        stat.split(' ').next().unwrap().parse::<u64>().unwrap() / 1_000
    }

    fn say(&mut self, what: &str) {
        let longest = std::mem::take(&mut self.longest);
        writeln!(stderr().lock(), "{HOLDS} holds, {what}: the longest script took {longest} us")
            .unwrap();
        assert!(longest <= LONGEST, "{what}: {longest} us");
    }
}

/// Leases of one cost, as `concurrency` has them: they need only be counted.
#[tokio::test]
async fn leases_that_run_out_together_hold_nobody_up() {
    let mut bench = Bench::new("concurrency 10000 lease 30s").await;
    let mut first = None;
    for _ in 0..HOLDS {
        let made = bench.hold(TTL, Expiry::Release, 1).await;
        first = first.or(made.hold());
    }
    bench.say("taken one by one");
    assert!(!bench.hold(TTL, Expiry::Release, 1).await.allowed());
    assert!(!bench.hold(TTL, Expiry::Release, 5_000).await.allowed());
    bench.say("denied");
    bench.clock.advance(TTL.into());
    for _ in 0..10 {
        assert_eq!(bench.ask(Op::Peek, 0).await.unwrap().remaining(), 10_000);
    }
    bench.say("ended, peeked at");
    let settle = Op::Settle { id: first.unwrap(), cost: None };
    assert!(bench.ask(settle, 0).await.unwrap().expired());
    for left in (9_980..10_000).rev() {
        assert_eq!(bench.hold(TTL, Expiry::Release, 1).await.remaining(), left);
    }
    bench.say("ended, and taken again");
    assert_eq!(bench.server.cli(&["ZCARD", &holds(&bench.server)]), "20", "all are dropped");
    assert_eq!(bench.ask(Op::Reset, 0).await.unwrap().remaining(), 10_000);
    bench.say("reset");
}

/// Those of several costs end a few at a time, and what has not ended yet is held: never more passes
/// than may, each is charged once, and all are gone after a while, if everybody is denied as well.
#[tokio::test]
async fn holds_of_several_costs_end_a_few_at_a_time_and_each_once() {
    for (text, expiry) in [
        ("fixed-window 30000/d", Expiry::Release),
        ("fixed-window 30000/d", Expiry::Charge),
        ("30000/d", Expiry::Charge),
        ("sliding-log 30000/d", Expiry::Charge),
        ("sliding-window 30000/d", Expiry::Charge),
        ("sliding-window 30000/d approximate", Expiry::Charge),
    ] {
        let mut bench = Bench::new(text).await;
        let mut held = 0;
        for i in 0..HOLDS {
            let ttl = TTL.saturating_add(Micros::new(i));
            bench.hold(ttl, expiry, 1 + i % 3).await;
            held += 1 + i % 3;
        }
        bench.say(&format!("{text}, {expiry:?}, taken one by one"));
        bench.clock.advance(Duration::from_secs(31));
        let stays = if expiry == Expiry::Charge { held } else { 0 };
        let mut calls = 0;
        loop {
            let denied = bench.ask(Op::Check, 30_000).await.unwrap();
            assert!(!denied.allowed() || stays == 0, "{text}");
            calls += 1;
            let left = bench.ask(Op::Peek, 0).await.unwrap().remaining();
            assert!(left <= 30_000 - stays, "{text}, {expiry:?}: {left} left");
            // A charge in between comes before those that are to be charged yet.
            if calls == 5 && expiry == Expiry::Charge {
                bench.ask(Op::Record, 7).await.unwrap();
            }
            let limit = bench.limit.clone();
            let standing = bench.engine.inspect(&limit, "k".into()).await.unwrap().standing;
            if standing.held == 0 {
                let recorded = if stays > 0 { 7 } else { standing.used };
                assert_eq!(standing.used, stays + recorded, "{text}, {expiry:?}");
                break;
            }
            assert!(calls < 100, "{text}: {standing:?} after {calls} calls");
        }
        bench.say(&format!("{text}, {expiry:?}, ended within {calls} calls"));
    }
}

/// A refund, a reset and a limit that changes find them as well.
#[tokio::test]
async fn a_reset_of_many_holds_takes_no_longer_than_it_takes_to_read_them() {
    let mut bench = Bench::new("30000/d").await;
    for i in 0..HOLDS {
        let expiry = if i % 2 == 0 { Expiry::Release } else { Expiry::Charge };
        bench.hold(TTL, expiry, 1).await;
    }
    bench.longest = 0;
    let after = bench.ask(Op::Reset, 0).await.unwrap();
    assert_eq!(after.remaining(), 25_000, "what will be charged stays held");
    let took = std::mem::take(&mut bench.longest);
    writeln!(stderr().lock(), "{HOLDS} holds, a half of which stays, reset: {took} us").unwrap();
    assert!(took <= 10 * LONGEST, "{took} us");
}

fn holds(server: &Server) -> String {
    let keys = server.cli(&["KEYS", "*:holds"]);
    keys.lines().next().unwrap().to_owned()
}
