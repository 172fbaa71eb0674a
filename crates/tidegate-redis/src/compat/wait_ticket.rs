//! The place of a caller in the queue of a limiter.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// An entry of a limiter that takes permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PermitsEntry {
    pub(crate) permits: u32,
    pub(crate) id: [u8; 16],
}

/// A caller in the queue of a limiter. The caller at the head requests permits for those behind it.
#[derive(Debug)]
pub(crate) struct WaitTicket {
    pub(crate) permits: u32,
    state: Mutex<TicketState>,
    changed: Notify,
}

#[derive(Debug)]
enum TicketState {
    Waiting,
    /// A request that includes its permits is in flight.
    Requested,
    /// The permits were taken by this entry, and its caller does not know yet.
    Taken(PermitsEntry, u64),
    /// Its caller knows, or no longer waits.
    Left,
}

/// What a caller finds that stops waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaving {
    Left,
    /// A request for its permits is in flight.
    Requested,
    /// Its permits were taken, and so many remained.
    Taken(u64),
}

impl WaitTicket {
    pub(crate) fn new(permits: u32) -> Self {
        Self { permits, state: Mutex::new(TicketState::Waiting), changed: Notify::new() }
    }

    /// Includes it in a request. False if its caller no longer waits.
    pub(crate) fn request(&self) -> bool {
        let mut state = self.state();
        let is_waiting = matches!(*state, TicketState::Waiting);
        if is_waiting {
            *state = TicketState::Requested;
        }
        is_waiting
    }

    /// The request was denied, or has no result.
    pub(crate) fn wait_on(&self) {
        let mut state = self.state();
        if matches!(*state, TicketState::Requested) {
            *state = TicketState::Waiting;
            self.changed.notify_one();
        }
    }

    /// The request has taken its permits. False if its caller no longer waits.
    pub(crate) fn take(&self, entry: PermitsEntry, remaining: u64) -> bool {
        let mut state = self.state();
        let is_requested = matches!(*state, TicketState::Requested);
        if is_requested {
            *state = TicketState::Taken(entry, remaining);
            self.changed.notify_one();
        }
        is_requested
    }

    /// Its caller stops waiting, unless a request for it is in flight.
    pub(crate) fn leave(&self) -> Leaving {
        let mut state = self.state();
        let found = match *state {
            TicketState::Waiting | TicketState::Left => Leaving::Left,
            TicketState::Requested => return Leaving::Requested,
            TicketState::Taken(_, remaining) => Leaving::Taken(remaining),
        };
        *state = TicketState::Left;
        found
    }

    /// Its caller uses the permits if they were taken. Returns how many remained.
    pub(crate) fn use_permits(&self) -> Option<u64> {
        let mut state = self.state();
        let TicketState::Taken(_, remaining) = *state else { return None };
        *state = TicketState::Left;
        Some(remaining)
    }

    /// Its caller stops waiting. Returns the entry that it has not used.
    pub(crate) fn abandon(&self) -> Option<PermitsEntry> {
        let found = std::mem::replace(&mut *self.state(), TicketState::Left);
        if let TicketState::Taken(entry, _) = found { Some(entry) } else { None }
    }

    /// Waits until its permits are taken.
    pub(crate) async fn taken(&self) {
        while !matches!(*self.state(), TicketState::Taken(..)) {
            self.changed().await;
        }
    }

    /// Waits until a request has ended, or returns at once if one has since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: PermitsEntry = PermitsEntry { permits: 1, id: [7; 16] };

    #[test]
    fn permits_of_a_caller_that_is_gone_are_returned_once() {
        let ticket = WaitTicket::new(1);
        assert!(ticket.request());
        assert_eq!(ticket.leave(), Leaving::Requested, "the request decides");
        assert!(ticket.take(ENTRY, 3));
        assert_eq!(ticket.leave(), Leaving::Taken(3));
        assert_eq!(ticket.abandon(), None, "its caller has the permits");

        let ticket = WaitTicket::new(1);
        assert!(ticket.request());
        assert_eq!(ticket.abandon(), None, "not taken yet");
        assert!(!ticket.take(ENTRY, 3), "the request returns them");
        assert!(!ticket.request());

        let ticket = WaitTicket::new(1);
        assert!(ticket.request() && ticket.take(ENTRY, 3));
        assert_eq!(ticket.abandon(), Some(ENTRY), "taken, and not used");

        let ticket = WaitTicket::new(1);
        assert!(ticket.request());
        ticket.wait_on();
        assert!(ticket.request(), "a denied request is repeated");
        ticket.wait_on();
        assert_eq!(ticket.leave(), Leaving::Left);
    }
}
