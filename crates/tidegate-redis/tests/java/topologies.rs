//! Limiters behind Sentinel, in a Redis Cluster, and for a user with few permissions.

use std::time::Duration;

use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tidegate_redis::spring;
use tidegate_redis::spring::Bucket;
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{NAME, TIMEOUT, client};
use crate::race::race_in_a_cluster;
use testkit::cluster::RedisCluster;
use testkit::redis::RedisServer;
use testkit::sentinel::SentinelSetup;

#[tokio::test]
async fn the_documented_acl_user_may_run_every_command() {
    const PAGE: &str = include_str!("../../../../docs/use/redisson.md");
    let server = RedisServer::start();
    for line in PAGE.lines().filter(|line| line.starts_with("ACL SETUSER ")) {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(server.cli(&words), "OK", "{line}");
    }
    let client = client(&format!("redis://shared:change-me@127.0.0.1:{}", server.port()));
    let limiter = RateLimiter::new(&client, NAME);
    let hour = Duration::from_secs(3_600);
    let hourly = |permits| Rate::new(Mode::Overall, permits, hour).unwrap();
    for rate in [hourly(5).keep_alive(2 * hour).unwrap(), hourly(10), hourly(5)] {
        limiter.try_set_rate(rate).await.unwrap();
        limiter.acquire(2).await.unwrap();
        limiter.update_rate(rate).await.unwrap();
        limiter.release(1).await.unwrap();
        limiter.set_rate(rate).await.unwrap();
        limiter.acquire(3).await.unwrap();
        // A release shortens an entry, and then the set is lost.
        assert_eq!(limiter.release(1).await.unwrap(), 1);
        limiter.update_rate(hourly(1)).await.unwrap();
        server.cli(&["DEL", "{orders}:permits"]);
        assert!(!limiter.try_acquire(1).await.unwrap().allowed());
        assert_eq!(limiter.config().await.unwrap(), Some(hourly(1)));
        assert!(limiter.expire(hour).await.unwrap());
        limiter.available_permits().await.unwrap();
        assert!(limiter.delete().await.unwrap());
    }
    // More entries than one call reads, some of them lost; and one call dropped by its caller.
    limiter.set_rate(hourly(10_000)).await.unwrap();
    let fill = "for i = 1, 3000 do redis.call('ZADD', '{orders}:permits', i, struct.pack('Bc0I', 2, 'id', i)) end \
                return redis.call('SET', '{orders}:value', 0)";
    server.cli(&["EVAL", fill, "0"]);
    limiter.acquire(7_000).await.unwrap();
    server.freeze();
    assert!(timeout(Duration::from_millis(30), limiter.try_acquire(1)).await.is_err());
    server.thaw();
    let begun = Instant::now();
    while server.cli(&["GET", "{orders}:value"]) != "3000" {
        assert!(begun.elapsed() < TIMEOUT, "{}", server.cli(&["GET", "{orders}:value"]));
        sleep(Duration::from_millis(5)).await;
    }
    let bucket = Bucket::new(10, 20).unwrap();
    let spring = spring::RateLimiter::new(&client, bucket);
    assert!(spring.try_acquire("orders.user-42", 1).await.unwrap().allowed());
}

#[tokio::test]
async fn behind_sentinel_a_limiter_follows_the_primary() {
    let setup = SentinelSetup::start();
    let limiter = RateLimiter::new(&client(&setup.url()), NAME);
    let hour = Duration::from_secs(3_600);
    assert!(limiter.try_set_rate(Rate::new(Mode::Overall, 5, hour).unwrap()).await.unwrap());
    assert!(limiter.try_acquire(3).await.unwrap().allowed());
    setup.settle();
    let before = setup.primary();
    setup.fail_over();
    let begun = Instant::now();
    while setup.primary() == before || !matches!(limiter.available_permits().await, Ok(2)) {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", limiter.available_permits().await);
        sleep(Duration::from_millis(20)).await;
    }
    assert!(limiter.try_acquire(2).await.unwrap().allowed());
}

#[tokio::test]
async fn a_cluster_behaves_as_one_server() {
    let cluster = RedisCluster::start();
    let client = client(&cluster.url());
    for name in ["a", "b", "c", "{tag}d", "e{tag}"] {
        let limiter = RateLimiter::new(&client, name);
        let hour = Duration::from_secs(3_600);
        assert!(limiter.try_set_rate(Rate::new(Mode::Overall, 5, hour).unwrap()).await.unwrap());
        assert!(limiter.try_acquire(4).await.unwrap().allowed());
        assert!(!limiter.try_acquire(2).await.unwrap().allowed());
        assert_eq!(limiter.release(3).await.unwrap(), 3);
        assert_eq!(limiter.available_permits().await.unwrap(), 4);
        assert!(limiter.expire(hour).await.unwrap() && limiter.delete().await.unwrap(), "{name}");
    }
    crate::interop::in_a_cluster(&cluster, &client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_on_one_limiter_of_a_cluster_stay_within_its_rate() {
    race_in_a_cluster(&RedisCluster::start()).await;
}
