//! Costs that are known afterwards.

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
use tidegate::{Key, Limiter, ManualClock};
use tidegate_tower::{Everyone, Header, RateLimitLayer, Settle, Spent};
use tower::{Layer, ServiceExt, service_fn};

use crate::hall::{Fed, Hall, say};
use crate::site::{Site, limiter, read_until, until};

fn settling(limiter: &Limiter, settle: Settle) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone(), Everyone).settle(settle)
}

/// What everybody has used and holds of the first limit.
async fn standing(limiter: &Limiter) -> (u64, u64) {
    let standing = limiter.inspect(Key::of(&[])).await.unwrap()[0].standing;
    (standing.used, standing.held)
}

async fn becomes(limiter: &Limiter, expected: (u64, u64)) {
    until(|| async { standing(limiter).await == expected }).await;
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
    let failed = Settle::from_response(|response| match response.status {
        StatusCode::IM_A_TEAPOT => None,
        status => Some(u64::from(status == 401)),
    });
    let app = Router::new().route("/", get(login)).layer(settling(&limiter, failed));
    let site = Site::start(app).await;
    for _ in 0..10 {
        assert_eq!(site.get("/?right").await.status, 200);
    }
    becomes(&limiter, (0, 0)).await;
    assert_eq!(site.get("/?teapot").await.status, 418, "charged what was set aside");
    becomes(&limiter, (1, 0)).await;
    assert_eq!(site.get("/?wrong").await.status, 401);
    assert_eq!(site.get("/?wrong").await.status, 401);
    becomes(&limiter, (3, 0)).await;
    assert_eq!(site.get("/?right").await.status, 429, "not even who knows it now");
}

#[tokio::test]
async fn what_a_request_may_cost_is_set_aside_while_it_lasts() {
    let (limiter, hall) =
        (limiter(&ManualClock::default(), &["fixed-window 10/h"]), Hall::closed());
    let inside = hall.clone();
    let layer = settling(&limiter, Settle::from_response(|_| Some(1))).cost(|_| 4);
    let app = Router::new().route("/", get(move || inside.stay())).layer(layer);
    let site = Site::start(app).await;
    let streams = [site.connect("/").await, site.connect("/").await];
    until(|| async { hall.inside() == 2 }).await;
    assert_eq!(standing(&limiter).await, (0, 8));
    assert_eq!(site.get("/").await.status, 429, "nobody asks for more than there is at once");
    drop(streams);
    // Whoever goes away may have had the work done.
    becomes(&limiter, (8, 0)).await;
    limiter.reset(tidegate::Key::of(&[])).await.unwrap();
    hall.open();
    let reply = site.get("/").await;
    assert_eq!(reply.header("x-ratelimit-remaining").unwrap(), "6");
    becomes(&limiter, (1, 0)).await;
}

#[tokio::test]
async fn the_bytes_that_were_sent_are_what_counts() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 1000/h"]);
    let (feed, fed) = Fed::kept();
    let app = Router::new()
        .route("/25", get(|| async { Fed::of(&["0123456789", "01234", "0123456789"]) }))
        .route("/plain", get(|| async { "0123456789" }))
        .route("/empty", get(|| async { "" }))
        .route("/fed", get(move || async move { fed.take() }))
        .layer(settling(&limiter, Settle::body_bytes(NonZeroU64::new(10).unwrap())));
    let site = Site::start(app).await;
    let mut used = 0;
    for (path, cost) in [("/25", 3), ("/plain", 1), ("/empty", 0)] {
        site.get(path).await;
        used += cost;
        becomes(&limiter, (used, 0)).await;
    }
    // One who goes away has got 11 bytes.
    let mut stream = site.connect("/fed").await;
    say(&feed, "0123456789");
    say(&feed, "x");
    read_until(&mut stream, "x\r\n").await;
    assert_eq!(standing(&limiter).await, (used, 1));
    drop(stream);
    becomes(&limiter, (used + 2, 0)).await;
}

/// A service that says what was spent, as the query tells it to.
fn spending() -> Router {
    let handler = |Extension(spent): Extension<Spent>, uri: Uri| async move {
        if let Some(cost) = uri.query().and_then(|query| query.parse().ok()) {
            spent.add(cost);
        }
        "served"
    };
    Router::new().route("/", get(handler))
}

#[tokio::test]
async fn what_the_service_says_is_charged_and_more_than_there_is_becomes_a_debt() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 10/h"]);
    let layer = settling(&limiter, Settle::spent()).cost(|_| 3);
    let site = Site::start(spending().layer(layer)).await;
    for (path, used) in [("/?2", 2), ("/?0", 2), ("/", 5), ("/?12", 17)] {
        assert_eq!(site.get(path).await.status, 200);
        becomes(&limiter, (used, 0)).await;
    }
    assert_eq!(site.get("/?0").await.status, 429);
}

#[tokio::test]
async fn what_was_spent_so_far_is_charged_when_a_client_goes_away() {
    for (said, charged) in [(Some(7), 7), (Some(0), 0), (None, 3)] {
        let limiter = limiter(&ManualClock::default(), &["fixed-window 100/h"]);
        let (feed, body) = Fed::kept();
        let handler = move |Extension(spent): Extension<Spent>| async move {
            said.into_iter().for_each(|cost| spent.set(cost));
            body.take()
        };
        let layer = settling(&limiter, Settle::spent()).cost(|_| 3);
        let site = Site::start(Router::new().route("/", get(handler)).layer(layer)).await;
        let mut stream = site.connect("/").await;
        say(&feed, "a half");
        read_until(&mut stream, "a half").await;
        assert_eq!(standing(&limiter).await, (0, 3));
        drop(stream);
        becomes(&limiter, (charged, 0)).await;
    }
}

/// Servers do not ask a body for its end if they know that it has come.
#[tokio::test]
async fn a_body_has_ended_with_its_last_byte_or_its_trailers() {
    let with_length = || async {
        let mut response = Fed::of(&["01234", "56789"]).into_response();
        response.headers_mut().insert(CONTENT_LENGTH, 10.into());
        response
    };
    let with_trailers = || async {
        let (feed, body) = Fed::new();
        say(&feed, "0123456789");
        let _ = feed.send(Frame::trailers(HeaderMap::new()));
        // It goes on, if anybody should ask.
        std::mem::forget(feed);
        body
    };
    let app = Router::new()
        .route("/length", get(with_length))
        .route("/trailers", get(with_trailers))
        .route("/chunks", get(|| async { Fed::of(&["01234", "56789"]) }))
        .route("/whole", get(|| async { "0123456789" }))
        .route("/none", get(|| async { StatusCode::NO_CONTENT }));
    for path in ["/length", "/trailers", "/chunks", "/whole", "/none"] {
        let limiter = limiter(&ManualClock::default(), &["fixed-window 100/h"]);
        let layer = settling(&limiter, Settle::spent()).cost(|_| 3);
        let site = Site::start(app.clone().layer(layer)).await;
        let mut stream = site.connect(path).await;
        read_until(&mut stream, if path == "/none" { "\r\n\r\n" } else { "9" }).await;
        until(|| async { standing(&limiter).await.1 == 0 }).await;
        assert_eq!(standing(&limiter).await, (3, 0), "{path}: what was set aside is charged");
    }
}

#[tokio::test]
async fn at_least_one_is_set_aside() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 2/h"]);
    let layer = settling(&limiter, Settle::spent()).cost(|_| 0);
    let site = Site::start(spending().layer(layer)).await;
    assert_eq!(site.get("/?2").await.status, 200);
    becomes(&limiter, (2, 0)).await;
    assert_eq!(site.get("/?0").await.status, 429);
}

/// Otherwise whoever asks for the head alone would have the work done for nothing.
#[tokio::test]
async fn a_request_for_the_head_alone_ends_with_it() {
    let limiter = limiter(&ManualClock::default(), &["fixed-window 100/h"]);
    let layer = settling(&limiter, Settle::spent()).cost(|_| 3);
    let app = Router::new().route("/", get(|| async { Fed::of(&["01234", "56789"]) }));
    let site = Site::start(app.layer(layer)).await;
    for used in [3, 6] {
        let reply = site.ask("HEAD", "/", &[]).await;
        assert_eq!((reply.status, &*reply.body), (200, ""));
        becomes(&limiter, (used, 0)).await;
    }
}

#[tokio::test]
async fn a_service_may_count_on_its_account_whoever_asks() {
    let clock = ManualClock::default();
    let by_tenant = RateLimitLayer::new(limiter(&clock, &["0/h"]), Header::from_static("x-tenant"));
    let layers = [
        by_tenant.clone().on_missing_key(OnMissingKey::Skip),
        by_tenant.clone().shadow(),
        by_tenant.cost(|_| u64::MAX).shadow(),
    ];
    for layer in layers {
        let site = Site::start(spending().layer(layer.settle(Settle::spent()))).await;
        let reply = site.get("/?5").await;
        assert_eq!((reply.status, &*reply.body), (200, "served"));
    }
}

#[tokio::test]
async fn a_request_that_fails_is_charged_nothing_and_a_place_is_no_cost() {
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["fixed-window 100/h", "concurrency 2"]);
    let layer = settling(&limiter, Settle::from_response(|_| Some(9))).cost(|_| 5);
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
    let (feed, body) = Fed::kept();
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let response = Response::new(Body::new(body.take()));
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(all().await, [(0, 5), (0, 1)]);
    drop((feed, response));
    assert_eq!(all().await, [(9, 0), (0, 0)]);
}
