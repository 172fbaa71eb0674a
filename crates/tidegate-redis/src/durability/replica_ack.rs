//! Charges that count only when replicas have them.
//!
//! `WAIT` reports how many replicas have everything that was written on its own connection, and
//! blocks that connection until then. So calls that must be confirmed use extra connections, a few
//! for each server, and each of these has one call at a time.
//!
//! `WAIT` is sent after the script's reply, and only if there is something to confirm. Sent
//! together with the script, it would save one round trip. But then denied calls would wait for
//! replicas as well, and while one replica is stuck, denials would block every connection: an idle
//! server ends a `WAIT` up to a tenth of a second late.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate::EngineError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::connection::error::CallError;
use crate::connection::pinned::Pinned;
use crate::connection::supervisor::{ConnectionSettings, SupervisedConnection, WireCommand};
use crate::connection::timing::{deadline_after, require_runtime};
use crate::durability::unconfirmed::Unconfirmed;

/// Connections per server, and calls in flight on them.
const CONNECTIONS: usize = 4;
/// Time reserved at the end of a call to report that it was not confirmed; at most a tenth of the
/// time left.
const REPLY_MARGIN: Duration = Duration::from_millis(2);
/// How late the reply to `WAIT` may be. A server checks ten times a second, and may be busy.
const WAIT_GRACE: Duration = Duration::from_secs(1);
/// Longest `WAIT`; a number that every server accepts.
const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// The connection on which a command is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendVia {
    /// The one that all callers share.
    Shared,
    /// One of the pool for writes that replicas must confirm, if any must.
    Confirmed,
}

/// A reply, and the handle that confirms the write if replicas must.
pub(crate) type ConfirmableReply = (Value, Option<PendingAck>);

/// The connections to one server for calls that replicas must confirm. Clones share them.
#[derive(Clone)]
pub(crate) struct ReplicaAckPool(Arc<PoolInner>);

struct PoolInner {
    replicas: u32,
    free: Mutex<Vec<SupervisedConnection>>,
    permits: Arc<Semaphore>,
    /// Why the latest call was not confirmed; None if it was.
    warning: Mutex<Option<Arc<str>>>,
}

impl ReplicaAckPool {
    /// None if no replicas are to confirm. Starts to connect.
    pub(crate) fn new(
        settings: &ConnectionSettings,
        connect: impl Fn(ConnectionSettings) -> SupervisedConnection,
    ) -> Option<Self> {
        let replicas = settings.wait_for_replicas;
        // A `PING` has to wait behind a `WAIT`.
        let silence = settings.silence.saturating_add(settings.deadline);
        let free = || {
            let settings = ConnectionSettings { silence, ..settings.clone() };
            (0..CONNECTIONS).map(|_| connect(settings.clone())).collect()
        };
        (replicas > 0).then(|| {
            let permits = Semaphore::new(CONNECTIONS).into();
            let (free, warning) = (Mutex::new(free()), Mutex::default());
            Self(Arc::new(PoolInner { replicas, free, permits, warning }))
        })
    }

    /// Waits until one of the connections is free.
    pub(crate) async fn ready(&self, end: Instant) -> Result<(), CallError> {
        self.reserve(end).await.map(drop)
    }

    pub(crate) fn replicas(&self) -> u32 {
        self.0.replicas
    }

    /// Why the latest call was not confirmed; None if it was.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        lock(&self.0.warning).clone()
    }

    async fn reserve(&self, end: Instant) -> Result<PendingAck, CallError> {
        require_runtime()?;
        let permit = timeout_at(end, Arc::clone(&self.0.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            let text =
                "all connections for WAIT are busy; check replica lag, or raise the deadline";
            return Err(CallError::not_sent(text));
        };
        let pooled = PooledConnection::new(&self.0, permit)?;
        let pinned = pooled.connection.pinned(end).await?;
        Ok(PendingAck { pooled, pinned })
    }
}

/// Sends on a connection of `pool`, or on `shared` if there is no pool.
pub(crate) async fn send(
    pool: Option<&ReplicaAckPool>,
    shared: &SupervisedConnection,
    end: Instant,
    outgoing: WireCommand<'_>,
) -> Result<ConfirmableReply, CallError> {
    match pool {
        Some(pool) => {
            let ack = pool.reserve(end).await?;
            Ok((ack.pinned.send(end, outgoing).await?, Some(ack)))
        }
        None => Ok((shared.send(end, outgoing).await?, None)),
    }
}

/// A connection in exclusive use. Dropping it returns it to the pool.
struct PooledConnection {
    connection: SupervisedConnection,
    pool: Arc<PoolInner>,
    _permit: OwnedSemaphorePermit,
}

impl PooledConnection {
    fn new(pool: &Arc<PoolInner>, permit: OwnedSemaphorePermit) -> Result<Self, CallError> {
        let mut free = lock(&pool.free);
        // Prefers one that is connected, and of these the most recently used.
        let index =
            free.iter().rposition(SupervisedConnection::is_connected).or(free.len().checked_sub(1));
        let connection = index.map(|index| free.remove(index));
        drop(free);
        // There are as many connections as permits.
        let connection = connection.ok_or_else(|| CallError::not_sent("no connection"))?;
        Ok(Self { connection, pool: Arc::clone(pool), _permit: permit })
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        lock(&self.pool.free).push(self.connection.clone());
    }
}

/// The connection of a call, on which `WAIT` counts the replicas that have its write.
pub(crate) struct PendingAck {
    pooled: PooledConnection,
    pinned: Pinned,
}

impl PendingAck {
    /// Completes when enough replicas have everything that was written on this connection. With
    /// `probe`, a write that changes nothing, they have every earlier write of any connection.
    pub(crate) async fn confirm(self, end: Instant, probe: Option<Cmd>) -> Result<(), EngineError> {
        let pool = Arc::clone(&self.pooled.pool);
        let wanted = pool.replicas;
        let left = end.saturating_duration_since(Instant::now());
        let margin = REPLY_MARGIN.min(left / 10);
        let span = left.saturating_sub(2 * margin).min(MAX_WAIT);
        let late = Unconfirmed::Late { wanted };
        if left.is_zero() {
            return Err(late.into());
        }
        // A caller that gives up or is dropped leaves the connection blocked, and it must not be
        // reused before `WAIT` has replied. So a task waits for that reply.
        let reply = tokio::spawn(self.wait(wanted, span, probe));
        let confirmed = match timeout_at(end - margin, reply).await {
            Ok(Ok(Ok(Value::Int(got)))) if got >= i64::from(wanted) => Ok(()),
            Ok(Ok(Ok(Value::Int(got)))) => Err(Unconfirmed::Few { got, wanted }),
            Ok(Ok(Ok(_))) => Err(Unconfirmed::Unreadable { wanted }),
            Ok(Ok(Err(why))) => Err(Unconfirmed::Refused { wanted, why }),
            Ok(Err(_)) | Err(_) => Err(late),
        };
        *lock(&pool.warning) = confirmed.as_ref().err().map(|why| why.to_string().into());
        confirmed.map_err(Into::into)
    }

    async fn wait(
        self,
        replicas: u32,
        span: Duration,
        probe: Option<Cmd>,
    ) -> Result<Value, CallError> {
        let mut cmds = redis::pipe();
        probe.map(|probe| cmds.add_command(probe));
        // With a timeout of 0, WAIT would block forever.
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
        cmds.cmd("WAIT").arg(replicas).arg(ms);
        let reply =
            self.pinned.send(deadline_after(span + WAIT_GRACE), WireCommand::Pipeline(&cmds)).await;
        if matches!(reply, Err(CallError::TimedOut)) {
            self.pinned.abandon();
        }
        reply
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
