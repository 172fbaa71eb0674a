//! Parts of responses that equal those of envoyproxy/ratelimit.

use std::time::Duration;

use testkit::envoy::{EnvoyInProcess, codes, descriptor, descriptor_with_hits};
use tidegate_server::internal::transport::envoy::proto::{Code, RateLimitResponse};
use tidegate_server::internal::transport::envoy::settings::{EnvoySettings, ResponseHeaders};

use Code::{Ok as Within, OverLimit as Over};

// --- metadata ----------------------------------------------------------------------------------

/// The metadata of a response as JSON; empty if there is none.
fn metadata(response: &RateLimitResponse) -> String {
    fn text(value: &prost_types::Value) -> String {
        use prost_types::value::Kind;
        match value.kind.as_ref().unwrap() {
            Kind::StringValue(text) => text.clone(),
            Kind::NumberValue(number) => number.to_string(),
            Kind::StructValue(fields) => fields_text(fields),
            Kind::ListValue(list) => {
                format!("[{}]", list.values.iter().map(text).collect::<Vec<_>>().join(", "))
            }
            other => panic!("{other:?}"),
        }
    }
    fn fields_text(fields: &prost_types::Struct) -> String {
        let field = |(name, value): (&String, _)| format!("{name}: {}", text(value));
        format!("{{{}}}", fields.fields.iter().map(field).collect::<Vec<_>>().join(", "))
    }
    response.dynamic_metadata.as_ref().map(fields_text).unwrap_or_default()
}

#[tokio::test]
async fn metadata_is_that_of_descriptors_within_their_limits() {
    let envoy = EnvoyInProcess::new(
        r#"
domain: d
descriptors:
  - key: one
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
    metadata: { name: one }
  - key: two
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 3 }
    metadata: { name: two }
"#,
    );
    let both = [descriptor(&[("one", "x")]), descriptor(&[("two", "x")])];
    for (expected, overall) in [
        ("{metadata: {name: one}}", Within),
        ("{metadata: {name: two}}", Within),
        ("{metadata: {name: two}}", Within),
        ("", Over),
    ] {
        let response = envoy.decide(&both).await;
        assert_eq!((metadata(&response), response.overall_code()), (expected.into(), overall));
    }
}

#[tokio::test]
async fn metadata_is_merged_and_of_two_values_the_first_counts() {
    let envoy = EnvoyInProcess::new(
        r#"
domain: d
descriptors:
  - key: a
    rate_limit: { unit: minute, requests_per_unit: 10 }
    metadata: { team: core, route: { to: east, hops: [1, 2] }, plain: { x: 1 } }
  - key: b
    shadow_mode: true
    rate_limit: { unit: minute, requests_per_unit: 0 }
    metadata: { team: edge, route: { to: west, cost: 1.5, hops: [3] }, plain: 2, more: yes }
  - { key: none, rate_limit: { unit: minute, requests_per_unit: 10 } }
"#,
    );
    // A limit in shadow mode is never over.
    let response = envoy.decide(&[descriptor(&[("a", "x")]), descriptor(&[("b", "x")])]).await;
    let merged = "{metadata: {more: yes, plain: {x: 1}, \
                  route: {cost: 1.5, hops: [1, 2], to: east}, team: core}}";
    assert_eq!(metadata(&response), merged);
    let response = envoy.decide(&[descriptor(&[("b", "x")]), descriptor(&[("a", "x")])]).await;
    let merged = "{metadata: {more: yes, plain: 2, \
                  route: {cost: 1.5, hops: [3], to: west}, team: edge}}";
    assert_eq!(metadata(&response), merged);
    for without in ["none", "unknown"] {
        assert_eq!(envoy.decide(&[descriptor(&[(without, "x")])]).await.dynamic_metadata, None);
    }
}

// --- reset -------------------------------------------------------------------------------------

#[tokio::test]
async fn the_reset_of_an_unused_limit_is_the_end_of_its_window() {
    let envoy = EnvoyInProcess::new(
        r#"
domain: d
descriptors:
  - { key: none, rate_limit: { unit: minute, requests_per_unit: 0 } }
  - { key: ten, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: bucket, limit: 5/s }
"#,
    );
    // The manual clock begins at the start of a day.
    envoy.clock.advance(Duration::from_millis(12_500));
    let probe = |key| descriptor_with_hits(&[(key, "x")], 0);
    for (descriptor, reset) in [
        (descriptor(&[("none", "x")]), Duration::from_millis(47_500)),
        (probe("none"), Duration::from_millis(47_500)),
        (probe("ten"), Duration::from_millis(3_587_500)),
        (descriptor(&[("ten", "x")]), Duration::from_millis(3_587_500)),
        (probe("ten"), Duration::from_millis(3_587_500)),
        // Without windows, an unused limit is recovered.
        (probe("bucket"), Duration::ZERO),
    ] {
        let response = envoy.decide(std::slice::from_ref(&descriptor)).await;
        let given = response.statuses[0].duration_until_reset.unwrap();
        assert_eq!(Duration::try_from(given).unwrap(), reset, "{descriptor:?}");
    }
}

// --- the same descriptor twice -----------------------------------------------------------------

#[tokio::test]
async fn equal_descriptors_report_decreasing_remainders() {
    const LIMIT: &str = "
domain: d
descriptors:
  - { key: k, rate_limit: { unit: minute, requests_per_unit: 40 } }
";
    let twice = vec![descriptor(&[("k", "x")]); 2];
    for yaml in [
        LIMIT.to_string(),
        LIMIT.replace("domain: d", "domain: d\ncharge_denied: true"),
        LIMIT.replace("key: k", "key: k, quota_mode: true"),
    ] {
        let envoy = EnvoyInProcess::new(&yaml);
        assert_eq!(envoy.decide_one(twice[0].clone()).await, (Within, 39));
        assert_eq!(envoy.decide_one(twice[0].clone()).await, (Within, 38));
        let response = envoy.decide(&twice).await;
        assert_eq!(codes(&response), (Within, vec![(Within, 37), (Within, 36)]), "{yaml}");
        // Other values have other counts.
        let mixed = [&twice[..], &[descriptor(&[("k", "y")])], &twice[..1]].concat();
        let response = envoy.decide(&mixed).await;
        let expected = vec![(Within, 35), (Within, 34), (Within, 39), (Within, 33)];
        assert_eq!(codes(&response), (Within, expected), "{yaml}");
    }
    let envoy = EnvoyInProcess::new(LIMIT);
    let charged = [5, 7].map(|hits| descriptor_with_hits(&[("k", "x")], hits));
    assert_eq!(codes(&envoy.decide(&charged).await), (Within, vec![(Within, 35), (Within, 28)]));
    // A denied request is not charged, and nothing decreases.
    envoy.decide_one(descriptor_with_hits(&[("k", "x")], 27)).await;
    assert_eq!(codes(&envoy.decide(&twice).await), (Over, vec![(Over, 1), (Over, 1)]));
}

// --- headers -----------------------------------------------------------------------------------

/// The key of each limit is its number of requests.
const NUMBERS: &str = r#"
domain: d
descriptors:
  - { key: "1", rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: "2", rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: "5", quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: "6", quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 6 } }
  - { key: "20", rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: "21", rate_limit: { unit: minute, requests_per_unit: 21 } }
"#;

#[tokio::test]
async fn the_headers_are_about_the_same_descriptor_as_in_their_service() {
    let settings = EnvoySettings { headers: ResponseHeaders::Envoy, ..EnvoySettings::default() };
    // All are used up, except 20 and 21, of which the same number remains.
    let table: [(&[&str], &str); 8] = [
        // The last limit that is over.
        (&["1", "2"], "2"),
        (&["2", "1"], "1"),
        (&["1", "20", "2", "21"], "2"),
        // The first one with the fewest remaining.
        (&["20", "21"], "20"),
        (&["21", "20"], "21"),
        // A quota that is over does not deny.
        (&["5", "6"], "5"),
        (&["6", "20", "5"], "6"),
        (&["5", "1", "6"], "1"),
    ];
    for (keys, expected) in table {
        let envoy = EnvoyInProcess::with(NUMBERS, settings);
        for (key, hits) in [("1", 2), ("2", 2), ("5", 5), ("6", 6), ("20", 10), ("21", 11)] {
            envoy.decide_one(descriptor_with_hits(&[(key, "x")], hits)).await;
        }
        let all: Vec<_> = keys.iter().map(|key| descriptor(&[(key, "x")])).collect();
        let response = envoy.decide(&all).await;
        let header = &response.response_headers_to_add[0];
        assert_eq!((&*header.key, &*header.value), ("RateLimit-Limit", expected), "{keys:?}");
    }
}
