//! Connection limit of all listeners together.
//!
//! An eighth of the limit is reserved for each listener; the rest is shared. So one listener can
//! use three quarters of it, and cannot starve another.
//!
//! At the limit, a new connection can replace the oldest one of its listener that has not sent a
//! request yet, so that slow and silent sockets do not keep other clients out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use crate::observe::metrics::ListenerKind;

/// Connection limit of all listeners together.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    reserved: usize,
    shared: usize,
    listeners: Mutex<[OpenConnections; ListenerKind::ALL.len()]>,
}

/// Connections of one listener.
#[derive(Default, Debug)]
struct OpenConnections {
    count: usize,
    accepted: u64,
    /// Connections without a request: the oldest first, with their tasks.
    without_request: BTreeMap<u64, Option<AbortHandle>>,
}

#[derive(Debug)]
#[must_use = "the connection no longer counts once this is dropped"]
pub(crate) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    listener: ListenerKind,
    /// Number of connections of the listener that were accepted before.
    number: u64,
    has_request: AtomicBool,
}

impl ConnectionLimit {
    /// A limit of `max_connections`.
    pub(crate) fn new(max_connections: usize) -> Self {
        let reserved = max_connections / 8;
        let shared = max_connections - ListenerKind::ALL.len() * reserved;
        Self { reserved, shared, listeners: Mutex::default() }
    }

    /// A permit for a connection of this listener; none at capacity.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        listener: ListenerKind,
    ) -> Option<Arc<ConnectionPermit>> {
        let mut listeners = self.listeners();
        let shared: usize =
            listeners.iter().map(|open| open.count.saturating_sub(self.reserved)).sum();
        let open = &mut listeners[listener as usize];
        if open.count >= self.reserved && shared >= self.shared {
            return None;
        }
        open.count += 1;
        Some(self.add(listener, open))
    }

    /// Closes the oldest connection of this listener without a request, and returns its permit for
    /// a new one; none if every connection has had a request.
    pub(crate) fn replace_oldest(
        self: &Arc<Self>,
        listener: ListenerKind,
    ) -> Option<Arc<ConnectionPermit>> {
        let mut listeners = self.listeners();
        let open = &mut listeners[listener as usize];
        let (_, task) = open.without_request.pop_first()?;
        let permit = self.add(listener, open);
        drop(listeners);
        if let Some(task) = task {
            task.abort();
        }
        Some(permit)
    }

    fn add(
        self: &Arc<Self>,
        listener: ListenerKind,
        open: &mut OpenConnections,
    ) -> Arc<ConnectionPermit> {
        let number = open.accepted;
        open.accepted += 1;
        open.without_request.insert(number, None);
        let has_request = AtomicBool::new(false);
        Arc::new(ConnectionPermit { limit: self.clone(), listener, number, has_request })
    }

    fn listeners(&self) -> MutexGuard<'_, [OpenConnections; ListenerKind::ALL.len()]> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Sets the task that serves the connection. It is aborted if a new connection replaces this
    /// one.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        let open = &mut self.limit.listeners()[self.listener as usize];
        if let Some(entry) = open.without_request.get_mut(&self.number) {
            *entry = Some(task);
        }
    }

    /// Called with every request, before it is processed: from the first on, the connection is not
    /// replaced. False if it has been.
    pub(crate) fn note_request(&self) -> bool {
        if self.has_request.load(Ordering::Relaxed) {
            return true;
        }
        let open = &mut self.limit.listeners()[self.listener as usize];
        let is_first = open.without_request.remove(&self.number).is_some();
        // Requests of one HTTP/2 connection may begin at the same time.
        self.has_request.fetch_or(is_first, Ordering::Relaxed) || is_first
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let open = &mut self.limit.listeners()[self.listener as usize];
        let is_waiting = open.without_request.remove(&self.number).is_some();
        // Otherwise its place was given to a new connection.
        if is_waiting || *self.has_request.get_mut() {
            open.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESP: ListenerKind = ListenerKind::Resp;

    fn fill(limit: &Arc<ConnectionLimit>, listener: ListenerKind) -> Vec<Arc<ConnectionPermit>> {
        std::iter::from_fn(|| limit.acquire(listener)).collect()
    }

    #[test]
    fn one_listener_cannot_starve_another() {
        for max in [1, 2, 7, 8, 24, 100, 10_000] {
            let limit = Arc::new(ConnectionLimit::new(max));
            let resp = fill(&limit, RESP);
            assert_eq!(resp.len(), max - 2 * (max / 8), "{max}");
            let others = [ListenerKind::Http, ListenerKind::Grpc].map(|other| fill(&limit, other));
            assert!(others.iter().all(|permits| permits.len() == max / 8), "{max}");
            drop(resp);
            assert!(limit.acquire(ListenerKind::Grpc).is_some(), "closed connections free permits");
        }
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest_without_a_request() {
        let limit = Arc::new(ConnectionLimit::new(8));
        let permits = fill(&limit, RESP);
        let mut tasks = Vec::new();
        for permit in &permits {
            let task = tokio::spawn(std::future::pending::<()>());
            permit.set_task(task.abort_handle());
            tasks.push(task);
        }
        assert!(permits[0].note_request() && permits[0].note_request());
        let new = limit.replace_oldest(RESP).expect("the second has no request");
        assert!(!permits[1].note_request(), "replaced");
        assert!(tasks.remove(1).await.expect_err("aborted").is_cancelled());
        assert!(tasks.iter().all(|task| !task.is_finished()), "the others go on");
        assert!(permits[2..].iter().chain([&new]).all(|permit| permit.note_request()));
        assert!(limit.replace_oldest(RESP).is_none(), "all have had a request");
        assert!(limit.replace_oldest(ListenerKind::Http).is_none(), "of its own listener only");
        let max = permits.len();
        drop((permits, new));
        assert_eq!(fill(&limit, RESP).len(), max, "each is given back once");
    }
}
