//! The users that the documentation tells to make: what they may do is enough, and is all they may.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{asking, server};
use asking::{PATIENCE, admitted, engine, until};
use server::{Server, free_port, program};
use tidegate::Engine;
use tidegate_redis::Redis;

const PAGE: &str = include_str!("../../../../docs/redis.md");
const PASSWORD: &str = "change-me";

/// The commands of the page that make `user`.
fn recipe(user: &str) -> Vec<Vec<&'static str>> {
    let begin = format!("ACL SETUSER {user} ");
    let (_, section) = PAGE.split_once("\n## ACL\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with(&begin));
    let lines: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
    assert!(!lines.is_empty(), "the page does not say how to make {user}");
    lines
}

fn make(server: &Server, user: &str) {
    for words in recipe(user) {
        assert_eq!(server.cli(&words), "OK", "{words:?}");
    }
}

/// What the user is told by the server at `port`, which is not necessarily that of `server`.
fn as_user(server: &Server, port: u16, user: &str, words: &[&str]) -> String {
    let port = port.to_string();
    let login = ["-p", &port, "--no-auth-warning", "--user", user, "--pass", PASSWORD];
    server.cli(&[&login, words].concat())
}

/// A sentinel that watches a server as `main`. Dropped, it is killed.
struct Sentinel {
    child: Child,
    port: u16,
}

impl Sentinel {
    /// Its files lie with those of the server.
    fn start(primary: &Server) -> Self {
        let port = free_port();
        let dir = fs::read_link(format!("/proc/{}/cwd", primary.pid())).unwrap();
        let file = dir.join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {} 1\n",
            primary.port()
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new(program());
        command.arg(file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null());
        Self { child: command.spawn().unwrap(), port }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn under_the_documented_user_redis_keeps_every_claim() {
    let server = Server::start();
    make(&server, "tidegate");
    let url = format!("redis://tidegate:{PASSWORD}@127.0.0.1:{}/", server.port());
    // With Redis's clock too, which a script has to be allowed to read.
    admitted(&url).await;
    tidegate::conformance::run(|clock| {
        Redis::builder(&url).deadline(PATIENCE).test_clock(clock).build().unwrap()
    })
    .await;
    let log = server.cli(&["ACL", "LOG"]);
    // Since 7.2 there is a command that the client library sends and does not need.
    let denied = log.lines().filter(|line| line.contains("command")).count();
    assert!(denied == 0 || log.contains("client|setinfo"), "{log}");
}

#[tokio::test]
async fn the_documented_user_is_told_that_the_server_evicts_and_may_choose_a_database() {
    let server = Server::start_with(&["--maxmemory-policy", "volatile-lru"]);
    make(&server, "tidegate");
    let engine = engine(&format!("redis://tidegate:{PASSWORD}@127.0.0.1:{}/2", server.port()));
    until(|| engine.health().up).await;
    assert!(engine.health().warning.is_some());
}

#[test]
fn the_documented_user_may_do_nothing_else() {
    let server = Server::start();
    make(&server, "tidegate");
    server.cli(&["SET", "tg:mine", "1"]);
    server.cli(&["SET", "other:secret", "2"]);
    assert_eq!(as_user(&server, server.port(), "tidegate", &["GET", "tg:mine"]), "1");
    for words in [
        &["GET", "other:secret"][..],
        &["SET", "other:secret", "3"],
        &["UNLINK", "other:secret"],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "other:secret"],
        &["EVAL", "return redis.call('GET', 'other:secret')", "0"],
        &["EVAL", "return redis.call('FLUSHALL')", "0"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["RANDOMKEY"],
        &["DBSIZE"],
        &["DUMP", "tg:mine"],
        &["DEL", "tg:mine"],
        &["RENAME", "tg:mine", "tg:other"],
        &["CONFIG", "GET", "*"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["ACL", "LIST"],
        &["CLIENT", "LIST"],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["CLUSTER", "RESET"],
        &["CLUSTER", "FAILOVER"],
        &["SCRIPT", "FLUSH"],
        &["FUNCTION", "LIST"],
        &["MONITOR"],
        &["LATENCY", "RESET"],
        &["SHUTDOWN"],
        &["REPLICAOF", "NO", "ONE"],
        &["PUBLISH", "any", "thing"],
        &["SUBSCRIBE", "any"],
    ] {
        let told = as_user(&server, server.port(), "tidegate", words);
        let denied =
            told.contains("NOPERM") || told.contains("The user executing the script can't");
        assert!(denied, "{words:?}: {told}");
    }
    assert_eq!(server.cli(&["GET", "other:secret"]), "2");
}

/// A command that a script calls and the recipe does not name would fail only where it is called.
#[test]
fn the_recipe_names_every_command_of_the_scripts_and_none_beside() {
    let called: Vec<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"))
        .unwrap()
        .map(|file| file.unwrap().path())
        // The folders are those of others' limiters, which have recipes of their own.
        .filter(|path| path.is_file())
        .map(|path| fs::read_to_string(path).unwrap())
        .flat_map(|text| {
            let calls =
                text.split("redis.call('").skip(1).chain(text.split("redis.pcall('").skip(1));
            calls.map(|call| call.split('\'').next().unwrap().to_lowercase()).collect::<Vec<_>>()
        })
        .collect();
    assert!(called.len() > 20, "{called:?}");
    let client = ["evalsha", "eval", "get", "set", "hget", "ping", "info", "select"];
    let cluster = ["asking", "cluster|info", "cluster|slots"];
    let needed = || called.iter().map(String::as_str).chain(client).chain(cluster);
    let recipe = recipe("tidegate").concat();
    let granted: Vec<&str> = recipe.iter().filter_map(|word| word.strip_prefix('+')).collect();
    for command in needed() {
        assert!(granted.contains(&command), "{command} is not granted");
    }
    for command in granted {
        assert!(needed().any(|needed| needed == command), "{command} is not needed");
    }
}

#[tokio::test]
async fn the_documented_user_of_sentinels_may_ask_for_the_primary_and_listen() {
    let primary = Server::start();
    let sentinel = Sentinel::start(&primary);
    let port = sentinel.port.to_string();
    until(|| primary.cli(&["-p", &port, "PING"]) == "PONG").await;
    for words in recipe("tidegate-sentinel") {
        assert_eq!(primary.cli(&[&["-p", &port], &*words].concat()), "OK", "{words:?}");
    }
    let ask = |words: &[&str]| as_user(&primary, sentinel.port, "tidegate-sentinel", words);
    let told = ask(&["SENTINEL", "get-master-addr-by-name", "main"]);
    assert_eq!(told, format!("127.0.0.1\n{}", primary.port()));
    assert_eq!(ask(&["PING"]), "PONG");
    let told = primary.cli(&["-p", &port, "ACL", "GETUSER", "tidegate-sentinel"]);
    assert!(
        told.contains("&+switch-master &+selected-slave") && told.contains("+subscribe"),
        "{told}"
    );
    for words in [
        &["SENTINEL", "failover", "main"][..],
        &["SENTINEL", "set", "main", "quorum", "9"],
        &["SENTINEL", "remove", "main"],
        &["SENTINEL", "monitor", "x", "127.0.0.1", "1", "1"],
        &["SENTINEL", "reset", "*"],
        &["SUBSCRIBE", "__sentinel__:hello"],
        &["PUBLISH", "+switch-master", "lie"],
        &["SHUTDOWN"],
        &["ACL", "LIST"],
    ] {
        let told = ask(words);
        assert!(told.contains("NOPERM"), "{words:?}: {told}");
    }
}
