//! What must not grow does not, however long a server is silent: connections, attempts to make them,
//! calls that wait, and questions to a Cluster.

use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::{fake, server};
use fake::{Fake, Reply};
use server::Server;
use tidegate::{EngineError, Limit, Limiter};
use tidegate_redis::Redis;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const SECONDS: usize = 5;
const SPAN: Duration = Duration::from_secs(SECONDS as u64);
/// How many callers there are meanwhile.
const CALLERS: usize = 64;
/// How often a server is tried in a second, at most.
const ATTEMPTS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(30);
/// How many checks may wait.
const MOST_WAITING: usize = 65_536;

/// One test at a time: they count, and some count in time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// How the servers are arranged, and where they are.
const ARRANGEMENTS: [(&str, &str); 3] = [
    ("one server", "redis://127.0.0.1:{port}"),
    ("sentinels", "redis-sentinel://127.0.0.1:{port}/tides"),
    ("cluster", "redis-cluster://127.0.0.1:{port}"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_and_says_nothing_is_tried_by_one_connection_and_seldom() {
    let _alone = ALONE.lock().await;
    for (name, url) in ARRANGEMENTS {
        for manner in [Manner::Silent, Manner::Closing] {
            let listener = Listener::start(manner).await;
            let callers = Callers::begin(&at(url, listener.port), Duration::from_millis(25));
            sleep(SPAN).await;
            let calls = callers.end().await;
            let (attempts, most) = listener.counted();
            writeln!(
                stderr().lock(),
                "bounds: {name}, {manner:?} for {SPAN:?}: {attempts} attempts, {most} connections at a \
                 time, {calls} calls"
            )
            .unwrap();
            assert!((2..=ATTEMPTS * SECONDS).contains(&attempts), "{name}: {attempts}");
            // One that has ended may be noticed late.
            assert!(most <= 2, "{name}: {most} connections at a time");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_left_with_one_connection() {
    let _alone = ALONE.lock().await;
    let server = Server::start();
    let callers = Callers::begin(&server.url(), Duration::from_millis(25));
    callers.until_answered().await;
    let before = number(&server, "stats", "total_connections_received");
    server.freeze();
    sleep(SPAN).await;
    server.thaw();
    callers.until_answered().await;
    let after = number(&server, "stats", "total_connections_received");
    // One that answers again drops those that were left behind.
    let begun = Instant::now();
    while number(&server, "clients", "connected_clients") > 2 {
        assert!(begun.elapsed() < PATIENCE, "connections stay");
        sleep(Duration::from_millis(10)).await;
    }
    let calls = callers.end().await;
    // Each question is one of `redis-cli`.
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
async fn a_cluster_whose_primary_is_lost_is_asked_less_and_less_often() {
    let _alone = ALONE.lock().await;
    let fake = Fake::start().await;
    let url = format!("redis-cluster://127.0.0.1:{}", fake.port());
    let callers = Callers::begin(&url, Duration::from_millis(25));
    callers.until_answered().await;
    // Nobody is there.
    fake.name_primary(1);
    // As long as nobody doubts it, the map is looked at every few seconds alone.
    callers.until_refused().await;
    let mut asked = Vec::new();
    for _ in 0..2 {
        let before = fake.views();
        sleep(SPAN).await;
        asked.push(fake.views() - before);
    }
    fake.name_primary(fake.port());
    let found = Instant::now();
    callers.until_answered().await;
    let found = found.elapsed();
    let calls = callers.end().await;
    writeln!(
        stderr().lock(),
        "bounds: a cluster without its primary: asked {asked:?} times in {SPAN:?} each, under {calls} \
         calls; the new primary found within {found:?}"
    )
    .unwrap();
    assert!(asked[0] <= 12 * SECONDS && asked[1] <= 5 * SECONDS, "{asked:?}");
    assert!(asked[1] >= SECONDS, "it is not forgotten: {asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_too_many_is_sent_home_at_once() {
    /// More than wait, and more than are on their way.
    const COMING: usize = MOST_WAITING + 3 * 4_096;
    let _alone = ALONE.lock().await;
    let fake = Fake::start().await;
    let limiter = limiter(&format!("redis://127.0.0.1:{}", fake.port()), PATIENCE);
    limiter.check("someone").await.unwrap();
    fake.answer(Reply::new(""), Reply::new(""));
    let (mut coming, sent_home) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    for _ in 0..COMING {
        let (limiter, sent_home) = (limiter.clone(), Arc::clone(&sent_home));
        coming.spawn(async move {
            let Err(error) = limiter.check("someone").await else { return };
            if error.to_string().contains("too many calls wait") {
                assert!(matches!(error, EngineError::Unavailable(_)), "{error}");
                sent_home.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    // Some of those who waited have been sent meanwhile: two batches at a time.
    while sent_home.load(Ordering::Relaxed) < 4_000 {
        assert!(begun.elapsed() < PATIENCE, "{} sent home", sent_home.load(Ordering::Relaxed));
        sleep(Duration::from_millis(10)).await;
    }
    let (sent_home, took) = (sent_home.load(Ordering::Relaxed), begun.elapsed());
    // The others go, too, and there is room again.
    coming.shutdown().await;
    fake.answer(Reply::good(), Reply::good());
    let working = async { while limiter.check("someone").await.is_err() {} };
    timeout(2 * PATIENCE, working).await.expect("it works again");
    writeln!(
        stderr().lock(),
        "bounds: of {COMING} checks {sent_home} sent home, all within {took:?}"
    )
    .unwrap();
    assert!(sent_home <= COMING - MOST_WAITING, "{sent_home}");
}

fn at(url: &str, port: u16) -> String {
    url.replace("{port}", &port.to_string())
}

fn limiter(url: &str, deadline: Duration) -> Limiter {
    let engine = Redis::builder(url).deadline(deadline).build().unwrap();
    Limiter::new(engine, "1000000/s".parse::<Limit>().unwrap())
}

/// Tasks that ask all the time.
struct Callers {
    limiter: Limiter,
    over: Arc<AtomicBool>,
    tasks: JoinSet<usize>,
}

impl Callers {
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

    async fn until_answered(&self) {
        let answered = async { while self.limiter.check("someone").await.is_err() {} };
        timeout(PATIENCE, answered).await.expect("no answer");
    }

    async fn until_refused(&self) {
        let refused = async {
            while self.limiter.check("someone").await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, refused).await.expect("it goes on answering");
    }

    /// How many calls they have made.
    async fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        timeout(PATIENCE, self.tasks.join_all()).await.expect("a call hangs").into_iter().sum()
    }
}

#[derive(Clone, Copy, Debug)]
enum Manner {
    /// It reads, and says nothing.
    Silent,
    /// It closes what it has accepted.
    Closing,
}

/// What a frozen server looks like, or one behind a broken proxy. It counts who comes.
struct Listener {
    port: u16,
    accepted: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Listener {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (accepted, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, peak, open) =
            (Arc::clone(&accepted), Arc::clone(&most), Arc::new(AtomicUsize::new(0)));
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                peak.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                let open = Arc::clone(&open);
                connections.spawn(async move {
                    if matches!(manner, Manner::Silent) {
                        read_all(stream).await;
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Self { port, accepted, most, accepting }
    }

    /// How many came, and how many were there at a time.
    fn counted(&self) -> (usize, usize) {
        (self.accepted.load(Ordering::Relaxed), self.most.load(Ordering::Relaxed))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn read_all(mut stream: TcpStream) {
    while stream.read(&mut [0; 1024]).await.is_ok_and(|len| len > 0) {}
}

/// A number that `INFO` tells.
fn number(server: &Server, section: &str, name: &str) -> usize {
    let info = server.cli(&["INFO", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap().trim().parse().unwrap()
}
