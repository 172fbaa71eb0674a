//! A primary, two replicas and three sentinels as real processes, gone with the test.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::env;
use std::fs;
use std::io::{Write as _, stderr};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::server::{Server, free_port, pause, program};

/// What the sentinels call their primary.
pub(crate) const MASTER: &str = "tides";

/// As long as a failover may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A server that does not answer a sentinel for so long is down. A busy machine may stand still for
/// half a second, and then a failover begins that nobody has asked for.
const DOWN_AFTER_MS: u32 = 1500;

/// Three servers, one of which is the primary, and those who watch it.
pub(crate) struct Watched {
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Sentinel>,
}

impl Watched {
    pub(crate) fn start() -> Self {
        let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
        for replica in &servers[1..] {
            replica.replica_of(&servers[0]);
        }
        let port = servers[0].port();
        let sentinels = (0..3).map(|_| Sentinel::start(port, &[])).collect();
        let watched = Self { servers, sentinels };
        watched.settle();
        watched
    }

    pub(crate) fn url(&self) -> String {
        let places: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis-sentinel://{}/{MASTER}", places.join(","))
    }

    /// The port of the primary, once all sentinels that run agree on it.
    pub(crate) fn primary(&self) -> u16 {
        let mut found = None;
        until("the sentinels do not agree on a primary", || {
            let running = self.sentinels.iter().filter(|sentinel| sentinel.child.is_some());
            let mut named: Vec<Option<u16>> = running.map(Sentinel::primary).collect();
            named.dedup();
            found = match named[..] {
                [Some(port)] => Some(port),
                _ => None,
            };
            found.is_some()
        });
        found.unwrap()
    }

    /// Where it is among the servers.
    pub(crate) fn primary_index(&self) -> usize {
        let port = self.primary();
        self.servers.iter().position(|server| server.port() == port).unwrap()
    }

    /// Returns when a failover can begin: sentinels know each other and both replicas, which are in
    /// step.
    pub(crate) fn settle(&self) {
        until("the sentinels and replicas do not settle", || self.is_settled());
    }

    fn is_settled(&self) -> bool {
        let primary = self.primary();
        let replicas = self.servers.iter().filter(|server| server.port() != primary);
        let in_step = |server: &Server| {
            server.cli(&["INFO", "replication"]).contains("master_link_status:up")
        };
        let running = || self.sentinels.iter().filter(|sentinel| sentinel.child.is_some());
        let others = (running().count() - 1).to_string();
        let knows_all = |sentinel: &Sentinel| {
            let (master, replicas) = (sentinel.table("master"), sentinel.table("replicas"));
            let is = |name: &str, value: &str| master.contains(&format!("{name}\n{value}\n"));
            let good = |words: &str| replicas.matches(words).count() == self.servers.len() - 1;
            is("num-other-sentinels", &others)
                && is("flags", "master")
                && good("master-link-status\nok\n")
                && good("flags\nslave\n")
        };
        replicas.into_iter().all(in_step) && running().all(knows_all)
    }

    /// A failover that nothing has died for. Returns when it has begun.
    pub(crate) fn fail_over(&self) {
        until("the sentinel does not begin a failover", || {
            self.sentinels[0].cli(&["SENTINEL", "FAILOVER", MASTER]) == "OK"
        });
    }

    /// Starts a server that was killed, as a replica of the primary. Returns when it is in step.
    pub(crate) fn revive(&mut self, index: usize) {
        self.servers[index].restart();
        // Sentinels may still name this one: they look once a second.
        until("no other server becomes the primary", || self.primary_index() != index);
        let primary = self.primary_index();
        self.servers[index].replica_of(&self.servers[primary]);
    }
}

/// One sentinel. Dropped, it is killed.
pub(crate) struct Sentinel {
    child: Option<Child>,
    port: u16,
    dir: PathBuf,
    password: Option<String>,
}

impl Sentinel {
    /// One that watches the server on this port, with more lines in its configuration.
    pub(crate) fn start(primary: u16, lines: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("tidegate-sentinel-{}-{count}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let password = lines.iter().find_map(|line| line.strip_prefix("requirepass "));
        let password = password.map(ToOwned::to_owned);
        let mut sentinel = Self { child: None, port: free_port(), dir, password };
        for _ in 0..20 {
            if sentinel.launch(primary, lines) {
                return sentinel;
            }
            sentinel.port = free_port();
        }
        panic!("no sentinel starts; see {}", sentinel.dir.join("log").display());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops it in its tracks: the kernel still accepts connections for it, nobody answers.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    pub(crate) fn cli(&self, args: &[&str]) -> String {
        let output = Command::new(program().replace("-server", "-cli"))
            .args(["--no-auth-warning", "-p", &self.port.to_string()])
            .args(self.password.iter().flat_map(|password| ["-a", &**password]))
            .args(args)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn primary(&self) -> Option<u16> {
        let answer = self.cli(&["SENTINEL", "get-master-addr-by-name", MASTER]);
        answer.lines().nth(1)?.parse().ok()
    }

    /// What it knows about the master or the others: names and values, a line each.
    fn table(&self, of: &str) -> String {
        self.cli(&["SENTINEL", of, MASTER]) + "\n"
    }

    fn launch(&mut self, primary: u16, lines: &[&str]) -> bool {
        let conf = self.dir.join("conf");
        let text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\nsentinel monitor {MASTER} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\nsentinel failover-timeout {MASTER} 3000\n\
             sentinel parallel-syncs {MASTER} 1\n{}\n",
            self.port,
            self.dir.display(),
            lines.join("\n")
        );
        fs::write(&conf, text).unwrap();
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let child = Command::new(program())
            .arg(&conf)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.primary() == Some(primary) {
                return true;
            }
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                self.child = None;
                return false;
            }
            pause();
        }
        false
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("the sentinel is not running").id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success(), "kill {name} {pid} failed");
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            let _ = writeln!(stderr(), "what a sentinel saw: {}", self.dir.join("log").display());
            return;
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        pause();
    }
}
