//! What every page has around it.

use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::visitor::Visitor;

/// Where people begin.
pub(super) const HOME: &str = Nav::Rules.path();

/// The pages that every other leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nav {
    /// How one key stands.
    Keys,
    /// Limits on imagined traffic.
    Playground,
    /// The policy in force.
    Rules,
}

impl Nav {
    /// In the order in which they are shown.
    pub(super) const ALL: &[Self] = &[Self::Keys, Self::Playground, Self::Rules];

    /// Its address.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Keys => "/keys",
            Self::Playground => "/playground",
            Self::Rules => "/rules",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Keys => "Keys",
            Self::Playground => "Playground",
            Self::Rules => "Rules",
        }
    }
}

/// A page: its title, its place among the others, and what stands on it.
pub(crate) fn page(visitor: &Visitor, nav: Nav, title: &str, body: &Markup) -> Response {
    framed(title, &header(visitor, nav), body).into_response()
}

/// A page for somebody who may not see the others.
pub(super) fn bare(title: &str, body: &Markup) -> Html<String> {
    framed(title, &html! { header.top { (brand()) } }, body)
}

fn framed(title: &str, header: &Markup, body: &Markup) -> Html<String> {
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
