//! Rules, keys and costs of requests.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use axum::{Extension, Router};
use http::Response;
use http::request::Parts;
use tidegate::policy::OnMissingKey;
use tidegate::{Key, Limiter, ManualClock, Refusal};
use tidegate_tower::key::{ExtractKey, KeyBuilder};
use tidegate_tower::layer::{DecisionEvent, DenialReason, OnEngineError};
use tidegate_tower::{
    Bearer, Claim, ClientIp, Cookie, Global, Header, KeyedRule, PathParam, Query, RateLimitLayer,
};

use testkit::engines::SwitchableEngine;
use testkit::http::{TestServer, limiter, memory, rule, used_and_held};

const TENANT: &str = "x-tenant";

fn by_tenant(clock: &ManualClock, limits: &[&str]) -> RateLimitLayer {
    RateLimitLayer::new(limiter(clock, limits), Header::from_static(TENANT))
}

#[tokio::test]
async fn every_rule_has_its_own_key_and_all_are_charged_or_none() {
    let clock = ManualClock::default();
    let rules = [rule("address", &["fixed-window 5/h"]), rule("tenant", &["fixed-window 2/h"])];
    let limiter = Limiter::with_rules(memory(&clock), rules).unwrap();
    let keys = [
        KeyedRule::new("address", ClientIp::default()),
        KeyedRule::new("tenant", Header::from_static(TENANT)),
    ];
    let layer = RateLimitLayer::rules(limiter.clone(), keys).unwrap();
    let server = TestServer::behind(layer).await;
    assert_eq!(server.count_admitted(10, &[(TENANT, "a")]).await, 2);
    assert_eq!(
        used_and_held(&limiter, "127.0.0.1", 0).await.0,
        2,
        "a denial by one rule charges none"
    );
    assert_eq!(server.count_admitted(10, &[(TENANT, "b")]).await, 2);
    assert_eq!(
        server.count_admitted(10, &[(TENANT, "c")]).await,
        1,
        "the address has used its five"
    );
    assert_eq!(used_and_held(&limiter, "c", 1).await.0, 1);
    let denied = server.request("GET", "/", &[(TENANT, "a")]).await;
    assert_eq!(
        denied.header("ratelimit-policy").unwrap(),
        "\"address\";q=5;w=3600, \"tenant\";q=2;w=3600"
    );
    assert!(denied.body.contains("[\"address\",\"tenant\"]"), "{}", denied.body);
}

#[test]
fn a_rule_that_the_limiter_does_not_have_is_refused_at_once() {
    let limiter = limiter(&ManualClock::default(), &["5/s"]);
    let keys = [KeyedRule::new("api", Global), KeyedRule::new("login", Global)];
    let refusal = RateLimitLayer::rules(limiter, keys).unwrap_err();
    assert_eq!(refusal, Refusal::UnknownRule { name: "login".into(), meant: None });
}

#[tokio::test]
async fn requests_without_the_key_share_a_limit_or_are_denied_or_skipped() {
    let clock = ManualClock::default();
    for (what, anonymous, status) in
        [(OnMissingKey::Shared, 2, 429), (OnMissingKey::Deny, 0, 429), (OnMissingKey::Skip, 9, 200)]
    {
        let layer = by_tenant(&clock, &["fixed-window 2/h"]).on_missing_key(what);
        let server = TestServer::behind(layer).await;
        assert_eq!(server.count_admitted(9, &[]).await, anonymous, "{what:?}");
        assert_eq!(server.count_admitted(9, &[(TENANT, "")]).await, 2, "an empty key is a key");
        assert_eq!(server.count_admitted(9, &[(TENANT, "a")]).await, 2);
        assert_eq!(server.get("/").await.status, status);
    }
}

#[tokio::test]
async fn of_several_rules_only_the_one_whose_key_is_missing_is_skipped() {
    let clock = ManualClock::default();
    let rules = [rule("address", &["fixed-window 3/h"]), rule("tenant", &["fixed-window 1/h"])];
    let limiter = Limiter::with_rules(memory(&clock), rules).unwrap();
    let keys = [
        KeyedRule::new("tenant", Header::from_static(TENANT)),
        KeyedRule::new("address", ClientIp::default()),
    ];
    let layer = RateLimitLayer::rules(limiter, keys).unwrap().on_missing_key(OnMissingKey::Skip);
    let server = TestServer::behind(layer).await;
    let reply = server.get("/").await;
    assert_eq!(reply.header("ratelimit").unwrap().matches("address").count(), 1);
    assert!(!reply.header("ratelimit").unwrap().contains("tenant"));
    assert_eq!(server.count_admitted(9, &[(TENANT, "a")]).await, 1);
    assert_eq!(server.count_admitted(9, &[]).await, 1);
}

#[tokio::test]
async fn a_key_that_is_too_long_is_a_client_error() {
    let clock = ManualClock::default();
    let server = TestServer::behind(by_tenant(&clock, &["fixed-window 2/h"])).await;
    let long = "k".repeat(Key::MAX_LEN);
    assert_eq!(server.request("GET", "/", &[(TENANT, &long)]).await.status, 200);
    let reply = server.request("GET", "/", &[(TENANT, &(long + "k"))]).await;
    assert_eq!((reply.status, reply.has_limit_headers()), (400, false));
    assert!(reply.body.contains("\"detail\":\"the rate-limit key of the request is too long\""));
    assert_eq!(reply.header("cache-control").unwrap(), "no-store");
}

#[tokio::test]
async fn keys_come_from_every_part_of_the_request() {
    #[derive(Clone)]
    struct User(u32);
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["fixed-window 9/h"]);
    let layer = |key: RateLimitLayer| {
        let app = Router::new().fallback(|| async { "served" });
        TestServer::start(app.layer(key).layer(Extension(User(7))))
    };
    let new = |key| RateLimitLayer::new(limiter.clone(), key);
    let token = ("authorization", "Bearer secret");
    let path = "/tenants/acme/x?user=al%20ice";
    for (layer_of, key) in [
        (layer(RateLimitLayer::new(limiter.clone(), Query("user"))).await, vec!["al ice"]),
        (layer(RateLimitLayer::new(limiter.clone(), Cookie("sid"))).await, vec!["c1"]),
        (
            layer(RateLimitLayer::new(
                limiter.clone(),
                PathParam::new("/tenants/{t}/*", "t").unwrap(),
            ))
            .await,
            vec!["acme"],
        ),
        (
            layer(RateLimitLayer::new(limiter.clone(), Claim::new(|user: &User| user.0))).await,
            vec!["7"],
        ),
        (layer(new(|request: &Parts| Some(request.method.to_string()))).await, vec!["GET"]),
        (
            layer(RateLimitLayer::new(limiter.clone(), (Query("user"), Cookie("sid")))).await,
            vec!["al ice", "c1"],
        ),
        (
            layer(RateLimitLayer::new(limiter.clone(), Bearer)).await,
            // SHA-256 of the token: the token itself is not stored.
            vec!["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"],
        ),
        (layer(RateLimitLayer::new(limiter.clone(), Global)).await, vec![]),
    ] {
        let reply = layer_of.request("GET", path, &[("cookie", "a=b; sid=c1"), token]).await;
        assert_eq!(reply.status, 200);
        let found = limiter.inspect(Key::of(&key)).await.unwrap();
        assert_eq!(found[0].standing.used, 1, "{key:?}");
    }
}

#[tokio::test]
async fn a_request_costs_what_the_cost_function_returns() {
    let clock = ManualClock::default();
    let cost =
        |request: &Parts| request.uri.query().map_or(1, |query| query.parse::<u64>().unwrap());
    let server = TestServer::behind(by_tenant(&clock, &["fixed-window 10/h"]).cost(cost)).await;
    let send = async |path: &str| {
        let reply = server.request("GET", path, &[(TENANT, "a")]).await;
        (reply.status, reply.header("x-ratelimit-remaining"))
    };
    assert_eq!(send("/?4").await, (200, Some("6".into())));
    assert_eq!(send("/?0").await, (200, Some("6".into())));
    assert_eq!(send("/?7").await, (429, Some("6".into())));
    assert_eq!(send("/?6").await, (200, Some("0".into())));
    assert_eq!(send("/").await, (429, Some("0".into())));
    // 2^32 is the largest cost; more is a bug of the service.
    assert_eq!(send("/?4294967296").await, (429, Some("0".into())));
    assert_eq!(send("/?4294967297").await, (500, None));
    assert_eq!(send("/?18446744073709551615").await, (500, None));
}

/// Of each decision: whether the request passes, and whether the decision allows it.
type Seen = Arc<Mutex<Vec<(bool, Option<bool>)>>>;

fn with_log(layer: RateLimitLayer) -> (RateLimitLayer, Seen) {
    let seen = Seen::default();
    let log = seen.clone();
    let record = move |decided: &DecisionEvent<'_>| {
        let allowed = decided.decision.ok().map(tidegate::Decision::allowed);
        log.lock().unwrap().push((decided.passes, allowed));
    };
    (layer.on_decision(record), seen)
}

#[tokio::test]
async fn a_layer_in_shadow_mode_passes_every_request_and_reports_only_to_the_callback() {
    let clock = ManualClock::default();
    let (layer, seen) = with_log(by_tenant(&clock, &["fixed-window 2/h"]).shadow());
    let server = TestServer::behind(layer).await;
    for _ in 0..4 {
        let reply = server.request("GET", "/", &[(TENANT, "a")]).await;
        assert_eq!((reply.status, &*reply.body, reply.has_limit_headers()), (200, "served", false));
        assert_eq!(reply.header("retry-after"), None);
    }
    let allowed = [true, true, false, false].map(|allowed| (true, Some(allowed)));
    assert_eq!(*seen.lock().unwrap(), allowed);
}

#[tokio::test]
async fn a_layer_in_shadow_mode_passes_requests_that_it_cannot_count() {
    let clock = ManualClock::default();
    let (store, off) = SwitchableEngine::new(memory(&clock));
    off.store(true, Ordering::SeqCst);
    let unavailable = Limiter::with_rules(store, [rule("api", &["5/h"])]).unwrap();
    let available = || limiter(&clock, &["5/h"]);
    let tenant = || Header::from_static(TENANT);
    for (layer, seen) in [
        (RateLimitLayer::new(unavailable, Global), (true, None)),
        (RateLimitLayer::new(available(), MisconfiguredKey), (true, None)),
        (RateLimitLayer::new(available(), Global).cost(|_| u64::MAX), (true, None)),
        (
            RateLimitLayer::new(available(), tenant()).on_missing_key(OnMissingKey::Deny),
            (true, Some(false)),
        ),
    ] {
        let (layer, all) = with_log(layer.shadow());
        assert_eq!(TestServer::behind(layer).await.get("/").await.status, 200);
        assert_eq!(*all.lock().unwrap(), [seen]);
    }
}

/// A key extractor that is unavailable because the service is misconfigured.
struct MisconfiguredKey;

impl ExtractKey for MisconfiguredKey {
    fn extract(&self, _: &Parts, key: &mut KeyBuilder) {
        key.misconfigured("add the layer that sets it");
    }
}

#[tokio::test]
async fn a_misconfiguration_is_reported_to_the_callback_and_not_to_clients() {
    let errors = Arc::new(Mutex::new(Vec::new()));
    let log = errors.clone();
    let layer = RateLimitLayer::new(limiter(&ManualClock::default(), &["5/h"]), MisconfiguredKey);
    let layer = layer.on_decision(move |decided| {
        log.lock().unwrap().push(decided.decision.unwrap_err().to_string());
    });
    let reply = TestServer::behind(layer).await.get("/").await;
    assert_eq!(reply.status, 500);
    assert!(!reply.body.contains("add the layer"), "{}", reply.body);
    assert_eq!(*errors.lock().unwrap(), ["no decision; not charged: add the layer that sets it"]);
}

#[tokio::test]
async fn the_callback_sees_every_decision_and_every_failure() {
    let clock = ManualClock::default();
    let (store, off) = SwitchableEngine::new(memory(&clock));
    let limiter = Limiter::with_rules(store, [rule("api", &["fixed-window 1/h"])]).unwrap();
    let layer = RateLimitLayer::new(limiter, Header::from_static(TENANT))
        .on_missing_key(OnMissingKey::Deny);
    let (layer, seen) = with_log(layer);
    let server = TestServer::behind(layer).await;
    let send = async || server.request("GET", "/", &[(TENANT, "a")]).await.status;
    assert_eq!([send().await, send().await], [200, 429]);
    off.store(true, Ordering::SeqCst);
    assert_eq!(send().await, 503);
    assert_eq!(server.get("/").await.status, 429);
    let expected = [(true, Some(true)), (false, Some(false)), (false, None), (false, Some(false))];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn without_a_decision_requests_are_refused_unless_configured_to_pass() {
    let clock = ManualClock::default();
    let (store, off) = SwitchableEngine::new(memory(&clock));
    let limiter = Limiter::with_rules(store, [rule("api", &["fixed-window 1/h"])]).unwrap();
    let layer = RateLimitLayer::new(limiter, Header::from_static(TENANT));
    let [closed, open] = [layer.clone(), layer.on_engine_error(OnEngineError::Pass)];
    let [closed, open] = [TestServer::behind(closed).await, TestServer::behind(open).await];
    off.store(true, Ordering::SeqCst);
    let reply = closed.get("/").await;
    assert_eq!((reply.status, reply.has_limit_headers()), (503, false));
    assert!(
        !reply.body.contains("secret"),
        "the response has no details of the error: {}",
        reply.body
    );
    assert_eq!(open.count_admitted(5, &[]).await, 5);
    let long = "k".repeat(Key::MAX_LEN + 1);
    let reply = open.request("GET", "/", &[(TENANT, &long)]).await;
    assert_eq!(reply.status, 400, "the engine did not fail here");
}

#[tokio::test]
async fn the_service_may_render_denials() {
    let clock = ManualClock::default();
    let layer = by_tenant(&clock, &["fixed-window 1/h", "9/s"]).render(|denial| {
        let why = match denial.reason() {
            DenialReason::Limited(decision) => format!("limited by {}", decision.source.name()),
            other => format!("{other:?}"),
        };
        let path = denial.request().uri.path();
        let wait = denial.retry_after().map_or(0, |wait| wait.as_secs());
        let body = format!("{path}: {why}, {}, {wait} s", denial.violated().join("+"));
        Response::builder().status(503).header("x-own", "yes").body(body.into()).unwrap()
    });
    let server = TestServer::behind(layer).await;
    server.get("/").await;
    let denied = server.get("/login").await;
    assert_eq!((denied.status, denied.header("x-own").as_deref()), (503, Some("yes")));
    assert_eq!(denied.body, "/login: limited by memory, api.1, 2800 s");
    assert_eq!(denied.header("retry-after").unwrap(), "2800", "the header is still set");
    assert!(denied.has_limit_headers());
    assert_eq!(denied.header("cache-control").unwrap(), "no-store");
}

#[tokio::test]
async fn without_limit_headers_a_denial_still_has_a_retry_after() {
    let clock = ManualClock::default();
    let server =
        TestServer::behind(by_tenant(&clock, &["fixed-window 1/h"]).without_headers()).await;
    assert!(!server.get("/").await.has_limit_headers());
    let denied = server.get("/").await;
    assert_eq!((denied.status, denied.has_limit_headers()), (429, false));
    assert_eq!(denied.header("retry-after").unwrap(), "2800");
    assert_eq!(denied.header("cache-control").unwrap(), "no-store");
}
