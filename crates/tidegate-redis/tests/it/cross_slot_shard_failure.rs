//! Calls over subjects on different shards of a Redis Cluster, while one shard fails and the others
//! work.
//!
//! Every figure is computed from the log of calls as their callers observed them, from the charges
//! that Redis reports in the end, and from a probe that connects to the nodes directly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use testkit::cluster::{PRIMARIES, RedisCluster};
use testkit::ledger::{ChargeBounds, LedgerAttempt, ObservedResult, WorkKind, charge_bounds};
use testkit::load::{is_long_run, quantiles};
use testkit::sharded_subjects::{SMALL, SUBJECTS, ShardedSubjects};
use testkit::timing::{HANG, compare_with_goal, goals_are_bounds};
use tidegate::{Cost, Costs, Decision, Expiry, HoldId, Micros, Op};
use tidegate_model::TraceRng;
use tidegate_model::print_line;
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const TASKS: u64 = 32;
const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = HANG;
const DEADLINE: Duration = Duration::from_millis(100);
/// Delay of a busy machine. Calls may be late by more if the probe was.
const SLACK: Duration = Duration::from_millis(100);
/// Fewer moves of slots prove nothing.
const MIN_MOVES: usize = 10;
/// Pause between two calls of one task.
const PAUSE: Duration = Duration::from_millis(40);
/// Duration of reservations.
const TTL: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_shard_may_cost_permits_and_gives_none() {
    let cluster = RedisCluster::start();
    let fixture = ShardFailureFixture::new(&cluster);
    let rounds = if is_long_run() { 30 } else { 4 };
    let load = LoggedLoad::begin(&fixture).await;
    let mut faults = Vec::new();
    for round in 0..rounds {
        sleep(SECOND * 7 / 10).await;
        let shard = round % PRIMARIES;
        let primary = cluster.primary_of(fixture.subjects.slot_on(shard));
        let begun = Instant::now();
        cluster.nodes[primary].freeze();
        // Shorter than the timeout after which the Cluster replaces a node.
        sleep(SECOND / 2).await;
        cluster.nodes[primary].thaw();
        faults.push(ShardFault { shard, begun, ended: Instant::now(), breaks: false });
    }
    fixture.until_reached().await;
    let calls = load.end().await;
    // On a busy machine the shard may have been replaced nevertheless.
    let replaced: Vec<usize> = (0..PRIMARIES)
        .filter(|shard| cluster.primary_of(fixture.subjects.slot_on(*shard)) >= PRIMARIES)
        .collect();
    fixture.judge("frozen", &calls, &faults, &replaced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_shard_loses_no_charges_of_the_others() {
    let mut cluster = RedisCluster::start();
    cluster.configure("cluster-require-full-coverage", "no");
    let fixture = ShardFailureFixture::new(&cluster);
    let rounds = if is_long_run() { 6 } else { 1 };
    let load = LoggedLoad::begin(&fixture).await;
    let (mut faults, mut replaced) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        sleep(SECOND * 3 / 2).await;
        let shard = round % PRIMARIES;
        let slot = fixture.subjects.slot_on(shard);
        let victim = cluster.primary_of(slot);
        let begun = Instant::now();
        cluster.kill(victim);
        cluster.primary_of(slot);
        cluster.restart(victim);
        cluster.until_settled();
        faults.push(ShardFault { shard, begun, ended: Instant::now(), breaks: true });
        replaced.push(shard);
    }
    fixture.until_reached().await;
    let calls = load.end().await;
    fixture.judge("killed", &calls, &faults, &replaced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_of_a_moving_slot_are_neither_lost_nor_doubled() {
    let cluster = RedisCluster::start();
    let fixture = ShardFailureFixture::new(&cluster);
    let span = if is_long_run() { 60 * SECOND } else { 5 * SECOND };
    let load = LoggedLoad::begin(&fixture).await;
    let (begun, mut moves, mut faults) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < span || moves <= MIN_MOVES {
        let shard = moves % PRIMARIES;
        let slot = fixture.subjects.slot_on(shard);
        let from = cluster.primary_of(slot);
        let begun = Instant::now();
        cluster.migrate(slot, from, (from + 1) % PRIMARIES);
        faults.push(ShardFault { shard, begun, ended: Instant::now(), breaks: false });
        moves += 1;
        sleep(SECOND / 50).await;
    }
    fixture.until_reached().await;
    let calls = load.end().await;
    fixture.judge(&format!("{moves} moves of slots"), &calls, &faults, &[]).await;
}

/// Failure of a shard.
struct ShardFault {
    shard: usize,
    begun: Instant,
    ended: Instant,
    /// Its connections broke, so that errors came sooner than the deadline.
    breaks: bool,
}

impl ShardFault {
    fn meets(&self, attempt: &LedgerAttempt) -> bool {
        attempt.start <= self.ended + DEADLINE && attempt.end >= self.begun
    }
}

/// Subjects, the engines under test, and the ports of all nodes.
struct ShardFailureFixture {
    subjects: ShardedSubjects,
    engines: Vec<Arc<Redis>>,
    ports: Vec<u16>,
}

impl ShardFailureFixture {
    fn new(cluster: &RedisCluster) -> Arc<Self> {
        let engine = |_| Arc::new(ShardedSubjects::connect(cluster, DEADLINE));
        let ports = cluster.nodes.iter().map(|node| node.port()).collect();
        let engines = (0..4).map(engine).collect();
        Arc::new(Self { subjects: ShardedSubjects::new(cluster), engines, ports })
    }

    /// Two or three limits on different shards, mostly big ones: small ones are soon used up.
    fn draw(rng: &mut TraceRng) -> Vec<usize> {
        let (first, count) = (rng.below(PRIMARIES as u64) as usize, rng.between(2, 3) as usize);
        let limit = |shard: usize| {
            let subject = shard % PRIMARIES + PRIMARIES * rng.below(4) as usize;
            2 * subject + usize::from(!rng.one_in(4))
        };
        (first..first + count).map(limit).collect()
    }

    /// Compares the callers' log with the charges. Each entry of `replaced` is a failover of that
    /// shard, in which charges may have been lost.
    async fn judge(
        &self,
        what: &str,
        calls: &AttemptLog,
        faults: &[ShardFault],
        replaced: &[usize],
    ) {
        let AttemptLog { log, probe } = calls;
        // Waits until all holds have ended: settled, released or expired.
        let limits: Vec<usize> = (0..2 * SUBJECTS).collect();
        let charged = self.subjects.charged(&limits, TIMEOUT).await;
        let broke = |a: &LedgerAttempt| faults.iter().any(|fault| fault.breaks && fault.meets(a));
        let bounds = charge_bounds(log, 2 * SUBJECTS, |denied| {
            denied.took() >= DEADLINE / 2 || broke(denied)
        });
        let [mut over, mut missing, mut lost, mut extra] = [0; 4];
        for (limit, (bounds, charged)) in bounds.iter().zip(&charged).enumerate() {
            let failovers =
                replaced.iter().filter(|shard| **shard == ShardedSubjects::shard_of(limit)).count();
            let max = if limit % 2 == 0 { SMALL * (1 + failovers as u64) } else { u64::MAX };
            over += bounds.admitted.saturating_sub(max);
            let short = bounds.min_charged.saturating_sub(*charged);
            *if failovers > 0 { &mut lost } else { &mut missing } += short;
            extra += charged.saturating_sub(bounds.max_charged);
        }
        // Attempts on other shards than the failed one, during the failure.
        let unaffected = |a: &LedgerAttempt| {
            let mut met = faults.iter().filter(|fault| fault.meets(a)).peekable();
            met.peek().is_some()
                && met.all(|f| {
                    a.limits.iter().all(|limit| ShardedSubjects::shard_of(*limit) != f.shard)
                })
        };
        // A dropped attempt may delay the next attempt with the same id, whatever fails.
        let delayed_by_dropped = |a: &LedgerAttempt| {
            let is_before = |b: &&LedgerAttempt| b.work == a.work && b.start < a.start;
            let recent = |b: &&LedgerAttempt| b.end + DEADLINE + SECOND + SLACK >= a.start;
            let mut before = log.iter().filter(is_before).filter(recent);
            a.kind == WorkKind::CheckWithId && before.any(|b| b.result == ObservedResult::Dropped)
        };
        let others: Vec<LedgerAttempt> = log.iter().filter(|a| unaffected(a)).cloned().collect();
        let failed = others.iter().filter(|a| a.result.error().is_some() && !probe.was_late(a));
        let (delayed, failed): (Vec<LedgerAttempt>, Vec<LedgerAttempt>) =
            failed.cloned().partition(|a| delayed_by_dropped(a));
        let (others, unserved, delayed) = (others.len(), failed.len(), delayed.len());
        let crossed = count(log, |a| a.result.error().is_some_and(|why| why.contains("CROSSSLOT")));
        let refused = count(log, |a| matches!(a.result, ObservedResult::Refused(_)));
        let took = log.iter().map(LedgerAttempt::took).max().unwrap();
        let [p50, p99, _] = quantiles(&mut log.iter().map(LedgerAttempt::took).collect::<Vec<_>>());
        let total = |of: fn(&ChargeBounds) -> u64| bounds.iter().map(of).sum::<u64>();
        print_line(&format!(
            "cross-slot, {what}: {TASKS} tasks, {} attempts (p50 {p50:?} p99 {p99:?} longest \
             {took:?}, probe {:?}); permits: {} admitted, {} charged, {} at most; over-admitted \
             {over}, missing {missing}, lost with a primary {lost}, charged above the maximum \
             {extra}, CROSSSLOT {crossed}, refused {refused}; {others} attempts on other shards \
             than the failed one, {unserved} without a decision{} ({delayed} more delayed by a \
             dropped attempt){}",
            log.len(),
            probe.longest,
            total(|bounds| bounds.admitted),
            charged.iter().sum::<u64>(),
            total(|bounds| bounds.max_charged),
            kinds(&failed),
            kinds(log)
        ));
        assert_eq!((over, missing, extra, crossed), (0, 0, 0, 0));
        // A busy machine delays some beyond the deadline; a failed shard would delay all.
        assert!(unserved * 2 <= others, "{unserved} of {others}");
        assert!(unserved == 0 || !goals_are_bounds(), "{unserved} of {others}");
        // A lost primary loses records of reservations.
        assert!(refused == 0 || !replaced.is_empty(), "{}", kinds(log));
        compare_with_goal("a call", took, DEADLINE + SLACK + 2 * probe.longest);
        assert_eq!(
            self.ids_denied_after_allowed(log, replaced),
            0,
            "an id was denied after it was allowed"
        );
        let uncertain = count(log, |a| {
            matches!(a.result, ObservedResult::MaybeCharged(_) | ObservedResult::Dropped)
        });
        assert!(uncertain > 0, "every result was certain");
    }

    /// Waits until the load has used up most of the small limits: otherwise the run proves nothing.
    async fn until_reached(&self) {
        let small: Vec<usize> = (0..SUBJECTS).map(|subject| 2 * subject).collect();
        let begun = Instant::now();
        loop {
            sleep(SECOND / 2).await;
            let found = self.subjects.used_and_held(&small).await;
            let used_up = found.iter().filter(|(used, _)| *used >= SMALL).count();
            if used_up > SUBJECTS / 2 {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "{used_up} limits are reached");
        }
    }

    /// Number of ids that were denied after a result said that they were allowed.
    fn ids_denied_after_allowed(&self, log: &[LedgerAttempt], replaced: &[usize]) -> u64 {
        let mut allowed = BTreeMap::<u64, bool>::new();
        let mut count = 0;
        for a in log.iter().filter(|a| a.kind == WorkKind::CheckWithId) {
            // The id is stored with the first subject.
            if replaced.contains(&ShardedSubjects::shard_of(a.limits[0])) {
                continue;
            }
            let before = allowed.entry(a.work).or_default();
            count += u64::from(*before && a.result == ObservedResult::Deny);
            *before |= a.result == ObservedResult::Allow;
        }
        count
    }
}

/// Log of all tasks and of the probe.
struct AttemptLog {
    log: Vec<LedgerAttempt>,
    probe: ProbeLatency,
}

/// Tasks that make calls until the end, and probes.
struct LoggedLoad {
    tasks: JoinSet<Vec<LedgerAttempt>>,
    probes: JoinSet<ProbeLatency>,
    over: Arc<AtomicBool>,
}

impl LoggedLoad {
    async fn begin(fixture: &Arc<ShardFailureFixture>) -> Self {
        for engine in &fixture.engines {
            let all: Vec<usize> = (0..SUBJECTS).map(|subject| 2 * subject).collect();
            let peek = async {
                while fixture.subjects.decide(engine, Op::Peek, &all, None).await.is_err() {
                    sleep(SECOND / 100).await;
                }
            };
            timeout(TIMEOUT, peek).await.expect("no decision of a healthy cluster");
        }
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let worker = LedgerWorker {
                fixture: Arc::clone(fixture),
                engine: Arc::clone(&fixture.engines[task as usize % fixture.engines.len()]),
                rng: TraceRng::new(task),
                log: Vec::new(),
            };
            tasks.spawn(worker.run(task, Arc::clone(&over)));
        }
        let mut probes = JoinSet::new();
        for port in &fixture.ports {
            probes.spawn(probe(*port, Arc::clone(&over)));
        }
        Self { tasks, probes, over }
    }

    async fn end(self) -> AttemptLog {
        self.over.store(true, Ordering::Relaxed);
        let logs = timeout(TIMEOUT, self.tasks.join_all()).await.expect("a task is stuck");
        let latency = timeout(TIMEOUT, self.probes.join_all()).await.expect("a probe is stuck");
        let mut log = logs.concat();
        log.sort_by_key(|attempt| attempt.start);
        AttemptLog { log, probe: ProbeLatency::all(latency) }
    }
}

struct LedgerWorker {
    fixture: Arc<ShardFailureFixture>,
    engine: Arc<Redis>,
    rng: TraceRng,
    log: Vec<LedgerAttempt>,
}

impl LedgerWorker {
    /// Half of the tasks check, a quarter reserves, and a quarter checks with ids.
    async fn run(mut self, task: u64, over: Arc<AtomicBool>) -> Vec<LedgerAttempt> {
        static WORKS: AtomicU64 = AtomicU64::new(0);
        while !over.load(Ordering::Relaxed) {
            let work = WORKS.fetch_add(1, Ordering::Relaxed);
            let limits = ShardFailureFixture::draw(&mut self.rng);
            match task % 4 {
                0 => self.reserve(work, &limits).await,
                1 => self.check_with_id(work, &limits).await,
                _ => {
                    // Some callers drop the call.
                    let drop_after = self.rng.one_in(8).then(|| self.rng.below(4_000));
                    self.attempt(work, WorkKind::Check, &limits, Op::Check, drop_after).await;
                }
            }
            sleep(PAUSE).await;
        }
        self.log
    }

    /// Calls until there is a decision, and sometimes once more.
    async fn check_with_id(&mut self, work: u64, limits: &[usize]) {
        let begun = Instant::now();
        while begun.elapsed() < 3 * SECOND {
            let drop_after = self.rng.one_in(8).then(|| self.rng.below(6_000));
            self.attempt(work, WorkKind::CheckWithId, limits, Op::Check, drop_after).await;
            if self.log[self.log.len() - 1].result.is_decision() && !self.rng.one_in(4) {
                return;
            }
            sleep(SECOND / 100).await;
        }
    }

    /// Commits, cancels, renews or abandons what it reserves.
    async fn reserve(&mut self, work: u64, limits: &[usize]) {
        let expiry = if self.rng.one_in(2) { Expiry::Charge } else { Expiry::Release };
        let op = Op::hold(HoldId::random().unwrap(), TTL.into(), expiry);
        let drop_after = self.rng.one_in(8).then(|| self.rng.below(4_000));
        let made = self.attempt(work, WorkKind::Hold(expiry), limits, op, drop_after).await;
        let Some(id) = made.and_then(|decision| decision.hold()) else { return };
        if self.rng.one_in(8) {
            return;
        }
        sleep(Duration::from_millis(self.rng.below(40))).await;
        if self.rng.one_in(3) {
            let ttl: Micros = TTL.into();
            self.attempt(work, WorkKind::Renew, limits, Op::Renew { id, ttl }, None).await;
        }
        let cost = self.rng.below(2);
        let op = Op::Settle { id, costs: Costs::All(Cost::new(cost).unwrap()) };
        let begun = Instant::now();
        while begun.elapsed() < TTL / 2 {
            self.attempt(work, WorkKind::Settle(cost), limits, op, None).await;
            let result = &self.log[self.log.len() - 1].result;
            if result.is_decision() || matches!(result, ObservedResult::Refused(_)) {
                return;
            }
            sleep(SECOND / 100).await;
        }
    }

    /// The decision, if there is one. The caller drops the call after `drop_after` microseconds.
    async fn attempt(
        &mut self,
        work: u64,
        kind: WorkKind,
        limits: &[usize],
        op: Op<'_>,
        drop_after: Option<u64>,
    ) -> Option<Decision> {
        let id = format!("id-{work}");
        let charged: &[usize] =
            if matches!(kind, WorkKind::Settle(_) | WorkKind::Renew) { &[] } else { limits };
        let once = (kind == WorkKind::CheckWithId).then_some(&*id);
        let span = drop_after.map_or(TIMEOUT, Duration::from_micros);
        let start = Instant::now();
        let result =
            timeout(span, self.fixture.subjects.decide(&self.engine, op, charged, once)).await.ok();
        let (end, observed) = (Instant::now(), ObservedResult::of(result.as_ref()));
        let limits = limits.to_vec();
        self.log.push(LedgerAttempt { work, kind, limits, start, end, result: observed });
        result?.ok()
    }
}

/// Latency of PING without an engine.
#[derive(Default)]
struct ProbeLatency {
    longest: Duration,
    late: Vec<(Instant, Instant)>,
}

impl ProbeLatency {
    /// A call with [`DEADLINE`] fails with such round trips: it has several, one after the other.
    const LATE: Duration = Duration::from_millis(20);
    /// A node that is frozen or dead on purpose is no measure of the machine.
    const FAULT: Duration = Duration::from_millis(400);

    fn all(latency: Vec<Self>) -> Self {
        let longest = latency.iter().map(|latency| latency.longest).max().unwrap();
        Self { longest, late: latency.into_iter().flat_map(|latency| latency.late).collect() }
    }

    fn was_late(&self, a: &LedgerAttempt) -> bool {
        self.late.iter().any(|(begun, ended)| a.start <= *ended && a.end >= *begun)
    }
}

/// Sends PING to a node in a loop.
async fn probe(port: u16, over: Arc<AtomicBool>) -> ProbeLatency {
    let mut latency = ProbeLatency::default();
    let mut stream: Option<TcpStream> = None;
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let exchange = async {
            if stream.is_none() {
                stream = Some(TcpStream::connect(("127.0.0.1", port)).await?);
            }
            let stream = stream.as_mut().unwrap();
            stream.write_all(b"PING\r\n").await?;
            stream.read(&mut [0; 64]).await
        };
        let reply = timeout(SECOND, exchange).await;
        let took = begun.elapsed();
        match reply {
            Ok(Ok(1..)) if took < ProbeLatency::FAULT => {
                latency.longest = latency.longest.max(took);
                if took >= ProbeLatency::LATE {
                    latency.late.push((begun, Instant::now()));
                }
            }
            Ok(Ok(1..)) => {}
            _ => stream = None,
        }
        sleep(Duration::from_millis(5)).await;
    }
    latency
}

fn count(log: &[LedgerAttempt], condition: impl Fn(&LedgerAttempt) -> bool) -> u64 {
    log.iter().filter(|attempt| condition(attempt)).count() as u64
}

/// Counts of results by kind of work, with digits removed from error texts.
fn kinds(log: &[LedgerAttempt]) -> String {
    let mut kinds = BTreeMap::<String, u64>::new();
    for attempt in log {
        let what = match attempt.kind {
            WorkKind::Settle(_) => "Settle".to_owned(),
            what => format!("{what:?}"),
        };
        let result: String = match attempt.result.error() {
            Some(why) => why.chars().filter(|c| !c.is_ascii_digit()).take(70).collect(),
            None => format!("{:?}", attempt.result),
        };
        let ambiguous = if matches!(attempt.result, ObservedResult::MaybeCharged(_)) {
            " (ambiguous)"
        } else {
            ""
        };
        *kinds.entry(format!("{what}{ambiguous}: {result}")).or_default() += 1;
    }
    kinds.iter().map(|(kind, count)| format!("\n    {count} x {kind}")).collect()
}
