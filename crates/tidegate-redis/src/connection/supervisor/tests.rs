//! A supervised connection to real and faulty servers.

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::io::{Write, stderr};
use std::sync::atomic::AtomicU32;
use std::task::Poll;

use testkit::redis::RedisServer as Server;
use testkit::timing::{HANG, compare_with_goal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;
use crate::durability::data_loss::DataLossLog;
use crate::topology::deployment::{Deployment, ServerSet};

const DEADLINE: Duration = Duration::from_millis(25);
const SLACK: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);
/// For events that must happen, but not in a given time: a busy machine may pause for a second.
const GENEROUS: Duration = HANG;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_512_callers_gets_its_own_reply() {
    let server = Server::start();
    let connection = unhurried(&server.url());
    let mut callers = JoinSet::new();
    for caller in 0..512 {
        let connection = connection.clone();
        callers.spawn(async move {
            for turn in 0..20 {
                let id = format!("{caller}-{turn}");
                assert_eq!(echoed(&connection, &id).await.unwrap(), id);
            }
        });
    }
    finish(callers).await;
    assert_eq!((connection.is_up(), connection.generation()), (true, 1));
}

/// The server delays its replies until after the deadline. The reply to the call that gave up comes
/// first, on the same connection.
#[tokio::test]
async fn a_late_reply_is_discarded_and_the_connection_kept() {
    let server = Server::start();
    let settings = ConnectionSettings { silence: GENEROUS, ..ConnectionSettings::default() };
    let connection = connect_to(&server.url(), settings);
    for turn in 0..10 {
        let pause = connection.call_until(deadline_after(GENEROUS), &paused(60)).await;
        assert_eq!(pause.unwrap(), Value::Okay);
        let late = echoed(&connection, &format!("late {turn}")).await;
        assert!(matches!(late, Err(CallError::TimedOut)), "{late:?}");
        let id = format!("after {turn}");
        let reply =
            connection.call_until(deadline_after(GENEROUS), redis::cmd("ECHO").arg(&id)).await;
        assert_eq!(reply.unwrap(), Value::BulkString(id.into_bytes()), "crossed");
    }
    assert_eq!(connection.generation(), 1);
    assert_eq!(echoes(&server), 20, "the late calls were not sent, which proves nothing");
}

/// Dropped unpolled, while queued, while in flight, and while the server delays its replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_call_leaves_no_reply_for_the_next() {
    let wanted = if long() { 100_000 } else { 10_000 };
    let server = Server::start();
    let connection = unhurried(&server.url());
    let dropped = Arc::new(AtomicU32::new(0));
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        let (connection, dropped) = (connection.clone(), Arc::clone(&dropped));
        let drops = caller % 2 == 0;
        callers.spawn(async move {
            let mut kept = 0;
            for turn in 0.. {
                if dropped.load(Ordering::Relaxed) >= wanted {
                    break;
                }
                if drops && random(4000) == 0 {
                    let _ = polled_at_most(3, connection.call(&paused(3))).await;
                }
                let id = format!("{caller}-{turn}");
                let call = echoed(&connection, &id);
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
    assert_eq!(connection.generation(), 1, "the connection was replaced, which proves nothing");
    let dropped = dropped.load(Ordering::Relaxed);
    let discarded = echoes(&server) - kept;
    writeln!(
        stderr(),
        "connection: {dropped} calls dropped, of which the server replied to {discarded}; {kept} \
         others, 0 crossed"
    )
    .unwrap();
    assert!(discarded > dropped / 20, "hardly any was dropped while in flight");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_used_again_after_its_return() {
    let mut server = Server::start();
    let connection = default(&server.url());
    connection.wait_connected(GENEROUS).await.unwrap();
    let mut returns = Vec::new();
    for _ in 0..3 {
        let storm = Storm::begin(&connection, 16);
        sleep(SECOND / 5).await;
        server.kill();
        let killed = Instant::now();
        sleep(4 * SECOND / 5).await;
        let calls = storm.end("killed", 990).await;
        // Once one of them has failed, no other is sent.
        let failed = calls.iter().filter(|call| call.begun > killed && call.result.is_err());
        let detected = failed.map(|call| call.begun + call.took).min().unwrap();
        for call in calls.iter().filter(|call| call.begun > detected) {
            assert!(matches!(call.result, Err(CallError::NotSent(_))), "{:?}", call.result);
        }
        assert!(!connection.is_up());
        server.restart();
        let back = Instant::now();
        while echoed(&connection, "back").await.is_err() {
            assert!(back.elapsed() < HANG, "not used again");
        }
        compare_with_goal("used again after a restart", back.elapsed(), SECOND);
        returns.push(back.elapsed());
    }
    writeln!(stderr(), "connection: used again so long after the restart: {returns:?}").unwrap();
    assert!(connection.generation() >= 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_delays_no_call_beyond_the_deadline() {
    let server = Server::start();
    let connection = default(&server.url());
    connection.wait_connected(GENEROUS).await.unwrap();
    server.freeze();
    let storm = Storm::begin(&connection, 64);
    sleep(2 * SECOND).await;
    for call in storm.end("frozen", 999).await {
        call.result.unwrap_err();
    }
    until(|| !connection.is_up()).await;
    server.thaw();
    connection.wait_connected(GENEROUS).await.unwrap();
    assert!(pings(&connection).await);
}

/// There are no calls, and no packet reports that the server is gone.
#[tokio::test]
async fn a_dead_connection_is_detected_without_calls() {
    let server = Server::start();
    let settings =
        ConnectionSettings { idle: Duration::from_millis(50), ..ConnectionSettings::default() };
    let connection = connect_to(&server.url(), settings);
    until(|| connection.is_up()).await;
    sleep(SECOND / 2).await;
    assert_eq!(
        (connection.is_up(), connection.generation()),
        (true, 1),
        "an idle connection was replaced"
    );
    server.freeze();
    until(|| !connection.is_up()).await;
    server.thaw();
    connection.wait_connected(GENEROUS).await.unwrap();
    assert_eq!(connection.generation(), 2);
}

/// The server replies to the handshake only, so that each attempt leaves commands without a reply.
#[tokio::test]
async fn connections_to_a_silent_server_do_not_accumulate() {
    let open = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&open);
    let (address, accepted) = accepting(move |mut stream| {
        let open = Arc::clone(&count);
        open.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                let words = String::from_utf8_lossy(&buffer[..len]).to_uppercase();
                for _ in words.matches("SETINFO") {
                    let _ = stream.write_all(b"+OK\r\n").await;
                }
            }
            open.fetch_sub(1, Ordering::Relaxed);
        });
    })
    .await;
    let settings = ConnectionSettings {
        connect_deadline: Duration::from_millis(50),
        backoff: Duration::from_millis(5)..=Duration::from_millis(10),
        ..ConnectionSettings::default()
    };
    let _connection = connect_to(&address, settings);
    until(|| accepted.load(Ordering::Relaxed) >= 10).await;
    until(|| open.load(Ordering::Relaxed) <= 2).await;
}

#[tokio::test]
async fn without_a_server_calls_fail_until_it_starts() {
    let mut server = Server::stopped(&[]);
    let connection = default(&server.url());
    for _ in 0..10 {
        let begun = Instant::now();
        let result = connection.call(&redis::cmd("PING")).await;
        assert!(matches!(result, Err(CallError::NotSent(_))), "{result:?}");
        assert!(begun.elapsed() >= DEADLINE, "gave up before the deadline");
    }
    let message = connection.call(&redis::cmd("PING")).await.unwrap_err().to_string();
    let expected = format!(
        "nothing was sent: cannot connect to redis at 127.0.0.1:{} (Connection refused",
        server.port()
    );
    assert!(message.starts_with(&expected), "{message}");
    assert_eq!((connection.is_up(), connection.generation()), (false, 0));
    server.restart();
    connection.wait_connected(GENEROUS).await.unwrap();
    assert!(pings(&connection).await);
}

/// At once, or at the first command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_are_few_while_a_server_drops_every_connection() {
    let dropping = accepting(drop).await;
    let closing = accepting(|stream| reply_to_all(stream, String::new())).await;
    let mut tasks = JoinSet::new();
    for (address, accepted) in [dropping, closing] {
        tasks.spawn(async move {
            let connection = default(&address);
            let storm = Storm::begin(&connection, 4);
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
        writeln!(stderr(), "connection: {first} attempts in the first second, {then} in two more")
            .unwrap();
        assert!(first <= 20 && then <= 20, "{first}, then {then}");
    }
}

#[tokio::test]
async fn a_connection_that_lasted_is_replaced_at_once() {
    let mut server = Server::stopped(&[]);
    let settings = ConnectionSettings {
        backoff: Duration::from_millis(10)..=SECOND,
        ..ConnectionSettings::default()
    };
    let connection = connect_to(&server.url(), settings);
    // Long enough for the longest pause.
    sleep(3 * SECOND / 2).await;
    server.restart();
    connection.wait_connected(GENEROUS).await.unwrap();
    // A busy machine may delay one of them; a pause delays all, by at least half a second.
    for attempt in 1.. {
        sleep(5 * SECOND / 4).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let lost = connection.call_until(deadline_after(GENEROUS), &redis::cmd("PING")).await;
        assert!(matches!(lost, Err(CallError::ConnectionLost(_))), "{lost:?}");
        let replaced = connection.wait_connected(Duration::from_millis(450)).await;
        if replaced.is_ok() {
            break;
        }
        assert!(attempt < 8, "{replaced:?}");
        connection.wait_connected(GENEROUS).await.unwrap();
    }
}

/// The `PING` waits behind slow calls, whose replies show that the server is alive.
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
    let settings = ConnectionSettings {
        deadline: GENEROUS,
        idle: Duration::from_millis(20),
        ..ConnectionSettings::default()
    };
    let connection = connect_to(&address, settings);
    let mut callers = JoinSet::new();
    for _ in 0..40 {
        let connection = connection.clone();
        callers.spawn(async move { connection.call(&redis::cmd("GET")).await.unwrap() });
    }
    finish(callers).await;
    assert_eq!(accepted.load(Ordering::Relaxed), 1, "another connection was made");
}

#[tokio::test]
async fn a_server_that_never_replies_is_not_up() {
    let held = Mutex::new(Vec::new());
    let (address, accepted) = accepting(move |stream| held.lock().unwrap().push(stream)).await;
    let settings = ConnectionSettings {
        connect_deadline: Duration::from_millis(100),
        ..ConnectionSettings::default()
    };
    let connection = connect_to(&address, settings);
    until(|| accepted.load(Ordering::Relaxed) > 1).await;
    let error = connection.wait_connected(SECOND).await.unwrap_err();
    assert!(error.to_string().contains("no reply within 100ms"), "{error}");
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
        let connection = replying(format!("-{line}\r\n")).await;
        for _ in 0..3 {
            let result = connection.call(&redis::cmd("GET")).await;
            let Err(CallError::ServerError(error)) = result else { panic!("{line}: {result:?}") };
            assert_eq!(error.code(), line.split(' ').next(), "{error}");
        }
        let serves = !["LOADING", "READONLY", "NOAUTH", "MASTERDOWN"]
            .iter()
            .any(|code| line.starts_with(code));
        assert_eq!((connection.is_up(), connection.generation()), (serves, 1), "{line}");
    }
}

/// Before the first call, and until it serves calls.
#[tokio::test]
async fn a_server_that_rejects_all_commands_is_not_up() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let settings =
        ConnectionSettings { idle: Duration::from_millis(20), ..ConnectionSettings::default() };
    let connection = connect_to(&url, settings);
    connection.wait_connected(GENEROUS).await.unwrap();
    assert!(!connection.is_up(), "up without a password");
    server.cli(&["-a", "secret", "CONFIG", "SET", "requirepass", ""]);
    until(|| connection.is_up()).await;
    assert_eq!(connection.generation(), 1, "the connection was replaced, which proves nothing");
}

#[test]
fn outside_a_runtime_a_call_fails_and_does_not_panic() {
    let connection = default("redis://127.0.0.1:1/");
    let ping = redis::cmd("PING");
    let call = pin!(connection.call(&ping));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let Poll::Ready(Err(error)) = call.poll(&mut context) else { panic!("no result") };
    assert!(matches!(error, CallError::NotSent(_)), "{error}");
    assert!(error.to_string().contains("runtime"), "{error}");
}

#[tokio::test]
async fn a_malformed_reply_ends_the_connection() {
    for reply in ["?what\r\n", "$x\r\n", "*1\r\n?\r\n", ""] {
        let connection = replying(reply.to_owned()).await;
        let result = connection.call(&redis::cmd("GET")).await;
        assert!(matches!(result, Err(CallError::ConnectionLost(_))), "{reply:?}: {result:?}");
        assert!(!connection.is_up(), "{reply:?}");
    }
}

/// A client that dials an unused port may get that very port as its own, and connect to itself.
#[tokio::test]
async fn an_echo_is_not_a_server() {
    let (address, _) = accepting(|mut stream| {
        tokio::spawn(async move {
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await
        });
    })
    .await;
    let error = default(&address).wait_connected(SECOND).await.unwrap_err();
    assert!(error.to_string().contains("not Redis"), "{error}");
}

#[tokio::test]
async fn dropping_the_last_clone_ends_the_supervisor_and_the_connection() {
    let server = Server::start();
    let connection = default(&server.url());
    let clone = connection.clone();
    let inner = Arc::downgrade(&connection.0.inner);
    connection.wait_connected(GENEROUS).await.unwrap();
    drop(connection);
    assert!(pings(&clone).await);
    drop(clone);
    until(|| inner.strong_count() == 0).await;
    // Only redis-cli itself is left.
    until(|| server.cli(&["CLIENT", "LIST"]).lines().count() == 1).await;
}

#[test]
fn a_connection_outlives_the_runtime_that_it_began_on() {
    let server = Server::start();
    let connection = default(&server.url());
    assert!(!connection.is_up(), "connected without a runtime");
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            // The connection of the last runtime ended with it, which this call detects.
            let _ = echoed(&connection, "lost").await;
            connection.wait_connected(GENEROUS).await.unwrap();
            assert!(pings(&connection).await);
        });
    }
}

#[tokio::test]
async fn a_call_past_its_deadline_is_not_sent() {
    let server = Server::start();
    let connection = default(&server.url());
    connection.wait_connected(GENEROUS).await.unwrap();
    let result = connection.call_until(Instant::now(), redis::cmd("INCR").arg("n")).await;
    assert!(matches!(result, Err(CallError::NotSent(_))), "{result:?}");
    assert_eq!(server.cli(&["EXISTS", "n"]), "0");
}

/// Two connections share a log. Each kills all connections, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_to_one_server_are_no_data_loss_and_its_restart_is_one() {
    let mut server = Server::start();
    let data_loss = DataLossLog::default();
    let log = data_loss.clone();
    let moment = Duration::from_millis(1);
    let settings = ConnectionSettings {
        backoff: moment..=moment,
        deadline: GENEROUS,
        silence: GENEROUS,
        on_connect: Some(Arc::new(move |server| log.connected(server))),
        ..ConnectionSettings::default()
    };
    let connections = [0, 1].map(|_| connect_to(&server.url(), settings.clone()));
    let made = || connections.iter().map(SupervisedConnection::generation).sum::<u64>();
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "no"]);
    let killing = async {
        while made() < 1000 {
            for connection in &connections {
                let _ = connection.call(&kill).await;
            }
        }
    };
    timeout(3 * GENEROUS, killing).await.unwrap();
    assert_eq!(data_loss.summary(), (0, None));
    server.restart();
    for connection in &connections {
        assert!(pings(connection).await || pings(connection).await);
    }
    let (count, last) = data_loss.summary();
    writeln!(stderr(), "connection: {} made; losses {count}: {last:?}", made()).unwrap();
    assert_eq!(count, 1);
}

#[test]
fn jitter_shortens_a_pause_by_at_most_half_and_differs_each_time() {
    let pause = Duration::from_millis(800);
    let mut cut: Vec<_> = (0..1000).map(|_| jittered(pause)).collect();
    assert!(cut.iter().all(|cut| (pause / 2..=pause).contains(cut)));
    cut.sort_unstable();
    cut.dedup();
    assert!(cut.len() > 900, "{} different ones of 1000", cut.len());
    assert!(cut[0] < pause * 11 / 20 && cut[cut.len() - 1] > pause * 19 / 20);
    assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
}

fn connect_to(address: &str, settings: ConnectionSettings) -> SupervisedConnection {
    let deployment = Deployment::new(&address.parse().unwrap()).unwrap();
    let Deployment { servers: ServerSet::One(endpoint), dialer } = deployment else {
        panic!("{address} is not a single server");
    };
    SupervisedConnection::new(endpoint, dialer, settings)
}

fn default(address: &str) -> SupervisedConnection {
    connect_to(address, ConnectionSettings::default())
}

/// For tests that are not about time: nothing times out on a busy machine.
fn unhurried(address: &str) -> SupervisedConnection {
    let settings = ConnectionSettings {
        deadline: GENEROUS,
        silence: GENEROUS,
        ..ConnectionSettings::default()
    };
    connect_to(address, settings)
}

async fn echoed(connection: &SupervisedConnection, id: &str) -> Result<String, CallError> {
    match connection.call(redis::cmd("ECHO").arg(id)).await? {
        Value::BulkString(echo) => Ok(String::from_utf8(echo).unwrap()),
        other => panic!("{id}: {other:?}"),
    }
}

async fn pings(connection: &SupervisedConnection) -> bool {
    let pong = Value::SimpleString("PONG".to_owned());
    connection
        .call_until(deadline_after(GENEROUS), &redis::cmd("PING"))
        .await
        .is_ok_and(|reply| reply == pong)
}

/// Completes when `so` returns true.
async fn until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(GENEROUS, waiting).await.expect("the condition never becomes true");
}

/// Pauses all replies of the server for so long.
fn paused(millis: u32) -> Cmd {
    let mut cmd = redis::cmd("CLIENT");
    cmd.arg("PAUSE").arg(millis);
    cmd
}

/// Consecutive calls from several tasks, at least one in each, until it is ended.
struct Storm {
    callers: JoinSet<Vec<Call>>,
    over: Arc<AtomicBool>,
}

#[derive(Clone)]
struct Call {
    begun: Instant,
    took: Duration,
    /// The duration of a plain timer over the deadline that was started at the same instant.
    bare: Duration,
    result: Result<String, CallError>,
}

impl Storm {
    fn begin(connection: &SupervisedConnection, tasks: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for _ in 0..tasks {
            let (connection, over) = (connection.clone(), Arc::clone(&over));
            callers.spawn(async move {
                let mut calls = Vec::new();
                loop {
                    let last = over.load(Ordering::Relaxed);
                    let begun = Instant::now();
                    let bare = tokio::spawn(async move {
                        sleep(DEADLINE).await;
                        begun.elapsed()
                    });
                    let result = echoed(&connection, "any").await;
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

    /// Every call has ended. The goal is that so many of a thousand failed calls failed in time, as
    /// far as the plain timers of this machine are on time.
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
            "server {server}: {count} calls without a reply, {per_mille} of 1000 within \
             {high:?}, maximum {longest:?}, maximum of a plain timer {bare:?}"
        );
        writeln!(stderr(), "connection: {figures}").unwrap();
        let late = |span: Duration| span.saturating_sub(DEADLINE);
        compare_with_goal("a call without a reply", late(high), SLACK.max(2 * late(bare)));
        calls
    }
}

/// How many `ECHO` the server has executed.
fn echoes(server: &Server) -> u32 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let (_, rest) = stats.split_once("cmdstat_echo:calls=").unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}

/// None if it was not complete after so many polls, with a yield after each.
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

/// The outputs of all tasks; a task that hangs or panics fails the test.
async fn finish<T: 'static>(tasks: JoinSet<T>) -> Vec<T> {
    timeout(3 * GENEROUS, tasks.join_all()).await.expect("a task hangs")
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

/// A connection to a server that sends the same reply to all commands.
async fn replying(reply: String) -> SupervisedConnection {
    let (address, _) = accepting(move |stream| reply_to_all(stream, reply.clone())).await;
    let connection = unhurried(&address);
    connection.wait_connected(GENEROUS).await.unwrap();
    connection
}

/// Sends `reply` to all commands, but `PONG` to those of the handshake unless it is an error.
/// Closes the connection if `reply` is empty.
fn reply_to_all(mut stream: TcpStream, reply: String) {
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..len]);
            let handshake = ["CLIENT", "PING", "HELLO", "INFO"];
            let handshake = handshake.map(|name| text.matches(&format!("\r\n{name}\r\n")).count());
            let handshake: usize = handshake.iter().sum();
            let others = text.matches('*').count() - handshake;
            if others > 0 && reply.is_empty() {
                return;
            }
            let pong = if reply.starts_with('-') { reply.as_str() } else { "+PONG\r\n" };
            let replies = pong.repeat(handshake) + &reply.repeat(others);
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
