//! A primary and its replica as real processes, and the link between them, which can be cut.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::{
    Call, CallId, Charge, Cost, Decision, Engine as _, EngineError, Key, Op, Rule, RuleLimit,
};
use tidegate_redis::{Redis, RedisBuilder};

use crate::server::{Server, pause};

pub(crate) const SECRET: &str = "the same for all tests";
/// For what has to happen, but not in a given time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A primary and its replica, in step.
pub(crate) struct Pair {
    pub(crate) primary: Server,
    pub(crate) replica: Server,
    cut: Cut,
}

impl Pair {
    pub(crate) fn start() -> Self {
        let (primary, replica) = (Server::start(), Server::start());
        let cut = Cut::between(primary.port());
        replica.cli(&["REPLICAOF", "127.0.0.1", &cut.port.to_string()]);
        let pair = Self { primary, replica, cut };
        pair.until_in_step();
        pair
    }

    /// An engine on the primary whose charges this many replicas have to confirm.
    pub(crate) fn builder(&self, replicas: u32, deadline: Duration) -> RedisBuilder {
        let builder = Redis::builder(&self.primary.url()).secret(SECRET).deadline(deadline);
        builder.connect_deadline(PATIENCE).confirmed_by(replicas)
    }

    /// From now on nothing reaches the replica.
    pub(crate) fn cut(&self) {
        self.cut.over.store(true, Ordering::Relaxed);
    }

    /// `kill -9` the primary, and have the replica take its place.
    pub(crate) fn promote(&mut self) {
        self.primary.kill();
        assert_eq!(self.replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    }

    /// How far the primary's stream of writes has come.
    pub(crate) fn offset(&self) -> u64 {
        let info = self.primary.cli(&["INFO", "replication"]);
        let (_, rest) = info.split_once("master_repl_offset:").unwrap();
        rest.lines().next().unwrap().trim().parse().unwrap()
    }

    /// The link is called up as soon as the replica has loaded what there was. The stream of writes may begin a
    /// second later, so one of them is waited for.
    fn until_in_step(&self) {
        const PROBE: &str = "in step";
        self.until(|| self.replica.cli(&["INFO", "replication"]).contains("master_link_status:up"));
        assert_eq!(self.primary.cli(&["SET", PROBE, "yes"]), "OK");
        self.until(|| self.replica.cli(&["EXISTS", PROBE]) == "1");
        self.primary.cli(&["DEL", PROBE]);
    }

    fn until(&self, so: impl Fn() -> bool) {
        for _ in 0..2_000 {
            if so() {
                return;
            }
            pause();
        }
        panic!("the replica does not come into step");
    }
}

/// Passes on what the primary and its replica say to each other, until it is over.
struct Cut {
    port: u16,
    over: Arc<AtomicBool>,
}

impl Cut {
    fn between(primary: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let over = Arc::new(AtomicBool::new(false));
        let cut = Self { port, over: Arc::clone(&over) };
        thread::spawn(move || {
            for replica in listener.incoming() {
                let Ok(replica) = replica else { return };
                let Ok(primary) = TcpStream::connect(("127.0.0.1", primary)) else { continue };
                // Acknowledgements are small, and nobody should wait for more of them.
                primary.set_nodelay(true).unwrap();
                replica.set_nodelay(true).unwrap();
                let (to_replica, to_primary) =
                    (replica.try_clone().unwrap(), primary.try_clone().unwrap());
                let (one, other) = (Arc::clone(&over), Arc::clone(&over));
                thread::spawn(move || pass_on(primary, to_replica, &one));
                thread::spawn(move || pass_on(replica, to_primary, &other));
            }
        });
        cut
    }
}

/// What is read when it is over goes nowhere.
fn pass_on(mut from: TcpStream, mut to: TcpStream, over: &AtomicBool) {
    let mut buffer = vec![0; 65_536];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if over.load(Ordering::Relaxed) {
            continue;
        }
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    if !over.load(Ordering::Relaxed) {
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// A rule of one limit.
pub(crate) fn limit(name: &str, text: &str) -> Arc<RuleLimit> {
    Rule::new(name, [text.parse().unwrap()]).unwrap().limits()[0].clone()
}

/// Asks for one permit.
pub(crate) async fn ask(
    engine: &Redis,
    op: Op,
    limit: &Arc<RuleLimit>,
    key: &str,
    once: Option<&str>,
) -> Result<Decision, EngineError> {
    let charge = Charge { limit, key: Key::from(key), cost: Cost::ONE, who: None };
    let charges: &[Charge<'_>] =
        if matches!(op, Op::Settle { .. } | Op::Renew { .. }) { &[] } else { &[charge] };
    engine.decide(Call { op, charges, once: once.map(|id| CallId::new(id).unwrap()) }).await
}

/// What is used and held.
pub(crate) async fn standing(engine: &Redis, limit: &Arc<RuleLimit>, key: &str) -> (u64, u64) {
    let found = engine.inspect(limit, Key::from(key)).await.unwrap().standing;
    (found.used, found.held)
}
