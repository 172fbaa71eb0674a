//! Lookup of the limit for the entries of a request.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::{Call, Charge, Cost, Engine, Memory, Op};
use tidegate_config::envoy::lookup::LookupResult;
use tidegate_config::envoy::{Domain, EnvoyConfig, EnvoyUnit};
use tidegate_model::TraceRng;

fn config(text: &str) -> EnvoyConfig {
    EnvoyConfig::load_str("test.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The limit of these entries, in Tidegate's notation.
fn limit(domain: &Domain, entries: &[(&str, &str)]) -> String {
    match domain.find(entries) {
        None => "none".into(),
        Some(found) => match found.leaf().rule() {
            None => "unlimited".into(),
            Some(rule) => rule.limits()[0].limit().to_string(),
        },
    }
}

/// For each request: its entries, then its limit.
fn check(text: &str, cases: &[(&[(&str, &str)], &str)]) {
    let config = config(text);
    let domain = config.domains().next().expect("one domain");
    for (entries, expected) in cases {
        assert_eq!(limit(domain, entries), *expected, "{entries:?} in {}", domain.name());
    }
}

#[test]
fn a_key_with_a_value_is_matched_before_the_key_alone() {
    check(
        "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: second, requests_per_unit: 10 }
  - key: remote_address
    value: 50.0.0.5
    rate_limit: { unit: second, requests_per_unit: 0 }
",
        &[
            (&[("remote_address", "50.0.0.1")], "fixed-window 10/s"),
            (&[("remote_address", "50.0.0.5")], "fixed-window 0/s"),
            (&[("remote_address", "")], "fixed-window 10/s"),
            (&[("Remote_Address", "50.0.0.5")], "none"),
            (&[("other", "50.0.0.5")], "none"),
            (&[], "none"),
        ],
    );
}

#[test]
fn the_number_of_entries_must_be_the_depth() {
    check(
        "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: day, requests_per_unit: 5 }
  - key: to_number
    rate_limit: { unit: DAY, requests_per_unit: 100 }
  - key: both
    rate_limit: { unit: Hour, requests_per_unit: 1 }
    descriptors:
      - key: below
        rate_limit: { unit: hour, requests_per_unit: 2 }
",
        &[
            (&[("message_type", "marketing"), ("to_number", "206")], "fixed-window 5/24h"),
            (&[("to_number", "206")], "fixed-window 100/24h"),
            (&[("message_type", "marketing")], "none"),
            (&[("message_type", "other"), ("to_number", "206")], "none"),
            (&[("to_number", "206"), ("to_number", "206")], "none"),
            (&[("to_number", "206"), ("message_type", "marketing")], "none"),
            (&[("both", "x")], "fixed-window 1/h"),
            (&[("both", "x"), ("below", "y")], "fixed-window 2/h"),
            (&[("both", "x"), ("below", "y"), ("below", "y")], "none"),
        ],
    );
}

#[test]
fn the_lookup_does_not_backtrack_to_another_level() {
    check(
        r#"
domain: d
descriptors:
  - { key: a, value: x, descriptors: [{ key: b, limit: 1/s }] }
  - { key: a, value: "x*", descriptors: [{ key: c, limit: 2/s }] }
  - { key: a, descriptors: [{ key: b, limit: 3/s }, { key: d, limit: 4/s }] }
"#,
        &[
            (&[("a", "x"), ("b", "")], "1/s"),
            (&[("a", "x"), ("c", "")], "none"),
            (&[("a", "x"), ("d", "")], "none"),
            (&[("a", "xy"), ("c", "")], "2/s"),
            (&[("a", "xy"), ("d", "")], "none"),
            (&[("a", "y"), ("b", "")], "3/s"),
            (&[("a", "y"), ("d", "")], "4/s"),
        ],
    );
}

#[test]
fn wildcards_are_tried_in_the_order_of_the_file() {
    check(
        r#"
domain: d
descriptors:
  - { key: path, limit: 99/s }
  - { key: path, value: "/api/*/action", limit: 1/s }
  - { key: path, value: "/api/*", limit: 2/s }
  - { key: path, value: "/api/v1/*", limit: 3/s }
  - { key: path, value: "/api/v1/x", limit: 4/s }
  - { key: path, value: "*/a/*/b/*", limit: 5/s }
  - { key: other, value: "*", limit: 6/s }
  - { key: other, limit: 7/s }
  - { key: "x-*", limit: 8/s }
  - { key: "x-y", value: "*", limit: 9/s }
"#,
        &[
            (&[("path", "/api/1/action")], "1/s"),
            (&[("path", "/api/v1/y")], "2/s"),
            (&[("path", "/api/v1/x")], "4/s"),
            (&[("path", "/api/v1/*")], "3/s"),
            (&[("path", "/x/a/1/b/2")], "5/s"),
            (&[("path", "/x/b/1/a/2")], "99/s"),
            (&[("path", "")], "99/s"),
            (&[("other", "anything")], "6/s"),
            (&[("other", "")], "6/s"),
            (&[("x-z", "anything")], "8/s"),
            (&[("x-y", "anything")], "8/s"),
        ],
    );
}

#[test]
fn keys_and_values_are_not_mixed_up() {
    check(
        "
domain: d
descriptors:
  - { key: a_b, limit: 1/s }
  - { key: a, value: b, limit: 2/s }
  - { key: a, value: b_c, limit: 3/s }
  - { key: 404, value: 1.5, limit: 4/s }
  - { key: t, value: true, limit: 5/s }
",
        &[
            (&[("a_b", "")], "1/s"),
            (&[("a", "b")], "2/s"),
            (&[("a_b", "c")], "1/s"),
            (&[("a", "b_c")], "3/s"),
            (&[("404", "1.5")], "4/s"),
            (&[("t", "true")], "5/s"),
        ],
    );
}

#[test]
fn unlimited_is_not_the_same_as_unknown() {
    check(
        "
domain: internal
descriptors:
  - { key: ldap, rate_limit: { unlimited: true } }
  - { key: azure, rate_limit: { unit: minute, requests_per_unit: 100 } }
  - { key: allowed }
  - { key: nothing, value: , rate_limit: , descriptors: , shadow_mode: }
",
        &[
            (&[("ldap", "x")], "unlimited"),
            (&[("azure", "x")], "fixed-window 100/m"),
            (&[("allowed", "x")], "none"),
            (&[("nothing", "x")], "none"),
        ],
    );
}

const STATS: &str = r#"
domain: d
descriptors:
  - { key: k, value: v, limit: 1/s }
  - { key: k, limit: 1/s }
  - { key: w, value: "a*z", limit: 1/s }
  - { key: m, value: "a*", value_to_metric: true, limit: 1/s }
  - { key: m, value_to_metric: true, descriptors: [{ key: n, limit: 1/s }, { key: o, value: x, limit: 1/s }] }
  - { key: s, value: "a*", share_threshold: true, value_to_metric: true, limit: 1/s }
  - { key: s, value: "b*", share_threshold: true, descriptors: [{ key: e, detailed_metric: true, limit: 1/s }] }
  - { key: t, detailed_metric: true, value_to_metric: true, descriptors: [{ key: u, limit: 1/s }, { key: z, detailed_metric: true, limit: 1/s }] }
  - { key: ip, value: 50.0.0.5, limit: 1/s }
  - { key: "y*", limit: 1/s }
"#;

#[test]
fn stats_have_the_names_of_their_descriptors() {
    let config = config(STATS);
    let domain = config.domain("d").unwrap();
    let cases: [(&[(&str, &str)], &str); 18] = [
        (&[("k", "v")], "d.k_v"),
        (&[("k", "other")], "d.k"),
        (&[("w", "abz")], "d.w_a*z"),
        (&[("m", "ab")], "d.m_ab"),
        (&[("m", "x"), ("n", "y")], "d.m_x.n"),
        (&[("m", ""), ("n", "y")], "d.m.n"),
        (&[("m", "x"), ("o", "x")], "d.m_x.o_x"),
        (&[("s", "ab")], "d.s_a*"),
        (&[("s", "bc"), ("e", "x")], "d.s_b*.e_x"),
        (&[("s", "bc"), ("e", "")], "d.s_b*.e"),
        (&[("t", "x"), ("u", "y")], "d.t_x.u"),
        (&[("t", "x"), ("z", "y")], "d.t_x.z_y"),
        (&[("t", "x"), ("z", "")], "d.t_x.z_"),
        (&[("t", "a:b|c"), ("z", "1.2.3.4")], "d.t_a_b_c.z_1_2_3_4"),
        (&[("ip", "50.0.0.5")], "d.ip_50_0_0_5"),
        (&[("yes", "x")], "d.yes_y*"),
        (&[("y", "x")], "d.y_y*"),
        (&[("y*", "")], "d.y*_y*"),
    ];
    for (entries, expected) in cases {
        let found = domain.find(entries).unwrap_or_else(|| panic!("{entries:?}"));
        assert_eq!(found.stat_name(entries), expected, "{entries:?}");
    }
    let entries = [("a", "1.2.3.4"), ("b", "")];
    let found = domain.find_overridden(&entries, 5, EnvoyUnit::Hour).unwrap();
    assert_eq!(found.stat_name(&entries), "d.a_1_2_3_4.b");
}

/// Checks for one permit.
async fn passes(store: &Memory, found: &LookupResult<'_>, entries: &[(&str, &str)]) -> bool {
    let subject = found.subject(entries);
    let limits = found.leaf().rule().expect("a rule").limits();
    let charge = |limit| Charge { limit, key: subject.key(), cost: Cost::ONE, caller: None };
    let charges: Vec<Charge<'_>> = limits.iter().map(charge).collect();
    let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
    store.decide(call).await.expect("a decision").allowed()
}

#[tokio::test]
async fn each_value_has_its_own_count_unless_a_wildcard_shares_it() {
    let config = config(
        r#"
domain: d
descriptors:
  - { key: own, value: "f/*", rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: shared, value: "f/*", share_threshold: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - key: outer
    value: "o*"
    share_threshold: true
    descriptors: [{ key: inner, rate_limit: { unit: year, requests_per_unit: 2 } }]
"#,
    );
    let domain = config.domain("d").unwrap();
    let store = Memory::default();
    let cases: [(&[(&str, &str)], bool); 14] = [
        (&[("own", "f/a")], true),
        (&[("own", "f/a")], true),
        (&[("own", "f/a")], false),
        (&[("own", "f/b")], true),
        (&[("shared", "f/a")], true),
        (&[("shared", "f/b")], true),
        (&[("shared", "f/c")], false),
        (&[("shared", "f/*")], false),
        (&[("outer", "o1"), ("inner", "x")], true),
        (&[("outer", "o2"), ("inner", "x")], true),
        (&[("outer", "o3"), ("inner", "x")], false),
        (&[("outer", "o3"), ("inner", "y")], true),
        (&[("outer", "o4"), ("inner", "y")], true),
        (&[("outer", "o1"), ("inner", "y")], false),
    ];
    for (i, (entries, expected)) in cases.into_iter().enumerate() {
        let found = domain.find(entries).unwrap();
        assert_eq!(passes(&store, &found, entries).await, expected, "step {i}: {entries:?}");
    }
}

#[tokio::test]
async fn a_limit_override_applies_unless_it_is_disallowed() {
    let config = config(
        "
domain: d
descriptors:
  - { key: open, rate_limit: { unit: year, requests_per_unit: 1 }, shadow_mode: true }
  - { key: closed, allow_override: false, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    );
    let domain = config.domain("d").unwrap();
    let store = Memory::default();
    let current = |entries: &[(&str, &str)], requests| {
        let found = domain.find_overridden(entries, requests, EnvoyUnit::Year);
        found.map(|found| (found.is_override(), found.leaf().current_limit().unwrap()))
    };
    assert_eq!(current(&[("open", "x")], 7), Some((true, (7, EnvoyUnit::Year))));
    assert_eq!(current(&[("unknown", "x")], 7), Some((true, (7, EnvoyUnit::Year))));
    assert_eq!(current(&[("closed", "x")], 7), Some((false, (1, EnvoyUnit::Year))));
    assert_eq!(current(&[], 7), None);
    let found = domain.find_overridden(&[("open", "x")], 7, EnvoyUnit::Year).unwrap();
    assert!(!found.leaf().is_shadow() && !found.leaf().rule().unwrap().limits()[0].is_shadow());

    // The number may change between requests; the used permits stay, separately per unit.
    let entries = [("open", "x")];
    let steps = [(2, true), (2, true), (2, false), (3, true), (3, false), (0, false), (4, true)];
    for (step, (requests, expected)) in steps.into_iter().enumerate() {
        let found = domain.find_overridden(&entries, requests, EnvoyUnit::Year).unwrap();
        assert_eq!(passes(&store, &found, &entries).await, expected, "step {step}");
    }
    let found = domain.find_overridden(&entries, 1, EnvoyUnit::Month).unwrap();
    assert!(passes(&store, &found, &entries).await);
}

#[test]
fn limit_overrides_are_built_once_and_the_cache_is_bounded() {
    let config = config("domain: d");
    let domain = config.domain("d").unwrap();
    let state = |requests| {
        let found = domain.find_overridden(&[("k", "v")], requests, EnvoyUnit::Hour).unwrap();
        found.leaf().rule().unwrap().limits()[0].clone()
    };
    assert!(std::sync::Arc::ptr_eq(&state(5), &state(5)));
    let first = state(5);
    for requests in 0..10 * u32::try_from(Domain::MAX_OVERRIDES).unwrap() {
        assert_eq!(state(requests).limit().capacity(), u64::from(requests));
    }
    assert_eq!(std::sync::Arc::strong_count(&first), 1, "only this test still holds it");
    let closed = self::config("{ domain: d, allow_override: false }");
    assert!(
        closed.domain("d").unwrap().find_overridden(&[("k", "v")], 5, EnvoyUnit::Hour).is_none()
    );
}

fn text(draw: &mut TraceRng, letters: &[&str], max_letters: usize) -> String {
    (0..draw.index(max_letters + 1)).map(|_| draw.pick(letters)).collect()
}

/// A descriptor of the file: key, value, number of its limit, and its children.
struct DescriptorSource {
    key: String,
    value: String,
    limit: Option<u32>,
    children: Vec<DescriptorSource>,
}

impl DescriptorSource {
    fn level(draw: &mut TraceRng, depth: usize, next: &mut u32) -> Vec<Self> {
        let mut seen = BTreeSet::new();
        let mut level = Vec::new();
        for _ in 0..draw.index(7) {
            let key = ["a", "b", "a_b"][draw.index(3)].to_string();
            let value = text(draw, &["a", "b", "_", "*", "*"], 4);
            if !seen.insert((key.clone(), value.clone())) {
                continue;
            }
            *next += 1;
            let limit = (draw.index(3) > 0).then_some(*next);
            let children = if depth == 0 { Vec::new() } else { Self::level(draw, depth - 1, next) };
            level.push(Self { key, value, limit, children });
        }
        level
    }

    fn json(&self) -> String {
        let limit = self.limit.map_or(String::new(), |n| {
            format!(r#", "rate_limit": {{ "unit": "second", "requests_per_unit": {n} }}"#)
        });
        let children: Vec<String> = self.children.iter().map(Self::json).collect();
        let (key, value, children) = (&self.key, &self.value, children.join(", "));
        format!(r#"{{ "key": "{key}", "value": "{value}"{limit}, "descriptors": [{children}] }}"#)
    }
}

/// Matches letter by letter, and tries every possible length for a star.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|i| fits(rest, &text[i..])),
        ([p, pattern @ ..], [t, text @ ..]) => p == t && fits(pattern, text),
        _ => false,
    }
}

/// The same lookup as a linear search.
fn naive(level: &[DescriptorSource], entries: &[(String, String)]) -> Option<u32> {
    let ((key, value), rest) = entries.split_first()?;
    let has_key = |source: &&DescriptorSource| source.key == *key;
    let exact = level.iter().filter(has_key).find(|w| !w.value.is_empty() && w.value == *value);
    let is_wildcard = |w: &&DescriptorSource| w.value.contains('*');
    let fit = |w: &&DescriptorSource| fits(w.value.as_bytes(), value.as_bytes());
    let wildcard = || level.iter().filter(has_key).filter(is_wildcard).find(fit);
    let alone = || level.iter().filter(has_key).find(|w| w.value.is_empty());
    let found = exact.or_else(wildcard).or_else(alone)?;
    if rest.is_empty() { found.limit } else { naive(&found.children, rest) }
}

#[test]
fn the_lookup_finds_what_a_plain_walk_finds() {
    const SEED: u64 = 0x7469_6465_6761_7465;
    let mut draw = TraceRng::new(SEED);
    let mut outcomes: BTreeMap<bool, usize> = BTreeMap::new();
    for case in 0..400 {
        let source = DescriptorSource::level(&mut draw, 2, &mut 0);
        let json: Vec<String> = source.iter().map(DescriptorSource::json).collect();
        let config =
            config(&format!(r#"{{ "domain": "d", "descriptors": [{}] }}"#, json.join(", ")));
        let domain = config.domain("d").unwrap();
        for _ in 0..100 {
            let entries: Vec<(String, String)> = (0..draw.index(4))
                .map(|_| {
                    let key = ["a", "b", "a_b"][draw.index(3)].to_string();
                    (key, text(&mut draw, &["a", "b", "_", "*"], 4))
                })
                .collect();
            let borrowed: Vec<(&str, &str)> = entries.iter().map(|(k, v)| (&**k, &**v)).collect();
            let found = domain.find(&borrowed);
            let found = found.and_then(|found| found.leaf().current_limit()).map(|(n, _)| n);
            let expected = naive(&source, &entries);
            assert_eq!(found, expected, "{entries:?} in case {case} of seed {SEED}: {json:?}");
            *outcomes.entry(found.is_some()).or_default() += 1;
        }
    }
    assert!(outcomes[&true] > 2_000 && outcomes[&false] > 2_000, "{outcomes:?}");
}
