//! Shutdown while clients pipeline: every charge gets its reply.
use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testkit::redis::RedisServer;
use testkit::resp::{RespConnection, RespReply, command};
use testkit::resp_listener::RespListener;
use testkit::server::{ServerProcess, TempFolder, pause, wait_until};
use tidegate::{Clock, Key, RuleCheck, SystemClock};
use tidegate_server::internal::check::Operation;
use tidegate_server::internal::transport::resp::frame::Caps;

const CLIENTS: usize = 4;
const PIPELINE: usize = 16;
/// Never reached, so that every denial is due to a missing reply of the store.
const LIMIT: i64 = 1_000_000_000;

/// Results of one client.
#[derive(Debug)]
struct Seen {
    written: usize,
    allowed: usize,
    other: usize,
    end: io::Result<()>,
}

/// Pipelines until the connection ends, with at most `ahead` commands in flight.
fn pipeline(address: SocketAddr, words: &[&str], ahead: usize) -> Seen {
    let mut client = RespConnection::connect(address);
    let replies = Arc::new(AtomicUsize::new(0));
    let (mut stream, batch, done) =
        (client.writer(), command(words).repeat(PIPELINE), replies.clone());
    let writer = std::thread::spawn(move || {
        let mut written: usize = 0;
        loop {
            if written.saturating_sub(done.load(Ordering::Acquire)) > ahead {
                std::thread::yield_now();
            } else if stream.write_all(&batch).is_ok() {
                written += PIPELINE;
            } else {
                return written;
            }
        }
    });
    let (mut allowed, mut other) = (0, 0);
    let end = loop {
        match client.try_receive() {
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
            Ok(Some(RespReply::Array(items))) if items[0] == RespReply::Integer(1) => allowed += 1,
            Ok(Some(_)) => other += 1,
        }
        replies.fetch_add(1, Ordering::Release);
    };
    replies.store(usize::MAX / 2, Ordering::Release);
    let _ = client.writer().shutdown(Shutdown::Both);
    Seen { written: writer.join().unwrap(), allowed, other, end }
}

/// Runs the clients for a while, then calls `stop`.
fn pipelined(address: SocketAddr, words: &[&str], ahead: usize, stop: impl FnOnce()) -> Vec<Seen> {
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(move || pipeline(address, words, ahead))).collect();
        pause(Duration::from_millis(300));
        stop();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Clients that never stop sending: the server stops, and no reply to a charge is lost.
#[test]
fn under_a_flood_every_charge_gets_its_reply() {
    let listener = RespListener::open();
    let limit = format!("fixed-window {LIMIT}/36500d first-hit");
    let words = ["TG.LIMIT", &limit, "k"];
    let clock = SystemClock;
    let mut before = clock.elapsed();
    let seen = pipelined(listener.address, &words, usize::MAX / 4, || {
        before = clock.elapsed();
        listener.shutdown.begin();
        listener.block_on(listener.shutdown.finished());
    });
    let took = clock.elapsed().saturating_sub(before).get() / 1_000;

    let total = |count: fn(&Seen) -> usize| seen.iter().map(count).sum::<usize>();
    let (written, allowed) = (total(|seen| seen.written), total(|seen| seen.allowed));
    for seen in &seen {
        assert!(seen.end.is_ok() && seen.other == 0 && seen.allowed > 0, "{seen:?}");
    }
    assert!(written > allowed, "no client was in the middle of a command: {seen:?}");
    let key = Key::from("k".as_bytes());
    let target = listener.service.adhoc_limit(&limit).unwrap();
    let check = RuleCheck::of(target, key, 0);
    let result = listener.block_on(listener.service.run(Operation::Peek, &[check], None)).unwrap();
    let charged = LIMIT - i64::try_from(result.decision.remaining()).unwrap();
    assert_eq!(i64::try_from(allowed).unwrap(), charged, "allowed and charged");
    writeln!(
        io::stderr(),
        "drain: {written} written, {allowed} allowed, {charged} charged, ended in {took} ms"
    )
    .unwrap();
}

/// The real server, with its counts in Redis.
#[test]
fn after_sigterm_every_charge_gets_its_reply_and_the_exit_code_is_0() {
    let redis = RedisServer::start();
    let policy = format!(
        "on_store_failure: deny\nstore_deadline: 10s\nrules: [{{ name: budget, limits: [\"fixed-window {LIMIT}/36500d first-hit\"] }}]"
    );
    let file = TempFolder::new().write("policy.yaml", &policy);
    let arguments = ["--config", file.to_str().unwrap(), "--store", &redis.url()];
    let mut server = ServerProcess::start(&arguments, &[]);
    in_redis(server.resp);
    let words = ["TG.CHECK", "budget", "k"];
    let seen = pipelined(server.resp, &words, 200, || server.signal("TERM"));
    let status = server.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{:?}", server.log());

    let total =
        |count: fn(&Seen) -> usize| i64::try_from(seen.iter().map(count).sum::<usize>()).unwrap();
    let (allowed, unsure) = (total(|seen| seen.allowed), total(|seen| seen.other));
    for seen in &seen {
        assert!(seen.end.is_ok() && seen.allowed > 0, "{seen:?}");
    }
    let charged = LIMIT - in_redis(ServerProcess::start(&arguments, &[]).resp);
    // A check without a reply of Redis in time was denied, charged or not.
    let fits = (allowed..=allowed + unsure).contains(&charged);
    assert!(fits, "{allowed} allowed, {unsure} unsure, {charged} charged");
    writeln!(
        io::stderr(),
        "drain on SIGTERM: {allowed} allowed, {charged} charged, {unsure} without a reply of Redis"
    )
    .unwrap();
}

/// Remaining permits in Redis, once the server is connected.
fn in_redis(address: SocketAddr) -> i64 {
    let mut client = RespConnection::connect(address);
    let left = wait_until(|| {
        let reply = client.send("TG.PEEK budget k");
        let RespReply::Array(items) = &reply else { return None };
        (items[7].text() == "redis").then(|| items[2].integer())
    });
    left.expect("redis replies")
}

#[test]
fn idle_clients_and_half_commands_do_not_hold_up_the_end() {
    let listener = RespListener::open();
    let idle = RespConnection::connect(listener.address);
    let mut half = RespConnection::connect(listener.address);
    half.write(&command(&["PING"]));
    half.write(b"*2\r\n$4\r\nECHO\r\n$1000\r\nhalf of it");
    assert!(half.receive().is("+PONG"));
    listener.shutdown.begin();
    let end = |mut client: RespConnection| client.try_receive().unwrap();
    assert_eq!((end(idle), end(half)), (None, None));
    listener.block_on(listener.shutdown.finished());
}

#[test]
fn a_client_that_closes_its_side_gets_its_replies() {
    let listener = RespListener::open();
    let mut client = RespConnection::connect(listener.address);
    client.write(&command(&["PING"]).repeat(1_000));
    assert_eq!(client.finish().unwrap().len(), 1_000);
    // The longest request and its reply.
    let mut client = RespConnection::connect(listener.address);
    let longest = "x".repeat(Caps::AUTHENTICATED.bulk);
    client.write(&command(&["ECHO", &longest]));
    assert_eq!(client.finish().unwrap(), [RespReply::Bulk(longest.into_bytes())]);
}
