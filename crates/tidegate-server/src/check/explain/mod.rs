//! A decision explained in sentences. Imports: decision, service.

pub(crate) mod described_request;

use schemars::JsonSchema;
use serde::Serialize;
use tidegate::policy::{MISSING, OnMissingKey, Step};
use tidegate::{Micros, Plan, RuleCheck, RuleLimit, Source, Verdict, Wait};

pub use self::described_request::DescribedRequest;
use super::decision::{CheckDecision, CheckError};
use super::service::CheckService;
use crate::text::escape::display_key;

/// Explanation of the current state.
#[derive(Clone, Serialize, JsonSchema, Debug)]
pub struct Explanation {
    /// Whether a cost of 1 would be allowed now.
    pub allowed: bool,
    /// Matching rules; one sentence per allow or deny list and limit; a conclusion.
    pub sentences: Vec<String>,
}

/// Explains the decision that a check would get now. Nothing is charged.
pub async fn explain(
    service: &CheckService,
    check: RuleCheck<'_>,
) -> Result<Explanation, CheckError> {
    let read = |plan: &Plan<'_>, decision: &CheckDecision| {
        let mut sentences: Vec<String> = plan.steps().iter().filter_map(named_plan).collect();
        sentences.extend(lists(plan));
        explanation(sentences, decision)
    };
    service.peek(check, read).await
}

/// Explains which rules apply to a request and what they would decide now. Nothing is charged.
pub async fn explain_request(
    service: &CheckService,
    request: &DescribedRequest,
) -> Result<Explanation, CheckError> {
    let rules = service.active().policy.rules().len();
    let read = |plan: &Plan<'_>, decision: &CheckDecision| {
        let mut sentences = vec![applying(plan, rules)];
        sentences.extend(lists(plan));
        explanation(sentences, decision)
    };
    service.peek_request(request.described(), read).await
}

fn explanation(mut sentences: Vec<String>, decision: &CheckDecision) -> Explanation {
    // A peek has cost 0: its verdicts allow it, and carry the wait for a cost of 1.
    let waits = decision.verdicts().any(|(_, verdict)| verdict.retry_after != Wait::NONE);
    let allowed = decision.decision.allowed() && !waits;
    if decision.decision.source == Source::Policy {
        sentences.push(by_policy(allowed).into());
    } else {
        sentences.extend(decision.verdicts().map(|(limit, verdict)| sentence(limit, verdict)));
        sentences.push(conclusion(decision, allowed));
    }
    Explanation { allowed, sentences }
}

/// The plan of a key, if the rule has plans.
fn named_plan(step: &Step<'_>) -> Option<String> {
    let (key, rule) = (display_key(step.key()), step.rule().name());
    let key = if key.is_empty() { "The key".into() } else { key };
    Some(format!("{key} is on plan {} of {rule}.", step.plan()?))
}

/// Which of `rules` active rules apply, and for which key.
fn applying(plan: &Plan<'_>, rules: usize) -> String {
    let limited = plan.steps().iter().map(|step| match step.key().parts().next() {
        Some(part) if part == MISSING.as_bytes() => {
            format!("{} for requests without a key", step.rule().name())
        }
        Some(_) => format!("{} for {}", step.rule().name(), display_key(step.key())),
        None => format!("{} for all requests together", step.rule().name()),
    });
    let limited = limited.zip(plan.steps()).map(|(text, step)| match step.plan() {
        Some(plan) => format!("{text} on plan {plan}"),
        None => text,
    });
    let listed = [plan.exempted_by(), plan.shadow_denied_by()].concat();
    let listed = listed.into_iter().chain(plan.denied_by()).map(|rule| rule.name().to_owned());
    let apply: Vec<String> = limited.chain(listed).collect();
    match &*apply {
        [] => format!("None of {rules} rules applies."),
        [one] => format!("1 of {rules} rules applies: {one}."),
        several => {
            format!("{} of {rules} rules apply: {}.", several.len(), several.join(", "))
        }
    }
}

/// Which allow and deny lists match.
fn lists(plan: &Plan<'_>) -> Vec<String> {
    let why = |missing: OnMissingKey| match missing {
        OnMissingKey::Deny => "matches its deny list, or has no key",
        _ => "matches its deny list",
    };
    let exempt = plan
        .exempted_by()
        .iter()
        .map(|rule| format!("{} allows it: matches its allow list.", rule.name()));
    let shadow = plan.shadow_denied_by().iter().map(|rule| {
        format!("{} would deny it (shadow mode): {}.", rule.name(), why(rule.on_missing_key()))
    });
    let denied = plan
        .denied_by()
        .map(|rule| format!("{} denies it: {}.", rule.name(), why(rule.on_missing_key())));
    exempt.chain(shadow).chain(denied).collect()
}

fn sentence(limit: &RuleLimit, verdict: &Verdict) -> String {
    let (name, notation) = (limit.policy(), limit.limit());
    let remaining = format!("{} of {} remaining", verdict.remaining, verdict.limit);
    let reset = match verdict.reset_after {
        Micros::ZERO => "unused".into(),
        span => format!("resets after {span}"),
    };
    let next = match verdict.retry_after {
        Wait::NONE => "the next request is allowed".into(),
        Wait::Never => "no request is ever allowed".into(),
        wait => format!("the next request is denied, retry after {wait}"),
    };
    format!("{name} ({notation}): {remaining}, {reset}; {next}.")
}

/// The conclusion where no limit was evaluated: a list matches, or no limit is enforced.
fn by_policy(allowed: bool) -> &'static str {
    match allowed {
        true => "No limit applies: every request is allowed.",
        false => "The policy always denies this request.",
    }
}

fn conclusion(decision: &CheckDecision, allowed: bool) -> String {
    // The limit with the longest wait; the first of equals.
    let longest = decision
        .verdicts()
        .reduce(|best, next| if next.1.retry_after > best.1.retry_after { next } else { best });
    let denies = longest.map_or("the policy", |(limit, _)| limit.policy());
    match decision.decision.retry_after() {
        _ if allowed => "A request would be allowed now.".into(),
        Wait::Never => format!("A request is never allowed, because of {denies}."),
        wait => format!("A request would be denied by {denies}; retry after {wait}."),
    }
}
