//! Concurrency limits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::policy::KeyPart;
use tidegate::{Limiter, ManualClock, Memory, Policy, PolicyRule, Rule, RuleDraft};
use tidegate_tower::extract::TrustedProxies;
use tidegate_tower::{ClientIp, RateLimitLayer};

use testkit::http::{BlockingHandler, BodySender, ChannelBody, send_text};
use testkit::http::{TestServer, limiter, read_until, rule, used_and_held, wait_until};

/// The key of the tests' own connections.
const CLIENT: &str = "127.0.0.1";

/// A limiter on the system clock.
fn real_limiter(limits: &[&str]) -> Limiter {
    Limiter::with_rules(Memory::default(), [rule("api", limits)]).unwrap()
}

fn by_address(limiter: &Limiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone(), ClientIp::default())
}

async fn wait_for_no_holds(limiter: &Limiter, nth: usize) {
    wait_until(|| async { used_and_held(limiter, CLIENT, nth).await.1 == 0 }).await;
}

fn blocking_app(handler: &BlockingHandler) -> Router {
    let handler = handler.clone();
    Router::new().route("/", get(move || handler.handle()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_200_concurrent_requests_exactly_64_are_admitted() {
    for _ in 0..3 {
        let (limiter, handler) = (real_limiter(&["concurrency 64"]), BlockingHandler::closed());
        let server = TestServer::start(blocking_app(&handler).layer(by_address(&limiter))).await;
        let (replies, mut received) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..200 {
            let (server, replies) = (server.clone(), replies.clone());
            tokio::spawn(async move { replies.send(server.get("/").await).unwrap() });
        }
        for _ in 0..136 {
            let denied = received.recv().await.unwrap();
            assert_eq!(denied.status, 429);
            assert_eq!(
                denied.header("ratelimit-policy").unwrap(),
                "\"api\";q=64;qu=\"concurrent-requests\""
            );
        }
        wait_until(|| async { handler.in_flight() == 64 }).await;
        assert_eq!(used_and_held(&limiter, CLIENT, 0).await.1, 64);
        handler.open();
        for _ in 0..64 {
            assert_eq!(received.recv().await.unwrap().status, 200);
        }
        assert_eq!(handler.max_in_flight(), 64);
        wait_for_no_holds(&limiter, 0).await;
    }
}

/// A handler with a body sent by the test.
fn streaming_app() -> (Router, Arc<Mutex<Vec<BodySender>>>) {
    let senders: Arc<Mutex<Vec<BodySender>>> = Arc::default();
    let stored = senders.clone();
    let handler = move || async move {
        let (sender, body) = ChannelBody::new();
        stored.lock().unwrap().push(sender);
        body
    };
    (Router::new().route("/", get(handler)), senders)
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_has_ended() {
    let limiter = real_limiter(&["concurrency 1"]);
    let (app, senders) = streaming_app();
    let server = TestServer::start(app.layer(by_address(&limiter))).await;
    for _ in 0..3 {
        let mut stream = server.connect("/").await;
        read_until(&mut stream, "200 OK").await;
        let sender = senders.lock().unwrap().pop().unwrap();
        send_text(&sender, "the first half");
        read_until(&mut stream, "the first half").await;
        assert_eq!(used_and_held(&limiter, CLIENT, 0).await.1, 1);
        assert_eq!(server.get("/").await.status, 429);
        drop(sender);
        // The end of a chunked body. The connection stays open.
        read_until(&mut stream, "0\r\n\r\n").await;
        wait_for_no_holds(&limiter, 0).await;
    }
}

#[tokio::test]
async fn a_client_that_disconnects_releases_its_slot() {
    // In the middle of the handler.
    let (limiter, handler) = (real_limiter(&["concurrency 2"]), BlockingHandler::closed());
    let server = TestServer::start(blocking_app(&handler).layer(by_address(&limiter))).await;
    for _ in 0..10 {
        let streams = [server.connect("/").await, server.connect("/").await];
        wait_until(|| async { handler.in_flight() == 2 }).await;
        assert_eq!(server.get("/").await.status, 429);
        drop(streams);
        wait_for_no_holds(&limiter, 0).await;
    }
    assert_eq!(handler.in_flight(), 0);

    // In the middle of the body.
    let limiter = real_limiter(&["concurrency 2"]);
    let (app, senders) = streaming_app();
    let server = TestServer::start(app.layer(by_address(&limiter))).await;
    for _ in 0..10 {
        let mut stream = server.connect("/").await;
        read_until(&mut stream, "200 OK").await;
        let sender = senders.lock().unwrap().pop().unwrap();
        send_text(&sender, "a half");
        read_until(&mut stream, "a half").await;
        assert_eq!(used_and_held(&limiter, CLIENT, 0).await.1, 1);
        drop(stream);
        wait_for_no_holds(&limiter, 0).await;
        drop(sender);
    }
}

#[tokio::test]
async fn a_handler_that_panics_releases_its_slot() {
    let limiter = real_limiter(&["concurrency 1"]);
    let app = Router::new()
        .route(
            "/panic",
            get(|| async {
                if true {
                    panic!("as it should")
                }
            }),
        )
        .route("/", get(|| async { "served" }))
        .layer(by_address(&limiter));
    let server = TestServer::start(app).await;
    for _ in 0..5 {
        let mut stream = server.connect("/panic").await;
        let mut read = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut read).await.unwrap();
        assert!(read.is_empty(), "the connection ends without a response");
        assert_eq!(server.get("/").await.status, 200);
    }
    wait_for_no_holds(&limiter, 0).await;
}

#[tokio::test]
async fn a_callback_that_panics_releases_the_slot() {
    let limiter = real_limiter(&["concurrency 1"]);
    let layer = by_address(&limiter).on_decision(|_| panic!("as it should"));
    let server = TestServer::behind(layer).await;
    for _ in 0..3 {
        let mut read = Vec::new();
        let mut stream = server.connect("/").await;
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut read).await.unwrap();
        assert_eq!(used_and_held(&limiter, CLIENT, 0).await.1, 0);
    }
}

#[tokio::test]
async fn a_request_that_takes_longer_than_its_lease_keeps_its_slot() {
    let clock = ManualClock::default();
    let (limiter, handler) =
        (limiter(&clock, &["concurrency 1 lease 300ms"]), BlockingHandler::closed());
    let server = TestServer::start(blocking_app(&handler).layer(by_address(&limiter))).await;
    let slow = tokio::spawn({
        let server = server.clone();
        async move { server.get("/").await }
    });
    wait_until(|| async { handler.in_flight() == 1 }).await;
    for _ in 0..11 {
        // Wakes the renewal, which runs before the response to the next request.
        clock.advance(Duration::from_millis(100));
        assert_eq!(server.get("/").await.status, 429);
    }
    handler.open();
    assert_eq!(slow.await.unwrap().status, 200);
    wait_for_no_holds(&limiter, 0).await;
}

#[tokio::test]
async fn slots_are_counted_by_policies_and_plans_too() {
    let handler = BlockingHandler::closed();
    let one = RuleDraft {
        name: "api".into(),
        key: vec![KeyPart::ClientIp],
        limits: vec!["concurrency 1".parse().unwrap()],
        ..RuleDraft::default()
    };
    let policy = Policy::new([PolicyRule::new(one).unwrap()]).unwrap();
    let limiter = Limiter::with_policy(Memory::default(), policy);
    let by_policy = RateLimitLayer::policy(limiter.clone(), TrustedProxies::default());
    let plan = Rule::per_call("plan", ["concurrency 1".parse().unwrap()]).unwrap();
    let plan = Arc::new(plan);
    let by_plan =
        RateLimitLayer::per_request_rule(limiter, ClientIp::default(), move |_| Some(plan.clone()));
    for layer in [by_policy, by_plan] {
        let server = TestServer::start(blocking_app(&handler).layer(layer)).await;
        let stream = server.connect("/").await;
        wait_until(|| async { handler.in_flight() == 1 }).await;
        assert_eq!(server.get("/").await.status, 429);
        drop(stream);
        wait_until(|| async { handler.in_flight() == 0 }).await;
        let mut next = server.connect("/").await;
        wait_until(|| async { handler.in_flight() == 1 }).await;
        handler.open();
        read_until(&mut next, "served").await;
        handler.close();
    }
}

#[tokio::test]
async fn a_rate_and_slots_are_decided_in_one_step() {
    let clock = ManualClock::default();
    let (limiter, handler) =
        (limiter(&clock, &["fixed-window 5/h", "concurrency 2"]), BlockingHandler::closed());
    let server = TestServer::start(blocking_app(&handler).layer(by_address(&limiter))).await;
    let send = || {
        let server = server.clone();
        tokio::spawn(async move { server.get("/").await })
    };
    let inside = [send(), send()];
    wait_until(|| async { handler.in_flight() == 2 }).await;
    for _ in 0..3 {
        let denied = server.get("/").await;
        assert_eq!(denied.status, 429);
        assert!(denied.body.contains("[\"api.2\"]"), "{}", denied.body);
    }
    assert_eq!(
        used_and_held(&limiter, CLIENT, 0).await.0,
        2,
        "a request without a slot is not charged"
    );
    handler.open();
    for one in inside {
        assert_eq!(one.await.unwrap().status, 200);
    }
    assert_eq!(server.count_admitted(6, &[]).await, 3);
    let denied = server.get("/").await;
    assert!(denied.body.contains("[\"api.1\"]"), "{}", denied.body);
    wait_for_no_holds(&limiter, 1).await;
    assert_eq!(handler.max_in_flight(), 2);
}
