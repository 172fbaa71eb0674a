//! The engine behind Sentinel: what callers observe of failovers, and of Sentinels that are dead,
//! frozen, or disagree.
//!
//! Every figure is computed from the log of calls and from the servers' own statistics.

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

use testkit::redis::RedisServer;
use testkit::sentinel::{MASTER_NAME, SentinelServer, SentinelSetup};
use testkit::timing::{HANG, compare_with_goal, goals_are_bounds};

const TASKS: usize = 64;
const DEADLINE: Duration = Duration::from_millis(100);
/// Upper bound for events without a deadline of their own.
const TIMEOUT: Duration = HANG;
const MOMENT: Duration = Duration::from_millis(1);
/// Goal of the wait for a primary that accepts writes, for 99 of 100 tasks, plus the delay that a
/// client without an engine has.
const MAX: Duration = Duration::from_millis(250);
/// Size of the small limit, as long as no charges are lost.
const FEW: usize = 500;

/// One test at a time: each starts six processes, and some measure time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn redis_behind_sentinel_passes_the_conformance_suite() {
    let _alone = ALONE.lock().await;
    let setup = SentinelSetup::start();
    tidegate::conformance::run(|clock| {
        let builder = Redis::builder(&setup.url()).deadline(TIMEOUT);
        builder.test_clock(clock).build().unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_recovers_after_every_killed_primary() {
    let _alone = ALONE.lock().await;
    let failovers = if is_long_run() { 10 } else { 3 };
    let mut setup = SentinelSetup::start();
    let tasks = FailoverTasks::begin(&setup.url()).await;
    let (mut since, mut counted) = tasks.count().await;
    let (mut waits, mut max_bare, mut over, mut lost) = (Vec::new(), Duration::ZERO, 0, 0);
    for round in 1..=failovers {
        sleep(Duration::from_millis(300)).await;
        let dead = setup.primary_index();
        let others = (0..3).filter(|other| *other != dead);
        let probes: Vec<u16> = others.map(|other| setup.servers[other].port()).collect();
        setup.servers[dead].kill();
        let killed = Instant::now();
        let (writable, port) = first_writable(&probes).await;
        let bare = tokio::spawn(time_bare_client(port));
        let first = tasks.first_decisions(killed).await;
        let last = first.iter().copied().max().unwrap();
        let bare = bare.await.unwrap().iter().map(|turn| late(turn, &(writable..last))).sum();
        max_bare = max_bare.max(bare);
        let wait = |at: &Instant| at.saturating_duration_since(writable);
        over += first.iter().filter(|at| wait(at) > MAX + bare).count();
        waits.extend(first.iter().map(wait));

        let (len, used) = tasks.count().await;
        let calls = tasks.between(since, len);
        let (good, ambiguous) =
            (passed(&calls, TestedRule::Many), unclear(&calls, TestedRule::Many));
        // Writes that the old primary had not replicated are lost; no more can be charged than
        // passed.
        let more = used.saturating_sub(counted);
        assert!(
            more <= good + ambiguous,
            "round {round}: {more} charged, {good} admitted and {ambiguous} ambiguous"
        );
        lost += good.saturating_sub(more);
        (since, counted) = (len, used);

        setup.revive(dead);
        setup.settle();
        let sent = scripts_while_replica(&setup.servers[dead]).await;
        assert_eq!(sent.unwrap_or(0), 0, "scripts sent to the old primary, a replica now");
    }
    let calls = tasks.end().await;
    let unclear = unclear(&calls, TestedRule::Many);
    let few = passed(&calls, TestedRule::Few);
    let longest = calls.iter().map(|call| call.took).max().unwrap();
    waits.sort_unstable();
    let at = |per_cent: usize| waits[(waits.len() - 1) * per_cent / 100];
    print_line(&format!(
        "{failovers} primaries killed under {TASKS} tasks, {} calls: first decision after redis is \
         writable min {:?}, p50 {:?}, p99 {:?}, max {:?} (delay of a bare client: {max_bare:?} at most); 0 \
         stuck (longest call {longest:?}); 0 double charges ({unclear} ambiguous, {lost} lost with a \
         primary); small limit {few} of {FEW}",
        calls.len(),
        waits[0],
        at(50),
        at(99),
        waits[waits.len() - 1],
    ));
    assert_eq!(waits.len(), failovers * TASKS);
    let is_met = over * 100 <= waits.len();
    assert!(is_met || !goals_are_bounds(), "{over} of {} waits exceed {MAX:?}", waits.len());
    compare_with_goal("a call", longest, 2 * DEADLINE);
    assert!(few <= FEW * (1 + failovers), "{few} admitted by a limit of {FEW}");
    assert!(
        calls.iter().any(|call| call.outcome == CallOutcome::Denied),
        "the small limit was never reached"
    );
}

/// The old primary stays up, and considers itself the primary for some seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_moves_every_task_and_none_calls_the_old_primary() {
    let _alone = ALONE.lock().await;
    let setup = SentinelSetup::start();
    let tasks = FailoverTasks::begin(&setup.url()).await;
    sleep(Duration::from_millis(300)).await;
    let old = setup.primary_index();
    let probes = (0..3).filter(|other| *other != old).map(|other| setup.servers[other].port());
    let probes: Vec<u16> = probes.collect();
    setup.fail_over();
    let (writable, _) = first_writable(&probes).await;
    // The old primary may still reply to calls in flight.
    let mut sent = Vec::new();
    while sent.last() != Some(&0) {
        assert!(writable.elapsed() < TIMEOUT, "scripts sent to the old primary: {sent:?}");
        sleep(Duration::from_millis(500)).await;
        let before = setup.servers[old].script_calls();
        let first = tasks.first_decisions(Instant::now()).await;
        assert_eq!(first.len(), TASKS);
        sleep(Duration::from_millis(500)).await;
        sent.push(setup.servers[old].script_calls() - before);
    }
    assert!(sent.len() == 1 || !goals_are_bounds(), "scripts sent to the old primary: {sent:?}");
    let calls = tasks.end().await;
    let failed = calls.iter().filter(|call| call.outcome.is_error());
    let last = failed.map(|call| call.begun + call.took).max();
    let settled = last.map_or(Duration::ZERO, |last| last.saturating_duration_since(writable));
    let errors = calls.iter().filter(|call| call.outcome.is_error()).count();
    print_line(&format!(
        "planned failover under {TASKS} tasks: {errors} of {} calls without a decision, the last \
         {settled:?} after the new primary was writable; 0 scripts sent to the old one after that",
        calls.len()
    ));
    assert_ne!(setup.primary_index(), old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_and_frozen_sentinels_cause_no_delay() {
    let _alone = ALONE.lock().await;
    let mut setup = SentinelSetup::start();
    setup.sentinels[0].freeze();
    let begun = Instant::now();
    let limiter = blocking_limiter(&setup.url());
    until_decided(&limiter).await;
    let frozen = begun.elapsed();
    setup.sentinels[0].thaw();
    setup.sentinels[0].kill();
    setup.sentinels[1].kill();
    for _ in 0..20 {
        sleep(Duration::from_millis(50)).await;
        limiter.check("subject").await.unwrap();
    }
    let begun = Instant::now();
    until_decided(&blocking_limiter(&setup.url())).await;
    let dead = begun.elapsed();
    print_line(&format!(
        "first decision with one sentinel frozen {frozen:?}, with two dead {dead:?}"
    ));
    compare_with_goal("first decision", frozen.max(dead), Duration::from_secs(1));
    setup.sentinels[2].kill();
    sleep(Duration::from_millis(500)).await;
    limiter.check("subject").await.expect("the primary works without sentinels");
}

/// One Sentinel alone starts no failover, so its master stays the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_reaches_a_replica_charges_nothing_and_is_retried_in_time() {
    let server = RedisServer::start();
    let sentinel = SentinelServer::start(server.port(), &[]);
    let url = format!("redis-sentinel://127.0.0.1:{}/{MASTER_NAME}", sentinel.port());
    let limit = "fixed-window 1000/30d first-hit";
    let (hasty, patient) = (limiter(&url, limit), patient_limiter(&url, limit));
    until_decided(&hasty).await;
    until_decided(&patient).await;
    let used = patient.inspect("subject").await.unwrap()[0].standing.used;
    // There is no server at this address, so nothing overwrites its data.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    for _ in 0..5 {
        let error = hasty.check("subject").await.unwrap_err();
        // Ambiguous if the last attempt had no reply before the deadline.
        assert!(!matches!(error, EngineError::Refused(_)), "{error}");
    }
    let pending = tokio::spawn(async move {
        let decision = patient.check("subject").await.unwrap();
        (decision.allowed(), patient)
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!pending.is_finished());
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    let (allowed, patient) = timeout(TIMEOUT, pending).await.unwrap().unwrap();
    assert!(allowed);
    assert_eq!(patient.inspect("subject").await.unwrap()[0].standing.used, used + 1);
}

#[tokio::test]
async fn errors_name_the_sentinel_and_the_master() {
    let server = RedisServer::start();
    let sentinel = SentinelServer::start(server.port(), &[]);
    let url_of = |port: u16, master: &str| format!("redis-sentinel://127.0.0.1:{port}/{master}");
    let error = failure(&url_of(sentinel.port(), "tidse")).await;
    let expected = "nothing was sent: Sentinel monitors no master named \"tidse\"; use its \
                    configured name";
    assert_eq!(error, expected);

    let stopped = RedisServer::stopped(&[]);
    let error = failure(&url_of(stopped.port(), MASTER_NAME)).await;
    let expected = format!(
        "nothing was sent: no sentinel of \"tides\" replies (127.0.0.1:{}: Connection refused",
        stopped.port()
    );
    assert!(error.starts_with(&expected), "{error}");

    let error = failure(&url_of(server.port(), MASTER_NAME)).await;
    assert!(error.contains("unknown command"), "{error}");
}

/// The error of an engine that cannot decide.
async fn failure(url: &str) -> String {
    let limiter = limiter(url, "10/m");
    let begun = Instant::now();
    loop {
        let error = match limiter.check("subject").await.unwrap_err() {
            EngineError::Unavailable(cause) => cause.to_string(),
            other => panic!("{other:?}"),
        };
        // The first call may be made before any Sentinel has replied.
        if !error.contains(" yet; retry") {
            return error;
        }
        assert!(begun.elapsed() < TIMEOUT, "{error}");
    }
}

/// Its attempts to connect last longer than any test, so that one that blocks others is noticed.
fn blocking_limiter(url: &str) -> Limiter {
    let builder = Redis::builder(url).deadline(TIMEOUT).connect_deadline(10 * TIMEOUT);
    Limiter::new(builder.build().unwrap(), "1000/s".parse().unwrap())
}

fn limiter(url: &str, limit: &str) -> Limiter {
    let engine = Redis::builder(url).deadline(DEADLINE).build().unwrap();
    Limiter::new(engine, limit.parse().unwrap())
}

fn patient_limiter(url: &str, limit: &str) -> Limiter {
    let engine = Redis::builder(url).deadline(TIMEOUT).build().unwrap();
    Limiter::new(engine, limit.parse().unwrap())
}

async fn until_decided(limiter: &Limiter) {
    let decided = async { while limiter.check("subject").await.is_err() {} };
    timeout(TIMEOUT, decided).await.expect("no decision");
}

// --- callers -----------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq)]
enum TestedRule {
    /// Never reached, so that every charge is counted.
    Many,
    Few,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallOutcome {
    Allowed,
    Denied,
    Unavailable,
    Ambiguous,
}

impl CallOutcome {
    fn is_error(self) -> bool {
        matches!(self, Self::Unavailable | Self::Ambiguous)
    }
}

/// One call, as its caller observed it.
#[derive(Clone, Copy)]
struct CallRecord {
    task: usize,
    rule: TestedRule,
    begun: Instant,
    took: Duration,
    outcome: CallOutcome,
}

/// Tasks that make calls all the time.
struct FailoverTasks {
    tasks: JoinSet<()>,
    log: Arc<Mutex<Vec<CallRecord>>>,
    over: Arc<AtomicBool>,
    /// Every call holds a read lock; the write lock means that no call is in flight.
    gate: Arc<RwLock<()>>,
    many: Arc<Limiter>,
}

impl FailoverTasks {
    async fn begin(url: &str) -> Self {
        let engine = Arc::new(Redis::builder(url).deadline(DEADLINE).build().unwrap());
        let limiter =
            |text: String| Arc::new(Limiter::new(Arc::clone(&engine), text.parse().unwrap()));
        let many = limiter("fixed-window 1000000000/30d first-hit".into());
        let few = limiter(format!("sliding-log {FEW}/30d"));
        until_decided(&many).await;
        assert!(engine.health().up);
        let tasks = Self {
            tasks: JoinSet::new(),
            log: Arc::default(),
            over: Arc::default(),
            gate: Arc::default(),
            many,
        };
        tasks.with_tasks(&few)
    }

    fn with_tasks(mut self, few: &Arc<Limiter>) -> Self {
        for task in 0..TASKS {
            let limiters = [(TestedRule::Many, self.many.clone()), (TestedRule::Few, few.clone())];
            let (log, over, gate) = (self.log.clone(), self.over.clone(), self.gate.clone());
            self.tasks.spawn(async move {
                for (rule, limiter) in limiters.iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let in_flight = gate.read().await;
                    let begun = Instant::now();
                    let result = limiter.check("shared").await;
                    let took = begun.elapsed();
                    let outcome = match result {
                        Ok(decision) => {
                            assert_eq!(decision.source, Source::Redis);
                            if decision.allowed() {
                                CallOutcome::Allowed
                            } else {
                                CallOutcome::Denied
                            }
                        }
                        Err(EngineError::Unavailable(_)) => CallOutcome::Unavailable,
                        Err(EngineError::Ambiguous(_)) => CallOutcome::Ambiguous,
                        Err(error) => panic!("{error}"),
                    };
                    log.lock().unwrap().push(CallRecord {
                        task,
                        rule: *rule,
                        begun,
                        took,
                        outcome,
                    });
                    drop(in_flight);
                    sleep(if outcome.is_error() { MOMENT } else { 10 * MOMENT }).await;
                }
            });
        }
        self
    }

    /// Number of calls so far, and charges of the large limit that the server has counted. No call
    /// is in flight meanwhile.
    async fn count(&self) -> (usize, usize) {
        let _idle = self.gate.write().await;
        let begun = Instant::now();
        loop {
            if let Ok(found) = self.many.inspect("shared").await {
                let used = usize::try_from(found[0].standing.used).unwrap();
                return (self.log.lock().unwrap().len(), used);
            }
            assert!(begun.elapsed() < TIMEOUT, "the server does not report its count");
        }
    }

    fn between(&self, from: usize, to: usize) -> Vec<CallRecord> {
        self.log.lock().unwrap()[from..to].to_vec()
    }

    /// When each task had its first decision on a call that it began after `then`. Panics if a
    /// task has none.
    async fn first_decisions(&self, then: Instant) -> Vec<Instant> {
        let begun = Instant::now();
        loop {
            let mut seen = BTreeSet::new();
            let mut first = Vec::new();
            for call in self.log.lock().unwrap().iter() {
                if call.begun > then && !call.outcome.is_error() && seen.insert(call.task) {
                    first.push(call.begun + call.took);
                }
            }
            if first.len() == TASKS {
                return first;
            }
            assert!(
                begun.elapsed() < TIMEOUT,
                "{} of {TASKS} tasks are stuck",
                TASKS - first.len()
            );
            sleep(20 * MOMENT).await;
        }
    }

    async fn end(self) -> Vec<CallRecord> {
        self.over.store(true, Ordering::Relaxed);
        timeout(TIMEOUT, self.tasks.join_all()).await.expect("a task is stuck");
        self.log.lock().unwrap().clone()
    }
}

fn passed(calls: &[CallRecord], rule: TestedRule) -> usize {
    calls.iter().filter(|call| call.rule == rule && call.outcome == CallOutcome::Allowed).count()
}

fn unclear(calls: &[CallRecord], rule: TestedRule) -> usize {
    calls.iter().filter(|call| call.rule == rule && call.outcome == CallOutcome::Ambiguous).count()
}

// --- servers -----------------------------------------------------------------------------------

/// When one of these replicas first accepted a write, tried every millisecond; and its port.
async fn first_writable(ports: &[u16]) -> (Instant, u16) {
    let mut probes = JoinSet::new();
    for port in ports.iter().copied() {
        probes.spawn(async move {
            loop {
                // A promotion closes every connection.
                if let Ok(Some(at)) = probe(port).await {
                    return (at, port);
                }
                sleep(MOMENT).await;
            }
        });
    }
    timeout(TIMEOUT, probes.join_next()).await.expect("no replica is promoted").unwrap().unwrap()
}

/// Writes every millisecond for a second without an engine. Returns start and end of each write
/// and its pause.
async fn time_bare_client(port: u16) -> Vec<Range<Instant>> {
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

/// How much longer than expected a turn took, as far as it is in the span.
fn late(turn: &Range<Instant>, span: &Range<Instant>) -> Duration {
    let (from, to) = (turn.start.max(span.start), turn.end.min(span.end));
    to.saturating_duration_since(from).saturating_sub(5 * MOMENT)
}

/// Writes on one connection until a write is accepted; `None` if the connection ends before.
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

/// Number of scripts sent to it for 300 ms; `None` unless it was a replica all the time.
async fn scripts_while_replica(server: &RedisServer) -> Option<u64> {
    let is_replica = || server.cli(&["INFO", "replication"]).contains("role:slave");
    let was = is_replica();
    let before = server.script_calls();
    sleep(Duration::from_millis(300)).await;
    let sent = server.script_calls() - before;
    (was && is_replica()).then_some(sent)
}

fn print_line(line: &str) {
    writeln!(stderr().lock(), "sentinel: {line}").unwrap();
}

fn is_long_run() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1")
}
