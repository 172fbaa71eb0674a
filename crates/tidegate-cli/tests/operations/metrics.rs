//! The dashboard, the alerts and the documentation name existing metrics.

use std::collections::BTreeSet;

use crate::{at_root, output_text, read, run_if_there};
use testkit::server::{ServerProcess, TempFolder};

const FILES: [&str; 4] = [
    "packaging/grafana/tidegate.json",
    "packaging/prometheus/alerts.yaml",
    "packaging/prometheus/alerts_test.yaml",
    "docs/operate/operations.md",
];

/// Every word with the prefix of the server's metrics.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // File names of packages continue with a version.
    let is_name = |word: &&str| {
        word.strip_prefix("tidegate_").is_some_and(|rest| rest.starts_with(char::is_alphabetic))
    };
    words.filter(is_name).collect()
}

/// Metrics of a real server: families, and the series of histograms.
fn exposed() -> BTreeSet<String> {
    let policy = TempFolder::new().write("policy.yaml", "rules: [{ name: a, limits: [5/s] }]\n");
    let arguments = ["--config", policy.to_str().unwrap(), "--otlp", "http://127.0.0.1:1"];
    let server = ServerProcess::start(&arguments, &[]);
    let text = server.get("/metrics").body;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut exposed = BTreeSet::new();
    for (name, kind) in types.map(|line| line.split_once(' ').unwrap()) {
        exposed.insert(name.to_string());
        if kind == "histogram" {
            exposed.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
        }
    }
    exposed
}

#[test]
fn every_metric_that_is_named_exists() {
    let exposed = exposed();
    for file in FILES {
        let text = read(file);
        let names = names(&text);
        assert!(names.len() >= 5, "{file} names {names:?}");
        let unknown: Vec<_> = names.iter().filter(|name| !exposed.contains(**name)).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}, which no server exposes");
    }
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let dashboard = read("packaging/grafana/tidegate.json");
    let shown = names(&dashboard);
    let is_shown = |name: &&String| {
        shown.contains(name.as_str()) || shown.iter().any(|other| other.starts_with(name.as_str()))
    };
    let exposed = exposed();
    let families =
        exposed.iter().filter(|name| !name.ends_with("_bucket") && !name.ends_with("_sum"));
    let missing: Vec<_> = families.filter(|name| !is_shown(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each has an id of its own");
}

#[test]
fn the_alerts_are_valid_and_fire_as_specified() {
    let folder = at_root("packaging/prometheus");
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        if let Some(output) = run_if_there("promtool", &arguments, &folder) {
            assert!(output.status.success(), "{}", output_text(&output));
        }
    }
}

#[test]
fn every_alert_has_a_section_in_the_runbook() {
    let (alerts, runbook) =
        (read("packaging/prometheus/alerts.yaml"), read("docs/operate/runbook.md"));
    let alerts: serde_json::Value = serde_saphyr::from_str(&alerts).unwrap();
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    let mut names = Vec::new();
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        let anchor = format!("docs/operate/runbook.md#{}", name.to_lowercase());
        assert!(url.ends_with(&anchor), "{name}: {url}");
        names.push(name);
    }
    let sections: Vec<_> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(sections, names);
}
