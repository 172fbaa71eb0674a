//! Parsing of the YAML of envoyproxy/ratelimit, with its errors and warnings.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tidegate::{Expiry, Fraction, OnStoreFailure};
use tidegate_config::envoy::{
    DescriptorLimit, DuplicateDomain, EnvoyConfig, EnvoyLoadOptions, EnvoyReservation, EnvoyUnit,
};
use tidegate_config::{Problem, Problems};

fn config(text: &str) -> EnvoyConfig {
    EnvoyConfig::load_str("test.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The limit with this stat name.
fn leaf_of<'c>(config: &'c EnvoyConfig, name: &str) -> &'c DescriptorLimit {
    let named = |leaf: &&DescriptorLimit| leaf.stat_name() == name;
    config.leaves().find(named).unwrap_or_else(|| panic!("{name}"))
}

fn limits(leaf: &DescriptorLimit) -> Vec<String> {
    leaf.rule().expect("a rule").limits().iter().map(|limit| limit.limit().to_string()).collect()
}

#[test]
fn every_field_of_a_file_has_its_effect() {
    let config = config(
        r#"
domain: d
descriptors:
  - key: all
    value: x
    shadow_mode: true
    quota_mode: yes
    detailed_metric: True
    value_to_metric: on
    share_threshold: false
    metadata: { name: s, n: 5, f: 0.5, b: true, no: ~, quoted: "5", deep: { list: [1, a] } }
    rate_limit:
      name: all
      replaces: [{ name: other }, { name: third }]
      unit: Week
      requests_per_unit: 4_294_967_295
  - { key: other, rate_limit: { name: other, unit: month, requests_per_unit: 0 } }
  - { key: third, limit: "100/s burst 20", name: third, replaces: [{ name: other }] }
  - { key: many, limits: ["sliding-log 5/1m", fixed-window 100/1d tz Asia/Shanghai] }
  - { key: free, rate_limit: { unlimited: true, name: free } }
  - { key: tokens, limit: 500/h, charge: if_allowed, estimate: 400, reservation_ttl: 1h, on_expiry: release }
"#,
    );
    assert_eq!(config.warnings(), []);
    let tokens = leaf_of(&config, "d.tokens");
    let EnvoyReservation { estimate, ttl, on_expiry } = *tokens.reservation();
    assert_eq!((estimate.get(), ttl.as_secs(), on_expiry), (400, 3_600, Expiry::Release));
    assert!(tokens.charge_if_allowed());
    let all = leaf_of(&config, "d.all_x");
    assert!(all.is_shadow() && all.is_quota() && all.detailed_metric());
    assert!(all.rule().unwrap().limits()[0].is_shadow());
    assert_eq!((all.name(), Vec::from_iter(all.replaces())), (Some("all"), vec!["other", "third"]));
    assert_eq!(all.current_limit(), Some((u32::MAX, EnvoyUnit::Week)));
    assert_eq!(limits(all), ["fixed-window 4294967295/7d"]);
    let metadata = json!({ "name": "s", "n": 5, "f": 0.5, "b": true, "no": null, "quoted": "5",
                           "deep": { "list": [1, "a"] } });
    assert_eq!(all.metadata().cloned().map(serde_json::Value::from), Some(metadata));

    let other = leaf_of(&config, "d.other");
    assert!(!other.is_shadow() && !other.is_quota() && !other.detailed_metric());
    assert_eq!(limits(other), ["fixed-window 0/30d"]);
    assert_eq!((other.metadata(), other.replaces().len()), (None, 0));
    let third = leaf_of(&config, "d.third");
    assert_eq!((third.name(), third.current_limit()), (Some("third"), None));
    assert_eq!(
        (Vec::from_iter(third.replaces()), limits(third)),
        (vec!["other"], vec!["100/s burst 20".to_string()])
    );
    assert_eq!(*third.reservation(), EnvoyReservation::default());
    assert_eq!(third.rule().unwrap().limits()[0].on_expiry(), Expiry::Charge);
    assert!(!third.charge_if_allowed());
    let many = leaf_of(&config, "d.many");
    assert_eq!(limits(many), ["sliding-log 5/m", "fixed-window 100/d tz Asia/Shanghai"]);
    let free = leaf_of(&config, "d.free");
    assert!(free.rule().is_none() && free.current_limit().is_none());
    assert_eq!(free.name(), Some("free"));
}

#[test]
fn tidegates_own_fields_are_inherited() {
    let config = config(
        "
domain: d
charge_denied: true
on_store_failure: unavailable
descriptors:
  - key: plain
    limit: 1/s
  - key: outer
    on_store_failure: fallback
    fallback_ratio: 0.25
    allow_override: false
    limit: 1/s
    descriptors:
      - { key: inner, charge_denied: false, limit: 1/s }
      - { key: open, on_store_failure: allow, allow_override: true, limit: 1/s }
",
    );
    let quarter = OnStoreFailure::Fallback(Fraction::from_millionths(250_000).unwrap());
    let cases = [
        // name, charge_denied, allow_override, unavailable, on_store_failure
        ("d.plain", true, true, true, OnStoreFailure::Deny),
        ("d.outer", true, false, false, quarter),
        ("d.outer.inner", false, false, false, quarter),
        ("d.outer.open", true, true, false, OnStoreFailure::Allow),
    ];
    for (name, charge_denied, allow_override, unavailable, failure) in cases {
        let leaf = leaf_of(&config, name);
        let flags = (leaf.charge_denied(), leaf.allow_override(), leaf.says_unavailable());
        assert_eq!(flags, (charge_denied, allow_override, unavailable), "{name}");
        assert_eq!(leaf.rule().unwrap().limits()[0].on_store_failure(), failure, "{name}");
    }
    let found =
        config.domain("d").unwrap().find_overridden(&[("x", "y")], 1, EnvoyUnit::Day).unwrap();
    assert!(found.leaf().says_unavailable() && found.leaf().charge_denied());

    let options =
        EnvoyLoadOptions { on_store_failure: OnStoreFailure::Allow, ..EnvoyLoadOptions::default() };
    let text = "{ domain: d, descriptors: [{ key: k, limit: 1/s }] }";
    let config = EnvoyConfig::load_texts([("f", text)], &options).unwrap();
    let failure = leaf_of(&config, "d.k").rule().unwrap().limits()[0].on_store_failure();
    assert_eq!(failure, OnStoreFailure::Allow, "the default comes from the policy");
}

/// Files with one domain, and their errors with line and column.
const WRONG: &[(&str, &[&str])] = &[
    ("", &["1:1: empty file; start with domain:"]),
    ("# nothing", &["1:1: empty file; start with domain:"]),
    ("[]", &["1:1: this must be a map of fields, not a list"]),
    ("descriptors: []", &["1:1: missing domain"]),
    ("domain: ''", &["1:1: missing domain"]),
    ("domain:", &["1:1: missing domain"]),
    ("domain: [d]", &["1:9: domain must be a string, not a list"]),
    ("domain: d\ndescriptors: {}", &["2:14: descriptors must be a list, not a map"]),
    ("domain: d\ndescriptors: [x]", &[r#"2:15: a descriptor must be a map of fields, not "x""#]),
    (
        "domain: d\ndescriptor: []",
        &[r#"2:1: unknown field "descriptor"; did you mean descriptors?"#],
    ),
    (
        "domain: d\n1: []",
        &[
            r#"2:1: unknown field "1"; use domain, descriptors, charge_denied, allow_override, on_store_failure or fallback_ratio"#,
        ],
    ),
    ("domain: d\n? []\n: x", &["2:3: field names must be strings"]),
    ("domain: d\ndomain: e", &[r#"2:1: duplicate field "domain", first in line 1; remove one"#]),
    ("domain: d\ndescriptors: [{ value: v }]", &["2:17: a descriptor needs a key"]),
    ("domain: d\ndescriptors: [{ key: '' }]", &["2:17: a descriptor needs a key"]),
    ("domain: d\ndescriptors: [{ key: {} }]", &["2:22: key must be a string, not a map"]),
    (
        "domain: d\ndescriptors: [{ keyy: k, value: v }]",
        &[r#"2:17: unknown field "keyy"; did you mean key?"#],
    ),
    (
        "domain: d\ndescriptors:\n  - { key: k, value: v }\n  - { key: k, value: v }",
        &[
            r#"4:22: duplicate descriptor with key "k" and value "v", first at f.yaml:3:22; remove one"#,
        ],
    ),
    (
        "domain: d\ndescriptors:\n  - { key: k }\n  - { key: k, value: '' }",
        &[
            r#"4:22: duplicate descriptor with key "k" and no value, first at f.yaml:3:12; remove one"#,
        ],
    ),
    (
        "domain: d\ndescriptors:\n  - key: k\n    share_threshold: true",
        &["4:5: share_threshold needs a * in value"],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, shadow_mode: maybe }]",
        &[r#"2:38: shadow_mode must be true or false, not "maybe""#],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, shadow_mode: 'true' }]",
        &[r#"2:38: shadow_mode must be true or false, not "true"; did you mean true?"#],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, metadata: [] }]",
        &["2:35: metadata must be a map of fields, not a list"],
    ),
    (
        "domain: d\non_store_failure: denied",
        &[r#"2:19: on_store_failure must be fallback, deny, allow or unavailable, not "denied""#],
    ),
    (
        "domain: d\nfallback_ratio: 1.5",
        &["2:17: expected a fraction above 0 and at most 1, for example 0.5"],
    ),
    ("domain: d\nfallback_ratio: nan", &[r#"2:17: fallback_ratio must be a number, not "nan""#]),
    (
        "domain: d\ndescriptors: [{ key: k, estimate: 6, reservation_ttl: 2h, limit: 5/s }]",
        &[
            "2:35: estimate 6; use 1 to 5, the smallest capacity of the rule: above it no reservation is ever granted",
            "2:55: out of range; use 1ms to 1h, for example 10m",
        ],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, estimate: 0, reservation_ttl: 2, limit: 5/s }]",
        &[
            "2:35: estimate 0; use 1 to 5, the smallest capacity of the rule: above it no reservation is ever granted",
            r#"2:55: no unit after "2"; use us, ms, s, min, h, d, w or month"#,
        ],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, on_expiry: keep, charge: never, limit: 5/s }]",
        &[
            r#"2:36: on_expiry must be charge or release, not "keep""#,
            r#"2:50: charge must be always or if_allowed, not "never""#,
        ],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, limit: 5/parsec }]",
        &[r#"2:34: unknown unit "parsec"; use us, ms, s, min, h, d, w or month"#],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, limits: [5/s, 5/parsec, fixed-window 5/d tz X/Y] }]",
        &[
            r#"2:41: unknown unit "parsec"; use us, ms, s, min, h, d, w or month"#,
            r#"2:69: unknown time zone "X/Y"; use an IANA name like Europe/Berlin"#,
        ],
    ),
    ("domain: d\ndescriptors: [{ key: k, limits: [] }]", &["2:25: 0 limits; use 1 to 16"]),
    (
        "domain: d\ndescriptors: [{ key: k, limits: [[5/s]] }]",
        &["2:34: an entry must be a string, not a list"],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, limits: 5/s }]",
        &[r#"2:33: limits must be a list of strings, not "5/s"; put it in brackets"#],
    ),
    (
        "domain: d\ndescriptors: [{ key: k, limit: 5/s, rate_limit: { unlimited: true } }]",
        &["2:25: limit and rate_limit exclude each other; use one"],
    ),
    (
        "domain: d\ndescriptors:\n  - key: k\n    value: ok\n   bad",
        &[
            "5:4: invalid YAML: while parsing a block collection, did not find expected '-' indicator",
        ],
    ),
];

/// The same for a `rate_limit` at line 4, column 19.
const WRONG_RATES: &[(&str, &[&str])] = &[
    ("[]", &["4:17: rate_limit must be a map of fields, not a list"]),
    ("{}", &["4:17: missing unit; use one of second, minute, hour, day, week, month, year"]),
    (
        "{ unit: , requests_per_unit: 1 }",
        &["4:19: missing unit; use one of second, minute, hour, day, week, month, year"],
    ),
    (
        "{ unit: parsec, requests_per_unit: 1 }",
        &[r#"4:25: unknown unit "parsec"; use second, minute, hour, day, week, month or year"#],
    ),
    (
        "{ unit: unknown, requests_per_unit: 1 }",
        &[r#"4:25: unknown unit "unknown"; use second, minute, hour, day, week, month or year"#],
    ),
    (
        "{ unit: secnd, requests_per_unit: 1 }",
        &[r#"4:25: unknown unit "secnd"; did you mean second?"#],
    ),
    (
        "{ unit: day, requests_per_unit: -1 }",
        &[r#"4:49: requests_per_unit must be a whole number from 0 to 4294967295, not "-1""#],
    ),
    (
        "{ unit: day, requests_per_unit: 4294967296 }",
        &[
            r#"4:49: requests_per_unit must be a whole number from 0 to 4294967295, not "4294967296""#,
        ],
    ),
    (
        "{ unit: day, requests_per_unit: '5' }",
        &[r#"4:49: requests_per_unit must be a whole number from 0 to 4294967295, not "5""#],
    ),
    (
        "{ unit: day, requests_per_uni: 5 }",
        &[r#"4:30: unknown field "requests_per_uni"; did you mean requests_per_unit?"#],
    ),
    (
        "{ unit: day, requests_per_unit: 5, algorithm: x }",
        &[
            r#"4:52: unknown field "algorithm"; use unit, requests_per_unit, unlimited, name or replaces"#,
        ],
    ),
    (
        "{ unit: day, unlimited: true }",
        &["4:25: unit and unlimited exclude each other; remove one"],
    ),
    ("{ unit: day, requests_per_unit: 1, replaces: [{}] }", &["4:63: replaces needs a name"]),
    (
        "{ unit: day, requests_per_unit: 1, replaces: [{ name: '' }] }",
        &["4:65: replaces needs a name"],
    ),
    (
        "{ unit: day, requests_per_unit: 1, replaces: [a] }",
        &[r#"4:63: an entry must be a map of fields, not "a""#],
    ),
    (
        "{ unit: day, requests_per_unit: 1, name: a, replaces: [{ name: a }] }",
        &["4:80: a limit cannot replace itself; name another one"],
    ),
];

fn format_problem(problem: &Problem) -> String {
    match (problem.line(), problem.column()) {
        (Some(line), Some(column)) => format!("{line}:{column}: {}", problem.message()),
        _ => problem.message().into(),
    }
}

#[test]
fn every_error_is_reported_with_its_position() {
    let rates = WRONG_RATES.iter().map(|(rate, wrong)| {
        (format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {rate}"), *wrong)
    });
    let files = WRONG.iter().map(|(text, wrong)| (text.to_string(), *wrong));
    let mut mismatches = Vec::new();
    for (text, wrong) in files.chain(rates) {
        let problems = EnvoyConfig::load_str("f.yaml", &text).err();
        let reported: Vec<String> =
            problems.iter().flat_map(Problems::iter).map(format_problem).collect();
        if reported != *wrong {
            mismatches.push((text, reported));
        }
    }
    assert!(mismatches.is_empty(), "{mismatches:#?}");
}

#[test]
fn all_errors_of_all_files_are_reported_at_once_with_carets() {
    let first =
        "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: parsec }\n  - value: v\n";
    let second = "domain: a\nlimit: 5/s\n";
    let texts = [("a.yaml", first), ("b.yaml", second)];
    let problems = EnvoyConfig::load_texts(texts, &EnvoyLoadOptions::default()).unwrap_err();
    assert_eq!(
        problems.to_string(),
        r#"
a.yaml:4:25: unknown unit "parsec"; use second, minute, hour, day, week, month or year
      rate_limit: { unit: parsec }
                          ^^^^^^
a.yaml:5:5: a descriptor needs a key
    - value: v
      ^^^^^
b.yaml:1:9: duplicate domain "a", first at a.yaml:1:9; use one file, or --envoy-merge
  domain: a
          ^
b.yaml:2:1: unknown field "limit"; use domain, descriptors, charge_denied, allow_override, on_store_failure or fallback_ratio
  limit: 5/s
  ^^^^^
"#
        .trim()
    );
}

/// Fields that envoyproxy/ratelimit accepts and that have no effect.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    (
        "requests_per_unit: 5, rate_limit: { unlimited: true }",
        "4:5: warning: requests_per_unit has no effect here; it belongs in rate_limit",
    ),
    (
        "name: n, rate_limit: { unlimited: true }",
        "4:5: warning: name has no effect here; it belongs in rate_limit or replaces",
    ),
    ("shadow_mode: true", "4:5: warning: shadow_mode has no effect without a limit"),
    ("metadata: { a: b }", "4:5: warning: metadata has no effect without a limit"),
    (
        "rate_limit: { unit: day }",
        "4:19: warning: requests_per_unit is missing and counts as 0, which denies everything; set it",
    ),
    (
        "rate_limit: { unlimited: true, requests_per_unit: 5 }",
        "4:36: warning: requests_per_unit and unlimited exclude each other; remove one",
    ),
    (
        "rate_limit: { unlimited: true, replaces: [{ name: x }] }",
        r#"4:55: warning: no limit named "x" in this domain"#,
    ),
    (
        "limit: leaky-bucket 5/s queue",
        "4:5: warning: Envoy cannot delay requests: a queue admits at once what fits",
    ),
    (
        "limits: [5/s, concurrency 5]",
        "4:5: warning: concurrency limits are not supported for Envoy: the end of a request is unknown",
    ),
];

#[test]
fn a_field_without_effect_is_a_warning() {
    for (fields, warning) in WITHOUT_EFFECT {
        let config = config(&format!("domain: d\ndescriptors:\n  - {{ key: k,\n    {fields} }}"));
        let reported: Vec<String> = config.warnings().iter().map(format_problem).collect();
        assert_eq!(reported, [*warning], "{fields}");
    }
    let partial = config("{ domain: d, descriptors: [{ key: k, limits: [concurrency 5, 5/s] }] }");
    assert_eq!(limits(leaf_of(&partial, "d.k")), ["5/s"]);
    let none = config("{ domain: d, descriptors: [{ key: k, limit: concurrency 5 }] }");
    assert_eq!(none.leaves().count(), 0);
}

#[test]
fn a_domain_in_two_files_is_merged_only_on_request() {
    let texts = [
        ("a.yaml", "{ domain: d, descriptors: [{ key: a, limit: 1/s, name: one }] }"),
        (
            "b.yaml",
            "{ domain: d, descriptors: [{ key: b, limit: 2/s, replaces: [{ name: one }] }] }",
        ),
        ("c.yaml", "{ domain: e, descriptors: [{ key: a, limit: 3/s }] }"),
    ];
    let merge =
        EnvoyLoadOptions { same_domain: DuplicateDomain::Merge, ..EnvoyLoadOptions::default() };
    assert!(EnvoyConfig::load_texts(texts, &EnvoyLoadOptions::default()).is_err());
    let config = EnvoyConfig::load_texts(texts, &merge).unwrap();
    assert_eq!((config.domains().len(), config.leaves().count()), (2, 3));
    assert_eq!(config.warnings(), []);

    let clash = |text| {
        let problems = EnvoyConfig::load_texts([texts[0], ("x.yaml", text)], &merge).unwrap_err();
        Vec::from_iter(problems.iter().map(format_problem))
    };
    assert_eq!(
        clash("{ domain: d, charge_denied: true }"),
        [
            r#"1:11: domain "d" has a different charge_denied at a.yaml:1:11; use the same in all its files"#
        ]
    );
    assert_eq!(
        clash("{ domain: d, on_store_failure: deny, fallback_ratio: 0.25 }"),
        [
            r#"1:11: domain "d" has a different on_store_failure, fallback_ratio at a.yaml:1:11; use the same in all its files"#
        ]
    );
}

/// Each advice of an error leads to a configuration that loads, or to fewer errors.
#[test]
fn merging_is_advised_only_where_it_is_possible() {
    let one = "{ domain: d, descriptors: [{ key: a, limit: 1/s }] }";
    let problems = |other, same_domain| {
        let options = EnvoyLoadOptions { same_domain, ..EnvoyLoadOptions::default() };
        let loaded = EnvoyConfig::load_texts([("a.yaml", one), ("b.yaml", other)], &options);
        loaded.map_or_else(|problems| problems.iter().map(format_problem).collect(), |_| vec![])
    };
    let duplicate =
        r#"1:35: duplicate descriptor with key "a" and no value, first at a.yaml:1:35; remove one"#;
    for (other, refused, merged) in [
        (
            "{ domain: d, descriptors: [{ key: b, limit: 1/s }] }",
            vec![
                r#"1:11: duplicate domain "d", first at a.yaml:1:11; use one file, or --envoy-merge"#,
            ],
            vec![],
        ),
        (
            "{ domain: d, descriptors: [{ key: a, limit: 2/s }] }",
            vec![r#"1:11: duplicate domain "d", first at a.yaml:1:11; use one file"#, duplicate],
            vec![duplicate],
        ),
        (
            "{ domain: d, allow_override: false }",
            vec![
                r#"1:11: duplicate domain "d", first at a.yaml:1:11 with a different allow_override; use one file"#,
            ],
            vec![
                r#"1:11: domain "d" has a different allow_override at a.yaml:1:11; use the same in all its files"#,
            ],
        ),
    ] {
        assert_eq!(problems(other, DuplicateDomain::Refuse), refused);
        assert_eq!(problems(other, DuplicateDomain::Merge), merged);
    }
}

#[test]
fn names_do_not_depend_on_other_descriptors() {
    let before = config("{ domain: d, descriptors: [{ key: k, value: 'a/*', limit: 1/s }] }");
    let after = config(
        "
domain: d
descriptors:
  - { key: a, limit: 7/s }
  - { key: k, value: a/x, limit: 7/s }
  - { key: k, value: 'a/*', limit: 2/s, shadow_mode: false, detailed_metric: true }
",
    );
    let state = |config: &EnvoyConfig| {
        let leaf = leaf_of(config, "d.k_a/*");
        leaf.rule().unwrap().limits()[0].state().to_string()
    };
    assert_eq!(state(&before), state(&after));
    assert!(state(&before).starts_with("d.k-a-"), "{}", state(&before));
}

/// A temporary folder, removed on drop.
struct EnvoyFolder(PathBuf);

impl EnvoyFolder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-envoy-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder around")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn load(&self) -> Result<EnvoyConfig, Problems> {
        EnvoyConfig::load(&self.0, &EnvoyLoadOptions::default())
    }
}

impl Drop for EnvoyFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn one(domain: &str, limit: &str) -> String {
    format!("{{ domain: {domain}, descriptors: [{{ key: k, limit: {limit} }}] }}")
}

fn domains(config: &EnvoyConfig) -> Vec<&str> {
    let mut names: Vec<&str> = config.domains().map(|domain| domain.name()).collect();
    names.sort_unstable();
    names
}

#[test]
fn all_yaml_files_below_a_folder_are_read_except_hidden_ones() {
    let folder = EnvoyFolder::new();
    folder.write("b.yaml", &one("b", "1/s"));
    folder.write("a.yml", &one("a", "1/s"));
    folder.write("sub/deeper/c.yaml", &one("c", "1/s"));
    folder.write(".hidden.yaml", "not: read");
    folder.write("..2026_11_15/b.yaml", &one("b", "1/s"));
    folder.write("README.md", "not read");
    symlink(&folder.0, folder.0.join("sub/round")).unwrap();
    let config = folder.load().unwrap();
    assert_eq!(domains(&config), ["a", "b", "c"]);
    let files: Vec<&Path> =
        config.files().map(|file| file.strip_prefix(&folder.0).unwrap()).collect();
    assert_eq!(files, ["a.yml", "b.yaml", "sub/deeper/c.yaml"].map(Path::new));
    let reported: Vec<String> =
        config.warnings().iter().map(|warning| warning.to_string()).collect();
    let not_read = |name: &str| {
        let path = folder.0.join(name).display().to_string();
        format!("{path}: warning: skipped: only .yaml and .yml files are read")
    };
    assert_eq!(reported, [not_read("README.md")]);
    // In the place of a file, it would take the limits of the file away.
    let pipe = folder.0.join("pipe.yaml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = folder.load().unwrap_err().to_string();
    assert!(refused.contains("pipe.yaml: not a regular file"), "{refused}");
}

#[test]
fn an_empty_or_missing_folder_is_refused() {
    let folder = EnvoyFolder::new();
    let empty = folder.load().unwrap_err().to_string();
    assert!(empty.contains("no .yaml files: nothing would be limited"), "{empty}");
    let missing =
        EnvoyConfig::load(folder.0.join("nowhere"), &EnvoyLoadOptions::default()).unwrap_err();
    assert!(missing.to_string().contains("nowhere: cannot be read: No such file"), "{missing}");
}

#[test]
fn a_file_that_cannot_be_read_does_not_hide_the_errors_of_others() {
    let folder = EnvoyFolder::new();
    folder.write("a.yaml", "domain: ''");
    folder.write("long.yaml", &" ".repeat(EnvoyConfig::MAX_BYTES + 1));
    fs::write(folder.0.join("b.yaml"), b"domain: \xff").unwrap();
    symlink("nowhere", folder.0.join("c.yaml")).unwrap();
    let problems = folder.load().unwrap_err();
    let messages: Vec<String> = problems.iter().map(|problem| problem.message().into()).collect();
    let ends = [
        "b.yaml: not UTF-8; save the file as UTF-8",
        "c.yaml: cannot be read: No such file or directory (os error 2)",
        "long.yaml: file larger than 1 MiB; split it",
        "missing domain",
    ];
    assert!(
        messages.len() == 4 && messages.iter().zip(ends).all(|(t, end)| t.ends_with(end)),
        "{messages:#?}"
    );
    assert_eq!(problems.files().len(), 4);
}

#[test]
fn files_folders_and_descriptors_are_bounded() {
    let messages = |folder: &EnvoyFolder| {
        let problems = folder.load().unwrap_err();
        Vec::from_iter(problems.iter().map(|problem| problem.message().to_string()))
    };
    let files = EnvoyFolder::new();
    for i in 0..=EnvoyConfig::MAX_FILES {
        files.write(&format!("{i}.yaml"), &one(&format!("d{i}"), "1/s"));
    }
    assert!(
        messages(&files)[0].ends_with("more than 1000 files; use fewer"),
        "{:?}",
        messages(&files)
    );

    let folders = EnvoyFolder::new();
    folders.write(&format!("{}a.yaml", "x/".repeat(EnvoyConfig::MAX_FOLDERS)), &one("d", "1/s"));
    assert!(folders.load().is_ok());
    folders.write(&format!("{}b.yaml", "x/".repeat(EnvoyConfig::MAX_FOLDERS + 1)), "");
    assert!(
        messages(&folders)[0].ends_with("directories nested more than 8 deep"),
        "{:?}",
        messages(&folders)
    );

    let long = format!("domain: d # {}", "x".repeat(EnvoyConfig::MAX_BYTES - 20));
    let texts = [("long.yaml", &*long); 18];
    let problems = EnvoyConfig::load_texts(texts, &EnvoyLoadOptions::default()).unwrap_err();
    let is_total_size = |problem: &&Problem| problem.message().contains("exceed 16 MiB");
    assert_eq!(problems.iter().filter(is_total_size).count(), 1);

    let third = EnvoyConfig::MAX_DESCRIPTORS / 3 + 1;
    let keys: String = (0..third).map(|i| format!("{{key: k{i}}},")).collect();
    let texts =
        ["a", "b", "c"].map(|domain| format!("{{domain: {domain}, descriptors: [{keys}]}}"));
    let load = |texts: &[String]| {
        let texts = texts.iter().map(|text| ("f.yaml", &**text));
        EnvoyConfig::load_texts(texts, &EnvoyLoadOptions::default())
            .map_err(|problems| problems.to_string())
    };
    assert!(load(&texts[..2]).is_ok());
    let problems = load(&texts).unwrap_err();
    assert!(problems.contains("more than 100000 descriptors; use fewer"), "{problems}");
}
