//! Output and exit codes of the command line.

use serde_json::{Value, json};

use testkit::process::{CommandOutput, tidegate};
use testkit::redis::RedisServer;
use testkit::server::{ServerProcess, TempFolder};

const POLICY: &str = r#"namespace: shared
store_deadline: 5s
rules:
  - { name: login, limits: ["fixed-window 3/1d", "fixed-window 100/1month"] }
  - { name: list, limits: ["5/s"], deny: [mallory], allow: [alice] }
  - { name: slots, limits: ["concurrency 2"] }
"#;

fn run(arguments: &[&str]) -> CommandOutput {
    tidegate(arguments, &[])
}

/// `check` against a server.
fn check(server: &ServerProcess, arguments: &[&str]) -> CommandOutput {
    let address = format!("http://{}", server.http);
    run(&[&["check", "--server", &address], arguments].concat())
}

#[test]
fn a_good_policy_is_called_good() {
    let folder = TempFolder::new();
    folder.write("more.yaml", "rules: [{ name: more, limits: [5/s] }]\n");
    let one = folder.write("one.yaml", "include: [more.yaml]\n");
    let sample = folder.write("sample.yaml", tidegate_server::internal::policy::SAMPLE);
    let (one, sample) = (one.to_str().unwrap(), sample.to_str().unwrap());
    let ran = run(&["validate", one, sample]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stdout, format!("{one}: valid, 1 rule\n{sample}: valid, 3 rules\n"));
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_faulty_policy_is_reported_with_a_caret() {
    let folder = TempFolder::new();
    let good = folder.write("good.yaml", POLICY);
    let bad = folder.write("bad.yaml", "rules:\n  - name: api\n    limits: [5/parsec]\n");
    let store = "store: redis://h:0\nrules: [{ name: a, limits: [1/s] }]\n";
    let store = folder.write("store.yaml", store);
    let [good, bad, store] = [&good, &bad, &store].map(|path| path.to_str().unwrap());
    let missing = folder.path("missing.yaml").to_str().unwrap().to_string();
    let ran = run(&["validate", bad]);
    let text = format!(
        "{bad}:3:16: unknown unit \"parsec\"; use us, ms, s, min, h, d, w or month\n      \
         limits: [5/parsec]\n                 ^^^^^^\n"
    );
    assert_eq!((ran.code, ran.stderr, ran.stdout), (Some(1), text.clone(), String::new()));

    let ran = run(&["validate", "--json", good, bad]);
    let objects: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((ran.code, &*ran.stderr, objects.len()), (Some(1), "", 2));
    assert_eq!((&objects[0]["good"], &objects[0]["rules"]), (&json!(true), &json!(3)));
    assert_eq!(objects[0]["warnings"].as_array().unwrap().len(), 1, "{}", objects[0]);
    let problem = json!({
        "file": bad, "line": 3, "column": 16, "field": "rules[0].limits[0]",
        "message": "unknown unit \"parsec\"; use us, ms, s, min, h, d, w or month",
    });
    let expected = json!({ "file": bad, "good": false, "count": 1, "problems": [problem] });
    assert_eq!(objects[1], expected);

    let ran = run(&["validate", good, bad, &missing, store]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.starts_with(&format!("{good}: valid, 3 rules")), "{}", ran.stdout);
    assert!(ran.stderr.contains(&text), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("{missing}: cannot be read")), "{}", ran.stderr);
    assert!(
        ran.stderr.contains(&format!("{store}:1:8: not a redis url: a port")),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("warning: rule \"slots\""), "{}", ran.stderr);
    assert_eq!(run(&["validate"]).code, Some(2), "no file is no fault of a file");
}

#[test]
fn validate_reads_a_folder_as_envoys_limits() {
    let folder = TempFolder::new();
    let limits = "domain: edge\ndescriptors:\n  - key: remote_address\n    rate_limit: { unit: minute, requests_per_unit: 3 }\n";
    let one = folder.write("one.yaml", limits);
    let path = one.parent().unwrap().to_str().unwrap();
    let ran = run(&["validate", path]);
    let good = format!("{path}: valid, 1 domain, 1 limited descriptor\n");
    assert_eq!((ran.code, ran.stdout), (Some(0), good));

    let other = limits.replace("remote_address", "path");
    folder.write("two.yaml", &other);
    let ran = run(&["validate", path]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("two.yaml:1:9: "), "{}", ran.stderr);
    assert_eq!(run(&["validate", "--envoy-merge", path]).code, Some(0));

    folder.write("one.yaml", &limits.replace("minute", "parsec"));
    let ran = run(&["validate", "--envoy-merge", path]);
    assert!(ran.stderr.contains("one.yaml:4:25: "), "{}", ran.stderr);
}

#[test]
fn the_exit_code_of_a_check_is_its_decision() {
    let server = ServerProcess::with_policy(POLICY);
    let cases: [(&[&str], i32, &str); 16] = [
        (&["login", "k"], 0, "allowed by login, 2 of 3 remaining (memory)"),
        (&["login", "k", "--cost", "2"], 0, "allowed by login, 0 of 3 remaining (memory)"),
        (&["login", "k"], 1, "denied by login, 0 of 3 remaining, retry after "),
        (&["login", "k", "--peek"], 0, "allowed by login, 0 of 3 remaining (memory)"),
        (&["login", "k", "--cost", "0"], 0, "allowed by login, 0 of 3 remaining (memory)"),
        (&["login", "k2", "--cost", "4"], 1, "denied by login, 3 of 3 remaining, never (memory)"),
        (&["login", "k", "--wait", "10ms"], 1, "denied by login, "),
        (&["--limit", "1/100ms", "k"], 0, "allowed by adhoc, 0 of 1 remaining (memory)"),
        (
            &["--limit", "1/100ms", "k", "--wait", "5s"],
            0,
            "allowed by adhoc, 0 of 1 remaining (memory)",
        ),
        (&["list", "mallory"], 1, "denied by list, 0 of 5 remaining, never (policy)"),
        (&["list", "alice"], 0, "allowed by no limit (policy)"),
        (&["list", "--", "--cost"], 0, "allowed by list, 4 of 5 remaining (memory)"),
        (&["--limit", "5/s", "--", "-k"], 0, "allowed by adhoc, 4 of 5 remaining (memory)"),
        (&["list", ""], 0, "allowed by list, 4 of 5 remaining (memory)"),
        (&["list", "k y\n✓"], 0, "allowed by list, 4 of 5 remaining (memory)"),
        (&["--limit", "0/s", "k"], 1, "denied by adhoc, 0 of 0 remaining, never (memory)"),
    ];
    for (arguments, code, words) in cases {
        let ran = check(&server, arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.starts_with(words), "{arguments:?}: {}", ran.stdout);
        assert_eq!((ran.stdout.lines().count(), &*ran.stderr), (1, ""), "{arguments:?}");
    }
}

#[test]
fn with_json_the_decision_is_one_object_on_one_line() {
    let server = ServerProcess::with_policy(POLICY);
    for (left, allowed, code) in [(2, true, 0), (1, true, 0), (0, true, 0), (0, false, 1)] {
        let ran = check(&server, &["login", "k", "--json"]);
        assert_eq!((ran.code, ran.stdout.lines().count()), (Some(code), 1), "{}", ran.stdout);
        let decision: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(decision["allowed"], allowed);
        assert_eq!((&decision["remaining"], &decision["rule"]), (&left.into(), &"login".into()));
        let policies: Vec<&Value> =
            decision["rules"].as_array().unwrap().iter().map(|rule| &rule["policy"]).collect();
        assert_eq!(policies, ["login.1", "login.2"]);
    }
}

#[test]
fn without_a_decision_the_exit_code_is_2_with_a_reason() {
    let server = ServerProcess::with_policy(POLICY);
    let address = format!("http://{}", server.http);
    let resp = format!("http://{}", server.resp);
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let policy = policy.to_str().unwrap();
    let cases: [(&[&str], &str); 22] = [
        (&["missing", "k", "--server", &address], "error: the server returned 404: rule: no rule"),
        (
            &["slots", "k", "--server", &address],
            "error: the server returned 400: rule: concurrency",
        ),
        (&["--limit", "5/parsec", "k", "--server", &address], "unknown unit"),
        (&["login", "k", "--wait", "2min", "--server", &address], "wait_ms: too long"),
        (&["login", "k", "--wait", "1month", "--server", &address], "a month has no fixed length"),
        (&["login", "k", "--cost", "5000000000", "--server", &address], "cost"),
        (&["login", "--server", &address], "give the key too, for example login 1.2.3.4"),
        (&["login", "k", "--limit", "5/s"], "with --limit give only the key"),
        (&["login", "k", "extra"], "unexpected"),
        (&["login", "k", "--server", "http://127.0.0.1:1"], "cannot reach 127.0.0.1:1 (Connection"),
        (&["login", "k", "--server", &resp], "error: "),
        (&["login", "k", "--server", "ftp://h"], "expected one like http://127.0.0.1:8080"),
        (&["login", "k", "--server", "127.0.0.1:1"], "cannot reach 127.0.0.1:1 (Connection"),
        (&["login", "k", "--server", "http://h/path"], "expected one like http://127.0.0.1:8080"),
        (&["login", "k", "--server", &address, "--store", "memory"], "cannot be used with"),
        (&["login", "k", "--config", policy], "--store"),
        (&["login", "k", "--store", "memory"], "needs --config to look up a rule"),
        (&["missing", "k", "--store", "memory", "--config", policy], "no rule named \"missing\""),
        (
            &["login", "k", "--store", "redis://127.0.0.1:1", "--config", policy],
            "cannot connect to redis",
        ),
        (&["login", "k", "--store", "tape"], "unknown store; use memory, redis://"),
        (&["login", "k", "--peek", "--wait", "1s"], "cannot be used with"),
        (&["login", "k", "--cost", "-1"], "expected a whole number from 0 to 4294967296"),
    ];
    for (arguments, message) in cases {
        let ran = run(&[&["check"], arguments].concat());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(message), "{arguments:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
    let missing = run(&["check", "login", "k", "--store", "memory", "--config", "missing.yaml"]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("missing.yaml: cannot be read"), "{}", missing.stderr);
}

#[test]
fn a_store_is_called_directly_and_shares_counts_with_a_server_on_it() {
    let redis = RedisServer::start();
    let url = redis.url();
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let policy = policy.to_str().unwrap();
    let server = ServerProcess::start(&["--config", policy, "--store", &url], &[]);
    let by_server = |arguments: &[&str]| check(&server, arguments);
    let by_store = |arguments: &[&str]| run(&[&["check", "--store", &url], arguments].concat());

    let rule: &[&str] = &["login", "k"];
    let with_policy = [&["--config", policy], rule].concat();
    let says = |ran: CommandOutput, code: i32, words: &str| {
        assert_eq!(ran.code, Some(code), "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.starts_with(words), "{words}: {}", ran.stdout);
    };
    says(by_store(&with_policy), 0, "allowed by login, 2 of 3 remaining (redis)");
    says(by_server(rule), 0, "allowed by login, 1 of 3 remaining (redis)");
    says(by_store(&with_policy), 0, "allowed by login, 0 of 3 remaining (redis)");
    says(by_server(rule), 1, "denied by login, 0 of 3 remaining, retry after ");
    says(by_store(&with_policy), 1, "denied by login, 0 of 3 remaining, retry after ");
    says(
        by_store(&[&with_policy[..], &["--peek"]].concat()),
        0,
        "allowed by login, 0 of 3 remaining",
    );

    // Without the policy the namespace is unknown, so this is another count.
    let limit: &[&str] = &["--limit", "fixed-window 2/1d", "k"];
    says(by_store(limit), 0, "allowed by adhoc, 1 of 2 remaining (redis)");
    says(by_server(limit), 0, "allowed by adhoc, 1 of 2 remaining (redis)");
    let limit_with_policy = [&["--config", policy], limit].concat();
    says(by_store(&limit_with_policy), 0, "allowed by adhoc, 0 of 2 remaining (redis)");
    says(by_server(limit), 1, "denied by adhoc");
    says(by_store(limit), 0, "allowed by adhoc, 0 of 2 remaining (redis)");
    let wait: &[&str] = &["--limit", "1/200ms", "w", "--wait", "5s"];
    says(by_store(wait), 0, "allowed by adhoc, 0 of 1 remaining (redis)");
    says(by_store(wait), 0, "allowed by adhoc, 0 of 1 remaining (redis)");

    // Memory belongs to one process and ends with it.
    for _ in 0..2 {
        let ran = run(&["check", "--store", "memory", "--limit", "1/h", "k"]);
        says(ran, 0, "allowed by adhoc, 0 of 1 remaining (memory)");
    }
}

#[test]
fn a_key_is_inspected_explained_and_reset_through_a_server_or_on_the_store_itself() {
    let redis = RedisServer::start();
    let url = redis.url();
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let policy = policy.to_str().unwrap();
    let admin = [("TIDEGATE_ADMIN_TOKEN", "change")];
    let server = ServerProcess::start(&["--config", policy, "--store", &url], &admin);
    let address = format!("http://{}", server.http);
    let by_server = ["--server", &*address];
    let by_store = ["--store", &*url, "--config", policy];
    let key = "k &=%/?#\u{e9}";
    let output_of = |verb: &str, target: &[&str], more: &[&str]| {
        let ran = tidegate(&[&[verb, "login", key], target, more].concat(), &admin);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{verb} {target:?}: {}", ran.stdout);
        ran.stdout
    };
    for target in [&by_server[..], &by_store[..]] {
        let output = output_of("inspect", target, &[]);
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(
            lines[0],
            "login.1 (fixed-window 3/d): 0 used, 3 of 3 remaining, unused (redis)"
        );
        assert!(lines[1].starts_with("login.2 (fixed-window 100/month): 0 used"), "{output}");

        for _ in 0..3 {
            output_of("check", target, &[]);
        }
        let output = output_of("inspect", target, &[]);
        let used = "login.1 (fixed-window 3/d): 3 used, 0 of 3 remaining, reset after ";
        assert!(output.starts_with(used), "{output}");
        let json: Value = serde_json::from_str(&output_of("inspect", target, &["--json"])).unwrap();
        assert_eq!(
            (&json["limits"][0]["used"], &json["limits"][1]["used"]),
            (&3.into(), &3.into())
        );

        let output = output_of("explain", target, &[]);
        assert!(output.starts_with("login.1 (fixed-window 3/d): 0 of 3 remaining"), "{output}");
        assert!(output.contains("A request would be denied by login.1; retry after "), "{output}");
        let json: Value = serde_json::from_str(&output_of("explain", target, &["--json"])).unwrap();
        assert_eq!(json["allowed"], false);

        let output = output_of("reset", target, &[]);
        assert!(output.starts_with("reset: allowed by login, 3 of 3 remaining"), "{output}");
        assert!(output_of("explain", target, &[]).ends_with("A request would be allowed now.\n"));
    }
    for verb in ["inspect", "reset"] {
        let ran = run(&[verb, "--limit", "5/s", "k", "--store", "memory"]);
        assert_eq!((ran.code, &*ran.stdout), (Some(2), ""));
        assert!(ran.stderr.contains("belongs to one process"), "{}", ran.stderr);
    }
    let alice = run(&["explain", "list", "alice", "--server", &address]);
    assert!(
        alice.stdout.ends_with("\nNo limit applies: every request is allowed.\n"),
        "{}",
        alice.stdout
    );
    for target in [&by_server[..], &by_store[..]] {
        let request =
            ["explain", "--path", "/any?q=1", "--method", "PUT", "--header", "a: b", "--host", "h"];
        let ran = run(&[&request, target].concat());
        let first = ran.stdout.lines().next();
        // The concurrency limit is left out.
        let applies = "3 of 3 rules apply: login for all requests together, list for all requests \
                       together, slots for all requests together.";
        assert_eq!((ran.code, first), (Some(0), Some(applies)), "{target:?}: {}", ran.stderr);
    }
    for wrong in [&["--path", "any"][..], &["--path", "/", "login", "k"], &["--method", "PUT"], &[]]
    {
        let ran = run(&[&["explain", "--server", &address], wrong].concat());
        assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{wrong:?}: {}", ran.stderr);
    }

    let refused = run(&["reset", "login", "k", "--server", &address]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("TIDEGATE_ADMIN_TOKEN"), "{}", refused.stderr);
    for verb in ["inspect", "reset", "explain"] {
        let ran = tidegate(&[verb, "missing", "k", "--server", &address], &admin);
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        assert!(ran.stderr.contains("returned 404: "), "{}", ran.stderr);
    }
}

#[test]
fn tokens_come_from_the_environment() {
    let server = ServerProcess::start(&[], &[("TIDEGATE_TOKEN", "open")]);
    let address = format!("http://{}", server.http);
    let check = |variables: &[(&str, &str)]| {
        tidegate(&["check", "login", "k", "--server", &address], variables)
    };
    assert_eq!(check(&[("TIDEGATE_TOKEN", "open")]).code, Some(0));
    for variables in [&[][..], &[("TIDEGATE_TOKEN", "shut")]] {
        let ran = check(variables);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains("the server returned 401"), "{}", ran.stderr);
    }
}

#[test]
fn help_fits_a_page_and_names_everything() {
    let cases: [(&[&str], &[&str]); 5] = [
        (
            &["--help"],
            &[
                "serve",
                "check",
                "inspect",
                "reset",
                "explain",
                "validate",
                "Usage: tidegate <COMMAND>",
            ],
        ),
        (
            &["serve", "--help"],
            &[
                "--config <FILE>",
                "--store <URL>",
                "[default: 127.0.0.1:8080]",
                "--insecure",
                "TIDEGATE_TOKEN",
            ],
        ),
        (
            &["check", "--help"],
            &[
                "(RULE | --limit LIMIT) KEY",
                "--limit <LIMIT>",
                "--cost <N>",
                "--peek",
                "--wait <SPAN>",
                "--json",
                "--server <URL>",
                "--store <URL>",
                "--config <FILE>",
            ],
        ),
        (&["explain", "--help"], &["Usage: tidegate explain [OPTIONS] (RULE | --limit LIMIT) KEY"]),
        (&["validate", "--help"], &["Usage: tidegate validate [OPTIONS] <FILE>..."]),
    ];
    for (arguments, wanted) in cases {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}");
        for word in wanted {
            assert!(ran.stdout.contains(word), "{arguments:?} lacks {word:?}:\n{}", ran.stdout);
        }
        assert!(ran.stdout.lines().all(|line| line.len() <= 100), "{}", ran.stdout);
        assert!(ran.stdout.lines().count() <= 75, "{}", ran.stdout);
    }
    assert_eq!(run(&["--version"]).stdout, format!("tidegate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn what_it_does_not_know_ends_with_2() {
    let cases: [&[&str]; 6] = [
        &[],
        &["nonsense"],
        &["--nonsense"],
        &["serve", "--nonsense"],
        &["check", "login", "k", "--nonsense"],
        &["validate", "--nonsense"],
    ];
    for arguments in cases {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}");
        assert!(ran.stderr.contains("Usage: tidegate"), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn a_closed_output_is_no_panic() {
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let script = format!(
        "exec {} validate {} >/dev/full",
        env!("CARGO_BIN_EXE_tidegate"),
        policy.to_str().unwrap()
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let ran = CommandOutput::from(&output);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: ") && !ran.stderr.contains("panicked"), "{}", ran.stderr);
}
