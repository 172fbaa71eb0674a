//! Memory of an attacked server process, and the latency of its other clients.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tidegate::{Clock, SystemClock};

use testkit::process::print_figure;
use testkit::resp::{RespConnection, RespReply};
use testkit::server::{RawHttpConnection, ServerProcess, TEST_TIMEOUT, TempFolder};

/// Maximum growth of the process during an attack, in KiB.
pub(crate) const MAX_GROWTH: u64 = 64 << 10;

const POLICY: &str = r#"
rules:
  - { name: open, limits: ["1000000000/s"] }
  - { name: five, limits: ["fixed-window 5/36500d first-hit"] }
"#;

/// Runs one attack at a time, so that the figures belong to it.
pub(crate) struct Alone(#[expect(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

impl Alone {
    pub(crate) fn wait() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(allow_files(4_096), "4,096 files are allowed");
        Self(alone)
    }
}

/// Allows this process so many open files, and servers that are started from now on. False if the
/// system does not.
pub(crate) fn allow_files(count: usize) -> bool {
    let (id, limit) = (std::process::id().to_string(), format!("--nofile={count}:"));
    let raised = Command::new("prlimit").args(["--pid", &id, &limit]).status();
    raised.expect("prlimit comes with the system").success()
}

/// A server with a rule that always allows and one that always denies.
pub(crate) fn victim() -> ServerProcess {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    ServerProcess::start(&["--config", file.to_str().unwrap()], &[])
}

/// Runs an attack. Asserts that the process never grows by more than [`MAX_GROWTH`], and that the
/// server works afterwards.
pub(crate) fn survive<T>(
    name: &str,
    server: &mut ServerProcess,
    attack: impl FnOnce(&ServerProcess) -> T,
) -> T {
    let memory = Memory::of(server.id());
    let outcome = attack(server);
    let grown = memory.grown();
    print_figure(format_args!("attack: {name}: memory grew by {}", Mebibytes(grown)));
    assert_serves(server);
    assert!(grown <= MAX_GROWTH, "{name}: {}", Mebibytes(grown));
    outcome
}

/// Asserts that both listeners respond, and that used permits stay used.
pub(crate) fn assert_serves(server: &mut ServerProcess) {
    assert!(server.is_running(), "{:?}", server.log());
    let check = |rule: &str| {
        server.post("/v1/check", &json!({ "rule": rule, "key": "served", "cost": 1 })).status
    };
    assert_eq!(
        (check("open"), RespConnection::connect(server.resp).send("PING")),
        (200, RespReply::Simple("PONG".into()))
    );
    let panics = server.log().iter().filter(|line| line.contains("panicked")).count();
    assert_eq!(panics, 0, "{:?}", server.log());
}

/// Memory of a process from now on.
pub(crate) struct Memory {
    id: u32,
    before: u64,
}

impl Memory {
    pub(crate) fn of(id: u32) -> Self {
        // Reset the high-water mark.
        fs::write(format!("/proc/{id}/clear_refs"), "5").expect("a process of our own");
        Self { id, before: Self::kib(id, "VmRSS:") }
    }

    /// Peak minus the value before, in KiB.
    pub(crate) fn grown(&self) -> u64 {
        Self::kib(self.id, "VmHWM:").saturating_sub(self.before)
    }

    /// Value now minus the value before, in KiB.
    pub(crate) fn kept(&self) -> u64 {
        Self::kib(self.id, "VmRSS:").saturating_sub(self.before)
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

/// A regular client that measures its latency.
pub(crate) struct MeasuringClient {
    http: RawHttpConnection,
    resp: RespConnection,
    echo: TcpStream,
}

/// p99 of the latency in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) http: u64,
    pub(crate) resp: u64,
    /// An echo socket, for the latency of the machine itself.
    pub(crate) echo: u64,
}

impl MeasuringClient {
    const ASKED: usize = 500;
    const ROUNDS: usize = 5;

    pub(crate) fn of(server: &ServerProcess) -> Self {
        let echo = TcpStream::connect(echoing()).expect("the echo is there");
        echo.set_nodelay(true).unwrap();
        Self {
            http: RawHttpConnection::connect(server.http),
            resp: RespConnection::connect(server.resp),
            echo,
        }
    }

    /// p99 of the best of several rounds: other processes disturb one round, an attack disturbs
    /// all.
    pub(crate) fn measure(&mut self) -> Waits {
        let rounds: Vec<Waits> = (0..Self::ROUNDS).map(|_| self.round()).collect();
        let best = |of: fn(&Waits) -> u64| rounds.iter().map(of).min().unwrap_or(0);
        Waits { http: best(|w| w.http), resp: best(|w| w.resp), echo: best(|w| w.echo) }
    }

    /// p50 of checks over HTTP, in microseconds.
    pub(crate) fn median_http(&mut self) -> u64 {
        let mut waits: Vec<u64> = (0..Self::ASKED).map(|_| self.check_http()).collect();
        waits.sort_unstable();
        waits[waits.len() / 2]
    }

    fn check_http(&mut self) -> u64 {
        micros(|| {
            self.http.send("POST", "/v1/check", &[], r#"{"rule":"open","key":"customer"}"#);
            assert_eq!(self.http.receive().status, 200);
        })
    }

    fn round(&mut self) -> Waits {
        let mut waits = [const { Vec::new() }; 3];
        for _ in 0..Self::ASKED {
            waits[0].push(self.check_http());
            waits[1].push(micros(|| {
                let reply = self.resp.send("TG.CHECK open customer");
                assert_eq!(reply.items()[0], RespReply::Integer(1));
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

/// An echo server in a thread, until the client closes.
fn echoing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client connects");
        stream.set_nodelay(true).unwrap();
        let mut bytes = [0; 4];
        while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
    });
    address
}

/// A connection with short timeouts: an attacker does not wait.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TEST_TIMEOUT).expect("the listener accepts");
    stream.set_nodelay(true).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}
