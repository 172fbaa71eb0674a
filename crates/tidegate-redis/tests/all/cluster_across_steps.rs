//! Calls over subjects on different shards of a Cluster, one of which fails between two steps of a call.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::{cluster, spread, traffic};
use cluster::{Cluster, text};
use spread::{SMALL, Spread};
use tidegate::{Call, Cost, Decision, Engine as _, EngineError, Expiry, HoldId, Op, Refusal};
use tidegate_redis::Redis;
use tokio::time::{Instant, sleep, timeout};
use traffic::{say, tag};

const SECOND: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_millis(500);
/// A busy machine may stand still for so long.
const SLACK: Duration = Duration::from_secs(2);
/// What a call holds ends so long after it, at the latest.
const ENDS: Duration = Duration::from_millis(1_600);

#[tokio::test]
async fn a_shard_that_fails_between_two_steps_loses_and_doubles_nothing() {
    let cluster = Cluster::start();
    // A frozen one is not replaced.
    cluster.configure("cluster-node-timeout", "60000");
    let bench =
        Bench { spread: Spread::new(&cluster), hasty: Spread::engine(&cluster, DEADLINE), cluster };
    let begun = Instant::now();
    let tell = |what: &str, said: String| {
        say(&format!("across, {what}: {said} ({:?})", begun.elapsed()));
    };
    tell("charging is not answered", bench.charging_is_not_answered(SECOND / 10).await);
    tell("charging is not answered before the end", bench.charging_is_not_answered(ENDS).await);
    tell("dropping is not answered", bench.dropping_is_not_answered().await);
    tell("a record is done by halves", bench.a_record_is_done_by_halves().await);
    tell("a shard is full", bench.a_full_shard_takes_nothing_from_the_others().await);
    tell("settling is not answered", bench.settling_is_not_answered().await);
    tell("a share is gone", bench.a_share_is_gone().await);
    tell("the first share is gone", bench.the_first_share_is_gone().await);
    tell("a slot is half way", bench.a_slot_is_half_way().await);
}

struct Bench {
    cluster: Cluster,
    spread: Spread,
    hasty: Redis,
}

/// A limit of a subject on each shard.
const LIMITS: [usize; 3] = [0, 2, 4];

impl Bench {
    /// All have allowed it: so it is, and what is not charged now is charged later.
    async fn charging_is_not_answered(&self, frozen_for: Duration) -> String {
        self.begin().await;
        let mut call = pin!(self.ask(Op::Check, &LIMITS, None));
        self.until_held(call.as_mut(), &LIMITS).await;
        let node = self.freeze(1);
        let begun = Instant::now();
        let decision = call.await.unwrap();
        let took = begun.elapsed();
        assert!(decision.allowed(), "{decision:?}");
        assert!(took <= DEADLINE + SLACK, "{took:?}");
        sleep(frozen_for).await;
        self.cluster.nodes[node].thaw();
        assert_eq!(self.charged().await, [1, 1, 1]);
        format!("allowed after {took:?}, charged once everywhere")
    }

    /// A denial costs a permit at most where it could not be taken back. A reservation, whose name
    /// may be used again, is not denied before it has been.
    async fn dropping_is_not_answered(&self) -> String {
        let mut said = Vec::new();
        let hold =
            |expiry| Op::Hold { id: HoldId::random().unwrap(), ttl: (2 * SECOND).into(), expiry };
        for (op, most) in [(Op::Check, 1), (hold(Expiry::Release), 0), (hold(Expiry::Charge), 1)] {
            self.begin().await;
            for _ in 0..SMALL {
                self.patient(Op::Record, &LIMITS[2..]).await;
            }
            let mut call = pin!(self.ask(op, &LIMITS, None));
            self.until_held(call.as_mut(), &LIMITS[..2]).await;
            let node = self.freeze(1);
            let answer = call.await;
            self.cluster.nodes[node].thaw();
            match (op, &answer) {
                (Op::Check, Ok(decision)) => assert!(!decision.allowed()),
                (Op::Hold { .. }, Err(EngineError::Ambiguous(_))) => {}
                other => panic!("{other:?}"),
            }
            let charged = self.charged().await;
            assert!(charged[0] == 0 && charged[1] <= most && charged[2] == SMALL, "{charged:?}");
            said.push(charged[1]);
        }
        format!("charged {said:?} where it was not answered")
    }

    /// A record is not all or none, and says so. Under an id it can be completed.
    async fn a_record_is_done_by_halves(&self) -> String {
        for once in [None, Some("half")] {
            self.begin().await;
            let node = self.freeze(1);
            let answer = self.ask(Op::Record, &LIMITS, once).await;
            self.cluster.nodes[node].thaw();
            assert!(matches!(answer, Err(EngineError::Ambiguous(_))), "{answer:?}");
            match once {
                None => {
                    let charged = self.charged().await;
                    assert!(charged[0] == 1 && charged[1] <= 1 && charged[2] == 1, "{charged:?}");
                }
                Some(_) => {
                    let again = self.ask(Op::Record, &LIMITS, once).await.unwrap();
                    assert!(again.allowed());
                    assert_eq!(self.charged().await, [1, 1, 1]);
                }
            }
        }
        "ambiguous, and completed under an id".to_owned()
    }

    /// It answers with an error, so that nothing was done there.
    async fn a_full_shard_takes_nothing_from_the_others(&self) -> String {
        self.begin().await;
        let node = self.cluster.primary_of(self.spread.slot_on(1));
        self.cluster.ask(node, &["CONFIG", "SET", "maxmemory", "1"]);
        let record = self.ask(Op::Record, &LIMITS, None).await;
        assert!(matches!(record, Err(EngineError::Ambiguous(_))), "{record:?}");
        assert_eq!(self.charged().await, [1, 0, 1], "what was recorded stays so");
        for once in [None, Some("full")] {
            let check = self.ask(Op::Check, &LIMITS, once).await;
            assert!(matches!(check, Err(EngineError::Unavailable(_))), "{check:?}");
            assert_eq!(self.standing().await, [(1, 0), (0, 0), (1, 0)], "all was dropped");
        }
        self.cluster.ask(node, &["CONFIG", "SET", "maxmemory", "0"]);
        assert!(self.ask(Op::Check, &LIMITS, Some("full")).await.unwrap().allowed());
        assert_eq!(self.charged().await, [2, 1, 2]);
        "a check takes nothing anywhere, a record is ambiguous".to_owned()
    }

    /// Whoever has no answer asks again, and it is as if it had come the first time.
    async fn settling_is_not_answered(&self) -> String {
        let mut unanswered = 0;
        // The last is where the id lies, which is asked last.
        for shard in [1, 2, 0] {
            self.begin().await;
            let id = self.reserve(30 * SECOND).await;
            let renew = Op::Renew { id, ttl: (20 * SECOND).into() };
            let settle = Op::Settle { id, cost: Some(Cost::ONE) };
            for op in [renew, settle] {
                let node = self.freeze(shard);
                let answer = self.about(op).await;
                self.cluster.nodes[node].thaw();
                let error = answer.unwrap_err();
                // Where the id lies, nothing but a look has been tried.
                let sure = matches!(error, EngineError::Unavailable(_));
                assert_eq!(sure, shard == 0, "{error:?}");
                unanswered += 1;
                let done = self.patiently(op).await.unwrap();
                assert!(!done.expired(), "{done:?}");
                let again = self.patiently(op).await.unwrap();
                assert!(matches!(op, Op::Renew { .. }) || again == done, "{again:?}");
            }
            let other = self.patiently(Op::Settle { id, cost: Some(Cost::ZERO) }).await;
            assert_eq!(other.unwrap_err().refusal(), Some(&Refusal::AlreadySettled));
            assert_eq!(self.charged().await, [1, 1, 1]);
        }
        format!("{unanswered} without an answer, repeated, done once")
    }

    /// A primary took it along. What is left is settled, and the answer says that something had ended.
    async fn a_share_is_gone(&self) -> String {
        self.begin().await;
        let id = self.reserve(30 * SECOND).await;
        self.forget(1);
        let renewed = self.about(Op::Renew { id, ttl: (40 * SECOND).into() }).await.unwrap();
        assert!(renewed.expired() && renewed.verdicts.len() == 3, "{renewed:?}");
        let settle = Op::Settle { id, cost: Some(Cost::ONE) };
        let settled = self.about(settle).await.unwrap();
        assert!(settled.expired() && settled.verdicts.len() == 3, "{settled:?}");
        assert_eq!(self.about(settle).await.unwrap(), settled);
        assert_eq!(self.charged().await, [1, 0, 1]);
        "renewed and settled where it was left".to_owned()
    }

    /// Nobody knows any more what belongs to it, so the rest ends by itself.
    async fn the_first_share_is_gone(&self) -> String {
        self.begin().await;
        let id = self.reserve(2 * SECOND).await;
        self.forget(0);
        for op in [Op::Settle { id, cost: None }, Op::Renew { id, ttl: SECOND.into() }] {
            let refused = self.about(op).await.unwrap_err();
            assert_eq!(refused.refusal(), Some(&Refusal::UnknownHold), "{op:?}");
        }
        assert_eq!(self.standing().await, [(0, 0), (0, 1), (0, 1)]);
        assert_eq!(self.charged().await, [0, 0, 0]);
        "unknown, and released at its end".to_owned()
    }

    /// Some keys of the subject are on the one side, some on the other.
    async fn a_slot_is_half_way(&self) -> String {
        self.begin().await;
        let held = self.reserve(30 * SECOND).await;
        let slot = self.spread.slot_on(1);
        let from = self.cluster.primary_of(slot);
        let to = (from + 1) % cluster::PRIMARIES;
        self.half_migrate(slot, from, to);
        let begun = Instant::now();
        let answer = self.ask(Op::Check, &LIMITS, None).await;
        let took = begun.elapsed();
        let error = answer.unwrap_err();
        assert!(took <= DEADLINE + SLACK, "{took:?}");
        // Who was too late to take back what is held elsewhere cannot be sure.
        match &error {
            EngineError::Unavailable(why) => assert!(why.to_string().contains("TryAgain"), "{why}"),
            EngineError::Ambiguous(_) => {}
            other => panic!("{other:?}"),
        }
        let settle = Op::Settle { id: held, cost: Some(Cost::ONE) };
        let unsettled = self.about(settle).await.unwrap_err();
        assert!(matches!(unsettled, EngineError::Ambiguous(_)), "{unsettled:?}");

        // These wait until it has arrived.
        let mut check =
            pin!(self.spread.ask(&self.spread.patient, Op::Check, &LIMITS, Some("way")));
        let early = timeout(SECOND / 2, check.as_mut()).await;
        assert!(early.is_err(), "{early:?}");
        self.cluster.migrate(slot, from, to);
        assert!(check.await.unwrap().allowed());
        assert!(!self.patiently(settle).await.unwrap().expired());
        assert_eq!(self.charged().await, [2, 2, 2]);
        self.cluster.migrate(slot, to, from);
        assert_eq!(self.charged().await, [2, 2, 2]);
        format!("{error} after {took:?}, and allowed when it had arrived")
    }

    /// Everything unused, and every script and connection known.
    async fn begin(&self) {
        self.patient(Op::Reset, &LIMITS).await;
        let ready = async {
            while self.ask(Op::Check, &LIMITS, None).await.is_err() {
                sleep(SECOND / 100).await;
            }
        };
        timeout(20 * SECOND, ready).await.expect("no answer from a cluster that works");
        self.charged().await;
        self.patient(Op::Reset, &LIMITS).await;
        assert_eq!(self.standing().await, [(0, 0); 3]);
    }

    async fn ask(
        &self,
        op: Op,
        limits: &[usize],
        once: Option<&str>,
    ) -> Result<Decision, EngineError> {
        self.spread.ask(&self.hasty, op, limits, once).await
    }

    async fn patient(&self, op: Op, limits: &[usize]) -> Decision {
        self.spread.ask(&self.spread.patient, op, limits, None).await.unwrap()
    }

    async fn about(&self, op: Op) -> Result<Decision, EngineError> {
        self.hasty.decide(Call { op, charges: &[], once: None }).await
    }

    async fn patiently(&self, op: Op) -> Result<Decision, EngineError> {
        self.spread.patient.decide(Call { op, charges: &[], once: None }).await
    }

    async fn reserve(&self, ttl: Duration) -> HoldId {
        let op =
            Op::Hold { id: HoldId::random().unwrap(), ttl: ttl.into(), expiry: Expiry::Release };
        let made = self.patient(op, &LIMITS).await;
        assert_eq!(self.standing().await, [(0, 1); 3]);
        made.hold().unwrap()
    }

    async fn standing(&self) -> Vec<(u64, u64)> {
        self.spread.standing(&LIMITS).await
    }

    async fn charged(&self) -> Vec<u64> {
        self.spread.charged(&LIMITS, 5 * SECOND).await
    }

    /// Lets a call go on until all of these are held, and no further.
    async fn until_held<F>(&self, mut call: Pin<&mut F>, limits: &[usize])
    where
        F: Future<Output = Result<Decision, EngineError>>,
    {
        for _ in 0..100 {
            let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            assert!(polled.is_pending(), "it did not wait for anybody: {polled:?}");
            for _ in 0..3 {
                sleep(Duration::from_millis(2)).await;
                if self.spread.standing(limits).await.iter().all(|(_, held)| *held == 1) {
                    // What the servers have answered has been read by now.
                    return sleep(Duration::from_millis(10)).await;
                }
            }
        }
        panic!("nothing is held");
    }

    fn freeze(&self, shard: usize) -> usize {
        let node = self.cluster.primary_of(self.spread.slot_on(shard));
        self.cluster.nodes[node].freeze();
        node
    }

    /// As a failover does that comes too soon.
    fn forget(&self, shard: usize) {
        let node = self.cluster.primary_of(self.spread.slot_on(shard));
        for key in self.keys_of(node, shard) {
            self.cluster.ask(node, &["DEL", &key]);
        }
    }

    fn keys_of(&self, node: usize, shard: usize) -> Vec<String> {
        let tag = tag(&self.spread.names[shard]);
        let keys = self.cluster.keys_in(node, self.spread.slot_on(shard));
        let keys: Vec<String> = keys.into_iter().filter(|key| key.contains(&tag)).collect();
        assert!(keys.len() >= 3, "a state, its holds and a record: {keys:?}");
        keys
    }

    /// Begins to move a slot, and moves the state but not what lies beside it.
    fn half_migrate(&self, slot: u16, from: usize, to: usize) {
        let id = |nth: usize| text(&self.cluster.ask(nth, &["CLUSTER", "MYID"]));
        let word = slot.to_string();
        self.cluster.ask(to, &["CLUSTER", "SETSLOT", &word, "IMPORTING", &id(from)]);
        self.cluster.ask(from, &["CLUSTER", "SETSLOT", &word, "MIGRATING", &id(to)]);
        let port = self.cluster.nodes[to].port().to_string();
        let keys = self.keys_of(from, 1);
        let state = keys.iter().min_by_key(|key| key.len()).unwrap();
        let words = ["MIGRATE", "127.0.0.1", &port, state, "0", "5000"];
        assert_eq!(text(&self.cluster.ask(from, &words)), "OK");
    }
}
