//! The contract between limiters, layers and stores. Imports: calendar, clock, fingerprint, key,
//! network, sync.

pub(crate) mod bounds;
mod call;
mod costs;
mod decision;
mod error;
mod health;
mod ids;
mod memory_use;
mod owned_charge;
mod quantity;
mod rule;
mod rule_limit;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate_core::{RecoveryPoint, Standing};

pub use self::call::{Call, Charge, HoldKind, HoldSpec, Op};
pub use self::costs::{Costs, Extension, HeldPart, RuleCost, SettledCost};
pub use self::decision::{Decision, DecisionDetails, Source};
pub use self::error::{EngineError, ForeignState, MemoryFull, Refusal};
pub use self::health::{Circuit, Health, Shards};
pub(crate) use self::ids::check_ttl;
pub use self::ids::{HoldId, IdempotencyKey};
pub use self::memory_use::{KindUse, MemoryKind, MemoryUse};
pub(crate) use self::owned_charge::{OwnedCharge, OwnedKey};
pub use self::quantity::{Quantity, UnitCharge, UnitCost};
pub use self::rule::{InvalidRule, Rule};
pub(crate) use self::rule_limit::new_generations;
pub use self::rule_limit::{LeaseSize, OnReserve, OnStoreFailure, RuleLimit, Unit};
use crate::{Clock, Key};

/// Decides calls, each in one atomic step.
///
/// Implemented by stores and by layers around another engine. It is used as `Arc<dyn Engine>`, so
/// that a program can choose its store at run time.
pub trait Engine: Send + Sync + 'static {
    /// Decides one call: all its charges or none.
    ///
    /// An engine that can decide at once returns [`EngineFuture::Ready`]. An engine that has to
    /// wait returns [`EngineFuture::Pending`], which does nothing before it is polled. Dropped
    /// after that, the call may or may not have been charged.
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision>;

    /// Decides without waiting; [`Refusal::NotImmediate`] if the engine has to wait.
    ///
    /// The result of [`decide`](Self::decide) has to be moved out of its future. A synchronous
    /// engine saves that by writing the decision where the caller wants it.
    fn decide_now(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        self.decide(*call).now()
    }

    /// As [`decide_now`](Self::decide_now), for a caller that needs to know only whether every
    /// enforced limit allows the call.
    fn allow_now(&self, call: &Call<'_>) -> Result<bool, EngineError> {
        self.decide_now(call).map(|decision| decision.allowed())
    }

    /// Decides independent calls in their order, each exactly as if alone. The results are in the
    /// same order; an error of a call is its own result.
    ///
    /// An engine that has to wait decides them at the same time, so that a store gets them
    /// together.
    fn decide_many<'a>(
        &'a self,
        calls: &'a [Call<'a>],
    ) -> EngineFuture<'a, Vec<Result<Decision, EngineError>>> {
        decide_each(calls.iter().map(|call| self.decide(*call)).collect())
    }

    /// Whether [`decide`](Self::decide) never has to wait. A caller of such an engine needs neither
    /// a runtime nor a future that owns the call.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// The state of one key under one limit. Charges nothing.
    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection>;

    /// The id by which a [named](HoldKind::Named) hold is settled, if `key` is that of the first
    /// limit that it holds. Whether there is such a hold is not checked.
    fn locate_hold<'a>(&'a self, id: HoldId, _key: Key<'a>) -> EngineFuture<'a, HoldId> {
        EngineFuture::Ready(Ok(id))
    }

    /// The shards of the store that a call touches. Shards fail independently of each other.
    fn shards(&self, _call: &Call<'_>) -> Shards {
        Shards::ONE
    }

    /// The status of the engine.
    fn health(&self) -> Health;

    /// The clock by which callers wait. A layer returns the clock of the engine below.
    fn clock(&self) -> Arc<dyn Clock>;
}

impl<E: Engine + ?Sized> Engine for Arc<E> {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        (**self).decide(call)
    }

    #[inline]
    fn decide_now(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        (**self).decide_now(call)
    }

    #[inline]
    fn allow_now(&self, call: &Call<'_>) -> Result<bool, EngineError> {
        (**self).allow_now(call)
    }

    fn decide_many<'a>(
        &'a self,
        calls: &'a [Call<'a>],
    ) -> EngineFuture<'a, Vec<Result<Decision, EngineError>>> {
        (**self).decide_many(calls)
    }

    fn is_synchronous(&self) -> bool {
        (**self).is_synchronous()
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        (**self).inspect(limit, key)
    }

    fn locate_hold<'a>(&'a self, id: HoldId, key: Key<'a>) -> EngineFuture<'a, HoldId> {
        (**self).locate_hold(id, key)
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        (**self).shards(call)
    }

    fn health(&self) -> Health {
        (**self).health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        (**self).clock()
    }
}

/// A result that is ready, or a future.
pub enum EngineFuture<'a, T> {
    /// Decided without waiting.
    Ready(Result<T, EngineError>),
    /// Has to be awaited.
    Pending(Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'a>>),
}

impl<T> EngineFuture<'_, T> {
    /// The result without waiting; [`Refusal::NotImmediate`] if the engine has to wait.
    pub fn now(self) -> Result<T, EngineError> {
        match self {
            Self::Ready(result) => result,
            Self::Pending(_) => Err(Refusal::NotImmediate.into()),
        }
    }
}

/// All results, in order, once each is ready. They are polled in order.
fn decide_each(
    mut all: Vec<EngineFuture<'_, Decision>>,
) -> EngineFuture<'_, Vec<Result<Decision, EngineError>>> {
    if all.iter().all(|one| matches!(one, EngineFuture::Ready(_))) {
        return EngineFuture::Ready(Ok(all.into_iter().map(EngineFuture::now).collect()));
    }
    EngineFuture::Pending(Box::pin(poll_fn(move |context| {
        let mut waits = false;
        for one in &mut all {
            let EngineFuture::Pending(future) = one else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(result) => *one = EngineFuture::Ready(result),
                Poll::Pending => waits = true,
            }
        }
        match waits {
            true => Poll::Pending,
            false => Poll::Ready(Ok(all.drain(..).map(EngineFuture::now).collect())),
        }
    })))
}

/// Polled after completion, it returns [`Refusal::AlreadyPolled`].
impl<T: Unpin> Future for EngineFuture<'_, T> {
    type Output = Result<T, EngineError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Pending(future) => future.as_mut().poll(cx),
            Self::Ready(result) => {
                let taken = Err(Refusal::AlreadyPolled.into());
                Poll::Ready(std::mem::replace(result, taken))
            }
        }
    }
}

/// The state of one key under one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// Where the state was found.
    pub source: Source,
    /// Permits used, held and remaining.
    pub standing: Standing,
    /// The most permits that fit at once.
    pub limit: u64,
    /// How the key recovers without further requests, soonest first; empty if nothing is used.
    pub recovery: Vec<RecoveryPoint>,
    /// Entries of a `sliding-log`: caller, permits; oldest first.
    pub entries: Vec<(Option<Box<str>>, u64)>,
    /// The key shares an overflow bucket, because the memory cap is reached.
    pub shared: bool,
}
