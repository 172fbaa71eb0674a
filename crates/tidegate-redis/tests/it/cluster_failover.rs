//! Primaries of a Redis Cluster are killed, and replaced by planned failovers, under load. All
//! tasks recover.
//!
//! Every figure is computed from the log of decisions as their callers observed them, and from a
//! probe that connects to the nodes directly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::cluster::{PRIMARIES, RedisCluster};
use testkit::engine::TEST_SECRET;
use testkit::ledger::ObservedResult;
use testkit::load::{BackgroundLoad, LoadEntry, count, errors, hash_tag, is_long_run, quantiles};
use testkit::timing::{HANG, compare_with_goal};
use tidegate::{Limiter, Rule};
use tidegate_model::print_line;
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

const TASKS: usize = 64;
const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = HANG;
/// Pause between two calls of one task.
const PAUSE: Duration = Duration::from_millis(40);
/// Nothing recovers within a test, so that every admission counts until its end.
const SMALL: u64 = 20;
const SMALL_LIMIT: &str = "fixed-window 20/365d first-hit";
const BIG_LIMIT: &str = "fixed-window 1000000/365d first-hit";
/// Goal of the time from the shard's recovery to a task's first decision, for 99 of 100.
const MAX_RECOVERY: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_primary_was_killed_all_tasks_recover() {
    let mut cluster = RedisCluster::start();
    let subjects = ShardSubjects::new(&cluster);
    let [_, reader] = limiters(&cluster, TIMEOUT);
    let limiters = limiters(&cluster, Duration::from_millis(25));
    until_all_decided(&limiters, &subjects.names).await;

    let rounds: usize = if is_long_run() { 10 } else { 3 };
    let mut audit = ChargeAudit::new(&reader, &subjects).await;
    let (mut log, mut all_waits, mut longest_gap) = (Vec::new(), Vec::new(), Duration::ZERO);
    for round in 0..rounds {
        // In every second round, Redis lets the other shards go on.
        let coverage = ["yes", "no"][round % 2];
        cluster.configure("cluster-require-full-coverage", coverage);
        let shard = round % PRIMARIES;
        let primaries = subjects.primaries(&cluster);
        let victim = primaries[shard];

        let load = BackgroundLoad::start(&limiters, &subjects.names, PAUSE);
        let probes: Vec<WriteProbe> = (0..PRIMARIES)
            .map(|shard| WriteProbe::begin(&cluster, primaries[shard], &subjects.probe_key(shard)))
            .collect();
        sleep(SECOND / 2).await;
        let killed = Instant::now();
        cluster.kill(victim);
        while !probes[shard].has_recovered() {
            sleep(SECOND / 100).await;
            assert!(killed.elapsed() < TIMEOUT, "no replica takes over");
        }
        // The other shards may have been down, too, and recover a moment later.
        sleep(3 * SECOND / 2).await;
        until_all_decided(&limiters, &subjects.names).await;
        sleep(SECOND / 2).await;
        let mut writable = Vec::new();
        for probe in probes {
            writable.push(probe.end().await);
        }
        let calls = load.stop().await;

        let (mut waits, mut stuck) = (Vec::new(), 0);
        for (subject, shard) in subjects.shards.iter().enumerate() {
            let Some(recovery) = writable[*shard].recovery_after(killed) else { continue };
            let good =
                |e: &&LoadEntry| e.subject == subject && e.is_decision() && e.end >= recovery;
            match calls.iter().filter(good).map(|e| e.end).min() {
                Some(first) => {
                    waits.push(first - writable[*shard].recovery_before(first).max(recovery))
                }
                None => stuck += 1,
            }
        }
        let others = (0..PRIMARIES).filter(|other| *other != shard);
        let bare = others.map(|other| writable[other].longest_silence()).max().unwrap();
        let gap = longest_silence(&calls, &subjects, |other| other != shard);
        if coverage == "no" {
            longest_gap = longest_gap.max(gap);
            // A busy machine delays the probe as well.
            compare_with_goal("silence on other shards", gap, MAX_RECOVERY + 2 * bare);
        }
        let [p50, p99, max] = quantiles(&mut waits);
        let outage = writable[shard].recovery_after(killed).unwrap() - killed;
        print_line(&format!(
            "cluster: kill {} (full coverage {coverage}): down for {outage:?}, {} calls, {} without \
             a decision; first decision after redis recovered: p50 {p50:?} p99 {p99:?} max {max:?}; \
             longest silence on other shards {gap:?}, of the probe there {bare:?}; {stuck} stuck{}",
            round + 1,
            calls.len(),
            count(&calls, |e| !e.is_decision()),
            errors(&calls)
        ));
        assert_eq!(stuck, 0, "a task does not recover");
        all_waits.extend(waits);
        audit.judge(&calls, &subjects, Some(shard)).await;
        log.extend(calls);

        cluster.restart(victim);
        cluster.until_settled();
    }

    let [p50, p99, max] = quantiles(&mut all_waits);
    let crossed = count(
        &log,
        |e| matches!(&e.result, ObservedResult::NotCharged(why) if why.contains("CROSSSLOT")),
    );
    let over = audit.over_small(&log, rounds as u64);
    let took = log.iter().map(|e| e.end - e.start).max().unwrap();
    print_line(&format!(
        "cluster: {rounds} kills, {TASKS} tasks, {} calls: first decision after redis recovered p50 \
         {p50:?} p99 {p99:?} max {max:?}; longest call {took:?}; 0 stuck, over-admitted {over}, \
         CROSSSLOT {crossed}, charged twice {}, charges lost with a primary {}; longest silence on \
         other shards without full coverage {longest_gap:?}",
        log.len(),
        audit.doubled,
        audit.lost,
    ));
    assert_eq!((over, crossed, audit.doubled, audit.missing), (0, 0, 0, 0));
    compare_with_goal("first decision after redis recovered, p99", p99, MAX_RECOVERY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_causes_no_errors() {
    let cluster = RedisCluster::start();
    let subjects = ShardSubjects::new(&cluster);
    let [_, reader] = limiters(&cluster, TIMEOUT);
    // Redis may pause all writes for seconds.
    let limiters = limiters(&cluster, TIMEOUT);
    until_all_decided(&limiters, &subjects.names).await;
    let mut audit = ChargeAudit::new(&reader, &subjects).await;
    let rounds = if is_long_run() { 30 } else { 6 };
    let load = BackgroundLoad::start(&limiters, &subjects.names, PAUSE);
    for round in 0..rounds {
        let primary = subjects.primaries(&cluster)[round % PRIMARIES];
        let replica = cluster.replicas_of(primary)[0];
        let begun = Instant::now();
        cluster.fail_over_to(replica);
        let slot = subjects.slots[round % PRIMARIES];
        let mut requested = begun;
        while cluster.primary_of(slot) != replica {
            sleep(SECOND / 100).await;
            assert!(begun.elapsed() < TIMEOUT, "redis does not complete the failover");
            // Redis gives up after five seconds if votes were lost.
            if requested.elapsed() > 6 * SECOND {
                requested = Instant::now();
                cluster.fail_over_to(replica);
            }
        }
        cluster.until_settled();
    }
    let log = load.stop().await;
    audit.judge(&log, &subjects, None).await;
    let over = audit.over_small(&log, 0);
    let failed = count(&log, |e| !e.is_decision());
    let took = log.iter().map(|e| e.end - e.start).max().unwrap();
    print_line(&format!(
        "cluster: {rounds} planned failovers, {TASKS} tasks, {} calls: {failed} without a decision, \
         longest call {took:?}, over-admitted {over}, charged twice {}, missing {}{}",
        log.len(),
        audit.doubled,
        audit.missing,
        errors(&log)
    ));
    assert_eq!((failed, over, audit.doubled, audit.missing), (0, 0, 0, 0));
    compare_with_goal("longest call during a planned failover", took, SECOND);
}

fn limiters(cluster: &RedisCluster, deadline: Duration) -> [Limiter; 2] {
    let engine =
        Redis::builder(&cluster.url()).secret(TEST_SECRET).deadline(deadline).build().unwrap();
    let engine = Arc::new(engine);
    [("small", SMALL_LIMIT), ("big", BIG_LIMIT)].map(|(name, limit)| {
        let rule = Rule::new(name, [limit.parse().unwrap()]).unwrap();
        Limiter::with_rules(Arc::clone(&engine), [rule]).unwrap()
    })
}

async fn until_all_decided(limiters: &[Limiter], subjects: &[String]) {
    let all = async {
        for subject in subjects {
            for limiter in limiters {
                while limiter.check(subject).peek().await.is_err() {
                    sleep(SECOND / 100).await;
                }
            }
        }
    };
    timeout(TIMEOUT, all).await.expect("no decision of a healthy cluster");
}

/// The subjects of the calls, and their shards.
struct ShardSubjects {
    names: Vec<String>,
    shards: Vec<usize>,
    /// A slot of each shard, and a subject on it.
    slots: [u16; PRIMARIES],
    samples: [usize; PRIMARIES],
}

impl ShardSubjects {
    fn new(cluster: &RedisCluster) -> Self {
        let names: Vec<String> = (0..TASKS).map(|nth| format!("user-{nth}")).collect();
        let slots: Vec<u16> =
            names.iter().map(|name| cluster.slot_of(&format!("{{{}}}", hash_tag(name)))).collect();
        let shard =
            |slot: &u16| usize::from(*slot) * PRIMARIES / usize::from(testkit::cluster::SLOTS);
        let shards: Vec<usize> = slots.iter().map(shard).collect();
        let samples: [usize; PRIMARIES] =
            std::array::from_fn(|nth| shards.iter().position(|shard| *shard == nth).unwrap());
        Self { names, slots: samples.map(|subject| slots[subject]), shards, samples }
    }

    /// The current primary of each shard.
    fn primaries(&self, cluster: &RedisCluster) -> Vec<usize> {
        self.slots.iter().map(|slot| cluster.primary_of(*slot)).collect()
    }

    fn probe_key(&self, shard: usize) -> String {
        format!("probe:{{{}}}", hash_tag(&self.names[self.samples[shard]]))
    }
}

/// Writes a key of a shard every millisecond, directly to its primary and replicas.
struct WriteProbe {
    over: Arc<AtomicBool>,
    recovered: Arc<AtomicBool>,
    tasks: JoinHandle<Vec<Instant>>,
}

impl WriteProbe {
    fn begin(cluster: &RedisCluster, primary: usize, key: &str) -> Self {
        let mut candidates = cluster.replicas_of(primary);
        candidates.push(primary);
        let (over, recovered) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for candidate in candidates {
            let was_primary = candidate == primary;
            let port = cluster.nodes[candidate].port();
            let words = format!("SET {key} x PX 60000\r\n");
            let (over, recovered) = (Arc::clone(&over), Arc::clone(&recovered));
            tasks.spawn(async move {
                let mut log = Vec::new();
                let mut stream = None;
                while !over.load(Ordering::Relaxed) {
                    let written = write(&mut stream, port, &words).await;
                    if written && !was_primary {
                        recovered.store(true, Ordering::Relaxed);
                    }
                    if written {
                        log.push(Instant::now());
                    }
                    sleep(Duration::from_millis(1)).await;
                }
                log
            });
        }
        let tasks = tokio::spawn(async move { tasks.join_all().await.concat() });
        Self { over, recovered, tasks }
    }

    /// A replica has become a primary.
    fn has_recovered(&self) -> bool {
        self.recovered.load(Ordering::Relaxed)
    }

    async fn end(self) -> WriteLog {
        self.over.store(true, Ordering::Relaxed);
        let mut at = self.tasks.await.unwrap();
        at.sort_unstable();
        WriteLog { at }
    }
}

/// Instants at which a shard accepted writes of the probe.
struct WriteLog {
    at: Vec<Instant>,
}

impl WriteLog {
    /// A pause of this length is an outage: of the server, or of the machine.
    const OUTAGE: Duration = Duration::from_millis(50);

    /// The first write after the first outage that ended after `instant`, if there was one.
    fn recovery_after(&self, instant: Instant) -> Option<Instant> {
        let mut pairs = self.at.windows(2);
        pairs.find(|p| p[1] > instant && p[1] - p[0] >= Self::OUTAGE).map(|p| p[1])
    }

    /// The first write after the last outage that ended before `instant`.
    fn recovery_before(&self, instant: Instant) -> Instant {
        let outages = self.at.windows(2).filter(|p| p[1] - p[0] >= Self::OUTAGE);
        let mut ended = outages.map(|p| p[1]).filter(|end| *end <= instant);
        ended.next_back().unwrap_or(self.at[0])
    }

    fn longest_silence(&self) -> Duration {
        self.at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(TIMEOUT)
    }
}

async fn write(stream: &mut Option<TcpStream>, port: u16, words: &str) -> bool {
    let exchange = async {
        if stream.is_none() {
            *stream = Some(TcpStream::connect(("127.0.0.1", port)).await?);
        }
        let stream = stream.as_mut().unwrap();
        stream.write_all(words.as_bytes()).await?;
        let mut reply = [0; 512];
        let len = stream.read(&mut reply).await?;
        if len == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(reply[0] == b'+') }
    };
    let result: Result<std::io::Result<bool>, _> = timeout(SECOND, exchange).await;
    match result {
        Ok(Ok(written)) => written,
        _ => {
            *stream = None;
            false
        }
    }
}

/// The longest time between two decisions for one subject, on these shards.
fn longest_silence(
    log: &[LoadEntry],
    subjects: &ShardSubjects,
    shards: impl Fn(usize) -> bool,
) -> Duration {
    let mut longest = Duration::ZERO;
    for subject in (0..TASKS).filter(|subject| shards(subjects.shards[*subject])) {
        let good = log.iter().filter(|e| e.subject == subject && e.is_decision());
        let ends: Vec<Instant> = good.map(|e| e.end).collect();
        let gaps = ends.windows(2).map(|pair| pair[1] - pair[0]);
        longest = gaps.max().unwrap_or(Duration::MAX).max(longest);
    }
    longest
}

/// Compares the charges of the big limit in Redis with what callers observed.
struct ChargeAudit<'a> {
    reader: &'a Limiter,
    charged: Vec<u64>,
    /// Charged above admissions and ambiguous errors.
    doubled: u64,
    /// Admitted and not charged, on shards that lost no primary.
    missing: u64,
    /// Admitted and not charged, on shards that lost a primary.
    lost: u64,
}

impl<'a> ChargeAudit<'a> {
    async fn new(reader: &'a Limiter, subjects: &ShardSubjects) -> Self {
        let charged = Self::read(reader, subjects).await;
        Self { reader, charged, doubled: 0, missing: 0, lost: 0 }
    }

    async fn read(reader: &Limiter, subjects: &ShardSubjects) -> Vec<u64> {
        let mut charged = Vec::new();
        for name in &subjects.names {
            charged.push(reader.inspect(name).await.unwrap()[0].standing.used);
        }
        charged
    }

    async fn judge(&mut self, log: &[LoadEntry], subjects: &ShardSubjects, lossy: Option<usize>) {
        let charged = Self::read(self.reader, subjects).await;
        for (subject, shard) in subjects.shards.iter().enumerate() {
            let big = |e: &LoadEntry| e.subject == subject && e.limiter == 1;
            let admitted = count(log, |e| big(e) && e.result == ObservedResult::Allow);
            let ambiguous =
                count(log, |e| big(e) && matches!(e.result, ObservedResult::MaybeCharged(_)));
            let before = self.charged[subject];
            self.doubled += charged[subject].saturating_sub(before + admitted + ambiguous);
            let lost = (before + admitted).saturating_sub(charged[subject]);
            *if lossy == Some(*shard) { &mut self.lost } else { &mut self.missing } += lost;
        }
        self.charged = charged;
    }

    /// Admissions of the small limit beyond what this many failovers may lose.
    fn over_small(&self, log: &[LoadEntry], failovers: u64) -> u64 {
        let admitted = |subject: usize| {
            count(log, |e| {
                e.subject == subject && e.limiter == 0 && e.result == ObservedResult::Allow
            })
        };
        let bound = (1 + failovers) * SMALL;
        (0..TASKS).map(|subject| admitted(subject).saturating_sub(bound)).sum()
    }
}
