//! Commands: dispatch and access check. Imports: frame, reply, session, transaction.

mod args;
mod check;
mod command;
mod connection;
mod del;
mod encode;
mod errors;
mod key_check;
pub(super) mod pipeline;
mod reservation;
mod table;
mod transaction;

use tidegate_config::RefundToken;

use self::args::CommandArgs;
use self::errors::{
    ADMIN_OFF, ARITY, ErrorText, NO_ADMIN, NO_AUTH, TRANSACTION_FULL, UNKNOWN, UNQUEUEABLE,
    has_no_decision,
};
use self::key_check::KeyCheck;
use self::table::{CommandId, CommandSpec, InTransaction};
use super::frame::Command;
use super::reply::ReplyEncoder;
use super::session::{AfterCommand, RespSession};
use super::transaction::TransactionFull;
use crate::check::CheckService;
use crate::observe::metrics::ListenerKind;
use crate::observe::otlp::RequestSpan;
use crate::transport::auth::AccessLevel;

/// Runs one command, in a span if it is sampled, and encodes its reply.
pub(crate) async fn run(
    command: &Command<'_>,
    session: &mut RespSession,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> AfterCommand {
    let result = match span(command, service) {
        None => dispatch(command, session, service, reply).await,
        Some(mut span) => {
            let result = span.around(dispatch(command, session, service, reply)).await;
            if result.is_err_and(has_no_decision) {
                span.fail();
            }
            result
        }
    };
    match result {
        Ok(next) => next,
        Err(error) => {
            reply.error(error);
            if session.is_guessing() { AfterCommand::Close } else { AfterCommand::Continue }
        }
    }
}

/// A span for a command that uses limits, if it is sampled.
fn span(command: &Command<'_>, service: &CheckService) -> Option<RequestSpan> {
    let tracer = service.tracer()?;
    let entry = CommandSpec::find(command.name).filter(|entry| entry.id.uses_limits())?;
    Some(tracer.begin(ListenerKind::Resp, None)?.named(entry.name.to_ascii_uppercase()))
}

async fn dispatch(
    command: &Command<'_>,
    session: &mut RespSession,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<AfterCommand, ErrorText> {
    let id = permitted(command, session).inspect_err(|_| session.abort_transaction())?;
    if queue(id, command, session).inspect_err(|_| session.abort_transaction())? {
        reply.simple("QUEUED");
        return Ok(AfterCommand::Continue);
    }
    let args = &mut CommandArgs::new(&command.arguments);
    match id {
        CommandId::Throttle | CommandId::Check | CommandId::Limit => {
            match KeyCheck::read(id, args, service)? {
                Some(check) => check.run(service, reply).await,
                None => Err(UNKNOWN),
            }
        }
        CommandId::Peek => check::peek(args, service, reply).await,
        CommandId::CheckMany => check::check_many(args, service, reply).await,
        CommandId::Record => check::record(args, service, reply).await,
        CommandId::Refund => {
            if service.active().refund_token == RefundToken::Admin {
                permit(session, AccessLevel::Admin)?;
            }
            check::refund(args, service, reply).await
        }
        CommandId::Reset => check::reset(args, session, service, reply).await,
        CommandId::Reserve => reservation::reserve(args, service, reply).await,
        CommandId::ReserveMany => reservation::reserve_many(args, service, reply).await,
        CommandId::Commit => reservation::commit(args, service, reply).await,
        CommandId::Cancel => reservation::cancel(args, service, reply).await,
        CommandId::Renew => reservation::renew(args, service, reply).await,
        CommandId::Extend => reservation::extend(args, service, reply).await,
        CommandId::Del => del::del(args, session, service, reply).await,
        CommandId::TideInfo => connection::tg_info(service, reply),
        CommandId::Ping => connection::ping(args, reply),
        CommandId::Echo => connection::echo(args, reply),
        CommandId::Info => connection::info(service, reply),
        CommandId::Select => connection::select(args, reply),
        CommandId::Client => connection::client(args, session, reply),
        CommandId::Command => command::command(args, reply),
        CommandId::Config => connection::config(args, reply),
        CommandId::Hello => connection::hello(args, session, reply),
        CommandId::Auth => connection::auth(args, session, reply),
        CommandId::ResetConnection => connection::reset(session, reply),
        CommandId::Multi => transaction::multi(session, reply),
        CommandId::Exec => return transaction::exec(session, reply),
        CommandId::Discard => transaction::discard(session, reply),
        CommandId::Watch => transaction::watch(session, reply),
        CommandId::Unwatch => transaction::unwatch(reply),
        CommandId::Quit => {
            reply.simple("OK");
            return Ok(AfterCommand::Close);
        }
    }?;
    Ok(AfterCommand::Continue)
}

/// The command, if the client may send it and the number of arguments is right.
fn permitted(command: &Command<'_>, session: &RespSession) -> Result<CommandId, ErrorText> {
    let entry = CommandSpec::find(command.name);
    // Access is checked first: unauthenticated clients do not learn which commands exist.
    permit(session, entry.map_or(AccessLevel::Check, |entry| needed(entry, session)))?;
    let entry = entry.ok_or(UNKNOWN)?;
    if !entry.takes(1 + command.arguments.len()) {
        return Err(ARITY);
    }
    Ok(entry.id)
}

/// The access that a command needs.
fn needed(entry: &CommandSpec, session: &RespSession) -> AccessLevel {
    match entry.id {
        // As in redis-cell, no admin access is needed, unless an admin token is configured.
        CommandId::Del if session.tokens().has_admin() => AccessLevel::Admin,
        _ => entry.access,
    }
}

/// Queues the command if it belongs to a transaction.
fn queue(
    id: CommandId,
    command: &Command<'_>,
    session: &mut RespSession,
) -> Result<bool, ErrorText> {
    let Some(transaction) = &mut session.transaction else { return Ok(false) };
    match id.in_transaction() {
        InTransaction::Run => Ok(false),
        InTransaction::Refuse => Err(UNQUEUEABLE),
        InTransaction::Queue => match transaction.push(command) {
            Ok(()) => Ok(true),
            Err(TransactionFull) => Err(TRANSACTION_FULL),
        },
    }
}

fn permit(session: &RespSession, needed: AccessLevel) -> Result<(), ErrorText> {
    match session.access() {
        access if access >= needed => Ok(()),
        AccessLevel::Nothing => Err(NO_AUTH),
        _ if session.tokens().has_admin() => Err(NO_ADMIN),
        _ => Err(ADMIN_OFF),
    }
}
