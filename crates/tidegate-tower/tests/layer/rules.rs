//! Under which rules a request is, as whom, and at what cost.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use axum::{Extension, Router};
use http::Response;
use http::request::Parts;
use tidegate::policy::OnMissingKey;
use tidegate::{Key, Limiter, ManualClock, Refusal};
use tidegate_tower::key::{ExtractKey, KeyText};
use tidegate_tower::layer::{Decided, OnNoAnswer, Reason};
use tidegate_tower::{
    Bearer, Claim, ClientIp, Cookie, Everyone, Header, KeyedRule, PathParam, Query, RateLimitLayer,
};

use crate::site::{Site, limiter, memory, rule, standing};
use crate::store::Store;

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
    let site = Site::behind(layer).await;
    assert_eq!(site.passes(10, &[(TENANT, "a")]).await, 2);
    assert_eq!(standing(&limiter, "127.0.0.1", 0).await.0, 2, "what one denies is free of charge");
    assert_eq!(site.passes(10, &[(TENANT, "b")]).await, 2);
    assert_eq!(site.passes(10, &[(TENANT, "c")]).await, 1, "the address has used its five");
    assert_eq!(standing(&limiter, "c", 1).await.0, 1);
    let denied = site.ask("GET", "/", &[(TENANT, "a")]).await;
    assert_eq!(
        denied.header("ratelimit-policy").unwrap(),
        "\"address\";q=5;w=3600, \"tenant\";q=2;w=3600"
    );
    assert!(denied.body.contains("[\"address\",\"tenant\"]"), "{}", denied.body);
}

#[test]
fn a_rule_that_the_limiter_does_not_have_is_refused_at_once() {
    let limiter = limiter(&ManualClock::default(), &["5/s"]);
    let keys = [KeyedRule::new("api", Everyone), KeyedRule::new("login", Everyone)];
    let refusal = RateLimitLayer::rules(limiter, keys).unwrap_err();
    assert_eq!(refusal, Refusal::UnknownRule("login".into()));
}

#[tokio::test]
async fn whoever_lacks_the_key_is_counted_with_others_or_denied_or_left_alone() {
    let clock = ManualClock::default();
    for (what, anonymous, status) in
        [(OnMissingKey::Shared, 2, 429), (OnMissingKey::Deny, 0, 429), (OnMissingKey::Skip, 9, 200)]
    {
        let layer = by_tenant(&clock, &["fixed-window 2/h"]).on_missing_key(what);
        let site = Site::behind(layer).await;
        assert_eq!(site.passes(9, &[]).await, anonymous, "{what:?}");
        assert_eq!(site.passes(9, &[(TENANT, "")]).await, 2, "an empty key is a key");
        assert_eq!(site.passes(9, &[(TENANT, "a")]).await, 2);
        assert_eq!(site.get("/").await.status, status);
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
    let site = Site::behind(layer).await;
    let reply = site.get("/").await;
    assert_eq!(reply.header("ratelimit").unwrap().matches("address").count(), 1);
    assert!(!reply.header("ratelimit").unwrap().contains("tenant"));
    assert_eq!(site.passes(9, &[(TENANT, "a")]).await, 1);
    assert_eq!(site.passes(9, &[]).await, 1);
}

#[tokio::test]
async fn a_key_that_is_too_long_is_the_clients_fault() {
    let clock = ManualClock::default();
    let site = Site::behind(by_tenant(&clock, &["fixed-window 2/h"])).await;
    let long = "k".repeat(Key::MAX_LEN);
    assert_eq!(site.ask("GET", "/", &[(TENANT, &long)]).await.status, 200);
    let reply = site.ask("GET", "/", &[(TENANT, &(long + "k"))]).await;
    assert_eq!((reply.status, reply.has_limits()), (400, false));
    assert!(reply.body.contains("\"detail\":\"the key of the request is too long\""));
    assert_eq!(reply.header("cache-control").unwrap(), "no-store");
}

#[tokio::test]
async fn keys_are_found_wherever_they_are() {
    #[derive(Clone)]
    struct User(u32);
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["fixed-window 9/h"]);
    let layer = |key: RateLimitLayer| {
        let app = Router::new().fallback(|| async { "served" });
        Site::start(app.layer(key).layer(Extension(User(7))))
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
            // SHA-256 of the token: the token itself is nowhere.
            vec!["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"],
        ),
        (layer(RateLimitLayer::new(limiter.clone(), Everyone)).await, vec![]),
    ] {
        let reply = layer_of.ask("GET", path, &[("cookie", "a=b; sid=c1"), token]).await;
        assert_eq!(reply.status, 200);
        let found = limiter.inspect(Key::of(&key)).await.unwrap();
        assert_eq!(found[0].standing.used, 1, "{key:?}");
    }
}

#[tokio::test]
async fn a_request_costs_what_it_is_said_to() {
    let clock = ManualClock::default();
    let cost =
        |request: &Parts| request.uri.query().map_or(1, |query| query.parse::<u64>().unwrap());
    let site = Site::behind(by_tenant(&clock, &["fixed-window 10/h"]).cost(cost)).await;
    let ask = async |path: &str| {
        let reply = site.ask("GET", path, &[(TENANT, "a")]).await;
        (reply.status, reply.header("x-ratelimit-remaining"))
    };
    assert_eq!(ask("/?4").await, (200, Some("6".into())));
    assert_eq!(ask("/?0").await, (200, Some("6".into())));
    assert_eq!(ask("/?7").await, (429, Some("6".into())));
    assert_eq!(ask("/?6").await, (200, Some("0".into())));
    assert_eq!(ask("/").await, (429, Some("0".into())));
    // 2^32 is the largest cost; more is a mistake of the service.
    assert_eq!(ask("/?4294967296").await, (429, Some("0".into())));
    assert_eq!(ask("/?4294967297").await, (500, None));
    assert_eq!(ask("/?18446744073709551615").await, (500, None));
}

/// What was seen of each decision: does it pass, would it, and why not.
type Seen = Arc<Mutex<Vec<(bool, Option<bool>)>>>;

fn watched(layer: RateLimitLayer) -> (RateLimitLayer, Seen) {
    let seen = Seen::default();
    let told = seen.clone();
    let see = move |decided: &Decided<'_>| {
        let allowed = decided.decision.ok().map(tidegate::Decision::allowed);
        told.lock().unwrap().push((decided.passes, allowed));
    };
    (layer.on_decision(see), seen)
}

#[tokio::test]
async fn a_layer_that_looks_on_lets_everybody_pass_and_tells_only_us() {
    let clock = ManualClock::default();
    let (layer, seen) = watched(by_tenant(&clock, &["fixed-window 2/h"]).shadow());
    let site = Site::behind(layer).await;
    for _ in 0..4 {
        let reply = site.ask("GET", "/", &[(TENANT, "a")]).await;
        assert_eq!((reply.status, &*reply.body, reply.has_limits()), (200, "served", false));
        assert_eq!(reply.header("retry-after"), None);
    }
    let allowed = [true, true, false, false].map(|allowed| (true, Some(allowed)));
    assert_eq!(*seen.lock().unwrap(), allowed);
}

#[tokio::test]
async fn a_layer_that_looks_on_passes_even_those_whom_it_cannot_count() {
    let clock = ManualClock::default();
    let (store, off) = Store::new(memory(&clock));
    off.store(true, Ordering::SeqCst);
    let gone = Limiter::with_rules(store, [rule("api", &["5/h"])]).unwrap();
    let here = || limiter(&clock, &["5/h"]);
    let tenant = || Header::from_static(TENANT);
    for (layer, seen) in [
        (RateLimitLayer::new(gone, Everyone), (true, None)),
        (RateLimitLayer::new(here(), Unknowable), (true, None)),
        (RateLimitLayer::new(here(), Everyone).cost(|_| u64::MAX), (true, None)),
        (
            RateLimitLayer::new(here(), tenant()).on_missing_key(OnMissingKey::Deny),
            (true, Some(false)),
        ),
    ] {
        let (layer, all) = watched(layer.shadow());
        assert_eq!(Site::behind(layer).await.get("/").await.status, 200);
        assert_eq!(*all.lock().unwrap(), [seen]);
    }
}

/// A key that the service is not set up to know.
struct Unknowable;

impl ExtractKey for Unknowable {
    fn extract(&self, _: &Parts, key: &mut KeyText) {
        key.cannot_know("add the layer that tells it");
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_service_is_told_to_us_and_not_to_clients() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let told = said.clone();
    let layer = RateLimitLayer::new(limiter(&ManualClock::default(), &["5/h"]), Unknowable);
    let layer = layer.on_decision(move |decided| {
        told.lock().unwrap().push(decided.decision.unwrap_err().to_string());
    });
    let reply = Site::behind(layer).await.get("/").await;
    assert_eq!(reply.status, 500);
    assert!(!reply.body.contains("add the layer"), "{}", reply.body);
    assert_eq!(
        *said.lock().unwrap(),
        ["no decision, nothing charged: add the layer that tells it"]
    );
}

#[tokio::test]
async fn every_decision_is_seen_also_that_there_is_none() {
    let clock = ManualClock::default();
    let (store, off) = Store::new(memory(&clock));
    let limiter = Limiter::with_rules(store, [rule("api", &["fixed-window 1/h"])]).unwrap();
    let layer = RateLimitLayer::new(limiter, Header::from_static(TENANT))
        .on_missing_key(OnMissingKey::Deny);
    let (layer, seen) = watched(layer);
    let site = Site::behind(layer).await;
    let ask = async || site.ask("GET", "/", &[(TENANT, "a")]).await.status;
    assert_eq!([ask().await, ask().await], [200, 429]);
    off.store(true, Ordering::SeqCst);
    assert_eq!(ask().await, 503);
    assert_eq!(site.get("/").await.status, 429);
    let expected = [(true, Some(true)), (false, Some(false)), (false, None), (false, Some(false))];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn without_an_answer_requests_are_refused_unless_they_are_to_pass() {
    let clock = ManualClock::default();
    let (store, off) = Store::new(memory(&clock));
    let limiter = Limiter::with_rules(store, [rule("api", &["fixed-window 1/h"])]).unwrap();
    let layer = RateLimitLayer::new(limiter, Header::from_static(TENANT));
    let [closed, open] = [layer.clone(), layer.on_no_answer(OnNoAnswer::Pass)];
    let [closed, open] = [Site::behind(closed).await, Site::behind(open).await];
    off.store(true, Ordering::SeqCst);
    let reply = closed.get("/").await;
    assert_eq!((reply.status, reply.has_limits()), (503, false));
    assert!(!reply.body.contains("secret"), "what is wrong is nobody's business: {}", reply.body);
    assert_eq!(open.passes(5, &[]).await, 5);
    let long = "k".repeat(Key::MAX_LEN + 1);
    let reply = open.ask("GET", "/", &[(TENANT, &long)]).await;
    assert_eq!(reply.status, 400, "which is not for want of an answer");
}

#[tokio::test]
async fn the_answer_to_a_denial_may_be_the_services_own() {
    let clock = ManualClock::default();
    let layer = by_tenant(&clock, &["fixed-window 1/h", "9/s"]).render(|denial| {
        let why = match denial.reason() {
            Reason::Limited(decision) => format!("limited by {}", decision.source.name()),
            other => format!("{other:?}"),
        };
        let path = denial.request().uri.path();
        let wait = denial.retry_after().map_or(0, |wait| wait.as_secs());
        let body = format!("{path}: {why}, {}, {wait} s", denial.violated().join("+"));
        Response::builder().status(503).header("x-own", "yes").body(body.into()).unwrap()
    });
    let site = Site::behind(layer).await;
    site.get("/").await;
    let denied = site.get("/login").await;
    assert_eq!((denied.status, denied.header("x-own").as_deref()), (503, Some("yes")));
    assert_eq!(denied.body, "/login: limited by memory, api.1, 2800 s");
    assert_eq!(denied.header("retry-after").unwrap(), "2800", "which is told all the same");
    assert!(denied.has_limits());
    assert_eq!(denied.header("cache-control").unwrap(), "no-store");
}

#[tokio::test]
async fn clients_need_not_be_told_their_limits_but_when_to_come_back() {
    let clock = ManualClock::default();
    let site = Site::behind(by_tenant(&clock, &["fixed-window 1/h"]).without_headers()).await;
    assert!(!site.get("/").await.has_limits());
    let denied = site.get("/").await;
    assert_eq!((denied.status, denied.has_limits()), (429, false));
    assert_eq!(denied.header("retry-after").unwrap(), "2800");
    assert_eq!(denied.header("cache-control").unwrap(), "no-store");
}
