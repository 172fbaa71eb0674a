//! The script of many checks, called as a client in another language would.

use crate::server;
use redis::{Connection, ConnectionLike as _, Value};
use server::Server;
use tidegate_redis::checks_text;

/// 5 permits, one in 12 minutes.
const BUCKET: [&str; 8] = ["1", "1", "720000000", "1", "5", "0", "0", ""];
const QUEUE: [&str; 8] = ["1", "1", "720000000", "1", "5", "1", "0", ""];

fn connect(server: &Server) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// An error of the whole is one; an error inside is part of the answer.
fn send(connection: &mut Connection, keys: &[&str], words: &[&str]) -> redis::RedisResult<Value> {
    let mut command = redis::cmd("EVAL");
    command.arg(checks_text(&[])).arg(keys.len()).arg(keys).arg(words);
    match connection.req_command(&command)? {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

/// Checks of one limit: the number of times and the cost of each.
fn words(limit: [&'static str; 8], checks: &[(&'static str, &'static str)]) -> Vec<String> {
    let mut words: Vec<String> = ["1", "checks", "", "1"].map(String::from).to_vec();
    words.extend(limit.map(String::from));
    words.push(checks.len().to_string());
    for (times, cost) in checks {
        words.extend([times, "1", "1", "0", cost, ""].map(ToString::to_string));
    }
    words
}

fn ask(
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
fn as_many_of_equal_checks_are_allowed_as_fit() {
    let server = Server::start();
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
        let said = ask(&mut connection, &["{x}:a"], &words(BUCKET, &[(times, cost)])).unwrap();
        let said = said[0].as_ref().unwrap();
        assert_eq!((said[0], said[2]), (1, allowed), "{times} of {cost}");
        let remaining = if allowed > 0 { said[5] } else { said[6] };
        assert_eq!(remaining, left, "{times} of {cost}");
        assert_eq!(server.cli(&["EXISTS", "{x}:a"]) == "1", allowed > 0, "a denial writes");
    }
}

#[test]
fn what_is_missing_too_much_or_out_of_range_is_refused_before_the_first_write() {
    let server = Server::start();
    let mut connection = connect(&server);
    let good = words(BUCKET, &[("1", "1"), ("2", "1")]);
    let keys = ["{x}:a", "{x}:b"];
    assert!(ask(&mut connection, &keys, &good).is_ok());
    server.cli(&["FLUSHALL"]);
    for place in 0..good.len() {
        for bad in ["", "-1", "1.5", "nan", "inf", "0x1", "1e3", "99999999999999999999", "what"] {
            let mut words = good.clone();
            words[place] = bad.into();
            // Who it was may be anything, and no instant is Redis's own.
            let may_be = words[place] == good[place] || good[place].is_empty() && place > 11;
            let answer = ask(&mut connection, &keys, &words);
            assert!(may_be || answer.is_err(), "{bad:?} at {place}: {answer:?}");
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
        let answer = ask(&mut connection, keys, &words);
        let error = answer.expect_err(what).to_string();
        assert!(error.contains("TIDEGATE"), "{what}: {error}");
        assert_eq!(server.cli(&["DBSIZE"]), "0", "{what} wrote");
    }
}

#[test]
fn an_error_stands_in_its_own_place() {
    let server = Server::start();
    let mut connection = connect(&server);
    server.cli(&["RPUSH", "{x}:b", "a list"]);
    server.cli(&["SET", "{x}:c", "x"]);
    let keys = ["{x}:a", "{x}:b", "{x}:c", "{x}:d"];
    let said = ask(&mut connection, &keys, &words(BUCKET, &[("1", "1"); 4])).unwrap();
    let codes: Vec<Option<&str>> = said.iter().map(|s| s.as_ref().err().map(|e| &**e)).collect();
    assert_eq!(codes, [None, Some("WRONGTYPE"), Some("ERR"), None]);
    assert_eq!(server.cli(&["GET", "{x}:c"]), "x");
    assert_eq!(server.cli(&["EXISTS", "{x}:a", "{x}:d"]), "2");
}

#[test]
fn a_full_store_denies_and_charges_nothing() {
    let server = Server::start_with(&["--maxmemory-policy", "noeviction"]);
    let mut connection = connect(&server);
    ask(&mut connection, &["{x}:a"], &words(BUCKET, &[("5", "1")])).unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let keys = ["{x}:b", "{x}:a", "{x}:c"];
    let said = ask(&mut connection, &keys, &words(BUCKET, &[("3", "1"); 3])).unwrap();
    assert_eq!(said[0], Err("OOM".into()));
    assert_eq!(said[1].as_ref().unwrap()[2], 0, "all of it is used");
    assert_eq!(said[2], Err("OOM".into()));
    assert_eq!(server.cli(&["DBSIZE"]), "1");
}

#[test]
fn a_replica_says_to_all_that_it_is_one() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut connection = connect(&replica);
    let keys = ["{x}:a", "{x}:b"];
    let error = ask(&mut connection, &keys, &words(BUCKET, &[("1", "1"); 2])).unwrap_err();
    assert_eq!(error.code(), Some("READONLY"), "{error}");
}
