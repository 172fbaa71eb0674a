//! A replica without the module has the same values; denials replicate nothing.

use redis::{Connection, Value};
use testkit::redis::{RedisServer, wait_poll_interval};

use crate::fixture::{connect, decide_one, integers, start, start_without};

/// The number of commands that the server has executed for its primary.
fn applied(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let rest = stats.split_once(&format!("cmdstat_{name}:calls="));
        rest.map_or(0, |(_, rest)| rest.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    calls("set") + calls("setrange")
}

/// Waits until the replica has everything.
fn synchronise(primary: &mut Connection) {
    let acknowledged: i64 = redis::cmd("WAIT").arg(1).arg(60_000).query(primary).unwrap();
    assert_eq!(acknowledged, 1);
}

fn charge_keys(connection: &mut Connection) {
    for round in 0..20 {
        for key in 0..25 {
            integers(connection, &["CL.THROTTLE", &format!("t{key}"), "9", "10", "3600"]);
            integers(connection, &["TG.LIMIT", "fixed-window 15/h", &format!("w{key}")]);
            let (bucket, counter) = (format!("d{key}"), format!("a{key}"));
            decide_one(&bucket, "12/h", 1.0).query::<Value>(connection).unwrap();
            let approximate = "sliding-window 12/h approximate";
            decide_one(&counter, approximate, 1.0).query::<Value>(connection).unwrap();
            if round == 10 {
                integers(connection, &["CL.THROTTLE", &format!("t{key}"), "19", "20", "3600"]);
            }
        }
    }
}

fn digests(server: &RedisServer) -> (Vec<String>, String) {
    let keys = server.cli(&["--raw", "KEYS", "*"]);
    let mut keys: Vec<String> = keys.lines().map(str::to_owned).collect();
    keys.sort();
    let words: Vec<&str> =
        ["DEBUG", "DIGEST-VALUE"].into_iter().chain(keys.iter().map(|k| &**k)).collect();
    let digests = server.cli(&words);
    (keys, digests)
}

#[test]
fn a_replica_without_the_module_has_the_same_values_after_load_and_after_failover() {
    let (primary, replica) = (start(), start_without(&[]));
    replica.replica_of(&primary);
    let connection = &mut connect(&primary);
    charge_keys(connection);
    synchronise(connection);
    let wanted = digests(&primary);
    assert_eq!(wanted.0.len(), 100);
    assert_eq!(digests(&replica), wanted);
    for key in ["t1", "w1", "d1", "a1"] {
        let at = |server: &RedisServer| server.cli(&["PEXPIRETIME", key]);
        assert_eq!(at(&primary), at(&replica), "{key}");
    }
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(digests(&replica), wanted);
    // The new primary has the same counts: the module finds them when it is loaded there.
    replica.cli(&["MODULE", "LOAD", &crate::fixture::module_path()]);
    let throttle = ["CL.THROTTLE", "t1", "19", "20", "3600", "0"];
    let [before, after] =
        [&primary, &replica].map(|server| integers(&mut connect(server), &throttle));
    assert_eq!(before[..3], after[..3]);
}

#[test]
fn denials_and_peeks_replicate_nothing() {
    let (primary, replica) = (start(), RedisServer::start());
    replica.replica_of(&primary);
    let connection = &mut connect(&primary);
    integers(connection, &["CL.THROTTLE", "t", "1", "1", "3600", "2"]);
    integers(connection, &["TG.LIMIT", "2/h", "l", "COST", "2"]);
    decide_one("d", "2/h", 2.0).query::<Value>(connection).unwrap();
    synchronise(connection);
    while applied(&replica) < 3 {
        wait_poll_interval();
    }
    for _ in 0..10 {
        assert_eq!(integers(connection, &["CL.THROTTLE", "t", "1", "1", "3600"])[0], 1);
        assert_eq!(integers(connection, &["TG.LIMIT", "2/h", "l"])[0], 0);
        assert_eq!(integers(connection, &["TG.LIMIT", "1/h", "l"])[0], 0, "a changed limit");
        assert_eq!(integers(connection, &["TG.LIMIT", "2/h", "l", "COST", "0"])[0], 1);
        decide_one("d", "2/h", 1.0).query::<Value>(connection).unwrap();
        decide_one("d", "2/h", 0.0).query::<Value>(connection).unwrap();
        // Left to the scripts.
        decide_one("d", "1/h", 1.0).query::<Value>(connection).unwrap();
    }
    // A write after them arrives after them.
    integers(connection, &["TG.LIMIT", "2/h", "last"]);
    synchronise(connection);
    assert_eq!(applied(&replica), 4);
    assert_eq!(digests(&primary), digests(&replica));
}

#[test]
fn a_watched_key_counts_as_changed_by_a_charge_alone() {
    let server = start();
    let (watcher, connection) = (&mut connect(&server), &mut connect(&server));
    let mut changed_by = |connection: &mut Connection, words: &[&str]| {
        redis::cmd("WATCH").arg("k").query::<()>(watcher).unwrap();
        integers(connection, words);
        redis::cmd("MULTI").query::<()>(watcher).unwrap();
        redis::cmd("PING").query::<Value>(watcher).unwrap();
        redis::cmd("EXEC").query::<Value>(watcher).unwrap() == Value::Nil
    };
    assert!(changed_by(connection, &["TG.LIMIT", "2/h", "k"]), "created");
    assert!(changed_by(connection, &["TG.LIMIT", "2/h", "k"]), "charged in place or not");
    assert!(!changed_by(connection, &["TG.LIMIT", "2/h", "k"]), "denied");
    assert!(!changed_by(connection, &["TG.LIMIT", "2/h", "k", "COST", "0"]), "a peek");
}
