//! Calls through a Cluster: to the primary that owns the slot, following redirects when it moves.
//! Imports: hash_slot.
//!
//! `slot_map` knows the owner of each slot and has a connection to each node. `node_view` parses
//! what one node reports and merges the views of several. `refresh` keeps the map up to date.
//! `redirect` classifies the errors of a node.

pub(crate) mod node_view;
mod redirect;
mod refresh;
pub(crate) mod slot_map;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisError};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::dial::Dialer;
use crate::connection::endpoint::Endpoint;
use crate::connection::error::CallError;
use crate::connection::server_error::ModuleRefusal;
use crate::connection::server_identity::ServerIdentity;
use crate::connection::supervisor::{ConnectionSettings, WireCommand};
use crate::connection::timing::{deadline_after, jittered, race, require_runtime};
use crate::durability::data_loss::DataLossLog;
use crate::durability::replica_ack::{self, ConfirmableReply, ReplicaAckPool, SendVia};
use crate::topology::hash_slot::HashSlot;
use redirect::Redirect;
use refresh::ClusterInner;
use slot_map::ClusterNode;

/// The primaries of one Cluster. Clones share their connections, and dropping the last one closes
/// them. Replicas only report the slot map and never decide.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<ClusterHandle>);

/// Ends the refresh task when the last [`Cluster`] is dropped. The task itself owns only `inner`.
struct ClusterHandle {
    inner: Arc<ClusterInner>,
    refresher: Mutex<Option<AbortHandle>>,
}

impl Cluster {
    /// How often a call follows `MOVED` and `ASK`. One is usual and two are rare. More mean that
    /// the nodes disagree; the pauses in between give them time to agree.
    const MAX_REDIRECTS: u32 = 8;

    /// Starts to read the slot map if this is a Tokio runtime; otherwise the first call does.
    pub(crate) fn new(
        seeds: Vec<Endpoint>,
        dialer: Dialer,
        settings: ConnectionSettings,
        data_loss: DataLossLog,
    ) -> Self {
        let inner = Arc::new(ClusterInner::new(seeds, dialer, settings, data_loss));
        let cluster = Self(Arc::new(ClusterHandle { inner, refresher: Mutex::new(None) }));
        cluster.start();
        cluster
    }

    /// The deadline of a call that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        deadline_after(self.0.inner.settings.deadline)
    }

    /// The reply to `cmd`, whose keys are all in `slot`, from the primary that owns it.
    ///
    /// After an error that proves that nothing was executed, the call is redirected or retried
    /// until the deadline. A call that may have executed is never sent again.
    pub(crate) async fn send(
        &self,
        end: Instant,
        slot: HashSlot,
        cmd: &Cmd,
        via: SendVia,
    ) -> Result<ConfirmableReply, CallError> {
        require_runtime()?;
        let mut budget = RetryBudget::new(end);
        let mut importer: Option<Arc<ClusterNode>> = None;
        loop {
            let asking = importer.is_some();
            let (node, outgoing) = match importer.take() {
                Some(node) => (node, WireCommand::Asking(cmd)),
                None => (self.owner(end, slot).await?, WireCommand::Command(cmd)),
            };
            let pool = self.pool(&node, via);
            let reply = replica_ack::send(pool.as_ref(), &node.connection, end, outgoing).await;
            let error = match reply {
                Ok(value) => {
                    node.serves.store(true, Ordering::Relaxed);
                    return Ok(value);
                }
                Err(CallError::ServerError(error)) => error,
                // It may have executed; or nothing was sent, but there is no time left either.
                Err(other) => {
                    self.request_refresh();
                    return Err(other);
                }
            };
            let redirect = Redirect::of(&error, slot, &node.endpoint);
            match &redirect {
                Redirect::Moved(endpoint) => {
                    self.set_owner(slot, endpoint);
                    self.0.inner.moved.notify_one();
                    self.request_refresh();
                }
                Redirect::Ask(endpoint) => importer = self.node_at(endpoint),
                Redirect::TryAgain => {}
                Redirect::Unsettled { serves } => {
                    node.serves.store(*serves, Ordering::Relaxed);
                    self.request_refresh();
                }
                Redirect::Final => return Err(CallError::ServerError(error)),
            }
            let retry = match redirect {
                Redirect::Moved(_) | Redirect::Ask(_) => budget.hop().await,
                // It will be redirected here again, as long as the slot is being migrated.
                Redirect::TryAgain if asking => budget.take_back_hop().pause().await,
                _ => budget.pause().await,
            };
            if let Err(exhausted) = retry {
                return Err(CallError::ServerError(exhausted.explain(error)));
            }
        }
    }

    fn pool(&self, node: &ClusterNode, via: SendVia) -> Option<ReplicaAckPool> {
        match via {
            SendVia::Shared => None,
            SendVia::Confirmed => self.0.inner.pool_of(node),
        }
    }

    /// How many replicas must confirm a write before it counts.
    pub(crate) fn replicas_to_confirm(&self) -> u32 {
        self.0.inner.settings.wait_for_replicas
    }

    /// Waits for a connection to the primary of `slot` on which a write can be sent.
    pub(crate) async fn ready(&self, end: Instant, slot: HashSlot) -> Result<(), CallError> {
        let node = self.owner(end, slot).await?;
        match self.pool(&node, SendVia::Confirmed) {
            Some(pool) => pool.ready(end).await,
            None => node.connection.ready(end).await,
        }
    }

    /// Whether more than half of the slots are served, as far as is known.
    ///
    /// Not all of them: the loss of one shard is the same for every process, and a load balancer
    /// that removes processes that are not up would remove all of them.
    pub(crate) fn is_up(&self) -> bool {
        self.0.inner.map.borrow().served() > usize::from(HashSlot::COUNT / 2)
    }

    /// Why some slots are not served; None if all are.
    pub(crate) fn error(&self) -> Option<Arc<str>> {
        self.0.inner.map.borrow().error()
    }

    /// The number of primaries, as far as they are known.
    pub(crate) fn shards(&self) -> u32 {
        self.0.inner.map.borrow().primaries()
    }

    /// A setting of a server that should be changed, or a call that was not confirmed.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        let unconfirmed = |node: &Arc<ClusterNode>| node.pool.get()?.as_ref()?.warning();
        let map = self.0.inner.map.borrow();
        map.nodes().find_map(|node| node.connection.warning().or_else(|| unconfirmed(node)))
    }

    /// Changes when `slot` gets another primary, or its primary another connection.
    pub(crate) fn generation(&self, slot: HashSlot) -> u64 {
        self.0.inner.map.borrow().generation(slot)
    }

    /// Whether the primary of `slot` has the native module.
    pub(crate) fn has_module(&self, slot: HashSlot) -> bool {
        self.0.inner.map.borrow().owner(slot).is_ok_and(|node| node.connection.has_module())
    }

    /// The primary of `slot` has refused the native module.
    pub(crate) fn module_refused(&self, slot: HashSlot, refusal: ModuleRefusal) {
        if let Ok(node) = self.0.inner.map.borrow().owner(slot) {
            node.connection.module_refused(refusal);
        }
    }

    /// The identity of the primary of `slot`, if it reports one.
    pub(crate) fn identity(&self, slot: HashSlot) -> Option<Arc<ServerIdentity>> {
        self.0.inner.map.borrow().owner(slot).ok()?.connection.identity()
    }

    /// The shard index of the primary of `slot`; 0 if there is none.
    pub(crate) fn shard_index(&self, slot: HashSlot) -> usize {
        self.0.inner.map.borrow().owner(slot).map_or(0, |node| node.shard_index)
    }

    /// The primary of `slot`, as soon as there is a connection to it.
    async fn owner(&self, end: Instant, slot: HashSlot) -> Result<Arc<ClusterNode>, CallError> {
        let inner = &self.0.inner;
        if let Ok(node) = inner.map.borrow().owner(slot)
            && node.connection.is_connected()
        {
            return Ok(node);
        }
        let mut map = inner.map.subscribe();
        loop {
            let owner = map.borrow_and_update().owner(slot);
            let connected = async {
                match &owner {
                    Ok(node) => node.connection.connected().await,
                    Err(_) => std::future::pending().await,
                }
            };
            let changed = async {
                let _ = map.changed().await;
            };
            self.request_refresh();
            // In slices: each one starts the refresh task again if its runtime was shut down.
            let slice = end.min(deadline_after(refresh::MIN_INTERVAL));
            let _ = timeout_at(slice, race(connected, changed)).await;
            match owner {
                Ok(node) if node.connection.is_connected() => return Ok(node),
                Ok(node) if Instant::now() >= end => {
                    return Err(CallError::NotSent(node.connection.failure()));
                }
                Err(failure) if Instant::now() >= end => return Err(CallError::NotSent(failure)),
                _ => {}
            }
        }
    }

    fn set_owner(&self, slot: HashSlot, endpoint: &Endpoint) {
        let Some(node) = self.node_at(endpoint) else { return };
        self.0.inner.map.send_if_modified(|map| map.set_owner(slot, &node));
    }

    /// None if redirects have named too many nodes that no view lists.
    fn node_at(&self, endpoint: &Endpoint) -> Option<Arc<ClusterNode>> {
        let inner = &self.0.inner;
        if let Some(node) = inner.map.borrow().node_at(endpoint) {
            return Some(node);
        }
        let mut node = None;
        inner.map.send_if_modified(|map| {
            node = map.unlisted_node(endpoint, || inner.connect(endpoint));
            false
        });
        node
    }

    /// Requests a refresh of the slot map soon.
    fn request_refresh(&self) {
        self.start();
        self.0.inner.doubt.notify_one();
    }

    /// Starts the refresh task; a new one if the runtime of the previous one was shut down.
    fn start(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut refresher = self.0.refresher.lock().unwrap_or_else(PoisonError::into_inner);
        if refresher.as_ref().is_none_or(AbortHandle::is_finished) {
            let inner = Arc::clone(&self.0.inner);
            *refresher = Some(runtime.spawn(async move { inner.refresh().await }).abort_handle());
        }
    }
}

impl Drop for ClusterHandle {
    fn drop(&mut self) {
        let refresher = self.refresher.get_mut().unwrap_or_else(PoisonError::into_inner);
        refresher.iter().for_each(AbortHandle::abort);
    }
}

/// The time and the redirects that a call has left.
struct RetryBudget {
    end: Instant,
    /// Time that an attempt needs: a later one would most likely time out, and its result would be
    /// ambiguous.
    least: Duration,
    pause: Duration,
    hops: u32,
}

/// Why a call is not retried.
enum BudgetExhausted {
    Time,
    Hops,
}

impl RetryBudget {
    const MIN_PAUSE: Duration = Duration::from_millis(2);
    const MAX_PAUSE: Duration = Duration::from_millis(32);
    const MIN_TIME_LEFT: Duration = Duration::from_millis(5);

    fn new(end: Instant) -> Self {
        let span = end.saturating_duration_since(Instant::now());
        Self { end, least: Self::MIN_TIME_LEFT.min(span / 5), pause: Self::MIN_PAUSE, hops: 0 }
    }

    /// Follows a redirect. Pauses from the third on: one of the two nodes knows of a migrated slot
    /// a moment before the other.
    async fn hop(&mut self) -> Result<(), BudgetExhausted> {
        self.hops += 1;
        match self.hops {
            0..=2 if Instant::now() < self.end => Ok(()),
            0..=2 => Err(BudgetExhausted::Time),
            hops if hops > Cluster::MAX_REDIRECTS => Err(BudgetExhausted::Hops),
            _ => self.pause().await,
        }
    }

    fn take_back_hop(&mut self) -> &mut Self {
        self.hops = self.hops.saturating_sub(1);
        self
    }

    /// Pauses twice as long each time, but leaves time for another attempt.
    async fn pause(&mut self) -> Result<(), BudgetExhausted> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left <= 2 * self.least {
            return Err(BudgetExhausted::Time);
        }
        sleep(jittered(self.pause).min(left / 2)).await;
        self.pause = Self::MAX_PAUSE.min(2 * self.pause);
        Ok(())
    }
}

impl BudgetExhausted {
    /// The last error, with the reason why it was the last.
    fn explain(self, error: Arc<RedisError>) -> Arc<RedisError> {
        match self {
            // It did not change before the deadline.
            Self::Time => error,
            Self::Hops => {
                let text = "too many redirects; check that CLUSTER SLOTS agrees on all nodes";
                let detail = error.detail().unwrap_or_default().to_owned();
                Arc::new((error.kind(), text, detail).into())
            }
        }
    }
}

#[cfg(test)]
mod tests;
