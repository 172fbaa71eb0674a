//! SIGKILL, many times: counts in Redis survive every server.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tidegate_model::TraceRng;

use crate::monitor::Alone;
use testkit::bounds::{IntervalBound, LoggedDecision};
use testkit::process::{millis, print_figure};
use testkit::redis::RedisServer;
use testkit::resp::{RespConnection, RespReply, command};
use testkit::server::{ServerProcess, TempFolder, pause, wait_until};
use testkit::timing::compare_with_goal;

const POLICY: &str = r#"
namespace: killed
on_store_failure: deny
store_deadline: 10s
rules:
  - { name: bucket, limits: ["20/s burst 10"] }
  - { name: window, limits: ["sliding-log 10/1s"] }
  - { name: leased, limits: ["50/s burst 20"], lease: auto }
  - { name: jobs, limits: ["concurrency 1000 lease 2s"] }
"#;

/// Rules with their guaranteed bounds, however often servers die. A lease belongs to one server:
/// what a dead server had borrowed stays charged.
const RULES: [(&str, IntervalBound); 3] = [
    ("bucket", IntervalBound::Bucket { burst: 10, count: 20, period: 1_000_000 }),
    ("window", IntervalBound::Window { limit: 10, window: 1_000_000 }),
    ("leased", IntervalBound::Bucket { burst: 20, count: 50, period: 1_000_000 }),
];
const CALLERS: u64 = 4;
const KEYS: u64 = 2;

/// Checks continuously on the current server and logs the decisions. A check without a reply is not
/// logged.
fn check(caller: u64, address: &Mutex<SocketAddr>, over: &AtomicBool) -> [Vec<LoggedDecision>; 3] {
    let mut log = [const { Vec::new() }; 3];
    let mut rng = TraceRng::new(caller);
    let read = || *address.lock().unwrap_or_else(PoisonError::into_inner);
    while !over.load(Ordering::Relaxed) {
        let Ok(mut client) = RespConnection::try_connect(read()) else {
            pause(Duration::from_millis(1));
            continue;
        };
        let mut writer = client.writer();
        while !over.load(Ordering::Relaxed) {
            let (rule, key) = (rng.index(RULES.len()), rng.below(KEYS));
            let words = ["TG.CHECK", RULES[rule].0, &key.to_string()];
            let before = SystemClock.elapsed().get();
            if writer.write_all(&command(&words)).is_err() {
                break;
            }
            let Ok(Some(RespReply::Array(items))) = client.try_receive() else { break };
            let after = SystemClock.elapsed().get();
            let allowed = items[0] == RespReply::Integer(1);
            log[rule].push(LoggedDecision { key, cost: 1, allowed, before, after });
            if rng.one_in(50) {
                let _ = writer.write_all(&command(&["TG.RESERVE", "jobs", "k", "1"]));
                if !matches!(client.try_receive(), Ok(Some(_))) {
                    break;
                }
            }
        }
    }
    log
}

#[test]
fn a_server_killed_many_times_never_exceeds_the_bounds() {
    let _alone = Alone::wait();
    let kills = if std::env::var_os("TIDEGATE_LONG").is_some() { 100 } else { 10 };
    let redis = RedisServer::start();
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let arguments = ["--config", file.to_str().unwrap(), "--store", &redis.url()];
    let mut server = ServerProcess::start(&arguments, &[]);
    let address = Mutex::new(server.resp);
    let over = AtomicBool::new(false);
    let mut rng = TraceRng::new(9);
    let mut slowest = 0;
    let logs = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                scope.spawn({
                    let (address, over) = (&address, &over);
                    move || check(caller, address, over)
                })
            })
            .collect();
        for _ in 0..kills {
            pause(Duration::from_millis(rng.between(100, 500)));
            server.signal("KILL");
            assert!(server.wait().is_some());
            let (took, ()) = millis(|| {
                server = ServerProcess::start(&arguments, &[]);
                *address.lock().unwrap() = server.resp;
                let mut client = RespConnection::connect(server.resp);
                let decides =
                    || (client.send("TG.PEEK bucket 0").items()[7].text() == "redis").then_some(());
                wait_until(decides).expect("the server decides");
            });
            slowest = slowest.max(took);
        }
        pause(Duration::from_millis(300));
        over.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    for (nth, (rule, bound)) in RULES.iter().enumerate() {
        let log: Vec<LoggedDecision> =
            logs.iter().flat_map(|log| log[nth].iter().copied()).collect();
        let found = bound.check(&log);
        print_figure(format_args!(
            "killed {kills} times: {rule}: {} decisions, {} admitted, {} beyond the bound",
            found.decisions, found.admitted, found.over
        ));
        // The limits are small enough that some checks are denied on a busy machine too.
        assert!(
            found.admitted > 30 && found.decisions as u64 > found.admitted,
            "{rule}: {found:?}"
        );
        assert_eq!(found.over, 0, "{rule}: {found:?}");
    }
    print_figure(format_args!(
        "killed {kills} times: Redis decided again {slowest} ms after the start of a server, at the latest"
    ));
    let [slowest, goal] = [slowest, 5_000].map(Duration::from_millis);
    compare_with_goal("Redis decided again", slowest, goal);
    assert_everything_expires(&redis);
}

/// All keys but the secret expire.
fn assert_everything_expires(redis: &RedisServer) {
    let names = redis.cli(&["--raw", "KEYS", "*"]);
    let permanent: Vec<&str> =
        names.lines().filter(|name| redis.cli(&["TTL", name]).trim() == "-1").collect();
    assert_eq!(permanent, ["killed:secret"], "{names}");
    assert!(names.lines().count() > 3, "{names}");
}
