//! One connection to one server, made again for ever.
//!
//! A multiplexed connection of the `redis` crate never comes back once it is lost, and knows only
//! timeouts of its own. Here a supervisor task makes the connection, asks it for a sign of life,
//! and replaces it; and every call has one deadline round all that it does.

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

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, RedisError, RedisResult,
    Value,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How a [`Link`] connects and how long it waits.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) client: Client,
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
}

impl Settings {
    /// The defaults for the server at `address`.
    pub(crate) fn new(address: impl IntoConnectionInfo) -> RedisResult<Self> {
        Ok(Self {
            client: Client::open(address)?,
            deadline: Duration::from_millis(25),
            connect_deadline: Duration::from_secs(1),
            // With the handshake, callers are served within a second of the server's return.
            backoff: Duration::from_millis(10)..=Duration::from_millis(800),
            idle: Duration::from_secs(2),
            silence: Duration::from_secs(1),
        })
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
pub(crate) struct Fault(String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Fault {}

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
    pub(crate) fn new(settings: Settings) -> Self {
        let address = settings.client.get_connection_info().addr.to_string();
        let fault = Fault(format!("not connected to redis at {address} yet; wait a moment")).into();
        let state = watch::Sender::new(State { line: None, generation: 0, fault });
        let core = Arc::new(Core { settings, address, state });
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
        let core = &self.0.core;
        // Outside of one there is nothing to wait with, and Tokio would panic.
        if Handle::try_current().is_err() {
            let what = "not called on a tokio runtime; call it on one with time and io enabled";
            return Err(LinkError::Down(Fault(what.to_owned()).into()));
        }
        let line = self.line(end).await?;
        let mut connection = line.connection.clone();
        let Ok(answer) = timeout_at(end, connection.send_packed_command(cmd)).await else {
            line.suspicion.notify_one();
            return Err(LinkError::TimedOut);
        };
        if let Ok(answer) = &answer {
            line.answers.fetch_add(1, Ordering::Relaxed);
            line.serves.store(!turns_away(answer), Ordering::Relaxed);
        }
        match answer {
            Ok(Value::ServerError(error)) => Err(LinkError::Reply(Arc::new(error.into()))),
            Ok(value) => Ok(value),
            // The redis crate has one error for a connection that ended before and after sending,
            // so it counts as sent. The caller withdraws the connection itself, so that no call
            // finds it before the supervisor wakes.
            Err(error) => {
                let fault = core.lost(&error);
                core.withdraw(&line, &fault);
                Err(LinkError::Broken(fault))
            }
        }
    }

    /// There is a connection, as far as is known, and the server did not turn the latest call away.
    pub(crate) fn is_up(&self) -> bool {
        let state = self.0.core.state.borrow();
        state.line.as_ref().is_some_and(|line| line.serves.load(Ordering::Relaxed))
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
        let core = &self.0.core;
        let mut line = core.state.borrow().line.clone();
        if line.is_none() {
            self.start();
            let mut state = core.state.subscribe();
            let _ = timeout_at(deadline, state.wait_for(|state| state.line.is_some())).await;
            line = state.borrow().line.clone();
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
            *supervisor = Some(runtime.spawn(async move { core.supervise().await }).abort_handle());
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
    /// For messages: host and port, or a path.
    address: String,
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
    connection: MultiplexedConnection,
    /// To any call: a sign of life.
    answers: AtomicU64,
    /// The latest answer was not one of a server that serves nobody.
    serves: AtomicBool,
    /// A call timed out.
    suspicion: Notify,
}

impl Core {
    async fn supervise(&self) {
        let (&min, &max) = (self.settings.backoff.start(), self.settings.backoff.end());
        let mut pause = min;
        loop {
            let fault = match self.connect().await {
                Ok((connection, serves)) => {
                    let made = Instant::now();
                    let fault = self.watch_over(connection, serves).await;
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
                self.state.send_modify(|state| {
                    state.line = None;
                    state.fault = fault;
                });
            }
            sleep(jittered(pause)).await;
            pause = max.min(pause.saturating_mul(2));
        }
    }

    /// A connection, and whether the server serves those who come.
    async fn connect(&self) -> Result<(MultiplexedConnection, bool), Arc<Fault>> {
        let span = self.settings.connect_deadline;
        let why = match timeout(span, dial(&self.settings.client)).await {
            Ok(Ok(made)) => return Ok(made),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {span:?}"),
        };
        let address = &self.address;
        Err(Fault(format!("cannot reach redis at {address} ({why}); check that it runs")).into())
    }

    /// Lets callers use the connection until it ends. The fault, if no caller saw it first.
    async fn watch_over(
        &self,
        connection: MultiplexedConnection,
        serves: bool,
    ) -> Option<Arc<Fault>> {
        let line = Arc::new(Line {
            connection,
            answers: AtomicU64::new(0),
            serves: AtomicBool::new(serves),
            suspicion: Notify::new(),
        });
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
                Ok(Err(error)) => return self.lost(&error),
                Err(_) if answers() != before => {}
                Err(_) => {
                    let what = format!("redis at {} was silent for {silence:?}", self.address);
                    return Fault(what + "; connecting again").into();
                }
            }
        }
    }

    /// Keeps calls from `line`, unless it has been replaced already.
    fn withdraw(&self, line: &Arc<Line>, fault: &Arc<Fault>) {
        self.state.send_if_modified(|state| {
            let present = state.line.as_ref().is_some_and(|present| Arc::ptr_eq(present, line));
            if present {
                state.line = None;
                state.fault = Arc::clone(fault);
            }
            present
        });
    }

    fn lost(&self, error: &RedisError) -> Arc<Fault> {
        Fault(format!("lost redis at {} ({error}); connecting again", self.address)).into()
    }
}

async fn dial(client: &Client) -> RedisResult<(MultiplexedConnection, bool)> {
    // Without timeouts of its own: every call and the whole of this have their deadline round them.
    let config = AsyncConnectionConfig::new();
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    // The kernel accepts for a frozen server, and a handshake may be empty.
    let serves = ping(connection.clone()).await?;
    Ok((connection, serves))
}

/// Any answer will do, even an error: one who may not `PING`, or comes while the server loads, has
/// reached it. But it must be a server's: who dials a free port of its own machine can reach
/// itself, and hears its own words. Says whether the server serves those who come.
async fn ping(mut connection: MultiplexedConnection) -> RedisResult<bool> {
    let answer = connection.send_packed_command(&redis::cmd("PING")).await?;
    match &answer {
        Value::SimpleString(_) | Value::ServerError(_) => Ok(!turns_away(&answer)),
        _ => Err((ErrorKind::ClientError, "what answers there is not redis").into()),
    }
}

/// Is it the answer of a server that serves nobody, whatever it is asked?
fn turns_away(answer: &Value) -> bool {
    const CODES: [&str; 4] = ["NOAUTH", "LOADING", "READONLY", "MASTERDOWN"];
    let Value::ServerError(error) = answer else { return false };
    CODES.contains(&error.code())
}

/// The instant `span` from now, or one that is as good as never.
fn after(span: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(span).unwrap_or(now + Duration::from_secs(86_400 * 365))
}

/// Between a half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
    // Each `RandomState` has keys of its own, and that is all the randomness that this needs.
    half + Duration::from_nanos(RandomState::new().hash_one(()) % nanos)
}

/// What the first of the two to complete says.
async fn race<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
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
mod tests {
    use std::io::{Write, stderr};
    use std::sync::atomic::AtomicU32;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;

    use super::server::Server;
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(25);
    const SLACK: Duration = Duration::from_millis(5);
    const SECOND: Duration = Duration::from_secs(1);
    /// For what has to happen, but not in a given time: a busy machine may stand still for a second.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_of_512_callers_gets_its_own_reply() {
        let server = Server::start();
        let link = patient(&server.url());
        let mut callers = JoinSet::new();
        for caller in 0..512 {
            let link = link.clone();
            callers.spawn(async move {
                for turn in 0..20 {
                    let id = format!("{caller}-{turn}");
                    assert_eq!(echoed(&link, &id).await.unwrap(), id);
                }
            });
        }
        finish(callers).await;
        assert_eq!((link.is_up(), link.generation()), (true, 1));
    }

    /// The server holds its answers back until after the deadline. The reply to the call that gave
    /// up comes first, on the same connection, and belongs to nobody.
    #[tokio::test]
    async fn a_late_reply_is_thrown_away_and_the_connection_kept() {
        let server = Server::start();
        let mut settings = Settings::new(server.url()).unwrap();
        settings.silence = PATIENCE;
        let link = Link::new(settings);
        for turn in 0..10 {
            let pause = link.call_until(after(PATIENCE), &paused(60)).await;
            assert_eq!(pause.unwrap(), Value::Okay);
            let late = echoed(&link, &format!("late {turn}")).await;
            assert!(matches!(late, Err(LinkError::TimedOut)), "{late:?}");
            let id = format!("after {turn}");
            let answer = link.call_until(after(PATIENCE), redis::cmd("ECHO").arg(&id)).await;
            assert_eq!(answer.unwrap(), Value::BulkString(id.into_bytes()), "crossed");
        }
        assert_eq!(link.generation(), 1);
        assert_eq!(echoes(&server), 20, "the late calls were not sent, which proves nothing");
    }

    /// Dropped unpolled, while queued, while under way, and while the server holds answers back.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_dropped_call_leaves_no_reply_for_the_next() {
        let wanted = if long() { 100_000 } else { 10_000 };
        let server = Server::start();
        let link = patient(&server.url());
        let dropped = Arc::new(AtomicU32::new(0));
        let mut callers = JoinSet::new();
        for caller in 0..32 {
            let (link, dropped) = (link.clone(), Arc::clone(&dropped));
            let drops = caller % 2 == 0;
            callers.spawn(async move {
                let mut kept = 0;
                for turn in 0.. {
                    if dropped.load(Ordering::Relaxed) >= wanted {
                        break;
                    }
                    if drops && random(4000) == 0 {
                        let _ = polled_at_most(3, link.call(&paused(3))).await;
                    }
                    let id = format!("{caller}-{turn}");
                    let call = echoed(&link, &id);
                    let echo = match random(3) {
                        _ if !drops => Some(call.await),
                        0 => polled_at_most(random(30), call).await,
                        _ => timeout(Duration::from_micros(random(2000)), call).await.ok(),
                    };
                    match echo {
                        Some(echo) => {
                            assert_eq!(echo.unwrap(), id, "crossed");
                            kept += 1;
                        }
                        None => drop(dropped.fetch_add(1, Ordering::Relaxed)),
                    }
                }
                kept
            });
        }
        let kept: u32 = finish(callers).await.into_iter().sum();
        assert_eq!(link.generation(), 1, "the connection was replaced, which proves nothing");
        let dropped = dropped.load(Ordering::Relaxed);
        let thrown_away = echoes(&server) - kept;
        writeln!(
            stderr(),
            "link: {dropped} calls dropped, of which the server answered {thrown_away}; {kept} \
             others, 0 crossed"
        )
        .unwrap();
        assert!(thrown_away > dropped / 20, "hardly any was dropped while it was under way");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_killed_server_is_used_again_within_a_second_of_its_return() {
        let mut server = Server::start();
        let link = default(&server.url());
        link.wait_up(PATIENCE).await.unwrap();
        let mut returns = Vec::new();
        for _ in 0..3 {
            let storm = Storm::begin(&link, 16);
            sleep(SECOND / 5).await;
            server.kill();
            let killed = Instant::now();
            sleep(4 * SECOND / 5).await;
            let calls = storm.end("killed", 990).await;
            // Once one of them has seen it, no other is sent.
            let failed = calls.iter().filter(|call| call.begun > killed && call.result.is_err());
            let seen = failed.map(|call| call.begun + call.took).min().unwrap();
            for call in calls.iter().filter(|call| call.begun > seen) {
                assert!(matches!(call.result, Err(LinkError::Down(_))), "{:?}", call.result);
            }
            assert!(!link.is_up());
            server.restart();
            let (back, mut stolen) = (Instant::now(), Duration::ZERO);
            loop {
                let begun = Instant::now();
                if echoed(&link, "back").await.is_ok() {
                    break;
                }
                stolen += begun.elapsed().saturating_sub(DEADLINE);
                assert!(back.elapsed() < SECOND + stolen, "not back after {:?}", back.elapsed());
            }
            returns.push(back.elapsed());
        }
        writeln!(stderr(), "link: used again so long after the server was back: {returns:?}")
            .unwrap();
        assert!(link.generation() >= 4);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_frozen_server_holds_nobody_beyond_the_deadline() {
        let server = Server::start();
        let link = default(&server.url());
        link.wait_up(PATIENCE).await.unwrap();
        server.freeze();
        let storm = Storm::begin(&link, 64);
        sleep(2 * SECOND).await;
        for call in storm.end("frozen", 999).await {
            call.result.unwrap_err();
        }
        assert!(!link.is_up(), "still up after two seconds without an answer");
        server.thaw();
        link.wait_up(PATIENCE).await.unwrap();
        assert!(answers(&link).await);
    }

    /// Nobody calls, and no packet says that the server is gone.
    #[tokio::test]
    async fn a_dead_connection_is_noticed_without_calls() {
        let server = Server::start();
        let mut settings = Settings::new(server.url()).unwrap();
        settings.idle = Duration::from_millis(50);
        let link = Link::new(settings);
        until(|| link.is_up()).await;
        sleep(SECOND / 2).await;
        assert_eq!((link.is_up(), link.generation()), (true, 1), "an idle connection was replaced");
        server.freeze();
        until(|| !link.is_up()).await;
        server.thaw();
        link.wait_up(PATIENCE).await.unwrap();
        assert_eq!(link.generation(), 2);
    }

    #[tokio::test]
    async fn without_a_server_calls_are_down_until_it_comes() {
        let mut server = Server::stopped(&[]);
        let link = default(&server.url());
        for _ in 0..10 {
            let begun = Instant::now();
            let result = link.call(&redis::cmd("PING")).await;
            assert!(matches!(result, Err(LinkError::Down(_))), "{result:?}");
            assert!(begun.elapsed() >= DEADLINE, "gave up before the deadline");
        }
        let message = link.call(&redis::cmd("PING")).await.unwrap_err().to_string();
        let expected = format!(
            "nothing was sent: cannot reach redis at 127.0.0.1:{} (Connection refused",
            server.port()
        );
        assert!(message.starts_with(&expected), "{message}");
        assert_eq!((link.is_up(), link.generation()), (false, 0));
        server.restart();
        link.wait_up(PATIENCE).await.unwrap();
        assert!(answers(&link).await);
    }

    /// At once, or as soon as it is asked for something.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn attempts_are_few_while_a_server_drops_every_connection() {
        let dropping = accepting(drop).await;
        let closing = accepting(|stream| answer(stream, String::new())).await;
        let mut tasks = JoinSet::new();
        for (address, accepted) in [dropping, closing] {
            tasks.spawn(async move {
                let link = default(&address);
                let storm = Storm::begin(&link, 4);
                sleep(SECOND).await;
                let first = accepted.load(Ordering::Relaxed);
                sleep(2 * SECOND).await;
                let then = accepted.load(Ordering::Relaxed) - first;
                until(|| accepted.load(Ordering::Relaxed) > first).await;
                storm.end("closing", 990).await;
                (first, then)
            });
        }
        for (first, then) in finish(tasks).await {
            writeln!(stderr(), "link: {first} attempts in the first second, {then} in two more")
                .unwrap();
            assert!(first <= 20 && then <= 20, "{first}, then {then}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_lived_is_made_again_at_once() {
        let mut server = Server::stopped(&[]);
        let mut settings = Settings::new(server.url()).unwrap();
        settings.backoff = Duration::from_millis(10)..=SECOND;
        let link = Link::new(settings);
        // Long enough for the longest pause.
        sleep(3 * SECOND / 2).await;
        server.restart();
        link.wait_up(PATIENCE).await.unwrap();
        sleep(5 * SECOND / 4).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let lost = link.call_until(after(PATIENCE), &redis::cmd("PING")).await;
        assert!(matches!(lost, Err(LinkError::Broken(_))), "{lost:?}");
        // Half of the longest pause would be 500 ms.
        link.wait_up(Duration::from_millis(450)).await.unwrap();
    }

    /// The question waits behind slow calls, and their answers are signs of life.
    #[tokio::test]
    async fn a_slow_server_is_not_a_dead_one() {
        let (address, accepted) = accepting(|mut stream| {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                    for _ in buffer[..len].iter().filter(|byte| **byte == b'*') {
                        sleep(Duration::from_millis(50)).await;
                        let _ = stream.write_all(b"+PONG\r\n").await;
                    }
                }
            });
        })
        .await;
        let mut settings = Settings::new(address).unwrap();
        settings.deadline = PATIENCE;
        settings.idle = Duration::from_millis(20);
        let link = Link::new(settings);
        let mut callers = JoinSet::new();
        for _ in 0..40 {
            let link = link.clone();
            callers.spawn(async move { link.call(&redis::cmd("GET")).await.unwrap() });
        }
        finish(callers).await;
        assert_eq!(accepted.load(Ordering::Relaxed), 1, "another connection was made");
    }

    #[tokio::test]
    async fn a_server_that_never_answers_is_not_up() {
        let held = Mutex::new(Vec::new());
        let (address, accepted) = accepting(move |stream| held.lock().unwrap().push(stream)).await;
        let mut settings = Settings::new(address).unwrap();
        settings.connect_deadline = Duration::from_millis(100);
        let link = Link::new(settings);
        let error = link.wait_up(SECOND).await.unwrap_err();
        assert!(error.to_string().contains("no answer within 100ms"), "{error}");
        assert!(accepted.load(Ordering::Relaxed) > 1, "one attempt, and then never again");
    }

    #[tokio::test]
    async fn an_error_of_the_server_is_a_reply_and_keeps_the_connection() {
        for line in [
            "NOSCRIPT No matching script.",
            "WRONGTYPE Operation against a key",
            "LOADING Redis is loading",
            "READONLY You can't write",
            "NOAUTH Authentication required.",
            "NOPERM this user has no permissions",
            "OOM command not allowed",
            "BUSY Redis is busy",
            "MASTERDOWN Link with MASTER is down",
            "CROSSSLOT Keys in request",
            "MOVED 1 127.0.0.1:1",
            "ASK 1 127.0.0.1:1",
            "TRYAGAIN Multiple keys",
            "CLUSTERDOWN The cluster is down",
            "MISCONF Redis is configured",
            "ERR unknown command",
        ] {
            let link = answering(format!("-{line}\r\n")).await;
            for _ in 0..3 {
                let result = link.call(&redis::cmd("GET")).await;
                let Err(LinkError::Reply(error)) = result else { panic!("{line}: {result:?}") };
                assert_eq!(error.code(), line.split(' ').next(), "{error}");
            }
            let serves = !["LOADING", "READONLY", "NOAUTH", "MASTERDOWN"]
                .iter()
                .any(|code| line.starts_with(code));
            assert_eq!((link.is_up(), link.generation()), (serves, 1), "{line}");
        }
    }

    /// Before anybody asks it for anything, and again when it does serve.
    #[tokio::test]
    async fn a_server_that_turns_everybody_away_is_not_up() {
        let server = Server::start_with(&["--requirepass", "secret"]);
        let url = format!("redis://127.0.0.1:{}/", server.port());
        let mut settings = Settings::new(url).unwrap();
        settings.idle = Duration::from_millis(20);
        let link = Link::new(settings);
        link.wait_up(PATIENCE).await.unwrap();
        assert!(!link.is_up(), "up without a password");
        server.cli(&["-a", "secret", "CONFIG", "SET", "requirepass", ""]);
        until(|| link.is_up()).await;
        assert_eq!(link.generation(), 1, "the connection was replaced, which proves nothing");
    }

    #[test]
    fn outside_a_runtime_a_call_is_down_and_does_not_panic() {
        let link = default("redis://127.0.0.1:1/");
        let ping = redis::cmd("PING");
        let call = pin!(link.call(&ping));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Err(error)) = call.poll(&mut context) else { panic!("no answer") };
        assert!(matches!(error, LinkError::Down(_)), "{error}");
        assert!(error.to_string().contains("runtime"), "{error}");
    }

    #[tokio::test]
    async fn a_reply_that_cannot_be_read_breaks_the_connection() {
        for reply in ["?what\r\n", "$x\r\n", "*1\r\n?\r\n", ""] {
            let link = answering(reply.to_owned()).await;
            let result = link.call(&redis::cmd("GET")).await;
            assert!(matches!(result, Err(LinkError::Broken(_))), "{reply:?}: {result:?}");
            assert!(!link.is_up(), "{reply:?}");
        }
    }

    /// Someone who dials a port where nobody listens may be given that very port to dial from.
    #[tokio::test]
    async fn an_echo_is_not_a_server() {
        let (address, _) = accepting(|mut stream| {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        })
        .await;
        let error = default(&address).wait_up(SECOND).await.unwrap_err();
        assert!(error.to_string().contains("not redis"), "{error}");
    }

    #[tokio::test]
    async fn the_last_clone_takes_the_supervisor_and_the_connection_with_it() {
        let server = Server::start();
        let link = default(&server.url());
        let clone = link.clone();
        let core = Arc::downgrade(&link.0.core);
        link.wait_up(PATIENCE).await.unwrap();
        drop(link);
        assert!(answers(&clone).await);
        drop(clone);
        until(|| core.strong_count() == 0).await;
        // Only redis-cli itself is left.
        until(|| server.cli(&["CLIENT", "LIST"]).lines().count() == 1).await;
    }

    #[test]
    fn a_link_outlives_the_runtime_that_it_began_on() {
        let server = Server::start();
        let link = default(&server.url());
        assert!(!link.is_up(), "connected without a runtime");
        for _ in 0..3 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                // The connection of the last runtime ended with it, as this call finds out.
                let _ = echoed(&link, "lost").await;
                link.wait_up(PATIENCE).await.unwrap();
                assert!(answers(&link).await);
            });
        }
    }

    #[tokio::test]
    async fn a_call_past_its_deadline_is_not_sent() {
        let server = Server::start();
        let link = default(&server.url());
        link.wait_up(PATIENCE).await.unwrap();
        let result = link.call_until(Instant::now(), redis::cmd("INCR").arg("n")).await;
        assert!(matches!(result, Err(LinkError::Down(_))), "{result:?}");
        assert_eq!(server.cli(&["EXISTS", "n"]), "0");
    }

    #[test]
    fn a_pause_is_cut_by_a_half_at_most_and_never_the_same() {
        let pause = Duration::from_millis(800);
        let mut cut: Vec<_> = (0..1000).map(|_| jittered(pause)).collect();
        assert!(cut.iter().all(|cut| (pause / 2..=pause).contains(cut)));
        cut.sort_unstable();
        cut.dedup();
        assert!(cut.len() > 900, "{} different ones of 1000", cut.len());
        assert!(cut[0] < pause * 11 / 20 && cut[cut.len() - 1] > pause * 19 / 20);
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }

    fn default(address: &str) -> Link {
        Link::new(Settings::new(address).unwrap())
    }

    /// For what is not about time: nothing times out on a busy machine.
    fn patient(address: &str) -> Link {
        let mut settings = Settings::new(address).unwrap();
        settings.deadline = PATIENCE;
        settings.silence = PATIENCE;
        Link::new(settings)
    }

    async fn echoed(link: &Link, id: &str) -> Result<String, LinkError> {
        match link.call(redis::cmd("ECHO").arg(id)).await? {
            Value::BulkString(echo) => Ok(String::from_utf8(echo).unwrap()),
            other => panic!("{id}: {other:?}"),
        }
    }

    async fn answers(link: &Link) -> bool {
        let pong = Value::SimpleString("PONG".to_owned());
        link.call_until(after(PATIENCE), &redis::cmd("PING")).await.is_ok_and(|reply| reply == pong)
    }

    /// Completes when it is so.
    async fn until(so: impl Fn() -> bool) {
        let waiting = async {
            while !so() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, waiting).await.expect("it does not come about");
    }

    /// From here on, the server answers nobody for so long.
    fn paused(millis: u32) -> Cmd {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("PAUSE").arg(millis);
        cmd
    }

    /// Calls from several tasks, at least one in each after the other until it is to end.
    struct Storm {
        callers: JoinSet<Vec<Call>>,
        over: Arc<AtomicBool>,
    }

    #[derive(Clone)]
    struct Call {
        begun: Instant,
        took: Duration,
        /// What a timer of the length of the deadline took that was begun at the same instant.
        bare: Duration,
        result: Result<String, LinkError>,
    }

    impl Storm {
        fn begin(link: &Link, tasks: usize) -> Self {
            let over = Arc::new(AtomicBool::new(false));
            let mut callers = JoinSet::new();
            for _ in 0..tasks {
                let (link, over) = (link.clone(), Arc::clone(&over));
                callers.spawn(async move {
                    let mut calls = Vec::new();
                    loop {
                        let last = over.load(Ordering::Relaxed);
                        let begun = Instant::now();
                        let bare = tokio::spawn(async move {
                            sleep(DEADLINE).await;
                            begun.elapsed()
                        });
                        let result = echoed(&link, "anyone").await;
                        let took = begun.elapsed();
                        calls.push(Call { begun, took, bare: bare.await.unwrap(), result });
                        if last {
                            return calls;
                        }
                    }
                });
            }
            Self { callers, over }
        }

        /// Of the calls that failed, so many of a thousand did in time. But a machine that is late
        /// for every timer is late for ours.
        async fn end(self, server: &str, per_mille: usize) -> Vec<Call> {
            self.over.store(true, Ordering::Relaxed);
            let calls = finish(self.callers).await.concat();
            let failed = || calls.iter().filter(|call| call.result.is_err());
            let mut took: Vec<_> = failed().map(|call| call.took).collect();
            took.sort_unstable();
            let (count, longest, high) =
                (took.len(), took[took.len() - 1], took[took.len() * per_mille / 1000]);
            let bare = failed().map(|call| call.bare).max().unwrap();
            let figures = format!(
                "server {server}: {count} calls without an answer, {per_mille} of 1000 within \
                 {high:?}, maximum {longest:?}, maximum of a bare timer {bare:?}"
            );
            writeln!(stderr(), "link: {figures}").unwrap();
            let late = |span: Duration| span.saturating_sub(DEADLINE);
            assert!(late(high) <= SLACK.max(2 * late(bare)), "{figures}");
            calls
        }
    }

    /// How many `ECHO` the server has carried out.
    fn echoes(server: &Server) -> u32 {
        let stats = server.cli(&["INFO", "commandstats"]);
        let (_, rest) = stats.split_once("cmdstat_echo:calls=").unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    }

    /// None if it was not complete after so many polls, one in each turn of the scheduler.
    async fn polled_at_most<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        for _ in 0..polls {
            let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
            if let Poll::Ready(output) = polled {
                return Some(output);
            }
            tokio::task::yield_now().await;
        }
        None
    }

    /// What every task says; a task that hangs or panics fails the test.
    async fn finish<T: 'static>(tasks: JoinSet<T>) -> Vec<T> {
        timeout(3 * PATIENCE, tasks.join_all()).await.expect("a task hangs")
    }

    /// A server that does nothing but `then` with each connection, and counts them.
    async fn accepting(then: impl Fn(TcpStream) + Send + 'static) -> (String, Arc<AtomicU32>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("redis://{}/", listener.local_addr().unwrap());
        let count = Arc::new(AtomicU32::new(0));
        let accepted = Arc::clone(&count);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                then(stream);
            }
        });
        (address, count)
    }

    /// A link to a server that gives one and the same reply to all it is asked.
    async fn answering(reply: String) -> Link {
        let (address, _) = accepting(move |stream| answer(stream, reply.clone())).await;
        let link = patient(&address);
        link.wait_up(PATIENCE).await.unwrap();
        link
    }

    /// Gives `reply` to all, but `PONG` to the handshake and to `PING` unless it is an error. No
    /// reply is a connection closed.
    fn answer(mut stream: TcpStream, reply: String) {
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                let text = String::from_utf8_lossy(&buffer[..len]);
                let greetings = text.matches("\r\nCLIENT\r\n").count();
                let greetings = greetings + text.matches("\r\nPING\r\n").count();
                let others = text.matches('*').count() - greetings;
                if others > 0 && reply.is_empty() {
                    return;
                }
                let pong = if reply.starts_with('-') { reply.as_str() } else { "+PONG\r\n" };
                let replies = pong.repeat(greetings) + &reply.repeat(others);
                if stream.write_all(replies.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }

    fn random(below: u64) -> u64 {
        RandomState::new().hash_one(()) % below
    }

    fn long() -> bool {
        std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1")
    }
}
