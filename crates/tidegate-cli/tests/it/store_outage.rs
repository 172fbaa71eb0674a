//! Redis killed and restarted under load: results, log and metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::process::print_figure;
use testkit::redis::RedisServer;
use testkit::resp::{RespConnection, RespReply};
use testkit::server::{ServerProcess, TempFolder, pause, wait_until};
use testkit::timing::compare_with_goal;
use tidegate::{Clock, Micros, SystemClock};

/// One decision as its caller saw it.
struct Seen {
    begun: Micros,
    ended: Micros,
    source: String,
}

const LOST: &str = "circuit open: store not responding, on_store_failure applies";
const BACK: &str = "circuit closed: store responding again";

#[test]
fn an_outage_costs_no_decision_and_two_log_lines() {
    const OUTAGES: usize = 2;
    let mut redis = RedisServer::start();
    // A longer deadline than usual: a busy machine alone must not look like an outage.
    let policy = format!(
        "store: {}\nstore_deadline: 2s\nrules: [{{ name: api, limits: [100000/s] }}]\n",
        redis.url()
    );
    let file = TempFolder::new().write("policy.yaml", &policy);
    let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
    wait_until(|| server.store_is_up().then_some(())).unwrap();
    let by_redis = |reply: &RespReply| reply.items()[7].text() == "redis";
    let warm =
        || Some(RespConnection::connect(server.resp).send("TG.CHECK api warm")).filter(by_redis);
    wait_until(warm).expect("redis decides");
    let warm = decisions(&server).values().sum::<u64>();
    let lines = [LOST, BACK].map(|line| server.logged(line));

    let over = AtomicBool::new(false);
    let (seen, outages) = std::thread::scope(|scope| {
        let (over, server) = (&over, &server);
        let run_client = |client| scope.spawn(move || check_until(over, server, client));
        let clients: Vec<_> = (0..8).map(run_client).collect();
        let mut outages = Vec::new();
        for outage in 1..=OUTAGES {
            pause(Duration::from_millis(1_500));
            let killed = SystemClock.elapsed();
            redis.kill();
            server.expect_logged(LOST, lines[0] + outage);
            let opened = SystemClock.elapsed();
            // Open, or half-open while a probe runs.
            assert!(server.metric("tidegate_breaker_state").is_some_and(|state| state > 0.0));
            assert_ne!(server.get("/readyz").json()["store"]["circuit"], "closed");
            let health = server.get("/readyz");
            assert_eq!((health.status, &health.json()["status"]), (200, &"degraded".into()));
            assert_eq!(server.metric("tidegate_store_up"), Some(0.0));
            pause(Duration::from_secs(2));
            redis.restart();
            let pong = SystemClock.elapsed();
            server.expect_logged(BACK, lines[1] + outage);
            assert_eq!(server.metric("tidegate_breaker_state"), Some(0.0));
            outages.push((killed, opened, pong));
        }
        pause(Duration::from_millis(500));
        over.store(true, Ordering::SeqCst);
        let seen: Vec<Seen> =
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        (seen, outages)
    });

    for (i, (killed, opened, pong)) in outages.iter().enumerate() {
        let by_redis = |seen: &&Seen| seen.source == "redis" && seen.ended > *pong;
        let back = seen.iter().filter(by_redis).map(|seen| seen.ended).min().unwrap();
        let next = outages.get(i + 1).map_or(Micros::MAX, |(killed, ..)| *killed);
        let by_fallback = |seen: &&Seen| seen.source == "fallback" && seen.ended < next;
        let last = seen.iter().filter(by_fallback).map(|seen| seen.ended).max().unwrap();
        let while_open = took(&seen, *opened, *pong);
        print_figure(format_args!(
            "outage {}: circuit open {} ms after the kill; {} decisions until redis is back, p99 {} us, most {} us; \
             the first by redis {} ms after PONG, the last by the fallback {} ms after it",
            i + 1,
            millis(*killed, *opened),
            while_open.len(),
            while_open[while_open.len() * 99 / 100],
            while_open[while_open.len() - 1],
            millis(*pong, back),
            millis(*pong, last),
        ));
        let back = Duration::from_millis(millis(*pong, back));
        compare_with_goal("the first decision by redis", back, Duration::from_secs(1));
    }

    let mut sources: BTreeMap<String, u64> = BTreeMap::new();
    seen.iter().for_each(|seen| *sources.entry(seen.source.clone()).or_default() += 1);
    let counted = decisions(&server);
    print_figure(format_args!("outage: {} decisions, by source {sources:?}", seen.len()));
    assert_eq!(counted.values().sum::<u64>(), seen.len() as u64 + warm, "{counted:?}");
    assert_eq!(counted.get("none"), None, "every request got a decision");
    assert_eq!(counted["fallback"], sources["fallback"]);
    assert_eq!(server.metric("tidegate_breaker_opened_total"), Some(server.logged(LOST) as f64));
    // A pause of the machine is silence of Redis, too.
    let [lost, back] = [LOST, BACK].map(|line| server.logged(line));
    assert!(lost >= lines[0] + OUTAGES && lost - lines[0] == back - lines[1], "{lost}, {back}");
}

/// Checks one after the other until `over`. Panics on anything but a decision.
fn check_until(over: &AtomicBool, server: &ServerProcess, number: usize) -> Vec<Seen> {
    let mut client = RespConnection::connect(server.resp);
    let mut seen = Vec::new();
    for n in 0.. {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let begun = SystemClock.elapsed();
        let reply = client.send(&format!("TG.CHECK api {number}-{}", n % 100));
        let ended = SystemClock.elapsed();
        assert_eq!(reply.items().len(), 8, "{reply}");
        seen.push(Seen { begun, ended, source: reply.items()[7].text() });
    }
    seen
}

/// Sorted latencies of the decisions between two instants.
fn took(seen: &[Seen], from: Micros, to: Micros) -> Vec<u64> {
    let within = seen.iter().filter(|seen| seen.begun >= from && seen.ended <= to);
    let mut took: Vec<u64> =
        within.map(|seen| seen.ended.saturating_sub(seen.begun).get()).collect();
    took.sort_unstable();
    took
}

fn millis(from: Micros, to: Micros) -> u64 {
    to.saturating_sub(from).get() / 1_000
}

/// Counts of the rule by source, from the metrics; errors have no source.
fn decisions(server: &ServerProcess) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in server.get("/metrics").body.lines() {
        let Some(rest) = line.strip_prefix("tidegate_checks_total{rule=\"api\",") else { continue };
        let (labels, count) = rest.split_once("} ").unwrap();
        let source = labels.split("source=\"").nth(1).unwrap().trim_end_matches('"');
        let count: u64 = count.parse().unwrap();
        if count > 0 {
            *counts.entry(source.to_string()).or_default() += count;
        }
    }
    counts
}
