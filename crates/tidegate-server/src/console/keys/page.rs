//! The handler and the page of `GET /keys`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use tidegate::{Inspection, Micros, RuleLimit};
use tokio::sync::Semaphore;

use super::super::form::FormFields;
use super::super::layout::NavItem;
use super::super::links::rule_link;
use super::super::page::page;
use super::super::user::ConsoleUser;
use super::forms::{self, EnteredValues};
use super::limit_card;
use super::query::KeyQuery;
use crate::check::CheckService;
use crate::check::explain::{self, Explanation};
use crate::transport::http::AppState;
use crate::transport::http::problem::HttpProblem;

/// Upper bound of the suggested rule names.
const MAX_NAMES: usize = 200;

/// `GET /keys[?rule=..|limit=..][&key=..|&parts=..][&done=..]`
pub(crate) async fn show(
    State(app): State<AppState>,
    user: ConsoleUser,
    fields: FormFields,
) -> Response {
    let query = KeyQuery::read(&fields);
    let done = CompletedAction::named(fields.text(CompletedAction::FIELD));
    shown(&app, &user, &query, done, &EnteredValues::default()).await
}

/// The action after which the page is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CompletedAction {
    Reset,
    Overridden,
    Ended,
    Reverted,
}

impl CompletedAction {
    pub(super) const FIELD: &str = "done";
    const ALL: [Self; 4] = [Self::Reset, Self::Overridden, Self::Ended, Self::Reverted];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Overridden => "overridden",
            Self::Ended => "ended",
            Self::Reverted => "taken-back",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|done| done.name() == name)
    }

    const fn notice(self) -> &'static str {
        match self {
            Self::Reset => "The key was reset.",
            Self::Overridden => "The override is active.",
            Self::Ended => "The override has ended.",
            Self::Reverted => "The rule was reverted to the policy file.",
        }
    }
}

/// The page. `typed` has the values of a form with errors.
pub(super) async fn shown(
    app: &AppState,
    user: &ConsoleUser,
    query: &KeyQuery,
    done: Option<CompletedAction>,
    typed: &EnteredValues,
) -> Response {
    let mut status = if typed.error.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let now = app.service.clock().now();
    let found = match query.is_empty() {
        true => None,
        false => Some(inspect(app, query).await),
    };
    if let Some(Err(problem)) = &found {
        status = problem.clone().into_parts().0;
    }
    let body = html! {
        h1 { "Keys" }
        (search(app, query, found.as_ref().and_then(|found| found.as_ref().err())))
        @match found {
            None => p.empty { "Enter a rule and a key to see its usage, when it recovers, and why it is denied." },
            Some(Err(_)) => {}
            Some(Ok((limits, explained))) => {
                (heading(app, query, done, now))
                (explanation(&explained))
                @for (limit, found) in &limits { (limit_card::card(limit, found, now)) }
                (forms::forms(app, user, query, typed))
            }
        }
    };
    let mut response = page(user, NavItem::Keys, "Keys", &body);
    *response.status_mut() = status;
    response
}

/// The state of a key under each limit, and the explanation.
type KeyState = (Vec<(Arc<RuleLimit>, Inspection)>, Explanation);

/// Inspects a key: one call to the store for each limit, and one for the explanation. Concurrency
/// and duration are bounded, because every user with read access can start it.
async fn inspect(app: &AppState, query: &KeyQuery) -> Result<KeyState, HttpProblem> {
    static PERMITS: Semaphore = Semaphore::const_new(4);
    const STORE_TIMEOUT: Duration = Duration::from_secs(5);
    let inspection = async {
        let _permit = PERMITS.acquire().await;
        read_key(&app.service, query).await
    };
    tokio::time::timeout(STORE_TIMEOUT, inspection).await.unwrap_or_else(|_| {
        let detail = "the store is slow or too many lookups are running; try again";
        Err(HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
    })
}

async fn read_key(service: &CheckService, query: &KeyQuery) -> Result<KeyState, HttpProblem> {
    if !query.rule.is_empty() && !query.limit.is_empty() {
        return Err(HttpProblem::field("limit", "enter a rule or an ad-hoc limit, not both"));
    }
    let check = query.check(service, 1)?;
    let explained = explain::explain(service, check.clone()).await?;
    Ok((service.inspect(check).await?, explained))
}

/// The search form, with the error of the last search.
fn search(app: &AppState, query: &KeyQuery, problem: Option<&HttpProblem>) -> Markup {
    let active = app.service.active();
    let names = active.policy.rules().iter().map(|rule| rule.name()).take(MAX_NAMES);
    let error = problem.map(|problem| (problem.wrong_field(), problem.clone().into_parts().1));
    let field = error.as_ref().and_then(|(field, _)| *field);
    let message = error.as_ref().map(|(_, message)| &**message);
    html! {
        section.card aria-label="Key" {
            form.lookup method="get" action="/keys" {
                div {
                    label for="rule" { "Rule" }
                    input #rule type="text" name="rule" value=(query.rule) list="rules" maxlength="64"
                        spellcheck="false" autocapitalize="none" autocomplete="off"
                        aria-describedby=[(field == Some("rule")).then_some("wrong")];
                    datalist #rules { @for name in names { option value=(name) {} } }
                }
                @if active.adhoc {
                    div {
                        label for="limit" { "or an ad-hoc limit" }
                        input #limit type="text" name="limit" value=(query.limit) maxlength="256" placeholder="10/s burst 20"
                            spellcheck="false" autocapitalize="none" autocomplete="off"
                            aria-describedby=[(field == Some("limit")).then_some("wrong")];
                    }
                }
                div.wide {
                    label for="parts" { "Key" span.muted { " \u{2013} one part per line" } }
                    textarea #parts name="parts" rows="2" spellcheck="false" autocapitalize="none"
                        aria-describedby=[(field == Some("key")).then_some("wrong")] { "\n" (query.typed()) }
                }
                button type="submit" { "Inspect" }
            }
            @if let Some(message) = message {
                p.wrong #wrong role="alert" {
                    @if let Some(field) = field { (field) ": " }
                    (message)
                }
            }
        }
    }
}

fn heading(app: &AppState, query: &KeyQuery, done: Option<CompletedAction>, now: Micros) -> Markup {
    html! {
        @if let Some(done) = done {
            p.done role="status" { (done.notice()) }
        }
        div.bar.about {
            h2 {
                @if query.rule.is_empty() { code { (query.limit) } } @else { (rule_link(&query.rule)) }
                @if query.key.is_empty() { " for all requests" } @else { " for " code { (query.display()) } }
            }
            p.muted {
                "As of " time { (instant(now)) } ". "
                a href={ "/keys?" (query.encoded()) } { "Refresh" }
            }
        }
        (plans(app, query))
    }
}

/// The plans of the rule, as links to the key on each of them.
fn plans(app: &AppState, query: &KeyQuery) -> Markup {
    let active = app.service.active();
    let rule = active.policy.rule(&query.rule);
    let names: Vec<&str> =
        rule.iter().flat_map(|rule| rule.plans()).map(|(name, _)| name).collect();
    let shown = if query.plan.is_empty() { names.first().copied() } else { Some(&*query.plan) };
    html! {
        @if !names.is_empty() {
            nav.presets aria-label="Plans" {
                ul {
                    @for name in &names {
                        @let of_plan = KeyQuery { plan: name.to_string(), ..query.clone() };
                        li { a href={ "/keys?" (of_plan.encoded()) } aria-current=[(shown == Some(name)).then_some("true")] { "plan " (name) } }
                    }
                }
            }
        }
    }
}

fn explanation(explained: &Explanation) -> Markup {
    let class = if explained.allowed { "verdict good" } else { "verdict wrong" };
    let (last, others) = match &*explained.sentences {
        [others @ .., last] => (Some(last), others),
        [] => (None, &[][..]),
    };
    html! {
        section.card aria-label="Explanation" {
            @if let Some(last) = last { p class=(class) { (last) } }
            @if !others.is_empty() { ul.sentences { @for one in others { li { (one) } } } }
        }
    }
}

/// A time in UTC.
fn instant(at: Micros) -> String {
    let at = i64::try_from(at.get()).ok().and_then(|at| jiff::Timestamp::from_microsecond(at).ok());
    at.map_or_else(String::new, |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

#[cfg(test)]
mod tests {
    use tidegate::RecoveryPoint;

    use super::*;
    use crate::check::Operation;
    use crate::check::counting_engine::CountingEngine;

    #[tokio::test]
    async fn a_page_costs_one_inspection_per_limit_and_one_peek() {
        let limits =
            ["sliding-log 100000/1h", "sliding-window 5000/1m", "50/s", "fixed-window 9/1h"];
        let (engine, service) = CountingEngine::service(false, &limits);
        let query = KeyQuery { rule: "api".into(), key: vec!["k".into()], ..KeyQuery::default() };
        let check = query.check(&service, 3).unwrap();
        for _ in 0..5 {
            service.run(Operation::Record, std::slice::from_ref(&check), None).await.unwrap();
        }
        assert_eq!(engine.take_decisions(), 5);
        let (limits, _) = read_key(&service, &query).await.unwrap();
        assert_eq!((engine.take_inspections(), engine.take_decisions()), (4, 1));
        for (limit, found) in &limits {
            let points = &found.recovery;
            assert!((1..=RecoveryPoint::MAX).contains(&points.len()), "{}", limit.limit());
            assert_eq!(points.last().unwrap().fits, found.limit, "{}", limit.limit());
        }
    }
}
