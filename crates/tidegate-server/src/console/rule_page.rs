//! The page about one rule: traffic, limits, hot keys and denials.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use tidegate_config::RuleFile;

use super::form::FormFields;
use super::layout::NavItem;
use super::links::rule_path;
use super::live::{denials, hot_keys, sections};
use super::page::page;
use super::rules::row;
use super::try_command::try_command;
use super::user::ConsoleUser;
use crate::observe::metrics::RuleMetrics;
use crate::observe::traffic::WindowSeconds;
use crate::observe::traffic::snapshot::{RuleTraffic, TrafficSnapshot};
use crate::policy::{ListedOverride, ListedRule};
use crate::text::format::number;
use crate::transport::http::AppState;

/// `GET /rule?name=..`
pub(super) async fn show(
    State(app): State<AppState>,
    user: ConsoleUser,
    fields: FormFields,
) -> Response {
    let name = fields.text("name");
    let listed = app.policies.rule(name);
    let snapshot = app.service.traffic().latest(WindowSeconds::MAX, app.current_status()).await;
    let of_name = |rule: &&RuleTraffic| rule.name == name;
    let traffic = snapshot.as_ref().and_then(|snapshot| snapshot.rules.iter().find(of_name));
    if listed.is_none() && traffic.is_none() {
        let body = html! {
            h1 { "No such rule" }
            p { "The active policy has no rule " code { (name) } ". " a href="/rules" { "All rules" } }
        };
        let mut response = page(&user, NavItem::Rules, "No such rule", &body);
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let overrides = app.policies.overrides();
    let metrics = app.service.active().metrics_of(name);
    let body = html! {
        div.bar {
            h1 { code { (name) } }
            p.now { "as of now " a href=(rule_path(name)) { "Refresh" } }
        }
        div.live {
            @if let Some(snapshot) = &snapshot { (calls(snapshot, traffic)) }
            @if let Some(listed) = &listed { (definition(listed, &overrides, metrics.as_deref())) }
            @else { p.notice { "The active policy no longer has this rule." } }
            @if let Some(snapshot) = &snapshot {
                section #keys aria-labelledby="keys-title" { (hot_keys::section(snapshot, Some(name))) }
                section #denials aria-labelledby="denials-title" { (denials::section(snapshot, Some(name))) }
            }
        }
    };
    page(&user, NavItem::Rules, name, &body)
}

fn calls(snapshot: &TrafficSnapshot, traffic: Option<&RuleTraffic>) -> Markup {
    html! {
        section #flow aria-labelledby="flow-title" {
            h2.hidden #flow-title { "Calls" }
            @match traffic {
                Some(rule) => {
                    (sections::headline(rule.traffic.rates))
                    (sections::chart(snapshot, &rule.traffic.series))
                    p.muted {
                        "Since the start: " (number(rule.traffic.totals.allowed)) " allowed, "
                        (number(rule.traffic.totals.denied)) " denied"
                        @if rule.traffic.totals.errors > 0 { ", " (number(rule.traffic.totals.errors)) " errors" }
                        @if rule.lent > 0 { "; " (number(rule.lent)) " permits leased" }
                    }
                }
                None => p.empty { "No calls in the last 15 minutes." },
            }
        }
    }
}

/// What the policy says, the denials of each limit, and how to call the rule.
fn definition(
    listed: &ListedRule,
    overrides: &[ListedOverride],
    metrics: Option<&RuleMetrics>,
) -> Markup {
    let rule = &listed.file;
    html! {
        section aria-labelledby="limits-title" {
            h2 #limits-title { "Limits" }
            (limits(rule, metrics))
        }
        section.card aria-labelledby="about-title" {
            h2 #about-title { "Rule" " " (row::tags(listed)) }
            dl.changes {
                dt { "Key" } dd { (row::key_parts(rule)) }
                dt { "Applies to" } dd { (row::conditions(&rule.matches)) }
                dt { "Options" } dd { (row::options(rule, overrides)) }
                dt { "Look up a key" }
                dd {
                    form.inline method="get" action="/keys" {
                        input type="hidden" name="rule" value=(rule.name);
                        label { span.hidden { "Key" }
                            input #lookup type="text" name="key" placeholder="key" spellcheck="false"
                                autocapitalize="none" autocomplete="off";
                        }
                        button.quiet type="submit" { "Inspect" }
                    }
                }
                dt { "Try it" } dd { (try_command(rule, "try")) }
            }
        }
    }
}

fn limits(rule: &RuleFile, metrics: Option<&RuleMetrics>) -> Markup {
    let mut denied: Vec<(String, u64)> = Vec::new();
    if let Some(metrics) = metrics {
        metrics.denials().each(&rule.name, |limit, count| denied.push((limit.into(), count)));
    }
    let enforced = match &rule.default_plan {
        Some(plan) => rule.plans.get(plan).map_or(0, Vec::len),
        None => rule.limits.len(),
    };
    let plans = rule.plans.iter().map(|(name, limits)| (Some(name), limits));
    let all = std::iter::once((None, &rule.limits)).chain(plans);
    let count = |i: usize| {
        // The names in headers.
        let several = format!("{}.{}", rule.name, i + 1);
        let is = |name: &str| name == several || (enforced == 1 && name == rule.name);
        denied.iter().filter(|(name, _)| is(name)).map(|(_, count)| count).sum::<u64>()
    };
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby="limits-title" {
            table.stack {
                thead {
                    tr {
                        th scope="col" { "Limit" }
                        @if !rule.plans.is_empty() { th scope="col" { "Plan" } }
                        th.number scope="col" { "Denied since the start" }
                    }
                }
                tbody {
                    @for (plan, limits) in all {
                        @for (i, limit) in limits.iter().enumerate() {
                            tr {
                                th scope="row" data-label="Limit" { code { (limit) } }
                                @if let Some(plan) = plan {
                                    td data-label="Plan" {
                                        (plan)
                                        @if rule.default_plan.as_ref() == Some(plan) { " " span.tag { "default" } }
                                    }
                                }
                                td.number data-label="Denied" {
                                    (number(count(i)))
                                    @if plan.is_some() { span.muted { " on all plans" } }
                                }
                            }
                        }
                    }
                    @for limit in &rule.shadow_limits {
                        tr {
                            th scope="row" data-label="Limit" { code { (limit) } " " span.tag { "shadow" } }
                            @if !rule.plans.is_empty() { td data-label="Plan" { "all" } }
                            td.number data-label="Denied" { "\u{2013}" }
                        }
                    }
                }
            }
        }
    }
}
