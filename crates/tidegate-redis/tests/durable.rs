//! What is left in Redis, and what callers are told, when scripts vanish, clients are killed, keys
//! are hostile, replies do not come, and versions or secrets differ.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/server.rs"]
mod server;

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
    Call, CallId, Charge, Clock as _, Cost, Decision, Engine, EngineError, Expiry, HoldId, Key,
    Limit, ManualClock, Micros, Op, Refusal, Rule, RuleLimit, SystemClock,
};
use tidegate_model::Rng;
use tidegate_redis::{Redis, RedisBuilder};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::server::Server;

/// Limits of every algorithm and mode, all with a capacity of 10.
const CONCURRENCY: &str = "concurrency 10 lease 60s";

/// Those of the suite, and two that are kept in another way.
fn every_limit() -> impl Iterator<Item = &'static str> {
    tidegate::conformance::EVERY_LIMIT.into_iter().chain(["sliding-window 10/d", CONCURRENCY])
}

const SECOND: Micros = Micros::from_secs(1);
const MINUTE: Micros = Micros::from_secs(60);
/// For what is not about time: nothing times out on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(2);

// --- scripts and writes ------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_its_scripts_every_10_ms_charges_every_call_once() {
    let store = Store::start();
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
                let asks = [(&limits[task % limits.len()], "everyone", 1)];
                let id = format!("{task}-{n}");
                let once = (n % 2 == 0).then_some(&*id);
                let decision = decide(&engine, Op::Check, &asks, once).await.unwrap();
                assert!(decision.allowed() && !decision.repeated(), "{decision:?}");
                allowed.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut flushes = 0;
    while flushes < 150 {
        store.ask::<()>(&["SCRIPT", "FLUSH"]);
        flushes += 1;
        sleep(Duration::from_millis(10)).await;
    }
    over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    let mut charged = 0;
    for limit in limits.iter() {
        charged += used(&engine, limit, "everyone").await;
    }
    let allowed = allowed.load(Ordering::Relaxed);
    let errors: String = store.ask(&["INFO", "errorstats"]);
    let (_, missed) = errors.split_once("NOSCRIPT:count=").expect("no script was ever missed");
    let missed: u64 = missed.lines().next().unwrap().parse().unwrap();
    say(&format!(
        "SCRIPT FLUSH {flushes} times under 16 tasks: {missed} NOSCRIPT, 0 seen by a caller, \
         allowed {allowed}, charged {charged}"
    ));
    assert_eq!(charged, allowed);
    store.was_quick("flush");
}

#[tokio::test]
async fn a_denial_and_a_peek_write_nothing() {
    // The primary's signs of life to its replica count as replicated bytes.
    let store = Store::start_with(&["--repl-ping-replica-period", "3600"]);
    let replica = Server::start();
    replica.replica_of(&store.server);
    let (engine, clock) = store.engine_with_clock();
    let free = limit("free", "1000/d");
    let mut calls = 0;
    for (i, text) in every_limit().enumerate() {
        let limit = limit(&format!("full-{i}"), text);
        let hold = |ttl, expiry| Op::Hold { id: HoldId::random().unwrap(), ttl, expiry };
        // Full; and half full beside holds that will have ended.
        if text != CONCURRENCY {
            must(&engine, Op::Check, &[(&limit, "full", 10)]).await;
            must(&engine, Op::Check, &[(&limit, "ended", 5)]).await;
        } else {
            must(&engine, hold(MINUTE, Expiry::Release), &[(&limit, "full", 10)]).await;
            must(&engine, hold(MINUTE, Expiry::Release), &[(&limit, "ended", 5)]).await;
        }
        must(&engine, hold(SECOND, Expiry::Release), &[(&limit, "ended", 3)]).await;
        must(&engine, hold(SECOND, Expiry::Charge), &[(&limit, "ended", 2)]).await;

        let before = (store.replicated(), store.dump());
        for subject in ["full", "ended"] {
            for op in [Op::Check, hold(SECOND, Expiry::Release), hold(SECOND, Expiry::Charge)] {
                if text == CONCURRENCY && op == Op::Check {
                    continue;
                }
                for asks in [
                    &[(&limit, subject, 1)][..],
                    &[(&limit, subject, 11)],
                    &[(&free, subject, 1), (&limit, subject, 11)],
                    &[(&free, "another", 1), (&limit, subject, 1), (&limit, subject, 10)],
                ] {
                    for once in [None, Some("id")] {
                        let decision = decide(&engine, op, asks, once).await.unwrap();
                        assert!(!decision.allowed(), "{text}: {op:?} {asks:?}: {decision:?}");
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
        for subject in ["full", "ended"] {
            decide(&engine, Op::Peek, &[(&limit, subject, 1)], None).await.unwrap();
            engine.inspect(&limit, subject.into()).await.unwrap();
            let big = hold(SECOND, Expiry::Release);
            assert!(!decide(&engine, big, &[(&limit, subject, 11)], None).await.unwrap().allowed());
            calls += 3;
        }
        let after = (store.replicated(), store.dump());
        assert!(before == after, "{text}: {} bytes of replication", after.0 - before.0);
    }
    say(&format!("{calls} denials and peeks of every algorithm: 0 bytes of replication"));
    store.was_quick("denials");
}

/// The change of a limit is written with the first charge.
#[tokio::test]
async fn under_a_changed_limit_a_denial_and_a_peek_write_nothing() {
    let store = Store::start_with(&["--repl-ping-replica-period", "3600"]);
    let replica = Server::start();
    replica.replica_of(&store.server);
    let (engine, _) = store.engine_with_clock();
    let (old, new) = (limit("changed", "sliding-log 10/m"), limit("changed", "sliding-log 5/m"));
    must(&engine, Op::Check, &[(&old, "someone", 10)]).await;
    let mut offsets = vec![store.replicated()];
    for _ in 0..3 {
        assert!(
            !decide(&engine, Op::Check, &[(&new, "someone", 1)], None).await.unwrap().allowed()
        );
        decide(&engine, Op::Peek, &[(&new, "someone", 1)], None).await.unwrap();
        offsets.push(store.replicated());
    }
    let bytes: Vec<_> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    say(&format!("denials after a change of the limit replicate {bytes:?} bytes"));
    assert_eq!(bytes, [0, 0, 0]);
}

#[tokio::test]
async fn a_key_of_the_wrong_type_leaves_everything_uncharged() {
    let store = Store::start();
    let (engine, _) = store.engine_with_clock();
    let first = limit("first", "sliding-log 10/m");
    let (mut errors, mut unharmed) = (0, 0);
    for text in every_limit() {
        let second = limit("second", text);
        let held = |expiry| Op::Hold { id: HoldId::random().unwrap(), ttl: MINUTE, expiry };
        let asks = [(&first, "someone", 1), (&second, "someone", 1)];
        store.clear();
        must(&engine, held(Expiry::Release), &[(&second, "someone", 1)]).await;
        let names = store.keys();
        let state = names.iter().find(|name| name.ends_with("1") && name.contains(":second:"));
        let state = state.unwrap().clone();
        for prior in ["nothing", "charged", "held"] {
            for op in ["check", "record", "refund", "reset", "hold", "lease", "settle", "renew"] {
                for broken in ["", ":log", ":holds"] {
                    if text == CONCURRENCY && ["check", "record", "refund"].contains(&op) {
                        continue;
                    }
                    store.clear();
                    must(&engine, Op::Record, &asks[..1]).await;
                    if prior == "charged" && text != CONCURRENCY {
                        must(&engine, Op::Record, &asks).await;
                    }
                    if prior == "held" {
                        must(&engine, held(Expiry::Charge), &asks[1..]).await;
                    }
                    let of_a_hold = op == "settle" || op == "renew";
                    let mut id = HoldId::from(1);
                    if of_a_hold {
                        let made = must(&engine, held(Expiry::Release), &asks).await;
                        id = made.hold().unwrap();
                    }
                    let name = format!("{state}{broken}");
                    store.ask::<()>(&["DEL", &name]);
                    // Neither a string, nor a list, nor a sorted set.
                    store.ask::<()>(&["HSET", &name, "wrong", "type"]);
                    let before = store.dump();
                    let op = match op {
                        "check" => Op::Check,
                        "record" => Op::Record,
                        "refund" => Op::Refund,
                        "reset" => Op::Reset,
                        "hold" => held(Expiry::Release),
                        "lease" => held(Expiry::Charge),
                        "settle" => Op::Settle { id, cost: None },
                        _ => Op::Renew { id, ttl: MINUTE },
                    };
                    let asks = if of_a_hold { &[][..] } else { &asks[..] };
                    let case = format!("{text}, {prior}, {op:?}, wrong state{broken}");
                    match decide(&engine, op, asks, None).await {
                        Err(error) => {
                            assert!(error.to_string().contains("WRONGTYPE"), "{case}: {error}");
                            store.holds_the_same(&before, &case);
                            errors += 1;
                        }
                        // What a call does not need may be of any type.
                        Ok(_) => {
                            assert!(!broken.is_empty(), "{case}: a state was ignored");
                            unharmed += 1;
                        }
                    }
                }
            }
        }
    }
    say(&format!(
        "a key of the wrong type: {errors} calls failed and changed nothing, {unharmed} did not \
         need it"
    ));
    store.was_quick("wrong types");
}

// --- what stays --------------------------------------------------------------------------------

const KILLED: &str = "TIDEGATE_TEST_KILLED_CLIENT_OF";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_all_kinds_of_calls_and_killed_clients_every_key_but_the_secret_expires() {
    let store = Store::start();
    let mut kills = 0;
    for _ in 0..5 {
        let calls = store.calls();
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_client_lives_until_it_is_killed"])
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
        let ttl: i64 = store.ask(&["PTTL", &name]);
        keys += 1;
        if ttl == -1 {
            permanent.push(name);
        }
    }
    let mut states = 0;
    for limit in limits_of_traffic() {
        let of_state = format!(":{}", limit.state());
        let names: Vec<_> = store.keys().into_iter().filter(|k| k.contains(&of_state)).collect();
        // Looked at first: time that passes in between makes it shorter, as it does the other.
        let ttls: Vec<i64> = names.iter().map(|name| store.ask(&["PTTL", name])).collect();
        let standing = engine.inspect(&limit, SUBJECT.into()).await.unwrap().standing;
        for (name, ttl) in names.iter().zip(ttls) {
            states += 1;
            if ttl >= 0 && ttl.unsigned_abs() * 1_000 < standing.reset_after.get() {
                short.push(format!("{name}: {ttl} ms, but {:?} to reset", standing.reset_after));
            }
        }
    }
    say(&format!(
        "{} script calls and {kills} killed clients left {keys} keys: {} without TTL, {} of \
         {states} gone before they have recovered",
        store.calls(),
        permanent.len(),
        short.len()
    ));
    assert_eq!(permanent, ["tg:secret"]);
    assert!(states > 10, "{states} states are left to look at");
    assert!(short.is_empty(), "{short:#?}");
    store.was_quick("traffic");
}

/// A process of its own: the test above starts and kills it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_lives_until_it_is_killed() {
    let Ok(url) = std::env::var(KILLED) else { return };
    let engine = patient(&url).build().unwrap();
    traffic(&engine, u64::from(std::process::id()), u64::MAX).await;
}

const SUBJECT: &str = "someone";

/// Three rules of every limit, all for one subject.
fn limits_of_traffic() -> Vec<Arc<RuleLimit>> {
    let named = |(i, text)| (0..3).map(move |n| limit(&format!("r{i}-{n}"), text));
    every_limit().enumerate().flat_map(named).collect()
}

/// So many random calls of every kind.
async fn traffic(engine: &Redis, seed: u64, calls: u64) {
    let (mut rng, limits) = (Rng::new(seed), limits_of_traffic());
    let mut made = vec![HoldId::from(1)];
    for n in 0..calls {
        let ttl = rng.pick(&[Micros::new(1), Micros::new(20_000), SECOND, HoldId::MAX_TTL]);
        let expiry = rng.pick(&[Expiry::Release, Expiry::Charge]);
        let id = made[rng.below(made.len() as u64) as usize];
        let cost = rng.one_in(2).then(|| Cost::total(rng.below(13)));
        let op = match rng.below(20) {
            0..6 => Op::Check,
            6..8 => Op::Record,
            8..10 => Op::Refund,
            10 => Op::Reset,
            11..15 => Op::Hold { id: HoldId::random().unwrap(), ttl, expiry },
            15..17 => Op::Settle { id, cost },
            17..19 => Op::Renew { id, ttl },
            _ => Op::Peek,
        };
        let of_a_hold = matches!(op, Op::Settle { .. } | Op::Renew { .. });
        let count = if of_a_hold { 0 } else { rng.between(1, 3) };
        let asks: Vec<_> = (0..count)
            .map(|_| (&limits[rng.below(limits.len() as u64) as usize], SUBJECT, rng.below(8)))
            .collect();
        let name = format!("{seed}-{}", n / 2);
        let once = (!of_a_hold && rng.one_in(4)).then_some(&*name);
        match decide(engine, op, &asks, once).await {
            Ok(decision) => made.extend(decision.hold()),
            Err(EngineError::Refused(_)) => {}
            Err(error) => panic!("{op:?} {asks:?}: {error}"),
        }
    }
}

// --- keys --------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_subjects_get_a_key_each_choose_no_slot_and_stay_unseen() {
    let store = Store::start();
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
                let decision = must(&engine, Op::Check, &[(&rule, subject, 1)]).await;
                assert_eq!(decision.remaining(), 9, "{subject:?} shares a key");
            }
        });
    }
    tasks.join_all().await;
    // Parts stay apart, and bytes need not be text.
    let keys = [Key::of(&["a", "b"]), Key::of(&["ab"]), Key::of(&["", "ab"]), Key::of(&[])];
    for key in keys.into_iter().chain([Key::from(&b"\xff{x}"[..]), Key::from(&b"\xfe{x}"[..])]) {
        let charge = [Charge { limit: &rule, key, cost: Cost::ONE, who: None }];
        let call = Call { op: Op::Check, charges: &charge, once: None };
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
    assert_eq!(slot(b"tg:secret"), slot(b"{tg:secret}any"), "the tag decides");
    assert_eq!(slot(b"123456789"), 0x31c3, "the check value of CRC16/XMODEM");
    for (name, value) in store.dump() {
        for part in ["alice", "example", "{x}", "{a}", "kkkk"] {
            // Three bytes among so many come about by chance, in an instant or a checksum.
            let seen =
                part.len() > 3 && value.windows(part.len()).any(|window| window == part.as_bytes());
            assert!(!name.contains(part) && !seen, "{name} shows {part}");
        }
    }
    let busiest = ranges.into_iter().max().unwrap();
    let mean = expected / 16;
    say(&format!(
        "{expected} hostile subjects: {} keys in {} slots, the busiest of 16 ranges {busiest}, \
         mean {mean}",
        names.len(),
        slots.len()
    ));
    assert!(busiest * 10 <= mean * 13, "{ranges:?}");
    store.was_quick("hostile keys");
}

/// The slot of a key in a cluster: CRC16 of what stands between the first braces.
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

// --- no answer ---------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_an_answer_is_ambiguous_and_asked_again_by_its_id_is_charged_once() {
    const ROUNDS: usize = 52;
    let store = Store::start();
    let deadline = Duration::from_millis(40);
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
                Op::Hold { id, ttl: HoldId::MAX_TTL, expiry: Expiry::Release }
            }
        };
        // Once the secret is agreed upon, a call is one command.
        let mut ready = 0;
        while ready < 3 {
            let peeked = decide(&hasty, Op::Peek, &[(&rule, &subject, 1)], None).await;
            ready = if peeked.is_ok() { ready + 1 } else { 0 };
            sleep(MOMENT).await;
        }
        let ask = {
            let (hasty, rule, subject) = (hasty.clone(), rule.clone(), subject.clone());
            move |op| {
                let (hasty, rule, subject) = (hasty.clone(), rule.clone(), subject.clone());
                async move { decide(&hasty, op, &[(&rule, &subject, 1)], Some("id")).await }
            }
        };
        let mut told = None;
        match round % 4 {
            0 => {
                store.ask::<()>(&["CLIENT", "PAUSE", "10000", "WRITE"]);
                told = Some(ask(op()).await);
                unavailable(ask(Op::Peek).await);
                store.ask::<()>(&["CLIENT", "UNPAUSE"]);
            }
            1 => {
                store.server.freeze();
                told = Some(ask(op()).await);
                unavailable(ask(Op::Peek).await);
                store.server.thaw();
            }
            2 => {
                store.ask::<()>(&["CLIENT", "PAUSE", "10000", "WRITE"]);
                let call = tokio::spawn(ask(op()));
                sleep(MOMENT).await;
                store.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                told = Some(call.await.unwrap());
                store.ask::<()>(&["CLIENT", "UNPAUSE"]);
            }
            // The caller goes away.
            _ => {
                store.ask::<()>(&["CLIENT", "PAUSE", "10000", "WRITE"]);
                drop(timeout(MOMENT, ask(op())).await);
                store.ask::<()>(&["CLIENT", "UNPAUSE"]);
            }
        }
        match told {
            None => {}
            Some(Err(EngineError::Ambiguous(_))) => ambiguous += 1,
            // On a machine that is busy enough.
            Some(Err(EngineError::Unavailable(cause)))
                if cause.to_string().starts_with("nothing was sent") =>
            {
                assert_eq!(used(&engine, &rule, &subject).await, 0, "round {round}: {cause}");
                unsent += 1;
            }
            Some(other) => panic!("round {round}: {other:?}"),
        }
        // The killed connection was not the only one.
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
            must(&engine, Op::Settle { id, cost: None }, &[]).await;
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
    say(&format!(
        "{ROUNDS} calls without an answer, asked again: {ambiguous} were ambiguous, {unsent} not \
         sent, {repeated} had been charged, {double} double, {lost} lost"
    ));
    assert_eq!((double, lost), (0, 0));
    assert!(ambiguous > ROUNDS / 2 && repeated > 0 && repeated < ROUNDS);
    store.was_quick("ambiguous calls");
}

fn unavailable(answer: Result<Decision, EngineError>) {
    assert!(matches!(answer, Err(EngineError::Unavailable(_))), "{answer:?}");
}

/// The first call agrees on the secret and finds no script, and a settle looks for its hold: that
/// is up to four commands, one after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_several_commands_has_one_deadline() {
    let store = Store::start();
    let delay = Duration::from_millis(60);
    let url = slow_way(store.server.port(), delay).await;
    let deadline = Duration::from_millis(100);
    let engine = Redis::builder(&url).deadline(deadline).build().unwrap();
    while !engine.health().up {
        sleep(MOMENT).await;
    }
    let rule = limit("slow", "10/m");
    let mut longest = Micros::ZERO;
    for _ in 0..4 {
        let begun = SystemClock.elapsed();
        let _ = decide(&engine, Op::Check, &[(&rule, "someone", 1)], None).await;
        longest = longest.max(SystemClock.elapsed().saturating_sub(begun));
    }
    say(&format!(
        "replies that take {delay:?} each: the longest call took {} ms, its deadline {deadline:?}",
        longest.get() / 1_000
    ));
    // Twice, for a machine that is late for its timers; four replies take longer.
    assert!(Duration::from(longest) < 2 * deadline, "{longest:?}");
}

/// The address of a server whose every word takes `delay` longer.
async fn slow_way(port: u16, delay: Duration) -> String {
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
async fn what_a_newer_version_wrote_is_refused_and_stays_as_it_is() {
    let store = Store::start();
    let (engine, _) = store.engine_with_clock();
    let mut refused = 0;
    for text in every_limit() {
        store.clear();
        let rule = limit("upgraded", text);
        let hold =
            || Op::Hold { id: HoldId::random().unwrap(), ttl: MINUTE, expiry: Expiry::Release };
        let asks = [(&rule, "someone", 1)];
        if text != CONCURRENCY {
            must(&engine, Op::Check, &asks).await;
            decide(&engine, Op::Check, &asks, Some("old")).await.unwrap();
        }
        let id = must(&engine, hold(), &asks).await.hold().unwrap();
        let standing = engine.inspect(&rule, "someone".into()).await.unwrap().standing;

        // The states and the answers under ids: version 2, and the rest as it is.
        let names = store.keys();
        let values = names.iter().filter(|n| n.ends_with('1') || n.contains(":once:"));
        let values: Vec<_> = values.filter(|n| !n.contains(":hold:")).collect();
        let record = names.iter().find(|name| name.contains(":hold:")).unwrap();
        let version = |version: u8| {
            let byte = String::from(char::from(version));
            for name in &values {
                store.ask::<()>(&["SETRANGE", name, "0", &byte]);
            }
        };
        version(2);
        let before = store.dump();
        for op in [
            Op::Check,
            Op::Record,
            Op::Refund,
            Op::Peek,
            Op::Reset,
            hold(),
            Op::Settle { id, cost: None },
            Op::Renew { id, ttl: MINUTE },
        ] {
            let of_a_hold = matches!(op, Op::Settle { .. } | Op::Renew { .. });
            if text == CONCURRENCY && matches!(op, Op::Check | Op::Record | Op::Refund) {
                continue;
            }
            let asks = if of_a_hold { &[][..] } else { &asks };
            newer(decide(&engine, op, asks, None).await.unwrap_err());
            refused += 1;
        }
        newer(engine.inspect(&rule, "someone".into()).await.unwrap_err());
        store.holds_the_same(&before, text);

        version(1);
        let read = engine.inspect(&rule, "someone".into()).await.unwrap().standing;
        assert_eq!(read, standing, "{text}");

        // An id and a hold by themselves.
        store.ask::<()>(&["HSET", record, "v", "2"]);
        let before = store.dump();
        newer(decide(&engine, Op::Settle { id, cost: None }, &[], None).await.unwrap_err());
        if let Some(name) = values.iter().find(|name| name.contains(":once:")) {
            store.ask::<()>(&["SETRANGE", name, "0", "\u{2}"]);
            newer(decide(&engine, Op::Check, &asks, Some("old")).await.unwrap_err());
            store.ask::<()>(&["SETRANGE", name, "0", "\u{1}"]);
            let again = decide(&engine, Op::Check, &asks, Some("old")).await.unwrap();
            assert!(again.repeated(), "{again:?}");
        }
        store.holds_the_same(&before, text);
        store.ask::<()>(&["HSET", record, "v", "1"]);
        must(&engine, Op::Settle { id, cost: None }, &[]).await;
    }
    say(&format!("{refused} calls on states of a newer version refused, 0 bytes changed"));
}

fn newer(error: EngineError) {
    assert!(error.to_string().contains("newer version"), "{error}");
}

// --- secrets -----------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_without_a_secret_share_the_one_that_the_first_stored() {
    let store = Store::start();
    let rule = limit("shared", "fixed-window 100/30d first-hit");
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let (engine, rule) = (store.engine(), rule.clone());
        tasks.spawn(async move { must(&engine, Op::Check, &[(&rule, "someone", 1)]).await });
    }
    let lowest = tasks.join_all().await.iter().map(Decision::remaining).min().unwrap();
    say(&format!("20 engines begin at once without a secret: {} charged to one key", 100 - lowest));
    assert_eq!((lowest, store.keys().len()), (80, 1));
}

/// Otherwise those that know the old one and those that come later count apart.
#[tokio::test]
async fn a_lost_secret_is_set_again_by_those_who_know_it() {
    let store = Store::start();
    let rule = limit("lost", "fixed-window 100/30d first-hit");
    let old = store.engine();
    for _ in 0..3 {
        must(&old, Op::Check, &[(&rule, "someone", 1)]).await;
    }
    store.ask::<()>(&["FLUSHALL"]);
    // It is asked for again every second.
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    must(&old, Op::Check, &[(&rule, "someone", 1)]).await;
    let new = store.engine();
    let decision = must(&new, Op::Check, &[(&rule, "someone", 1)]).await;
    assert_eq!((decision.remaining(), store.keys().len()), (98, 1), "two universes");
}

#[tokio::test]
async fn a_secret_other_than_the_namespaces_is_refused() {
    let store = Store::start();
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
        let asks = [(&rule, "alice@example.com", 1)];
        must(&build(namespace, first), Op::Check, &asks).await;
        must(&build(namespace, first), Op::Check, &asks).await;
        let before = store.dump();
        let other = build(namespace, then);
        for op in [Op::Check, Op::Peek, Op::Reset] {
            let error = decide(&other, op, &asks, None).await.unwrap_err();
            assert!(error.to_string().contains("secret differs"), "{namespace}: {error}");
            texts.push(words_of(&error));
        }
        store.holds_the_same(&before, namespace);
        texts.push(format!("{other:?}"));
    }
    texts.extend(store.keys());
    let one: Vec<u8> = store.ask(&["GET", "one:secret"]);
    texts.push(String::from_utf8(one).unwrap());
    conceal(&texts, &["opensesame", "alice", "example"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_and_no_debug_text_shows_a_subject_or_a_secret() {
    let store = Store::start();
    let (url, deadline) = (store.server.url(), Duration::from_millis(40));
    let engine = Redis::builder(&url).secret("opensesame").deadline(deadline).build().unwrap();
    let (subject, rule) = ("alice@example.com", limit("quiet", "sliding-log 10/m"));
    let asks = [(&rule, subject, 1)];
    while decide(&engine, Op::Check, &asks, Some("id")).await.is_err() {
        sleep(MOMENT).await;
    }
    let mut texts = vec![format!("{engine:?} {:?}", engine.health())];
    let ask = async |op, cost, once| {
        decide(&engine, op, &[(&rule, subject, cost)], once).await.map(|decision| {
            panic!("{op:?} has an answer: {decision:?}");
        })
    };
    let mut note = |answer: Result<(), EngineError>| texts.push(words_of(&answer.unwrap_err()));
    note(ask(Op::Check, 2, Some("id")).await);
    note(decide(&engine, Op::Settle { id: 1.into(), cost: None }, &[], None).await.map(drop));
    let state = store.keys().into_iter().find(|name| name.ends_with("log1")).unwrap();
    store.ask::<()>(&["SETRANGE", &state, "0", "\u{2}"]);
    note(ask(Op::Check, 1, None).await);
    store.ask::<()>(&["SETRANGE", &state, "0", "\u{1}\u{63}"]);
    note(ask(Op::Check, 1, None).await);
    store.ask::<()>(&["SET", &state, "x"]);
    note(ask(Op::Check, 1, None).await);
    store.ask::<()>(&["DEL", &state]);
    store.ask::<()>(&["LPUSH", &state, "x"]);
    note(ask(Op::Check, 1, None).await);
    store.server.freeze();
    note(ask(Op::Check, 1, None).await);
    note(ask(Op::Peek, 1, None).await);
    store.server.thaw();
    let count = texts.len();
    conceal(&texts, &["opensesame", "alice", "example"]);
    say(&format!("{count} errors and debug texts: none shows a secret or a subject"));
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
            Ok(_) => panic!("{url:?} is taken for a url"),
            Err(error) => texts.push(words_of(&error)),
        }
    }
    // A wrong password; nobody listening; no such name.
    let server = Server::start_with(&["--requirepass", "correct"]);
    let nobody = Server::stopped(&[]);
    for address in [
        format!("127.0.0.1:{}", server.port()),
        format!("127.0.0.1:{}", nobody.port()),
        "name.invalid:6379".to_owned(),
    ] {
        for user in ["", "user"] {
            let url = format!("redis://{user}:hunter2@{address}/");
            let builder = Redis::builder(&url).deadline(Duration::from_millis(200));
            let engine = builder.build().unwrap();
            let rule = limit("refused", "10/m");
            let error = decide(&engine, Op::Check, &[(&rule, "x", 1)], None).await.unwrap_err();
            texts.push(words_of(&error));
            texts.push(format!("{engine:?}"));
        }
    }
    let count = texts.len();
    conceal(&texts, &["hunter2"]);
    say(&format!("{count} texts about urls and logins: none shows the password"));
}

/// All that an error says about itself.
fn words_of(error: &impl Error) -> String {
    let mut words = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        words += &format!(" {error} {error:?}");
        source = error.source();
    }
    words
}

fn conceal(texts: &[String], hidden: &[&str]) {
    for text in texts {
        for hidden in hidden {
            assert!(!text.contains(hidden), "{hidden} is shown: {text}");
        }
    }
}

// --- questions ---------------------------------------------------------------------------------

/// Limit, subject and cost.
type Asked<'a> = (&'a Arc<RuleLimit>, &'a str, u64);

async fn decide(
    engine: &Redis,
    op: Op,
    asks: &[Asked<'_>],
    once: Option<&str>,
) -> Result<Decision, EngineError> {
    let mut charges = Vec::with_capacity(asks.len());
    for &(limit, subject, cost) in asks {
        let (key, cost) = (Key::from(subject), Cost::total(cost));
        charges.push(Charge { limit, key, cost, who: None });
    }
    let once = once.map(|id| CallId::new(id).unwrap());
    let call = Call { op, charges: &charges, once };
    engine.decide(call).await
}

/// The decision on a call that has to be allowed.
async fn must(engine: &Redis, op: Op, asks: &[Asked<'_>]) -> Decision {
    let decision = decide(engine, op, asks, None).await.unwrap();
    assert!(decision.allowed(), "{op:?} {asks:?}: {decision:?}");
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
    Redis::builder(url).deadline(PATIENCE)
}

fn say(words: &str) {
    writeln!(stderr().lock(), "durable: {words}").unwrap();
}

/// A server, and the way to look into it past the engine.
struct Store {
    server: Server,
    admin: RefCell<redis::Connection>,
}

impl Store {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(args: &[&str]) -> Self {
        let slow = ["--slowlog-log-slower-than", "1000", "--slowlog-max-len", "1000"];
        let server = Server::start_with(&[&slow, args].concat());
        let client = redis::Client::open(server.url()).unwrap();
        let admin = RefCell::new(client.get_connection().unwrap());
        Self { server, admin }
    }

    fn engine(&self) -> Arc<Redis> {
        Arc::new(patient(&self.server.url()).build().unwrap())
    }

    /// With a clock that stands still, no key expires.
    fn engine_with_clock(&self) -> (Redis, ManualClock) {
        let clock = ManualClock::default();
        let builder = patient(&self.server.url()).test_clock(clock.clone());
        (builder.build().unwrap(), clock)
    }

    fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        cmd.query(&mut *self.admin.borrow_mut())
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn all_keys(&self) -> Vec<String> {
        self.ask(&["KEYS", "*"])
    }

    /// All but the secrets.
    fn keys(&self) -> Vec<String> {
        self.all_keys().into_iter().filter(|name| !name.ends_with(":secret")).collect()
    }

    /// Everything that is stored, byte by byte.
    fn dump(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.keys();
        let mut pipe = redis::pipe();
        for name in &names {
            pipe.cmd("DUMP").arg(name);
        }
        let values: Vec<Vec<u8>> = pipe.query(&mut *self.admin.borrow_mut()).unwrap();
        let mut dump: BTreeMap<_, _> = names.into_iter().zip(values).collect();
        // A large hash lies in an order that reading may change.
        for (name, value) in dump.iter_mut().filter(|(name, _)| name.contains(":hold:")) {
            let fields: BTreeMap<Vec<u8>, Vec<u8>> = self.ask(&["HGETALL", name]);
            *value = format!("{fields:?}").into_bytes();
        }
        dump
    }

    fn holds_the_same(&self, before: &BTreeMap<String, Vec<u8>>, case: &str) {
        let after = self.dump();
        let differ = |name: &&String| before.get(*name) != after.get(*name);
        let names: BTreeSet<_> = before.keys().chain(after.keys()).filter(differ).collect();
        assert!(names.is_empty(), "{case}: written to {names:?}");
    }

    fn clear(&self) {
        let names = self.keys();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if !names.is_empty() {
            self.ask::<()>(&[&["DEL"], &names[..]].concat());
        }
    }

    /// How many bytes the replicas have been sent.
    fn replicated(&self) -> u64 {
        let info: String = self.ask(&["INFO", "replication"]);
        let (_, rest) = info.split_once("master_repl_offset:").unwrap();
        rest.lines().next().unwrap().parse().unwrap()
    }

    /// How many scripts have run.
    fn calls(&self) -> u64 {
        let info: String = self.ask(&["INFO", "commandstats"]);
        let rest = info.split_once("cmdstat_evalsha:calls=").map_or("0", |(_, rest)| rest);
        rest.split(',').next().unwrap().parse().unwrap()
    }

    /// No script has kept the server busy. The log goes by the wall clock, so the time for which
    /// the kernel kept the server waiting for a processor is taken off where the kernel tells.
    fn was_quick(&self, what: &str) {
        let entries: Vec<Vec<redis::Value>> = self.ask(&["SLOWLOG", "GET", "-1"]);
        let mut slow = Vec::new();
        for entry in entries {
            let micros: u64 = redis::from_redis_value(&entry[2]).unwrap();
            let words: Vec<Vec<u8>> = redis::from_redis_value(&entry[3]).unwrap();
            let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            if words[0].eq_ignore_ascii_case("EVALSHA") {
                slow.push((micros, words[2..words.len().min(12)].join(" ")));
            }
        }
        slow.sort_unstable();
        let (ran, waited) = self.scheduled();
        let calls = self.calls();
        say(&format!(
            "{what}: {} of {calls} scripts took more than 1 ms by the wall clock; {} us of \
             processor for each; the server waited {} ms for a processor",
            slow.len(),
            ran / calls.max(1),
            waited / 1_000
        ));
        if let Some((longest, words)) = slow.last() {
            say(&format!("{what}: the longest took {longest} us: {words}"));
        }
        let excess: u64 = slow.iter().map(|(micros, _)| micros.saturating_sub(5_000)).sum();
        assert!(excess <= waited, "{what}: scripts took {excess} us beyond 5 ms each: {slow:#?}");
        assert!(ran / calls.max(1) <= 1_000, "{what}: {ran} us of processor for {calls} scripts");
    }

    /// For how many microseconds the server's thread ran, and waited for a processor.
    fn scheduled(&self) -> (u64, u64) {
        let stat = format!("/proc/{0}/task/{0}/schedstat", self.server.pid());
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        let mut nanos = stat.split_whitespace().map(|word| word.parse().unwrap_or(0));
        let mut micros = || nanos.next().unwrap_or(0_u64) / 1_000;
        (micros(), micros())
    }
}
