//! Run-time rules and overrides of a fleet, in Redis.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::cluster::RedisCluster;
use testkit::process::{millis, print_figure};
use testkit::redis::RedisServer;
use testkit::server::{ServerProcess, ServerResponse, TempFolder, wait_until};
use testkit::timing::compare_with_goal;

const ADMIN: (&str, &str) = ("TIDEGATE_ADMIN_TOKEN", "boss");
const APPLIED: &str = "run-time change applied";
const REPAIRED: &str = "run-time rules and overrides repaired in the store";

/// With a deadline that a busy machine keeps.
fn policy(limit: u64) -> String {
    format!("store_deadline: 1s\nrules: [{{ name: api, limits: [fixed-window {limit}/1d] }}]\n")
}

fn start(store: &str) -> ServerProcess {
    let file = TempFolder::new().write("policy.yaml", &policy(5));
    start_with(&file, store)
}

fn start_with(file: &Path, store: &str) -> ServerProcess {
    ServerProcess::start(&["--config", file.to_str().unwrap(), "--store", store], &[ADMIN])
}

fn admin(server: &ServerProcess, method: &str, path: &str, body: &str) -> ServerResponse {
    let headers = [("authorization", "Bearer boss"), ("content-type", "application/json")];
    server.request(method, path, &headers, body)
}

fn put_rule(server: &ServerProcess, name: &str, limit: u64) -> ServerResponse {
    let body = json!({ "limits": [format!("fixed-window {limit}/1d")] }).to_string();
    admin(server, "PUT", &format!("/v1/rules/{name}"), &body)
}

fn put_override(server: &ServerProcess, key: &str, limit: u64) -> ServerResponse {
    let body = json!({ "limits": [format!("fixed-window {limit}/1d")] }).to_string();
    admin(server, "PUT", &format!("/v1/overrides/api/{key}"), &body)
}

/// The limit of a key; 0 without a decision.
fn limit(server: &ServerProcess, rule: &str, key: &str) -> u64 {
    let reply = server.post("/v1/check", &json!({ "rule": rule, "key": key, "cost": 0 }));
    reply.json()["limit"].as_u64().unwrap_or(0)
}

fn wait_for_limit(server: &ServerProcess, rule: &str, key: &str, wanted: u64) {
    let came = wait_until(|| (limit(server, rule, key) == wanted).then_some(()));
    assert!(came.is_some(), "{rule} {key}: {} instead of {wanted}", limit(server, rule, key));
}

/// The fields of all log lines with this message.
fn logged(server: &ServerProcess, message: &str) -> Vec<Value> {
    let lines = server.log();
    let lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|line| line["fields"].clone()).filter(|line| line["message"] == message).collect()
}

fn wait_for_log(server: &ServerProcess, message: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let found = wait_until(|| logged(server, message).into_iter().find(|line| wanted(line)));
    found.unwrap_or_else(|| panic!("no line {message:?}: {:?}", server.log()))
}

#[test]
fn the_file_stays_in_force_under_an_override_of_one_key() {
    let folder = TempFolder::new();
    let server = start_with(&folder.write("policy.yaml", &policy(5)), "memory");
    let created = put_override(&server, "gold", 50);
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!((limit(&server, "api", "gold"), limit(&server, "api", "other")), (50, 5));
    let made = wait_for_log(&server, "run-time change made", |_| true);
    assert_eq!((&made["by"], &made["old"]), (&json!("admin token, 127.0.0.1"), &json!("none")));
    assert_eq!(made["field"], "override:api:gold");
    assert!(made["new"].as_str().unwrap().contains("fixed-window 50/d"), "{made}");
    assert_eq!(made["stamp"], created.json()["stamp"]);
    wait_for_log(&server, APPLIED, |line| line["stamp"] == made["stamp"]);

    folder.write("policy.yaml", &policy(7));
    wait_for_limit(&server, "api", "other", 7);
    wait_for_log(&server, "policy reloaded", |line| line["rules"] == 1);
    assert_eq!(limit(&server, "api", "gold"), 50, "the override stays");
    assert_eq!(server.get("/v1/rules/api").json()["origin"], "file");

    // A run-time rule replaces the rule of the file; the override applies on top of it.
    assert_eq!(put_rule(&server, "api", 9).status, 200);
    assert_eq!((limit(&server, "api", "gold"), limit(&server, "api", "other")), (50, 9));
    server.signal("HUP");
    let shadowed = "rule of the file is replaced by a run-time rule";
    let line = wait_for_log(&server, shadowed, |line| line["rule"] == "api");
    assert_eq!(line["by"], "admin token, 127.0.0.1");
    assert!(line["at"].as_str().unwrap().ends_with('Z'), "{line}");
    let warning = "the file has changed this rule, but a run-time rule replaces it; delete that to \
                   use the file's";
    assert_eq!(server.logged(warning), 0, "the file is as it was when the rule was set");
    folder.write("policy.yaml", &policy(8));
    wait_for_log(&server, warning, |line| line["rule"] == "api");
    assert_eq!(limit(&server, "api", "other"), 9);

    assert_eq!(admin(&server, "DELETE", "/v1/rules/api", "").status, 204);
    assert_eq!((limit(&server, "api", "gold"), limit(&server, "api", "other")), (50, 8));
    assert_eq!(admin(&server, "DELETE", "/v1/overrides/api/gold", "").status, 204);
    assert_eq!(limit(&server, "api", "gold"), 8);
    assert_eq!(admin(&server, "DELETE", "/v1/overrides/api/gold", "").status, 404);
    let last = logged(&server, "run-time change made").pop().unwrap();
    assert_eq!(last["new"], "none");
    assert!(last["old"].as_str().unwrap().contains("fixed-window 50/d"), "{last}");

    // Without its rule, an override is kept and reported.
    assert_eq!(put_override(&server, "gold", 60).status, 201);
    folder.write("policy.yaml", "rules: [{ name: other, limits: [1/s] }]\n");
    let reason = || server.get("/v1/overrides/api/gold").json()["reason"].clone();
    wait_until(|| (reason() == "no such rule").then_some(())).expect("it is inactive");
    assert_eq!(put_override(&server, "silver", 60).status, 404);
    folder.write("policy.yaml", &policy(5));
    wait_for_limit(&server, "api", "gold", 60);
    assert_eq!(server.get("/v1/overrides/api/gold").json()["active"], true);
}

#[test]
fn an_override_ends_by_itself_and_the_override_of_the_file_applies_again() {
    let rule = "store_deadline: 1s\nrules: [{ name: api, limits: [fixed-window 5/1d], \
                overrides: [{ key: gold, limits: [fixed-window 20/1d] }] }]\n";
    let redis = RedisServer::start();
    for store in ["memory", &redis.url()] {
        let server = start_with(&TempFolder::new().write("policy.yaml", rule), store);
        assert_eq!(limit(&server, "api", "gold"), 20);
        for key in ["gold", "new"] {
            let body = json!({ "limits": ["fixed-window 50/1d"], "for": "4s" }).to_string();
            let path = format!("/v1/overrides/api/{key}");
            assert_eq!(admin(&server, "PUT", &path, &body).status, 201);
        }
        assert_eq!((limit(&server, "api", "gold"), limit(&server, "api", "new")), (50, 50));
        wait_for_limit(&server, "api", "gold", 20);
        wait_for_limit(&server, "api", "new", 5);
        for key in ["gold", "new"] {
            let field = format!("override:api:{key}");
            wait_for_log(&server, "override ended", |line| line["field"] == *field);
        }
        assert_eq!(logged(&server, "override ended").len(), 2, "one line for each");
        let ended = server.get("/v1/overrides/api/new").json();
        assert_eq!((&ended["active"], &ended["reason"]), (&json!(false), &json!("it has ended")));
    }
    let server = start("memory");
    for (body, field) in [
        (r#"{"limits":["1/s"],"until":"2020-01-01T00:00:00Z"}"#, "until"),
        (r#"{"limits":["1/s"],"until":"soon"}"#, "until"),
        (r#"{"limits":["1/s"],"for":"0s"}"#, "for"),
        (r#"{"limits":["1/s"],"for":"1h","until":"2099-01-01T00:00:00Z"}"#, "for"),
        (r#"{"limits":["1/parsec"]}"#, "limits[0]"),
        (r#"{"limits":[]}"#, "limits"),
        (r#"{}"#, "limits"),
    ] {
        let refused = admin(&server, "PUT", "/v1/overrides/api/k", body);
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{body}");
    }
}

#[test]
fn a_change_reaches_the_other_server_within_a_second() {
    const CHANGES: u64 = 200;
    let redis = RedisServer::start();
    let servers = [start(&redis.url()), start(&redis.url())];
    let mut slowest = 0;
    for nth in 1..=CHANGES {
        let (here, there) = match nth % 2 {
            0 => (&servers[0], &servers[1]),
            _ => (&servers[1], &servers[0]),
        };
        let put = put_override(here, "gold", nth);
        assert!([200, 201].contains(&put.status), "{}", put.body);
        assert_eq!(limit(here, "api", "gold"), nth);
        slowest = slowest.max(millis(|| wait_for_limit(there, "api", "gold", nth)).0);
    }
    print_figure(format_args!(
        "run-time changes: {CHANGES} changes, the slowest visible on the other server after {slowest} ms"
    ));
    compare_with_goal(
        "a change on the other server",
        Duration::from_millis(slowest),
        Duration::from_secs(1),
    );
    let (first, second) = (logged(&servers[0], APPLIED), logged(&servers[1], APPLIED));
    assert_eq!(first.len(), CHANGES as usize, "every server logs every change");
    assert_eq!(second.len(), CHANGES as usize);

    // Changes at the same time: none is lost.
    std::thread::scope(|scope| {
        for (nth, server) in servers.iter().enumerate() {
            scope.spawn(move || {
                for key in 0..20 {
                    let put = put_override(server, &format!("k{nth}-{key}"), 9);
                    assert_eq!(put.status, 201, "{}", put.body);
                }
            });
        }
    });
    for server in &servers {
        let count = || server.get("/v1/overrides").json()["overrides"].as_array().unwrap().len();
        wait_until(|| (count() == 41).then_some(())).expect("all are on both servers");
    }
}

#[test]
fn changes_survive_a_restart_of_all_servers_and_a_store_that_lost_them() {
    let redis = RedisServer::start();
    let first = start(&redis.url());
    assert_eq!(put_rule(&first, "extra", 3).status, 201);
    assert_eq!(put_override(&first, "gold", 50).status, 201);
    drop(first);
    let servers = [start(&redis.url()), start(&redis.url())];
    for server in &servers {
        let limits = (limit(server, "extra", "k"), limit(server, "api", "gold"));
        assert_eq!(limits, (3, 50), "in force from the first request");
        let loaded = "run-time rules and overrides loaded from the store";
        wait_for_log(server, loaded, |line| line["fields"] == 2);
    }
    redis.cli(&["FLUSHALL"]);
    wait_until(|| (redis.cli(&["HLEN", "tg:{runtime}:rules"]) == "2").then_some(()))
        .expect("a server repairs the store");
    let repairs = || servers.iter().map(|server| server.logged(REPAIRED)).sum::<usize>();
    wait_until(|| (repairs() == 1).then_some(())).expect("one server logs the repair");
    // A new process would store a secret of its own, which the others would not use.
    wait_until(|| (redis.cli(&["EXISTS", "tg:secret"]) == "1").then_some(()))
        .expect("a server stores the secret again");
    let third = start(&redis.url());
    assert_eq!((limit(&third, "extra", "k"), limit(&third, "api", "gold")), (3, 50));
    // Only the hash is lost: the number of fields differs.
    redis.cli(&["DEL", "tg:{runtime}:rules"]);
    wait_until(|| (redis.cli(&["HLEN", "tg:{runtime}:rules"]) == "2").then_some(()))
        .expect("a server repairs the hash");
    // A failover to a replica that lacks the last change.
    let read = |command: &[&str]| redis.cli(command);
    let value = ["HGET", "tg:{runtime}:rules", "override:api:gold"];
    let (head, old) = (read(&["GET", "tg:{runtime}:head"]), read(&value));
    assert_eq!(put_override(&third, "gold", 55).status, 200);
    servers.iter().for_each(|server| wait_for_limit(server, "api", "gold", 55));
    read(&["HSET", value[1], value[2], &old]);
    read(&["SET", "tg:{runtime}:head", &head]);
    wait_until(|| read(&value).contains("fixed-window 55/d").then_some(()))
        .expect("a server offers the lost change");
    // A change after the loss is newer than all before it.
    redis.cli(&["FLUSHALL"]);
    assert_eq!(put_override(&third, "gold", 60).status, 200);
    for server in servers.iter().chain([&third]) {
        wait_for_limit(server, "api", "gold", 60);
        wait_for_limit(server, "extra", "k", 3);
    }
}

#[test]
fn what_is_deleted_while_a_server_is_cut_off_does_not_come_back() {
    let redis = RedisServer::start();
    let (here, cut_off) = (start(&redis.url()), start(&redis.url()));
    assert_eq!(put_rule(&here, "extra", 3).status, 201);
    assert_eq!(put_override(&here, "gold", 50).status, 201);
    wait_for_limit(&cut_off, "extra", "k", 3);
    wait_for_limit(&cut_off, "api", "gold", 50);
    cut_off.signal("STOP");
    assert_eq!(admin(&here, "DELETE", "/v1/rules/extra", "").status, 204);
    assert_eq!(admin(&here, "DELETE", "/v1/overrides/api/gold", "").status, 204);
    // The store even loses the deletion.
    redis.cli(&["FLUSHALL"]);
    wait_until(|| (redis.cli(&["HLEN", "tg:{runtime}:rules"]) == "2").then_some(()))
        .expect("the deletions are offered again");
    cut_off.signal("CONT");
    wait_for_limit(&cut_off, "api", "gold", 5);
    for server in [&here, &cut_off] {
        wait_until(|| (server.get("/v1/rules/extra").status == 404).then_some(()))
            .expect("the rule is deleted");
        assert_eq!(server.get("/v1/overrides").json()["overrides"], json!([]));
    }
    assert!(!redis.cli(&["HVALS", "tg:{runtime}:rules"]).contains("spec"), "only deletions");
}

#[test]
fn without_redis_a_change_is_refused_and_changes_nothing() {
    let mut redis = RedisServer::start();
    let server = start(&redis.url());
    assert_eq!(put_rule(&server, "extra", 3).status, 201);
    redis.kill();
    for refused in [
        put_rule(&server, "extra", 4),
        put_override(&server, "gold", 50),
        admin(&server, "DELETE", "/v1/rules/extra", ""),
    ] {
        assert_eq!(refused.status, 503, "{}", refused.body);
        let detail = refused.json()["detail"].as_str().unwrap().to_string();
        assert!(detail.contains("nothing changed"), "{detail}");
    }
    assert_eq!(server.get("/v1/rules/extra").json()["limits"], json!(["fixed-window 3/d"]));
    assert_eq!(server.get("/v1/overrides").json()["overrides"], json!([]));
    redis.restart();
    wait_until(|| (redis.cli(&["HLEN", "tg:{runtime}:rules"]) == "1").then_some(()))
        .expect("the rule is offered to the empty store");
    assert!(redis.cli(&["HGET", "tg:{runtime}:rules", "rule:extra"]).contains("fixed-window 3/d"));
    wait_until(|| (put_rule(&server, "extra", 4).status == 200).then_some(()))
        .expect("changes are possible again");
}

#[test]
fn a_field_of_another_version_leaves_the_last_valid_one_in_force() {
    let redis = RedisServer::start();
    let server = start(&redis.url());
    assert_eq!(put_rule(&server, "extra", 3).status, 201);
    assert_eq!(put_override(&server, "gold", 50).status, 201);
    assert_eq!(server.get("/healthz").json()["policy"]["runtime"], Value::Null);
    let set = |field: &str, spec: Value| {
        let at = "2026-01-01T00:00:00Z";
        let value = json!({ "stamp": "9999999999.1.1", "by": "x", "at": at, "spec": spec });
        redis.cli(&["HSET", "tg:{runtime}:rules", field, &value.to_string()]);
        redis.cli(&["SET", "tg:{runtime}:head", &format!("9999999999.{}.1", field.len())]);
    };
    set("rule:extra", json!({ "name": "extra", "limits": ["leaky-cauldron 5/s"] }));
    set("override:api:gold", json!({ "key": ["gold"], "limits": ["5/s"], "colour": "red" }));
    set("rule:alias", json!({ "name": "extra", "limits": ["1/s"] }));
    set("quota:extra", json!({}));
    set("rule:new", json!({ "name": "new", "limits": ["1/s"] }));
    wait_for_limit(&server, "new", "k", 1);
    let health = server.health_when(|health| health["status"] == "degraded");
    let problem = health["policy"]["runtime"].as_str().unwrap();
    assert!(problem.contains("run-time rule extra"), "{problem}");
    assert!(problem.contains("run-time rule alias"), "{problem}");
    assert!(problem.contains("a field of another kind"), "{problem}");
    assert!(problem.contains("an override of rule api") && !problem.contains("gold"), "{problem}");
    assert_eq!((limit(&server, "extra", "k"), limit(&server, "api", "gold")), (3, 50));
    wait_for_log(&server, "run-time field cannot be used; the last valid one stays", |line| {
        line["field"] == "rule:extra"
            && line["fault"].as_str().is_some_and(|f| f.contains("cauldron"))
    });
    assert_eq!(put_rule(&server, "extra", 4).status, 200, "another change replaces it");
    assert_eq!(admin(&server, "DELETE", "/v1/overrides/api/gold", "").status, 204);
    assert_eq!(admin(&server, "DELETE", "/v1/rules/alias", "").status, 204);
    redis.cli(&["HDEL", "tg:{runtime}:rules", "quota:extra"]);
    let problem = || server.get("/healthz").json()["policy"]["runtime"].clone();
    wait_until(|| {
        (problem() == "cannot be used by this version: a field of another kind").then_some(())
    })
    .expect("the others are repaired");
}

#[test]
fn a_cluster_keeps_them_in_one_slot_and_through_a_failover() {
    let mut cluster = RedisCluster::start();
    let servers = [start(&cluster.url()), start(&cluster.url())];
    assert_eq!(put_override(&servers[0], "gold", 50).status, 201);
    wait_for_limit(&servers[1], "api", "gold", 50);
    let slot = cluster.slot_of("tg:{runtime}:rules");
    assert_eq!(slot, cluster.slot_of("tg:{runtime}:head"));
    let primary = cluster.primary_of(slot);
    let other = cluster.primaries().into_iter().find(|nth| *nth != primary).unwrap();
    cluster.migrate(slot, primary, other);
    let changed = || (put_override(&servers[0], "gold", 55).status == 200).then_some(());
    wait_until(changed).expect("the slot has moved");
    wait_for_limit(&servers[1], "api", "gold", 55);
    // The replica of the new owner needs the last change before the owner is killed.
    let replica = cluster.replicas_of(other)[0];
    let value = || cluster.nodes[replica].cli(&["GET", "tg:{runtime}:head"]);
    let head = cluster.nodes[other].cli(&["GET", "tg:{runtime}:head"]);
    wait_until(|| (value() == head || value().starts_with("MOVED")).then_some(()))
        .expect("the replica follows");
    cluster.kill(other);
    assert_eq!(server_limit(&servers[1]), "fixed-window 55/d", "the copy stays");
    let changed = || (put_override(&servers[1], "gold", 60).status == 200).then_some(());
    wait_until(changed).expect("the replica takes over");
    wait_for_limit(&servers[0], "api", "gold", 60);
}

/// The limit in the override, whatever decides checks.
fn server_limit(server: &ServerProcess) -> Value {
    server.get("/v1/overrides/api/gold").json()["limits"][0].clone()
}

#[test]
fn conditions_compare_stamps() {
    let redis = RedisServer::start();
    let server = start(&redis.url());
    let put = |path: &str, header: (&str, &str), limit: u64| {
        let headers = [("authorization", "Bearer boss"), header];
        let body = json!({ "limits": [format!("{limit}/s")] }).to_string();
        server.request("PUT", path, &headers, &body)
    };
    for path in ["/v1/overrides/api/gold", "/v1/rules/extra"] {
        let created = put(path, ("if-none-match", "*"), 1);
        assert_eq!(created.status, 201, "{}", created.body);
        assert_eq!(put(path, ("if-none-match", "*"), 1).status, 412);
        let tag = created.header("etag").unwrap().to_string();
        assert_eq!(server.get(path).header("etag"), Some(&*tag));
        let replaced = put(path, ("if-match", &tag), 2);
        assert_eq!(replaced.status, 200, "{}", replaced.body);
        assert_eq!(put(path, ("if-match", &tag), 3).status, 412, "it has another stamp now");
        assert_eq!(put(path, ("if-match", "x"), 3).status, 400);
        let delete = |tag: &str| {
            let headers = [("authorization", "Bearer boss"), ("if-match", tag)];
            server.request("DELETE", path, &headers, "").status
        };
        assert_eq!(delete(&tag), 412);
        assert_eq!(delete(replaced.header("etag").unwrap()), 204);
        assert_eq!(put(path, ("if-match", &tag), 3).status, 412, "there is none");
    }
    assert_eq!(put("/v1/rules/api", ("if-match", "1.1.1"), 3).status, 412, "a rule of the file");
}

#[test]
fn a_user_without_write_access_follows_the_store() {
    let redis = RedisServer::start();
    let writer = start(&redis.url());
    assert_eq!(put_override(&writer, "gold", 50).status, 201);
    redis.cli(&["ACL", "SETUSER", "reader", "on", ">pw", "~tg:*", "+@all", "-hset", "-hdel"]);
    let reader = start(&format!("redis://reader:pw@127.0.0.1:{}/", redis.port()));
    assert_eq!(limit(&reader, "api", "gold"), 50);
    let refused = put_override(&reader, "gold", 60);
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(put_override(&writer, "gold", 70).status, 200);
    wait_for_limit(&reader, "api", "gold", 70);
}

#[test]
fn a_deleted_rule_keeps_its_counts_unless_they_are_reset() {
    let redis = RedisServer::start();
    for store in ["memory".to_string(), redis.url()] {
        let [server, other] = [start(&store), start(&store)];
        let remaining = |server: &ServerProcess, rule: &str| {
            let check = json!({ "rule": rule, "key": "k" });
            server.post("/v1/check", &check).json()["remaining"].as_u64().unwrap()
        };
        let delete = |rule: &str, query: &str| {
            admin(&server, "DELETE", &format!("/v1/rules/{rule}{query}"), "").status
        };
        put_rule(&server, "temporary", 5);
        assert_eq!((remaining(&server, "temporary"), remaining(&server, "temporary")), (4, 3));
        assert_eq!(delete("temporary", ""), 204);
        put_rule(&server, "temporary", 5);
        assert_eq!(remaining(&server, "temporary"), 2, "{store}");
        assert_eq!(delete("temporary", "?reset=yes"), 400);
        assert_eq!(delete("temporary", "?reset=true"), 204);
        put_rule(&server, "temporary", 6);
        assert_eq!(remaining(&server, "temporary"), 5, "{store}");
        // A replaced rule and a later deletion stay in the epoch.
        put_rule(&server, "temporary", 7);
        assert_eq!(remaining(&server, "temporary"), 5, "{store}");
        if store != "memory" {
            wait_for_limit(&other, "temporary", "k", 7);
            assert_eq!(remaining(&other, "temporary"), 4, "the other server counts with it");
        }
        // The rule of the file begins unused, too, and is reloaded into the same epoch.
        assert_eq!(remaining(&server, "api"), 4);
        put_rule(&server, "api", 9);
        assert_eq!(delete("api", "?reset=true"), 204);
        assert_eq!((remaining(&server, "api"), remaining(&server, "api")), (4, 3), "{store}");
        server.signal("HUP");
        wait_for_log(&server, "policy reloaded", |_| true);
        assert_eq!(remaining(&server, "api"), 2, "{store}");
    }
}

#[test]
fn resets_are_logged_with_who_made_them() {
    let server = start("memory");
    assert_eq!(admin(&server, "DELETE", "/v1/keys/api/alice", "").status, 200);
    let line = wait_for_log(&server, "key reset", |line| line["key"] == "alice");
    assert_eq!((&line["by"], &line["target"]), (&json!("admin token, 127.0.0.1"), &json!("api")));
    let client = redis::Client::open(format!("redis://:boss@{}/", server.resp)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let _: i64 = redis::cmd("TG.RESET").arg("api").arg("bob").query(&mut connection).unwrap();
    let line = wait_for_log(&server, "key reset", |line| line["key"] == "bob");
    assert_eq!(line["by"], "admin token, 127.0.0.1");
}
