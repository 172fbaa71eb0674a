//! What was set aside: made, committed, cancelled, renewed.

use tidegate::{HoldId, Key};

use super::words::Words;
use super::{Encoder, Error, text, write_decision};
use crate::service::{Ask, Service, Settle, Target, Verb};

/// `TG.RESERVE rule key cost [TTL ms]`
pub(super) async fn reserve(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let (rule, key) = (words.text()?, Key::from(words.word()?));
    let ask = Ask { target: Target::Rule(rule), key, cost: words.integer()? };
    let ttl = if words.take("TTL") { Some(words.millis()?) } else { None };
    words.end()?;
    let answer = service.ask(Verb::Reserve(ttl), &[ask], None).await.map_err(text)?;
    reply.array(9);
    match answer.decision.hold() {
        Some(id) => reply.bulk(id.to_string().as_bytes()),
        None => reply.null(),
    };
    write_decision(&answer, rule, reply);
    Ok(())
}

/// `TG.COMMIT id [cost]`; without a cost what was reserved is charged.
pub(super) async fn commit(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let id = id(words)?;
    let cost = if words.len() > 0 { Some(words.integer()?) } else { None };
    settle(id, Settle::Commit(cost), words, service, reply).await
}

/// `TG.CANCEL id`
pub(super) async fn cancel(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    settle(id(words)?, Settle::Cancel, words, service, reply).await
}

/// `TG.RENEW id ms`
pub(super) async fn renew(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let (id, ttl) = (id(words)?, words.millis()?);
    settle(id, Settle::Renew(ttl), words, service, reply).await
}

async fn settle(
    id: HoldId,
    how: Settle,
    words: &Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    words.end()?;
    let answer = service.settle(id, how).await.map_err(text)?;
    reply.integer((!answer.decision.expired()).into());
    Ok(())
}

fn id(words: &mut Words<'_>) -> Result<HoldId, Error> {
    let refused = |refusal| super::refused(&refusal);
    words.text()?.parse().map_err(refused)
}
