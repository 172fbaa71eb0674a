//! Real `redis-server` processes for tests: each on a port and in a directory of its own, and gone
//! with the test that started it.
//!
//! `TIDEGATE_REDIS_SERVER` names another program, such as `valkey-server`.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How often to look whether something that was asked for has come about.
const PAUSE: Duration = Duration::from_millis(5);
/// How many times: ten seconds.
const PAUSES: u32 = 2000;

/// One server. Dropped, it is killed.
pub(crate) struct Server {
    child: Option<Child>,
    port: u16,
    dir: PathBuf,
    args: Vec<String>,
    env: Vec<(String, PathBuf)>,
}

impl Server {
    /// A server that answers.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with more arguments, such as `&["--maxmemory", "1mb"]`.
    pub(crate) fn start_with(args: &[&str]) -> Self {
        Self::stopped(args).started()
    }

    /// A server with more in its environment, such as `LD_PRELOAD`.
    pub(crate) fn start_in(env: &[(&str, PathBuf)]) -> Self {
        let mut server = Self::stopped(&[]);
        server.env = env.iter().map(|(name, path)| (name.to_string(), path.clone())).collect();
        server.started()
    }

    fn started(mut self) -> Self {
        // Between here and there, somebody else may have taken the port.
        for _ in 0..20 {
            if self.launch() {
                return self;
            }
            self.port = free_port();
        }
        panic!("{} does not start; see {}", program(), self.dir.join("log").display());
    }

    /// A server that is not running yet: [`Server::restart`] starts it.
    pub(crate) fn stopped(args: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("tidegate-redis-{}-{count}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let args = args.iter().map(ToString::to_string).collect();
        Self { child: None, port: free_port(), dir, args, env: Vec::new() }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The process. Panics when it is not running.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is not running; restart it first").id()
    }

    /// Stops it in its tracks: the kernel still accepts connections for it, nobody answers.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    /// `kill -9`. Returns when the process is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again, empty, on the same port, and returns when it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        for _ in 0..100 {
            if self.launch() {
                return;
            }
            pause();
        }
        panic!("port {} does not become free again", self.port);
    }

    /// What `redis-cli` says to these arguments. Hangs while the server is frozen.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        // Beside the server: the tool of the same name and place.
        let program = program().replace("-server", "-cli");
        let output = Command::new(&program)
            .args(["-p", &self.port.to_string()])
            .args(args)
            .output()
            .unwrap_or_else(|error| panic!("cannot run {program} ({error}); {INSTALL}"));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Makes it a replica of `primary`, and returns when the two are in step: a primary that is
    /// killed before that takes its data with it.
    pub(crate) fn replica_of(&self, primary: &Self) {
        self.cli(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        for _ in 0..PAUSES {
            if self.cli(&["INFO", "replication"]).contains("master_link_status:up") {
                return;
            }
            pause();
        }
        panic!("port {} does not become a replica of port {}", self.port, primary.port);
    }

    /// Starts the process. False if it went away at once, as it does when the port is taken.
    fn launch(&mut self) -> bool {
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let program = program();
        let child = Command::new(&program)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
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
        for _ in 0..PAUSES {
            if answers(self.port, child.id()) {
                return true;
            }
            if child.try_wait().unwrap().is_some() {
                self.child = None;
                return false;
            }
            pause();
        }
        panic!("{program} does not answer; see {}", self.dir.join("log").display());
    }

    fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success(), "kill {name} {pid} failed");
        if name == "-STOP" {
            // The signal is on its way; the process stops at its next chance.
            while process_state(&pid).is_some_and(|state| state != 'T') {
                pause();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

const INSTALL: &str = "run ./test, which installs Redis, or set TIDEGATE_REDIS_SERVER";

pub(crate) fn program() -> String {
    env::var("TIDEGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// A port that nobody has. Below those that the system gives to clients, or one of them could take a
/// server's port while it is down; each process begins elsewhere, so that two do not meet.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = process::id().wrapping_mul(211);
        let next = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + next % COUNT).unwrap();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// It is this process that answers there, and not another test's server on the same port. One that
/// wants a password answers too, with an error that is as good here.
fn answers(port: u16, pid: u32) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"INFO server\r\nQUIT\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| {
        answer.contains(&format!("process_id:{pid}\r\n")) || answer.starts_with("-NOAUTH")
    })
}

/// The letter by which Linux calls what a process does; none elsewhere.
fn process_state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(PathBuf::from("/proc").join(pid).join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[expect(clippy::disallowed_methods, reason = "another process needs the time, not the test")]
pub(crate) fn pause() {
    std::thread::sleep(PAUSE);
}
