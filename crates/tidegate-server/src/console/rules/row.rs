//! One rule as a row of the table.

use maud::{Markup, html};
use tidegate::policy::OnMissingKey;
use tidegate_config::{LeaseSetting, MatchFile, OnStoreFailureSetting, OneOrMany, RuleFile};

use super::super::links::rule_link;
use super::super::user::ConsoleUser;
use super::delete;
use crate::policy::{ListedOverride, ListedRule, RuleOrigin, timestamp};
use crate::text::format::number;

/// Upper bound of the shown entries of a list; the rest is only counted.
const MAX_ENTRIES: usize = 20;

pub(super) fn row(listed: &ListedRule, overrides: &[ListedOverride], user: &ConsoleUser) -> Markup {
    let rule = &listed.file;
    html! {
        tr id={ "rule-" (rule.name) } {
            th scope="row" data-label="Rule" {
                (rule_link(&rule.name)) " " (tags(listed))
                @if listed.origin == RuleOrigin::Runtime { (delete::form(user, &rule.name)) }
            }
            td data-label="Limits" { (limits(rule)) }
            td data-label="Key" { (key_parts(rule)) }
            td data-label="Applies to" { (conditions(&rule.matches)) }
            td data-label="Options" { (options(rule, overrides)) }
        }
    }
}

/// Where the rule was set, and whether it is enforced.
pub(crate) fn tags(listed: &ListedRule) -> Markup {
    html! {
        @if listed.origin == RuleOrigin::Runtime {
            span.tag title="set at run time; it replaces the rule of the policy file" { "runtime" } " "
        }
        @if listed.file.shadow { span.tag { "shadow" } }
    }
}

fn limits(rule: &RuleFile) -> Markup {
    html! {
        ul.limits {
            @for limit in &rule.limits { li { code { (limit) } } }
            @for (plan, limits) in &rule.plans {
                li {
                    span.muted { (plan) ": " } code { (limits.join(" + ")) }
                    @if rule.default_plan.as_ref() == Some(plan) { " " span.tag { "default" } }
                }
            }
            @for limit in &rule.shadow_limits {
                li { code { (limit) } " " span.tag title="shadow mode: not enforced" { "shadow" } }
            }
        }
    }
}

pub(crate) fn key_parts(rule: &RuleFile) -> Markup {
    let parts = rule.key.as_deref().unwrap_or_default();
    html! {
        @if parts.is_empty() { span.muted { "all requests together" } }
        @for (i, part) in parts.iter().enumerate() {
            @if i > 0 { " + " }
            code { (part) }
        }
    }
}

pub(crate) fn conditions(matches: &MatchFile) -> Markup {
    let MatchFile { method, path, host, header } = matches;
    html! {
        @if *matches == MatchFile::default() { span.muted { "every request" } }
        @if !method.is_empty() { code { (method.texts().join(" ")) } " " }
        @if let Some(host) = host { code { (host) } " " }
        @if let Some(path) = path { code { (path) } }
        @for (name, value) in header { div { code { (name) ": " (value) } } }
    }
}

pub(crate) fn options(rule: &RuleFile, runtime: &[ListedOverride]) -> Markup {
    html! {
        ul.options {
            @match rule.on_missing_key {
                Some(OnMissingKey::Deny) => li { "deny if the key is missing" },
                Some(OnMissingKey::Skip) => li { "skip if the key is missing" },
                Some(OnMissingKey::Shared) | None => {}
            }
            @if rule.stop == Some(true) { li { "stop: later rules are skipped" } }
            @if let Some(plan) = &rule.plan { li { "plan from " code { (plan) } } }
            @if let Some(cost) = &rule.cost { li { "cost from " code { (cost) } } }
            @for (name, value) in [
                ("unit", word(rule.unit)), ("reserve", word(rule.reserve)),
                ("on_expiry", word(rule.on_expiry)),
            ] {
                @if let Some(value) = value { li { (name) ": " (value) } }
            }
            @if let Some(estimate) = rule.estimate { li { "estimate " (number(estimate.into())) } }
            @match rule.lease {
                Some(LeaseSetting::Auto(_)) => li { "lease: auto" },
                Some(LeaseSetting::Of(permits)) => li { "lease: " (number(permits.into())) },
                None => {}
            }
            @match rule.on_store_failure {
                Some(OnStoreFailureSetting::Deny) => li { "deny while the store is unavailable" },
                Some(OnStoreFailureSetting::Allow) => li { "allow while the store is unavailable" },
                Some(OnStoreFailureSetting::Fallback) | None => {}
            }
            @if let Some(ratio) = rule.fallback_ratio { li { "fallback ratio " (ratio) } }
            (entries("exempt", &rule.allow))
            (entries("denied", &rule.deny))
            (overrides(rule))
            (runtime_overrides(rule, runtime))
        }
    }
}

fn entries(what: &str, entries: &[String]) -> Markup {
    html! {
        @if !entries.is_empty() {
            li {
                details {
                    summary { (number(entries.len() as u64)) " " (what) }
                    ul { @for entry in entries.iter().take(MAX_ENTRIES) { li { code { (entry) } } } }
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
                        @for one in rule.overrides.iter().take(MAX_ENTRIES) {
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

/// Overrides that were set at run time, with those that have ended.
fn runtime_overrides(rule: &RuleFile, all: &[ListedOverride]) -> Markup {
    let of_rule: Vec<_> = all.iter().filter(|one| one.rule == rule.name).collect();
    let count = of_rule.len();
    html! {
        @if count > 0 {
            li {
                details {
                    summary { (number(count as u64)) " set at run time" }
                    ul {
                        @for one in of_rule.iter().take(MAX_ENTRIES) {
                            li {
                                code { (one.key.join(" | ")) } ": " code { (one.limits.join(", ")) }
                                @if let Some(until) = one.until { " until " time { (timestamp(until)) } }
                                @if let Some(reason) = &one.inactive { " (" (reason) ")" }
                            }
                        }
                    }
                    @if count > MAX_ENTRIES {
                        p.muted { "and " (number((count - MAX_ENTRIES) as u64)) " more; see " code { "GET /v1/overrides" } }
                    }
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
        @if count > MAX_ENTRIES {
            p.muted { "and " (number((count - MAX_ENTRIES) as u64)) " more; see " code { "GET /v1/rules" } }
        }
    }
}

/// A setting as it is written in a policy.
fn word(setting: Option<impl serde::Serialize>) -> Option<String> {
    serde_json::to_value(setting?).ok()?.as_str().map(str::to_string)
}
