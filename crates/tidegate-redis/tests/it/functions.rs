//! The general scripts as functions: called where the server has them, and replaced by scripts
//! where it does not.

use std::time::Duration;

use testkit::cluster::{PRIMARIES, RedisCluster};
use testkit::engine::{TEST_TIMEOUT, engine, wait_until};
use testkit::redis::{RedisServer, has_functions};
use tidegate::{EngineError, Limit, Limiter};
use tidegate_redis::function_library;
use tokio::time::sleep;

fn limiter(url: &str) -> Limiter {
    Limiter::new(engine(url), "100000/365d".parse::<Limit>().unwrap())
}

/// Checks with an id, which the general script decides. All are allowed and charged once.
async fn check(limiter: &Limiter, key: &str, charged: &mut u64) {
    let id = format!("id-{charged}");
    let decision = limiter.check(key).idempotency_key(&id).await.unwrap();
    *charged += 1;
    assert!(decision.allowed());
    assert_eq!(decision.remaining(), 100_000 - *charged, "{id}");
}

/// Checks until the server is sent functions.
async fn check_until_functions_are_called(
    limiter: &Limiter,
    key: &str,
    server: &RedisServer,
    charged: &mut u64,
) {
    let (before, mut waited) = (server.calls("fcall"), Duration::ZERO);
    while server.calls("fcall") == before {
        assert!(waited < TEST_TIMEOUT, "functions are never called");
        check(limiter, key, charged).await;
        sleep(Duration::from_millis(5)).await;
        waited += Duration::from_millis(5);
    }
}

#[tokio::test]
async fn the_library_is_loaded_once_and_then_called() {
    let server = RedisServer::start();
    if !has_functions(&server) {
        return;
    }
    let (first, second) = (limiter(&server.url()), limiter(&server.url()));
    let mut charged = 0;
    for limiter in [&first, &second] {
        check_until_functions_are_called(limiter, "k", &server, &mut charged).await;
    }
    let scripts = server.calls("evalsha");
    for _ in 0..20 {
        check(&first, "k", &mut charged).await;
        check(&second, "k", &mut charged).await;
    }
    assert_eq!(server.calls("evalsha"), scripts, "scripts are no longer sent");
    let libraries = server.cli(&["FUNCTION", "LIST"]);
    assert_eq!(libraries.matches("library_name").count(), 1, "{libraries}");
    // A plain check is not a function: its script is as short.
    first.check("k").await.unwrap();
    assert_eq!(server.calls("evalsha"), scripts + 1);
}

#[tokio::test]
async fn after_a_flush_of_functions_each_call_is_decided_once_and_the_library_comes_back() {
    let server = RedisServer::start();
    if !has_functions(&server) {
        return;
    }
    let (limiter, mut charged) = (limiter(&server.url()), 0);
    for _ in 0..5 {
        check_until_functions_are_called(&limiter, "k", &server, &mut charged).await;
        server.cli(&["FUNCTION", "FLUSH"]);
        server.cli(&["SCRIPT", "FLUSH"]);
        check(&limiter, "k", &mut charged).await;
    }
    check_until_functions_are_called(&limiter, "k", &server, &mut charged).await;
}

#[tokio::test]
async fn a_primary_that_lacks_the_library_decides_by_scripts_and_gets_it() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    if !has_functions(&primary) {
        return;
    }
    let (limiter, mut charged) = (limiter(&primary.url()), 0);
    check_until_functions_are_called(&limiter, "k", &primary, &mut charged).await;
    // A replica has it from its primary.
    replica.replica_of(&primary);
    assert!(replica.cli(&["FUNCTION", "LIST"]).contains("tidegate_"));
    // The primary becomes a replica of an empty server and is promoted: its data is gone.
    let empty = RedisServer::start();
    primary.replica_of(&empty);
    primary.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(primary.cli(&["FUNCTION", "LIST"]), "");
    let mut charged = 0;
    check_until_functions_are_called(&limiter, "k", &primary, &mut charged).await;
}

#[tokio::test]
async fn every_node_of_a_cluster_gets_the_library() {
    let cluster = RedisCluster::start();
    if !has_functions(&cluster.nodes[0]) {
        return;
    }
    let limiter = limiter(&cluster.url());
    let keys: Vec<String> = (0..30).map(|key| format!("key-{key}")).collect();
    let mut charged = vec![0; keys.len()];
    let all_call = || cluster.nodes[..PRIMARIES].iter().all(|node| node.calls("fcall") > 10);
    for flushed in 0..2 {
        let mut rounds = 0;
        while !all_call() {
            for (key, charged) in keys.iter().zip(&mut charged) {
                check(&limiter, key, charged).await;
            }
            rounds += 1;
            assert!(rounds < 500, "functions are never called everywhere");
        }
        cluster.nodes[flushed].cli(&["FUNCTION", "FLUSH"]);
        for node in &cluster.nodes {
            node.cli(&["CONFIG", "RESETSTAT"]);
        }
    }
}

#[tokio::test]
async fn another_version_of_the_library_can_be_on_the_same_server() {
    let server = RedisServer::start();
    if !has_functions(&server) {
        return;
    }
    // Another version has another text, and therefore another name.
    let (_, name) = function_library().split_once("name=tidegate_").unwrap();
    let digest = name.lines().next().unwrap();
    let other = function_library().replace(digest, "0123456789abcdef");
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg(other).query::<String>(&mut connection).unwrap();
    let (limiter, mut charged) = (limiter(&server.url()), 0);
    check_until_functions_are_called(&limiter, "k", &server, &mut charged).await;
    assert_eq!(server.cli(&["FUNCTION", "LIST"]).matches("library_name").count(), 2);
}

#[tokio::test]
async fn a_full_server_denies_by_scripts_and_charges_nothing() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    if !has_functions(&server) {
        return;
    }
    let (limiter, mut charged) = (limiter(&server.url()), 0);
    check_until_functions_are_called(&limiter, "k", &server, &mut charged).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for id in ["a", "b"] {
        let denied = limiter.check("k").cost(100_000).idempotency_key(id).await.unwrap();
        assert!(!denied.allowed());
        let full = limiter.check("k").idempotency_key(id).await.unwrap_err();
        assert!(matches!(&full, EngineError::Unavailable(_)), "{full:?}");
    }
    assert_eq!(limiter.check("k").peek().await.unwrap().remaining(), 100_000 - charged);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    check(&limiter, "k", &mut charged).await;
}

/// Users of an older recipe, and servers whose administrator loads the library.
#[tokio::test]
async fn without_permissions_for_functions_scripts_decide() {
    let server = RedisServer::start();
    if !has_functions(&server) {
        return;
    }
    for (permissions, is_loaded, calls_functions) in [
        ("-fcall -function", false, false),
        ("-fcall +function|load", false, false),
        ("+fcall -function", false, false),
        ("+fcall -function", true, true),
    ] {
        server.cli(&["FUNCTION", "FLUSH"]);
        if is_loaded {
            testkit::engine::preload_functions(&server);
        }
        let words = format!("ACL SETUSER tg reset on >pw ~* +@all {permissions}");
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(server.cli(&words), "OK");
        server.cli(&["ACL", "LOG", "RESET"]);
        server.cli(&["FLUSHALL"]);
        let limiter = limiter(&format!("redis://tg:pw@127.0.0.1:{}/", server.port()));
        wait_until(|| limiter.engine().health().up).await;
        server.cli(&["CONFIG", "RESETSTAT"]);
        let mut charged = 0;
        for _ in 0..50 {
            check(&limiter, "k", &mut charged).await;
        }
        let log = server.cli(&["ACL", "LOG"]);
        assert!(log.matches("reason").count() <= 2, "{permissions}: {log}");
        assert!(limiter.engine().health().up, "{permissions}");
        if calls_functions {
            assert!(server.calls("fcall") > 0, "{permissions}");
        }
    }
}
