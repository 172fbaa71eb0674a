//! Recent denials.

use maud::{Markup, html};
use tidegate::Micros;

use super::super::links::{key_link, rule_link};
use crate::observe::traffic::snapshot::{DenialKind, DeniedBy, RecentDenial, TrafficSnapshot};
use crate::text::format::number;

/// Upper bounds of the rows.
const MAX_DENIED: usize = 14;
const MAX_SHADOW_DENIED: usize = 6;

/// The denials of one key by one limit: the last one, and their number.
struct DenialGroup<'d> {
    last: &'d RecentDenial,
    count: usize,
}

/// The denials by all rules or by one.
pub(crate) fn section(snapshot: &TrafficSnapshot, rule: Option<&str>) -> Markup {
    let unrecorded = snapshot.denials_left_out;
    let is_shown = |denial: &&RecentDenial| rule.is_none_or(|rule| denial.rule == rule);
    let groups = grouped(snapshot.denials.iter().filter(is_shown));
    let of = |kind| groups.iter().filter(move |group| group.last.kind == kind);
    html! {
        h2 #denials-title { "Recent denials" }
        @if groups.is_empty() {
            p.empty { @if rule.is_some() { "No denial of this rule among the recent ones." } @else { "No denials yet." } }
        } @else {
            div.scroll #denials-table tabindex="0" role="region" aria-labelledby="denials-caption" {
                table.stack {
                    caption #denials-caption {
                        "Newest first; then denials by shadow limits. Times are UTC"
                        @if unrecorded > 0 { ". " (number(unrecorded)) " not recorded since the start (rate cap)" }
                    }
                    thead {
                        tr {
                            th scope="col" { "Time" }
                            th scope="col" { "Key" }
                            th scope="col" { "Rule" }
                            th scope="col" { "Reason" }
                            th.number scope="col" { "Count" }
                        }
                    }
                    tbody {
                        @for group in of(DenialKind::Deny).take(MAX_DENIED) { (row(group)) }
                        @for group in of(DenialKind::WouldDeny).take(MAX_SHADOW_DENIED) { (row(group)) }
                    }
                }
            }
        }
    }
}

/// One group per key and limit, in the order of the last denial. Otherwise one key that is denied
/// often would fill the list.
fn grouped<'d>(denials: impl Iterator<Item = &'d RecentDenial>) -> Vec<DenialGroup<'d>> {
    let mut groups: Vec<DenialGroup<'_>> = Vec::new();
    for denial in denials {
        let is_same = |group: &&mut DenialGroup<'_>| {
            let RecentDenial { kind, because, rule, policy, key, .. } = group.last;
            (kind, because) == (&denial.kind, &denial.because)
                && (rule, policy, key) == (&denial.rule, &denial.policy, &denial.key)
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.count += 1,
            None => groups.push(DenialGroup { last: denial, count: 1 }),
        }
    }
    groups
}

fn row(DenialGroup { last: denial, count }: &DenialGroup<'_>) -> Markup {
    html! {
        tr {
            td.when data-label="Time" { time { (time_of_day(denial.at_ms)) } }
            th.key-name scope="row" data-label="Key" {
                @match denial.key.as_deref() {
                    Some(key) => (key_link(&denial.rule, key, false)),
                    None => span.muted { "\u{2013}" },
                }
            }
            td.name data-label="Rule" { (rule_link(&denial.rule)) }
            td data-label="Reason" { (reason(denial)) }
            td.number data-label="Count" { (number(*count as u64)) "\u{d7}" }
        }
    }
}

fn reason(denial: &RecentDenial) -> Markup {
    let limit = denial.limit.as_deref().unwrap_or_default();
    html! {
        @if denial.kind == DenialKind::WouldDeny { span.tag { "shadow" } " would deny: " }
        @match denial.because {
            DeniedBy::Limit => {
                code { (limit) } " exhausted"
                @if let Some(wait) = denial.retry_after_ms {
                    span.muted { "; retry after " (Micros::from_millis(wait)) }
                }
            }
            DeniedBy::Never => { "cost exceeds " code { (limit) } }
            DeniedBy::List => "deny list, or missing key",
        }
    }
}

fn time_of_day(at_ms: u64) -> String {
    let seconds = at_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_as_time_of_day() {
        assert_eq!(time_of_day(1_700_000_000_123), "22:13:20");
    }

    #[test]
    fn a_key_that_is_denied_often_takes_one_row() {
        let denial = |key: &str, at_ms| RecentDenial {
            at_ms,
            kind: DenialKind::Deny,
            because: DeniedBy::Limit,
            rule: "api".into(),
            policy: Some("api".into()),
            limit: Some("5/s".into()),
            key: Some(key.into()),
            retry_after_ms: Some(1),
        };
        let denials = [denial("a", 4), denial("a", 3), denial("b", 2), denial("a", 1)];
        let groups = grouped(denials.iter());
        let rows: Vec<_> = groups.iter().map(|g| (g.last.at_ms, g.count)).collect();
        assert_eq!(rows, [(4, 3), (2, 1)]);
    }
}
