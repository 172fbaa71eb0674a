//! Reserve and commit over plain rate limit service calls: `tidegate.reserve`, `tidegate.commit`.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use testkit::envoy::{
    EnvoyClient, EnvoyInProcess, codes, descriptor, descriptor_with_hits, listen, request,
};
use testkit::redis::RedisServer;
use testkit::server::{ServerProcess, TempFolder, wait_until};
use tidegate::{
    Call, Clock, Decision, Engine, EngineFuture, Health, Inspection, Key, ManualClock, Memory, Op,
    RuleLimit,
};
use tidegate_server::internal::transport::envoy::error::EnvoyError;
use tidegate_server::internal::transport::envoy::proto::{Code, RateLimitDescriptor};
use tidegate_server::internal::transport::envoy::settings::EnvoySettings;

use Code::{Ok as Within, OverLimit as Over};

const POLICY: &str = r#"
domain: d
descriptors:
  - { key: requests, limit: "60/m" }
  - { key: tokens, estimate: 800, limit: "fixed-window 10000/d" }
  - { key: team, limit: "fixed-window 3000/d" }
  - { key: kind, reservation_ttl: 30s, on_expiry: release, limit: "fixed-window 1000/d" }
  - { key: strict, charge: if_allowed, limit: "fixed-window 10/d" }
  - { key: quota, quota_mode: true, limit: "fixed-window 10/d" }
"#;

const RESERVE: &str = "tidegate.reserve";
const COMMIT: &str = "tidegate.commit";

/// A descriptor of `key` and a phase; without a number if `hits` is `None`.
fn phase(
    phase: &str,
    id: &str,
    (key, value): (&str, &str),
    hits: Option<u64>,
) -> RateLimitDescriptor {
    let entries = [(key, value), (phase, id)];
    RateLimitDescriptor { hits_addend: hits, ..descriptor(&entries) }
}

async fn left(envoy: &EnvoyInProcess, key: &str, value: &str) -> u32 {
    envoy.decide_one(descriptor_with_hits(&[(key, value)], 0)).await.1
}

async fn commit(envoy: &EnvoyInProcess, id: &str, key: (&str, &str), hits: Option<u64>) -> u32 {
    let (code, remaining) = envoy.decide_one(phase(COMMIT, id, key, hits)).await;
    assert_eq!(code, Within, "a commit is never over a limit");
    remaining
}

#[tokio::test]
async fn each_rule_is_settled_at_its_own_cost() {
    let (address, _) = listen(EnvoyInProcess::new(POLICY)).await;
    let client = EnvoyClient::connect(address).await;
    let call = async |descriptors: &[RateLimitDescriptor]| {
        codes(&client.should_rate_limit(&request("d", descriptors)).await.unwrap())
    };
    let requests = descriptor(&[("requests", "ann")]);
    let tokens = phase(RESERVE, "r-1", ("tokens", "ann"), Some(1_500));
    let made = call(&[requests, tokens]).await;
    assert_eq!(made, (Within, vec![(Within, 59), (Within, 8_500)]));
    let done = call(&[phase(COMMIT, "r-1", ("tokens", "ann"), Some(312))]).await;
    assert_eq!(done, (Within, vec![(Within, 9_688)]));
    let looks = ["requests", "tokens"].map(|key| descriptor_with_hits(&[(key, "ann")], 0));
    assert_eq!(call(&looks).await.1, [(Within, 59), (Within, 9_688)], "312 is not charged to both");
}

/// Decides in memory, but never replies to a check.
struct SilentOnChecks(Memory);

impl Engine for SilentOnChecks {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(match call.op {
            Op::Check => Box::pin(std::future::pending()),
            _ => Box::pin(async move { self.0.decide(call).now() }),
        })
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
async fn the_hold_of_a_call_that_envoy_resets_is_cancelled() {
    let clock = ManualClock::default();
    let memory = Memory::builder().clock(clock.clone()).build();
    let engine = Arc::new(SilentOnChecks(memory));
    let envoy = EnvoyInProcess::on(engine, clock, POLICY, EnvoySettings::default());
    let tokens = phase(RESERVE, "r-1", ("tokens", "ann"), Some(1_500));
    let descriptors = [tokens, descriptor(&[("requests", "ann")])];
    {
        let mut call = pin!(envoy.decide(&descriptors));
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the requests are not decided");
        assert_eq!(left(&envoy, "tokens", "ann").await, 8_500, "and the tokens are held");
    }
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(left(&envoy, "tokens", "ann").await, 10_000);
}

#[tokio::test]
async fn all_descriptors_of_a_call_or_none() {
    let envoy = EnvoyInProcess::new(POLICY);
    let both = |id: &str, cost| {
        let reserve = |key| phase(RESERVE, id, (key, "x"), Some(cost));
        [reserve("tokens"), descriptor(&[("requests", "x")]), reserve("team")]
    };
    assert_eq!(envoy.decide(&both("a", 2_000)).await.overall_code(), Within);
    assert_eq!(envoy.decide(&both("b", 2_000)).await.overall_code(), Over, "the team has 1,000");
    let all = async || [left(&envoy, "tokens", "x").await, left(&envoy, "requests", "x").await];
    assert_eq!(all().await, [8_000, 59], "the denied call took nothing");
    for _ in 0..59 {
        envoy.decide_one(descriptor(&[("requests", "x")])).await;
    }
    assert_eq!(envoy.decide(&both("c", 10)).await.overall_code(), Over, "no request is left");
    assert_eq!(all().await, [8_000, 0], "its hold is cancelled");
    let look = descriptor_with_hits(&[("requests", "x")], 0);
    let reserve = phase(RESERVE, "d", ("tokens", "x"), Some(10));
    assert_eq!(envoy.decide(&[reserve, look]).await.overall_code(), Over);
    assert_eq!(all().await, [8_000, 0], "so it is if a look denies the call");
    // The descriptors of a commit may come in another order.
    let commit = |key, cost| phase(COMMIT, "a", (key, "x"), Some(cost));
    let done = envoy.decide(&[commit("team", 30), commit("tokens", 40)]).await;
    assert_eq!(codes(&done), (Within, vec![(Within, 2_970), (Within, 9_960)]));
}

#[tokio::test]
async fn a_reserve_is_not_idempotent_and_a_commit_settles_one_hold() {
    let envoy = EnvoyInProcess::new(POLICY);
    let ann = ("tokens", "ann");
    // Without a number: the estimate. The fifth hold of one id is found by no commit.
    for n in 1..=5 {
        let made = envoy.decide_one(phase(RESERVE, "same", ann, None)).await;
        assert_eq!(made, (Within, 10_000 - n * 800), "the same id holds again");
    }
    // Another key and another id do not settle them: they are records.
    commit(&envoy, "same", ("tokens", "bob"), Some(5)).await;
    assert_eq!(commit(&envoy, "other", ann, Some(5)).await, 5_995);
    assert_eq!(left(&envoy, "tokens", "bob").await, 9_995);
    for n in 1..=4 {
        assert_eq!(commit(&envoy, "same", ann, Some(100)).await, 5_995 + n * 700);
    }
    assert_eq!(commit(&envoy, "same", ann, Some(100)).await, 8_695, "a record");
    // A name is free again after its commit.
    envoy.decide_one(phase(RESERVE, "same", ann, Some(95))).await;
    assert_eq!(commit(&envoy, "same", ann, Some(0)).await, 8_695, "0 cancels");
    envoy.clock.advance(Duration::from_secs(600));
    assert_eq!(left(&envoy, "tokens", "ann").await, 8_695, "the fifth is charged now");
    assert_eq!(commit(&envoy, "same", ann, None).await, 8_695, "nothing is known, nothing held");
}

#[tokio::test]
async fn usage_that_is_not_known_is_charged_or_released() {
    let envoy = EnvoyInProcess::new(POLICY);
    for (key, at_commit, at_deadline, late) in
        [("tokens", 9_400, 9_400, 9_300), ("kind", 1_000, 1_000, 300)]
    {
        let reserve = async |value: &str| {
            envoy.decide_one(phase(RESERVE, "r", (key, value), Some(600))).await;
        };
        reserve("a").await;
        commit(&envoy, "r", (key, "a"), None).await;
        assert_eq!(left(&envoy, key, "a").await, at_commit, "{key}: no number in the commit");
        reserve("b").await;
        envoy.clock.advance(Duration::from_secs(if key == "tokens" { 600 } else { 30 }));
        assert_eq!(left(&envoy, key, "b").await, at_deadline, "{key}: no commit");
        commit(&envoy, "r", (key, "b"), Some(700)).await;
        assert_eq!(left(&envoy, key, "b").await, late, "{key}: a late commit");
    }
}

/// "First sight reserves, second settles" lets such a client pass 1,300 of 1,000.
#[tokio::test]
async fn a_client_that_reuses_one_id_passes_no_more_than_the_limit() {
    let envoy = EnvoyInProcess::new(POLICY);
    let kind = ("kind", "x");
    let mut open = 0;
    let mut passed = 0;
    for turn in 0..200 {
        if envoy.decide_one(phase(RESERVE, "id", kind, Some(100))).await.0 == Within {
            passed += 100;
            open += 1;
        }
        // Calls end in any order, and all of them have used what was reserved.
        if turn % 3 == 0 && open > 0 {
            commit(&envoy, "id", kind, Some(100)).await;
            open -= 1;
        }
    }
    assert_eq!((passed, left(&envoy, "kind", "x").await), (1_000, 0));
}

#[tokio::test]
async fn a_phase_that_is_not_clear_is_refused_and_changes_nothing() {
    let envoy = EnvoyInProcess::new(POLICY);
    let negative = RateLimitDescriptor {
        is_negative_hits: true,
        ..phase(COMMIT, "r", ("tokens", "x"), Some(5))
    };
    for bad in [
        descriptor(&[(RESERVE, "r")]),
        descriptor(&[("tokens", "x"), (RESERVE, "")]),
        descriptor(&[("tokens", "x"), (RESERVE, &"r".repeat(65))]),
        descriptor(&[("tokens", "x"), (RESERVE, "r"), (COMMIT, "r")]),
        phase(RESERVE, "r", ("quota", "x"), Some(5)),
        negative,
    ] {
        let refused = envoy.limits.decide(&request("d", &[bad])).await;
        assert!(matches!(refused, Err(EnvoyError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(left(&envoy, "tokens", "x").await, 10_000);
}

#[tokio::test]
async fn hits_above_one_are_a_record_unless_they_are_charged_if_allowed() {
    let envoy = EnvoyInProcess::new(POLICY);
    let hits = async |hits| envoy.decide_one(descriptor_with_hits(&[("strict", "x")], hits)).await;
    assert_eq!(hits(8).await, (Within, 2));
    assert_eq!(hits(3).await, (Over, 2), "not charged");
    assert_eq!(hits(2).await, (Within, 0));
    let both =
        [descriptor_with_hits(&[("strict", "y")], 4), descriptor_with_hits(&[("strict", "x")], 2)];
    assert_eq!(envoy.decide(&both).await.overall_code(), Over);
    assert_eq!(left(&envoy, "strict", "y").await, 10, "all or none");
}

#[test]
fn one_server_reserves_and_another_commits_on_one_redis() {
    let redis = RedisServer::start();
    let folder = TempFolder::new();
    folder.write("d.yaml", POLICY);
    let limits = folder.path("").to_str().unwrap().to_string();
    let policy = TempFolder::new().write("policy.yaml", "store_deadline: 5s\nrules: []\n");
    let arguments =
        ["--store", &redis.url(), "--config", policy.to_str().unwrap(), "--envoy-config", &limits];
    let servers = [0, 1].map(|_| ServerProcess::start(&arguments, &[]));
    for server in &servers {
        assert!(wait_until(|| server.store_is_up().then_some(())).is_some(), "{:?}", server.log());
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let clients = servers.each_ref().map(|s| runtime.block_on(EnvoyClient::connect(s.grpc)));
    let call = |client: usize, descriptors: &[RateLimitDescriptor]| {
        let request = request("d", descriptors);
        codes(&runtime.block_on(clients[client].should_rate_limit(&request)).unwrap())
    };
    let (ann, team) = (("tokens", "ann"), ("team", "a"));
    let both = |name, costs: [u64; 2]| {
        [phase(name, "r-1", ann, Some(costs[0])), phase(name, "r-1", team, Some(costs[1]))]
    };
    for turn in 0..3_u32 {
        let (used, team_used) = (turn * 312, turn * 100);
        let made = call(0, &both(RESERVE, [1_500, 1_000]));
        assert_eq!(made.1, [(Within, 8_500 - used), (Within, 2_000 - team_used)]);
        let again = call(1, &both(RESERVE, [1_500, 1_000]));
        assert_eq!(again.1, [(Within, 7_000 - used), (Within, 1_000 - team_used)]);
        let done = call(1, &both(COMMIT, [312, 100]));
        assert_eq!(done.1, [(Within, 8_188 - used), (Within, 1_900 - team_used)]);
        let done = call(0, &both(COMMIT, [0, 0]));
        assert_eq!(done.1, [(Within, 9_688 - used), (Within, 2_900 - team_used)]);
    }
    let record = call(0, &[phase(COMMIT, "r-2", ann, Some(64))]);
    assert_eq!(record, (Within, vec![(Within, 9_000)]), "without a hold");
}
