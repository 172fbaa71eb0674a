//! The policy is reloaded while the server runs, without errors for clients.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use tidegate::{ManualClock, Memory, RuleCheck};
use tidegate_config::RuleFile;
use tidegate_server::internal::check::{CheckService, Operation};
use tidegate_server::internal::observe::metrics::Metrics;
use tidegate_server::internal::policy::{
    Actor, CountsOnDelete, PolicyManager, PolicySource, PutCondition,
};
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::{Exposure, Server, ServerOptions};

use testkit::process::print_figure;
use testkit::server::{RawHttpConnection, ServerProcess, TempFolder, wait_until};

/// A policy with one rule of so many permits per day.
fn policy(limit: u64) -> String {
    format!("rules: [{{ name: api, limits: [fixed-window {limit}/1d] }}]\n")
}

fn start(file: &Path) -> ServerProcess {
    ServerProcess::start(&["--config", file.to_str().unwrap()], &[("TIDEGATE_ADMIN_TOKEN", "boss")])
}

/// Remaining permits of an unused key, which is the whole limit.
fn limit(server: &ServerProcess) -> u64 {
    let response = server.post("/v1/check", &json!({ "rule": "api", "key": "unused", "cost": 0 }));
    response.json()["limit"].as_u64().unwrap_or(0)
}

fn wait_for_limit(server: &ServerProcess, wanted: u64, what: &str) {
    let came = wait_until(|| (limit(server) == wanted).then_some(()));
    assert!(came.is_some(), "{what}: still {} instead of {wanted}", limit(server));
}

#[test]
fn a_file_that_is_replaced_in_any_way_comes_into_force() {
    let rewrite = |folder: &TempFolder, limit: u64| {
        folder.write("policy.yaml", &policy(limit));
    };
    let rename_over = |folder: &TempFolder, limit: u64| {
        let new = folder.write("policy.yaml.new", &policy(limit));
        fs::rename(new, folder.path("policy.yaml")).unwrap();
    };
    let write_anew = |folder: &TempFolder, limit: u64| {
        fs::remove_file(folder.path("policy.yaml")).unwrap();
        folder.write("policy.yaml", &policy(limit));
    };
    // Kubernetes mounts policy.yaml -> ..data/policy.yaml and ..data -> ..version, and swaps
    // ..data.
    let swap_data = |folder: &TempFolder, limit: u64| {
        let version = folder.path(&format!("..{limit}"));
        fs::create_dir(&version).unwrap();
        fs::write(version.join("policy.yaml"), policy(limit)).unwrap();
        let link = folder.path("..data_tmp");
        symlink(&version, &link).unwrap();
        fs::rename(link, folder.path("..data")).unwrap();
        if !folder.path("policy.yaml").exists() {
            symlink("..data/policy.yaml", folder.path("policy.yaml")).unwrap();
        }
    };
    type Write = fn(&TempFolder, u64);
    let ways: [(&str, Write, Write); 4] = [
        ("rewritten in place", rewrite, rewrite),
        ("renamed over", rewrite, rename_over),
        ("removed and written anew", rewrite, write_anew),
        ("the symlink above it swapped", swap_data, swap_data),
    ];
    for (way, write, replace) in ways {
        let folder = TempFolder::new();
        write(&folder, 5);
        let server = start(&folder.path("policy.yaml"));
        assert_eq!(limit(&server), 5, "{way}");
        replace(&folder, 7);
        wait_for_limit(&server, 7, way);
        server.expect_logged("policy reloaded", 1);
        assert_eq!(server.logged("policy reload failed"), 0, "{way}");
    }
}

#[test]
fn included_files_are_watched_as_soon_as_they_are_included() {
    let folder = TempFolder::new();
    folder.write("more.yaml", &policy(5));
    let main = folder.write("policy.yaml", "include: [more.yaml]\n");
    let server = start(&main);
    assert_eq!(limit(&server), 5);
    folder.write("more.yaml", &policy(6));
    wait_for_limit(&server, 6, "the included file changed");
    folder.write("other.yaml", &policy(7));
    folder.write("policy.yaml", "include: [other.yaml]\n");
    wait_for_limit(&server, 7, "another file is included");
    folder.write("other.yaml", &policy(8));
    wait_for_limit(&server, 8, "the newly included file changed");
    fs::remove_file(folder.path("other.yaml")).unwrap();
    server.health_when(|health| health["status"] == "degraded");
    assert_eq!(limit(&server), 8, "the last good policy stays");
    folder.write("other.yaml", &policy(9));
    wait_for_limit(&server, 9, "the included file came back");
    assert_eq!(server.get("/healthz").json()["status"], "ok");
}

#[test]
fn a_hangup_reads_the_policy_again_though_no_file_has_changed() {
    let server = start(&TempFolder::new().write("policy.yaml", &policy(5)));
    for nth in 1..=3 {
        server.signal("HUP");
        server.expect_logged("policy reloaded", nth);
    }
}

#[test]
fn a_bad_policy_is_seen_everywhere_and_changes_nothing() {
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", &policy(5));
    let server = start(&file);
    let loaded_at = server.metric("tidegate_config_reload_success_timestamp_seconds").unwrap();
    assert!(loaded_at > 1e9);
    assert_eq!(server.get("/healthz").json()["policy"]["error"], Value::Null);
    let bad = [
        ("rules: [{ name: api, limits: [5/parsec] }]", "policy.yaml:1:33: unknown unit"),
        ("rules: [", "invalid YAML"),
        ("rules: [{ name: api, limits: [5/s] }, { name: api, limits: [5/s] }]", "duplicate rule"),
        ("rules: [{ name: api, limits: [\"${TIDEGATE_NOT_SET}/s\"] }]", "TIDEGATE_NOT_SET"),
    ];
    for (nth, (text, message)) in bad.iter().enumerate() {
        folder.write("policy.yaml", text);
        let says_so = |health: &Value| {
            health["policy"]["error"].as_str().is_some_and(|error| error.contains(message))
        };
        let health = server.health_when(says_so);
        assert_eq!(health["status"], "degraded");
        assert_eq!(health["policy"]["rules"], 1, "those in force");
        assert_eq!(limit(&server), 5, "the last good policy stays");
        assert_eq!(server.get("/readyz").status, 200, "it responds, so it is ready");
        assert_eq!(server.metric("tidegate_config_valid"), Some(0.0));
        assert_eq!(server.metric("tidegate_config_reload_failures_total"), Some(nth as f64 + 1.0));
        let since = server.metric("tidegate_config_reload_success_timestamp_seconds");
        assert_eq!(since, Some(loaded_at), "the policy in force is as old as before");
        server.expect_logged("policy reload failed", nth + 1);
    }
    folder.write("policy.yaml", &policy(6));
    let health = server.health_when(|health| health["status"] == "ok");
    assert_eq!(health["policy"]["error"], Value::Null);
    assert_eq!(limit(&server), 6);
    assert_eq!(server.metric("tidegate_config_valid"), Some(1.0));
    assert_eq!(server.metric("tidegate_config_reload_failures_total"), Some(bad.len() as f64));
    let since = server.metric("tidegate_config_reload_success_timestamp_seconds").unwrap();
    assert!(since > loaded_at);
}

#[test]
fn what_stays_until_a_restart_is_warned_about_as_long_as_it_differs() {
    const WARNING: &str = "changed settings need a restart: ";
    let folder = TempFolder::new();
    let write = |settings: &str| folder.write("policy.yaml", &format!("{settings}{}", policy(5)));
    let server = start(&write("namespace: tg\nsecret: hush-hush-1\n"));
    let steps = [
        ("namespace: other\nsecret: hush-hush-1\n", 1),
        ("namespace: tg\nsecret: hush-hush-2\n", 2),
        ("namespace: tg\nsecret: hush-hush-1\nstore: redis://u:hush-hush-3@127.0.0.1:1\n", 3),
        ("namespace: tg\nsecret: hush-hush-1\n", 3),
    ];
    for (nth, (settings, warnings)) in steps.into_iter().enumerate() {
        write(settings);
        server.expect_logged("policy reloaded", nth + 1);
        assert_eq!(server.logged(WARNING), warnings, "{settings}");
    }
    assert!(!server.log().concat().contains("hush-hush"), "{:?}", server.log());
}

#[test]
fn rules_set_while_running_survive_reloads_until_they_are_deleted() {
    let folder = TempFolder::new();
    let server = start(&folder.write("policy.yaml", &policy(5)));
    let boss = [("authorization", "Bearer boss"), ("content-type", "application/json")];
    let put = |name: &str, limit: &str| {
        let body = json!({ "limits": [limit] }).to_string();
        server.request("PUT", &format!("/v1/rules/{name}"), &boss, &body).status
    };
    let rules = || -> Vec<(String, String, String)> {
        let body = server.get("/v1/rules").json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let rule = |r: &Value| (text(&r["name"]), text(&r["limits"][0]), text(&r["origin"]));
        body["rules"].as_array().unwrap().iter().map(rule).collect()
    };
    let expect = |wanted: &[(&str, &str, &str)]| {
        let same = || {
            let rules = rules();
            let rules: Vec<_> = rules.iter().map(|(n, l, o)| (&**n, &**l, &**o)).collect();
            (rules == wanted).then_some(())
        };
        assert!(wait_until(same).is_some(), "{:?} instead of {wanted:?}", rules());
    };
    assert_eq!(put("zebra", "1/s"), 201);
    assert_eq!(put("api", "fixed-window 50/d"), 200);
    assert_eq!(put("ant", "2/s"), 201);
    let set = [("zebra", "1/s", "runtime"), ("ant", "2/s", "runtime")];
    expect(&[("api", "fixed-window 50/d", "runtime"), set[1], set[0]]);

    let second = "rules:\n  - { name: first, limits: [3/s] }\n  - { name: api, limits: [9/s] }\n";
    folder.write("policy.yaml", second);
    let first = ("first", "3/s", "file");
    expect(&[first, ("api", "fixed-window 50/d", "runtime"), set[1], set[0]]);
    folder.write("policy.yaml", "rules: [");
    server.health_when(|health| health["status"] == "degraded");
    expect(&[first, ("api", "fixed-window 50/d", "runtime"), set[1], set[0]]);

    let delete =
        |name: &str| server.request("DELETE", &format!("/v1/rules/{name}"), &boss, "").status;
    assert_eq!(delete("api"), 204);
    expect(&[first, ("api", "9/s", "file"), set[1], set[0]]);
    assert_eq!((delete("api"), delete("missing"), delete("zebra")), (409, 404, 204));
    let once = [boss[0], boss[1], ("if-none-match", "*")];
    let body = json!({ "limits": ["4/s"] }).to_string();
    for (name, status) in [("ant", 412), ("first", 412), ("new", 201)] {
        let response = server.request("PUT", &format!("/v1/rules/{name}"), &once, &body);
        assert_eq!(response.status, status, "{name}");
    }
    expect(&[first, ("api", "9/s", "file"), set[1], ("new", "4/s", "runtime")]);
}

const BY: Actor = Actor { token: None, address: None };

/// A service in this process that reads its policy from a file.
struct Reloaded {
    folder: TempFolder,
    service: Arc<CheckService>,
    policies: PolicyManager,
}

impl Reloaded {
    fn new(policy: &str) -> Self {
        let folder = TempFolder::new();
        let source = PolicySource::File(folder.write("policy.yaml", policy));
        let (loaded, seen) = source.load();
        let loaded = loaded.unwrap();
        let metrics = Arc::new(Metrics::default());
        let active = PolicyManager::active(&loaded, &metrics).unwrap();
        let engine = Memory::builder().clock(ManualClock::default()).build();
        let service = Arc::new(CheckService::new(Arc::new(engine), active, metrics));
        let policies = PolicyManager::new(service.clone(), source, loaded, seen);
        Self { folder, service, policies }
    }

    async fn check(&self, verb: Operation) -> (bool, u64) {
        let response = self.service.run(verb, &[RuleCheck::new("api", "k")], None).await.unwrap();
        (response.decision.allowed(), response.decision.remaining())
    }
}

#[tokio::test]
async fn what_was_used_is_kept_through_ten_thousand_changes_of_the_limit() {
    const CHANGES: u64 = 10_000;
    let mut limit = 10;
    let reloaded = Reloaded::new(&policy(limit));
    // The clock is stopped, so that only a larger limit adds permits.
    let (mut used, mut admitted, mut granted) = (0, 0, limit);
    let mut random = 1_u64;
    for nth in 1..=CHANGES {
        for _ in 0..2 {
            let (allowed, _) = reloaded.check(Operation::Check).await;
            assert_eq!(allowed, used < limit, "{used} of {limit} used");
            used += u64::from(allowed);
            admitted += u64::from(allowed);
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let new = 1 + (random >> 33) % 30;
        granted += new.saturating_sub(limit);
        (limit, used) = (new, used.min(new));
        // Most changes by an API call, which is faster; every tenth by the file.
        if nth % 10 == 0 {
            reloaded.folder.write("policy.yaml", &policy(limit));
            reloaded.policies.reload().unwrap();
            reloaded
                .policies
                .delete("api", CountsOnDelete::Keep, PutCondition::Any, &BY)
                .await
                .unwrap();
        } else {
            let rule = json!({ "name": "api", "limits": [format!("fixed-window {limit}/1d")] });
            let rule = RuleFile::from_json(rule.to_string()).unwrap();
            reloaded.policies.put(&rule, PutCondition::Any, &BY).await.unwrap();
        }
        assert_eq!(reloaded.check(Operation::Peek).await.1, limit - used);
    }
    assert!(admitted <= granted);
    print_figure(format_args!(
        "reload: {CHANGES} changes of one limit, {admitted} admitted, at most {granted} by the changes"
    ));
}

/// Two policies that differ in both rules.
const MARKS: [(u64, u64); 2] = [(1_000_001, 2_000_001), (1_000_002, 2_000_002)];

fn marked((x, y): (u64, u64)) -> String {
    format!(
        "rules:\n  - {{ name: x, limits: [fixed-window {x}/1d] }}\n  \
         - {{ name: y, limits: [fixed-window {y}/1d] }}\n"
    )
}

/// Results of the clients.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    decisions: AtomicU64,
    dropped: AtomicU64,
    mixed: AtomicU64,
}

impl Tally {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Records the limits of each checked rule.
    fn note(&self, limits: Option<&[u64]>) {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let Some(limits) = limits else {
            count(&self.dropped);
            return;
        };
        count(&self.decisions);
        let is_one = |(x, y): (u64, u64)| match limits {
            [both_x, both_y] => (*both_x, *both_y) == (x, y),
            [one] => *one == x || *one == y,
            _ => false,
        };
        if !MARKS.into_iter().any(is_one) {
            count(&self.mixed);
        }
    }

    /// Checks over HTTP, both rules at once or one alone.
    fn check_http(&self, address: std::net::SocketAddr) {
        let check = |rule: &str| json!({ "rule": rule, "key": "k" });
        let bodies = [
            json!({ "checks": [check("x"), check("y")] }),
            json!({ "checks": [check("x")] }),
            json!({ "checks": [check("y")] }),
        ];
        let mut http = RawHttpConnection::connect(address);
        for body in bodies.iter().cycle().take_while(|_| self.goes_on()) {
            http.send("POST", "/v1/check", &[], &body.to_string());
            let response = http.try_receive().filter(|response| response.status == 200);
            let limits = response.map(|response| limits_of(&response.json()));
            self.note(limits.as_deref());
        }
    }

    /// Checks over RESP, both rules at once.
    fn check_resp(&self, address: std::net::SocketAddr) {
        let client = redis::Client::open(format!("redis://{address}/")).unwrap();
        let mut connection = client.get_connection().unwrap();
        type Eight = (u8, u64, u64, i64, u64, u64, String, String);
        let mut command = redis::cmd("TG.MCHECK");
        command.arg(2).arg("x").arg("k").arg(1).arg("y").arg("k").arg(1);
        while self.goes_on() {
            let response: redis::RedisResult<Vec<redis::Value>> = command.query(&mut connection);
            let each = response
                .ok()
                .and_then(|mut nine| redis::from_owned_redis_value::<Vec<Eight>>(nine.pop()?).ok());
            let limits: Option<Vec<u64>> =
                each.map(|each| each.into_iter().map(|eight| eight.1).collect());
            self.note(limits.as_deref());
        }
    }
}

fn limits_of(decision: &Value) -> Vec<u64> {
    let rules = decision["rules"].as_array().into_iter().flatten();
    rules.filter_map(|rule| rule["limit"].as_u64()).collect()
}

#[test]
fn a_thousand_reloads_under_load_drop_no_request_and_mix_no_policies() {
    const RELOADS: usize = 1_000;
    let folder = TempFolder::new();
    let options = ServerOptions {
        source: PolicySource::File(folder.write("policy.yaml", &marked(MARKS[0]))),
        store: None,
        http: "127.0.0.1:0".parse().ok(),
        http_routes: Default::default(),
        resp: "127.0.0.1:0".parse().ok(),
        grpc: "127.0.0.1:0".parse().ok(),
        health: None,
        metrics: None,
        envoy: Default::default(),
        listeners: Default::default(),
        tokens: AuthTokens::default(),
        without_token: Vec::new(),
        exposure: Exposure::Guarded,
        traces: None,
        console_hosts: Vec::new(),
        memory: None,
        runtime_file: None,
        ready_when: Default::default(),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::bind(options)).unwrap();
    let (http, resp) = (server.http_address().unwrap(), server.resp_address().unwrap());
    let policies = server.policies().clone();
    let metrics = server.service().metrics().clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = runtime.spawn(server.run(async { drop(stopped.await) }));

    let replace = |text: &str| {
        let new = folder.write("policy.yaml.new", text);
        fs::rename(new, folder.path("policy.yaml")).unwrap();
    };
    let tally = Tally::default();
    let (mut invalid, mut not_in_force) = (0, 0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| tally.check_http(http));
            scope.spawn(|| tally.check_resp(resp));
        }
        let mut probe = RawHttpConnection::connect(http);
        let peek = |rule: &str| json!({ "rule": rule, "key": "k", "cost": 0 });
        let peek = json!({ "checks": [peek("x"), peek("y")] }).to_string();
        let mut good = MARKS[0];
        for nth in 1..=RELOADS {
            let next = MARKS[nth % 2];
            if nth % 10 == 0 {
                invalid += 1;
                replace(&marked(next).replace("1d", "1parsec"));
                policies.reload().unwrap_err();
                assert!(policies.status().error.is_some());
            } else {
                good = next;
                replace(&marked(good));
                policies.reload().unwrap();
                assert_eq!(policies.status().error, None);
            }
            probe.send("POST", "/v1/check", &[], &peek);
            let limits = limits_of(&probe.receive().json());
            not_in_force += u64::from(limits != [good.0, good.1]);
        }
        tally.stop.store(true, Ordering::Relaxed);
    });
    drop(stop);
    runtime.block_on(running).unwrap();
    let [decisions, dropped, mixed] =
        [&tally.decisions, &tally.dropped, &tally.mixed].map(|count| count.load(Ordering::Relaxed));
    print_figure(format_args!(
        "reload under load: {RELOADS} reloads, of which {invalid} invalid; {decisions} decisions, \
         {dropped} dropped, {mixed} mixed, {not_in_force} not by the last good policy"
    ));
    assert_eq!((dropped, mixed, not_in_force), (0, 0, 0));
    assert!(decisions > RELOADS as u64, "there was no load: {decisions} decisions");
    let text = metrics.render(&tidegate::Health::up(None, 0));
    assert!(text.contains("tidegate_config_valid 0\n"), "the last one was invalid");
}
