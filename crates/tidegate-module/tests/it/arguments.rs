//! Malformed arguments are refused, and nothing is written.

use redis::Value;

use crate::fixture::{connect, decide, error, head, integers, pack, start};

#[test]
fn malformed_commands_are_refused() {
    let server = start();
    let connection = &mut connect(&server);
    for words in [
        &["CL.THROTTLE"][..],
        &["CL.THROTTLE", "k", "1", "1"],
        &["CL.THROTTLE", "k", "-1", "1", "1"],
        &["CL.THROTTLE", "k", "1", "0", "1"],
        &["CL.THROTTLE", "k", "1", "1", "0"],
        &["CL.THROTTLE", "k", "1", "1", "1", "x"],
        &["CL.THROTTLE", "k", "1", "1", "1", "1", "1"],
        &["CL.THROTTLE", "k", "9007199254740993", "1", "1"],
        &["CL.THROTTLE", "k", "9007199254740992", "1", "1"],
        &["CL.THROTTLE", "k", "", "1", "1"],
        &["TG.LIMIT", "5/min"],
        &["TG.LIMIT", "five/min", "k"],
        &["TG.LIMIT", "5/min", "k", "COST"],
        &["TG.LIMIT", "5/min", "k", "COST", "1.5"],
        &["TG.LIMIT", "5/min", "k", "ID", "x"],
        &["TG.LIMIT", "5/min", "k", "COST", "1", "COST", "1"],
        &["TG.LIMIT", "5/min", "k", "COST", "4294967297"],
        &["TG.LIMIT", "sliding-log 5/min", "k"],
        &["TG.LIMIT", "sliding-window 5/min", "k"],
        &["TG.LIMIT", "concurrency 5", "k"],
        &["TG.LIMIT", "fixed-window 5/d tz Asia/Tokyo", "k"],
        &["TG.DECIDE"],
        &["TG.DECIDE", "x"],
        &["TG.DECIDE", "-1"],
        &["TG.DECIDE", "1"],
        &["TG.DECIDE", "1", "k"],
        &["TG.DECIDE", "9007199254740992", "k", "x"],
    ] {
        let error = error(connection, words);
        assert!(!error.contains("internal error"), "{words:?}: {error}");
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert_eq!(integers(connection, &["TG.LIMIT", "5/min", "k", "cost", "2"])[..3], [1, 5, 3]);
}

#[test]
fn packed_checks_are_read_to_their_end_before_the_first_is_decided() {
    let server = start();
    let connection = &mut connect(&server);
    let heads = [head(&"5/min".parse().unwrap(), (0, 0))];
    let keys = ["a".to_owned(), "b".to_owned()];
    let good = pack(-1.0, &[(1, vec![(2, 1.0)]), (1, vec![(2, 1.0)])]);
    for len in 0..good.len() {
        assert!(decide(&keys, &good[..len], &heads).query::<Value>(connection).is_err(), "{len}");
    }
    let long = [&good[..], &[0]].concat();
    let no_parts = pack(-1.0, &[(1, vec![]), (1, vec![(2, 1.0), (2, 1.0)])]);
    let too_few = pack(-1.0, &[(1, vec![(2, 1.0)])]);
    let no_limit = pack(-1.0, &[(1, vec![(2, 1.0)]), (1, vec![(3, 1.0)])]);
    let itself = pack(-1.0, &[(1, vec![(2, 1.0)]), (1, vec![(1, 1.0)])]);
    let nothing = pack(-1.0, &[(1, vec![(2, 1.0)]), (1, vec![(0, 1.0)])]);
    let fraction = pack(1.5, &[(1, vec![(2, 1.0)]), (1, vec![(2, 1.0)])]);
    let mut other_version = good.clone();
    other_version[0] = 2;
    for bad in [long, no_parts, too_few, no_limit, itself, nothing, fraction, other_version] {
        let error = decide(&keys, &bad, &heads).query::<Value>(connection).unwrap_err();
        assert!(error.to_string().contains("TIDEGATE"), "{error}");
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert!(decide(&keys, &good, &heads).query::<Value>(connection).is_ok());
    assert_eq!(server.cli(&["DBSIZE"]), "2");
}

#[test]
fn without_keys_the_protocol_is_reported() {
    assert_eq!(start().cli(&["TG.DECIDE", "0"]), "1");
}

#[test]
fn values_of_other_programs_are_refused_and_kept() {
    let server = start();
    let connection = &mut connect(&server);
    server.cli(&["RPUSH", "list", "a"]);
    server.cli(&["SET", "text", "something"]);
    for (key, expected) in [("list", "WRONGTYPE"), ("text", "TIDEGATE")] {
        for words in [&["CL.THROTTLE", key, "1", "1", "1"][..], &["TG.LIMIT", "5/min", key]] {
            let error = error(connection, words);
            assert!(error.contains(expected), "{words:?}: {error}");
        }
    }
    assert_eq!(server.cli(&["LRANGE", "list", "0", "-1"]), "a");
    assert_eq!(server.cli(&["GET", "text"]), "something");
}
