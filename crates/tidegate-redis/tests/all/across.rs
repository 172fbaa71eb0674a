//! Calls over several slots, on a Cluster of one server: it refuses every command whose keys lie in
//! several slots, and every script that touches a key of another slot than its own.
//!
//! `TIDEGATE_SEED=n` runs one trace of the model.

use std::future::{Future as _, poll_fn};
use std::io::{Write as _, stderr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::server;
use server::Server;
use tidegate::{
    Answer, Call, CallId, Charge, Clock, Cost, Decision, Engine, EngineError, Expiry, Health,
    HoldId, Inspection, Key, ManualClock, Micros, Op, Refusal, Rule, RuleLimit,
};
use tidegate_model::{Profile, Rng, Spec, Stats, Subject, UnderTest, run};
use tidegate_redis::{Redis, RedisBuilder};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

fn say(line: &str) {
    writeln!(stderr().lock(), "{line}").unwrap();
}

/// A Cluster that is one server, which has all slots.
fn cluster() -> Server {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    let slots: Vec<String> = (0..16_384).map(|slot: u32| slot.to_string()).collect();
    let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
    assert_eq!(server.cli(&words.collect::<Vec<_>>()), "OK");
    for _ in 0..5_000 {
        if server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
            return server;
        }
    }
    panic!("the cluster does not come up");
}

fn builder(server: &Server) -> RedisBuilder {
    Redis::builder(&server.url()).deadline(Duration::from_secs(10)).test_slots_apart()
}

// The claims of every engine, and the model, with a subject for each rule.

/// Gives every rule a subject of its own, so that the rules of a call lie in several slots.
struct Spread(Redis);

impl Spread {
    fn key(charge: &Charge<'_>) -> Vec<String> {
        let parts = charge.key.parts();
        let mut parts: Vec<String> =
            parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        let len: usize = parts.iter().map(String::len).sum();
        // What is too long stays so, and what is not must not become so.
        if len + charge.limit.rule().len() <= Key::MAX_LEN && parts.len() < Key::MAX_PARTS {
            parts.push(charge.limit.rule().into());
        }
        parts
    }
}

impl Engine for Spread {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(async move {
            let keys: Vec<Vec<String>> = call.charges.iter().map(Self::key).collect();
            let charges = call.charges.iter().zip(&keys);
            let charges: Vec<Charge<'_>> = charges
                .map(|(charge, key)| Charge { key: Key::from(&key[..]), ..*charge })
                .collect();
            self.0.decide(Call { charges: &charges, ..call }).await
        }))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        Answer::Later(Box::pin(async move {
            let key = Self::key(&Charge { limit, key, cost: Cost::ZERO, who: None });
            self.0.inspect(limit, Key::from(&key[..])).await
        }))
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}

#[tokio::test]
async fn every_claim_is_kept_across_slots() {
    let server = cluster();
    tidegate::conformance::run(|clock| Spread(builder(&server).test_clock(clock).build().unwrap()))
        .await;
}

/// As for the scripts themselves.
const PROFILE: Profile = Profile {
    last_instant: 1 << 52,
    changes_are_charged: true,
    calendars_with_holds: false,
    ..Profile::ENGINE
};

/// Knows of holds that a denied call has found ended before the clock stepped back. A denial writes in
/// the slots that had allowed it, and what had ended by then is over; on one server it would last again.
struct Watched<S> {
    inner: S,
    last: u64,
    cells: Vec<Vec<Held>>,
    revived: Arc<AtomicBool>,
}

/// A hold that was made or renewed.
#[derive(Clone, Copy)]
struct Held {
    ttl: u64,
    /// A step back may have brought its end nearer, if it was noticed.
    earliest: u64,
    latest: u64,
    /// A denied call may have found it ended, and has written.
    is_over: bool,
}

impl<S: Subject> Subject for Watched<S> {
    fn apply(&mut self, call: &tidegate_model::Call) -> tidegate_model::Answer {
        use tidegate_model::Op;
        let now = call.now;
        if now < self.last {
            for held in self.cells.iter_mut().flatten() {
                held.earliest = held.earliest.min(now.saturating_add(held.ttl));
            }
        }
        self.last = now;
        for part in &call.parts {
            let lasts_again = |held: &Held| held.is_over && now < held.latest;
            self.revived.fetch_or(self.cells[part.cell].iter().any(lasts_again), Ordering::Relaxed);
        }
        let answer = self.inner.apply(call);
        let denied = answer.verdicts.iter().any(|verdict| !verdict.allowed);
        for (part, verdict) in call.parts.iter().zip(&answer.verdicts) {
            let cell = &mut self.cells[part.cell];
            match call.op {
                Op::Check | Op::Hold { .. } | Op::Enter { .. } if denied => {
                    let wrote = verdict.allowed && part.cost > 0;
                    let ended = cell.iter_mut().filter(|held| wrote && held.earliest <= now);
                    ended.for_each(|held| held.is_over = true);
                }
                Op::Hold { ttl, .. } | Op::Enter { ttl, .. } | Op::Renew { ttl, .. } => {
                    let end = now.saturating_add(ttl);
                    cell.push(Held { ttl, earliest: end, latest: end, is_over: false });
                }
                _ => {}
            }
        }
        answer
    }
}

/// Runs traces from `seeds` on, until `enough`. Says how many were not as the model has it after a hold
/// that was over should have lasted again.
fn traces(server: &Server, seeds: &AtomicU64, mut enough: impl FnMut(&Stats) -> bool) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = ManualClock::default();
    let engine = runtime.block_on(async {
        Arc::new(Spread(builder(server).test_clock(clock.clone()).build().unwrap()))
    });
    let mut others = 0;
    loop {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        let revived = Arc::new(AtomicBool::new(false));
        let make = |specs: &[Spec]| {
            let wait = |answer: Answer<'_, Decision>| runtime.block_on(answer);
            let key = format!("trace-{seed}");
            let inner = UnderTest::new(engine.clone(), clock.clone(), specs, key, wait);
            let cells = vec![Vec::new(); specs.len()];
            Watched { inner, last: 0, cells, revived: revived.clone() }
        };
        match run(seed, PROFILE, make) {
            Ok(stats) if enough(&stats) => return others,
            Ok(_) => {}
            Err(_) if revived.load(Ordering::Relaxed) => others += 1,
            Err(mismatch) => panic!("{mismatch}"),
        }
    }
}

#[test]
fn what_is_decided_across_slots_is_what_the_model_decides() {
    let server = cluster();
    if let Ok(seed) = std::env::var("TIDEGATE_SEED") {
        traces(&server, &AtomicU64::new(seed.parse().unwrap()), |_| true);
        return;
    }
    let (seeds, all) = (AtomicU64::new(0), Mutex::new(Stats::default()));
    let work = || {
        traces(&server, &seeds, |stats| {
            let mut all = all.lock().unwrap();
            all.add(stats);
            all.verdicts.len() >= 11 && all.verdicts.values().all(|count| *count >= 10_000)
        })
    };
    let others: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let all = all.into_inner().unwrap();
    let (calls, traces) = (all.calls, seeds.into_inner());
    say(&format!(
        "across = model: {calls} decisions in {traces} traces, 0 mismatches but {others} where \
         the clock stepped back behind the end of a hold that a denied call had found over"
    ));
    assert!(others * 100 < traces);
}

// Many callers over pairs of subjects.

const SUBJECTS: usize = 12;
const CAPACITY: u64 = 60;

/// A limit, and subjects that lie in slots of their own.
struct Bench {
    server: Server,
    limit: Arc<RuleLimit>,
    names: Vec<String>,
}

impl Bench {
    fn start(limit: &str) -> Self {
        let rule = Rule::new("across", [limit.parse().unwrap()]).unwrap();
        let names = (0..SUBJECTS).map(|i| format!("subject-{i}")).collect();
        Self { server: cluster(), limit: rule.limits()[0].clone(), names }
    }

    fn engine(&self, deadline: Duration) -> Redis {
        let builder = Redis::builder(&self.server.url()).secret("the same for all");
        builder.deadline(deadline).test_slots_apart().build().unwrap()
    }

    async fn ask(
        &self,
        engine: &Redis,
        op: Op,
        subjects: &[usize],
        once: Option<&str>,
    ) -> Result<Decision, EngineError> {
        let charge = |i: &usize| Charge {
            limit: &self.limit,
            key: Key::from(&self.names[*i]),
            cost: Cost::ONE,
            who: None,
        };
        let charges: Vec<Charge<'_>> = subjects.iter().map(charge).collect();
        let once = once.map(|id| CallId::new(id).unwrap());
        engine.decide(Call { op, charges: &charges, once }).await
    }

    /// What is used and held of each subject.
    async fn standing(&self, engine: &Redis) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for name in &self.names {
            let found = engine.inspect(&self.limit, Key::from(name)).await.unwrap();
            all.push((found.standing.used, found.standing.held));
        }
        all
    }

    async fn until_nothing_is_held(&self, engine: &Redis) -> Vec<u64> {
        let waiting = async {
            loop {
                let found = self.standing(engine).await;
                if found.iter().all(|(_, held)| *held == 0) {
                    return found.into_iter().map(|(used, _)| used).collect();
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), waiting).await.expect("it is held for ever")
    }
}

fn draw(rng: &mut Rng) -> Vec<usize> {
    let first = rng.below(SUBJECTS as u64) as usize;
    let step = 1 + rng.below(SUBJECTS as u64 - 1) as usize;
    let mut subjects = vec![first, (first + step) % SUBJECTS];
    let third = rng.below(SUBJECTS as u64) as usize;
    if rng.one_in(3) && !subjects.contains(&third) {
        subjects.push(third);
    }
    subjects
}

/// What callers have counted themselves.
#[derive(Default)]
struct Counts {
    passed: Vec<AtomicU64>,
    perhaps: Vec<AtomicU64>,
    denied: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    fn new() -> Arc<Self> {
        let zeros = || (0..SUBJECTS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { passed: zeros(), perhaps: zeros(), ..Self::default() })
    }

    fn add(&self, subjects: &[usize], answer: &Result<Decision, EngineError>) {
        let count = |counts: &[AtomicU64]| {
            subjects.iter().for_each(|i| _ = counts[*i].fetch_add(1, Ordering::Relaxed));
        };
        match answer {
            Ok(decision) if decision.allowed() => count(&self.passed),
            Ok(_) => _ = self.denied.fetch_add(1, Ordering::Relaxed),
            Err(EngineError::Ambiguous(_)) => count(&self.perhaps),
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn add_dropped(&self, subjects: &[usize]) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        subjects.iter().for_each(|i| _ = self.perhaps[*i].fetch_add(1, Ordering::Relaxed));
    }

    fn load(counts: &[AtomicU64]) -> Vec<u64> {
        counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_over_pairs_of_subjects_never_pass_more_than_there_is() {
    for limit in ["fixed-window 60/30d first-hit", "sliding-log 60/30d", "60/30d every 30d"] {
        let bench = Arc::new(Bench::start(limit));
        let counts = Counts::new();
        let mut tasks = JoinSet::new();
        for task in 0..32 {
            let (bench, counts) = (bench.clone(), counts.clone());
            tasks.spawn(async move {
                let engine = bench.engine(Duration::from_secs(10));
                let mut rng = Rng::new(task);
                for round in 0..40 {
                    let subjects = draw(&mut rng);
                    let answer = bench.ask(&engine, Op::Check, &subjects, None).await;
                    counts.add(&subjects, &answer);
                    if round == 20 && task % 8 == 0 {
                        bench.server.cli(&["SCRIPT", "FLUSH"]);
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let engine = bench.engine(Duration::from_secs(10));
        let used = bench.until_nothing_is_held(&engine).await;
        let passed = Counts::load(&counts.passed);
        assert_eq!(used, passed, "{limit}: charged is what passed");
        assert!(passed.iter().all(|count| *count <= CAPACITY), "{limit}: {passed:?}");
        let denied = counts.denied.load(Ordering::Relaxed);
        assert!(denied > 0 && passed.iter().sum::<u64>() > CAPACITY * SUBJECTS as u64 / 2);
        let least = passed.iter().min().unwrap();
        say(&format!(
            "across, {limit}: {passed:?} of {CAPACITY} passed, {denied} denied, least {least}"
        ));
    }
}

/// Dropped before it is decided, it is dropped in every slot, or charged at its end.
#[tokio::test]
async fn a_call_that_is_dropped_on_its_way_never_gives_a_permit_to_somebody_else() {
    let bench = Bench::start("fixed-window 60/30d first-hit");
    let engine = bench.engine(Duration::from_millis(300));
    bench.ask(&engine, Op::Peek, &[0, 1], None).await.unwrap();
    let counts = Counts::new();
    let mut rng = Rng::new(7);
    for _ in 0..600 {
        let subjects = draw(&mut rng);
        let mut call = pin!(bench.ask(&engine, Op::Check, &subjects, None));
        let mut answer = None;
        for _ in 0..rng.below(10) {
            if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                answer = Some(done);
                break;
            }
            sleep(Duration::from_micros(rng.below(400))).await;
        }
        match answer {
            Some(answer) => counts.add(&subjects, &answer),
            None => counts.add_dropped(&subjects),
        }
    }
    let used = bench.until_nothing_is_held(&engine).await;
    let (passed, perhaps) = (Counts::load(&counts.passed), Counts::load(&counts.perhaps));
    for i in 0..SUBJECTS {
        assert!(passed[i] <= used[i] && used[i] <= passed[i] + perhaps[i], "subject {i}");
        assert!(used[i] <= CAPACITY, "subject {i}");
    }
    let (dropped, sum) = (counts.dropped.load(Ordering::Relaxed), passed.iter().sum::<u64>());
    assert!(dropped > 50 && sum > 50, "{dropped} dropped, {sum} passed");
    let more = used.iter().sum::<u64>() - sum;
    say(&format!(
        "across: {dropped} of 600 calls dropped, {sum} charges passed, {more} more charged"
    ));
}

/// Killed between holding and charging, what it held is charged at its end.
#[test]
fn what_a_killed_caller_held_is_charged_at_its_end() {
    let bench = Bench::start("fixed-window 60/30d first-hit");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut passed, mut left) = (0, 0);
    for round in 0..40 {
        let runtime = runtime();
        let engine = bench.engine(Duration::from_millis(500));
        runtime.block_on(async {
            bench.ask(&engine, Op::Peek, &[0, 1], None).await.unwrap();
            let mut call = Box::pin(bench.ask(&engine, Op::Check, &[0, 1], None));
            for _ in 0..1 + round % 4 {
                match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                    Poll::Ready(answer) => return passed += u64::from(answer.unwrap().allowed()),
                    Poll::Pending => sleep(Duration::from_millis(1)).await,
                }
            }
            left += 1;
            // As if the process had gone: nobody is left to drop or to charge anything.
            std::mem::forget(call);
        });
    }
    runtime().block_on(async {
        let engine = bench.engine(Duration::from_secs(10));
        let used = bench.until_nothing_is_held(&engine).await;
        assert_eq!(used[0], used[1], "both or none");
        assert!(passed <= used[0] && used[0] <= passed + left && left >= 10);
        say(&format!(
            "across: {left} of 40 callers gone on their way, {passed} passed, {} charged",
            used[0]
        ));
    });
}

#[tokio::test]
async fn a_denial_charges_nothing_anywhere() {
    for limit in tidegate::conformance::EVERY_LIMIT {
        let bench = Bench::start(limit);
        let engine = bench.engine(Duration::from_secs(10));
        for _ in 0..10 {
            assert!(bench.ask(&engine, Op::Check, &[1], None).await.unwrap().allowed(), "{limit}");
        }
        let peeked = bench.ask(&engine, Op::Peek, &[0, 2], None).await.unwrap();
        let denied = bench.ask(&engine, Op::Check, &[0, 1, 2], None).await.unwrap();
        let each: Vec<bool> = denied.verdicts.iter().map(|verdict| verdict.allowed).collect();
        if each[1] {
            continue; // it has recovered meanwhile
        }
        assert_eq!(each, [true, false, true], "{limit}");
        assert_eq!(denied.verdicts[0].remaining, 10, "{limit}: as if it had not been asked");
        let after = bench.ask(&engine, Op::Peek, &[0, 2], None).await.unwrap();
        assert_eq!(after, peeked, "{limit}");
        let found = bench.standing(&engine).await;
        assert_eq!((found[0], found[2]), ((0, 0), (0, 0)), "{limit}");
        assert!(bench.server.cli(&["KEYS", "*:hold:*"]).is_empty(), "{limit}: nothing is left");
    }
}

// Ids.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_charged_once_however_many_ask_at_once() {
    for limit in ["fixed-window 60/30d first-hit", "sliding-log 60/30d"] {
        let bench = Arc::new(Bench::start(limit));
        let mut repeats = 0;
        for round in 0..10 {
            let mut tasks = JoinSet::new();
            for _ in 0..24 {
                let bench = bench.clone();
                tasks.spawn(async move {
                    let engine = bench.engine(Duration::from_secs(10));
                    let id = format!("id-{round}");
                    bench.ask(&engine, Op::Check, &[0, 1, 2], Some(&id)).await.unwrap()
                });
            }
            let mut decisions = Vec::new();
            while let Some(done) = tasks.join_next().await {
                decisions.push(done.unwrap());
            }
            assert!(decisions.iter().all(Decision::allowed), "{limit}");
            let first = decisions.iter().position(|decision| !decision.repeated()).unwrap();
            let first = decisions.swap_remove(first);
            // The other slots may not have been charged yet, so that what they hold counts as held.
            let told = |decision: &Decision| -> Vec<(bool, u64)> {
                decision.verdicts.iter().map(|v| (v.allowed, v.remaining)).collect()
            };
            for decision in &decisions {
                assert!(decision.repeated(), "{limit}");
                assert_eq!(decision.verdicts[0], first.verdicts[0], "{limit}");
                assert_eq!(told(decision), told(&first), "{limit}");
            }
            let engine = bench.engine(Duration::from_secs(10));
            let late =
                bench.ask(&engine, Op::Check, &[0, 1, 2], Some(&format!("id-{round}"))).await;
            assert_eq!(late.unwrap(), again(first), "{limit}");
            repeats += decisions.len();
        }
        let engine = bench.engine(Duration::from_secs(10));
        let used = bench.until_nothing_is_held(&engine).await;
        assert_eq!(used[..4], [10, 10, 10, 0], "{limit}");
        say(&format!(
            "across, {limit}: 10 ids charged once each, {repeats} repeats answered as the first"
        ));
    }
}

/// Whatever was left behind by attempts that were given up: one charge.
#[tokio::test]
async fn an_id_is_charged_once_though_attempts_are_dropped_on_their_way() {
    const IDS: u64 = 30;
    let bench = Bench::start("fixed-window 60/30d first-hit");
    let hasty = bench.engine(Duration::from_millis(200));
    bench.ask(&hasty, Op::Peek, &[0, 1], None).await.unwrap();
    let mut rng = Rng::new(3);
    let mut dropped = 0;
    for id in 0..IDS {
        let id = format!("id-{id}");
        for _ in 0..4 {
            let mut call = pin!(bench.ask(&hasty, Op::Check, &[0, 1], Some(&id)));
            let mut polls = rng.below(10);
            while polls > 0 && poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending()
            {
                sleep(Duration::from_micros(rng.below(500))).await;
                polls -= 1;
            }
            dropped += u64::from(polls == 0);
        }
    }
    // A hold that was left behind lasts 1.2 s; its successor waits for it, however often it asks.
    for id in 0..IDS {
        let id = format!("id-{id}");
        let asking = async {
            loop {
                match bench.ask(&hasty, Op::Check, &[0, 1], Some(&id)).await {
                    Ok(decision) => return decision,
                    Err(EngineError::Ambiguous(_)) => sleep(Duration::from_millis(50)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let decision = timeout(Duration::from_secs(30), asking).await.unwrap();
        assert!(decision.allowed(), "{decision:?}");
    }
    let used = bench.until_nothing_is_held(&hasty).await;
    assert_eq!(used[..3], [IDS, IDS, 0]);
    say(&format!("across: {IDS} ids charged once each, {dropped} attempts dropped on their way"));
}

#[tokio::test]
async fn a_record_under_an_id_is_charged_once_in_every_slot() {
    let bench = Bench::start("fixed-window 60/30d first-hit");
    let engine = bench.engine(Duration::from_secs(10));
    let first = bench.ask(&engine, Op::Record, &[0, 1, 2], Some("a")).await.unwrap();
    let repeated = bench.ask(&engine, Op::Record, &[0, 1, 2], Some("a")).await.unwrap();
    assert_eq!(repeated, again(first));
    for other in [&[0, 1][..], &[0, 3]] {
        let refused = bench.ask(&engine, Op::Record, other, Some("a")).await.unwrap_err();
        assert_eq!(refused.refusal(), Some(&Refusal::IdReused));
    }
    // The id of another subject is another id.
    assert!(!bench.ask(&engine, Op::Record, &[3, 1], Some("a")).await.unwrap().repeated());
    assert_eq!(bench.until_nothing_is_held(&engine).await[..4], [1, 2, 1, 1]);
}

// Reservations.

fn reserve() -> Op {
    let id = HoldId::random().unwrap();
    Op::Hold { id, ttl: Micros::from_secs(60), expiry: Expiry::Release }
}

#[tokio::test]
async fn a_reservation_lies_in_every_slot_and_is_settled_in_all() {
    let bench = Bench::start("fixed-window 60/30d first-hit");
    let engine = bench.engine(Duration::from_secs(10));
    let other = bench.engine(Duration::from_secs(10));
    let about = async |op| other.decide(Call { op, charges: &[], once: None }).await;
    for (cost, used) in [(None, 1), (Some(0), 0), (Some(5), 5)] {
        let made = bench.ask(&engine, reserve(), &[0, 1, 2], None).await.unwrap();
        let id = made.hold().unwrap();
        assert_eq!(bench.standing(&engine).await[..4], [(0, 1), (0, 1), (0, 1), (0, 0)]);
        let renewed = about(Op::Renew { id, ttl: Micros::from_secs(90) }).await.unwrap();
        assert_eq!(
            (renewed.expired(), renewed.verdicts.len(), renewed.held().len()),
            (false, 3, 3)
        );
        let cost = cost.map(|cost| Cost::new(cost).unwrap());
        let settled = about(Op::Settle { id, cost }).await.unwrap();
        assert!(!settled.expired() && settled.allowed());
        assert_eq!(about(Op::Settle { id, cost }).await.unwrap(), settled, "the same again");
        let otherwise = about(Op::Settle { id, cost: Some(Cost::new(9).unwrap()) }).await;
        assert_eq!(otherwise.unwrap_err().refusal(), Some(&Refusal::AlreadySettled));
        let found = bench.standing(&engine).await;
        assert_eq!(found[..4], [(used, 0), (used, 0), (used, 0), (0, 0)]);
        bench.ask(&engine, Op::Reset, &[0, 1, 2], None).await.unwrap();
    }
    // Under an id it is one, and denied it leaves nothing.
    let first = bench.ask(&engine, reserve(), &[0, 1], Some("job")).await.unwrap();
    let again = bench.ask(&engine, reserve(), &[0, 1], Some("job")).await.unwrap();
    assert_eq!((again.hold(), again.repeated()), (first.hold(), true));
    assert_eq!(bench.standing(&engine).await[..2], [(0, 1), (0, 1)]);
    about(Op::Settle { id: first.hold().unwrap(), cost: Some(Cost::ZERO) }).await.unwrap();
    let anew = bench.ask(&engine, reserve(), &[0, 1], Some("job")).await.unwrap();
    assert!(!anew.repeated() && anew.hold() != first.hold());
    about(Op::Settle { id: anew.hold().unwrap(), cost: Some(Cost::ZERO) }).await.unwrap();
    for _ in 0..CAPACITY {
        bench.ask(&engine, Op::Record, &[1], None).await.unwrap();
    }
    for once in [None, Some("late")] {
        let denied = bench.ask(&engine, reserve(), &[0, 1, 2], once).await.unwrap();
        assert_eq!((denied.allowed(), denied.hold()), (false, None));
        let found = bench.standing(&engine).await;
        assert_eq!((found[0], found[2]), ((0, 0), (0, 0)), "{once:?}");
    }
}

#[tokio::test]
async fn what_only_looks_on_in_another_slot_denies_nobody() {
    let server = cluster();
    let engine = builder(&server).build().unwrap();
    let parse = |text: &str| text.parse().unwrap();
    let rule = Rule::with_shadow(
        "looked-at",
        [parse("fixed-window 50/30d first-hit")],
        [parse("fixed-window 3/30d first-hit"), parse("concurrency 1 lease 60s")],
    );
    let rule = rule.unwrap();
    let [decides, shadow, holders] = rule.limits() else { panic!("three limits") };
    let charge = |limit, key, cost| Charge {
        limit,
        key: Key::from(key),
        cost: Cost::new(cost).unwrap(),
        who: None,
    };
    let charges = [charge(decides, "a", 2), charge(shadow, "b", 2)];
    for (allowed, used) in [(true, 2), (false, 2)] {
        let call = Call { op: Op::Check, charges: &charges, once: None };
        let decision = engine.decide(call).await.unwrap();
        assert!(decision.allowed() && decision.shadow()[0].allowed == allowed);
        let found = engine.inspect(shadow, Key::from("b")).await.unwrap().standing;
        assert_eq!((found.used, found.held), (used, 0));
    }
    let charges = [charge(decides, "a", 1), charge(holders, "c", 1)];
    let enter = || Op::Enter { id: HoldId::random().unwrap(), ttl: Micros::from_secs(60) };
    let mut held = Vec::new();
    for _ in 0..2 {
        let call = Call { op: enter(), charges: &charges, once: None };
        let decision = engine.decide(call).await.unwrap();
        assert!(decision.allowed());
        held.push(decision.hold());
    }
    assert!(held[0].is_some() && held[1].is_none(), "nothing was held: {held:?}");
    let op = Op::Settle { id: held[0].unwrap(), cost: Some(Cost::ZERO) };
    engine.decide(Call { op, charges: &[], once: None }).await.unwrap();
    let found = engine.inspect(holders, Key::from("c")).await.unwrap().standing;
    assert_eq!((found.used, found.held), (0, 0));
    assert!(server.cli(&["KEYS", "*:hold:*"]).is_empty(), "nothing is left");
}

// A server that stands still.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_in_between_costs_permits_and_gives_none() {
    let bench = Arc::new(Bench::start("fixed-window 60/30d first-hit"));
    let counts = Counts::new();
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (bench, counts) = (bench.clone(), counts.clone());
        tasks.spawn(async move {
            let engine = bench.engine(Duration::from_millis(60));
            let mut rng = Rng::new(100 + task);
            for _ in 0..60 {
                let subjects = draw(&mut rng);
                let answer = bench.ask(&engine, Op::Check, &subjects, None).await;
                counts.add(&subjects, &answer);
                sleep(Duration::from_millis(5)).await;
            }
        });
    }
    for _ in 0..6 {
        sleep(Duration::from_millis(60)).await;
        bench.server.freeze();
        sleep(Duration::from_millis(120)).await;
        bench.server.thaw();
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let engine = bench.engine(Duration::from_secs(10));
    let used = bench.until_nothing_is_held(&engine).await;
    let (passed, perhaps) = (Counts::load(&counts.passed), Counts::load(&counts.perhaps));
    for i in 0..SUBJECTS {
        assert!(passed[i] <= used[i], "subject {i}: {} passed, {} charged", passed[i], used[i]);
        assert!(used[i] <= CAPACITY, "subject {i}");
    }
    let [passed, perhaps, used] = [passed, perhaps, used].map(|all| all.iter().sum::<u64>());
    assert!(passed > 0 && perhaps > 0);
    say(&format!(
        "across, standing still: {passed} charges passed, {perhaps} perhaps, {used} charged"
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_charged_once_though_the_server_stands_still_in_between() {
    const IDS: usize = 24;
    let bench = Arc::new(Bench::start("fixed-window 60/30d first-hit"));
    let unanswered = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..IDS {
        let (bench, unanswered) = (bench.clone(), unanswered.clone());
        tasks.spawn(async move {
            let engine = bench.engine(Duration::from_millis(40));
            sleep(Duration::from_millis(10 * task as u64)).await;
            loop {
                match bench.ask(&engine, Op::Check, &[0, 1, 2], Some(&format!("id-{task}"))).await {
                    Ok(decision) => return assert!(decision.allowed(), "{decision:?}"),
                    Err(EngineError::Refused(refusal)) => panic!("{refusal}"),
                    Err(_) => _ = unanswered.fetch_add(1, Ordering::Relaxed),
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
    }
    for _ in 0..8 {
        sleep(Duration::from_millis(7)).await;
        bench.server.freeze();
        sleep(Duration::from_millis(60)).await;
        bench.server.thaw();
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    };
    timeout(Duration::from_secs(60), all).await.expect("an id that is never decided");
    let engine = bench.engine(Duration::from_secs(10));
    let used = bench.until_nothing_is_held(&engine).await;
    let ids = IDS as u64;
    assert_eq!(used[..4], [ids, ids, ids, 0]);
    let unanswered = unanswered.load(Ordering::Relaxed);
    assert!(unanswered > 0);
    say(&format!("across, standing still: {ids} ids charged once each, {unanswered} unanswered"));
}

fn again(mut decision: Decision) -> Decision {
    decision.details_mut().repeated = true;
    decision
}
