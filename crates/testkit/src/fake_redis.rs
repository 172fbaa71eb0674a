//! A server with the handshake of Redis that replies to scripts with bytes chosen by the test.
//!
//! It is also a sentinel that names itself, and a Cluster of one node.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Bytes sent in reply to a script. `{port}` stands for the server's port, `{slot}` for the slot of
/// the script's first key, `{other}` for the port of a server that does not use RESP, and
/// `{next}` for a number that changes with each reply.
#[derive(Clone, Debug)]
pub struct FakeReply {
    pub bytes: Vec<u8>,
    /// Closes the connection after the reply.
    pub closes: bool,
}

impl FakeReply {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), closes: false }
    }

    /// An allowed check, or hold, of one limit.
    pub fn good() -> Self {
        let numbers = [1, 1_700_000_000_000_000, 0, 0];
        let verdict = [1, 0, 0, 9, 1_000_000, 1, 0];
        let word = |number: &i64| format!(":{number}\r\n");
        let head: String = numbers.iter().map(word).collect();
        let tail: String = verdict.iter().map(word).collect();
        Self::new(format!("*12\r\n{head}$0\r\n\r\n{tail}"))
    }

    /// Turns the reply into one of `checks.lua` with a single check.
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

    /// Turns the reply into one of `lean.lua` with a single check of one bucket.
    fn for_lean(mut self) -> Self {
        let head = |times: u16| [&1.7e15_f64.to_le_bytes()[..], &times.to_le_bytes()].concat();
        if self.bytes == Self::good().bytes {
            self.bytes = [b"$34\r\n", &*head(1), &[0; 24], b"\r\n"].concat();
        } else if self.bytes.starts_with(b"*2\r\n:0\r\n") {
            // Calendars are left to the other scripts.
            self.bytes = [b"$10\r\n", &*head(65_535), b"\r\n"].concat();
        }
        self
    }
}

/// A server on its own port, stopped on drop.
pub struct FakeRedis {
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
    /// Port of the primary of all slots.
    primary: AtomicU16,
    has_functions: AtomicBool,
}

#[derive(Clone)]
struct Replies {
    evalsha: FakeReply,
    eval: FakeReply,
}

impl FakeRedis {
    /// Replies with [`FakeReply::good`].
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let replies = Mutex::new(Replies { evalsha: FakeReply::good(), eval: FakeReply::good() });
        let wrong_protocol = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = wrong_protocol.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            port,
            other,
            next: AtomicU16::new(0),
            replies,
            scripts: Mutex::default(),
            views: AtomicUsize::new(0),
            primary: AtomicU16::new(port),
            has_functions: AtomicBool::new(false),
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
                    Ok((stream, _)) = wrong_protocol.accept() => {
                        connections.spawn(reply_in_http(stream));
                    }
                    else => return,
                }
            }
        });
        Self { port, shared, accepting: accepting.abort_handle() }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Accepts `FUNCTION LOAD`. Without that, the command is unknown.
    pub fn set_functions(&self) {
        self.shared.has_functions.store(true, Ordering::Relaxed);
    }

    /// Sets the replies to `EVALSHA` or `FCALL`, and to `EVAL`.
    pub fn set_replies(&self, evalsha: FakeReply, eval: FakeReply) {
        *self.shared.replies.lock().unwrap() = Replies { evalsha, eval };
    }

    /// Reports that port as the primary of all slots, and this server as a replica.
    pub fn name_primary(&self, port: u16) {
        self.shared.primary.store(port, Ordering::Relaxed);
    }

    /// Number of `CLUSTER SLOTS` requests.
    pub fn views(&self) -> usize {
        self.shared.views.load(Ordering::Relaxed)
    }

    /// Script commands received since the last call, each with its operation.
    pub fn scripts(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.scripts.lock().unwrap())
    }
}

impl Drop for FakeRedis {
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

    fn reply(&self, words: &[String]) -> FakeReply {
        let word = |place: usize| words.get(place).map_or("", String::as_str);
        let name = word(0).to_ascii_uppercase();
        match &*name {
            "EVALSHA" | "EVAL" | "FCALL" => {
                let replies = self.replies.lock().unwrap().clone();
                let mut reply = if name == "EVAL" { replies.eval } else { replies.evalsha };
                // The keys are followed by the protocol version and the operation. `lean.lua` has
                // no operation; its first argument is binary.
                let keys: usize = word(2).parse().unwrap_or(0);
                let op = if word(keys + 3).starts_with('\u{1}') { "lean" } else { word(keys + 4) };
                self.scripts.lock().unwrap().push(format!("{name} {op}"));
                match op {
                    "lean" => reply = reply.for_lean(),
                    "checks" => reply = reply.for_checks(),
                    _ => {}
                }
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
            "FUNCTION" if self.has_functions.load(Ordering::Relaxed) => {
                FakeReply::new(bulk("tidegate"))
            }
            "PING" if words.len() > 1 => FakeReply::new(bulk(word(1))),
            "PING" => FakeReply::new("+PONG\r\n"),
            "CLIENT" | "AUTH" | "SELECT" | "SET" | "READONLY" | "ASKING" => {
                FakeReply::new("+OK\r\n")
            }
            // The secret of the namespace is stored already.
            "GET" => FakeReply::new(bulk(&format!("secret:{}", "s".repeat(32)))),
            "HGET" => FakeReply::new("$-1\r\n"),
            "HELLO" => FakeReply::new(hello(word(1))),
            "INFO" => FakeReply::new(bulk(
                "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
                 maxmemory_policy:noeviction\r\nrole:master\r\n",
            )),
            "CONFIG" => FakeReply::new(array(&[word(2), "noeviction"])),
            "SUBSCRIBE" => {
                FakeReply::new(format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(word(1))))
            }
            "SENTINEL" => FakeReply::new(array(&["127.0.0.1", &self.port.to_string()])),
            "CLUSTER" if word(1).eq_ignore_ascii_case("info") => FakeReply::new(bulk(
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
                FakeReply::new(head + &node(primary) + &replica)
            }
            _ => FakeReply::new("-ERR unknown command\r\n"),
        }
    }
}

/// Replies to everything with something that is not RESP.
async fn reply_in_http(mut stream: TcpStream) -> io::Result<()> {
    while stream.read(&mut [0; 1024]).await? > 0 {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await?;
    }
    Ok(())
}

/// Slot of a key, by its hash tag if it has one.
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

/// Reads the arguments of a command: an array of bulk strings.
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

/// Error reply, without the `-`, to a script that is unknown even when sent with its text.
pub const NOSCRIPT_ERROR: &str = "NOSCRIPT for the text too";

/// Error replies, without the `-`, that Redis sends before a script has written anything.
/// Placeholders are those of [`FakeReply`].
pub const ERRORS_BEFORE_WRITE: &[&str] = &[
    "READONLY You can't write against a read only replica.",
    "READONLY You can't write against a read only replica. script: f_1, on @user_script:86.",
    "ERR Error running script (call to f_1): @user_script:86: @user_script: 86: -READONLY You can't",
    "REDIRECT 127.0.0.1:1",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "ERR Error running script (call to f_1): @user_script:86: @user_script: 86: -OOM command not",
    "LOADING Redis is loading the dataset in memory",
    "NOAUTH Authentication required.",
    "DENIED Redis is running in protected mode",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "NOPERM this user has no permissions to access one of the keys used as arguments",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "BUSY Redis is busy running a script.",
    "BUSYKEY Target key name already exists.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "MOVED 1 127.0.0.1:1",
    "MOVED",
    "MOVED 1",
    "MOVED x y",
    "MOVED 99999 :::",
    "MOVED 1 127.0.0.1:99999",
    "MOVED 1 127.0.0.1:{port}",
    "ASK 1 127.0.0.1:1",
    "ASK 1 127.0.0.1:{port}",
    "ASK",
    // To itself, to a closed port, to a new closed port each time, to another server.
    "MOVED {slot} 127.0.0.1:{port}",
    "ASK {slot} 127.0.0.1:{port}",
    "MOVED {slot} :{port}",
    "MOVED {slot} 127.0.0.1:1",
    "ASK {slot} 127.0.0.1:1",
    "MOVED {slot} 127.9.0.{next}:1",
    "ASK {slot} 127.9.0.{next}:1",
    "MOVED {slot} 127.0.0.1:{other}",
    "ASK {slot} 127.0.0.1:{other}",
    "MOVED {slot} no-such-host.invalid:6379",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Redis is configured to save RDB snapshots",
    "EXECABORT Transaction discarded because of previous errors.",
    "NOTBUSY No scripts in execution right now.",
    "NOPROTO unsupported protocol version",
    "INPROG Failover already in progress.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "TIDEGATE the state was written by a newer version; not modified",
    "ERR TIDEGATE bad number for cost script: f_1, on @user_script:86.",
    "ERR user_script:9: bad argument #2 to 'unpack' (data string too short)",
    "ERR unknown command 'EVALSHA', with args beginning with:",
    "ERR wrong number of arguments for 'evalsha' command",
    "ERR max number of clients reached",
];

/// Error replies that Redis may send after a script has written, and unknown ones.
pub const ERRORS_MAYBE_AFTER_WRITE: &[&str] = &[
    "NOPERM this user has no permissions to run the 'zadd' command",
    "UNKILLABLE The busy script has made writes.",
    "UNBLOCKED force unblock from blocking operation, instance state changed",
    "ERR Error running script",
    "ERR Error running script (call to f_1): @user_script:86: attempt to index a nil value",
    "ERR The user executing the script can't run this command or subcommand script: f_1",
    "ERR invalid expire time in 'set' command script: f_1, on @user_script:86.",
    "ERR",
    "WHATEVER comes after this version",
    "upstream failure",
    "lower case",
    " begins with a space",
    "",
    "\t\u{1b}[31m control characters",
];
