//! A server that is none: it greets as Redis does, and answers scripts with whatever it is told.
//!
//! It is a sentinel as well, which names itself, and a Cluster of one node.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// What is sent for a script, byte by byte. `{port}` is the server's own, `{slot}` that of the script's
/// first key, `{other}` the port of somebody who does not speak this protocol, and `{next}` a number
/// that is another one each time.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    /// The connection ends behind it.
    pub(crate) closes: bool,
}

impl Reply {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), closes: false }
    }

    /// An allowed check, or hold, of one limit.
    pub(crate) fn good() -> Self {
        let numbers = [1, 1_700_000_000_000_000, 0, 0];
        let verdict = [1, 0, 0, 9, 1_000_000, 1, 0];
        let word = |number: &i64| format!(":{number}\r\n");
        let head: String = numbers.iter().map(word).collect();
        let tail: String = verdict.iter().map(word).collect();
        Self::new(format!("*12\r\n{head}$0\r\n\r\n{tail}"))
    }

    /// The same as an answer to a script of many checks, of which there is one.
    fn for_checks(mut self) -> Self {
        if self.bytes == Self::good().bytes {
            let numbers = [1, 1_700_000_000_000_000_i64, 1, 1, 0, 9, 1_000_000, 0];
            let words: String = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
            self.bytes = format!("*1\r\n*8\r\n{words}").into();
        } else if self.bytes.starts_with(b"*") {
            self.bytes = [b"*1\r\n", &*self.bytes].concat();
        }
        self
    }
}

/// A server on a port of its own, gone with the test.
pub(crate) struct Fake {
    port: u16,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

struct Shared {
    port: u16,
    other: u16,
    next: AtomicU16,
    replies: Mutex<Replies>,
    scripts: Mutex<Vec<String>>,
    views: AtomicUsize,
    /// Where the primary of all slots is.
    primary: AtomicU16,
}

#[derive(Clone)]
struct Replies {
    evalsha: Reply,
    eval: Reply,
}

impl Fake {
    /// One that answers well.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let replies = Mutex::new(Replies { evalsha: Reply::good(), eval: Reply::good() });
        let babbler = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = babbler.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            port,
            other,
            next: AtomicU16::new(0),
            replies,
            scripts: Mutex::default(),
            views: AtomicUsize::new(0),
            primary: AtomicU16::new(port),
        });
        let server = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((stream, _)) = listener.accept() => {
                        let server = Arc::clone(&server);
                        connections.spawn(async move { server.serve(stream).await });
                    }
                    Ok((stream, _)) = babbler.accept() => {
                        connections.spawn(babble(stream));
                    }
                    else => return,
                }
            }
        });
        Self { port, shared, accepting: accepting.abort_handle() }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on, scripts are answered so; those that come with their text, too.
    pub(crate) fn answer(&self, evalsha: Reply, eval: Reply) {
        *self.shared.replies.lock().unwrap() = Replies { evalsha, eval };
    }

    /// From now on, all slots are at that port, and this server is a replica.
    pub(crate) fn name_primary(&self, port: u16) {
        self.shared.primary.store(port, Ordering::Relaxed);
    }

    /// How often it was asked who has which slot.
    pub(crate) fn views(&self) -> usize {
        self.shared.views.load(Ordering::Relaxed)
    }

    /// The commands with a script that came since this was asked last, each with its operation.
    pub(crate) fn scripts(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.scripts.lock().unwrap())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    async fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        loop {
            let words = read_command(&mut read).await?;
            let reply = self.reply(&words);
            write.write_all(&reply.bytes).await?;
            if reply.closes {
                return Ok(());
            }
        }
    }

    fn reply(&self, words: &[String]) -> Reply {
        let word = |place: usize| words.get(place).map_or("", String::as_str);
        let name = word(0).to_ascii_uppercase();
        match &*name {
            "EVALSHA" | "EVAL" => {
                let replies = self.replies.lock().unwrap().clone();
                let mut reply = if name == "EVAL" { replies.eval } else { replies.evalsha };
                if words.iter().any(|word| word == "checks") {
                    reply = reply.for_checks();
                }
                // Behind the keys come the protocol and the operation.
                let keys: usize = word(2).parse().unwrap_or(0);
                self.scripts.lock().unwrap().push(format!("{name} {}", word(keys + 4)));
                if let Ok(text) = str::from_utf8(&reply.bytes)
                    && text.contains('{')
                {
                    let next = self.next.fetch_add(1, Ordering::Relaxed) % 250 + 1;
                    let text = text.replace("{port}", &self.port.to_string());
                    let text = text.replace("{other}", &self.other.to_string());
                    let text = text.replace("{slot}", &slot(word(3)).to_string());
                    reply.bytes = text.replace("{next}", &next.to_string()).into();
                }
                reply
            }
            "PING" => Reply::new("+PONG\r\n"),
            "CLIENT" | "AUTH" | "SELECT" | "SET" | "READONLY" | "ASKING" => Reply::new("+OK\r\n"),
            // The secret: it lies here already.
            "GET" => Reply::new(bulk(&format!("secret:{}", "s".repeat(32)))),
            "HGET" => Reply::new("$-1\r\n"),
            "HELLO" => Reply::new(hello(word(1))),
            "INFO" => Reply::new(bulk(
                "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
                 maxmemory_policy:noeviction\r\nrole:master\r\n",
            )),
            "CONFIG" => Reply::new(array(&[word(2), "noeviction"])),
            "SUBSCRIBE" => {
                Reply::new(format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(word(1))))
            }
            "SENTINEL" => Reply::new(array(&["127.0.0.1", &self.port.to_string()])),
            "CLUSTER" if word(1).eq_ignore_ascii_case("info") => Reply::new(bulk(
                "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_current_epoch:1\r\n",
            )),
            "CLUSTER" => {
                self.views.fetch_add(1, Ordering::Relaxed);
                let node = |port: u16| {
                    format!("*3\r\n{}:{port}\r\n{}", bulk("127.0.0.1"), bulk(&"1".repeat(40)))
                };
                let primary = self.primary.load(Ordering::Relaxed);
                let replica = if primary == self.port { String::new() } else { node(self.port) };
                let words = if replica.is_empty() { 3 } else { 4 };
                let head = format!("*1\r\n*{words}\r\n:0\r\n:16383\r\n");
                Reply::new(head + &node(primary) + &replica)
            }
            _ => Reply::new("-ERR unknown command\r\n"),
        }
    }
}

/// Says what no server of this kind says, whatever it is asked.
async fn babble(mut stream: TcpStream) -> io::Result<()> {
    while stream.read(&mut [0; 1024]).await? > 0 {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await?;
    }
    Ok(())
}

/// Where a key lies that has a tag in braces.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, behind)| behind.split_once('}'));
    let hashed = tag.map_or(key, |(tag, _)| tag);
    let shift = |crc: u16| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
    let add = |crc: u16, byte: u8| (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| shift(crc));
    hashed.bytes().fold(0, add) % 16_384
}

fn hello(version: &str) -> String {
    let head = if version == "3" { "%4\r\n" } else { "*8\r\n" };
    let pairs = [("server", "redis"), ("version", "7.0.15"), ("role", "master")];
    let pairs: String =
        pairs.iter().map(|(name, value)| bulk(name) + &bulk(value)).collect::<String>();
    format!("{head}{pairs}{}:1\r\n", bulk("id"))
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn array(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| bulk(word)).collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}

/// The words of a command: an array of strings.
async fn read_command(read: &mut BufReader<OwnedReadHalf>) -> io::Result<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..read_length(read, '*').await? {
        let mut word = vec![0; read_length(read, '$').await? + 2];
        read.read_exact(&mut word).await?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Ok(words)
}

async fn read_length(read: &mut BufReader<OwnedReadHalf>, sign: char) -> io::Result<usize> {
    let mut line = String::new();
    if read.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let length = line.trim_end().strip_prefix(sign).and_then(|length| length.parse().ok());
    length.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
