//! One supervised connection to one server, or to the primary that a locator names.
//!
//! A multiplexed connection of the `redis` crate does not reconnect, and has only its own timeouts.
//! Here a supervisor task makes the connection, checks that it is alive, and replaces it. Every
//! call has one deadline around everything it does. `pinned` is for several commands that must use
//! the same connection.

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::connection::dial::{self, Dialer, RawConnection};
use crate::connection::endpoint::Endpoint;
use crate::connection::error::{CallError, ConnectFailure};
use crate::connection::handshake::{ServerInfo, check_ping, handshake, query_module, rejection};
use crate::connection::role::is_primary;
use crate::connection::server_error::{ErrorClass, ModuleRefusal};
use crate::connection::server_identity::ServerIdentity;
use crate::connection::timing::{deadline_after, jittered, race, require_runtime};

/// The timeouts of a [`SupervisedConnection`].
#[derive(Clone)]
pub(crate) struct ConnectionSettings {
    /// For one call, with the wait for a connection.
    pub(crate) deadline: Duration,
    /// For one attempt to connect: name, TCP, TLS, handshake and a first reply.
    pub(crate) connect_deadline: Duration,
    /// Pause between attempts: the shortest one, doubled each time up to the longest. Each is
    /// shortened by up to a half at random, so that a fleet does not reconnect at the same time.
    pub(crate) backoff: RangeInclusive<Duration>,
    /// A connection is sent a `PING` this often, and at once if a call timed out. Also one with
    /// replies: it may be out of step.
    pub(crate) idle: Duration,
    /// A connection without a reply to that `PING` or to any call for this long is dead.
    ///
    /// A time, and not a number of timeouts: 64 callers reach any number within one short pause of
    /// the server, and the reconnects of a whole fleet would delay its recovery.
    pub(crate) silence: Duration,
    /// Called with the identity of the server after each connect to the current endpoint.
    pub(crate) on_connect: Option<OnConnect>,
    /// How many replicas must confirm a charge before it counts; 0 for none.
    pub(crate) wait_for_replicas: u32,
}

/// Callback of [`ConnectionSettings::on_connect`].
pub(crate) type OnConnect = Arc<dyn Fn(&Arc<ServerIdentity>) + Send + Sync>;

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(25),
            connect_deadline: Duration::from_secs(1),
            // With the handshake, calls succeed within a second of the server's return.
            backoff: Duration::from_millis(10)..=Duration::from_millis(800),
            idle: Duration::from_secs(2),
            silence: Duration::from_secs(1),
            on_connect: None,
            wait_for_replicas: 0,
        }
    }
}

/// Where the primary is, or why that is not known.
pub(crate) type PrimaryLocation = Result<Endpoint, Arc<ConnectFailure>>;

/// Finds the primary, for example by querying Sentinel.
pub(crate) trait PrimaryLocator: Send + Sync {
    /// The name under which the primary and its replicas are monitored.
    fn master_name(&self) -> &str;

    fn subscribe(&self) -> watch::Receiver<PrimaryLocation>;

    /// The connection to the primary was lost: look for it now.
    fn suspect(&self);

    /// The server at `endpoint` reports that it is a replica.
    fn refute(&self, endpoint: &Endpoint);

    /// Keeps the location up to date while it is polled. Never completes.
    fn run(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// A locator and its latest result, which every call compares with its connection.
pub(crate) struct PrimaryTarget {
    locator: Arc<dyn PrimaryLocator>,
    location: watch::Receiver<PrimaryLocation>,
}

impl PrimaryTarget {
    pub(crate) fn new(locator: Arc<dyn PrimaryLocator>) -> Self {
        Self { location: locator.subscribe(), locator }
    }

    fn is_at(&self, endpoint: &Endpoint) -> bool {
        self.location.borrow().as_ref().ok() == Some(endpoint)
    }
}

/// Where a [`SupervisedConnection`] connects to.
pub(crate) enum ConnectTarget {
    Fixed(Endpoint),
    /// The primary. This connection runs the locator.
    Primary(PrimaryTarget),
    /// The primary. Another connection runs the locator.
    PrimaryShared(PrimaryTarget),
}

impl ConnectTarget {
    fn primary(&self) -> Option<&PrimaryTarget> {
        match self {
            Self::Fixed(_) => None,
            Self::Primary(primary) | Self::PrimaryShared(primary) => Some(primary),
        }
    }
}

impl From<Endpoint> for ConnectTarget {
    fn from(endpoint: Endpoint) -> Self {
        Self::Fixed(endpoint)
    }
}

/// One supervised connection to one server. Clones share it, and dropping the last one closes it.
///
/// A call may be dropped at any time. It is then either not sent at all, or its reply is discarded
/// when it arrives; no other call gets it.
#[derive(Clone)]
pub(crate) struct SupervisedConnection(pub(super) Arc<SupervisorHandle>);

/// Ends the supervisor when the last [`SupervisedConnection`] is dropped. The supervisor itself
/// owns only `inner`.
pub(super) struct SupervisorHandle {
    pub(super) inner: Arc<SupervisorInner>,
    supervisor: Mutex<Option<AbortHandle>>,
}

impl SupervisedConnection {
    /// Starts to connect if this is a Tokio runtime; otherwise the first call does.
    pub(crate) fn new(
        target: impl Into<ConnectTarget>,
        dialer: Dialer,
        settings: ConnectionSettings,
    ) -> Self {
        let target = target.into();
        let to = match &target {
            ConnectTarget::Fixed(endpoint) => format!("redis at {endpoint}"),
            ConnectTarget::Primary(primary) | ConnectTarget::PrimaryShared(primary) => {
                format!("the primary of {:?}", primary.locator.master_name())
            }
        };
        let failure = ConnectFailure(format!("not connected to {to} yet; retry")).into();
        let state = watch::Sender::new(SupervisorState { live: None, generation: 0, failure });
        let inner = Arc::new(SupervisorInner { settings, target, dialer, state });
        let handle = SupervisorHandle { inner, supervisor: Mutex::new(None) };
        let connection = Self(Arc::new(handle));
        connection.start();
        connection
    }

    /// The reply to `cmd`, within the deadline of the settings.
    #[cfg(test)]
    pub(crate) async fn call(&self, cmd: &Cmd) -> Result<Value, CallError> {
        self.call_until(deadline_after(self.0.inner.settings.deadline), cmd).await
    }

    /// The deadline of a call that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        deadline_after(self.0.inner.settings.deadline)
    }

    /// The reply to `cmd`. Several calls may share one deadline. An error inside an array is part
    /// of the reply.
    pub(crate) async fn call_until(&self, end: Instant, cmd: &Cmd) -> Result<Value, CallError> {
        self.send(end, WireCommand::Command(cmd)).await
    }

    pub(crate) async fn send(
        &self,
        end: Instant,
        outgoing: WireCommand<'_>,
    ) -> Result<Value, CallError> {
        self.send_on(&self.live(end).await?, end, outgoing).await
    }

    /// Waits until a command can be sent.
    pub(crate) async fn ready(&self, end: Instant) -> Result<(), CallError> {
        self.live(end).await.map(drop)
    }

    /// Completes when there is a connection.
    pub(crate) async fn connected(&self) {
        self.start();
        // The sender exists as long as this handle.
        let _ = self.0.inner.state.subscribe().wait_for(|state| state.live.is_some()).await;
    }

    /// Whether there is a connection, even if the server rejects commands on it.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.inner.state.borrow().live.is_some()
    }

    /// Why there is no connection, or was none before the current one.
    pub(crate) fn failure(&self) -> Arc<ConnectFailure> {
        Arc::clone(&self.0.inner.state.borrow().failure)
    }

    pub(super) async fn send_on(
        &self,
        live: &Arc<LiveConnection>,
        end: Instant,
        outgoing: WireCommand<'_>,
    ) -> Result<Value, CallError> {
        let inner = &self.0.inner;
        let Ok(reply) = timeout_at(end, outgoing.send(live.connection.clone())).await else {
            live.suspected.notify_one();
            return Err(CallError::TimedOut);
        };
        if let Ok(reply) = &reply {
            live.replies.fetch_add(1, Ordering::Relaxed);
            live.note_reply(reply);
        }
        match reply {
            Ok(Value::ServerError(error)) => {
                let error: RedisError = error.into();
                if inner.has_locator() && ErrorClass::of(&error) == ErrorClass::Replica {
                    inner.retire(live, &replica(&live.endpoint));
                }
                Err(CallError::ServerError(Arc::new(error)))
            }
            Ok(value) => Ok(value),
            // The redis crate has one error for a connection that ended before and after sending,
            // so the call counts as sent. The caller retires the connection itself, so that no call
            // finds it before the supervisor wakes.
            Err(error) => {
                let failure = lost(&live.endpoint, &error);
                inner.retire(live, &failure);
                Err(CallError::ConnectionLost(failure))
            }
        }
    }

    /// Whether there is a connection and the server did not reject the latest call.
    pub(crate) fn is_up(&self) -> bool {
        let state = self.0.inner.state.borrow();
        state.live.as_ref().is_some_and(|live| live.serves.load(Ordering::Relaxed))
    }

    /// Why the connection is not up; None if it is.
    pub(crate) fn error(&self) -> Option<Arc<str>> {
        let state = self.0.inner.state.borrow();
        match &state.live {
            None => Some(state.failure.0.as_str().into()),
            Some(live) if live.serves.load(Ordering::Relaxed) => None,
            Some(live) => live.lock_rejection().clone(),
        }
    }

    /// A setting of the connected server that should be changed.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        self.0.inner.state.borrow().live.as_ref()?.warning.clone()
    }

    /// Whether the connected server has the native module.
    pub(crate) fn has_module(&self) -> bool {
        let state = self.0.inner.state.borrow();
        state.live.as_ref().is_some_and(|live| live.has_module.load(Ordering::Relaxed))
    }

    /// The server has refused the native module on this connection or another one.
    pub(crate) fn module_refused(&self, refusal: ModuleRefusal) {
        let state = self.0.inner.state.borrow();
        if let Some(live) = &state.live {
            live.module_refused(refusal);
        }
    }

    /// The identity of the connected server, if it reports one.
    pub(crate) fn identity(&self) -> Option<Arc<ServerIdentity>> {
        self.0.inner.state.borrow().live.as_ref()?.identity.clone()
    }

    /// Waits for a connection.
    #[cfg(test)]
    pub(crate) async fn wait_connected(&self, span: Duration) -> Result<(), CallError> {
        self.live(deadline_after(span)).await.map(drop)
    }

    /// The number of connections so far. When it changes, anything that the server remembered for
    /// the previous connection is gone.
    pub(crate) fn generation(&self) -> u64 {
        self.0.inner.state.borrow().generation
    }

    pub(super) async fn live(&self, deadline: Instant) -> Result<Arc<LiveConnection>, CallError> {
        require_runtime()?;
        let inner = &self.0.inner;
        let mut live = inner.usable(&inner.state.borrow());
        if live.is_none() {
            self.start();
            let mut state = inner.state.subscribe();
            let usable = state.wait_for(|state| inner.usable(state).is_some());
            let _ = timeout_at(deadline, usable).await;
            live = inner.usable(&state.borrow());
        }
        match live {
            None => Err(CallError::NotSent(Arc::clone(&inner.state.borrow().failure))),
            // If it were sent now, it would time out and count as maybe executed.
            Some(_) if Instant::now() >= deadline => {
                Err(CallError::not_sent("the deadline had already passed; raise it"))
            }
            Some(live) => Ok(live),
        }
    }

    /// Starts the supervisor; a new one if the runtime of the previous one was shut down.
    fn start(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut supervisor = self.0.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.as_ref().is_none_or(AbortHandle::is_finished) {
            let inner = Arc::clone(&self.0.inner);
            *supervisor = Some(runtime.spawn(async move { inner.run().await }).abort_handle());
        }
    }
}

impl Drop for SupervisorHandle {
    fn drop(&mut self) {
        let supervisor = self.supervisor.get_mut().unwrap_or_else(PoisonError::into_inner);
        supervisor.iter().for_each(AbortHandle::abort);
    }
}

pub(super) struct SupervisorInner {
    settings: ConnectionSettings,
    target: ConnectTarget,
    dialer: Dialer,
    state: watch::Sender<SupervisorState>,
}

struct SupervisorState {
    live: Option<Arc<LiveConnection>>,
    generation: u64,
    /// Why there is no connection, or was none before the current one.
    failure: Arc<ConnectFailure>,
}

/// One connection, from its first reply to its end.
pub(super) struct LiveConnection {
    pub(super) endpoint: Endpoint,
    connection: RawConnection,
    /// The number of replies to calls; an increase shows that the connection is alive.
    replies: AtomicU64,
    warning: Option<Arc<str>>,
    identity: Option<Arc<ServerIdentity>>,
    /// The server did not reject the latest call.
    serves: AtomicBool,
    /// Why it rejected the last call that it rejected.
    rejection: Mutex<Option<Arc<str>>>,
    /// A call timed out.
    suspected: Notify,
    /// The server has the native module.
    has_module: AtomicBool,
    /// It had the native module, and may get it again.
    lost_module: AtomicBool,
}

impl LiveConnection {
    /// Remembers whether the server rejects all calls.
    fn note_reply(&self, reply: &Value) {
        let rejection = rejection(reply);
        let serves = rejection.is_none();
        if !serves {
            *self.lock_rejection() = rejection;
        }
        self.serves.store(serves, Ordering::Relaxed);
    }

    /// A module that is not loaded is looked for again; one that cannot be used, after a reconnect.
    fn module_refused(&self, refusal: ModuleRefusal) {
        if refusal == ModuleRefusal::ThisCall {
            return;
        }
        self.has_module.store(false, Ordering::Relaxed);
        self.lost_module.store(refusal == ModuleRefusal::Gone, Ordering::Relaxed);
    }

    /// Looks for a module that was unloaded, for example because it is being upgraded.
    async fn look_for_module(&self) -> RedisResult<()> {
        if self.lost_module.load(Ordering::Relaxed) && query_module(self.connection.clone()).await?
        {
            self.lost_module.store(false, Ordering::Relaxed);
            self.has_module.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn lock_rejection(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.rejection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SupervisorInner {
    /// Never completes.
    async fn run(&self) {
        match &self.target {
            ConnectTarget::Fixed(endpoint) => self.supervise(endpoint).await,
            ConnectTarget::Primary(primary) => {
                race(primary.locator.run(), self.follow(primary)).await;
            }
            ConnectTarget::PrimaryShared(primary) => self.follow(primary).await,
        }
    }

    /// Supervises a connection to the located primary, and switches when its location changes.
    async fn follow(&self, primary: &PrimaryTarget) {
        let mut location = primary.location.clone();
        loop {
            let current = location.borrow_and_update().clone();
            let moved = async {
                let _ = location.changed().await;
            };
            match current {
                Ok(endpoint) => {
                    race(moved, self.supervise(&endpoint)).await;
                    // Calls in flight may still get their reply from the old primary.
                    let text = format!("the primary is no longer redis at {endpoint}");
                    self.retire_current(
                        ConnectFailure(text + "; connecting to the new one").into(),
                    );
                }
                Err(failure) => {
                    self.retire_current(failure);
                    moved.await;
                }
            }
        }
    }

    /// Makes connections to `endpoint`, one after the other. Never completes.
    async fn supervise(&self, endpoint: &Endpoint) {
        let (&min, &max) = (self.settings.backoff.start(), self.settings.backoff.end());
        let mut pause = min;
        loop {
            let failure = match self.connect(endpoint).await {
                Ok((connection, info)) => {
                    let made = Instant::now();
                    let failure = self.serve_until_lost(endpoint, connection, info).await;
                    // A server that accepts and drops connections is not retried at the pace of the
                    // first attempts.
                    if made.elapsed() > max {
                        pause = min;
                    }
                    failure
                }
                Err(failure) => Some(failure),
            };
            if let Some(failure) = failure {
                self.retire_current(failure);
            }
            self.suspect_primary();
            sleep(jittered(pause)).await;
            pause = max.min(pause.saturating_mul(2));
        }
    }

    async fn connect(
        &self,
        endpoint: &Endpoint,
    ) -> Result<(RawConnection, ServerInfo), Arc<ConnectFailure>> {
        let span = self.settings.connect_deadline;
        let (why, remedy) = match timeout(span, self.dial(endpoint)).await {
            Ok(Ok(Some(made))) => return Ok(made),
            Ok(Ok(None)) => return Err(replica(endpoint)),
            Ok(Err(error)) => (error.to_string(), dial::remedy(&error)),
            Err(_) => (format!("no reply within {span:?}"), self.dialer.remedy_for_silence()),
        };
        let text = format!("cannot connect to redis at {endpoint} ({why}); {remedy}");
        Err(ConnectFailure(text).into())
    }

    /// None if the server should be the primary and is a replica.
    async fn dial(&self, endpoint: &Endpoint) -> RedisResult<Option<(RawConnection, ServerInfo)>> {
        // A TCP connection proves nothing: the kernel accepts for a frozen server.
        let (connection, info) = handshake(&self.dialer, endpoint).await?;
        if let Some(primary) = self.target.primary()
            && !is_primary(connection.clone()).await?
        {
            primary.locator.refute(endpoint);
            return Ok(None);
        }
        Ok(Some((connection, info)))
    }

    /// Lets callers use the connection until it ends. None if a caller has retired it already.
    async fn serve_until_lost(
        &self,
        endpoint: &Endpoint,
        connection: RawConnection,
        info: ServerInfo,
    ) -> Option<Arc<ConnectFailure>> {
        let live = Arc::new(LiveConnection {
            endpoint: endpoint.clone(),
            connection,
            replies: AtomicU64::new(0),
            warning: info.warning,
            identity: info.identity,
            serves: AtomicBool::new(info.rejection.is_none()),
            rejection: Mutex::new(info.rejection),
            suspected: Notify::new(),
            has_module: AtomicBool::new(info.has_module),
            lost_module: AtomicBool::new(false),
        });
        if let (Some(on_connect), Some(identity)) = (&self.settings.on_connect, &live.identity)
            && self.is_current(endpoint)
        {
            on_connect(identity);
        }
        self.state.send_modify(|state| {
            state.live = Some(Arc::clone(&live));
            state.generation += 1;
        });
        let mut state = self.state.subscribe();
        let retired = async {
            let _ = state.wait_for(|state| state.live.is_none()).await;
            None
        };
        race(retired, async { Some(self.watch_liveness(&live).await) }).await
    }

    /// Completes when the connection is dead.
    async fn watch_liveness(&self, live: &LiveConnection) -> Arc<ConnectFailure> {
        let ConnectionSettings { idle, silence, .. } = self.settings;
        let replies = || live.replies.load(Ordering::Relaxed);
        loop {
            let _ = timeout(idle, live.suspected.notified()).await;
            let mut ping = pin!(ping(live.connection.clone()));
            let pong = loop {
                let before = replies();
                // In two halves: after a pause of this process, its timers are due before it has
                // read the replies that arrived meanwhile.
                let mut pong = timeout(silence / 2, &mut ping).await;
                if pong.is_err() {
                    pong = timeout(silence / 2, &mut ping).await;
                }
                // While other calls have replies, it may wait behind them.
                if pong.is_ok() || replies() == before {
                    break pong;
                }
            };
            match pong {
                Ok(Ok(reply)) => {
                    live.note_reply(&reply);
                    // A connection that does not reply is found by the next `PING`.
                    let _ = timeout(silence, live.look_for_module()).await;
                }
                Ok(Err(error)) => return lost(&live.endpoint, &error),
                Err(_) => {
                    let text = format!("no reply from redis at {} for {silence:?}", live.endpoint);
                    return ConnectFailure(text + "; reconnecting").into();
                }
            }
        }
    }

    /// The connection, unless the primary has moved and the supervisor has not woken yet.
    fn usable(&self, state: &SupervisorState) -> Option<Arc<LiveConnection>> {
        let live = state.live.as_ref();
        live.filter(|live| self.is_current(&live.endpoint)).cloned()
    }

    fn is_current(&self, endpoint: &Endpoint) -> bool {
        self.target.primary().is_none_or(|primary| primary.is_at(endpoint))
    }

    /// Takes `live` out of use, unless it has been replaced already.
    pub(super) fn retire(&self, live: &Arc<LiveConnection>, failure: &Arc<ConnectFailure>) {
        let retired = self.state.send_if_modified(|state| {
            let is_present = state.live.as_ref().is_some_and(|present| Arc::ptr_eq(present, live));
            if is_present {
                state.live = None;
                state.failure = Arc::clone(failure);
            }
            is_present
        });
        if retired {
            self.suspect_primary();
        }
    }

    /// Takes the current connection out of use.
    fn retire_current(&self, failure: Arc<ConnectFailure>) {
        self.state.send_modify(|state| {
            state.live = None;
            state.failure = failure;
        });
    }

    fn has_locator(&self) -> bool {
        self.target.primary().is_some()
    }

    fn suspect_primary(&self) {
        if let Some(primary) = self.target.primary() {
            primary.locator.suspect();
        }
    }
}

fn lost(endpoint: &Endpoint, error: &RedisError) -> Arc<ConnectFailure> {
    ConnectFailure(format!("connection to redis at {endpoint} lost ({error}); reconnecting")).into()
}

fn replica(endpoint: &Endpoint) -> Arc<ConnectFailure> {
    let text = format!("redis at {endpoint} is a replica");
    ConnectFailure(text + "; waiting for Sentinel to name the primary").into()
}

/// What is sent on a connection at once.
#[derive(Clone, Copy)]
pub(crate) enum WireCommand<'a> {
    Command(&'a Cmd),
    /// `ASKING` directly before the command, for a slot that the server is importing.
    Asking(&'a Cmd),
    /// Its reply is the first error, or the last reply.
    Pipeline(&'a Pipeline),
}

impl WireCommand<'_> {
    async fn send(self, mut connection: RawConnection) -> RedisResult<Value> {
        let mut asking = redis::pipe();
        let commands = match self {
            Self::Command(cmd) => return connection.send_packed_command(cmd).await,
            Self::Asking(cmd) => asking.cmd("ASKING").add_command(cmd.clone()),
            Self::Pipeline(commands) => commands,
        };
        let mut replies = connection.send_packed_commands(commands, 0, commands.len()).await?;
        let last = replies.pop().unwrap_or(Value::Nil);
        let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
        let error = replies.into_iter().find(is_error);
        Ok(match self {
            // Without the permission for ASKING, the second reply is only a redirect back.
            Self::Asking(_) if !is_error(&last) => last,
            _ => error.unwrap_or(last),
        })
    }
}

/// The reply to a `PING`. The server repeats its text, which differs each time: any other text
/// belongs to another call, so that one was lost, and all later calls on this connection would get
/// replies of others.
async fn ping(mut connection: RawConnection) -> RedisResult<Value> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let text = format!("tidegate-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let reply = connection.send_packed_command(redis::cmd("PING").arg(&text)).await?;
    match &reply {
        Value::BulkString(echo) if echo != text.as_bytes() => {
            Err((ErrorKind::ClientError, "the reply to another call was lost").into())
        }
        Value::BulkString(_) => Ok(reply),
        other => check_ping(other).cloned(),
    }
}

#[cfg(test)]
mod tests;
