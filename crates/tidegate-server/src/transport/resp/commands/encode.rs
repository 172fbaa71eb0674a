//! Encodes decisions and numbers.

use tidegate::{Micros, Wait};

use crate::check::CheckDecision;
use crate::transport::resp::reply::ReplyEncoder;

/// How a decision is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyShape {
    /// Eight elements.
    Array,
    /// The same by name; pairs in RESP2.
    Map,
}

/// The names of the eight elements.
const NAMES: [&str; 8] = [
    "allowed",
    "limit",
    "remaining",
    "retry_after_ms",
    "reset_after_ms",
    "delay_ms",
    "rule",
    "source",
];

/// The reply that is one decision. `name` is the rule if no limit applies.
pub(crate) fn write_one(
    checked: &CheckDecision,
    name: &str,
    shape: ReplyShape,
    reply: &mut ReplyEncoder,
) {
    match shape {
        ReplyShape::Array => {
            reply.array(8);
            write_decision(checked, name, reply);
        }
        ReplyShape::Map => {
            let (numbers, [rule, source]) = elements(checked, name);
            reply.map(8);
            for (name, number) in NAMES.iter().zip(numbers) {
                reply.bulk(name.as_bytes()).integer(number);
            }
            for (name, text) in NAMES[6..].iter().zip([rule, source]) {
                reply.bulk(name.as_bytes()).bulk(text.as_bytes());
            }
        }
    }
}

/// The eight elements of a decision. `name` is the rule if no limit applies.
pub(crate) fn write_decision(checked: &CheckDecision, name: &str, reply: &mut ReplyEncoder) {
    let (numbers, texts) = elements(checked, name);
    for number in numbers {
        reply.integer(number);
    }
    for text in texts {
        reply.bulk(text.as_bytes());
    }
}

fn elements<'a>(checked: &'a CheckDecision, name: &'a str) -> ([i64; 6], [&'a str; 2]) {
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
    let allowed = decision.allowed().into();
    let numbers = [allowed, limit, remaining, retry_after, reset, millis(decision.delay())];
    (numbers, [rule, decision.source.name()])
}

/// The eight elements of a decision, then an array of eight for each limit.
pub(crate) fn write_decisions(decision: &CheckDecision, name: &str, reply: &mut ReplyEncoder) {
    write_decision(decision, name, reply);
    reply.array(decision.verdicts().count());
    for each in decision.each() {
        reply.array(8);
        write_decision(&each, name, reply);
    }
}

/// Whether a reservation was settled, late, and left a limit overdrawn; then for each limit its
/// rule, what was reserved, charged and not charged, and what remains.
pub(crate) fn write_settlement(checked: &CheckDecision, reply: &mut ReplyEncoder) {
    let decision = &checked.decision;
    reply.array(4).integer(1).integer(decision.expired().into());
    reply.integer((!decision.allowed()).into());
    reply.array(decision.settled().len());
    for ((limit, verdict), cost) in checked.verdicts().zip(decision.settled()) {
        reply.array(5).bulk(limit.rule().as_bytes());
        for permits in [cost.reserved, cost.charged, cost.uncharged] {
            reply.integer(integer(permits.get()));
        }
        reply.integer(integer(verdict.remaining));
    }
}

/// Whether a reservation was extended, and otherwise when to retry; then for each limit its rule,
/// what is reserved now, and what remains.
pub(crate) fn write_extension(checked: &CheckDecision, reply: &mut ReplyEncoder) {
    let decision = &checked.decision;
    reply.array(3).integer(decision.allowed().into());
    reply.integer(wait_millis(decision.retry_after()));
    reply.array(decision.reserved().len());
    for ((limit, verdict), reserved) in checked.verdicts().zip(decision.reserved()) {
        reply.array(3).bulk(limit.rule().as_bytes());
        reply.integer(integer(reserved.get())).integer(integer(verdict.remaining));
    }
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
