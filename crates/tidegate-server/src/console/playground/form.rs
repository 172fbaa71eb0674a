//! The form of the playground.

use maud::{Markup, html};

use super::input::{InputError, InputErrors, InputField, PlaygroundInput};
use super::presets::{LIMITS, TRAFFIC};
use super::results::OUTCOME;

/// The form with its values, and the errors below each field.
pub(super) fn form(input: &PlaygroundInput, errors: &InputErrors) -> Markup {
    html! {
        form.card.trial method="get" action="/playground" data-play=(OUTCOME) {
            datalist #limits { @for limit in LIMITS { option value=(limit) {} } }
            datalist #traffics { @for traffic in TRAFFIC { option value=(traffic) {} } }
            fieldset {
                legend { "Limits" span.muted { " \u{2013} each simulated on the same requests; joined with " code { " + " } " they are decided together" } }
                div.limits {
                    @for index in 0..PlaygroundInput::MAX_LIMITS {
                        @let field = InputField::Limit(index);
                        div {
                            label.hidden for=(field.id()) { "Limit " (index + 1) }
                            input id=(field.id()) type="text" name="limit" list="limits" maxlength="1024"
                                value=(input.limits.get(index).map_or("", |limit| limit))
                                spellcheck="false" autocapitalize="none" autocomplete="off"
                                aria-describedby=(described(field)) aria-invalid=[invalid(field, errors)];
                            (field_errors(field, errors))
                        }
                    }
                }
            }
            div.rest {
                div.wide {
                    label for="traffic" { "Traffic" }
                    input #traffic type="text" name="traffic" list="traffics" maxlength="1024" value=(input.traffic)
                        spellcheck="false" autocapitalize="none" autocomplete="off"
                        aria-describedby=(described(InputField::Traffic)) aria-invalid=[invalid(InputField::Traffic, errors)];
                    (field_errors(InputField::Traffic, errors))
                }
                div {
                    label for="hold" { "Hold time" }
                    input.short #hold type="text" name="hold" maxlength="32" value=(input.hold) placeholder="200ms"
                        spellcheck="false" autocapitalize="none" autocomplete="off"
                        aria-describedby=(described(InputField::Hold)) aria-invalid=[invalid(InputField::Hold, errors)];
                    (field_errors(InputField::Hold, errors))
                }
                div {
                    label for="seed" { "Seed" }
                    input.short #seed type="text" name="seed" inputmode="numeric" maxlength="20" value=(input.seed) placeholder="1"
                        autocomplete="off"
                        aria-describedby=(described(InputField::Seed)) aria-invalid=[invalid(InputField::Seed, errors)];
                    (field_errors(InputField::Seed, errors))
                }
                div.wide {
                    label for="calls" { "Calls that reserve" }
                    input #calls type="text" name="calls" maxlength="128" value=(input.calls) placeholder="estimate 800 cost 100..4000 takes 2s..90s"
                        spellcheck="false" autocapitalize="none" autocomplete="off"
                        aria-describedby=(described(InputField::Calls)) aria-invalid=[invalid(InputField::Calls, errors)];
                    (field_errors(InputField::Calls, errors))
                }
                button type="submit" { "Simulate" }
            }
        }
    }
}

/// The errors of each field, for a page that has the fields already.
pub(super) fn all_errors(errors: &InputErrors) -> Markup {
    html! { @for field in InputField::ALL { (field_errors(field, errors)) } }
}

fn described(field: InputField) -> String {
    format!("{}-wrong", field.id())
}

fn invalid(field: InputField, errors: &InputErrors) -> Option<&'static str> {
    errors.iter().any(|error| error.field == field).then_some("true")
}

fn field_errors(field: InputField, errors: &InputErrors) -> Markup {
    html! {
        div.fault id=(described(field)) aria-live="polite" {
            @for InputError { message, underlined, suggestion, .. } in errors.iter().filter(|error| error.field == field) {
                p.wrong { (message) }
                @if let Some(underlined) = underlined { pre { (underlined) } }
                @if let Some((text, input)) = suggestion {
                    p { a href=(input.link()) { "Use " code { (text) } } }
                }
            }
        }
    }
}
