//! Java and Rust on one limiter, with the real Redisson in its own process.

use std::time::Duration;

use tidegate_redis::RedisClient;
use tidegate_redis::redisson::{Error, Mode, Rate, RateLimiter};
use tokio::time::{Instant, sleep};

use crate::fixture::{SECOND, TIMEOUT, client, print_line};
use crate::jvm::{Java, JvmTopology, Version};
use crate::race::race;
use testkit::cluster::RedisCluster;
use testkit::redis::RedisServer;

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alongside_redisson_3() {
    run_alongside("3.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alongside_redisson_4() {
    run_alongside("4.").await;
}

async fn run_alongside(major: &str) {
    let Some(version) = Version::all().into_iter().find(|v| v.name.starts_with(major)) else {
        return;
    };
    let server = RedisServer::start();
    let client = client(&server.url());
    let java = Java::start(&version, JvmTopology::Single, server.port());
    let pair = JavaAndRust { java: &java, client: &client };
    pair.take_turns("turns", Mode::Overall).await;
    pair.set_rates().await;
    pair.count_per_client().await;
    pair.agree_on_errors().await;
    pair.expire_together(&server).await;
    pair.wait_for_each_other().await;
    race(&version, &java, &client, &server).await;
    print_line(&format!("alongside Redisson {}: all steps agree", version.name));
}

/// Some of the same steps in a Redis Cluster, if Java is installed.
pub(crate) async fn in_a_cluster(cluster: &RedisCluster, client: &RedisClient) {
    let Some(version) = Version::all().pop() else { return };
    let seed = cluster.url();
    let port = seed.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap();
    let java = Java::start(&version, JvmTopology::Cluster, port);
    let pair = JavaAndRust { java: &java, client };
    for name in ["turns", "{other}turns", "x{y}z"] {
        pair.take_turns(name, Mode::Overall).await;
    }
    print_line(&format!("alongside Redisson {} in a Redis Cluster: all steps agree", version.name));
}

struct JavaAndRust<'a> {
    java: &'a Java,
    client: &'a RedisClient,
}

impl JavaAndRust<'_> {
    fn limiter(&self, name: &str) -> RateLimiter {
        RateLimiter::new(self.client, name)
    }

    /// Permits that one side takes are missing for the other, and released ones are available.
    async fn take_turns(&self, name: &str, mode: Mode) {
        let (java, rust) = (self.java, self.limiter(name));
        assert!(rust.try_set_rate(Rate::new(mode, 10, HOUR).unwrap()).await.unwrap());
        assert_eq!(java.command(&["config", name]), "OVERALL 10 3600000");
        for turn in 0_u64..3 {
            assert_eq!(java.command(&["tryAcquire", name, "2"]), "true");
            assert_eq!(rust.available_permits().await.unwrap(), 8 - 3 * turn);
            let taken = rust.try_acquire(1).await.unwrap();
            assert!(taken.allowed() && taken.remaining() == 7 - 3 * turn, "{taken:?}");
            assert_eq!(java.command(&["available", name]), (7 - 3 * turn).to_string());
        }
        assert_eq!(java.command(&["tryAcquire", name, "2"]), "false");
        assert!(!rust.try_acquire(2).await.unwrap().allowed());
        assert_eq!(rust.release(3).await.unwrap(), 3);
        assert_eq!(java.command(&["available", name]), "4");
        assert_eq!(java.command(&["tryAcquire", name, "4"]), "true");
        java.command(&["release", name, "5"]);
        assert_eq!(rust.available_permits().await.unwrap(), 5);
        assert!(rust.try_acquire(5).await.unwrap().allowed());
        assert_eq!(java.command(&["tryAcquire", name, "1"]), "false");
        assert_eq!(java.command(&["delete", name]), "true");
        assert!(matches!(rust.try_acquire(1).await, Err(Error::NotInitialized)));
    }

    async fn set_rates(&self) {
        let (java, rust) = (self.java, self.limiter("rates"));
        assert_eq!(
            java.command(&["trySetRate", "rates", "OVERALL", "7", "60000", "90000"]),
            "true"
        );
        let minute = Duration::from_secs(60);
        let rate = Rate::new(Mode::Overall, 7, minute).unwrap().keep_alive(minute * 3 / 2).unwrap();
        assert_eq!(rust.config().await.unwrap(), Some(rate));
        assert!(!rust.try_set_rate(Rate::new(Mode::Overall, 9, HOUR).unwrap()).await.unwrap());
        assert!(rust.try_acquire(3).await.unwrap().allowed());
        assert!(rust.update_rate(Rate::new(Mode::Overall, 9, HOUR).unwrap()).await.unwrap());
        assert_eq!(java.command(&["config", "rates"]), "OVERALL 9 3600000");
        assert_eq!(java.command(&["available", "rates"]), "6");
        java.command(&["setRate", "rates", "OVERALL", "5", "60000", "0"]);
        assert_eq!(rust.available_permits().await.unwrap(), 5);
        match java.try_command(&["updateRate", "rates", "OVERALL", "8", "60000"]) {
            Ok(done) => {
                assert_eq!(done, "true");
                assert_eq!(rust.available_permits().await.unwrap(), 8);
            }
            Err(error) => assert!(error.contains("RateLimiterArgs"), "absent only in 3.x: {error}"),
        }
        rust.set_rate(Rate::new(Mode::PerClient, 4, SECOND).unwrap()).await.unwrap();
        assert_eq!(java.command(&["config", "rates"]), "PER_CLIENT 4 1000");
    }

    async fn count_per_client(&self) {
        let (java, rust) = (self.java, self.limiter("apart"));
        assert_eq!(
            java.command(&["trySetRate", "apart", "PER_CLIENT", "5", "3600000", "0"]),
            "true"
        );
        assert_eq!(java.command(&["tryAcquire", "apart", "5"]), "true");
        assert!(rust.try_acquire(4).await.unwrap().allowed());
        assert_eq!(java.command(&["available", "apart"]), "0");
        assert_eq!(rust.available_permits().await.unwrap(), 1);
        assert_ne!(java.id, self.client.id());
        assert_eq!(java.id.len(), self.client.id().len());
    }

    async fn agree_on_errors(&self) {
        let (java, rust) = (self.java, self.limiter("nothing"));
        let (redisson, tidegate) = (
            java.try_command(&["tryAcquire", "nothing", "1"]).unwrap_err(),
            rust.try_acquire(1).await.unwrap_err().to_string(),
        );
        assert!(
            redisson.contains(Error::NOT_INITIALIZED) && tidegate.contains(Error::NOT_INITIALIZED)
        );
        java.command(&["trySetRate", "nothing", "OVERALL", "5", "1000", "0"]);
        let (redisson, tidegate) = (
            java.try_command(&["tryAcquire", "nothing", "6"]).unwrap_err(),
            rust.try_acquire(6).await.unwrap_err().to_string(),
        );
        assert!(redisson.contains(Error::ABOVE_RATE) && tidegate.contains(Error::ABOVE_RATE));
        let redisson =
            java.try_command(&["trySetRate", "short", "OVERALL", "5", "1000", "999"]).unwrap_err();
        let rate = Rate::new(Mode::Overall, 5, SECOND).unwrap();
        let tidegate = rate.keep_alive(Duration::from_millis(999)).unwrap_err().to_string();
        let text = "parameter keepAliveTime should be greater than or equal to rateInterval";
        assert!(redisson.contains(text) && tidegate.contains(text), "{redisson} {tidegate}");
    }

    async fn expire_together(&self, server: &RedisServer) {
        let (java, rust) = (self.java, self.limiter("end"));
        let ttl = |key: &str| server.cli(&["PTTL", key]).parse::<i64>().unwrap();
        let all = || ["end", "{end}:value", "{end}:permits"].map(ttl);
        for by_java in [true, false] {
            rust.try_set_rate(Rate::new(Mode::Overall, 5, HOUR).unwrap()).await.unwrap();
            rust.try_acquire(1).await.unwrap();
            java.command(&["tryAcquire", "end", "1"]);
            assert_eq!(all(), [-1, -1, -1]);
            match by_java {
                true => assert_eq!(java.command(&["expire", "end", "60000"]), "true"),
                false => assert!(rust.expire(Duration::from_secs(60)).await.unwrap()),
            }
            assert!(all().iter().all(|ttl| (50_000..=60_000).contains(ttl)), "{:?}", all());
            java.command(&["tryAcquire", "end", "1"]);
            rust.try_acquire(1).await.unwrap();
            assert!(all().iter().all(|ttl| (50_000..=60_000).contains(ttl)), "{:?}", all());
            match by_java {
                true => assert_eq!(java.command(&["delete", "end"]), "true"),
                false => assert!(rust.delete().await.unwrap()),
            }
            assert_eq!(all(), [-2, -2, -2]);
        }
    }

    /// Each side waits for permits of the other, and gets them when they expire.
    async fn wait_for_each_other(&self) {
        let (java, rust) = (self.java, self.limiter("wait"));
        let span = Duration::from_millis(400);
        rust.try_set_rate(Rate::new(Mode::Overall, 2, span).unwrap()).await.unwrap();
        for _ in 0..3 {
            let begun = Instant::now();
            java.command(&["acquire", "wait", "2"]);
            rust.acquire(2).await.unwrap();
            let waiter = java.begin(&["acquire", "wait", "1"]);
            let (_, reply) = tokio::task::block_in_place(|| crate::jvm::receive_reply(&waiter));
            reply.unwrap();
            assert!(begun.elapsed() >= span, "{:?}", begun.elapsed());
            assert!(begun.elapsed() < TIMEOUT);
            sleep(span).await;
        }
    }
}
