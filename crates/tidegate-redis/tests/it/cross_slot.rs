//! Calls over several slots, on a Cluster of one server. It refuses every command with keys of
//! several slots, and every script that touches a key of another slot.
//!
//! `TIDEGATE_SEED=n` runs one trace of the model.

use std::future::{Future as _, poll_fn};
use std::io::{Write as _, stderr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use testkit::redis::RedisServer;
use tidegate::{
    Call, Charge, Clock, Cost, Costs, Decision, Engine, EngineError, EngineFuture, Expiry,
    Extension, Health, HoldId, HoldSpec, IdempotencyKey, Inspection, Key, ManualClock, Micros, Op,
    Quantity, Refusal, Rule, RuleCost, RuleLimit,
};
use tidegate_model::{
    ChangeModel, EngineSystem, Profile, SharingClass, Spec, Stats, System, TraceRng, run, run_size,
};
use tidegate_redis::{Redis, RedisBuilder};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

fn print_line(line: &str) {
    writeln!(stderr().lock(), "{line}").unwrap();
}

/// A Cluster of one server with all slots.
fn cluster() -> RedisServer {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let slots: Vec<String> = (0..16_384).map(|slot: u32| slot.to_string()).collect();
    let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
    assert_eq!(server.cli(&words.collect::<Vec<_>>()), "OK");
    for _ in 0..5_000 {
        if server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
            return server;
        }
    }
    panic!("the cluster does not start");
}

fn builder(server: &RedisServer) -> RedisBuilder {
    Redis::builder(&server.url()).deadline(Duration::from_secs(10)).test_force_cross_slot()
}

// The conformance suite and the model, with a subject for each rule.

/// Gives every rule its own subject, so that the rules of a call are in several slots.
struct SubjectPerRule(Redis);

impl SubjectPerRule {
    fn key(charge: &Charge<'_>) -> Vec<String> {
        Self::key_of(charge.limit.rule(), charge.key)
    }

    fn key_of(rule: &str, key: Key<'_>) -> Vec<String> {
        let parts = key.parts();
        let mut parts: Vec<String> =
            parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        let len: usize = parts.iter().map(String::len).sum();
        // A key that is too long stays so, and no other key becomes too long.
        if len + rule.len() <= Key::MAX_LEN && parts.len() < Key::MAX_PARTS {
            parts.push(rule.into());
        }
        parts
    }
}

impl Engine for SubjectPerRule {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move {
            let keys: Vec<Vec<String>> = call.charges.iter().map(Self::key).collect();
            let charges = call.charges.iter().zip(&keys);
            let charges: Vec<Charge<'_>> = charges
                .map(|(charge, key)| Charge { key: Key::from(&key[..]), ..*charge })
                .collect();
            let each = call.op.rule_costs();
            let keys = each.iter().map(|cost| Some(Self::key_of(cost.rule, cost.key?)));
            let keys: Vec<Option<Vec<String>>> = keys.collect();
            let each = each.iter().zip(&keys).map(|(cost, key)| {
                let key = key.as_deref().map(Key::from);
                RuleCost { key, ..*cost }
            });
            let each: Vec<RuleCost<'_>> = each.collect();
            let units = call.op.quantity().map_or_else(Vec::new, |quantity| {
                let mut mapped = quantity.charges.to_vec();
                for unit in &mut mapped {
                    let is_same =
                        |c: &&Charge<'_>| (c.limit.state(), c.key) == (unit.state, unit.key);
                    let place = call.charges.iter().position(|charge| is_same(&charge));
                    unit.key = place.map_or(unit.key, |place| charges[place].key);
                }
                mapped
            });
            let quantity = call.op.quantity().map(|one| Quantity { charges: &units, ..*one });
            let op = match call.op {
                Op::Hold(hold) => Op::Hold(HoldSpec { quantity: quantity.as_ref(), ..hold }),
                Op::Settle { id, costs: Costs::Each(_) } => {
                    Op::Settle { id, costs: Costs::Each(&each) }
                }
                Op::Extend { id, to } => Op::Extend { id, to: Extension { totals: &each, ..to } },
                op => op,
            };
            self.0.decide(Call { op, charges: &charges, ..call }).await
        }))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        EngineFuture::Pending(Box::pin(async move {
            let key = Self::key(&Charge { limit, key, cost: Cost::ZERO, caller: None });
            self.0.inspect(limit, Key::from(&key[..])).await
        }))
    }

    /// The suite makes named holds under one rule only.
    fn locate_hold<'a>(&'a self, id: HoldId, key: Key<'a>) -> EngineFuture<'a, HoldId> {
        EngineFuture::Pending(Box::pin(async move {
            let key = Self::key_of("tokens", key);
            self.0.locate_hold(id, Key::from(&key[..])).await
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
async fn calls_across_slots_pass_the_conformance_suite() {
    let server = cluster();
    tidegate::conformance::run(|clock| {
        SubjectPerRule(builder(&server).test_clock(clock).build().unwrap())
    })
    .await;
}

/// The profile of `reference_model` without changed limits: a call over several slots makes holds,
/// so that a denied one counts as a call of its limits, and an allowed one is reported as settled.
const PROFILE: Profile = Profile {
    last_instant: 1 << 52,
    model: ChangeModel::Shared(SharingClass::Policies),
    changes: false,
    ..Profile::ENGINE
};

/// Tracks holds that had expired when a denied call saw them, before the clock stepped back. A
/// denial across slots writes to the slots that had allowed it, so such a hold stays expired; on
/// one server it would count again.
struct HoldTracker<S> {
    inner: S,
    last: u64,
    cells: Vec<Vec<TrackedHold>>,
    revived: Arc<AtomicBool>,
}

/// A hold that was created or renewed.
#[derive(Clone, Copy)]
struct TrackedHold {
    ttl: u64,
    /// A step back of the clock may have moved its expiry forward, if a call saw the step.
    earliest: u64,
    latest: u64,
    /// A denied call may have seen it expired, and has written.
    is_expired: bool,
}

impl<S: System> System for HoldTracker<S> {
    fn apply(&mut self, call: &tidegate_model::ModelCall) -> tidegate_model::ModelAnswer {
        use tidegate_model::ModelOp;
        let now = call.now;
        if now < self.last {
            for held in self.cells.iter_mut().flatten() {
                held.earliest = held.earliest.min(now.saturating_add(held.ttl));
            }
        }
        self.last = now;
        for part in &call.parts {
            let counts_again = |held: &TrackedHold| held.is_expired && now < held.latest;
            self.revived
                .fetch_or(self.cells[part.cell].iter().any(counts_again), Ordering::Relaxed);
        }
        let reply = self.inner.apply(call);
        let denied = reply.verdicts.iter().any(|verdict| !verdict.allowed);
        for (part, verdict) in call.parts.iter().zip(&reply.verdicts) {
            let cell = &mut self.cells[part.cell];
            match call.op {
                ModelOp::Extend { .. } if denied => {}
                ModelOp::Check | ModelOp::Hold { .. } | ModelOp::Enter { .. } if denied => {
                    let wrote = verdict.allowed && part.cost > 0;
                    let ended = cell.iter_mut().filter(|held| wrote && held.earliest <= now);
                    ended.for_each(|held| held.is_expired = true);
                }
                ModelOp::Hold { ttl, .. }
                | ModelOp::Enter { ttl, .. }
                | ModelOp::Renew { ttl, .. }
                | ModelOp::Extend { ttl: Some(ttl), .. } => {
                    let end = now.saturating_add(ttl);
                    cell.push(TrackedHold { ttl, earliest: end, latest: end, is_expired: false });
                }
                _ => {}
            }
        }
        reply
    }
}

/// Runs traces from `seeds` on, until `enough`. Returns the number of mismatches after an expired
/// hold that would count again on one server.
fn traces(server: &RedisServer, seeds: &AtomicU64, mut enough: impl FnMut(&Stats) -> bool) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = ManualClock::default();
    let engine = runtime.block_on(async {
        Arc::new(SubjectPerRule(builder(server).test_clock(clock.clone()).build().unwrap()))
    });
    let mut revivals = 0;
    loop {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        let revived = Arc::new(AtomicBool::new(false));
        let make = |specs: &[Spec]| {
            let wait = |decision: EngineFuture<'_, Decision>| runtime.block_on(decision);
            let key = format!("trace-{seed}");
            let inner = EngineSystem::new(engine.clone(), clock.clone(), specs, key, wait);
            let cells = vec![Vec::new(); specs.len()];
            HoldTracker { inner, last: 0, cells, revived: revived.clone() }
        };
        match run(seed, PROFILE, make) {
            Ok(stats) if enough(&stats) => return revivals,
            Ok(_) => {}
            Err(_) if revived.load(Ordering::Relaxed) => revivals += 1,
            Err(mismatch) => panic!("{mismatch}"),
        }
    }
}

#[test]
fn decisions_across_slots_are_those_of_the_model() {
    let server = cluster();
    if let Ok(seed) = std::env::var("TIDEGATE_SEED") {
        traces(&server, &AtomicU64::new(seed.parse().unwrap()), |_| true);
        return;
    }
    let wanted = run_size(10_000, 10_000, 10_000);
    let (seeds, all) = (AtomicU64::new(0), Mutex::new(Stats::default()));
    let work = || {
        traces(&server, &seeds, |stats| {
            let mut all = all.lock().unwrap();
            all.add(stats);
            all.verdicts.len() >= 11 && all.verdicts.values().all(|count| *count >= wanted)
        })
    };
    let revivals: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let all = all.into_inner().unwrap();
    let (calls, traces) = (all.calls, seeds.into_inner());
    let Stats { extensions, partial_grants, .. } = all;
    print_line(&format!(
        "cross-slot = model: {calls} decisions in {traces} traces with {extensions} extensions and \
         {partial_grants} partial grants, 0 mismatches but {revivals} \
         where the clock stepped back before the expiry of a hold that a denied call saw expired"
    ));
    assert!(revivals * 100 < traces);
}

// Many callers on pairs of subjects.

const SUBJECTS: usize = 12;
const CAPACITY: u64 = 60;

/// A limit, and subjects in separate slots.
struct CrossSlotFixture {
    server: RedisServer,
    limit: Arc<RuleLimit>,
    names: Vec<String>,
}

impl CrossSlotFixture {
    fn start(limit: &str) -> Self {
        let rule = Rule::new("cross-slot", [limit.parse().unwrap()]).unwrap();
        let names = (0..SUBJECTS).map(|i| format!("subject-{i}")).collect();
        Self { server: cluster(), limit: rule.limits()[0].clone(), names }
    }

    fn engine(&self, deadline: Duration) -> Redis {
        let builder = Redis::builder(&self.server.url()).secret("the same for all");
        builder.deadline(deadline).test_force_cross_slot().build().unwrap()
    }

    async fn decide(
        &self,
        engine: &Redis,
        op: Op<'_>,
        subjects: &[usize],
        once: Option<&str>,
    ) -> Result<Decision, EngineError> {
        let charge = |i: &usize| Charge {
            limit: &self.limit,
            key: Key::from(&self.names[*i]),
            cost: Cost::ONE,
            caller: None,
        };
        let charges: Vec<Charge<'_>> = subjects.iter().map(charge).collect();
        let once = once.map(|id| IdempotencyKey::new(id).unwrap());
        engine.decide(Call { op, charges: &charges, idempotency_key: once }).await
    }

    /// Permits used and held of each subject.
    async fn standing(&self, engine: &Redis) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for name in &self.names {
            let found = engine.inspect(&self.limit, Key::from(name)).await.unwrap();
            all.push((found.standing.used, found.standing.held));
        }
        all
    }

    async fn until_no_holds(&self, engine: &Redis) -> Vec<u64> {
        let waiting = async {
            loop {
                let found = self.standing(engine).await;
                if found.iter().all(|(_, held)| *held == 0) {
                    return found.into_iter().map(|(used, _)| used).collect();
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(60), waiting).await.expect("holds do not end")
    }
}

fn draw(rng: &mut TraceRng) -> Vec<usize> {
    let first = rng.below(SUBJECTS as u64) as usize;
    let step = 1 + rng.below(SUBJECTS as u64 - 1) as usize;
    let mut subjects = vec![first, (first + step) % SUBJECTS];
    let third = rng.below(SUBJECTS as u64) as usize;
    if rng.one_in(3) && !subjects.contains(&third) {
        subjects.push(third);
    }
    subjects
}

/// Results counted by the callers.
#[derive(Default)]
struct ResultCounts {
    passed: Vec<AtomicU64>,
    ambiguous: Vec<AtomicU64>,
    denied: AtomicU64,
    dropped: AtomicU64,
}

impl ResultCounts {
    fn new() -> Arc<Self> {
        let zeros = || (0..SUBJECTS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { passed: zeros(), ambiguous: zeros(), ..Self::default() })
    }

    fn add(&self, subjects: &[usize], result: &Result<Decision, EngineError>) {
        let count = |counts: &[AtomicU64]| {
            subjects.iter().for_each(|i| _ = counts[*i].fetch_add(1, Ordering::Relaxed));
        };
        match result {
            Ok(decision) if decision.allowed() => count(&self.passed),
            Ok(_) => _ = self.denied.fetch_add(1, Ordering::Relaxed),
            Err(EngineError::Ambiguous(_)) => count(&self.ambiguous),
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn add_dropped(&self, subjects: &[usize]) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        subjects.iter().for_each(|i| _ = self.ambiguous[*i].fetch_add(1, Ordering::Relaxed));
    }

    fn load(counts: &[AtomicU64]) -> Vec<u64> {
        counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_over_pairs_of_subjects_never_pass_more_than_the_limit() {
    for limit in ["fixed-window 60/30d first-hit", "sliding-log 60/30d", "60/30d every 30d"] {
        let fixture = Arc::new(CrossSlotFixture::start(limit));
        let counts = ResultCounts::new();
        let mut tasks = JoinSet::new();
        for task in 0..32 {
            let (fixture, counts) = (fixture.clone(), counts.clone());
            tasks.spawn(async move {
                let engine = fixture.engine(Duration::from_secs(10));
                let mut rng = TraceRng::new(task);
                for round in 0..40 {
                    let subjects = draw(&mut rng);
                    let result = fixture.decide(&engine, Op::Check, &subjects, None).await;
                    counts.add(&subjects, &result);
                    if round == 20 && task % 8 == 0 {
                        fixture.server.cli(&["SCRIPT", "FLUSH"]);
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let engine = fixture.engine(Duration::from_secs(10));
        let used = fixture.until_no_holds(&engine).await;
        let passed = ResultCounts::load(&counts.passed);
        assert_eq!(used, passed, "{limit}: charged and passed differ");
        assert!(passed.iter().all(|count| *count <= CAPACITY), "{limit}: {passed:?}");
        let denied = counts.denied.load(Ordering::Relaxed);
        assert!(denied > 0 && passed.iter().sum::<u64>() > CAPACITY * SUBJECTS as u64 / 2);
        let least = passed.iter().min().unwrap();
        print_line(&format!(
            "cross-slot, {limit}: {passed:?} of {CAPACITY} passed, {denied} denied, least {least}"
        ));
    }
}

/// The holds of a dropped call are released in every slot, or charged when they expire.
#[tokio::test]
async fn a_dropped_call_never_gives_its_permit_to_another() {
    let fixture = CrossSlotFixture::start("fixed-window 60/30d first-hit");
    let engine = fixture.engine(Duration::from_millis(300));
    fixture.decide(&engine, Op::Peek, &[0, 1], None).await.unwrap();
    let counts = ResultCounts::new();
    let mut rng = TraceRng::new(7);
    for _ in 0..600 {
        let subjects = draw(&mut rng);
        let mut call = pin!(fixture.decide(&engine, Op::Check, &subjects, None));
        let mut result = None;
        for _ in 0..rng.below(10) {
            if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                result = Some(done);
                break;
            }
            sleep(Duration::from_micros(rng.below(400))).await;
        }
        match result {
            Some(result) => counts.add(&subjects, &result),
            None => counts.add_dropped(&subjects),
        }
    }
    let used = fixture.until_no_holds(&engine).await;
    let (passed, ambiguous) =
        (ResultCounts::load(&counts.passed), ResultCounts::load(&counts.ambiguous));
    for i in 0..SUBJECTS {
        assert!(passed[i] <= used[i] && used[i] <= passed[i] + ambiguous[i], "subject {i}");
        assert!(used[i] <= CAPACITY, "subject {i}");
    }
    let (dropped, sum) = (counts.dropped.load(Ordering::Relaxed), passed.iter().sum::<u64>());
    assert!(dropped > 50 && sum > 50, "{dropped} dropped, {sum} passed");
    let more = used.iter().sum::<u64>() - sum;
    print_line(&format!(
        "cross-slot: {dropped} of 600 calls dropped, {sum} charges passed, {more} more charged"
    ));
}

/// If a caller is killed between hold and charge, its holds are charged when they expire.
#[test]
fn holds_of_a_killed_caller_are_charged_when_they_expire() {
    let fixture = CrossSlotFixture::start("fixed-window 60/30d first-hit");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut passed, mut killed) = (0, 0);
    for round in 0..40 {
        let runtime = runtime();
        let engine = fixture.engine(Duration::from_millis(500));
        runtime.block_on(async {
            fixture.decide(&engine, Op::Peek, &[0, 1], None).await.unwrap();
            let mut call = Box::pin(fixture.decide(&engine, Op::Check, &[0, 1], None));
            for _ in 0..1 + round % 4 {
                match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                    Poll::Ready(result) => return passed += u64::from(result.unwrap().allowed()),
                    Poll::Pending => sleep(Duration::from_millis(1)).await,
                }
            }
            killed += 1;
            // As if the process was killed: nothing is released or charged.
            std::mem::forget(call);
        });
    }
    runtime().block_on(async {
        let engine = fixture.engine(Duration::from_secs(10));
        let used = fixture.until_no_holds(&engine).await;
        assert_eq!(used[0], used[1], "both or none");
        assert!(passed <= used[0] && used[0] <= passed + killed && killed >= 10);
        print_line(&format!(
            "cross-slot: {killed} of 40 callers killed during a call, {passed} passed, {} charged",
            used[0]
        ));
    });
}

#[tokio::test]
async fn a_denial_charges_nothing_anywhere() {
    for limit in tidegate::conformance::EVERY_LIMIT {
        let fixture = CrossSlotFixture::start(limit);
        let engine = fixture.engine(Duration::from_secs(10));
        for _ in 0..10 {
            assert!(
                fixture.decide(&engine, Op::Check, &[1], None).await.unwrap().allowed(),
                "{limit}"
            );
        }
        let peeked = fixture.decide(&engine, Op::Peek, &[0, 2], None).await.unwrap();
        let denied = fixture.decide(&engine, Op::Check, &[0, 1, 2], None).await.unwrap();
        let each: Vec<bool> = denied.verdicts.iter().map(|verdict| verdict.allowed).collect();
        if each[1] {
            continue; // the limit has recovered meanwhile
        }
        assert_eq!(each, [true, false, true], "{limit}");
        assert_eq!(denied.verdicts[0].remaining, 10, "{limit}: as before the call");
        let after = fixture.decide(&engine, Op::Peek, &[0, 2], None).await.unwrap();
        assert_eq!(after, peeked, "{limit}");
        let found = fixture.standing(&engine).await;
        assert_eq!((found[0], found[2]), ((0, 0), (0, 0)), "{limit}");
        assert!(fixture.server.cli(&["KEYS", "*:hold:*"]).is_empty(), "{limit}: holds are left");
    }
}

// Ids.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_charged_once_however_many_call_at_once() {
    for limit in ["fixed-window 60/30d first-hit", "sliding-log 60/30d"] {
        let fixture = Arc::new(CrossSlotFixture::start(limit));
        let mut repeats = 0;
        for round in 0..10 {
            let mut tasks = JoinSet::new();
            for _ in 0..24 {
                let fixture = fixture.clone();
                tasks.spawn(async move {
                    let engine = fixture.engine(Duration::from_secs(10));
                    let id = format!("id-{round}");
                    fixture.decide(&engine, Op::Check, &[0, 1, 2], Some(&id)).await.unwrap()
                });
            }
            let mut decisions = Vec::new();
            while let Some(done) = tasks.join_next().await {
                decisions.push(done.unwrap());
            }
            assert!(decisions.iter().all(Decision::allowed), "{limit}");
            let first = decisions.iter().position(|decision| !decision.repeated()).unwrap();
            let first = decisions.swap_remove(first);
            // The other slots may not be charged yet; their holds count as held.
            let summary = |decision: &Decision| -> Vec<(bool, u64)> {
                decision.verdicts.iter().map(|v| (v.allowed, v.remaining)).collect()
            };
            for decision in &decisions {
                assert!(decision.repeated(), "{limit}");
                assert_eq!(decision.verdicts[0], first.verdicts[0], "{limit}");
                assert_eq!(summary(decision), summary(&first), "{limit}");
            }
            let engine = fixture.engine(Duration::from_secs(10));
            let late =
                fixture.decide(&engine, Op::Check, &[0, 1, 2], Some(&format!("id-{round}"))).await;
            assert_eq!(late.unwrap(), as_repeated(first), "{limit}");
            repeats += decisions.len();
        }
        let engine = fixture.engine(Duration::from_secs(10));
        let used = fixture.until_no_holds(&engine).await;
        assert_eq!(used[..4], [10, 10, 10, 0], "{limit}");
        print_line(&format!(
            "cross-slot, {limit}: 10 ids charged once each, {repeats} repeats like the first"
        ));
    }
}

/// Whatever dropped attempts have left, each id is charged once.
#[tokio::test]
async fn an_id_is_charged_once_though_attempts_are_dropped() {
    const IDS: u64 = 30;
    let fixture = CrossSlotFixture::start("fixed-window 60/30d first-hit");
    let hasty = fixture.engine(Duration::from_millis(200));
    fixture.decide(&hasty, Op::Peek, &[0, 1], None).await.unwrap();
    let mut rng = TraceRng::new(3);
    let mut dropped = 0;
    for id in 0..IDS {
        let id = format!("id-{id}");
        for _ in 0..4 {
            let mut call = pin!(fixture.decide(&hasty, Op::Check, &[0, 1], Some(&id)));
            let mut polls = rng.below(10);
            while polls > 0 && poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending()
            {
                sleep(Duration::from_micros(rng.below(500))).await;
                polls -= 1;
            }
            dropped += u64::from(polls == 0);
        }
    }
    // An abandoned hold lasts 1.2 s; a retry waits for it, however many attempts there are.
    for id in 0..IDS {
        let id = format!("id-{id}");
        let retries = async {
            loop {
                match fixture.decide(&hasty, Op::Check, &[0, 1], Some(&id)).await {
                    Ok(decision) => return decision,
                    Err(EngineError::Ambiguous(_)) => sleep(Duration::from_millis(50)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let decision = timeout(Duration::from_secs(30), retries).await.unwrap();
        assert!(decision.allowed(), "{decision:?}");
    }
    let used = fixture.until_no_holds(&hasty).await;
    assert_eq!(used[..3], [IDS, IDS, 0]);
    print_line(&format!("cross-slot: {IDS} ids charged once each, {dropped} attempts dropped"));
}

#[tokio::test]
async fn a_record_under_an_id_is_charged_once_in_every_slot() {
    let fixture = CrossSlotFixture::start("fixed-window 60/30d first-hit");
    let engine = fixture.engine(Duration::from_secs(10));
    let first = fixture.decide(&engine, Op::Record, &[0, 1, 2], Some("a")).await.unwrap();
    let repeated = fixture.decide(&engine, Op::Record, &[0, 1, 2], Some("a")).await.unwrap();
    assert_eq!(repeated, as_repeated(first));
    for other in [&[0, 1][..], &[0, 3]] {
        let refused = fixture.decide(&engine, Op::Record, other, Some("a")).await.unwrap_err();
        assert_eq!(refused.refusal(), Some(&Refusal::IdReused));
    }
    // The id of another subject is another id.
    assert!(!fixture.decide(&engine, Op::Record, &[3, 1], Some("a")).await.unwrap().repeated());
    assert_eq!(fixture.until_no_holds(&engine).await[..4], [1, 2, 1, 1]);
}

// Reservations.

fn reserve() -> Op<'static> {
    let id = HoldId::random().unwrap();
    Op::hold(id, Micros::from_secs(60), Expiry::Release)
}

#[tokio::test]
async fn a_reservation_holds_in_every_slot_and_is_settled_in_all() {
    let fixture = CrossSlotFixture::start("fixed-window 60/30d first-hit");
    let engine = fixture.engine(Duration::from_secs(10));
    let other = fixture.engine(Duration::from_secs(10));
    let decide = async |op| other.decide(Call { op, charges: &[], idempotency_key: None }).await;
    let all = |cost| Costs::All(Cost::total(cost));
    for (costs, used) in [(Costs::AsHeld, 1), (all(0), 0), (all(5), 5)] {
        let made = fixture.decide(&engine, reserve(), &[0, 1, 2], None).await.unwrap();
        let id = made.hold().unwrap();
        assert_eq!(fixture.standing(&engine).await[..4], [(0, 1), (0, 1), (0, 1), (0, 0)]);
        let renewed = decide(Op::Renew { id, ttl: Micros::from_secs(90) }).await.unwrap();
        assert_eq!(
            (renewed.expired(), renewed.verdicts.len(), renewed.held().len()),
            (false, 3, 3)
        );
        let settled = decide(Op::Settle { id, costs }).await.unwrap();
        assert!(!settled.expired() && settled.allowed());
        assert_eq!(decide(Op::Settle { id, costs }).await.unwrap(), settled, "the same again");
        let otherwise = decide(Op::Settle { id, costs: Costs::All(Cost::new(9).unwrap()) }).await;
        assert_eq!(otherwise.unwrap_err().refusal(), Some(&Refusal::AlreadySettled));
        let found = fixture.standing(&engine).await;
        assert_eq!(found[..4], [(used, 0), (used, 0), (used, 0), (0, 0)]);
        fixture.decide(&engine, Op::Reset, &[0, 1, 2], None).await.unwrap();
    }
    // A repeated id returns the same reservation, and a denied one holds nothing.
    let first = fixture.decide(&engine, reserve(), &[0, 1], Some("job")).await.unwrap();
    let again = fixture.decide(&engine, reserve(), &[0, 1], Some("job")).await.unwrap();
    assert_eq!((again.hold(), again.repeated()), (first.hold(), true));
    assert_eq!(fixture.standing(&engine).await[..2], [(0, 1), (0, 1)]);
    decide(Op::Settle { id: first.hold().unwrap(), costs: Costs::All(Cost::ZERO) }).await.unwrap();
    let fresh = fixture.decide(&engine, reserve(), &[0, 1], Some("job")).await.unwrap();
    assert!(!fresh.repeated() && fresh.hold() != first.hold());
    decide(Op::Settle { id: fresh.hold().unwrap(), costs: Costs::All(Cost::ZERO) }).await.unwrap();
    for _ in 0..CAPACITY {
        fixture.decide(&engine, Op::Record, &[1], None).await.unwrap();
    }
    for once in [None, Some("late")] {
        let denied = fixture.decide(&engine, reserve(), &[0, 1, 2], once).await.unwrap();
        assert_eq!((denied.allowed(), denied.hold()), (false, None));
        let found = fixture.standing(&engine).await;
        assert_eq!((found[0], found[2]), ((0, 0), (0, 0)), "{once:?}");
    }
}

#[tokio::test]
async fn a_shadow_limit_in_another_slot_denies_nothing() {
    let server = cluster();
    let engine = builder(&server).build().unwrap();
    let parse = |text: &str| text.parse().unwrap();
    let rule = Rule::with_shadow(
        "shadowed",
        [parse("fixed-window 50/30d first-hit")],
        [parse("fixed-window 3/30d first-hit"), parse("concurrency 1 lease 60s")],
    );
    let rule = rule.unwrap();
    let [decides, shadow, holders] = rule.limits() else { panic!("three limits") };
    let charge = |limit, key, cost| Charge {
        limit,
        key: Key::from(key),
        cost: Cost::new(cost).unwrap(),
        caller: None,
    };
    let charges = [charge(decides, "a", 2), charge(shadow, "b", 2)];
    for (allowed, used) in [(true, 2), (false, 2)] {
        let call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
        let decision = engine.decide(call).await.unwrap();
        assert!(decision.allowed() && decision.shadow()[0].allowed == allowed);
        let found = engine.inspect(shadow, Key::from("b")).await.unwrap().standing;
        assert_eq!((found.used, found.held), (used, 0));
    }
    let charges = [charge(decides, "a", 1), charge(holders, "c", 1)];
    let enter = || Op::enter(HoldId::random().unwrap(), Micros::from_secs(60));
    let mut held = Vec::new();
    for _ in 0..2 {
        let call = Call { op: enter(), charges: &charges, idempotency_key: None };
        let decision = engine.decide(call).await.unwrap();
        assert!(decision.allowed());
        held.push(decision.hold());
    }
    assert!(held[0].is_some() && held[1].is_none(), "{held:?}");
    let op = Op::Settle { id: held[0].unwrap(), costs: Costs::All(Cost::ZERO) };
    engine.decide(Call { op, charges: &[], idempotency_key: None }).await.unwrap();
    let found = engine.inspect(holders, Key::from("c")).await.unwrap().standing;
    assert_eq!((found.used, found.held), (0, 0));
    assert!(server.cli(&["KEYS", "*:hold:*"]).is_empty(), "holds are left");
}

// A frozen server.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_frozen_between_steps_may_cost_permits_and_gives_none() {
    let fixture = Arc::new(CrossSlotFixture::start("fixed-window 60/30d first-hit"));
    let counts = ResultCounts::new();
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (fixture, counts) = (fixture.clone(), counts.clone());
        tasks.spawn(async move {
            let engine = fixture.engine(Duration::from_millis(60));
            let mut rng = TraceRng::new(100 + task);
            for _ in 0..60 {
                let subjects = draw(&mut rng);
                let result = fixture.decide(&engine, Op::Check, &subjects, None).await;
                counts.add(&subjects, &result);
                sleep(Duration::from_millis(5)).await;
            }
        });
    }
    for _ in 0..6 {
        sleep(Duration::from_millis(60)).await;
        fixture.server.freeze();
        sleep(Duration::from_millis(120)).await;
        fixture.server.thaw();
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let engine = fixture.engine(Duration::from_secs(10));
    let used = fixture.until_no_holds(&engine).await;
    let (passed, ambiguous) =
        (ResultCounts::load(&counts.passed), ResultCounts::load(&counts.ambiguous));
    for i in 0..SUBJECTS {
        assert!(passed[i] <= used[i], "subject {i}: {} passed, {} charged", passed[i], used[i]);
        assert!(used[i] <= CAPACITY, "subject {i}");
    }
    let [passed, ambiguous, used] = [passed, ambiguous, used].map(|all| all.iter().sum::<u64>());
    assert!(passed > 0 && ambiguous > 0);
    print_line(&format!(
        "cross-slot, frozen: {passed} charges passed, {ambiguous} ambiguous, {used} charged"
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_charged_once_though_the_server_freezes_between_steps() {
    const IDS: usize = 24;
    let fixture = Arc::new(CrossSlotFixture::start("fixed-window 60/30d first-hit"));
    let unanswered = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..IDS {
        let (fixture, unanswered) = (fixture.clone(), unanswered.clone());
        tasks.spawn(async move {
            let engine = fixture.engine(Duration::from_millis(40));
            sleep(Duration::from_millis(10 * task as u64)).await;
            loop {
                match fixture
                    .decide(&engine, Op::Check, &[0, 1, 2], Some(&format!("id-{task}")))
                    .await
                {
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
        fixture.server.freeze();
        sleep(Duration::from_millis(60)).await;
        fixture.server.thaw();
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    };
    timeout(Duration::from_secs(60), all).await.expect("an id is never decided");
    let engine = fixture.engine(Duration::from_secs(10));
    let used = fixture.until_no_holds(&engine).await;
    let ids = IDS as u64;
    assert_eq!(used[..4], [ids, ids, ids, 0]);
    let unanswered = unanswered.load(Ordering::Relaxed);
    assert!(unanswered > 0);
    print_line(&format!(
        "cross-slot, frozen: {ids} ids charged once each, {unanswered} unanswered"
    ));
}

fn as_repeated(mut decision: Decision) -> Decision {
    decision.details_mut().repeated = true;
    decision
}
