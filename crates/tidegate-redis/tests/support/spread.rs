//! Subjects on every shard of a Cluster, each under a small limit and a big one.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Call, CallId, Charge, Cost, Decision, Engine as _, EngineError, Key, Op, Rule, RuleLimit,
};
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep};

use crate::cluster::{self, Cluster, PRIMARIES};
use crate::traffic::{SECRET, tag};

pub(crate) const SUBJECTS: usize = 4 * PRIMARIES;
/// Nothing of these comes back within a test, so that every admission counts for ever.
pub(crate) const SMALL: u64 = 25;
const LIMITS: [&str; 2] = ["fixed-window 25/365d first-hit", "fixed-window 1000000/365d first-hit"];
const PATIENCE: Duration = Duration::from_secs(20);

/// The shard of a subject is its number modulo the number of shards. Each has two limits: `2 * subject`
/// is the number of the small one, and the big one comes behind.
pub(crate) struct Spread {
    limits: [Arc<RuleLimit>; 2],
    pub(crate) names: Vec<String>,
    slots: Vec<u16>,
    pub(crate) patient: Redis,
}

impl Spread {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let mut by_shard: [Vec<(String, u16)>; PRIMARIES] = Default::default();
        for name in (0..1_000).map(|nth| format!("subject-{nth}")) {
            if by_shard.iter().all(|names| names.len() >= SUBJECTS / PRIMARIES) {
                break;
            }
            let slot = cluster.slot_of(&format!("{{{}}}", tag(&name)));
            by_shard[usize::from(slot) * PRIMARIES / usize::from(cluster::SLOTS)]
                .push((name, slot));
        }
        let of = |nth: usize| by_shard[nth % PRIMARIES][nth / PRIMARIES].clone();
        let (names, slots) = (0..SUBJECTS).map(of).unzip();
        let limit = |name: &str, limit: &str| {
            Rule::new(name, [limit.parse().unwrap()]).unwrap().limits()[0].clone()
        };
        let limits = [limit("small", LIMITS[0]), limit("big", LIMITS[1])];
        Self { limits, names, slots, patient: Self::engine(cluster, PATIENCE) }
    }

    pub(crate) fn engine(cluster: &Cluster, deadline: Duration) -> Redis {
        Redis::builder(&cluster.url()).secret(SECRET).deadline(deadline).build().unwrap()
    }

    /// The slot of a subject on this shard: of that with the same number.
    pub(crate) fn slot_on(&self, shard: usize) -> u16 {
        self.slots[shard]
    }

    pub(crate) fn shard_of(limit: usize) -> usize {
        limit / 2 % PRIMARIES
    }

    /// Asks for one permit of each.
    pub(crate) async fn ask(
        &self,
        engine: &Redis,
        op: Op,
        limits: &[usize],
        once: Option<&str>,
    ) -> Result<Decision, EngineError> {
        let charge = |limit: &usize| Charge {
            limit: &self.limits[limit % 2],
            key: Key::from(&self.names[limit / 2]),
            cost: Cost::ONE,
            who: None,
        };
        let charges: Vec<Charge<'_>> = limits.iter().map(charge).collect();
        let once = once.map(|id| CallId::new(id).unwrap());
        engine.decide(Call { op, charges: &charges, once }).await
    }

    /// What is used and held under these limits.
    pub(crate) async fn standing(&self, limits: &[usize]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for limit in limits {
            let key = Key::from(&self.names[limit / 2]);
            let found = self.patient.inspect(&self.limits[limit % 2], key).await.unwrap().standing;
            all.push((found.used, found.held));
        }
        all
    }

    /// What was charged to these limits, when all that was held has ended, within `span`.
    pub(crate) async fn charged(&self, limits: &[usize], span: Duration) -> Vec<u64> {
        let begun = Instant::now();
        loop {
            let standing = self.standing(limits).await;
            if standing.iter().all(|(_, held)| *held == 0) {
                return standing.into_iter().map(|(used, _)| used).collect();
            }
            assert!(begun.elapsed() <= span, "held for ever: {standing:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}
