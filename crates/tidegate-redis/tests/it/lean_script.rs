//! The scripts for plain checks decide as the script for all checks does, and leave alone what they
//! do not understand.

use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, Value};
use testkit::redis::RedisServer;
use tidegate::{
    Call, Charge, Clock as _, Cost, Costs, Decision, Engine as _, EngineError, Expiry, HoldId,
    IdempotencyKey, Limit, ManualClock, Micros, Op, Rule, RuleLimit,
};
use tidegate_model::{TraceRng, run_size};
use tidegate_redis::{Redis, lean_script};

/// The limits of each state: in a trace, one after the other is in force.
const STATES: [&[&str]; 9] = [
    &["10/s", "10/s burst 12", "7/m burst 30", "1000000/s burst 3"],
    &["leaky-bucket 5/s capacity 9", "leaky-bucket 77777/d capacity 40"],
    &["leaky-bucket 4/s capacity 6 queue", "leaky-bucket 5/m capacity 6 queue"],
    &["fixed-window 20/s", "fixed-window 9/5s"],
    &["fixed-window 15/s first-hit", "fixed-window 15/3s first-hit"],
    &["fixed-window 40/d tz Europe/Paris", "fixed-window 60/d"],
    &["sliding-window 30/s approximate", "sliding-window 12/3s approximate"],
    &["sliding-log 12/s", "sliding-log 30/5s", "sliding-log 5/100s"],
    &["sliding-window 20/s", "sliding-window 25/5s precision 10ms", "sliding-window 9/30s"],
];
const KEYS: [&str; 3] = ["ann", "bob", "cid"];

fn connect(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Twins in namespaces of their own: one decides by the lean script where it can, one never, and
/// two take turns on the same keys.
struct Twins {
    server: RedisServer,
    admin: Connection,
    clock: ManualClock,
    lean: Redis,
    general: Redis,
    by_turns: [Redis; 2],
}

impl Twins {
    fn start() -> Self {
        let (server, clock) = (RedisServer::start(), ManualClock::default());
        clock.set(Micros::from_secs(1_700_000_000));
        let build = |namespace: &str, is_lean: bool| {
            let builder = Redis::builder(&server.url()).namespace(namespace).secret("s3cret");
            let builder = builder.deadline(Duration::from_secs(60)).test_clock(clock.clone());
            let builder = if is_lean { builder } else { builder.test_no_lean_script() };
            builder.build().unwrap()
        };
        let (lean, general) = (build("lean", true), build("general", false));
        let by_turns = [build("turns", true), build("turns", false)];
        Self { admin: connect(&server), server, clock, lean, general, by_turns }
    }

    /// The same call on all of them. Returns the hold that was made, whose id has the subject: it
    /// is the same in all namespaces.
    async fn decide(&self, call: Call<'_>, turn: usize) -> Option<HoldId> {
        let decided = self.general.decide(call).await;
        let hold = decided.as_ref().ok().and_then(Decision::hold);
        let wanted = outcome(decided);
        let now = self.clock.now();
        assert_eq!(outcome(self.lean.decide(call).await), wanted, "{call:?} at {now:?}");
        let by_turns = self.by_turns[turn].decide(call).await;
        assert_eq!(outcome(by_turns), wanted, "in turns, {call:?} at {now:?}");
        hold
    }

    /// Rewrites some values as version 1 wrote them.
    fn downgrade(&mut self, rng: &mut TraceRng) {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("general:{*").query(&mut self.admin).unwrap();
        for key in keys.iter().filter(|key| !key.ends_with(":holds")) {
            if rng.one_in(2) {
                continue;
            }
            for namespace in ["general", "lean", "turns"] {
                let key = key.replacen("general", namespace, 1);
                let kind: String = redis::cmd("TYPE").arg(&key).query(&mut self.admin).unwrap();
                let get = redis::cmd("GET").arg(&key).to_owned();
                let Ok(mut value) = get.query::<Vec<u8>>(&mut self.admin) else { continue };
                // A state and nothing else: version 1 had no stamp at the end. Its logs of
                // sub-windows had other items.
                let is_state = kind == "string" && value.len() > 11 && value[1] != 4;
                if is_state && value[0] == 2 && value[2] == 1 {
                    value[0] = 1;
                    value.truncate(value.len() - 8);
                    let set = redis::cmd("SET").arg(&key).arg(value).arg("KEEPTTL").to_owned();
                    set.query::<()>(&mut self.admin).unwrap();
                }
            }
        }
    }
}

/// What has to be equal.
fn outcome(decision: Result<Decision, EngineError>) -> String {
    match decision {
        Ok(decision) => {
            let (verdicts, hold) = (&decision.verdicts, decision.hold());
            let repeated = decision.repeated();
            format!("{} {verdicts:?} {hold:?} {repeated}", decision.allowed())
        }
        Err(error) => format!("{error:?}"),
    }
}

#[tokio::test]
async fn the_lean_script_and_the_general_one_decide_alike() {
    let steps = run_size(2_000, 24_000, 200_000);
    let mut twins = Twins::start();
    let rng = &mut TraceRng::new(30);
    // Rules of their own have states of their own.
    let limits = |(index, texts): (usize, &&[&str])| {
        let limit = |text: &&str| {
            let limit: Limit = text.parse().unwrap();
            Rule::new(&format!("rule-{index}"), [limit]).unwrap().limits()[0].clone()
        };
        texts.iter().map(limit).collect()
    };
    let states: Vec<Vec<Arc<RuleLimit>>> = STATES.iter().enumerate().map(limits).collect();
    let mut in_force = [0; STATES.len()];
    let mut holds: Vec<HoldId> = Vec::new();
    let mut plain = 0;
    for _ in 0..steps {
        let span =
            rng.pick(&[0, 1, 999, 20_000, 150_000, 400_000, 1_000_000, 3_000_000, 90_000_000]);
        let now = twins.clock.now();
        twins.clock.set(match rng.one_in(100) {
            true => now.saturating_sub(Micros::new(rng.below(2_000_000))),
            false => now.saturating_add(Micros::new(span)),
        });
        let first = rng.index(STATES.len());
        if rng.one_in(150) {
            in_force[first] = rng.index(STATES[first].len());
        }
        if rng.one_in(200) {
            twins.downgrade(rng);
        }
        let mut parts = vec![first];
        if rng.one_in(4) {
            parts.push((first + 1 + rng.index(STATES.len() - 1)) % STATES.len());
        }
        let (key, caller) = (rng.pick(&KEYS), rng.pick(&[None, Some("anna"), Some("ben")]));
        let charges: Vec<Charge<'_>> = parts
            .iter()
            .map(|part| {
                let cost = Cost::total(rng.pick(&[1, 1, 1, 1, 2, 3, 8, 0, 50]));
                Charge { limit: &states[*part][in_force[*part]], key: key.into(), cost, caller }
            })
            .collect();
        let id = format!("id-{}", rng.below(steps));
        let mut call = Call { op: Op::Check, charges: &charges, idempotency_key: None };
        match rng.below(60) {
            0 => {
                let id = HoldId::random().unwrap();
                let expiry = rng.pick(&[Expiry::Release, Expiry::Charge]);
                call.op = Op::hold(id, Micros::new(1 + rng.below(2_000_000)), expiry);
            }
            1 | 2 if !holds.is_empty() => {
                let id = holds.swap_remove(rng.index(holds.len()));
                call = Call {
                    op: Op::Settle { id, costs: Costs::AsHeld },
                    charges: &[],
                    idempotency_key: None,
                };
            }
            3 => call.idempotency_key = Some(IdempotencyKey::new(&id).unwrap()),
            4 => call.op = Op::Refund,
            5 => call.op = Op::Peek,
            6 if rng.one_in(4) => call.op = Op::Reset,
            _ => plain += 1,
        }
        if matches!(call.op, Op::Hold(_)) && charges.iter().any(|charge| charge.cost.is_zero()) {
            continue;
        }
        holds.extend(twins.decide(call, rng.index(2)).await);
    }
    // Only the lean script writes in place.
    let in_place = twins.server.calls("setrange");
    assert!(plain > steps / 2 && in_place > steps / 4, "{in_place} of {plain}");
}

/// As a client in another language packs them.
fn bucket(size: f64) -> Vec<u8> {
    let numbers = [1.0, 720_000_000.0, 1.0, size].map(f64::to_le_bytes).concat();
    [&[2, 1, 1][..], &numbers, &[0]].concat()
}

fn packed_checks(checks: &[(u16, f64)]) -> Vec<u8> {
    let mut packed = [&[1][..], &(-1_f64).to_le_bytes()].concat();
    for (times, cost) in checks {
        packed.push(1);
        packed.extend(times.to_le_bytes());
        packed.extend(2_u16.to_le_bytes());
        packed.extend(cost.to_le_bytes());
    }
    packed
}

/// How many of each check are allowed, and the units of its state; None where the general script is
/// to decide.
fn evaluate(
    connection: &mut Connection,
    keys: &[&str],
    checks: &[(u16, f64)],
    limit: &[u8],
) -> Vec<Option<(u16, f64)>> {
    let mut command = redis::cmd("EVAL");
    command.arg(lean_script()).arg(keys.len()).arg(keys).arg(packed_checks(checks)).arg(limit);
    let Value::BulkString(reply) = command.query(connection).unwrap() else { panic!("no string") };
    let mut rest = &reply[8..];
    let mut replies = Vec::new();
    while let Some((allowed, state)) = rest.split_first_chunk() {
        let allowed = u16::from_le_bytes(*allowed);
        let bytes = if allowed >= 65_534 { 0 } else { 24 };
        let units = state.first_chunk().map(|units| f64::from_le_bytes(*units));
        replies.push(units.filter(|_| bytes > 0).map(|units| (allowed, units)));
        rest = &state[bytes..];
    }
    replies
}

#[test]
fn of_equal_plain_checks_as_many_are_allowed_as_fit() {
    let server = RedisServer::start();
    let connection = &mut connect(&server);
    for (times, cost, allowed) in
        [(1, 1.0, 1), (4, 1.0, 4), (512, 1.0, 5), (7, 2.0, 2), (3, 5.0, 1), (65_533, 1.0, 5)]
    {
        server.cli(&["FLUSHALL"]);
        let replies = evaluate(connection, &["{x}:a"], &[(times, cost)], &bucket(5.0));
        let units = f64::from(allowed) * cost * 720e6;
        assert_eq!(replies, [Some((allowed, units))], "{times} of {cost}");
    }
}

#[test]
fn what_the_lean_script_does_not_understand_stays_untouched() {
    let server = RedisServer::start();
    let connection = &mut connect(&server);
    let keys = ["{x}:list", "{x}:text", "{x}:newer", "{x}:good"];
    server.cli(&["RPUSH", keys[0], "a list"]);
    server.cli(&["SET", keys[1], "text"]);
    let mut newer = bucket(5.0);
    newer[0] = 3;
    newer.extend([0; 32]);
    redis::cmd("SET").arg(keys[2]).arg(&newer).query::<()>(connection).unwrap();
    let replies = evaluate(connection, &keys, &[(1, 1.0); 4], &bucket(5.0));
    assert_eq!(replies, [None, None, None, Some((1, 720e6))]);
    assert_eq!(server.cli(&["LRANGE", keys[0], "0", "-1"]), "a list");
    assert_eq!(server.cli(&["GET", keys[1]]), "text");
    let stored: Vec<u8> = redis::cmd("GET").arg(keys[2]).query(connection).unwrap();
    assert_eq!(stored, newer);
}

#[test]
fn invalid_numbers_are_left_to_the_general_script_and_write_nothing() {
    let server = RedisServer::start();
    let connection = &mut connect(&server);
    let good = bucket(5.0);
    let check = |connection: &mut Connection, cost: f64, limit: &[u8]| {
        evaluate(connection, &["{x}:a"], &[(1, cost)], limit)
    };
    for cost in [-1.0, 0.5, f64::NAN, f64::INFINITY] {
        assert_eq!(check(connection, cost, &good), [None], "cost {cost}");
    }
    for cost in [0.0, 6.0, 1e300] {
        assert_eq!(check(connection, cost, &good), [Some((0, 0.0))], "cost {cost}");
    }
    for index in 0..4 {
        for bad in [-1.0, 0.0, 0.5, 1e16, f64::NAN, f64::INFINITY] {
            if (index, bad) == (3, 0.0) {
                continue; // a size of 0 is valid
            }
            let mut limit = good.clone();
            limit[3 + 8 * index..][..8].copy_from_slice(&bad.to_le_bytes());
            assert_eq!(check(connection, 1.0, &limit), [None], "{bad} as number {index}");
        }
    }
    for (index, byte) in [(0, 3), (1, 2), (2, 3), (35, 2)] {
        let mut limit = good.clone();
        limit[index] = byte;
        assert_eq!(check(connection, 1.0, &limit), [None], "{byte} at {index}");
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert_eq!(check(connection, 1.0, &good), [Some((1, 720e6))]);
    let mut command = redis::cmd("EVAL");
    let mut other = packed_checks(&[(1, 1.0)]);
    other[0] = 2;
    command.arg(lean_script()).arg(1).arg("{x}:a").arg(other).arg(&good);
    let error = command.query::<Value>(connection).unwrap_err().to_string();
    assert!(error.contains("TIDEGATE unsupported protocol"), "{error}");
}

/// A key that is used once expires a second after its limit has recovered; one that is used again
/// lives longer, so that most checks need not write a new TTL.
#[tokio::test]
async fn a_key_outlives_its_usage_and_a_key_of_one_check_by_a_second_only() {
    let server = RedisServer::start();
    for (limit, once, again) in [
        ("10/m", 7_000, 25_000),
        ("fixed-window 10/d first-hit", 86_401_000, 86_401_000),
        ("sliding-window 10/h approximate", 7_201_000, 7_201_000),
    ] {
        server.cli(&["FLUSHALL"]);
        let engine =
            Redis::builder(&server.url()).deadline(Duration::from_secs(10)).build().unwrap();
        let limiter = tidegate::Limiter::new(engine, limit.parse::<Limit>().unwrap());
        let ttl = || {
            let key = server.cli(&["KEYS", "tg:{*"]);
            server.cli(&["PTTL", key.trim()]).parse::<u64>().unwrap()
        };
        for (index, most) in [once, again, again].into_iter().enumerate() {
            let reset = limiter.check("user").await.unwrap().verdict().reset_after.get() / 1_000;
            let ttl = ttl();
            let slow = 500;
            assert!(
                ttl <= most && ttl + slow >= reset,
                "{limit}, {index}: {ttl}, resets in {reset}"
            );
        }
    }
}
