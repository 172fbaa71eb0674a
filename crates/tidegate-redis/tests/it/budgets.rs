//! Budgets of tokens on Redis: what is really consumed stays within the bound of each algorithm.

use std::time::Duration;

use testkit::bounds::families::LIMIT_FAMILIES;
use testkit::budget_traffic::{
    BUDGET, Estimates, GatewayKind, Overshoot, WINDOW, consumption, tokens,
};
use tidegate::{Limiter, ManualClock};
use tidegate_redis::Redis;

#[tokio::test]
async fn holds_keep_the_bounds_of_every_algorithm() {
    let server = testkit::redis::RedisServer::start();
    for (seed, (name, make)) in LIMIT_FAMILIES.into_iter().enumerate() {
        let (limit, bound) = make(BUDGET, WINDOW);
        let clock = ManualClock::default();
        let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(10));
        let engine = builder.namespace(&format!("n{seed}")).test_clock(clock.clone());
        let limiter = Limiter::with_rules(engine.build().unwrap(), [tokens(&limit)]).unwrap();
        let way = (GatewayKind::Hold, Estimates::Mixed);
        let log = consumption(&limiter, &clock, way, 3, seed as u64).await;
        let found = Overshoot::of(&log, bound, Estimates::Mixed);
        assert_eq!(found.violations, 0, "{name}, seed {seed}: {found:?}");
        assert!(found.worst >= 50, "{name}: the traffic uses the budget");
    }
}
