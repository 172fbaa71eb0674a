//! A store that may have lost what it had counted is noticed: it was restarted, emptied, or another server
//! took its place. What only looks like it is not counted.

use std::io::{Write as _, stderr};
use std::time::Duration;

use crate::{cluster, sentinel, server};
use cluster::{Cluster, PRIMARIES};
use sentinel::Watched;
use server::Server;
use tidegate::{Engine as _, Health, Limit, Limiter};
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(5);
/// After so long, everything that is asked from time to time has been asked.
const LATER: Duration = Duration::from_millis(1500);

/// Somebody who asks, and looks at the engine's health.
struct Asking(Limiter);

impl Asking {
    /// One who has had an answer.
    async fn at(url: &str) -> Self {
        let engine = Redis::builder(url).deadline(Duration::from_secs(5)).build().unwrap();
        let asking = Self(Limiter::new(engine, "1000000/d".parse::<Limit>().unwrap()));
        asking.until_answered().await;
        assert_eq!(asking.told(), (0, None), "the first time");
        asking
    }

    fn health(&self) -> Health {
        self.0.engine().health()
    }

    fn told(&self) -> (u64, Option<String>) {
        let health = self.health();
        (health.resets, health.last_reset.map(|text| text.to_string()))
    }

    /// Asks about many subjects, so that every shard has something to say.
    async fn until_answered(&self) {
        let answered = async {
            for nth in 0..30 {
                while self.0.check(&format!("user-{nth}")).await.is_err() {
                    sleep(MOMENT).await;
                }
            }
        };
        timeout(PATIENCE, answered).await.expect("no answer");
    }

    /// What happened, when so many have been counted. Not more are, however long one waits.
    async fn until_counted(&self, count: u64) -> String {
        let begun = Instant::now();
        while self.health().resets < count {
            let told = self.told();
            assert!(begun.elapsed() < PATIENCE, "{told:?}, and not {count}");
            let _ = self.0.check("someone").await;
            sleep(MOMENT).await;
        }
        let noticed = begun.elapsed();
        self.until_answered().await;
        sleep(LATER).await;
        self.until_answered().await;
        let (counted, text) = self.told();
        let text = text.unwrap();
        assert_eq!(counted, count, "{text}");
        writeln!(stderr().lock(), "resets: noticed after {noticed:?}: {text}").unwrap();
        text
    }
}

#[tokio::test]
async fn a_server_that_comes_back_empty_is_a_reset() {
    let mut server = Server::start();
    let asking = Asking::at(&server.url()).await;
    for count in 1..=2 {
        server.restart();
        let expected = format!(
            "redis at 127.0.0.1:{} was restarted and came back empty; limits begin anew",
            server.port()
        );
        assert_eq!(asking.until_counted(count).await, expected);
    }
}

#[tokio::test]
async fn a_server_that_comes_back_with_what_it_had_saved_may_lack_the_rest() {
    let mut server = Server::start_with(&["--appendonly", "yes"]);
    let asking = Asking::at(&server.url()).await;
    server.restart();
    let text = asking.until_counted(1).await;
    assert!(text.ends_with("was restarted; charges that it had not saved are lost"), "{text}");

    // Where there are replicas, a snapshot says how far it goes.
    let mut server = Server::start();
    let replica = Server::start();
    replica.replica_of(&server);
    let asking = Asking::at(&server.url()).await;
    // What the replica was sent is perhaps being written yet.
    let begun = Instant::now();
    while server.cli(&["SAVE"]) != "OK" {
        assert!(begun.elapsed() < PATIENCE, "it is never saved");
        sleep(Duration::from_millis(10)).await;
    }
    server.restart();
    let text = asking.until_counted(1).await;
    assert!(text.contains("with what it had saved before replication offset"), "{text}");
}

#[tokio::test]
async fn a_living_server_that_was_emptied_is_a_reset() {
    let server = Server::start();
    let asking = Asking::at(&server.url()).await;
    for (count, command) in [(1, "FLUSHALL"), (2, "FLUSHDB")] {
        let flushed = Instant::now();
        assert_eq!(server.cli(&[command]), "OK");
        let text = asking.until_counted(count).await;
        assert!(text.contains("was emptied") && text.contains("\"tg:secret\" is gone"), "{text}");
        assert!(flushed.elapsed() < PATIENCE);
    }
}

#[tokio::test]
async fn a_lost_connection_or_a_frozen_server_is_no_reset() {
    let server = Server::start();
    let asking = Asking::at(&server.url()).await;
    for _ in 0..5 {
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        asking.until_answered().await;
    }
    server.freeze();
    sleep(2 * LATER).await;
    server.thaw();
    asking.until_answered().await;
    server.cli(&["SCRIPT", "FLUSH"]);
    asking.until_answered().await;
    assert_eq!(asking.told(), (0, None));
    let connections = server.cli(&["INFO", "stats"]);
    let connections = connections.lines().find(|line| line.starts_with("total_connections"));
    writeln!(stderr().lock(), "resets: 0 after 5 kills and a freeze; {}", connections.unwrap())
        .unwrap();
}

#[tokio::test]
async fn of_a_server_that_may_not_be_asked_only_the_loss_of_everything_is_known() {
    let user = ["--user", "ann", "on", ">pw", "~*", "+@all", "-info"];
    let mut server = Server::start_with(&[&user[..], &["--appendonly", "yes"]].concat());
    let url = format!("redis://ann:pw@127.0.0.1:{}", server.port());
    let asking = Asking::at(&url).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.restart();
    asking.until_answered().await;
    sleep(LATER).await;
    asking.until_answered().await;
    assert_eq!(asking.told(), (0, None));
    server.cli(&["FLUSHALL"]);
    let text = asking.until_counted(1).await;
    assert!(text.starts_with("redis was emptied"), "{text}");
}

#[tokio::test]
async fn another_primary_behind_sentinels_is_a_reset() {
    let watched = Watched::start();
    let asking = Asking::at(&watched.url()).await;
    let before = watched.primary();
    watched.fail_over();
    let text = asking.until_counted(1).await;
    let now = watched.primary();
    let expected =
        format!("redis at 127.0.0.1:{now} is the primary now instead of 127.0.0.1:{before}");
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.contains("replication offset") || text.contains("whose replica"), "{text}");
}

/// One Cluster for all of it: it takes long to start.
#[tokio::test]
async fn in_a_cluster_only_a_primary_that_is_another_one_is_a_reset() {
    let mut cluster = Cluster::start();
    let asking = Asking::at(&cluster.url()).await;

    let slot = 7;
    let (from, to) = (cluster.primary_of(slot), cluster.primary_of(cluster::SLOTS - 1));
    cluster.migrate(slot, from, to);
    cluster.restart(PRIMARIES + 2);
    cluster.until_settled();
    for node in &cluster.nodes {
        node.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    asking.until_answered().await;
    // All nodes have been looked at again by then.
    sleep(4 * LATER).await;
    asking.until_answered().await;
    assert_eq!(asking.told(), (0, None), "slots moved, a replica restarted, connections killed");

    cluster.until_primary(PRIMARIES);
    let text = asking.until_counted(1).await;
    let port = |nth: usize| cluster.nodes[nth].port();
    let expected =
        format!("127.0.0.1:{} is the primary now instead of 127.0.0.1:{}", port(3), port(0));
    assert!(text.contains(&expected) && text.contains("replica it was"), "{text}");

    cluster.until_settled();
    cluster.kill(1);
    let text = asking.until_counted(2).await;
    let port = |nth: usize| cluster.nodes[nth].port();
    let expected =
        format!("127.0.0.1:{} is the primary now instead of 127.0.0.1:{}", port(4), port(1));
    assert!(text.contains(&expected) && text.contains("replica it was"), "{text}");
    cluster.restart(1);
    cluster.until_settled();

    // Back before the others have noticed that it was gone.
    cluster.restart(2);
    let text = asking.until_counted(3).await;
    let expected = format!("127.0.0.1:{} was restarted", cluster.nodes[2].port());
    assert!(text.contains(&expected), "{text}");
}
