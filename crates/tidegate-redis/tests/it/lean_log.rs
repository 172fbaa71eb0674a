//! The script for plain checks of logs. That it decides as the general one does is a test of
//! `lean_script`.

use std::time::Duration;

use redis::{Connection, Value, cmd};
use testkit::redis::RedisServer;
use tidegate::{Limit, Limiter};
use tidegate_redis::{Redis, lean_log_script};

const KEYS: [&str; 2] = ["{x}:log", "{x}:log:log"];
/// Microseconds.
const SECOND: f64 = 1e6;
const START: f64 = 1_700_000_000.0 * SECOND;

struct Bench {
    server: RedisServer,
    connection: Connection,
}

/// A check of [`KEYS`]: how many times, and the cost of each.
type EqualChecks = (u16, f64);

/// How many were allowed, the used permits, the span until none is, and the wait.
type LogReply = (u16, [f64; 3]);

impl Bench {
    fn start() -> Self {
        let server = RedisServer::start();
        let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        Self { server, connection }
    }

    /// None where the general script is to decide.
    fn evaluate(
        &mut self,
        now: f64,
        checks: &[EqualChecks],
        limit: &[u8],
    ) -> Vec<Option<LogReply>> {
        let mut packed = [&[1][..], &now.to_le_bytes()].concat();
        for (times, cost) in checks {
            packed.extend(times.to_le_bytes());
            packed.extend(2_u16.to_le_bytes());
            packed.extend(cost.to_le_bytes());
            packed.extend(3_u16.to_le_bytes());
            packed.extend(b"ann");
        }
        let mut command = cmd("EVAL");
        command.arg(lean_log_script()).arg(2 * checks.len());
        for _ in checks {
            command.arg(&KEYS);
        }
        command.arg(packed).arg(limit);
        let Value::BulkString(reply) = command.query(&mut self.connection).unwrap() else {
            panic!("no string")
        };
        let mut rest = &reply[8..];
        let mut replies = Vec::new();
        while let Some((allowed, numbers)) = rest.split_first_chunk() {
            let allowed = u16::from_le_bytes(*allowed);
            let count = if allowed >= 65_534 { 0 } else { 3 };
            let number =
                |index: usize| f64::from_le_bytes(numbers[8 * index..][..8].try_into().unwrap());
            replies.push((count > 0).then(|| (allowed, [0, 1, 2].map(number))));
            rest = &numbers[8 * count..];
        }
        replies
    }

    fn check(&mut self, now: f64, limit: &[u8]) -> Option<LogReply> {
        self.evaluate(now, &[(1, 1.0)], limit)[0]
    }
}

/// `sliding-log SIZE/1s`, as a value of it begins.
fn log(size: f64) -> Vec<u8> {
    limit([size, 1.0, SECOND])
}

fn limit(numbers: [f64; 3]) -> Vec<u8> {
    [&[2, 4, 1][..], &numbers.map(f64::to_le_bytes).concat()].concat()
}

#[test]
fn of_equal_checks_of_a_log_as_many_are_allowed_as_fit() {
    for (times, cost, allowed) in
        [(1, 1.0, 1), (4, 1.0, 4), (512, 1.0, 5), (7, 2.0, 2), (3, 5.0, 1), (65_533, 1.0, 5)]
    {
        let mut bench = Bench::start();
        let used = f64::from(allowed) * cost;
        let wait = if allowed < times { SECOND } else { 0.0 };
        let expected = Some((allowed, [used, SECOND, wait]));
        assert_eq!(bench.evaluate(START, &[(times, cost)], &log(5.0)), [expected]);
        let wait = if used < 5.0 { 0.0 } else { SECOND };
        let peeked = Some((0, [used, SECOND, wait]));
        assert_eq!(bench.evaluate(START, &[(1, 0.0)], &log(5.0)), [peeked]);
        let never = Some((0, [used, SECOND, -1.0]));
        assert_eq!(bench.evaluate(START, &[(1, 6.0)], &log(5.0)), [never], "{times} of {cost}");
        assert_eq!(
            bench.server.cli(&["LLEN", KEYS[1]]),
            "1",
            "one item for one instant and caller"
        );
    }
}

#[test]
fn what_has_expired_is_found_and_dropped_however_much_it_is() {
    for expired in [1, 4, 5, 6, 50, 99, 100] {
        let mut bench = Bench::start();
        let limit = log(100.0);
        for n in 0..100 {
            let (allowed, _) = bench.check(START + 1_000.0 * f64::from(n), &limit).unwrap();
            assert_eq!(allowed, 1);
        }
        let full = bench.check(START + 100_000.0, &limit);
        assert_eq!(full, Some((0, [100.0, 999_000.0, 900_000.0])));
        // At the instant at which the last of them expires.
        let now = START + SECOND + 1_000.0 * f64::from(expired - 1);
        let of_all = bench.evaluate(now, &[(100, 1.0)], &limit);
        let wait = if expired < 100 { 1_000.0 } else { 0.0 };
        let expected = (expired as u16, [100.0, SECOND, wait]);
        assert_eq!(of_all, [Some(expected)], "{expired} expired");
        let left = (100 - expired + 1).to_string();
        assert_eq!(bench.server.cli(&["LLEN", KEYS[1]]), left, "{expired} expired");
        // 30 more need the 30th of those that are left to expire.
        let Some((0, [_, _, wait])) = bench.evaluate(now, &[(1, 30.0)], &limit)[0] else {
            panic!("denied")
        };
        let expected = if expired <= 70 { 30_000.0 } else { SECOND };
        assert_eq!(wait, expected, "{expired} expired");
    }
}

#[test]
fn without_its_items_a_log_is_left_to_the_general_script_and_stale_items_are_dropped() {
    let mut bench = Bench::start();
    for _ in 0..3 {
        assert_eq!(bench.check(START, &log(5.0)).unwrap().0, 1);
    }
    bench.server.cli(&["DEL", KEYS[0]]);
    let fresh = Some((1, [1.0, SECOND, 0.0]));
    assert_eq!(bench.check(START + 1.0, &log(5.0)), fresh, "its state was evicted");
    assert_eq!(bench.server.cli(&["LLEN", KEYS[1]]), "1");
    bench.server.cli(&["DEL", KEYS[1]]);
    assert_eq!(bench.check(START + 2.0, &log(5.0)), None, "its items were evicted");
    // After a clock step back, or with another limit, or as another type.
    assert_eq!(bench.check(START, &log(5.0)), None);
    assert_eq!(bench.check(START + 2.0, &log(6.0)), None);
    assert_eq!(bench.server.cli(&["EXISTS", KEYS[1]]), "0", "nothing was written");
    for (index, command) in
        [["SET", KEYS[1], "text"], ["RPUSH", KEYS[0], "item"]].iter().enumerate()
    {
        bench.server.cli(&["FLUSHALL"]);
        bench.server.cli(command);
        assert_eq!(bench.check(START, &log(5.0)), None, "{command:?}");
        assert_eq!(bench.server.cli(&["EXISTS", KEYS[index]]), "0", "nothing was written");
    }
}

#[test]
fn invalid_numbers_of_a_log_write_nothing() {
    let mut bench = Bench::start();
    for cost in [-1.0, 0.5, f64::NAN, f64::INFINITY] {
        assert_eq!(bench.evaluate(START, &[(1, cost)], &log(5.0)), [None], "cost {cost}");
    }
    for index in 0..3 {
        for bad in [-1.0, 0.0, 0.5, 1e16, f64::NAN, f64::INFINITY] {
            let mut numbers = [5.0, 1.0, SECOND];
            numbers[index] = bad;
            let is_valid = (index, bad) == (0, 0.0);
            let reply = bench.check(START, &limit(numbers));
            assert_eq!(reply, is_valid.then_some((0, [0.0, 0.0, -1.0])), "{bad} at {index}");
        }
    }
    for bad in [&log(5.0)[..26], b"", &[&[3], &log(5.0)[1..]].concat()] {
        assert_eq!(bench.check(START, bad), None);
    }
    assert_eq!(bench.server.cli(&["DBSIZE"]), "0");
}

/// Only the scripts for plain checks write in place.
#[tokio::test]
async fn plain_checks_of_logs_are_not_decided_by_the_general_script() {
    // The first writes of a log set its TTL.
    for (notation, in_place) in [("sliding-log 30/30d", 28), ("sliding-window 30/30d", 29)] {
        let server = RedisServer::start();
        let redis = Redis::builder(&server.url()).deadline(Duration::from_secs(10));
        let limiter = Limiter::new(redis.build().unwrap(), notation.parse::<Limit>().unwrap());
        for n in 0..40 {
            let decision = limiter.check("user").await.unwrap();
            let remaining = 29_u64.saturating_sub(n);
            assert_eq!((decision.allowed(), decision.remaining()), (n < 30, remaining));
        }
        assert_eq!(server.calls("setrange"), in_place, "{notation}");
    }
}
