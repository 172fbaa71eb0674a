//! The dashboard, the alerts and the guide name metrics that there are.

use std::collections::BTreeSet;

use crate::support::{Folder, Server};
use crate::{at_root, read, run_if_there, said};

const FILES: [&str; 4] = [
    "packaging/grafana/tidegate.json",
    "packaging/prometheus/alerts.yaml",
    "packaging/prometheus/alerts_test.yaml",
    "docs/operate.md",
];

/// Every word that begins like a metric of ours.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // A package's file goes on with its version.
    let is_name = |word: &&str| {
        word.strip_prefix("tidegate_").is_some_and(|rest| rest.starts_with(char::is_alphabetic))
    };
    words.filter(is_name).collect()
}

/// What a real server exposes: families, and the parts of those that are histograms.
fn exposed() -> BTreeSet<String> {
    let policy = Folder::new().write("policy.yaml", "rules: [{ name: a, limits: [5/s] }]\n");
    let arguments = ["--config", policy.to_str().unwrap(), "--otlp", "http://127.0.0.1:1"];
    let server = Server::start(&arguments, &[]);
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
fn every_metric_that_is_looked_at_is_there() {
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
fn prometheus_understands_the_alerts_and_they_go_off_when_they_should() {
    let folder = at_root("packaging/prometheus");
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        if let Some(output) = run_if_there("promtool", &arguments, &folder) {
            assert!(output.status.success(), "{}", said(&output));
        }
    }
}
