//! A Cluster in which some nodes have the module.

use testkit::cluster::{PRIMARIES, RedisCluster};
use tidegate::{Limit, Limiter};

use crate::engine::{PLENTY, build, used};
use crate::fixture::module_path;

/// The primaries of the first two shards have the module, the third and all replicas lack it.
#[tokio::test]
async fn in_a_cluster_each_node_decides_by_what_it_has() {
    const KEYS: usize = 60;
    let cluster = RedisCluster::start_with(&["--enable-module-command", "yes"]);
    let primaries = cluster.primaries();
    for nth in &primaries[..PRIMARIES - 1] {
        cluster.command(*nth, &["MODULE", "LOAD", &module_path()]);
    }
    let limiter = Limiter::new(build(&cluster.url()), PLENTY.parse::<Limit>().unwrap());
    let check_all = async || {
        for key in 0..KEYS {
            assert!(limiter.check(&format!("user-{key}")).await.unwrap().allowed(), "{key}");
        }
    };
    check_all().await;
    let calls = |nth: usize, command: &str| {
        let stats = testkit::cluster::value_text(&cluster.command(nth, &["INFO", "commandstats"]));
        stats.contains(&format!("cmdstat_{command}:calls="))
    };
    for nth in &primaries[..PRIMARIES - 1] {
        assert!(calls(*nth, "TG.DECIDE") && !calls(*nth, "evalsha"), "node {nth}");
    }
    let last = primaries[PRIMARIES - 1];
    assert!(!calls(last, "TG.DECIDE") && calls(last, "evalsha"), "node {last}");
    // A replica without the module takes over.
    let replica = cluster.replicas_of(primaries[0])[0];
    cluster.fail_over_to(replica);
    cluster.until_primary(replica);
    check_all().await;
    for key in 0..KEYS {
        assert_eq!(used(&limiter, &format!("user-{key}")).await, 2, "{key}");
    }
}
