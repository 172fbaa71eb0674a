//! Sends a command to the server that owns its key.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, sleep};

use crate::connection::error::CallError;
use crate::connection::server_error::{ErrorClass, ModuleRefusal};
use crate::connection::server_identity::ServerIdentity;
use crate::connection::supervisor::{
    ConnectTarget, ConnectionSettings, OnConnect, PrimaryLocator, PrimaryTarget,
    SupervisedConnection, WireCommand,
};
use crate::durability::data_loss::DataLossLog;
use crate::durability::replica_ack::{self, ConfirmableReply, ReplicaAckPool, SendVia};
use crate::topology::cluster::Cluster;
use crate::topology::deployment::{Deployment, ServerSet};
use crate::topology::hash_slot::HashSlot;
use crate::topology::sentinel::SentinelWatcher;

/// The connections of one deployment. Clones share them.
#[derive(Clone)]
pub(crate) enum Router {
    /// One server owns all keys. Calls that replicas must confirm use the pool.
    One(SupervisedConnection, Option<ReplicaAckPool>),
    /// The primary that sentinels name owns all keys.
    Primary(SupervisedConnection, Option<ReplicaAckPool>),
    /// Each slot has an owner.
    Cluster(Cluster),
}

impl Router {
    pub(crate) fn new(
        deployment: Deployment,
        mut settings: ConnectionSettings,
        data_loss: DataLossLog,
    ) -> Self {
        let Deployment { servers, dialer } = deployment;
        let log = data_loss.clone();
        let on_connect: OnConnect = Arc::new(move |server| log.connected(server));
        match servers {
            ServerSet::One(endpoint) => {
                settings.on_connect = Some(on_connect);
                let connect = |settings| {
                    SupervisedConnection::new(endpoint.clone(), dialer.clone(), settings)
                };
                let pool = ReplicaAckPool::new(&settings, connect);
                Self::One(connect(settings), pool)
            }
            ServerSet::Sentinel(sentinels) => {
                let span = settings.connect_deadline;
                let watcher = SentinelWatcher::new(sentinels, dialer.clone(), span);
                let locator: Arc<dyn PrimaryLocator> = Arc::new(watcher);
                let primary = || PrimaryTarget::new(Arc::clone(&locator));
                // A replica may be promoted at any moment, and all calls wait for this connection.
                let (&min, &max) = (settings.backoff.start(), settings.backoff.end());
                settings.backoff = min..=max.min(MAX_PAUSE);
                settings.on_connect = Some(on_connect);
                let connect =
                    |target, settings| SupervisedConnection::new(target, dialer.clone(), settings);
                let pool = ReplicaAckPool::new(&settings, |settings| {
                    connect(ConnectTarget::PrimaryShared(primary()), settings)
                });
                Self::Primary(connect(ConnectTarget::Primary(primary()), settings), pool)
            }
            // A replaced server of a Cluster matters only if it owned slots, so the Cluster counts.
            ServerSet::Cluster(seeds) => {
                Self::Cluster(Cluster::new(seeds, dialer, settings, data_loss))
            }
        }
    }

    /// The deadline of a call that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        match self {
            Self::One(connection, _) | Self::Primary(connection, _) => connection.deadline(),
            Self::Cluster(cluster) => cluster.deadline(),
        }
    }

    /// The reply to `cmd`, whose keys are all in `slot`.
    pub(crate) async fn call_until(
        &self,
        end: Instant,
        slot: HashSlot,
        cmd: &Cmd,
    ) -> Result<Value, CallError> {
        self.send(end, slot, cmd, SendVia::Shared).await.map(|(value, _)| value)
    }

    /// The reply to `cmd`, whose keys are all in `slot`.
    pub(crate) async fn send(
        &self,
        end: Instant,
        slot: HashSlot,
        cmd: &Cmd,
        via: SendVia,
    ) -> Result<ConfirmableReply, CallError> {
        let (connection, pool) = match self {
            Self::One(connection, pool) | Self::Primary(connection, pool) => (connection, pool),
            Self::Cluster(cluster) => return cluster.send(end, slot, cmd, via).await,
        };
        let pool = pool.as_ref().filter(|_| via == SendVia::Confirmed);
        loop {
            let reply = replica_ack::send(pool, connection, end, WireCommand::Command(cmd)).await;
            let may_move = matches!(self, Self::Primary(..));
            if !may_move || !retry_after_failover(&reply, end).await {
                return reply;
            }
        }
    }

    /// How many replicas must confirm a write before it counts.
    pub(crate) fn replicas_to_confirm(&self) -> u32 {
        match self {
            Self::One(_, pool) | Self::Primary(_, pool) => {
                pool.as_ref().map_or(0, ReplicaAckPool::replicas)
            }
            Self::Cluster(cluster) => cluster.replicas_to_confirm(),
        }
    }

    /// Waits for a connection to the owner of `slot` on which a write can be sent.
    pub(crate) async fn ready(&self, end: Instant, slot: HashSlot) -> Result<(), CallError> {
        match self {
            Self::One(_, Some(pool)) | Self::Primary(_, Some(pool)) => pool.ready(end).await,
            Self::One(connection, _) | Self::Primary(connection, _) => connection.ready(end).await,
            Self::Cluster(cluster) => cluster.ready(end, slot).await,
        }
    }

    /// Whether one command may have keys of several slots.
    pub(crate) fn spans_slots(&self) -> bool {
        match self {
            Self::One(..) | Self::Primary(..) => true,
            Self::Cluster(_) => false,
        }
    }

    /// Whether calls are likely to be served.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::One(connection, _) | Self::Primary(connection, _) => connection.is_up(),
            Self::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// Why calls are not served; None if they are likely to be.
    pub(crate) fn error(&self) -> Option<Arc<str>> {
        match self {
            Self::One(connection, _) | Self::Primary(connection, _) => connection.error(),
            Self::Cluster(cluster) => cluster.error(),
        }
    }

    /// The number of servers that own keys, as far as they are known.
    pub(crate) fn shards(&self) -> u32 {
        match self {
            Self::One(..) | Self::Primary(..) => 1,
            Self::Cluster(cluster) => cluster.shards(),
        }
    }

    /// A setting of a server that should be changed, or a call that was not confirmed.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        match self {
            Self::One(connection, pool) | Self::Primary(connection, pool) => {
                connection.warning().or_else(|| pool.as_ref()?.warning())
            }
            Self::Cluster(cluster) => cluster.warning(),
        }
    }

    /// A number that identifies the owner of `slot` in [`tidegate::Shards`].
    pub(crate) fn shard_index(&self, slot: HashSlot) -> usize {
        match self {
            Self::One(..) | Self::Primary(..) => 0,
            Self::Cluster(cluster) => cluster.shard_index(slot),
        }
    }

    /// Whether the owner of `slot` has the native module.
    pub(crate) fn has_module(&self, slot: HashSlot) -> bool {
        match self {
            Self::One(connection, _) | Self::Primary(connection, _) => connection.has_module(),
            Self::Cluster(cluster) => cluster.has_module(slot),
        }
    }

    /// The owner of `slot` has refused the native module.
    pub(crate) fn module_refused(&self, slot: HashSlot, refusal: ModuleRefusal) {
        match self {
            Self::One(connection, _) | Self::Primary(connection, _) => {
                connection.module_refused(refusal);
            }
            Self::Cluster(cluster) => cluster.module_refused(slot, refusal),
        }
    }

    /// The identity of the owner of `slot`, if it reports one.
    pub(crate) fn identity(&self, slot: HashSlot) -> Option<Arc<ServerIdentity>> {
        match self {
            Self::One(connection, _) | Self::Primary(connection, _) => connection.identity(),
            Self::Cluster(cluster) => cluster.identity(slot),
        }
    }

    /// Changes when `slot` may have another owner, or its owner may have restarted.
    pub(crate) fn generation(&self, slot: HashSlot) -> u64 {
        match self {
            Self::One(connection, _) | Self::Primary(connection, _) => connection.generation(),
            Self::Cluster(cluster) => cluster.generation(slot),
        }
    }
}

/// Longest pause between attempts to connect to a primary.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// Pauses and returns true if a failover is in progress and the call may be retried. Only errors
/// that prove that nothing was executed count: servers reply with these before the command begins,
/// or at the first write of a script, and the scripts check everything before that.
async fn retry_after_failover<T>(reply: &Result<T, CallError>, end: Instant) -> bool {
    const PAUSE: Duration = Duration::from_millis(5);
    let Err(CallError::ServerError(error)) = reply else { return false };
    // Only with time left for another reply: a timeout would make the result ambiguous.
    let retry =
        ErrorClass::of(error).is_retryable_in_failover() && Instant::now() + 3 * PAUSE <= end;
    if retry {
        sleep(PAUSE).await;
    }
    retry
}
