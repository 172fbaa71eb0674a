//! Is a text a policy? Told while somebody types.

use std::time::Duration;

use axum::extract::RawQuery;
use axum::response::{Html, IntoResponse, Response};
use http::StatusCode;
use maud::{Markup, html};
use tokio::sync::Semaphore;

use super::super::form::Submitted;
use super::super::page::{Nav, page};
use super::super::trouble::Trouble;
use crate::config::{Config, Loaded, Problem, Problems};

/// What the text goes by in what is said about it.
const NAME: &str = "policy.yaml";
const SECTION: &str = "verdict";

/// `POST /rules/validate`: a page, or with `part` in the address the section alone.
pub(in super::super) async fn validate(
    RawQuery(query): RawQuery,
    Submitted { visitor, fields }: Submitted,
) -> Response {
    // Browsers end lines in the way of the mail of old.
    let text = fields.text("text").replace("\r\n", "\n");
    let verdict = match judged(text.clone()).await {
        Ok(verdict) => verdict,
        Err(trouble) => return trouble.into_response(),
    };
    if query.as_deref() == Some("part") {
        return Html(verdict.into_string()).into_response();
    }
    let body = html! {
        h1 { "Is it a policy?" }
        (form(&text, &verdict))
        p { a href="/rules" { "\u{2190} The rules in force" } }
    };
    page(&visitor, Nav::Rules, "Validate", &body)
}

/// What is wrong with it. One text at a time is looked at, whoever asks: some take a while.
async fn judged(text: String) -> Result<Markup, Trouble> {
    static TURNS: Semaphore = Semaphore::const_new(1);
    const PATIENCE: Duration = Duration::from_secs(2);
    let busy = || {
        let detail = "others have their policies looked at; try again";
        Trouble::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    };
    let turn = tokio::time::timeout(PATIENCE, TURNS.acquire()).await;
    let turn = turn.map_err(|_| busy())?.map_err(|_| busy())?;
    let judging = tokio::task::spawn_blocking(move || {
        // Whoever hangs up meanwhile does not make room for another.
        let _turn = turn;
        // Text from anywhere may neither read files of this machine nor its variables.
        verdict(&text, &Config::load_str(NAME, &text))
    });
    judging.await.map_err(|_| {
        let detail = "the server has made a mistake; try tidegate validate";
        Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    })
}

/// The text, and what is said about it.
pub(super) fn form(text: &str, verdict: &Markup) -> Markup {
    html! {
        section.card aria-labelledby="validate" {
            h2 #validate { "Try a policy before it is in force" }
            p.muted {
                "At most 40,000 characters, looked at as " code { "tidegate validate" } " does, while you type. Nothing is changed, and \
                 neither included files nor variables such as " code { "${NAME}" } " are read here."
            }
            form method="post" action="/rules/validate" data-check="/rules/validate?part" data-answer=(SECTION) {
                label.hidden for="text" { "Policy" }
                textarea #text name="text" rows="12" maxlength="40000" spellcheck="false" autocapitalize="none"
                    aria-describedby=(SECTION) { "\n" (text) }
                (verdict)
                noscript { button type="submit" { "Validate" } }
            }
        }
    }
}

/// What there is to say before anything was typed.
pub(super) fn nothing_yet() -> Markup {
    html! { div id=(SECTION) role="status" {} }
}

fn verdict(text: &str, loaded: &Result<Loaded, Problems>) -> Markup {
    html! {
        div id=(SECTION) role="status" {
            @if text.trim().is_empty() {}
            @else { @match loaded {
                Ok(loaded) => {
                    p.good {
                        "Good: " (loaded.rules.len())
                        @if loaded.rules.len() == 1 { " rule." } @else { " rules." }
                    }
                    (list(loaded.warnings.iter()))
                }
                Err(problems) => {
                    p.wrong {
                        (problems.count())
                        @if problems.count() == 1 { " mistake" } @else { " mistakes" }
                    }
                    (list(problems.iter()))
                }
            } }
        }
    }
}

fn list<'p>(problems: impl Iterator<Item = &'p Problem>) -> Markup {
    html! {
        ol.problems {
            @for problem in problems {
                li {
                    p {
                        @if let (Some(line), Some(column)) = (problem.line(), problem.column()) {
                            code.place { (line) ":" (column) } " "
                        }
                        (problem.message())
                    }
                    @if let Some(excerpt) = problem.excerpt() { pre { (excerpt) } }
                }
            }
        }
    }
}
