//! What can be done about a key.

use maud::{Markup, html};

use super::super::change::Change;
use super::super::visitor::Visitor;
use super::about::About;
use super::overrides;
use crate::config::OverrideFile;
use crate::http::Door;
use crate::policies::{Listed, Origin};

/// What somebody typed who has to mend it.
#[derive(Clone, Default, Debug)]
pub(super) struct Typed {
    pub(super) limits: String,
    pub(super) lasts: String,
    /// What is wrong with it.
    pub(super) wrong: Option<String>,
}

/// All of it, as far as this visitor could do it.
pub(super) fn forms(door: &Door, visitor: &Visitor, about: &About, typed: &Typed) -> Markup {
    let now = door.service.clock().now();
    let listed = door.policies.rule(&about.rule);
    html! {
        @if !visitor.can_change() {
            p.muted {
                "To reset a key or to give it other limits for a while, start the server with "
                code { "TIDEGATE_ADMIN_TOKEN" } "."
            }
        } @else {
            div.deeds {
                (reset(visitor, about))
                @if let Some(listed) = &listed {
                    @let present = overrides::of_key(&listed.file, &about.key, now);
                    @let in_file = door.policies.in_file(&about.rule);
                    @let of_file = in_file.as_ref().and_then(|rule| overrides::of_key(rule, &about.key, now));
                    (set_override(visitor, about, typed, present, of_file))
                }
            }
        }
        @if let Some(listed) = &listed { (origin(door, visitor, about, listed)) }
    }
}

fn reset(visitor: &Visitor, about: &About) -> Markup {
    html! {
        section.card aria-labelledby="reset" {
            h2 #reset { "Begin anew" }
            p.muted { "Forgets what the key has used, under all limits shown. What is held stays held." }
            form.deed method="post" action="/keys/reset" {
                (hidden(about))
                (token(visitor))
                button.danger type="submit" { "Reset" }
            }
        }
    }
}

fn set_override(
    visitor: &Visitor,
    about: &About,
    typed: &Typed,
    present: Option<&OverrideFile>,
    of_file: Option<&OverrideFile>,
) -> Markup {
    html! {
        section.card aria-labelledby="override" {
            h2 #override { "Other limits for a while" }
            @if about.key.is_empty() {
                p.muted { "Everybody is counted together here, so that there is no key to have limits of its own." }
            } @else if let Some(of_file) = of_file {
                p.muted {
                    "The policy file has limits for this key: " code { (of_file.limits.join(" + ")) } ". Change them there."
                }
            } @else {
                @if let Some(present) = present {
                    p {
                        "In force: " code { (present.limits.join(" + ")) }
                        @if let Some(until) = &present.until { " until " time { (until) } } "."
                    }
                    form.deed method="post" action="/keys/override/end" {
                        (hidden(about))
                        (token(visitor))
                        button.quiet type="submit" { "End it now" }
                    }
                }
                form.deed method="post" action="/keys/override" {
                    (hidden(about))
                    label { span { "Limits" }
                        input type="text" name="limits" value=(typed.limits) placeholder="1000/s" required maxlength="1024"
                            spellcheck="false" autocapitalize="none" autocomplete="off"
                            aria-describedby=[typed.wrong.is_some().then_some("override-wrong")];
                    }
                    label { span { "for" }
                        input.short type="text" name="for" value=(if typed.lasts.is_empty() { "1h" } else { &typed.lasts })
                            list="spans" required maxlength="32" spellcheck="false" autocapitalize="none";
                    }
                    datalist #spans { @for span in ["10m", "1h", "8h", "1d", "7d"] { option value=(span) {} } }
                    (token(visitor))
                    button type="submit" { "Override" }
                }
                @if let Some(wrong) = &typed.wrong {
                    pre.wrong #override-wrong role="alert" { (wrong) }
                }
                p.muted {
                    "In the place of the rule\u{2019}s limits, for this key alone; several are joined with " code { " + " }
                    ". It is set in this process until it ends or the server is restarted."
                }
            }
        }
    }
}

/// Where the rule comes from, if that is not the file.
fn origin(door: &Door, visitor: &Visitor, about: &About, listed: &Listed) -> Markup {
    let name = &listed.file.name;
    html! {
        @if listed.origin == Origin::Runtime {
            section.notice {
                h2 { "This rule was set while running" }
                @if door.policies.in_file(name).is_some() {
                    p {
                        code { (name) } " no longer follows the policy file: changes of it there have no effect until the \
                        rule is taken back, with all its overrides that were set here."
                    }
                    @if visitor.can_change() {
                        form.deed method="post" action="/keys/take-back" {
                            (hidden(about))
                            (token(visitor))
                            button.quiet type="submit" { "Take it back to the file\u{2019}s" }
                        }
                    }
                } @else {
                    p { "The policy file has no rule " code { (name) } ". It lasts until the server is restarted." }
                }
            }
        }
    }
}

fn hidden(about: &About) -> Markup {
    html! { input type="hidden" name=(About::FIELD) value=(about.query()); }
}

fn token(visitor: &Visitor) -> Markup {
    html! {
        @if visitor.needs_token() {
            label { span { "Admin token" }
                input type="password" name=(Change::TOKEN) required autocomplete="off" spellcheck="false";
            }
        }
    }
}
