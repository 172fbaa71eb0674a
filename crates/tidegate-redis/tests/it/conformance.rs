//! Redis passes the conformance suite of every engine.

use std::time::Duration;

use tidegate_redis::Redis;

#[tokio::test]
async fn redis_passes_the_conformance_suite() {
    let server = testkit::redis::RedisServer::start();
    tidegate::conformance::run(|clock| {
        let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(10));
        builder.test_clock(clock).build().unwrap()
    })
    .await;
}
