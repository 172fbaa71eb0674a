//! Responses to Envoy while the store is unavailable.
use std::time::Duration;

use testkit::envoy::{EnvoyClient, codes, descriptor, descriptor_with_hits, request};
use testkit::redis::RedisServer;
use testkit::server::{ServerProcess, TempFolder, wait_until};
use tidegate_server::internal::transport::envoy::proto::{Code, RateLimitDescriptor};
use tokio::runtime::Runtime;
use tonic::Code as Grpc;

use Code::{Ok as Within, OverLimit as Over};

const EDGE: &str = r#"
domain: edge
descriptors:
  - { key: local, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: deny, on_store_failure: deny, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: allow, on_store_failure: allow, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: many, rate_limit: { unit: year, requests_per_unit: 1000000 } }
  - { key: envoy, on_store_failure: unavailable, rate_limit: { unit: year, requests_per_unit: 10 } }
"#;

/// A long deadline: a busy machine must not look like an unavailable store.
const PATIENT: &str = "store_deadline: 5s\nrules: []\n";

/// A server on this store with a long deadline, once it is ready.
fn patient(redis: &RedisServer) -> ServerProcess {
    let folder = TempFolder::new();
    folder.write("edge.yaml", EDGE);
    let path = folder.path("").to_str().unwrap().to_string();
    let policy = TempFolder::new().write("policy.yaml", PATIENT);
    let policy = policy.to_str().unwrap();
    let arguments = ["--store", &redis.url(), "--config", policy, "--envoy-config", &path];
    let server = ServerProcess::start(&arguments, &[]);
    let up = || server.store_is_up().then_some(());
    assert!(wait_until(up).is_some(), "{:?}", server.log());
    server
}

#[test]
fn during_an_outage_every_rule_follows_its_setting() {
    let mut redis = RedisServer::start();
    let folder = TempFolder::new();
    folder.write("edge.yaml", EDGE);
    let path = folder.path("").to_str().unwrap().to_string();
    let policy = TempFolder::new().write("policy.yaml", "store_deadline: 2s\nrules: []\n");
    let policy = policy.to_str().unwrap();
    let arguments = ["--store", &redis.url(), "--config", policy, "--envoy-config", &path];
    let server = ServerProcess::start(&arguments, &[]);
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(EnvoyClient::connect(server.grpc));
    let check = |descriptors: &[RateLimitDescriptor]| {
        let response = runtime.block_on(client.should_rate_limit(&request("edge", descriptors)));
        response.map(|response| codes(&response)).map_err(|status| status.code())
    };
    let one = |key: &str| check(&[descriptor(&[(key, "x")])]);
    let up = || server.store_is_up().then_some(());
    assert!(wait_until(up).is_some(), "{:?}", server.log());
    for key in ["local", "deny", "allow", "envoy"] {
        assert_eq!(one(key), Ok((Within, vec![(Within, 9)])), "{key}");
    }
    redis.kill();
    assert!(wait_until(|| (!server.store_is_up()).then_some(())).is_some());
    // Half of ten, counted locally; the store has allowed one of them.
    for left in [3, 2, 1, 0] {
        assert_eq!(one("local"), Ok((Within, vec![(Within, left)])));
    }
    assert_eq!(one("local"), Ok((Over, vec![(Over, 0)])));
    assert_eq!(one("deny"), Ok((Over, vec![(Over, 0)])));
    assert_eq!(one("allow"), Ok((Within, vec![(Within, 10)])));
    assert_eq!(one("envoy"), Err(Grpc::Unavailable));
    let hits = |key: &str, hits| check(&[descriptor_with_hits(&[(key, "y")], hits)]);
    assert_eq!(hits("envoy", 3), Err(Grpc::Unavailable));
    assert_eq!(hits("local", 3), Ok((Within, vec![(Within, 2)])));
    // If one rule returns an error, the whole request does, and nothing is charged.
    let both = [descriptor(&[("local", "z")]), descriptor(&[("envoy", "z")])];
    assert_eq!(check(&both), Err(Grpc::Unavailable));
    assert_eq!(check(&both[..1]), Ok((Within, vec![(Within, 4)])));
    // The amount to refund is unknown.
    let back = RateLimitDescriptor {
        is_negative_hits: true,
        ..descriptor_with_hits(&[("local", "y")], 1)
    };
    assert_eq!(check(&[back]), Err(Grpc::Unavailable));
    redis.restart();
    let back = || one("envoy").is_ok().then_some(());
    assert!(wait_until(back).is_some(), "{:?}", server.log());
}

/// Repeats a run in which the circuit was open for a moment, since the machine was busy.
fn undisturbed(run: impl Fn() -> bool) {
    assert!((0..10).any(|_| run()), "the circuit opens in every attempt");
}

fn was_open(server: &ServerProcess) -> bool {
    server.logged("circuit open: store not responding, on_store_failure applies") > 0
}

#[test]
fn two_servers_on_one_store_count_together() {
    undisturbed(two_servers_count_together);
}

fn two_servers_count_together() -> bool {
    let redis = RedisServer::start();
    let servers = [patient(&redis), patient(&redis)];
    let runtime = Runtime::new().unwrap();
    let passed: usize = runtime.block_on(async {
        let message = request("edge", &[descriptor(&[("deny", "x")])]);
        let callers = (0..16).map(|n| {
            let (address, message) = (servers[n % 2].grpc, message.clone());
            tokio::spawn(async move {
                let client = EnvoyClient::connect(address).await;
                let mut passed = 0;
                for _ in 0..5 {
                    let response = client.should_rate_limit(&message).await.unwrap();
                    passed += usize::from(response.overall_code() == Within);
                }
                passed
            })
        });
        let mut passed = 0;
        for caller in callers.collect::<Vec<_>>() {
            passed += caller.await.unwrap();
        }
        passed
    });
    if servers.iter().any(was_open) {
        return false;
    }
    assert_eq!(passed, 10);
    true
}

#[test]
fn every_charged_request_gets_its_response_at_shutdown() {
    undisturbed(charged_requests_get_their_response);
}

fn charged_requests_get_their_response() -> bool {
    let redis = RedisServer::start();
    let mut server = patient(&redis);
    let runtime = Runtime::new().unwrap();
    let responses: u32 = runtime.block_on(async {
        let callers = (0..16).map(|_| {
            let (address, message) =
                (server.grpc, request("edge", &[descriptor(&[("many", "x")])]));
            tokio::spawn(async move {
                let client = EnvoyClient::connect(address).await;
                let mut responses = 0;
                while client.should_rate_limit(&message).await.is_ok() {
                    responses += 1;
                }
                responses
            })
        });
        let callers: Vec<_> = callers.collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.signal("TERM");
        let mut responses = 0;
        for caller in callers {
            responses += caller.await.unwrap();
        }
        responses
    });
    assert!(server.wait().is_some_and(|status| status.success()), "{:?}", server.log());
    if was_open(&server) {
        return false;
    }
    let again = patient(&redis);
    let client = runtime.block_on(EnvoyClient::connect(again.grpc));
    let look = request("edge", &[descriptor_with_hits(&[("many", "x")], 0)]);
    let left =
        runtime.block_on(client.should_rate_limit(&look)).unwrap().statuses[0].limit_remaining;
    if was_open(&again) {
        return false;
    }
    assert!(responses > 0);
    assert_eq!(1_000_000 - left, responses);
    true
}
