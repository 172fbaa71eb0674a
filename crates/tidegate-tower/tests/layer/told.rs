//! What clients are told: headers, and why not.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use sfv::{BareItem, Item, ListEntry, Parser};
use tidegate::{Clock, Fallback, Limiter, ManualClock, Memory, Rule, Share};
use tidegate_tower::{Everyone, RateLimitLayer};

use crate::site::{Reply, Site, limiter, memory, rule};
use crate::store::Store;

/// The headers that the layer writes, in one line each.
fn told(reply: &Reply) -> Vec<String> {
    let ours =
        |name: &str| name.contains("ratelimit") || ["retry-after", "cache-control"].contains(&name);
    let mut lines: Vec<String> = reply
        .headers
        .iter()
        .filter(|(name, _)| ours(name.as_str()))
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines
}

/// The items of a structured field, each with its parameters.
fn items(reply: &Reply, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let value = reply.header(name).unwrap();
    let list = Parser::new(&value).parse::<sfv::List>().unwrap();
    let item = |entry: &ListEntry| {
        let ListEntry::Item(Item { bare_item: BareItem::String(name), params }) = entry else {
            panic!("{entry:?}")
        };
        let parameter = |(key, value): (&sfv::Key, &BareItem)| {
            let BareItem::Integer(number) = value else { panic!("{value:?}") };
            (key.to_string(), i64::from(*number))
        };
        (name.to_string(), params.iter().map(parameter).collect())
    };
    list.iter().map(item).collect()
}

async fn site(clock: &ManualClock, rules: impl IntoIterator<Item = Rule>) -> Site {
    let limiter = Limiter::with_rules(memory(clock), rules).unwrap();
    Site::behind(RateLimitLayer::new(limiter, Everyone)).await
}

#[tokio::test]
async fn an_allowed_request_is_told_its_limit_and_a_denied_one_when_to_come_back() {
    let clock = ManualClock::default();
    let site = site(&clock, [rule("login", &["sliding-log 2/1m"])]).await;
    let first = site.get("/").await;
    assert_eq!((first.status, &*first.body), (200, "served"));
    assert_eq!(
        told(&first),
        [
            "ratelimit-policy: \"login\";q=2;w=60",
            "ratelimit: \"login\";r=1;t=60",
            "x-ratelimit-limit: 2",
            "x-ratelimit-remaining: 1",
            "x-ratelimit-reset: 60",
        ]
    );
    clock.advance(Duration::from_millis(20_500));
    assert_eq!(told(&site.get("/").await)[1], "ratelimit: \"login\";r=0;t=60");
    clock.advance(Duration::from_millis(10_000));
    let denied = site.get("/").await;
    assert_eq!(denied.status, 429);
    assert_eq!(
        told(&denied),
        [
            "cache-control: no-store",
            "ratelimit-policy: \"login\";q=2;w=60",
            // The first of the two leaves the log after 29.5 s, the second after 50.
            "ratelimit: \"login\";r=0;t=30",
            "retry-after: 30",
            "x-ratelimit-limit: 2",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 50",
        ]
    );
}

#[tokio::test]
async fn the_lists_are_structured_fields_with_an_item_for_each_limit() {
    let clock = ManualClock::default();
    let rules = [
        rule("login", &["sliding-log 5/1m", "fixed-window 100/d"]),
        rule("api", &["100/s burst 20"]),
    ];
    let site = site(&clock, rules).await;
    let passed = site.get("/").await;
    let pairs = |pairs: &[(&str, i64)]| -> Vec<(String, i64)> {
        pairs.iter().map(|(key, number)| ((*key).into(), *number)).collect()
    };
    assert_eq!(
        items(&passed, "ratelimit-policy"),
        [
            ("login.1".into(), pairs(&[("q", 5), ("w", 60)])),
            ("login.2".into(), pairs(&[("q", 100), ("w", 86_400)])),
            // It recovers within 200 ms, which is no whole number of seconds.
            ("api".into(), pairs(&[("q", 20)])),
        ]
    );
    // The clock shows 22:13:20, in UTC.
    assert_eq!(
        items(&passed, "ratelimit"),
        [
            ("login.1".into(), pairs(&[("r", 4), ("t", 60)])),
            ("login.2".into(), pairs(&[("r", 99), ("t", 6_400)])),
            ("api".into(), pairs(&[("r", 19), ("t", 1)])),
        ]
    );
    // The limit with the least left speaks.
    assert_eq!(passed.header("x-ratelimit-limit").unwrap(), "5");
    assert_eq!(passed.header("x-ratelimit-remaining").unwrap(), "4");
    assert_eq!(site.passes(10, &[]).await, 4);
    let denied = site.get("/").await;
    assert_eq!(items(&denied, "ratelimit")[0], ("login.1".into(), pairs(&[("r", 0), ("t", 60)])));
    assert_eq!(items(&denied, "ratelimit")[1].1[0], ("r".into(), 95), "what was denied is free");
    assert_eq!(denied.header("retry-after").unwrap(), "60");
    assert_eq!(denied.header("x-ratelimit-limit").unwrap(), "5");
}

#[tokio::test]
async fn whoever_comes_back_when_told_passes_and_a_microsecond_earlier_does_not() {
    for (limit, told, exact) in [
        ("1/2s", "2", 2_000_000),
        ("1/1500ms", "2", 1_500_000),
        ("3/s burst 1", "1", 333_334),
        ("1/s", "1", 1_000_000),
        ("sliding-log 1/2001ms", "3", 2_001_000),
        ("fixed-window 1/10s first-hit", "10", 10_000_000),
    ] {
        let clock = ManualClock::default();
        let site = Site::behind(RateLimitLayer::new(limiter(&clock, &[limit]), Everyone)).await;
        assert_eq!(site.get("/").await.status, 200);
        let denied = site.get("/").await;
        assert_eq!((denied.status, denied.header("retry-after").as_deref()), (429, Some(told)));
        clock.advance(Duration::from_micros(exact - 1));
        let early = site.get("/").await;
        assert_eq!((early.status, early.header("retry-after").as_deref()), (429, Some("1")));
        clock.advance(Duration::from_micros(1));
        assert_eq!(site.get("/").await.status, 200, "{limit}");
        // What is told is rounded up, so that it is never too early either.
        let denied = site.get("/").await.header("retry-after").unwrap();
        clock.advance(Duration::from_secs(denied.parse().unwrap()));
        assert_eq!(site.get("/").await.status, 200, "{limit}");
    }
}

/// It really waits: two seconds.
#[tokio::test]
async fn on_the_systems_clock_whoever_waits_the_seconds_passes() {
    let limiter = Limiter::new(Memory::default(), "1/2s".parse().unwrap());
    let site = Site::behind(RateLimitLayer::new(limiter, Everyone)).await;
    assert_eq!(site.get("/").await.status, 200);
    let denied = site.get("/").await;
    assert_eq!((denied.status, denied.header("retry-after").as_deref()), (429, Some("2")));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(site.get("/").await.status, 200);
}

#[tokio::test]
async fn a_request_that_can_never_pass_is_not_told_to_come_back() {
    let clock = ManualClock::default();
    let layer = RateLimitLayer::new(limiter(&clock, &["5/s"]), Everyone).cost(|_| 6);
    let denied = Site::behind(layer).await.get("/").await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!(items(&denied, "ratelimit"), [("api".into(), vec![("r".into(), 5)])]);
}

#[tokio::test]
async fn the_body_of_a_denial_is_a_problem_that_names_the_limits() {
    let clock = ManualClock::default();
    let rules = [rule("login", &["sliding-log 2/1m", "10/s"]), rule("api", &["fixed-window 2/h"])];
    let site = site(&clock, rules).await;
    site.passes(2, &[]).await;
    let denied = site.get("/").await;
    assert_eq!(denied.header("content-type").unwrap(), "application/problem+json");
    let problem: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(
        problem,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": ["login.1", "api"],
        })
    );
}

#[tokio::test]
async fn while_the_store_is_gone_the_problem_is_reduced_capacity() {
    let clock = ManualClock::default();
    let (store, off) = Store::new(memory(&clock));
    let limiter =
        Limiter::with_rules(Fallback::new(store), [rule("api", &["fixed-window 4/h"])]).unwrap();
    let site = Site::behind(RateLimitLayer::new(limiter, Everyone)).await;
    off.store(true, Ordering::SeqCst);
    assert_eq!(site.passes(4, &[]).await, 2, "a half of the limit");
    let denied = site.get("/").await;
    let problem: Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(
        problem,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 429,
            "violated-policies": ["api"],
        })
    );
    assert_eq!(denied.header("retry-after").unwrap(), clock_seconds_to_the_hour(&clock));
    off.store(false, Ordering::SeqCst);
    assert_eq!(site.passes(9, &[]).await, 4);
    let denied = site.get("/").await;
    assert!(denied.body.contains("#quota-exceeded"), "{}", denied.body);
}

fn clock_seconds_to_the_hour(clock: &ManualClock) -> String {
    (3_600 - clock.now().get() / 1_000_000 % 3_600).to_string()
}

#[tokio::test]
async fn with_jitter_nobody_is_told_to_come_back_too_early_and_not_all_at_once() {
    let clock = ManualClock::default();
    let layer = RateLimitLayer::new(limiter(&clock, &["1/1000s"]), Everyone);
    let site = Site::behind(layer.retry_jitter(Share::HALF)).await;
    assert_eq!(site.passes(1, &[]).await, 1);
    let mut waits = std::collections::HashSet::new();
    for _ in 0..20 {
        let wait: u64 = site.get("/").await.header("retry-after").unwrap().parse().unwrap();
        assert!((1_000..=1_500).contains(&wait), "{wait}");
        waits.insert(wait);
    }
    assert!(waits.len() > 10, "{waits:?}");
}
