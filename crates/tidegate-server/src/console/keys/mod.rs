//! How one key stands: drawn, in numbers and in sentences; and what can be done about it.
//!
//! # Layout
//!
//! - `about`: which key. `sight`: one limit. `forms`: what can be done. `change`: doing it. `overrides`: other limits
//!   for a while.

mod about;
mod change;
mod forms;
mod overrides;
mod sight;

pub(super) use change::{end_override, reset, set_override, take_back};

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use tidegate::Micros;
use tokio::sync::Semaphore;

use self::about::About;
use self::forms::Typed;
use super::form::Fields;
use super::page::{Nav, page};
use super::visitor::Visitor;
use crate::explain::{self, Explained};
use crate::http::Door;
use crate::http::problem::Problem;
use crate::service::{Ask, Outlook};

/// The most names of rules that are offered.
const MOST_NAMES: usize = 200;

/// `GET /keys[?rule=..|limit=..][&key=..|&parts=..][&done=..]`
pub(super) async fn show(State(door): State<Door>, visitor: Visitor, fields: Fields) -> Response {
    let about = About::read(&fields);
    let done = Done::named(fields.text(Done::FIELD));
    shown(&door, &visitor, &about, done, &Typed::default()).await
}

/// What was done, for whoever comes back to the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Done {
    Reset,
    Overridden,
    Ended,
    TakenBack,
}

impl Done {
    const FIELD: &str = "done";
    const ALL: [Self; 4] = [Self::Reset, Self::Overridden, Self::Ended, Self::TakenBack];

    const fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Overridden => "overridden",
            Self::Ended => "ended",
            Self::TakenBack => "taken-back",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|done| done.name() == name)
    }

    const fn told(self) -> &'static str {
        match self {
            Self::Reset => "What the key had used is forgotten.",
            Self::Overridden => "The override is in force.",
            Self::Ended => "The override has ended.",
            Self::TakenBack => "The rule is the file\u{2019}s again.",
        }
    }
}

/// The page, with what somebody typed who has to mend it.
async fn shown(
    door: &Door,
    visitor: &Visitor,
    about: &About,
    done: Option<Done>,
    typed: &Typed,
) -> Response {
    let mut status = if typed.wrong.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let now = door.service.clock().now();
    let found = match about.is_empty() {
        true => None,
        false => Some(look(door, about).await),
    };
    if let Some(Err(problem)) = &found {
        status = problem.clone().told().0;
    }
    let body = html! {
        h1 { "Keys" }
        (search(door, about, found.as_ref().and_then(|found| found.as_ref().err())))
        @match found {
            None => p.empty { "Name a rule and a key, and see what is left for it, when it comes back, and why." },
            Some(Err(_)) => {}
            Some(Ok((outlooks, explained))) => {
                (heading(about, done, now))
                (sentences(&explained))
                @for outlook in &outlooks { (sight::card(outlook, now)) }
                (forms::forms(door, visitor, about, typed))
            }
        }
    };
    let mut response = page(visitor, Nav::Keys, "Keys", &body);
    *response.status_mut() = status;
    response
}

/// Asks the store about a key, many times. A few do so at once, and none for long: whoever may look could otherwise
/// have it asked without end.
async fn look(door: &Door, about: &About) -> Result<(Vec<Outlook>, Explained), Problem> {
    static PLACES: Semaphore = Semaphore::const_new(4);
    const PATIENCE: Duration = Duration::from_secs(5);
    let looking = async {
        let _place = PLACES.acquire().await;
        found(door, about).await
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| {
        let detail = "the store takes too long, or too many look at once; try again";
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
    })
}

async fn found(door: &Door, about: &About) -> Result<(Vec<Outlook>, Explained), Problem> {
    if !about.rule.is_empty() && !about.limit.is_empty() {
        return Err(Problem::field("limit", "name a rule or a limit of your own, not both"));
    }
    let ask = Ask { target: about.target(), key: about.key(), cost: 1 };
    let outlooks = door.service.outlook(ask).await?;
    Ok((outlooks, explain::explain(&door.service, ask).await?))
}

/// The form, with what is wrong with what was looked for.
fn search(door: &Door, about: &About, problem: Option<&Problem>) -> Markup {
    let active = door.service.active();
    let names = active.policy.rules().iter().map(|rule| rule.name()).take(MOST_NAMES);
    let wrong = problem.map(|problem| (problem.wrong_field(), problem.clone().told().1));
    let field = wrong.as_ref().and_then(|(field, _)| *field);
    let said = wrong.as_ref().map(|(_, said)| &**said);
    html! {
        section.card aria-label="Which key" {
            form.lookup method="get" action="/keys" {
                div {
                    label for="rule" { "Rule" }
                    input #rule type="text" name="rule" value=(about.rule) list="rules" maxlength="64"
                        spellcheck="false" autocapitalize="none" autocomplete="off"
                        aria-describedby=[(field == Some("rule")).then_some("wrong")];
                    datalist #rules { @for name in names { option value=(name) {} } }
                }
                @if active.adhoc {
                    div {
                        label for="limit" { "or a limit of your own" }
                        input #limit type="text" name="limit" value=(about.limit) maxlength="256" placeholder="10/s burst 20"
                            spellcheck="false" autocapitalize="none" autocomplete="off"
                            aria-describedby=[(field == Some("limit")).then_some("wrong")];
                    }
                }
                div.wide {
                    label for="parts" { "Key" span.muted { " \u{2013} one part per line" } }
                    textarea #parts name="parts" rows="2" spellcheck="false" autocapitalize="none"
                        aria-describedby=[(field == Some("key")).then_some("wrong")] { "\n" (about.typed()) }
                }
                button type="submit" { "Look" }
            }
            @if let Some(said) = said {
                p.wrong #wrong role="alert" {
                    @if let Some(field) = field { (field) ": " }
                    (said)
                }
            }
        }
    }
}

fn heading(about: &About, done: Option<Done>, now: Micros) -> Markup {
    html! {
        @if let Some(done) = done {
            p.said role="status" { (done.told()) }
        }
        div.bar.about {
            h2 {
                code { @if about.rule.is_empty() { (about.limit) } @else { (about.rule) } }
                @if about.key.is_empty() { " for everybody" } @else { " for " code { (about.shown()) } }
            }
            p.muted {
                "As of " time { (instant(now)) } ". "
                a href={ "/keys?" (about.query()) } { "Look again" }
            }
        }
    }
}

fn sentences(explained: &Explained) -> Markup {
    let class = if explained.allowed { "verdict good" } else { "verdict wrong" };
    let (last, others) = match &*explained.sentences {
        [others @ .., last] => (Some(last), others),
        [] => (None, &[][..]),
    };
    html! {
        section.card aria-label="In sentences" {
            @if let Some(last) = last { p class=(class) { (last) } }
            @if !others.is_empty() { ul.sentences { @for one in others { li { (one) } } } }
        }
    }
}

/// An instant for people to read, in UTC.
fn instant(at: Micros) -> String {
    let at = i64::try_from(at.get()).ok().and_then(|at| jiff::Timestamp::from_microsecond(at).ok());
    at.map_or_else(String::new, |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}
