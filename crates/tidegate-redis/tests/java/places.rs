//! Wherever Redis is: behind sentinels, in a Cluster, and for a user who may do little.

use std::time::Duration;

use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tidegate_redis::spring::{self, Bucket};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::Cluster;
use crate::lab::{NAME, PATIENCE, client};
use crate::race::race_in_a_cluster;
use crate::sentinel::Watched;
use crate::server::Server;

#[tokio::test]
async fn the_user_of_the_page_may_do_all_that_is_needed() {
    const PAGE: &str = include_str!("../../../../docs/redisson.md");
    let server = Server::start();
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
        // An entry is cut, and another is lost.
        assert_eq!(limiter.release(1).await.unwrap(), 1);
        limiter.update_rate(hourly(1)).await.unwrap();
        server.cli(&["DEL", "{orders}:permits"]);
        assert!(!limiter.try_acquire(1).await.unwrap().allowed());
        assert_eq!(limiter.config().await.unwrap(), Some(hourly(1)));
        assert!(limiter.expire(hour).await.unwrap());
        limiter.available_permits().await.unwrap();
        assert!(limiter.delete().await.unwrap());
    }
    // More than are looked at in one call, some of them lost; and one of which nobody hears.
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
        assert!(begun.elapsed() < PATIENCE, "{}", server.cli(&["GET", "{orders}:value"]));
        sleep(Duration::from_millis(5)).await;
    }
    let bucket = Bucket::new(10, 20).unwrap();
    let spring = spring::RateLimiter::new(&client, bucket);
    assert!(spring.try_acquire("orders.user-42", 1).await.unwrap().allowed());
}

#[tokio::test]
async fn behind_sentinels_it_follows_the_primary() {
    let watched = Watched::start();
    let limiter = RateLimiter::new(&client(&watched.url()), NAME);
    let hour = Duration::from_secs(3_600);
    assert!(limiter.try_set_rate(Rate::new(Mode::Overall, 5, hour).unwrap()).await.unwrap());
    assert!(limiter.try_acquire(3).await.unwrap().allowed());
    watched.settle();
    let before = watched.primary();
    watched.fail_over();
    let begun = Instant::now();
    while watched.primary() == before || !matches!(limiter.available_permits().await, Ok(2)) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", limiter.available_permits().await);
        sleep(Duration::from_millis(20)).await;
    }
    assert!(limiter.try_acquire(2).await.unwrap().allowed());
}

#[tokio::test]
async fn a_cluster_is_no_different() {
    let cluster = Cluster::start();
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
    race_in_a_cluster(&Cluster::start()).await;
}
