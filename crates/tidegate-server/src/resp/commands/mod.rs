//! What a client may ask.
//!
//! # Layout
//!
//! - `throttle`: redis-cell's command. `rules`: questions by rule. `reservations`: what was set
//!   aside. `connecting`: what clients send when they connect.
//! - `table`: every command, and who may send it. `words`: the arguments, one after the other.

mod connecting;
mod reservations;
mod rules;
mod table;
mod throttle;
mod words;

use tidegate::{EngineError, Micros, Refusal, Wait};

use self::table::{Entry, Which};
use self::words::Words;
use super::connection::Next;
use super::frame::Command;
use super::reply::Encoder;
use super::session::Session;
use crate::metrics::Door;
use crate::service::{Answer, Failure, Service};
use crate::tokens::Access;
use crate::trace::Span;

/// The text of an error: never a byte of the caller's.
type Error = &'static str;

const UNKNOWN: Error = "ERR unknown command; this is tidegate, try COMMAND LIST for what there is";
const ARITY: Error = "ERR wrong number of arguments; COMMAND INFO and its name tells how many";
const SYNTAX: Error = "ERR syntax error; see the documentation of this command";
const NOT_AN_INTEGER: Error = "ERR value is not a whole number from 0 to 2^53";
const NO_AUTH: Error = "NOAUTH authentication required; send AUTH with the token";
const NO_ADMIN: Error = "NOAUTH this needs the admin token; send AUTH with it";
const ADMIN_OFF: Error =
    "NOAUTH this needs an admin token, and the server has none; set TIDEGATE_ADMIN_TOKEN";

/// Answers one command.
pub(super) async fn run(
    command: &Command<'_>,
    session: &mut Session,
    service: &Service,
    reply: &mut Encoder,
) -> Next {
    let answered = match span(command, service) {
        None => answer(command, session, service, reply).await,
        Some(mut span) => {
            let answered = span.around(answer(command, session, service, reply)).await;
            if answered.is_err_and(|error| error.starts_with("NOANSWER")) {
                span.fail();
            }
            answered
        }
    };
    match answered {
        Ok(next) => next,
        Err(error) => {
            reply.error(error);
            if session.is_guessing() { Next::Close } else { Next::Continue }
        }
    }
}

/// A span for a command that asks about limits, if it has one.
fn span(command: &Command<'_>, service: &Service) -> Option<Span> {
    let tracer = service.tracer()?;
    let entry = Entry::find(command.name).filter(|entry| entry.which.asks())?;
    Some(tracer.begin(Door::Resp, None)?.named(entry.name.to_ascii_uppercase()))
}

async fn answer(
    command: &Command<'_>,
    session: &mut Session,
    service: &Service,
    reply: &mut Encoder,
) -> Result<Next, Error> {
    let which = permitted(command, session)?;
    let words = &mut Words::new(&command.arguments);
    match which {
        Which::Throttle => throttle::throttle(words, service, reply).await,
        Which::Check => rules::check(words, service, reply).await,
        Which::Peek => rules::peek(words, service, reply).await,
        Which::Limit => rules::limit(words, service, reply).await,
        Which::CheckMany => rules::check_many(words, service, reply).await,
        Which::Record => rules::record(words, service, reply).await,
        Which::Refund => rules::refund(words, service, reply).await,
        Which::Reset => rules::reset(words, service, reply).await,
        Which::Reserve => reservations::reserve(words, service, reply).await,
        Which::Commit => reservations::commit(words, service, reply).await,
        Which::Cancel => reservations::cancel(words, service, reply).await,
        Which::Renew => reservations::renew(words, service, reply).await,
        Which::Del => {
            // As redis-cell has it, anybody may; with an admin, it is the admin's to allow.
            if session.tokens().has_admin() {
                permit(session, Access::Admin)?;
            }
            throttle::del(words, service, reply).await
        }
        Which::TideInfo => connecting::tg_info(service, reply),
        Which::Ping => connecting::ping(words, reply),
        Which::Echo => connecting::echo(words, reply),
        Which::Info => connecting::info(service, reply),
        Which::Select => connecting::select(words, reply),
        Which::Client => connecting::client(words, session, reply),
        Which::Command => connecting::command(words, reply),
        Which::Config => connecting::config(words, reply),
        Which::Hello => connecting::hello(words, session, reply),
        Which::Auth => connecting::auth(words, session, reply),
        Which::Quit => {
            reply.simple("OK");
            return Ok(Next::Close);
        }
    }?;
    Ok(Next::Continue)
}

/// Which command it is, if this client may send it like this.
fn permitted(command: &Command<'_>, session: &Session) -> Result<Which, Error> {
    let entry = Entry::find(command.name);
    // Who has not said who they are does not learn which commands there are.
    permit(session, entry.map_or(Access::Check, |entry| entry.access))?;
    let entry = entry.ok_or(UNKNOWN)?;
    if !entry.takes(1 + command.arguments.len()) {
        return Err(ARITY);
    }
    Ok(entry.which)
}

fn permit(session: &Session, needed: Access) -> Result<(), Error> {
    match session.access() {
        access if access >= needed => Ok(()),
        Access::Nothing => Err(NO_AUTH),
        _ if session.tokens().has_admin() => Err(NO_ADMIN),
        _ => Err(ADMIN_OFF),
    }
}

/// The eight elements of a decision.
fn write_decision(answer: &Answer, asked: &str, reply: &mut Encoder) {
    let decision = &answer.decision;
    let (rule, limit, remaining, reset) = match answer.speaker() {
        Some((limit, verdict)) => (
            limit.rule(),
            integer(verdict.limit),
            integer(verdict.remaining),
            millis(verdict.reset_after),
        ),
        None => (asked, -1, -1, 0),
    };
    let retry_after = if answer.limits.is_empty() { 0 } else { wait(decision.retry_after()) };
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
fn wait(wait: Wait) -> i64 {
    wait.span().map_or(-1, millis)
}

fn millis(span: Micros) -> i64 {
    integer(span.get().div_ceil(1_000))
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn text(failure: Failure) -> Error {
    match failure {
        Failure::NoAnswer(EngineError::Unavailable(_)) => {
            "NOANSWER the store cannot be reached; nothing was charged, so retry later"
        }
        Failure::NoAnswer(_) => {
            "NOANSWER the store gave no answer; it may have been charged, so retry with an ID"
        }
        Failure::Limit(_) => "ERR not a limit; write one like 100/s or sliding-log 5/1m",
        Failure::Throttle => {
            "ERR no such limit; count and period must be above 0, and small enough to count exactly"
        }
        Failure::NoKey => "ERR there is no key; say whom it concerns",
        Failure::NoAdhoc => "ERR limits of your own are turned off; use TG.CHECK with a rule",
        Failure::Refused(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> Error {
    match refusal {
        Refusal::UnknownRule(_) => "NORULE no such rule",
        Refusal::ChargeCount(_) => "ERR too many limits in one call; ask in several",
        Refusal::KeyTooLong => "ERR the key is too long; at most 1024 bytes, or send a hash",
        Refusal::Cost(_) => "ERR the cost is too large; use at most 4294967296",
        Refusal::IdLength(_) => "ERR an ID has 1 to 64 bytes",
        Refusal::IdReused => "ERR the ID was used for another request; use a new one",
        Refusal::UnknownHold => "ERR no such reservation, or settled over an hour ago",
        Refusal::AlreadySettled => "ERR the reservation was settled in another way",
        Refusal::EmptyHold => "ERR a reservation of nothing; use a cost of 1 or more",
        Refusal::HoldLength => "ERR a reservation lasts from 1 ms to 1 h, or its lease",
        Refusal::ConcurrencyNeedsHold => {
            "ERR concurrency counts holders; use TG.RESERVE and TG.CANCEL"
        }
        Refusal::UnknownZone(_) => "ERR unknown time zone; use an IANA name like Europe/Berlin",
        _ => "ERR this cannot be asked",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn no_answer_tells_whether_it_may_have_been_charged() {
        let cause = || Arc::new(std::fmt::Error);
        for (error, told) in [
            (EngineError::Unavailable(cause()), "nothing was charged"),
            (EngineError::Ambiguous(cause()), "may have been charged"),
        ] {
            let text = text(Failure::NoAnswer(error));
            assert!(text.starts_with("NOANSWER ") && text.contains(told), "{text}");
        }
    }
}
