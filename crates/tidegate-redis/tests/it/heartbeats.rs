//! Polls of the run-time rules are heartbeats, by which processes know how many they are.

use testkit::engine::{engine, wait_until};
use testkit::redis::RedisServer;
use tidegate::Engine as _;

const SERVERS: &str = "tg:{runtime}:servers";

#[tokio::test]
async fn processes_with_a_heartbeat_in_the_last_five_seconds_are_counted() {
    let server = RedisServer::start();
    let engines = [(); 3].map(|()| engine(&server.url()));
    for engine in &engines {
        wait_until(|| engine.health().up).await;
    }
    let hashes = engines.each_ref().map(|engine| engine.runtime_hash());
    for (nth, hash) in (1..).zip(&hashes) {
        assert_eq!(hash.poll().await.unwrap().servers, nth);
        assert_eq!(hash.clone().poll().await.unwrap().servers, nth, "the same process");
    }
    let now = hashes[0].poll().await.unwrap().time.get() / 1_000;
    for (member, age) in [("silent", 10_000), ("gone", 61_000), ("long gone", 3_600_000)] {
        server.cli(&["ZADD", SERVERS, &(now - age).to_string(), member]);
    }
    assert_eq!(hashes[0].poll().await.unwrap().servers, 3);
    let left = server.cli(&["ZCARD", SERVERS]);
    assert_eq!(left, "4", "those of the last minute are kept");
    let ttl: u64 = server.cli(&["PTTL", SERVERS]).parse().unwrap();
    assert!((1..=60_000).contains(&ttl), "{ttl} ms");
}

/// The rules are still followed, and the number is not known.
#[tokio::test]
async fn a_user_who_may_not_write_can_poll() {
    let server = RedisServer::start();
    let commands = "+evalsha +eval +time +get +hlen +hgetall +ping +info";
    let mut words = vec!["ACL", "SETUSER", "reader", "reset", "on", ">pw", "~tg:*"];
    words.extend(commands.split(' '));
    assert_eq!(server.cli(&words), "OK");
    let engine = engine(&format!("redis://reader:pw@127.0.0.1:{}/", server.port()));
    wait_until(|| engine.health().up).await;
    let version = engine.runtime_hash().poll().await.unwrap();
    assert_eq!((version.servers, version.len), (0, 0));
}
