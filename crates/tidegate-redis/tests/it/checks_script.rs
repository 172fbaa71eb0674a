//! The script for many checks, called as a client in another language would.

use redis::{Connection, ConnectionLike as _, Value};
use testkit::redis::RedisServer;
use tidegate_redis::checks_script;

/// 5 permits, one per 12 minutes.
const BUCKET: [&str; 8] = ["1", "1", "720000000", "1", "5", "0", "0", ""];
const QUEUE: [&str; 8] = ["1", "1", "720000000", "1", "5", "1", "0", ""];

fn connect(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// An error of the whole call is `Err`; errors of single checks are part of the reply.
fn send(connection: &mut Connection, keys: &[&str], words: &[&str]) -> redis::RedisResult<Value> {
    let mut command = redis::cmd("EVAL");
    command.arg(checks_script(&[])).arg(keys.len()).arg(keys).arg(words);
    match connection.req_command(&command)? {
        Value::ServerError(error) => Err(error.into()),
        reply => Ok(reply),
    }
}

/// Arguments for checks of one limit: the number of repetitions and the cost of each.
fn words(limit: [&'static str; 8], checks: &[(&'static str, &'static str)]) -> Vec<String> {
    let mut words: Vec<String> = ["1", "checks", "", "1"].map(String::from).to_vec();
    words.extend(limit.map(String::from));
    words.push(checks.len().to_string());
    for (times, cost) in checks {
        words.extend([times, "1", "1", "0", cost, ""].map(ToString::to_string));
    }
    words
}

fn call_checks(
    connection: &mut Connection,
    keys: &[&str],
    words: &[String],
) -> redis::RedisResult<Vec<Result<Vec<i64>, String>>> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Value::Array(replies) = send(connection, keys, &words)? else { panic!("no array") };
    let number = |value: Value| match value {
        Value::Int(number) => number,
        other => panic!("{other:?}"),
    };
    let one = |reply: Value| match reply {
        Value::Array(numbers) => Ok(numbers.into_iter().map(number).collect()),
        Value::ServerError(error) => Err(error.code().to_owned()),
        other => panic!("{other:?}"),
    };
    Ok(replies.into_iter().map(one).collect())
}

#[test]
fn of_equal_checks_as_many_are_allowed_as_fit() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    for (times, cost, allowed, left) in [
        ("1", "1", 1, 4),
        ("4", "1", 4, 1),
        ("5", "1", 5, 0),
        ("512", "1", 5, 0),
        ("7", "2", 2, 1),
        ("3", "5", 1, 0),
        ("3", "6", 0, 5),
        ("65536", "9007199254740991", 0, 5),
    ] {
        server.cli(&["FLUSHALL"]);
        let replies =
            call_checks(&mut connection, &["{x}:a"], &words(BUCKET, &[(times, cost)])).unwrap();
        let reply = replies[0].as_ref().unwrap();
        assert_eq!((reply[0], reply[2]), (1, allowed), "{times} of {cost}");
        let remaining = if allowed > 0 { reply[5] } else { reply[6] };
        assert_eq!(remaining, left, "{times} of {cost}");
        assert_eq!(server.cli(&["EXISTS", "{x}:a"]) == "1", allowed > 0, "a denial wrote");
    }
}

#[test]
fn missing_extra_and_out_of_range_arguments_are_refused_before_the_first_write() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    let good = words(BUCKET, &[("1", "1"), ("2", "1")]);
    let keys = ["{x}:a", "{x}:b"];
    assert!(call_checks(&mut connection, &keys, &good).is_ok());
    server.cli(&["FLUSHALL"]);
    for index in 0..good.len() {
        for bad in ["", "-1", "1.5", "nan", "inf", "0x1", "1e3", "99999999999999999999", "text"] {
            let mut words = good.clone();
            words[index] = bad.into();
            // The caller may be any text, and an empty instant means Redis's clock.
            let valid = words[index] == good[index] || good[index].is_empty() && index > 11;
            let result = call_checks(&mut connection, &keys, &words);
            assert!(valid || result.is_err(), "{bad:?} at {index}: {result:?}");
            server.cli(&["FLUSHALL"]);
        }
    }
    let short: Vec<String> = good[..good.len() - 1].to_vec();
    let long: Vec<String> = good.iter().cloned().chain(["1".into()]).collect();
    for (what, keys, words) in [
        ("a word too few", &keys[..], short),
        ("a word too many", &keys, long),
        ("a key too few", &keys[..1], good.clone()),
        ("a key too many", &["{x}:a", "{x}:b", "{x}:c"], good.clone()),
        ("equal checks of a queue", &keys, words(QUEUE, &[("1", "1"), ("2", "1")])),
        ("no times", &keys, words(BUCKET, &[("1", "1"), ("0", "1")])),
        ("too many times", &keys, words(BUCKET, &[("1", "1"), ("65537", "1")])),
    ] {
        let result = call_checks(&mut connection, keys, &words);
        let error = result.expect_err(what).to_string();
        assert!(error.contains("TIDEGATE"), "{what}: {error}");
        assert_eq!(server.cli(&["DBSIZE"]), "0", "{what} wrote");
    }
}

#[test]
fn an_error_of_one_check_is_at_its_index_of_the_reply() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    server.cli(&["RPUSH", "{x}:b", "a list"]);
    server.cli(&["SET", "{x}:c", "x"]);
    let keys = ["{x}:a", "{x}:b", "{x}:c", "{x}:d"];
    let replies = call_checks(&mut connection, &keys, &words(BUCKET, &[("1", "1"); 4])).unwrap();
    let codes: Vec<Option<&str>> = replies.iter().map(|s| s.as_ref().err().map(|e| &**e)).collect();
    assert_eq!(codes, [None, Some("WRONGTYPE"), Some("ERR"), None]);
    assert_eq!(server.cli(&["GET", "{x}:c"]), "x");
    assert_eq!(server.cli(&["EXISTS", "{x}:a", "{x}:d"]), "2");
}

#[test]
fn a_full_store_denies_and_charges_nothing() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let mut connection = connect(&server);
    call_checks(&mut connection, &["{x}:a"], &words(BUCKET, &[("5", "1")])).unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let keys = ["{x}:b", "{x}:a", "{x}:c"];
    let replies = call_checks(&mut connection, &keys, &words(BUCKET, &[("3", "1"); 3])).unwrap();
    assert_eq!(replies[0], Err("OOM".into()));
    assert_eq!(replies[1].as_ref().unwrap()[2], 0, "the limit is used up");
    assert_eq!(replies[2], Err("OOM".into()));
    assert_eq!(server.cli(&["DBSIZE"]), "1");
}

#[test]
fn a_replica_refuses_all_checks_of_a_call() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    replica.replica_of(&primary);
    let mut connection = connect(&replica);
    let keys = ["{x}:a", "{x}:b"];
    let error = call_checks(&mut connection, &keys, &words(BUCKET, &[("1", "1"); 2])).unwrap_err();
    assert_eq!(error.code(), Some("READONLY"), "{error}");
}
