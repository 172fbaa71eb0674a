//! Runs commands from a buffer, without a connection. For tests and fuzzing.

use std::sync::Arc;

use super::commands;
use super::frame::{Caps, Parser};
use super::reply::ReplyEncoder;
use super::session::{AfterCommand, RespSession};
use crate::check::CheckService;
use crate::transport::auth::{AccessLevel, AuthTokens};

/// All replies to a client that sends `bytes` at once, until its connection is closed or a command
/// is incomplete.
pub async fn replies(bytes: &mut [u8], service: &CheckService, tokens: Arc<AuthTokens>) -> Vec<u8> {
    let mut session = RespSession::new(tokens);
    let mut parser = Parser::new(Caps::UNAUTHENTICATED);
    let mut encoder = ReplyEncoder::default();
    let mut rest = bytes;
    let mut next = AfterCommand::Continue;
    while next == AfterCommand::Continue {
        parser.set_caps(match session.access() {
            AccessLevel::Nothing => Caps::UNAUTHENTICATED,
            AccessLevel::Check | AccessLevel::Admin => Caps::AUTHENTICATED,
        });
        next = match parser.parse(&mut rest) {
            Ok(Some(command)) => commands::run(&command, &mut session, service, &mut encoder).await,
            Ok(None) => break,
            Err(error) => {
                if let Some(text) = error.reply() {
                    encoder.error(text);
                }
                break;
            }
        };
        if next == AfterCommand::Execute {
            let transaction = session.transaction.take().unwrap_or_default();
            let mut queued = transaction.into_commands();
            next = AfterCommand::Continue;
            while let Some(command) = queued.next() {
                commands::run(&command, &mut session, service, &mut encoder).await;
            }
        }
    }
    encoder.as_bytes().to_vec()
}
