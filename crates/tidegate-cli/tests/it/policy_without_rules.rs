//! Policies that would take all limits away: empty files and directories, and files that are none.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use testkit::process::{serve, tidegate};
use testkit::server::{ServerProcess, TempFolder, pause, wait_until};

const ANY_PORT: [&str; 4] = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];

fn policy(limit: u64) -> String {
    format!("rules: [{{ name: api, limits: [fixed-window {limit}/1d] }}]\n")
}

fn limit(server: &ServerProcess) -> u64 {
    let response = server.post("/v1/check", &json!({ "rule": "api", "key": "unused", "cost": 0 }));
    response.json()["limit"].as_u64().unwrap_or(0)
}

fn wait_for_limit(server: &ServerProcess, wanted: u64) {
    assert!(wait_until(|| (limit(server) == wanted).then_some(())).is_some(), "not {wanted}");
}

/// Waits until a reload is refused with this message; the policy of `limit` stays.
fn expect_refused(server: &ServerProcess, message: &str, limit: u64) {
    let health = server.health_when(|health| {
        health["policy"]["error"].as_str().is_some_and(|error| error.contains(message))
    });
    assert_eq!(health["status"], "degraded");
    assert_eq!(server.metric("tidegate_config_valid"), Some(0.0));
    assert_eq!(self::limit(server), limit, "the last valid policy stays");
}

/// Waits until more than `before` failed reloads are logged. The log arrives later than the health.
fn failures_above(server: &ServerProcess, before: usize) -> usize {
    let logged = || Some(server.logged("policy reload failed")).filter(|logged| *logged > before);
    wait_until(logged).expect("the failure is logged")
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_policy_without_rules_is_refused_unless_it_has_an_empty_list() {
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", &policy(5));
    let path = file.to_str().unwrap();
    let server = ServerProcess::start(&["--config", path], &[]);
    for text in ["", "# only a comment\n", "store: memory\n", "rules:\n"] {
        folder.write("policy.yaml", text);
        let found = tidegate(&["validate", path], &[]);
        assert!(found.code == Some(1) && found.stderr.contains("rules"), "{text:?}: {found:?}");
        let started = serve(&[&["--config", path][..], &ANY_PORT].concat(), &[]);
        assert!(
            started.code.is_some() && started.stderr.contains("rules"),
            "{text:?}: {started:?}"
        );
        expect_refused(&server, "rules", 5);
        folder.write("policy.yaml", &policy(5));
        server.health_when(|health| health["status"] == "ok");
    }
    folder.write("policy.yaml", "rules: []\n");
    assert_eq!(tidegate(&["validate", path], &[]).code, Some(0));
    assert_eq!(serve(&[&["--config", path][..], &ANY_PORT].concat(), &[]).code, None);
    wait_for_limit(&server, 0);
    assert_eq!(server.get("/healthz").json()["status"], "ok");
}

#[test]
fn an_included_file_that_is_emptied_is_refused() {
    let folder = TempFolder::new();
    folder.write("more.yaml", &policy(5));
    let other = "rules: [{ name: other, limits: [9/s] }]\ninclude: [more.yaml]\n";
    let file = folder.write("policy.yaml", other);
    let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
    folder.write("more.yaml", "");
    expect_refused(&server, "more.yaml:1:1: empty file", 5);
    folder.write("more.yaml", "rules: []\n");
    wait_for_limit(&server, 0);
}

#[test]
fn a_directory_for_envoy_that_is_emptied_is_refused() {
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", &policy(5));
    let directory = folder.path("envoy");
    fs::create_dir(&directory).unwrap();
    let (path, envoy) = (file.to_str().unwrap(), directory.to_str().unwrap());
    let arguments = ["--config", path, "--envoy-config", envoy];
    let started = serve(&[&arguments[..], &ANY_PORT].concat(), &[]);
    assert!(started.code.is_some() && started.stderr.contains("no .yaml files"), "{started:?}");
    assert_eq!(tidegate(&["validate", envoy], &[]).code, Some(1));
    let limits = "{ domain: edge, descriptors: [{ key: k, limit: 1/s }] }";
    let edge = folder.write("envoy/edge.yaml", limits);
    let server = ServerProcess::start(&arguments, &[]);
    fs::remove_file(&edge).unwrap();
    expect_refused(&server, "no .yaml files", 5);
    // Anything but a file in its place is no reason to drop its limits either.
    make_pipe(&edge);
    expect_refused(&server, "not a regular file", 5);
    fs::remove_file(&edge).unwrap();
    folder.write("envoy/edge.yaml", limits);
    server.health_when(|health| health["status"] == "ok");
}

#[test]
fn a_pipe_is_read_once_at_the_start() {
    let folder = TempFolder::new();
    let pipe = folder.path("policy.yaml");
    make_pipe(&pipe);
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::write(pipe, policy(5)).unwrap()
    });
    let server = ServerProcess::start(&["--config", pipe.to_str().unwrap()], &[]);
    writer.join().unwrap();
    // Four polls of the files, in which nothing happens.
    pause(Duration::from_secs(1));
    assert_eq!((limit(&server), server.logged("policy reload")), (5, 0));
    assert_eq!(server.get("/healthz").json()["status"], "ok");
    server.signal("HUP");
    expect_refused(&server, "not a regular file", 5);
}

#[test]
fn a_pipe_in_the_place_of_a_policy_is_refused_and_blocks_nothing() {
    let folder = TempFolder::new();
    let main = folder.write("policy.yaml", "include: [more.yaml]\n");
    let more = folder.write("more.yaml", &policy(5));
    let mut server = ServerProcess::start(&["--config", main.to_str().unwrap()], &[]);
    for (file, text, wanted) in
        [(&more, policy(6), 6), (&main, "include: [more.yaml]\n".to_string(), 6)]
    {
        let (before, failed) = (limit(&server), server.logged("policy reload failed"));
        fs::remove_file(file).unwrap();
        make_pipe(file);
        expect_refused(&server, "not a regular file", before);
        let failed = failures_above(&server, failed);
        server.signal("HUP");
        failures_above(&server, failed);
        fs::remove_file(file).unwrap();
        fs::write(file, text).unwrap();
        wait_for_limit(&server, wanted);
        server.health_when(|health| health["status"] == "ok");
        if file == &more {
            continue;
        }
        fs::remove_file(file).unwrap();
        make_pipe(file);
        pause(Duration::from_millis(600));
        server.signal("TERM");
        assert!(server.wait().is_some_and(|status| status.success()), "{:?}", server.log());
        assert_eq!(server.logged("drain timeout"), 0);
    }
}
