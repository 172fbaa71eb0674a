//! Changes of the last reload.

use maud::{Markup, html};
use tidegate::Micros;

use crate::policy::PolicyStatus;
use crate::policy::diff::{FieldDiff, PolicyDiff, RuleNames};
use crate::text::format::number;

pub(super) fn section(changes: Option<&PolicyDiff>, status: &PolicyStatus, now: Micros) -> Markup {
    html! {
        section.card aria-labelledby="changed" {
            h2 #changed { "Last reload" }
            @match changes {
                None => p.muted {
                    "No reload since the policy was loaded " (now.saturating_sub(status.loaded_at)) " ago."
                },
                Some(changes) if changes.is_empty() => p.muted {
                    "No rule changed in the reload " (now.saturating_sub(changes.at)) " ago."
                },
                Some(changes) => {
                    p.muted { "Reloaded " (now.saturating_sub(changes.at)) " ago." }
                    dl.changes {
                        (names("Added", &changes.added))
                        (names("Removed", &changes.removed))
                        (changed(changes))
                        @if changes.reordered {
                            dt { "Order" } dd { "the evaluation order of rules changed" }
                        }
                    }
                }
            }
        }
    }
}

fn names(title: &str, names: &RuleNames) -> Markup {
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

fn changed(changes: &PolicyDiff) -> Markup {
    html! {
        @for rule in &changes.changed {
            dt { code { (rule.name) } }
            dd {
                ul { @for field in &rule.fields { li { (difference(field)) } } }
            }
        }
        @if changes.changed_count > changes.changed.len() {
            dt { "More" } dd { (more(changes.changed_count, changes.changed.len())) }
        }
    }
}

fn difference(field: &FieldDiff) -> Markup {
    html! {
        span.muted { (field.name) " " }
        @if let Some(before) = &field.before { del { code { (before) } } " " }
        @if let Some(after) = &field.after { ins { code { (after) } } }
    }
}

fn more(count: usize, shown: usize) -> Markup {
    html! { @if count > shown { span.muted { "and " (number((count - shown) as u64)) " more" } } }
}
