//! Policies: which rules apply to requests and named keys, their keys, lists, overrides and shadow
//! limits, and what a new policy keeps.
use std::borrow::Cow;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::policy::{
    AfterMatch, Enforcement, KeyPart, ListEntry, ListMode, Match, OnMissingKey, Override, Request,
    RuleTarget, Warning, instance_id,
};
use tidegate::{
    Call, Clock, Cost, Decision, Expiry, HoldId, InvalidRule, Key, Limit, Limiter, ManualClock,
    Memory, Micros, Op, Plan, Policy, PolicyRule, Refusal, Rule, RuleCheck, RuleDraft, Source,
    SystemClock, Wait,
};
use tidegate_model::TraceRng;

// --- matching -----------------------------------------------------------------------------------

#[test]
fn a_rule_applies_to_requests_that_meet_every_condition_of_its_match() {
    let login = Match {
        methods: vec!["POST".into(), "put".into()],
        path: Some("/login/{tenant}".parse().unwrap()),
        host: Some("*.example.com".into()),
        headers: vec![("X-Kind".into(), "web-*".into())],
    };
    let policy = policy([RuleDraft { matches: login, ..draft("login", &["5/m"]) }]);
    let matching = || {
        let request = request("/login/acme").method("POST").host("EU.example.com:443");
        request.header("x-kind", "web-app")
    };
    for (request, applies) in [
        (matching(), true),
        (matching().method("PUT"), true),
        (matching().method("post"), true),
        (matching().method("GET"), false),
        (matching().method(""), false),
        (matching().path("/login/acme/"), true),
        (matching().path("/login"), false),
        (matching().path("/login/acme/more"), false),
        (matching().path("*"), false),
        (matching().host("example.com"), false),
        (matching().host("eu.example.com."), true),
        (matching().host("eu.example.com.evil.net"), false),
        (matching().host(""), false),
        (matching().header("x-kind", "app"), false),
    ] {
        assert_eq!(applied(&policy, &request), names(applies, &["login"]), "{request:?}");
    }
}

#[test]
fn every_rule_that_matches_applies_in_order() {
    let policy = policy([
        draft("all", &["5/m"]),
        RuleDraft { matches: at("/api/*"), ..draft("api", &["5/m"]) },
        RuleDraft { matches: at("/web/*"), ..draft("web", &["5/m"]) },
        RuleDraft { matches: at("/*"), ..draft("paths", &["5/m"]) },
    ]);
    assert_eq!(applied(&policy, &request("/api/x")), ["all", "api", "paths"]);
    assert_eq!(applied(&policy, &request("/")), ["all", "paths"]);
    assert_eq!(applied(&policy, &request("*")), ["all"]);
}

/// A large policy has an index and does not check every rule.
#[test]
fn a_large_policy_finds_the_rules_that_a_linear_search_finds() {
    let (mut rng, mut other) = (TraceRng::new(7), TraceRng::new(8));
    let mut path = |of: &[&str], ends: &[&str]| {
        let segments = (0..rng.below(4)).map(|_| format!("/{}", rng.pick(of)));
        let start: String = segments.collect();
        format!("{start}{}", rng.pick(ends))
    };
    let mut found = 0;
    for _ in 0..20 {
        let rules = (0..200).map(|i| {
            let text = path(&["a", "b", "c", "{x}", "a*", "*c"], &["", "/", "/*", "/*/", "/a"]);
            // A pattern with a name twice is invalid; so a few rules have no path.
            let path = text.parse().ok();
            let hosts = ["a.test", "B.a.test", "*.a.test", "*.c.B.a.test", "x", "*.test"];
            let host = (other.below(2) == 0).then(|| other.pick(&hosts).into());
            let header = |rng: &mut TraceRng| {
                let (name, value) = (rng.pick(&["X-One", "x-two"]), rng.pick(&["1", "2", "1*"]));
                (name.into(), value.into())
            };
            let headers = (0..other.below(3)).map(|_| header(&mut other)).collect();
            RuleDraft {
                matches: Match { path, host, headers, ..Match::default() },
                ..draft(&format!("r{i}"), &["1/s"])
            }
        });
        let policy = policy(rules.collect::<Vec<_>>());
        for _ in 0..200 {
            let text = path(&["a", "b", "c", "ab", "d", ""], &["", "/", "/a", "/a/b/c/d/e"]);
            for text in [&*text, "/", "", "*", "a"] {
                let hosts = [
                    "a.test",
                    "A.test:80",
                    "b.a.test.",
                    "d.c.b.a.TEST",
                    ".a.test",
                    "c.b.a.test",
                    "test",
                    "x:1",
                    "",
                    ".",
                    "y.x",
                ];
                let request = request(text).host(other.pick(&hosts));
                let values = ["1", "2", "12", "1", ""];
                let mut request = request;
                for name in ["x-one", "x-one", "x-two"] {
                    if other.below(2) == 0 {
                        request.headers.push((name.into(), other.pick(&values).into()));
                    }
                }
                let matching =
                    policy.rules().iter().filter(|rule| rule.matches().matches(&request));
                let expected: Vec<&str> = matching.map(|rule| rule.name()).collect();
                let plan = policy.plan_request(&request, Micros::ZERO);
                let plan = plan
                    .map_err(|refused| assert_eq!(refused, Refusal::ChargeCount(expected.len())));
                let Ok(plan) = plan else { continue };
                assert_eq!(
                    plan.steps().iter().map(|s| s.rule().name()).collect::<Vec<_>>(),
                    expected,
                    "{request:?}"
                );
                found += expected.len();
            }
        }
    }
    assert!(found > 10_000, "{found}");
}

#[test]
fn no_rule_after_one_that_stops_is_evaluated() {
    let key = || vec![header_key("x-user")];
    let stop = || RuleDraft { key: key(), then: AfterMatch::Stop, ..draft("stop", &["5/m"]) };
    let skip = || RuleDraft { on_missing_key: OnMissingKey::Skip, ..stop() };
    let with = request("/").header("x-user", "ann").client("10.1.2.3");
    let without = request("/").client("10.1.2.3");
    let exempt = || RuleDraft { allow: entries(&["10.0.0.0/8"]), ..skip() };
    for (first, request, expected) in [
        (stop(), &with, &["stop"] as &[_]),
        // Requests without a key share one, so the rule applies to them.
        (stop(), &without, &["stop"]),
        (skip(), &with, &["stop"]),
        // It does not apply, so it does not stop.
        (skip(), &without, &["last"]),
        (exempt(), &without, &["last"]),
        // It applies, although nothing is charged.
        (exempt(), &with, &[]),
        (RuleDraft { matches: at("/elsewhere"), ..stop() }, &with, &["last"]),
        // A rule in shadow mode exempts no request from later rules.
        (RuleDraft { enforcement: Enforcement::Shadow, ..stop() }, &with, &["stop", "last"]),
    ] {
        let what = format!("{first:?} {request:?}");
        let policy = policy([first, draft("last", &["5/m"])]);
        assert_eq!(applied(&policy, request), expected, "{what}");
    }
}

// --- keys ---------------------------------------------------------------------------------------

#[test]
fn each_kind_of_key_comes_from_its_part_of_the_request() {
    let full = request("/users/7/posts")
        .client("2001:db8:1:2:3::4")
        .header("x-api-key", "abc")
        .query("user", "ann")
        .cookie("sid", "s1")
        .bearer("hash-of-token");
    let bare = request("/users/7/posts");
    for (part, found) in [
        ("client_ip", "2001:db8:1:2::/64"),
        ("header:X-Api-Key", "abc"),
        ("query:user", "ann"),
        ("cookie:sid", "s1"),
        ("path:id", "7"),
        ("bearer", "hash-of-token"),
        ("instance", instance_id()),
    ] {
        let rule = |on_missing_key| RuleDraft {
            matches: at("/users/{id}/posts"),
            key: vec![part.parse().unwrap(), KeyPart::Instance],
            on_missing_key,
            ..draft("rule", &["5/m"])
        };
        let keys = |policy: &Policy, request: &FakeRequest| -> Vec<Vec<String>> {
            let plan = policy.plan_request(request, Micros::ZERO).unwrap();
            plan.steps().iter().map(|step| texts(step.key())).collect()
        };
        let shared = policy([rule(OnMissingKey::Shared)]);
        assert_eq!(keys(&shared, &full), [[found, instance_id()]], "{part}");
        if ["path:id", "instance"].contains(&part) {
            continue;
        }
        let together = keys(&shared, &bare);
        assert_eq!(together.len(), 1, "{part}");
        assert_ne!(together[0][0], "", "an empty value differs from a missing one");
        assert!(keys(&policy([rule(OnMissingKey::Skip)]), &bare).is_empty());
        let deny = policy([rule(OnMissingKey::Deny)]);
        let plan = deny.plan_request(&bare, Micros::ZERO).unwrap();
        assert_eq!(plan.denied_by().unwrap().name(), "rule");
        assert!(is_final_denial(&plan.decision().unwrap()));
    }
}

#[test]
fn header_names_in_a_draft_are_case_insensitive() {
    let policy = policy([RuleDraft {
        matches: Match { headers: vec![("X-Kind".into(), "a".into())], ..Match::default() },
        key: vec![KeyPart::Header("X-User".into())],
        on_missing_key: OnMissingKey::Skip,
        cost_header: Some("X-Cost".into()),
        ..draft("rule", &["5/m"])
    }]);
    let request = request("/").header("x-kind", "a").header("x-user", "ann").header("x-cost", "3");
    let plan = policy.plan_request(&request.via_trusted_proxy(), Micros::ZERO).unwrap();
    assert_eq!(texts(plan.steps()[0].key()), ["ann"]);
    assert_eq!(plan.steps()[0].cost().get(), 3);
}

#[test]
fn a_client_has_the_same_count_by_request_and_by_name() {
    for (by_request, by_name, same) in [
        ("2001:db8:1:2::1", "2001:DB8:1:2:ffff::9", true),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64", true),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", false),
        ("1.2.3.4", "::ffff:1.2.3.4", true),
        ("::ffff:1.2.3.4", "1.2.3.4", true),
        ("1.2.3.4", "1.2.3.4:80", false),
    ] {
        let fixture =
            PolicyFixture::new([RuleDraft { key: by_client(), ..draft("rule", &["5/h"]) }]);
        assert_eq!(fixture.admitted(&request("/").client(by_request), 3), 3);
        let left = if same { 2 } else { 5 };
        assert_eq!(fixture.named("rule", by_name).remaining(), left - 1, "{by_request} {by_name}");
    }
}

#[test]
fn an_address_is_normalized_only_if_the_rule_counts_clients() {
    let fixture = PolicyFixture::new([
        draft("none", &["5/h"]),
        RuleDraft { key: vec![header_key("x")], ..draft("header", &["5/h"]) },
        RuleDraft { key: vec![header_key("x"), KeyPart::ClientIp], ..draft("both", &["5/h"]) },
    ]);
    for (rule, one, other, left) in [
        ("none", &["2001:db8::1"] as &[_], &["2001:db8::2"] as &[_], 4),
        ("header", &["2001:db8::1"], &["2001:db8::2"], 4),
        ("both", &["a", "2001:db8::1"], &["a", "2001:db8::2"], 3),
        ("both", &["2001:db8::1", "a"], &["2001:db8::2", "a"], 4),
    ] {
        fixture.named(rule, Key::of(one));
        assert_eq!(fixture.named(rule, Key::of(other)).remaining(), left, "{rule} {one:?}");
    }
}

#[test]
fn a_rule_without_a_key_has_one_bucket_for_requests_and_one_for_each_key_by_name() {
    let fixture = PolicyFixture::new([draft("rule", &["5/h"])]);
    assert_eq!(fixture.admitted(&request("/a").client("1.1.1.1"), 3), 3);
    assert_eq!(fixture.admitted(&request("/b").client("2.2.2.2"), 3), 2);
    assert_eq!(fixture.named("rule", "ann").remaining(), 4);
    assert_eq!(fixture.named("rule", "bob").remaining(), 4);
    // The bucket of the requests is that of the key without parts.
    assert!(!fixture.named("rule", Key::of(&[])).allowed());
}

#[test]
fn a_rule_takes_a_named_key_of_any_number_of_parts() {
    let key = vec![header_key("x"), KeyPart::ClientIp];
    let fixture = PolicyFixture::new([RuleDraft { key, ..draft("rule", &["5/h"]) }]);
    for parts in [&[] as &[_], &["a"], &["a", "1.1.1.1"], &["a", "1.1.1.1", "c"], &["", ""]] {
        assert_eq!(fixture.named("rule", Key::of(parts)).remaining(), 4, "{parts:?}");
    }
    for bytes in [b"\xff\xfe" as &[u8], b"\0"] {
        assert_eq!(fixture.named("rule", bytes).remaining(), 4, "{bytes:?}");
    }
}

#[test]
fn requests_without_a_key_share_one_bucket_separate_from_an_empty_key() {
    let fixture =
        PolicyFixture::new([RuleDraft { key: vec![header_key("x")], ..draft("rule", &["5/h"]) }]);
    assert_eq!(fixture.admitted(&request("/").client("1.1.1.1"), 3), 3);
    assert_eq!(fixture.admitted(&request("/").client("2.2.2.2"), 9), 2);
    assert_eq!(fixture.admitted(&request("/").header("x", ""), 9), 5);
}

/// Under a shortened key it would be counted with others, so the whole request is refused. A
/// refusal cannot be mistaken for an admission.
#[test]
fn a_request_with_too_long_a_key_is_refused_and_charges_no_rule() {
    let long = "k".repeat(Key::MAX_LEN + 1);
    let half = "k".repeat(Key::MAX_LEN / 2 + 1);
    let key = || vec![header_key("x"), header_key("y")];
    let rules = |rule: RuleDraft| [draft("all", &["5/h"]), RuleDraft { key: key(), ..rule }];
    let enforced = || draft("rule", &["5/h"]);
    let too_long = [
        request("/").header("x", &long),
        request("/").header("y", &long),
        request("/").header("x", &half).header("y", &half),
    ];
    for request in &too_long {
        for on_missing_key in [OnMissingKey::Shared, OnMissingKey::Deny, OnMissingKey::Skip] {
            let request = request.clone().header_if_missing("x", "").header_if_missing("y", "");
            let fixture = PolicyFixture::new(rules(RuleDraft { on_missing_key, ..enforced() }));
            let policy = fixture.limiter.policy();
            let refused = policy.plan_request(&request, fixture.clock.now()).unwrap_err();
            assert_eq!(refused, Refusal::KeyTooLong);
            assert_eq!(fixture.named("all", Key::of(&[])).remaining(), 4);
        }
        // An exempt request is not counted, and a rule in shadow mode denies no request.
        let allow = entries(&["10.0.0.0/8"]);
        let request = request.clone().client("10.1.1.1");
        let fixture = PolicyFixture::new(rules(RuleDraft { allow, ..enforced() }));
        assert!(fixture.check(&request).allowed());
        let enforcement = Enforcement::Shadow;
        let fixture = PolicyFixture::new(rules(RuleDraft { enforcement, ..enforced() }));
        assert!(fixture.check(&request).allowed());
        assert_eq!(would_be_denied(&fixture.limiter.policy(), &request), ["rule"]);
    }
    let fits = "k".repeat(Key::MAX_LEN);
    let fixture = PolicyFixture::new([RuleDraft { key: vec![header_key("x")], ..enforced() }]);
    assert!(fixture.check(&request("/").header("x", &fits)).allowed());
    let policy = fixture.limiter.policy();
    let named = [item("rule", Key::from(&long), 1)];
    assert_eq!(
        policy.plan_checks(&named, ListMode::Evaluate, Micros::ZERO).unwrap_err(),
        Refusal::KeyTooLong
    );
}

// --- lists --------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Treatment {
    Denied,
    Exempt,
    Counted,
}
use Treatment::{Counted, Denied, Exempt};

#[test]
fn lists_deny_and_exempt_requests_by_address_or_key_and_denying_wins() {
    let by_header = || vec![header_key("x")];
    for (key, allow, deny, client, header, treatment) in [
        (by_client(), &["10.0.0.0/8"] as &[_], &[] as &[_], "10.1.2.3", "", Exempt),
        (by_client(), &["10.0.0.0/8"], &[], "11.1.2.3", "", Counted),
        (by_client(), &["10.0.0.0/8"], &["10.1.0.0/16"], "10.1.2.3", "", Denied),
        (by_client(), &["10.1.2.3"], &["10.0.0.0/8"], "10.1.2.3", "", Denied),
        (by_client(), &["10.1.2.3"], &["10.1.2.3"], "10.1.2.3", "", Denied),
        (by_client(), &["10.1.2.3"], &[], "::ffff:10.1.2.3", "", Exempt),
        (by_client(), &[], &["2001:db8::1"], "2001:db8::1", "", Denied),
        // One address is listed, not its whole /64.
        (by_client(), &[], &["2001:db8::1"], "2001:db8::2", "", Counted),
        (by_client(), &[], &["2001:db8::/64"], "2001:db8::2", "", Denied),
        (by_client(), &[], &["::/0"], "1.2.3.4", "", Counted),
        // Networks match the client, whatever the key is.
        (by_header(), &["10.0.0.0/8"], &[], "10.1.2.3", "ann", Exempt),
        (by_header(), &[], &["10.0.0.0/8"], "10.1.2.3", "ann", Denied),
        (Vec::new(), &[], &["10.0.0.0/8"], "10.1.2.3", "ann", Denied),
        (Vec::new(), &["ann"], &["ann"], "10.1.2.3", "ann", Counted),
        (by_header(), &["ann"], &[], "10.1.2.3", "ann", Exempt),
        (by_header(), &["ann"], &[], "10.1.2.3", "Ann", Counted),
        (by_header(), &["ann"], &["10.0.0.0/8"], "10.1.2.3", "ann", Denied),
        (by_header(), &["10.0.0.0/8"], &["ann"], "10.1.2.3", "ann", Denied),
        // An exempt address in a header key does not exempt; a denied one denies.
        (by_header(), &["10.9.9.9"], &[], "1.2.3.4", "10.9.9.9", Counted),
        (by_header(), &["10.9.0.0/16"], &[], "1.2.3.4", "10.9.0.0/16", Counted),
        (by_header(), &[], &["10.9.9.9"], "1.2.3.4", "10.9.9.9", Denied),
        // A key with a slash is a key.
        (by_header(), &["team/ann"], &[], "1.2.3.4", "team/ann", Exempt),
        // One part of several is not the key.
        (vec![header_key("x"), KeyPart::ClientIp], &["ann"], &[], "1.2.3.4", "ann", Counted),
    ] {
        let what = format!("{key:?} allow {allow:?} deny {deny:?} {client} {header}");
        let (allow, deny) = (entries(allow), entries(deny));
        let fixture =
            PolicyFixture::new([RuleDraft { key, allow, deny, ..draft("rule", &["1/h"]) }]);
        let request = request("/").client(client).header("x", header);
        assert_eq!(fixture.treatment(|| fixture.check(&request)), treatment, "{what}");
    }
}

#[test]
fn lists_deny_and_exempt_named_keys_by_the_address_in_them() {
    let both = || vec![header_key("x"), KeyPart::ClientIp];
    for (key, allow, deny, named, treatment) in [
        (by_client(), &["10.0.0.0/8"] as &[_], &[] as &[_], &["10.1.2.3"] as &[_], Exempt),
        (by_client(), &["10.0.0.0/8"], &["10.1.2.3"], &["10.1.2.3"], Denied),
        (by_client(), &[], &["2001:db8::1"], &["2001:DB8::1"], Denied),
        (by_client(), &[], &["2001:db8::1"], &["2001:db8::2"], Counted),
        (by_client(), &["10.0.0.0/8"], &[], &["ann"], Counted),
        (by_client(), &["ann"], &[], &["ann"], Exempt),
        (both(), &[], &["10.0.0.0/8"], &["ann", "10.1.2.3"], Denied),
        (both(), &[], &["10.0.0.0/8"], &["10.1.2.3", "ann"], Counted),
        (both(), &[], &["10.0.0.0/8"], &["ann"], Counted),
        // A rule without a key takes an address for that of the client.
        (Vec::new(), &[], &["10.0.0.0/8"], &["10.1.2.3"], Denied),
        (Vec::new(), &["10.0.0.0/8"], &[], &["10.1.2.3"], Exempt),
        (Vec::new(), &[], &["10.0.0.0/8"], &["10.1.2.3", "x"], Counted),
        (Vec::new(), &["ann"], &["ann"], &["ann"], Denied),
        // A header is an untrusted value.
        (vec![header_key("x")], &["10.0.0.0/8"], &[], &["10.1.2.3"], Counted),
        (vec![header_key("x")], &["10.1.2.3"], &[], &["10.1.2.3"], Counted),
        (vec![header_key("x")], &[], &["10.1.2.3"], &["10.1.2.3"], Denied),
    ] {
        let what = format!("{key:?} allow {allow:?} deny {deny:?} {named:?}");
        let (allow, deny) = (entries(allow), entries(deny));
        let fixture =
            PolicyFixture::new([RuleDraft { key, allow, deny, ..draft("rule", &["1/h"]) }]);
        assert_eq!(
            fixture.treatment(|| fixture.named("rule", Key::of(named))),
            treatment,
            "{what}"
        );
    }
}

/// Otherwise a request without the key would evade the list.
#[test]
fn lists_of_addresses_apply_before_a_missing_key() {
    for (on_missing_key, allow, deny, treatment) in [
        (OnMissingKey::Skip, &[] as &[_], &["10.0.0.0/8"] as &[_], Denied),
        (OnMissingKey::Skip, &["10.0.0.0/8"], &[], Exempt),
        (OnMissingKey::Skip, &[], &[], Exempt),
        (OnMissingKey::Deny, &["10.0.0.0/8"], &[], Exempt),
        (OnMissingKey::Deny, &["10.0.0.0/8"], &["10.1.2.3"], Denied),
        (OnMissingKey::Deny, &["11.0.0.0/8"], &[], Denied),
        (OnMissingKey::Shared, &[], &["10.0.0.0/8"], Denied),
        (OnMissingKey::Shared, &["10.0.0.0/8"], &[], Exempt),
        (OnMissingKey::Shared, &[], &[], Counted),
    ] {
        let (allow, deny) = (entries(allow), entries(deny));
        let what = format!("{on_missing_key:?} allow {allow:?} deny {deny:?}");
        let key = vec![header_key("x")];
        let rule = RuleDraft { key, on_missing_key, allow, deny, ..draft("rule", &["1/h"]) };
        let fixture = PolicyFixture::new([rule]);
        assert_eq!(
            fixture.treatment(|| fixture.check(&request("/").client("10.1.2.3"))),
            treatment,
            "{what}"
        );
    }
}

#[test]
fn a_request_denied_by_a_list_charges_no_rule() {
    let fixture = PolicyFixture::new([
        draft("before", &["5/h"]),
        RuleDraft { deny: entries(&["10.0.0.0/8"]), ..draft("list", &["5/h"]) },
        draft("after", &["5/h"]),
    ]);
    let denied = fixture.check(&request("/").client("10.1.2.3"));
    assert_eq!((denied.source, denied.verdict().limit), (Source::Policy, 5));
    assert!(is_final_denial(&denied));
    for rule in ["before", "list", "after"] {
        assert_eq!(fixture.named(rule, Key::of(&[])).remaining(), 4, "{rule}");
    }
}

// --- overrides ---------------------------------------------------------------------------------

#[test]
fn an_override_applies_to_its_key_alone_by_request_and_by_name() {
    let overrides = vec![over(&["gold"], "20/h", None)];
    let key = vec![header_key("x")];
    let fixture = PolicyFixture::new([RuleDraft { key, overrides, ..draft("rule", &["5/h"]) }]);
    let by = |user: &str| request("/").header("x", user);
    assert_eq!(fixture.admitted(&by("gold"), 10), 10);
    assert_eq!(fixture.named("rule", "gold").remaining(), 9);
    assert_eq!(fixture.named("rule", Key::of(&["gold"])).remaining(), 8);
    assert_eq!(fixture.admitted(&by("gold"), 10), 8);
    for user in ["Gold", "gold ", ""] {
        assert_eq!(fixture.admitted(&by(user), 10), 5, "{user:?}");
    }
    assert_eq!(fixture.named("rule", Key::of(&["gold", ""])).remaining(), 4);
}

#[test]
fn an_override_for_an_address_applies_to_its_whole_client() {
    let overrides = vec![over(&["2001:db8::1"], "20/h", None), over(&["1.2.3.4"], "30/h", None)];
    let rule = RuleDraft { key: by_client(), overrides, ..draft("rule", &["5/h"]) };
    let fixture = PolicyFixture::new([rule]);
    for (client, limit) in [("2001:db8::2", 20), ("2001:db9::2", 5), ("::ffff:1.2.3.4", 30)] {
        assert_eq!(fixture.check(&request("/").client(client)).verdict().limit, limit, "{client}");
        assert_eq!(fixture.named("rule", client).verdict().limit, limit, "{client}");
    }
}

#[test]
fn when_an_override_ends_the_base_limits_apply_again_and_usage_is_kept() {
    for (during, base, used, left) in [
        ("20/36500d", "10/36500d", 4, 6),
        ("20/36500d", "10/36500d", 15, 0),
        ("5/36500d", "10/36500d", 5, 5),
        ("fixed-window 20/36500d", "fixed-window 10/36500d", 4, 6),
        ("sliding-log 20/36500d", "sliding-log 10/36500d", 4, 6),
        ("sliding-window 20/36500d", "sliding-window 10/36500d", 4, 6),
        ("leaky-bucket 20/36500d", "leaky-bucket 10/36500d", 4, 6),
    ] {
        let (clock, key) = (ManualClock::default(), vec![header_key("x")]);
        let until = clock.now().saturating_add(Micros::from_secs(60));
        let overrides = vec![over(&["gold"], during, Some(until))];
        let rule = RuleDraft { key, overrides, ..draft("rule", &[base]) };
        let fixture = PolicyFixture::at(clock, [rule]);
        let gold = request("/").header("x", "gold");
        assert_eq!(fixture.admitted(&gold, used), used, "{during}");
        fixture.clock.set(Micros::new(until.get() - 1));
        assert_eq!(fixture.peek(&gold).verdict().limit, limit(during).capacity());

        let policy = fixture.limiter.policy();
        let in_flight = policy.plan_request(&gold, fixture.clock.now()).unwrap();
        fixture.clock.set(until);
        assert_eq!(fixture.peek(&gold).verdict().limit, 10, "{during}");
        assert_eq!(fixture.peek(&gold).remaining(), left, "{during}");

        // Neither a call that was in flight nor a clock that steps back prolongs it.
        let late = fixture.limiter.decide(Op::Peek, &in_flight).now().unwrap();
        assert_eq!(late.verdict().limit, 10, "{during}");
        fixture.clock.set(Micros::new(until.get() - 1));
        assert_eq!(fixture.peek(&gold).verdict().limit, 10, "{during}");
        assert_eq!(fixture.admitted(&gold, 20), left, "{during}");
        assert_eq!(fixture.named("rule", "other").verdict().limit, 10);
    }
}

#[test]
fn a_reload_that_adds_or_removes_an_override_keeps_the_usage() {
    let rule = |overrides| {
        let key = vec![header_key("x")];
        policy([RuleDraft { key, overrides, ..draft("rule", &["10/36500d"]) }])
    };
    let gold = request("/").header("x", "gold");
    let over = |text| vec![over(&["gold"], text, None)];
    for (before, after, used, left) in [
        (Vec::new(), over("20/36500d"), 4, 16),
        (over("20/36500d"), Vec::new(), 4, 6),
        (over("20/36500d"), Vec::new(), 18, 0),
        (over("20/36500d"), over("15/36500d"), 4, 11),
        (over("20/36500d"), over("20/36500d"), 4, 16),
        (Vec::new(), over("sliding-log 20/36500d"), 4, 20),
    ] {
        let what = format!("{before:?} to {after:?}");
        let fixture = PolicyFixture::of(rule(before));
        assert_eq!(fixture.admitted(&gold, used), used, "{what}");
        fixture.limiter.set_policy(rule(after));
        assert_eq!(fixture.admitted(&gold, 30), left, "{what}");
    }
}

#[test]
fn an_invalid_override_is_refused() {
    let draft = |overrides| RuleDraft {
        key: by_client(),
        shadow_limits: vec![limit("1/s")],
        overrides,
        ..draft("rule", &["5/h"])
    };
    let two = |key: &str| vec![over(&["2001:db8::1"], "5/h", None), over(&[key], "6/h", None)];
    for (overrides, error) in [
        (vec![over(&["a", "b"], "5/h", None)], InvalidRule::OverrideKey { given: 2, needed: 1 }),
        (vec![over(&[], "5/h", None)], InvalidRule::OverrideKey { given: 0, needed: 1 }),
        (two("2001:db8::1"), InvalidRule::DuplicateOverride),
        (two("2001:db8::2"), InvalidRule::DuplicateOverride),
        // Shadow limits do not count as limits of an override.
        (
            vec![Override { limits: vec![], ..over(&["a"], "5/h", None) }],
            InvalidRule::LimitCount(0),
        ),
    ] {
        assert_eq!(PolicyRule::new(draft(overrides)).unwrap_err(), error);
    }
    assert!(PolicyRule::new(draft(two("2001:db9::1"))).is_ok());
}

// --- shadow mode --------------------------------------------------------------------------------

#[test]
fn a_shadow_limit_denies_no_request_and_is_charged_when_the_enforced_ones_and_itself_allow() {
    let shadow_limits = vec![limit("2/h"), limit("9/h")];
    let fixture = PolicyFixture::new([RuleDraft { shadow_limits, ..draft("rule", &["4/h"]) }]);
    for (allowed, shadow) in [
        (true, [(true, 1), (true, 8)]),
        (true, [(true, 0), (true, 7)]),
        (true, [(false, 0), (true, 6)]),
        (true, [(false, 0), (true, 5)]),
        // Denied, so nothing is charged.
        (false, [(false, 0), (true, 5)]),
        (false, [(false, 0), (true, 5)]),
    ] {
        let decision = fixture.check(&request("/"));
        let seen: Vec<_> = decision.shadow().iter().map(|v| (v.allowed, v.remaining)).collect();
        assert_eq!((decision.allowed(), seen), (allowed, shadow.to_vec()));
        assert_eq!(decision.verdicts.len(), 1);
    }
}

#[test]
fn a_rule_in_shadow_mode_denies_no_request_by_limit_list_or_missing_key() {
    let shadow = |rule: RuleDraft| RuleDraft { enforcement: Enforcement::Shadow, ..rule };
    let key = || vec![header_key("x")];
    let listed = RuleDraft { deny: entries(&["10.0.0.0/8"]), ..draft("listed", &["1/h"]) };
    let keyed =
        RuleDraft { key: key(), on_missing_key: OnMissingKey::Deny, ..draft("keyed", &["1/h"]) };
    let both = RuleDraft { shadow_limits: vec![limit("2/h")], ..draft("both", &["1/h"]) };
    let fixture = PolicyFixture::new([
        shadow(listed),
        shadow(keyed),
        shadow(both),
        draft("enforced", &["5/h"]),
    ]);
    let request = request("/").client("10.1.2.3");
    for (allowed, one, two) in
        [(true, true, true), (true, false, true), (true, false, false), (true, false, false)]
    {
        let decision = fixture.check(&request);
        let shadow: Vec<_> = decision.shadow().iter().map(|verdict| verdict.allowed).collect();
        assert_eq!((decision.allowed(), &*shadow), (allowed, &[one, two] as &[_]));
    }
    assert_eq!(would_be_denied(&fixture.limiter.policy(), &request), ["listed", "keyed"]);
    assert_eq!(fixture.admitted(&request, 9), 1);
    // By name, too.
    assert!(fixture.named("listed", "10.1.2.3").allowed());
}

#[test]
fn an_override_in_a_rule_in_shadow_mode_is_in_shadow_mode() {
    let overrides = vec![over(&["gold"], "2/h", None)];
    let fixture = PolicyFixture::new([RuleDraft {
        key: vec![header_key("x")],
        enforcement: Enforcement::Shadow,
        overrides,
        ..draft("rule", &["1/h"])
    }]);
    for (user, denied) in [("gold", [false, false, true]), ("ann", [false, true, true])] {
        for denied in denied {
            let decision = fixture.check(&request("/").header("x", user));
            assert!(decision.allowed() && decision.verdicts.is_empty());
            assert_eq!(decision.shadow()[0].allowed, !denied, "{user}");
        }
    }
}

// --- charges ------------------------------------------------------------------------------------

#[test]
fn a_cost_header_counts_from_a_trusted_proxy_and_is_at_least_one() {
    let rule = || RuleDraft { cost_header: Some("x-cost".into()), ..draft("rule", &["5/h"]) };
    let zeros = format!("{}7", "0".repeat(100));
    let nines = "9".repeat(100);
    for (text, cost) in [
        (Some("7"), 7),
        (Some(" 7 "), 7),
        (Some(&*zeros), 7),
        (Some("0"), 1),
        (Some(""), 1),
        (Some("-7"), 1),
        (Some("+7"), 1),
        (Some("7.5"), 1),
        (Some("0x7"), 1),
        (Some("1e3"), 1),
        (Some("nan"), 1),
        (Some("7, 8"), 1),
        (Some("٧"), 1),
        (Some("4294967296"), Cost::MAX.get()),
        (Some("4294967297"), Cost::MAX.get()),
        (Some("18446744073709551616"), Cost::MAX.get()),
        (Some(&*nines), Cost::MAX.get()),
        (None, 1),
    ] {
        let policy = policy([rule()]);
        let charged = |request: &FakeRequest| {
            policy.plan_request(request, Micros::ZERO).unwrap().charges(None)[0].cost.get()
        };
        let request = text.map_or(request("/"), |text| request("/").header("x-cost", text));
        assert_eq!(charged(&request), 1, "{text:?} from an untrusted client");
        assert_eq!(charged(&request.via_trusted_proxy()), cost, "{text:?}");
    }
    let fixture = PolicyFixture::new([rule()]);
    let costly = request("/").header("x-cost", &nines).via_trusted_proxy();
    assert!(is_final_denial(&fixture.check(&costly)));
    assert_eq!(fixture.check(&request("/")).remaining(), 4);
}

#[test]
fn a_concurrency_limit_is_left_out_of_requests_and_applies_by_name() {
    let overrides = vec![over(&["gold"], "concurrency 9", None)];
    let fixture = PolicyFixture::new([
        RuleDraft {
            key: vec![header_key("x")],
            overrides,
            ..draft("mixed", &["concurrency 1", "5/h"])
        },
        draft("only", &["concurrency 1"]),
    ]);
    let policy = fixture.limiter.policy();
    let plan = policy.plan_request(&request("/").header("x", "ann"), Micros::ZERO).unwrap();
    assert_eq!(plan.steps().iter().map(|s| s.rule().name()).collect::<Vec<_>>(), ["mixed", "only"]);
    let limits: Vec<_> = plan.limits().map(|limit| limit.policy()).collect();
    assert_eq!(limits, ["mixed.2"]);
    // The first charged limit stands for the rule where each rule is counted once.
    assert!(plan.limits().next().unwrap().is_first());
    let gold = policy.plan_request(&request("/").header("x", "gold"), Micros::ZERO).unwrap();
    assert!(gold.decision().unwrap().allowed(), "nothing to charge");

    let hold = || {
        let (id, ttl) = (HoldId::random().unwrap(), Micros::from_secs(1));
        Op::hold(id, ttl, Expiry::Release)
    };
    let items = [item("mixed", "ann".into(), 1)];
    let named = policy.plan_checks(&items, ListMode::Evaluate, fixture.clock.now()).unwrap();
    assert!(fixture.limiter.decide(hold(), &named).now().unwrap().allowed());
    assert!(!fixture.limiter.decide(hold(), &named).now().unwrap().allowed());
    let warned: Vec<_> = policy.warnings().iter().map(|w| w.rule().to_string()).collect();
    assert_eq!(warned, ["mixed", "only"]);
}

#[test]
fn the_same_rule_and_key_twice_is_charged_once_with_the_costs_added() {
    let fixture = PolicyFixture::new([RuleDraft { key: by_client(), ..draft("rule", &["5/h"]) }]);
    for (one, other, costs, allowed) in [
        ("a", "a", [3, 3], false),
        ("a", "a", [2, 3], true),
        // One client, written differently.
        ("2001:db8::1", "2001:DB8::2", [3, 3], false),
        ("1.2.3.4", "::ffff:1.2.3.4", [3, 2], true),
        ("b", "c", [5, 5], true),
    ] {
        let items = [item("rule", one.into(), costs[0]), item("rule", other.into(), costs[1])];
        let decision = fixture.decide_items(&items);
        assert_eq!(decision.allowed(), allowed, "{one} {other} {costs:?}");
        assert_eq!(decision.verdicts.len(), 2);
    }
}

#[test]
fn a_denied_request_charges_no_rule() {
    let fixture = PolicyFixture::new([
        draft("first", &["9/h"]),
        RuleDraft { key: vec![header_key("x")], ..draft("middle", &["2/h"]) },
        draft("last", &["9/h", "sliding-log 9/h"]),
    ]);
    let request = request("/").header("x", "ann");
    assert_eq!(fixture.admitted(&request, 20), 2);
    for rule in ["first", "last"] {
        assert_eq!(fixture.named(rule, Key::of(&[])).remaining(), 6, "{rule}");
    }
}

#[test]
fn a_plan_of_more_charges_than_a_call_may_have_is_refused() {
    let drafts = |count: usize| -> Vec<RuleDraft> {
        let limits = ["9/h"; 16];
        (0..count)
            .map(|i| draft(&format!("r{i}"), if i < 4 { &limits } else { &["9/h"] }))
            .collect()
    };
    assert!(PolicyFixture::new(drafts(4)).check(&request("/")).allowed());
    let policy = policy(drafts(5));
    let refused = Refusal::ChargeCount(Call::MAX_CHARGES + 1);
    assert_eq!(policy.plan_request(&request("/"), Micros::ZERO).unwrap_err(), refused);
    let items: Vec<_> = (0..65).map(|_| item("r4", "k".into(), 1)).collect();
    assert_eq!(policy.plan_checks(&items, ListMode::Evaluate, Micros::ZERO).unwrap_err(), refused);
    assert!(policy.plan_checks(&items[1..], ListMode::Evaluate, Micros::ZERO).is_ok());
}

#[test]
fn an_item_of_an_unknown_rule_is_refused_and_one_of_an_adhoc_limit_is_not() {
    let fixture = PolicyFixture::new([draft("rule", &["5/h"])]);
    let policy = fixture.limiter.policy();
    let unknown = [item("rule", "k".into(), 1), item("Rule", "k".into(), 1)];
    let refused = policy.plan_checks(&unknown, ListMode::Evaluate, Micros::ZERO).unwrap_err();
    assert_eq!(refused, Refusal::UnknownRule { name: "Rule".into(), meant: Some("rule".into()) });
    let adhoc = Rule::adhoc(limit("2/h"));
    let adhoc = RuleCheck::of(RuleTarget::Own(&adhoc), "k", 1);
    let decision = fixture.decide_items(&[unknown[0].clone(), adhoc]);
    let left: Vec<_> = decision.verdicts.iter().map(|verdict| verdict.remaining).collect();
    assert_eq!(left, [4, 1]);
}

#[test]
fn a_request_that_no_rule_matches_passes_by_the_policy_alone() {
    let fixture = PolicyFixture::new([RuleDraft { matches: at("/x"), ..draft("rule", &["0/h"]) }]);
    let decision = fixture.check(&request("/y"));
    assert_eq!((decision.allowed(), decision.source), (true, Source::Policy));
    assert!(is_final_denial(&fixture.check(&request("/x"))), "a limit of 0 never allows");
}

// --- refusals and warnings ----------------------------------------------------------------------

#[test]
fn an_invalid_rule_is_refused_with_the_reason() {
    let ok = || draft("rule", &["5/h"]);
    let lists = |text: &str| RuleDraft { deny: entries(&[text]), ..ok() };
    let path = |text: &str| RuleDraft { key: vec![text.parse().unwrap()], ..ok() };
    for (draft, message) in [
        (draft("adhoc", &["5/h"]), "the name \"adhoc\" is reserved for ad-hoc limits"),
        (draft("throttle", &["5/h"]), "the name \"throttle\" is reserved"),
        (draft("-x", &["5/h"]), "rule name \"-x\""),
        (draft("rule", &[]), "0 limits; use 1 to 16"),
        (draft("rule", &["5/h"; 17]), "17 limits; use 1 to 16"),
        (lists("10.0.0.5/8"), "in a list: 10.0.0.5/8 has bits beyond its prefix; write 10.0.0.0/8"),
        (lists("10.0.0.0/33"), "in a list: prefix \"33\" after 10.0.0.0"),
        (path("path:id"), "the key names path:id, but the path has no {id}"),
        (RuleDraft { key: vec![KeyPart::Bearer; 17], ..ok() }, "a key of 17 parts; use at most 16"),
        (
            RuleDraft { allow: vec![ListEntry::from("a"); PolicyRule::MAX_ENTRIES + 1], ..ok() },
            "10001 entries in one list; use at most 10000",
        ),
        (
            RuleDraft { matches: Match { host: Some("a:80".into()), ..Match::default() }, ..ok() },
            "host \"a:80\"; use a name like example.com or *.example.com, without a port",
        ),
    ] {
        let error = PolicyRule::new(draft).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    for text in ["10.0.0.0/8", "10.0.0.1", "team/ann", "10/8", "/8", "a b", "::/0"] {
        assert!(PolicyRule::new(lists(text)).is_ok(), "{text}");
    }
    for name in [Rule::ADHOC, Rule::THROTTLE] {
        let refused = Rule::new(name, [limit("5/h")]).unwrap_err();
        assert_eq!(refused, InvalidRule::Reserved(name.into()));
    }
    let twice = [ok(), ok()].map(|draft| PolicyRule::new(draft).unwrap());
    assert_eq!(Policy::new(twice).unwrap_err(), InvalidRule::Duplicate("rule".into()));
}

#[test]
fn probable_errors_give_warnings() {
    let stop = |name: &str, path: &str| RuleDraft {
        matches: at(path),
        then: AfterMatch::Stop,
        ..draft(name, &["5/h"])
    };
    let shadow = RuleDraft { enforcement: Enforcement::Shadow, ..stop("shadow", "/*") };
    let skip = RuleDraft {
        key: vec![header_key("x")],
        on_missing_key: OnMissingKey::Skip,
        ..stop("skip", "/*")
    };
    let policy = policy([
        shadow,
        skip,
        stop("api", "/api/*"),
        RuleDraft { matches: at("/api/x"), ..draft("behind", &["5/h"]) },
        RuleDraft { matches: at("/api"), ..draft("reached", &["5/h"]) },
        RuleDraft {
            key: vec![header_key("x"), KeyPart::ClientIp],
            allow: entries(&["ann", "10.0.0.0/8", "10.0.0.1"]),
            ..draft("pairs", &["5/h"])
        },
    ]);
    let expected = [
        Warning::Unreachable { rule: "behind".into(), behind: "api".into() },
        Warning::IdleEntry { rule: "pairs".into(), entry: "ann".into() },
    ];
    assert_eq!(policy.warnings(), expected);
}

/// A policy of two rules is searched linearly.
#[test]
fn a_large_policy_gives_the_warnings_of_every_pair_of_its_rules() {
    let mut rng = TraceRng::new(9);
    let rules: Vec<Arc<PolicyRule>> = (0..80)
        .map(|i| {
            let mut segments = String::new();
            for _ in 0..rng.below(4) {
                segments += rng.pick(&["/a", "/b", "/{x}", "/a*", "/ab"]);
            }
            let path = format!("{segments}{}", rng.pick(&["", "/*", "/*/"])).parse().ok();
            let then = if rng.one_in(2) { AfterMatch::Stop } else { AfterMatch::Continue };
            let matches = Match { path, ..Match::default() };
            let name = format!("r{i}");
            Arc::new(
                PolicyRule::new(RuleDraft { matches, then, ..draft(&name, &["1/s"]) }).unwrap(),
            )
        })
        // A rule without a path would stop everything.
        .filter(|rule| rule.matches().path.is_some())
        .collect();
    let mut expected = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let pairs =
            rules[..i].iter().map(|stop| Policy::new([stop.clone(), rule.clone()]).unwrap());
        expected.extend(pairs.flat_map(|pair| pair.warnings()).next());
    }
    assert!(expected.len() > 10, "{}", expected.len());
    assert_eq!(Policy::new(rules).unwrap().warnings(), expected);
}

// --- replaced policies --------------------------------------------------------------------------

#[test]
fn a_new_policy_keeps_the_usage() {
    for (before, after, used, left) in [
        (&["10/36500d"] as &[_], &["10/36500d"] as &[_], 7, 3),
        (&["10/36500d"], &["20/36500d"], 7, 13),
        (&["10/36500d"], &["5/36500d"], 7, 0),
        (&["10/36500d"], &["sliding-log 20/36500d", "10/36500d"], 7, 3),
        (&["10/36500d"], &["sliding-log 5/36500d"], 7, 5),
    ] {
        let fixture = PolicyFixture::new([draft("other", &["99/36500d"]), draft("rule", before)]);
        assert_eq!(fixture.admitted(&request("/"), used), used);
        // The order of rules may change.
        fixture.limiter.set_policy(policy([draft("rule", after), draft("new", &["99/36500d"])]));
        assert_eq!(fixture.admitted(&request("/"), 50), left, "{before:?} to {after:?}");
    }
}

#[test]
fn a_call_in_flight_with_the_old_policy_does_not_make_its_limits_active_again() {
    let fixture = PolicyFixture::new([draft("rule", &["10/36500d"])]);
    assert_eq!(fixture.admitted(&request("/"), 4), 4);
    let old = fixture.limiter.policy();
    let plan = old.plan_request(&request("/"), fixture.clock.now()).unwrap();
    for (text, allowed) in [("5/36500d", true), ("20/36500d", true), ("3/36500d", false)] {
        fixture.limiter.set_policy(policy([draft("rule", &[text])]));
        let capacity = limit(text).capacity();
        assert_eq!(fixture.peek(&request("/")).verdict().limit, capacity);
        let late = fixture.limiter.decide(Op::Check, &plan).now().unwrap();
        assert_eq!((late.allowed(), late.verdict().limit), (allowed, capacity), "{text}");
        assert_eq!(fixture.peek(&request("/")).verdict().limit, capacity, "{text}");
    }
}

/// The end of an override in an old policy must not make that policy the newest.
#[test]
fn an_override_that_ends_in_an_old_policy_changes_nothing() {
    let clock = ManualClock::default();
    let until = clock.now().saturating_add(Micros::from_secs(60));
    let rule = |text: &str, overrides: Vec<Override>| {
        let key = vec![header_key("x")];
        RuleDraft { key, overrides, ..draft("rule", &[text]) }
    };
    let overrides = vec![over(&["gold"], "20/36500d", Some(until))];
    let fixture = PolicyFixture::at(clock, [rule("10/36500d", overrides)]);
    let gold = request("/").header("x", "gold");
    assert_eq!(fixture.admitted(&gold, 2), 2);
    let old = fixture.limiter.policy();
    fixture.limiter.set_policy(policy([rule("7/36500d", Vec::new())]));
    assert_eq!(fixture.peek(&gold).verdict().limit, 7);
    fixture.clock.set(until);
    let late = old.plan_request(&gold, fixture.clock.now()).unwrap();
    assert_eq!(fixture.limiter.decide(Op::Check, &late).now().unwrap().verdict().limit, 7);
    assert_eq!(fixture.peek(&gold).verdict().limit, 7);
    assert_eq!(fixture.peek(&gold).remaining(), 4);
}

#[test]
fn a_rule_that_two_policies_share_keeps_its_override_ended() {
    let clock = ManualClock::default();
    let until = clock.now().saturating_add(Micros::from_secs(60));
    let key = vec![header_key("x")];
    let overrides = vec![over(&["gold"], "20/36500d", Some(until))];
    let rule = RuleDraft { key, overrides, ..draft("rule", &["10/36500d"]) };
    let fixture = PolicyFixture::at(clock, [rule]);
    let gold = request("/").header("x", "gold");
    let policy = fixture.limiter.policy();
    let in_flight = policy.plan_request(&gold, fixture.clock.now()).unwrap();
    assert_eq!(fixture.admitted(&gold, 4), 4);
    fixture.clock.set(until);
    assert_eq!(fixture.peek(&gold).remaining(), 6);
    let extra = PolicyRule::new(draft("extra", &["99/h"])).unwrap();
    fixture.limiter.set_policy(fixture.limiter.policy().with_rule(extra).unwrap());
    let late = fixture.limiter.decide(Op::Check, &in_flight).now().unwrap();
    assert_eq!(late.verdict().limit, 10);
    assert_eq!(fixture.peek(&gold).verdicts[0].remaining, 5);
}

/// An independent count of the permits of one key: a change removes what is above the new limit,
/// and adds the difference if the new limit is larger.
#[test]
fn over_a_thousand_changes_a_key_gets_the_sum_of_the_raises_and_no_more() {
    let mut rng = TraceRng::new(50);
    let clock = ManualClock::default();
    let fixture = PolicyFixture::at(clock.clone(), [by_user(60, None)]);
    let gold = request("/").header("x", "gold");
    let stale = (fixture.limiter.policy(), clock.now());
    let (mut present, mut used, mut admitted, mut expected, mut reloads) = (60, 0, 0, 0, 0);
    let (mut before, mut raises, mut ending) = (0, 0, None::<(u64, Micros, u64)>);
    for _ in 0..1_000 {
        clock.advance(Duration::from_secs(rng.between(0, 5)));
        if rng.one_in(2) {
            let base = rng.between(1, 100);
            let raised = rng.one_in(2).then(|| {
                let until = Micros::from_secs(rng.between(1, 20)).saturating_add(clock.now());
                (rng.between(1, 100), until)
            });
            fixture.limiter.set_policy(policy([by_user(base, raised)]));
            reloads += 1;
            present = raised.map_or(base, |(limit, _)| limit);
            ending = raised.map(|(_, until)| (present, until, base));
        }
        if let Some((_, until, base)) = ending
            && clock.now() >= until
        {
            present = base;
        }
        raises += u64::saturating_sub(present, before);
        before = present;
        used = used.min(present);
        expected += present - used;
        used = present;
        admitted += fixture.admitted(&gold, 101);
        let plan = stale.0.plan_request(&gold, stale.1).unwrap();
        assert!(!fixture.limiter.decide(Op::Check, &plan).now().unwrap().allowed());
        assert_eq!(fixture.peek(&gold).verdict().limit, present);
        assert_eq!(admitted, expected);
    }
    assert!(admitted <= raises);
    print_figure(&format!(
        "policy: {reloads} reloads: admitted {admitted}, sum of raises {raises}"
    ));
}

/// Every policy has a mark in all its limits. The clock stands still, so that all admissions come
/// from the first limit and the raises.
#[test]
fn swaps_under_four_threads_never_mix_policies_and_admit_no_more_than_the_raises() {
    const SWAPS: u64 = 1_000;
    let marked = |mark: u64| {
        let limits = [10, 20, 30].map(|offset| format!("{}/36500d", 1_000 * offset + mark));
        let matches = at("/a/*");
        policy([
            draft("hot", &[&format!("{mark}/36500d")]),
            RuleDraft { matches, ..draft("pair", &[&*limits[0], &*limits[1]]) },
            by_user_as("user", 40_000 + mark, Some((50_000 + mark, Micros::new(u64::MAX)))),
            draft("last", &[&*limits[2]]),
        ])
    };
    let mut rng = TraceRng::new(4);
    let fixture = PolicyFixture::of(marked(100));
    let (ended, decided, admitted) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (mut bound, mut present) = (100, 100);
    let late = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fixture, ended, decided, admitted, late) =
                (&fixture, &ended, &decided, &admitted, &late);
            scope.spawn(move || {
                let mut rng = TraceRng::new(thread);
                let mut policy = fixture.limiter.policy();
                while !ended.load(Ordering::Relaxed) {
                    // Some calls are late: they use an older policy.
                    if rng.one_in(3) {
                        late.fetch_add(1, Ordering::Relaxed);
                    } else {
                        policy = fixture.limiter.policy();
                    }
                    let user = if rng.one_in(2) { "gold" } else { "ann" };
                    let request = request("/a/b").header("x", user);
                    let plan = policy.plan_request(&request, fixture.clock.now()).unwrap();
                    assert_eq!(plan.limits().count(), 5);
                    let marks: Vec<u64> = marks(&plan).collect();
                    assert!(marks.windows(2).all(|pair| pair[0] == pair[1]), "{marks:?}");
                    let decision = fixture.limiter.decide(Op::Check, &plan).now().unwrap();
                    admitted.fetch_add(decision.allowed().into(), Ordering::Relaxed);
                    decided.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..SWAPS {
            let goal = decided.load(Ordering::Relaxed) + rng.between(1, 100);
            while decided.load(Ordering::Relaxed) < goal {
                std::thread::yield_now();
            }
            let mark = rng.between(1, 200);
            bound += mark.saturating_sub(present);
            present = mark;
            fixture.limiter.set_policy(marked(mark));
        }
        ended.store(true, Ordering::Relaxed);
    });
    let [decided, late, admitted] = [decided, late, admitted].map(AtomicU64::into_inner);
    print_figure(&format!(
        "policy: {SWAPS} swaps under 4 threads: {decided} decisions, {late} of them late, admitted \
         {admitted}, bound {bound}, over-admitted {}",
        admitted.saturating_sub(bound)
    ));
    assert!(admitted <= bound, "{admitted} > {bound}");
    let last = fixture.peek(&request("/a/b").header("x", "gold"));
    let limits: Vec<u64> = last.verdicts.iter().map(|verdict| verdict.limit % 1_000).collect();
    assert_eq!(limits, [present; 5], "the last policy is active");
}

// --- latency ------------------------------------------------------------------------------------

/// Figures, not claims: a busy machine may be slow.
#[test]
fn planning_time_is_printed() {
    for (paths, path_of) in [
        ("all below one prefix", (|i| format!("/api/v1/s{i}/{{id}}")) as fn(usize) -> String),
        ("each its own first segment", |i| format!("/s{i}/{{id}}")),
        ("all named first", |i| format!("/{{tenant}}/s{i}/{{id}}")),
    ] {
        for count in [1, 100, 10_000] {
            let rule = |i| RuleDraft {
                matches: at(&path_of(i)),
                key: vec!["path:id".parse().unwrap()],
                ..draft(&format!("r{i}"), &["5/s"])
            };
            let policy = policy((0..count).map(rule));
            let last = path_of(count - 1).replace("{id}", "7").replace("{tenant}", "t");
            let request = request(&last);
            assert_eq!(applied(&policy, &request).len(), 1);
            let nanos = nanos_each(2_000_000 / (count + 1_000), || {
                std::hint::black_box(policy.plan_request(&request, Micros::ZERO).unwrap());
            });
            print_figure(&format!("policy: plan_request, {count} rules, {paths}: {nanos} ns"));
        }
    }
    let of_host = |i| Match { host: Some(format!("h{i}.example.com").into()), ..Match::default() };
    let of_header = |i: usize| Match {
        headers: vec![("x-tenant".into(), format!("t{i}").into())],
        ..Match::default()
    };
    for (name, matches) in [("host", &of_host as &dyn Fn(usize) -> Match), ("header", &of_header)] {
        for count in [1, 10_000] {
            let rule = |i| RuleDraft { matches: matches(i), ..draft(&format!("r{i}"), &["5/s"]) };
            let policy = policy((0..count).map(rule));
            let last = request("/").host(&format!("h{}.example.com", count - 1));
            let last = last.header("x-tenant", &format!("t{}", count - 1));
            assert_eq!(applied(&policy, &last).len(), 1);
            let nanos = nanos_each(10_000, || {
                std::hint::black_box(policy.plan_request(&last, Micros::ZERO).unwrap());
            });
            print_figure(&format!("policy: plan_request, {count} rules by {name}: {nanos} ns"));
        }
    }
    let list: Vec<ListEntry> = (0..PolicyRule::MAX_ENTRIES)
        .map(|i| ListEntry::from(&*format!("10.{}.{}.0/24", i / 256, i % 256)))
        .collect();
    let rule = RuleDraft { key: by_client(), deny: list, ..draft("rule", &["5/s"]) };
    let policy = policy([rule]);
    let request = request("/").client("11.0.0.1");
    let nanos = nanos_each(200, || {
        std::hint::black_box(policy.plan_request(&request, Micros::ZERO).unwrap());
    });
    print_figure(&format!("policy: plan_request, 1 rule that denies 10000 networks: {nanos} ns"));
}

fn nanos_each(times: usize, mut work: impl FnMut()) -> u64 {
    let rounds = (0..5).map(|_| {
        let start = SystemClock.elapsed();
        (0..times).for_each(|_| work());
        SystemClock.elapsed().saturating_sub(start).get() * 1_000 / times as u64
    });
    rounds.min().unwrap()
}

// --- support -----------------------------------------------------------------------------------

/// A request with the given parts.
#[derive(Clone, Debug)]
struct FakeRequest {
    method: String,
    path: String,
    host: String,
    headers: Vec<(String, String)>,
    query: Vec<(String, String)>,
    cookies: Vec<(String, String)>,
    bearer: Option<String>,
    client: Option<IpAddr>,
    from_trusted_proxy: bool,
}

fn request(path: &str) -> FakeRequest {
    FakeRequest {
        method: "GET".into(),
        path: path.into(),
        host: "example.net".into(),
        headers: Vec::new(),
        query: Vec::new(),
        cookies: Vec::new(),
        bearer: None,
        client: None,
        from_trusted_proxy: false,
    }
}

impl FakeRequest {
    fn method(self, method: &str) -> Self {
        Self { method: method.into(), ..self }
    }

    fn path(self, path: &str) -> Self {
        Self { path: path.into(), ..self }
    }

    fn host(self, host: &str) -> Self {
        Self { host: host.into(), ..self }
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(n, _)| n != name);
        self.headers.push((name.into(), value.into()));
        self
    }

    fn header_if_missing(self, name: &str, value: &str) -> Self {
        let has = self.headers.iter().any(|(n, _)| n == name);
        if has { self } else { self.header(name, value) }
    }

    fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    fn cookie(mut self, name: &str, value: &str) -> Self {
        self.cookies.push((name.into(), value.into()));
        self
    }

    fn bearer(self, hash: &str) -> Self {
        Self { bearer: Some(hash.into()), ..self }
    }

    fn client(self, ip: &str) -> Self {
        Self { client: Some(ip.parse().unwrap()), ..self }
    }

    fn via_trusted_proxy(self) -> Self {
        Self { from_trusted_proxy: true, ..self }
    }
}

fn first<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(n, _)| n == name).map(|(_, value)| &**value)
}

impl Request for FakeRequest {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn host(&self) -> &str {
        &self.host
    }

    fn header(&self, name: &str) -> Option<&str> {
        first(&self.headers, name)
    }

    fn any_header(&self, name: &str, test: &dyn Fn(&str) -> bool) -> bool {
        self.headers.iter().any(|(other, value)| other == name && test(value))
    }

    fn query(&self, name: &str) -> Option<Cow<'_, str>> {
        first(&self.query, name).map(Into::into)
    }

    fn cookie(&self, name: &str) -> Option<Cow<'_, str>> {
        first(&self.cookies, name).map(Into::into)
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        self.bearer.as_deref().map(Into::into)
    }

    fn client_ip(&self) -> Option<IpAddr> {
        self.client
    }

    fn is_from_trusted_proxy(&self) -> bool {
        self.from_trusted_proxy
    }
}

/// A limiter of a policy, and its clock.
struct PolicyFixture {
    limiter: Limiter,
    clock: ManualClock,
}

impl PolicyFixture {
    fn new(drafts: impl IntoIterator<Item = RuleDraft>) -> Self {
        Self::at(ManualClock::default(), drafts)
    }

    fn at(clock: ManualClock, drafts: impl IntoIterator<Item = RuleDraft>) -> Self {
        let memory = Memory::builder().clock(clock.clone()).build();
        Self { limiter: Limiter::with_policy(memory, policy(drafts)), clock }
    }

    fn of(policy: Policy) -> Self {
        let fixture = Self::new([]);
        fixture.limiter.set_policy(policy);
        fixture
    }

    fn check(&self, request: &FakeRequest) -> Decision {
        let policy = self.limiter.policy();
        let plan = policy.plan_request(request, self.clock.now()).unwrap();
        self.limiter.decide(Op::Check, &plan).now().unwrap()
    }

    fn peek(&self, request: &FakeRequest) -> Decision {
        let policy = self.limiter.policy();
        let plan = policy.plan_request(request, self.clock.now()).unwrap();
        self.limiter.decide(Op::Check, &plan).peek().now().unwrap()
    }

    fn decide_items(&self, items: &[RuleCheck<'_>]) -> Decision {
        let policy = self.limiter.policy();
        let plan = policy.plan_checks(items, ListMode::Evaluate, self.clock.now()).unwrap();
        self.limiter.decide(Op::Check, &plan).now().unwrap()
    }

    fn named<'k>(&self, rule: &str, key: impl Into<Key<'k>>) -> Decision {
        self.decide_items(&[item(rule, key.into(), 1)])
    }

    /// How many of `count` requests pass.
    fn admitted(&self, request: &FakeRequest, count: u64) -> u64 {
        (0..count).map(|_| self.check(request)).filter(Decision::allowed).count() as u64
    }

    /// How a request is treated under a limit of 1.
    fn treatment(&self, check: impl Fn() -> Decision) -> Treatment {
        match (check().allowed(), check().allowed()) {
            (true, true) => Exempt,
            (true, false) => Counted,
            (false, _) => Denied,
        }
    }
}

fn policy(drafts: impl IntoIterator<Item = RuleDraft>) -> Policy {
    Policy::new(drafts.into_iter().map(|draft| PolicyRule::new(draft).unwrap())).unwrap()
}

fn draft(name: &str, limits: &[&str]) -> RuleDraft {
    let limits = limits.iter().map(|text| limit(text)).collect();
    RuleDraft { name: name.into(), limits, ..RuleDraft::default() }
}

/// A rule by user, in which the user `gold` has another limit for a while.
fn by_user(count: u64, gold: Option<(u64, Micros)>) -> RuleDraft {
    by_user_as("rule", count, gold)
}

fn by_user_as(name: &str, count: u64, gold: Option<(u64, Micros)>) -> RuleDraft {
    let of = |count: u64| format!("{count}/36500d");
    let gold = gold.map(|(count, until)| over(&["gold"], &of(count), Some(until)));
    RuleDraft {
        key: vec![header_key("x")],
        overrides: gold.into_iter().collect(),
        ..draft(name, &[&of(count)])
    }
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn at(path: &str) -> Match {
    Match { path: Some(path.parse().unwrap()), ..Match::default() }
}

fn header_key(name: &str) -> KeyPart {
    KeyPart::Header(name.into())
}

fn by_client() -> Vec<KeyPart> {
    vec![KeyPart::ClientIp]
}

fn entries(texts: &[&str]) -> Vec<ListEntry> {
    texts.iter().map(|text| ListEntry::from(*text)).collect()
}

fn over(key: &[&str], text: &str, until: Option<Micros>) -> Override {
    let key = key.iter().map(|part| part.to_string()).collect();
    Override { key, limits: vec![limit(text)], until }
}

fn item<'q>(rule: &'q str, key: Key<'q>, cost: u64) -> RuleCheck<'q> {
    RuleCheck::new(rule, key).cost(cost)
}

/// The names of the rules that apply to a request.
fn applied(policy: &Policy, request: &FakeRequest) -> Vec<String> {
    let plan = policy.plan_request(request, Micros::ZERO).unwrap();
    plan.steps().iter().map(|step| step.rule().name().to_string()).collect()
}

fn would_be_denied(policy: &Policy, request: &FakeRequest) -> Vec<String> {
    let plan = policy.plan_request(request, Micros::ZERO).unwrap();
    plan.shadow_denied_by().iter().map(|rule| rule.name().to_string()).collect()
}

fn names(applies: bool, names: &[&str]) -> Vec<String> {
    names.iter().filter(|_| applies).map(|name| name.to_string()).collect()
}

fn texts(key: Key<'_>) -> Vec<String> {
    key.parts().map(|part| String::from_utf8(part.to_vec()).unwrap()).collect()
}

fn is_final_denial(decision: &Decision) -> bool {
    !decision.allowed() && decision.retry_after() == Wait::Never
}

/// The marks of the limits of a plan.
fn marks<'a>(plan: &'a Plan<'_>) -> impl Iterator<Item = u64> + 'a {
    plan.limits().map(|limit| limit.limit().capacity() % 1_000)
}

/// Prints a figure to stderr past the test harness, which captures `eprintln!`.
fn print_figure(figure: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{figure}").unwrap();
}

/// Policies are shared between threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<Policy>>();
};

// --- named rules without a plan -----------------------------------------------------------------

#[test]
fn lists_overrides_and_prefixes_apply_to_callers_that_name_a_rule() {
    let limiter = Limiter::with_policy(
        Memory::default(),
        policy([RuleDraft {
            key: vec![KeyPart::ClientIp],
            deny: vec![ListEntry::from("10.0.0.0/8")],
            overrides: vec![Override {
                key: vec!["1.2.3.4".into()],
                limits: vec!["50/h".parse().unwrap()],
                until: None,
            }],
            ..draft("r", &["5/h"])
        }]),
    );
    let check =
        |key: &str| limiter.check_each(&[tidegate::RuleCheck::new("r", key)]).now().unwrap();
    assert!(!check("10.1.1.1").allowed());
    assert_eq!(limiter.check_now("10.1.1.1").unwrap().source, Source::Policy);
    assert_eq!(check("1.2.3.4").verdict().limit, 50);
    check("2001:db8::1");
    assert_eq!(check("2001:db8::2").remaining(), 3, "one /64");
}

/// As with `CL.THROTTLE`: large and small limits on one key alternately.
#[test]
fn a_small_adhoc_limit_does_not_reset_the_usage_of_a_large_one() {
    for (small_cost, op) in [(0, Op::Peek), (1, Op::Check)] {
        let limiter = Limiter::with_policy(Memory::default(), Policy::default());
        let [large, small] =
            ["16/h", "1/h"].map(|limit| Rule::throttle(limit.parse::<Limit>().unwrap()));
        let check = |rule: &Rule, cost: u64, op: Op| {
            let items = [RuleCheck::of(RuleTarget::Own(rule), "k", cost)];
            let policy = limiter.policy();
            let plan = policy.plan_checks(&items, ListMode::Evaluate, Micros::ZERO).unwrap();
            limiter.decide(op, &plan).now().unwrap().allowed()
        };
        let mut admitted = 0;
        for _ in 0..6 {
            admitted += 15 * u64::from(check(&large, 15, Op::Check));
            assert!(!check(&small, small_cost, op) || small_cost == 0);
        }
        assert_eq!(admitted, 15, "{op:?}");
    }
}

#[test]
fn the_usage_of_a_key_on_a_list_can_be_reset() {
    let rule = |deny: &[&str]| RuleDraft {
        deny: deny.iter().map(|text| ListEntry::from(*text)).collect(),
        ..draft("r", &["5/h"])
    };
    let limiter = Limiter::with_policy(Memory::default(), policy([rule(&[])]));
    limiter.check("bob").cost(4).now().unwrap();
    limiter.set_policy(policy([rule(&["bob"])]));
    assert!(!limiter.check_now("bob").unwrap().allowed());
    limiter.reset("bob").now().unwrap();
    limiter.set_policy(policy([rule(&[])]));
    assert_eq!(limiter.check_now("bob").unwrap().remaining(), 4);
}

#[test]
fn without_a_limit_every_request_passes() {
    let limiter = Limiter::with_policy(
        Memory::default(),
        policy([RuleDraft { allow: vec![ListEntry::from("bob")], ..draft("r", &["1/h"]) }]),
    );
    for _ in 0..3 {
        let decision = limiter.check_now("bob").unwrap();
        assert_eq!(decision.outcome(), tidegate::Outcome::Allow);
        assert_eq!((decision.retry_after(), decision.remaining()), (Wait::NONE, u64::MAX));
    }
}

/// A full memory puts new keys into shared buckets, but not under the override of another key.
#[test]
fn without_room_no_key_is_counted_under_the_override_of_another() {
    let limiter = Limiter::with_policy(
        Memory::builder().cap_bytes(64 << 10).build(),
        policy([RuleDraft {
            overrides: vec![Override {
                key: vec!["vip".into()],
                limits: vec!["100000/h".parse().unwrap()],
                until: None,
            }],
            ..draft("r", &["fixed-window 5/h"])
        }]),
    );
    for i in 0..5_000 {
        limiter.check_now(&format!("filler-{i}")).unwrap();
    }
    assert!(limiter.check_now("vip").unwrap().allowed());
    let mut passed = 0;
    for i in 0..200 {
        let decision = limiter.check_now(&format!("new-{}", i % 16)).unwrap();
        assert_eq!(decision.verdict().limit, 5);
        passed += u64::from(decision.allowed());
    }
    assert!(passed <= 16 * 5, "{passed}");
}
