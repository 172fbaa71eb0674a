//! A concurrency slot, guard and renewed while the work is running.

use std::fmt;

use tidegate_core::{Cost, Micros};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::Limiter;
use super::hold_guard::HoldGuard;
use super::hold_settlement::OwnedCosts;
use crate::{Costs, Decision, EngineError, HoldId, Op, Plan};

/// A slot of each `concurrency` limit; renewed in the background, released on drop.
///
/// The renewal task runs on the Tokio runtime in which the slot was made, and needs its timer.
/// Without a runtime the slot is not renewed, and is released when its lease ends at the latest. If
/// renewal fails for that long, or the key is reset, the slot is lost: the work may continue, but
/// it is no longer counted.
///
/// A store that does not reply at the end gets the release again, until the lease ends; see
/// [`Limiter::unsettled_holds`]. Dropped outside a runtime, with an engine that has to wait, the
/// slot is released when its lease ends.
///
/// ```
/// use tidegate::{Limit, Limiter, Memory};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Memory::default(), "concurrency 1 lease 30s".parse::<Limit>()?);
/// let entered = limiter.enter("tenant-7").await?;
/// assert!(limiter.enter("tenant-7").await.is_err(), "one at a time");
/// drop(entered);
/// assert!(limiter.enter("tenant-7").await.is_ok());
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping releases the concurrency slot"]
pub struct Slot {
    /// Dropped before the guard: a released slot is not renewed.
    renewal: Option<RenewTask>,
    guard: HoldGuard,
}

impl Slot {
    /// The slot that `decision` made, renewed for `lease` at a time; `None` if it made none.
    ///
    /// For a plan, the lease is [`Plan::lease`](crate::Plan::lease).
    pub fn of(limiter: &Limiter, decision: &Decision, lease: Micros) -> Option<Self> {
        let guard = HoldGuard::of(limiter, decision, lease)?;
        let id = guard.id();
        let renewal = Handle::try_current().ok().map(|runtime| {
            let task = runtime.spawn(renew(HoldGuard::from_id(limiter, id), lease));
            RenewTask(task.abort_handle())
        });
        Some(Self { renewal, guard })
    }

    /// The id by which any process on the same store can settle it.
    pub fn id(&self) -> HoldId {
        self.guard.id()
    }

    /// Charges these costs on drop. For a decision by [`Op::hold`](crate::Op::hold) or
    /// [`Op::hold_for_request`](crate::Op::hold_for_request), which hold costs; a slot costs
    /// nothing.
    pub fn charge_at_end(&mut self, costs: Costs<'_>) {
        self.guard.set_costs_on_drop(costs);
    }

    /// Records the costs of the drop under the limits of `plan`, by which `op` made the hold, if
    /// the store has lost the hold by then. Needed only if a cost is charged at the end.
    pub fn record_if_lost(&mut self, op: Op<'_>, plan: &Plan<'_>) {
        if let Op::Hold(hold) = op {
            self.guard.set_charges(hold, None, plan);
        }
    }

    /// Releases the slot, and waits for the reply. The slot was lost before if the decision is
    /// marked `expired`.
    pub async fn leave(self) -> Result<Decision, EngineError> {
        drop(self.renewal);
        self.guard.settle(OwnedCosts::All(Cost::ZERO)).await
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// The renewal task, aborted on drop. A renewal in flight may still complete.
struct RenewTask(AbortHandle);

impl Drop for RenewTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Renews a slot until it is lost: three times per lease, and sooner after a failure.
async fn renew(guard: HoldGuard, lease: Micros) {
    /// Shortest pause, however short the lease is.
    const MIN_PAUSE: Micros = Micros::from_millis(1);
    let clock = guard.limiter().shared.clock.clone();
    let part_of_lease = |parts: u64| Micros::new(lease.get() / parts).max(MIN_PAUSE);
    let mut pause = part_of_lease(3);
    loop {
        clock.sleep_until(clock.elapsed().saturating_add(pause)).await;
        pause = match guard.renew(lease).await {
            Ok(decision) if !decision.expired() => part_of_lease(3),
            // Expired, settled, or its record is gone.
            Ok(_) | Err(EngineError::Refused(_)) => return,
            Err(_) => part_of_lease(10),
        };
    }
}
