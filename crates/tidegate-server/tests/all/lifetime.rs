//! How the server starts, how it ends, and what it refuses to start with.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::{life, support};
use life::redis_server::Server as RedisServer;
use life::{millis, print_figure, serve, tidegate};
use support::{Folder, Http, PATIENCE, Server, pause, wait_until};

const POLICY: &str = "rules: [{ name: slow, limits: [1/2s] }, { name: api, limits: [100/h] }]\n";

#[test]
fn a_server_is_ready_at_once() {
    let file = Folder::new().write("policy.yaml", POLICY);
    let start = || {
        let server = Server::start(&["--config", file.to_str().unwrap()], &[]);
        assert_eq!(server.get("/readyz").status, 200);
        server
    };
    let mut took: Vec<u64> = (0..5).map(|_| millis(start).0).collect();
    took.sort_unstable();
    let median = took[2];
    print_figure(format_args!("life: ready {median} ms after the start, the median of {took:?}"));
    assert!(median < 2_000, "{took:?}");
}

#[test]
fn without_redis_it_starts_and_becomes_ready_when_redis_comes() {
    let policy = "rules:
  - { name: shared, limits: [fixed-window 10/h], fallback_ratio: 0.3 }
  - { name: closed, limits: [fixed-window 10/h], on_store_failure: deny }
  - { name: open, limits: [fixed-window 10/h], on_store_failure: allow }
";
    let file = Folder::new().write("policy.yaml", policy);
    let mut redis = RedisServer::stopped(&[]);
    let server = Server::start(&["--store", &redis.url(), "--config", file.to_str().unwrap()], &[]);
    assert_eq!(server.get("/healthz").status, 200, "the process lives");
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &ready.json()["store"]["up"]), (503, &json!(false)));
    assert_eq!(ready.json()["status"], "degraded");
    assert_eq!(server.metric("tidegate_store_up"), Some(0.0));
    for (rule, passes) in [("shared", 3), ("closed", 0), ("open", 20)] {
        let check = json!({ "rule": rule, "key": "k" });
        let answers: Vec<_> = (0..20).map(|_| server.post("/v1/check", &check)).collect();
        let passed = answers.iter().filter(|answer| answer.status == 200).count();
        assert_eq!(passed, passes, "{rule}");
        assert!(answers.iter().all(|answer| answer.json()["source"] == "fallback"), "{rule}");
    }
    let check = json!({ "rule": "shared", "key": "k" });
    for (rule, key, status) in [("shared", "k", 429), ("closed", "k", 429), ("shared", "r", 200)] {
        let check = json!({ "rule": rule, "key": key });
        let reserved = server.post("/v1/reserve", &check);
        assert_eq!((reserved.status, &reserved.json()["source"]), (status, &json!("fallback")));
    }
    let here = server.post("/v1/reserve", &json!({ "rule": "shared", "key": "r" })).json();
    let open = server.post("/v1/reserve", &json!({ "rule": "open", "key": "r" })).json();
    let ready = server.get("/readyz").json();
    assert_eq!(ready["store"]["circuit"], "open");
    server.expect_logged("no answers from the store, rules go by on_store_failure", 1);

    redis.restart();
    let ready = || (server.get("/readyz").status == 200).then_some(());
    let (took, came) = millis(|| wait_until(ready));
    came.expect("it becomes ready by itself");
    print_figure(format_args!("life: ready {took} ms after redis answered"));
    assert_eq!(server.get("/healthz").json()["status"], "ok");
    assert_eq!(server.metric("tidegate_store_up"), Some(1.0));
    // The first call of all has scripts to load, and a deadline.
    let by_redis =
        || Some(server.post("/v1/check", &check)).filter(|a| a.json()["source"] == "redis");
    let answer = wait_until(by_redis).expect("it answers");
    assert_eq!((answer.status, &answer.json()["remaining"]), (200, &json!(9)));
    assert_ne!(redis.cli(&["DBSIZE"]), "0", "it counts there");
    // What was reserved meanwhile is settled by whoever made it.
    for reserved in [here, open] {
        let commit = json!({ "reservation": reserved["reservation"], "cost": 1 });
        let settled = server.post("/v1/commit", &commit);
        assert_eq!((settled.status, &settled.json()["source"]), (200, &json!("fallback")));
    }
    let closed = || (server.metric("tidegate_breaker_state") == Some(0.0)).then_some(());
    let ask = || drop(server.post("/v1/check", &check));
    wait_until(|| {
        closed().or_else(|| {
            ask();
            None
        })
    })
    .expect("a few good answers are enough");
    server.expect_logged("the store answers again", 1);
    assert_eq!(server.metric("tidegate_breaker_opened_total"), Some(1.0));
    assert_eq!(server.get("/readyz").json()["store"]["circuit"], "closed");
}

#[test]
fn whoever_has_asked_is_answered_before_the_server_ends() {
    for signal in ["TERM", "INT"] {
        let file = Folder::new().write("policy.yaml", POLICY);
        let mut server = Server::start(&["--config", file.to_str().unwrap()], &[]);
        let check = json!({ "rule": "slow", "key": "k", "wait_ms": 20_000 });
        assert_eq!(server.post("/v1/check", &check).status, 200);
        let mut waiting = Http::connect(server.http);
        waiting.send("POST", "/v1/check", &[], &check.to_string());
        pause(Duration::from_millis(200));
        server.signal(signal);
        for door in [server.http, server.resp] {
            let closed = || TcpStream::connect(door).is_err().then_some(());
            wait_until(closed).expect("the doors close");
        }
        assert!(server.is_running(), "somebody still waits");
        let answer = waiting.receive();
        assert_eq!((answer.status, &answer.json()["allowed"]), (200, &json!(true)));
        assert_eq!(server.wait().and_then(|status| status.code()), Some(0), "{signal}");
        server.expect_logged("drained", 1);
    }
}

#[test]
fn whoever_has_not_asked_holds_up_nobody() {
    let mut server = Server::start(&[], &[]);
    let mut kept_alive = Http::connect(server.http);
    kept_alive.send("GET", "/healthz", &[], "");
    assert_eq!(kept_alive.receive().status, 200);
    let silent = [server.http, server.resp].map(|door| TcpStream::connect(door).unwrap());
    let client = redis::Client::open(format!("redis://{}/", server.resp)).unwrap();
    let mut idle = client.get_connection().unwrap();
    redis::cmd("PING").exec(&mut idle).unwrap();
    let (took, code) = millis(|| {
        server.signal("TERM");
        server.wait().and_then(|status| status.code())
    });
    print_figure(format_args!("life: ended {took} ms after SIGTERM, with 4 idle connections"));
    assert_eq!(code, Some(0));
    assert!(took < 2_000, "{took} ms");
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "it is told that this is the end");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let file = Folder::new().write("policy.yaml", POLICY);
    let mut server = Server::start(&["--config", file.to_str().unwrap()], &[]);
    let check = json!({ "rule": "slow", "key": "k", "cost": 1, "wait_ms": 60_000 });
    // Each waits two seconds longer than the one before.
    let mut waiting: Vec<Http> = Vec::new();
    for _ in 0..20 {
        let mut http = Http::connect(server.http);
        http.send("POST", "/v1/check", &[], &check.to_string());
        waiting.push(http);
    }
    pause(Duration::from_millis(200));
    server.signal("TERM");
    server.expect_logged("draining", 1);
    assert!(server.is_running());
    server.signal("INT");
    let (took, code) = millis(|| server.wait().and_then(|status| status.code()));
    assert_eq!(code, Some(2));
    assert!(took < 5_000, "{took} ms");
}

#[test]
fn running_out_of_files_shuts_nobody_out_for_good() {
    let server = Server::start(&[], &[]);
    let id = server.id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &id, "--nofile=32:32"]).status();
    assert!(limited.expect("prlimit comes with the system").success());
    let crowd: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(server.http).unwrap()).collect();
    let told = || (server.logged("cannot accept a connection") > 0).then_some(());
    wait_until(told).expect("it says so");
    pause(Duration::from_millis(300));
    assert!(server.logged("cannot accept a connection") < 5, "and does not fill the disk with it");
    drop(crowd);
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn an_address_that_others_can_reach_needs_a_token() {
    let secret = Folder::new().write("token", "s3cr3t-in-a-file\n");
    let secret = secret.to_str().unwrap();
    let all = ["--http", "0.0.0.0:0", "--resp", "127.0.0.1:0"];
    let resp_only = ["--http", "127.0.0.1:0", "--resp", "[::]:0"];
    let insecure = ["--http", "0.0.0.0:0", "--resp", "0.0.0.0:0", "--insecure"];
    let token = [("TIDEGATE_TOKEN", "s3cr3t")];
    let file = [("TIDEGATE_TOKEN_FILE", secret)];
    let admin = [("TIDEGATE_ADMIN_TOKEN", "s3cr3t")];
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&[&str], Variables<'_>, bool); 7] = [
        (&all, &[], false),
        (&resp_only, &[], false),
        // It guards changes, and not questions.
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
fn a_token_from_a_file_opens_the_doors_and_nothing_else_does() {
    let folder = Folder::new();
    let (check, admin) = (folder.write("check", "one\r\n"), folder.write("admin", "two"));
    let variables = [
        ("TIDEGATE_TOKEN_FILE", check.to_str().unwrap()),
        ("TIDEGATE_ADMIN_TOKEN_FILE", admin.to_str().unwrap()),
    ];
    let server = Server::start(&[], &variables);
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
fn what_it_cannot_start_with_is_told_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let folder = Folder::new();
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
        (&["--store", "redis://u:s3cr3t@:x"], &[], "not a redis url: a host is missing"),
        (&[], &[("TIDEGATE_TOKEN", "s3cr3t"), ("TIDEGATE_TOKEN_FILE", "f")], "use one of them"),
        (
            &[],
            &[("TIDEGATE_TOKEN_FILE", &missing)],
            "cannot read the file that TIDEGATE_TOKEN_FILE",
        ),
        (&[], &[("TIDEGATE_TOKEN_FILE", &empty)], "TIDEGATE_TOKEN is no token"),
        (
            &[],
            &[("TIDEGATE_ADMIN_TOKEN", "s3cr3t with spaces")],
            "TIDEGATE_ADMIN_TOKEN is no token",
        ),
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
    let folder = Folder::new();
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
    let mut said = String::new();
    for store in [None, Some(&*wrong), Some("redis://:pw-s3cr3t@127.0.0.1:1")] {
        let more: &[&str] = &["--config", &file, "--store", store.unwrap_or(&url)];
        let mut server = Server::start(&more[..if store.is_some() { 4 } else { 2 }], &variables);
        let token = [("authorization", "Bearer boss-s3cr3t")];
        for (method, path, body) in [
            ("POST", "/v1/check", r#"{"rule":"api","key":"k"}"#),
            ("POST", "/v1/check", r#"{"rule":"nobody","key":"k"}"#),
            ("GET", "/v1/rules", ""),
            ("GET", "/v1/keys/api/k", ""),
            ("GET", "/metrics", ""),
            ("GET", "/readyz", ""),
            ("GET", "/openapi.json", ""),
        ] {
            said += &server.request(method, path, &token, body).body;
        }
        let guess = [("authorization", "Bearer check-s3cr3")];
        said += &server.request("GET", "/v1/rules", &guess, "").body;
        if store.is_none() {
            assert!(wait_until(|| (server.get("/readyz").status == 200).then_some(())).is_some());
            write(&wrong, "secret: new-s3cr3t\n");
            server.health_when(|health| health["status"] == "degraded");
            write("unix:///s?password=new-s3cr3t", "nonsense: 1\n");
            server.signal("HUP");
            server.expect_logged("policy not reloaded", 2);
            said += &server.get("/healthz").body;
            write(&url, "");
        }
        server.signal("TERM");
        server.wait();
        said += &server.log().join("\n");
    }
    let check = |arguments: &[&str]| {
        let ran = tidegate(&[&["check", "--limit", "5/s", "k"], arguments].concat(), &variables);
        ran.stdout + &ran.stderr
    };
    said += &check(&["--store", &url]);
    said += &check(&["--store", &wrong]);
    said += &check(&["--store", "rediss://:pw-s3cr3t@h?cert=pw-s3cr3t"]);
    said += &check(&["--store", "unix:///nowhere?password=pw-s3cr3t"]);
    said += &check(&["--store", "redis://:pw-s3cr3t@127.0.0.1:1"]);
    said += &check(&["--server", "http://pw-s3cr3t@127.0.0.1:1"]);
    said += &check(&["--server", "http://127.0.0.1:1"]);
    let ran = tidegate(&["validate", &write("redis:/:new-s3cr3t@h", "")], &variables);
    said += &(ran.stdout + &ran.stderr);
    assert!(said.len() > 10_000, "something was said");
    for secret in SECRETS {
        let at = said.find(secret);
        assert_eq!(at, None, "..{}", &said[at.unwrap_or(0).saturating_sub(300)..][..400]);
    }
}
