//! The memory engine as an [`Engine`].

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Cost;

use super::cell::{Cell, CellLocation, Space};
use super::fast_path::PlainCharge;
use super::locked_shards::{LockedShards, cell_charges};
use super::state::Memory;
use crate::sync::atomic::Ordering;
use crate::{
    Call, Charge, Clock, Decision, Engine, EngineError, EngineFuture, Health, Inspection, Key,
    MemoryUse, Op, RuleLimit, Source, SystemClock,
};

impl Memory {
    /// Decides a call that is not of the most common kind.
    #[inline(never)]
    fn decide_slower(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        if let Some(decision) = self.try_fast(call) {
            return Ok(decision);
        }
        call.validate()?;
        self.registry.free_unused(|| self.numbers_in_use());
        match call.op {
            Op::Settle { id, costs } => self.settle(id, costs),
            Op::Renew { id, ttl } => self.renew(id, ttl),
            Op::Extend { id, to } => self.extend(id, to),
            _ => self.decide_general_locked(call),
        }
    }

    /// Calls that are decided together: so many buckets are fetched at the same time. A CPU has 10
    /// to 16 fetches under way.
    const GROUP: usize = 16;

    /// Decides at most [`GROUP`](Self::GROUP) calls. The buckets of the most common kind are
    /// fetched first: one check waits for all of them, instead of each for its own.
    fn decide_group(&self, calls: &[Call<'_>], decided: &mut Vec<Result<Decision, EngineError>>) {
        let plain: SmallVec<[Option<PlainCharge<'_>>; Self::GROUP]> =
            calls.iter().map(|call| self.plain_charge(call)).collect();
        plain.iter().flatten().for_each(|charge| self.prefetch(charge));
        for (call, plain) in calls.iter().zip(&plain) {
            let verdict = plain.as_ref().and_then(|plain| self.try_bucket_in_home_slot(plain));
            decided.push(match verdict {
                Some(verdict) => Ok(Decision::of_one(Source::Memory, verdict)),
                None => self.decide_slower(call),
            });
        }
    }

    fn inspect_now(&self, limit: &Arc<RuleLimit>, key: Key<'_>) -> Result<Inspection, EngineError> {
        let peek = Call {
            op: Op::Peek,
            charges: &[Charge { limit, key, cost: Cost::ZERO, caller: None }],
            idempotency_key: None,
        };
        peek.validate()?;
        let parts = cell_charges(peek.charges);
        let mut locked = LockedShards::new(self, &parts, None);
        let part = parts[0];
        let location = locked.locate(&part, Op::Peek, self.now())?;
        let now = self.now();
        let Some(cell) = locked.cell(&part, location) else {
            return Ok(Cell::new(limit).inspect(limit, now, false));
        };
        cell.prepare(limit, now, self.budget_of(part.space(), location));
        Ok(cell.inspect(limit, now, location == CellLocation::Shared))
    }
}

impl Engine for Memory {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Ready(self.decide_now(&call))
    }

    #[inline]
    fn decide_now(&self, call: &Call<'_>) -> Result<Decision, EngineError> {
        // Returned from here, the verdict is written once: where the caller wants it.
        if let Some(plain) = self.plain_charge(call)
            && let Some(verdict) = self.try_bucket_in_home_slot(&plain)
        {
            return Ok(Decision::of_one(Source::Memory, verdict));
        }
        self.decide_slower(call)
    }

    #[inline]
    fn allow_now(&self, call: &Call<'_>) -> Result<bool, EngineError> {
        match self.plain_charge(call).and_then(|plain| self.try_bucket_in_home_slot(&plain)) {
            Some(verdict) => Ok(verdict.allowed),
            None => self.decide_slower(call).map(|decision| decision.allowed()),
        }
    }

    fn decide_many<'a>(
        &'a self,
        calls: &'a [Call<'a>],
    ) -> EngineFuture<'a, Vec<Result<Decision, EngineError>>> {
        let mut decided = Vec::with_capacity(calls.len());
        for group in calls.chunks(Self::GROUP) {
            self.decide_group(group, &mut decided);
        }
        EngineFuture::Ready(Ok(decided))
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        EngineFuture::Ready(self.inspect_now(limit, key))
    }

    fn health(&self) -> Health {
        let own: usize = (0..self.shards.len()).map(|index| self.shard(index).len()).sum();
        let overflow = [Space::Rules, Space::Adhoc].map(|space| self.overflow_cells(space));
        let shared: usize = overflow.iter().map(|cells| cells.load(Ordering::Relaxed)).sum();
        let now = self.now();
        let mut memory = MemoryUse::default();
        memory.id_retention = self.id_retention(now);
        for (kind, kind_use) in self.budgets.report(now) {
            memory.add(kind, kind_use);
        }
        Health { memory, ..Health::up(Some((own + shared) as u64), memory.bytes()) }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone().unwrap_or_else(|| Arc::new(SystemClock))
    }
}
