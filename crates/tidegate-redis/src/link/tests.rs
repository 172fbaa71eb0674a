//! A link between real servers and their faults.

use std::io::{Write, stderr};
use std::sync::atomic::AtomicU32;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::server::Server;
use super::*;
use crate::address::{Address, Target};

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
    let settings = Settings { silence: PATIENCE, ..Settings::default() };
    let link = link_to(&server.url(), settings);
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
    writeln!(stderr(), "link: used again so long after the server was back: {returns:?}").unwrap();
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
    let settings = Settings { idle: Duration::from_millis(50), ..Settings::default() };
    let link = link_to(&server.url(), settings);
    until(|| link.is_up()).await;
    sleep(SECOND / 2).await;
    assert_eq!((link.is_up(), link.generation()), (true, 1), "an idle connection was replaced");
    server.freeze();
    until(|| !link.is_up()).await;
    server.thaw();
    link.wait_up(PATIENCE).await.unwrap();
    assert_eq!(link.generation(), 2);
}

/// It shakes hands and says nothing more, so that each attempt leaves questions without an answer.
#[tokio::test]
async fn a_silent_server_is_not_kept_more_and_more_connections() {
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
    let settings = Settings {
        connect_deadline: Duration::from_millis(50),
        backoff: Duration::from_millis(5)..=Duration::from_millis(10),
        ..Settings::default()
    };
    let _link = link_to(&address, settings);
    until(|| accepted.load(Ordering::Relaxed) >= 10).await;
    until(|| open.load(Ordering::Relaxed) <= 2).await;
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
    let settings = Settings { backoff: Duration::from_millis(10)..=SECOND, ..Settings::default() };
    let link = link_to(&server.url(), settings);
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
    let settings =
        Settings { deadline: PATIENCE, idle: Duration::from_millis(20), ..Settings::default() };
    let link = link_to(&address, settings);
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
    let settings = Settings { connect_deadline: Duration::from_millis(100), ..Settings::default() };
    let link = link_to(&address, settings);
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
    let settings = Settings { idle: Duration::from_millis(20), ..Settings::default() };
    let link = link_to(&url, settings);
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

/// Two links share what they know. Each ends all connections, its own and the other's, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_to_one_server_are_no_reset_and_its_restart_is_one() {
    let mut server = Server::start();
    let resets = Resets::default();
    let moment = Duration::from_millis(1);
    let settings = Settings {
        backoff: moment..=moment,
        deadline: PATIENCE,
        silence: PATIENCE,
        resets: Some(resets.clone()),
        ..Settings::default()
    };
    let links = [0, 1].map(|_| link_to(&server.url(), settings.clone()));
    let made = || links.iter().map(Link::generation).sum::<u64>();
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "no"]);
    let killing = async {
        while made() < 1000 {
            for link in &links {
                let _ = link.call(&kill).await;
            }
        }
    };
    timeout(3 * PATIENCE, killing).await.unwrap();
    assert_eq!(resets.told(), (0, None));
    server.restart();
    for link in &links {
        assert!(answers(link).await || answers(link).await);
    }
    let (count, last) = resets.told();
    writeln!(stderr(), "link: {} connections; resets {count}: {last:?}", made()).unwrap();
    assert_eq!(count, 1);
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

fn link_to(address: &str, settings: Settings) -> Link {
    let Address { target: Target::One(place), dialer } = Address::parse(address).unwrap() else {
        panic!("{address} is not one of a single server");
    };
    Link::new(place, dialer, settings)
}

fn default(address: &str) -> Link {
    link_to(address, Settings::default())
}

/// For what is not about time: nothing times out on a busy machine.
fn patient(address: &str) -> Link {
    let settings = Settings { deadline: PATIENCE, silence: PATIENCE, ..Settings::default() };
    link_to(address, settings)
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

/// Gives `reply` to all, but `PONG` to the handshake, the greeting and to `PING` unless it is an error. No
/// reply is a connection closed.
fn answer(mut stream: TcpStream, reply: String) {
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..len]);
            let greetings = ["CLIENT", "PING", "HELLO", "INFO"];
            let greetings = greetings.map(|name| text.matches(&format!("\r\n{name}\r\n")).count());
            let greetings: usize = greetings.iter().sum();
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
