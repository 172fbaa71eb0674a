//! `--runtime-file`, the bounds of run-time rules and overrides, and `tidegate override`.

use std::path::Path;

use serde_json::{Map, Value, json};
use testkit::process::{serve, tidegate};
use testkit::redis::{RedisServer, free_port};
use testkit::server::{ServerProcess, ServerResponse, TempFolder};

const ADMIN: (&str, &str) = ("TIDEGATE_ADMIN_TOKEN", "boss");
/// With a deadline that a busy machine keeps.
const POLICY: &str = "store_deadline: 1s\nrules: [{ name: api, limits: [fixed-window 5/1d] }]\n";

fn start(store: &str, file: Option<&Path>) -> ServerProcess {
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let mut arguments = vec!["--config", policy.to_str().unwrap(), "--store", store];
    if let Some(file) = file {
        arguments.extend(["--runtime-file", file.to_str().unwrap()]);
    }
    ServerProcess::start(&arguments, &[ADMIN])
}

fn admin(server: &ServerProcess, method: &str, path: &str, body: &Value) -> ServerResponse {
    let headers = [("authorization", "Bearer boss"), ("content-type", "application/json")];
    server.request(method, path, &headers, &body.to_string())
}

fn limit(server: &ServerProcess, key: &str) -> u64 {
    let reply = server.post("/v1/check", &json!({ "rule": "api", "key": key, "cost": 0 }));
    reply.json()["limit"].as_u64().unwrap_or(0)
}

#[test]
fn the_file_brings_changes_back_after_a_restart() {
    let folder = TempFolder::new();
    let file = folder.path("runtime.json");
    let server = start("memory", Some(&file));
    for (path, status) in [("/v1/overrides/api/gold", 201), ("/v1/rules/extra", 201)] {
        let body = json!({ "limits": ["fixed-window 50/1d"] });
        assert_eq!(admin(&server, "PUT", path, &body).status, status);
    }
    let kept = server.get("/v1/overrides").json();
    drop(server);
    assert!(!folder.path("runtime.json.new").exists(), "it was renamed");
    let server = start("memory", Some(&file));
    assert_eq!(limit(&server, "gold"), 50);
    assert_eq!(server.logged("run-time rules and overrides loaded from the file"), 1);
    assert_eq!(server.get("/v1/overrides").json(), kept);
    assert_eq!(server.get("/v1/rules/extra").json()["origin"], "runtime");
    assert_eq!(admin(&server, "DELETE", "/v1/rules/extra", &json!({})).status, 204);
    drop(server);
    let server = start("memory", Some(&file));
    assert_eq!(server.get("/v1/rules/extra").status, 404, "the deletion is kept too");
    drop(server);
    assert_eq!(limit(&start("memory", None), "gold"), 5, "without the file it starts anew");

    std::fs::write(&file, "{").unwrap();
    let refused = serve(&["--runtime-file", file.to_str().unwrap()], &[]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--runtime-file"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{", "it is not replaced");
}

#[test]
fn a_server_that_starts_without_redis_uses_the_file_or_reports_that_it_knows_nothing() {
    let redis = RedisServer::start();
    let folder = TempFolder::new();
    let file = folder.path("runtime.json");
    let server = start(&redis.url(), Some(&file));
    let body = json!({ "limits": ["fixed-window 50/1d"] });
    assert_eq!(admin(&server, "PUT", "/v1/overrides/api/gold", &body).status, 201);
    drop(server);
    let nowhere = format!("redis://127.0.0.1:{}/", free_port());
    let server = start(&nowhere, Some(&file));
    let limits = server.get("/v1/overrides/api/gold").json();
    assert_eq!(
        (&limits["active"], &limits["limits"][0]),
        (&json!(true), &json!("fixed-window 50/d"))
    );
    let out_of_date = |health: &Value| {
        let problem = health["policy"]["runtime"].as_str();
        problem.is_some_and(|problem| problem.starts_with("run-time rules may be out of date"))
    };
    assert_eq!(server.health_when(out_of_date)["status"], "degraded");
    server.expect_logged("run-time rules and overrides cannot be read from the store", 1);
    let server = start(&nowhere, None);
    let health = server.get("/healthz").json();
    assert_eq!(health["status"], "degraded");
    let problem = health["policy"]["runtime"].as_str().unwrap();
    assert!(problem.starts_with("run-time rules unknown"), "{problem}");
    // A copy of the file is offered to a Redis that has lost everything.
    redis.cli(&["FLUSHALL"]);
    let server = start(&redis.url(), Some(&file));
    assert_eq!(limit(&server, "gold"), 50);
    assert_eq!(redis.cli(&["HLEN", "tg:{runtime}:rules"]), "1");
}

/// A file with these fields.
fn file_with(fields: impl Iterator<Item = (String, Value)>) -> std::path::PathBuf {
    let value = |(nth, (name, spec)): (usize, (String, Value))| {
        let at = "2026-01-01T00:00:00Z";
        let stamp = format!("1.{nth}.0");
        (name, json!({ "stamp": stamp, "by": "test", "at": at, "spec": spec }))
    };
    let fields: Map<String, Value> = fields.enumerate().map(value).collect();
    let text = json!({ "contact": null, "fields": fields }).to_string();
    TempFolder::new().write("runtime.json", &text)
}

#[test]
fn a_change_beyond_the_bounds_is_refused() {
    let rules = (0..1_000).map(|nth| {
        let name = format!("r{nth}");
        (format!("rule:{name}"), json!({ "name": name, "limits": ["1/s"] }))
    });
    let overrides = (0..10_000).map(|nth| {
        let key = format!("k{nth}");
        (format!("override:api:{key}"), json!({ "key": [key], "limits": ["9/s"] }))
    });
    let full = start("memory", Some(&file_with(rules.chain(overrides))));
    assert_eq!(limit(&full, "k9999"), 9);
    let put = |server: &ServerProcess, path: &str, body: &Value| {
        let reply = admin(server, "PUT", path, body);
        (reply.status, reply.json()["detail"].as_str().unwrap_or_default().to_string())
    };
    let body = json!({ "limits": ["2/s"] });
    let refused = put(&full, "/v1/rules/more", &body);
    assert_eq!(refused, (400, "too many run-time rules; at most 1000".into()));
    let refused = put(&full, "/v1/overrides/api/more", &body);
    assert_eq!(refused, (400, "too many run-time overrides; at most 10000".into()));
    assert_eq!(put(&full, "/v1/rules/r1", &body).0, 200, "replacing one needs no room");
    assert_eq!(admin(&full, "DELETE", "/v1/rules/r2", &json!({})).status, 204);
    assert_eq!(put(&full, "/v1/rules/more", &body).0, 201);

    let wide = |name: &str, bytes: usize| {
        let list: Vec<String> = (0..bytes / 16).map(|nth| format!("client-{nth:05}")).collect();
        json!({ "name": name, "limits": ["1/s"], "allow": list })
    };
    let server = start("memory", None);
    let (status, detail) = put(&server, "/v1/rules/wide", &wide("wide", 20_000));
    assert!(status == 400 && detail.contains("at most 16384"), "{status} {detail}");
    assert_eq!(put(&server, "/v1/rules/wide", &wide("wide", 14_000)).0, 201);

    let rules = (0..320).map(|nth| {
        let name = format!("r{nth}");
        (format!("rule:{name}"), wide(&name, 14_500))
    });
    let full = start("memory", Some(&file_with(rules)));
    let (status, detail) = put(&full, "/v1/rules/more", &wide("more", 14_500));
    assert!(status == 400 && detail.contains("4194304"), "{status} {detail}");
    assert_eq!(admin(&full, "DELETE", "/v1/rules/r7", &json!({})).status, 204);
}

#[test]
fn overrides_are_set_listed_and_deleted_on_the_command_line() {
    let server = start("memory", None);
    let url = format!("http://{}", server.http);
    let run = |arguments: &[&str]| {
        let all = [&["override"], arguments, &["--server", &url]].concat();
        let output = tidegate(&all, &[ADMIN]);
        (output.code, output.stdout.trim().to_string(), output.stderr)
    };
    assert_eq!(run(&["list"]).1, "no overrides");
    let (code, text, error) = run(&["set", "api", "a b", "10/s", "100/h", "--for", "8h"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(text.starts_with("api a b: 10/s + 100/h until "), "{text}");
    assert!(text.contains("(set by admin token, 127.0.0.1 at "), "{text}");
    assert_eq!(run(&["list"]).1, text);
    assert_eq!(run(&["list", "other"]).1, "no overrides");
    let json: Value = serde_json::from_str(&run(&["list", "api", "--json"]).1).unwrap();
    assert_eq!(json["overrides"][0]["key"], "a b");
    let (code, _, error) = run(&["set", "api", "k", "10/parsec"]);
    assert!(code == Some(2) && error.contains("limits[0]: "), "{error}");
    let (code, text, _) = run(&["set", "api", "x", "3/s", "--part", "y"]);
    assert!(code == Some(0) && text.starts_with("api x | y: 3/s (set by"), "{text}");
    assert_eq!(run(&["delete", "api", "x", "--part", "y"]).1, "deleted");
    assert_eq!(run(&["delete", "api", "a b"]).1, "deleted");
    let (code, _, error) = run(&["delete", "api", "a b"]);
    assert!(code == Some(2) && error.contains("404"), "{error}");
    let denied = tidegate(&["override", "set", "api", "k", "1/s", "--server", &url], &[]);
    assert!(denied.code == Some(2) && denied.stderr.contains("admin token"), "{}", denied.stderr);
    assert_eq!(run(&["list"]).1, "no overrides");
}
