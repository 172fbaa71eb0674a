//! A real Cluster for tests: three primaries with a replica each, gone with the test.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use crate::server::{Server, pause};

pub(crate) const PRIMARIES: usize = 3;
pub(crate) const SLOTS: u16 = 16_384;
/// For what has to come about by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// Six servers, numbered. The first three are the primaries at first, and the replica of each comes
/// three later.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
    alive: Vec<bool>,
    /// A dozen servers at a time would be too much for a small machine.
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        // Those of this process that nobody has any more: one Cluster at a time.
        let ours = format!("tidegate-nodes-{}-", process::id());
        for file in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&ours) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

impl Cluster {
    /// A Cluster that works, replicas in step.
    pub(crate) fn start() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes: Vec<Server> = (0..2 * PRIMARIES).map(|_| node()).collect();
        let cluster = Self { alive: vec![true; nodes.len()], nodes, _turn: turn };
        let (shards, primaries) = (PRIMARIES as u32, 0..PRIMARIES);
        let bound = |nth: u32| (u32::from(SLOTS) * nth / shards) as u16;
        for (nth, shard) in primaries.clone().zip(0..) {
            let slots = (bound(shard)..bound(shard + 1)).map(|slot| slot.to_string());
            let words: Vec<String> =
                ["CLUSTER", "ADDSLOTS"].map(String::from).into_iter().chain(slots).collect();
            cluster.ask(nth, &words.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for nth in 0..cluster.nodes.len() {
            cluster.ask(nth, &["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]);
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

    /// An address that names all of them.
    pub(crate) fn url(&self) -> String {
        self.url_of(&(0..self.nodes.len()).collect::<Vec<_>>())
    }

    /// An address that names these.
    pub(crate) fn url_of(&self, seeds: &[usize]) -> String {
        let seeds: Vec<String> =
            seeds.iter().map(|seed| format!("127.0.0.1:{}", self.nodes[*seed].port())).collect();
        format!("redis-cluster://{}", seeds.join(","))
    }

    /// What a node says. Panics at an error.
    pub(crate) fn ask(&self, nth: usize, words: &[&str]) -> Value {
        ask(self.nodes[nth].port(), words)
            .unwrap_or_else(|error| panic!("node {nth} to {}: {error}", words.join(" ")))
    }

    /// The node that says of itself that it has the slot, and serves.
    pub(crate) fn primary_of(&self, slot: u16) -> usize {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let found = self.living().find(|nth| {
                shards(self.nodes[*nth].port())
                    .iter()
                    .any(|shard| shard.has(slot) && shard.primary == self.nodes[*nth].port())
            });
            if let Some(found) = found {
                return found;
            }
            pause();
        }
        let views = self.living().map(|nth| text(&self.ask(nth, &["CLUSTER", "NODES"])));
        panic!("nobody has slot {slot}:\n{}", views.collect::<Vec<_>>().join("\n"));
    }

    /// Those that have slots, in the order of their first.
    pub(crate) fn primaries(&self) -> Vec<usize> {
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

    /// Its replicas, those that are alive.
    pub(crate) fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let id = self.id(primary);
        let is_replica = |nth: &usize| {
            let nodes = text(&self.ask(*nth, &["CLUSTER", "NODES"]));
            let me = nodes.lines().find(|line| line.contains("myself")).unwrap().to_owned();
            me.contains("slave") && me.split(' ').nth(3) == Some(&id)
        };
        self.living().filter(is_replica).collect()
    }

    pub(crate) fn slot_of(&self, key: &str) -> u16 {
        let alive = self.living().next().unwrap();
        match self.ask(alive, &["CLUSTER", "KEYSLOT", key]) {
            Value::Int(slot) => u16::try_from(slot).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, nth: usize) {
        self.nodes[nth].kill();
        self.alive[nth] = false;
    }

    /// Starts it again; it knows its Cluster from before.
    pub(crate) fn restart(&mut self, nth: usize) {
        self.nodes[nth].restart();
        self.alive[nth] = true;
    }

    /// Has a replica take the place of its primary, in good order.
    pub(crate) fn fail_over_to(&self, replica: usize) {
        self.ask(replica, &["CLUSTER", "FAILOVER"]);
    }

    /// The same, until it is done.
    pub(crate) fn until_primary(&self, replica: usize) {
        let is_primary = || self.primaries_as_seen_by(replica).contains(&replica);
        let begun = Instant::now();
        let mut asked: Option<Instant> = None;
        while !is_primary() {
            assert!(begun.elapsed() < 2 * PATIENCE, "node {replica} does not become a primary");
            // It gives up after five seconds if votes were lost.
            if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
                // By now it may have become one.
                let _ = ask(self.nodes[replica].port(), &["CLUSTER", "FAILOVER"]);
                asked = Some(Instant::now());
            }
            pause();
        }
    }

    /// Moves a slot with all its keys as the documentation of Redis says, and tells the others.
    pub(crate) fn migrate(&self, slot: u16, from: usize, to: usize) {
        let word = slot.to_string();
        let (source, target) = (self.id(from), self.id(to));
        self.ask(to, &["CLUSTER", "SETSLOT", &word, "IMPORTING", &source]);
        self.ask(from, &["CLUSTER", "SETSLOT", &word, "MIGRATING", &target]);
        loop {
            let keys = self.keys_in(from, slot);
            if keys.is_empty() {
                break;
            }
            let port = self.nodes[to].port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.ask(from, &words);
        }
        // The new owner first, and then everybody: a primary that still believes in the old one could
        // talk the new one out of it.
        let primaries = self.primaries();
        let others = primaries.iter().filter(|nth| ![to, from].contains(nth));
        for nth in [to, from].iter().chain(others) {
            let words = ["CLUSTER", "SETSLOT", &word, "NODE", &target];
            if let Err(error) = ask(self.nodes[*nth].port(), &words) {
                // Who hears from the new owner that its last slot has gone becomes a replica at once,
                // and needs no telling.
                let nodes = text(&self.ask(*nth, &["CLUSTER", "NODES"]));
                let knows = *nth == from && nodes.contains("myself,slave");
                assert!(knows, "node {nth} to {}: {error}", words.join(" "));
            }
        }
        // Two owners that have not heard of each other could go by the same epoch.
        let epoch = |nth: usize| {
            let info = text(&self.ask(nth, &["CLUSTER", "INFO"]));
            let line = info.lines().find(|line| line.starts_with("cluster_current_epoch:"));
            line.map(ToOwned::to_owned)
        };
        self.until("know of the move", |nth| !primaries.contains(&nth) || epoch(nth) == epoch(to));
    }

    pub(crate) fn keys_in(&self, nth: usize, slot: u16) -> Vec<String> {
        match self.ask(nth, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"]) {
            Value::Array(keys) => keys.iter().map(text).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// How many keys a node has.
    pub(crate) fn size(&self, nth: usize) -> u64 {
        match self.ask(nth, &["DBSIZE"]) {
            Value::Int(size) => u64::try_from(size).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Sets the same on all.
    pub(crate) fn configure(&self, name: &str, value: &str) {
        self.living().for_each(|nth| drop(self.ask(nth, &["CONFIG", "SET", name, value])));
    }

    /// One more node that is a member, with no slots.
    pub(crate) fn add(&mut self) -> usize {
        self.nodes.push(node());
        self.alive.push(true);
        let new = self.nodes.len() - 1;
        self.ask(new, &["CLUSTER", "SET-CONFIG-EPOCH", &(100 + new).to_string()]);
        self.meet(0, new);
        let id = self.id(new);
        self.until("know the new node", |nth| {
            text(&self.ask(nth, &["CLUSTER", "NODES"])).contains(&id)
        });
        self.until_settled();
        new
    }

    /// A node without slots leaves, and is killed.
    pub(crate) fn remove(&mut self, nth: usize) {
        let id = self.id(nth);
        self.kill(nth);
        self.living().for_each(|other| drop(self.ask(other, &["CLUSTER", "FORGET", &id])));
    }

    /// Returns when the Cluster works for all who live, they agree on who has what, and every
    /// replica is in step: a primary that is killed before that takes its data with it.
    pub(crate) fn until_settled(&self) {
        self.until("work", |nth| {
            let info = text(&self.ask(nth, &["CLUSTER", "INFO"]));
            let link = text(&self.ask(nth, &["INFO", "replication"]));
            let in_step = !link.contains("role:slave")
                || link.contains("master_link_status:up")
                    && text(&self.ask(nth, &["CLUSTER", "NODES"])).contains("myself,slave");
            info.contains("cluster_state:ok") && in_step
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
        self.ask(known, &["CLUSTER", "MEET", "127.0.0.1", &port]);
    }

    fn replicate(&self, replica: usize, primary: usize) {
        let id = self.id(primary);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if ask(self.nodes[replica].port(), &["CLUSTER", "REPLICATE", &id]).is_ok() {
                return;
            }
            pause();
        }
        panic!("node {replica} does not become a replica of node {primary}");
    }

    fn id(&self, nth: usize) -> String {
        text(&self.ask(nth, &["CLUSTER", "MYID"]))
    }

    pub(crate) fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|nth| self.alive[*nth])
    }

    fn until(&self, what: &str, so: impl Fn(usize) -> bool) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.living().all(&so) {
                return;
            }
            pause();
        }
        let views = self.living().map(|nth| text(&self.ask(nth, &["CLUSTER", "NODES"])));
        panic!("the nodes do not come to {what}:\n{}", views.collect::<Vec<_>>().join("\n"));
    }
}

fn node() -> Server {
    loop {
        let config = config_file();
        let mut server = Server::stopped(&[
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-config-file",
            &config,
            // Replicas stay with their primaries.
            "--cluster-migration-barrier",
            "99",
        ]);
        // The nodes talk to each other on a second port, 10,000 above; it too has to lie below
        // those that the system gives to clients.
        let bus = server.port() + 10_000;
        if bus < 32_768 && TcpListener::bind(("127.0.0.1", bus)).is_ok() {
            server.restart();
            return server;
        }
    }
}

/// Where a node keeps what it knows of the Cluster. It stands still until that is on the disk,
/// whenever it learns something, so a busy disk must not come into it.
fn config_file() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    match Path::new("/dev/shm").is_dir() {
        true => format!("/dev/shm/tidegate-nodes-{}-{count}.conf", process::id()),
        false => "nodes.conf".to_owned(),
    }
}

/// A range of slots and the port of who has it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Shard {
    first: u16,
    last: u16,
    primary: u16,
}

impl Shard {
    fn has(&self, slot: u16) -> bool {
        (self.first..=self.last).contains(&slot)
    }
}

fn shards(port: u16) -> Vec<Shard> {
    let Ok(Value::Array(rows)) = ask(port, &["CLUSTER", "SLOTS"]) else { return Vec::new() };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).unwrap(),
        other => panic!("{other:?}"),
    };
    let shard = |row: Value| {
        let Value::Array(row) = row else { panic!("{row:?}") };
        let Value::Array(primary) = &row[2] else { panic!("{row:?}") };
        Shard { first: number(&row[0]), last: number(&row[1]), primary: number(&primary[1]) }
    };
    rows.into_iter().map(shard).collect()
}

/// On a connection of its own. A frozen server is an error.
pub(crate) fn ask(port: u16, words: &[&str]) -> Result<Value, redis::RedisError> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
    connection.set_read_timeout(Some(Duration::from_secs(6)))?;
    let mut cmd = redis::cmd(words[0]);
    cmd.arg(&words[1..]);
    cmd.query(&mut connection)
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Okay => "OK".to_owned(),
        other => panic!("{other:?}"),
    }
}
