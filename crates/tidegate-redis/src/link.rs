//! One connection to one server, made again for ever; to another one when its place has changed.
//!
//! A multiplexed connection of the `redis` crate never comes back once it is lost, and knows only
//! timeouts of its own. Here a supervisor task makes the connection, asks it for a sign of life,
//! and replaces it; and every call has one deadline round all that it does. `pinned` is for calls that
//! must come by the same connection, one after the other.

mod pinned;

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::address::Place;
use crate::classify::Meaning;
use crate::dial::{Connection, Dialer};
use crate::greeting::{Greeting, greet};
use crate::resets::{Life, Resets};
use crate::sentinel::{self, Watcher};

pub(crate) use pinned::Pinned;

/// How long a [`Link`] waits, and for what.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// For one call, with the wait for a connection.
    pub(crate) deadline: Duration,
    /// For one attempt to connect: name, TCP, TLS, handshake and a first answer.
    pub(crate) connect_deadline: Duration,
    /// Between attempts: the shortest pause, doubled each time up to the longest. Each is cut by up
    /// to a half at random, so that a fleet does not return in step.
    pub(crate) backoff: RangeInclusive<Duration>,
    /// A connection on which nobody was answered for so long is asked for a sign of life. So is one
    /// on which a call timed out, at once.
    pub(crate) idle: Duration,
    /// A connection that leaves that question, and every call beside it, unanswered for so long is
    /// dead.
    ///
    /// Time, and not a number of timeouts: 64 callers reach any number within one short pause of
    /// the server, and a whole fleet that connects again is the last thing that a server needs
    /// after a pause.
    pub(crate) silence: Duration,
    /// Where the server is made known that has everything, whenever it is met.
    pub(crate) resets: Option<Resets>,
    /// How many replicas must have what was charged before it counts; mostly none.
    pub(crate) confirmed_by: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(25),
            connect_deadline: Duration::from_secs(1),
            // With the handshake, callers are served within a second of the server's return.
            backoff: Duration::from_millis(10)..=Duration::from_millis(800),
            idle: Duration::from_secs(2),
            silence: Duration::from_secs(1),
            resets: None,
            confirmed_by: 0,
        }
    }
}

/// Why a call has no answer, or has an error for one.
#[derive(Clone, Debug)]
pub(crate) enum LinkError {
    /// Nothing was sent, so nothing can have happened.
    Down(Arc<Fault>),
    /// It was handed over and not answered in time: it may have happened, or happen yet.
    TimedOut,
    /// The connection was lost after it was handed over: it may have happened.
    Broken(Arc<Fault>),
    /// The server answered with an error.
    Reply(Arc<RedisError>),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(fault) => write!(f, "nothing was sent: {fault}"),
            Self::TimedOut => f.write_str(
                "redis did not answer before the deadline and may have done it; \
                 look at its slow log, or allow more time",
            ),
            Self::Broken(fault) => write!(f, "redis may or may not have done it: {fault}"),
            Self::Reply(error) => write!(f, "redis answered with an error: {error}"),
        }
    }
}

impl Error for LinkError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Down(fault) | Self::Broken(fault) => Some(&**fault),
            Self::Reply(error) => Some(&**error),
            Self::TimedOut => None,
        }
    }
}

/// Why there is no connection. Names the server, and no secret.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Fault {}

/// Where a [`Link`] leads.
pub(crate) enum Aim {
    /// To this place, for ever.
    At(Place),
    /// To the primary, wherever it is.
    Primary(Watcher),
    /// The same, beside a link that keeps the watcher going.
    Beside(Watcher),
}

impl Aim {
    fn watcher(&self) -> Option<&Watcher> {
        match self {
            Self::At(_) => None,
            Self::Primary(watcher) | Self::Beside(watcher) => Some(watcher),
        }
    }
}

impl From<Place> for Aim {
    fn from(place: Place) -> Self {
        Self::At(place)
    }
}

/// One supervised connection to one server. Clones share it, and dropping the last one closes it.
///
/// A call may be dropped at any time: it is then either not sent at all, or its reply is thrown
/// away when it comes. Nobody else gets it.
#[derive(Clone)]
pub(crate) struct Link(Arc<Owner>);

/// Ends the supervisor when the last [`Link`] goes. The supervisor itself holds only the core.
struct Owner {
    core: Arc<Core>,
    supervisor: Mutex<Option<AbortHandle>>,
}

impl Link {
    /// Starts to connect if this is a Tokio runtime; otherwise the first call does.
    pub(crate) fn new(aim: impl Into<Aim>, dialer: Dialer, settings: Settings) -> Self {
        let aim = aim.into();
        let to = match &aim {
            Aim::At(place) => format!("redis at {place}"),
            Aim::Primary(watcher) | Aim::Beside(watcher) => {
                format!("the primary of {:?}", watcher.master())
            }
        };
        let fault = Fault(format!("not connected to {to} yet; wait a moment")).into();
        let state = watch::Sender::new(State { line: None, generation: 0, fault });
        let core = Arc::new(Core { settings, aim, dialer, state });
        let link = Self(Arc::new(Owner { core, supervisor: Mutex::new(None) }));
        link.start();
        link
    }

    /// The answer to `cmd`, within the deadline of the settings.
    #[cfg(test)]
    pub(crate) async fn call(&self, cmd: &Cmd) -> Result<Value, LinkError> {
        self.call_until(after(self.0.core.settings.deadline), cmd).await
    }

    /// When a call that begins now must have its answer.
    pub(crate) fn deadline(&self) -> Instant {
        after(self.0.core.settings.deadline)
    }

    /// The answer to `cmd`, one of several perhaps under one deadline. An error inside an array is
    /// part of the answer.
    pub(crate) async fn call_until(&self, end: Instant, cmd: &Cmd) -> Result<Value, LinkError> {
        self.exchange(end, |connection| send(connection, cmd)).await
    }

    /// The same behind `ASKING`, with nothing of anybody else's in between: for a slot that is on its
    /// way to this server.
    pub(crate) async fn call_asking_until(
        &self,
        end: Instant,
        cmd: &Cmd,
    ) -> Result<Value, LinkError> {
        self.exchange(end, |connection| send_asking(connection, cmd)).await
    }

    /// Waits until something can be sent.
    pub(crate) async fn ready(&self, end: Instant) -> Result<(), LinkError> {
        self.line(end).await.map(drop)
    }

    /// Completes when there is a connection.
    pub(crate) async fn connected(&self) {
        self.start();
        // The sender lives as long as this link.
        let _ = self.0.core.state.subscribe().wait_for(|state| state.line.is_some()).await;
    }

    /// There is a connection, whatever the server says on it.
    pub(crate) fn is_connected(&self) -> bool {
        self.0.core.state.borrow().line.is_some()
    }

    /// Why there is no connection, or was none before this one.
    pub(crate) fn fault(&self) -> Arc<Fault> {
        Arc::clone(&self.0.core.state.borrow().fault)
    }

    /// The answer to what `send` sends.
    async fn exchange<F>(
        &self,
        end: Instant,
        send: impl FnOnce(Connection) -> F,
    ) -> Result<Value, LinkError>
    where
        F: Future<Output = RedisResult<Value>>,
    {
        let line = self.line(end).await?;
        self.exchange_on(&line, end, send).await
    }

    async fn exchange_on<F>(
        &self,
        line: &Arc<Line>,
        end: Instant,
        send: impl FnOnce(Connection) -> F,
    ) -> Result<Value, LinkError>
    where
        F: Future<Output = RedisResult<Value>>,
    {
        let core = &self.0.core;
        let Ok(answer) = timeout_at(end, send(line.connection.clone())).await else {
            line.suspicion.notify_one();
            return Err(LinkError::TimedOut);
        };
        if let Ok(answer) = &answer {
            line.answers.fetch_add(1, Ordering::Relaxed);
            line.serves.store(!turns_away(answer), Ordering::Relaxed);
        }
        match answer {
            Ok(Value::ServerError(error)) => {
                let error: RedisError = error.into();
                if core.follows() && Meaning::of(&error) == Meaning::Replica {
                    core.withdraw(line, &replica(&line.place));
                }
                Err(LinkError::Reply(Arc::new(error)))
            }
            Ok(value) => Ok(value),
            // The redis crate has one error for a connection that ended before and after sending,
            // so it counts as sent. The caller withdraws the connection itself, so that no call
            // finds it before the supervisor wakes.
            Err(error) => {
                let fault = lost(&line.place, &error);
                core.withdraw(line, &fault);
                Err(LinkError::Broken(fault))
            }
        }
    }

    /// There is a connection, as far as is known, and the server did not turn the latest call away.
    pub(crate) fn is_up(&self) -> bool {
        let state = self.0.core.state.borrow();
        state.line.as_ref().is_some_and(|line| line.serves.load(Ordering::Relaxed))
    }

    /// What the server of this connection should be otherwise.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        self.0.core.state.borrow().line.as_ref()?.warning.clone()
    }

    /// Who the server of this connection is, if it tells.
    pub(crate) fn life(&self) -> Option<Arc<Life>> {
        self.0.core.state.borrow().line.as_ref()?.life.clone()
    }

    /// Waits for a connection.
    #[cfg(test)]
    pub(crate) async fn wait_up(&self, span: Duration) -> Result<(), LinkError> {
        self.line(after(span)).await.map(drop)
    }

    /// How many connections there have been: whoever depends on what the server remembers about
    /// one must begin anew when this has changed.
    pub(crate) fn generation(&self) -> u64 {
        self.0.core.state.borrow().generation
    }

    async fn line(&self, deadline: Instant) -> Result<Arc<Line>, LinkError> {
        on_runtime()?;
        let core = &self.0.core;
        let mut line = core.usable(&core.state.borrow());
        if line.is_none() {
            self.start();
            let mut state = core.state.subscribe();
            let usable = state.wait_for(|state| core.usable(state).is_some());
            let _ = timeout_at(deadline, usable).await;
            line = core.usable(&state.borrow());
        }
        match line {
            None => Err(LinkError::Down(Arc::clone(&core.state.borrow().fault))),
            // Handed over now, it would look like a call that was sent.
            Some(_) if Instant::now() >= deadline => {
                let what = "the deadline had passed already; allow more time";
                Err(LinkError::Down(Fault(what.to_owned()).into()))
            }
            Some(line) => Ok(line),
        }
    }

    /// Starts the supervisor, or another one if the runtime of the last has gone.
    fn start(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut supervisor = self.0.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.as_ref().is_none_or(AbortHandle::is_finished) {
            let core = Arc::clone(&self.0.core);
            *supervisor = Some(runtime.spawn(async move { core.run().await }).abort_handle());
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let supervisor = self.supervisor.get_mut().unwrap_or_else(PoisonError::into_inner);
        supervisor.iter().for_each(AbortHandle::abort);
    }
}

struct Core {
    settings: Settings,
    aim: Aim,
    dialer: Dialer,
    state: watch::Sender<State>,
}

struct State {
    line: Option<Arc<Line>>,
    generation: u64,
    /// Why there is no line, or was none before this one.
    fault: Arc<Fault>,
}

/// One connection, from its first answer to its end.
struct Line {
    place: Place,
    connection: Connection,
    /// To any call: a sign of life.
    answers: AtomicU64,
    warning: Option<Arc<str>>,
    life: Option<Arc<Life>>,
    /// The latest answer was not one of a server that serves nobody.
    serves: AtomicBool,
    /// A call timed out.
    suspicion: Notify,
}

impl Core {
    /// Never completes.
    async fn run(&self) {
        match &self.aim {
            Aim::At(place) => self.supervise(place).await,
            Aim::Primary(watcher) => race(watcher.run(), self.follow(watcher)).await,
            Aim::Beside(watcher) => self.follow(watcher).await,
        }
    }

    /// Supervises a connection to the place that is named, until another one is.
    async fn follow(&self, watcher: &Watcher) {
        let mut named = watcher.named();
        loop {
            let place = named.borrow_and_update().clone();
            let moved = async {
                let _ = named.changed().await;
            };
            match place {
                Ok(place) => {
                    race(moved, self.supervise(&place)).await;
                    // Whoever waits for an answer may still get it from where it was asked.
                    let what = format!("the primary is no longer redis at {place}");
                    self.end_line(Fault(what + "; connecting to the new one").into());
                }
                Err(fault) => {
                    self.end_line(fault);
                    moved.await;
                }
            }
        }
    }

    /// Makes connections to `place`, one after the other. Never completes.
    async fn supervise(&self, place: &Place) {
        let (&min, &max) = (self.settings.backoff.start(), self.settings.backoff.end());
        let mut pause = min;
        loop {
            let fault = match self.connect(place).await {
                Ok((connection, greeting)) => {
                    let made = Instant::now();
                    let fault = self.watch_over(place, connection, greeting).await;
                    // A server that accepts and drops must not be asked at the pace of the first
                    // attempts for ever.
                    if made.elapsed() > max {
                        pause = min;
                    }
                    fault
                }
                Err(fault) => Some(fault),
            };
            if let Some(fault) = fault {
                self.end_line(fault);
            }
            self.doubt();
            sleep(jittered(pause)).await;
            pause = max.min(pause.saturating_mul(2));
        }
    }

    /// A connection, and what the server says about itself.
    async fn connect(&self, place: &Place) -> Result<(Connection, Greeting), Arc<Fault>> {
        let span = self.settings.connect_deadline;
        let why = match timeout(span, self.dial(place)).await {
            Ok(Ok(Some(made))) => return Ok(made),
            Ok(Ok(None)) => return Err(replica(place)),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {span:?}"),
        };
        Err(Fault(format!("cannot reach redis at {place} ({why}); check that it runs")).into())
    }

    /// None if it is a replica where there should be the primary.
    async fn dial(&self, place: &Place) -> RedisResult<Option<(Connection, Greeting)>> {
        // The kernel accepts for a frozen server, and a handshake may be empty.
        let (connection, greeting) = greet(&self.dialer, place).await?;
        if let Some(watcher) = self.aim.watcher()
            && !sentinel::is_primary(connection.clone()).await?
        {
            watcher.refute(place);
            return Ok(None);
        }
        Ok(Some((connection, greeting)))
    }

    /// Lets callers use the connection until it ends. The fault, if no caller saw it first.
    async fn watch_over(
        &self,
        place: &Place,
        connection: Connection,
        greeting: Greeting,
    ) -> Option<Arc<Fault>> {
        let line = Arc::new(Line {
            place: place.clone(),
            connection,
            answers: AtomicU64::new(0),
            warning: greeting.warning,
            life: greeting.life,
            serves: AtomicBool::new(greeting.serves),
            suspicion: Notify::new(),
        });
        if let (Some(resets), Some(life)) = (&self.settings.resets, &line.life)
            && self.leads_to(place)
        {
            resets.meet(life);
        }
        self.state.send_modify(|state| {
            state.line = Some(Arc::clone(&line));
            state.generation += 1;
        });
        let mut state = self.state.subscribe();
        let withdrawn = async {
            let _ = state.wait_for(|state| state.line.is_none()).await;
            None
        };
        race(withdrawn, async { Some(self.listen(&line).await) }).await
    }

    /// Completes when the line is dead.
    async fn listen(&self, line: &Line) -> Arc<Fault> {
        let Settings { idle, silence, .. } = self.settings;
        let answers = || line.answers.load(Ordering::Relaxed);
        loop {
            let before = answers();
            let suspected = timeout(idle, line.suspicion.notified()).await.is_ok();
            if !suspected && answers() != before {
                continue;
            }
            let before = answers();
            let mut ping = pin!(ping(line.connection.clone()));
            // In two halves: when this process has stood still, its timers are due before it has
            // read what came meanwhile.
            let mut answer = timeout(silence / 2, &mut ping).await;
            if answer.is_err() {
                answer = timeout(silence / 2, &mut ping).await;
            }
            match answer {
                Ok(Ok(serves)) => line.serves.store(serves, Ordering::Relaxed),
                Ok(Err(error)) => return lost(&line.place, &error),
                Err(_) if answers() != before => {}
                Err(_) => {
                    let what = format!("redis at {} was silent for {silence:?}", line.place);
                    return Fault(what + "; connecting again").into();
                }
            }
        }
    }

    /// The line, unless the primary has left its place and the supervisor has not woken yet.
    fn usable(&self, state: &State) -> Option<Arc<Line>> {
        let line = state.line.as_ref();
        line.filter(|line| self.leads_to(&line.place)).cloned()
    }

    fn leads_to(&self, place: &Place) -> bool {
        self.aim.watcher().is_none_or(|watcher| watcher.names(place))
    }

    /// Keeps calls from `line`, unless it has been replaced already.
    fn withdraw(&self, line: &Arc<Line>, fault: &Arc<Fault>) {
        let withdrawn = self.state.send_if_modified(|state| {
            let present = state.line.as_ref().is_some_and(|present| Arc::ptr_eq(present, line));
            if present {
                state.line = None;
                state.fault = Arc::clone(fault);
            }
            present
        });
        if withdrawn {
            self.doubt();
        }
    }

    /// Keeps calls from whichever line there is.
    fn end_line(&self, fault: Arc<Fault>) {
        self.state.send_modify(|state| {
            state.line = None;
            state.fault = fault;
        });
    }

    fn follows(&self) -> bool {
        self.aim.watcher().is_some()
    }

    /// The primary may be somewhere else by now.
    fn doubt(&self) {
        if let Some(watcher) = self.aim.watcher() {
            watcher.doubt();
        }
    }
}

fn lost(place: &Place, error: &RedisError) -> Arc<Fault> {
    Fault(format!("lost redis at {place} ({error}); connecting again")).into()
}

fn replica(place: &Place) -> Arc<Fault> {
    let what = format!("redis at {place} is a replica, which decides nothing");
    Fault(what + "; waiting for the sentinels to name the primary").into()
}

/// Outside of one there is nothing to wait with, and Tokio would panic.
pub(crate) fn on_runtime() -> Result<(), LinkError> {
    if Handle::try_current().is_err() {
        let what = "not called on a tokio runtime; call it on one with time and io enabled";
        return Err(LinkError::Down(Fault(what.to_owned()).into()));
    }
    Ok(())
}

async fn send(mut connection: Connection, cmd: &Cmd) -> RedisResult<Value> {
    connection.send_packed_command(cmd).await
}

async fn send_asking(connection: Connection, cmd: &Cmd) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(cmd.clone());
    match <[Value; 2]>::try_from(send_all(connection, &both).await?) {
        // Whoever may not ask is told so, and not where the slot was before.
        Ok([asking @ Value::ServerError(_), Value::ServerError(_)]) => Ok(asking),
        Ok([_, answer]) => Ok(answer),
        Err(_) => Err((ErrorKind::ClientError, "not one answer to each command").into()),
    }
}

async fn send_all(mut connection: Connection, cmds: &Pipeline) -> RedisResult<Vec<Value>> {
    connection.send_packed_commands(cmds, 0, cmds.len()).await
}

async fn ping(mut connection: Connection) -> RedisResult<bool> {
    serves(&connection.send_packed_command(&redis::cmd("PING")).await?)
}

/// Says whether a server that answers so to `PING` serves those who come. Any answer will do, even an
/// error: one who may not `PING`, or comes while the server loads, has reached it. But it must be a
/// server's: who dials a free port of its own machine can reach itself, and hears its own words.
pub(crate) fn serves(answer: &Value) -> RedisResult<bool> {
    match answer {
        Value::SimpleString(_) | Value::ServerError(_) => Ok(!turns_away(answer)),
        _ => Err((ErrorKind::ClientError, "what answers there is not redis").into()),
    }
}

/// Is it the answer of a server that serves nobody, whatever it is asked?
fn turns_away(answer: &Value) -> bool {
    Meaning::of_answer(answer).is_some_and(Meaning::turns_away)
}

/// The instant `span` from now, or one that is as good as never.
pub(crate) fn after(span: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(span).unwrap_or(now + Duration::from_secs(86_400 * 365))
}

/// Between a half of `pause` and all of it.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
    // Each `RandomState` has keys of its own, and that is all the randomness that this needs.
    half + Duration::from_nanos(RandomState::new().hash_one(()) % nanos)
}

/// What the first of the two to complete says.
pub(crate) async fn race<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Pending => other.as_mut().poll(cx),
        ready => ready,
    })
    .await
}

#[cfg(test)]
#[path = "../tests/support/server.rs"]
pub(crate) mod server;

#[cfg(test)]
mod tests;
