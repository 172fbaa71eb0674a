//! The clients that people have: redis-cli, redis-benchmark, the `redis` crate and redis-py.
use std::io::Write as _;
use std::process::{Command, Output};

use crate::support;
use redis::{Client, RedisResult, Value, cmd, pipe};
use support::Server;

const POLICY: &str = r#"
rules:
  - name: login
    limits: ["sliding-log 3/1h"]
  - name: api
    limits: ["10/1h"]
"#;

/// A decision as clients take it apart.
type Decision = (i64, i64, i64, i64, i64, i64, String, String);

fn login(allowed: i64, remaining: i64) -> Decision {
    (allowed, 3, remaining, 0, 3_600_000, 0, "login".into(), "memory".into())
}

// --- redis-cli and redis-benchmark -------------------------------------------------------------

fn run(program: &str, server: &Server, arguments: &[&str]) -> Output {
    let port = server.resp.port().to_string();
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "-p", &port]).args(arguments);
    command.output().unwrap_or_else(|error| panic!("cannot run {program} ({error}); run ./test"))
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(str::to_string).collect()
}

#[test]
fn redis_cli_asks_in_both_protocols() {
    let server = Server::with_policy(POLICY);
    let table: [(&[&str], &[&str]); 9] = [
        (&["TG.CHECK", "login", "a"], &["1", "3", "2", "0", "3600000", "0", "login", "memory"]),
        (
            &["-3", "TG.CHECK", "login", "b"],
            &["1", "3", "2", "0", "3600000", "0", "login", "memory"],
        ),
        (&["CL.THROTTLE", "user123", "15", "30", "60", "1"], &["0", "16", "15", "-1", "2"]),
        (&["-3", "DEL", "user123"], &["1"]),
        (&["PING"], &["PONG"]),
        (&["-3", "PING", "hi"], &["hi"]),
        (&["-n", "0", "ECHO", "hi"], &["hi"]),
        (&["TG.CHECK", "nobody", "a"], &["NORULE no such rule", ""]),
        (
            &["-3", "FLUSHALL"],
            &["ERR unknown command; this is tidegate, try COMMAND LIST for what there is", ""],
        ),
    ];
    for (arguments, expected) in table {
        let output = run("redis-cli", &server, arguments);
        assert_eq!(lines(&output), expected, "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn redis_cli_shows_its_token() {
    let server = Server::start(&[], &[("TIDEGATE_TOKEN", "sesame")]);
    for arguments in [&["-3"][..], &[], &["--user", "default"]] {
        let arguments = [arguments, &["--no-auth-warning", "--pass", "sesame", "PING"]].concat();
        let output = run("redis-cli", &server, &arguments);
        assert_eq!(lines(&output), ["PONG"], "{arguments:?}: {output:?}");
    }
    let refused = run("redis-cli", &server, &["PING"]);
    assert!(lines(&refused)[0].starts_with("NOAUTH "), "{refused:?}");
}

#[test]
fn redis_benchmark_runs_without_a_complaint() {
    let server = Server::with_policy(POLICY);
    let benchmark = |command: &[&str]| {
        let sizes = ["-c", "10", "-P", "16", "-n", "20000", "-r", "1000", "-q"];
        run("redis-benchmark", &server, &[&sizes, command].concat())
    };
    for protocol in [&[][..], &["-3"]] {
        let throttle = ["CL.THROTTLE", "key:__rand_int__", "1000000", "1000000", "1", "1"];
        let output = benchmark(&[protocol, &throttle].concat());
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let complaints = ["rror", "WARN", "ould not"];
        assert!(!complaints.iter().any(|word| text.contains(word)), "{text}");
        let summary = text.lines().find(|line| line.contains("requests per second"));
        let summary = summary.unwrap_or_else(|| panic!("no summary: {text}")).trim();
        writeln!(std::io::stderr(), "redis-benchmark: {summary}").unwrap();
    }
    // It would have told.
    let wrong = benchmark(&["CL.THROTTLE", "key", "1"]);
    let told = [wrong.stdout, wrong.stderr].concat();
    assert!(String::from_utf8_lossy(&told).contains("wrong number of arguments"));
}

// --- the redis crate ---------------------------------------------------------------------------

fn client(server: &Server, query: &str) -> Client {
    Client::open(format!("redis://{}/{query}", server.resp)).unwrap()
}

#[test]
fn the_redis_crate_asks_in_both_protocols() {
    let server = Server::with_policy(POLICY);
    for (key, query) in [("a", ""), ("b", "?protocol=resp3"), ("c", "0?protocol=resp3")] {
        let mut connection = client(&server, query).get_connection().unwrap();
        let mut check = cmd("TG.CHECK");
        check.arg("login").arg(key);
        assert_eq!(check.query::<Decision>(&mut connection).unwrap(), login(1, 2));

        let (one, throttled, pong): (Decision, [i64; 5], String) = pipe()
            .add_command(check)
            .cmd("CL.THROTTLE")
            .arg(&[key, "15", "30", "60"])
            .cmd("PING")
            .query(&mut connection)
            .unwrap();
        assert_eq!((one, throttled, pong), (login(1, 1), [0, 16, 15, -1, 2], "PONG".into()));

        let reserved: Value =
            cmd("TG.RESERVE").arg(&["login", key, "2"]).query(&mut connection).unwrap();
        let Value::Array(reserved) = reserved else { panic!("{reserved:?}") };
        assert_eq!(reserved[0], Value::Nil, "one is left");

        let refused: RedisResult<Value> =
            cmd("TG.PEEK").arg(&["nobody", key]).query(&mut connection);
        assert_eq!(refused.unwrap_err().code(), Some("NORULE"));

        let info: std::collections::HashMap<String, Value> =
            cmd("TG.INFO").query(&mut connection).unwrap();
        assert_eq!(info["rules"], Value::Int(2));
    }
}

#[test]
fn one_multiplexed_connection_serves_many_tasks() {
    const TASKS: usize = 100;
    let server = Server::with_policy(POLICY);
    let client = client(&server, "?protocol=resp3");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let allowed: i64 = runtime.block_on(async {
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let mut connection = connection.clone();
                tokio::spawn(async move {
                    let mut check = cmd("TG.CHECK");
                    check.arg("api").arg("k");
                    check.query_async::<Decision>(&mut connection).await.unwrap().0
                })
            })
            .collect();
        let mut allowed = 0;
        for task in tasks {
            allowed += task.await.unwrap();
        }
        allowed
    });
    assert_eq!(allowed, 10);
}

// --- redis-py ----------------------------------------------------------------------------------

const PYTHON: &str = r#"
import sys, redis

port = int(sys.argv[1])
for protocol in (2, 3):
    limiter = redis.Redis(port=port, protocol=protocol, client_name="worker", decode_responses=True)
    key = f"py{protocol}"
    allowed, limit, left, retry_ms, reset_ms, delay_ms, rule, source = limiter.execute_command(
        "TG.CHECK", "login", key)
    assert (allowed, limit, left, rule, source) == (1, 3, 2, "login", "memory"), left
    assert limiter.client_getname() == "worker"
    pipe = limiter.pipeline(transaction=False)
    for _ in range(100):
        pipe.execute_command("TG.CHECK", "api", key)
    assert sum(reply[0] for reply in pipe.execute()) == 10
    assert limiter.execute_command("CL.THROTTLE", key, 15, 30, 60) == [0, 16, 15, -1, 2]
    assert limiter.delete(key) == 1
    try:
        limiter.execute_command("TG.CHECK", "nobody", key)
        raise SystemExit("no such rule, and no error")
    except redis.ResponseError as error:
        assert str(error).startswith("NORULE"), error
print("redis-py", redis.__version__)
"#;

#[test]
fn redis_py_asks_in_both_protocols() {
    let found = Command::new("python3").args(["-c", "import redis"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        writeln!(std::io::stderr(), "skipped: redis-py needs python3 and its package redis")
            .unwrap();
        return;
    }
    let server = Server::with_policy(POLICY);
    let port = server.resp.port().to_string();
    let output = Command::new("python3").args(["-c", PYTHON, &port]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    writeln!(std::io::stderr(), "{}", String::from_utf8_lossy(&output.stdout).trim_end()).unwrap();
}
