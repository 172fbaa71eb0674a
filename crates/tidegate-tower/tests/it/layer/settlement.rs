//! Costs known after the response.

use std::convert::Infallible;
use std::num::NonZeroU64;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body::Frame;
use tidegate::policy::OnMissingKey;
use tidegate::{Key, Limiter, ManualClock, Memory, Rule, Unit};
use tidegate_tower::{CostMeter, Global, Header, RateLimitLayer, Settlement};
use tower::{Layer, ServiceExt, service_fn};

use testkit::http::{BlockingHandler, ChannelBody, send_text};
use testkit::http::{TestServer, limiter, read_until, wait_until};

fn settling(limiter: &Limiter, settle: Settlement) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone(), Global).settle(settle)
}

/// Used and held permits of the first limit, under the global key.
async fn standing(limiter: &Limiter) -> (u64, u64) {
    let standing = limiter.inspect(Key::of(&[])).await.unwrap()[0].standing;
    (standing.used, standing.held)
}

async fn wait_for_standing(limiter: &Limiter, expected: (u64, u64)) {
    wait_until(|| async { standing(limiter).await == expected }).await;
}

#[tokio::test]
async fn failed_logins_count_and_others_do_not() {
    let limiter = limiter(&ManualClock::default(), &["sliding-log 3/h"]);
    let login = |uri: Uri| async move {
        match uri.query() {
            Some("right") => StatusCode::OK,
            Some("teapot") => StatusCode::IM_A_TEAPOT,
            _ => StatusCode::UNAUTHORIZED,
        }
    };
    let failed = Settlement::from_response(|response| match response.status {
        StatusCode::IM_A_TEAPOT => None,
        status => Some(u64::from(status == 401)),
    });
    let app = Router::new().route("/", get(login)).layer(settling(&limiter, failed));
    let server = TestServer::start(app).await;
    for _ in 0..10 {
        assert_eq!(server.get("/?right").await.status, 200);
    }
    wait_for_standing(&limiter, (0, 0)).await;
    assert_eq!(server.get("/?teapot").await.status, 418, "charged its hold");
    wait_for_standing(&limiter, (1, 0)).await;
    assert_eq!(server.get("/?wrong").await.status, 401);
    assert_eq!(server.get("/?wrong").await.status, 401);
    wait_for_standing(&limiter, (3, 0)).await;
    assert_eq!(server.get("/?right").await.status, 429, "denied even with the right password");
}

#[tokio::test]
async fn the_estimated_cost_is_held_while_the_request_runs() {
    let (limiter, handler) =
        (limiter(&ManualClock::default(), &["fixed-window 10/h"]), BlockingHandler::closed());
    let in_handler = handler.clone();
    let layer = settling(&limiter, Settlement::from_response(|_| Some(1))).cost(|_| 4);
    let app = Router::new().route("/", get(move || in_handler.handle())).layer(layer);
    let server = TestServer::start(app).await;
    let streams = [server.connect("/").await, server.connect("/").await];
    wait_until(|| async { handler.in_flight() == 2 }).await;
    assert_eq!(standing(&limiter).await, (0, 8));
    assert_eq!(server.get("/").await.status, 429, "4 more would exceed the limit");
    drop(streams);
    // A request whose client disconnects may have done its work.
    wait_for_standing(&limiter, (8, 0)).await;
    limiter.reset(tidegate::Key::of(&[])).await.unwrap();
    handler.open();
    let reply = server.get("/").await;
    assert_eq!(reply.header("x-ratelimit-remaining").unwrap(), "6");
    wait_for_standing(&limiter, (1, 0)).await;
}

#[tokio::test]
async fn the_bytes_that_were_sent_are_charged() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 1000/h"]);
    let (sender, body) = ChannelBody::take_once();
    let app = Router::new()
        .route("/25", get(|| async { ChannelBody::of(&["0123456789", "01234", "0123456789"]) }))
        .route("/plain", get(|| async { "0123456789" }))
        .route("/empty", get(|| async { "" }))
        .route("/fed", get(move || async move { body.take() }))
        .layer(settling(&limiter, Settlement::body_bytes(NonZeroU64::new(10).unwrap())));
    let server = TestServer::start(app).await;
    let mut used = 0;
    for (path, cost) in [("/25", 3), ("/plain", 1), ("/empty", 0)] {
        server.get(path).await;
        used += cost;
        wait_for_standing(&limiter, (used, 0)).await;
    }
    // A client that disconnects has received 11 bytes.
    let mut stream = server.connect("/fed").await;
    send_text(&sender, "0123456789");
    send_text(&sender, "x");
    read_until(&mut stream, "x\r\n").await;
    assert_eq!(standing(&limiter).await, (used, 1));
    drop(stream);
    wait_for_standing(&limiter, (used + 2, 0)).await;
}

/// A service that reports the cost that is in the query.
fn spending() -> Router {
    let handler = |Extension(meter): Extension<CostMeter>, uri: Uri| async move {
        if let Some(cost) = uri.query().and_then(|query| query.parse().ok()) {
            meter.add(cost);
        }
        "served"
    };
    Router::new().route("/", get(handler))
}

#[tokio::test]
async fn the_reported_cost_is_charged_and_an_excess_becomes_a_debt() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 10/h"]);
    let layer = settling(&limiter, Settlement::from_meter()).cost(|_| 3);
    let server = TestServer::start(spending().layer(layer)).await;
    for (path, used) in [("/?2", 2), ("/?0", 2), ("/", 5), ("/?12", 17)] {
        assert_eq!(server.get(path).await.status, 200);
        wait_for_standing(&limiter, (used, 0)).await;
    }
    assert_eq!(server.get("/?0").await.status, 429);
}

#[tokio::test]
async fn the_cost_so_far_is_charged_when_a_client_disconnects() {
    for (reported, charged) in [(Some(7), 7), (Some(0), 0), (None, 3)] {
        let limiter = limiter(&ManualClock::default(), &["fixed-window 100/h"]);
        let (sender, body) = ChannelBody::take_once();
        let handler = move |Extension(meter): Extension<CostMeter>| async move {
            reported.into_iter().for_each(|cost| meter.set(cost));
            body.take()
        };
        let layer = settling(&limiter, Settlement::from_meter()).cost(|_| 3);
        let server = TestServer::start(Router::new().route("/", get(handler)).layer(layer)).await;
        let mut stream = server.connect("/").await;
        send_text(&sender, "a half");
        read_until(&mut stream, "a half").await;
        assert_eq!(standing(&limiter).await, (0, 3));
        drop(stream);
        wait_for_standing(&limiter, (charged, 0)).await;
    }
}

/// Servers do not poll a body again after the last byte of a known length.
#[tokio::test]
async fn a_body_has_ended_with_its_last_byte_or_its_trailers() {
    let with_length = || async {
        let mut response = ChannelBody::of(&["01234", "56789"]).into_response();
        response.headers_mut().insert(CONTENT_LENGTH, 10.into());
        response
    };
    let with_trailers = || async {
        let (sender, body) = ChannelBody::new();
        send_text(&sender, "0123456789");
        let _ = sender.send(Frame::trailers(HeaderMap::new()));
        // The body would continue if it were polled again.
        std::mem::forget(sender);
        body
    };
    let app = Router::new()
        .route("/length", get(with_length))
        .route("/trailers", get(with_trailers))
        .route("/chunks", get(|| async { ChannelBody::of(&["01234", "56789"]) }))
        .route("/whole", get(|| async { "0123456789" }))
        .route("/none", get(|| async { StatusCode::NO_CONTENT }));
    for path in ["/length", "/trailers", "/chunks", "/whole", "/none"] {
        let limiter = limiter(&ManualClock::default(), &["fixed-window 100/h"]);
        let layer = settling(&limiter, Settlement::from_meter()).cost(|_| 3);
        let server = TestServer::start(app.clone().layer(layer)).await;
        let mut stream = server.connect(path).await;
        read_until(&mut stream, if path == "/none" { "\r\n\r\n" } else { "9" }).await;
        wait_until(|| async { standing(&limiter).await.1 == 0 }).await;
        assert_eq!(standing(&limiter).await, (3, 0), "{path}: the hold is charged");
    }
}

#[tokio::test]
async fn at_least_one_permit_is_held() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 2/h"]);
    let layer = settling(&limiter, Settlement::from_meter()).cost(|_| 0);
    let server = TestServer::start(spending().layer(layer)).await;
    assert_eq!(server.get("/?2").await.status, 200);
    wait_for_standing(&limiter, (2, 0)).await;
    assert_eq!(server.get("/?0").await.status, 429);
}

/// Otherwise the work of a `HEAD` request would be free of charge.
#[tokio::test]
async fn a_head_request_ends_with_its_headers() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 100/h"]);
    let layer = settling(&limiter, Settlement::from_meter()).cost(|_| 3);
    let app = Router::new().route("/", get(|| async { ChannelBody::of(&["01234", "56789"]) }));
    let server = TestServer::start(app.layer(layer)).await;
    for used in [3, 6] {
        let reply = server.request("HEAD", "/", &[]).await;
        assert_eq!((reply.status, &*reply.body), (200, ""));
        wait_for_standing(&limiter, (used, 0)).await;
    }
}

#[tokio::test]
async fn a_service_has_its_cost_meter_on_every_request() {
    let clock = ManualClock::default();
    let by_tenant = RateLimitLayer::new(limiter(&clock, &["0/h"]), Header::from_static("x-tenant"));
    let layers = [
        by_tenant.clone().on_missing_key(OnMissingKey::Skip),
        by_tenant.clone().shadow(),
        by_tenant.cost(|_| u64::MAX).shadow(),
    ];
    for layer in layers {
        let server =
            TestServer::start(spending().layer(layer.settle(Settlement::from_meter()))).await;
        let reply = server.get("/?5").await;
        assert_eq!((reply.status, &*reply.body), (200, "served"));
    }
}

#[tokio::test]
async fn a_failed_request_is_charged_nothing_and_a_slot_is_not_settled() {
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["fixed-window 100/h", "concurrency 2"]);
    let layer = settling(&limiter, Settlement::from_response(|_| Some(9))).cost(|_| 5);
    let failing = layer.layer(service_fn(|_: Request<()>| async {
        Err::<Response, _>(std::io::Error::other("it fails"))
    }));
    failing.oneshot(Request::new(())).await.unwrap_err();
    let all = || async {
        let found = limiter.inspect(Key::of(&[])).await.unwrap();
        let standing = |nth: usize| (found[nth].standing.used, found[nth].standing.held);
        [standing(0), standing(1)]
    };
    assert_eq!(all().await, [(0, 0), (0, 0)]);
    let (sender, body) = ChannelBody::take_once();
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let response = Response::new(Body::new(body.take()));
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(all().await, [(0, 5), (0, 1)]);
    drop((sender, response));
    assert_eq!(all().await, [(9, 0), (0, 0)]);
}

#[tokio::test]
async fn each_rule_is_charged_its_own_cost() {
    let rule =
        |name, limit: &str, unit| Rule::new(name, [limit.parse().unwrap()]).unwrap().unit(unit);
    let memory = || Memory::builder().clock(ManualClock::default()).build();
    let rules = || {
        [
            rule("requests", "fixed-window 60/h", Unit::Requests),
            rule("tokens", "fixed-window 10000/h", Unit::Tokens),
            rule("money", "fixed-window 50000/h", Unit::Money),
        ]
    };
    let estimate = |_: &http::request::Parts, rule: &str| match rule {
        "tokens" => 1_500,
        "money" => 9_000,
        _ => 1,
    };
    let head = Settlement::each_from_response(|response| {
        let number = response.headers.get("x-tokens").and_then(|n| n.to_str().ok()?.parse().ok());
        // What a response names twice is added up.
        let half = number.map(|tokens: u64| ("tokens".to_string(), tokens / 2));
        let tokens = [half.clone(), half].into_iter().flatten();
        tokens.into_iter().chain([("removed".to_string(), 7)]).collect()
    });
    for (settle, expected) in [(head, [1, 312, 9_000]), (Settlement::from_meter(), [1, 312, 1_873])]
    {
        let limiter = Limiter::with_rules(memory(), rules()).unwrap();
        let complete = |request: Request<Body>| async move {
            if let Some(meter) = request.extensions().get::<CostMeter>() {
                meter.set_rule("tokens", 200);
                meter.set_rule("money", 1_873);
                meter.set_rule("tokens", 312);
            }
            ([("x-tokens", "312")], "done").into_response()
        };
        let layer = settling(&limiter, settle).cost_each(estimate);
        let app = Router::new().route("/", get(complete)).layer(layer);
        let server = TestServer::start(app).await;
        assert_eq!(server.get("/").await.status, 200);
        wait_until(|| async {
            let inspected = limiter.inspect(Key::of(&[])).await.unwrap();
            let used: Vec<u64> = inspected.iter().map(|one| one.standing.used).collect();
            let held: u64 = inspected.iter().map(|one| one.standing.held).sum();
            held == 0 && used == expected
        })
        .await;
    }
    // One cost for all rules: a request is still one request, and the others differ from it.
    let limiter = Limiter::with_rules(memory(), rules()).unwrap();
    let layer = settling(&limiter, Settlement::from_response(|_| Some(40))).cost(|_| 100);
    let server = TestServer::start(Router::new().route("/", get(|| async {})).layer(layer)).await;
    assert_eq!(server.get("/").await.status, 200);
    wait_until(|| async {
        let inspected = limiter.inspect(Key::of(&[])).await.unwrap();
        inspected.iter().map(|one| one.standing.used).collect::<Vec<_>>() == [1, 40, 40]
    })
    .await;
}
