//! What the last reading of the policy has changed.

use maud::{Markup, html};
use tidegate::Micros;

use super::super::page::rough;
use crate::changes::{ChangedField, Changes, Names};
use crate::plot::number;
use crate::policies::Condition;

pub(super) fn section(changes: Option<&Changes>, condition: &Condition, now: Micros) -> Markup {
    html! {
        section.card aria-labelledby="changed" {
            h2 #changed { "What changed last" }
            @match changes {
                None => p.muted {
                    "Nothing since the policy was read, " (rough(now.saturating_sub(condition.loaded_at))) " ago."
                },
                Some(changes) if changes.is_empty() => p.muted {
                    "No rule, when the files were read again " (rough(now.saturating_sub(changes.at))) " ago."
                },
                Some(changes) => {
                    p.muted { "The files were read again " (rough(now.saturating_sub(changes.at))) " ago." }
                    dl.changes {
                        (names("New", &changes.added))
                        (names("Gone", &changes.removed))
                        (changed(changes))
                        @if changes.reordered {
                            dt { "Order" } dd { "rules that stayed are looked at in another order" }
                        }
                    }
                }
            }
        }
    }
}

fn names(title: &str, names: &Names) -> Markup {
    html! {
        @if names.count > 0 {
            dt { (title) }
            dd {
                @for name in &names.first { code { (name) } " " }
                (more(names.count, names.first.len()))
            }
        }
    }
}

fn changed(changes: &Changes) -> Markup {
    html! {
        @for rule in &changes.changed {
            dt { code { (rule.name) } }
            dd {
                ul { @for field in &rule.fields { li { (difference(field)) } } }
            }
        }
        @if changes.changed_count > changes.changed.len() {
            dt { "Also" } dd { (more(changes.changed_count, changes.changed.len())) }
        }
    }
}

fn difference(field: &ChangedField) -> Markup {
    html! {
        span.muted { (field.name) " " }
        @if let Some(before) = &field.before { del { code { (before) } } " " }
        @if let Some(after) = &field.after { ins { code { (after) } } }
    }
}

fn more(count: usize, shown: usize) -> Markup {
    html! { @if count > shown { span.muted { "and " (number((count - shown) as u64)) " more" } } }
}
