//! A hold, and who ends it.

use tidegate_core::{Cost, Micros};

use super::Limiter;
use crate::{Answer, Call, Decision, EngineError, HoldId, Op};

/// A hold that ends with its keeper, unless it is kept.
pub(super) struct Held {
    limiter: Limiter,
    id: HoldId,
    ends_on_drop: bool,
    /// What is charged then; `None` is what was held.
    due: Option<Cost>,
}

impl Held {
    /// A hold that has just been made, and ends with this.
    pub(super) fn made(limiter: &Limiter, id: HoldId) -> Self {
        Self { limiter: limiter.clone(), id, ends_on_drop: true, due: Some(Cost::ZERO) }
    }

    /// Somebody else's hold, known by its id.
    pub(super) fn found(limiter: &Limiter, id: HoldId) -> Self {
        Self { limiter: limiter.clone(), id, ends_on_drop: false, due: Some(Cost::ZERO) }
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) fn id(&self) -> HoldId {
        self.id
    }

    /// Lets it stand until somebody settles it by its id, or until the deadline.
    pub(super) fn keep(&mut self) -> HoldId {
        self.ends_on_drop = false;
        self.id
    }

    /// What to charge when it ends with its keeper, instead of nothing.
    pub(super) fn set_due(&mut self, due: Option<Cost>) {
        self.due = due;
    }

    /// Lets it last `ttl` from now.
    pub(super) async fn renew(&self, ttl: Micros) -> Result<Decision, EngineError> {
        self.limiter.engine().decide(about(Op::Renew { id: self.id, ttl })).await
    }

    /// Ends it and charges `cost`, or what was held if there is none.
    pub(super) async fn settle(mut self, cost: Option<Cost>) -> Result<Decision, EngineError> {
        let engine = self.limiter.engine().clone();
        let answer = engine.decide(about(Op::Settle { id: self.id, cost })).await;
        self.ends_on_drop &= answer.is_err();
        self.limiter.shared.lines.nudge_heads();
        answer
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.ends_on_drop {
            return;
        }
        let engine = self.limiter.engine().clone();
        let end = about(Op::Settle { id: self.id, cost: self.due });
        let later = matches!(engine.decide(end), Answer::Later(_));
        self.limiter.shared.lines.nudge_heads();
        // Without a runtime to send it from, the deadline will give the permits back.
        if let (true, Ok(runtime)) = (later, tokio::runtime::Handle::try_current()) {
            let limiter = self.limiter.clone();
            runtime.spawn(async move {
                let _ = engine.decide(end).await;
                limiter.shared.lines.nudge_heads();
            });
        }
    }
}

fn about(op: Op) -> Call<'static> {
    Call { op, charges: &[], once: None }
}
