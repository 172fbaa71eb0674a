//! What Envoy is told while the store does not answer.
use std::time::Duration;

use envoy::{Client, descriptor, hitting, request, told};
use life::redis_server::Server as RedisServer;
use support::{Folder, Server, wait_until};
use tidegate_server::envoy::proto::{Code, RateLimitDescriptor};
use tokio::runtime::Runtime;
use tonic::Code as Grpc;

use crate::{envoy, life, support};
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

/// A machine that is busy for a moment does not make it a store that does not answer.
const PATIENT: &str = "store_deadline: 5s\nrules: []\n";

/// A server on this store that does not give up on it, once it is ready.
fn patient(redis: &RedisServer) -> Server {
    let folder = Folder::new();
    folder.write("edge.yaml", EDGE);
    let path = folder.path("").to_str().unwrap().to_string();
    let policy = Folder::new().write("policy.yaml", PATIENT);
    let policy = policy.to_str().unwrap();
    let arguments = ["--store", &redis.url(), "--config", policy, "--envoy-config", &path];
    let server = Server::start(&arguments, &[]);
    let up = || (server.get("/readyz").status == 200).then_some(());
    assert!(wait_until(up).is_some(), "{:?}", server.log());
    server
}

#[test]
fn while_the_store_is_gone_every_rule_does_what_it_says() {
    let mut redis = RedisServer::start();
    let folder = Folder::new();
    folder.write("edge.yaml", EDGE);
    let path = folder.path("").to_str().unwrap().to_string();
    let server = Server::start(&["--store", &redis.url(), "--envoy-config", &path], &[]);
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(Client::connect(server.grpc));
    let ask = |descriptors: &[RateLimitDescriptor]| {
        let response = runtime.block_on(client.ask(&request("edge", descriptors)));
        response.map(|response| told(&response)).map_err(|status| status.code())
    };
    let one = |key: &str| ask(&[descriptor(&[(key, "x")])]);
    let up = || (server.get("/readyz").status == 200).then_some(());
    assert!(wait_until(up).is_some(), "{:?}", server.log());
    for key in ["local", "deny", "allow", "envoy"] {
        assert_eq!(one(key), Ok((Within, vec![(Within, 9)])), "{key}");
    }
    redis.kill();
    assert!(wait_until(|| (server.get("/readyz").status == 503).then_some(())).is_some());
    // Half of ten, counted here.
    for left in [4, 3, 2, 1, 0] {
        assert_eq!(one("local"), Ok((Within, vec![(Within, left)])));
    }
    assert_eq!(one("local"), Ok((Over, vec![(Over, 0)])));
    assert_eq!(one("deny"), Ok((Over, vec![(Over, 0)])));
    assert_eq!(one("allow"), Ok((Within, vec![(Within, 10)])));
    assert_eq!(one("envoy"), Err(Grpc::Unavailable));
    let hits = |key: &str, hits| ask(&[hitting(&[(key, "y")], hits)]);
    assert_eq!(hits("envoy", 3), Err(Grpc::Unavailable));
    assert_eq!(hits("local", 3), Ok((Within, vec![(Within, 2)])));
    // What one leaves to Envoy, all do: and nothing is charged.
    let both = [descriptor(&[("local", "z")]), descriptor(&[("envoy", "z")])];
    assert_eq!(ask(&both), Err(Grpc::Unavailable));
    assert_eq!(ask(&both[..1]), Ok((Within, vec![(Within, 4)])));
    // Nobody knows what there is to give back.
    let back = RateLimitDescriptor { is_negative_hits: true, ..hitting(&[("local", "y")], 1) };
    assert_eq!(ask(&[back]), Err(Grpc::Unavailable));
    redis.restart();
    let back = || one("envoy").is_ok().then_some(());
    assert!(wait_until(back).is_some(), "{:?}", server.log());
}

#[test]
fn two_servers_on_one_store_count_together() {
    let redis = RedisServer::start();
    let servers = [patient(&redis), patient(&redis)];
    let runtime = Runtime::new().unwrap();
    let passed: usize = runtime.block_on(async {
        let asked = request("edge", &[descriptor(&[("deny", "x")])]);
        let callers = (0..16).map(|n| {
            let (address, asked) = (servers[n % 2].grpc, asked.clone());
            tokio::spawn(async move {
                let client = Client::connect(address).await;
                let mut passed = 0;
                for _ in 0..5 {
                    let response = client.ask(&asked).await.unwrap();
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
    assert_eq!(passed, 10);
}

#[test]
fn whoever_is_charged_is_answered_when_the_server_ends() {
    let redis = RedisServer::start();
    let mut server = patient(&redis);
    let runtime = Runtime::new().unwrap();
    let answered: u32 = runtime.block_on(async {
        let callers = (0..16).map(|_| {
            let (address, asked) = (server.grpc, request("edge", &[descriptor(&[("many", "x")])]));
            tokio::spawn(async move {
                let client = Client::connect(address).await;
                let mut answered = 0;
                while client.ask(&asked).await.is_ok() {
                    answered += 1;
                }
                answered
            })
        });
        let callers: Vec<_> = callers.collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.signal("TERM");
        let mut answered = 0;
        for caller in callers {
            answered += caller.await.unwrap();
        }
        answered
    });
    assert!(server.wait().is_some_and(|status| status.success()), "{:?}", server.log());
    let again = patient(&redis);
    let client = runtime.block_on(Client::connect(again.grpc));
    let look = request("edge", &[hitting(&[("many", "x")], 0)]);
    let left = runtime.block_on(client.ask(&look)).unwrap().statuses[0].limit_remaining;
    assert!(answered > 0);
    assert_eq!(1_000_000 - left, answered);
}
