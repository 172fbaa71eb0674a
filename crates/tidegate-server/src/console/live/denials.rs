//! Who was denied, and why.

use maud::{Markup, html};
use tidegate::Micros;

use super::shared::Seen;
use crate::live::snapshot::{Because, Denial, Kind};
use crate::plot::{number, span};

/// The most that are shown of each kind.
const MOST_DENIED: usize = 14;
const MOST_WOULD_BE: usize = 6;

/// The last denial of one key by one limit, and how often it was noted.
struct Group<'d> {
    last: &'d Denial,
    noted: usize,
}

pub(super) fn section(seen: &Seen) -> Markup {
    let left_out = seen.snapshot.denials_left_out;
    let groups = grouped(&seen.snapshot.denials);
    let of = |kind| groups.iter().filter(move |group| group.last.kind == kind);
    html! {
        h2 #denials-title { "Recent denials" }
        @if groups.is_empty() {
            p.empty { "Nobody was denied so far." }
        } @else {
            div.scroll #denials-table tabindex="0" role="region" aria-labelledby="denials-caption" {
                table {
                    caption #denials-caption {
                        "The last ones, newest first, and then those that a shadow limit would have denied; in UTC"
                        @if left_out > 0 { ". " (number(left_out)) " since the start came too fast to be noted" }
                    }
                    thead {
                        tr {
                            th scope="col" { "When" }
                            th scope="col" { "Key" }
                            th scope="col" { "Rule" }
                            th scope="col" { "Why" }
                            th.number scope="col" { "Noted" }
                        }
                    }
                    tbody {
                        @for group in of(Kind::Deny).take(MOST_DENIED) { (row(group)) }
                        @for group in of(Kind::WouldDeny).take(MOST_WOULD_BE) { (row(group)) }
                    }
                }
            }
        }
    }
}

/// Each key and limit once, in the order of its last denial: one that is denied all the time would fill the list.
fn grouped(denials: &[Denial]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for denial in denials {
        let is_same = |group: &&mut Group<'_>| {
            let Denial { kind, because, rule, policy, key, .. } = group.last;
            (kind, because) == (&denial.kind, &denial.because)
                && (rule, policy, key) == (&denial.rule, &denial.policy, &denial.key)
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.noted += 1,
            None => groups.push(Group { last: denial, noted: 1 }),
        }
    }
    groups
}

fn row(Group { last: denial, noted }: &Group<'_>) -> Markup {
    html! {
        tr {
            td.when { time { (time_of_day(denial.at_ms)) } }
            th.key-name scope="row" {
                @match denial.key.as_deref() {
                    Some("") => span.muted { "everybody together" },
                    Some(key) => code { (key) },
                    None => span.muted { "\u{2013}" },
                }
            }
            td.name { code { (denial.rule) } }
            td { (why(denial)) }
            td.number { (number(*noted as u64)) "\u{d7}" }
        }
    }
}

fn why(denial: &Denial) -> Markup {
    let limit = denial.limit.as_deref().unwrap_or_default();
    html! {
        @if denial.kind == Kind::WouldDeny { span.tag { "shadow" } " would deny: " }
        @match denial.because {
            Because::Limit => {
                code { (limit) } " is used up"
                @if let Some(wait) = denial.retry_after_ms {
                    span.muted { "; again in " (span(Micros::new(wait.saturating_mul(1_000)))) }
                }
            }
            Because::Never => { "it costs more than " code { (limit) } " ever has" }
            Because::List => "its list of who is denied, or no key",
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
    fn a_time_is_one_of_the_day() {
        assert_eq!(time_of_day(1_700_000_000_123), "22:13:20");
    }

    #[test]
    fn one_who_is_denied_all_the_time_takes_one_row() {
        let denial = |key: &str, at_ms| Denial {
            at_ms,
            kind: Kind::Deny,
            because: Because::Limit,
            rule: "api".into(),
            policy: Some("api".into()),
            limit: Some("5/s".into()),
            key: Some(key.into()),
            retry_after_ms: Some(1),
        };
        let denials = [denial("a", 4), denial("a", 3), denial("b", 2), denial("a", 1)];
        let groups = grouped(&denials);
        let told: Vec<_> = groups.iter().map(|g| (g.last.at_ms, g.noted)).collect();
        assert_eq!(told, [(4, 3), (2, 1)]);
    }
}
