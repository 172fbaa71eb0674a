//! The module decides as `lean.lua` does: the same reply and the same stored bytes, on the same
//! keys by turns.

use redis::{Cmd, Connection, Value};
use tidegate::Limit;
use tidegate_model::{TraceRng, run_size};
use tidegate_redis::lean_script;

use crate::fixture::{PackedCheck, connect, decide, head, pack, start};

const LIMITS: [&str; 12] = [
    "10/s",
    "10/s burst 12",
    "7/m burst 30",
    "1000000/s burst 3",
    "leaky-bucket 77777/d capacity 40",
    "leaky-bucket 4/s capacity 6 queue",
    "fixed-window 20/s",
    "fixed-window 15/3s first-hit",
    "fixed-window 40/d",
    "sliding-window 30/s approximate",
    "sliding-window 12/3s approximate",
    "2/s every 500ms burst 9",
];
const HOUR: u64 = 3_600_000_000;

/// A day that begins at another hour for each zone.
fn day(now: u64, zone: u64) -> (u64, u64) {
    let start = now - (now + zone * HOUR) % (24 * HOUR);
    (start, start + 24 * HOUR)
}

/// A call of `lean.lua`.
fn eval(keys: &[String], packed: &[u8], heads: &[Vec<u8>]) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(lean_script()).arg(keys.len()).arg(keys).arg(packed).arg(heads);
    command
}

/// Keys with limits that change now and then.
struct Trace {
    rng: TraceRng,
    limits: Vec<Limit>,
    now: u64,
    /// Some values are not plain states.
    spoils: bool,
}

impl Trace {
    fn step_clock(&mut self) {
        let span =
            self.rng.pick(&[0, 1, 999, 20_000, 150_000, 400_000, 1_000_000, 3_000_000, HOUR]);
        self.now = match self.rng.one_in(100) {
            true => self.now - self.rng.below(2_000_000),
            false => self.now + span,
        };
    }

    /// Keys, packed checks and limits of one call.
    fn draw(&mut self) -> (Vec<String>, Vec<u8>, Vec<Vec<u8>>) {
        self.step_clock();
        let zone = if self.rng.one_in(50) { 2 } else { 0 };
        let window = day(self.now, zone);
        let heads: Vec<Vec<u8>> = self.limits.iter().map(|limit| head(limit, window)).collect();
        let (mut keys, mut checks) = (Vec::new(), Vec::<PackedCheck>::new());
        for _ in 0..self.rng.pick(&[1, 1, 1, 3, 8]) {
            let is_free = self.rng.one_in(20);
            let parts = (0..self.rng.pick(&[1, 1, 1, 2, 3])).map(|_| {
                let limit = self.rng.index(LIMITS.len());
                // Mostly each limit has keys of its own.
                let owner = if self.rng.one_in(80) { self.rng.index(LIMITS.len()) } else { limit };
                keys.push(format!("{{x}}:{owner}:{}", self.rng.below(4)));
                let odd = [0.0, 0.5, -1.0, f64::NAN, f64::INFINITY, 1e300];
                let cost = match (is_free, self.rng.one_in(60)) {
                    (true, false) => 0.0,
                    (_, true) => self.rng.pick(&odd),
                    _ => self.rng.pick(&[1.0, 1.0, 1.0, 2.0, 3.0, 8.0, 50.0]),
                };
                (u16::try_from(limit).unwrap() + 2, cost)
            });
            let parts = parts.collect();
            checks.push((self.rng.pick(&[1, 1, 1, 2, 7, 300, 0, 65_534]), parts));
        }
        (keys, pack(self.now as f64, &checks), heads)
    }

    /// A value that the module must leave to the scripts.
    fn spoil(&mut self, value: &[u8]) -> Vec<u8> {
        let mut value = value.to_vec();
        match self.rng.below(5) {
            0 => value[2] = self.rng.pick(&[0, 2, 3, 17, 255]),
            1 => value[0] = self.rng.pick(&[0, 1, 3]),
            2 => value.truncate(self.rng.index(value.len())),
            3 => value.push(0),
            _ => value.clear(),
        }
        value
    }
}

fn stored(connection: &mut Connection) -> Vec<(String, Vec<u8>)> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    keys.sort();
    let get = |key: String| {
        let value = redis::cmd("GET").arg(&key).query(connection).unwrap();
        (key, value)
    };
    keys.into_iter().map(get).collect()
}

/// So many calls, in traces of at least 50 calls.
fn compare(seed: u64, steps: u64, spoils: bool) -> u64 {
    let (server, reference) = (start(), testkit::redis::RedisServer::start());
    let (mixed, scripts) = (&mut connect(&server), &mut connect(&reference));
    let limits = LIMITS.iter().map(|text| text.parse().unwrap()).collect();
    let (rng, now) = (TraceRng::new(seed), 1_700_000_000_000_000);
    let mut trace = Trace { rng, limits, now, spoils };
    let (mut decided, mut checks) = (0, 0);
    for step in 0..steps {
        let (keys, packed, heads) = trace.draw();
        let is_native = trace.rng.one_in(2);
        let command = if is_native { decide } else { eval }(&keys, &packed, &heads);
        let Value::BulkString(found) = command.query(mixed).unwrap() else { panic!("no string") };
        let eval = eval(&keys, &packed, &heads);
        let Value::BulkString(wanted) = eval.query(scripts).unwrap() else { panic!("no string") };
        assert_eq!(found, wanted, "step {step} of seed {seed}, native {is_native}, {keys:?}");
        checks += 1;
        decided += u64::from(!wanted[8..].starts_with(&[255, 255]));
        if trace.spoils && trace.rng.one_in(30) {
            let key = &keys[0];
            let value: Option<Vec<u8>> = redis::cmd("GET").arg(key).query(scripts).unwrap();
            if let Some(value) = value.filter(|value| value.len() > 2) {
                let spoilt = trace.spoil(&value);
                for connection in [&mut *mixed, &mut *scripts] {
                    redis::cmd("SET").arg(key).arg(&spoilt).query::<()>(connection).unwrap();
                }
            }
        }
        if step % 1_000 == 999 || step + 1 == steps {
            assert_eq!(stored(mixed), stored(scripts), "after step {step} of seed {seed}");
        }
        if step % 2_000 == 1_999 {
            for connection in [&mut *mixed, &mut *scripts] {
                redis::cmd("FLUSHALL").query::<()>(connection).unwrap();
            }
        }
    }
    assert!(
        decided > checks / if spoils { 5 } else { 2 },
        "{decided} of {checks} calls began with a decision"
    );
    checks
}

#[test]
fn the_module_and_the_script_reply_and_store_the_same_bytes_by_turns() {
    let steps = run_size(1_000, 12_000, 1_000_000);
    let checks = compare(1, steps, false);
    eprintln!("module = script: {checks} calls by turns, 0 mismatches");
}

#[test]
fn values_that_the_script_leaves_alone_are_left_alone_by_the_module() {
    compare(2, run_size(1_000, 6_000, 200_000), true);
}
