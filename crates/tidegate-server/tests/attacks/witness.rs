//! A server under attack, watched from outside: what its process takes, and how long others wait.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tidegate::{Clock, SystemClock};

use crate::life::print_figure;
use crate::resp::{Client, Reply};
use crate::support::{Folder, Http, PATIENCE, Server};

/// How much an attack may make the process grow, in KiB.
pub(crate) const MOST_GROWTH: u64 = 64 << 10;

const POLICY: &str = r#"
rules:
  - { name: open, limits: ["1000000000/s"] }
  - { name: five, limits: ["fixed-window 5/36500d first-hit"] }
"#;

/// One attack at a time: the figures of two would be those of neither.
pub(crate) struct Alone(#[expect(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

impl Alone {
    pub(crate) fn wait() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        allow_many_files();
        Self(alone)
    }
}

/// A thousand sockets, and as many in the server, which inherits it.
fn allow_many_files() {
    let id = std::process::id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &id, "--nofile=4096:"]).status();
    assert!(raised.expect("prlimit comes with the system").success(), "4096 files are allowed");
}

/// A server with rules that everybody and nobody passes.
pub(crate) fn victim() -> Server {
    let file = Folder::new().write("policy.yaml", POLICY);
    Server::start(&["--config", file.to_str().unwrap()], &[])
}

/// Attacks a server, and tells what that made of it: it grows by no more than [`MOST_GROWTH`] at any
/// time, and serves afterwards as if nothing had been.
pub(crate) fn survive<T>(name: &str, server: &mut Server, attack: impl FnOnce(&Server) -> T) -> T {
    let memory = Memory::of(server.id());
    let outcome = attack(server);
    let grown = memory.grown();
    print_figure(format_args!("attack: {name}: memory grew by {}", Mebibytes(grown)));
    assert_serves(server);
    assert!(grown <= MOST_GROWTH, "{name}: {}", Mebibytes(grown));
    outcome
}

/// Everybody is answered, on both doors, and what was used up stays so.
pub(crate) fn assert_serves(server: &mut Server) {
    assert!(server.is_running(), "{:?}", server.log());
    let check = |rule: &str| {
        server.post("/v1/check", &json!({ "rule": rule, "key": "served", "cost": 1 })).status
    };
    assert_eq!(
        (check("open"), Client::connect(server.resp).ask("PING")),
        (200, Reply::Simple("PONG".into()))
    );
    let panics = server.log().iter().filter(|line| line.contains("panicked")).count();
    assert_eq!(panics, 0, "{:?}", server.log());
}

/// What a process has in memory, from now on.
pub(crate) struct Memory {
    id: u32,
    before: u64,
}

impl Memory {
    pub(crate) fn of(id: u32) -> Self {
        // The highest so far is forgotten.
        fs::write(format!("/proc/{id}/clear_refs"), "5").expect("a process of our own");
        Self { id, before: Self::kib(id, "VmRSS:") }
    }

    /// The most that it had at any time, less what it had before, in KiB.
    pub(crate) fn grown(&self) -> u64 {
        Self::kib(self.id, "VmHWM:").saturating_sub(self.before)
    }

    fn kib(id: u32, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the process runs");
        let value = status.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
        value.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

/// KiB, shown as MiB.
pub(crate) struct Mebibytes(pub(crate) u64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} MiB", self.0 >> 10, ((self.0 & 1023) * 10) >> 10)
    }
}

/// Somebody who behaves, and looks at the clock.
pub(crate) struct Customer {
    http: Http,
    resp: Client,
    echo: TcpStream,
}

/// How long one answer in a hundred takes at least, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) http: u64,
    pub(crate) resp: u64,
    /// A socket that sends back what it gets: what the machine itself takes.
    pub(crate) echo: u64,
}

impl Customer {
    const ASKED: usize = 500;
    const ROUNDS: usize = 5;

    pub(crate) fn of(server: &Server) -> Self {
        let echo = TcpStream::connect(echoing()).expect("the echo is there");
        echo.set_nodelay(true).unwrap();
        Self { http: Http::connect(server.http), resp: Client::connect(server.resp), echo }
    }

    /// The 99th percentiles of the best of some rounds: what disturbs one round is somebody else's work, and an
    /// attack disturbs all.
    pub(crate) fn measure(&mut self) -> Waits {
        let rounds: Vec<Waits> = (0..Self::ROUNDS).map(|_| self.round()).collect();
        let best = |of: fn(&Waits) -> u64| rounds.iter().map(of).min().unwrap_or(0);
        Waits { http: best(|w| w.http), resp: best(|w| w.resp), echo: best(|w| w.echo) }
    }

    fn round(&mut self) -> Waits {
        let mut waits = [const { Vec::new() }; 3];
        for _ in 0..Self::ASKED {
            waits[0].push(micros(|| {
                self.http.send("POST", "/v1/check", &[], r#"{"rule":"open","key":"customer"}"#);
                assert_eq!(self.http.receive().status, 200);
            }));
            waits[1].push(micros(|| {
                let reply = self.resp.ask("TG.CHECK open customer");
                assert_eq!(reply.items()[0], Reply::Integer(1));
            }));
            waits[2].push(micros(|| {
                self.echo.write_all(b"ping").unwrap();
                self.echo.read_exact(&mut [0; 4]).unwrap();
            }));
        }
        let [http, resp, echo] = waits.map(|mut all| {
            all.sort_unstable();
            all[all.len() * 99 / 100]
        });
        Waits { http, resp, echo }
    }
}

pub(crate) fn micros(work: impl FnOnce()) -> u64 {
    let before = SystemClock.elapsed();
    work();
    SystemClock.elapsed().saturating_sub(before).get()
}

/// A thread that sends back what it gets, until the other side goes.
fn echoing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        stream.set_nodelay(true).unwrap();
        let mut bytes = [0; 4];
        while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
    });
    address
}

/// A connection on which nothing waits for long: an attacker goes on elsewhere.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the door is open");
    stream.set_nodelay(true).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}
