//! Limits from a control plane in Go, made of go-control-plane as Envoy Gateway's is. Without the
//! program the tests print so and pass.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::json;
use testkit::certificates::TestCa;
use testkit::server::{ServerProcess, wait_until};

/// Built by `interop/go/fetch`, next to the build output of cargo.
const PROGRAM: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../interop-clients/go/xds");

/// The process, killed on drop.
struct GoControlPlane {
    child: Child,
    input: ChildStdin,
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl GoControlPlane {
    fn start(arguments: &[&str]) -> Option<Self> {
        if !Path::new(PROGRAM).is_file() {
            let line = "skipped: the Go control plane is not installed; run interop/go/fetch";
            let _ = writeln!(std::io::stderr(), "{line}");
            return None;
        }
        let mut command = Command::new(PROGRAM);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.next().expect("the control plane listens");
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let log = requests.clone();
        std::thread::spawn(move || lines.for_each(|line| log.lock().unwrap().push(line)));
        Some(Self { child, input, address, requests })
    }

    fn set(&mut self, version: &str, limit: &str) {
        writeln!(self.input, "{version} {limit}").unwrap();
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for GoControlPlane {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn expect_limit(server: &ServerProcess, wanted: u64) {
    let entries = json!([{ "key": "user", "value": "x" }]);
    let descriptors = json!([{ "entries": entries, "hitsAddend": "0" }]);
    let body = json!({ "domain": "edge", "descriptors": descriptors });
    let limit = || {
        let response = server.post("/json", &body).json();
        response["statuses"][0]["currentLimit"]["requestsPerUnit"].as_u64()
    };
    let is_there = || (limit() == Some(wanted)).then_some(());
    assert!(wait_until(is_there).is_some(), "{:?}: {:?}", limit(), server.log());
}

#[test]
fn a_go_control_plane_sends_changes_and_sees_what_is_accepted_and_refused() {
    let Some(mut go) = GoControlPlane::start(&["node-1"]) else { return };
    go.set("1", "3");
    let address = go.address.clone();
    let server = ServerProcess::start(&["--xds", &address, "--xds-node", "node-1"], &[]);
    expect_limit(&server, 3);
    go.set("2", "5");
    expect_limit(&server, 5);
    go.set("3", "bad");
    let refused = || {
        let requests = go.requests();
        let begins = |line: &&String| line.starts_with("\"2\" \"3\" \"edge:4:");
        requests.iter().find(begins).cloned()
    };
    let refused = wait_until(refused).unwrap_or_else(|| panic!("{:?}", go.requests()));
    assert!(refused.contains("unknown unit"), "{refused}");
    expect_limit(&server, 5);
    // It sends a refused configuration again at once; the client must not answer in a busy loop.
    assert!(go.requests().len() < 20, "{:?}", go.requests());
    go.set("4", "7");
    expect_limit(&server, 7);
    let accepted = || go.requests().iter().any(|line| line.starts_with("\"4\" ")).then_some(());
    assert!(wait_until(accepted).is_some(), "{:?}", go.requests());
    assert!(go.requests()[0].starts_with("\"\" \"\" \"\""), "{:?}", go.requests());
}

#[test]
fn a_go_control_plane_with_mutual_tls_is_followed() {
    let ca = TestCa::new();
    let (own, client) = (ca.issue("127.0.0.1"), ca.issue("client"));
    let Some(mut go) = GoControlPlane::start(&["n", &own.cert, &own.key, &ca.ca()]) else { return };
    go.set("1", "3");
    let (address, trusted) = (go.address.clone(), ca.ca());
    let tls = ["--xds-ca", &trusted, "--xds-cert", &client.cert, "--xds-key", &client.key];
    let server =
        ServerProcess::start(&[&["--xds", &*address, "--xds-node", "n"], &tls[..]].concat(), &[]);
    expect_limit(&server, 3);
    go.set("2", "4");
    expect_limit(&server, 4);
}
