//! A place among holders, kept while work goes on.

use std::fmt;

use tidegate_core::{Cost, Micros};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::Limiter;
use super::held::Held;
use crate::{Decision, EngineError, HoldId};

/// A place in every limit that counts holders. While it lives, a task of its own renews the place;
/// dropped, it is given back.
///
/// The task runs on the Tokio runtime in which the slot was made, and needs its timer. Without a
/// runtime nothing is renewed, and the place is given back at the end of its lease at the latest. If
/// renewing fails for that long, or the place is reset, it is gone: the work may go on, but it is no
/// longer counted.
///
/// Dropped outside a runtime in front of an engine that has to be waited for, it is given back at the
/// end of its lease.
#[must_use = "dropped, the place is given back"]
pub struct Slot {
    /// Before the place in the order of dropping: what is given back is not renewed any more.
    renewing: Option<Renewing>,
    held: Held,
}

impl Slot {
    /// The place that `decision` has given, to be renewed for `lease` at a time; `None` if it gave
    /// none.
    ///
    /// For a plan, that is [`Plan::lease`](crate::Plan::lease).
    pub fn of(limiter: &Limiter, decision: &Decision, lease: Micros) -> Option<Self> {
        let id = decision.hold()?;
        let renewing = Handle::try_current().ok().map(|runtime| {
            let task = runtime.spawn(renew(Held::found(limiter, id), lease));
            Renewing(task.abort_handle())
        });
        Some(Self { renewing, held: Held::made(limiter, id) })
    }

    /// The name by which any process on the same store can settle it.
    pub fn id(&self) -> HoldId {
        self.held.id()
    }

    /// Charges `cost` when it is dropped, or what was set aside if there is none. For a decision by
    /// [`Op::Hold`](crate::Op::Hold) or [`Op::Visit`](crate::Op::Visit), which set costs aside; a place costs nothing.
    pub fn charge_at_end(&mut self, cost: Option<Cost>) {
        self.held.set_due(cost);
    }

    /// Gives the place back, and waits until that is done. If the decision says `expired`, it was
    /// gone already.
    pub async fn leave(self) -> Result<Decision, EngineError> {
        drop(self.renewing);
        self.held.settle(Some(Cost::ZERO)).await
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// The task that renews a place, ended with this: a renewal that is on its way is its last.
struct Renewing(AbortHandle);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Renews a place until it is gone: three times in a lease, and sooner after a failure.
async fn renew(held: Held, lease: Micros) {
    /// However short the lease is. A place that would need more cannot be kept.
    const SHORTEST_PAUSE: Micros = Micros::from_millis(1);
    let clock = held.limiter().shared.clock.clone();
    let a_part = |parts: u64| Micros::new(lease.get() / parts).max(SHORTEST_PAUSE);
    let mut pause = a_part(3);
    loop {
        clock.sleep_until(clock.elapsed().saturating_add(pause)).await;
        pause = match held.renew(lease).await {
            Ok(decision) if !decision.expired() => a_part(3),
            // It has ended, was settled or is forgotten.
            Ok(_) | Err(EngineError::Refused(_)) => return,
            Err(_) => a_part(10),
        };
    }
}
