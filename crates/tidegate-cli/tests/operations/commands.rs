//! Completions, manual pages, help and `health`.

use clap::CommandFactory;
use tidegate_cli::Cli;

use crate::{output_text, run_if_there};
use testkit::process::{millis, tidegate};
use testkit::server::{ServerProcess, TempFolder};

const SHELLS: [&str; 5] = ["bash", "zsh", "fish", "elvish", "powershell"];

/// Every command, by its name.
fn commands() -> Vec<String> {
    let command = Cli::command();
    command.get_subcommands().map(|command| command.get_name().to_string()).collect()
}

#[test]
fn completions_contain_every_command_and_its_flags() {
    for shell in SHELLS {
        let ran = tidegate(&["completions", shell], &[]);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{shell}");
        for word in commands().iter().map(String::as_str).chain(["envoy-config", "otlp-sample"]) {
            assert!(ran.stdout.contains(word), "{shell} does not know {word}");
        }
    }
    assert_eq!(tidegate(&["completions", "tcsh"], &[]).code, Some(2));
}

#[test]
fn a_shell_can_parse_its_completions() {
    let folder = TempFolder::new();
    for (shell, flag) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = folder.write(shell, &tidegate(&["completions", shell], &[]).stdout);
        let arguments = [flag, script.to_str().unwrap()];
        if let Some(output) = run_if_there(shell, &arguments, &folder.path("")) {
            assert!(output.status.success(), "{shell}: {}", output_text(&output));
        }
    }
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let folder = TempFolder::new();
    let ran = tidegate(&["man", folder.path("").to_str().unwrap()], &[]);
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (Some(0), "", ""));
    let mut pages = vec!["tidegate.1".to_string()];
    pages.extend(commands().iter().map(|command| format!("tidegate-{command}.1")));
    for page in &pages {
        let text = std::fs::read_to_string(folder.path(page)).expect(page);
        assert!(text.contains(".SH NAME") && text.contains("Examples:"), "{page}");
        let arguments = ["-man", "-Tutf8", "-ww", "-z", page];
        if let Some(output) = run_if_there("groff", &arguments, &folder.path("")) {
            assert_eq!(output_text(&output), "", "{page}");
        }
    }
    let ran = tidegate(&["man"], &[]);
    let first = std::fs::read_to_string(folder.path("tidegate.1")).unwrap();
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("tidegate\\-serve(1)") && first.contains("tidegate\\-serve(1)"));
    let ran = tidegate(&["man", folder.path("missing").to_str().unwrap()], &[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.starts_with("error: cannot write to "), "{}", ran.stderr);
}

#[test]
fn the_help_of_every_command_has_an_example() {
    for command in commands() {
        let ran = tidegate(&[&command, "--help"], &[]);
        let (_, examples) = ran.stdout.split_once("\nExamples:\n").expect(&command);
        let examples = examples.lines().take_while(|line| !line.is_empty());
        let count = examples.filter(|line| line.contains("tidegate")).count();
        assert!((2..=6).contains(&count), "{command} has {count}");
        assert!(ran.stdout.lines().all(|line| line.len() <= 100), "{}", ran.stdout);
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let policy = TempFolder::new().write("policy.yaml", "rules: [{ name: one, limits: [5/s] }]\n");
    let validate = ["validate", policy.to_str().unwrap()];
    for arguments in [&["completions", "bash"][..], &["man"], &validate] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(arguments).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", output_text(&output));
    }
}

#[test]
fn a_server_that_does_not_respond_is_not_healthy() {
    // The kernel accepts connections, and nothing responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let (took, ran) = millis(|| tidegate(&["health", "--server", &address], &[]));
    assert_eq!((ran.code, &*ran.stderr), (Some(1), "not healthy: no response within 3s\n"));
    assert!(took >= 3_000, "{took} ms");
}

#[test]
fn health_exits_with_0_while_the_server_is_ready_and_1_otherwise() {
    let well = ServerProcess::start(&[], &[("TIDEGATE_TOKEN", "not-needed")]);
    let store = ["--store", "redis://127.0.0.1:1"];
    let degraded = ServerProcess::start(&store, &[]);
    let unhealthy = ServerProcess::start(&[&store[..], &["--ready-when", "store"]].concat(), &[]);
    let [well, degraded, unhealthy] =
        [&well, &degraded, &unhealthy].map(|server| format!("http://{}", server.http));
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--server", &well], 0, "healthy: ok\n"),
        (&["--server", &well, "--json"], 0, "{\"healthy\":true,\"status\":\"ok\"}\n"),
        (&["--server", &well, "--live"], 0, "healthy: ok\n"),
        (&["--server", &degraded], 0, "healthy: degraded (store: cannot connect to redis at "),
        (&["--server", &unhealthy], 1, "not healthy: degraded (store: cannot connect to redis at "),
        (&["--server", &unhealthy, "--live"], 0, "healthy: degraded (store: cannot connect to "),
        (&["--server", "http://127.0.0.1:1"], 1, "not healthy: cannot reach 127.0.0.1:1 ("),
        (&["--server", "ftp://127.0.0.1"], 2, "error: invalid server URL"),
        (&["--server", "http://127.0.0.1:99999"], 2, "error: invalid server URL"),
    ];
    for (arguments, code, words) in cases {
        let ran = tidegate(&[&["health"], arguments].concat(), &[]);
        let message = ran.stdout + &ran.stderr;
        assert_eq!(ran.code, Some(code), "{arguments:?}: {message}");
        assert!(message.starts_with(words), "{arguments:?}: {message}");
    }
}
