//! The way through a Cluster of nodes that say whatever a test wants them to.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const KEY: &str = "foo";

/// A node that answers, and remembers what it was asked, `CLUSTER` and the handshake aside.
#[derive(Clone)]
struct Fake {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    /// What it says to `CLUSTER SLOTS`: who has all slots.
    owner: Arc<AtomicUsize>,
    state: Arc<Mutex<String>>,
}

impl Fake {
    /// `reply` to the nth command. None is silence from then on, and an empty one a connection closed.
    async fn start(reply: impl Fn(usize, u16) -> Option<String> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let owner = Arc::new(AtomicUsize::new(usize::from(port)));
        let state = Arc::new(Mutex::new("ok".to_owned()));
        let fake = Self { port, asked: Arc::default(), owner, state };
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
                let answer = match words.split(' ').next() {
                    Some("CLIENT" | "HELLO" | "INFO" | "SELECT" | "CONFIG") => {
                        Some("+OK\r\n".into())
                    }
                    Some("PING") => Some("+PONG\r\n".into()),
                    Some("CLUSTER") => Some(self.cluster(&words)),
                    _ => {
                        let nth = {
                            let mut asked = self.asked.lock().unwrap();
                            asked.push(words.clone());
                            asked.iter().filter(|words| *words != "ASKING").count()
                        };
                        match words.as_str() {
                            "ASKING" => Some("+OK\r\n".into()),
                            _ => reply(nth, self.port),
                        }
                    }
                };
                match answer {
                    Some(answer) if answer.is_empty() => return,
                    Some(answer) => drop(stream.write_all(answer.as_bytes()).await),
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

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn place(&self) -> Place {
        Place::Tcp { host: "127.0.0.1".to_owned(), port: self.port }
    }
}

/// The next command of what was read, its words with spaces between.
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
    Some(format!("-MOVED {} 127.0.0.1:{port}\r\n", Slot::of(KEY).get()))
}

fn cluster_at(seeds: &[&Fake]) -> Cluster {
    let address = crate::address::Address::parse("redis-cluster://127.0.0.1:1").unwrap();
    let seeds = seeds.iter().map(|fake| fake.place()).collect();
    Cluster::new(seeds, address.dialer, Settings::default())
}

async fn call(cluster: &Cluster, span: Duration) -> Result<Value, LinkError> {
    let mut cmd = redis::cmd("GET");
    cmd.arg(KEY);
    let call = cluster.call_until(after(span), Slot::of(KEY), &cmd);
    timeout(PATIENCE + span, call).await.expect("a call hangs")
}

fn is_fine(answer: &Result<Value, LinkError>) -> bool {
    matches!(answer, Ok(Value::SimpleString(text)) if text == "fine")
}

async fn until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("it does not come about");
}

#[tokio::test]
async fn a_slot_that_has_moved_is_followed_once() {
    let new = Fake::start(|_, _| fine()).await;
    let port = new.port;
    let named = Arc::new(OnceLock::<Arc<AtomicUsize>>::new());
    let owner = Arc::clone(&named);
    let old = Fake::start(move |_, _| {
        // A node that says so names the new owner in its map as well, from then on.
        owner.get().unwrap().store(usize::from(port), Ordering::Relaxed);
        moved(port)
    })
    .await;
    named.set(Arc::clone(&old.owner)).unwrap();
    let cluster = cluster_at(&[&old]);
    for _ in 0..3 {
        let answer = call(&cluster, PATIENCE).await;
        assert!(is_fine(&answer), "{answer:?}");
    }
    assert_eq!((old.asked().len(), new.asked().len()), (1, 3));
}

#[tokio::test]
async fn a_redirect_without_a_host_leads_to_the_host_that_answered() {
    let new = Fake::start(|_, _| fine()).await;
    let reply = format!("-MOVED {} :{}\r\n", Slot::of(KEY).get(), new.port);
    let old = Fake::start(move |_, _| Some(reply.clone())).await;
    let answer = call(&cluster_at(&[&old]), PATIENCE).await;
    assert!(is_fine(&answer), "{answer:?}");
}

#[tokio::test]
async fn a_slot_on_its_way_is_asked_for_there_and_not_learnt() {
    let importer = Fake::start(|_, _| fine()).await;
    let reply = format!("-ASK {} 127.0.0.1:{}\r\n", Slot::of(KEY).get(), importer.port);
    let owner = Fake::start(move |_, _| Some(reply.clone())).await;
    let cluster = cluster_at(&[&owner]);
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let cluster = cluster.clone();
        callers.spawn(async move { assert!(is_fine(&call(&cluster, PATIENCE).await)) });
    }
    callers.join_all().await;
    assert_eq!(owner.asked().len(), 50);
    let asked = importer.asked();
    assert_eq!(asked.len(), 100);
    for pair in asked.chunks(2) {
        assert_eq!(pair, ["ASKING", "GET foo"], "something came between");
    }
}

#[tokio::test]
async fn what_was_not_done_is_asked_for_again() {
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
        let answer = call(&cluster_at(&[&node]), PATIENCE).await;
        assert!(is_fine(&answer), "{line}: {answer:?}");
        assert_eq!(node.asked().len(), 4, "{line}");

        let node = Fake::start(move |_, _| Some(format!("-{line}\r\n"))).await;
        let cluster = cluster_at(&[&node]);
        until(|| cluster.is_up()).await;
        let begun = Instant::now();
        match call(&cluster, Duration::from_millis(300)).await {
            Err(LinkError::Reply(error)) => assert_eq!(error.code(), line.split(' ').next()),
            // A busy machine may stand still during the last attempt.
            Err(LinkError::TimedOut) => {}
            answer => panic!("{line}: {answer:?}"),
        }
        assert!(begun.elapsed() >= Duration::from_millis(250), "{line}: gave up too early");
        assert!((3..60).contains(&node.asked().len()), "{line}: {} times", node.asked().len());
    }
}

#[tokio::test]
async fn what_is_about_the_command_is_final() {
    let slot = Slot::of(KEY).get();
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
        let answer = call(&cluster_at(&[&node]), PATIENCE).await;
        let Err(LinkError::Reply(error)) = answer else { panic!("{line}: {answer:?}") };
        assert_eq!(error.code(), line.split(' ').next());
        assert_eq!(node.asked().len(), 1, "{line}");
    }
}

#[tokio::test]
async fn a_circle_of_redirects_ends() {
    let itself = Fake::start(|_, port| moved(port)).await;
    let slot = Slot::of(KEY).get();
    let asking =
        Fake::start(move |_, port| Some(format!("-ASK {slot} 127.0.0.1:{port}\r\n"))).await;
    for (node, code) in [(itself, "MOVED"), (asking, "ASK")] {
        let answer = call(&cluster_at(&[&node]), PATIENCE).await;
        let Err(LinkError::Reply(error)) = answer else { panic!("{answer:?}") };
        assert_eq!(error.code(), Some(code));
        assert!(error.to_string().contains("node to node"), "{error}");
        let asked = node.asked().into_iter().filter(|words| words != "ASKING").count();
        assert_eq!(asked, Cluster::HOPS as usize + 1);
    }
}

#[tokio::test]
async fn what_may_have_been_done_is_not_sent_again() {
    let span = Duration::from_millis(200);
    let silent = Fake::start(|_, _| None).await;
    let cluster = cluster_at(&[&silent]);
    let answer = call(&cluster, span).await;
    assert!(matches!(answer, Err(LinkError::TimedOut)), "{answer:?}");
    let closing = Fake::start(|_, _| Some(String::new())).await;
    let answer = call(&cluster_at(&[&closing]), PATIENCE).await;
    assert!(matches!(answer, Err(LinkError::Broken(_))), "{answer:?}");
    sleep(span).await;
    assert_eq!((silent.asked().len(), closing.asked().len()), (1, 1));
}

/// A node sends every caller to another place, where nobody is.
#[tokio::test]
async fn redirects_to_anywhere_do_not_pile_up() {
    let node = Fake::start(|nth, _| moved(u16::try_from(20_000 + nth).unwrap())).await;
    let cluster = cluster_at(&[&node]);
    assert!(call(&cluster, PATIENCE / 100).await.is_err());
    let owner = cluster.node_at(&node.place()).unwrap();
    let mut made = 0;
    for port in 1..=500 {
        cluster.learn(Slot::of(KEY), &owner.place);
        let place = Place::Tcp { host: "127.0.0.1".to_owned(), port };
        made += usize::from(cluster.node_at(&place).is_some());
    }
    assert!(made <= 32, "{made} links to nobody");
    // Views do not name them, so they are forgotten.
    let links = || cluster.0.core.map.borrow().nodes().count();
    let waiting = async {
        while links() > 1 {
            cluster.doubt();
            sleep(refresh::GAP).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("they stay for ever");
}

#[tokio::test]
async fn without_a_node_calls_are_down_and_say_why() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let alone = Fake::start(|_, _| fine()).await;
    alone.owner.store(0, Ordering::Relaxed);
    let nobody = Fake { port: gone, ..alone.clone() };
    for (seed, why) in [(&nobody, "Connection refused"), (&alone, "knows of no slot")] {
        let cluster = cluster_at(&[seed]);
        let span = Duration::from_millis(400);
        let begun = Instant::now();
        // The first round of questions is over before the second call.
        let _ = call(&cluster, span).await;
        let mut answer = call(&cluster, span).await;
        for _ in 0..50 {
            if answer.as_ref().is_err_and(|error| error.to_string().contains(why)) {
                break;
            }
            answer = call(&cluster, span).await;
        }
        assert!(begun.elapsed() >= span, "gave up before the deadline");
        let Err(LinkError::Down(fault)) = answer else { panic!("{answer:?}") };
        assert!(fault.to_string().contains(why), "{fault}");
        assert!(!cluster.is_up());
    }
}

#[tokio::test]
async fn it_is_up_while_most_slots_are_served() {
    let node = Fake::start(|_, _| fine()).await;
    let cluster = cluster_at(&[&node]);
    until(|| cluster.is_up()).await;
    *node.state.lock().unwrap() = "fail".to_owned();
    cluster.doubt();
    until(|| !cluster.is_up()).await;
    // One who is served says so.
    assert!(is_fine(&call(&cluster, PATIENCE).await));
    assert!(cluster.is_up());
}

#[tokio::test]
async fn the_generation_changes_with_the_owner_of_the_slot() {
    let (one, other) = (Fake::start(|_, _| fine()).await, Fake::start(|_, _| fine()).await);
    let cluster = cluster_at(&[&one]);
    assert!(is_fine(&call(&cluster, PATIENCE).await));
    let slot = Slot::of(KEY);
    let mut seen = vec![cluster.generation(slot)];
    for owner in [&other, &one] {
        for fake in [&one, &other] {
            fake.owner.store(usize::from(owner.port), Ordering::Relaxed);
        }
        cluster.doubt();
        let before = cluster.generation(slot);
        until(|| cluster.generation(slot) != before).await;
        assert!(is_fine(&call(&cluster, PATIENCE).await));
        seen.push(cluster.generation(slot));
    }
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_ne!(seen[0], seen[2], "back at the first, but not as if nothing had been");
}

#[test]
fn outside_a_runtime_a_call_is_down_and_does_not_panic() {
    let address = crate::address::Address::parse("redis-cluster://127.0.0.1:1").unwrap();
    let cluster = Cluster::new(Vec::new(), address.dialer, Settings::default());
    let ping = redis::cmd("PING");
    let end = Instant::now();
    let mut call = std::pin::pin!(cluster.call_until(end, Slot::of(KEY), &ping));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(answer) = call.as_mut().poll(&mut context) else {
        panic!("no answer")
    };
    assert!(answer.unwrap_err().to_string().contains("runtime"));
}

#[tokio::test]
async fn the_last_clone_takes_everything_with_it() {
    let node = Fake::start(|_, _| fine()).await;
    let cluster = cluster_at(&[&node]);
    let clone = cluster.clone();
    drop(cluster);
    assert!(is_fine(&call(&clone, PATIENCE).await));
    let core = Arc::downgrade(&clone.0.core);
    drop(clone);
    until(|| core.strong_count() == 0).await;
}
