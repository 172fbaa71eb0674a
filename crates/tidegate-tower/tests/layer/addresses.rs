//! Who a request is from.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use axum::extract::connect_info::MockConnectInfo;
use axum::{Extension, Router};
use tidegate::ManualClock;
use tidegate_tower::{ClientIp, Peer, RateLimitLayer};
use tokio::net::TcpListener;

use crate::site::{Site, limiter, standing};

const FORWARDED: &str = "x-forwarded-for";

/// A service that lets everybody pass twice, and says nothing about whose word counts.
async fn site(clock: &ManualClock, key: ClientIp) -> Site {
    Site::behind(RateLimitLayer::new(limiter(clock, &["fixed-window 2/h"]), key)).await
}

#[tokio::test]
async fn a_hundred_addresses_that_a_client_makes_up_count_as_one() {
    let clock = ManualClock::default();
    for key in [ClientIp::behind([]), ClientIp::behind(["10.0.0.0/8".parse().unwrap()])] {
        let site = site(&clock, key).await;
        let mut passed = 0;
        for nth in 0..100 {
            let spoofed = format!("203.0.113.{nth}");
            passed += site.passes(1, &[(FORWARDED, &spoofed)]).await;
        }
        assert_eq!(passed, 2);
    }
}

#[tokio::test]
async fn behind_a_proxy_the_rightmost_address_that_is_no_proxy_counts() {
    let clock = ManualClock::default();
    // The test's own connection comes from this machine, which is trusted.
    let site = site(&clock, ClientIp::default()).await;
    let mut passed = 0;
    for nth in 0..100 {
        let list = format!("6.6.6.{nth}, 203.0.113.7");
        passed += site.passes(1, &[(FORWARDED, &list)]).await;
    }
    assert_eq!(passed, 2, "what is left of it the client has made up");
    assert_eq!(site.passes(3, &[(FORWARDED, "203.0.113.8, 127.0.0.1")]).await, 2);
    let lines = [(FORWARDED, "203.0.113.7"), (FORWARDED, "203.0.113.9")];
    assert_eq!(site.passes(3, &lines).await, 2, "the lines are one list");
    assert_eq!(site.passes(3, &[]).await, 2, "the proxy itself");
    assert_eq!(site.passes(3, &[(FORWARDED, "garbage")]).await, 0, "counts as the proxy");
}

#[tokio::test]
async fn addresses_of_one_customer_count_as_one() {
    let clock = ManualClock::default();
    let site = site(&clock, ClientIp::default()).await;
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
        assert_eq!(site.passes(1, &[(FORWARDED, address)]).await, passes, "{nth} {address}");
    }
}

#[tokio::test]
async fn without_a_word_about_the_connection_everybody_is_refused_and_nobody_counted() {
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["fixed-window 2/h"]);
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default());
    let app = Router::new().fallback(|| async { "served" }).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let site = Site::at(listener.local_addr().unwrap());
    // Forgets into_make_service_with_connect_info.
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut bodies = HashSet::new();
    for _ in 0..10 {
        let reply = site.ask("GET", "/", &[(FORWARDED, "203.0.113.7")]).await;
        assert_eq!(reply.status, 500);
        assert!(!reply.has_limits());
        bodies.insert(reply.body);
    }
    assert_eq!(
        Vec::from_iter(bodies),
        ["{\"type\":\"about:blank\",\"title\":\"Internal Server Error\",\"status\":500,\
          \"detail\":\"the service cannot tell whom to count the request for\"}"]
    );
    assert_eq!(limiter.engine().health().tracked_keys, Some(0));
}

#[tokio::test]
async fn a_service_may_say_itself_who_a_connection_is_from() {
    let peer = |text: &str| Peer(text.parse::<IpAddr>().unwrap());
    let socket = |text: &str| MockConnectInfo(text.parse::<SocketAddr>().unwrap());
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["fixed-window 9/h"]);
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default());
    let app = || Router::new().fallback(|| async { "served" }).layer(layer.clone());
    // On plain hyper there is nothing else; in axum it wins over what the server says.
    let sites = [
        Site::start(app().layer(Extension(peer("::ffff:203.0.113.1")))).await,
        Site::start(app().layer(Extension(peer("2001:db8::5")))).await,
    ];
    for site in &sites {
        assert_eq!(site.passes(1, &[(FORWARDED, "203.0.113.9")]).await, 1);
    }
    let mocked = app().layer(socket("203.0.113.1:80"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let site = Site::at(listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, mocked).await });
    assert_eq!(site.passes(1, &[]).await, 1);
    assert_eq!(standing(&limiter, "203.0.113.1", 0).await.0, 2);
    assert_eq!(standing(&limiter, "2001:db8::/64", 0).await.0, 1);
    assert_eq!(standing(&limiter, "203.0.113.9", 0).await.0, 0);
}
