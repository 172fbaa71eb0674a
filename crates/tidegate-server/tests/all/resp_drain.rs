//! The end of the server while clients pipeline: what is charged is answered.
use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{in_process, redis_server, resp, support};
use in_process::Door;
use redis_server::Server as Redis;
use resp::{Client, Reply, command};
use support::{Folder, Server, pause, wait_until};
use tidegate::{Clock, Key, SystemClock};
use tidegate_server::resp::frame::Caps;
use tidegate_server::service::{Ask, Target, Verb};

const CLIENTS: usize = 4;
const PIPELINE: usize = 16;
/// Far more than anybody asks for, so that every denial is one for want of an answer.
const LIMIT: i64 = 1_000_000_000;

/// What one client has seen.
#[derive(Debug)]
struct Seen {
    written: usize,
    allowed: usize,
    other: usize,
    end: io::Result<()>,
}

/// Pipelines for as long as it is let, with at most `ahead` commands unanswered.
fn pipeline(address: SocketAddr, ask: &[&str], ahead: usize) -> Seen {
    let mut client = Client::connect(address);
    let answered = Arc::new(AtomicUsize::new(0));
    let (mut stream, batch, done) =
        (client.writer(), command(ask).repeat(PIPELINE), answered.clone());
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
            Ok(Some(Reply::Array(items))) if items[0] == Reply::Integer(1) => allowed += 1,
            Ok(Some(_)) => other += 1,
        }
        answered.fetch_add(1, Ordering::Release);
    };
    answered.store(usize::MAX / 2, Ordering::Release);
    let _ = client.writer().shutdown(Shutdown::Both);
    Seen { written: writer.join().unwrap(), allowed, other, end }
}

/// Runs the clients, lets them work for a while, and then does `stop`.
fn pipelined(address: SocketAddr, ask: &[&str], ahead: usize, stop: impl FnOnce()) -> Vec<Seen> {
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(move || pipeline(address, ask, ahead))).collect();
        pause(Duration::from_millis(300));
        stop();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Clients that never stop sending: the server has to, and nothing that it charged is lost on the
/// way.
#[test]
fn a_flood_is_answered_as_far_as_it_is_charged() {
    let door = Door::open();
    let limit = format!("fixed-window {LIMIT}/36500d first-hit");
    let ask = ["TG.LIMIT", &limit, "k"];
    let clock = SystemClock;
    let mut before = clock.elapsed();
    let seen = pipelined(door.address, &ask, usize::MAX / 4, || {
        before = clock.elapsed();
        door.drainer.begin();
        door.block_on(door.drainer.finished());
    });
    let took = clock.elapsed().saturating_sub(before).get() / 1_000;

    let total = |count: fn(&Seen) -> usize| seen.iter().map(count).sum::<usize>();
    let (written, allowed) = (total(|seen| seen.written), total(|seen| seen.allowed));
    for seen in &seen {
        assert!(seen.end.is_ok() && seen.other == 0 && seen.allowed > 0, "{seen:?}");
    }
    assert!(written > allowed, "nobody was in the middle of anything: {seen:?}");
    let key = Key::from("k".as_bytes());
    let ask = Ask { target: Target::Limit(&limit), key, cost: 0 };
    let answer = door.block_on(door.service.ask(Verb::Peek, &[ask], None)).unwrap();
    let charged = LIMIT - i64::try_from(answer.decision.remaining()).unwrap();
    assert_eq!(i64::try_from(allowed).unwrap(), charged, "answered and charged");
    writeln!(
        io::stderr(),
        "drain: {written} written, {allowed} answered, {charged} charged, ended in {took} ms"
    )
    .unwrap();
}

/// The real server, whose counts outlive it in Redis.
#[test]
fn sigterm_answers_what_is_charged_and_exits_with_0() {
    let redis = Redis::start();
    let policy = format!(
        "on_store_failure: deny\nrules: [{{ name: budget, limits: [\"fixed-window {LIMIT}/36500d first-hit\"] }}]"
    );
    let file = Folder::new().write("policy.yaml", &policy);
    let arguments = ["--config", file.to_str().unwrap(), "--store", &redis.url()];
    let mut server = Server::start(&arguments, &[]);
    in_redis(server.resp);
    let ask = ["TG.CHECK", "budget", "k"];
    let seen = pipelined(server.resp, &ask, 200, || server.signal("TERM"));
    let status = server.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{:?}", server.log());

    let total =
        |count: fn(&Seen) -> usize| i64::try_from(seen.iter().map(count).sum::<usize>()).unwrap();
    let (allowed, unsure) = (total(|seen| seen.allowed), total(|seen| seen.other));
    for seen in &seen {
        assert!(seen.end.is_ok() && seen.allowed > 0, "{seen:?}");
    }
    let charged = LIMIT - in_redis(Server::start(&arguments, &[]).resp);
    // Whoever got no answer from Redis in time was denied, charged or not.
    let fits = (allowed..=allowed + unsure).contains(&charged);
    assert!(fits, "{allowed} allowed, {unsure} unsure, {charged} charged");
    writeln!(
        io::stderr(),
        "drain on SIGTERM: {allowed} answered, {charged} charged, {unsure} without an answer of Redis"
    )
    .unwrap();
}

/// What is left in Redis, once the server has found it.
fn in_redis(address: SocketAddr) -> i64 {
    let mut client = Client::connect(address);
    let left = wait_until(|| {
        let reply = client.ask("TG.PEEK budget k");
        let Reply::Array(items) = &reply else { return None };
        (items[7].text() == "redis").then(|| items[2].integer())
    });
    left.expect("redis answers")
}

#[test]
fn idle_clients_and_half_commands_do_not_hold_up_the_end() {
    let door = Door::open();
    let idle = Client::connect(door.address);
    let mut half = Client::connect(door.address);
    half.write(&command(&["PING"]));
    half.write(b"*2\r\n$4\r\nECHO\r\n$1000\r\nhalf of it");
    assert!(half.receive().is("+PONG"));
    door.drainer.begin();
    let end = |mut client: Client| client.try_receive().unwrap();
    assert_eq!((end(idle), end(half)), (None, None));
    door.block_on(door.drainer.finished());
}

#[test]
fn a_client_that_closes_its_side_gets_its_answers() {
    let door = Door::open();
    let mut client = Client::connect(door.address);
    client.write(&command(&["PING"]).repeat(1_000));
    assert_eq!(client.finish().unwrap().len(), 1_000);
    // The longest request there is, and the answer to it.
    let mut client = Client::connect(door.address);
    let longest = "x".repeat(Caps::AUTHENTICATED.bulk);
    client.write(&command(&["ECHO", &longest]));
    assert_eq!(client.finish().unwrap(), [Reply::Bulk(longest.into_bytes())]);
}
