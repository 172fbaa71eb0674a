//! MULTI, EXEC, DISCARD, WATCH and UNWATCH.

use super::errors::ErrorText;
use crate::transport::resp::reply::ReplyEncoder;
use crate::transport::resp::session::{AfterCommand, RespSession};
use crate::transport::resp::transaction::Transaction;

/// `MULTI`
pub(crate) fn multi(session: &mut RespSession, reply: &mut ReplyEncoder) -> Result<(), ErrorText> {
    if session.transaction.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    session.transaction = Some(Transaction::default());
    reply.simple("OK");
    Ok(())
}

/// `EXEC`: the connection runs the commands, and their replies are the elements of the array.
pub(crate) fn exec(
    session: &mut RespSession,
    reply: &mut ReplyEncoder,
) -> Result<AfterCommand, ErrorText> {
    let transaction = session.transaction.as_ref().ok_or("ERR EXEC without MULTI")?;
    if transaction.is_aborted() {
        session.transaction = None;
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    reply.array(transaction.len());
    Ok(AfterCommand::Execute)
}

/// `DISCARD`
pub(crate) fn discard(
    session: &mut RespSession,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    session.transaction.take().ok_or("ERR DISCARD without MULTI")?;
    reply.simple("OK");
    Ok(())
}

/// `UNWATCH`
pub(crate) fn unwatch(reply: &mut ReplyEncoder) -> Result<(), ErrorText> {
    reply.simple("OK");
    Ok(())
}

/// `WATCH key ..`: there is nothing to watch, since no command reads a value that a client writes
/// back.
pub(crate) fn watch(session: &RespSession, reply: &mut ReplyEncoder) -> Result<(), ErrorText> {
    if session.transaction.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    reply.simple("OK");
    Ok(())
}
