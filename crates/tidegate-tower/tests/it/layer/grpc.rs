//! The layer in front of a tonic server, over a socket.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::policy::OnMissingKey;
use tidegate::{Key, Limiter, ManualClock, Memory, Rule};
use tidegate_tower::{ClientIp, CostMeter, Global, Header, RateLimitLayer, Settlement};
use tokio::net::TcpListener;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use testkit::engines::SwitchableEngine;
use testkit::grpc::{EchoService, echo_call};

/// A client of the service behind the layer.
async fn behind(layer: RateLimitLayer, echo: EchoService) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder().layer(layer).add_service(echo);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    Channel::from_shared(address).unwrap().connect().await.unwrap()
}

async fn call(channel: &Channel) -> Result<tonic::Response<String>, Status> {
    echo_call(channel, Request::new("hello".into())).await
}

async fn denied(channel: &Channel) -> Status {
    call(channel).await.unwrap_err()
}

fn limiter(clock: &ManualClock, limits: &[&str]) -> Limiter {
    let rule = Rule::new("api", limits.iter().map(|limit| limit.parse().unwrap())).unwrap();
    Limiter::with_rules(Memory::builder().clock(clock.clone()).build(), [rule]).unwrap()
}

fn value<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_call_that_passes_has_its_limit_in_its_metadata() {
    let layer = RateLimitLayer::new(limiter(&ManualClock::default(), &["10/s"]), Global);
    let response = call(&behind(layer, EchoService::default()).await).await.unwrap();
    assert_eq!(response.get_ref(), "hello");
    assert_eq!(value(response.metadata(), "ratelimit-policy"), Some("\"api\";q=10;w=1"));
    assert_eq!(value(response.metadata(), "ratelimit"), Some("\"api\";r=9;t=1"));
    assert_eq!(value(response.metadata(), "x-ratelimit-remaining"), Some("9"));
    assert_eq!(value(response.metadata(), "retry-after"), None);
}

#[tokio::test]
async fn a_denied_call_has_its_retry_delay_in_every_form_that_clients_read() {
    for (limit, wait, pushback, seconds) in [
        ("1/1500ms", 1_500_000, "1500", "2"),
        ("3/s burst 1", 333_334, "334", "1"),
        ("fixed-window 1/1d first-hit", 86_400_000_000, "86400000", "86400"),
    ] {
        let clock = ManualClock::default();
        let layer = RateLimitLayer::new(limiter(&clock, &[limit]), Global)
            .render(|_| panic!("gRPC responses are not rendered"));
        let channel = behind(layer, EchoService::default()).await;
        call(&channel).await.unwrap();
        let status = denied(&channel).await;
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "rate limited; retry later");
        let retry_info = status.get_details_retry_info().unwrap();
        let delay = Duration::from_micros(wait);
        assert_eq!(retry_info.retry_delay, Some(delay), "{limit}");
        assert_eq!(value(status.metadata(), "grpc-retry-pushback-ms"), Some(pushback));
        assert_eq!(value(status.metadata(), "retry-after"), Some(seconds));
        assert!(value(status.metadata(), "ratelimit").unwrap().starts_with("\"api\";r=0;t="));
        clock.advance(delay - Duration::from_micros(1));
        assert_eq!(denied(&channel).await.code(), Code::ResourceExhausted);
        clock.advance(Duration::from_micros(1));
        call(&channel).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_that_can_never_pass_gets_a_pushback_of_minus_one() {
    let limiter = limiter(&ManualClock::default(), &["5/s"]);
    let too_much = RateLimitLayer::new(limiter.clone(), Global).cost(|_| 6);
    let no_key = RateLimitLayer::new(limiter, Header::from_static("x-tenant"))
        .on_missing_key(OnMissingKey::Deny);
    for layer in [too_much, no_key] {
        let status = denied(&behind(layer, EchoService::default()).await).await;
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(value(status.metadata(), "grpc-retry-pushback-ms"), Some("-1"));
        assert!(status.get_details_retry_info().is_none());
    }
}

#[tokio::test]
async fn tonic_provides_the_peer_address() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 2/h"]);
    let used = async |key: &str| limiter.inspect(key).await.unwrap()[0].standing.used;
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default());
    let channel = behind(layer, EchoService::default()).await;
    call(&channel).await.unwrap();
    assert_eq!(used("127.0.0.1").await, 1);
    let mut forwarded = Request::new("hello".to_string());
    let client = MetadataValue::from_static("6.6.6.6, 203.0.113.7");
    forwarded.metadata_mut().insert("x-forwarded-for", client);
    echo_call(&channel, forwarded).await.unwrap();
    assert_eq!([used("127.0.0.1").await, used("203.0.113.7").await], [1, 1]);
}

#[tokio::test]
async fn every_other_failure_has_a_distinct_code() {
    let limiter = limiter(&ManualClock::default(), &["5/s"]);
    let (store, off) = SwitchableEngine::new(Memory::default());
    let unavailable = Limiter::new(store, "5/s".parse().unwrap());
    off.store(true, Ordering::SeqCst);
    let long = |_: &http::request::Parts| Some("k".repeat(Key::MAX_LEN + 1));
    for (layer, code) in [
        (RateLimitLayer::new(unavailable, Global), Code::Unavailable),
        (RateLimitLayer::new(limiter.clone(), long), Code::InvalidArgument),
        (RateLimitLayer::new(limiter, Global).cost(|_| u64::MAX), Code::Internal),
    ] {
        let status = denied(&behind(layer, EchoService::default()).await).await;
        assert_eq!(status.code(), code);
        assert!(!status.message().contains("secret"), "{status}");
        assert!(status.get_details_retry_info().is_none());
    }
}

#[tokio::test]
async fn a_call_keeps_its_slot_until_its_trailers_and_is_charged_what_it_reports() {
    let limits = ["fixed-window 100/h", "concurrency 1"];
    let limiter = limiter(&ManualClock::default(), &limits);
    let layer =
        RateLimitLayer::new(limiter.clone(), Global).cost(|_| 3).settle(Settlement::from_meter());
    // Reports the cost if the text is a number.
    let echo = EchoService(|request| {
        Box::pin(async move {
            let meter = request.extensions().get::<CostMeter>().unwrap();
            request.get_ref().parse().into_iter().for_each(|cost| meter.add(cost));
            request.into_inner()
        })
    });
    let channel = behind(layer, echo).await;
    let mut used = 0;
    for (text, cost) in [("7", 7), ("nothing", 3), ("0", 0)] {
        echo_call(&channel, Request::new(text.into())).await.unwrap();
        used += cost;
        let mut found = limiter.inspect(Key::of(&[])).await.unwrap();
        while found[1].standing.held > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            found = limiter.inspect(Key::of(&[])).await.unwrap();
        }
        assert_eq!((found[0].standing.used, found[0].standing.held), (used, 0), "{text}");
    }
}
