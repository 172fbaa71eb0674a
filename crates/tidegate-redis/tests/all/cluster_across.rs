//! Calls over subjects on different shards of a Cluster, while one shard fails and the others answer.
//!
//! Every figure is computed from the raw log of what callers were told, from what Redis says was
//! charged in the end, and from a probe that talks to the nodes itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::{cluster, ledger, spread, traffic};
use cluster::{Cluster, PRIMARIES};
use ledger::{Attempt, Due, Said, What, dues};
use spread::{SMALL, SUBJECTS, Spread};
use tidegate::{Cost, Decision, Expiry, HoldId, Micros, Op};
use tidegate_model::Rng;
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use traffic::{long, quantiles, say};

const TASKS: u64 = 32;
const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_millis(100);
/// A busy machine is late by so much. When the probe was late by more, so may everybody be.
const SLACK: Duration = Duration::from_millis(100);
/// Between two calls of one task.
const PAUSE: Duration = Duration::from_millis(40);
/// How long reservations last.
const TTL: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_stands_still_costs_permits_and_gives_none() {
    let cluster = Cluster::start();
    let bench = Bench::new(&cluster);
    let rounds = if long() { 30 } else { 4 };
    let load = Load::begin(&bench).await;
    let mut faults = Vec::new();
    for round in 0..rounds {
        sleep(SECOND * 7 / 10).await;
        let shard = round % PRIMARIES;
        let primary = cluster.primary_of(bench.spread.slot_on(shard));
        let begun = Instant::now();
        cluster.nodes[primary].freeze();
        // Less than it takes the others to replace it.
        sleep(SECOND / 2).await;
        cluster.nodes[primary].thaw();
        faults.push(Fault { shard, begun, ended: Instant::now(), breaks: false });
    }
    sleep(SECOND / 2).await;
    let seen = load.end().await;
    // A machine that was late has had the shard replaced after all.
    let replaced: Vec<usize> = (0..PRIMARIES)
        .filter(|shard| cluster.primary_of(bench.spread.slot_on(*shard)) >= PRIMARIES)
        .collect();
    bench.judge("standing still", &seen, &faults, &replaced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_killed_loses_no_more_than_its_own() {
    let mut cluster = Cluster::start();
    cluster.configure("cluster-require-full-coverage", "no");
    let bench = Bench::new(&cluster);
    let rounds = if long() { 6 } else { 1 };
    let load = Load::begin(&bench).await;
    let (mut faults, mut replaced) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        sleep(SECOND * 3 / 2).await;
        let shard = round % PRIMARIES;
        let slot = bench.spread.slot_on(shard);
        let victim = cluster.primary_of(slot);
        let begun = Instant::now();
        cluster.kill(victim);
        cluster.primary_of(slot);
        cluster.restart(victim);
        cluster.until_settled();
        faults.push(Fault { shard, begun, ended: Instant::now(), breaks: true });
        replaced.push(shard);
    }
    sleep(SECOND).await;
    let seen = load.end().await;
    bench.judge("killed", &seen, &faults, &replaced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_whose_slot_moves_is_neither_lost_nor_doubled() {
    let cluster = Cluster::start();
    let bench = Bench::new(&cluster);
    let span = if long() { 60 * SECOND } else { 5 * SECOND };
    let load = Load::begin(&bench).await;
    let (begun, mut moves, mut faults) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < span {
        let shard = moves % PRIMARIES;
        let slot = bench.spread.slot_on(shard);
        let from = cluster.primary_of(slot);
        let begun = Instant::now();
        cluster.migrate(slot, from, (from + 1) % PRIMARIES);
        faults.push(Fault { shard, begun, ended: Instant::now(), breaks: false });
        moves += 1;
        sleep(SECOND / 50).await;
    }
    let seen = load.end().await;
    assert!(moves > 10, "hardly anything was moved");
    bench.judge(&format!("{moves} moves of slots"), &seen, &faults, &[]).await;
}

/// When a shard failed.
struct Fault {
    shard: usize,
    begun: Instant,
    ended: Instant,
    /// Its connections broke, so that errors came sooner than the deadline.
    breaks: bool,
}

impl Fault {
    fn meets(&self, attempt: &Attempt) -> bool {
        attempt.begun <= self.ended + DEADLINE && attempt.ended >= self.begun
    }
}

/// Who is asked about what.
struct Bench {
    spread: Spread,
    engines: Vec<Arc<Redis>>,
    ports: Vec<u16>,
}

impl Bench {
    fn new(cluster: &Cluster) -> Arc<Self> {
        let engine = |_| Arc::new(Spread::engine(cluster, DEADLINE));
        let ports = cluster.nodes.iter().map(|node| node.port()).collect();
        let engines = (0..4).map(engine).collect();
        Arc::new(Self { spread: Spread::new(cluster), engines, ports })
    }

    /// Two or three limits on different shards, mostly big ones: small ones are soon used up.
    fn draw(rng: &mut Rng) -> Vec<usize> {
        let (first, count) = (rng.below(PRIMARIES as u64) as usize, rng.between(2, 3) as usize);
        let limit = |shard: usize| {
            let subject = shard % PRIMARIES + PRIMARIES * rng.below(4) as usize;
            2 * subject + usize::from(!rng.one_in(4))
        };
        (first..first + count).map(limit).collect()
    }

    /// Holds what was told against what was charged. Of shards that were `replaced`, once for each
    /// time, charges may have been lost.
    async fn judge(&self, what: &str, seen: &Seen, faults: &[Fault], replaced: &[usize]) {
        let Seen { log, probe, ended } = seen;
        // All holds have ended by then, whether anybody ended them or not.
        let longest = TTL + DEADLINE + SECOND;
        let limits: Vec<usize> = (0..2 * SUBJECTS).collect();
        let span = (longest + 2 * SECOND).saturating_sub(ended.elapsed());
        let charged = self.spread.charged(&limits, span).await;
        let broke = |a: &Attempt| faults.iter().any(|fault| fault.breaks && fault.meets(a));
        let dues = dues(log, 2 * SUBJECTS, |denied| denied.took() >= DEADLINE / 2 || broke(denied));
        let [mut over, mut missing, mut lost, mut extra] = [0; 4];
        for (limit, (due, charged)) in dues.iter().zip(&charged).enumerate() {
            let failovers =
                replaced.iter().filter(|shard| **shard == Spread::shard_of(limit)).count();
            let most = if limit % 2 == 0 { SMALL * (1 + failovers as u64) } else { u64::MAX };
            over += due.admitted.saturating_sub(most);
            let short = due.least.saturating_sub(*charged);
            *if failovers > 0 { &mut lost } else { &mut missing } += short;
            extra += charged.saturating_sub(due.most);
        }
        // Those that had nothing to do with the shard that failed.
        let apart = |a: &Attempt| {
            let mut met = faults.iter().filter(|fault| fault.meets(a)).peekable();
            met.peek().is_some()
                && met.all(|f| a.limits.iter().all(|limit| Spread::shard_of(*limit) != f.shard))
        };
        // An attempt that its caller left may keep the next one under its id waiting, whatever fails.
        let left_behind = |a: &Attempt| {
            let is_before = |b: &&Attempt| b.work == a.work && b.begun < a.begun;
            let recent = |b: &&Attempt| b.ended + DEADLINE + SECOND + SLACK >= a.begun;
            let mut before = log.iter().filter(is_before).filter(recent);
            a.what == What::Once && before.any(|b| b.said == Said::Dropped)
        };
        let beside: Vec<Attempt> = log.iter().filter(|a| apart(a)).cloned().collect();
        let failed = beside.iter().filter(|a| a.said.error().is_some() && !probe.was_late(a));
        let (kept_waiting, failed): (Vec<Attempt>, Vec<Attempt>) =
            failed.cloned().partition(|a| left_behind(a));
        let (others, unserved, waited) = (beside.len(), failed.len(), kept_waiting.len());
        let crossed = count(log, |a| a.said.error().is_some_and(|why| why.contains("CROSSSLOT")));
        let refused = count(log, |a| matches!(a.said, Said::Refused(_)));
        let took = log.iter().map(Attempt::took).max().unwrap();
        let [p50, p99, _] = quantiles(&mut log.iter().map(Attempt::took).collect::<Vec<_>>());
        let total = |of: fn(&Due) -> u64| dues.iter().map(of).sum::<u64>();
        say(&format!(
            "across, {what}: {TASKS} tasks, {} attempts (p50 {p50:?} p99 {p99:?} longest {took:?}, \
             the probe's {:?}); permits: {} admitted, {} charged, {} at most; over-admitted {over}, \
             missing {missing}, lost with a primary {lost}, charged beyond what anybody asked \
             {extra}, CROSSSLOT {crossed}, refused {refused}; beside the shard that failed {others} \
             attempts, {unserved} without an answer{} ({waited} more kept waiting by one that was \
             left){}",
            log.len(),
            probe.longest,
            total(|due| due.admitted),
            charged.iter().sum::<u64>(),
            total(|due| due.most),
            kinds(&failed),
            kinds(log)
        ));
        assert_eq!((over, missing, extra, crossed, unserved), (0, 0, 0, 0, 0));
        // With a primary goes what it knew of reservations.
        assert!(refused == 0 || !replaced.is_empty(), "{}", kinds(log));
        assert!(took <= DEADLINE + SLACK + 2 * probe.longest, "a call took {took:?}");
        assert_eq!(self.forgotten_ids(log, replaced), 0, "an id was denied after it was allowed");
        let small_are_used_up = (0..SUBJECTS).filter(|s| charged[2 * s] >= SMALL).count();
        assert!(small_are_used_up > SUBJECTS / 2, "limits that were not reached prove nothing");
        let open = count(log, |a| matches!(a.said, Said::Perhaps(_) | Said::Dropped));
        assert!(open > 10, "hardly anything was in doubt");
    }

    /// Ids whose charge was told, and which were then denied.
    fn forgotten_ids(&self, log: &[Attempt], replaced: &[usize]) -> u64 {
        let mut allowed = BTreeMap::<u64, bool>::new();
        let mut forgotten = 0;
        for a in log.iter().filter(|a| a.what == What::Once) {
            // The id lies with the first subject.
            if replaced.contains(&Spread::shard_of(a.limits[0])) {
                continue;
            }
            let before = allowed.entry(a.work).or_default();
            forgotten += u64::from(*before && a.said == Said::Deny);
            *before |= a.said == Said::Allow;
        }
        forgotten
    }
}

/// What all tasks and the probe have seen.
struct Seen {
    log: Vec<Attempt>,
    probe: Probed,
    ended: Instant,
}

/// Tasks that ask without end, and a probe.
struct Load {
    tasks: JoinSet<Vec<Attempt>>,
    probes: JoinSet<Probed>,
    over: Arc<AtomicBool>,
}

impl Load {
    async fn begin(bench: &Arc<Bench>) -> Self {
        for engine in &bench.engines {
            let all: Vec<usize> = (0..SUBJECTS).map(|subject| 2 * subject).collect();
            let peek = async {
                while bench.spread.ask(engine, Op::Peek, &all, None).await.is_err() {
                    sleep(SECOND / 100).await;
                }
            };
            timeout(PATIENCE, peek).await.expect("no answer from a cluster that works");
        }
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let worker = Worker {
                bench: Arc::clone(bench),
                engine: Arc::clone(&bench.engines[task as usize % bench.engines.len()]),
                rng: Rng::new(task),
                log: Vec::new(),
            };
            tasks.spawn(worker.run(task, Arc::clone(&over)));
        }
        let mut probes = JoinSet::new();
        for port in &bench.ports {
            probes.spawn(probe(*port, Arc::clone(&over)));
        }
        Self { tasks, probes, over }
    }

    async fn end(self) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        let logs = timeout(PATIENCE, self.tasks.join_all()).await.expect("a task is stuck");
        let ended = Instant::now();
        let probed = timeout(PATIENCE, self.probes.join_all()).await.expect("a probe is stuck");
        let mut log = logs.concat();
        log.sort_by_key(|attempt| attempt.begun);
        Seen { log, probe: Probed::all(probed), ended }
    }
}

struct Worker {
    bench: Arc<Bench>,
    engine: Arc<Redis>,
    rng: Rng,
    log: Vec<Attempt>,
}

impl Worker {
    /// A half checks, a quarter reserves, a quarter goes by ids.
    async fn run(mut self, task: u64, over: Arc<AtomicBool>) -> Vec<Attempt> {
        static WORKS: AtomicU64 = AtomicU64::new(0);
        while !over.load(Ordering::Relaxed) {
            let work = WORKS.fetch_add(1, Ordering::Relaxed);
            let limits = Bench::draw(&mut self.rng);
            match task % 4 {
                0 => self.reserve(work, &limits).await,
                1 => self.once(work, &limits).await,
                _ => {
                    // Some callers go away.
                    let hurry = self.rng.one_in(8).then(|| self.rng.below(4_000));
                    self.attempt(work, What::Check, &limits, Op::Check, hurry).await;
                }
            }
            sleep(PAUSE).await;
        }
        self.log
    }

    /// Asks until there is an answer, and sometimes once more.
    async fn once(&mut self, work: u64, limits: &[usize]) {
        let begun = Instant::now();
        while begun.elapsed() < 3 * SECOND {
            let hurry = self.rng.one_in(8).then(|| self.rng.below(6_000));
            self.attempt(work, What::Once, limits, Op::Check, hurry).await;
            if self.log[self.log.len() - 1].said.is_answer() && !self.rng.one_in(4) {
                return;
            }
            sleep(SECOND / 100).await;
        }
    }

    /// Commits, cancels, renews or forgets what it reserves.
    async fn reserve(&mut self, work: u64, limits: &[usize]) {
        let expiry = if self.rng.one_in(2) { Expiry::Charge } else { Expiry::Release };
        let op = Op::Hold { id: HoldId::random().unwrap(), ttl: TTL.into(), expiry };
        let hurry = self.rng.one_in(8).then(|| self.rng.below(4_000));
        let made = self.attempt(work, What::Hold(expiry), limits, op, hurry).await;
        let Some(id) = made.and_then(|decision| decision.hold()) else { return };
        if self.rng.one_in(8) {
            return;
        }
        sleep(Duration::from_millis(self.rng.below(40))).await;
        if self.rng.one_in(3) {
            let ttl: Micros = TTL.into();
            self.attempt(work, What::Renew, limits, Op::Renew { id, ttl }, None).await;
        }
        let cost = self.rng.below(2);
        let op = Op::Settle { id, cost: Some(Cost::new(cost).unwrap()) };
        let begun = Instant::now();
        while begun.elapsed() < TTL / 2 {
            self.attempt(work, What::Settle(cost), limits, op, None).await;
            let said = &self.log[self.log.len() - 1].said;
            if said.is_answer() || matches!(said, Said::Refused(_)) {
                return;
            }
            sleep(SECOND / 100).await;
        }
    }

    /// The decision, if there is one; the caller goes away after so many microseconds.
    async fn attempt(
        &mut self,
        work: u64,
        what: What,
        limits: &[usize],
        op: Op,
        hurry: Option<u64>,
    ) -> Option<Decision> {
        let id = format!("id-{work}");
        let asked: &[usize] =
            if matches!(what, What::Settle(_) | What::Renew) { &[] } else { limits };
        let once = (what == What::Once).then_some(&*id);
        let span = hurry.map_or(PATIENCE, Duration::from_micros);
        let begun = Instant::now();
        let answer = timeout(span, self.bench.spread.ask(&self.engine, op, asked, once)).await.ok();
        let (ended, said) = (Instant::now(), Said::of(answer.as_ref()));
        let limits = limits.to_vec();
        self.log.push(Attempt { work, what, limits, begun, ended, said });
        answer?.ok()
    }
}

/// How late a bare question was answered.
#[derive(Default)]
struct Probed {
    longest: Duration,
    late: Vec<(Instant, Instant)>,
}

impl Probed {
    /// What a call of [`DEADLINE`] does not survive: it is several of these, one after the other.
    const LATE: Duration = Duration::from_millis(20);
    /// One that is frozen or dead on purpose says nothing about the machine.
    const FAULT: Duration = Duration::from_millis(400);

    fn all(probed: Vec<Self>) -> Self {
        let longest = probed.iter().map(|probed| probed.longest).max().unwrap();
        Self { longest, late: probed.into_iter().flat_map(|probed| probed.late).collect() }
    }

    fn was_late(&self, a: &Attempt) -> bool {
        self.late.iter().any(|(begun, ended)| a.begun <= *ended && a.ended >= *begun)
    }
}

/// Asks a node for nothing, again and again.
async fn probe(port: u16, over: Arc<AtomicBool>) -> Probed {
    let mut probed = Probed::default();
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
        let answer = timeout(SECOND, exchange).await;
        let took = begun.elapsed();
        match answer {
            Ok(Ok(1..)) if took < Probed::FAULT => {
                probed.longest = probed.longest.max(took);
                if took >= Probed::LATE {
                    probed.late.push((begun, Instant::now()));
                }
            }
            Ok(Ok(1..)) => {}
            _ => stream = None,
        }
        sleep(Duration::from_millis(5)).await;
    }
    probed
}

fn count(log: &[Attempt], so: impl Fn(&Attempt) -> bool) -> u64 {
    log.iter().filter(|attempt| so(attempt)).count() as u64
}

/// What was said, and how often, without what differs from one to the next.
fn kinds(log: &[Attempt]) -> String {
    let mut kinds = BTreeMap::<String, u64>::new();
    for attempt in log {
        let what = match attempt.what {
            What::Settle(_) => "Settle".to_owned(),
            what => format!("{what:?}"),
        };
        let said: String = match attempt.said.error() {
            Some(why) => why.chars().filter(|c| !c.is_ascii_digit()).take(70).collect(),
            None => format!("{:?}", attempt.said),
        };
        let sure = if matches!(attempt.said, Said::Perhaps(_)) { " (perhaps)" } else { "" };
        *kinds.entry(format!("{what}{sure}: {said}")).or_default() += 1;
    }
    kinds.iter().map(|(kind, count)| format!("\n    {count} x {kind}")).collect()
}
