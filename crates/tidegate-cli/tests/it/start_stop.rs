//! Start, shutdown, and refusals to start.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use testkit::process::{millis, print_figure, serve, tidegate};
use testkit::redis::RedisServer;
use testkit::server::{
    RawHttpConnection, ServerProcess, TEST_TIMEOUT, TempFolder, pause, wait_until,
};
use testkit::timing::compare_with_goal;

const SECOND: Duration = Duration::from_secs(1);
const POLICY: &str = "rules: [{ name: slow, limits: [1/2s] }, { name: api, limits: [100/h] }]\n";

#[test]
fn a_server_is_ready_at_once() {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let start = || {
        let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
        assert_eq!(server.get("/readyz").status, 200);
        server
    };
    let mut took: Vec<u64> = (0..3).map(|_| millis(start).0).collect();
    took.sort_unstable();
    let median = took[1];
    print_figure(format_args!("life: ready {median} ms after the start, the median of {took:?}"));
    compare_with_goal("ready after the start", Duration::from_millis(median), 2 * SECOND);
}

#[test]
fn without_redis_it_starts_and_becomes_ready_when_redis_comes() {
    let policy = "store_deadline: 1s
rules:
  - { name: shared, limits: [fixed-window 10/h], fallback_ratio: 0.3 }
  - { name: closed, limits: [fixed-window 10/h], on_store_failure: deny }
  - { name: open, limits: [fixed-window 10/h], on_store_failure: allow }
";
    let file = TempFolder::new().write("policy.yaml", policy);
    let mut redis = RedisServer::stopped(&[]);
    let server =
        ServerProcess::start(&["--store", &redis.url(), "--config", file.to_str().unwrap()], &[]);
    assert_eq!(server.get("/healthz").status, 200, "the process lives");
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &ready.json()["store"]["up"]), (200, &json!(false)));
    assert_eq!(ready.json()["status"], "degraded");
    assert_eq!(server.metric("tidegate_store_up"), Some(0.0));
    for (rule, passes) in [("shared", 3), ("closed", 0), ("open", 20)] {
        let check = json!({ "rule": rule, "key": "k" });
        let responses: Vec<_> = (0..20).map(|_| server.post("/v1/check", &check)).collect();
        let passed = responses.iter().filter(|response| response.status == 200).count();
        assert_eq!(passed, passes, "{rule}");
        assert!(responses.iter().all(|response| response.json()["source"] == "fallback"), "{rule}");
    }
    let check = json!({ "rule": "shared", "key": "k" });
    for (rule, key, status) in [("shared", "k", 429), ("closed", "k", 429), ("shared", "r", 200)] {
        let check = json!({ "rule": rule, "key": key });
        let reserved = server.post("/v1/reserve", &check);
        assert_eq!((reserved.status, &reserved.json()["source"]), (status, &json!("fallback")));
    }
    let here = server.post("/v1/reserve", &json!({ "rule": "shared", "key": "r" })).json();
    let open = server.post("/v1/reserve", &json!({ "rule": "open", "key": "r" })).json();
    // Open, or half-open while a probe runs.
    assert_ne!(server.get("/readyz").json()["store"]["circuit"], "closed");
    server.expect_logged("circuit open: store not responding, on_store_failure applies", 1);

    redis.restart();
    let ready = || server.store_is_up().then_some(());
    let (took, came) = millis(|| wait_until(ready));
    came.expect("it becomes ready by itself");
    print_figure(format_args!("life: ready {took} ms after redis replied"));
    // Run-time rules are read by the next poll.
    let is_ok = || (server.get("/healthz").json()["status"] == "ok").then_some(());
    wait_until(is_ok).expect("it reports no problem");
    assert_eq!(server.metric("tidegate_store_up"), Some(1.0));
    // The first call loads scripts within its deadline.
    let by_redis =
        || Some(server.post("/v1/check", &check)).filter(|a| a.json()["source"] == "redis");
    let response = wait_until(by_redis).expect("it responds");
    assert_eq!((response.status, &response.json()["remaining"]), (200, &json!(9)));
    assert_ne!(redis.cli(&["DBSIZE"]), "0", "it counts there");
    // A reservation made during the outage is settled by its maker.
    for reserved in [here, open] {
        let commit = json!({ "reservation": reserved["reservation"], "cost": 1 });
        let settled = server.post("/v1/commit", &commit);
        assert_eq!((settled.status, &settled.json()["source"]), (200, &json!("fallback")));
    }
    let closed = || (server.metric("tidegate_breaker_state") == Some(0.0)).then_some(());
    let send_check = || drop(server.post("/v1/check", &check));
    wait_until(|| {
        closed().or_else(|| {
            send_check();
            None
        })
    })
    .expect("a few replies are enough");
    server.expect_logged("circuit closed: store responding again", 1);
    assert_eq!(server.metric("tidegate_breaker_opened_total"), Some(1.0));
    assert_eq!(server.get("/readyz").json()["store"]["circuit"], "closed");
}

#[test]
fn requests_in_flight_get_their_response_before_the_server_stops() {
    for signal in ["TERM", "INT"] {
        let file = TempFolder::new().write("policy.yaml", POLICY);
        let mut server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
        let check = json!({ "rule": "slow", "key": "k", "wait_ms": 20_000 });
        assert_eq!(server.post("/v1/check", &check).status, 200);
        let mut waiting = RawHttpConnection::connect(server.http);
        waiting.send("POST", "/v1/check", &[], &check.to_string());
        pause(Duration::from_millis(200));
        server.signal(signal);
        for listener in [server.http, server.resp] {
            let closed = || TcpStream::connect(listener).is_err().then_some(());
            wait_until(closed).expect("the listeners close");
        }
        assert!(server.is_running(), "a request still waits");
        let response = waiting.receive();
        assert_eq!((response.status, &response.json()["allowed"]), (200, &json!(true)));
        assert_eq!(server.wait().and_then(|status| status.code()), Some(0), "{signal}");
        server.expect_logged("drained", 1);
    }
}

#[test]
fn idle_connections_do_not_delay_the_shutdown() {
    let mut server = ServerProcess::start(&[], &[]);
    let mut kept_alive = RawHttpConnection::connect(server.http);
    kept_alive.send("GET", "/healthz", &[], "");
    assert_eq!(kept_alive.receive().status, 200);
    let silent = [server.http, server.resp].map(|listener| TcpStream::connect(listener).unwrap());
    let client = redis::Client::open(format!("redis://{}/", server.resp)).unwrap();
    let mut idle = client.get_connection().unwrap();
    redis::cmd("PING").exec(&mut idle).unwrap();
    let (took, code) = millis(|| {
        server.signal("TERM");
        server.wait().and_then(|status| status.code())
    });
    print_figure(format_args!("life: ended {took} ms after SIGTERM, with 4 idle connections"));
    assert_eq!(code, Some(0));
    // The shutdown waits up to 65 s for requests in flight.
    compare_with_goal("stop with idle connections", Duration::from_millis(took), 2 * SECOND);
    for mut stream in silent {
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "the connection ends");
    }
}

#[test]
fn a_second_signal_ends_it_at_once_and_two_within_moments_are_one() {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let mut server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
    let check = json!({ "rule": "slow", "key": "k", "cost": 1, "wait_ms": 60_000 });
    // Each waits two seconds longer than the one before.
    let mut waiting: Vec<RawHttpConnection> = Vec::new();
    for _ in 0..20 {
        let mut http = RawHttpConnection::connect(server.http);
        http.send("POST", "/v1/check", &[], &check.to_string());
        waiting.push(http);
    }
    pause(Duration::from_millis(200));
    // `timeout` signals the process and its group.
    server.signal("TERM");
    server.signal("TERM");
    server.expect_logged("draining", 1);
    pause(Duration::from_millis(300));
    assert!(server.is_running());
    server.signal("INT");
    let (took, code) = millis(|| server.wait().and_then(|status| status.code()));
    assert_eq!(code, Some(2));
    compare_with_goal("stop at the second signal", Duration::from_millis(took), 5 * SECOND);
}

#[test]
fn running_out_of_files_rejects_no_connection_permanently() {
    let server = ServerProcess::start(&[], &[]);
    let id = server.id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &id, "--nofile=32:32"]).status();
    assert!(limited.expect("prlimit comes with the system").success());
    let crowd: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(server.http).unwrap()).collect();
    let output = || (server.logged("accept failed") > 0).then_some(());
    wait_until(output).expect("it says so");
    pause(Duration::from_millis(300));
    assert!(server.logged("accept failed") < 5, "and does not fill the disk with it");
    drop(crowd);
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn an_address_that_others_can_reach_needs_a_token() {
    let secret = TempFolder::new().write("token", "s3cr3t-in-a-file\n");
    let secret = secret.to_str().unwrap();
    let all = ["--http", "0.0.0.0:0", "--resp", "127.0.0.1:0"];
    let resp_only = ["--http", "127.0.0.1:0", "--resp", "[::]:0"];
    let insecure = ["--http", "0.0.0.0:0", "--resp", "0.0.0.0:0", "--insecure"];
    let token = [("TIDEGATE_TOKEN", "s3cr3t-that-is-long")];
    let file = [("TIDEGATE_TOKEN_FILE", secret)];
    let admin = [("TIDEGATE_ADMIN_TOKEN", "s3cr3t")];
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&[&str], Variables<'_>, bool); 7] = [
        (&all, &[], false),
        (&resp_only, &[], false),
        // The admin token guards changes, not checks.
        (&all, &admin, false),
        (&all, &token, true),
        (&resp_only, &token, true),
        (&all, &file, true),
        (&insecure, &[], true),
    ];
    for (arguments, variables, starts) in cases {
        let ran = serve(arguments, variables);
        assert_eq!(ran.code, (!starts).then_some(2), "{arguments:?} {variables:?}: {}", ran.stderr);
        for advice in ["TIDEGATE_TOKEN", "loopback", "--insecure"] {
            assert_eq!(ran.stderr.contains(advice), !starts, "{advice}: {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("s3cr3t"), "{}", ran.stderr);
    }
}

#[test]
fn only_the_token_from_the_file_is_accepted() {
    let folder = TempFolder::new();
    let (check, admin) = (folder.write("check", "one\r\n"), folder.write("admin", "two"));
    let variables = [
        ("TIDEGATE_TOKEN_FILE", check.to_str().unwrap()),
        ("TIDEGATE_ADMIN_TOKEN_FILE", admin.to_str().unwrap()),
    ];
    let server = ServerProcess::start(&[], &variables);
    for (token, status) in [("one", 200), ("two", 200), ("three", 401), ("", 401)] {
        let headers = [("authorization", &*format!("Bearer {token}"))];
        assert_eq!(server.request("GET", "/v1/rules", &headers, "").status, status, "{token:?}");
    }
    let delete = |token: &str| {
        let headers = [("authorization", &*format!("Bearer {token}"))];
        server.request("DELETE", "/v1/keys/login/k", &headers, "").status
    };
    assert_eq!((delete("one"), delete("two")), (403, 200));
    assert_eq!(server.get("/healthz").status, 200, "a probe has no token");
}

#[test]
fn the_store_is_read_from_the_environment_or_a_file_and_a_visible_password_is_warned_about() {
    const VISIBLE: &str = "other users can see the password in --store";
    let url = "redis://user:s3cr3t@127.0.0.1:1";
    let file = TempFolder::new().write("store", &format!("{url}\n"));
    let file = file.to_str().unwrap();
    for (arguments, variables, warnings) in [
        (&["--store", url][..], &[][..], 1),
        (&["--store", "redis://127.0.0.1:1"], &[], 0),
        (&["--store-file", file], &[("TIDEGATE_STORE", "redis://elsewhere")], 0),
        (&[], &[("TIDEGATE_STORE", url)], 0),
    ] {
        let server = ServerProcess::start(arguments, variables);
        let log = server.log();
        let is_used = |line: &String| line.contains("listening") && line.contains("127.0.0.1:1\"");
        assert!(log.iter().any(is_used), "{arguments:?}: {log:?}");
        assert_eq!(server.logged(VISIBLE), warnings, "{arguments:?}");
        assert!(!log.iter().any(|line| line.contains("s3cr3t")), "{arguments:?}: {log:?}");
    }
    for (arguments, message) in [
        (&["--store", "memory", "--store-file", file][..], "cannot be used with"),
        (&["--store-file", "/nowhere/store"], "cannot read --store-file /nowhere/store"),
    ] {
        let ran = serve(arguments, &[]);
        assert!(ran.stderr.contains(message), "{arguments:?}: {}", ran.stderr);
    }
    let ran = serve(&[], &[("TIDEGATE_STORE", "tape")]);
    assert!(ran.stderr.contains("unknown store; use memory"), "{}", ran.stderr);
}

#[test]
fn short_tokens_are_warned_about() {
    let (short, long) = ("fifteen-letters", "sixteen-letters!");
    for (check, admin, warnings) in [(short, long, 1), (long, long, 0), (short, short, 2)] {
        let variables = [("TIDEGATE_TOKEN", check), ("TIDEGATE_ADMIN_TOKEN", admin)];
        let server = ServerProcess::start(&[], &variables);
        let logged = server.logged("token shorter than 16 characters can be guessed");
        assert_eq!(logged, warnings, "{check} {admin}");
        assert!(!server.log().iter().any(|line| line.contains("letters")), "the token is secret");
    }
}

#[test]
fn root_is_warned_about() {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let server = ServerProcess::start(&[], &[]);
    assert_eq!(server.logged("running as root"), usize::from(is_root));
}

#[test]
fn a_failed_start_is_reported_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let folder = TempFolder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_string();
    let (missing, bad) = (path("missing"), path("bad.yaml"));
    folder.write("bad.yaml", "rules: [{ name: api, limits: [5/parsec] }]\n");
    folder.write("store.yaml", "store: rediss://u:s3cr3t@h?ca=/nowhere/ca.pem\nrules: []\n");
    let store = path("store.yaml");
    folder.write("empty", "\n");
    let empty = path("empty");
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&[&str], Variables<'_>, &str); 14] = [
        (&["--http", &taken], &[], "Address already in use"),
        (&["--http", "127.0.0.1:0", "--resp", &taken], &[], &taken),
        (&["--http", "nowhere"], &[], "invalid value 'nowhere' for '--http"),
        (&[], &[("TIDEGATE_LOG", "loud")], "use error, warn, info, debug or trace"),
        (&["--config", &missing], &[], "cannot be read"),
        (&["--config", &bad], &[], "bad.yaml:1:33: unknown unit \"parsec\""),
        (&["--config", &store], &[], "cannot read \"/nowhere/ca.pem\""),
        (&["--store", "mysql://u:s3cr3t@h"], &[], "unknown store; use memory, redis://"),
        (&["--store", "redis://s3cr3t@h"], &[], "not a redis url: a login without a password"),
        (&["--store", "redis://u:s3cr3t@:x"], &[], "not a redis url: missing or invalid host"),
        (&[], &[("TIDEGATE_TOKEN", "s3cr3t"), ("TIDEGATE_TOKEN_FILE", "f")], "are set; use one"),
        (
            &[],
            &[("TIDEGATE_TOKEN_FILE", &missing)],
            "cannot read the file named by TIDEGATE_TOKEN_FILE",
        ),
        (&[], &[("TIDEGATE_TOKEN_FILE", &empty)], "TIDEGATE_TOKEN is invalid"),
        (&[], &[("TIDEGATE_ADMIN_TOKEN", "s3cr3t with spaces")], "TIDEGATE_ADMIN_TOKEN is invalid"),
    ];
    for (arguments, variables, message) in cases {
        let ran = serve(arguments, variables);
        assert_eq!(ran.code, Some(2), "{arguments:?} {variables:?}: {}", ran.stderr);
        let error = ran.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(error.contains(message), "{message}: {}", ran.stderr);
        assert!(!ran.stderr.contains("s3cr3t"), "{}", ran.stderr);
    }
}

#[test]
fn no_secret_is_ever_printed() {
    const SECRETS: [&str; 5] =
        ["pw-s3cr3t", "hash-s3cr3t", "check-s3cr3t", "boss-s3cr3t", "new-s3cr3t"];
    let redis = RedisServer::start_with(&["--requirepass", "pw-s3cr3t"]);
    let url = format!("redis://:pw-s3cr3t@127.0.0.1:{}", redis.port());
    let wrong = format!("redis://default:new-s3cr3t@127.0.0.1:{}", redis.port());
    let folder = TempFolder::new();
    let write = |store: &str, more: &str| {
        let text = format!("store: {store}\nsecret: ${{TIDEGATE_SECRET}}\n{more}{POLICY}");
        folder.write("policy.yaml", &text).to_str().unwrap().to_string()
    };
    let file = write(&url, "");
    let variables = [
        ("TIDEGATE_LOG", "trace"),
        ("TIDEGATE_SECRET", "hash-s3cr3t"),
        ("TIDEGATE_TOKEN", "check-s3cr3t"),
        ("TIDEGATE_ADMIN_TOKEN", "boss-s3cr3t"),
    ];
    let mut output = String::new();
    for store in [None, Some(&*wrong), Some("redis://:pw-s3cr3t@127.0.0.1:1")] {
        let more: &[&str] = &["--config", &file, "--store", store.unwrap_or(&url)];
        let mut server =
            ServerProcess::start(&more[..if store.is_some() { 4 } else { 2 }], &variables);
        let token = [("authorization", "Bearer boss-s3cr3t")];
        for (method, path, body) in [
            ("POST", "/v1/check", r#"{"rule":"api","key":"k"}"#),
            ("POST", "/v1/check", r#"{"rule":"missing","key":"k"}"#),
            ("GET", "/v1/rules", ""),
            ("GET", "/v1/keys/api/k", ""),
            ("GET", "/metrics", ""),
            ("GET", "/readyz", ""),
            ("GET", "/openapi.json", ""),
        ] {
            output += &server.request(method, path, &token, body).body;
        }
        let guess = [("authorization", "Bearer check-s3cr3")];
        output += &server.request("GET", "/v1/rules", &guess, "").body;
        if store.is_none() {
            assert!(wait_until(|| server.store_is_up().then_some(())).is_some());
            write(&wrong, "secret: new-s3cr3t\n");
            server.health_when(|health| health["status"] == "degraded");
            write("unix:///s?password=new-s3cr3t", "nonsense: 1\n");
            server.signal("HUP");
            server.expect_logged("policy reload failed", 2);
            output += &server.get("/healthz").body;
            write(&url, "");
        }
        server.signal("TERM");
        server.wait();
        output += &server.log().join("\n");
    }
    let check = |arguments: &[&str]| {
        let ran = tidegate(&[&["check", "--limit", "5/s", "k"], arguments].concat(), &variables);
        ran.stdout + &ran.stderr
    };
    output += &check(&["--store", &url]);
    output += &check(&["--store", &wrong]);
    output += &check(&["--store", "rediss://:pw-s3cr3t@h?cert=pw-s3cr3t"]);
    output += &check(&["--store", "unix:///nowhere?password=pw-s3cr3t"]);
    output += &check(&["--store", "redis://:pw-s3cr3t@127.0.0.1:1"]);
    output += &check(&["--server", "http://pw-s3cr3t@127.0.0.1:1"]);
    output += &check(&["--server", "http://127.0.0.1:1"]);
    let ran = tidegate(&["validate", &write("redis:/:new-s3cr3t@h", "")], &variables);
    output += &(ran.stdout + &ran.stderr);
    assert!(output.len() > 10_000, "there is output");
    for secret in SECRETS {
        let at = output.find(secret);
        assert_eq!(at, None, "..{}", &output[at.unwrap_or(0).saturating_sub(300)..][..400]);
    }
}
