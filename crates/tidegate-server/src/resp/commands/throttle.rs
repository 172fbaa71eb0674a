//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell has it.

use tidegate::{Key, Micros};

use super::words::Words;
use super::{Encoder, Error, integer, text};
use crate::service::{Ask, Service, Target, Throttle, Verb};

pub(super) async fn throttle(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let key = Key::from(words.word()?);
    let throttle =
        Throttle { max_burst: words.integer()?, count: words.integer()?, period: words.integer()? };
    let quantity = if words.len() > 0 { words.integer()? } else { 1 };
    words.end()?;
    let verb = if quantity == 0 { Verb::Peek } else { Verb::Check };
    // One more than the limit can never pass, and neither can anything above it.
    let cost = quantity.min(throttle.max_burst + 2);
    let ask = Ask { target: Target::Throttle(throttle), key, cost };
    let answer = service.ask(verb, &[ask], None).await.map_err(text)?;
    let verdict = answer.decision.verdict();
    // redis-cell takes nothing of a quantity of 0, and always lets it pass.
    let allowed = quantity == 0 || verdict.allowed;
    let retry_after = verdict.retry_after.span().filter(|_| !allowed).map_or(-1, seconds);
    reply
        .array(5)
        .integer((!allowed).into())
        .integer(integer(verdict.limit))
        .integer(integer(verdict.remaining))
        .integer(retry_after)
        .integer(seconds(verdict.reset_after));
    Ok(())
}

/// `DEL key ..`: forgets what `CL.THROTTLE` has counted, and tells for how many keys it had.
pub(super) async fn del(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    // The state goes by the key alone, so any limit finds it.
    let target = Target::Throttle(Throttle { max_burst: 0, count: 1, period: 1 });
    let mut forgotten = 0;
    let mut next = Some(words.word()?);
    while let Some(key) = next {
        let ask = Ask { target, key: Key::from(key), cost: 0 };
        let found = service.inspect(ask).await.map_err(text)?;
        if found.iter().any(|(_, inspection)| inspection.standing.used > 0) {
            service.ask(Verb::Reset, &[ask], None).await.map_err(text)?;
            forgotten += 1;
        }
        next = words.optional();
    }
    reply.integer(forgotten);
    Ok(())
}

/// Seconds, rounded up.
fn seconds(span: Micros) -> i64 {
    integer(span.get().div_ceil(1_000_000))
}
