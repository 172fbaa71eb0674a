//! Whatever a server replies to a script: callers get a typed error in time, which says whether
//! something may have been charged. A call that may have been charged is not sent again, and the
//! engine works again when the server does.
//!
//! A program of its own: it counts the panics of its process.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{
    Call, Charge, Cost, Decision, Engine as _, EngineError, Expiry, HoldId, Limit, Micros, Rule,
};
use tidegate_redis::Redis;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use testkit::fake_redis::{ERRORS_BEFORE_WRITE, ERRORS_MAYBE_AFTER_WRITE, FakeRedis, FakeReply};
use testkit::timing::HANG;

/// Many calls end only by their deadline.
const DEADLINE: Duration = Duration::from_secs(1);
/// Calls at a time, so that calls with an immediate reply are not delayed by the others.
const AT_ONCE: usize = 32;
/// Attempts of a case in which a busy machine delays an immediate reply beyond the deadline.
const ATTEMPTS: usize = 20;

/// Topology of the servers, and the errors that are retried there.
#[derive(Clone, Copy)]
struct TopologyCase {
    name: &'static str,
    url: fn(u16) -> String,
    /// Errors that are retried.
    retried: &'static [&'static str],
    /// Upper bound of scripts sent while such an error lasts for so long.
    max_sent: fn(Duration) -> usize,
    /// Upper bound of scripts sent for redirects that lead nowhere. `None` without redirects.
    hops: Option<usize>,
    /// The general script is a function.
    has_functions: bool,
}

const ONE: TopologyCase = TopologyCase {
    name: "one server",
    url: |port| format!("redis://127.0.0.1:{port}/"),
    retried: &[],
    max_sent: |_| 1,
    hops: None,
    has_functions: false,
};

const WITH_FUNCTIONS: TopologyCase =
    TopologyCase { name: "one server with functions", has_functions: true, ..ONE };

const SENTINEL: TopologyCase = TopologyCase {
    name: "sentinels",
    url: |port| format!("redis-sentinel://127.0.0.1:{port}/tides"),
    retried: &["READONLY", "LOADING", "MASTERDOWN", "REDIRECT"],
    // With pauses of 5 ms.
    max_sent: |span| 1 + span.as_millis() as usize / 5,
    ..ONE
};

const CLUSTER: TopologyCase = TopologyCase {
    name: "cluster",
    url: |port| format!("redis-cluster://127.0.0.1:{port}"),
    retried: &["READONLY", "LOADING", "MASTERDOWN", "REDIRECT", "CLUSTERDOWN", "TRYAGAIN"],
    // With pauses that double from 1 ms to at least 16.
    max_sent: |span| 6 + span.as_millis() as usize / 16,
    hops: Some(9),
    ..ONE
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reply_of_one_server_ends_in_a_typed_error() {
    try_all_replies(ONE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reply_of_a_primary_behind_sentinel_ends_in_a_typed_error() {
    try_all_replies(SENTINEL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reply_of_a_cluster_ends_in_a_typed_error() {
    try_all_replies(CLUSTER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reply_to_a_function_ends_in_a_typed_error() {
    try_all_replies(WITH_FUNCTIONS).await;
}

/// The script cache of the server was flushed.
#[tokio::test]
async fn a_script_that_the_server_does_not_know_is_sent_with_its_text() {
    for topology in [ONE, SENTINEL, CLUSTER] {
        let fake = FakeRedis::start().await;
        let url = (topology.url)(fake.port());
        let engine = Redis::builder(&url).deadline(HANG).build().unwrap();
        fake.set_replies(FakeReply::new("-NOSCRIPT No matching script.\r\n"), FakeReply::good());
        assert!(decide(&engine, TestedOp::Check).await.unwrap().allowed());
        assert_eq!(fake.scripts(), ["EVALSHA lean", "EVAL lean"], "{}", topology.name);
    }
}

async fn try_all_replies(topology: TopologyCase) {
    // One test at a time, as each counts the panics of the process.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let panics = count_panics();
    let before = panics.load(Ordering::Relaxed);
    let mut tasks = JoinSet::new();
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    for case in cases() {
        for op in [TestedOp::Check, TestedOp::Peek, TestedOp::Reserve] {
            let (permits, case) = (permits.clone(), case.clone());
            tasks.spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                for _ in 0..ATTEMPTS {
                    if let Some(sent) = try_reply(topology, case.clone(), op).await {
                        return sent;
                    }
                }
                panic!("{}: {} {op:?}: always at the deadline", topology.name, case.name);
            });
        }
    }
    let count = tasks.len();
    let sent: usize = tasks.join_all().await.iter().sum();
    assert_eq!(panics.load(Ordering::Relaxed) - before, 0, "a task panicked");
    writeln!(
        stderr().lock(),
        "fake: {}: {} replies to {count} calls, {sent} scripts sent; every call had a typed error \
         at its deadline or before, every engine worked again, 0 tasks panicked",
        topology.name,
        cases().len(),
    )
    .unwrap();
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TestedOp {
    Check,
    Peek,
    Reserve,
}

/// A reply of the server, and its meaning for a call that charges.
#[derive(Clone)]
struct ReplyCase {
    name: String,
    /// The first word of the error.
    word: String,
    evalsha: FakeReply,
    eval: FakeReply,
    charged: ChargeState,
    /// Upper bound of scripts sent: one, if the call may have been charged.
    sent: usize,
    /// The reply can be read as a redirect.
    redirects: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChargeState {
    Nothing,
    Maybe,
}

/// Returns the number of scripts sent; `None` if the machine delayed a call until its deadline, so
/// that the reply did not count.
async fn try_reply(topology: TopologyCase, case: ReplyCase, op: TestedOp) -> Option<usize> {
    let what = format!("{}: {} {op:?}", topology.name, case.name);
    let fake = FakeRedis::start().await;
    if topology.has_functions {
        fake.set_functions();
    }
    let engine = Redis::builder(&(topology.url)(fake.port())).deadline(DEADLINE).build().unwrap();
    if !wait_until_working(&engine, op, &what).await {
        return None;
    }
    // A plain check is never a function.
    let calls_functions = topology.has_functions && op != TestedOp::Check;
    while calls_functions && !fake.scripts().iter().any(|script| script.starts_with("FCALL")) {
        if !wait_until_working(&engine, op, &what).await {
            return None;
        }
    }
    fake.scripts();

    fake.set_replies(case.evalsha, case.eval);
    let begun = Instant::now();
    let result = timeout(HANG, decide(&engine, op)).await;
    let result = result.unwrap_or_else(|_| panic!("{what}: hangs"));
    let took = begun.elapsed();
    // Background tasks may still send something.
    sleep(Duration::from_millis(50)).await;
    let (drops, sent): (Vec<_>, Vec<_>) =
        fake.scripts().into_iter().partition(|script| script.ends_with(" drop"));
    if sent.is_empty() && took >= DEADLINE {
        return None;
    }
    let error = result.expect_err(&what);
    let charged = match &error {
        EngineError::Unavailable(_) => ChargeState::Nothing,
        EngineError::Ambiguous(_) => ChargeState::Maybe,
        _ => panic!("{what}: {error:?}"),
    };
    // Only a reservation whose reply was lost is cancelled.
    let may_drop = op == TestedOp::Reserve && charged == ChargeState::Maybe;
    assert!(drops.is_empty() || may_drop, "{what}: {drops:?}");
    let is_retried = topology.retried.contains(&&*case.word);
    if !is_retried {
        // Cancellations follow redirects, too.
        let hops = topology.hops.filter(|_| case.redirects).unwrap_or(1);
        assert!(drops.len() <= 2 * hops, "{what}: {drops:?}");
    }
    if is_retried {
        // The last attempt may have had no reply in time.
        let max = (topology.max_sent)(took);
        assert!((1..=max).contains(&sent.len()), "{what}: sent {}", sent.len());
        assert!(charged == ChargeState::Nothing || took >= DEADLINE, "{what}");
    } else if let Some(hops) = topology.hops.filter(|_| case.redirects) {
        assert!((1..=hops).contains(&sent.len()), "{what}: sent {}", sent.len());
        assert!(charged == ChargeState::Nothing || took >= DEADLINE, "{what}: {error}");
    } else {
        let expected = if op == TestedOp::Peek { ChargeState::Nothing } else { case.charged };
        if took >= DEADLINE && charged != expected {
            return None;
        }
        assert_eq!(charged, expected, "{what}: {error}");
        // A function that was refused is sent as a script.
        let refused = usize::from(calls_functions && case.charged == ChargeState::Nothing);
        assert!((1..=case.sent + refused).contains(&sent.len()), "{what}: sent {sent:?}");
    }

    fake.set_replies(FakeReply::good(), FakeReply::good());
    wait_until_working(&engine, op, &what).await;
    Some(sent.len())
}

/// False if a call was sent and had no reply in time: it is cancelled later.
async fn wait_until_working(engine: &Redis, op: TestedOp, what: &str) -> bool {
    let mut last = None;
    let working = async {
        let mut is_clean = true;
        while let Err(error) = decide(engine, op).await {
            is_clean &= !matches!(error, EngineError::Ambiguous(_));
            last = Some(error);
        }
        is_clean
    };
    let is_clean = timeout(HANG, working).await;
    is_clean.unwrap_or_else(|_| panic!("{what}: still failing: {last:?}"))
}

async fn decide(engine: &Redis, op: TestedOp) -> Result<Decision, EngineError> {
    let limit: Limit = "10/m".parse().unwrap();
    let rule = Rule::new("fake", [limit]).unwrap();
    let (ttl, expiry) = (Micros::from_secs(60), Expiry::Release);
    let op = match op {
        TestedOp::Check => tidegate::Op::Check,
        TestedOp::Peek => tidegate::Op::Peek,
        TestedOp::Reserve => tidegate::Op::hold(HoldId::random().unwrap(), ttl, expiry),
    };
    let cost = Cost::new(1).unwrap();
    let charge = Charge { limit: &rule.limits()[0], key: "subject".into(), cost, caller: None };
    engine.decide(Call { op, charges: &[charge], idempotency_key: None }).await
}

/// All replies that are tried.
fn cases() -> Vec<ReplyCase> {
    let error = |(line, charged): (String, ChargeState)| ReplyCase { charged, ..refusal(&line) };
    let mut cases: Vec<ReplyCase> = errors().map(error).collect();
    cases.push(ReplyCase { sent: 2, ..refusal("NOSCRIPT for the text too") });
    cases.push(ReplyCase { sent: 2, ..refusal("ERR Function not found") });
    // The script requests the calendar again each time; the lean one is sent before.
    cases.push(ReplyCase { sent: 7, ..refused("status 0", "*2\r\n:0\r\n:1700000000000000\r\n") });
    cases.extend(
        shapes()
            .map(|(name, bytes)| ReplyCase { charged: ChargeState::Maybe, ..refused(name, bytes) }),
    );
    for case in cases.clone().into_iter().filter(|case| case.charged == ChargeState::Maybe) {
        let evalsha = FakeReply { closes: true, ..case.evalsha };
        cases.push(ReplyCase { name: format!("{}, then closed", case.name), evalsha, ..case });
    }
    cases
}

fn refusal(line: &str) -> ReplyCase {
    refused(line, format!("-{line}\r\n"))
}

fn refused(name: &str, bytes: impl Into<Vec<u8>>) -> ReplyCase {
    let reply = FakeReply::new(bytes);
    // Before version 7, the error follows its position in the script.
    let error = name.rsplit_once("user_script: 86: -").map_or(name, |(_, error)| error);
    let word = error.split(' ').next().unwrap_or_default().to_owned();
    let name = name.chars().take(40).collect();
    // Only this slot is that of the call.
    let redirects = reply.bytes.windows(6).any(|word| word == b"{slot}");
    let eval = reply.clone();
    ReplyCase {
        name,
        word,
        evalsha: reply,
        eval,
        charged: ChargeState::Nothing,
        sent: 1,
        redirects,
    }
}

/// Errors, and whether something may have been charged before. That is so for errors that may
/// occur in the middle of a script, and for unknown ones.
fn errors() -> impl Iterator<Item = (String, ChargeState)> {
    let long = format!("ERR {}", "x".repeat(1 << 16));
    let before = ERRORS_BEFORE_WRITE.iter().map(|line| ((*line).to_owned(), ChargeState::Nothing));
    let after =
        ERRORS_MAYBE_AFTER_WRITE.iter().map(|line| ((*line).to_owned(), ChargeState::Maybe));
    before.chain(after).chain([(long, ChargeState::Maybe)])
}

/// Replies that no script sends. The server has run something.
fn shapes() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let shapes: [(&str, &[u8]); 40] = [
        ("nil", b"$-1\r\n"),
        ("nil array", b"*-1\r\n"),
        ("nil of RESP3", b"_\r\n"),
        ("integer", b":1\r\n"),
        ("simple string", b"+OK\r\n"),
        ("bulk string", b"$2\r\n12\r\n"),
        ("lean: no state", b"$10\r\n\0\0\0\0\0\0\0\0\x01\0\r\n"),
        (
            "lean: too many",
            b"$34\r\n\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\r\n",
        ),
        ("map", b"%1\r\n:1\r\n:2\r\n"),
        ("double", b",1.5\r\n"),
        ("empty array", b"*0\r\n"),
        ("array too short", b"*2\r\n:1\r\n:1\r\n"),
        ("array of strings", b"*5\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n"),
        ("array of arrays", b"*2\r\n*1\r\n:1\r\n*1\r\n*1\r\n:1\r\n"),
        ("array with an error", b"*2\r\n:1\r\n-ERR inside\r\n"),
        ("unknown status", b"*5\r\n:99\r\n:1\r\n:0\r\n:0\r\n$0\r\n\r\n"),
        ("negative status", b"*5\r\n:-1\r\n:1\r\n:0\r\n:0\r\n$0\r\n\r\n"),
        ("negative number", b"*5\r\n:1\r\n:1\r\n:-5\r\n:0\r\n$0\r\n\r\n"),
        ("status 7 without an id", b"*2\r\n:7\r\n:1\r\n"),
        ("no number", b":1x\r\n"),
        ("number too large", b":99999999999999999999\r\n"),
        ("negative length", b"$-7\r\n"),
        ("wrong length", b"$1\r\nabc\r\n"),
        ("huge array", b"*9223372036854775807\r\n:1\r\n"),
        ("large array", b"*1099511627776\r\n:1\r\n"),
        ("huge string", b"$9223372036854775807\r\nabc"),
        ("large string", b"$1099511627776\r\nabc"),
        ("huge map", b"%9223372036854775807\r\n:1\r\n"),
        ("huge attribute", b"|9223372036854775807\r\n:1\r\n"),
        ("huge push", b">9223372036854775807\r\n$1\r\na\r\n"),
        ("negative map", b"%-1\r\n"),
        ("negative error", b"!-1\r\n"),
        ("truncated array", b"*12\r\n:1\r\n"),
        ("truncated string", b"$100\r\nabc"),
        ("truncated line", b":1"),
        ("error that is not UTF-8", b"-ERR \xff\xfe\r\n"),
        ("another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("zeros", &[0; 64]),
        ("nothing", b""),
        ("line break only", b"\r\n"),
    ];
    let deep = ("nested deeply", b"*1\r\n".repeat(1000));
    shapes.into_iter().map(|(name, bytes)| (name, bytes.to_vec())).chain([deep])
}

/// Number of panics in this process from now on.
fn count_panics() -> &'static AtomicUsize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            COUNT.fetch_add(1, Ordering::Relaxed);
            print(panic);
        }));
    });
    &COUNT
}
