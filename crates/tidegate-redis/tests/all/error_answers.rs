//! Whatever a server answers to a script: callers get a typed error in time, which says whether
//! something may have been charged; nothing is sent again that may have been; and the engine works
//! again when the server does.

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

use crate::classify;
use crate::fake::{Fake, Reply};

/// Many are answered by nothing else.
const DEADLINE: Duration = Duration::from_secs(1);
/// How many calls at a time: what is answered at once must not be late because of the others.
const AT_ONCE: usize = 32;
/// A busy machine may stand still for so long.
const SLACK: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

/// How the servers are arranged, and which errors are a reason to ask again.
#[derive(Clone, Copy)]
struct Arrangement {
    name: &'static str,
    url: fn(u16) -> String,
    /// Those that go by.
    passing: &'static [&'static str],
    /// How many scripts are sent at most while one of these does not.
    most: usize,
    /// How many are sent at most for redirects that lead nowhere. None where they mean nothing.
    hops: Option<usize>,
}

const ONE: Arrangement = Arrangement {
    name: "one server",
    url: |port| format!("redis://127.0.0.1:{port}/"),
    passing: &[],
    most: 1,
    hops: None,
};

const SENTINEL: Arrangement = Arrangement {
    name: "sentinels",
    url: |port| format!("redis-sentinel://127.0.0.1:{port}/tides"),
    passing: &["READONLY", "LOADING", "MASTERDOWN", "REDIRECT"],
    // With pauses of 5 ms.
    most: 1 + DEADLINE.as_millis() as usize / 5,
    hops: None,
};

const CLUSTER: Arrangement = Arrangement {
    name: "cluster",
    url: |port| format!("redis-cluster://127.0.0.1:{port}"),
    passing: &["READONLY", "LOADING", "MASTERDOWN", "REDIRECT", "CLUSTERDOWN", "TRYAGAIN"],
    // With pauses that double from 1 ms to 16 at least.
    most: 6 + DEADLINE.as_millis() as usize / 16,
    hops: Some(9),
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_one_server_is_understood_or_survived() {
    every_answer(ONE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_a_primary_behind_sentinels_is_understood_or_survived() {
    every_answer(SENTINEL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_a_cluster_is_understood_or_survived() {
    every_answer(CLUSTER).await;
}

#[test]
fn every_word_that_means_something_is_tried() {
    let tried: Vec<String> = cases().into_iter().map(|case| case.word).collect();
    for (word, _) in classify::WORDS {
        assert!(tried.iter().any(|other| other == word), "{word}");
    }
}

/// The server has forgotten the script, and gets it again.
#[tokio::test]
async fn a_script_that_the_server_does_not_know_is_sent_with_its_text() {
    for arrangement in [ONE, SENTINEL, CLUSTER] {
        let fake = Fake::start().await;
        let url = (arrangement.url)(fake.port());
        let engine = Redis::builder(&url).deadline(PATIENCE).build().unwrap();
        fake.answer(Reply::new("-NOSCRIPT No matching script.\r\n"), Reply::good());
        assert!(ask(&engine, Op::Check).await.unwrap().allowed());
        assert_eq!(fake.scripts(), ["EVALSHA checks", "EVAL checks"], "{}", arrangement.name);
    }
}

async fn every_answer(arrangement: Arrangement) {
    // One at a time, or one would count the panics of the other.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let panics = count_panics();
    let before = panics.load(Ordering::Relaxed);
    let mut tasks = JoinSet::new();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    for case in cases() {
        for op in [Op::Check, Op::Peek, Op::Reserve] {
            let (turns, case) = (turns.clone(), case.clone());
            tasks.spawn(async move {
                let _turn = turns.acquire().await.unwrap();
                try_one(arrangement, case, op).await
            });
        }
    }
    let count = tasks.len();
    let sent: usize = timeout(PATIENCE, tasks.join_all()).await.expect("a call hangs").iter().sum();
    assert_eq!(panics.load(Ordering::Relaxed) - before, 0, "a task died");
    writeln!(
        stderr().lock(),
        "fake: {}: {} answers to {count} calls, {sent} scripts sent; every call had a typed error \
         in time, every engine worked again, 0 tasks died",
        arrangement.name,
        cases().len(),
    )
    .unwrap();
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Check,
    Peek,
    Reserve,
}

/// What the server answers, and what that means for a call that charges.
#[derive(Clone)]
struct Case {
    name: String,
    /// The first word of the error.
    word: String,
    evalsha: Reply,
    eval: Reply,
    charged: Charged,
    /// How many scripts are sent at most: one, if it may have been charged.
    sent: usize,
    /// It can be read as a redirect.
    redirects: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Charged {
    Nothing,
    Perhaps,
}

/// How many scripts it took.
async fn try_one(arrangement: Arrangement, case: Case, op: Op) -> usize {
    let what = format!("{}: {} {op:?}", arrangement.name, case.name);
    let fake = Fake::start().await;
    let engine =
        Redis::builder(&(arrangement.url)(fake.port())).deadline(DEADLINE).build().unwrap();
    works(&engine, op, &what).await;
    fake.scripts();

    fake.answer(case.evalsha, case.eval);
    let begun = Instant::now();
    let answer = ask(&engine, op).await;
    let took = begun.elapsed();
    // Whatever a task of its own may still send.
    sleep(Duration::from_millis(50)).await;
    let (drops, sent): (Vec<_>, Vec<_>) =
        fake.scripts().into_iter().partition(|script| script.ends_with(" drop"));
    let error = answer.expect_err(&what);
    let charged = match &error {
        EngineError::Unavailable(_) => Charged::Nothing,
        EngineError::Ambiguous(_) => Charged::Perhaps,
        _ => panic!("{what}: {error:?}"),
    };
    assert!(took <= DEADLINE + SLACK, "{what}: took {took:?}");
    // Only a reservation of which nobody heard is taken back.
    let may_drop = op == Op::Reserve && charged == Charged::Perhaps;
    assert!(drops.is_empty() || may_drop, "{what}: {drops:?}");
    let passes = arrangement.passing.contains(&&*case.word);
    if !passes {
        // They are sent on, too.
        let hops = arrangement.hops.filter(|_| case.redirects).unwrap_or(1);
        assert!(drops.len() <= 2 * hops, "{what}: {drops:?}");
    }
    if passes {
        // The last of them may have had no answer in time.
        assert!((1..=arrangement.most).contains(&sent.len()), "{what}: sent {}", sent.len());
        assert!(charged == Charged::Nothing || took >= DEADLINE, "{what}");
    } else if let Some(hops) = arrangement.hops.filter(|_| case.redirects) {
        assert!((1..=hops).contains(&sent.len()), "{what}: sent {}", sent.len());
        assert!(charged == Charged::Nothing || took >= DEADLINE, "{what}: {error}");
    } else {
        let expected = if op == Op::Peek { Charged::Nothing } else { case.charged };
        assert_eq!(charged, expected, "{what}: {error}");
        assert!((1..=case.sent).contains(&sent.len()), "{what}: sent {sent:?}");
    }

    fake.answer(Reply::good(), Reply::good());
    works(&engine, op, &what).await;
    sent.len()
}

async fn works(engine: &Redis, op: Op, what: &str) {
    let working = async { while ask(engine, op).await.is_err() {} };
    timeout(PATIENCE, working).await.unwrap_or_else(|_| panic!("{what}: does not work again"));
}

async fn ask(engine: &Redis, op: Op) -> Result<Decision, EngineError> {
    let limit: Limit = "10/m".parse().unwrap();
    let rule = Rule::new("fake", [limit]).unwrap();
    let (ttl, expiry) = (Micros::from_secs(60), Expiry::Release);
    let op = match op {
        Op::Check => tidegate::Op::Check,
        Op::Peek => tidegate::Op::Peek,
        Op::Reserve => tidegate::Op::Hold { id: HoldId::random().unwrap(), ttl, expiry },
    };
    let cost = Cost::new(1).unwrap();
    let charge = Charge { limit: &rule.limits()[0], key: "anyone".into(), cost, who: None };
    engine.decide(Call { op, charges: &[charge], once: None }).await
}

/// Everything that is tried.
fn cases() -> Vec<Case> {
    let error = |(line, charged): (String, Charged)| Case { charged, ..refusal(&line) };
    let mut cases: Vec<Case> = errors().map(error).collect();
    cases.push(Case { sent: 2, ..refusal("NOSCRIPT for the text too") });
    // Ask again, for ever: by a calendar that is never right.
    cases.push(Case { sent: 6, ..refused("status 0", "*2\r\n:0\r\n:1700000000000000\r\n") });
    cases.extend(
        shapes().map(|(name, bytes)| Case { charged: Charged::Perhaps, ..refused(name, bytes) }),
    );
    for case in cases.clone().into_iter().filter(|case| case.charged == Charged::Perhaps) {
        let evalsha = Reply { closes: true, ..case.evalsha };
        cases.push(Case { name: format!("{}, and gone", case.name), evalsha, ..case });
    }
    cases
}

fn refusal(line: &str) -> Case {
    refused(line, format!("-{line}\r\n"))
}

fn refused(name: &str, bytes: impl Into<Vec<u8>>) -> Case {
    let reply = Reply::new(bytes);
    // Before version 7, the error itself comes behind its place in the script.
    let error = name.rsplit_once("user_script: 86: -").map_or(name, |(_, error)| error);
    let word = error.split(' ').next().unwrap_or_default().to_owned();
    let name = name.chars().take(40).collect();
    // Only this slot is that of the call.
    let redirects = reply.bytes.windows(6).any(|word| word == b"{slot}");
    let eval = reply.clone();
    Case { name, word, evalsha: reply, eval, charged: Charged::Nothing, sent: 1, redirects }
}

/// Errors, and whether something may have been charged before. Nothing was, unless it is an error that may
/// come in the midst of a script, or that nobody knows.
fn errors() -> impl Iterator<Item = (String, Charged)> {
    let before = [
        "READONLY You can't write against a read only replica.",
        "READONLY You can't write against a read only replica. script: f_1, on @user_script:86.",
        "ERR Error running script (call to f_1): @user_script:86: @user_script: 86: -READONLY You can't",
        "REDIRECT 127.0.0.1:1",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "ERR Error running script (call to f_1): @user_script:86: @user_script: 86: -OOM command not",
        "LOADING Redis is loading the dataset in memory",
        "NOAUTH Authentication required.",
        "DENIED Redis is running in protected mode",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOPERM this user has no permissions to access one of the keys used as arguments",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "BUSY Redis is busy running a script.",
        "BUSYKEY Target key name already exists.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "MOVED 1 127.0.0.1:1",
        "MOVED",
        "MOVED 1",
        "MOVED x y",
        "MOVED 99999 :::",
        "MOVED 1 127.0.0.1:99999",
        "MOVED 1 127.0.0.1:{port}",
        "ASK 1 127.0.0.1:1",
        "ASK 1 127.0.0.1:{port}",
        "ASK",
        // To itself, to nobody, to ever new nobodies, to somebody else.
        "MOVED {slot} 127.0.0.1:{port}",
        "ASK {slot} 127.0.0.1:{port}",
        "MOVED {slot} :{port}",
        "MOVED {slot} 127.0.0.1:1",
        "ASK {slot} 127.0.0.1:1",
        "MOVED {slot} 127.9.0.{next}:1",
        "ASK {slot} 127.9.0.{next}:1",
        "MOVED {slot} 127.0.0.1:{other}",
        "ASK {slot} 127.0.0.1:{other}",
        "MOVED {slot} no-such-host.invalid:6379",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Redis is configured to save RDB snapshots",
        "EXECABORT Transaction discarded because of previous errors.",
        "NOTBUSY No scripts in execution right now.",
        "NOPROTO unsupported protocol version",
        "INPROG Failover already in progress.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "TIDEGATE the state was written by a newer version; it is left alone",
        "ERR TIDEGATE bad number for cost script: f_1, on @user_script:86.",
        "ERR user_script:9: bad argument #2 to 'unpack' (data string too short)",
        "ERR unknown command 'EVALSHA', with args beginning with:",
        "ERR wrong number of arguments for 'evalsha' command",
        "ERR max number of clients reached",
    ];
    let perhaps_after = [
        "NOPERM this user has no permissions to run the 'zadd' command",
        "UNKILLABLE The busy script has made writes.",
        "UNBLOCKED force unblock from blocking operation, instance state changed",
        "ERR Error running script",
        "ERR Error running script (call to f_1): @user_script:86: attempt to index a nil value",
        "ERR The user executing the script can't run this command or subcommand script: f_1",
        "ERR invalid expire time in 'set' command script: f_1, on @user_script:86.",
        "ERR",
        "WHATEVER comes after this version",
        "upstream failure",
        "lower case",
        " begins with a space",
        "",
        "\t\u{1b}[31m control characters",
    ];
    let long = format!("ERR {}", "x".repeat(1 << 16));
    let before = before.into_iter().map(|line| (line.to_owned(), Charged::Nothing));
    let after = perhaps_after.into_iter().map(|line| (line.to_owned(), Charged::Perhaps));
    before.chain(after).chain([(long, Charged::Perhaps)])
}

/// What no script of ours answers. The server has run something.
fn shapes() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let shapes: [(&str, &[u8]); 38] = [
        ("nil", b"$-1\r\n"),
        ("nil array", b"*-1\r\n"),
        ("nil of RESP3", b"_\r\n"),
        ("integer", b":1\r\n"),
        ("simple string", b"+OK\r\n"),
        ("bulk string", b"$2\r\n12\r\n"),
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
        ("length that lies", b"$1\r\nabc\r\n"),
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
        ("error that is no text", b"-ERR \xff\xfe\r\n"),
        ("words of another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("zeros", &[0; 64]),
        ("nothing", b""),
        ("line break only", b"\r\n"),
    ];
    let deep = ("nested deeply", b"*1\r\n".repeat(1000));
    shapes.into_iter().map(|(name, bytes)| (name, bytes.to_vec())).chain([deep])
}

/// How many panics there have been in this process, by then and later.
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
