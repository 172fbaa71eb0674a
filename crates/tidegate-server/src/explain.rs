//! What is the case with a key, in sentences.

use std::time::Duration;

use tidegate::{Micros, RuleLimit, Source, Verdict, Wait};

use crate::service::{Answer, Ask, Failure, Service, Verb};

/// Sentences about one key.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Would it pass now?
    pub allowed: bool,
    /// One sentence for each limit, and one about all of them.
    pub sentences: Vec<String>,
}

/// Explains what `ask` would be answered now. Nothing is charged.
pub async fn explain(service: &Service, ask: Ask<'_>) -> Result<Explained, Failure> {
    let answer = service.ask(Verb::Peek, &[ask], None).await?;
    if answer.decision.source == Source::Policy {
        return Ok(by_policy(answer.decision.allowed()));
    }
    // A peek tells what a cost of 1 would wait.
    let waits = answer.verdicts().any(|(_, verdict)| verdict.retry_after != Wait::NONE);
    let allowed = answer.decision.allowed() && !waits;
    let mut sentences: Vec<String> =
        answer.verdicts().map(|(limit, verdict)| sentence(limit, verdict)).collect();
    sentences.push(conclusion(&answer, allowed));
    Ok(Explained { allowed, sentences })
}

fn sentence(limit: &RuleLimit, verdict: &Verdict) -> String {
    let (name, notation) = (limit.policy(), limit.limit());
    let left = format!("{} of {} left", verdict.remaining, verdict.limit);
    let reset = match verdict.reset_after {
        Micros::ZERO => "and nothing is used".into(),
        span => format!("and is as good as unused in {:?}", Duration::from(span)),
    };
    let next = match verdict.retry_after {
        Wait::NONE => "it allows the next request".into(),
        Wait::Never => "it never allows a request".into(),
        Wait::For(span) => format!("it denies the next request for {:?}", Duration::from(span)),
    };
    format!("{name} ({notation}) has {left} {reset}; {next}.")
}

/// Where no limit was asked: somebody is on a list, or there is none that decides.
fn by_policy(allowed: bool) -> Explained {
    let sentence = match allowed {
        true => "No limit applies: every request passes.",
        false => "The policy denies every request of this key.",
    };
    Explained { allowed, sentences: vec![sentence.into()] }
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
            format!("A request is denied by {denies} and would pass in {:?}.", Duration::from(span))
        }
    }
}
