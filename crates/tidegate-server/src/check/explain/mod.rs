//! A decision explained in sentences. Imports: decision, service.

pub(crate) mod described_request;

use schemars::JsonSchema;
use serde::Serialize;
use tidegate::policy::{MISSING, Step};
use tidegate::{Micros, Plan, Policy, PolicyRule, RuleCheck, RuleLimit, Source, Verdict, Wait};

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
    /// The limits of the sentences, in numbers.
    pub limits: Vec<ExplainedLimit>,
}

/// State of one limit, for a cost of 1.
#[derive(Clone, Serialize, JsonSchema, Debug)]
pub struct ExplainedLimit {
    /// Name of the limit, as in headers and metrics.
    pub policy: String,
    /// Name of its rule.
    pub rule: String,
    /// The limit in its notation.
    pub limit: String,
    /// The most that fits at once.
    pub capacity: u64,
    /// What fits now.
    pub remaining: u64,
    /// Milliseconds until the limit is fully recovered.
    pub reset_after_ms: u64,
    /// Milliseconds until a cost of 1 is allowed, 0 for now; absent if that is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl ExplainedLimit {
    fn of(limit: &RuleLimit, verdict: &Verdict) -> Self {
        let millis = |span: Micros| span.get().div_ceil(1_000);
        Self {
            policy: limit.policy().into(),
            rule: limit.rule().into(),
            limit: limit.limit().to_string(),
            capacity: verdict.limit,
            remaining: verdict.remaining,
            reset_after_ms: millis(verdict.reset_after),
            retry_after_ms: verdict.retry_after.span().map(millis),
        }
    }
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
    let active = service.active();
    let read = |plan: &Plan<'_>, decision: &CheckDecision| {
        let mut sentences = vec![applying(plan, &active.policy)];
        sentences.extend(lists(plan));
        explanation(sentences, decision)
    };
    service.peek_request(request.described(), read).await
}

fn explanation(mut sentences: Vec<String>, decision: &CheckDecision) -> Explanation {
    // A peek has cost 0: its verdicts allow it, and carry the wait for a cost of 1.
    let waits = decision.verdicts().any(|(_, verdict)| verdict.retry_after != Wait::NONE);
    let allowed = decision.decision.allowed() && !waits;
    let mut limits = Vec::new();
    if decision.decision.source == Source::Policy {
        sentences.push(by_policy(allowed).into());
    } else {
        let verdicts = decision.verdicts();
        limits.extend(verdicts.map(|(limit, verdict)| ExplainedLimit::of(limit, verdict)));
        sentences.extend(decision.verdicts().map(|(limit, verdict)| sentence(limit, verdict)));
        sentences.push(conclusion(decision, allowed));
    }
    Explanation { allowed, sentences, limits }
}

/// The plan of a key, if the rule has plans.
fn named_plan(step: &Step<'_>) -> Option<String> {
    let (key, rule) = (display_key(step.key()), step.rule().name());
    let key = if key.is_empty() { "The key".into() } else { key };
    Some(format!("{key} is on plan {} of {rule}.", step.plan()?))
}

/// Which rules of `policy` apply, and for which key.
fn applying(plan: &Plan<'_>, policy: &Policy) -> String {
    let rules = policy.rules().len();
    let limited = plan.steps().iter().map(|step| {
        let (name, key) = (step.rule().name(), step.key());
        let missing = key.parts().position(|part| part == MISSING.as_bytes());
        let missing = missing.and_then(|nth| policy.rule(name)?.key().get(nth));
        match missing {
            Some(part) => format!("{name} for requests without {}", part.describe()),
            None if key.parts().next().is_none() => format!("{name} for all requests together"),
            None => format!("{name} for {}", display_key(key)),
        }
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
    let why = |rule: &PolicyRule| match plan.missing_part(rule) {
        Some(part) => format!("the request has no {}", part.describe()),
        None => "matches its deny list".into(),
    };
    let exempt = plan
        .exempted_by()
        .iter()
        .map(|rule| format!("{} allows it: matches its allow list.", rule.name()));
    let shadow = plan
        .shadow_denied_by()
        .iter()
        .map(|rule| format!("{} would deny it (shadow mode): {}.", rule.name(), why(rule)));
    let denied = plan.denied_by().map(|rule| format!("{} denies it: {}.", rule.name(), why(rule)));
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
