//! Checks that do not wait, on a key that others wait for.

use std::sync::Arc;

use super::Limiter;
use super::check::Check;
use super::poll_once::poll_once;
use super::wait::denied;
use super::wait_hashes::line_of;
use super::wait_queue::PlainTurn;
use crate::engine::Refusal;
use crate::fingerprint::fingerprint;
use crate::policy::{Plan, Policy};
use crate::{Decision, EngineError, Key, Op, RuleLimit};

impl Limiter {
    /// The limit, if a check of `key` under this policy is a charge to that limit alone, and no
    /// caller waits for it. Such a check needs no plan.
    #[inline(always)]
    pub fn plain_limit<'p>(&self, policy: &'p Policy, key: Key<'_>) -> Option<&'p Arc<RuleLimit>> {
        policy.plain_limit().filter(|limit| self.is_plain(limit, key))
    }

    /// Whether a check of `key` is a charge to `limit` alone, if that is the plain limit.
    #[inline(always)]
    pub(super) fn is_plain(&self, limit: &RuleLimit, key: Key<'_>) -> bool {
        key.is_valid() && !self.may_be_behind(limit, key)
    }

    /// Whether a caller that waits for `key` may be short of permits of `limit`.
    #[inline(always)]
    fn may_be_behind(&self, limit: &RuleLimit, key: Key<'_>) -> bool {
        let queues = &self.shared.queues;
        queues.any_short() && queues.may_be_short(fingerprint(limit.tag(), key))
    }
}

impl Check<'_> {
    /// Whether a caller that waits for the same keys may be short of permits.
    #[inline]
    pub(super) fn may_be_behind(&self, plan: &Plan<'_>) -> bool {
        let queues = &self.limiter.shared.queues;
        queues.any_short() && self.op().takes() && queues.may_be_short(line_of(plan))
    }

    /// As [`decide_behind`](Self::decide_behind), without waiting.
    pub(super) fn decide_behind_now(&self, plan: &Plan<'_>) -> Result<Decision, EngineError> {
        let is_synchronous = self.limiter.engine().is_synchronous();
        let decided = is_synchronous.then(|| poll_once(self.decide_behind(plan))).flatten();
        decided.unwrap_or(Err(Refusal::NotImmediate.into()))
    }

    /// Decides a check that does not wait, and leaves waiters their share.
    #[cold]
    pub(super) async fn decide_behind(&self, plan: &Plan<'_>) -> Result<Decision, EngineError> {
        let (queues, queue) = (&self.limiter.shared.queues, self.fingerprint(plan));
        let (cost, capacity) = self.queue_cost(plan);
        match queues.take_turn(queue, cost) {
            PlainTurn::Free => self.decide_in_turn(plan).await,
            PlainTurn::Credit => {
                let result = self.decide_in_turn(plan).await;
                let is_charged = match &result {
                    Ok(decision) => decision.allowed(),
                    Err(error) => matches!(error, EngineError::Ambiguous(_)),
                };
                if !is_charged {
                    queues.add_credit(queue, cost, capacity);
                }
                result
            }
            PlainTurn::Behind(ahead) => {
                if self.has_id() {
                    let peek = self.with(Op::Peek).decide_in_turn(plan).await?;
                    if peek.repeated() {
                        return Ok(peek);
                    }
                }
                let (decision, wait) = self.earliest(ahead).await?;
                match wait.get() {
                    // There is enough for all.
                    0 => self.decide_in_turn(plan).await,
                    _ => Ok(denied(decision, wait)),
                }
            }
        }
    }
}
