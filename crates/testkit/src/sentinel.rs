//! A primary, two replicas and three sentinels as real processes, killed on drop.

use std::env;
use std::fs;
use std::io::{Write as _, stderr};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::redis::{RedisServer, ReservedPort, redis_server_path, wait_poll_interval};

/// Name of the primary in the configuration of the sentinels.
pub const MASTER_NAME: &str = "tides";

/// Upper bound for a failover on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A server that does not reply to a sentinel for so long is down. A busy machine may stall for
/// half a second, which must not start a failover.
const DOWN_AFTER_MS: u32 = 1500;

/// Three servers, one of them the primary, and the sentinels that monitor it.
pub struct SentinelSetup {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<SentinelServer>,
}

impl SentinelSetup {
    pub fn start() -> Self {
        let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
        for replica in &servers[1..] {
            replica.replica_of(&servers[0]);
        }
        let port = servers[0].port();
        let sentinels = (0..3).map(|_| SentinelServer::start(port, &[])).collect();
        let setup = Self { servers, sentinels };
        setup.settle();
        setup
    }

    pub fn url(&self) -> String {
        let endpoints: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
            .collect();
        format!("redis-sentinel://{}/{MASTER_NAME}", endpoints.join(","))
    }

    /// Port of the primary, once all running sentinels agree on it.
    pub fn primary(&self) -> u16 {
        let mut found = None;
        until("the sentinels do not agree on a primary", || {
            let running = self.sentinels.iter().filter(|sentinel| sentinel.child.is_some());
            let mut named: Vec<Option<u16>> = running.map(SentinelServer::primary).collect();
            named.dedup();
            found = match named[..] {
                [Some(port)] => Some(port),
                _ => None,
            };
            found.is_some()
        });
        found.unwrap()
    }

    /// Index of the primary in `servers`.
    pub fn primary_index(&self) -> usize {
        let port = self.primary();
        self.servers.iter().position(|server| server.port() == port).unwrap()
    }

    /// Returns once a failover is possible: the sentinels know each other and both replicas, and
    /// the replicas are synchronised.
    pub fn settle(&self) {
        until("the sentinels and replicas do not settle", || self.is_settled());
    }

    fn is_settled(&self) -> bool {
        let primary = self.primary();
        let replicas = self.servers.iter().filter(|server| server.port() != primary);
        let synchronised = |server: &RedisServer| {
            server.cli(&["INFO", "replication"]).contains("master_link_status:up")
        };
        let running = || self.sentinels.iter().filter(|sentinel| sentinel.child.is_some());
        let others = (running().count() - 1).to_string();
        let knows_all = |sentinel: &SentinelServer| {
            let (master, replicas) = (sentinel.table("master"), sentinel.table("replicas"));
            let is = |name: &str, value: &str| master.contains(&format!("{name}\n{value}\n"));
            let good = |words: &str| replicas.matches(words).count() == self.servers.len() - 1;
            is("num-other-sentinels", &others)
                && is("flags", "master")
                && good("master-link-status\nok\n")
                && good("flags\nslave\n")
        };
        replicas.into_iter().all(synchronised) && running().all(knows_all)
    }

    /// Starts a failover while all servers run. Returns once it has started.
    pub fn fail_over(&self) {
        until("the sentinel does not begin a failover", || {
            self.sentinels[0].cli(&["SENTINEL", "FAILOVER", MASTER_NAME]) == "OK"
        });
    }

    /// Starts a killed server as a replica of the primary. Returns once it is synchronised.
    pub fn revive(&mut self, index: usize) {
        // Sentinels may still name this server. If it returned now, they could give up the
        // failover.
        until("no other server becomes the primary", || self.primary_index() != index);
        self.servers[index].restart();
        let primary = self.primary_index();
        self.servers[index].replica_of(&self.servers[primary]);
    }
}

/// One sentinel process, killed on drop.
pub struct SentinelServer {
    child: Option<Child>,
    port: ReservedPort,
    dir: PathBuf,
    password: Option<String>,
}

impl SentinelServer {
    /// Monitors the server on this port; `lines` are added to the configuration.
    pub fn start(primary: u16, lines: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("tidegate-sentinel-{}-{count}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let password = lines.iter().find_map(|line| line.strip_prefix("requirepass "));
        let password = password.map(ToOwned::to_owned);
        let mut sentinel = Self { child: None, port: ReservedPort::any(), dir, password };
        for _ in 0..20 {
            if sentinel.launch(primary, lines) {
                return sentinel;
            }
            sentinel.port = ReservedPort::any();
        }
        panic!("no sentinel starts; see {}", sentinel.dir.join("log").display());
    }

    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Suspends the process: the kernel still accepts connections, and nothing replies.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Resumes a frozen process.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    pub fn cli(&self, args: &[&str]) -> String {
        let output = Command::new(redis_server_path().replace("-server", "-cli"))
            .args(["--no-auth-warning", "-p", &self.port().to_string()])
            .args(self.password.iter().flat_map(|password| ["-a", &**password]))
            .args(args)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn primary(&self) -> Option<u16> {
        let reply = self.cli(&["SENTINEL", "get-master-addr-by-name", MASTER_NAME]);
        reply.lines().nth(1)?.parse().ok()
    }

    /// What the sentinel knows of the master or the replicas: names and values, one per line.
    fn table(&self, of: &str) -> String {
        self.cli(&["SENTINEL", of, MASTER_NAME]) + "\n"
    }

    fn launch(&mut self, primary: u16, lines: &[&str]) -> bool {
        let conf = self.dir.join("conf");
        let text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\nsentinel monitor {MASTER_NAME} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER_MS}\nsentinel failover-timeout {MASTER_NAME} 3000\n\
             sentinel parallel-syncs {MASTER_NAME} 1\n{}\n",
            self.port(),
            self.dir.display(),
            lines.join("\n")
        );
        fs::write(&conf, text).unwrap();
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let child = Command::new(redis_server_path())
            .arg(&conf)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            if self.primary() == Some(primary) {
                return true;
            }
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                self.child = None;
                return false;
            }
            wait_poll_interval();
        }
        false
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("the sentinel is not running").id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success(), "kill {name} {pid} failed");
    }
}

impl Drop for SentinelServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            let _ = writeln!(stderr(), "log of a sentinel: {}", self.dir.join("log").display());
            return;
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn until(failure: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "{failure}");
        wait_poll_interval();
    }
}
