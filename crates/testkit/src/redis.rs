//! Real `redis-server` processes, each with its own port and directory, killed on drop.
//!
//! `TIDEGATE_REDIS_SERVER` names another program, such as `valkey-server`.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Ten seconds of polling.
const MAX_POLLS: u32 = 2000;

/// One server process, killed on drop.
pub struct RedisServer {
    child: Option<Child>,
    port: ReservedPort,
    /// Second port of a Cluster node.
    pub(crate) bus: Option<ReservedPort>,
    dir: PathBuf,
    args: Vec<String>,
    env: Vec<(String, PathBuf)>,
}

impl RedisServer {
    /// Returns once the server replies.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more command line arguments, such as `&["--maxmemory", "1mb"]`.
    pub fn start_with(args: &[&str]) -> Self {
        Self::stopped(args).started()
    }

    /// With more environment variables, such as `LD_PRELOAD`.
    pub fn start_in(env: &[(&str, PathBuf)]) -> Self {
        let mut server = Self::stopped(&[]);
        server.env = env.iter().map(|(name, path)| (name.to_string(), path.clone())).collect();
        server.started()
    }

    fn started(mut self) -> Self {
        // Another process may have taken the port since it was found free.
        for _ in 0..20 {
            if self.launch() {
                return self;
            }
            self.port = ReservedPort::any();
        }
        panic!("{} does not start; see {}", redis_server_path(), self.dir.join("log").display());
    }

    /// Prepares a server without starting it; [`RedisServer::restart`] starts it.
    pub fn stopped(args: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("tidegate-redis-{}-{count}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let args = args.iter().map(ToString::to_string).collect();
        Self { child: None, port: ReservedPort::any(), bus: None, dir, args, env: Vec::new() }
    }

    pub fn port(&self) -> u16 {
        self.port.number
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port())
    }

    /// The process. Panics when it is not running.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is not running; restart it first").id()
    }

    /// Suspends the process: the kernel still accepts connections, and nothing replies.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Resumes a frozen process.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// `kill -9`. Returns when the process is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts the server again, empty, on the same port. Returns once it replies.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..100 {
            if self.launch() {
                return;
            }
            wait_poll_interval();
        }
        panic!("port {} does not become free again", self.port());
    }

    /// Output of `redis-cli` with these arguments. Hangs while the server is frozen.
    pub fn cli(&self, args: &[&str]) -> String {
        // `redis-cli` is installed next to `redis-server`, `valkey-cli` next to `valkey-server`.
        let program = redis_server_path().replace("-server", "-cli");
        let output = Command::new(&program)
            .args(["-p", &self.port().to_string()])
            .args(args)
            .output()
            .unwrap_or_else(|error| panic!("cannot run {program} ({error}); {INSTALL}"));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Number of calls of a command, such as `get`, also by scripts.
    pub fn calls(&self, command: &str) -> u64 {
        calls_in(&self.cli(&["INFO", "commandstats"]), command)
    }

    /// Number of scripts and functions called.
    pub fn script_calls(&self) -> u64 {
        let stats = self.cli(&["INFO", "commandstats"]);
        SCRIPT_COMMANDS.iter().map(|command| calls_in(&stats, command)).sum()
    }

    /// Makes this server a replica of `primary` and returns once it is synchronised: a primary
    /// killed earlier takes its data with it.
    pub fn replica_of(&self, primary: &Self) {
        self.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
        for _ in 0..MAX_POLLS {
            if self.cli(&["INFO", "replication"]).contains("master_link_status:up") {
                return;
            }
            wait_poll_interval();
        }
        panic!("port {} does not become a replica of port {}", self.port(), primary.port());
    }

    /// Starts the process. False if it exits at once, as it does when the port is taken.
    fn launch(&mut self) -> bool {
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let program = redis_server_path();
        let child = Command::new(&program)
            .args(["--port", &self.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(["--repl-diskless-sync-delay", "0", "--loglevel", "warning"])
            .arg("--dir")
            .arg(&self.dir)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, path)| (name, path)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {program} ({error}); {INSTALL}"));
        let child = self.child.insert(child);
        for _ in 0..MAX_POLLS {
            if replies(self.port.number, child.id()) {
                return true;
            }
            if child.try_wait().unwrap().is_some() {
                self.child = None;
                return false;
            }
            wait_poll_interval();
        }
        panic!("{program} does not reply; see {}", self.dir.join("log").display());
    }

    fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success(), "kill {name} {pid} failed");
        if name == "-STOP" {
            // The signal is asynchronous: wait until the process has stopped.
            while process_state(&pid).is_some_and(|state| state != 'T') {
                wait_poll_interval();
            }
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Whether the server has functions.
pub fn has_functions(server: &RedisServer) -> bool {
    !server.cli(&["FUNCTION", "LIST"]).contains("unknown command")
}

/// The commands that run a script or a function, in lower case.
pub const SCRIPT_COMMANDS: [&str; 3] = ["evalsha", "eval", "fcall"];

/// Number of calls of a command in the text of `INFO commandstats`.
fn calls_in(stats: &str, command: &str) -> u64 {
    let rest = stats.split_once(&format!("cmdstat_{command}:calls=")).map_or("0", |(_, rest)| rest);
    rest.split(',').next().unwrap().parse().unwrap()
}

const INSTALL: &str = "run ./test, which installs Redis, or set TIDEGATE_REDIS_SERVER";

pub fn redis_server_path() -> String {
    env::var("TIDEGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// A free port. Nothing keeps it free: for a server that is stopped and started again, hold a
/// [`ReservedPort`].
pub fn free_port() -> u16 {
    ReservedPort::any().number
}

/// A port that no other test takes while its server is down. It lies below the ephemeral range, so
/// that no client socket takes it either.
#[derive(Debug)]
pub struct ReservedPort {
    pub number: u16,
    /// Tests of all processes reserve a TCP port by binding the UDP port of the same number, which
    /// nothing else uses.
    _udp: UdpSocket,
}

impl ReservedPort {
    /// Each test process starts its search at another port.
    pub fn any() -> Self {
        const FIRST: u32 = 10_000;
        const COUNT: u32 = 20_000;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let offset = process::id().wrapping_mul(211);
            let next = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let number = u16::try_from(FIRST + next % COUNT).unwrap();
            if let Some(port) = Self::of(number) {
                return port;
            }
        }
    }

    /// `None` if the port is in use, reserved, or in the ephemeral range.
    pub fn of(number: u16) -> Option<Self> {
        if number >= 32_768 {
            return None;
        }
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _udp: udp })
    }
}

/// Whether this process replies on the port, and not the server of another test. An error that
/// asks for a password counts too.
fn replies(port: u16, pid: u32) -> bool {
    let info = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"INFO server\r\nQUIT\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok(reply)
    };
    info().is_ok_and(|reply| {
        reply.contains(&format!("process_id:{pid}\r\n")) || reply.starts_with("-NOAUTH")
    })
}

/// The state letter of a process in `/proc`; `None` on systems other than Linux.
fn process_state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(PathBuf::from("/proc").join(pid).join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[expect(clippy::disallowed_methods, reason = "waits for another process")]
pub fn wait_poll_interval() {
    std::thread::sleep(POLL_INTERVAL);
}
