//! Primaries of a Cluster are killed, and replaced in good order, under load. Everybody recovers.
//!
//! Every figure is computed from the raw log of the decisions as their callers saw them, and from a
//! probe that talks to the nodes itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{cluster, traffic};
use cluster::{Cluster, PRIMARIES};
use tidegate::{Limiter, Rule};
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use traffic::{Entry, SECRET, Said, Traffic, count, errors, long, quantiles, say, tag};

const TASKS: usize = 64;
const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two calls of one task.
const PAUSE: Duration = Duration::from_millis(40);
/// Nothing of it comes back within a test, so that every admission counts for ever.
const SMALL: u64 = 20;
const SMALL_LIMIT: &str = "fixed-window 20/365d first-hit";
const BIG_LIMIT: &str = "fixed-window 1000000/365d first-hit";
/// A task's first good answer comes so long after the server's, 99 times of a hundred.
const PROMISED: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_primary_was_killed_everybody_recovers() {
    let mut cluster = Cluster::start();
    let subjects = Subjects::new(&cluster);
    let [_, teller] = limiters(&cluster, PATIENCE);
    let limiters = limiters(&cluster, Duration::from_millis(25));
    until_all_answer(&limiters, &subjects.names).await;

    let rounds: usize = if long() { 10 } else { 3 };
    let mut ledger = Ledger::new(&teller, &subjects).await;
    let (mut log, mut all_waits, mut longest_gap) = (Vec::new(), Vec::new(), Duration::ZERO);
    for round in 0..rounds {
        // Every second time, Redis lets the shards that are whole go on.
        let coverage = ["yes", "no"][round % 2];
        cluster.configure("cluster-require-full-coverage", coverage);
        let shard = round % PRIMARIES;
        let primaries = subjects.primaries(&cluster);
        let victim = primaries[shard];

        let traffic = Traffic::begin(&limiters, &subjects.names, PAUSE);
        let probes: Vec<Probe> = (0..PRIMARIES)
            .map(|shard| Probe::begin(&cluster, primaries[shard], &subjects.probe_key(shard)))
            .collect();
        sleep(SECOND / 2).await;
        let killed = Instant::now();
        cluster.kill(victim);
        while !probes[shard].has_recovered() {
            sleep(SECOND / 100).await;
            assert!(killed.elapsed() < 2 * PATIENCE, "no replica takes over");
        }
        // The others may have been down too, and are back a moment later.
        sleep(3 * SECOND / 2).await;
        let mut writable = Vec::new();
        for probe in probes {
            writable.push(probe.end().await);
        }
        let seen = traffic.end().await;

        let (mut waits, mut stuck) = (Vec::new(), 0);
        for (subject, shard) in subjects.shards.iter().enumerate() {
            let Some(back) = writable[*shard].back_after(killed) else { continue };
            let good = |e: &&Entry| e.subject == subject && e.is_good() && e.ended >= back;
            match seen.iter().filter(good).map(|e| e.ended).min() {
                Some(first) => waits.push(first - writable[*shard].back_before(first).max(back)),
                None => stuck += 1,
            }
        }
        let others = (0..PRIMARIES).filter(|other| *other != shard);
        let bare = others.map(|other| writable[other].longest_silence()).max().unwrap();
        let gap = longest_silence(&seen, &subjects, |other| other != shard);
        if coverage == "no" {
            longest_gap = longest_gap.max(gap);
            // A machine that is late for the probe is late for us.
            assert!(gap <= PROMISED + 2 * bare, "{gap:?}, and {bare:?} for the probe");
        }
        let [p50, p99, max] = quantiles(&mut waits);
        let outage = writable[shard].back_after(killed).unwrap() - killed;
        say(&format!(
            "cluster: kill {} (full coverage {coverage}): down for {outage:?}, {} calls, {} without \
             an answer; first good answer after redis's: p50 {p50:?} p99 {p99:?} max {max:?}; \
             longest silence on other shards {gap:?}, of the probe there {bare:?}; {stuck} stuck{}",
            round + 1,
            seen.len(),
            count(&seen, |e| !e.is_good()),
            errors(&seen)
        ));
        assert_eq!(stuck, 0, "a task does not recover");
        all_waits.extend(waits);
        ledger.judge(&seen, &subjects, Some(shard)).await;
        log.extend(seen);

        cluster.restart(victim);
        cluster.until_settled();
    }

    let [p50, p99, max] = quantiles(&mut all_waits);
    let crossed =
        count(&log, |e| matches!(&e.said, Said::Nothing(why) if why.contains("CROSSSLOT")));
    let over = ledger.over_small(&log, rounds as u64);
    let took = log.iter().map(|e| e.ended - e.begun).max().unwrap();
    say(&format!(
        "cluster: {rounds} kills, {TASKS} tasks, {} calls: first good answer after redis's p50 \
         {p50:?} p99 {p99:?} max {max:?}; longest call {took:?}; 0 stuck, over-admitted {over}, \
         CROSSSLOT {crossed}, charged twice {}, charges lost with a primary {}; longest silence on \
         other shards without full coverage {longest_gap:?}",
        log.len(),
        ledger.doubled,
        ledger.lost,
    ));
    assert_eq!((over, crossed, ledger.doubled, ledger.missing), (0, 0, 0, 0));
    assert!(p99 <= PROMISED, "{p99:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_is_not_noticed() {
    let cluster = Cluster::start();
    let subjects = Subjects::new(&cluster);
    let [_, teller] = limiters(&cluster, PATIENCE);
    let limiters = limiters(&cluster, SECOND);
    until_all_answer(&limiters, &subjects.names).await;
    let mut ledger = Ledger::new(&teller, &subjects).await;
    let rounds = if long() { 30 } else { 6 };
    let traffic = Traffic::begin(&limiters, &subjects.names, PAUSE);
    let mut slow: Vec<(Instant, Instant)> = Vec::new();
    for round in 0..rounds {
        let primary = subjects.primaries(&cluster)[round % PRIMARIES];
        let replica = cluster.replicas_of(primary)[0];
        let begun = Instant::now();
        cluster.fail_over_to(replica);
        let slot = subjects.slots[round % PRIMARIES];
        let mut asked = begun;
        while cluster.primary_of(slot) != replica {
            sleep(SECOND / 100).await;
            assert!(begun.elapsed() < 3 * PATIENCE, "redis does not carry it out");
            // It gives up after five seconds if votes were lost.
            if asked.elapsed() > 6 * SECOND {
                asked = Instant::now();
                cluster.fail_over_to(replica);
            }
        }
        // Meanwhile Redis holds all writes back, and no deadline of ours helps against that.
        if begun.elapsed() > SECOND / 2 {
            slow.push((begun, Instant::now() + SECOND / 10));
        }
        cluster.until_settled();
    }
    let log = traffic.end().await;
    ledger.judge(&log, &subjects, None).await;
    let over = ledger.over_small(&log, 0);
    let excused =
        |e: &Entry| slow.iter().any(|(begun, ended)| e.begun <= *ended && e.ended >= *begun);
    let failed = count(&log, |e| !e.is_good() && !excused(e));
    let took = log.iter().map(|e| e.ended - e.begun).max().unwrap();
    say(&format!(
        "cluster: {rounds} planned failovers, {TASKS} tasks, {} calls: {failed} without an answer \
         ({} more in {} that took redis itself longer than 500 ms), longest call {took:?}, \
         over-admitted {over}, charged twice {}, missing {}{}",
        log.len(),
        count(&log, |e| !e.is_good() && excused(e)),
        slow.len(),
        ledger.doubled,
        ledger.missing,
        errors(&log)
    ));
    assert_eq!((failed, over, ledger.doubled, ledger.missing), (0, 0, 0, 0));
    assert!(slow.len() < rounds, "no failover was quick, which proves nothing");
}

fn limiters(cluster: &Cluster, deadline: Duration) -> [Limiter; 2] {
    let engine = Redis::builder(&cluster.url()).secret(SECRET).deadline(deadline).build().unwrap();
    let engine = Arc::new(engine);
    [("small", SMALL_LIMIT), ("big", BIG_LIMIT)].map(|(name, limit)| {
        let rule = Rule::new(name, [limit.parse().unwrap()]).unwrap();
        Limiter::with_rules(Arc::clone(&engine), [rule]).unwrap()
    })
}

async fn until_all_answer(limiters: &[Limiter], subjects: &[String]) {
    let all = async {
        for subject in subjects {
            for limiter in limiters {
                while limiter.check(subject).peek().await.is_err() {
                    sleep(SECOND / 100).await;
                }
            }
        }
    };
    timeout(2 * PATIENCE, all).await.expect("no answer from a cluster that works");
}

/// Who is asked about, and on which shard each lies.
struct Subjects {
    names: Vec<String>,
    shards: Vec<usize>,
    /// A slot of each shard, and a subject on it.
    slots: [u16; PRIMARIES],
    samples: [usize; PRIMARIES],
}

impl Subjects {
    fn new(cluster: &Cluster) -> Self {
        let names: Vec<String> = (0..TASKS).map(|nth| format!("user-{nth}")).collect();
        let slots: Vec<u16> =
            names.iter().map(|name| cluster.slot_of(&format!("{{{}}}", tag(name)))).collect();
        let shard = |slot: &u16| usize::from(*slot) * PRIMARIES / usize::from(cluster::SLOTS);
        let shards: Vec<usize> = slots.iter().map(shard).collect();
        let samples: [usize; PRIMARIES] =
            std::array::from_fn(|nth| shards.iter().position(|shard| *shard == nth).unwrap());
        Self { names, slots: samples.map(|subject| slots[subject]), shards, samples }
    }

    /// Who has each shard now.
    fn primaries(&self, cluster: &Cluster) -> Vec<usize> {
        self.slots.iter().map(|slot| cluster.primary_of(*slot)).collect()
    }

    fn probe_key(&self, shard: usize) -> String {
        format!("probe:{{{}}}", tag(&self.names[self.samples[shard]]))
    }
}

/// Writes a key of a shard every millisecond, straight to those who may have it.
struct Probe {
    over: Arc<AtomicBool>,
    recovered: Arc<AtomicBool>,
    tasks: JoinHandle<Vec<Instant>>,
}

impl Probe {
    fn begin(cluster: &Cluster, primary: usize, key: &str) -> Self {
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

    async fn end(self) -> Writable {
        self.over.store(true, Ordering::Relaxed);
        let mut at = self.tasks.await.unwrap();
        at.sort_unstable();
        Writable { at }
    }
}

/// When a shard took writes from the probe.
struct Writable {
    at: Vec<Instant>,
}

impl Writable {
    /// A pause of this length is an outage: of the server, or of the machine.
    const OUTAGE: Duration = Duration::from_millis(50);

    /// The first write after the first outage that ended after `instant`, if there was one.
    fn back_after(&self, instant: Instant) -> Option<Instant> {
        let mut pairs = self.at.windows(2);
        pairs.find(|p| p[1] > instant && p[1] - p[0] >= Self::OUTAGE).map(|p| p[1])
    }

    /// The first write after the last outage that ended before `instant`.
    fn back_before(&self, instant: Instant) -> Instant {
        let outages = self.at.windows(2).filter(|p| p[1] - p[0] >= Self::OUTAGE);
        let mut ended = outages.map(|p| p[1]).filter(|back| *back <= instant);
        ended.next_back().unwrap_or(self.at[0])
    }

    fn longest_silence(&self) -> Duration {
        self.at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(PATIENCE)
    }
}

async fn write(stream: &mut Option<TcpStream>, port: u16, words: &str) -> bool {
    let exchange = async {
        if stream.is_none() {
            *stream = Some(TcpStream::connect(("127.0.0.1", port)).await?);
        }
        let stream = stream.as_mut().unwrap();
        stream.write_all(words.as_bytes()).await?;
        let mut answer = [0; 512];
        let len = stream.read(&mut answer).await?;
        if len == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer[0] == b'+') }
    };
    let answer: Result<std::io::Result<bool>, _> = timeout(SECOND, exchange).await;
    match answer {
        Ok(Ok(written)) => written,
        _ => {
            *stream = None;
            false
        }
    }
}

/// The longest time between two good answers to one subject, on these shards.
fn longest_silence(log: &[Entry], subjects: &Subjects, shards: impl Fn(usize) -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    for subject in (0..TASKS).filter(|subject| shards(subjects.shards[*subject])) {
        let good = log.iter().filter(|e| e.subject == subject && e.is_good());
        let ends: Vec<Instant> = good.map(|e| e.ended).collect();
        let gaps = ends.windows(2).map(|pair| pair[1] - pair[0]);
        longest = gaps.max().unwrap_or(Duration::MAX).max(longest);
    }
    longest
}

/// What Redis says was charged to the big limit, held against what callers were told.
struct Ledger<'a> {
    teller: &'a Limiter,
    charged: Vec<u64>,
    /// Charged beyond what was admitted and what nobody knows.
    doubled: u64,
    /// Admitted and not charged, where no primary was lost.
    missing: u64,
    /// The same where one was.
    lost: u64,
}

impl<'a> Ledger<'a> {
    async fn new(teller: &'a Limiter, subjects: &Subjects) -> Self {
        let charged = Self::read(teller, subjects).await;
        Self { teller, charged, doubled: 0, missing: 0, lost: 0 }
    }

    async fn read(teller: &Limiter, subjects: &Subjects) -> Vec<u64> {
        let mut charged = Vec::new();
        for name in &subjects.names {
            charged.push(teller.inspect(name).await.unwrap()[0].standing.used);
        }
        charged
    }

    async fn judge(&mut self, log: &[Entry], subjects: &Subjects, lossy: Option<usize>) {
        let charged = Self::read(self.teller, subjects).await;
        for (subject, shard) in subjects.shards.iter().enumerate() {
            let big = |e: &Entry| e.subject == subject && e.limiter == 1;
            let admitted = count(log, |e| big(e) && e.said == Said::Allow);
            let perhaps = count(log, |e| big(e) && matches!(e.said, Said::Perhaps(_)));
            let before = self.charged[subject];
            self.doubled += charged[subject].saturating_sub(before + admitted + perhaps);
            let lost = (before + admitted).saturating_sub(charged[subject]);
            *if lossy == Some(*shard) { &mut self.lost } else { &mut self.missing } += lost;
        }
        self.charged = charged;
    }

    /// Admitted to the small limit beyond what so many failovers excuse.
    fn over_small(&self, log: &[Entry], failovers: u64) -> u64 {
        let admitted = |subject: usize| {
            count(log, |e| e.subject == subject && e.limiter == 0 && e.said == Said::Allow)
        };
        let bound = (1 + failovers) * SMALL;
        (0..TASKS).map(|subject| admitted(subject).saturating_sub(bound)).sum()
    }
}
