//! Real clients: redis-cli, redis-benchmark, the `redis` crate, redis-py, node-redis, ioredis and
//! go-redis.
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use redis::{Client, RedisResult, Value, cmd, pipe};
use testkit::server::ServerProcess;

const POLICY: &str = r#"
rules:
  - name: login
    limits: ["sliding-log 3/1h"]
  - name: api
    limits: ["10/1h"]
"#;

/// A decision as clients decode it.
type Decision = (i64, i64, i64, i64, i64, i64, String, String);

fn login(allowed: i64, remaining: i64) -> Decision {
    (allowed, 3, remaining, 0, 3_600_000, 0, "login".into(), "memory".into())
}

// --- redis-cli and redis-benchmark -------------------------------------------------------------

fn run(program: &str, server: &ServerProcess, arguments: &[&str]) -> Output {
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
fn redis_cli_checks_in_both_protocols() {
    let server = ServerProcess::with_policy(POLICY);
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
        (&["TG.CHECK", "missing", "a"], &["NORULE no rule named \"missing\"", ""]),
        (
            &["-3", "FLUSHALL"],
            &["ERR unknown command; COMMAND LIST shows the commands of tidegate", ""],
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
    let server = ServerProcess::start(&[], &[("TIDEGATE_TOKEN", "sesame")]);
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
    let server = ServerProcess::with_policy(POLICY);
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
    // An error would have been printed.
    let wrong = benchmark(&["CL.THROTTLE", "key", "1"]);
    let message = [wrong.stdout, wrong.stderr].concat();
    assert!(String::from_utf8_lossy(&message).contains("wrong number of arguments"));
}

// --- the redis crate ---------------------------------------------------------------------------

fn client(server: &ServerProcess, query: &str) -> Client {
    Client::open(format!("redis://{}/{query}", server.resp)).unwrap()
}

#[test]
fn the_redis_crate_checks_in_both_protocols() {
    let server = ServerProcess::with_policy(POLICY);
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
            cmd("TG.PEEK").arg(&["missing", key]).query(&mut connection);
        assert_eq!(refused.unwrap_err().code(), Some("NORULE"));

        let info: std::collections::HashMap<String, Value> =
            cmd("TG.INFO").query(&mut connection).unwrap();
        assert_eq!(info["rules"], Value::Int(2));
    }
}

#[test]
fn an_atomic_pipeline_of_the_redis_crate_is_a_transaction() {
    let server = ServerProcess::with_policy(POLICY);
    for (key, query) in [("a", ""), ("b", "?protocol=resp3")] {
        let mut connection = client(&server, query).get_connection().unwrap();
        let mut checks = pipe();
        checks.atomic();
        for _ in 0..2 {
            checks.cmd("TG.CHECK").arg(&["login", key]);
        }
        let decisions: [Decision; 2] = checks.query(&mut connection).unwrap();
        assert_eq!(decisions, [login(1, 2), login(1, 1)]);
        let refused: RedisResult<Value> = checks.cmd("NO.SUCH.COMMAND").query(&mut connection);
        assert!(refused.is_err(), "{refused:?}");
        let left: Decision = cmd("TG.PEEK").arg(&["login", key]).query(&mut connection).unwrap();
        assert_eq!((left.0, left.2), (1, 1), "nothing was charged");
    }
}

#[test]
fn one_multiplexed_connection_serves_many_tasks() {
    const TASKS: usize = 100;
    let server = ServerProcess::with_policy(POLICY);
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
    # A pipeline is a transaction unless it is asked not to be.
    pipe = limiter.pipeline()
    for _ in range(3):
        pipe.execute_command("TG.CHECK", "login", key + "tx")
    assert [reply[2] for reply in pipe.execute()] == [2, 1, 0]
    with limiter.pipeline() as pipe:
        pipe.watch(key)
        pipe.multi()
        pipe.execute_command("TG.CHECK", "login", key + "aborted")
        pipe.execute_command("NO.SUCH.COMMAND")
        try:
            pipe.execute()
            raise SystemExit("no such command, and no error")
        except redis.ResponseError as error:
            assert "unknown command" in str(error), error
    assert limiter.execute_command("TG.PEEK", "login", key + "aborted")[2] == 3
    commands = limiter.command()
    assert commands["tg.check"]["first_key_pos"] == 2, commands["tg.check"]
    assert limiter.execute_command("RESET") in ("RESET", b"RESET", True)
    try:
        limiter.execute_command("TG.CHECK", "missing", key)
        raise SystemExit("no such rule, and no error")
    except redis.ResponseError as error:
        assert str(error).startswith("NORULE"), error
print("redis-py", redis.__version__)
"#;

#[test]
fn redis_py_checks_in_both_protocols() {
    let found = python().args(["-c", "import redis"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        skip("redis-py", "interop/python/fetch");
        return;
    }
    let server = ServerProcess::with_policy(POLICY);
    succeeds(python().args(["-c", PYTHON, &server.resp.port().to_string()]));
}

/// Python with the packages that `interop/python/fetch` has downloaded.
pub(crate) fn python() -> Command {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", Path::new(FETCHED).join("python"));
    python
}

// --- clients that interop/*/fetch downloads ----------------------------------------------------

/// Output folder of the scripts, next to the build output of cargo.
pub(crate) const FETCHED: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../interop-clients");

pub(crate) fn skip(client: &str, script: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {client} is not installed; run {script}");
}

/// Runs a client to its end, and prints what it prints.
fn succeeds(client: &mut Command) {
    let output = client.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let _ = std::io::stderr().write_all(&output.stdout);
}

#[test]
fn node_redis_and_ioredis_run_transactions() {
    let script = Path::new(FETCHED).join("node/clients.mjs");
    if !script.is_file() || Command::new("node").arg("--version").output().is_err() {
        skip("node-redis", "interop/node/fetch");
        return;
    }
    let server = ServerProcess::with_policy(POLICY);
    succeeds(Command::new("node").arg(script).arg(server.resp.port().to_string()));
}

#[test]
fn go_redis_runs_transactions() {
    let program = Path::new(FETCHED).join("go/redis");
    if !program.is_file() {
        skip("go-redis", "interop/go/fetch");
        return;
    }
    let server = ServerProcess::with_policy(POLICY);
    succeeds(Command::new(program).arg(server.resp.to_string()));
}
