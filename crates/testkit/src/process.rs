//! Runs the `tidegate` binary to its end; metrics and log lines of a server process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tidegate::{Clock, SystemClock};

use crate::server::{ServerProcess, tidegate_path, wait_until};

/// Runs `tidegate` to its end.
pub fn tidegate(arguments: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
    let output = command(arguments, variables).output().expect("tidegate runs");
    CommandOutput::from(&output)
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<&Output> for CommandOutput {
    fn from(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code();
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

/// Runs `tidegate serve` until it listens or exits. The code is `None` if it listened.
pub fn serve(arguments: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
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
        child.kill().expect("the process can be killed");
    }
    let status = child.wait().expect("the process exits");
    CommandOutput { code: status.code().filter(|_| !listens), stdout: String::new(), stderr }
}

fn command(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(tidegate_path());
    command.args(arguments).envs(variables.iter().copied());
    command.stdin(Stdio::null());
    command
}

/// Prints a measurement to stderr, which the test harness does not capture.
pub fn print_figure(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs `work` and measures its milliseconds.
pub fn millis<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = SystemClock.elapsed();
    let output = work();
    (SystemClock.elapsed().saturating_sub(before).get() / 1_000, output)
}

impl ServerProcess {
    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok())
    }

    /// Whether decisions come from the store.
    pub fn store_is_up(&self) -> bool {
        self.get("/healthz").json()["store"]["up"] == true
    }

    /// Polls `/healthz` until the condition holds, and returns the body.
    pub fn health_when(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let health = wait_until(|| Some(self.get("/healthz").json()).filter(|json| wanted(json)));
        health.unwrap_or_else(|| panic!("the condition never holds: {}", self.get("/healthz").body))
    }

    /// Messages of all log lines so far.
    pub fn messages(&self) -> Vec<String> {
        let message = |line: &String| {
            let line: Value = serde_json::from_str(line).ok()?;
            Some(line["fields"]["message"].as_str()?.to_string())
        };
        self.log().iter().filter_map(message).collect()
    }

    /// Waits until a message was logged this many times: the log arrives through a pipe, with a
    /// delay.
    pub fn expect_logged(&self, message: &str, times: usize) {
        let logged = wait_until(|| (self.logged(message) >= times).then_some(()));
        assert!(logged.is_some() && self.logged(message) == times, "{times}: {:?}", self.log());
    }

    /// Number of log messages that start with this text.
    pub fn logged(&self, message: &str) -> usize {
        self.messages().iter().filter(|logged| logged.starts_with(message)).count()
    }
}
