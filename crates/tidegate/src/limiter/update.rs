//! Builder of an update: record, refund or reset.

use std::future::IntoFuture;

use super::Limiter;
use super::check::Check;
use crate::{Decision, EngineError, EngineFuture, Key, Op};

impl Limiter {
    /// Charges consumption that has already happened, whether it fits or not.
    pub fn record<'a>(&'a self, key: impl Into<Key<'a>>, cost: u64) -> Update<'a> {
        Update::new(self, Op::Record, key.into(), cost)
    }

    /// Gives back at most `cost` of the consumption of `key`.
    pub fn refund<'a>(&'a self, key: impl Into<Key<'a>>, cost: u64) -> Update<'a> {
        Update::new(self, Op::Refund, key.into(), cost)
    }

    /// Clears the consumption and the reservations of `key`.
    pub fn reset<'a>(&'a self, key: impl Into<Key<'a>>) -> Update<'a> {
        Update::new(self, Op::Reset, key.into(), 0)
    }
}

/// An update (record, refund or reset); sent when awaited, or by [`now`](Self::now).
#[must_use = "does nothing unless awaited"]
#[derive(Clone, Copy, Debug)]
pub struct Update<'a>(Check<'a>);

impl<'a> Update<'a> {
    fn new(limiter: &'a Limiter, op: Op<'a>, key: Key<'a>, cost: u64) -> Self {
        Self(Check::of_all(limiter, op, key).cost(cost))
    }

    /// Stores `caller` with the entry of a `sliding-log`.
    pub fn caller(self, caller: &'a str) -> Self {
        Self(self.0.caller(caller))
    }

    /// Applies the update at most once under `id`, however often it is sent within an hour.
    pub fn idempotency_key(self, id: &'a str) -> Self {
        Self(self.0.idempotency_key(id))
    }

    /// Sends the update without waiting; refused by an engine that has to wait.
    pub fn now(self) -> Result<Decision, EngineError> {
        self.0.now()
    }
}

impl<'a> IntoFuture for Update<'a> {
    type Output = Result<Decision, EngineError>;
    type IntoFuture = EngineFuture<'a, Decision>;

    fn into_future(self) -> EngineFuture<'a, Decision> {
        self.0.into_future()
    }
}
