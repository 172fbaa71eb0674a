//! What the server itself enforces for the module's commands: memory, permissions, slots, and load
//! and unload at run time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use redis::{Arg, Value};
use testkit::redis::RedisServer;

use crate::fixture::{connect, decide_one, error, integers, module_path, start, start_without};

#[test]
fn a_full_server_refuses_checks_and_keeps_its_values() {
    let server = start();
    let connection = &mut connect(&server);
    integers(connection, &["CL.THROTTLE", "t", "9", "10", "3600"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for words in [&["CL.THROTTLE", "t", "9", "10", "3600"][..], &["TG.LIMIT", "5/min", "k"]] {
        let error = error(connection, words);
        assert!(error.contains("OOM"), "{words:?}: {error}");
    }
    let refused = decide_one("d", "5/min", 1.0).query::<Value>(connection).unwrap_err();
    assert!(refused.to_string().contains("OOM"), "{refused}");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(server.cli(&["DBSIZE"]), "1");
    assert_eq!(integers(connection, &["CL.THROTTLE", "t", "9", "10", "3600"])[..3], [0, 10, 8]);
}

#[test]
fn keys_are_declared_for_permissions_and_slots() {
    let server = start();
    let keys = |words: &[&str]| server.cli(&[&["COMMAND", "GETKEYS"], words].concat());
    assert_eq!(keys(&["CL.THROTTLE", "k", "1", "1", "1"]), "k");
    assert_eq!(keys(&["TG.LIMIT", "5/min", "k"]), "k");
    assert_eq!(keys(&["TG.DECIDE", "2", "a", "b", "checks", "limit"]), "a\nb");
    let user = "on nopass ~tg:* +cl.throttle +tg.limit +tg.decide +auth";
    let words: Vec<&str> = user.split(' ').collect();
    server.cli(&[&["ACL", "SETUSER", "app"], &words[..]].concat());
    let connection = &mut connect(&server);
    redis::cmd("AUTH").arg("app").arg("x").query::<()>(connection).unwrap();
    assert_eq!(integers(connection, &["TG.LIMIT", "5/min", "tg:a"])[0], 1);
    assert!(decide_one("tg:a", "5/min", 1.0).query::<Value>(connection).is_ok());
    for words in [&["TG.LIMIT", "5/min", "other"][..], &["CL.THROTTLE", "other", "1", "1", "1"]] {
        assert!(error(connection, words).contains("NOPERM"), "{words:?}");
    }
    assert!(decide_one("other", "5/min", 1.0).query::<Value>(connection).is_err());
    // The server finds no keys where it cannot read their number, so it would not check them.
    for number in ["01", "001", "+1", " 1"] {
        let mut padded = redis::cmd("TG.DECIDE");
        padded.arg(number);
        for argument in decide_one("other", "5/min", 1.0).args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                padded.arg(bytes);
            }
        }
        assert!(padded.query::<Value>(connection).is_err(), "{number:?} keys");
    }
    assert_eq!(server.cli(&["EXISTS", "other"]), "0");
}

#[test]
fn a_replica_refuses_checks() {
    let (primary, replica) = (RedisServer::start(), start());
    replica.replica_of(&primary);
    let error = error(&mut connect(&replica), &["CL.THROTTLE", "k", "1", "1", "1"]);
    assert!(error.contains("READONLY") || error.contains("read only"), "{error}");
}

#[test]
fn the_module_is_not_loaded_beside_redis_cell() {
    // A server that has a command of this name already.
    let server = start_without(&["--rename-command", "OBJECT", "CL.THROTTLE"]);
    let reply = server.cli(&["MODULE", "LOAD", &module_path()]);
    assert!(reply.contains("Error loading the extension"), "{reply}");
    assert!(!server.cli(&["MODULE", "LIST"]).contains("tidegate"));
    let dir = server.cli(&["--raw", "CONFIG", "GET", "dir"]);
    let log = std::fs::read_to_string(format!("{}/log", dir.lines().nth(1).unwrap())).unwrap();
    assert!(log.contains("CL.THROTTLE exists already") && log.contains("redis-cell"), "{log}");
}

/// Also a crash of the server would end the calls.
#[test]
fn the_module_can_be_unloaded_and_loaded_under_load() {
    let server = start();
    let stop = AtomicBool::new(false);
    let load = |name: &str| {
        let connection = &mut connect(&server);
        let (mut decided, mut unknown) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let reply = decide_one(name, "1000000/d", 1.0).query::<Value>(connection);
            match reply {
                Ok(_) => decided += 1,
                Err(error) if error.to_string().contains("unknown command") => unknown += 1,
                Err(error) => panic!("{error}"),
            }
        }
        (decided, unknown)
    };
    thread::scope(|scope| {
        let calls: Vec<_> =
            ["a", "b", "c"].map(|name| scope.spawn(move || (name, load(name)))).into();
        for _ in 0..20 {
            assert_eq!(server.cli(&["MODULE", "UNLOAD", "tidegate"]), "OK");
            assert_eq!(server.cli(&["MODULE", "LOAD", &module_path()]), "OK");
        }
        stop.store(true, Ordering::Relaxed);
        for call in calls {
            let (name, (decided, _unknown)) = call.join().unwrap();
            let words = ["TG.LIMIT", "1000000/d", name, "COST", "0"];
            let left = integers(&mut connect(&server), &words)[2];
            // A day's permits recover at 11.6 a second.
            let charged = 1_000_000 - left;
            assert!(charged <= decided, "{charged} of {decided}");
            assert!(decided > 0);
        }
    });
}
