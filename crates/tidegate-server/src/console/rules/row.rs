//! One rule, as people read it.

use maud::{Markup, html};

use super::super::visitor::Visitor;
use super::delete;
use crate::config::{Lease, MatchFile, MissingKey, OnStoreFailure, OneOrMany, RuleFile};
use crate::plot::number;
use crate::policies::{Listed, Origin};

/// The most entries of a list that are shown; the rest is counted.
const MOST_ENTRIES: usize = 20;

pub(super) fn row(listed: &Listed, visitor: &Visitor) -> Markup {
    let rule = &listed.file;
    html! {
        tr id={ "rule-" (rule.name) } {
            th scope="row" {
                code { (rule.name) }
                @if listed.origin == Origin::Runtime {
                    " " span.tag title="set while running; it lasts until the server is restarted" { "runtime" }
                    (delete::form(visitor, &rule.name))
                }
                @if rule.shadow { " " span.tag { "shadow" } }
            }
            td { (limits(rule)) }
            td { (counts(rule)) }
            td { (applies(&rule.matches)) }
            td { (also(rule)) }
        }
    }
}

fn limits(rule: &RuleFile) -> Markup {
    html! {
        ul.limits {
            @for limit in &rule.limits { li { code { (limit) } } }
            @for limit in &rule.shadow_limits {
                li { code { (limit) } " " span.tag title="it only looks on" { "shadow" } }
            }
        }
    }
}

fn counts(rule: &RuleFile) -> Markup {
    let parts = rule.key.as_deref().unwrap_or_default();
    html! {
        @if parts.is_empty() { span.muted { "everybody together" } }
        @for (i, part) in parts.iter().enumerate() {
            @if i > 0 { " + " }
            code { (part) }
        }
    }
}

fn applies(matches: &MatchFile) -> Markup {
    let MatchFile { method, path, host, header } = matches;
    html! {
        @if *matches == MatchFile::default() { span.muted { "every request" } }
        @if !method.is_empty() { code { (method.texts().join(" ")) } " " }
        @if let Some(host) = host { code { (host) } " " }
        @if let Some(path) = path { code { (path) } }
        @for (name, value) in header { div { code { (name) ": " (value) } } }
    }
}

fn also(rule: &RuleFile) -> Markup {
    html! {
        ul.also {
            @match rule.on_missing_key {
                Some(MissingKey::Deny) => li { "denied without a key" },
                Some(MissingKey::Skip) => li { "skipped without a key" },
                Some(MissingKey::Shared) | None => {}
            }
            @if rule.stop == Some(true) { li { "no later rule is looked at" } }
            @if let Some(cost) = &rule.cost { li { "cost from " code { (cost) } } }
            @match rule.lease {
                Some(Lease::Auto(_)) => li { "leases as traffic suggests" },
                Some(Lease::Of(permits)) => li { "leases " (number(permits.into())) " at a time" },
                None => {}
            }
            @match rule.on_store_failure {
                Some(OnStoreFailure::Deny) => li { "denied while the store is away" },
                Some(OnStoreFailure::Allow) => li { "allowed while the store is away" },
                Some(OnStoreFailure::Fallback) | None => {}
            }
            @if let Some(ratio) = rule.fallback_ratio { li { "fallback of " (ratio) } }
            (entries("exempt", &rule.allow))
            (entries("denied", &rule.deny))
            (overrides(rule))
        }
    }
}

fn entries(what: &str, entries: &[String]) -> Markup {
    html! {
        @if !entries.is_empty() {
            li {
                details {
                    summary { (number(entries.len() as u64)) " " (what) }
                    ul { @for entry in entries.iter().take(MOST_ENTRIES) { li { code { (entry) } } } }
                    (rest(entries.len()))
                }
            }
        }
    }
}

fn overrides(rule: &RuleFile) -> Markup {
    let count = rule.overrides.len();
    html! {
        @if count > 0 {
            li {
                details {
                    summary { (number(count as u64)) @if count == 1 { " override" } @else { " overrides" } }
                    ul {
                        @for one in rule.overrides.iter().take(MOST_ENTRIES) {
                            li {
                                code { (key(&one.key)) } ": " code { (one.limits.join(", ")) }
                                @if let Some(until) = &one.until { " until " time { (until) } }
                            }
                        }
                    }
                    (rest(count))
                }
            }
        }
    }
}

fn key(key: &OneOrMany) -> String {
    key.texts().join(" | ")
}

fn rest(count: usize) -> Markup {
    html! {
        @if count > MOST_ENTRIES {
            p.muted { "and " (number((count - MOST_ENTRIES) as u64)) " more; see " code { "GET /v1/rules" } }
        }
    }
}
