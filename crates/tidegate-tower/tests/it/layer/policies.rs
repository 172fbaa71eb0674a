//! Whole policies, and rules that depend on the request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::{Request, Response};
use tidegate::policy::{AfterMatch, KeyPart, ListEntry, Match, OnMissingKey, Override};
use tidegate::{Clock, Limiter, ManualClock, Micros, Policy, PolicyRule, Rule, RuleDraft};
use tidegate_tower::extract::TrustedProxies;
use tidegate_tower::{Header, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt, service_fn};

use testkit::http::{TestServer, limiter, memory, used_and_held};

const KEY: &str = "x-api-key";
const FORWARDED: &str = "x-forwarded-for";

fn draft(name: &str, limit: &str) -> RuleDraft {
    let limits = vec![limit.parse().unwrap()];
    RuleDraft { name: name.into(), limits, ..RuleDraft::default() }
}

fn by_key(name: &str, limit: &str) -> RuleDraft {
    RuleDraft { key: vec![KeyPart::Header(KEY.into())], ..draft(name, limit) }
}

fn policy(drafts: impl IntoIterator<Item = RuleDraft>) -> Policy {
    let rules = drafts.into_iter().map(|draft| PolicyRule::new(draft).unwrap());
    Policy::new(rules).unwrap()
}

async fn serve(clock: &ManualClock, policy: Policy) -> (TestServer, Limiter) {
    let limiter = Limiter::with_policy(memory(clock), policy);
    let layer = RateLimitLayer::policy(limiter.clone(), TrustedProxies::default());
    (TestServer::behind(layer).await, limiter)
}

/// How many of nine requests pass.
async fn of_nine(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)]) -> usize {
    let mut passed = 0;
    for _ in 0..9 {
        passed += usize::from(server.request(method, path, headers).await.status == 200);
    }
    passed
}

#[tokio::test]
async fn rules_apply_to_the_requests_that_they_match() {
    let clock = ManualClock::default();
    let login = RuleDraft {
        matches: Match {
            methods: vec!["POST".into()],
            path: Some("/login".parse().unwrap()),
            ..Match::default()
        },
        key: vec![KeyPart::ClientIp],
        ..draft("login", "fixed-window 1/h")
    };
    let tenant = RuleDraft {
        matches: Match { path: Some("/tenants/{tenant}/*".parse().unwrap()), ..Match::default() },
        key: vec![KeyPart::Path("tenant".into())],
        ..draft("tenant", "fixed-window 2/h")
    };
    let stop = RuleDraft {
        matches: Match { path: Some("/health".parse().unwrap()), ..Match::default() },
        then: AfterMatch::Stop,
        ..draft("health", "fixed-window 8/h")
    };
    let (server, _) = serve(&clock, policy([stop, login, tenant])).await;
    assert_eq!(of_nine(&server, "POST", "/login", &[]).await, 1);
    assert_eq!(of_nine(&server, "POST", "/%6Cogin", &[]).await, 0, "percent-encoded");
    assert_eq!(of_nine(&server, "POST", "/login", &[(FORWARDED, "203.0.113.1")]).await, 1);
    assert_eq!(of_nine(&server, "GET", "/login", &[]).await, 9);
    assert_eq!(of_nine(&server, "GET", "/tenants/acme/x", &[]).await, 2);
    assert_eq!(of_nine(&server, "GET", "/tenants/other/x", &[]).await, 2);
    assert_eq!(of_nine(&server, "GET", "/health", &[]).await, 8);
    let unlimited = server.get("/else").await;
    assert_eq!(
        (unlimited.status, unlimited.has_limit_headers()),
        (200, false),
        "no rule, no headers"
    );
}

#[tokio::test]
async fn lists_and_overrides_apply_and_a_deny_list_sends_no_retry_after() {
    let clock = ManualClock::default();
    let until = clock.now().saturating_add(Micros::from_secs(60));
    let rule = RuleDraft {
        on_missing_key: OnMissingKey::Deny,
        allow: vec![ListEntry::from("10.0.0.0/8")],
        deny: vec![ListEntry::from("banned"), ListEntry::from("203.0.113.0/24")],
        overrides: vec![Override {
            key: vec!["gold".into()],
            limits: vec!["fixed-window 5/h".parse().unwrap()],
            until: Some(until),
        }],
        ..by_key("api", "fixed-window 2/h")
    };
    let (server, _) = serve(&clock, policy([rule])).await;
    assert_eq!(of_nine(&server, "GET", "/", &[(KEY, "plain")]).await, 2);
    assert_eq!(of_nine(&server, "GET", "/", &[(KEY, "gold")]).await, 5);
    assert_eq!(of_nine(&server, "GET", "/", &[(FORWARDED, "10.1.2.3")]).await, 9, "exempt");
    let listed = [(FORWARDED, "203.0.113.9"), (KEY, "x")];
    for headers in [&[(KEY, "banned")][..], &listed, &[]] {
        let denied = server.request("GET", "/", headers).await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, None), "{headers:?}");
        assert!(denied.body.contains("\"violated-policies\":[\"api\"]"), "{}", denied.body);
    }
    clock.advance(Duration::from_secs(60));
    assert_eq!(of_nine(&server, "GET", "/", &[(KEY, "gold")]).await, 0, "the override has ended");
}

#[tokio::test]
async fn a_new_policy_applies_at_once_and_keeps_the_usage() {
    let clock = ManualClock::default();
    let (server, limiter) = serve(&clock, policy([by_key("api", "fixed-window 3/h")])).await;
    assert_eq!(of_nine(&server, "GET", "/", &[(KEY, "a")]).await, 3);
    limiter.set_policy(policy([by_key("api", "fixed-window 5/h")]));
    assert_eq!(of_nine(&server, "GET", "/", &[(KEY, "a")]).await, 2);
    limiter.set_policy(policy([]));
    assert_eq!(of_nine(&server, "GET", "/", &[(KEY, "a")]).await, 9);

    // Under concurrent requests, none sees half a policy: both rules apply, or none.
    let both = || {
        let other = RuleDraft { name: "other".into(), ..by_key("other", "fixed-window 1000000/h") };
        policy([by_key("api", "fixed-window 1000000/h"), other])
    };
    let requests = tokio::spawn({
        let server = server.clone();
        async move {
            let mut counts = Vec::new();
            for _ in 0..500 {
                let reply = server.request("GET", "/", &[(KEY, "b")]).await;
                assert_eq!(reply.status, 200);
                let list = reply.header("ratelimit").unwrap_or_default();
                counts.push(list.matches(";r=").count());
            }
            counts
        }
    });
    while !requests.is_finished() {
        limiter.set_policy(both());
        tokio::time::sleep(Duration::from_millis(1)).await;
        limiter.set_policy(policy([]));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let counts = requests.await.unwrap();
    assert!(counts.iter().all(|count| [0, 2].contains(count)), "{counts:?}");
    assert!(counts.contains(&0) && counts.contains(&2), "both were seen");
}

#[tokio::test]
async fn a_header_sets_the_cost_only_from_a_trusted_proxy() {
    let clock = ManualClock::default();
    let costly = || {
        policy([RuleDraft {
            cost_header: Some("x-cost".into()),
            ..by_key("api", "fixed-window 9/h")
        }])
    };
    let (server, limiter) = serve(&clock, costly()).await;
    server.request("GET", "/", &[(KEY, "a"), ("x-cost", "4")]).await;
    assert_eq!(used_and_held(&limiter, "a", 0).await.0, 4);
    let no_proxies: TrustedProxies = [].into_iter().collect();
    let strict = RateLimitLayer::policy(limiter.clone(), no_proxies);
    TestServer::behind(strict).await.request("GET", "/", &[(KEY, "b"), ("x-cost", "4")]).await;
    assert_eq!(used_and_held(&limiter, "b", 0).await.0, 1);
    let proxies = TrustedProxies::default();
    let own = RateLimitLayer::policy(limiter.clone(), proxies).cost(|_| 3);
    TestServer::behind(own).await.request("GET", "/", &[(KEY, "c"), ("x-cost", "4")]).await;
    assert_eq!(
        used_and_held(&limiter, "c", 0).await.0,
        3,
        "the cost function of the service takes precedence"
    );
}

#[tokio::test]
async fn a_policy_that_counts_addresses_refuses_every_request_without_a_peer_address() {
    let clock = ManualClock::default();
    let by_address =
        || RuleDraft { key: vec![KeyPart::ClientIp], ..draft("api", "fixed-window 2/h") };
    for (policy, status) in
        [(policy([by_address()]), 500), (policy([by_key("api", "fixed-window 2/h")]), 200)]
    {
        let limiter = Limiter::with_policy(memory(&clock), policy);
        let layer = RateLimitLayer::policy(limiter, TrustedProxies::default());
        let app = Router::new().fallback(|| async { "served" }).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = TestServer::at(listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        assert_eq!(server.get("/").await.status, status);
    }
}

// --- plans -------------------------------------------------------------------------------------

const PLAN: &str = "x-plan";

/// Each tenant has the plan that its request names.
async fn with_plans(limiter: &Limiter) -> TestServer {
    let plan = |limit: &str| Arc::new(Rule::per_call("plan", [limit.parse().unwrap()]).unwrap());
    let plans = [("free", plan("fixed-window 3/h")), ("gold", plan("fixed-window 8/h"))];
    let find = move |request: &http::request::Parts| {
        let name = request.headers.get(PLAN)?.to_str().ok()?;
        plans.iter().find(|(plan, _)| *plan == name).map(|(_, rule)| rule.clone())
    };
    TestServer::behind(RateLimitLayer::per_request_rule(
        limiter.clone(),
        Header::from_static("x-tenant"),
        find,
    ))
    .await
}

#[tokio::test]
async fn a_tenant_that_changes_plans_keeps_its_usage() {
    let clock = ManualClock::default();
    let server = with_plans(&limiter(&clock, &["fixed-window 1/h"])).await;
    let admitted = async |tenant: &str, plan: &str, of: usize| {
        server.count_admitted(of, &[("x-tenant", tenant), (PLAN, plan)]).await
    };
    // Upgrade: 8 less the 3 that were used.
    assert_eq!(admitted("acme", "free", 9).await, 3);
    assert_eq!(admitted("acme", "gold", 9).await, 5);
    // Downgrade: more is used than the new limit has.
    assert_eq!(admitted("acme", "free", 9).await, 0);
    // Downgrade with 2 used leaves 1. Switching back and forth adds no permits.
    assert_eq!(admitted("shuttle", "gold", 2).await, 2);
    assert_eq!(admitted("shuttle", "free", 9).await, 1);
    let mut more = 0;
    for _ in 0..10 {
        more += admitted("shuttle", "gold", 1).await + admitted("shuttle", "free", 1).await;
    }
    assert_eq!(more, 5, "8 in total");
    // Tenants are counted separately, and the limiter's rule applies without a plan.
    assert_eq!(admitted("other", "free", 9).await, 3);
    assert_eq!(admitted("other", "none", 9).await, 1);
    let reply = server.request("GET", "/", &[("x-tenant", "new"), (PLAN, "gold")]).await;
    assert_eq!(reply.header("ratelimit-policy").unwrap(), "\"plan\";q=8;w=3600");
}

/// Without an address, no request would match the list.
#[tokio::test]
async fn a_list_of_networks_needs_the_peer_address() {
    let clock = ManualClock::default();
    let draft = |deny: &str| RuleDraft {
        name: "api".into(),
        limits: vec!["9/s".parse().unwrap()],
        deny: vec![ListEntry::from(deny)],
        ..RuleDraft::default()
    };
    for (deny, status) in [("203.0.113.0/24", 500), ("user-1", 200)] {
        let limiter = Limiter::with_policy(memory(&clock), policy([draft(deny)]));
        let layer = RateLimitLayer::policy(limiter, TrustedProxies::default());
        let service = service_fn(|_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(axum::body::Body::empty()))
        });
        let response = layer.layer(service).oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), status, "{deny}");
    }
}
