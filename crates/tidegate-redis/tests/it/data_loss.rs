//! The engine detects that a store may have lost charges: the store was restarted, emptied or
//! replaced. Other disturbances are not counted as data loss.

use std::io::{Write as _, stderr};
use std::time::Duration;

use testkit::cluster::{PRIMARIES, RedisCluster};
use testkit::redis::RedisServer;
use testkit::sentinel::SentinelSetup;
use tidegate::{Health, Limit, Limiter};
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(5);
/// Longer than the interval of every periodic check.
const LATER: Duration = Duration::from_millis(1500);

/// A limiter that has reached its store, and the health of its engine.
struct MonitoredLimiter(Limiter);

impl MonitoredLimiter {
    /// Connects and waits for the first decisions.
    async fn at(url: &str) -> Self {
        let engine = Redis::builder(url).deadline(Duration::from_secs(5)).build().unwrap();
        let limiter = Self(Limiter::new(engine, "1000000/d".parse::<Limit>().unwrap()));
        limiter.until_decided().await;
        assert_eq!(limiter.resets(), (0, None), "after the first connection");
        limiter
    }

    fn health(&self) -> Health {
        self.0.engine().health()
    }

    /// Number of resets, and the text of the last one.
    fn resets(&self) -> (u64, Option<String>) {
        let health = self.health();
        (health.resets, health.last_reset.map(|text| text.to_string()))
    }

    /// Checks many keys, so that every shard decides.
    async fn until_decided(&self) {
        let decided = async {
            for nth in 0..30 {
                while self.0.check(&format!("user-{nth}")).await.is_err() {
                    sleep(MOMENT).await;
                }
            }
        };
        timeout(TIMEOUT, decided).await.expect("no decision");
    }

    /// Waits for `count` resets and returns the text of the last one. Panics if there are more.
    async fn until_counted(&self, count: u64) -> String {
        let begun = Instant::now();
        while self.health().resets < count {
            let resets = self.resets();
            assert!(begun.elapsed() < TIMEOUT, "{resets:?}, expected {count}");
            let _ = self.0.check("another").await;
            sleep(MOMENT).await;
        }
        let detected = begun.elapsed();
        self.until_decided().await;
        sleep(LATER).await;
        self.until_decided().await;
        let (counted, text) = self.resets();
        let text = text.unwrap();
        assert_eq!(counted, count, "{text}");
        writeln!(stderr().lock(), "resets: detected after {detected:?}: {text}").unwrap();
        text
    }
}

#[tokio::test]
async fn a_server_that_restarts_empty_is_a_reset() {
    let mut server = RedisServer::start();
    let limiter = MonitoredLimiter::at(&server.url()).await;
    for count in 1..=2 {
        server.restart();
        let expected = format!(
            "redis at 127.0.0.1:{} was restarted with an empty data set; all limits are reset",
            server.port()
        );
        assert_eq!(limiter.until_counted(count).await, expected);
    }
}

#[tokio::test]
async fn a_server_that_restarts_from_a_snapshot_may_lack_later_charges() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes"]);
    let limiter = MonitoredLimiter::at(&server.url()).await;
    server.restart();
    let text = limiter.until_counted(1).await;
    assert!(text.ends_with("was restarted; charges that it had not saved are lost"), "{text}");

    // With replicas, a snapshot contains the replication offset at which it was taken.
    let mut server = RedisServer::start();
    let replica = RedisServer::start();
    replica.replica_of(&server);
    let limiter = MonitoredLimiter::at(&server.url()).await;
    // `SAVE` fails while the snapshot for the replica is still being written.
    let begun = Instant::now();
    while server.cli(&["SAVE"]) != "OK" {
        assert!(begun.elapsed() < TIMEOUT, "SAVE keeps failing");
        sleep(Duration::from_millis(10)).await;
    }
    server.restart();
    let text = limiter.until_counted(1).await;
    assert!(text.contains("restored up to replication offset"), "{text}");
}

#[tokio::test]
async fn a_flushed_server_is_a_reset() {
    let server = RedisServer::start();
    let limiter = MonitoredLimiter::at(&server.url()).await;
    for (count, command) in [(1, "FLUSHALL"), (2, "FLUSHDB")] {
        let flushed = Instant::now();
        assert_eq!(server.cli(&[command]), "OK");
        let text = limiter.until_counted(count).await;
        assert!(text.contains("was emptied") && text.contains("\"tg:secret\" is gone"), "{text}");
        assert!(flushed.elapsed() < TIMEOUT);
    }
}

#[tokio::test]
async fn a_lost_connection_or_a_frozen_server_is_no_reset() {
    let server = RedisServer::start();
    let limiter = MonitoredLimiter::at(&server.url()).await;
    for _ in 0..5 {
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        limiter.until_decided().await;
    }
    server.freeze();
    sleep(2 * LATER).await;
    server.thaw();
    limiter.until_decided().await;
    server.cli(&["SCRIPT", "FLUSH"]);
    limiter.until_decided().await;
    assert_eq!(limiter.resets(), (0, None));
    let connections = server.cli(&["INFO", "stats"]);
    let connections = connections.lines().find(|line| line.starts_with("total_connections"));
    writeln!(stderr().lock(), "resets: 0 after 5 kills and a freeze; {}", connections.unwrap())
        .unwrap();
}

#[tokio::test]
async fn without_permission_for_info_only_an_emptied_server_is_detected() {
    let user = ["--user", "ann", "on", ">pw", "~*", "+@all", "-info"];
    let mut server = RedisServer::start_with(&[&user[..], &["--appendonly", "yes"]].concat());
    let url = format!("redis://ann:pw@127.0.0.1:{}", server.port());
    let limiter = MonitoredLimiter::at(&url).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.restart();
    limiter.until_decided().await;
    sleep(LATER).await;
    limiter.until_decided().await;
    assert_eq!(limiter.resets(), (0, None));
    server.cli(&["FLUSHALL"]);
    let text = limiter.until_counted(1).await;
    assert!(text.starts_with("redis was emptied"), "{text}");
}

#[tokio::test]
async fn another_primary_behind_sentinel_is_a_reset() {
    let setup = SentinelSetup::start();
    let limiter = MonitoredLimiter::at(&setup.url()).await;
    let before = setup.primary();
    setup.fail_over();
    let text = limiter.until_counted(1).await;
    let now = setup.primary();
    let expected =
        format!("redis at 127.0.0.1:{now} is the primary now instead of 127.0.0.1:{before}");
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.contains("replication offset") || text.contains("whose replica"), "{text}");
}

/// All of it runs on one Redis Cluster, which takes long to start.
#[tokio::test]
async fn in_a_cluster_only_a_replaced_primary_is_a_reset() {
    let mut cluster = RedisCluster::start();
    let limiter = MonitoredLimiter::at(&cluster.url()).await;

    let slot = 7;
    let (from, to) = (cluster.primary_of(slot), cluster.primary_of(testkit::cluster::SLOTS - 1));
    cluster.migrate(slot, from, to);
    cluster.restart(PRIMARIES + 2);
    cluster.until_settled();
    for node in &cluster.nodes {
        node.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    limiter.until_decided().await;
    // All nodes have been checked again by then.
    sleep(4 * LATER).await;
    limiter.until_decided().await;
    assert_eq!(limiter.resets(), (0, None), "slots moved, a replica restarted, connections killed");

    cluster.until_primary(PRIMARIES);
    let text = limiter.until_counted(1).await;
    let port = |nth: usize| cluster.nodes[nth].port();
    let expected =
        format!("127.0.0.1:{} is the primary now instead of 127.0.0.1:{}", port(3), port(0));
    assert!(text.contains(&expected) && text.contains("replica it was"), "{text}");

    cluster.until_settled();
    cluster.kill(1);
    let text = limiter.until_counted(2).await;
    let port = |nth: usize| cluster.nodes[nth].port();
    let expected =
        format!("127.0.0.1:{} is the primary now instead of 127.0.0.1:{}", port(4), port(1));
    assert!(text.contains(&expected) && text.contains("replica it was"), "{text}");
    cluster.restart(1);
    cluster.until_settled();

    // It restarts before the other nodes detect the failure.
    cluster.restart(2);
    let text = limiter.until_counted(3).await;
    let expected = format!("127.0.0.1:{} was restarted", cluster.nodes[2].port());
    assert!(text.contains(&expected), "{text}");
}
