//! State in Redis and errors of callers when scripts are flushed, clients are killed, keys are
//! hostile, replies are lost, and versions or secrets differ.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{Write as _, stderr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::FromRedisValue;
use tidegate::{
    Call, Charge, Clock as _, Cost, Costs, Decision, Engine, EngineError, Expiry, Extension,
    HoldId, IdempotencyKey, Key, Limit, ManualClock, Micros, Op, Refusal, Rule, RuleCost,
    RuleLimit, SystemClock,
};
use tidegate_model::TraceRng;
use tidegate_redis::{Redis, RedisBuilder};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use testkit::engine::preload_functions;
use testkit::redis::{RedisServer, SCRIPT_COMMANDS};

/// Limits of every algorithm and mode, all with a capacity of 10.
const CONCURRENCY: &str = "concurrency 10 lease 60s";

/// The limits of the conformance suite, and two with another stored format.
fn every_limit() -> impl Iterator<Item = &'static str> {
    tidegate::conformance::EVERY_LIMIT.into_iter().chain(["sliding-window 10/d", CONCURRENCY])
}

const SECOND: Micros = Micros::from_secs(1);
const MINUTE: Micros = Micros::from_secs(60);
/// Deadline of tests that are not about time: nothing times out on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(2);

// --- scripts and writes ------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_scripts_are_flushed_every_10_ms_charges_every_call_once() {
    let store = InspectedServer::start();
    let engine = store.engine();
    let limits = [
        "1/30d burst 1000000",
        "fixed-window 1000000/30d first-hit",
        "sliding-log 1000000/30d",
        "sliding-window 1000000/30d approximate",
    ];
    let limits: Arc<Vec<_>> = Arc::new(limits.iter().map(|text| limit("flush", text)).collect());
    let (over, allowed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let (engine, limits) = (engine.clone(), limits.clone());
        let (over, allowed) = (over.clone(), allowed.clone());
        tasks.spawn(async move {
            for n in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let specs = [(&limits[task % limits.len()], "shared", 1)];
                let id = format!("{task}-{n}");
                let once = (n % 2 == 0).then_some(&*id);
                let decision = decide(&engine, Op::Check, &specs, once).await.unwrap();
                assert!(decision.allowed() && !decision.repeated(), "{decision:?}");
                allowed.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut flushes = 0;
    while flushes < 150 {
        store.command::<()>(&["SCRIPT", "FLUSH"]);
        flushes += 1;
        sleep(Duration::from_millis(10)).await;
    }
    over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    let mut charged = 0;
    for limit in limits.iter() {
        charged += used(&engine, limit, "shared").await;
    }
    let allowed = allowed.load(Ordering::Relaxed);
    let errors: String = store.command(&["INFO", "errorstats"]);
    let (_, missed) = errors.split_once("NOSCRIPT:count=").expect("no call got NOSCRIPT");
    let missed: u64 = missed.lines().next().unwrap().parse().unwrap();
    print_line(&format!(
        "SCRIPT FLUSH {flushes} times under 16 tasks: {missed} NOSCRIPT, 0 errors of callers, \
         allowed {allowed}, charged {charged}"
    ));
    assert_eq!(charged, allowed);
    // Includes the time to compile the scripts again, which depends on the number of calls between
    // two flushes.
    store.print_script_times("flush");
}

#[tokio::test]
async fn a_denial_and_a_peek_write_nothing() {
    // Pings of the primary to its replica would count as replicated bytes.
    let store = InspectedServer::start_with(&["--repl-ping-replica-period", "3600"]);
    let replica = RedisServer::start();
    replica.replica_of(&store.server);
    let (engine, clock) = store.engine_with_clock();
    let free = limit("free", "1000/d");
    let mut calls = 0;
    for (i, text) in every_limit().enumerate() {
        let limit = limit(&format!("full-{i}"), text);
        let hold = |ttl, expiry| Op::hold(HoldId::random().unwrap(), ttl, expiry);
        // One subject is full; the other is half full, with holds that will have expired.
        if text != CONCURRENCY {
            decide_allowed(&engine, Op::Check, &[(&limit, "full", 10)]).await;
            decide_allowed(&engine, Op::Check, &[(&limit, "expired", 5)]).await;
        } else {
            decide_allowed(&engine, hold(MINUTE, Expiry::Release), &[(&limit, "full", 10)]).await;
            decide_allowed(&engine, hold(MINUTE, Expiry::Release), &[(&limit, "expired", 5)]).await;
        }
        decide_allowed(&engine, hold(SECOND, Expiry::Release), &[(&limit, "expired", 3)]).await;
        decide_allowed(&engine, hold(SECOND, Expiry::Charge), &[(&limit, "expired", 2)]).await;

        let before = (store.replicated(), store.dump());
        for subject in ["full", "expired"] {
            for op in [Op::Check, hold(SECOND, Expiry::Release), hold(SECOND, Expiry::Charge)] {
                if text == CONCURRENCY && op == Op::Check {
                    continue;
                }
                for specs in [
                    &[(&limit, subject, 1)][..],
                    &[(&limit, subject, 11)],
                    &[(&free, subject, 1), (&limit, subject, 11)],
                    &[(&free, "another", 1), (&limit, subject, 1), (&limit, subject, 10)],
                ] {
                    for once in [None, Some("id")] {
                        let decision = decide(&engine, op, specs, once).await.unwrap();
                        assert!(!decision.allowed(), "{text}: {op:?} {specs:?}: {decision:?}");
                        calls += 1;
                    }
                }
            }
            if subject == "full" {
                clock.advance(MOMENT);
            }
            for cost in [0, 1, 10, 11] {
                decide(&engine, Op::Peek, &[(&limit, subject, cost)], None).await.unwrap();
                decide(&engine, Op::Peek, &[(&limit, subject, cost)], Some("id")).await.unwrap();
                calls += 2;
            }
            engine.inspect(&limit, subject.into()).await.unwrap();
            calls += 1;
        }
        clock.advance(Duration::from_secs(2));
        for subject in ["full", "expired"] {
            decide(&engine, Op::Peek, &[(&limit, subject, 1)], None).await.unwrap();
            engine.inspect(&limit, subject.into()).await.unwrap();
            let big = hold(SECOND, Expiry::Release);
            assert!(!decide(&engine, big, &[(&limit, subject, 11)], None).await.unwrap().allowed());
            calls += 3;
        }
        let after = (store.replicated(), store.dump());
        assert!(before == after, "{text}: {} bytes of replication", after.0 - before.0);
    }
    print_line(&format!("{calls} denials and peeks of every algorithm: 0 bytes of replication"));
    store.assert_scripts_are_short("denials");
}

/// It recovers at its own rate from the first denial on.
#[tokio::test]
async fn a_changed_limit_is_written_by_its_first_denial_alone_and_by_no_peek() {
    let store = InspectedServer::start_with(&["--repl-ping-replica-period", "3600"]);
    let replica = RedisServer::start();
    replica.replica_of(&store.server);
    let (engine, _) = store.engine_with_clock();
    let (old, new) = (limit("changed", "sliding-log 10/m"), limit("changed", "sliding-log 5/m"));
    decide_allowed(&engine, Op::Check, &[(&old, "subject", 10)]).await;
    let mut offsets = vec![store.replicated()];
    for op in [Op::Peek, Op::Check, Op::Check, Op::Peek, Op::Check] {
        let decision = decide(&engine, op, &[(&new, "subject", 1)], None).await.unwrap();
        assert!(op == Op::Peek || !decision.allowed(), "{decision:?}");
        engine.inspect(&new, "subject".into()).await.unwrap();
        offsets.push(store.replicated());
    }
    let bytes: Vec<_> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    print_line(&format!("calls after a change of the limit replicate {bytes:?} bytes"));
    assert!(bytes[1] > 0, "{bytes:?}");
    assert_eq!([bytes[0], bytes[2], bytes[3], bytes[4]], [0; 4]);
}

#[tokio::test]
async fn a_key_of_the_wrong_type_leaves_everything_uncharged() {
    let store = InspectedServer::start();
    let (engine, _) = store.engine_with_clock();
    let first = limit("first", "sliding-log 10/m");
    let (mut errors, mut unaffected) = (0, 0);
    for text in every_limit() {
        let second = limit("second", text);
        let held = |expiry| Op::hold(HoldId::random().unwrap(), MINUTE, expiry);
        let specs = [(&first, "subject", 1), (&second, "subject", 1)];
        store.clear();
        decide_allowed(&engine, held(Expiry::Release), &[(&second, "subject", 1)]).await;
        let names = store.keys();
        let state = names.iter().find(|name| name.ends_with("1") && name.contains(":second:"));
        let state = state.unwrap().clone();
        for prior in ["nothing", "charged", "held"] {
            let about_a_hold = ["settle", "renew", "extend"];
            let on_charges = ["check", "record", "refund", "reset", "hold", "lease"];
            for op in on_charges.into_iter().chain(about_a_hold) {
                for broken in ["", ":log", ":holds"] {
                    if text == CONCURRENCY && ["check", "record", "refund"].contains(&op) {
                        continue;
                    }
                    store.clear();
                    decide_allowed(&engine, Op::Record, &specs[..1]).await;
                    if prior == "charged" && text != CONCURRENCY {
                        decide_allowed(&engine, Op::Record, &specs).await;
                    }
                    if prior == "held" {
                        decide_allowed(&engine, held(Expiry::Charge), &specs[1..]).await;
                    }
                    let of_a_hold = about_a_hold.contains(&op);
                    let mut id = HoldId::from(1);
                    if of_a_hold {
                        let made = decide_allowed(&engine, held(Expiry::Release), &specs).await;
                        id = made.hold().unwrap();
                    }
                    let name = format!("{state}{broken}");
                    store.command::<()>(&["DEL", &name]);
                    // Neither a string, nor a list, nor a sorted set.
                    store.command::<()>(&["HSET", &name, "wrong", "type"]);
                    let before = store.dump();
                    let op = match op {
                        "check" => Op::Check,
                        "record" => Op::Record,
                        "refund" => Op::Refund,
                        "reset" => Op::Reset,
                        "hold" => held(Expiry::Release),
                        "lease" => held(Expiry::Charge),
                        "settle" => Op::Settle { id, costs: Costs::AsHeld },
                        "extend" => Op::Extend { id, to: LONGER },
                        _ => Op::Renew { id, ttl: MINUTE },
                    };
                    let specs = if of_a_hold { &[][..] } else { &specs[..] };
                    let case = format!("{text}, {prior}, {op:?}, wrong state{broken}");
                    match decide(&engine, op, specs, None).await {
                        Err(error) => {
                            assert!(error.to_string().contains("WRONGTYPE"), "{case}: {error}");
                            store.assert_unchanged(&before, &case);
                            errors += 1;
                        }
                        // A call does not fail on a wrong type of a key that it does not need.
                        Ok(_) => {
                            assert!(!broken.is_empty(), "{case}: the state was ignored");
                            unaffected += 1;
                        }
                    }
                }
            }
        }
    }
    print_line(&format!(
        "a key of the wrong type: {errors} calls failed and changed nothing, {unaffected} did not \
         need it"
    ));
    store.assert_scripts_are_short("wrong types");
}

// --- expiry ------------------------------------------------------------------------------------

const KILLED: &str = "TIDEGATE_TEST_KILLED_CLIENT_OF";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_all_kinds_of_calls_and_killed_clients_every_key_but_the_secret_expires() {
    let store = InspectedServer::start();
    let mut kills = 0;
    for _ in 0..5 {
        let calls = store.calls();
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash_safety::a_client_makes_calls_until_it_is_killed"])
            .env(KILLED, store.server.url())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        while store.calls() < calls + 300 {
            assert!(client.try_wait().unwrap().is_none(), "the client ended by itself");
            sleep(MOMENT).await;
        }
        client.kill().unwrap();
        client.wait().unwrap();
        kills += 1;
    }
    let engine = store.engine();
    traffic(&engine, 0, 3_000).await;

    let (mut keys, mut permanent, mut short) = (0, Vec::new(), Vec::new());
    for name in store.all_keys() {
        let ttl: i64 = store.command(&["PTTL", &name]);
        keys += 1;
        if ttl == -1 {
            permanent.push(name);
        }
    }
    let mut states = 0;
    for limit in limits_of_traffic() {
        let of_state = format!(":{}", limit.state());
        let names: Vec<_> = store.keys().into_iter().filter(|k| k.contains(&of_state)).collect();
        // The TTL is read first: later readings of both get shorter by the time in between.
        let ttls: Vec<i64> = names.iter().map(|name| store.command(&["PTTL", name])).collect();
        let standing = engine.inspect(&limit, SUBJECT.into()).await.unwrap().standing;
        for (name, ttl) in names.iter().zip(ttls) {
            states += 1;
            if ttl >= 0 && ttl.unsigned_abs() * 1_000 < standing.reset_after.get() {
                short.push(format!("{name}: {ttl} ms, but {:?} to reset", standing.reset_after));
            }
        }
    }
    print_line(&format!(
        "{} script calls and {kills} killed clients left {keys} keys: {} without TTL, {} of \
         {states} expire before they have recovered",
        store.calls(),
        permanent.len(),
        short.len()
    ));
    assert_eq!(permanent, ["tg:secret"]);
    assert!(states > 10, "only {states} states are left");
    assert!(short.is_empty(), "{short:#?}");
    store.assert_scripts_are_short("traffic");
}

/// Entry point of a separate process, which the test above starts and kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_makes_calls_until_it_is_killed() {
    let Ok(url) = std::env::var(KILLED) else { return };
    let engine = patient(&url).build().unwrap();
    traffic(&engine, u64::from(std::process::id()), u64::MAX).await;
}

const SUBJECT: &str = "subject";

/// An extension of the deadline alone.
const LONGER: Extension<'static> = Extension { totals: &[], min: None, ttl: Some(MINUTE) };

/// Three rules of every limit, all for one subject.
fn limits_of_traffic() -> Vec<Arc<RuleLimit>> {
    let named = |(i, text)| (0..3).map(move |n| limit(&format!("r{i}-{n}"), text));
    every_limit().enumerate().flat_map(named).collect()
}

/// Makes `calls` random calls of every kind.
async fn traffic(engine: &Redis, seed: u64, calls: u64) {
    let (mut rng, limits) = (TraceRng::new(seed), limits_of_traffic());
    let mut made = vec![HoldId::from(1)];
    for n in 0..calls {
        let ttl = rng.pick(&[Micros::new(1), Micros::new(20_000), SECOND, HoldId::MAX_TTL]);
        let expiry = rng.pick(&[Expiry::Release, Expiry::Charge]);
        let id = made[rng.below(made.len() as u64) as usize];
        let costs = match rng.one_in(2) {
            true => Costs::All(Cost::total(rng.below(13))),
            false => Costs::AsHeld,
        };
        let total = Cost::total(rng.between(1, 10));
        let extended = limits.iter().filter(|limit| !limit.limit().is_queue());
        let totals: Vec<RuleCost<'_>> =
            extended.map(|limit| RuleCost::new(limit.rule(), total).if_held()).collect();
        let op = match rng.below(20) {
            0..6 => Op::Check,
            6..8 => Op::Record,
            8..10 => Op::Refund,
            10 => Op::Reset,
            11..15 => Op::hold(HoldId::random().unwrap(), ttl, expiry),
            15..17 => Op::Settle { id, costs },
            17 => Op::Renew { id, ttl },
            18 => {
                let min = rng.one_in(2).then_some(Cost::ONE);
                let ttl = rng.one_in(2).then_some(ttl);
                Op::Extend { id, to: Extension { totals: &totals, min, ttl } }
            }
            _ => Op::Peek,
        };
        let of_a_hold = op.about_hold().is_some();
        let count = if of_a_hold { 0 } else { rng.between(1, 3) };
        let specs: Vec<_> = (0..count)
            .map(|_| (&limits[rng.below(limits.len() as u64) as usize], SUBJECT, rng.below(8)))
            .collect();
        let name = format!("{seed}-{}", n / 2);
        let once = (!of_a_hold && rng.one_in(4)).then_some(&*name);
        match decide(engine, op, &specs, once).await {
            Ok(decision) => made.extend(decision.hold()),
            Err(EngineError::Refused(_)) => {}
            Err(error) => panic!("{op:?} {specs:?}: {error}"),
        }
    }
}

// --- keys --------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_subjects_get_separate_keys_choose_no_slot_and_stay_hidden() {
    let store = InspectedServer::start();
    let engine = store.engine();
    let rule = limit("hostile", "10/30d burst 10");
    let long = "k".repeat(Key::MAX_LEN - 1);
    let (long_a, long_b) = (format!("{long}a"), format!("{long}b"));
    let mut subjects: Vec<String> = [
        "",
        "{",
        "}",
        "{}",
        "}{",
        "{a}",
        "{a}{b}",
        "a}b{c",
        "{{a}}",
        "\0",
        "a\0",
        "a\0b",
        "\n",
        "a\nb",
        "\r\n",
        "*",
        "?",
        "[a]",
        "a:b",
        ":secret",
        "tg:secret",
        "alice@example.com",
        "{alice@example.com}",
        "ALICE@example.com",
        "\u{1f30a}",
        "a b",
        "a\tb",
        &long_a,
        &long_b,
    ]
    .map(str::to_owned)
    .into();
    subjects.extend((0..10_000).map(|n| format!("{{x}}{n}")));

    let subjects = Arc::new(subjects);
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let (engine, rule, subjects) = (engine.clone(), rule.clone(), subjects.clone());
        tasks.spawn(async move {
            for subject in subjects.iter().skip(task).step_by(16) {
                let decision = decide_allowed(&engine, Op::Check, &[(&rule, subject, 1)]).await;
                assert_eq!(decision.remaining(), 9, "{subject:?} shares a key");
            }
        });
    }
    tasks.join_all().await;
    // Parts are not joined, and bytes need not be UTF-8.
    let keys = [Key::of(&["a", "b"]), Key::of(&["ab"]), Key::of(&["", "ab"]), Key::of(&[])];
    for key in keys.into_iter().chain([Key::from(&b"\xff{x}"[..]), Key::from(&b"\xfe{x}"[..])]) {
        let charge = [Charge { limit: &rule, key, cost: Cost::ONE, caller: None }];
        let call = Call { op: Op::Check, charges: &charge, idempotency_key: None };
        assert_eq!(engine.decide(call).await.unwrap().remaining(), 9, "{key:?} shares a key");
    }
    let too_long = format!("{long_a}b");
    let refused = decide(&engine, Op::Check, &[(&rule, &too_long, 1)], None).await.unwrap_err();
    assert_eq!(refused.refusal(), Some(&Refusal::KeyTooLong));

    let names = store.keys();
    let expected = subjects.len() + 6;
    assert_eq!(names.len(), expected);
    let mut ranges = [0_usize; 16];
    let mut slots = BTreeSet::new();
    for name in &names {
        let tag = name.strip_prefix("tg:{").and_then(|name| name.split_once('}'));
        let (tag, rest) = tag.unwrap_or_else(|| panic!("{name}: no tag"));
        assert!(tag.len() == 32 && tag.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
        assert_eq!(rest, ":hostile:token-bucket1", "{name}");
        let slot = slot(name.as_bytes());
        slots.insert(slot);
        ranges[usize::from(slot) / 1024] += 1;
    }
    assert_eq!(slot(b"tg:secret"), slot(b"{tg:secret}any"), "the hash tag decides");
    assert_eq!(slot(b"123456789"), 0x31c3, "the check value of CRC16/XMODEM");
    for (name, value) in store.dump() {
        for part in ["alice", "example", "{x}", "{a}", "kkkk"] {
            // Three bytes may occur by chance, in an instant or a checksum.
            let seen =
                part.len() > 3 && value.windows(part.len()).any(|window| window == part.as_bytes());
            assert!(!name.contains(part) && !seen, "{name} shows {part}");
        }
    }
    let busiest = ranges.into_iter().max().unwrap();
    let mean = expected / 16;
    print_line(&format!(
        "{expected} hostile subjects: {} keys in {} slots, the busiest of 16 ranges {busiest}, \
         mean {mean}",
        names.len(),
        slots.len()
    ));
    assert!(busiest * 10 <= mean * 13, "{ranges:?}");
    store.assert_scripts_are_short("hostile keys");
}

/// The slot of a key in a Cluster: CRC16 of the text between the first braces.
fn slot(name: &[u8]) -> u16 {
    let open = name.iter().position(|&b| b == b'{');
    let tag = open.and_then(|open| {
        let rest = &name[open + 1..];
        let close = rest.iter().position(|&b| b == b'}')?;
        (close > 0).then_some(&rest[..close])
    });
    let mut crc = 0_u16;
    for &byte in tag.unwrap_or(name) {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % 16_384
}

// --- lost replies ------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_reply_is_ambiguous_and_its_retry_by_id_is_charged_once() {
    const ROUNDS: usize = 52;
    let store = InspectedServer::start();
    let deadline = Duration::from_millis(100);
    let hasty = Arc::new(Redis::builder(&store.server.url()).deadline(deadline).build().unwrap());
    let engine = store.engine();
    let rule = limit("ambiguous", "sliding-log 10/30d");
    let (mut ambiguous, mut unsent, mut repeated) = (0, 0, 0);
    for round in 0..ROUNDS {
        let subject = format!("s{round}");
        let reserve = round % 8 >= 4;
        let op = move || match reserve {
            false => Op::Check,
            true => {
                let id = HoldId::random().unwrap();
                Op::hold(id, HoldId::MAX_TTL, Expiry::Release)
            }
        };
        // With a known secret, a call is one command.
        let mut ready = 0;
        while ready < 3 {
            let peeked = decide(&hasty, Op::Peek, &[(&rule, &subject, 1)], None).await;
            ready = if peeked.is_ok() { ready + 1 } else { 0 };
            sleep(MOMENT).await;
        }
        let call = {
            let (hasty, rule, subject) = (hasty.clone(), rule.clone(), subject.clone());
            move |op| {
                let (hasty, rule, subject) = (hasty.clone(), rule.clone(), subject.clone());
                async move { decide(&hasty, op, &[(&rule, &subject, 1)], Some("id")).await }
            }
        };
        let mut result = None;
        match round % 4 {
            0 => {
                store.command::<()>(&["CLIENT", "PAUSE", "10000", "WRITE"]);
                result = Some(call(op()).await);
                assert_unavailable(call(Op::Peek).await);
                store.command::<()>(&["CLIENT", "UNPAUSE"]);
            }
            1 => {
                store.server.freeze();
                result = Some(call(op()).await);
                assert_unavailable(call(Op::Peek).await);
                store.server.thaw();
            }
            2 => {
                store.command::<()>(&["CLIENT", "PAUSE", "10000", "WRITE"]);
                let pending = tokio::spawn(call(op()));
                sleep(MOMENT).await;
                store.command::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                result = Some(pending.await.unwrap());
                store.command::<()>(&["CLIENT", "UNPAUSE"]);
            }
            // The caller drops the call.
            _ => {
                store.command::<()>(&["CLIENT", "PAUSE", "10000", "WRITE"]);
                drop(timeout(MOMENT, call(op())).await);
                store.command::<()>(&["CLIENT", "UNPAUSE"]);
            }
        }
        match result {
            None => {}
            Some(Err(EngineError::Ambiguous(_))) => ambiguous += 1,
            // Happens on a busy machine.
            Some(Err(EngineError::Unavailable(cause)))
                if cause.to_string().starts_with("nothing was sent") =>
            {
                assert_eq!(used(&engine, &rule, &subject).await, 0, "round {round}: {cause}");
                unsent += 1;
            }
            Some(other) => panic!("round {round}: {other:?}"),
        }
        // Other connections were killed, too.
        let again = loop {
            match decide(&engine, op(), &[(&rule, &subject, 1)], Some("id")).await {
                Ok(decision) => break decision,
                Err(EngineError::Refused(refusal)) => panic!("round {round}: {refusal}"),
                Err(_) => sleep(MOMENT).await,
            }
        };
        assert!(again.allowed(), "round {round}: {again:?}");
        repeated += usize::from(again.repeated());
        assert_eq!(again.hold().is_some(), reserve, "round {round}: {again:?}");
        if let Some(id) = again.hold() {
            decide_allowed(&engine, Op::Settle { id, costs: Costs::AsHeld }, &[]).await;
        }
    }
    let (mut double, mut lost) = (0, 0);
    for round in 0..ROUNDS {
        match used(&engine, &rule, &format!("s{round}")).await {
            0 => lost += 1,
            1 => {}
            _ => double += 1,
        }
    }
    print_line(&format!(
        "{ROUNDS} calls without a reply, retried: {ambiguous} ambiguous, {unsent} not \
         sent, {repeated} had been charged, {double} double, {lost} lost"
    ));
    assert_eq!((double, lost), (0, 0));
    assert!(ambiguous > 0 && repeated > 0 && repeated < ROUNDS);
    store.assert_scripts_are_short("ambiguous calls");
}

fn assert_unavailable(result: Result<Decision, EngineError>) {
    assert!(matches!(result, Err(EngineError::Unavailable(_))), "{result:?}");
}

/// The first call reads the secret and gets NOSCRIPT, and a settle reads its hold: up to four
/// commands, one after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_several_commands_has_one_deadline() {
    let store = InspectedServer::start();
    let delay = Duration::from_millis(60);
    let url = delaying_proxy(store.server.port(), delay).await;
    let deadline = Duration::from_millis(100);
    let rule = limit("slow", "10/m");
    // Four replies would take longer than twice the deadline each time. A busy machine is late some
    // of the time.
    let mut took = Vec::new();
    while took.iter().all(|took| *took >= 2 * deadline) {
        assert!(took.len() < 20, "{took:?}");
        let engine = Redis::builder(&url).deadline(deadline).build().unwrap();
        while !engine.health().up {
            sleep(MOMENT).await;
        }
        let begun = SystemClock.elapsed();
        let _ = decide(&engine, Op::Check, &[(&rule, "subject", 1)], None).await;
        took.push(Duration::from(SystemClock.elapsed().saturating_sub(begun)));
    }
    print_line(&format!(
        "replies that take {delay:?} each: the calls took {took:?}, their deadline {deadline:?}"
    ));
}

/// URL of a proxy to the server that delays every reply by `delay`.
async fn delaying_proxy(port: u16, delay: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
            });
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(len @ 1..) = from_server.read(&mut buffer).await {
                    sleep(delay).await;
                    if to_client.write_all(&buffer[..len]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

// --- versions ----------------------------------------------------------------------------------

#[tokio::test]
async fn state_of_a_newer_version_is_refused_and_not_changed() {
    let store = InspectedServer::start();
    let (engine, _) = store.engine_with_clock();
    let mut refused = 0;
    for text in every_limit() {
        store.clear();
        let rule = limit("upgraded", text);
        let hold = || Op::hold(HoldId::random().unwrap(), MINUTE, Expiry::Release);
        let specs = [(&rule, "subject", 1)];
        if text != CONCURRENCY {
            decide_allowed(&engine, Op::Check, &specs).await;
            decide(&engine, Op::Check, &specs, Some("old")).await.unwrap();
        }
        let id = decide_allowed(&engine, hold(), &specs).await.hold().unwrap();
        let standing = engine.inspect(&rule, "subject".into()).await.unwrap().standing;

        // States and results under ids get a newer version; everything else stays.
        let names = store.keys();
        let values = names.iter().filter(|n| n.ends_with('1') || n.contains(":once:"));
        let values: Vec<_> = values.filter(|n| !n.contains(":hold:")).collect();
        let record = names.iter().find(|name| name.contains(":hold:")).unwrap();
        let version = |of_states: u8, of_records: u8| {
            for name in &values {
                let version = if name.contains(":once:") { of_records } else { of_states };
                let byte = String::from(char::from(version));
                store.command::<()>(&["SETRANGE", name, "0", &byte]);
            }
        };
        version(3, 2);
        let before = store.dump();
        for op in [
            Op::Check,
            Op::Record,
            Op::Refund,
            Op::Peek,
            Op::Reset,
            hold(),
            Op::Settle { id, costs: Costs::AsHeld },
            Op::Renew { id, ttl: MINUTE },
            Op::Extend { id, to: LONGER },
        ] {
            let of_a_hold = op.about_hold().is_some();
            if text == CONCURRENCY && matches!(op, Op::Check | Op::Record | Op::Refund) {
                continue;
            }
            let specs = if of_a_hold { &[][..] } else { &specs };
            assert_newer(decide(&engine, op, specs, None).await.unwrap_err());
            refused += 1;
        }
        assert_newer(engine.inspect(&rule, "subject".into()).await.unwrap_err());
        store.assert_unchanged(&before, text);

        version(2, 1);
        let read = engine.inspect(&rule, "subject".into()).await.unwrap().standing;
        assert_eq!(read, standing, "{text}");

        // An id and a hold alone.
        store.command::<()>(&["HSET", record, "v", "2"]);
        let before = store.dump();
        assert_newer(
            decide(&engine, Op::Settle { id, costs: Costs::AsHeld }, &[], None).await.unwrap_err(),
        );
        if let Some(name) = values.iter().find(|name| name.contains(":once:")) {
            store.command::<()>(&["SETRANGE", name, "0", "\u{2}"]);
            assert_newer(decide(&engine, Op::Check, &specs, Some("old")).await.unwrap_err());
            store.command::<()>(&["SETRANGE", name, "0", "\u{1}"]);
            let again = decide(&engine, Op::Check, &specs, Some("old")).await.unwrap();
            assert!(again.repeated(), "{again:?}");
        }
        store.assert_unchanged(&before, text);
        store.command::<()>(&["HSET", record, "v", "1"]);
        decide_allowed(&engine, Op::Settle { id, costs: Costs::AsHeld }, &[]).await;
    }
    print_line(&format!("{refused} calls on states of a newer version refused, 0 bytes changed"));
}

fn assert_newer(error: EngineError) {
    assert!(error.to_string().contains("newer version"), "{error}");
}

// --- secrets -----------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_without_a_secret_share_the_one_that_the_first_stored() {
    let store = InspectedServer::start();
    let rule = limit("shared", "fixed-window 100/30d first-hit");
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let (engine, rule) = (store.engine(), rule.clone());
        tasks.spawn(
            async move { decide_allowed(&engine, Op::Check, &[(&rule, "subject", 1)]).await },
        );
    }
    let lowest = tasks.join_all().await.iter().map(Decision::remaining).min().unwrap();
    print_line(&format!(
        "20 engines start at once without a secret: {} charged to one key",
        100 - lowest
    ));
    assert_eq!((lowest, store.keys().len()), (80, 1));
}

/// Otherwise engines with the old secret and newer engines would count separately.
#[tokio::test]
async fn a_lost_secret_is_stored_again_by_an_engine_that_knows_it() {
    let store = InspectedServer::start();
    let rule = limit("lost", "fixed-window 100/30d first-hit");
    let old = store.engine();
    for _ in 0..3 {
        decide_allowed(&old, Op::Check, &[(&rule, "subject", 1)]).await;
    }
    store.command::<()>(&["FLUSHALL"]);
    // The engine checks the stored secret with the first call of every second.
    timeout(TIMEOUT, async {
        while !store.all_keys().iter().any(|name| name.ends_with(":secret")) {
            decide(&old, Op::Peek, &[(&rule, "subject", 1)], None).await.unwrap();
            sleep(MOMENT).await;
        }
    })
    .await
    .unwrap();
    decide_allowed(&old, Op::Check, &[(&rule, "subject", 1)]).await;
    let new = store.engine();
    let decision = decide_allowed(&new, Op::Check, &[(&rule, "subject", 1)]).await;
    assert_eq!((decision.remaining(), store.keys().len()), (98, 1), "counted separately");
}

#[tokio::test]
async fn a_secret_that_differs_from_that_of_the_namespace_is_refused() {
    let store = InspectedServer::start();
    let url = store.server.url();
    let rule = limit("secret", "10/m");
    let build = |namespace, secret: Option<&str>| {
        let builder = patient(&url).namespace(namespace);
        let builder = match secret {
            Some(secret) => builder.secret(secret),
            None => builder,
        };
        builder.build().unwrap()
    };
    let mut texts = Vec::new();
    for (namespace, first, then) in [
        ("one", Some("opensesame"), Some("opensesame2")),
        ("two", Some("opensesame"), None),
        ("three", None, Some("opensesame")),
    ] {
        let specs = [(&rule, "alice@example.com", 1)];
        decide_allowed(&build(namespace, first), Op::Check, &specs).await;
        decide_allowed(&build(namespace, first), Op::Check, &specs).await;
        let before = store.dump();
        let other = build(namespace, then);
        for op in [Op::Check, Op::Peek, Op::Reset] {
            let error = decide(&other, op, &specs, None).await.unwrap_err();
            assert!(error.to_string().contains("secret differs"), "{namespace}: {error}");
            texts.push(full_text(&error));
        }
        store.assert_unchanged(&before, namespace);
        texts.push(format!("{other:?}"));
    }
    texts.extend(store.keys());
    let one: Vec<u8> = store.command(&["GET", "one:secret"]);
    texts.push(String::from_utf8(one).unwrap());
    assert_hidden(&texts, &["opensesame", "alice", "example"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_and_no_debug_text_shows_a_subject_or_a_secret() {
    let store = InspectedServer::start();
    let (url, deadline) = (store.server.url(), Duration::from_millis(40));
    let engine = Redis::builder(&url).secret("opensesame").deadline(deadline).build().unwrap();
    let (subject, rule) = ("alice@example.com", limit("quiet", "sliding-log 10/m"));
    let specs = [(&rule, subject, 1)];
    while decide(&engine, Op::Check, &specs, Some("id")).await.is_err() {
        sleep(MOMENT).await;
    }
    let mut texts = vec![format!("{engine:?} {:?}", engine.health())];
    let call = async |op, cost, once| {
        decide(&engine, op, &[(&rule, subject, cost)], once).await.map(|decision| {
            panic!("{op:?} was decided: {decision:?}");
        })
    };
    let mut record = |result: Result<(), EngineError>| texts.push(full_text(&result.unwrap_err()));
    record(call(Op::Check, 2, Some("id")).await);
    record(
        decide(&engine, Op::Settle { id: 1.into(), costs: Costs::AsHeld }, &[], None)
            .await
            .map(drop),
    );
    let state = store.keys().into_iter().find(|name| name.ends_with("log1")).unwrap();
    store.command::<()>(&["SETRANGE", &state, "0", "\u{3}"]);
    record(call(Op::Check, 1, None).await);
    store.command::<()>(&["SETRANGE", &state, "0", "\u{1}\u{63}"]);
    record(call(Op::Check, 1, None).await);
    store.command::<()>(&["SET", &state, "x"]);
    record(call(Op::Check, 1, None).await);
    store.command::<()>(&["DEL", &state]);
    store.command::<()>(&["LPUSH", &state, "x"]);
    record(call(Op::Check, 1, None).await);
    store.server.freeze();
    record(call(Op::Check, 1, None).await);
    record(call(Op::Peek, 1, None).await);
    store.server.thaw();
    let count = texts.len();
    assert_hidden(&texts, &["opensesame", "alice", "example"]);
    print_line(&format!("{count} errors and debug texts: none shows a secret or a subject"));
}

#[tokio::test]
async fn no_url_shows_its_password() {
    let mut texts = Vec::new();
    for url in [
        "",
        "hunter2",
        "http://user:hunter2@localhost:6379/",
        "redis:/user:hunter2@localhost",
        "redis://user:hunter2@",
        "redis://user:hunter2@:6379/",
        "redis://user:hunter2@localhost:99999/",
        "redis://user:hunter2@localhost:port/",
        "redis://user:hunter2@localhost/hunter2",
        "redis://user:hunter2@local host/",
        "redis://user:hunter2%zz@[::1/",
    ] {
        match Redis::builder(url).build() {
            Ok(_) => panic!("{url:?} is accepted"),
            Err(error) => texts.push(full_text(&error)),
        }
    }
    // A wrong password; no server at the address; a name that does not resolve.
    let server = RedisServer::start_with(&["--requirepass", "correct"]);
    let stopped = RedisServer::stopped(&[]);
    for address in [
        format!("127.0.0.1:{}", server.port()),
        format!("127.0.0.1:{}", stopped.port()),
        "name.invalid:6379".to_owned(),
    ] {
        for user in ["", "user"] {
            let url = format!("redis://{user}:hunter2@{address}/");
            let builder = Redis::builder(&url).deadline(Duration::from_millis(200));
            let engine = builder.build().unwrap();
            let rule = limit("refused", "10/m");
            let error = decide(&engine, Op::Check, &[(&rule, "x", 1)], None).await.unwrap_err();
            texts.push(full_text(&error));
            texts.push(format!("{engine:?}"));
        }
    }
    let count = texts.len();
    assert_hidden(&texts, &["hunter2"]);
    print_line(&format!("{count} texts about URLs and logins: none shows the password"));
}

/// Display and debug texts of an error and of its sources.
fn full_text(error: &impl Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    text
}

fn assert_hidden(texts: &[String], hidden: &[&str]) {
    for text in texts {
        for hidden in hidden {
            assert!(!text.contains(hidden), "{hidden} is shown: {text}");
        }
    }
}

// --- calls -------------------------------------------------------------------------------------

/// Limit, subject and cost.
type ChargeSpec<'a> = (&'a Arc<RuleLimit>, &'a str, u64);

async fn decide(
    engine: &Redis,
    op: Op<'_>,
    specs: &[ChargeSpec<'_>],
    once: Option<&str>,
) -> Result<Decision, EngineError> {
    let mut charges = Vec::with_capacity(specs.len());
    for &(limit, subject, cost) in specs {
        let (key, cost) = (Key::from(subject), Cost::total(cost));
        charges.push(Charge { limit, key, cost, caller: None });
    }
    let once = once.map(|id| IdempotencyKey::new(id).unwrap());
    let call = Call { op, charges: &charges, idempotency_key: once };
    engine.decide(call).await
}

/// The decision on a call that has to be allowed.
async fn decide_allowed(engine: &Redis, op: Op<'_>, specs: &[ChargeSpec<'_>]) -> Decision {
    let decision = decide(engine, op, specs, None).await.unwrap();
    assert!(decision.allowed(), "{op:?} {specs:?}: {decision:?}");
    decision
}

async fn used(engine: &Redis, limit: &Arc<RuleLimit>, subject: &str) -> u64 {
    engine.inspect(limit, subject.into()).await.unwrap().standing.used
}

fn limit(rule: &str, limit: &str) -> Arc<RuleLimit> {
    let limit: Limit = limit.parse().unwrap();
    Rule::new(rule, [limit]).unwrap().limits()[0].clone()
}

fn patient(url: &str) -> RedisBuilder {
    Redis::builder(url).deadline(TIMEOUT)
}

fn print_line(line: &str) {
    writeln!(stderr().lock(), "crash safety: {line}").unwrap();
}

/// A server, and a connection that reads it without the engine.
struct InspectedServer {
    server: RedisServer,
    admin: RefCell<redis::Connection>,
}

impl InspectedServer {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(args: &[&str]) -> Self {
        let slow = ["--slowlog-log-slower-than", "1000", "--slowlog-max-len", "1000"];
        let server = RedisServer::start_with(&[&slow, args].concat());
        // So that no engine replicates it in the middle of a test.
        preload_functions(&server);
        let client = redis::Client::open(server.url()).unwrap();
        let admin = RefCell::new(client.get_connection().unwrap());
        Self { server, admin }
    }

    fn engine(&self) -> Arc<Redis> {
        Arc::new(patient(&self.server.url()).build().unwrap())
    }

    /// A manual clock stands still, so that no key expires.
    fn engine_with_clock(&self) -> (Redis, ManualClock) {
        let clock = ManualClock::default();
        let builder = patient(&self.server.url()).test_clock(clock.clone());
        (builder.build().unwrap(), clock)
    }

    fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        cmd.query(&mut *self.admin.borrow_mut())
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn all_keys(&self) -> Vec<String> {
        self.command(&["KEYS", "*"])
    }

    /// All keys except the secrets.
    fn keys(&self) -> Vec<String> {
        self.all_keys().into_iter().filter(|name| !name.ends_with(":secret")).collect()
    }

    /// The stored bytes of every key.
    fn dump(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.keys();
        let mut pipe = redis::pipe();
        for name in &names {
            pipe.cmd("DUMP").arg(name);
        }
        let values: Vec<Vec<u8>> = pipe.query(&mut *self.admin.borrow_mut()).unwrap();
        let mut dump: BTreeMap<_, _> = names.into_iter().zip(values).collect();
        // The order of a large hash may change by reading.
        for (name, value) in dump.iter_mut().filter(|(name, _)| name.contains(":hold:")) {
            let fields: BTreeMap<Vec<u8>, Vec<u8>> = self.command(&["HGETALL", name]);
            *value = format!("{fields:?}").into_bytes();
        }
        dump
    }

    fn assert_unchanged(&self, before: &BTreeMap<String, Vec<u8>>, case: &str) {
        let after = self.dump();
        let differ = |name: &&String| before.get(*name) != after.get(*name);
        let names: BTreeSet<_> = before.keys().chain(after.keys()).filter(differ).collect();
        assert!(names.is_empty(), "{case}: written to {names:?}");
    }

    fn clear(&self) {
        let names = self.keys();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if !names.is_empty() {
            self.command::<()>(&[&["DEL"], &names[..]].concat());
        }
    }

    /// Bytes sent to the replicas.
    fn replicated(&self) -> u64 {
        let info: String = self.command(&["INFO", "replication"]);
        let (_, rest) = info.split_once("master_repl_offset:").unwrap();
        rest.lines().next().unwrap().parse().unwrap()
    }

    /// Number of scripts run.
    fn calls(&self) -> u64 {
        self.server.script_calls()
    }

    /// Scripts take little CPU time on average. Wall clock time is printed only: on a busy machine
    /// it is mostly the time that the server waits for a CPU.
    fn assert_scripts_are_short(&self, what: &str) {
        let mean = self.print_script_times(what);
        assert!(mean <= 1_000, "{what}: {mean} us of CPU for each script");
    }

    /// Prints how long scripts took. Returns the microseconds of CPU for each.
    fn print_script_times(&self, what: &str) -> u64 {
        let entries: Vec<Vec<redis::Value>> = self.command(&["SLOWLOG", "GET", "-1"]);
        let mut slow = Vec::new();
        for entry in entries {
            let micros: u64 = redis::from_redis_value(&entry[2]).unwrap();
            let words: Vec<Vec<u8>> = redis::from_redis_value(&entry[3]).unwrap();
            let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            if SCRIPT_COMMANDS.contains(&&*words[0].to_ascii_lowercase()) {
                slow.push((micros, words[2..words.len().min(12)].join(" ")));
            }
        }
        slow.sort_unstable();
        let (ran, waited) = self.scheduled();
        let calls = self.calls();
        let mean = ran / calls.max(1);
        print_line(&format!(
            "{what}: {} of {calls} scripts took more than 1 ms by the wall clock; {mean} us of \
             CPU each; the server waited {} ms for a CPU",
            slow.len(),
            waited / 1_000
        ));
        if let Some((longest, words)) = slow.last() {
            print_line(&format!("{what}: longest {longest} us: {words}"));
        }
        mean
    }

    /// Microseconds for which the server's thread ran, and waited for a CPU.
    fn scheduled(&self) -> (u64, u64) {
        let stat = format!("/proc/{0}/task/{0}/schedstat", self.server.pid());
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        let mut nanos = stat.split_whitespace().map(|word| word.parse().unwrap_or(0));
        let mut micros = || nanos.next().unwrap_or(0_u64) / 1_000;
        (micros(), micros())
    }
}
