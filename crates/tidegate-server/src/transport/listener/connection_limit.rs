//! Connection limit of all listeners together.
//!
//! An eighth of the limit is reserved for each listener; the rest is shared. So one listener can
//! use three quarters of it, and cannot starve another.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::observe::metrics::ListenerKind;

/// Connection limit of all listeners together.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    reserved: [Arc<Semaphore>; ListenerKind::ALL.len()],
    shared: Arc<Semaphore>,
}

/// One open connection.
#[derive(Debug)]
#[must_use = "the connection no longer counts once this is dropped"]
pub(crate) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    /// A limit of `max_connections`.
    pub(crate) fn new(max_connections: usize) -> Self {
        let max = max_connections.min(Semaphore::MAX_PERMITS);
        let reserved = max / 8;
        Self {
            reserved: ListenerKind::ALL.map(|_| Arc::new(Semaphore::new(reserved))),
            shared: Arc::new(Semaphore::new(max - ListenerKind::ALL.len() * reserved)),
        }
    }

    /// A permit for a connection of this listener; none at capacity.
    pub(crate) fn acquire(&self, listener: ListenerKind) -> Option<ConnectionPermit> {
        let mut listeners = ListenerKind::ALL.iter().zip(&self.reserved);
        let reserved = listeners.find(|(other, _)| **other == listener)?.1;
        let permit = reserved.clone().try_acquire_owned();
        let permit = permit.or_else(|_| self.shared.clone().try_acquire_owned());
        permit.ok().map(|permit| ConnectionPermit { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_listener_cannot_starve_another() {
        for max in [1, 2, 7, 8, 24, 100, 10_000] {
            let limit = ConnectionLimit::new(max);
            let fill =
                |listener| std::iter::from_fn(|| limit.acquire(listener)).collect::<Vec<_>>();
            let resp = fill(ListenerKind::Resp);
            assert_eq!(resp.len(), max - 2 * (max / 8), "{max}");
            let others = [fill(ListenerKind::Http), fill(ListenerKind::Grpc)];
            assert!(others.iter().all(|permits| permits.len() == max / 8), "{max}");
            drop(resp);
            assert!(limit.acquire(ListenerKind::Grpc).is_some(), "closed connections free permits");
        }
    }
}
