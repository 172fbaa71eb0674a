//! Counts survive a restart from the log of commands or a snapshot, without the module.

use redis::Value;
use testkit::redis::{RedisServer, wait_poll_interval};

use crate::fixture::{connect, decide_one, integers, module_path, start_with, start_without};

const PERSISTENT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A server without the module on the files of one that was killed.
fn restart_without_module(server: &mut RedisServer, args: &[&str]) -> RedisServer {
    let dir = server.cli(&["--raw", "CONFIG", "GET", "dir"]);
    let dir = dir.lines().nth(1).unwrap().to_owned();
    server.kill();
    start_without(&[&["--dir", &dir], args].concat())
}

fn charge(server: &RedisServer) {
    let connection = &mut connect(server);
    for _ in 0..6 {
        integers(connection, &["CL.THROTTLE", "t", "9", "10", "36000"]);
        integers(connection, &["TG.LIMIT", "fixed-window 9/d first-hit", "l"]);
        decide_one("d", "10/d", 1.0).query::<Value>(connection).unwrap();
    }
}

/// The six charges of each key, found by the module again.
fn assert_counts(server: &RedisServer) {
    assert_eq!(server.cli(&["MODULE", "LOAD", &module_path()]), "OK");
    let connection = &mut connect(server);
    assert_eq!(integers(connection, &["CL.THROTTLE", "t", "9", "10", "36000"])[..3], [0, 10, 3]);
    let window = "fixed-window 9/d first-hit";
    assert_eq!(integers(connection, &["TG.LIMIT", window, "l"])[..3], [1, 9, 2]);
    assert_eq!(integers(connection, &["TG.LIMIT", "10/d", "d"])[..3], [1, 10, 3]);
}

#[test]
fn the_log_of_commands_restores_every_count_without_the_module() {
    for rewrites in [false, true] {
        let mut server = start_with(&PERSISTENT);
        charge(&server);
        if rewrites {
            server.cli(&["BGREWRITEAOF"]);
            let info = |field: &str| server.cli(&["INFO", "persistence"]).contains(field);
            while info("aof_rewrite_in_progress:1") || info("aof_rewrite_scheduled:1") {
                wait_poll_interval();
            }
        }
        let restarted = restart_without_module(&mut server, &PERSISTENT);
        assert_counts(&restarted);
    }
}

#[test]
fn a_snapshot_restores_every_count_without_the_module() {
    let mut server = start_with(&[]);
    charge(&server);
    assert_eq!(server.cli(&["SAVE"]), "OK");
    assert_counts(&restart_without_module(&mut server, &[]));
}

#[test]
fn a_server_counts_its_writes_for_snapshots() {
    let server = start_with(&[]);
    let changes = || {
        let info = server.cli(&["INFO", "persistence"]);
        let rest = info.split_once("rdb_changes_since_last_save:").unwrap().1;
        rest.lines().next().unwrap().trim().parse::<u64>().unwrap()
    };
    let before = changes();
    charge(&server);
    assert_eq!(changes() - before, 18);
}
