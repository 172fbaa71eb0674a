//! What a client has told about itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::tokens::{Access, Tokens};

/// One connection's own.
pub(super) struct Session {
    tokens: Arc<Tokens>,
    access: Access,
    id: i64,
    failures: u32,
    /// As `CLIENT SETNAME` gave it.
    pub(super) name: Vec<u8>,
}

impl Session {
    /// The longest name of a client in bytes.
    pub(super) const MAX_NAME: usize = 64;
    /// So many wrong tokens are mistakes. More are guesses, and cost a connection each time.
    const MAX_FAILURES: u32 = 10;

    pub(super) fn new(tokens: Arc<Tokens>) -> Self {
        static IDS: AtomicI64 = AtomicI64::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Self { access: tokens.access(), tokens, id, failures: 0, name: Vec::new() }
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn id(&self) -> i64 {
        self.id
    }

    pub(super) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Shows a token. A wrong one takes nothing away.
    pub(super) fn authenticate(&mut self, token: &[u8]) -> bool {
        let access = self.tokens.access_with(token);
        match access {
            Some(access) => self.access = access,
            None => self.failures += 1,
        }
        access.is_some()
    }

    /// Has it shown too many wrong tokens?
    pub(super) fn is_guessing(&self) -> bool {
        self.failures >= Self::MAX_FAILURES
    }
}
