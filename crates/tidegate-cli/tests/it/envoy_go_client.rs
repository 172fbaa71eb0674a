//! A gRPC client in Go, with the generated types of go-control-plane, as envoyproxy/ratelimit's own
//! client has them. Without the client the tests print so and pass.
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use testkit::server::{ServerProcess, TempFolder};

/// Built by `interop/go/fetch`, next to the build output of cargo.
const PROGRAM: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../interop-clients/go/envoy");

/// A bucket that is full again after an hour, or after two from its deepest debt.
const BUCKET: &str = "
domain: d
descriptors:
  - { key: bucket, limit: 2/h }
";

/// Requests that passed of ten, and the seconds until the limit is reset.
fn send(server: &ServerProcess, hits: &str) -> (u32, u64) {
    let output = Command::new(PROGRAM).args([&server.grpc.to_string(), hits]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (passed, reset) = text.trim_end().split_once(' ').unwrap();
    (passed.parse().unwrap(), reset.parse().unwrap())
}

#[test]
fn one_hit_of_a_go_client_is_the_same_whether_it_is_given_or_not() {
    if !Path::new(PROGRAM).is_file() {
        let line = "skipped: the Go client is not installed; run interop/go/fetch";
        writeln!(std::io::stderr(), "{line}").unwrap();
        return;
    }
    let folder = TempFolder::new();
    folder.write("d.yaml", BUCKET);
    let path = folder.path("").to_str().unwrap().to_string();
    let server = ServerProcess::start(&["--envoy-config", &path], &[]);
    for hits in ["0", "1"] {
        let (passed, reset) = send(&server, hits);
        assert_eq!(passed, 2, "{hits}");
        assert!(reset <= 3_600, "{hits}: denied requests were charged, {reset} s");
    }
    // More than one hit is usage that has happened.
    let (passed, reset) = send(&server, "2");
    assert_eq!(passed, 1);
    assert!(reset > 3_600, "{reset} s");
}
