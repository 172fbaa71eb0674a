//! What every page has around it.

use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use tidegate::Micros;

use super::visitor::Visitor;

/// Where people begin.
pub(super) const HOME: &str = Nav::Live.path();

/// The pages that every other leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nav {
    /// What goes on now.
    Live,
    /// How one key stands.
    Keys,
    /// Limits on imagined traffic.
    Playground,
    /// The policy in force.
    Rules,
}

impl Nav {
    /// In the order in which they are shown.
    pub(super) const ALL: &[Self] = &[Self::Live, Self::Keys, Self::Playground, Self::Rules];

    /// Its address.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Live => "/",
            Self::Keys => "/keys",
            Self::Playground => "/playground",
            Self::Rules => "/rules",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Live => "Live",
            Self::Keys => "Keys",
            Self::Playground => "Playground",
            Self::Rules => "Rules",
        }
    }
}

/// A page: its title, its place among the others, and what stands on it.
pub(crate) fn page(visitor: &Visitor, nav: Nav, title: &str, body: &Markup) -> Response {
    framed(title, Refresh::Never, &header(visitor, nav), body).into_response()
}

/// The same, loaded anew every few seconds where there is no script to keep it up to date.
pub(super) fn refreshed(visitor: &Visitor, nav: Nav, title: &str, body: &Markup) -> Response {
    framed(title, Refresh::WithoutScript, &header(visitor, nav), body).into_response()
}

/// When a page is loaded anew by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refresh {
    Never,
    WithoutScript,
}

/// A page for somebody who may not see the others.
pub(super) fn bare(title: &str, body: &Markup) -> Html<String> {
    framed(title, Refresh::Never, &html! { header.top { (brand()) } }, body)
}

fn framed(title: &str, refresh: Refresh, header: &Markup, body: &Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " \u{b7} Tidegate" }
                link rel="stylesheet" href="/console/style.css";
                link rel="icon" type="image/svg+xml" href="/console/icon.svg";
                script src="/console/console.js" defer {}
                @if refresh == Refresh::WithoutScript {
                    noscript { meta http-equiv="refresh" content="5"; }
                }
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                (header)
                main #main tabindex="-1" { (body) }
            }
        }
    };
    Html(page.into_string())
}

fn header(visitor: &Visitor, here: Nav) -> Markup {
    html! {
        header.top {
            (brand())
            nav aria-label="Pages" {
                ul {
                    @for nav in Nav::ALL {
                        li {
                            a href=(nav.path()) aria-current=[(*nav == here).then_some("page")] { (nav.name()) }
                        }
                    }
                }
            }
            div.who {
                @if visitor.has_session() {
                    form method="post" action="/logout" { button.plain type="submit" { "Sign out" } }
                } @else if visitor.could_sign_in() {
                    a href={ "/login?next=" (here.path()) } { "Sign in" }
                }
            }
        }
    }
}

/// Three waves that grow smaller, and the name.
fn brand() -> Markup {
    html! {
        a.brand href=(HOME) {
            svg.mark viewBox="0 0 28 20" width="28" height="20" aria-hidden="true" focusable="false" {
                path d="M1 5q4.3-4 8.7 0t8.7 0t8.7 0" {}
                path d="M1 11q4.3-4 8.7 0t8.7 0" {}
                path d="M1 17q4.3-4 8.7 0" {}
            }
            span { "Tidegate" }
        }
    }
}

/// A span of which nobody wants to know the decimals.
pub(crate) fn rough(span: Micros) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let seconds = span.get() / 1_000_000;
    let unit = UNITS.into_iter().find(|(length, _)| seconds >= 2 * length);
    let (length, unit) = unit.unwrap_or((1, "s"));
    format!("{} {unit}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_in_one_unit() {
        let spans = [1, 119, 120, 7_199, 7_200, 172_800].map(|s| rough(Micros::from_secs(s)));
        assert_eq!(spans, ["1 s", "119 s", "2 min", "119 min", "2 h", "2 d"]);
    }
}
