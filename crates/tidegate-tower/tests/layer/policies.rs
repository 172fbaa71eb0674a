//! Whole policies, and the plans that requests bring along.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::{Request, Response};
use tidegate::policy::{Entry, KeyPart, Match, OnMissingKey, Override, Then};
use tidegate::{Clock, Limiter, ManualClock, Micros, Policy, PolicyRule, Rule, RuleDraft};
use tidegate_tower::extract::TrustedProxies;
use tidegate_tower::{Header, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt, service_fn};

use crate::site::{Site, limiter, memory, standing};

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

async fn site(clock: &ManualClock, policy: Policy) -> (Site, Limiter) {
    let limiter = Limiter::with_policy(memory(clock), policy);
    let layer = RateLimitLayer::policy(limiter.clone(), TrustedProxies::default());
    (Site::behind(layer).await, limiter)
}

/// How many of nine pass.
async fn of_nine(site: &Site, method: &str, path: &str, headers: &[(&str, &str)]) -> usize {
    let mut passed = 0;
    for _ in 0..9 {
        passed += usize::from(site.ask(method, path, headers).await.status == 200);
    }
    passed
}

#[tokio::test]
async fn rules_apply_to_the_requests_that_they_are_about() {
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
        then: Then::Stop,
        ..draft("health", "fixed-window 8/h")
    };
    let (site, _) = site(&clock, policy([stop, login, tenant])).await;
    assert_eq!(of_nine(&site, "POST", "/login", &[]).await, 1);
    assert_eq!(of_nine(&site, "POST", "/%6Cogin", &[]).await, 0, "spelled another way");
    assert_eq!(of_nine(&site, "POST", "/login", &[(FORWARDED, "203.0.113.1")]).await, 1);
    assert_eq!(of_nine(&site, "GET", "/login", &[]).await, 9);
    assert_eq!(of_nine(&site, "GET", "/tenants/acme/x", &[]).await, 2);
    assert_eq!(of_nine(&site, "GET", "/tenants/other/x", &[]).await, 2);
    assert_eq!(of_nine(&site, "GET", "/health", &[]).await, 8);
    let unlimited = site.get("/else").await;
    assert_eq!((unlimited.status, unlimited.has_limits()), (200, false), "no rule, no headers");
}

#[tokio::test]
async fn lists_and_overrides_count_and_a_list_is_not_told_to_come_back() {
    let clock = ManualClock::default();
    let until = clock.now().saturating_add(Micros::from_secs(60));
    let rule = RuleDraft {
        on_missing_key: OnMissingKey::Deny,
        allow: vec![Entry::from("10.0.0.0/8")],
        deny: vec![Entry::from("banned"), Entry::from("203.0.113.0/24")],
        overrides: vec![Override {
            key: vec!["gold".into()],
            limits: vec!["fixed-window 5/h".parse().unwrap()],
            until: Some(until),
        }],
        ..by_key("api", "fixed-window 2/h")
    };
    let (site, _) = site(&clock, policy([rule])).await;
    assert_eq!(of_nine(&site, "GET", "/", &[(KEY, "plain")]).await, 2);
    assert_eq!(of_nine(&site, "GET", "/", &[(KEY, "gold")]).await, 5);
    assert_eq!(of_nine(&site, "GET", "/", &[(FORWARDED, "10.1.2.3")]).await, 9, "exempt");
    let faraway = [(FORWARDED, "203.0.113.9"), (KEY, "x")];
    for headers in [&[(KEY, "banned")][..], &faraway, &[]] {
        let denied = site.ask("GET", "/", headers).await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, None), "{headers:?}");
        assert!(denied.body.contains("\"violated-policies\":[\"api\"]"), "{}", denied.body);
    }
    clock.advance(Duration::from_secs(60));
    assert_eq!(of_nine(&site, "GET", "/", &[(KEY, "gold")]).await, 0, "the override has ended");
}

#[tokio::test]
async fn a_policy_that_takes_the_place_of_another_counts_at_once_and_keeps_what_was_used() {
    let clock = ManualClock::default();
    let (site, limiter) = site(&clock, policy([by_key("api", "fixed-window 3/h")])).await;
    assert_eq!(of_nine(&site, "GET", "/", &[(KEY, "a")]).await, 3);
    limiter.set_policy(policy([by_key("api", "fixed-window 5/h")]));
    assert_eq!(of_nine(&site, "GET", "/", &[(KEY, "a")]).await, 2);
    limiter.set_policy(policy([]));
    assert_eq!(of_nine(&site, "GET", "/", &[(KEY, "a")]).await, 9);

    // While many ask, nobody sees half a policy: both rules are there, or none.
    let both = || {
        let other = RuleDraft { name: "other".into(), ..by_key("other", "fixed-window 1000000/h") };
        policy([by_key("api", "fixed-window 1000000/h"), other])
    };
    let asking = tokio::spawn({
        let site = site.clone();
        async move {
            let mut counts = Vec::new();
            for _ in 0..500 {
                let reply = site.ask("GET", "/", &[(KEY, "b")]).await;
                assert_eq!(reply.status, 200);
                let list = reply.header("ratelimit").unwrap_or_default();
                counts.push(list.matches(";r=").count());
            }
            counts
        }
    });
    while !asking.is_finished() {
        limiter.set_policy(both());
        tokio::time::sleep(Duration::from_millis(1)).await;
        limiter.set_policy(policy([]));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let counts = asking.await.unwrap();
    assert!(counts.iter().all(|count| [0, 2].contains(count)), "{counts:?}");
    assert!(counts.contains(&0) && counts.contains(&2), "both were seen");
}

#[tokio::test]
async fn a_header_tells_the_cost_only_from_a_proxy_that_is_trusted() {
    let clock = ManualClock::default();
    let costly = || {
        policy([RuleDraft {
            cost_header: Some("x-cost".into()),
            ..by_key("api", "fixed-window 9/h")
        }])
    };
    let (site, limiter) = site(&clock, costly()).await;
    site.ask("GET", "/", &[(KEY, "a"), ("x-cost", "4")]).await;
    assert_eq!(standing(&limiter, "a", 0).await.0, 4);
    let nobody: TrustedProxies = [].into_iter().collect();
    let strict = RateLimitLayer::policy(limiter.clone(), nobody);
    Site::behind(strict).await.ask("GET", "/", &[(KEY, "b"), ("x-cost", "4")]).await;
    assert_eq!(standing(&limiter, "b", 0).await.0, 1);
    let proxies = TrustedProxies::default();
    let own = RateLimitLayer::policy(limiter.clone(), proxies).cost(|_| 3);
    Site::behind(own).await.ask("GET", "/", &[(KEY, "c"), ("x-cost", "4")]).await;
    assert_eq!(standing(&limiter, "c", 0).await.0, 3, "the service's own word comes first");
}

#[tokio::test]
async fn a_policy_that_counts_addresses_refuses_everybody_if_nobody_tells_them() {
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
        let site = Site::at(listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        assert_eq!(site.get("/").await.status, status);
    }
}

// --- plans -------------------------------------------------------------------------------------

const PLAN: &str = "x-plan";

/// Each tenant is under the plan that it says it has.
async fn with_plans(limiter: &Limiter) -> Site {
    let plan =
        |limit: &str| Arc::new(Rule::brought_along("plan", [limit.parse().unwrap()]).unwrap());
    let plans = [("free", plan("fixed-window 3/h")), ("gold", plan("fixed-window 8/h"))];
    let find = move |request: &http::request::Parts| {
        let name = request.headers.get(PLAN)?.to_str().ok()?;
        plans.iter().find(|(plan, _)| *plan == name).map(|(_, rule)| rule.clone())
    };
    Site::behind(RateLimitLayer::plans(limiter.clone(), Header::from_static("x-tenant"), find))
        .await
}

#[tokio::test]
async fn a_tenant_who_changes_plans_keeps_what_is_used() {
    let clock = ManualClock::default();
    let site = with_plans(&limiter(&clock, &["fixed-window 1/h"])).await;
    let ask = async |tenant: &str, plan: &str, of: usize| {
        site.passes(of, &[("x-tenant", tenant), (PLAN, plan)]).await
    };
    // Up: 8 less the 3 that were used.
    assert_eq!(ask("acme", "free", 9).await, 3);
    assert_eq!(ask("acme", "gold", 9).await, 5);
    // Down: what was used is more than there is now.
    assert_eq!(ask("acme", "free", 9).await, 0);
    // Down with 2 used, which leaves 1; and going to and fro gives nobody more.
    assert_eq!(ask("shuttle", "gold", 2).await, 2);
    assert_eq!(ask("shuttle", "free", 9).await, 1);
    let mut more = 0;
    for _ in 0..10 {
        more += ask("shuttle", "gold", 1).await + ask("shuttle", "free", 1).await;
    }
    assert_eq!(more, 5, "which makes 8 in all");
    // Tenants are apart, and who has no plan is under the limiter's own rule.
    assert_eq!(ask("other", "free", 9).await, 3);
    assert_eq!(ask("other", "none", 9).await, 1);
    let told = site.ask("GET", "/", &[("x-tenant", "new"), (PLAN, "gold")]).await;
    assert_eq!(told.header("ratelimit-policy").unwrap(), "\"plan\";q=8;w=3600");
}

/// Otherwise nobody would be on the list.
#[tokio::test]
async fn a_list_of_networks_needs_to_know_who_a_connection_is_from() {
    let clock = ManualClock::default();
    let draft = |deny: &str| RuleDraft {
        name: "api".into(),
        limits: vec!["9/s".parse().unwrap()],
        deny: vec![Entry::from(deny)],
        ..RuleDraft::default()
    };
    for (deny, status) in [("203.0.113.0/24", 500), ("somebody", 200)] {
        let limiter = Limiter::with_policy(memory(&clock), policy([draft(deny)]));
        let layer = RateLimitLayer::policy(limiter, TrustedProxies::default());
        let service = service_fn(|_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(axum::body::Body::empty()))
        });
        let response = layer.layer(service).oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), status, "{deny}");
    }
}
