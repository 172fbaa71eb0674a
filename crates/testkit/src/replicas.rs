//! A primary and its replica as real processes, joined by a link that a test can cut.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::{
    Call, Charge, Cost, Decision, Engine as _, EngineError, IdempotencyKey, Key, Op, Rule,
    RuleLimit,
};
use tidegate_redis::{Redis, RedisBuilder};

use crate::engine::{TEST_SECRET, TEST_TIMEOUT};
use crate::redis::{RedisServer, wait_poll_interval};

/// A primary and its replica, synchronised.
pub struct PrimaryAndReplica {
    pub primary: RedisServer,
    pub replica: RedisServer,
    link: ReplicationLink,
}

impl PrimaryAndReplica {
    pub fn start() -> Self {
        let (primary, replica) = (RedisServer::start(), RedisServer::start());
        let link = ReplicationLink::to(primary.port());
        replica.cli(&["REPLICAOF", "127.0.0.1", &link.port.to_string()]);
        let pair = Self { primary, replica, link };
        pair.until_synchronised();
        pair
    }

    /// Settings of an engine on the primary whose charges this many replicas have to confirm.
    pub fn builder(&self, replicas: u32, deadline: Duration) -> RedisBuilder {
        let builder = Redis::builder(&self.primary.url()).secret(TEST_SECRET).deadline(deadline);
        builder.connect_deadline(TEST_TIMEOUT).wait_for_replicas(replicas)
    }

    /// Drops everything between primary and replica from now on.
    pub fn partition(&self) {
        self.link.is_cut.store(true, Ordering::Relaxed);
    }

    /// Kills the primary with SIGKILL and makes the replica a primary.
    pub fn promote(&mut self) {
        self.primary.kill();
        assert_eq!(self.replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    }

    /// Replication offset of the primary.
    pub fn offset(&self) -> u64 {
        let info = self.primary.cli(&["INFO", "replication"]);
        let (_, rest) = info.split_once("master_repl_offset:").unwrap();
        rest.lines().next().unwrap().trim().parse().unwrap()
    }

    /// Redis reports the link as up once the replica has loaded the snapshot. The stream of writes
    /// may start a second later, so this waits for one write to arrive.
    fn until_synchronised(&self) {
        const PROBE: &str = "replicated";
        self.until(|| self.replica.cli(&["INFO", "replication"]).contains("master_link_status:up"));
        assert_eq!(self.primary.cli(&["SET", PROBE, "yes"]), "OK");
        self.until(|| self.replica.cli(&["EXISTS", PROBE]) == "1");
        self.primary.cli(&["DEL", PROBE]);
    }

    fn until(&self, condition: impl Fn() -> bool) {
        for _ in 0..2_000 {
            if condition() {
                return;
            }
            wait_poll_interval();
        }
        panic!("the replica does not synchronise");
    }
}

/// Forwards bytes between the primary and its replica until it is cut.
struct ReplicationLink {
    port: u16,
    is_cut: Arc<AtomicBool>,
}

impl ReplicationLink {
    fn to(primary: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_cut = Arc::new(AtomicBool::new(false));
        let link = Self { port, is_cut: Arc::clone(&is_cut) };
        thread::spawn(move || {
            for replica in listener.incoming() {
                let Ok(replica) = replica else { return };
                let Ok(primary) = TcpStream::connect(("127.0.0.1", primary)) else { continue };
                // Acknowledgements are small: do not delay them.
                primary.set_nodelay(true).unwrap();
                replica.set_nodelay(true).unwrap();
                let (to_replica, to_primary) =
                    (replica.try_clone().unwrap(), primary.try_clone().unwrap());
                let (one, other) = (Arc::clone(&is_cut), Arc::clone(&is_cut));
                thread::spawn(move || forward(primary, to_replica, &one));
                thread::spawn(move || forward(replica, to_primary, &other));
            }
        });
        link
    }
}

/// Forwards bytes; discards them once the link is cut.
fn forward(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut buffer = vec![0; 65_536];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if is_cut.load(Ordering::Relaxed) {
            continue;
        }
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    if !is_cut.load(Ordering::Relaxed) {
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// The limit of a rule that has only this one.
pub fn limit(name: &str, text: &str) -> Arc<RuleLimit> {
    Rule::new(name, [text.parse().unwrap()]).unwrap().limits()[0].clone()
}

/// Decides about one permit.
pub async fn decide(
    engine: &Redis,
    op: Op<'_>,
    limit: &Arc<RuleLimit>,
    key: &str,
    id: Option<&str>,
) -> Result<Decision, EngineError> {
    let charge = Charge { limit, key: Key::from(key), cost: Cost::ONE, caller: None };
    let charges: &[Charge<'_>] =
        if matches!(op, Op::Settle { .. } | Op::Renew { .. }) { &[] } else { &[charge] };
    engine
        .decide(Call {
            op,
            charges,
            idempotency_key: id.map(|id| IdempotencyKey::new(id).unwrap()),
        })
        .await
}

/// Permits used and held.
pub async fn used_and_held(engine: &Redis, limit: &Arc<RuleLimit>, key: &str) -> (u64, u64) {
    let found = engine.inspect(limit, Key::from(key)).await.unwrap().standing;
    (found.used, found.held)
}
