//! State of one connection: access, name, failed authentications and transaction.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::transaction::Transaction;
use crate::policy::Actor;
use crate::transport::auth::{AccessLevel, AuthTokens};

/// What to do with the connection after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterCommand {
    Continue,
    /// Sends the replies, then closes.
    Close,
    /// Closes without sending anything.
    CutOff,
    /// Runs the commands of the transaction; the start of their reply is encoded.
    Execute,
}

/// State of one connection.
pub(crate) struct RespSession {
    tokens: Arc<AuthTokens>,
    access: AccessLevel,
    id: i64,
    failures: u32,
    /// Name set by `CLIENT SETNAME`.
    pub(crate) name: Vec<u8>,
    /// Address of the client, once it is known.
    pub(crate) address: Option<IpAddr>,
    /// Since `MULTI`.
    pub(crate) transaction: Option<Transaction>,
    /// Access that a token has granted.
    by_token: Option<AccessLevel>,
}

impl RespSession {
    /// Longest client name, in bytes.
    pub(crate) const MAX_NAME: usize = 64;
    /// Wrong tokens until every further failed command closes the connection.
    const MAX_FAILURES: u32 = 10;

    pub(crate) fn new(tokens: Arc<AuthTokens>) -> Self {
        static IDS: AtomicI64 = AtomicI64::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Self {
            access: tokens.access(),
            tokens,
            id,
            failures: 0,
            name: Vec::new(),
            address: None,
            transaction: None,
            by_token: None,
        }
    }

    pub(crate) fn access(&self) -> AccessLevel {
        self.access
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    pub(crate) fn tokens(&self) -> &AuthTokens {
        &self.tokens
    }

    /// Sets the access that `token` grants. A wrong token does not reduce it.
    pub(crate) fn authenticate(&mut self, token: &[u8]) -> bool {
        let access = self.tokens.access_with(token);
        match access {
            Some(granted) => (self.access, self.by_token) = (granted, access),
            None => self.failures += 1,
        }
        access.is_some()
    }

    /// Bytes of commands that wait for `EXEC`.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.transaction.as_ref().map_or(0, Transaction::bytes)
    }

    /// A command was refused: `EXEC` runs none of them.
    pub(crate) fn abort_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.abort();
        }
    }

    /// Back to the state of a new connection. Wrong tokens still count.
    pub(crate) fn reset(&mut self) {
        (self.access, self.by_token) = (self.tokens.access(), None);
        self.name.clear();
        self.transaction = None;
    }

    pub(crate) fn actor(&self) -> Actor {
        Actor { token: self.by_token.map(AccessLevel::name), address: self.address }
    }

    /// Whether the client has sent too many wrong tokens.
    pub(crate) fn is_guessing(&self) -> bool {
        self.failures >= Self::MAX_FAILURES
    }
}
