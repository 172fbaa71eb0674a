//! The check service behind every listener: decisions by the policy, and counts.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tidegate::policy::{Request, RuleTarget};
use tidegate::{
    Call, Clock, Cost, Costs, Decision, Engine, EngineError, EngineFuture, Health, Inspection, Key,
    ManualClock, Memory, Refusal, Rule, RuleCheck, RuleLimit, Source, SystemClock,
};
use tidegate_config::{LoadedPolicy, PolicyLoader};
use tidegate_server::internal::check::{
    CheckError, CheckService, Operation, SettleAction, Throttle,
};
use tidegate_server::internal::observe::metrics::Metrics;
use tidegate_server::internal::policy::PolicyManager;

use testkit::process::print_figure;
use testkit::server::ServerProcess;

fn load(policy: &str) -> LoadedPolicy {
    PolicyLoader::load_str("policy.yaml", policy).unwrap()
}

fn service_on(engine: impl Engine, policy: &str) -> CheckService {
    let metrics = Arc::new(Metrics::default());
    let active = PolicyManager::active(&load(policy), &metrics).unwrap();
    CheckService::new(Arc::new(engine), active, metrics)
}

/// A service in memory on a stopped clock.
fn service(policy: &str) -> CheckService {
    service_on(Memory::builder().clock(ManualClock::default()).build(), policy)
}

fn rule<'a>(name: &'a str, key: &'a str, cost: u64) -> RuleCheck<'a> {
    RuleCheck::new(name, key).cost(cost)
}

/// The non-zero samples of a metric family, without its name.
fn samples(service: &CheckService, family: &str) -> BTreeSet<String> {
    let text = service.metrics().render(&service.health());
    let sample = |line: &str| {
        let rest = line.strip_prefix(family)?;
        (rest.starts_with('{') && !rest.ends_with(" 0")).then(|| rest.replace('"', ""))
    };
    text.lines().filter_map(sample).collect()
}

fn set(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(ToString::to_string).collect()
}

const CHECKS: &str = "tidegate_checks_total";
const SHADOW: &str = "tidegate_shadow_denied_total";

#[tokio::test]
async fn each_rule_of_a_call_counts_once_with_its_own_outcome() {
    let service = service(
        "rules: [{ name: few, limits: [1/h, 5/d] }, { name: many, limits: [100/h] }, { name: no, limits: [0/s] }]",
    );
    let steps: [(Operation, &[RuleCheck<'_>], bool, &[&str]); 7] = [
        (
            Operation::Check,
            &[rule("few", "k", 1), rule("many", "k", 1)],
            true,
            &[
                "{rule=few,outcome=allow,source=memory} 1",
                "{rule=many,outcome=allow,source=memory} 1",
            ],
        ),
        // The second rule would have allowed it, and reports so.
        (
            Operation::Check,
            &[rule("few", "k", 1), rule("many", "k", 1)],
            false,
            &[
                "{rule=few,outcome=deny,source=memory} 1",
                "{rule=many,outcome=allow,source=memory} 2",
            ],
        ),
        (
            Operation::Check,
            &[rule("no", "k", 1)],
            false,
            &["{rule=no,outcome=never,source=memory} 1"],
        ),
        // Two keys of one rule count as one rule of one call, with the worse outcome.
        (
            Operation::Check,
            &[rule("few", "k2", 1), rule("few", "k", 1)],
            false,
            &["{rule=few,outcome=deny,source=memory} 2"],
        ),
        (
            Operation::Reserve(None.into()),
            &[rule("few", "k2", 1)],
            true,
            &["{rule=few,outcome=allow,source=memory} 2"],
        ),
        (
            Operation::Wait(Duration::ZERO),
            &[rule("few", "k2", 1)],
            false,
            &["{rule=few,outcome=deny,source=memory} 3"],
        ),
        // A cost of zero counts nothing.
        (Operation::Peek, &[rule("few", "k", 1)], true, &[]),
    ];
    for (nth, (verb, checks, allowed, counted)) in steps.into_iter().enumerate() {
        let before = samples(&service, CHECKS);
        let result = service.run(verb, checks, None).await.unwrap();
        assert_eq!(result.decision.allowed(), allowed, "step {nth}");
        let after = samples(&service, CHECKS);
        let news: BTreeSet<String> = after.difference(&before).cloned().collect();
        assert_eq!(news, set(counted), "step {nth}");
    }
    for verb in [Operation::Record, Operation::Refund, Operation::Reset] {
        let before = samples(&service, CHECKS);
        service.run(verb, &[rule("many", "k", 1)], None).await.unwrap();
        assert_eq!(samples(&service, CHECKS), before, "{verb:?}");
    }
    let throttle = Throttle { max_burst: 4, count: 5, period: 1 };
    let [limit, throttle] = [service.adhoc_limit("5/s"), service.throttle(throttle)]
        .map(|target| RuleCheck::of(target.unwrap(), "k", 1));
    service.run(Operation::Check, &[limit, throttle], None).await.unwrap();
    let after = samples(&service, CHECKS);
    assert!(after.contains("{rule=adhoc,outcome=allow,source=memory} 1"), "{after:?}");
    assert!(after.contains("{rule=throttle,outcome=allow,source=memory} 1"), "{after:?}");
    assert_eq!(samples(&service, SHADOW), set(&[]));
}

#[tokio::test]
async fn what_passes_although_a_candidate_would_deny_it_counts_once_a_call() {
    let service = service(
        r#"rules:
  - { name: api, limits: [3/h], shadow_limits: [1/h, 2/h] }
  - { name: watched, shadow: true, limits: [1/h], deny: [mallory] }
  - { name: full, limits: [0/s] }
"#,
    );
    let steps: [(&[RuleCheck<'_>], &[&str]); 6] = [
        (&[rule("api", "k", 1)], &[]),
        (&[rule("api", "k", 1)], &["{rule=api} 1"]),
        // Both candidates would deny; it is one call.
        (&[rule("api", "k", 1)], &["{rule=api} 2"]),
        // Denied by the enforced rule anyway.
        (&[rule("api", "k", 1)], &["{rule=api} 2"]),
        (
            &[rule("watched", "mallory", 1), rule("watched", "mallory", 1)],
            &["{rule=api} 2", "{rule=watched} 1"],
        ),
        (
            &[rule("watched", "mallory", 1), rule("full", "k", 1)],
            &["{rule=api} 2", "{rule=watched} 1"],
        ),
    ];
    for (nth, (checks, counted)) in steps.into_iter().enumerate() {
        service.run(Operation::Check, checks, None).await.unwrap();
        assert_eq!(samples(&service, SHADOW), set(counted), "step {nth}");
    }
    let outcomes = samples(&service, CHECKS);
    assert!(outcomes.contains("{rule=api,outcome=allow,source=memory} 3"), "{outcomes:?}");
    assert!(outcomes.contains("{rule=api,outcome=deny,source=memory} 1"), "{outcomes:?}");
}

/// An engine with a chosen error that counts its calls.
struct Broken {
    ambiguous: AtomicBool,
    calls: Arc<AtomicU64>,
}

impl Broken {
    fn error(&self) -> EngineError {
        let cause = std::io::Error::other("gone");
        match self.ambiguous.swap(true, Ordering::Relaxed) {
            true => EngineError::Ambiguous(Arc::new(cause)),
            false => EngineError::unavailable(cause),
        }
    }
}

impl Engine for Broken {
    fn decide<'a>(&'a self, _: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async {
            self.calls.fetch_add(1, Ordering::Relaxed);
            Err(self.error())
        }))
    }

    fn inspect<'a>(&'a self, _: &'a Arc<RuleLimit>, _: Key<'a>) -> EngineFuture<'a, Inspection> {
        EngineFuture::Ready(Err(self.error()))
    }

    fn health(&self) -> Health {
        Health::up(None, 0)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }
}

#[tokio::test]
async fn a_failed_call_counts_as_an_error_of_each_rule_and_of_the_store() {
    let calls = Arc::new(AtomicU64::new(0));
    let broken = Broken { ambiguous: AtomicBool::new(false), calls: calls.clone() };
    let policy = "rules: [{ name: a, limits: [1/s] }, { name: b, limits: [1/s], deny: [m] }]";
    let service = service_on(broken, policy);
    let checks = [rule("a", "k", 1), rule("a", "k2", 1), rule("b", "k", 1)];
    let failure = service.run(Operation::Check, &checks, None).await.unwrap_err();
    assert!(matches!(failure, CheckError::Store(EngineError::Unavailable(_))), "{failure}");
    assert_eq!(calls.load(Ordering::Relaxed), 1, "it is called once");
    let errors = ["{rule=a,outcome=error,source=none} 1", "{rule=b,outcome=error,source=none} 1"];
    assert_eq!(samples(&service, CHECKS), set(&errors));
    assert_eq!(samples(&service, "tidegate_store_errors_total"), set(&["{kind=unavailable} 1"]));
    // A peek is no check, but it is a failure of the store.
    service.run(Operation::Peek, &checks[..1], None).await.unwrap_err();
    service.inspect(checks[0].clone()).await.unwrap_err();
    assert_eq!(samples(&service, CHECKS), set(&errors));
    let store = ["{kind=unavailable} 1", "{kind=ambiguous} 2"];
    assert_eq!(samples(&service, "tidegate_store_errors_total"), set(&store));
    // Decisions by the policy alone need no store.
    let result = service.run(Operation::Check, &[rule("b", "m", 1)], None).await.unwrap();
    assert_eq!((result.decision.allowed(), result.decision.source), (false, Source::Policy));
    // An invalid request is no failure of the store.
    let missing =
        service.run(Operation::Check, &[rule("missing", "k", 1)], None).await.unwrap_err();
    assert!(matches!(missing, CheckError::Refused(Refusal::UnknownRule { .. })));
    assert_eq!(samples(&service, "tidegate_store_errors_total"), set(&store));
}

#[tokio::test]
async fn any_number_of_limits_can_be_checked_and_they_keep_their_counts() {
    const LIMITS: u64 = 5_000;
    let service = service("rules: []");
    let texts: Vec<String> = (1..=LIMITS).map(|n| format!("{n}/h")).collect();
    let check = |text| {
        let target = service.adhoc_limit(text).unwrap();
        RuleCheck::of(target, "k", 1)
    };
    for round in 1..=2 {
        for (text, limit) in texts.iter().zip(1..) {
            let result = service.run(Operation::Check, &[check(text)], None).await.unwrap();
            let left = result.decision.remaining();
            assert_eq!(left, u64::saturating_sub(limit, round), "{text}, round {round}");
        }
    }
}

#[tokio::test]
async fn limits_of_ones_own_can_be_turned_off() {
    let service = service("adhoc: false\nrules: [{ name: api, limits: [5/s] }]");
    let throttle = Throttle { max_burst: 1, count: 1, period: 1 };
    for target in [service.adhoc_limit("5/s"), service.throttle(throttle)] {
        assert!(matches!(target, Err(CheckError::AdhocDisabled)));
    }
    // Made before they were disabled.
    for earlier in [Rule::adhoc, Rule::throttle] {
        let target = RuleTarget::Adhoc(earlier("5/s".parse().unwrap()));
        let check = RuleCheck::of(target, "k", 1);
        let failure = service.run(Operation::Check, &[rule("api", "k", 1), check], None).await;
        assert!(matches!(failure, Err(CheckError::AdhocDisabled)));
    }
    let peek = service.run(Operation::Peek, &[rule("api", "k", 1)], None).await.unwrap();
    assert_eq!(peek.decision.remaining(), 5, "nothing was charged");
}

/// A request from an address.
struct From<'a>(&'a str, &'a str);

impl Request for From<'_> {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        self.1
    }

    fn host(&self) -> &str {
        ""
    }

    fn header(&self, _: &str) -> Option<&str> {
        None
    }

    fn query(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn cookie(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        None
    }

    fn client_ip(&self) -> Option<IpAddr> {
        self.0.parse().ok()
    }

    fn is_from_trusted_proxy(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_request_is_judged_by_lists_before_limits() {
    let service = service(
        r#"rules:
  - { name: all, key: [client_ip], limits: [2/h] }
  - { name: api, match: { path: "/api/*" }, key: [client_ip], limits: [1/h], deny: ["10.6.6.0/24"], allow: ["10.0.0.0/8"] }
"#,
    );
    let steps = [
        // Denied by a list: nothing is charged, not even to the earlier rule.
        (From("10.6.6.6", "/api/x"), (false, Source::Policy, vec!["api"])),
        (From("10.6.6.6", "/x"), (true, Source::Memory, vec!["all"])),
        (From("10.6.6.6", "/x"), (true, Source::Memory, vec!["all"])),
        (From("10.6.6.6", "/x"), (false, Source::Memory, vec!["all"])),
        // Exempt from one rule only.
        (From("10.0.0.1", "/api/x"), (true, Source::Memory, vec!["all"])),
        (From("192.0.2.1", "/api/x"), (true, Source::Memory, vec!["all", "api"])),
        (From("192.0.2.1", "/api/x"), (false, Source::Memory, vec!["all", "api"])),
    ];
    for (nth, (request, expected)) in steps.into_iter().enumerate() {
        let result = service.authorize(|_| &request).await.unwrap();
        let rules = result.verdicts().map(|(limit, _)| limit.rule()).collect();
        let got = (result.decision.allowed(), result.decision.source, rules);
        assert_eq!(got, expected, "step {nth}");
    }
    let (by_list, by_limits): (BTreeSet<_>, BTreeSet<_>) =
        samples(&service, CHECKS).into_iter().partition(|line| line.contains("outcome=never"));
    let counted = [
        "{rule=all,outcome=allow,source=memory} 5",
        "{rule=all,outcome=deny,source=memory} 1",
        "{rule=api,outcome=allow,source=memory} 1",
        // An exempt key.
        "{rule=api,outcome=allow,source=policy} 1",
        "{rule=api,outcome=deny,source=memory} 1",
    ];
    assert_eq!(by_limits, set(&counted));
    let one = |line: &String| line.starts_with("{rule=api,") && line.ends_with(" 1");
    assert!(by_list.len() == 1 && by_list.iter().all(one), "{by_list:?}");
}

#[tokio::test]
async fn a_reservation_is_settled_once_and_returns_what_it_held() {
    let clock = ManualClock::default();
    let policy = "rules: [{ name: budget, limits: [fixed-window 10/1d] }, { name: slots, limits: [concurrency 1 lease 5s] }]";
    let service = service_on(Memory::builder().clock(clock.clone()).build(), policy);
    let left = async || {
        let peek = service.run(Operation::Peek, &[rule("budget", "k", 0)], None).await;
        peek.unwrap().decision.remaining()
    };
    let reserve = async |name: &'static str, cost, ttl: Option<Duration>| {
        service.run(Operation::Reserve(ttl.into()), &[rule(name, "k", cost)], None).await.unwrap()
    };
    let held = reserve("budget", 6, None).await;
    assert_eq!(held.ttl, Some(CheckService::DEFAULT_TTL.into()));
    assert_eq!(left().await, 4);
    let denied = reserve("budget", 6, None).await;
    assert_eq!((denied.decision.hold(), denied.ttl), (None, None), "there is no room for it");
    let id = held.decision.hold().unwrap();
    let done = service.settle(id, SettleAction::Commit(Costs::All(Cost::total(2)))).await.unwrap();
    assert_eq!(done.verdicts().map(|(limit, _)| limit.policy()).collect::<Vec<_>>(), ["budget"]);
    assert_eq!((left().await, done.decision.expired()), (8, false));
    service.settle(id, SettleAction::Commit(Costs::All(Cost::total(2)))).await.unwrap();
    assert_eq!(left().await, 8, "the same again is the same");
    let other = service.settle(id, SettleAction::Cancel).await.unwrap_err();
    assert!(matches!(other, CheckError::Refused(Refusal::AlreadySettled)), "{other}");

    let id = reserve("budget", 3, None).await.decision.hold().unwrap();
    service.settle(id, SettleAction::Commit(Costs::AsHeld)).await.unwrap();
    assert_eq!(left().await, 5, "without a number, what was reserved");
    let id = reserve("budget", 5, None).await.decision.hold().unwrap();
    service.settle(id, SettleAction::Cancel).await.unwrap();
    assert_eq!(left().await, 5);

    let short = Duration::from_secs(1);
    let id = reserve("budget", 5, Some(short)).await.decision.hold().unwrap();
    let renewed = service.settle(id, SettleAction::Renew(Duration::from_secs(9))).await.unwrap();
    assert_eq!(renewed.ttl, Some(Duration::from_secs(9).into()));
    clock.advance(Duration::from_secs(8));
    assert_eq!(left().await, 0);
    clock.advance(Duration::from_secs(2));
    assert_eq!(left().await, 5, "what has expired is given back");
    let late = service.settle(id, SettleAction::Renew(short)).await.unwrap();
    assert_eq!((late.decision.expired(), late.ttl), (true, None));

    let slot = reserve("slots", 1, None).await;
    assert_eq!(slot.ttl, Some(Duration::from_secs(5).into()), "its lease");
    assert!(reserve("slots", 1, None).await.decision.hold().is_none());
    let check = service.run(Operation::Check, &[rule("slots", "k", 1)], None).await.unwrap_err();
    assert!(matches!(check, CheckError::Refused(Refusal::ConcurrencyNeedsHold)), "{check}");
    service.settle(slot.decision.hold().unwrap(), SettleAction::Cancel).await.unwrap();
    assert!(reserve("slots", 1, None).await.decision.hold().is_some());
}

#[test]
fn a_call_is_decided_by_one_policy() {
    const CHANGES: usize = 3_000;
    let policies = [(1_000_000_001, 2_000_000_001), (1_000_000_002, 2_000_000_002)];
    let text = |(x, y): (u64, u64)| {
        format!(
            "rules: [{{ name: x, limits: [fixed-window {x}/1d] }}, \
             {{ name: y, limits: [fixed-window {y}/1d] }}]"
        )
    };
    let service = service_on(Memory::default(), &text(policies[0]));
    let stop = AtomicBool::new(false);
    let (decisions, mixed) = (AtomicU64::new(0), AtomicU64::new(0));
    let check = |checks: &[RuleCheck<'_>]| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        while !stop.load(Ordering::Relaxed) {
            let result = runtime.block_on(service.run(Operation::Check, checks, None)).unwrap();
            let limits: Vec<u64> = result.verdicts().map(|(_, verdict)| verdict.limit).collect();
            let [x, y] = limits[..] else { continue };
            decisions.fetch_add(1, Ordering::Relaxed);
            mixed.fetch_add(u64::from(!policies.contains(&(x, y))), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        // Checks of one rule alone activate its new limit before the other's.
        for _ in 0..2 {
            scope.spawn(|| check(&[rule("x", "k", 1), rule("y", "k", 1)]));
            scope.spawn(|| check(&[rule("x", "k", 1)]));
        }
        for nth in 1..=CHANGES {
            let loaded = load(&text(policies[nth % 2]));
            service.set_policy(PolicyManager::active(&loaded, service.metrics()).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    let [decisions, mixed] = [decisions, mixed].map(AtomicU64::into_inner);
    print_figure(format_args!(
        "service: {CHANGES} changes of policy, {decisions} decisions about two rules, {mixed} mixed"
    ));
    assert_eq!(mixed, 0);
    assert!(decisions > 0);
}

#[test]
fn the_metrics_have_the_names_that_dashboards_know() {
    let server = ServerProcess::start(&[], &[]);
    let check = json!({ "rule": "login", "key": "some-key" });
    assert_eq!(server.post("/v1/check", &check).status, 200);
    let response = server.get("/metrics");
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let families: BTreeSet<&str> = response
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let known = [
        "tidegate_breaker_opened_total",
        "tidegate_breaker_state",
        "tidegate_build_info",
        "tidegate_check_duration_seconds",
        "tidegate_checks_total",
        "tidegate_config_reload_failures_total",
        "tidegate_config_reload_success_timestamp_seconds",
        "tidegate_config_valid",
        "tidegate_connections",
        "tidegate_connections_refused_total",
        "tidegate_control_plane_up",
        "tidegate_fallback_decisions_total",
        "tidegate_id_retention_seconds",
        "tidegate_lease_outstanding",
        "tidegate_limit_denials_total",
        "tidegate_memory_bytes",
        "tidegate_memory_overflow_total",
        "tidegate_panics_total",
        "tidegate_requests_total",
        "tidegate_settled_ratio",
        "tidegate_shadow_denied_total",
        "tidegate_store_errors_total",
        "tidegate_store_resets_total",
        "tidegate_store_up",
        "tidegate_tracked_keys",
        "tidegate_uncharged_total",
        "tidegate_waiting_requests",
        "tidegate_waits_refused_total",
    ];
    assert_eq!(families, known.into());
    let labels = r#"tidegate_checks_total{rule="login",outcome="allow",source="memory"} 1"#;
    assert!(response.body.contains(labels), "{}", response.body);
    assert!(response.body.contains(r#"tidegate_check_duration_seconds_count{listener="http"} 1"#));
    assert!(!response.body.contains("some-key"), "a key is never a label");
}
