//! Callers that wait for permits: served in order of arrival, several by one script.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate::{EngineError, Micros, Outcome};
use tokio::sync::MutexGuard;

use super::calls::LimiterCalls;
use super::error::Error;
use super::take::random_id;
use super::undo::UndoOnDrop;
use crate::compat::client::AcquireDecision;
use crate::compat::wait_ticket::{Leaving, PermitsEntry, WaitTicket};
use crate::connection::timing::race;

/// Acquires permits when it is this caller's turn, within `timeout`.
pub(crate) async fn acquire_in_turn(
    calls: &LimiterCalls,
    permits: u32,
    timeout: Duration,
) -> Result<AcquireDecision, Error> {
    let end = calls.after(timeout.into());
    let mut head = pin!(calls.queue.head.lock());
    // It joins the queue here, before it does anything that takes time.
    let (ticket, head_now) =
        poll_fn(|cx| Poll::Ready(calls.queue.join(permits, || head.as_mut().poll(cx)))).await;
    // Declared before the caller, so dropped after it: the next caller at the head does not request
    // permits for a caller that is gone.
    let head_guard;
    let caller = TurnWaiter { calls, ticket, end };
    head_guard = match head_now {
        Poll::Ready(head) => head,
        Poll::Pending => match caller.wait_for_head(head).await? {
            Turn::Head(head) => head,
            Turn::Decided(decision) => return Ok(decision),
        },
    };
    let decision = caller.request_until_decided().await;
    drop(caller);
    drop(head_guard);
    decision
}

/// A caller in the queue. If it is dropped, permits that were taken for it are returned.
struct TurnWaiter<'a> {
    calls: &'a LimiterCalls,
    ticket: Arc<WaitTicket>,
    end: Micros,
}

/// How waiting has ended.
enum Turn<'a> {
    /// The caller is at the head of the queue.
    Head(MutexGuard<'a, ()>),
    /// Decided by another caller at the head, or by the timeout.
    Decided(AcquireDecision),
}

impl TurnWaiter<'_> {
    async fn wait_for_head<'h>(
        &self,
        head: impl Future<Output = MutexGuard<'h, ()>>,
    ) -> Result<Turn<'h>, Error> {
        let Self { calls, ticket, end } = self;
        // A caller that can wait for any entry to expire need not read which one is next.
        let wait = calls.queue.longest_wait(ticket.permits);
        if wait.is_none_or(|wait| calls.after(wait) > *end) {
            let look = calls.look(ticket.permits, *end).await?;
            if calls.retry_at(&look) > *end {
                return Ok(Turn::Decided(self.leave().await.unwrap_or(look.untaken())));
            }
        }
        let head = async { Some(head.await) };
        let taken_or_late = race(ticket.taken(), calls.client.clock().sleep_until(*end));
        let others = async {
            taken_or_late.await;
            None
        };
        if let Some(head) = race(head, others).await {
            return Ok(Turn::Head(head));
        }
        if let Some(taken) = self.leave().await {
            return Ok(Turn::Decided(taken));
        }
        Ok(Turn::Decided(calls.look(ticket.permits, *end).await?.untaken()))
    }

    /// Stops waiting, after the request in flight. Returns the decision if its permits were taken.
    ///
    /// The request is sent by another caller, whose task may not be polled: it is awaited for the
    /// time that one call takes. Permits that it takes later are returned.
    async fn leave(&self) -> Option<AcquireDecision> {
        let client = &self.calls.client;
        let until = self.calls.after(client.deadline().into()).max(self.end);
        loop {
            match self.ticket.leave() {
                Leaving::Left => return None,
                Leaving::Taken(remaining) => {
                    return Some(AcquireDecision { outcome: Outcome::Allow, remaining });
                }
                Leaving::Requested if client.clock().elapsed() >= until => return None,
                Leaving::Requested => {
                    race(self.ticket.changed(), client.clock().sleep_until(until)).await;
                }
            }
        }
    }

    /// Called at the head of the queue: requests permits for this caller and those behind it.
    async fn request_until_decided(&self) -> Result<AcquireDecision, Error> {
        let LimiterCalls { client, queue, .. } = self.calls;
        let clock = client.clock();
        loop {
            // Also by the request of the caller that was at the head before.
            if let Some(remaining) = self.ticket.use_permits() {
                return Ok(AcquireDecision { outcome: Outcome::Allow, remaining });
            }
            // Subscribed before the request, so that no release after its reply is missed.
            let released = queue.released.notified();
            let decision = self.request().await?;
            if decision.allowed() {
                continue;
            }
            let retry_at = self.calls.retry_at(&decision);
            if retry_at > self.end {
                return Ok(decision);
            }
            let jitter = queue.jitter(clock.elapsed());
            race(released, clock.sleep_until(retry_at.saturating_add(jitter).min(self.end))).await;
        }
    }

    /// Sends one request. Returns the decision on this caller's permits.
    async fn request(&self) -> Result<AcquireDecision, Error> {
        let tickets = RequestedTickets(self.calls.queue.request(&self.ticket));
        let new_entry = |ticket: &Arc<WaitTicket>| -> Result<PermitsEntry, EngineError> {
            Ok(PermitsEntry { permits: ticket.permits, id: random_id()? })
        };
        let entries: Result<Vec<_>, _> = tickets.0.iter().map(new_entry).collect();
        let entries = entries?;
        let (first, taken) = self.calls.take(&entries, self.end).await?;
        let of_gone = |(ticket, entry): (&Arc<WaitTicket>, &PermitsEntry)| {
            (!ticket.take(*entry, first.remaining)).then_some(*entry)
        };
        let unused = tickets.0.iter().zip(&entries).take(taken).filter_map(of_gone).collect();
        drop(UndoOnDrop::new(self.calls, unused));
        Ok(first)
    }
}

impl Drop for TurnWaiter<'_> {
    fn drop(&mut self) {
        self.calls.queue.remove(&self.ticket);
        let unused = self.ticket.abandon().into_iter().collect();
        drop(UndoOnDrop::new(self.calls, unused));
    }
}

/// The callers of a request. Those whose permits it has not taken wait on.
struct RequestedTickets(Vec<Arc<WaitTicket>>);

impl Drop for RequestedTickets {
    fn drop(&mut self) {
        self.0.iter().for_each(|ticket| ticket.wait_on());
    }
}
