//! The permissions of the documented ACL users are sufficient and minimal.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testkit::engine::{TEST_TIMEOUT, assert_admits, engine, wait_until};
use testkit::redis::{RedisServer, ReservedPort, has_functions, redis_server_path};
use tidegate::Engine;
use tidegate_redis::{Redis, RuntimeWrite};

const PAGE: &str = include_str!("../../../../docs/operate/redis.md");
const PASSWORD: &str = "change-me";

/// The commands of the page that create `user`.
fn recipe(user: &str) -> Vec<Vec<&'static str>> {
    let begin = format!("ACL SETUSER {user} ");
    let (_, section) = PAGE.split_once("\n## ACL\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with(&begin));
    let lines: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
    assert!(!lines.is_empty(), "the page has no command for {user}");
    lines
}

fn create_user(server: &RedisServer, user: &str) {
    for words in recipe(user) {
        // The commands of functions do not exist before Redis 7.0.
        if !words.contains(&"+fcall") || has_functions(server) {
            assert_eq!(server.cli(&words), "OK", "{words:?}");
        }
    }
}

/// Reply to the user by the server at `port`, which is not necessarily that of `server`.
fn as_user(server: &RedisServer, port: u16, user: &str, words: &[&str]) -> String {
    let port = port.to_string();
    let login = ["-p", &port, "--no-auth-warning", "--user", user, "--pass", PASSWORD];
    server.cli(&[&login, words].concat())
}

/// A Sentinel that monitors a server as `main`, killed on drop.
struct Sentinel {
    child: Child,
    port: ReservedPort,
}

impl Sentinel {
    /// Its files are in the folder of the server.
    fn start(primary: &RedisServer) -> Self {
        let port = ReservedPort::any();
        let dir = fs::read_link(format!("/proc/{}/cwd", primary.pid())).unwrap();
        let file = dir.join("sentinel.conf");
        let text = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {} 1\n",
            port.number,
            primary.port()
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new(redis_server_path());
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
async fn with_the_documented_user_redis_passes_the_conformance_suite() {
    let server = RedisServer::start();
    create_user(&server, "tidegate");
    let url = format!("redis://tidegate:{PASSWORD}@127.0.0.1:{}/", server.port());
    // Also with Redis's clock, which scripts need permission to read.
    assert_admits(&url).await;
    tidegate::conformance::run(|clock| {
        Redis::builder(&url).deadline(TEST_TIMEOUT).test_clock(clock).build().unwrap()
    })
    .await;
    let log = server.cli(&["ACL", "LOG"]);
    // Since 7.2 the client library sends a command that it does not need.
    let denied = log.lines().filter(|line| line.contains("command")).count();
    assert!(denied == 0 || log.contains("client|setinfo"), "{log}");
    assert!(server.calls("fcall") > 0 || !has_functions(&server), "functions were not used");
}

#[tokio::test]
async fn the_documented_user_may_change_run_time_rules() {
    let server = RedisServer::start();
    create_user(&server, "tidegate");
    let engine = engine(&format!("redis://tidegate:{PASSWORD}@127.0.0.1:{}/", server.port()));
    wait_until(|| engine.health().up).await;
    let hash = engine.runtime_hash();
    let set = vec![("rule:a".to_owned(), "1".to_owned()), ("rule:b".to_owned(), "2".to_owned())];
    let first = RuntimeWrite { head: "h1".into(), set, ..RuntimeWrite::default() };
    assert_eq!(hash.write(&first).await.unwrap().unwrap().len, 2);
    assert_eq!(hash.write(&first).await.unwrap(), None, "the head is another one");
    let delete = vec!["rule:a".to_owned()];
    let (expected, head) = ("h1".to_owned(), "h2".to_owned());
    let second = RuntimeWrite { expected, head, delete, ..RuntimeWrite::default() };
    assert!(hash.write(&second).await.unwrap().is_some());
    let (version, fields) = hash.read().await.unwrap();
    assert_eq!((&*version.head, version.len), ("h2", 1));
    assert_eq!(fields, [("rule:b".to_owned(), "2".to_owned())]);
    let polled = hash.poll().await.unwrap();
    assert!(polled.head == version.head && polled.time >= version.time);
    assert_eq!(polled.servers, 1, "the heartbeat of this process");
}

#[tokio::test]
async fn the_documented_user_gets_the_eviction_warning_and_may_select_a_database() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "volatile-lru"]);
    create_user(&server, "tidegate");
    let engine = engine(&format!("redis://tidegate:{PASSWORD}@127.0.0.1:{}/2", server.port()));
    wait_until(|| engine.health().up).await;
    assert!(engine.health().warning.is_some());
}

#[test]
fn the_documented_user_may_do_nothing_else() {
    let server = RedisServer::start();
    create_user(&server, "tidegate");
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
        &["FUNCTION", "FLUSH"],
        &["FUNCTION", "DELETE", "any"],
        &["MONITOR"],
        &["LATENCY", "RESET"],
        &["SHUTDOWN"],
        &["REPLICAOF", "NO", "ONE"],
        &["PUBLISH", "any", "thing"],
        &["SUBSCRIBE", "any"],
    ] {
        let reply = as_user(&server, server.port(), "tidegate", words);
        let denied =
            reply.contains("NOPERM") || reply.contains("The user executing the script can't");
        assert!(denied, "{words:?}: {reply}");
    }
    assert_eq!(server.cli(&["GET", "other:secret"]), "2");
}

/// A command that the recipe lacks would fail only where a script calls it.
#[test]
fn the_recipe_names_every_command_of_the_scripts_and_no_other() {
    let called: Vec<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua"))
        .unwrap()
        .map(|file| file.unwrap().path())
        // The folders hold the compatible limiters, which have their own recipes.
        .filter(|path| path.is_file())
        .map(|path| fs::read_to_string(path).unwrap())
        .flat_map(|text| {
            let calls = text.split("call('").skip(1);
            calls.map(|call| call.split('\'').next().unwrap().to_lowercase()).collect::<Vec<_>>()
        })
        .collect();
    assert!(called.len() > 20, "{called:?}");
    let client = ["evalsha", "eval", "get", "set", "hget", "ping", "info", "select"];
    let client = client.into_iter().chain(["fcall", "function|load"]);
    let cluster = ["asking", "cluster|info", "cluster|slots"];
    let needed = || called.iter().map(String::as_str).chain(client.clone()).chain(cluster);
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
async fn the_documented_sentinel_user_may_look_up_the_primary_and_subscribe() {
    let primary = RedisServer::start();
    let sentinel = Sentinel::start(&primary);
    let port = sentinel.port.number.to_string();
    wait_until(|| primary.cli(&["-p", &port, "PING"]) == "PONG").await;
    for words in recipe("tidegate-sentinel") {
        assert_eq!(primary.cli(&[&["-p", &port], &*words].concat()), "OK", "{words:?}");
    }
    let command =
        |words: &[&str]| as_user(&primary, sentinel.port.number, "tidegate-sentinel", words);
    let reply = command(&["SENTINEL", "get-master-addr-by-name", "main"]);
    assert_eq!(reply, format!("127.0.0.1\n{}", primary.port()));
    assert_eq!(command(&["PING"]), "PONG");
    let reply = primary.cli(&["-p", &port, "ACL", "GETUSER", "tidegate-sentinel"]);
    assert!(
        reply.contains("&+switch-master &+selected-slave") && reply.contains("+subscribe"),
        "{reply}"
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
        let reply = command(words);
        assert!(reply.contains("NOPERM"), "{words:?}: {reply}");
    }
}
