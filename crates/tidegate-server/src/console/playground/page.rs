//! The handler and the page of `GET /playground`.

use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use http::StatusCode;
use maud::{Markup, html};

use super::super::form::FormFields;
use super::super::layout::NavItem;
use super::super::page::page;
use super::super::user::ConsoleUser;
use super::input::{InputErrors, PlaygroundInput};
use super::results::OUTCOME;
use super::{apply, export, form, presets, results};
use crate::transport::http::AppState;

/// `GET /playground[?limit=..]*[&traffic=..][&seed=..][&hold=..][&calls=..]`: a page, or with
/// `part` the sections that change while the user types.
pub(crate) async fn show(
    State(app): State<AppState>,
    user: ConsoleUser,
    fields: FormFields,
) -> Response {
    let input = PlaygroundInput::read(&fields);
    let input = if input.is_empty() { presets::first() } else { input };
    let (status, outcome, errors) = simulate(&input).await;
    if fields.all("part").next().is_some() {
        let part = html! { (form::all_errors(&errors)) (outcome) };
        // Status 200 also with errors: the user is still typing.
        return Html(part.into_string()).into_response();
    }
    let body = html! {
        h1 { "Playground" }
        p.muted { "Compare limits on synthetic traffic: what each admits, and what it guarantees. No real key is charged." }
        (presets::links(&input))
        (form::form(&input, &errors))
        (outcome)
        (apply::form(&app, &user, &input))
    };
    let mut response = page(&user, NavItem::Playground, "Playground", &body);
    *response.status_mut() = status;
    response
}

/// Runs the simulation and renders its result, or the errors of the input.
async fn simulate(input: &PlaygroundInput) -> (StatusCode, Markup, InputErrors) {
    let result = match input.task() {
        Err(errors) => Err((StatusCode::BAD_REQUEST, errors)),
        Ok(task) => {
            let hold = input.hold.parse().ok();
            let result = task.run(move |report| results::results_section(&report, hold)).await;
            result.map_err(|problem| {
                let error = input.problem_error(&problem);
                (problem.into_parts().0, vec![error])
            })
        }
    };
    match result {
        Ok(section) => {
            let outcome = html! { div id=(OUTCOME) { (section) (export::link(input)) } };
            (StatusCode::OK, outcome, InputErrors::new())
        }
        Err((status, errors)) => {
            let outcome = html! {
                div id=(OUTCOME) { p.empty role="status" { "Fix the marked fields to see a result." } }
            };
            (status, outcome, errors)
        }
    }
}
