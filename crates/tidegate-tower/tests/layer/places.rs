//! Limits that count who is inside.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::policy::KeyPart;
use tidegate::{Limiter, ManualClock, Memory, Policy, PolicyRule, Rule, RuleDraft};
use tidegate_tower::extract::TrustedProxies;
use tidegate_tower::{ClientIp, RateLimitLayer};

use crate::hall::{Fed, Feed, Hall, say};
use crate::site::{Site, limiter, read_until, rule, standing, until};

/// Whom the tests connect as.
const US: &str = "127.0.0.1";

/// A limiter on the system's clock.
fn real(limits: &[&str]) -> Limiter {
    Limiter::with_rules(Memory::default(), [rule("api", limits)]).unwrap()
}

fn by_address(limiter: &Limiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone(), ClientIp::default())
}

async fn nobody_is_left(limiter: &Limiter, nth: usize) {
    until(|| async { standing(limiter, US, nth).await.1 == 0 }).await;
}

fn in_hall(hall: &Hall) -> Router {
    let hall = hall.clone();
    Router::new().route("/", get(move || hall.stay()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_200_who_come_at_once_just_64_are_let_in() {
    for _ in 0..3 {
        let (limiter, hall) = (real(&["concurrency 64"]), Hall::closed());
        let site = Site::start(in_hall(&hall).layer(by_address(&limiter))).await;
        let (answers, mut answered) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..200 {
            let (site, answers) = (site.clone(), answers.clone());
            tokio::spawn(async move { answers.send(site.get("/").await).unwrap() });
        }
        for _ in 0..136 {
            let denied = answered.recv().await.unwrap();
            assert_eq!(denied.status, 429);
            assert_eq!(denied.header("ratelimit-policy").unwrap(), "\"api\";q=64");
        }
        until(|| async { hall.inside() == 64 }).await;
        assert_eq!(standing(&limiter, US, 0).await.1, 64);
        hall.open();
        for _ in 0..64 {
            assert_eq!(answered.recv().await.unwrap().status, 200);
        }
        assert_eq!(hall.most(), 64);
        nobody_is_left(&limiter, 0).await;
    }
}

/// A handler whose body is fed from outside.
fn fed() -> (Router, Arc<Mutex<Vec<Feed>>>) {
    let feeds: Arc<Mutex<Vec<Feed>>> = Arc::default();
    let kept = feeds.clone();
    let handler = move || async move {
        let (feed, body) = Fed::new();
        kept.lock().unwrap().push(feed);
        body
    };
    (Router::new().route("/", get(handler)), feeds)
}

#[tokio::test]
async fn a_place_is_kept_until_the_body_has_ended() {
    let limiter = real(&["concurrency 1"]);
    let (app, feeds) = fed();
    let site = Site::start(app.layer(by_address(&limiter))).await;
    for _ in 0..3 {
        let mut stream = site.connect("/").await;
        read_until(&mut stream, "200 OK").await;
        let feed = feeds.lock().unwrap().pop().unwrap();
        say(&feed, "the first half");
        read_until(&mut stream, "the first half").await;
        assert_eq!(standing(&limiter, US, 0).await.1, 1);
        assert_eq!(site.get("/").await.status, 429);
        drop(feed);
        // The end of a chunked body. The connection stays.
        read_until(&mut stream, "0\r\n\r\n").await;
        nobody_is_left(&limiter, 0).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_gives_its_place_back() {
    // In the middle of the handler.
    let (limiter, hall) = (real(&["concurrency 2"]), Hall::closed());
    let site = Site::start(in_hall(&hall).layer(by_address(&limiter))).await;
    for _ in 0..10 {
        let streams = [site.connect("/").await, site.connect("/").await];
        until(|| async { hall.inside() == 2 }).await;
        assert_eq!(site.get("/").await.status, 429);
        drop(streams);
        nobody_is_left(&limiter, 0).await;
    }
    assert_eq!(hall.inside(), 0);

    // In the middle of the body.
    let limiter = real(&["concurrency 2"]);
    let (app, feeds) = fed();
    let site = Site::start(app.layer(by_address(&limiter))).await;
    for _ in 0..10 {
        let mut stream = site.connect("/").await;
        read_until(&mut stream, "200 OK").await;
        let feed = feeds.lock().unwrap().pop().unwrap();
        say(&feed, "a half");
        read_until(&mut stream, "a half").await;
        assert_eq!(standing(&limiter, US, 0).await.1, 1);
        drop(stream);
        nobody_is_left(&limiter, 0).await;
        drop(feed);
    }
}

#[tokio::test]
async fn a_handler_that_panics_gives_its_place_back() {
    let limiter = real(&["concurrency 1"]);
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
    let site = Site::start(app).await;
    for _ in 0..5 {
        let mut stream = site.connect("/panic").await;
        let mut read = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut read).await.unwrap();
        assert!(read.is_empty(), "the connection ends without an answer");
        assert_eq!(site.get("/").await.status, 200);
    }
    nobody_is_left(&limiter, 0).await;
}

#[tokio::test]
async fn whoever_looks_on_and_panics_takes_no_place_along() {
    let limiter = real(&["concurrency 1"]);
    let layer = by_address(&limiter).on_decision(|_| panic!("as it should"));
    let site = Site::behind(layer).await;
    for _ in 0..3 {
        let mut read = Vec::new();
        let mut stream = site.connect("/").await;
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut read).await.unwrap();
        assert_eq!(standing(&limiter, US, 0).await.1, 0);
    }
}

/// It really waits: about a second.
#[tokio::test]
async fn a_request_that_takes_longer_than_its_lease_keeps_its_place() {
    let (limiter, hall) = (real(&["concurrency 1 lease 300ms"]), Hall::closed());
    let site = Site::start(in_hall(&hall).layer(by_address(&limiter))).await;
    let slow = tokio::spawn({
        let site = site.clone();
        async move { site.get("/").await }
    });
    until(|| async { hall.inside() == 1 }).await;
    for _ in 0..11 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(site.get("/").await.status, 429);
    }
    hall.open();
    assert_eq!(slow.await.unwrap().status, 200);
    nobody_is_left(&limiter, 0).await;
}

#[tokio::test]
async fn places_are_counted_by_policies_and_plans_too() {
    let hall = Hall::closed();
    let one = RuleDraft {
        name: "api".into(),
        key: vec![KeyPart::ClientIp],
        limits: vec!["concurrency 1".parse().unwrap()],
        ..RuleDraft::default()
    };
    let policy = Policy::new([PolicyRule::new(one).unwrap()]).unwrap();
    let limiter = Limiter::with_policy(Memory::default(), policy);
    let by_policy = RateLimitLayer::policy(limiter.clone(), TrustedProxies::default());
    let plan = Rule::brought_along("plan", ["concurrency 1".parse().unwrap()]).unwrap();
    let plan = Arc::new(plan);
    let by_plan = RateLimitLayer::plans(limiter, ClientIp::default(), move |_| Some(plan.clone()));
    for layer in [by_policy, by_plan] {
        let site = Site::start(in_hall(&hall).layer(layer)).await;
        let stream = site.connect("/").await;
        until(|| async { hall.inside() == 1 }).await;
        assert_eq!(site.get("/").await.status, 429);
        drop(stream);
        until(|| async { hall.inside() == 0 }).await;
        let mut next = site.connect("/").await;
        until(|| async { hall.inside() == 1 }).await;
        hall.open();
        read_until(&mut next, "served").await;
        hall.close();
    }
}

#[tokio::test]
async fn a_rate_and_places_are_decided_in_one_step() {
    let clock = ManualClock::default();
    let (limiter, hall) = (limiter(&clock, &["fixed-window 5/h", "concurrency 2"]), Hall::closed());
    let site = Site::start(in_hall(&hall).layer(by_address(&limiter))).await;
    let ask = || {
        let site = site.clone();
        tokio::spawn(async move { site.get("/").await })
    };
    let inside = [ask(), ask()];
    until(|| async { hall.inside() == 2 }).await;
    for _ in 0..3 {
        let denied = site.get("/").await;
        assert_eq!(denied.status, 429);
        assert!(denied.body.contains("[\"api.2\"]"), "{}", denied.body);
    }
    assert_eq!(standing(&limiter, US, 0).await.0, 2, "whoever found no place was not charged");
    hall.open();
    for one in inside {
        assert_eq!(one.await.unwrap().status, 200);
    }
    assert_eq!(site.passes(6, &[]).await, 3);
    let denied = site.get("/").await;
    assert!(denied.body.contains("[\"api.1\"]"), "{}", denied.body);
    nobody_is_left(&limiter, 1).await;
    assert_eq!(hall.most(), 2);
}
