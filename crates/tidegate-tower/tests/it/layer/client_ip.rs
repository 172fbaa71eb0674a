//! Client addresses as keys.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use axum::extract::connect_info::MockConnectInfo;
use axum::{Extension, Router};
use tidegate::ManualClock;
use tidegate_tower::{ClientIp, Peer, RateLimitLayer};
use tokio::net::TcpListener;

use testkit::http::{TestServer, limiter, used_and_held};

const FORWARDED: &str = "x-forwarded-for";

/// A service that admits two requests per address.
async fn serve(clock: &ManualClock, key: ClientIp) -> TestServer {
    TestServer::behind(RateLimitLayer::new(limiter(clock, &["fixed-window 2/h"]), key)).await
}

#[tokio::test]
async fn a_hundred_addresses_that_a_client_makes_up_count_as_one() {
    let clock = ManualClock::default();
    for key in [ClientIp::behind([]), ClientIp::behind(["10.0.0.0/8".parse().unwrap()])] {
        let server = serve(&clock, key).await;
        let mut passed = 0;
        for nth in 0..100 {
            let spoofed = format!("203.0.113.{nth}");
            passed += server.count_admitted(1, &[(FORWARDED, &spoofed)]).await;
        }
        assert_eq!(passed, 2);
    }
}

#[tokio::test]
async fn behind_a_proxy_the_rightmost_address_that_is_no_proxy_counts() {
    let clock = ManualClock::default();
    // The test connects from loopback, which is trusted.
    let server = serve(&clock, ClientIp::default()).await;
    let mut passed = 0;
    for nth in 0..100 {
        let list = format!("6.6.6.{nth}, 203.0.113.7");
        passed += server.count_admitted(1, &[(FORWARDED, &list)]).await;
    }
    assert_eq!(passed, 2, "the addresses before it may be forged");
    assert_eq!(server.count_admitted(3, &[(FORWARDED, "203.0.113.8, 127.0.0.1")]).await, 2);
    let lines = [(FORWARDED, "203.0.113.7"), (FORWARDED, "203.0.113.9")];
    assert_eq!(server.count_admitted(3, &lines).await, 2, "the lines are one list");
    assert_eq!(server.count_admitted(3, &[]).await, 2, "the proxy itself");
    assert_eq!(server.count_admitted(3, &[(FORWARDED, "garbage")]).await, 0, "counts as the proxy");
}

#[tokio::test]
async fn addresses_of_one_customer_count_as_one() {
    let clock = ManualClock::default();
    let server = serve(&clock, ClientIp::default()).await;
    for (nth, (address, passes)) in [
        ("2001:db8:0:1::1", 1),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", 1),
        ("[2001:db8:0:1::2]:443", 0),
        // Another /64.
        ("2001:db8:0:2::1", 1),
        ("198.51.100.1", 1),
        ("::ffff:198.51.100.1", 1),
        ("198.51.100.1:443", 0),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(
            server.count_admitted(1, &[(FORWARDED, address)]).await,
            passes,
            "{nth} {address}"
        );
    }
}

#[tokio::test]
async fn without_a_peer_address_every_request_is_refused_and_none_is_counted() {
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["fixed-window 2/h"]);
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default());
    let app = Router::new().fallback(|| async { "served" }).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = TestServer::at(listener.local_addr().unwrap());
    // Without `into_make_service_with_connect_info`.
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut bodies = HashSet::new();
    for _ in 0..10 {
        let reply = server.request("GET", "/", &[(FORWARDED, "203.0.113.7")]).await;
        assert_eq!(reply.status, 500);
        assert!(!reply.has_limit_headers());
        bodies.insert(reply.body);
    }
    assert_eq!(
        Vec::from_iter(bodies),
        ["{\"type\":\"about:blank\",\"title\":\"Internal Server Error\",\"status\":500,\
          \"detail\":\"rate limiter misconfigured\"}"]
    );
    assert_eq!(limiter.engine().health().tracked_keys, Some(0));
}

#[tokio::test]
async fn a_service_may_set_the_peer_address_itself() {
    let peer = |text: &str| Peer(text.parse::<IpAddr>().unwrap());
    let socket = |text: &str| MockConnectInfo(text.parse::<SocketAddr>().unwrap());
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["fixed-window 9/h"]);
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default());
    let app = || Router::new().fallback(|| async { "served" }).layer(layer.clone());
    // Plain hyper has no other source; in axum it takes precedence over the connection's address.
    let servers = [
        TestServer::start(app().layer(Extension(peer("::ffff:203.0.113.1")))).await,
        TestServer::start(app().layer(Extension(peer("2001:db8::5")))).await,
    ];
    for server in &servers {
        assert_eq!(server.count_admitted(1, &[(FORWARDED, "203.0.113.9")]).await, 1);
    }
    let mocked = app().layer(socket("203.0.113.1:80"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = TestServer::at(listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, mocked).await });
    assert_eq!(server.count_admitted(1, &[]).await, 1);
    assert_eq!(used_and_held(&limiter, "203.0.113.1", 0).await.0, 2);
    assert_eq!(used_and_held(&limiter, "2001:db8::/64", 0).await.0, 1);
    assert_eq!(used_and_held(&limiter, "203.0.113.9", 0).await.0, 0);
}
