//! Encodes decisions and numbers.

use tidegate::{Micros, Wait};

use crate::check::CheckDecision;
use crate::transport::resp::reply::ReplyEncoder;

/// The eight elements of a decision. `name` is the rule if no limit applies.
pub(crate) fn write_decision(checked: &CheckDecision, name: &str, reply: &mut ReplyEncoder) {
    let decision = &checked.decision;
    let (rule, limit, remaining, reset) = match checked.most_restrictive() {
        Some((limit, verdict)) => (
            limit.rule(),
            integer(verdict.limit),
            integer(verdict.remaining),
            millis(verdict.reset_after),
        ),
        None => (name, -1, -1, 0),
    };
    // Without a limit there is no wait: 0.
    let retry_after = wait_millis(decision.retry_after());
    reply
        .integer(decision.allowed().into())
        .integer(limit)
        .integer(remaining)
        .integer(retry_after)
        .integer(reset)
        .integer(millis(decision.delay()))
        .bulk(rule.as_bytes())
        .bulk(decision.source.name().as_bytes());
}

/// Milliseconds, rounded up; -1 for never.
fn wait_millis(wait: Wait) -> i64 {
    wait.span().map_or(-1, millis)
}

/// Milliseconds, rounded up.
fn millis(span: Micros) -> i64 {
    integer(span.get().div_ceil(1_000))
}

/// RESP integers are signed; larger numbers become the largest.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
