//! The layer in front of a tonic server, over a socket.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/echo.rs"]
mod echo;
#[path = "support/store.rs"]
mod store;

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::policy::OnMissingKey;
use tidegate::{Key, Limiter, ManualClock, Memory, Rule};
use tidegate_tower::{ClientIp, Everyone, Header, RateLimitLayer, Settle, Spent};
use tokio::net::TcpListener;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use crate::echo::{Echo, say};
use crate::store::Store;

/// A client of the service behind the layer.
async fn behind(layer: RateLimitLayer, echo: Echo) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder().layer(layer).add_service(echo);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    Channel::from_shared(address).unwrap().connect().await.unwrap()
}

async fn call(channel: &Channel) -> Result<tonic::Response<String>, Status> {
    say(channel, Request::new("hello".into())).await
}

async fn denied(channel: &Channel) -> Status {
    call(channel).await.unwrap_err()
}

fn limiter(clock: &ManualClock, limits: &[&str]) -> Limiter {
    let rule = Rule::new("api", limits.iter().map(|limit| limit.parse().unwrap())).unwrap();
    Limiter::with_rules(Memory::builder().clock(clock.clone()).build(), [rule]).unwrap()
}

fn told<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_call_that_passes_tells_its_limit_in_its_metadata() {
    let layer = RateLimitLayer::new(limiter(&ManualClock::default(), &["10/s"]), Everyone);
    let response = call(&behind(layer, Echo::default()).await).await.unwrap();
    assert_eq!(response.get_ref(), "hello");
    assert_eq!(told(response.metadata(), "ratelimit-policy"), Some("\"api\";q=10;w=1"));
    assert_eq!(told(response.metadata(), "ratelimit"), Some("\"api\";r=9;t=1"));
    assert_eq!(told(response.metadata(), "x-ratelimit-remaining"), Some("9"));
    assert_eq!(told(response.metadata(), "retry-after"), None);
}

#[tokio::test]
async fn a_call_that_is_denied_is_told_when_to_come_back_in_every_way_that_clients_read() {
    for (limit, wait, pushback, seconds) in [
        ("1/1500ms", 1_500_000, "1500", "2"),
        ("3/s burst 1", 333_334, "334", "1"),
        ("fixed-window 1/1d first-hit", 86_400_000_000, "86400000", "86400"),
    ] {
        let clock = ManualClock::default();
        let layer = RateLimitLayer::new(limiter(&clock, &[limit]), Everyone)
            .render(|_| panic!("gRPC is answered in its own way"));
        let channel = behind(layer, Echo::default()).await;
        call(&channel).await.unwrap();
        let status = denied(&channel).await;
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "rate limited; come back later");
        let retry_info = status.get_details_retry_info().unwrap();
        let delay = Duration::from_micros(wait);
        assert_eq!(retry_info.retry_delay, Some(delay), "{limit}");
        assert_eq!(told(status.metadata(), "grpc-retry-pushback-ms"), Some(pushback));
        assert_eq!(told(status.metadata(), "retry-after"), Some(seconds));
        assert!(told(status.metadata(), "ratelimit").unwrap().starts_with("\"api\";r=0;t="));
        clock.advance(delay - Duration::from_micros(1));
        assert_eq!(denied(&channel).await.code(), Code::ResourceExhausted);
        clock.advance(Duration::from_micros(1));
        call(&channel).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_that_can_never_pass_is_told_not_to_come_back() {
    let limiter = limiter(&ManualClock::default(), &["5/s"]);
    let too_much = RateLimitLayer::new(limiter.clone(), Everyone).cost(|_| 6);
    let no_key = RateLimitLayer::new(limiter, Header::from_static("x-tenant"))
        .on_missing_key(OnMissingKey::Deny);
    for layer in [too_much, no_key] {
        let status = denied(&behind(layer, Echo::default()).await).await;
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(told(status.metadata(), "grpc-retry-pushback-ms"), Some("-1"));
        assert!(status.get_details_retry_info().is_none());
    }
}

#[tokio::test]
async fn tonic_tells_who_a_connection_is_from() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 2/h"]);
    let used = async |key: &str| limiter.inspect(key).await.unwrap()[0].standing.used;
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default());
    let channel = behind(layer, Echo::default()).await;
    call(&channel).await.unwrap();
    assert_eq!(used("127.0.0.1").await, 1);
    let mut forwarded = Request::new("hello".to_string());
    let client = MetadataValue::from_static("6.6.6.6, 203.0.113.7");
    forwarded.metadata_mut().insert("x-forwarded-for", client);
    say(&channel, forwarded).await.unwrap();
    assert_eq!([used("127.0.0.1").await, used("203.0.113.7").await], [1, 1]);
}

#[tokio::test]
async fn what_else_goes_wrong_has_a_code_of_its_own() {
    let limiter = limiter(&ManualClock::default(), &["5/s"]);
    let (store, off) = Store::new(Memory::default());
    let gone = Limiter::new(store, "5/s".parse().unwrap());
    off.store(true, Ordering::SeqCst);
    let long = |_: &http::request::Parts| Some("k".repeat(Key::MAX_LEN + 1));
    for (layer, code) in [
        (RateLimitLayer::new(gone, Everyone), Code::Unavailable),
        (RateLimitLayer::new(limiter.clone(), long), Code::InvalidArgument),
        (RateLimitLayer::new(limiter, Everyone).cost(|_| u64::MAX), Code::Internal),
    ] {
        let status = denied(&behind(layer, Echo::default()).await).await;
        assert_eq!(status.code(), code);
        assert!(!status.message().contains("secret"), "{status}");
        assert!(status.get_details_retry_info().is_none());
    }
}

#[tokio::test]
async fn a_call_keeps_its_place_until_its_trailers_and_is_charged_what_it_says() {
    let limits = ["fixed-window 100/h", "concurrency 1"];
    let limiter = limiter(&ManualClock::default(), &limits);
    let layer = RateLimitLayer::new(limiter.clone(), Everyone).cost(|_| 3).settle(Settle::spent());
    // Says what it has spent if the text is a number.
    let echo = Echo(|request| {
        Box::pin(async move {
            let spent = request.extensions().get::<Spent>().unwrap();
            request.get_ref().parse().into_iter().for_each(|cost| spent.add(cost));
            request.into_inner()
        })
    });
    let channel = behind(layer, echo).await;
    let mut used = 0;
    for (text, cost) in [("7", 7), ("nothing", 3), ("0", 0)] {
        say(&channel, Request::new(text.into())).await.unwrap();
        used += cost;
        let mut found = limiter.inspect(Key::of(&[])).await.unwrap();
        while found[1].standing.held > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            found = limiter.inspect(Key::of(&[])).await.unwrap();
        }
        assert_eq!((found[0].standing.used, found[0].standing.held), (used, 0), "{text}");
    }
}
