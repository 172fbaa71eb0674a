//! Pages with the navigation of a signed-in user.

use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::layout::{AutoRefresh, NavItem, brand, framed};
use super::user::ConsoleUser;

/// A page with its navigation entry, title and content.
pub(crate) fn page(user: &ConsoleUser, nav: NavItem, title: &str, body: &Markup) -> Response {
    framed(title, AutoRefresh::Never, &header(user, nav), body).into_response()
}

/// A page that browsers without scripts reload every 5 s.
pub(super) fn refreshed(user: &ConsoleUser, nav: NavItem, title: &str, body: &Markup) -> Response {
    framed(title, AutoRefresh::WithoutScript, &header(user, nav), body).into_response()
}

/// Links to the previous and the next of several pages of rules. `nth` is counted from 1.
pub(super) fn page_links(nth: usize, last: usize, link: impl Fn(usize) -> String) -> Markup {
    html! {
        @if last > 1 {
            nav.pages aria-label="Pages of rules" {
                @if nth > 1 { a #before rel="prev" href=(link((nth - 1).min(last))) { "\u{2190} Previous" } }
                span { "Page " (nth) " of " (last) }
                @if nth < last { a #after rel="next" href=(link(nth + 1)) { "Next \u{2192}" } }
            }
        }
    }
}

fn header(user: &ConsoleUser, here: NavItem) -> Markup {
    html! {
        header.top {
            (brand())
            nav aria-label="Pages" {
                ul {
                    @for nav in NavItem::ALL {
                        li {
                            a href=(nav.path()) aria-current=[(*nav == here).then_some("page")] { (nav.name()) }
                        }
                    }
                }
            }
            div.account {
                @if user.has_session() {
                    form method="post" action="/logout" { button.plain type="submit" { "Sign out" } }
                } @else if user.could_sign_in() {
                    a href={ "/login?next=" (here.path()) } { "Sign in" }
                }
            }
        }
    }
}
