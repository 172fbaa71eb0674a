//! Doing something about a key. Who has done it is sent back to the page, so that nothing is done twice by reloading.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;

use super::super::change::Change;
use super::super::trouble::Trouble;
use super::super::visitor::Visitor;
use super::about::About;
use super::forms::Typed;
use super::overrides::{self, Override};
use super::{Done, shown};
use crate::http::Door;
use crate::http::problem::Problem;
use crate::policies::NotChanged;
use crate::service::{Ask, Verb};

/// `POST /keys/reset`
pub(in super::super) async fn reset(
    State(door): State<Door>,
    change: Change,
) -> Result<Response, Trouble> {
    let about = named(&change)?;
    let ask = Ask { target: about.target(), key: about.key(), cost: 0 };
    door.service.ask(Verb::Reset, &[ask], None).await.map_err(Problem::from)?;
    Ok(back(&about, Done::Reset))
}

/// `POST /keys/override`
pub(in super::super) async fn set_override(
    State(door): State<Door>,
    visitor: Visitor,
    change: Change,
) -> Result<Response, Trouble> {
    let about = named(&change)?;
    let (limits, lasts) = (change.fields.text("limits"), change.fields.text("for"));
    let now = door.service.clock().now();
    let in_file = door.policies.in_file(&about.rule);
    let set = Override::read(limits, lasts, now).and_then(|other| {
        // It would be gone when ours ends.
        if in_file.as_ref().is_some_and(|rule| overrides::of_key(rule, &about.key, now).is_some()) {
            return Err("the policy file has limits for this key already; change them there".into());
        }
        let put = |rule: &mut _| other.put_into(rule, in_file.as_ref(), &about.key, now);
        match door.policies.amend(&about.rule, put) {
            Err(NotChanged::Faulty(problems)) => {
                Err(problems.iter().map(|one| one.message()).collect::<Vec<_>>().join("\n"))
            }
            amended => Ok(amended),
        }
    });
    match set {
        Ok(amended) => {
            amended.map_err(Problem::from)?;
            Ok(back(&about, Done::Overridden))
        }
        Err(wrong) => {
            let typed = Typed { limits: limits.into(), lasts: lasts.into(), wrong: Some(wrong) };
            Ok(shown(&door, &visitor, &about, None, &typed).await)
        }
    }
}

/// `POST /keys/override/end`
pub(in super::super) async fn end_override(
    State(door): State<Door>,
    change: Change,
) -> Result<Response, Trouble> {
    let about = named(&change)?;
    let in_file = door.policies.in_file(&about.rule);
    let remove = |rule: &mut _| overrides::remove(rule, in_file.as_ref(), &about.key);
    door.policies.amend(&about.rule, remove).map_err(Problem::from)?;
    Ok(back(&about, Done::Ended))
}

/// `POST /keys/take-back`
pub(in super::super) async fn take_back(
    State(door): State<Door>,
    change: Change,
) -> Result<Response, Trouble> {
    let about = named(&change)?;
    if door.policies.in_file(&about.rule).is_none() {
        let detail = "the policy file has no such rule to go back to; delete it at /rules";
        return Err(Trouble::new(StatusCode::CONFLICT, detail));
    }
    door.policies.delete(&about.rule).map_err(Problem::from)?;
    Ok(back(&about, Done::TakenBack))
}

fn named(change: &Change) -> Result<About, Trouble> {
    let about = About::passed_on(&change.fields);
    if about.is_empty() {
        let detail = "it does not say what it is about; go back and use the form";
        return Err(Trouble::new(StatusCode::BAD_REQUEST, detail));
    }
    Ok(about)
}

fn back(about: &About, done: Done) -> Response {
    let (query, field, name) = (about.query(), Done::FIELD, done.name());
    Redirect::to(&format!("/keys?{query}&{field}={name}")).into_response()
}
