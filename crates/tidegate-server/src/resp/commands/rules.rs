//! Questions by the name of a rule, or with a limit of one's own.

use smallvec::SmallVec;
use tidegate::Key;

use super::words::Words;
use super::{Encoder, Error, SYNTAX, text, write_decision};
use crate::service::{Ask, Service, Target, Verb};

/// `TG.CHECK rule key [COST n] [ID id]`
pub(super) async fn check(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let rule = words.text()?;
    one(Target::Rule(rule), rule, words, service, reply).await
}

/// `TG.LIMIT "5/min" key [COST n] [ID id]`
pub(super) async fn limit(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let limit = words.text()?;
    one(Target::Limit(limit), "adhoc", words, service, reply).await
}

async fn one(
    target: Target<'_>,
    name: &str,
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let key = Key::from(words.word()?);
    let (mut cost, mut id) = (None, None);
    while words.len() > 0 {
        if cost.is_none() && words.take("COST") {
            cost = Some(words.integer()?);
        } else if id.is_none() && words.take("ID") {
            id = Some(words.text()?);
        } else {
            return Err(SYNTAX);
        }
    }
    let cost = cost.unwrap_or(1);
    let verb = if cost == 0 { Verb::Peek } else { Verb::Check };
    let answer = service.ask(verb, &[Ask { target, key, cost }], id).await.map_err(text)?;
    reply.array(8);
    write_decision(&answer, name, reply);
    Ok(())
}

/// `TG.PEEK rule key`
pub(super) async fn peek(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let (rule, key) = (words.text()?, Key::from(words.word()?));
    words.end()?;
    let ask = Ask { target: Target::Rule(rule), key, cost: 0 };
    let answer = service.ask(Verb::Peek, &[ask], None).await.map_err(text)?;
    reply.array(8);
    write_decision(&answer, rule, reply);
    Ok(())
}

/// `TG.MCHECK n rule key cost ..`: all or none.
pub(super) async fn check_many(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let count = usize::try_from(words.integer()?).map_err(|_| SYNTAX)?;
    if count == 0 || count > Service::MAX_CHECKS {
        return Err("ERR the number of checks must be from 1 to 16");
    }
    let mut asks: SmallVec<[Ask<'_>; 4]> = SmallVec::new();
    for _ in 0..count {
        let (rule, key) = (words.text()?, Key::from(words.word()?));
        asks.push(Ask { target: Target::Rule(rule), key, cost: words.integer()? });
    }
    words.end()?;
    let peeks = asks.iter().all(|ask| ask.cost == 0);
    let verb = if peeks { Verb::Peek } else { Verb::Check };
    let answer = service.ask(verb, &asks, None).await.map_err(text)?;
    let first = match asks[0].target {
        Target::Rule(name) => name,
        Target::Limit(_) | Target::Throttle(_) | Target::Own(_) => "",
    };
    reply.array(9);
    write_decision(&answer, first, reply);
    reply.array(answer.limits.len());
    for each in answer.each() {
        reply.array(8);
        write_decision(&each, first, reply);
    }
    Ok(())
}

/// `TG.RECORD rule key cost`
pub(super) async fn record(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    tell(Verb::Record, words, service, reply).await
}

/// `TG.REFUND rule key cost`
pub(super) async fn refund(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    tell(Verb::Refund, words, service, reply).await
}

/// `TG.RESET rule key`
pub(super) async fn reset(
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    tell(Verb::Reset, words, service, reply).await
}

/// What was used, given back or forgotten; only the last has no cost.
async fn tell(
    verb: Verb,
    words: &mut Words<'_>,
    service: &Service,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let (rule, key) = (words.text()?, Key::from(words.word()?));
    let cost = if verb == Verb::Reset { 0 } else { words.integer()? };
    words.end()?;
    let ask = Ask { target: Target::Rule(rule), key, cost };
    service.ask(verb, &[ask], None).await.map_err(text)?;
    reply.integer(1);
    Ok(())
}
