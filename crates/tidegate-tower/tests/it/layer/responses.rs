//! Headers and problem bodies of responses.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use sfv::{BareItem, Item, ListEntry, Parser};
use tidegate::{Clock, Fallback, Fraction, Limiter, ManualClock, Memory, Rule};
use tidegate_tower::{Global, RateLimitLayer};

use testkit::engines::SwitchableEngine;
use testkit::http::{HttpReply, TestServer, limiter, memory, rule};

/// The headers of the layer, one line each.
fn limit_headers(reply: &HttpReply) -> Vec<String> {
    let is_limit_header =
        |name: &str| name.contains("ratelimit") || ["retry-after", "cache-control"].contains(&name);
    let mut lines: Vec<String> = reply
        .headers
        .iter()
        .filter(|(name, _)| is_limit_header(name.as_str()))
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines
}

/// The items of a structured field, each with its parameters.
fn items(reply: &HttpReply, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
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

async fn serve(clock: &ManualClock, rules: impl IntoIterator<Item = Rule>) -> TestServer {
    let limiter = Limiter::with_rules(memory(clock), rules).unwrap();
    TestServer::behind(RateLimitLayer::new(limiter, Global)).await
}

#[tokio::test]
async fn an_allowed_response_has_limit_headers_and_a_denied_one_has_a_retry_after() {
    let clock = ManualClock::default();
    let server = serve(&clock, [rule("login", &["sliding-log 2/1m"])]).await;
    let first = server.get("/").await;
    assert_eq!((first.status, &*first.body), (200, "served"));
    assert_eq!(
        limit_headers(&first),
        [
            "ratelimit-policy: \"login\";q=2;w=60",
            "ratelimit: \"login\";r=1;t=60",
            "x-ratelimit-limit: 2",
            "x-ratelimit-remaining: 1",
            "x-ratelimit-reset: 60",
        ]
    );
    clock.advance(Duration::from_millis(20_500));
    assert_eq!(limit_headers(&server.get("/").await)[1], "ratelimit: \"login\";r=0;t=60");
    clock.advance(Duration::from_millis(10_000));
    let denied = server.get("/").await;
    assert_eq!(denied.status, 429);
    assert_eq!(
        limit_headers(&denied),
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
    let server = serve(&clock, rules).await;
    let passed = server.get("/").await;
    let pairs = |pairs: &[(&str, i64)]| -> Vec<(String, i64)> {
        pairs.iter().map(|(key, number)| ((*key).into(), *number)).collect()
    };
    assert_eq!(
        items(&passed, "ratelimit-policy"),
        [
            ("login.1".into(), pairs(&[("q", 5), ("w", 60)])),
            ("login.2".into(), pairs(&[("q", 100), ("w", 86_400)])),
            // It recovers within 200 ms, less than a second, so it has no `w`.
            ("api".into(), pairs(&[("q", 20), ("rate", 100), ("per", 1)])),
        ]
    );
    // The clock shows 22:13:20 UTC.
    assert_eq!(
        items(&passed, "ratelimit"),
        [
            ("login.1".into(), pairs(&[("r", 4), ("t", 60)])),
            ("login.2".into(), pairs(&[("r", 99), ("t", 6_400)])),
            ("api".into(), pairs(&[("r", 19), ("t", 1)])),
        ]
    );
    // The `x-` headers describe the limit with the least remaining.
    assert_eq!(passed.header("x-ratelimit-limit").unwrap(), "5");
    assert_eq!(passed.header("x-ratelimit-remaining").unwrap(), "4");
    assert_eq!(server.count_admitted(10, &[]).await, 4);
    let denied = server.get("/").await;
    assert_eq!(items(&denied, "ratelimit")[0], ("login.1".into(), pairs(&[("r", 0), ("t", 60)])));
    assert_eq!(
        items(&denied, "ratelimit")[1].1[0],
        ("r".into(), 95),
        "denied requests are not charged"
    );
    assert_eq!(denied.header("retry-after").unwrap(), "60");
    assert_eq!(denied.header("x-ratelimit-limit").unwrap(), "5");
}

#[tokio::test]
async fn a_retry_after_the_wait_passes_and_a_microsecond_earlier_does_not() {
    for (limit, seconds, exact) in [
        ("1/2s", "2", 2_000_000),
        ("1/1500ms", "2", 1_500_000),
        ("3/s burst 1", "1", 333_334),
        ("1/s", "1", 1_000_000),
        ("sliding-log 1/2001ms", "3", 2_001_000),
        ("fixed-window 1/10s first-hit", "10", 10_000_000),
    ] {
        let clock = ManualClock::default();
        let server =
            TestServer::behind(RateLimitLayer::new(limiter(&clock, &[limit]), Global)).await;
        assert_eq!(server.get("/").await.status, 200);
        let denied = server.get("/").await;
        assert_eq!((denied.status, denied.header("retry-after").as_deref()), (429, Some(seconds)));
        clock.advance(Duration::from_micros(exact - 1));
        let early = server.get("/").await;
        assert_eq!((early.status, early.header("retry-after").as_deref()), (429, Some("1")));
        clock.advance(Duration::from_micros(1));
        assert_eq!(server.get("/").await.status, 200, "{limit}");
        // `retry-after` is rounded up, so a retry after it is never too early.
        let denied = server.get("/").await.header("retry-after").unwrap();
        clock.advance(Duration::from_secs(denied.parse().unwrap()));
        assert_eq!(server.get("/").await.status, 200, "{limit}");
    }
}

/// Waits up to two seconds in real time, as long as the response asks for.
#[tokio::test]
async fn on_the_system_clock_a_retry_after_the_seconds_passes() {
    let limiter = Limiter::new(Memory::default(), "1/2s".parse().unwrap());
    let server = TestServer::behind(RateLimitLayer::new(limiter, Global)).await;
    // On a busy machine a second request may come late enough to pass.
    let denied = loop {
        let response = server.get("/").await;
        if response.status != 200 {
            break response;
        }
    };
    let seconds = denied.header("retry-after").unwrap().parse().unwrap();
    assert!(denied.status == 429 && (1..=2).contains(&seconds), "{seconds} s");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(server.get("/").await.status, 200);
}

#[tokio::test]
async fn a_request_that_can_never_pass_gets_no_retry_after() {
    let clock = ManualClock::default();
    let layer = RateLimitLayer::new(limiter(&clock, &["5/s"]), Global).cost(|_| 6);
    let denied = TestServer::behind(layer).await.get("/").await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!(items(&denied, "ratelimit"), [("api".into(), vec![("r".into(), 5)])]);
}

#[tokio::test]
async fn the_body_of_a_denial_is_a_problem_that_names_the_limits() {
    let clock = ManualClock::default();
    let rules = [rule("login", &["sliding-log 2/1m", "10/s"]), rule("api", &["fixed-window 2/h"])];
    let server = serve(&clock, rules).await;
    server.count_admitted(2, &[]).await;
    let denied = server.get("/").await;
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
    let (store, off) = SwitchableEngine::new(memory(&clock));
    let limiter =
        Limiter::with_rules(Fallback::new(store), [rule("api", &["fixed-window 4/h"])]).unwrap();
    let server = TestServer::behind(RateLimitLayer::new(limiter, Global)).await;
    off.store(true, Ordering::SeqCst);
    assert_eq!(server.count_admitted(4, &[]).await, 2, "half of the limit");
    let denied = server.get("/").await;
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
    assert_eq!(server.count_admitted(9, &[]).await, 4);
    let denied = server.get("/").await;
    assert!(denied.body.contains("#quota-exceeded"), "{}", denied.body);
}

fn clock_seconds_to_the_hour(clock: &ManualClock) -> String {
    (3_600 - clock.now().get() / 1_000_000 % 3_600).to_string()
}

#[tokio::test]
async fn with_jitter_retry_after_is_never_too_early_and_differs_between_requests() {
    let clock = ManualClock::default();
    let layer = RateLimitLayer::new(limiter(&clock, &["1/1000s"]), Global);
    let server = TestServer::behind(layer.retry_jitter(Fraction::HALF)).await;
    assert_eq!(server.count_admitted(1, &[]).await, 1);
    let mut waits = std::collections::HashSet::new();
    for _ in 0..20 {
        let wait: u64 = server.get("/").await.header("retry-after").unwrap().parse().unwrap();
        assert!((1_000..=1_500).contains(&wait), "{wait}");
        waits.insert(wait);
    }
    assert!(waits.len() > 10, "{waits:?}");
}
