//! The HTML around every page.

use axum::response::Html;
use maud::{DOCTYPE, Markup, html};

/// Path of the start page.
pub(super) const HOME: &str = NavItem::Live.path();

/// An entry of the navigation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NavItem {
    Live,
    Keys,
    Playground,
    Rules,
}

impl NavItem {
    /// In the order of the navigation.
    pub(super) const ALL: &[Self] = &[Self::Live, Self::Keys, Self::Playground, Self::Rules];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Live => "/",
            Self::Keys => "/keys",
            Self::Playground => "/playground",
            Self::Rules => "/rules",
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Live => "Live",
            Self::Keys => "Keys",
            Self::Playground => "Playground",
            Self::Rules => "Rules",
        }
    }
}

/// When the browser reloads a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AutoRefresh {
    Never,
    WithoutScript,
}

/// A page without navigation, for users who are not signed in.
pub(super) fn bare(title: &str, body: &Markup) -> Html<String> {
    framed(title, AutoRefresh::Never, &html! { header.top { (brand()) } }, body)
}

pub(super) fn framed(
    title: &str,
    refresh: AutoRefresh,
    header: &Markup,
    body: &Markup,
) -> Html<String> {
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
                @if refresh == AutoRefresh::WithoutScript {
                    noscript { meta http-equiv="refresh" content="5"; }
                }
            }
            body {
                a.skip href="#main" { "Skip to content" }
                (header)
                main #main tabindex="-1" { (body) }
            }
        }
    };
    Html(page.into_string())
}

/// The logo and the name.
pub(super) fn brand() -> Markup {
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
