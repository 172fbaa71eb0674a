//! Redis is held to the same claims as every other engine.

use std::time::Duration;

use crate::server;
use tidegate_redis::Redis;

#[tokio::test]
async fn redis_keeps_every_claim() {
    let server = server::Server::start();
    tidegate::conformance::run(|clock| {
        let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(10));
        builder.test_clock(clock).build().unwrap()
    })
    .await;
}
