//! Real Envoys with shares of one limit: what they admit together, while they and Tidegate are
//! killed, frozen and started again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::json;
use testkit::quota_envoy::{QuotaEnvoy, QuotaUpstream, send_until};
use testkit::real_envoy::envoy_path;
use testkit::server::{ServerProcess, TempFolder, pause, wait_until};

const RATE: u64 = 20;
const BURST: u64 = 60;
const EDGE: &str = r#"
domain: edge
descriptors:
  - { key: name, value: all, rlqs: true, limit: "20/s burst 60" }
"#;

/// The largest number of admissions in any interval, above `RATE * t`.
fn worst_burst(admitted: &[u64]) -> f64 {
    let (mut level, mut worst, mut before) = (0.0_f64, 0.0_f64, 0);
    for &instant in admitted {
        let passed = (instant - before) as f64 / 1e6;
        level = (level - passed * RATE as f64).max(0.0) + 1.0;
        (worst, before) = (worst.max(level), instant);
    }
    worst
}

/// Stops the clients, also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[expect(clippy::disallowed_methods, reason = "compared with instants of Envoy's log")]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

fn check_once(server: &ServerProcess, admitted: &Mutex<Vec<u64>>) {
    let entries = json!([{ "key": "name", "value": "all" }]);
    let request = json!({ "domain": "edge", "descriptors": [{ "entries": entries }] });
    if server.post("/json", &request).status == 200 {
        admitted.lock().unwrap().push(now());
    }
}

/// Waits until more than a burst was admitted from now on.
fn wait_for_admissions(upstream: &QuotaUpstream, server: &ServerProcess) {
    let before = upstream.admitted().len();
    let is_served = || (upstream.admitted().len() > before + BURST as usize).then_some(());
    let metrics = || server.get("/metrics").body;
    assert!(wait_until(is_served).is_some(), "{:?} {}", server.log(), metrics());
}

#[test]
fn three_envoys_admit_one_limit_while_they_and_tidegate_fail() {
    let Some(program) = envoy_path() else { return };
    let folder = TempFolder::new();
    folder.write("edge.yaml", EDGE);
    let path = folder.path("").to_str().unwrap().to_string();
    let server = ServerProcess::start(&["--envoy-config", &path], &[]);
    let (address, upstream) = (server.grpc, QuotaUpstream::start());
    let mut envoys = [(); 3].map(|()| QuotaEnvoy::start(&program, address, &upstream));
    let (stop, checked) = (AtomicBool::new(false), Mutex::default());
    std::thread::scope(|scope| {
        for envoy in [0, 0, 1, 1, 2, 2].map(|index| envoys[index].address()) {
            let stop = &stop;
            scope.spawn(move || send_until(stop, envoy, Duration::from_millis(40)));
        }
        let stopped = StopOnDrop(&stop);
        // Nothing before what an earlier process may have lent has ended.
        pause(Duration::from_secs(5));
        let early = upstream.admitted().len();
        wait_for_admissions(&upstream, &server);
        for _ in 0..20 {
            check_once(&server, &checked);
        }
        envoys[0].freeze();
        envoys[1].kill();
        envoys[1].start_again();
        wait_for_admissions(&upstream, &server);
        // Longer than its share lasts, so that others have it.
        pause(Duration::from_secs(12));
        envoys[0].thaw();
        for _ in 0..20 {
            check_once(&server, &checked);
        }
        wait_for_admissions(&upstream, &server);
        drop(server);
        let grpc = address.to_string();
        let again = ServerProcess::start(&["--envoy-config", &path, "--grpc", &grpc], &[]);
        wait_for_admissions(&upstream, &again);
        pause(Duration::from_secs(10));
        let metrics = again.get("/metrics").body;
        drop(stopped);
        assert_eq!(early, 0, "a server that starts waits until earlier shares have ended");
        assert!(metrics.contains("tidegate_rlqs_holders 3"), "{metrics}");
    });
    let mut all = upstream.admitted();
    all.extend(checked.into_inner().unwrap());
    all.sort_unstable();
    let worst = worst_burst(&all);
    let span = (all[all.len() - 1] - all[0]) as f64 / 1e6;
    println!("{} admitted in {span:.0} s, worst burst {worst:.1} of {BURST}", all.len());
    // A frozen Envoy may admit its share once more in the first moments after the freeze.
    assert!(worst <= BURST as f64 + 1.0, "{worst}");
}

#[test]
fn a_store_that_others_may_use_is_refused() {
    let folder = TempFolder::new();
    folder.write("edge.yaml", EDGE);
    let path = folder.path("").to_str().unwrap().to_string();
    let arguments = ["--envoy-config", &path, "--store", "redis://127.0.0.1:1"];
    let output = ServerProcess::command(&arguments, &[]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("rlqs lends shares of one process; use --store memory"), "{text}");
}
