//! Options, environment variables and the commands about policy files: `init`, `schema`, `diff`.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use testkit::process::{CommandOutput, serve, tidegate};
use testkit::pty::PtyTerminal;
use testkit::redis::RedisServer;
use testkit::server::{ServerProcess, TempFolder, tidegate_path};

const POLICY: &str = "rules: [{ name: login, limits: [fixed-window 2/1d] }]\n";

fn run(arguments: &[&str]) -> CommandOutput {
    tidegate(arguments, &[])
}

/// Runs a command in a folder.
fn run_in(folder: &TempFolder, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(tidegate_path());
    let output = command.args(arguments).current_dir(folder.path("")).output().unwrap();
    CommandOutput::from(&output)
}

#[test]
fn each_option_of_serve_has_a_variable_and_the_option_wins() {
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let policy = policy.to_str().unwrap();
    let variables = [
        ("TIDEGATE_CONFIG", policy),
        ("TIDEGATE_HTTP", "127.0.0.1:0"),
        ("TIDEGATE_RESP", "off"),
        ("TIDEGATE_MAX_WAITING", "7"),
        ("TIDEGATE_NO_TOKEN", "http,resp"),
        ("TIDEGATE_INSECURE", "true"),
        // As good as unset.
        ("TIDEGATE_MEMORY", ""),
    ];
    let started = serve(&[], &variables);
    assert_eq!(started.code, None, "{}", started.stderr);
    let listening = started.stderr.lines().last().unwrap();
    let listening: Value = serde_json::from_str(listening).unwrap();
    assert!(listening["fields"]["http"].is_string(), "{listening}");
    assert!(listening["fields"]["resp"].is_null(), "{listening}");

    let started = serve(&["--resp", "127.0.0.1:0"], &variables);
    assert!(started.stderr.contains(r#""resp":"127.0.0.1:"#), "{}", started.stderr);
    for (name, value, message) in [
        ("TIDEGATE_HTTP", "8080", "expected an IP address and port"),
        ("TIDEGATE_MAX_WAITING", "many", "expected a number from 1 to 100000"),
        ("TIDEGATE_INSECURE", "perhaps", "perhaps"),
    ] {
        let refused = serve(&[], &[(name, value)]);
        assert_eq!(refused.code, Some(2), "{name}: {}", refused.stderr);
        let note = format!("note: the value comes from the environment variable {name}\n");
        assert!(refused.stderr.starts_with(&note), "{name}: {}", refused.stderr);
        assert!(refused.stderr.contains(message), "{name}: {}", refused.stderr);
    }
    let refused = serve(&["--http", "8080"], &[("TIDEGATE_HTTP", "127.0.0.1:0")]);
    assert!(!refused.stderr.contains("environment variable"), "{}", refused.stderr);
}

#[test]
fn client_commands_find_their_server_and_store_in_variables() {
    let redis = RedisServer::start();
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let policy = policy.to_str().unwrap();
    let server = ServerProcess::start(&["-c", policy], &[]);
    let address = server.http.to_string();
    let by_server = ("TIDEGATE_SERVER", &*address);
    let url = redis.url();
    let by_store = [("TIDEGATE_STORE", &*url), ("TIDEGATE_CONFIG", policy)];
    let source = |arguments: &[&str], variables: &[(&str, &str)]| {
        let ran = tidegate(&[&["check", "login", "k", "--json"], arguments].concat(), variables);
        let decision: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        decision["source"].as_str().unwrap_or(&ran.stderr).to_owned()
    };
    assert_eq!(source(&[], &[by_server]), "memory");
    assert_eq!(source(&[], &by_store), "redis");
    assert_eq!(source(&[], &[&by_store[..], &[by_server]].concat()), "memory");
    let memory = ["--store", "memory", "--config", policy];
    assert_eq!(source(&memory, &[("TIDEGATE_SERVER", "127.0.0.1:1")]), "memory");
    assert_eq!(tidegate(&["health", "-q"], &[by_server]).code, Some(0));
    let listed = tidegate(&["override", "list"], &[by_server]);
    assert_eq!(listed.stdout, "no overrides\n", "{}", listed.stderr);
}

#[test]
fn quiet_commands_print_nothing_and_exit_with_the_result() {
    let folder = TempFolder::new();
    let policy = folder.write("policy.yaml", POLICY);
    let server = ServerProcess::start(&["-c", policy.to_str().unwrap()], &[]);
    let address = server.http.to_string();
    for code in [0, 0, 1] {
        let ran = run(&["check", "login", "k", "-q", "--server", &address]);
        assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (Some(code), "", ""));
    }
    let ran = run(&["validate", "--quiet", policy.to_str().unwrap()]);
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (Some(0), "", ""));
    let bad = folder.write("bad.yaml", "rules: 5\n");
    let ran = run(&["validate", "--quiet", bad.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("bad.yaml:1"), "{}", ran.stderr);
}

#[test]
fn an_unknown_rule_is_answered_with_the_one_that_was_meant() {
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let server = ServerProcess::start(&["-c", policy.to_str().unwrap()], &[]);
    let expected = r#"no rule named "logn"; did you mean "login"?"#;
    let response = server.post("/v1/check", &json!({ "rule": "logn", "key": "k" })).json();
    assert_eq!(response["detail"], expected);
    let ran = run(&["check", "logn", "k", "--server", &server.http.to_string()]);
    assert_eq!(ran.stderr, format!("error: the server returned 404: rule: {expected}\n"));
}

#[test]
fn help_lists_the_commands_by_task() {
    let help = run(&["--help"]).stdout;
    let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text} is missing:\n{help}"));
    let order = ["Run a server:", "  serve ", "Check and change keys:", "  check ", "  reset "];
    let order =
        [&order[..], &["Write a policy:", "  init ", "  diff ", "More:", "Options:"]].concat();
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{help}");
}

#[test]
fn a_policy_is_begun_validated_and_never_overwritten() {
    let folder = TempFolder::new();
    let ran = run_in(&folder, &["init"]);
    let expected = "wrote policy.yaml; start a server with: tidegate serve -c policy.yaml\n";
    assert_eq!((ran.code, &*ran.stdout), (Some(0), expected), "{}", ran.stderr);
    let written = fs::read_to_string(folder.path("policy.yaml")).unwrap();
    assert_eq!(run_in(&folder, &["init", "-"]).stdout, written);
    let ran = run_in(&folder, &["validate", "policy.yaml"]);
    assert_eq!(ran.stdout, "policy.yaml: valid, 3 rules\n", "{}", ran.stderr);
    folder.write("policy.yaml", POLICY);
    let ran = run_in(&folder, &["init"]);
    let expected = "error: policy.yaml exists; name another file: tidegate init FILE\n";
    assert_eq!((ran.code, &*ran.stderr), (Some(2), expected));
    assert_eq!(fs::read_to_string(folder.path("policy.yaml")).unwrap(), POLICY);
    let schema: Value = serde_json::from_str(&run(&["schema"]).stdout).unwrap();
    assert!(schema["$defs"]["Rule"]["properties"]["limits"].is_object(), "{schema}");
}

#[test]
fn two_policies_are_compared() {
    let folder = TempFolder::new();
    folder.write("a.yaml", POLICY);
    folder
        .write("b.yaml", "rules: [{ name: login, limits: [fixed-window 3/1d], key: [bearer] }]\n");
    let same = run_in(&folder, &["diff", "a.yaml", "a.yaml"]);
    assert_eq!((same.code, &*same.stdout), (Some(0), "no differences\n"));
    let differ = run_in(&folder, &["diff", "a.yaml", "b.yaml"]);
    let expected = "~ login (every request, for each bearer)\n    \
                    all requests together -> for each bearer: every key starts unused\n    \
                    limit fixed-window 2/d -> fixed-window 3/d: allows more\n";
    assert_eq!((differ.code, &*differ.stdout), (Some(1), expected), "{}", differ.stderr);
    let json: Value =
        serde_json::from_str(&run_in(&folder, &["diff", "a.yaml", "b.yaml", "--json"]).stdout)
            .unwrap();
    assert_eq!(json["changed"][0]["name"], "login");
    let missing = run_in(&folder, &["diff", "a.yaml", "c.yaml"]);
    assert!(missing.code == Some(2) && missing.stderr.contains("c.yaml: cannot be read"));
}

#[test]
fn limits_of_envoy_alone_come_without_the_sample_policy() {
    let folder = TempFolder::new();
    folder.write("edge.yaml", "domain: edge\ndescriptors: []\n");
    let path = folder.path("");
    let server = ServerProcess::start(&["--envoy-config", path.to_str().unwrap()], &[]);
    assert_eq!(server.get("/v1/rules").json()["rules"], json!([]));
}

/// What a server prints on a wide terminal.
fn on_a_terminal(arguments: &[&str], variables: &[(&str, &str)], last: &str) -> String {
    let addresses =
        ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let mut command = Command::new(tidegate_path());
    command.args(addresses).args(arguments).envs(variables.iter().copied());
    let terminal = PtyTerminal::start(command, 250, 40);
    terminal.expect(last, |text| text.contains(last))
}

#[test]
fn on_a_terminal_a_banner_names_policy_listeners_console_store_and_tokens() {
    let folder = TempFolder::new();
    let policy = folder.write("policy.yaml", POLICY);
    let policy = policy.to_str().unwrap();
    let text = on_a_terminal(&["-c", policy], &[], "tokens");
    let version = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
    for line in [
        version,
        "policy.yaml (1 rule)",
        "listeners HTTP 127.0.0.1:",
        ", RESP 127.0.0.1:",
        ", gRPC 127.0.0.1:",
        "console   http://127.0.0.1:",
        "store     memory of this process",
        "checks need none (TIDEGATE_TOKEN is not set)",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let redis = RedisServer::stopped(&[]);
    let text = on_a_terminal(
        &["-c", policy, "--store", &redis.url()],
        &[("TIDEGATE_TOKEN", "a-token-of-32-characters-or-more!")],
        "tokens",
    );
    assert!(text.contains("NOT RESPONDING"), "{text}");
    assert!(text.contains("checks need TIDEGATE_TOKEN"), "{text}");
}

#[test]
fn on_a_terminal_a_warning_of_the_policy_keeps_its_lines_and_its_caret() {
    let text = "rules: [{ name: a, limits: [5/m, 5/m] }]\n";
    let policy = TempFolder::new().write("policy.yaml", text);
    let text = on_a_terminal(&["-c", policy.to_str().unwrap()], &[], "tokens");
    assert!(text.contains("the same limit as limits[0] has no effect"), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let code = lines.iter().position(|line| line.contains("limits: [5/m, 5/m]")).unwrap();
    let (at, caret) = (lines[code].find(", 5/m").unwrap() + 2, lines[code + 1].find('^'));
    assert_eq!(caret, Some(at), "{text}");
    assert!(!text.contains("\\n"), "{text}");
}
