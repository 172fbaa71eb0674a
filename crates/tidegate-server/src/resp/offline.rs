//! Bytes in, bytes out: what a client would be told, without a connection. For tests and fuzzing.

use std::sync::Arc;

use super::commands;
use super::connection::Next;
use super::frame::{Caps, Parser};
use super::reply::Encoder;
use super::session::Session;
use crate::service::Service;
use crate::tokens::{Access, Tokens};

/// Everything that a client which sends `bytes` at once is told before its connection ends, or
/// before the first command that is not all there.
pub async fn answer(bytes: &mut [u8], service: &Service, tokens: Arc<Tokens>) -> Vec<u8> {
    let mut session = Session::new(tokens);
    let mut parser = Parser::new(Caps::UNAUTHENTICATED);
    let mut encoder = Encoder::default();
    let mut rest = bytes;
    let mut next = Next::Continue;
    while next == Next::Continue {
        if session.access() > Access::Nothing {
            parser.set_caps(Caps::AUTHENTICATED);
        }
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
    }
    encoder.as_bytes().to_vec()
}
