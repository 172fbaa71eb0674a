//! Servers with the module, and packed checks as clients of the script protocol send them.

use std::path::PathBuf;

use redis::{Cmd, Connection, Value};
use testkit::redis::RedisServer;
use tidegate::Limit;

/// The shared library that was built with this test.
pub(crate) fn module_path() -> String {
    let program = std::env::current_exe().unwrap();
    let library: PathBuf = program.parent().unwrap().join("libtidegate_module.so");
    assert!(library.exists(), "{} is missing", library.display());
    library.to_str().unwrap().to_owned()
}

pub(crate) fn start() -> RedisServer {
    start_with(&[])
}

pub(crate) fn start_with(args: &[&str]) -> RedisServer {
    start_without(&[&["--loadmodule", &module_path()], args].concat())
}

/// A server that can load the module later.
pub(crate) fn start_without(args: &[&str]) -> RedisServer {
    RedisServer::start_with(&[&["--enable-module-command", "yes"], args].concat())
}

pub(crate) fn connect(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// The integers of a reply; of a decision without its names.
pub(crate) fn integers(connection: &mut Connection, words: &[&str]) -> Vec<i64> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let Value::Array(values) = command.query(connection).unwrap() else { panic!("no array") };
    let integer = |value: &Value| if let Value::Int(number) = value { Some(*number) } else { None };
    values.iter().filter_map(integer).collect()
}

pub(crate) fn error(connection: &mut Connection, words: &[&str]) -> String {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query::<Value>(connection).unwrap_err().to_string()
}

/// As a value of this limit begins. `window` is the present one, if it follows the calendar.
pub(crate) fn head(limit: &Limit, window: (u64, u64)) -> Vec<u8> {
    let (algorithm, mut numbers) = limit.numbers();
    let mut head = vec![2, algorithm, 1];
    let is_calendar = limit.calendar().is_some();
    if is_calendar {
        numbers[2] = window.1 - window.0;
        numbers.push(window.0);
    }
    for (index, number) in numbers.into_iter().enumerate() {
        match (algorithm, index) {
            (1, 4) | (3, 0) => head.push(u8::try_from(number).unwrap()),
            _ => head.extend((number as f64).to_le_bytes()),
        }
    }
    head
}

/// One check: how many times, and for each part the number of its limit, from 2, and its cost.
pub(crate) type PackedCheck = (u16, Vec<(u16, f64)>);

pub(crate) fn pack(instant: f64, checks: &[PackedCheck]) -> Vec<u8> {
    let mut packed = [&[1][..], &instant.to_le_bytes()].concat();
    for (times, parts) in checks {
        packed.push(u8::try_from(parts.len()).unwrap());
        packed.extend(times.to_le_bytes());
        for (limit, cost) in parts {
            packed.extend(limit.to_le_bytes());
            packed.extend(cost.to_le_bytes());
        }
    }
    packed
}

/// A call of `TG.DECIDE`.
pub(crate) fn decide(keys: &[String], packed: &[u8], heads: &[Vec<u8>]) -> Cmd {
    let mut command = redis::cmd("TG.DECIDE");
    command.arg(keys.len()).arg(keys).arg(packed).arg(heads);
    command
}

/// One check of one key on the clock of the server.
pub(crate) fn decide_one(key: &str, limit: &str, cost: f64) -> Cmd {
    let head = head(&limit.parse().unwrap(), (0, 0));
    decide(&[key.to_owned()], &pack(-1.0, &[(1, vec![(2, cost)])]), &[head])
}
