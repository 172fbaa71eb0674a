//! Calls through a Cluster of fake nodes with scripted replies.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use redis::{RedisConnectionInfo, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;

const GENEROUS: Duration = Duration::from_secs(20);
const KEY: &str = "foo";

/// A node that replies and records its commands, except `CLUSTER` and the handshake.
#[derive(Clone)]
struct Fake {
    port: u16,
    received: Arc<Mutex<Vec<String>>>,
    /// The port of the node that owns all slots, for `CLUSTER SLOTS`.
    owner: Arc<AtomicUsize>,
    state: Arc<Mutex<String>>,
}

impl Fake {
    /// Sends `reply` to the nth command. None stops replying, and an empty one closes the
    /// connection.
    async fn start(reply: impl Fn(usize, u16) -> Option<String> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let owner = Arc::new(AtomicUsize::new(usize::from(port)));
        let state = Arc::new(Mutex::new("ok".to_owned()));
        let fake = Self { port, received: Arc::default(), owner, state };
        let (node, reply) = (fake.clone(), Arc::new(reply));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(node.clone().serve(stream, Arc::clone(&reply)));
            }
        });
        fake
    }

    async fn serve(
        self,
        mut stream: TcpStream,
        reply: Arc<impl Fn(usize, u16) -> Option<String> + Send + Sync + 'static>,
    ) {
        let mut read = String::new();
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut buffer).await {
            read += &String::from_utf8_lossy(&buffer[..len]);
            while let Some(words) = take_command(&mut read) {
                let reply = match words.split(' ').next() {
                    Some("CLIENT" | "HELLO" | "INFO" | "SELECT" | "CONFIG") => {
                        Some("+OK\r\n".into())
                    }
                    Some("PING") => Some("+PONG\r\n".into()),
                    Some("CLUSTER") => Some(self.cluster(&words)),
                    _ => {
                        let nth = {
                            let mut received = self.received.lock().unwrap();
                            received.push(words.clone());
                            received.iter().filter(|words| *words != "ASKING").count()
                        };
                        match words.as_str() {
                            "ASKING" => Some("+OK\r\n".into()),
                            _ => reply(nth, self.port),
                        }
                    }
                };
                match reply {
                    Some(reply) if reply.is_empty() => return,
                    Some(reply) => drop(stream.write_all(reply.as_bytes()).await),
                    None => std::future::pending().await,
                }
            }
        }
    }

    fn cluster(&self, words: &str) -> String {
        if words.ends_with("INFO") {
            let info = format!("cluster_state:{}\r\n", self.state.lock().unwrap());
            return format!("${}\r\n{info}\r\n", info.len());
        }
        match self.owner.load(Ordering::Relaxed) {
            0 => "*0\r\n".into(),
            port => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n"),
        }
    }

    fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: self.port }
    }
}

/// Takes the next command from `read`, as words separated by spaces.
fn take_command(read: &mut String) -> Option<String> {
    let mut lines = read.split("\r\n");
    let count: usize = lines.next()?.strip_prefix('*')?.parse().unwrap();
    let words: Vec<&str> = lines.skip(1).step_by(2).take(count).collect();
    let length = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()).len());
    let length = format!("*{count}\r\n").len() + length.sum::<usize>();
    if words.len() < count || read.len() < length {
        return None;
    }
    let command = words.join(" ");
    read.drain(..length);
    Some(command)
}

fn fine() -> Option<String> {
    Some("+fine\r\n".into())
}

fn moved(port: u16) -> Option<String> {
    Some(format!("-MOVED {} 127.0.0.1:{port}\r\n", HashSlot::of(KEY).get()))
}

fn cluster_at(seeds: &[&Fake]) -> Cluster {
    let dialer = Dialer::new(RedisConnectionInfo::default());
    let seeds = seeds.iter().map(|fake| fake.endpoint()).collect();
    Cluster::new(seeds, dialer, ConnectionSettings::default(), DataLossLog::default())
}

async fn call(cluster: &Cluster, span: Duration) -> Result<Value, CallError> {
    let mut cmd = redis::cmd("GET");
    cmd.arg(KEY);
    let call = cluster.send(deadline_after(span), HashSlot::of(KEY), &cmd, SendVia::Shared);
    timeout(GENEROUS + span, call).await.expect("a call hangs").map(|(value, _)| value)
}

fn is_fine(reply: &Result<Value, CallError>) -> bool {
    matches!(reply, Ok(Value::SimpleString(text)) if text == "fine")
}

async fn until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(GENEROUS, waiting).await.expect("the condition never becomes true");
}

#[tokio::test]
async fn a_moved_slot_is_followed_once() {
    let new = Fake::start(|_, _| fine()).await;
    let port = new.port;
    let old_owner = Arc::new(OnceLock::<Arc<AtomicUsize>>::new());
    let owner = Arc::clone(&old_owner);
    let old = Fake::start(move |_, _| {
        // From then on, the node names the new owner in its slot map as well.
        owner.get().unwrap().store(usize::from(port), Ordering::Relaxed);
        moved(port)
    })
    .await;
    old_owner.set(Arc::clone(&old.owner)).unwrap();
    let cluster = cluster_at(&[&old]);
    for _ in 0..3 {
        let reply = call(&cluster, GENEROUS).await;
        assert!(is_fine(&reply), "{reply:?}");
    }
    assert_eq!((old.received().len(), new.received().len()), (1, 3));
}

#[tokio::test]
async fn a_redirect_without_a_host_leads_to_the_host_that_sent_it() {
    let new = Fake::start(|_, _| fine()).await;
    let reply = format!("-MOVED {} :{}\r\n", HashSlot::of(KEY).get(), new.port);
    let old = Fake::start(move |_, _| Some(reply.clone())).await;
    let reply = call(&cluster_at(&[&old]), GENEROUS).await;
    assert!(is_fine(&reply), "{reply:?}");
}

#[tokio::test]
async fn ask_is_followed_and_does_not_change_the_slot_map() {
    let importer = Fake::start(|_, _| fine()).await;
    let reply = format!("-ASK {} 127.0.0.1:{}\r\n", HashSlot::of(KEY).get(), importer.port);
    let owner = Fake::start(move |_, _| Some(reply.clone())).await;
    let cluster = cluster_at(&[&owner]);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let cluster = cluster.clone();
        callers.spawn(async move { assert!(is_fine(&call(&cluster, GENEROUS).await)) });
    }
    callers.join_all().await;
    assert_eq!(owner.received().len(), 50);
    let received = importer.received();
    assert_eq!(received.len(), 100);
    for pair in received.chunks(2) {
        assert_eq!(pair, ["ASKING", "GET foo"], "something came between");
    }
}

#[tokio::test]
async fn a_call_that_was_not_executed_is_retried() {
    for line in [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "CLUSTERDOWN Hash slot not served",
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down",
    ] {
        let node = Fake::start(move |nth, _| match nth {
            1..=3 => Some(format!("-{line}\r\n")),
            _ => fine(),
        });
        let node = node.await;
        let reply = call(&cluster_at(&[&node]), GENEROUS).await;
        assert!(is_fine(&reply), "{line}: {reply:?}");
        assert_eq!(node.received().len(), 4, "{line}");

        let node = Fake::start(move |_, _| Some(format!("-{line}\r\n"))).await;
        let cluster = cluster_at(&[&node]);
        until(|| cluster.is_up()).await;
        let begun = Instant::now();
        match call(&cluster, Duration::from_millis(300)).await {
            Err(CallError::ServerError(error)) => assert_eq!(error.code(), line.split(' ').next()),
            // A busy machine may pause before or during the last attempt.
            Err(CallError::TimedOut | CallError::NotSent(_)) => {}
            reply => panic!("{line}: {reply:?}"),
        }
        assert!(begun.elapsed() >= Duration::from_millis(250), "{line}: gave up too early");
        let sent = node.received().len();
        assert!((1..60).contains(&sent), "{line}: {sent} times");
    }
}

#[tokio::test]
async fn an_error_of_the_command_is_final() {
    let slot = HashSlot::of(KEY).get();
    for line in [
        "CROSSSLOT Keys in request don't hash to the same slot",
        "NOSCRIPT No matching script.",
        "OOM command not allowed",
        "NOPERM this user has no permissions",
        "MOVED",
        "MOVED 99999 127.0.0.1:1",
        "ERR what",
    ]
    .map(String::from)
    .into_iter()
    .chain([format!("MOVED {slot} nowhere"), format!("ASK {slot} 127.0.0.1:0")])
    {
        let reply = format!("-{line}\r\n");
        let node = Fake::start(move |_, _| Some(reply.clone())).await;
        let reply = call(&cluster_at(&[&node]), GENEROUS).await;
        let Err(CallError::ServerError(error)) = reply else { panic!("{line}: {reply:?}") };
        assert_eq!(error.code(), line.split(' ').next());
        assert_eq!(node.received().len(), 1, "{line}");
    }
}

#[tokio::test]
async fn a_cycle_of_redirects_ends() {
    let itself = Fake::start(|_, port| moved(port)).await;
    let slot = HashSlot::of(KEY).get();
    let asking =
        Fake::start(move |_, port| Some(format!("-ASK {slot} 127.0.0.1:{port}\r\n"))).await;
    for (node, code) in [(itself, "MOVED"), (asking, "ASK")] {
        let reply = call(&cluster_at(&[&node]), GENEROUS).await;
        let Err(CallError::ServerError(error)) = reply else { panic!("{reply:?}") };
        assert_eq!(error.code(), Some(code));
        assert!(error.to_string().contains("too many redirects"), "{error}");
        let sent = node.received().into_iter().filter(|words| words != "ASKING").count();
        assert_eq!(sent, Cluster::MAX_REDIRECTS as usize + 1);
    }
}

#[tokio::test]
async fn a_call_that_may_have_executed_is_not_sent_again() {
    let span = Duration::from_secs(1);
    let silent = Fake::start(|_, _| None).await;
    let cluster = cluster_at(&[&silent]);
    until(|| cluster.is_up()).await;
    let reply = call(&cluster, span).await;
    assert!(matches!(reply, Err(CallError::TimedOut)), "{reply:?}");
    let closing = Fake::start(|_, _| Some(String::new())).await;
    let reply = call(&cluster_at(&[&closing]), GENEROUS).await;
    assert!(matches!(reply, Err(CallError::ConnectionLost(_))), "{reply:?}");
    sleep(span).await;
    assert_eq!((silent.received().len(), closing.received().len()), (1, 1));
}

/// A node redirects every call to another port without a server.
#[tokio::test]
async fn nodes_of_wrong_redirects_do_not_accumulate() {
    let node = Fake::start(|nth, _| moved(u16::try_from(20_000 + nth).unwrap())).await;
    let cluster = cluster_at(&[&node]);
    assert!(call(&cluster, GENEROUS / 100).await.is_err());
    let owner = cluster.node_at(&node.endpoint()).unwrap();
    let mut made = 0;
    for port in 1..=500 {
        cluster.set_owner(HashSlot::of(KEY), &owner.endpoint);
        let endpoint = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port };
        made += usize::from(cluster.node_at(&endpoint).is_some());
    }
    assert!(made <= 32, "{made} connections to missing servers");
    // Views do not list them, so they are removed.
    let nodes = || cluster.0.inner.map.borrow().nodes().count();
    let waiting = async {
        while nodes() > 1 {
            cluster.request_refresh();
            sleep(refresh::MIN_INTERVAL).await;
        }
    };
    timeout(GENEROUS, waiting).await.expect("they are never removed");
}

#[tokio::test]
async fn without_a_node_calls_fail_with_the_reason() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let alone = Fake::start(|_, _| fine()).await;
    alone.owner.store(0, Ordering::Relaxed);
    let missing = Fake { port: gone, ..alone.clone() };
    for (seed, why) in [(&missing, "Connection refused"), (&alone, "no assigned slots")] {
        let cluster = cluster_at(&[seed]);
        let span = Duration::from_millis(400);
        let begun = Instant::now();
        // The first refresh is over before the second call.
        let _ = call(&cluster, span).await;
        let mut reply = call(&cluster, span).await;
        for _ in 0..50 {
            if reply.as_ref().is_err_and(|error| error.to_string().contains(why)) {
                break;
            }
            reply = call(&cluster, span).await;
        }
        assert!(begun.elapsed() >= span, "gave up before the deadline");
        let Err(CallError::NotSent(failure)) = reply else { panic!("{reply:?}") };
        assert!(failure.to_string().contains(why), "{failure}");
        assert!(!cluster.is_up());
    }
}

#[tokio::test]
async fn it_is_up_while_most_slots_are_served() {
    let node = Fake::start(|_, _| fine()).await;
    let cluster = cluster_at(&[&node]);
    until(|| cluster.is_up()).await;
    *node.state.lock().unwrap() = "fail".to_owned();
    cluster.request_refresh();
    until(|| !cluster.is_up()).await;
    // A call that is served proves it.
    assert!(is_fine(&call(&cluster, GENEROUS).await));
    assert!(cluster.is_up());
}

#[tokio::test]
async fn the_generation_changes_with_the_owner_of_the_slot() {
    let (one, other) = (Fake::start(|_, _| fine()).await, Fake::start(|_, _| fine()).await);
    let cluster = cluster_at(&[&one]);
    assert!(is_fine(&call(&cluster, GENEROUS).await));
    let slot = HashSlot::of(KEY);
    let mut generations = vec![cluster.generation(slot)];
    for owner in [&other, &one] {
        for fake in [&one, &other] {
            fake.owner.store(usize::from(owner.port), Ordering::Relaxed);
        }
        cluster.request_refresh();
        let before = cluster.generation(slot);
        until(|| cluster.generation(slot) != before).await;
        assert!(is_fine(&call(&cluster, GENEROUS).await));
        generations.push(cluster.generation(slot));
    }
    generations.dedup();
    assert_eq!(generations.len(), 3, "{generations:?}");
    assert_ne!(generations[0], generations[2], "back at the first owner with a new generation");
}

#[test]
fn outside_a_runtime_a_call_fails_and_does_not_panic() {
    let cluster = cluster_at(&[]);
    let ping = redis::cmd("PING");
    let end = Instant::now();
    let mut call = std::pin::pin!(cluster.send(end, HashSlot::of(KEY), &ping, SendVia::Shared));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(reply) = call.as_mut().poll(&mut context) else {
        panic!("no result")
    };
    assert!(reply.map(|(value, _)| value).unwrap_err().to_string().contains("runtime"));
}

#[tokio::test]
async fn dropping_the_last_clone_ends_the_refresh_task() {
    let node = Fake::start(|_, _| fine()).await;
    let cluster = cluster_at(&[&node]);
    let clone = cluster.clone();
    drop(cluster);
    assert!(is_fine(&call(&clone, GENEROUS).await));
    let inner = Arc::downgrade(&clone.0.inner);
    drop(clone);
    until(|| inner.strong_count() == 0).await;
}
