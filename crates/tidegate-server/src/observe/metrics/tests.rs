//! Tests of the counters and of the text format.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use tidegate::{KindUse, MemoryFull, MemoryKind, Outcome, Refusal, Source};

use super::*;

type Labels = BTreeMap<String, String>;

/// The text as a strict parser reads it: every series with its value.
#[derive(Debug)]
struct Scrape {
    kinds: BTreeMap<String, String>,
    series: BTreeMap<(String, Labels), f64>,
}

impl Scrape {
    fn of(metrics: &Metrics) -> Self {
        Self::read(&metrics.render(&Health::up(Some(7), 4_096)))
    }

    /// Panics unless each family has its help, its type and then its samples, once.
    fn read(text: &str) -> Self {
        assert!(text.ends_with('\n'));
        let mut scrape = Self { kinds: BTreeMap::new(), series: BTreeMap::new() };
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (name, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty(), "{line}");
            let of_type = format!("# TYPE {name} ");
            let kind = lines.next().unwrap().strip_prefix(&of_type).expect(line).to_string();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            let mut count = 0;
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let (sample, labels, value) = read_sample(line);
                let suffix = sample.strip_prefix(name).expect(line);
                let histogram = ["_bucket", "_sum", "_count"].contains(&suffix);
                assert!(if kind == "histogram" { histogram } else { suffix.is_empty() }, "{line}");
                assert_eq!(scrape.series.insert((sample, labels), value), None, "{line}");
                count += 1;
            }
            assert!(count > 0, "{name} has no samples");
            assert_eq!(scrape.kinds.insert(name.into(), kind), None, "{name} occurs twice");
        }
        scrape
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        self.series.get(&(name.into(), labels)).copied()
    }

    fn checks(&self, rule: &str, outcome: &str, source: &str) -> Option<f64> {
        let labels = [("rule", rule), ("outcome", outcome), ("source", source)];
        self.value("tidegate_checks_total", &labels)
    }

    /// The cumulative counts of a listener with their bounds, in order.
    fn buckets(&self, listener: &str) -> Vec<(f64, f64)> {
        let name = "tidegate_check_duration_seconds_bucket";
        let of_listener = self
            .series
            .iter()
            .filter(|((n, labels), _)| n == name && labels["listener"] == listener);
        let mut buckets: Vec<(f64, f64)> = of_listener
            .map(|((_, labels), count)| (labels["le"].parse().unwrap(), *count))
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }
}

fn read_sample(line: &str) -> (String, Labels, f64) {
    let name_end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(name_end);
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").expect(line);
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let (text, after) = read_quoted(after);
            assert_eq!(labels.insert(label.into(), text), None, "{line}");
            if let Some(after) = after.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = after.strip_prefix(',').expect(line);
        }
    }
    let value = rest.strip_prefix(' ').expect(line);
    (name.into(), labels, value.parse().expect(line))
}

/// The text up to the closing quote, and what follows that.
fn read_quoted(rest: &str) -> (String, &str) {
    let mut text = String::new();
    let mut chars = rest.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return (text, &rest[i + 1..]),
            '\\' => text.push(match chars.next().unwrap().1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                c => panic!("unknown escape {c:?}"),
            }),
            c => text.push(c),
        }
    }
    panic!("no closing quote in {rest:?}")
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

const DENY: Outcome = Outcome::RetryAfter(Micros::ZERO);

#[test]
fn every_family_exists_from_the_start_with_its_type() {
    let metrics = Metrics::default();
    metrics.count_reload(Micros::new(1_700_000_000_250_000));
    let scrape = Scrape::of(&metrics);
    let kinds: Vec<(&str, &str)> =
        scrape.kinds.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
    assert_eq!(
        kinds,
        [
            ("tidegate_breaker_opened_total", "counter"),
            ("tidegate_breaker_state", "gauge"),
            ("tidegate_build_info", "gauge"),
            ("tidegate_check_duration_seconds", "histogram"),
            ("tidegate_checks_total", "counter"),
            ("tidegate_config_reload_failures_total", "counter"),
            ("tidegate_config_reload_success_timestamp_seconds", "gauge"),
            ("tidegate_config_valid", "gauge"),
            ("tidegate_connections", "gauge"),
            ("tidegate_connections_refused_total", "counter"),
            ("tidegate_fallback_decisions_total", "counter"),
            ("tidegate_id_retention_seconds", "gauge"),
            ("tidegate_lease_outstanding", "gauge"),
            ("tidegate_memory_bytes", "gauge"),
            ("tidegate_memory_overflow_total", "counter"),
            ("tidegate_panics_total", "counter"),
            ("tidegate_rlqs_full_total", "counter"),
            ("tidegate_rlqs_holders", "gauge"),
            ("tidegate_rlqs_messages_dropped_total", "counter"),
            ("tidegate_rlqs_messages_total", "counter"),
            ("tidegate_rlqs_requests_total", "counter"),
            ("tidegate_rlqs_streams", "gauge"),
            ("tidegate_rlqs_unknown_buckets_total", "counter"),
            ("tidegate_settled_ratio", "histogram"),
            ("tidegate_shadow_denied_total", "counter"),
            ("tidegate_store_errors_total", "counter"),
            ("tidegate_store_resets_total", "counter"),
            ("tidegate_store_up", "gauge"),
            ("tidegate_tracked_keys", "gauge"),
            ("tidegate_uncharged_total", "counter"),
            ("tidegate_waiting_requests", "gauge"),
            ("tidegate_waits_refused_total", "counter"),
        ]
    );
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    assert_eq!(scrape.value("tidegate_build_info", &version), Some(1.0));
}

#[test]
fn decisions_are_counted_by_rule_outcome_and_source() {
    let metrics = Metrics::default();
    let login = metrics.rule("login");
    login.count(Outcome::Allow, Source::Redis);
    login.count(Outcome::Allow, Source::Redis);
    login.count(DENY, Source::DenyCache);
    login.count(Outcome::Never, Source::Fallback);
    login.count(DENY, Source::Fallback);
    login.count_error();
    login.count_shadow_denied();
    let scrape = Scrape::of(&metrics);
    let cases = [
        ("allow", "redis", Some(2.0)),
        ("deny", "redis", Some(0.0)),
        ("never", "redis", Some(0.0)),
        ("deny", "deny-cache", Some(1.0)),
        ("never", "fallback", Some(1.0)),
        ("deny", "fallback", Some(1.0)),
        ("error", "none", Some(1.0)),
        ("allow", "memory", None),
    ];
    for (outcome, source, count) in cases {
        assert_eq!(scrape.checks("login", outcome, source), count, "{outcome} from {source}");
    }
    let of = |name, rule| scrape.value(name, &[("rule", rule)]);
    assert_eq!(of("tidegate_fallback_decisions_total", "login"), Some(2.0));
    assert_eq!(of("tidegate_fallback_decisions_total", "adhoc"), Some(0.0));
    assert_eq!(of("tidegate_shadow_denied_total", "login"), Some(1.0));
}

#[test]
fn every_source_is_counted_under_its_own_name() {
    let metrics = Metrics::default();
    let sources =
        [Source::Memory, Source::Redis, Source::Lease, Source::DenyCache, Source::Fallback];
    for (i, source) in sources.into_iter().enumerate() {
        (0..=i).for_each(|_| metrics.rule("r").count(Outcome::Allow, source));
    }
    let scrape = Scrape::of(&metrics);
    for (i, source) in sources.into_iter().enumerate() {
        assert_eq!(scrape.checks("r", "allow", source.name()), Some(i as f64 + 1.0));
    }
}

#[test]
fn a_rule_keeps_its_counters_when_it_is_looked_up_again() {
    let metrics = Metrics::default();
    metrics.rule("api").count(Outcome::Allow, Source::Memory);
    metrics.rule("api").count(Outcome::Allow, Source::Memory);
    assert_eq!(Scrape::of(&metrics).checks("api", "allow", "memory"), Some(2.0));
}

#[test]
fn the_series_of_a_deleted_rule_end_and_the_others_go_on() {
    let metrics = Metrics::default();
    let [kept, deleted] = ["kept", "deleted"].map(|name| metrics.rule(name));
    for rule in [&kept, &deleted] {
        rule.count(Outcome::Allow, Source::Memory);
    }
    let other = metrics.rule(Metrics::OTHER);
    // A name beyond the maximum has the counters of the others.
    metrics.set_rules([("kept", &kept), ("beyond", &other)], &other);
    kept.count(Outcome::Allow, Source::Memory);
    let text = metrics.render(&Health::up(None, 0));
    assert!(!text.contains("deleted") && !text.contains("beyond"), "{text}");
    let scrape = Scrape::of(&metrics);
    assert_eq!(scrape.checks("kept", "allow", "memory"), Some(2.0));
    metrics.rule("deleted").count(Outcome::Allow, Source::Memory);
    assert_eq!(Scrape::of(&metrics).checks("deleted", "allow", "memory"), Some(1.0));
}

#[test]
fn rules_beyond_the_cap_are_counted_together() {
    let metrics = Metrics::default();
    metrics.rule("known").count(Outcome::Allow, Source::Memory);
    for i in 0..Metrics::MAX_RULES + 100 {
        metrics.rule(&format!("rule-{i}")).count_shadow_denied();
    }
    metrics.rule("known").count(Outcome::Allow, Source::Memory);
    metrics.rule(Rule::ADHOC).count(Outcome::Allow, Source::Memory);
    let scrape = Scrape::of(&metrics);
    let rules: BTreeSet<&String> =
        scrape.series.keys().filter_map(|(_, labels)| labels.get("rule")).collect();
    assert_eq!(rules.len(), Metrics::MAX_RULES + 1);
    // `adhoc` and `known` use two of the maximum.
    let other = [("rule", Metrics::OTHER)];
    assert_eq!(scrape.value("tidegate_shadow_denied_total", &other), Some(102.0));
    assert_eq!(scrape.checks("known", "allow", "memory"), Some(2.0));
    assert_eq!(scrape.checks(Rule::ADHOC, "allow", "memory"), Some(1.0));
}

#[test]
fn labels_are_escaped() {
    let metrics = Metrics::default();
    let names = ["\"", "\\", "\n", "a\\\"b\nc\\n", "", "{x=\"1\"} 5", "\u{e9}\r\t"];
    for name in names {
        metrics.rule(name).count(Outcome::Allow, Source::Memory);
    }
    let scrape = Scrape::of(&metrics);
    for name in names {
        assert_eq!(scrape.checks(name, "allow", "memory"), Some(1.0), "{name:?}");
    }
    let mut out = Exposition::default();
    out.gauge("g", "a \\ and\na \"line\"", 1);
    assert_eq!(out.finish(), "# HELP g a \\\\ and\\na \"line\"\n# TYPE g gauge\ng 1\n");
}

#[test]
fn the_histogram_adds_up() {
    let metrics = Metrics::default();
    let micros = [0, 4, 5, 6, 30, 999, 1_000, 1_001, 999_999, 1_000_000, 1_000_001, 90_000_000];
    micros.iter().for_each(|us| metrics.observe(ListenerKind::Resp, Duration::from_micros(*us)));
    let scrape = Scrape::of(&metrics);
    let buckets = scrape.buckets("resp");
    for (bound, count) in &buckets {
        let below = micros.iter().filter(|us| **us as f64 / 1e6 <= *bound).count();
        assert_eq!(*count, below as f64, "up to {bound}");
    }
    assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
    assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, micros.len() as f64));
    let part = |part, listener| {
        scrape
            .value(&format!("tidegate_check_duration_seconds_{part}"), &[("listener", listener)])
            .unwrap()
    };
    assert_eq!(part("count", "resp"), micros.len() as f64);
    assert!((part("sum", "resp") - micros.iter().sum::<u64>() as f64 / 1e6).abs() < 1e-9);
    assert_eq!((part("count", "http"), part("sum", "http")), (0.0, 0.0));
    assert_eq!(scrape.buckets("http").len(), buckets.len());
}

#[test]
fn settled_ratios_are_counted_by_rule_and_model() {
    let metrics = Metrics::default();
    let tokens = metrics.rule("tokens");
    for (charged, reserved) in [(0, 800), (312, 1_500), (1_500, 1_500), (1_501, 1_500)] {
        metrics.observe_settled("tokens", "gpt-x", charged, reserved);
    }
    metrics.observe_settled("tokens", "other", u64::MAX, 1);
    let scrape = Scrape::of(&metrics);
    let at = |model, bound| {
        let labels = [("rule", "tokens"), ("model", model), ("le", bound)];
        scrape.value("tidegate_settled_ratio_bucket", &labels)
    };
    let bounds = ["0", "0.1", "0.25", "0.9", "1", "1.1", "+Inf"];
    assert_eq!(bounds.map(|bound| at("gpt-x", bound).unwrap()), [1., 1., 2., 2., 3., 4., 4.]);
    assert_eq!(["10", "+Inf"].map(|bound| at("other", bound).unwrap()), [0., 1.]);
    let sum =
        |model| scrape.value("tidegate_settled_ratio_sum", &[("rule", "tokens"), ("model", model)]);
    assert_eq!([sum("gpt-x"), sum("other")], [Some(2.209), Some(1_000.0)]);
    let other = metrics.rule(Metrics::OTHER);
    metrics.set_rules([("tokens", &tokens)], &other);
    for model in 0..3_000 {
        metrics.observe_settled("tokens", &format!("m{model}"), 1, 1);
    }
    let count = |scrape: &Scrape, rule: &str, model: &str| {
        scrape.value("tidegate_settled_ratio_count", &[("rule", rule), ("model", model)])
    };
    let scrape = Scrape::of(&metrics);
    assert_eq!(count(&scrape, "tokens", "gpt-x"), Some(4.0), "a reload keeps it");
    assert_eq!(count(&scrape, "tokens", "m2999"), None);
    assert_eq!(count(&scrape, "other", "other"), Some(3_000.0 - 1_997.0));
    metrics.set_rules([], &other);
    assert_eq!(count(&Scrape::of(&metrics), "tokens", "gpt-x"), None);
}

#[test]
fn an_endless_duration_does_not_overflow_the_sum() {
    let metrics = Metrics::default();
    metrics.observe(ListenerKind::Http, Duration::MAX);
    metrics.observe(ListenerKind::Http, Duration::from_millis(500));
    let sum = "tidegate_check_duration_seconds_sum";
    assert_eq!(Scrape::of(&metrics).value(sum, &[("listener", "http")]), Some(3_600.5));
}

#[test]
fn the_state_of_the_store_is_rendered() {
    let metrics = Metrics::default();
    let cause = || Arc::new(std::io::Error::other("gone"));
    metrics.count_store_error(&EngineError::Unavailable(cause()));
    metrics.count_store_error(&EngineError::Ambiguous(cause()));
    metrics.count_store_error(&EngineError::Ambiguous(cause()));
    metrics.count_store_error(&Refusal::UnknownHold.into());
    metrics.count_store_error(&EngineError::unavailable(MemoryFull(MemoryKind::Ids)));
    metrics.count_breaker_opened();
    let mut health = Health::up(None, 123);
    (health.up, health.resets) = (false, 3);
    let ids = KindUse { bytes: 100, overflows: 7, is_full: true };
    health.memory.add(MemoryKind::Ids, ids);
    health.memory.id_retention = Micros::from_secs(600);
    let scrape = Scrape::read(&metrics.render(&health));
    let errors = |kind| scrape.value("tidegate_store_errors_total", &[("kind", kind)]);
    assert_eq!([errors("unavailable"), errors("ambiguous")], [Some(1.0), Some(2.0)]);
    assert_eq!([errors("other"), errors("refused")], [Some(0.0), None]);
    assert_eq!(scrape.value("tidegate_store_up", &[]), Some(0.0));
    let memory = |kind| scrape.value("tidegate_memory_bytes", &[("kind", kind)]);
    assert_eq!(["ids", "state", "layers"].map(memory), [Some(100.0), Some(0.0), Some(23.0)]);
    let overflow = |kind| scrape.value("tidegate_memory_overflow_total", &[("kind", kind)]);
    assert_eq!(["ids", "adhoc"].map(overflow), [Some(7.0), Some(0.0)]);
    assert_eq!(scrape.value("tidegate_id_retention_seconds", &[]), Some(600.0));
    assert_eq!(scrape.value("tidegate_store_resets_total", &[]), Some(3.0));
    assert_eq!(scrape.value("tidegate_breaker_opened_total", &[]), Some(1.0));
    for (circuit, shown) in [
        (None, 0.0),
        (Some(Circuit::Closed), 0.0),
        (Some(Circuit::HalfOpen), 1.0),
        (Some(Circuit::Open), 2.0),
    ] {
        health.circuit = circuit;
        let scrape = Scrape::read(&metrics.render(&health));
        assert_eq!(scrape.value("tidegate_breaker_state", &[]), Some(shown), "{circuit:?}");
    }
    assert_eq!(scrape.kinds.get("tidegate_tracked_keys"), None);
    assert_eq!(Scrape::of(&metrics).value("tidegate_store_up", &[]), Some(1.0));
    assert_eq!(Scrape::of(&metrics).value("tidegate_tracked_keys", &[]), Some(7.0));
}

#[test]
fn a_failed_reload_is_visible_until_the_next_valid_one() {
    let metrics = Metrics::default();
    let shown = || {
        let scrape = Scrape::of(&metrics);
        let value = |name: &str| scrape.value(&format!("tidegate_config_{name}"), &[]);
        let stamp = value("reload_success_timestamp_seconds");
        (value("valid").unwrap(), value("reload_failures_total").unwrap(), stamp)
    };
    assert_eq!(shown(), (0.0, 0.0, None));
    metrics.count_reload(Micros::new(1_700_000_000_250_000));
    assert_eq!(shown(), (1.0, 0.0, Some(1_700_000_000.25)));
    metrics.count_failed_reload();
    assert_eq!(shown(), (0.0, 1.0, Some(1_700_000_000.25)));
    metrics.count_reload(Micros::from_secs(1_700_000_060));
    assert_eq!(shown(), (1.0, 1.0, Some(1_700_000_060.0)));
}

#[test]
fn a_connection_counts_until_it_is_dropped() {
    let metrics = Arc::new(Metrics::default());
    let open =
        |listener| Scrape::of(&metrics).value("tidegate_connections", &[("listener", listener)]);
    let first = metrics.connect(ListenerKind::Http);
    let second = metrics.connect(ListenerKind::Http);
    assert_eq!((open("http"), open("resp")), (Some(2.0), Some(0.0)));
    drop(first);
    assert_eq!(open("http"), Some(1.0));
    drop(second);
    assert_eq!(open("http"), Some(0.0));
}

#[test]
fn counts_from_many_threads_are_exact() {
    const THREADS: usize = 8;
    const CALLS: usize = 10_000;
    let metrics = Arc::new(Metrics::default());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let rule = metrics.rule("busy");
                for _ in 0..CALLS {
                    let _open = metrics.connect(ListenerKind::Resp);
                    rule.count(Outcome::Allow, Source::Memory);
                    metrics.observe(ListenerKind::Resp, Duration::from_micros(3));
                }
            });
        }
        // A concurrent scrape is well-formed.
        (0..20).for_each(|_| drop(Scrape::of(&metrics)));
    });
    let scrape = Scrape::of(&metrics);
    let all = (THREADS * CALLS) as f64;
    assert_eq!(scrape.checks("busy", "allow", "memory"), Some(all));
    assert_eq!(scrape.buckets("resp")[0].1, all);
    let sum = scrape.value("tidegate_check_duration_seconds_sum", &[("listener", "resp")]).unwrap();
    assert!((sum - all * 3e-6).abs() < 1e-9);
    assert_eq!(scrape.value("tidegate_connections", &[("listener", "resp")]), Some(0.0));
}
