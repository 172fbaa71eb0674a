//! Calls over subjects on different shards of a Redis Cluster, one of which fails between two steps
//! of a call.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use testkit::cluster::{RedisCluster, value_text};
use testkit::load::hash_tag;
use testkit::sharded_subjects::{SMALL, ShardedSubjects};
use testkit::timing::{HANG, compare_with_goal};
use tidegate::{
    Call, Cost, Costs, Decision, Engine as _, EngineError, Expiry, HoldId, Op, Refusal,
};
use tidegate_model::print_line;
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_millis(500);
/// Holds of a call expire this long after it, at the latest.
const HOLDS_EXPIRE: Duration = Duration::from_millis(1_600);

#[tokio::test]
async fn a_shard_that_fails_between_two_steps_loses_and_doubles_nothing() {
    let cluster = RedisCluster::start();
    // The Cluster does not replace a frozen node.
    cluster.configure("cluster-node-timeout", "60000");
    let fixture = StepFailureFixture {
        subjects: ShardedSubjects::new(&cluster),
        hasty: ShardedSubjects::connect(&cluster, DEADLINE),
        cluster,
    };
    let begun = Instant::now();
    let report = |what: &str, result: String| {
        print_line(&format!("cross-slot, {what}: {result} ({:?})", begun.elapsed()));
    };
    report("no reply to the charge", fixture.no_reply_to_the_charge(SECOND / 10).await);
    report("no reply before the holds expire", fixture.no_reply_to_the_charge(HOLDS_EXPIRE).await);
    report("no reply to the release", fixture.no_reply_to_the_release().await);
    report("a partial record", fixture.a_partial_record().await);
    report("a shard is full", fixture.a_full_shard_takes_nothing_from_the_others().await);
    report("no reply to the settlement", fixture.no_reply_to_the_settlement().await);
    report("a share is lost", fixture.a_share_is_lost().await);
    report("the first share is lost", fixture.the_first_share_is_lost().await);
    report("a slot is half migrated", fixture.a_slot_is_half_migrated().await);
}

struct StepFailureFixture {
    cluster: RedisCluster,
    subjects: ShardedSubjects,
    hasty: Redis,
}

/// A limit of a subject on each shard.
const LIMITS: [usize; 3] = [0, 2, 4];

impl StepFailureFixture {
    /// All shards have allowed the call: it is allowed, and missing charges are made later.
    async fn no_reply_to_the_charge(&self, frozen_for: Duration) -> String {
        self.begin().await;
        let mut call = pin!(self.decide(Op::Check, &LIMITS, None));
        self.until_held(call.as_mut(), &LIMITS).await;
        let node = self.freeze(1);
        let begun = Instant::now();
        let decision = timeout(HANG, call).await.expect("waits for the frozen shard").unwrap();
        let took = begun.elapsed();
        assert!(decision.allowed(), "{decision:?}");
        compare_with_goal("a check of a frozen shard", took, 2 * DEADLINE);
        sleep(frozen_for).await;
        self.cluster.nodes[node].thaw();
        assert_eq!(self.charged().await, [1, 1, 1]);
        format!("allowed after {took:?}, charged once everywhere")
    }

    /// A denial costs at most one permit, on the shard that did not reply. A reservation, whose id
    /// may be used again, is not denied before its holds are released.
    async fn no_reply_to_the_release(&self) -> String {
        let mut extra = Vec::new();
        let hold = |expiry| Op::hold(HoldId::random().unwrap(), (2 * SECOND).into(), expiry);
        for (op, max) in [(Op::Check, 1), (hold(Expiry::Release), 0), (hold(Expiry::Charge), 1)] {
            self.begin().await;
            for _ in 0..SMALL {
                self.decide_slowly(Op::Record, &LIMITS[2..]).await;
            }
            let mut call = pin!(self.decide(op, &LIMITS, None));
            self.until_held(call.as_mut(), &LIMITS[..2]).await;
            let node = self.freeze(1);
            let result = call.await;
            self.cluster.nodes[node].thaw();
            match (op, &result) {
                (Op::Check, Ok(decision)) => assert!(!decision.allowed()),
                (Op::Hold(_), Err(EngineError::Ambiguous(_))) => {}
                other => panic!("{other:?}"),
            }
            let charged = self.charged().await;
            assert!(charged[0] == 0 && charged[1] <= max && charged[2] == SMALL, "{charged:?}");
            extra.push(charged[1]);
        }
        format!("charged {extra:?} on the shard that did not reply")
    }

    /// A record is not all or none, and returns an ambiguous error. With an id it can be completed.
    async fn a_partial_record(&self) -> String {
        for once in [None, Some("half")] {
            self.begin().await;
            let node = self.freeze(1);
            let result = self.decide(Op::Record, &LIMITS, once).await;
            self.cluster.nodes[node].thaw();
            assert!(matches!(result, Err(EngineError::Ambiguous(_))), "{result:?}");
            match once {
                None => {
                    let charged = self.charged().await;
                    assert!(charged[0] == 1 && charged[1] <= 1 && charged[2] == 1, "{charged:?}");
                }
                Some(_) => {
                    let again = self.decide_patiently(Op::Record, once).await;
                    assert!(again.allowed());
                    assert_eq!(self.charged().await, [1, 1, 1]);
                }
            }
        }
        "ambiguous, and completed with an id".to_owned()
    }

    /// The shard replies with an error, so that nothing was done there.
    async fn a_full_shard_takes_nothing_from_the_others(&self) -> String {
        self.begin().await;
        let node = self.cluster.primary_of(self.subjects.slot_on(1));
        self.cluster.command(node, &["CONFIG", "SET", "maxmemory", "1"]);
        let record = self.decide(Op::Record, &LIMITS, None).await;
        assert!(matches!(record, Err(EngineError::Ambiguous(_))), "{record:?}");
        assert_eq!(self.charged().await, [1, 0, 1], "recorded charges stay");
        for once in [None, Some("full")] {
            let check = self.decide(Op::Check, &LIMITS, once).await;
            assert!(matches!(check, Err(EngineError::Unavailable(_))), "{check:?}");
            assert_eq!(self.standing().await, [(1, 0), (0, 0), (1, 0)], "all holds were dropped");
        }
        self.cluster.command(node, &["CONFIG", "SET", "maxmemory", "0"]);
        assert!(self.decide_patiently(Op::Check, Some("full")).await.allowed());
        assert_eq!(self.charged().await, [2, 1, 2]);
        "a check takes nothing anywhere, a record is ambiguous".to_owned()
    }

    /// A retry after a missing reply has the result of the first attempt.
    async fn no_reply_to_the_settlement(&self) -> String {
        let mut unanswered = 0;
        // Shard 0 has the id, and is called last.
        for shard in [1, 2, 0] {
            self.begin().await;
            let id = self.reserve(30 * SECOND).await;
            let renew = Op::Renew { id, ttl: (20 * SECOND).into() };
            let settle = Op::Settle { id, costs: Costs::All(Cost::ONE) };
            for op in [renew, settle] {
                let node = self.freeze(shard);
                let result = self.decide_hold(op).await;
                self.cluster.nodes[node].thaw();
                let error = result.unwrap_err();
                // The shard of the id has only been read.
                let nothing_sent = matches!(error, EngineError::Unavailable(_));
                assert_eq!(nothing_sent, shard == 0, "{error:?}");
                unanswered += 1;
                let done = self.decide_hold_slowly(op).await.unwrap();
                assert!(!done.expired(), "{done:?}");
                let again = self.decide_hold_slowly(op).await.unwrap();
                assert!(matches!(op, Op::Renew { .. }) || again == done, "{again:?}");
            }
            let other =
                self.decide_hold_slowly(Op::Settle { id, costs: Costs::All(Cost::ZERO) }).await;
            assert_eq!(other.unwrap_err().refusal(), Some(&Refusal::AlreadySettled));
            assert_eq!(self.charged().await, [1, 1, 1]);
        }
        format!("{unanswered} without a reply, repeated, done once")
    }

    /// A primary has lost the share of a shard. The rest is settled, and the decision says that
    /// something had expired.
    async fn a_share_is_lost(&self) -> String {
        self.begin().await;
        let id = self.reserve(30 * SECOND).await;
        self.delete_keys(1);
        let renewed = self.decide_hold(Op::Renew { id, ttl: (40 * SECOND).into() }).await.unwrap();
        assert!(renewed.expired() && renewed.verdicts.len() == 3, "{renewed:?}");
        let settle = Op::Settle { id, costs: Costs::All(Cost::ONE) };
        let settled = self.decide_hold(settle).await.unwrap();
        assert!(settled.expired() && settled.verdicts.len() == 3, "{settled:?}");
        assert_eq!(self.decide_hold(settle).await.unwrap(), settled);
        assert_eq!(self.charged().await, [1, 0, 1]);
        "renewed and settled on the other shards".to_owned()
    }

    /// The list of shares is lost, so the rest expires.
    async fn the_first_share_is_lost(&self) -> String {
        self.begin().await;
        let id = self.reserve(2 * SECOND).await;
        self.delete_keys(0);
        for op in [Op::Settle { id, costs: Costs::AsHeld }, Op::Renew { id, ttl: SECOND.into() }] {
            let refused = self.decide_hold(op).await.unwrap_err();
            assert_eq!(refused.refusal(), Some(&Refusal::UnknownHold), "{op:?}");
        }
        assert_eq!(self.standing().await, [(0, 0), (0, 1), (0, 1)]);
        assert_eq!(self.charged().await, [0, 0, 0]);
        "unknown, and released when it expires".to_owned()
    }

    /// Some keys of the subject are on the old node, some on the new one.
    async fn a_slot_is_half_migrated(&self) -> String {
        self.begin().await;
        let held = self.reserve(30 * SECOND).await;
        let slot = self.subjects.slot_on(1);
        let from = self.cluster.primary_of(slot);
        let to = (from + 1) % testkit::cluster::PRIMARIES;
        self.half_migrate(slot, from, to);
        let begun = Instant::now();
        let result = self.decide(Op::Check, &LIMITS, None).await;
        let took = begun.elapsed();
        let error = result.unwrap_err();
        compare_with_goal("a check of a half migrated slot", took, 2 * DEADLINE);
        // Ambiguous if the deadline passed before the holds on other shards were released.
        match &error {
            // On a busy machine the deadline may pass before the first reply.
            EngineError::Unavailable(_) | EngineError::Ambiguous(_) => {}
            other => panic!("{other:?}"),
        }
        let settle = Op::Settle { id: held, costs: Costs::All(Cost::ONE) };
        let unsettled = self.decide_hold(settle).await.unwrap_err();
        assert!(matches!(unsettled, EngineError::Ambiguous(_)), "{unsettled:?}");

        // These wait for the end of the migration.
        let mut check =
            pin!(self.subjects.decide(&self.subjects.engine, Op::Check, &LIMITS, Some("way")));
        let early = timeout(SECOND / 2, check.as_mut()).await;
        assert!(early.is_err(), "{early:?}");
        self.cluster.migrate(slot, from, to);
        assert!(check.await.unwrap().allowed());
        assert!(!self.decide_hold_slowly(settle).await.unwrap().expired());
        assert_eq!(self.charged().await, [2, 2, 2]);
        self.cluster.migrate(slot, to, from);
        assert_eq!(self.charged().await, [2, 2, 2]);
        format!("{error} after {took:?}, and allowed after the migration")
    }

    /// Resets the limits, and makes a call so that all scripts and connections are ready.
    async fn begin(&self) {
        self.decide_slowly(Op::Reset, &LIMITS).await;
        let ready = async {
            while self.decide(Op::Check, &LIMITS, None).await.is_err() {
                sleep(SECOND / 100).await;
            }
        };
        timeout(20 * SECOND, ready).await.expect("no decision of a healthy cluster");
        self.charged().await;
        self.decide_slowly(Op::Reset, &LIMITS).await;
        assert_eq!(self.standing().await, [(0, 0); 3]);
    }

    async fn decide(
        &self,
        op: Op<'_>,
        limits: &[usize],
        once: Option<&str>,
    ) -> Result<Decision, EngineError> {
        self.subjects.decide(&self.hasty, op, limits, once).await
    }

    async fn decide_slowly(&self, op: Op<'_>, limits: &[usize]) -> Decision {
        self.subjects.decide(&self.subjects.engine, op, limits, None).await.unwrap()
    }

    async fn decide_hold(&self, op: Op<'_>) -> Result<Decision, EngineError> {
        self.hasty.decide(Call { op, charges: &[], idempotency_key: None }).await
    }

    async fn decide_hold_slowly(&self, op: Op<'_>) -> Result<Decision, EngineError> {
        self.subjects.engine.decide(Call { op, charges: &[], idempotency_key: None }).await
    }

    async fn decide_patiently(&self, op: Op<'_>, once: Option<&str>) -> Decision {
        self.subjects.decide(&self.subjects.engine, op, &LIMITS, once).await.unwrap()
    }

    async fn reserve(&self, ttl: Duration) -> HoldId {
        let op = Op::hold(HoldId::random().unwrap(), ttl.into(), Expiry::Release);
        let made = self.decide_slowly(op, &LIMITS).await;
        assert_eq!(self.standing().await, [(0, 1); 3]);
        made.hold().unwrap()
    }

    async fn standing(&self) -> Vec<(u64, u64)> {
        self.subjects.used_and_held(&LIMITS).await
    }

    async fn charged(&self) -> Vec<u64> {
        self.subjects.charged(&LIMITS, HANG).await
    }

    /// Polls a call until all of these are held, and no further.
    async fn until_held<F>(&self, mut call: Pin<&mut F>, limits: &[usize])
    where
        F: Future<Output = Result<Decision, EngineError>>,
    {
        for _ in 0..100 {
            let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            assert!(polled.is_pending(), "no reply was awaited: {polled:?}");
            for _ in 0..3 {
                sleep(Duration::from_millis(2)).await;
                if self.subjects.used_and_held(limits).await.iter().all(|(_, held)| *held == 1) {
                    // The replies have been read by now.
                    return sleep(Duration::from_millis(10)).await;
                }
            }
        }
        panic!("nothing is held");
    }

    fn freeze(&self, shard: usize) -> usize {
        let node = self.cluster.primary_of(self.subjects.slot_on(shard));
        self.cluster.nodes[node].freeze();
        node
    }

    /// Deletes the keys of a subject, as a failover before replication does.
    fn delete_keys(&self, shard: usize) {
        let node = self.cluster.primary_of(self.subjects.slot_on(shard));
        for key in self.keys_of(node, shard) {
            self.cluster.command(node, &["DEL", &key]);
        }
    }

    fn keys_of(&self, node: usize, shard: usize) -> Vec<String> {
        let tag = hash_tag(&self.subjects.names[shard]);
        let keys = self.cluster.keys_in(node, self.subjects.slot_on(shard));
        let keys: Vec<String> = keys.into_iter().filter(|key| key.contains(&tag)).collect();
        assert!(keys.len() >= 3, "a state, its holds and a record: {keys:?}");
        keys
    }

    /// Starts to move a slot, and moves the state but not its other keys.
    fn half_migrate(&self, slot: u16, from: usize, to: usize) {
        let id = |nth: usize| value_text(&self.cluster.command(nth, &["CLUSTER", "MYID"]));
        let word = slot.to_string();
        self.cluster.command(to, &["CLUSTER", "SETSLOT", &word, "IMPORTING", &id(from)]);
        self.cluster.command(from, &["CLUSTER", "SETSLOT", &word, "MIGRATING", &id(to)]);
        let port = self.cluster.nodes[to].port().to_string();
        let keys = self.keys_of(from, 1);
        let state = keys.iter().min_by_key(|key| key.len()).unwrap();
        let words = ["MIGRATE", "127.0.0.1", &port, state, "0", "5000"];
        assert_eq!(value_text(&self.cluster.command(from, &words)), "OK");
    }
}
