//! Connections, connection attempts, waiting calls and Cluster queries stay bounded, however long a
//! server is silent.

use std::future::poll_fn;
use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use testkit::fake_redis::{FakeRedis, FakeReply};
use testkit::redis::RedisServer;
use testkit::timing::HANG;
use tidegate::{EngineError, Limit, Limiter};
use tidegate_redis::Redis;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, unconstrained};
use tokio::time::{Instant, sleep, timeout};

const SECONDS: usize = 5;
const SPAN: Duration = Duration::from_secs(SECONDS as u64);
/// Number of concurrent callers.
const CALLERS: usize = 64;
/// Upper bound of connection attempts per second.
const ATTEMPTS: usize = 10;
const TIMEOUT: Duration = HANG;
/// Capacity of the queue of checks.
const MAX_WAITING: usize = 65_536;

/// One test at a time: they count, and some of them per time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Topologies and their URLs.
const ARRANGEMENTS: [(&str, &str); 3] = [
    ("one server", "redis://127.0.0.1:{port}"),
    ("sentinels", "redis-sentinel://127.0.0.1:{port}/tides"),
    ("cluster", "redis-cluster://127.0.0.1:{port}"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_and_never_replies_is_tried_rarely_by_one_connection() {
    let _alone = ALONE.lock().await;
    for (name, url) in ARRANGEMENTS {
        for behaviour in [Behaviour::Silent, Behaviour::Closing] {
            let listener = CountingListener::start(behaviour).await;
            let callers = CallingTasks::begin(&at(url, listener.port), Duration::from_millis(25));
            sleep(SPAN).await;
            let calls = callers.end().await;
            let (attempts, max) = listener.counted();
            writeln!(
                stderr().lock(),
                "bounds: {name}, {behaviour:?} for {SPAN:?}: {attempts} attempts, {max} connections at \
                 a time, {calls} calls"
            )
            .unwrap();
            assert!((2..=ATTEMPTS * SECONDS).contains(&attempts), "{name}: {attempts}");
            // The end of a connection may be observed late. A leak would be one per attempt.
            assert!(max <= 4, "{name}: {max} connections at a time");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_ends_up_with_one_connection() {
    let _alone = ALONE.lock().await;
    let server = RedisServer::start();
    let callers = CallingTasks::begin(&server.url(), Duration::from_millis(25));
    callers.until_decided().await;
    let before = number(&server, "stats", "total_connections_received");
    server.freeze();
    sleep(SPAN).await;
    server.thaw();
    callers.until_decided().await;
    let after = number(&server, "stats", "total_connections_received");
    // The thawed server drops connections that the engine has closed.
    let begun = Instant::now();
    while number(&server, "clients", "connected_clients") > 2 {
        assert!(begun.elapsed() < TIMEOUT, "connections stay");
        sleep(Duration::from_millis(10)).await;
    }
    let calls = callers.end().await;
    // Each reading of `INFO` is one connection of `redis-cli`.
    let attempts = after - before - 1;
    writeln!(
        stderr().lock(),
        "bounds: frozen for {SPAN:?} under {CALLERS} callers: {attempts} connections made, 1 left, \
         {calls} calls"
    )
    .unwrap();
    assert!((1..=ATTEMPTS * SECONDS).contains(&attempts), "{attempts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_its_primary_is_queried_less_and_less_often() {
    let _alone = ALONE.lock().await;
    let fake = FakeRedis::start().await;
    let url = format!("redis-cluster://127.0.0.1:{}", fake.port());
    let callers = CallingTasks::begin(&url, Duration::from_millis(25));
    callers.until_decided().await;
    // No server listens on this port.
    fake.name_primary(1);
    // Before the first error, the map is only read every few seconds.
    callers.until_error().await;
    let mut queries = Vec::new();
    for _ in 0..2 {
        let before = fake.views();
        sleep(SPAN).await;
        queries.push(fake.views() - before);
    }
    fake.name_primary(fake.port());
    let found = Instant::now();
    callers.until_decided().await;
    let found = found.elapsed();
    let calls = callers.end().await;
    writeln!(
        stderr().lock(),
        "bounds: a cluster without its primary: {queries:?} queries in {SPAN:?} each, under {calls} \
         calls; the new primary found within {found:?}"
    )
    .unwrap();
    assert!(queries[0] <= 12 * SECONDS && queries[1] <= 5 * SECONDS, "{queries:?}");
    assert!(queries[1] >= 1, "the queries stop: {queries:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_too_many_is_rejected_at_once() {
    /// More than fit into the queue and in flight.
    const SENT: usize = MAX_WAITING + 3 * 4_096;
    let _alone = ALONE.lock().await;
    let fake = FakeRedis::start().await;
    let limiter = limiter(&format!("redis://127.0.0.1:{}", fake.port()), SPAN);
    limiter.check("subject").await.unwrap();
    // The connection is replaced when a `PING` gets no reply, which ends the calls in flight. On a
    // busy machine this may come before the queue is full.
    let mut rejected = 0;
    for _ in 0..20 {
        fake.set_replies(FakeReply::new(""), FakeReply::new(""));
        rejected = unconstrained(rejected_of(SENT, &limiter)).await;
        fake.set_replies(FakeReply::good(), FakeReply::good());
        let working = async { while limiter.check("subject").await.is_err() {} };
        // The batches in flight end with their deadline.
        timeout(TIMEOUT, working).await.expect("no decision after the queue was freed");
        if rejected > 0 {
            break;
        }
    }
    writeln!(stderr().lock(), "bounds: of {SENT} checks {rejected} rejected").unwrap();
    if rejected == 0 {
        writeln!(stderr().lock(), "skipped: too busy to fill the queue of a connection").unwrap();
    }
    assert!(rejected <= SENT - MAX_WAITING, "{rejected}");
}

/// Makes that many calls at once and drops those that wait. Returns how many were rejected because
/// the queue was full.
async fn rejected_of(calls: usize, limiter: &Limiter) -> usize {
    let mut waiting = Vec::with_capacity(calls);
    let mut rejected = 0;
    for _ in 0..calls {
        let limiter = limiter.clone();
        let mut call = Box::pin(async move { limiter.check("subject").await });
        match poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
            Poll::Ready(Err(error)) if error.to_string().contains("too many calls are queued") => {
                assert!(matches!(error, EngineError::Unavailable(_)), "{error}");
                rejected += 1;
            }
            Poll::Ready(_) => {}
            Poll::Pending => waiting.push(call),
        }
    }
    rejected
}

fn at(url: &str, port: u16) -> String {
    url.replace("{port}", &port.to_string())
}

fn limiter(url: &str, deadline: Duration) -> Limiter {
    let engine = Redis::builder(url).deadline(deadline).build().unwrap();
    Limiter::new(engine, "1000000/s".parse::<Limit>().unwrap())
}

/// Tasks that make calls all the time.
struct CallingTasks {
    limiter: Limiter,
    over: Arc<AtomicBool>,
    tasks: JoinSet<usize>,
}

impl CallingTasks {
    fn begin(url: &str, deadline: Duration) -> Self {
        let limiter = limiter(url, deadline);
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for nth in 0..CALLERS {
            let (limiter, over) = (limiter.clone(), Arc::clone(&over));
            tasks.spawn(async move {
                let mut calls = 0;
                while !over.load(Ordering::Relaxed) {
                    let _ = limiter.check(&format!("user-{nth}")).await;
                    calls += 1;
                    sleep(Duration::from_millis(10)).await;
                }
                calls
            });
        }
        Self { limiter, over, tasks }
    }

    async fn until_decided(&self) {
        let decided = async { while self.limiter.check("subject").await.is_err() {} };
        timeout(TIMEOUT, decided).await.expect("no decision");
    }

    async fn until_error(&self) {
        let failed = async {
            while self.limiter.check("subject").await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(TIMEOUT, failed).await.expect("no error");
    }

    /// Ends the tasks, and returns the number of their calls.
    async fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        timeout(TIMEOUT, self.tasks.join_all()).await.expect("a call hangs").into_iter().sum()
    }
}

#[derive(Clone, Copy, Debug)]
enum Behaviour {
    /// Reads, and never replies.
    Silent,
    /// Closes accepted connections.
    Closing,
}

/// A server that seems frozen, or is behind a broken proxy. Counts connections.
struct CountingListener {
    port: u16,
    accepted: Arc<AtomicUsize>,
    max: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

impl CountingListener {
    async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (accepted, max) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, peak, open) =
            (Arc::clone(&accepted), Arc::clone(&max), Arc::new(AtomicUsize::new(0)));
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                peak.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                let open = Arc::clone(&open);
                connections.spawn(async move {
                    if matches!(behaviour, Behaviour::Silent) {
                        read_all(stream).await;
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Self { port, accepted, max, accepting }
    }

    /// Number of connections in total, and of simultaneous ones at most.
    fn counted(&self) -> (usize, usize) {
        (self.accepted.load(Ordering::Relaxed), self.max.load(Ordering::Relaxed))
    }
}

impl Drop for CountingListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn read_all(mut stream: TcpStream) {
    while stream.read(&mut [0; 1024]).await.is_ok_and(|len| len > 0) {}
}

/// A number of `INFO`.
fn number(server: &RedisServer, section: &str, name: &str) -> usize {
    let info = server.cli(&["INFO", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap().trim().parse().unwrap()
}
