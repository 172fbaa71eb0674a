//! The hash with the run-time rules and overrides of a fleet, on the connections of an engine.
//!
//! A poll is also a heartbeat, by which processes know how many they are.
//!
//! The hash, its head and the heartbeats have one hash tag, so that a Cluster keeps them in one
//! slot. This module knows nothing about the fields; the server encodes and merges them.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Value, from_redis_value};
use tidegate::{EngineError, Micros};
use tokio::time::Instant;

use crate::durability::replica_ack::{PendingAck, SendVia};
use crate::engine::Redis;
use crate::protocol::reply::{engine_error, malformed_reply};
use crate::protocol::scripts::Script;
use crate::protocol::sender::ScriptSender;
use crate::topology::hash_slot::HashSlot;

/// The run-time rules and overrides of a namespace.
#[derive(Clone)]
pub struct RuntimeHash {
    sender: ScriptSender,
    head: String,
    fields: String,
    servers: String,
    /// The id of this process in heartbeats.
    process: Arc<str>,
}

/// Which contents the hash has, and the time at which it had them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuntimeVersion {
    /// Time of the store.
    pub time: Micros,
    /// Replaced by every write; empty if there was none.
    pub head: String,
    /// Number of fields.
    pub len: u64,
    /// Processes that have polled in the last 5 s, this one included; 0 if it is not known.
    pub servers: u32,
}

/// A change of the hash, made only if its head is still `expected`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RuntimeWrite {
    /// The head that was read; empty for none.
    pub expected: String,
    /// The new head.
    pub head: String,
    /// Names and values of fields to set.
    pub set: Vec<(String, String)>,
    /// Names of fields to delete.
    pub delete: Vec<String>,
}

impl Redis {
    /// The run-time rules and overrides of this engine's namespace.
    pub fn runtime_hash(&self) -> RuntimeHash {
        let names = &self.executor.names;
        let [head, fields, servers] = ["head", "rules", "servers"].map(|name| names.runtime(name));
        // Each `RandomState` has its own keys; two processes with one id would count as one.
        let process = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let sender = self.executor.sender.clone();
        RuntimeHash { sender, head, fields, servers, process: process.into() }
    }
}

impl RuntimeHash {
    /// Two polls fit into the time in which a change must be noticed.
    const POLL_DEADLINE: Duration = Duration::from_millis(250);
    /// Longer than that of a check: the hash may have 4 MiB.
    const DEADLINE: Duration = Duration::from_secs(1);

    /// The current version. It is also the heartbeat of this process.
    pub async fn poll(&self) -> Result<RuntimeVersion, EngineError> {
        let end = Instant::now() + Self::POLL_DEADLINE;
        let (reply, _) = self.eval(end, &["poll", &self.process]).await?;
        let (version, servers) = version(reply, false)?;
        let servers = from_redis_value(&servers).map_err(|_| malformed_reply(false))?;
        Ok(RuntimeVersion { servers, ..version })
    }

    /// The current version, with names and values of all fields.
    pub async fn read(&self) -> Result<(RuntimeVersion, Vec<(String, String)>), EngineError> {
        let (reply, _) = self.eval(Instant::now() + Self::DEADLINE, &["read"]).await?;
        let (version, fields) = version(reply, false)?;
        let fields: Vec<Vec<u8>> = from_redis_value(&fields).map_err(|_| malformed_reply(false))?;
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let pairs = fields.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1])));
        Ok((version, pairs.collect()))
    }

    /// Makes a change, confirmed by replicas if the engine waits for them. The version after it;
    /// `None` if the head was another one.
    pub async fn write(&self, write: &RuntimeWrite) -> Result<Option<RuntimeVersion>, EngineError> {
        let count = write.set.len().to_string();
        let mut args = vec![WRITE, &write.expected, &write.head, &count];
        args.extend(write.set.iter().flat_map(|(name, value)| [name.as_str(), value]));
        args.extend(write.delete.iter().map(String::as_str));
        let end = Instant::now() + Self::DEADLINE;
        let (reply, ack) = self.eval(end, &args).await?;
        let (version, written) = version(reply, true)?;
        if written != Value::Int(1) {
            return Ok(None);
        }
        if let Some(ack) = ack {
            ack.confirm(end, None).await?;
        }
        Ok(Some(version))
    }

    async fn eval(
        &self,
        end: Instant,
        args: &[&str],
    ) -> Result<(Value, Option<PendingAck>), EngineError> {
        let writes = args[0] == WRITE;
        let via = if writes { SendVia::Confirmed } else { SendVia::Shared };
        let push = |cmd: &mut Cmd| {
            cmd.arg(3).arg(&self.head).arg(&self.fields).arg(&self.servers).arg(args);
        };
        let reply = self.sender.eval(&SCRIPT, HashSlot::of(&self.head), via, end, push).await;
        reply.map_err(|error| engine_error(error, writes))
    }
}

/// The operation of the script that writes.
const WRITE: &str = "write";

static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::of(&[include_str!("../lua/runtime.lua")]));

/// The version at the beginning of a reply, and the last element.
fn version(reply: Value, writes: bool) -> Result<(RuntimeVersion, Value), EngineError> {
    let malformed = |_| malformed_reply(writes);
    let Value::Array(mut parts) = reply else { return Err(malformed_reply(writes)) };
    let last = if parts.len() > 4 { parts.pop() } else { None };
    let (seconds, micros, head, len): (u64, u64, String, u64) =
        from_redis_value(&Value::Array(parts)).map_err(malformed)?;
    let time = Micros::from_secs(seconds).saturating_add(Micros::new(micros));
    Ok((RuntimeVersion { time, head, len, servers: 0 }, last.unwrap_or(Value::Nil)))
}

impl fmt::Debug for RuntimeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeHash").field("fields", &self.fields).finish_non_exhaustive()
    }
}
