//! The form.

use maud::{Markup, html};

use super::presets::{LIMITS, TRAFFIC};
use super::trial::{Fault, Faults, Field, Trial};

/// What is typed, with what is wrong with it below each field.
pub(super) fn form(trial: &Trial, faults: &Faults) -> Markup {
    html! {
        form.card.trial method="get" action="/playground" data-play=(super::OUTCOME) {
            datalist #limits { @for limit in LIMITS { option value=(limit) {} } }
            datalist #traffics { @for traffic in TRAFFIC { option value=(traffic) {} } }
            fieldset {
                legend { "Limits" span.muted { " \u{2013} each by itself on the same requests; joined with " code { " + " } " they are decided in one step" } }
                div.limits {
                    @for place in 0..Trial::MOST_LIMITS {
                        @let field = Field::Limit(place);
                        div {
                            label.hidden for=(field.id()) { "Limit " (place + 1) }
                            input id=(field.id()) type="text" name="limit" list="limits" maxlength="1024"
                                value=(trial.limits.get(place).map_or("", |limit| limit))
                                spellcheck="false" autocapitalize="none" autocomplete="off"
                                aria-describedby=(described(field)) aria-invalid=[invalid(field, faults)];
                            (fault(field, faults))
                        }
                    }
                }
            }
            div.rest {
                div.wide {
                    label for="traffic" { "Traffic" }
                    input #traffic type="text" name="traffic" list="traffics" maxlength="1024" value=(trial.traffic)
                        spellcheck="false" autocapitalize="none" autocomplete="off"
                        aria-describedby=(described(Field::Traffic)) aria-invalid=[invalid(Field::Traffic, faults)];
                    (fault(Field::Traffic, faults))
                }
                div {
                    label for="hold" { "Holders stay" }
                    input.short #hold type="text" name="hold" maxlength="32" value=(trial.hold) placeholder="200ms"
                        spellcheck="false" autocapitalize="none" autocomplete="off"
                        aria-describedby=(described(Field::Hold)) aria-invalid=[invalid(Field::Hold, faults)];
                    (fault(Field::Hold, faults))
                }
                div {
                    label for="seed" { "Seed" }
                    input.short #seed type="text" name="seed" inputmode="numeric" maxlength="20" value=(trial.seed) placeholder="1"
                        autocomplete="off"
                        aria-describedby=(described(Field::Seed)) aria-invalid=[invalid(Field::Seed, faults)];
                    (fault(Field::Seed, faults))
                }
                button type="submit" { "Try" }
            }
        }
    }
}

/// What is wrong with each field, for a page that has the fields already.
pub(super) fn all_faults(faults: &Faults) -> Markup {
    html! { @for field in Field::ALL { (fault(field, faults)) } }
}

fn described(field: Field) -> String {
    format!("{}-wrong", field.id())
}

fn invalid(field: Field, faults: &Faults) -> Option<&'static str> {
    faults.iter().any(|fault| fault.field == field).then_some("true")
}

fn fault(field: Field, faults: &Faults) -> Markup {
    html! {
        div.fault id=(described(field)) aria-live="polite" {
            @for Fault { message, underlined, instead, .. } in faults.iter().filter(|fault| fault.field == field) {
                p.wrong { (message) }
                @if let Some(underlined) = underlined { pre { (underlined) } }
                @if let Some((text, trial)) = instead {
                    p { a href=(trial.link()) { "Use " code { (text) } } }
                }
            }
        }
    }
}
