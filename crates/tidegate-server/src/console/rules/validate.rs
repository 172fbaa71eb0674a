//! Validation of a policy while the user types.

use axum::extract::RawQuery;
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};
use tidegate_config::{LoadedPolicy, PolicyLoader, Problem, Problems};
use tokio::sync::Semaphore;

use super::super::error_page::ErrorPage;
use super::super::form::SubmittedForm;
use super::super::layout::NavItem;
use super::super::page::page;
use crate::transport::http::problem::HttpProblem;
use crate::transport::http::run_blocking::run_blocking;

/// File name in messages.
const NAME: &str = "policy.yaml";
/// Id of the element with the result.
const SECTION: &str = "verdict";

/// `POST /rules/validate`: a page, or with `?part` the result alone.
pub(crate) async fn validate(
    RawQuery(query): RawQuery,
    SubmittedForm { user, fields }: SubmittedForm,
) -> Response {
    // Browsers send CRLF.
    let text = fields.text("text").replace("\r\n", "\n");
    let verdict = match validate_text(text.clone()).await {
        Ok(verdict) => verdict,
        Err(problem) => return ErrorPage::from(problem).into_response(),
    };
    if query.as_deref() == Some("part") {
        return Html(verdict.into_string()).into_response();
    }
    let body = html! {
        h1 { "Validate a policy" }
        (form(&text, &verdict))
        p { a href="/rules" { "\u{2190} Active rules" } }
    };
    page(&user, NavItem::Rules, "Validate", &body)
}

/// Validates a text. One validation runs at a time, because some take long.
async fn validate_text(text: String) -> Result<Markup, HttpProblem> {
    static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
    // Untrusted text must not read files or variables of this machine.
    let validate = move || verdict(&text, &PolicyLoader::load_str(NAME, &text));
    run_blocking(&ONE_AT_A_TIME, "validation", validate).await
}

/// The form with the text and the result.
pub(super) fn form(text: &str, verdict: &Markup) -> Markup {
    html! {
        section.card aria-labelledby="validate" {
            h2 #validate { "Validate a policy without loading it" }
            p.muted {
                "At most 40,000 characters, checked like " code { "tidegate validate" } " while you type. Nothing is changed; \
                 included files and variables such as " code { "${NAME}" } " are not read here."
            }
            form method="post" action="/rules/validate" data-check="/rules/validate?part" data-result=(SECTION) {
                label.hidden for="text" { "Policy" }
                textarea #text name="text" rows="12" maxlength="40000" spellcheck="false" autocapitalize="none"
                    aria-describedby=(SECTION) { "\n" (text) }
                (verdict)
                noscript { button type="submit" { "Validate" } }
            }
        }
    }
}

/// The result before anything is typed.
pub(super) fn empty_result() -> Markup {
    html! { div id=(SECTION) role="status" {} }
}

fn verdict(text: &str, loaded: &Result<LoadedPolicy, Problems>) -> Markup {
    html! {
        div id=(SECTION) role="status" {
            @if text.trim().is_empty() {}
            @else { @match loaded {
                Ok(loaded) => {
                    p.good {
                        "Valid: " (loaded.rules.len())
                        @if loaded.rules.len() == 1 { " rule." } @else { " rules." }
                    }
                    (list(loaded.warnings.iter()))
                }
                Err(problems) => {
                    p.wrong {
                        (problems.count())
                        @if problems.count() == 1 { " error" } @else { " errors" }
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
