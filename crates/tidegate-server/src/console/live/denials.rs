//! Who was denied, and why.

use maud::{Markup, html};
use tidegate::Micros;

use super::shared::Seen;
use crate::live::snapshot::{Because, Denial, Kind};
use crate::plot::{number, span};

/// The most that are shown.
const MOST: usize = 20;

pub(super) fn section(seen: &Seen) -> Markup {
    let (denials, left_out) = (&seen.snapshot.denials, seen.snapshot.denials_left_out);
    html! {
        h2 #denials-title { "Recent denials" }
        @if denials.is_empty() {
            p.empty { "Nobody was denied so far." }
        } @else {
            div.scroll tabindex="0" role="region" aria-labelledby="denials-caption" {
                table {
                    caption #denials-caption {
                        "The last " (denials.len().min(MOST)) ", newest first; times are UTC"
                        @if left_out > 0 { ". " (number(left_out)) " more came too fast to be noted" }
                    }
                    thead {
                        tr {
                            th scope="col" { "When" }
                            th scope="col" { "Rule" }
                            th scope="col" { "Key" }
                            th scope="col" { "Why" }
                        }
                    }
                    tbody { @for denial in denials.iter().take(MOST) { (row(denial)) } }
                }
            }
        }
    }
}

fn row(denial: &Denial) -> Markup {
    html! {
        tr {
            td.when { time { (time_of_day(denial.at_ms)) } }
            th scope="row" {
                code { (denial.rule) }
                @if denial.kind == Kind::WouldDeny { " " span.tag { "shadow" } }
            }
            td {
                @match denial.key.as_deref() {
                    Some("") => span.muted { "everybody together" },
                    Some(key) => code { (key) },
                    None => span.muted { "\u{2013}" },
                }
            }
            td { (why(denial)) }
        }
    }
}

fn why(denial: &Denial) -> Markup {
    let would = if denial.kind == Kind::WouldDeny { "would have been denied: " } else { "" };
    let limit = denial.limit.as_deref().unwrap_or_default();
    html! {
        (would)
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
}
