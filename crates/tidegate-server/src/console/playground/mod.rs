//! Limits on imagined traffic, side by side.
//!
//! # Layout
//!
//! - `trial`: what is tried, from the address. `presets`: what is worth trying. `fields`: the form. `outcome`: what came
//!   of it. `copies`: how to take it along.

mod copies;
mod fields;
mod outcome;
mod presets;
mod trial;

use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use http::StatusCode;
use maud::{Markup, html};

use self::presets::PRESETS;
use self::trial::{Faults, Trial};
use super::form::Fields;
use super::page::{Nav, page};
use super::visitor::Visitor;
use crate::http::Door;

/// What is replaced while somebody types.
const OUTCOME: &str = "outcome";

/// `GET /playground[?limit=..]*[&traffic=..][&seed=..][&hold=..]`: a page, or with `part` what changes while somebody
/// types.
pub(super) async fn show(State(_): State<Door>, visitor: Visitor, fields: Fields) -> Response {
    let trial = Trial::read(&fields);
    let (status, outcome, faults) = tried(&trial).await;
    if fields.all("part").next().is_some() {
        let part = html! { (fields::all_faults(&faults)) (outcome) };
        // Whoever is still typing has made no mistake yet.
        return Html(part.into_string()).into_response();
    }
    let body = html! {
        h1 { "Playground" }
        p.muted { "Limits on imagined traffic, side by side: what each lets pass, and what it promises. Nothing real is asked." }
        (presets::links(&trial))
        (fields::form(&trial, &faults))
        (outcome)
    };
    let mut response = page(&visitor, Nav::Playground, "Playground", &body);
    *response.status_mut() = status;
    response
}

/// What came of a trial, or what is wrong with it.
async fn tried(trial: &Trial) -> (StatusCode, Markup, Faults) {
    let told = match trial.task() {
        Err(faults) => Err((StatusCode::BAD_REQUEST, faults)),
        Ok(task) => {
            let hold = trial.hold.parse().ok();
            let told = task.run(move |report| outcome::told(report, hold)).await;
            told.map_err(|problem| {
                let fault = trial.fault(&problem);
                (problem.told().0, vec![fault])
            })
        }
    };
    match told {
        Ok(told) => {
            let outcome = html! { div id=(OUTCOME) { (told) (copies::link(trial)) } };
            (StatusCode::OK, outcome, Faults::new())
        }
        Err((status, faults)) => {
            let outcome = html! {
                div id=(OUTCOME) { p.empty role="status" { "There is nothing to see until what is marked above is mended." } }
            };
            (status, outcome, faults)
        }
    }
}

/// The trial that is shown to somebody who has not chosen any.
fn first() -> Trial {
    PRESETS.first().map(|preset| preset.trial()).unwrap_or_default()
}
