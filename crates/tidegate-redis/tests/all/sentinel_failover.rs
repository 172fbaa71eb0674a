//! The engine behind sentinels: what callers notice of failovers, and of sentinels that are dead,
//! frozen, or of another opinion.
//!
//! Every figure is computed from the raw log of the calls and from what the servers themselves say.

use std::collections::BTreeSet;
use std::io::{Write as _, stderr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Engine as _, EngineError, Limiter, Source};
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::sentinel::{MASTER, Sentinel, Watched};
use crate::server::Server;

const TASKS: usize = 64;
const DEADLINE: Duration = Duration::from_millis(100);
/// A call that takes so much longer than its deadline hangs; a busy machine does not.
const SLACK: Duration = Duration::from_secs(2);
/// For what has to happen, but not in a given time.
const PATIENCE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);
/// The longest wait for a primary that takes writes, for 99 of 100. A machine that keeps a bare client
/// waiting keeps ours waiting, by as much.
const MOST: Duration = Duration::from_millis(250);
/// What the small limit lets pass, as long as nobody forgets.
const FEW: usize = 500;

/// One test at a time: each has six processes, and some measure time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn redis_behind_sentinels_keeps_every_claim() {
    let _alone = ALONE.lock().await;
    let watched = Watched::start();
    tidegate::conformance::run(|clock| {
        let builder = Redis::builder(&watched.url()).deadline(PATIENCE);
        builder.test_clock(clock).build().unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_goes_on_after_every_primary_that_is_killed() {
    let _alone = ALONE.lock().await;
    let failovers = if long() { 10 } else { 3 };
    let mut watched = Watched::start();
    let storm = Storm::begin(&watched.url()).await;
    let (mut since, mut counted) = storm.count().await;
    let (mut waits, mut stolen, mut over, mut lost) = (Vec::new(), Duration::ZERO, 0, 0);
    for round in 1..=failovers {
        sleep(Duration::from_millis(300)).await;
        let dead = watched.primary_index();
        let others = (0..3).filter(|other| *other != dead);
        let probes: Vec<u16> = others.map(|other| watched.servers[other].port()).collect();
        watched.servers[dead].kill();
        let killed = Instant::now();
        let (writable, port) = first_writable(&probes).await;
        let bare = tokio::spawn(bare_client(port));
        let first = storm.first_good(killed).await;
        let last = first.iter().copied().max().unwrap();
        let bare = bare.await.unwrap().iter().map(|turn| late(turn, &(writable..last))).sum();
        stolen = stolen.max(bare);
        let wait = |at: &Instant| at.saturating_duration_since(writable);
        over += first.iter().filter(|at| wait(at) > MOST + bare).count();
        waits.extend(first.iter().map(wait));

        let (len, used) = storm.count().await;
        let calls = storm.between(since, len);
        let (good, ambiguous) = (passed(&calls, Rule::Many), unclear(&calls, Rule::Many));
        // What the old primary had not passed on is lost with it; it is never more than what passed.
        let more = used.saturating_sub(counted);
        assert!(
            more <= good + ambiguous,
            "round {round}: {more} charged, {good} admitted and {ambiguous} perhaps"
        );
        lost += good.saturating_sub(more);
        (since, counted) = (len, used);

        watched.revive(dead);
        watched.settle();
        let asked = asked_while_a_replica(&watched.servers[dead]).await;
        assert_eq!(asked.unwrap_or(0), 0, "the old primary was asked, which is a replica now");
    }
    let calls = storm.end().await;
    let unclear = unclear(&calls, Rule::Many);
    let few = passed(&calls, Rule::Few);
    let longest = calls.iter().map(|call| call.took).max().unwrap();
    waits.sort_unstable();
    let at = |per_cent: usize| waits[(waits.len() - 1) * per_cent / 100];
    say(&format!(
        "{failovers} primaries killed under {TASKS} tasks, {} calls: first good answer after redis is \
         writable min {:?}, p50 {:?}, p99 {:?}, max {:?} (of which a bare client lost {stolen:?} at most); 0 \
         stuck (longest call {longest:?}); 0 double charges ({unclear} ambiguous, {lost} lost with a \
         primary); small limit {few} of {FEW}",
        calls.len(),
        waits[0],
        at(50),
        at(99),
        waits[waits.len() - 1],
    ));
    assert_eq!(waits.len(), failovers * TASKS);
    assert!(over * 100 <= waits.len(), "{over} of {} waits are longer than {MOST:?}", waits.len());
    assert!(longest <= DEADLINE + SLACK, "a call took {longest:?}");
    assert!(few <= FEW * (1 + failovers), "{few} admitted by a limit of {FEW}");
    assert!(
        calls.iter().any(|call| call.said == Said::Denied),
        "the small limit was never reached"
    );
}

/// The old primary lives on, and believes for some seconds that it still is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_moves_every_task_and_nobody_asks_the_old_primary() {
    let _alone = ALONE.lock().await;
    let watched = Watched::start();
    let storm = Storm::begin(&watched.url()).await;
    sleep(Duration::from_millis(300)).await;
    let old = watched.primary_index();
    let probes = (0..3).filter(|other| *other != old).map(|other| watched.servers[other].port());
    let probes: Vec<u16> = probes.collect();
    watched.fail_over();
    let (writable, _) = first_writable(&probes).await;
    // Those on their way may still be answered by the old one.
    sleep(Duration::from_millis(500)).await;
    let before = scripts(&watched.servers[old]);
    let first = storm.first_good(Instant::now()).await;
    sleep(Duration::from_millis(500)).await;
    let after = scripts(&watched.servers[old]);
    assert_eq!(first.len(), TASKS);
    assert_eq!(after - before, 0, "the old primary was asked");
    let calls = storm.end().await;
    let failed = calls.iter().filter(|call| call.said.is_error());
    let last = failed.map(|call| call.begun + call.took).max();
    let settled = last.map_or(Duration::ZERO, |last| last.saturating_duration_since(writable));
    let errors = calls.iter().filter(|call| call.said.is_error()).count();
    say(&format!(
        "planned failover under {TASKS} tasks: {errors} of {} calls without an answer, the last \
         {settled:?} after the new primary was writable; the old one was asked 0 times after that",
        calls.len()
    ));
    assert_ne!(watched.primary_index(), old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_and_frozen_sentinels_delay_nobody() {
    let _alone = ALONE.lock().await;
    let mut watched = Watched::start();
    watched.sentinels[0].freeze();
    let begun = Instant::now();
    let limiter = limiter(&watched.url(), "1000/s");
    good(&limiter).await;
    let frozen = begun.elapsed();
    watched.sentinels[0].thaw();
    watched.sentinels[0].kill();
    watched.sentinels[1].kill();
    for _ in 0..20 {
        sleep(Duration::from_millis(50)).await;
        limiter.check("anyone").await.unwrap();
    }
    let begun = Instant::now();
    good(&self::limiter(&watched.url(), "1000/s")).await;
    let dead = begun.elapsed();
    say(&format!("first answer with one sentinel frozen {frozen:?}, with two dead {dead:?}"));
    // It would be the deadline of an attempt to connect.
    assert!(frozen.max(dead) < Duration::from_secs(1), "{frozen:?}, {dead:?}");
    watched.sentinels[2].kill();
    sleep(Duration::from_millis(500)).await;
    limiter.check("anyone").await.expect("without sentinels the primary is still there");
}

/// One sentinel alone begins no failover, so the server stays the one that is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_meets_a_replica_charges_nothing_and_is_asked_again_in_time() {
    let server = Server::start();
    let sentinel = Sentinel::start(server.port(), &[]);
    let url = format!("redis-sentinel://127.0.0.1:{}/{MASTER}", sentinel.port());
    let limit = "fixed-window 1000/30d first-hit";
    let (hasty, patient) = (limiter(&url, limit), patient_limiter(&url, limit));
    good(&hasty).await;
    good(&patient).await;
    let used = patient.inspect("anyone").await.unwrap()[0].standing.used;
    // It follows nobody who could overwrite what it knows.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    for _ in 0..5 {
        let error = hasty.check("anyone").await.unwrap_err();
        assert!(matches!(error, EngineError::Unavailable(_)), "{error}");
    }
    let asking = tokio::spawn(async move {
        let decision = patient.check("anyone").await.unwrap();
        (decision.allowed(), patient)
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!asking.is_finished());
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    let (allowed, patient) = timeout(PATIENCE, asking).await.unwrap().unwrap();
    assert!(allowed);
    assert_eq!(patient.inspect("anyone").await.unwrap()[0].standing.used, used + 1);
}

#[tokio::test]
async fn errors_say_who_does_not_know_what() {
    let server = Server::start();
    let sentinel = Sentinel::start(server.port(), &[]);
    let url_of = |port: u16, master: &str| format!("redis-sentinel://127.0.0.1:{port}/{master}");
    let error = failure(&url_of(sentinel.port(), "tidse")).await;
    let expected = "nothing was sent: sentinels do not know a master named \"tidse\"; use the name \
                    that they monitor it by";
    assert_eq!(error, expected);

    let nobody = Server::stopped(&[]);
    let error = failure(&url_of(nobody.port(), MASTER)).await;
    let expected = format!(
        "nothing was sent: no sentinel of \"tides\" answers (127.0.0.1:{}: Connection refused",
        nobody.port()
    );
    assert!(error.starts_with(&expected), "{error}");

    let error = failure(&url_of(server.port(), MASTER)).await;
    assert!(error.contains("unknown command"), "{error}");
}

/// What an engine says that cannot answer.
async fn failure(url: &str) -> String {
    let limiter = limiter(url, "10/m");
    // The first call may come before any sentinel has said a word.
    sleep(Duration::from_millis(500)).await;
    match limiter.check("anyone").await.unwrap_err() {
        EngineError::Unavailable(cause) => cause.to_string(),
        other => panic!("{other:?}"),
    }
}

fn limiter(url: &str, limit: &str) -> Limiter {
    let engine = Redis::builder(url).deadline(DEADLINE).build().unwrap();
    Limiter::new(engine, limit.parse().unwrap())
}

fn patient_limiter(url: &str, limit: &str) -> Limiter {
    let engine = Redis::builder(url).deadline(PATIENCE).build().unwrap();
    Limiter::new(engine, limit.parse().unwrap())
}

async fn good(limiter: &Limiter) {
    let asking = async { while limiter.check("anyone").await.is_err() {} };
    timeout(PATIENCE, asking).await.expect("no answer");
}

// --- callers -----------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Never reached: everything is counted.
    Many,
    Few,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Allowed,
    Denied,
    Unavailable,
    Ambiguous,
}

impl Said {
    fn is_error(self) -> bool {
        matches!(self, Self::Unavailable | Self::Ambiguous)
    }
}

/// One call, as its caller saw it.
#[derive(Clone, Copy)]
struct Called {
    task: usize,
    rule: Rule,
    begun: Instant,
    took: Duration,
    said: Said,
}

/// Tasks that ask all the time.
struct Storm {
    tasks: JoinSet<()>,
    log: Arc<Mutex<Vec<Called>>>,
    over: Arc<AtomicBool>,
    /// Every caller holds it; whoever has it alone knows that nobody is asking.
    gate: Arc<RwLock<()>>,
    many: Arc<Limiter>,
}

impl Storm {
    async fn begin(url: &str) -> Self {
        let engine = Arc::new(Redis::builder(url).deadline(DEADLINE).build().unwrap());
        let limiter =
            |text: String| Arc::new(Limiter::new(Arc::clone(&engine), text.parse().unwrap()));
        let many = limiter("fixed-window 1000000000/30d first-hit".into());
        let few = limiter(format!("sliding-log {FEW}/30d"));
        good(&many).await;
        assert!(engine.health().up);
        let storm = Self {
            tasks: JoinSet::new(),
            log: Arc::default(),
            over: Arc::default(),
            gate: Arc::default(),
            many,
        };
        storm.with_tasks(&few)
    }

    fn with_tasks(mut self, few: &Arc<Limiter>) -> Self {
        for task in 0..TASKS {
            let limiters = [(Rule::Many, self.many.clone()), (Rule::Few, few.clone())];
            let (log, over, gate) = (self.log.clone(), self.over.clone(), self.gate.clone());
            self.tasks.spawn(async move {
                for (rule, limiter) in limiters.iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let asking = gate.read().await;
                    let begun = Instant::now();
                    let answer = limiter.check("everyone").await;
                    let took = begun.elapsed();
                    let said = match answer {
                        Ok(decision) => {
                            assert_eq!(decision.source, Source::Redis);
                            if decision.allowed() { Said::Allowed } else { Said::Denied }
                        }
                        Err(EngineError::Unavailable(_)) => Said::Unavailable,
                        Err(EngineError::Ambiguous(_)) => Said::Ambiguous,
                        Err(error) => panic!("{error}"),
                    };
                    log.lock().unwrap().push(Called { task, rule: *rule, begun, took, said });
                    drop(asking);
                    sleep(if said.is_error() { MOMENT } else { 10 * MOMENT }).await;
                }
            });
        }
        self
    }

    /// How many calls there have been, and how much of the large limit the server has counted.
    /// Nobody asks meanwhile.
    async fn count(&self) -> (usize, usize) {
        let _idle = self.gate.write().await;
        let begun = Instant::now();
        loop {
            if let Ok(found) = self.many.inspect("everyone").await {
                let used = usize::try_from(found[0].standing.used).unwrap();
                return (self.log.lock().unwrap().len(), used);
            }
            assert!(begun.elapsed() < PATIENCE, "nobody says what was counted");
        }
    }

    fn between(&self, from: usize, to: usize) -> Vec<Called> {
        self.log.lock().unwrap()[from..to].to_vec()
    }

    /// When each task had its first good answer to a call that it began after `then`. Fails if one
    /// has none.
    async fn first_good(&self, then: Instant) -> Vec<Instant> {
        let begun = Instant::now();
        loop {
            let mut seen = BTreeSet::new();
            let mut first = Vec::new();
            for call in self.log.lock().unwrap().iter() {
                if call.begun > then && !call.said.is_error() && seen.insert(call.task) {
                    first.push(call.begun + call.took);
                }
            }
            if first.len() == TASKS {
                return first;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{} of {TASKS} tasks are stuck",
                TASKS - first.len()
            );
            sleep(20 * MOMENT).await;
        }
    }

    async fn end(self) -> Vec<Called> {
        self.over.store(true, Ordering::Relaxed);
        timeout(PATIENCE, self.tasks.join_all()).await.expect("a task is stuck");
        self.log.lock().unwrap().clone()
    }
}

fn passed(calls: &[Called], rule: Rule) -> usize {
    calls.iter().filter(|call| call.rule == rule && call.said == Said::Allowed).count()
}

fn unclear(calls: &[Called], rule: Rule) -> usize {
    calls.iter().filter(|call| call.rule == rule && call.said == Said::Ambiguous).count()
}

// --- servers -----------------------------------------------------------------------------------

/// When one of these replicas took a write, asked every millisecond past the engine; and which.
async fn first_writable(ports: &[u16]) -> (Instant, u16) {
    let mut probes = JoinSet::new();
    for port in ports.iter().copied() {
        probes.spawn(async move {
            loop {
                // A promotion ends every connection.
                if let Ok(Some(at)) = probe(port).await {
                    return (at, port);
                }
                sleep(MOMENT).await;
            }
        });
    }
    timeout(PATIENCE, probes.join_next()).await.expect("no replica is promoted").unwrap().unwrap()
}

/// What a client without an engine sees for a second that asks every millisecond: when each of its
/// turns began and ended.
async fn bare_client(port: u16) -> Vec<Range<Instant>> {
    let mut turns = Vec::new();
    let begun = Instant::now();
    let mut before = begun;
    while begun.elapsed() < Duration::from_secs(1) {
        let _ = probe(port).await;
        sleep(MOMENT).await;
        let after = Instant::now();
        turns.push(before..after);
        before = after;
    }
    turns
}

/// By how much a turn took longer than it should, as far as it lies in the span.
fn late(turn: &Range<Instant>, span: &Range<Instant>) -> Duration {
    let (from, to) = (turn.start.max(span.start), turn.end.min(span.end));
    to.saturating_duration_since(from).saturating_sub(5 * MOMENT)
}

/// Writes on one connection until it may; none if it ends before.
async fn probe(port: u16) -> std::io::Result<Option<Instant>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let mut buffer = [0; 256];
    loop {
        stream.write_all(b"SET probe 1\r\n").await?;
        let len = stream.read(&mut buffer).await?;
        match buffer[..len].first() {
            Some(b'+') => return Ok(Some(Instant::now())),
            Some(b'-') => sleep(MOMENT).await,
            _ => return Ok(None),
        }
    }
}

/// How many scripts it has been asked to run for a while; none if it was no replica all the time.
async fn asked_while_a_replica(server: &Server) -> Option<u64> {
    let is_replica = || server.cli(&["INFO", "replication"]).contains("role:slave");
    let was = is_replica();
    let before = scripts(server);
    sleep(Duration::from_millis(300)).await;
    let asked = scripts(server) - before;
    (was && is_replica()).then_some(asked)
}

/// How many scripts it has been asked to run.
fn scripts(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let rest =
            stats.split_once(&format!("cmdstat_{name}:calls=")).map_or("0", |(_, rest)| rest);
        rest.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    calls("evalsha") + calls("eval")
}

fn say(words: &str) {
    writeln!(stderr().lock(), "sentinel: {words}").unwrap();
}

fn long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1")
}
