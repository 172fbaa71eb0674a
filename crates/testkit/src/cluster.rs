//! A real Redis Cluster: three primaries with one replica each, killed on drop.

use std::fs;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use crate::redis::{RedisServer, ReservedPort, wait_poll_interval};
use crate::timing::HANG;

pub const PRIMARIES: usize = 3;
pub const SLOTS: u16 = 16_384;
const TIMEOUT: Duration = HANG;

/// Six servers. At the start 0 to 2 are primaries, and server `n + 3` is the replica of `n`.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    alive: Vec<bool>,
    /// One Cluster at a time: a dozen servers are too many for a small machine.
    _turn: MutexGuard<'static, ()>,
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        self.nodes.clear();
        // Configuration files of this process; only one Cluster exists at a time.
        let prefix = format!("tidegate-nodes-{}-", process::id());
        for file in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

impl RedisCluster {
    /// Returns once all slots are served and the replicas are synchronised.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more command line arguments of every node.
    pub fn start_with(args: &[&str]) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes: Vec<RedisServer> = (0..2 * PRIMARIES).map(|_| node(args)).collect();
        let cluster = Self { alive: vec![true; nodes.len()], nodes, _turn: turn };
        let (shards, primaries) = (PRIMARIES as u32, 0..PRIMARIES);
        let bound = |nth: u32| (u32::from(SLOTS) * nth / shards) as u16;
        for (nth, shard) in primaries.clone().zip(0..) {
            let slots = (bound(shard)..bound(shard + 1)).map(|slot| slot.to_string());
            let words: Vec<String> =
                ["CLUSTER", "ADDSLOTS"].map(String::from).into_iter().chain(slots).collect();
            cluster.command(nth, &words.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for nth in 0..cluster.nodes.len() {
            cluster.command(nth, &["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]);
        }
        for nth in 1..cluster.nodes.len() {
            cluster.meet(0, nth);
        }
        for nth in primaries {
            cluster.replicate(nth + PRIMARIES, nth);
        }
        cluster.until_settled();
        cluster
    }

    /// URL with all nodes as seeds.
    pub fn url(&self) -> String {
        self.url_of(&(0..self.nodes.len()).collect::<Vec<_>>())
    }

    /// URL with these nodes as seeds.
    pub fn url_of(&self, seeds: &[usize]) -> String {
        let seeds: Vec<String> =
            seeds.iter().map(|seed| format!("127.0.0.1:{}", self.nodes[*seed].port())).collect();
        format!("redis-cluster://{}", seeds.join(","))
    }

    /// Reply of a node to a command. Panics on an error.
    pub fn command(&self, nth: usize, words: &[&str]) -> Value {
        command(self.nodes[nth].port(), words)
            .unwrap_or_else(|error| panic!("node {nth} to {}: {error}", words.join(" ")))
    }

    /// The node that reports itself as the primary of the slot.
    pub fn primary_of(&self, slot: u16) -> usize {
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            let found = self.living().find(|nth| {
                shards(self.nodes[*nth].port())
                    .iter()
                    .any(|shard| shard.has(slot) && shard.primary == self.nodes[*nth].port())
            });
            if let Some(found) = found {
                return found;
            }
            wait_poll_interval();
        }
        let views = self.living().map(|nth| value_text(&self.command(nth, &["CLUSTER", "NODES"])));
        panic!("no node has slot {slot}:\n{}", views.collect::<Vec<_>>().join("\n"));
    }

    /// Nodes that have slots, ordered by their first slot.
    pub fn primaries(&self) -> Vec<usize> {
        self.primaries_as_seen_by(self.living().next().unwrap())
    }

    fn primaries_as_seen_by(&self, nth: usize) -> Vec<usize> {
        let mut shards = shards(self.nodes[nth].port());
        shards.sort_unstable_by_key(|shard| shard.first);
        let mut primaries: Vec<usize> = Vec::new();
        for shard in shards {
            let nth = self.nodes.iter().position(|node| node.port() == shard.primary).unwrap();
            if !primaries.contains(&nth) {
                primaries.push(nth);
            }
        }
        primaries
    }

    /// Running replicas of a primary.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let id = self.id(primary);
        let is_replica = |nth: &usize| {
            let nodes = value_text(&self.command(*nth, &["CLUSTER", "NODES"]));
            let me = nodes.lines().find(|line| line.contains("myself")).unwrap().to_owned();
            me.contains("slave") && me.split(' ').nth(3) == Some(&id)
        };
        self.living().filter(is_replica).collect()
    }

    pub fn slot_of(&self, key: &str) -> u16 {
        let alive = self.living().next().unwrap();
        match self.command(alive, &["CLUSTER", "KEYSLOT", key]) {
            Value::Int(slot) => u16::try_from(slot).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self, nth: usize) {
        self.nodes[nth].kill();
        self.alive[nth] = false;
    }

    /// Starts a node again; its configuration file names the Cluster.
    pub fn restart(&mut self, nth: usize) {
        self.nodes[nth].restart();
        self.alive[nth] = true;
    }

    /// Starts a manual failover to a replica.
    pub fn fail_over_to(&self, replica: usize) {
        self.command(replica, &["CLUSTER", "FAILOVER"]);
    }

    /// Repeats the manual failover until the replica is a primary.
    pub fn until_primary(&self, replica: usize) {
        let is_primary = || self.primaries_as_seen_by(replica).contains(&replica);
        let begun = Instant::now();
        let mut sent: Option<Instant> = None;
        while !is_primary() {
            assert!(begun.elapsed() < 2 * TIMEOUT, "node {replica} does not become a primary");
            // A failover is given up after five seconds if votes were lost.
            if sent.is_none_or(|sent| sent.elapsed() > Duration::from_secs(6)) {
                // An error means that the node may be a primary by now.
                let _ = command(self.nodes[replica].port(), &["CLUSTER", "FAILOVER"]);
                sent = Some(Instant::now());
            }
            wait_poll_interval();
        }
    }

    /// Moves a slot with all its keys, by the steps of the Redis documentation.
    pub fn migrate(&self, slot: u16, from: usize, to: usize) {
        let slot_text = slot.to_string();
        let (source, target) = (self.id(from), self.id(to));
        self.command(to, &["CLUSTER", "SETSLOT", &slot_text, "IMPORTING", &source]);
        self.command(from, &["CLUSTER", "SETSLOT", &slot_text, "MIGRATING", &target]);
        loop {
            let keys = self.keys_in(from, slot);
            if keys.is_empty() {
                break;
            }
            let port = self.nodes[to].port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.command(from, &words);
        }
        // The new owner first, then the others: a primary that still has the old owner could make
        // the new one give the slot back.
        let primaries = self.primaries();
        let others = primaries.iter().filter(|nth| ![to, from].contains(nth));
        for nth in [to, from].iter().chain(others) {
            let words = ["CLUSTER", "SETSLOT", &slot_text, "NODE", &target];
            if let Err(error) = command(self.nodes[*nth].port(), &words) {
                // A node that hears from the new owner that its last slot is gone becomes a replica
                // at once, and refuses the command.
                let nodes = value_text(&self.command(*nth, &["CLUSTER", "NODES"]));
                let knows = *nth == from && nodes.contains("myself,slave");
                assert!(knows, "node {nth} to {}: {error}", words.join(" "));
            }
        }
        // Two owners that have not heard of each other could use the same epoch.
        let epoch = |nth: usize| {
            let info = value_text(&self.command(nth, &["CLUSTER", "INFO"]));
            let line = info.lines().find(|line| line.starts_with("cluster_current_epoch:"));
            line.map(ToOwned::to_owned)
        };
        self.until("know the move", |nth| !primaries.contains(&nth) || epoch(nth) == epoch(to));
    }

    pub fn keys_in(&self, nth: usize, slot: u16) -> Vec<String> {
        match self.command(nth, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"]) {
            Value::Array(keys) => keys.iter().map(value_text).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// How many keys a node has.
    pub fn size(&self, nth: usize) -> u64 {
        match self.command(nth, &["DBSIZE"]) {
            Value::Int(size) => u64::try_from(size).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// `CONFIG SET` on all running nodes.
    pub fn configure(&self, name: &str, value: &str) {
        self.living().for_each(|nth| drop(self.command(nth, &["CONFIG", "SET", name, value])));
    }

    /// Adds a node without slots and returns its number.
    pub fn add(&mut self) -> usize {
        self.nodes.push(node(&[]));
        self.alive.push(true);
        let new = self.nodes.len() - 1;
        self.command(new, &["CLUSTER", "SET-CONFIG-EPOCH", &(100 + new).to_string()]);
        self.meet(0, new);
        let id = self.id(new);
        self.until("know the new node", |nth| {
            value_text(&self.command(nth, &["CLUSTER", "NODES"])).contains(&id)
        });
        self.until_settled();
        new
    }

    /// Kills a node without slots and has the others forget it.
    pub fn remove(&mut self, nth: usize) {
        let id = self.id(nth);
        self.kill(nth);
        self.living().for_each(|other| drop(self.command(other, &["CLUSTER", "FORGET", &id])));
    }

    /// Returns once all running nodes report a working Cluster and the same slots, and every
    /// replica is synchronised: a primary killed earlier takes its data with it.
    pub fn until_settled(&self) {
        self.until("work", |nth| {
            let info = value_text(&self.command(nth, &["CLUSTER", "INFO"]));
            let link = value_text(&self.command(nth, &["INFO", "replication"]));
            let synchronised = !link.contains("role:slave")
                || link.contains("master_link_status:up")
                    && value_text(&self.command(nth, &["CLUSTER", "NODES"]))
                        .contains("myself,slave");
            info.contains("cluster_state:ok") && synchronised
        });
        self.until("agree", |nth| {
            let primaries = |nth: usize| {
                let mut shards = shards(self.nodes[nth].port());
                shards.sort_unstable_by_key(|shard| shard.first);
                shards
            };
            primaries(nth) == primaries(self.living().next().unwrap())
        });
    }

    fn meet(&self, known: usize, new: usize) {
        let port = self.nodes[new].port().to_string();
        self.command(known, &["CLUSTER", "MEET", "127.0.0.1", &port]);
    }

    fn replicate(&self, replica: usize, primary: usize) {
        let id = self.id(primary);
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            if command(self.nodes[replica].port(), &["CLUSTER", "REPLICATE", &id]).is_ok() {
                return;
            }
            wait_poll_interval();
        }
        panic!("node {replica} does not become a replica of node {primary}");
    }

    fn id(&self, nth: usize) -> String {
        value_text(&self.command(nth, &["CLUSTER", "MYID"]))
    }

    pub fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|nth| self.alive[*nth])
    }

    fn until(&self, what: &str, condition: impl Fn(usize) -> bool) {
        let begun = Instant::now();
        while begun.elapsed() < TIMEOUT {
            if self.living().all(&condition) {
                return;
            }
            wait_poll_interval();
        }
        let views = self.living().map(|nth| value_text(&self.command(nth, &["CLUSTER", "NODES"])));
        panic!("the nodes do not {what}:\n{}", views.collect::<Vec<_>>().join("\n"));
    }
}

fn node(args: &[&str]) -> RedisServer {
    loop {
        let config = config_file();
        let own = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-config-file",
            &config,
            // Replicas stay with their primaries.
            "--cluster-migration-barrier",
            "99",
        ];
        let mut server = RedisServer::stopped(&[&own, args].concat());
        // The nodes use a second port, 10,000 above, for the cluster bus.
        server.bus = ReservedPort::of(server.port() + 10_000);
        if server.bus.is_some() {
            server.restart();
            return server;
        }
    }
}

/// File for the configuration of a node. The node blocks while it writes this file, so it is kept
/// in memory where possible.
fn config_file() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    match Path::new("/dev/shm").is_dir() {
        true => format!("/dev/shm/tidegate-nodes-{}-{count}.conf", process::id()),
        false => "nodes.conf".to_owned(),
    }
}

/// A range of slots and the port of its primary.
#[derive(PartialEq, Eq, Debug)]
pub struct ClusterShard {
    first: u16,
    last: u16,
    primary: u16,
}

impl ClusterShard {
    fn has(&self, slot: u16) -> bool {
        (self.first..=self.last).contains(&slot)
    }
}

fn shards(port: u16) -> Vec<ClusterShard> {
    let Ok(Value::Array(rows)) = command(port, &["CLUSTER", "SLOTS"]) else { return Vec::new() };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).unwrap(),
        other => panic!("{other:?}"),
    };
    let shard = |row: Value| {
        let Value::Array(row) = row else { panic!("{row:?}") };
        let Value::Array(primary) = &row[2] else { panic!("{row:?}") };
        ClusterShard { first: number(&row[0]), last: number(&row[1]), primary: number(&primary[1]) }
    };
    rows.into_iter().map(shard).collect()
}

/// Sends a command on a new connection. A frozen server is an error.
pub fn command(port: u16, words: &[&str]) -> Result<Value, redis::RedisError> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
    connection.set_read_timeout(Some(Duration::from_secs(6)))?;
    let mut cmd = redis::cmd(words[0]);
    cmd.arg(&words[1..]);
    cmd.query(&mut connection)
}

pub fn value_text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Okay => "OK".to_owned(),
        other => panic!("{other:?}"),
    }
}
