//! The end without warning, again and again: what Redis has counted outlives every server.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tidegate_model::Rng;

use crate::checker::{Bound, Entry};
use crate::life::redis_server::Server as Redis;
use crate::life::{millis, print_figure};
use crate::resp::{Client, Reply, command};
use crate::support::{Folder, Server, pause, wait_until};
use crate::witness::Alone;

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

/// Rules with what each promises, whoever decided and however often it died. A lease is spent by one
/// server at most: what a dead one had borrowed stays charged.
const RULES: [(&str, Bound); 3] = [
    ("bucket", Bound::Bucket { burst: 10, count: 20, period: 1_000_000 }),
    ("window", Bound::Window { limit: 10, window: 1_000_000 }),
    ("leased", Bound::Bucket { burst: 20, count: 50, period: 1_000_000 }),
];
const CALLERS: u64 = 4;
const KEYS: u64 = 2;

/// Asks without end, at whichever server there is, and notes what it was told. A question whose answer
/// never came is nobody's.
fn ask(caller: u64, address: &Mutex<SocketAddr>, over: &AtomicBool) -> [Vec<Entry>; 3] {
    let mut log = [const { Vec::new() }; 3];
    let mut rng = Rng::new(caller);
    let read = || *address.lock().unwrap_or_else(PoisonError::into_inner);
    while !over.load(Ordering::Relaxed) {
        let Ok(mut client) = Client::try_connect(read()) else {
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
            let Ok(Some(Reply::Array(items))) = client.try_receive() else { break };
            let after = SystemClock.elapsed().get();
            let allowed = items[0] == Reply::Integer(1);
            log[rule].push(Entry { key, cost: 1, allowed, before, after });
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
fn a_server_that_is_killed_again_and_again_never_admits_too_much() {
    let _alone = Alone::wait();
    let kills = if std::env::var_os("TIDEGATE_LONG").is_some() { 100 } else { 10 };
    let redis = Redis::start();
    let file = Folder::new().write("policy.yaml", POLICY);
    let arguments = ["--config", file.to_str().unwrap(), "--store", &redis.url()];
    let mut server = Server::start(&arguments, &[]);
    let address = Mutex::new(server.resp);
    let over = AtomicBool::new(false);
    let mut rng = Rng::new(9);
    let mut slowest = 0;
    let logs = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                scope.spawn({
                    let (address, over) = (&address, &over);
                    move || ask(caller, address, over)
                })
            })
            .collect();
        for _ in 0..kills {
            pause(Duration::from_millis(rng.between(100, 500)));
            server.signal("KILL");
            assert!(server.wait().is_some());
            let (took, ()) = millis(|| {
                server = Server::start(&arguments, &[]);
                *address.lock().unwrap() = server.resp;
                let mut client = Client::connect(server.resp);
                let decides =
                    || (client.ask("TG.PEEK bucket 0").items()[7].text() == "redis").then_some(());
                wait_until(decides).expect("it serves");
            });
            slowest = slowest.max(took);
        }
        pause(Duration::from_millis(300));
        over.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    for (nth, (rule, bound)) in RULES.iter().enumerate() {
        let log: Vec<Entry> = logs.iter().flat_map(|log| log[nth].iter().copied()).collect();
        let found = bound.check(&log);
        print_figure(format_args!(
            "killed {kills} times: {rule}: {} decisions, {} admitted, {} too many",
            found.decisions, found.admitted, found.over
        ));
        // Small enough that somebody is denied even on a busy machine.
        assert!(
            found.admitted > 30 && found.decisions as u64 > found.admitted,
            "{rule}: {found:?}"
        );
        assert_eq!(found.over, 0, "{rule}: {found:?}");
    }
    print_figure(format_args!(
        "killed {kills} times: Redis decided again {slowest} ms after the start of a server, at the latest"
    ));
    assert!(slowest < 5_000, "{slowest} ms");
    assert_everything_ends(&redis);
}

/// No key stays for ever but the secret.
fn assert_everything_ends(redis: &Redis) {
    let names = redis.cli(&["--raw", "KEYS", "*"]);
    let kept: Vec<&str> =
        names.lines().filter(|name| redis.cli(&["TTL", name]).trim() == "-1").collect();
    assert_eq!(kept, ["killed:secret"], "{names}");
    assert!(names.lines().count() > 3, "{names}");
}
