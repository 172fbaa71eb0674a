//! Responses to Envoy's requests: which descriptors are charged, and the status of each.

use std::time::Duration;

use testkit::envoy::{EnvoyInProcess, codes, descriptor, descriptor_with_hits, request};
use tidegate_server::internal::transport::envoy::error::EnvoyError;
use tidegate_server::internal::transport::envoy::proto::{
    Code, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit,
};
use tidegate_server::internal::transport::envoy::settings::{EnvoySettings, ResponseHeaders};

use Code::{Ok as Within, OverLimit as Over};

const PLAIN: &str = r#"
domain: d
descriptors:
  - { key: two, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: ten, rate_limit: { unit: minute, requests_per_unit: 10, name: tens } }
  - { key: none, rate_limit: { unit: minute, requests_per_unit: 0 } }
  - { key: free, rate_limit: { unlimited: true } }
"#;

#[tokio::test]
async fn of_two_descriptors_one_is_full_and_the_other_is_not_charged() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let both = [descriptor(&[("ten", "x")]), descriptor(&[("two", "x")])];
    for (overall, each) in [
        (Within, [(Within, 9), (Within, 1)]),
        (Within, [(Within, 8), (Within, 0)]),
        (Over, [(Within, 8), (Over, 0)]),
        (Over, [(Within, 8), (Over, 0)]),
    ] {
        assert_eq!(codes(&envoy.decide(&both).await), (overall, each.to_vec()));
    }
    envoy.clock.advance(Duration::from_secs(60));
    assert_eq!(codes(&envoy.decide(&both).await), (Within, vec![(Within, 9), (Within, 1)]));
}

#[tokio::test]
async fn a_descriptor_without_a_limit_passes_and_its_status_has_no_limit() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let all = [
        descriptor(&[("unknown", "x")]),
        descriptor(&[("free", "x")]),
        descriptor(&[("ten", "x")]),
        descriptor(&[("ten", "x"), ("below", "y")]),
        descriptor(&[]),
    ];
    let response = envoy.decide(&all).await;
    let free = [(Within, 0), (Within, u32::MAX), (Within, 9), (Within, 0), (Within, 0)];
    assert_eq!(codes(&response), (Within, free.to_vec()));
    let limited = response.statuses.iter().map(|status| status.current_limit.is_some());
    assert_eq!(limited.collect::<Vec<_>>(), [false, false, true, false, false]);
    let unknown = envoy.limits.decide(&request("unknown", &all)).await.unwrap();
    assert_eq!(codes(&unknown), (Within, vec![(Within, 0); 5]));
}

#[tokio::test]
async fn a_status_reports_the_limit_the_remaining_hits_and_the_reset() {
    let envoy = EnvoyInProcess::new(PLAIN);
    envoy.clock.advance(Duration::from_millis(12_500));
    let response = envoy.decide(&[descriptor(&[("ten", "x")])]).await;
    let status = &response.statuses[0];
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), &*limit.name), (10, Unit::Minute, "tens"));
    let reset = status.duration_until_reset.unwrap();
    assert_eq!((reset.seconds, reset.nanos), (47, 500_000_000));
    assert_eq!(envoy.decide_one(descriptor(&[("none", "x")])).await, (Over, 0));
}

#[tokio::test]
async fn a_number_of_hits_is_charged_whatever_is_left() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let ten = [("ten", "x")];
    for (hits, codes) in [
        (0, (Within, 10)),
        (7, (Within, 3)),
        (0, (Within, 3)),
        (3, (Within, 0)),
        // Nothing is left: a request with zero hits is over the limit too.
        (0, (Over, 0)),
        (5, (Over, 0)),
        (0, (Over, 0)),
    ] {
        assert_eq!(envoy.decide_one(descriptor_with_hits(&ten, hits)).await, codes, "{hits}");
    }
    assert_eq!(envoy.decide_one(descriptor(&ten)).await, (Over, 0));
    envoy.clock.advance(Duration::from_secs(60));
    assert_eq!(
        envoy.decide_one(descriptor(&ten)).await,
        (Within, 9),
        "a window forgets what is owed"
    );
    assert_eq!(envoy.decide_one(descriptor_with_hits(&[("none", "x")], 1)).await, (Over, 0));
    assert_eq!(envoy.decide_one(descriptor_with_hits(&[("none", "x")], 0)).await, (Over, 0));
    assert_eq!(
        envoy.decide_one(descriptor_with_hits(&[("ten", "huge")], u64::MAX)).await,
        (Over, 0)
    );
}

/// Clients of envoyproxy/ratelimit always send 1.
#[tokio::test]
async fn one_hit_is_the_same_whether_it_is_given_or_not() {
    const BUCKET: &str = "
domain: d
descriptors:
  - key: bucket
    limits: ['2/s burst 2']
";
    let bucket = [("bucket", "x")];
    for descriptor in [descriptor(&bucket), descriptor_with_hits(&bucket, 1)] {
        let envoy = EnvoyInProcess::new(BUCKET);
        let mut passed = 0;
        for _ in 0..60 {
            passed += u32::from(envoy.decide_one(descriptor.clone()).await.0 == Within);
            envoy.clock.advance(Duration::from_millis(100));
        }
        assert_eq!(passed, 13);
    }
}

#[tokio::test]
async fn the_number_of_a_descriptor_wins_over_that_of_the_request() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let all = [
        descriptor(&[("ten", "a")]),
        descriptor_with_hits(&[("ten", "b")], 2),
        descriptor_with_hits(&[("ten", "c")], 0),
    ];
    let of = |hits_addend| RateLimitRequest { hits_addend, ..request("d", &all) };
    let first = envoy.limits.decide(&of(3)).await.unwrap();
    assert_eq!(codes(&first), (Within, vec![(Within, 7), (Within, 8), (Within, 10)]));
    // No `hits_addend` means one hit.
    let second = envoy.limits.decide(&of(0)).await.unwrap();
    assert_eq!(codes(&second), (Within, vec![(Within, 6), (Within, 6), (Within, 10)]));
}

#[tokio::test]
async fn a_request_that_is_denied_is_still_charged_what_it_reports() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let full = descriptor(&[("none", "x")]);
    let response = envoy.decide(&[full, descriptor_with_hits(&[("ten", "x")], 4)]).await;
    assert_eq!(codes(&response), (Over, vec![(Over, 0), (Within, 6)]));
}

#[tokio::test]
async fn negative_hits_give_back_what_was_used_and_no_more() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let ten = [("ten", "x")];
    let back =
        |hits| RateLimitDescriptor { is_negative_hits: true, ..descriptor_with_hits(&ten, hits) };
    assert_eq!(envoy.decide_one(descriptor_with_hits(&ten, 6)).await, (Within, 4));
    assert_eq!(envoy.decide_one(back(2)).await, (Within, 6));
    assert_eq!(envoy.decide_one(back(100)).await, (Within, 10));
    assert_eq!(envoy.decide_one(descriptor_with_hits(&ten, 15)).await, (Over, 0));
    assert_eq!(envoy.decide_one(back(1)).await, (Over, 0), "still in debt");
    assert_eq!(envoy.decide_one(back(5)).await, (Within, 1));
    assert_eq!(envoy.decide_one(back(0)).await, (Within, 1), "nothing is given back: a look");
}

#[tokio::test]
async fn a_budget_of_tokens_stops_when_it_is_spent() {
    let envoy = EnvoyInProcess::new(
        "{ domain: d, descriptors: [{ key: model, rate_limit: { unit: hour, requests_per_unit: 1000 } }] }",
    );
    let model = [("model", "m")];
    let mut spent = 0;
    for _ in 0..100 {
        // Envoy checks before the request and reports the actual cost afterwards.
        if envoy.decide_one(descriptor_with_hits(&model, 0)).await.0 == Over {
            break;
        }
        envoy.decide_one(descriptor_with_hits(&model, 300)).await;
        spent += 300;
    }
    assert_eq!(spent, 1_200, "one request more than fits: its cost was unknown");
}

#[tokio::test]
async fn their_way_charges_the_denied_and_each_for_itself() {
    let yaml = PLAIN.replace("domain: d", "domain: d\ncharge_denied: true");
    let envoy = EnvoyInProcess::new(&yaml);
    let both = [descriptor(&[("ten", "x")]), descriptor(&[("two", "x")])];
    for (overall, each) in [
        (Within, [(Within, 9), (Within, 1)]),
        (Within, [(Within, 8), (Within, 0)]),
        (Over, [(Within, 7), (Over, 0)]),
        (Over, [(Within, 6), (Over, 0)]),
    ] {
        assert_eq!(codes(&envoy.decide(&both).await), (overall, each.to_vec()));
    }
}

#[tokio::test]
async fn a_rule_in_shadow_mode_denies_no_request() {
    let envoy = EnvoyInProcess::new(
        r#"
domain: d
descriptors:
  - { key: shy, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: two, rate_limit: { unit: minute, requests_per_unit: 2 } }
"#,
    );
    let both = [descriptor(&[("shy", "x")]), descriptor(&[("two", "x")])];
    for (overall, each) in [
        (Within, [(Within, 0), (Within, 1)]),
        (Within, [(Within, 0), (Within, 0)]),
        (Over, [(Within, 0), (Over, 0)]),
    ] {
        assert_eq!(codes(&envoy.decide(&both).await), (overall, each.to_vec()));
    }
    assert_eq!(envoy.decide_one(descriptor_with_hits(&[("shy", "y")], 5)).await, (Within, 0));
}

#[tokio::test]
async fn in_shadow_mode_every_request_passes_and_its_status_reports_the_verdict() {
    let shadow = EnvoySettings {
        enforcement: tidegate::policy::Enforcement::Shadow,
        ..EnvoySettings::default()
    };
    let envoy = EnvoyInProcess::with(PLAIN, shadow);
    let response = envoy.decide(&[descriptor(&[("none", "x")])]).await;
    assert_eq!(codes(&response), (Within, vec![(Over, 0)]));
}

#[tokio::test]
async fn quotas_deny_only_when_none_of_them_has_any_left() {
    let envoy = EnvoyInProcess::new(
        r#"
domain: d
descriptors:
  - { key: one, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: two, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: ten, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: none, rate_limit: { unit: minute, requests_per_unit: 0 } }
"#,
    );
    let quotas = |who| [descriptor(&[("one", who)]), descriptor(&[("two", who)])];
    for (overall, each) in [
        (Within, [(Within, 0), (Within, 1)]),
        (Within, [(Over, 0), (Within, 0)]),
        (Over, [(Over, 0), (Over, 0)]),
    ] {
        assert_eq!(codes(&envoy.decide(&quotas("a")).await), (overall, each.to_vec()));
    }
    // With a plain limit: a denial by the quotas charges nothing to the limit, and the other way
    // round.
    let with = |key: &str| [&[descriptor(&[(key, "b")])][..], &quotas("b")].concat();
    for (key, overall, each) in [
        ("none", Over, [(Over, 0), (Within, 1), (Within, 2)]),
        ("ten", Within, [(Within, 9), (Within, 0), (Within, 1)]),
        ("ten", Within, [(Within, 8), (Over, 0), (Within, 0)]),
        ("ten", Over, [(Within, 8), (Over, 0), (Over, 0)]),
        ("ten", Over, [(Within, 8), (Over, 0), (Over, 0)]),
    ] {
        assert_eq!(codes(&envoy.decide(&with(key)).await), (overall, each.to_vec()), "{key}");
    }
}

#[tokio::test]
async fn a_limit_that_comes_with_the_request_takes_the_place_of_the_files() {
    let yaml = PLAIN.replace(
        "  - { key: two,",
        "  - { key: shut, allow_override: false, rate_limit: { unit: minute, requests_per_unit: 1 } }\n  - { key: two,",
    );
    let envoy = EnvoyInProcess::new(&yaml);
    let brings = |key: &str, requests_per_unit, unit: Unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit, unit: unit.into() }),
        ..descriptor(&[(key, "x")])
    };
    let response = envoy.decide(&[brings("two", 50, Unit::Hour)]).await;
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (50, Unit::Hour));
    assert_eq!(response.statuses[0].limit_remaining, 49);
    // A changed number keeps the used permits.
    assert_eq!(envoy.decide_one(brings("two", 20, Unit::Hour)).await, (Within, 18));
    assert_eq!(envoy.decide_one(brings("nowhere", 5, Unit::Week)).await, (Within, 4));
    assert_eq!(envoy.decide_one(brings("shut", 50, Unit::Hour)).await, (Within, 0));
    assert_eq!(envoy.decide_one(brings("shut", 50, Unit::Hour)).await, (Over, 0));
    let unknown = envoy.limits.decide(&request("d", &[brings("two", 1, Unit::Unknown)])).await;
    assert!(
        matches!(&unknown, Err(EnvoyError::Invalid(text)) if text.contains("unit")),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn a_limit_that_replaces_another_is_the_only_one_of_the_two() {
    let envoy = EnvoyInProcess::new(
        r#"
domain: d
descriptors:
  - { key: a, rate_limit: { name: narrow, unit: minute, requests_per_unit: 1 } }
  - { key: b, rate_limit: { replaces: [{ name: narrow }], unit: minute, requests_per_unit: 3 } }
"#,
    );
    let (a, b) = (descriptor(&[("a", "x")]), descriptor(&[("b", "x")]));
    for left in [2, 1] {
        let both = envoy.decide(&[a.clone(), b.clone()]).await;
        assert_eq!(codes(&both), (Within, vec![(Within, 0), (Within, left)]));
        assert_eq!(both.statuses[0].current_limit, None);
    }
    assert_eq!(envoy.decide_one(a).await, (Within, 0), "it was not charged");
}

#[tokio::test]
async fn of_several_limits_on_one_descriptor_the_most_restrictive_is_reported() {
    let envoy = EnvoyInProcess::new(
        r#"{ domain: d, descriptors: [{ key: k, limits: ["sliding-log 3/1m", "fixed-window 5/h"] }] }"#,
    );
    let k = || descriptor(&[("k", "x")]);
    for left in [2, 1, 0] {
        assert_eq!(envoy.decide_one(k()).await, (Within, left));
    }
    let response = envoy.decide(&[k()]).await;
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (3, Unit::Minute));
    envoy.clock.advance(Duration::from_secs(61));
    assert_eq!(
        [envoy.decide_one(k()).await, envoy.decide_one(k()).await],
        [(Within, 1), (Within, 0)]
    );
    let response = envoy.decide(&[k()]).await;
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (5, Unit::Hour));
}

#[tokio::test]
async fn headers_are_sent_on_request_only() {
    let headers = async |headers| {
        let envoy =
            EnvoyInProcess::with(PLAIN, EnvoySettings { headers, ..EnvoySettings::default() });
        envoy.clock.advance(Duration::from_millis(500));
        let both = [descriptor(&[("ten", "x")]), descriptor(&[("two", "x")])];
        let mut all = Vec::new();
        for _ in 0..3 {
            let response = envoy.decide(&both).await;
            let header = |h: &tidegate_server::internal::transport::envoy::proto::HeaderValue| {
                (h.key.clone(), h.value.clone())
            };
            all.push(response.response_headers_to_add.iter().map(header).collect::<Vec<_>>());
        }
        all
    };
    assert!(headers(ResponseHeaders::Off).await.iter().all(Vec::is_empty));
    let theirs = headers(ResponseHeaders::Envoy).await;
    let text = |(name, value): &(String, String)| format!("{name}: {value}");
    let last: Vec<_> = theirs[2].iter().map(text).collect();
    assert_eq!(last, ["RateLimit-Limit: 2", "RateLimit-Remaining: 0", "RateLimit-Reset: 60"]);
    let found: Vec<_> = headers(ResponseHeaders::Tidegate).await[2].iter().map(text).collect();
    for wanted in [
        r#"ratelimit-policy: "d.ten";q=10;w=60, "d.two";q=2;w=60"#,
        r#"ratelimit: "d.ten";r=8;t=60, "d.two";r=0;t=60"#,
        "retry-after: 60",
    ] {
        assert!(found.iter().any(|header| header == wanted), "{wanted} in {found:?}");
    }
}

#[tokio::test]
async fn an_invalid_request_gets_the_reason() {
    let limits = (0..16).map(|n| format!("\"fixed-window {}/h\"", n + 1)).collect::<Vec<_>>();
    let many = format!("{PLAIN}  - {{ key: many, limits: [{}] }}\n", limits.join(", "));
    let envoy = EnvoyInProcess::new(&many);
    let ten = descriptor(&[("ten", "x")]);
    let many = |count| vec![descriptor(&[("many", "x")]); count];
    for (request, wanted) in [
        (request("", std::slice::from_ref(&ten)), "domain must not be empty"),
        (request("d", &[]), "descriptor list must not be empty"),
        (request("d", &vec![ten.clone(); 65]), "65 descriptors; send at most 64"),
        (request("d", &many(5)), "match 80 limits together; at most 64 are allowed"),
    ] {
        match envoy.limits.decide(&request).await {
            Err(EnvoyError::Invalid(text)) => assert!(text.contains(wanted), "{text}"),
            other => panic!("{wanted}: {other:?}"),
        }
    }
    // The maximum is accepted.
    let most = envoy.limits.decide(&request("d", &many(4))).await.unwrap();
    assert_eq!(most.statuses.len(), 4);
    assert_eq!(
        envoy.limits.decide(&request("d", &vec![ten; 64])).await.unwrap().statuses.len(),
        64
    );
}

#[tokio::test]
async fn one_descriptor_twice_costs_two() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let twice = vec![descriptor(&[("ten", "x")]); 2];
    for (overall, left) in
        [(Within, 8), (Within, 6), (Within, 4), (Within, 2), (Within, 0), (Over, 0)]
    {
        let response = envoy.decide(&twice).await;
        assert_eq!(
            (response.overall_code(), response.statuses[1].limit_remaining),
            (overall, left)
        );
    }
}

#[tokio::test]
async fn a_reload_changes_limits_and_keeps_what_was_used() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let ten = || descriptor(&[("ten", "x")]);
    assert_eq!(envoy.decide_one(descriptor_with_hits(&[("ten", "x")], 4)).await, (Within, 6));
    envoy.reload(&PLAIN.replace("requests_per_unit: 10", "requests_per_unit: 20"));
    assert_eq!(envoy.decide_one(ten()).await, (Within, 15));
    envoy.reload(&PLAIN.replace("key: ten", "key: eleven"));
    assert_eq!(envoy.decide_one(ten()).await, (Within, 0));
}

#[tokio::test]
async fn long_values_are_counted_apart_and_not_let_through() {
    let envoy = EnvoyInProcess::new(PLAIN);
    let long = |end: &str| descriptor(&[("two", &("x".repeat(5_000) + end))]);
    let decisions = [long("a"), long("a"), long("b"), long("a")].map(|long| envoy.decide_one(long));
    let [first, second, other, third] = decisions;
    assert_eq!((first.await, second.await), ((Within, 1), (Within, 0)));
    assert_eq!((other.await, third.await), ((Within, 1), (Over, 0)));
}
