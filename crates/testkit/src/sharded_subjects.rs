//! Subjects on every shard of a Cluster, each with a small limit and a large one.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Call, Charge, Cost, Decision, Engine as _, EngineError, IdempotencyKey, Key, Op, Rule,
    RuleLimit,
};
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep};

use crate::cluster::{self, PRIMARIES, RedisCluster};
use crate::engine::{TEST_SECRET, TEST_TIMEOUT};
use crate::load::hash_tag;

pub const SUBJECTS: usize = 4 * PRIMARIES;
/// The windows are longer than any test, so that every admission counts until its end.
pub const SMALL: u64 = 25;
const LIMITS: [&str; 2] = ["fixed-window 25/365d first-hit", "fixed-window 1000000/365d first-hit"];

/// The shard of a subject is its number modulo the number of shards. Limit `2 * subject` is its
/// small limit, and `2 * subject + 1` its large one.
pub struct ShardedSubjects {
    limits: [Arc<RuleLimit>; 2],
    pub names: Vec<String>,
    slots: Vec<u16>,
    /// Without a short deadline.
    pub engine: Redis,
}

impl ShardedSubjects {
    pub fn new(cluster: &RedisCluster) -> Self {
        let mut by_shard: [Vec<(String, u16)>; PRIMARIES] = Default::default();
        for name in (0..1_000).map(|nth| format!("subject-{nth}")) {
            if by_shard.iter().all(|names| names.len() >= SUBJECTS / PRIMARIES) {
                break;
            }
            let slot = cluster.slot_of(&format!("{{{}}}", hash_tag(&name)));
            by_shard[usize::from(slot) * PRIMARIES / usize::from(cluster::SLOTS)]
                .push((name, slot));
        }
        let of = |nth: usize| by_shard[nth % PRIMARIES][nth / PRIMARIES].clone();
        let (names, slots) = (0..SUBJECTS).map(of).unzip();
        let limit = |name: &str, limit: &str| {
            Rule::new(name, [limit.parse().unwrap()]).unwrap().limits()[0].clone()
        };
        let limits = [limit("small", LIMITS[0]), limit("large", LIMITS[1])];
        Self { limits, names, slots, engine: Self::connect(cluster, TEST_TIMEOUT) }
    }

    pub fn connect(cluster: &RedisCluster, deadline: Duration) -> Redis {
        Redis::builder(&cluster.url()).secret(TEST_SECRET).deadline(deadline).build().unwrap()
    }

    /// Slot of the subject with the number of this shard.
    pub fn slot_on(&self, shard: usize) -> u16 {
        self.slots[shard]
    }

    pub fn shard_of(limit: usize) -> usize {
        limit / 2 % PRIMARIES
    }

    /// Decides about one permit of each limit.
    pub async fn decide(
        &self,
        engine: &Redis,
        op: Op<'_>,
        limits: &[usize],
        id: Option<&str>,
    ) -> Result<Decision, EngineError> {
        let charge = |limit: &usize| Charge {
            limit: &self.limits[limit % 2],
            key: Key::from(&self.names[limit / 2]),
            cost: Cost::ONE,
            caller: None,
        };
        let charges: Vec<Charge<'_>> = limits.iter().map(charge).collect();
        let id = id.map(|id| IdempotencyKey::new(id).unwrap());
        engine.decide(Call { op, charges: &charges, idempotency_key: id }).await
    }

    /// Permits used and held of each limit.
    pub async fn used_and_held(&self, limits: &[usize]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for limit in limits {
            let key = Key::from(&self.names[limit / 2]);
            let found = self.engine.inspect(&self.limits[limit % 2], key).await.unwrap().standing;
            all.push((found.used, found.held));
        }
        all
    }

    /// Charges of each limit once no hold is left. Panics if holds remain after `span`.
    pub async fn charged(&self, limits: &[usize], span: Duration) -> Vec<u64> {
        let start = Instant::now();
        loop {
            let standing = self.used_and_held(limits).await;
            if standing.iter().all(|(_, held)| *held == 0) {
                return standing.into_iter().map(|(used, _)| used).collect();
            }
            assert!(start.elapsed() <= span, "still held: {standing:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}
