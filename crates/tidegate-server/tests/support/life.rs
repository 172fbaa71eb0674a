//! What tests of the server's life need beside a server: commands, a Redis, figures.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tidegate::{Clock, SystemClock};

use super::support::{Server, wait_until};

#[path = "../../../tidegate-redis/tests/support/server.rs"]
pub(crate) mod redis_server;

/// Runs `tidegate` to its end.
pub(crate) fn tidegate(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let output = command(arguments, variables).output().expect("tidegate runs");
    Ran::from(&output)
}

/// What a command that has ended left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<&Output> for Ran {
    fn from(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code();
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

/// Runs `tidegate serve` until it listens or has ended: then its code, or `None` if it listened.
pub(crate) fn serve(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut child = command(&[&["serve", "--grpc", "127.0.0.1:0"], arguments].concat(), variables)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tidegate runs");
    let mut stderr = String::new();
    let lines = BufReader::new(child.stderr.take().expect("standard error is piped")).lines();
    let mut listens = false;
    for line in lines.map_while(Result::ok) {
        listens = line.contains(r#""message":"listening""#);
        stderr += &(line + "\n");
        if listens {
            break;
        }
    }
    if listens {
        child.kill().expect("it can be killed");
    }
    let status = child.wait().expect("it ends");
    Ran { code: status.code().filter(|_| !listens), stdout: String::new(), stderr }
}

fn command(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).envs(variables.iter().copied());
    command.stdin(Stdio::null());
    command
}

/// Prints a figure past the capture of test output.
pub(crate) fn print_figure(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// How many milliseconds something takes.
pub(crate) fn millis<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = SystemClock.elapsed();
    let done = work();
    (SystemClock.elapsed().saturating_sub(before).get() / 1_000, done)
}

impl Server {
    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok())
    }

    /// What `/healthz` says once it says what is wanted.
    pub(crate) fn health_when(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let health = wait_until(|| Some(self.get("/healthz").json()).filter(|json| wanted(json)));
        health.unwrap_or_else(|| panic!("never so: {}", self.get("/healthz").body))
    }

    /// Messages of the log lines so far.
    pub(crate) fn messages(&self) -> Vec<String> {
        let message = |line: &String| {
            let line: Value = serde_json::from_str(line).ok()?;
            Some(line["fields"]["message"].as_str()?.to_string())
        };
        self.log().iter().filter_map(message).collect()
    }

    /// Waits until this has been logged so often: the log comes through a pipe, behind the deed.
    pub(crate) fn expect_logged(&self, message: &str, times: usize) {
        let logged = wait_until(|| (self.logged(message) >= times).then_some(()));
        assert!(logged.is_some() && self.logged(message) == times, "{times}: {:?}", self.log());
    }

    /// How often this has been logged.
    pub(crate) fn logged(&self, message: &str) -> usize {
        self.messages().iter().filter(|logged| logged.starts_with(message)).count()
    }
}
