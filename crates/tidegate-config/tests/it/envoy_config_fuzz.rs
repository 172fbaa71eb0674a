//! Reading a file of envoyproxy/ratelimit neither panics nor takes long, whatever the file
//! contains.

use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tidegate_config::envoy::{DuplicateDomain, EnvoyConfig, EnvoyLoadOptions, EnvoyUnit};
use tidegate_model::{TraceRng, run_size};

const SEED: u64 = 0x7469_6465_6761_7465;

/// A file with every field, to be mutated.
const EVERY_FIELD: &str = r#"
domain: &d edge
charge_denied: true
on_store_failure: unavailable
fallback_ratio: 0.25
descriptors:
  - key: remote_address
    value: "10.0.*"
    share_threshold: true
    value_to_metric: yes
    rate_limit: &rate
      name: by_address
      replaces: [{ name: other }, { name: *d }]
      unit: Minute
      requests_per_unit: 1_000
  - key: path
    value: '/a/*/b*'
    quota_mode: true
    metadata: { a: [1, { b: ~ }], c: 0.5 }
    limits: [ "sliding-window 240/1h precision 1m", 'fixed-window 3/month tz Europe/Berlin' ]
    descriptors:
      - { key: method, detailed_metric: true, rate_limit: *rate }
      - key: method
        value: >-
          GET
        shadow_mode: true
        name: other
        limit: 10/s burst 20
        allow_override: false
  - { key: free, rate_limit: { unlimited: true } }
  - <<: { key: merged, value: ünï }
    rate_limit: { unit: YEAR, requests_per_unit: 0 }
"#;

const SNIPPETS: [&str; 36] = [
    "&a ",
    "*a",
    "*rate",
    "<<: *rate",
    "[",
    "]",
    "{",
    "}",
    "- ",
    ": ",
    "? ",
    "| ",
    ">\n",
    "\"",
    "'",
    "#",
    "!x ",
    "---\n",
    "\t",
    "\0",
    "\u{2028}",
    "${V}",
    "~",
    "true",
    "99999999999999999999",
    "-1",
    ".inf",
    "key: ",
    "value: '*'\n",
    "descriptors:\n",
    "rate_limit: ",
    "unit: day",
    "limit: 5/s\n",
    "secret: hunter2\n",
    "unlimited: true",
    "name: a, ",
];

fn mutate(text: &mut Vec<u8>, draw: &mut TraceRng) {
    let at = draw.index(text.len() + 1);
    match draw.index(8) {
        0 if !text.is_empty() => {
            let at = draw.index(text.len());
            text[at] ^= 1 << draw.index(8);
        }
        1 => text.truncate(at),
        2 | 3 => {
            // Removes a line, or copies it to another position.
            let lines: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
            let (from, to) = (draw.index(lines.len()), draw.index(lines.len() + 1));
            let (line, mut lines) = (lines.get(from).copied().unwrap_or_default(), lines.clone());
            if draw.index(2) == 0 && !lines.is_empty() {
                lines.remove(from);
            } else {
                lines.insert(to.min(lines.len()), line);
            }
            *text = lines.concat();
        }
        4 => {
            let deep = draw.pick(&["[", "{a: ", "- ", "{descriptors: ["]).repeat(draw.index(80));
            text.splice(at..at, deep.bytes());
        }
        5 => {
            let end = (at + draw.index(20)).min(text.len());
            text.drain(at..end);
        }
        _ => {
            let snippet = draw.pick(&SNIPPETS).bytes();
            text.splice(at..at, snippet);
        }
    }
}

/// Loads one file. Text that is not UTF-8 is refused when the folder is read, which another test
/// checks.
fn load(text: &str) -> Result<EnvoyConfig, String> {
    let options =
        EnvoyLoadOptions { same_domain: DuplicateDomain::Merge, ..EnvoyLoadOptions::default() };
    let others = "{ domain: edge2, descriptors: [{ key: k, limit: 1/s }] }";
    let config = EnvoyConfig::load_texts([("a.yaml", others), ("b.yaml", text)], &options);
    config.map_err(|problems| {
        assert!(problems.count() > 0);
        for problem in problems.iter() {
            let lines = problem.to_string();
            assert!(lines.lines().all(|line| line.chars().count() < 500), "{lines}");
        }
        problems.to_string()
    })
}

#[test]
fn no_mutated_file_panics_or_leaks() {
    let mut draw = TraceRng::new(SEED);
    let (cases, mut loaded) = (run_size(2_000, 20_000, 200_000), 0);
    for case in 0..cases {
        let mut text = EVERY_FIELD.as_bytes().to_vec();
        for _ in 0..=draw.index(4) {
            mutate(&mut text, &mut draw);
        }
        match load(&String::from_utf8_lossy(&text)) {
            Ok(config) => {
                loaded += 1;
                let reloaded = load(&String::from_utf8_lossy(&text)).unwrap();
                assert_eq!(names(&config), names(&reloaded), "case {case} of seed {SEED}");
                look_up_entries(&config, &mut draw);
            }
            Err(report) => {
                assert!(!report.contains("hunter2"), "case {case} of seed {SEED}: {report}");
            }
        }
    }
    assert!(loaded > cases / 20, "too few mutated files load: {loaded}");
}

/// The names of all rules, which must be distinct.
fn names(config: &EnvoyConfig) -> Vec<String> {
    let rules = config.leaves().filter_map(|leaf| leaf.rule());
    let mut names: Vec<String> = rules.map(|rule| rule.name().into()).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
    names
}

/// Looks up entries that match, nearly match, or do not match.
fn look_up_entries(config: &EnvoyConfig, draw: &mut TraceRng) {
    let long = "x".repeat(5_000);
    let texts =
        ["remote_address", "10.0.0.1", "path", "/a/x/b", "method", "GET", "", "free", "k", &long];
    for domain in config.domains() {
        let count = draw.index(10);
        let entries: Vec<(&str, &str)> =
            (0..count).map(|_| (draw.pick(&texts), draw.pick(&texts))).collect();
        let requests = u32::try_from(draw.index(1 << 32)).unwrap_or(0);
        let unit = draw.pick(&EnvoyUnit::ALL);
        let found = [domain.find(&entries), domain.find_overridden(&entries, requests, unit)];
        for found in found.into_iter().flatten() {
            assert!(
                found.stat_name(&entries).starts_with(&*domain.name().replace([':', '|'], "_"))
            );
            let subject = found.subject(&entries);
            let len: usize = subject.key().parts().map(<[u8]>::len).sum();
            assert!(len <= tidegate::Key::MAX_LEN);
            assert!(subject.key().parts().count() <= tidegate::Key::MAX_PARTS);
        }
    }
}

fn oversized_inputs() -> Vec<(&'static str, String)> {
    let full = |unit: &str| unit.repeat((EnvoyConfig::MAX_BYTES - 40) / unit.len());
    let list = |items: String| format!("{{ domain: d, descriptors: [{items}] }}");
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..30 {
        let all = vec![format!("*a{}", i - 1); 10].join(", ");
        laughs += &format!("a{i}: &a{i} [{all}]\n");
    }
    let numbered = |count: usize, fields: &str| -> String {
        (0..count).map(|i| format!("{{ key: k{i}, {fields} }}, ")).collect()
    };
    let deep = "{ key: k, descriptors: [".repeat(40);
    vec![
        ("aliases of aliases", laughs),
        ("deep descriptors", list(format!("{deep}{}", "]}".repeat(40)))),
        ("open descriptors", full("{descriptors: [")),
        ("empty descriptors", list(full("{}, "))),
        ("descriptors that are text", list(full("x, "))),
        ("the same descriptor", list(full("{key: a}, "))),
        ("many descriptors", list(numbered(45_000, ""))),
        ("a rule too many", list(numbered(EnvoyConfig::MAX_RULES + 1, "limit: 1/s"))),
        (
            "wildcards of one key",
            list((0..20_000).map(|i| format!("{{ key: k, value: '{i}*{i}' }}, ")).collect()),
        ),
        ("many stars", list(format!("{{ key: k, value: '{}' }}", full("*")))),
        ("many bad units", list(numbered(20_000, "rate_limit: { unit: x }"))),
        (
            "many replaced",
            list(format!(
                "{{ key: k, rate_limit: {{ unlimited: true, replaces: [{}] }} }}",
                "{name: a}, ".repeat(80_000)
            )),
        ),
        ("many bad limits", list(format!("{{ key: k, limits: [{}] }}", full("x, ")))),
        (
            "much metadata",
            list(format!(
                "{{ key: k, limit: 1/s, metadata: {{ a: [{}] }} }}",
                "1, ".repeat(200_000)
            )),
        ),
        (
            "many unknown fields",
            format!(
                "{{ domain: d, {} }}",
                (0..60_000).map(|i| format!("x{i}: 1, ")).collect::<String>()
            ),
        ),
        (
            "a long domain",
            format!(
                "{{ domain: {}, descriptors: [{{ key: k, limit: 1/s }}] }}",
                "d".repeat(1_000_000)
            ),
        ),
        ("a long key", list(format!("{{ key: {}, limit: 1/s }}", "d".repeat(1_000_000)))),
        ("a byte too many", " ".repeat(EnvoyConfig::MAX_BYTES + 1)),
    ]
}

#[test]
fn no_oversized_input_takes_long() {
    for (case, text) in oversized_inputs() {
        let before = SystemClock.elapsed();
        let report = match load(&text) {
            Ok(config) => {
                let value = "1".repeat(60_000);
                config.domain("d").map(|domain| domain.find(&[("k", &*value)]).is_some());
                String::new()
            }
            Err(report) => report,
        };
        let took = Duration::from(SystemClock.elapsed().saturating_sub(before));
        println!("{case}: {took:?}: {}", report.lines().next().unwrap_or(""));
        assert!(took < Duration::from_secs(60), "{case} took {took:?}");
        assert!(report.len() < 200_000, "{case} reported {} bytes", report.len());
    }
}
