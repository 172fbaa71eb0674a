//! What is the case with a key or a request, in sentences.

mod request;

use tidegate::policy::{MISSING, OnMissingKey};
use tidegate::{Micros, Plan, RuleLimit, Source, Verdict, Wait};

use crate::hottest::Hottest;
use crate::plot::words;
use crate::service::{Answer, Ask, Failure, Service};
pub use request::{Imagined, NotARequest};

/// Sentences about one key or request.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Would it pass now?
    pub allowed: bool,
    /// Which rules apply to a request; one sentence for each list that names it and each limit, and one
    /// about all of them.
    pub sentences: Vec<String>,
}

/// Explains what `ask` would be answered now. Nothing is charged.
pub async fn explain(service: &Service, ask: Ask<'_>) -> Result<Explained, Failure> {
    service.consider(ask, |plan, answer| explained(lists(plan), answer)).await
}

/// Explains what would become of a request now: which rules apply to it, and what they say. Nothing is charged.
pub async fn explain_request(service: &Service, request: &Imagined) -> Result<Explained, Failure> {
    let in_force = service.active().policy.rules().len();
    let tell = |plan: &Plan<'_>, answer: &Answer| {
        let mut sentences = vec![applying(plan, in_force)];
        sentences.extend(lists(plan));
        explained(sentences, answer)
    };
    service.consider_request(request.described(), tell).await
}

fn explained(mut sentences: Vec<String>, answer: &Answer) -> Explained {
    // A peek at nothing tells what a cost of 1 would wait.
    let waits = answer.verdicts().any(|(_, verdict)| verdict.retry_after != Wait::NONE);
    let allowed = answer.decision.allowed() && !waits;
    if answer.decision.source == Source::Policy {
        sentences.push(by_policy(allowed).into());
    } else {
        sentences.extend(answer.verdicts().map(|(limit, verdict)| sentence(limit, verdict)));
        sentences.push(conclusion(answer, allowed));
    }
    Explained { allowed, sentences }
}

/// Which rules apply, and to whom.
fn applying(plan: &Plan<'_>, in_force: usize) -> String {
    let asked = plan.steps().iter().map(|step| match step.key().parts().next() {
        Some(part) if part == MISSING.as_bytes() => {
            format!("{} for all that have no key", step.rule().name())
        }
        Some(_) => format!("{} for {}", step.rule().name(), Hottest::shown(step.key())),
        None => format!("{} for everybody", step.rule().name()),
    });
    let listed = [plan.exempted_by(), plan.would_be_denied_by()].concat();
    let listed = listed.into_iter().chain(plan.denied_by()).map(|rule| rule.name().to_owned());
    let apply: Vec<String> = asked.chain(listed).collect();
    match &*apply {
        [] => format!("None of {in_force} rules applies."),
        [one] => format!("1 of {in_force} rules applies: {one}."),
        several => {
            format!("{} of {in_force} rules apply: {}.", several.len(), several.join(", "))
        }
    }
}

/// Whose lists name it.
fn lists(plan: &Plan<'_>) -> Vec<String> {
    let why = |missing: OnMissingKey| match missing {
        OnMissingKey::Deny => "its deny list names it, or it has no key",
        _ => "its deny list names it",
    };
    let exempt = plan
        .exempted_by()
        .iter()
        .map(|rule| format!("{} lets it pass: its allow list names it.", rule.name()));
    let looking_on = plan.would_be_denied_by().iter().map(|rule| {
        format!("{} only looks on and would deny it: {}.", rule.name(), why(rule.on_missing_key()))
    });
    let denied = plan
        .denied_by()
        .map(|rule| format!("{} denies it: {}.", rule.name(), why(rule.on_missing_key())));
    exempt.chain(looking_on).chain(denied).collect()
}

fn sentence(limit: &RuleLimit, verdict: &Verdict) -> String {
    let (name, notation) = (limit.policy(), limit.limit());
    let left = format!("{} of {} left", verdict.remaining, verdict.limit);
    let reset = match verdict.reset_after {
        Micros::ZERO => "and nothing is used".into(),
        span => format!("and is as good as unused in {}", words::span(span)),
    };
    let next = match verdict.retry_after {
        Wait::NONE => "it allows the next request".into(),
        Wait::Never => "it never allows a request".into(),
        Wait::For(span) => format!("it denies the next request for {}", words::span(span)),
    };
    format!("{name} ({notation}) has {left} {reset}; {next}.")
}

/// Where no limit was asked: somebody is on a list, or there is none that decides.
fn by_policy(allowed: bool) -> &'static str {
    match allowed {
        true => "No limit applies: every request passes.",
        false => "A request never passes: the policy denies it.",
    }
}

fn conclusion(answer: &Answer, allowed: bool) -> String {
    // The longest wait speaks, and the first of equals.
    let longest = answer
        .verdicts()
        .reduce(|best, next| if next.1.retry_after > best.1.retry_after { next } else { best });
    let denies = longest.map_or("the policy", |(limit, _)| limit.policy());
    match answer.decision.retry_after() {
        _ if allowed => "A request would pass now.".into(),
        Wait::Never => format!("A request never passes, because of {denies}."),
        Wait::For(span) => {
            format!("A request is denied by {denies} and would pass in {}.", words::span(span))
        }
    }
}
