//! Bugs of the scripts in the five articles that Tidegate started from, tested against the engine
//! on Redis: bugs that only a script in a store can have, and those that could return. The measured
//! behaviour of those scripts is noted above each test.
//!
//! Bugs of the arithmetic alone are covered by the conformance suite (`conformance.rs`) and by the
//! tests of the memory engine (`crates/tidegate/tests/it/known_script_bugs.rs`): 003's boundary,
//! 004 §4's sub-windows, 004 §5's refill, 000's wait for the oldest entry.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use redis::Value;
use testkit::redis::{RedisServer, SCRIPT_COMMANDS};
use tidegate::{
    Algorithm, EngineError, Limit, Limiter, ManualClock, Micros, Outcome, Refusal, Rule, Wait,
};
use tidegate_redis::{Redis, decide_script};

/// Ten permits by every algorithm that charges. None recovers during a test.
const TEN: [&str; 12] = [
    "token-bucket 10/30d",
    "token-bucket 10/30d every 30d",
    "leaky-bucket 10/30d",
    "leaky-bucket 10/30d queue",
    "fixed-window 10/365d",
    "fixed-window 10/month",
    "fixed-window 10/month tz Asia/Shanghai",
    "fixed-window 10/h first-hit",
    "sliding-log 10/h",
    "sliding-window 10/h",
    "sliding-window 10/h precision 7m",
    "sliding-window 10/365d approximate",
];

// 004 §1: `current > 10` before counting lets 11 pass, and more of them when GET and INCR race.

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_concurrent_connections_admit_10_in_total() {
    let server = RedisServer::start();
    for limit in TEN {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let limiter = limiter(&server, limit);
            clients.spawn(async move { admitted(&limiter, "ip", 25).await });
        }
        assert_eq!(clients.join_all().await.into_iter().sum::<usize>(), 10, "{limit}");
    }
}

// 004 §1: EXPIRE on the value instead of the key. 000: no TTL at all.

#[tokio::test]
async fn every_key_expires_when_its_state_has_recovered_and_not_before() {
    let server = RedisServer::start();
    for limit in TEN {
        let limiter = limiter(&server, limit);
        let decision = limiter.check("ip").cost(3).await.unwrap();
        let recovers = decision.verdict().reset_after.get() / 1_000;
        let expiring = keys(&server).into_iter().filter(|key| key != "tg:secret");
        for key in expiring.collect::<Vec<_>>() {
            let ttl = ttl_ms(&server, &key);
            // The TTL is read a little after the decision.
            assert!((recovers - 10_000..=recovers + 1_001).contains(&ttl), "{key}: {ttl} ms");
        }
        server.cli(&["FLUSHALL"]);
    }
}

// 004 §2.1: EXPIRE on every hit, so a window never ends under steady traffic.

#[tokio::test]
async fn a_later_request_does_not_move_the_end_of_a_window() {
    let server = RedisServer::start();
    for limit in ["fixed-window 10/365d", "fixed-window 10/h first-hit", "fixed-window 10/month"] {
        let limiter = limiter(&server, limit);
        let mut ends = u64::MAX;
        for _ in 0..10 {
            limiter.check("ip").await.unwrap();
            let key = keys(&server).into_iter().find(|key| key != "tg:secret").unwrap();
            let ttl = ttl_ms(&server, &key);
            assert!(ttl <= ends, "{limit}: {ttl} ms after {ends} ms");
            ends = ttl;
        }
        server.cli(&["FLUSHALL"]);
    }
}

// 004 §2.2: a Lua boolean is returned, and the denial becomes nil.

#[test]
fn a_denial_is_a_complete_reply_without_nil() {
    let server = RedisServer::start();
    let mut client = RawClient::new(&server);
    for (cost, allowed) in [("5", 1), ("1", 0), ("6", 0)] {
        let Value::Array(reply) = client.check(cost).unwrap() else { panic!("no array") };
        // Five values of the head, and seven numbers of one part.
        assert_eq!(reply.len(), 12);
        assert_eq!((&reply[0], &reply[5]), (&Value::Int(1), &Value::Int(allowed)), "cost {cost}");
        for (index, value) in reply.iter().enumerate() {
            let valid = match index {
                4 => matches!(value, Value::BulkString(_)),
                _ => matches!(value, Value::Int(_)),
            };
            assert!(valid, "cost {cost}, index {index}: {value:?}");
        }
    }
}

// 001 §1: the member is the user, so a second request replaces the first: 1000 of 1000 at limit 10.

#[tokio::test]
async fn requests_of_one_name_are_all_counted() {
    let server = RedisServer::start();
    for limit in TEN {
        let limiter = limiter(&server, limit);
        let mut passed = 0;
        for _ in 0..100 {
            let decision = limiter.check("route").caller("user-42").await.unwrap();
            passed += usize::from(decision.allowed());
        }
        assert_eq!(passed, 10, "{limit}");
    }
}

// 004 §3: the timestamp is the member, so several requests in one second count as one.

#[tokio::test]
async fn requests_of_one_microsecond_are_all_counted() {
    let server = RedisServer::start();
    for limit in TEN {
        let limiter = limiter_at_fixed_instant(&server, limit);
        for counted in 1..=10 {
            assert!(limiter.check("ip").await.unwrap().allowed(), "{limit}");
            assert_eq!(used(&limiter, "ip").await, counted, "{limit}");
        }
        assert!(!limiter.check("ip").await.unwrap().allowed(), "{limit}");
    }
}

/// Members of the sorted set of holds, with the same cost, deadline and microsecond.
#[tokio::test]
async fn reservations_of_one_microsecond_are_all_counted() {
    let server = RedisServer::start();
    for limit in TEN.into_iter().chain(["concurrency 10"]) {
        let limiter = limiter_at_fixed_instant(&server, limit);
        let mut held = Vec::new();
        for _ in 0..10 {
            held.push(limiter.reserve("ip", 1).await.unwrap());
        }
        assert!(limiter.reserve("ip", 1).await.is_err(), "{limit}: an eleventh");
        held.pop().unwrap().cancel().await.unwrap();
        assert!(
            limiter.reserve("ip", 2).await.is_err(),
            "{limit}: two permits after one was released"
        );
        held.push(limiter.reserve("ip", 1).await.unwrap());
        for reserved in held {
            reserved.cancel().await.unwrap();
        }
        assert_eq!(limiter.check("ip").peek().await.unwrap().remaining(), 10, "{limit}");
    }
}

// 001 §2 and §3: a cost of 50 at capacity 10 gets "retry in 40 s" each time.

#[tokio::test]
async fn a_cost_above_the_capacity_is_never_allowed_and_writes_nothing() {
    let server = RedisServer::start();
    for limit in TEN {
        let decision = limiter(&server, limit).check("route").cost(50).await.unwrap();
        assert_eq!(decision.outcome(), Outcome::Never, "{limit}");
        assert_eq!(decision.retry_after(), Wait::Never, "{limit}");
    }
    assert_eq!(keys(&server), ["tg:secret"]);
}

// 001 §2 and §3: a negative cost becomes 1.

/// Costs are unsigned in Rust; here a client in another language sends any text.
#[test]
fn a_cost_that_is_no_whole_number_is_refused_and_not_corrected() {
    let server = RedisServer::start();
    let mut client = RawClient::new(&server);
    for cost in [
        "-1",
        "-50",
        "nan",
        "-nan",
        "inf",
        "1.5",
        "1e300",
        "9007199254740992",
        "",
        "one",
        "0x2",
        "1e0",
        " 1",
        "1 ",
        "-0",
        "+1",
        "0X1p0",
        "1\0",
    ] {
        let error = client.check(cost).unwrap_err();
        assert!(error.to_string().contains("bad number for cost"), "{cost:?}: {error}");
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert_eq!(client.allowed("5"), 1);
}

// 001 §2 and §3: a large capacity makes a TTL that Redis refuses, after the bucket was written.

#[tokio::test]
async fn the_longest_recovery_has_a_ttl_that_redis_accepts() {
    let server = RedisServer::start();
    for limit in [
        "token-bucket 1/s burst 4503599627370495",
        "leaky-bucket 1/s capacity 4503599627370495",
        "token-bucket 1/3650d burst 14275",
        "fixed-window 4503599627370495/3650d",
        "sliding-window 4294967296/3650d",
    ] {
        let limiter = limiter(&server, limit);
        let max = limit_of(limit).capacity().min(1 << 32);
        assert!(limiter.check("route").cost(max).await.unwrap().allowed(), "{limit}");
        limiter.record("route", max).await.unwrap();
        let without = without_ttl(&server);
        assert!(without.is_empty(), "{limit}: {without:?}");
    }
}

// 002: capacity 10 at 100/s raises "invalid expire time", since a TTL of 0.2 s becomes 0.

#[tokio::test]
async fn a_bucket_that_refills_in_a_tenth_of_a_second_works() {
    let server = RedisServer::start();
    for limit in [
        "token-bucket 100/s burst 10",
        "leaky-bucket 100/s capacity 10",
        "token-bucket 1000000/s burst 1",
        "fixed-window 10/1ms",
        "sliding-log 10/1us",
    ] {
        let limiter = limiter(&server, limit);
        for _ in 0..20 {
            limiter.check("route").await.unwrap();
        }
        let without = without_ttl(&server);
        assert!(without.is_empty(), "{limit}: {without:?}");
    }
}

// 001 §2 and §3: every denial writes, into the replication stream too.

#[tokio::test]
async fn a_denial_writes_nothing() {
    let server = RedisServer::start();
    for limit in TEN {
        let limiter = limiter(&server, limit);
        limiter.record("route", 13).await.unwrap();
        let before = changes(&server);
        for _ in 0..50 {
            assert!(!limiter.check("route").await.unwrap().allowed(), "{limit}");
            assert!(
                !limiter.check("route").idempotency_key("payment-17").await.unwrap().allowed(),
                "{limit}"
            );
            assert!(limiter.reserve("route", 1).await.is_err(), "{limit}");
            limiter.check("route").peek().await.unwrap();
        }
        assert_eq!(changes(&server), before, "{limit}");
    }
}

#[tokio::test]
async fn a_denial_by_one_rule_writes_nothing_for_the_others() {
    let server = RedisServer::start();
    for limit in TEN {
        let limiter = two_rules(&server, "fixed-window 0/h", limit);
        for _ in 0..10 {
            assert!(!limiter.check("ip").await.unwrap().allowed(), "{limit}");
        }
    }
    assert_eq!(keys(&server), ["tg:secret"]);
}

// 004 §4: a denial leaves a key without a TTL. 000: no TTL.

#[tokio::test]
async fn no_operation_leaves_a_key_without_a_ttl() {
    let server = RedisServer::start();
    for limit in TEN {
        every_operation(&server, limit, "ip").await;
        let without = without_ttl(&server);
        assert!(without.is_empty(), "{limit}: {without:?}");
    }
}

// 001 §2 and §3: an error comes after the write, and a key without a TTL stays.

/// A key of another type, a malformed value, and a value of a later version. It belongs to the
/// second rule, so that a script that writes part by part would have charged the first.
#[tokio::test]
async fn an_error_comes_before_the_first_write() {
    let server = RedisServer::start();
    let plant: [&[&str]; 5] = [
        &["RPUSH", "KEY", "foreign"],
        &["HSET", "KEY", "foreign", "1"],
        &["SET", "KEY", "\u{1}"],
        &["SET", "KEY", "\u{3}\u{1}\u{1} a later version"],
        &["SET", "KEY", "\u{1}\u{63}\u{1} a later algorithm"],
    ];
    for limit in TEN {
        for planted in plant {
            let limiter = two_rules(&server, "10/h", limit);
            let second = second_state(&server, &limiter).await;
            let words: Vec<&str> =
                planted.iter().map(|word| if *word == "KEY" { &second } else { *word }).collect();
            server.cli(&words);
            let before = (changes(&server), keys(&server));
            for _ in 0..3 {
                let error = limiter.check("ip").await.unwrap_err();
                assert!(matches!(error, EngineError::Unavailable(_)), "{limit}: {error}");
                limiter.record("ip", 1).await.unwrap_err();
                limiter.reserve("ip", 1).await.unwrap_err();
                limiter.check("ip").idempotency_key("payment-17").await.unwrap_err();
            }
            assert_eq!((changes(&server), keys(&server)), before, "{limit}, {planted:?}");
        }
    }
}

/// The log and holds of a state that does not exist yet may be foreign keys.
#[tokio::test]
async fn a_log_or_holds_of_another_type_are_an_error_before_the_first_write() {
    let server = RedisServer::start();
    for (limit, suffix, holds) in [
        ("sliding-log 10/h", ":log", false),
        ("sliding-window 10/h", ":log", false),
        ("sliding-log 10/h", ":holds", true),
        ("10/h", ":holds", true),
        ("concurrency 10", ":holds", true),
    ] {
        let limiter = two_rules(&server, "20/h", limit);
        let key = second_state(&server, &limiter).await + suffix;
        server.cli(&["SET", &key, "foreign"]);
        let before = (changes(&server), keys(&server));
        if holds {
            limiter.reserve("ip", 1).await.unwrap_err();
        } else {
            limiter.check("ip").await.unwrap_err();
        }
        assert_eq!((changes(&server), keys(&server)), before, "{limit}, {suffix}");
    }
}

/// A store that refuses writes replies with an error before the first of them.
#[tokio::test]
async fn a_full_store_is_an_error_before_the_first_write() {
    let server = RedisServer::start();
    for limit in TEN {
        let limiter = two_rules(&server, "10/h", limit);
        limiter.check("ip").cost(2).await.unwrap();
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let before = (changes(&server), keys(&server));
        let error = limiter.check("ip").await.unwrap_err();
        assert!(matches!(error, EngineError::Unavailable(_)), "{limit}: {error}");
        assert_eq!((changes(&server), keys(&server)), before, "{limit}");
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(limiter.check("ip").await.unwrap().remaining(), 7, "{limit}");
        server.cli(&["FLUSHALL"]);
    }
}

/// A denial needs no write, so a full store can deny.
#[test]
fn a_full_store_still_denies() {
    let server = RedisServer::start();
    let mut client = RawClient::new(&server);
    assert_eq!(client.allowed("3"), 1);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(client.allowed("3"), 0);
    client.check("1").unwrap_err();
}

// 002: two keys without a hash tag (CROSSSLOT).

/// On a node of a Cluster, every operation on one subject works, whatever its name is.
#[tokio::test]
async fn all_keys_of_one_subject_are_in_one_slot() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    for _ in 0..1_000 {
        if server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
            break;
        }
    }
    for subject in ["ip", "{a}b", "a}b{c", "{}", "}{", "", "\u{0}\r\n", "a:b:c"] {
        for limit in TEN {
            every_operation(&server, limit, subject).await;
        }
        let tag = |key: &str| key.split_once('{').unwrap().1.split_once('}').unwrap().0.to_string();
        let stored = keys(&server).into_iter().filter(|key| key != "tg:secret");
        let tags: HashSet<String> = stored.map(|key| tag(&key)).collect();
        assert_eq!(tags.len(), 1, "{subject:?}: {tags:?}");
        server.cli(&["FLUSHALL"]);
    }
}

// 004 §4: undeclared keys, and HGETALL on every call.

#[tokio::test]
async fn scripts_touch_only_their_declared_keys() {
    let server = RedisServer::start();
    let monitor = Monitor::start(&server);
    for limit in TEN {
        every_operation(&server, limit, "ip").await;
    }
    let mut declared: Vec<String> = Vec::new();
    let mut inside = 0;
    for (by_script, words) in monitor.commands(&server) {
        if !by_script {
            if SCRIPT_COMMANDS.contains(&&*words[0].to_ascii_lowercase()) {
                let count: usize = words[2].parse().unwrap();
                declared = words[3..3 + count].to_vec();
            }
            continue;
        }
        inside += 1;
        let touched = match words[0].as_str() {
            "TIME" => &[],
            "DEL" | "UNLINK" => &words[1..],
            _ => &words[1..2],
        };
        for key in touched {
            assert!(declared.contains(key), "{words:?} with {declared:?}");
        }
    }
    assert!(inside > 1_000, "{inside} commands seen");
}

#[tokio::test]
async fn a_long_log_is_searched_and_not_read() {
    let server = RedisServer::start();
    let limiter = limiter(&server, "sliding-log 3000/h");
    let checks: Vec<_> = (0..3_000).map(|_| limiter.check("ip")).collect();
    for check in checks {
        assert!(check.await.unwrap().allowed());
    }
    let monitor = Monitor::start(&server);
    assert!(!limiter.check("ip").await.unwrap().allowed());
    let commands = monitor.commands(&server);
    let inside = commands.into_iter().filter(|(by_script, _)| *by_script);
    let words: Vec<Vec<String>> = inside.map(|(_, words)| words).collect();
    assert!(words.len() < 40, "{} commands", words.len());
    assert!(words.iter().all(|words| words[0] != "LRANGE" && words[0] != "HGETALL"), "{words:?}");
}

// 000: 118 bytes for every permit.

#[tokio::test]
async fn a_request_in_a_log_takes_less_than_118_bytes_whatever_it_costs() {
    let server = RedisServer::start();
    let bytes = async |requests: u64, cost: u64| {
        server.cli(&["FLUSHALL"]);
        let limiter = limiter(&server, "sliding-log 1000000/h");
        for _ in 0..requests {
            assert!(limiter.check("order").cost(cost).await.unwrap().allowed());
        }
        let log = keys(&server).into_iter().find(|key| key.ends_with(":log")).unwrap();
        server.cli(&["MEMORY", "USAGE", &log, "SAMPLES", "0"]).parse::<u64>().unwrap()
    };
    let for_each = bytes(1_000, 1).await / 1_000;
    assert!(for_each < 118, "{for_each} bytes");
    assert_eq!(bytes(1, 1_000_000).await, bytes(1, 1).await);
}

// 002, and 000 too: the client's seconds are the clock. Two clients 10 s apart: 200 of 200 at 5.

/// Two clients send equal commands at different times, so no command contains an instant.
#[tokio::test]
async fn no_instant_of_a_client_affects_a_decision() {
    let server = RedisServer::start();
    for limit in TEN.into_iter().filter(|limit| !limit.contains("month")) {
        let clients = [limiter(&server, limit), limiter(&server, limit)];
        clients[0].check("warm up").await.unwrap();
        clients[1].check("warm up").await.unwrap();
        let monitor = Monitor::start(&server);
        let mut passed = 0;
        for _ in 0..15 {
            for client in &clients {
                passed += admitted(client, "route", 1).await;
            }
        }
        assert_eq!(passed, 10, "{limit}");
        let sent = monitor.commands(&server).into_iter().filter(|(by_script, _)| !by_script);
        let is_script =
            |words: &Vec<String>| SCRIPT_COMMANDS.contains(&&*words[0].to_ascii_lowercase());
        // Keys and arguments, whether it is a script or a function.
        let sent: HashSet<Vec<String>> =
            sent.map(|(_, words)| words).filter(is_script).map(|words| words[2..].into()).collect();
        assert_eq!(sent.len(), 1, "{limit}: {sent:?}");
    }
}

/// Only the client knows calendars, so it sends boundaries around its estimate of the time. If the
/// estimate is wrong, the reply contains the time and nothing is charged.
#[test]
fn a_client_whose_calendar_is_days_off_charges_nothing() {
    let server = RedisServer::start();
    let mut client = RawClient::new(&server);
    let Value::Array(time) = client.send(&redis::cmd("TIME")).unwrap() else { panic!("no time") };
    let Value::BulkString(seconds) = &time[0] else { panic!("no seconds") };
    let day = 86_400_000_000_u64;
    let now = std::str::from_utf8(seconds).unwrap().parse::<u64>().unwrap() * 1_000_000;
    let midnight = now - now % day;
    for (days_off, status) in [(-10_i64, 0), (10, 0), (0, 1)] {
        let start = midnight.checked_add_signed(days_off * day.cast_signed()).unwrap();
        let bounds = [start - day, start, start + day, start + 2 * day].map(|b| b.to_string());
        // Algorithm 3, a calendar's window of 10; four boundaries; a cost of 1, no hold, no caller.
        let head = ["3", "1", "10", "0", "4"];
        let part =
            head.into_iter().chain(bounds.iter().map(String::as_str)).chain(["1", "", "", ""]);
        let reply = client.evaluate(Algorithm::FixedWindow, &part.collect::<Vec<_>>()).unwrap();
        let Value::Array(reply) = reply else { panic!("no array") };
        assert_eq!(reply[0], Value::Int(status), "{days_off} days off");
        assert_eq!(reply.len(), if status == 0 { 2 } else { 12 });
        assert_eq!(server.cli(&["DBSIZE"]), status.to_string(), "{days_off} days off");
    }
}

// 000: arithmetic on nil when there is no entry to wait for.

#[tokio::test]
async fn a_denial_without_an_entry_to_wait_for_has_a_retry_time() {
    let server = RedisServer::start();
    for limit in TEN.into_iter().chain(["concurrency 10"]) {
        let limiter = limiter_at_fixed_instant(&server, limit);
        let reserved = limiter.reserve("order", 10).ttl(Duration::from_secs(30)).await.unwrap();
        let decision = limiter.check("order").peek().await.unwrap();
        assert_eq!(decision.retry_after(), Wait::For(Micros::from_secs(30)), "{limit}");
        assert_eq!(decision.remaining(), 0, "{limit}");
        reserved.cancel().await.unwrap();
        let decision = limiter.check("order").peek().await.unwrap();
        assert_eq!((decision.retry_after(), decision.remaining()), (Wait::NONE, 10), "{limit}");
    }
}

/// The list was deleted or evicted, and the state was not: the limit still denies.
#[tokio::test]
async fn a_log_whose_entries_were_deleted_still_denies() {
    let server = RedisServer::start();
    for limit in ["sliding-log 10/h", "sliding-window 10/h"] {
        // Loading the functions would be a change, too.
        let engine = engine(&server).test_no_functions().build().unwrap();
        let limiter = Limiter::new(engine, limit_of(limit));
        limiter.check("order").cost(10).await.unwrap();
        let log = keys(&server).into_iter().find(|key| key.ends_with(":log")).unwrap();
        server.cli(&["DEL", &log]);
        let before = changes(&server);
        let decision = limiter.check("order").await.unwrap();
        assert!(matches!(decision.outcome(), Outcome::RetryAfter(_)), "{limit}: {decision:?}");
        assert_eq!(changes(&server), before, "{limit}");
        limiter.reset("order").await.unwrap();
        assert_eq!(limiter.check("order").await.unwrap().remaining(), 9, "{limit}");
        server.cli(&["FLUSHALL"]);
    }
}

/// Deleted holds do not count.
#[tokio::test]
async fn holds_that_were_deleted_hold_nothing() {
    let server = RedisServer::start();
    for limit in TEN.into_iter().chain(["concurrency 10"]) {
        let limiter = limiter(&server, limit);
        let id = limiter.reserve("order", 10).await.unwrap().keep();
        let holds = keys(&server).into_iter().find(|key| key.ends_with(":holds")).unwrap();
        server.cli(&["DEL", &holds]);
        assert_eq!(limiter.check("order").peek().await.unwrap().remaining(), 10, "{limit}");
        assert!(limiter.reservation(id).cancel().await.unwrap().late(), "{limit}");
        server.cli(&["FLUSHALL"]);
    }
}

// 004 §5: a log line for every denial.

#[tokio::test]
async fn neither_a_denial_nor_an_error_is_logged_by_the_server() {
    let server =
        RedisServer::start_with(&["--loglevel", "debug", "--slowlog-log-slower-than", "-1"]);
    let monitor = Monitor::start(&server);
    let limiter = limiter(&server, "10/h");
    limiter.record("ip", 10).await.unwrap();
    assert!(!limiter.check("ip").await.unwrap().allowed());
    assert!(matches!(
        limiter.check("ip").cost(u64::MAX).await.unwrap_err().refusal(),
        Some(Refusal::Cost(_))
    ));
    let commands = monitor.commands(&server);
    assert!(commands.iter().all(|(_, words)| words[0] != "PUBLISH"), "{commands:?}");
    assert!(!decide_script(&[]).contains("redis.log"));
}

/// Runs every operation on one subject: allowed, denied and refused.
async fn every_operation(server: &RedisServer, limit: &str, subject: &str) {
    let limiter = two_rules(server, "20/h", limit);
    let hour = Duration::from_secs(3_600);
    limiter.check(subject).cost(2).await.unwrap();
    limiter.check(subject).cost(2).idempotency_key("payment-17").await.unwrap();
    limiter.check(subject).cost(2).idempotency_key("payment-17").await.unwrap();
    limiter.check(subject).cost(3).idempotency_key("payment-17").await.unwrap_err();
    limiter.reserve(subject, 2).await.unwrap().commit(1).await.unwrap();
    limiter.reserve(subject, 2).idempotency_key("job-3").await.unwrap().cancel().await.unwrap();
    let reserved = limiter.reserve(subject, 1).ttl(Duration::from_secs(9)).await.unwrap();
    reserved.renew(hour).await.unwrap();
    let kept = reserved.keep();
    assert!(!limiter.check(subject).cost(9).await.unwrap().allowed());
    limiter.refund(subject, 1).await.unwrap();
    limiter.record(subject, 15).await.unwrap();
    assert!(!limiter.check(subject).await.unwrap().allowed());
    limiter.inspect(subject).await.unwrap();
    let raised = limit_of(&limit.replace("10/", "12/"));
    limiter.set_rule(Rule::new("second", [raised]).unwrap()).unwrap();
    assert!(!limiter.check(subject).await.unwrap().allowed());
    limiter.reset(subject).await.unwrap();
    limiter.check(subject).await.unwrap();
    limiter.reservation(kept).commit(1).await.unwrap();
    limiter.reservation(kept).commit(2).await.unwrap_err();
    limiter.reserve(subject, 1).await.unwrap().keep();
}

fn engine(server: &RedisServer) -> tidegate_redis::RedisBuilder {
    Redis::builder(&server.url()).deadline(Duration::from_secs(10))
}

fn limit_of(text: &str) -> Limit {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A limiter of one limit that uses Redis's clock.
fn limiter(server: &RedisServer, limit: &str) -> Limiter {
    Limiter::new(engine(server).build().unwrap(), limit_of(limit))
}

/// The same with a clock that stands still.
fn limiter_at_fixed_instant(server: &RedisServer, limit: &str) -> Limiter {
    let clock = ManualClock::new(Micros::from_secs(1_698_768_000));
    Limiter::new(engine(server).test_clock(clock).build().unwrap(), limit_of(limit))
}

/// A limiter of two rules.
fn two_rules(server: &RedisServer, first: &str, second: &str) -> Limiter {
    let rules = [("first", first), ("second", second)]
        .map(|(name, text)| Rule::new(name, [limit_of(text)]).unwrap());
    Limiter::with_rules(engine(server).build().unwrap(), rules).unwrap()
}

/// The key of the second rule's state for `ip`, after all keys were deleted.
async fn second_state(server: &RedisServer, limiter: &Limiter) -> String {
    let clear = || {
        for key in keys(server).into_iter().filter(|key| key != "tg:secret") {
            server.cli(&["DEL", &key]);
        }
    };
    clear();
    limiter.reserve("ip", 1).await.unwrap().keep();
    let is_state = |key: &String| key.contains(":second:") && !key.ends_with(":holds");
    let found = keys(server).into_iter().find(is_state).unwrap();
    clear();
    found
}

/// Number of requests that pass.
async fn admitted(limiter: &Limiter, key: &str, requests: usize) -> usize {
    let mut passed = 0;
    for _ in 0..requests {
        passed += usize::from(limiter.check(key).await.unwrap().allowed());
    }
    passed
}

async fn used(limiter: &Limiter, key: &str) -> u64 {
    limiter.inspect(key).await.unwrap()[0].standing.used
}

fn keys(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = server.cli(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    keys.sort();
    keys
}

fn ttl_ms(server: &RedisServer, key: &str) -> u64 {
    server.cli(&["PTTL", key]).parse().unwrap_or_else(|_| panic!("{key} has no ttl"))
}

/// Keys without a TTL, except the secret.
fn without_ttl(server: &RedisServer) -> Vec<String> {
    let stays = |key: &String| server.cli(&["PTTL", key]) == "-1" && key != "tg:secret";
    keys(server).into_iter().filter(stays).collect()
}

/// Number of writes so far.
fn changes(server: &RedisServer) -> String {
    let info = server.cli(&["INFO", "persistence"]);
    info.lines().find(|line| line.starts_with("rdb_changes_since_last_save:")).unwrap().to_owned()
}

/// A client that calls scripts with arbitrary arguments.
struct RawClient(redis::Connection);

impl RawClient {
    fn new(server: &RedisServer) -> Self {
        Self(redis::Client::open(server.url()).unwrap().get_connection().unwrap())
    }

    fn send(&mut self, command: &redis::Cmd) -> redis::RedisResult<Value> {
        command.query(&mut self.0)
    }

    fn evaluate(&mut self, algorithm: Algorithm, part: &[&str]) -> redis::RedisResult<Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(decide_script(&[algorithm])).arg(1).arg("raw:{1}:state");
        command.arg(&["1", "check", "", "", "0", "", "", "1", "0"]).arg(part);
        self.send(&command)
    }

    /// Checks `5/h`.
    fn check(&mut self, cost: &str) -> redis::RedisResult<Value> {
        let bucket = ["1", "1", "720000000", "1", "5", "0", "0", cost, "", "", ""];
        self.evaluate(Algorithm::TokenBucket, &bucket)
    }

    fn allowed(&mut self, cost: &str) -> i64 {
        let Value::Array(reply) = self.check(cost).unwrap() else { panic!("no array") };
        let Value::Int(allowed) = reply[5] else { panic!("no number") };
        allowed
    }
}

/// Output of MONITOR: every command, including those of scripts.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    /// All commands so far: whether a script sent it, and its words.
    fn commands(mut self, server: &RedisServer) -> Vec<(bool, Vec<String>)> {
        server.cli(&["ECHO", "end of the test"]);
        let mut commands = Vec::new();
        loop {
            let line = self.line();
            if line.ends_with(r#""end of the test""#) {
                return commands;
            }
            let (head, words) = line.split_once("] ").unwrap();
            commands.push((head.ends_with(" lua"), quoted(words)));
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// The words of a line of `"word" "word"`. Escapes are kept.
fn quoted(line: &str) -> Vec<String> {
    let (mut words, mut word, mut chars) = (Vec::new(), None::<String>, line.chars());
    while let Some(c) = chars.next() {
        match (&mut word, c) {
            (None, '"') => word = Some(String::new()),
            (Some(_), '"') => words.extend(word.take()),
            (Some(text), '\\') => text.extend(['\\', chars.next().unwrap()]),
            (Some(text), c) => text.push(c),
            (None, _) => {}
        }
    }
    words
}
