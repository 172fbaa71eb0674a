//! Calls a third party below its limit: `outgoing-calls URL CALLS`. All processes that use the same
//! Redis share one limit.

use std::time::Duration;

use reqwest::{Client, Method, Request, StatusCode};
use tidegate::{Limit, Limiter};
use tidegate_redis::Redis;
use tidegate_tower::client::{NotSent, OutgoingLayer};
use tower::{Service, ServiceBuilder, ServiceExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(calls)) = (arguments.next(), arguments.next()) else {
        return Err("usage: outgoing-calls URL CALLS".into());
    };
    let redis = std::env::var("TIDEGATE_REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let engine = Redis::builder(&redis).deadline(Duration::from_secs(5)).build()?;

    // Below what the third party allows, and spread evenly.
    let limiter = Limiter::new(engine, "10/s burst 1".parse::<Limit>()?);
    let layer = OutgoingLayer::new(limiter)
        // A call waits for its turn, and fails at once if that would take longer.
        .wait(Duration::from_secs(30))
        // All calls of this account count together, whatever their host.
        .key(|_| "third-party".into());
    let mut client = ServiceBuilder::new().layer(layer).service(Client::new());

    let (mut served, mut rejected, mut not_sent) = (0, 0, 0);
    for _ in 0..calls.parse::<u32>()? {
        let request = Request::new(Method::GET, url.parse()?);
        match client.ready().await?.call(request).await {
            // The layer has read Retry-After: the next call waits for it.
            Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => rejected += 1,
            Ok(_) => served += 1,
            Err(error) if error.is::<NotSent>() => not_sent += 1,
            Err(error) => return Err(error),
        }
    }
    println!("{served} served, {rejected} rejected, {not_sent} not sent");
    Ok(())
}
