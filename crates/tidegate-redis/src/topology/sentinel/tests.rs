//! Sentinels that disagree, and a connection that follows them.

use redis::{PushKind, RedisConnectionInfo, Value};
use testkit::redis::RedisServer as Server;
use testkit::sentinel::{MASTER_NAME as MASTER, SentinelServer as Sentinel};

use super::*;
use crate::connection::error::CallError;
use crate::connection::supervisor::{
    ConnectTarget, ConnectionSettings, PrimaryTarget, SupervisedConnection,
};

const GENEROUS: Duration = Duration::from_secs(20);

// --- votes -------------------------------------------------------------------------------------

#[tokio::test]
async fn the_primary_is_the_one_that_more_than_half_report() {
    // The report of each sentinel, the primary before, and the primary after.
    for (reports, present, expected) in [
        ("", None, None),
        ("a", None, Some("a")),
        ("b", Some("a"), Some("b")),
        ("aab", Some("a"), Some("a")),
        ("abb", Some("a"), Some("b")),
        // A tie.
        ("ab", Some("a"), Some("a")),
        ("ab", Some("b"), Some("b")),
        ("ba", None, Some("b")),
        // The most votes, but no majority.
        ("abbcd", Some("a"), Some("a")),
        ("acbcd", None, Some("c")),
        // One does not know it, and another does not reply.
        ("?-b", Some("a"), Some("b")),
        ("?-", Some("a"), Some("a")),
    ] {
        let now = Instant::now();
        let mut votes = SentinelVotes::new(reports.len());
        for (index, letter) in reports.chars().enumerate() {
            votes.record(index, report_of(letter), now);
        }
        let present = present.map(at);
        let found = votes.majority(present.as_ref(), now).or(present.as_ref());
        assert_eq!(found, expected.map(at).as_ref(), "{reports}, {present:?}");
    }
}

#[tokio::test]
async fn old_reports_do_not_count() {
    let now = Instant::now();
    let mut votes = SentinelVotes::new(3);
    votes.record(0, report_of('a'), now);
    votes.record(1, report_of('a'), now);
    let later = now + RECENT_ENOUGH;
    votes.record(2, report_of('b'), later);
    assert_eq!(votes.majority(Some(&at("a")), later), None);
    let too_late = now + GENEROUS;
    votes.record(2, report_of('b'), too_late);
    assert_eq!(votes.majority(Some(&at("a")), too_late), Some(&at("b")));
}

/// The other sentinels learn of a failover later than its leader.
#[tokio::test]
async fn an_event_moves_the_primary_at_once_and_late_reports_do_not_move_it_back() {
    let watcher = watcher_of(3);
    for index in 0..3 {
        watcher.0.record_report(index, report_of('a'));
    }
    assert_eq!(primary_of(&watcher), Some(at("a")));
    watcher.0.on_message(published("+switch-master", "tides a 1 b 1"));
    assert_eq!(primary_of(&watcher), Some(at("b")));
    for index in [0, 1, 2, 0] {
        watcher.0.record_report(index, report_of('a'));
        assert_eq!(primary_of(&watcher), Some(at("b")));
    }
    watcher.0.record_report(0, report_of('c'));
    assert_eq!(primary_of(&watcher), Some(at("c")), "no other report counts");
}

/// The end of the first failover is published after that of the second.
#[tokio::test]
async fn an_event_of_the_previous_failover_does_not_move_the_primary_back() {
    let watcher = watcher_of(1);
    watcher.0.record_report(0, report_of('a'));
    watcher.0.on_message(published("+switch-master", "tides a 1 b 1"));
    watcher.0.on_message(published("+switch-master", "tides b 1 c 1"));
    watcher.0.on_message(published("+switch-master", "tides a 1 b 1"));
    assert_eq!(primary_of(&watcher), Some(at("c")));
    watcher.0.on_message(published("+switch-master", "tides c 1 b 1"));
    assert_eq!(primary_of(&watcher), Some(at("b")), "a failover back");
}

#[tokio::test]
async fn an_event_that_came_late_is_refuted_by_the_server() {
    let watcher = watcher_of(2);
    watcher.0.record_report(0, report_of('b'));
    watcher.0.on_message(published("+switch-master", "tides b 1 a 1"));
    assert_eq!(primary_of(&watcher), Some(at("a")));
    watcher.refute(&at("a"));
    watcher.0.record_report(0, report_of('b'));
    assert_eq!(primary_of(&watcher), Some(at("b")));
}

#[tokio::test]
async fn events_of_other_masters_and_malformed_events_move_nothing() {
    let watcher = watcher_of(1);
    watcher.0.record_report(0, report_of('a'));
    for (channel, text) in [
        ("+switch-master", "tide a 1 b 1"),
        ("+switch-master", "tides a 1 b"),
        ("+switch-master", "tides a 1 b 1 c"),
        ("+switch-master", "tides a 1 b 0"),
        ("+switch-master", "tides a 1 b 65536"),
        ("+switch-master", "tides a 1  1"),
        ("+switch-master", ""),
        ("+selected-slave", "slave b:1 b 1 @ tide a 1"),
        ("+selected-slave", "slave b:1 b one @ tides a 1"),
        ("+sdown", "tides a 1 b 1"),
    ] {
        watcher.0.on_message(published(channel, text));
        assert_eq!(primary_of(&watcher), Some(at("a")), "{channel} {text}");
        assert_eq!(*watcher.0.chosen.borrow(), None, "{channel} {text}");
    }
    watcher.0.on_message(PushInfo { kind: PushKind::Message, data: vec![Value::Nil] });
    watcher.0.on_message(published("+selected-slave", "slave b:1 b 1 @ tides a 1"));
    assert_eq!(*watcher.0.chosen.borrow(), Some(at("b")));
    assert_eq!(primary_of(&watcher), Some(at("a")), "chosen, and not promoted yet");
}

// --- servers -----------------------------------------------------------------------------------

#[tokio::test]
async fn a_connection_follows_the_primary_and_calls_in_flight_keep_their_reply() {
    let (one, other) = (Server::start(), Server::start());
    let watcher = watcher_of(0);
    let connection = follow(&watcher);
    let error = connection.call_until(soon(), &redis::cmd("PING")).await.unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error}");
    assert!(
        error.to_string().contains("no sentinel has named the primary of \"tides\""),
        "{error}"
    );

    watcher.0.publish_primary(endpoint_of(&one));
    assert_eq!(port_of(&connection).await, one.port());
    let slow = {
        let connection = connection.clone();
        let mut blocked = redis::cmd("BLPOP");
        blocked.arg("list").arg(0);
        tokio::spawn(async move { connection.call_until(late(), &blocked).await })
    };
    until(|| one.cli(&["INFO", "clients"]).contains("blocked_clients:1")).await;
    watcher.0.publish_primary(endpoint_of(&other));
    assert_eq!(port_of(&connection).await, other.port());
    one.cli(&["RPUSH", "list", "x"]);
    assert!(matches!(slow.await.unwrap(), Ok(Value::Array(_))), "the reply was lost");
    assert_eq!(connection.generation(), 2);
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_is_left_and_the_sentinels_are_polled() {
    let (one, other) = (Server::start(), Server::start());
    let watcher = watcher_of(0);
    let connection = follow(&watcher);
    watcher.0.publish_primary(endpoint_of(&one));
    assert_eq!(port_of(&connection).await, one.port());
    one.replica_of(&other);
    let mut suspected = watcher.0.suspected.subscribe();
    let mut set = redis::cmd("SET");
    set.arg("k").arg("v");
    let error = connection.call_until(late(), &set).await.unwrap_err();
    assert!(matches!(&error, CallError::ServerError(e) if e.code() == Some("READONLY")), "{error}");
    assert!(!connection.is_up());
    assert!(suspected.has_changed().unwrap(), "the sentinels are not polled");
    suspected.mark_unchanged();

    let error = connection.call_until(soon(), &redis::cmd("PING")).await.unwrap_err();
    let expected = format!("redis at 127.0.0.1:{} is a replica", one.port());
    assert!(error.to_string().contains(&expected), "{error}");
    watcher.0.publish_primary(endpoint_of(&other));
    assert_eq!(port_of(&connection).await, other.port());
}

/// The sentinels name it only after their next poll.
#[tokio::test]
async fn a_chosen_replica_is_used_when_it_is_promoted_and_not_before() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let watcher = watcher_of(0);
    let connection = follow(&watcher);
    watcher.0.publish_primary(endpoint_of(&primary));
    assert_eq!(port_of(&connection).await, primary.port());
    let (port, old) = (replica.port(), primary.port());
    let text = format!("slave 127.0.0.1:{port} 127.0.0.1 {port} @ tides 127.0.0.1 {old}");
    watcher.0.on_message(published("+selected-slave", &text));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(port_of(&connection).await, old, "connected to a replica");
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    // As a sentinel does.
    replica.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    until(|| primary_of(&watcher) == Some(endpoint_of(&replica))).await;
    assert_eq!(port_of(&connection).await, port);
    assert_eq!(*watcher.0.chosen.borrow(), None);
}

#[tokio::test]
async fn sentinels_have_a_separate_login() {
    let server = Server::start();
    let sentinel = Sentinel::start(server.port(), &["requirepass sesame"]);
    for (password, expected) in [(Some("sesame"), true), (Some("simsim"), false), (None, false)] {
        let login =
            RedisConnectionInfo { password: password.map(Into::into), ..Default::default() };
        let sentinels = SentinelConfig {
            endpoints: vec![local(sentinel.port())],
            master: MASTER.into(),
            dialer: Dialer::new(login),
        };
        let connection = follow(&SentinelWatcher::new(sentinels, plain(), Duration::from_secs(1)));
        if expected {
            assert_eq!(port_of(&connection).await, server.port());
            continue;
        }
        sleep(Duration::from_millis(300)).await;
        let error =
            connection.call_until(soon(), &redis::cmd("PING")).await.unwrap_err().to_string();
        assert!(error.contains("no sentinel of \"tides\" replies"), "{error}");
        assert!(!error.contains("simsim"), "{error}");
    }
}

/// The login of the documentation.
#[tokio::test]
async fn a_login_with_only_the_documented_permissions_suffices() {
    let docs = include_str!("../../../../../docs/operate/redis.md");
    let server = Server::start();
    let sentinel = Sentinel::start(server.port(), &[]);
    for line in docs.lines().filter(|line| line.starts_with("ACL SETUSER tidegate-sentinel ")) {
        assert_eq!(sentinel.cli(&line.split(' ').collect::<Vec<_>>()), "OK");
    }
    let (username, password) = (Some("tidegate-sentinel".into()), Some("change-me".into()));
    let dialer = Dialer::new(RedisConnectionInfo { username, password, ..Default::default() });
    let endpoints = vec![local(sentinel.port())];
    let sentinels = SentinelConfig { endpoints, master: MASTER.into(), dialer };
    let connection = follow(&SentinelWatcher::new(sentinels, plain(), Duration::from_secs(1)));
    assert_eq!(port_of(&connection).await, server.port());
    let clients = sentinel.cli(&["CLIENT", "LIST"]);
    let line = clients.lines().find(|line| line.contains("user=tidegate-sentinel")).unwrap();
    assert!(line.contains(" sub=2 "), "not subscribed: {line}");
}

#[tokio::test]
async fn dropping_the_last_connection_ends_the_watcher_and_its_connections() {
    let server = Server::start();
    let sentinel = Sentinel::start(server.port(), &[]);
    let clients = || sentinel.cli(&["CLIENT", "LIST"]).lines().count();
    let others = clients();
    let endpoints = vec![local(sentinel.port())];
    let sentinels = SentinelConfig { endpoints, master: MASTER.into(), dialer: plain() };
    let watcher = SentinelWatcher::new(sentinels, plain(), Duration::from_secs(1));
    let inner = Arc::downgrade(&watcher.0);
    let connection = follow(&watcher);
    drop(watcher);
    assert_eq!(port_of(&connection).await, server.port());
    assert_eq!(clients(), others + 1);
    drop(connection);
    until(|| inner.strong_count() == 0).await;
    until(|| clients() == others).await;
}

#[tokio::test]
async fn a_server_reports_whether_it_is_a_primary() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let resp3 = plain().with_push_handler(Arc::new(|_| {}));
    for dialer in [plain(), resp3] {
        let dial = async |server: &Server| -> RawConnection {
            dialer.dial(&endpoint_of(server)).await.unwrap()
        };
        assert!(is_primary(dial(&primary).await).await.unwrap());
        assert!(!is_primary(dial(&replica).await).await.unwrap());
    }
}

/// Shorter than the age at which a report no longer counts.
const RECENT_ENOUGH: Duration = Duration::from_secs(2);

fn at(host: &str) -> Endpoint {
    Endpoint::Tcp { host: host.into(), port: 1 }
}

fn local(port: u16) -> Endpoint {
    Endpoint::Tcp { host: "127.0.0.1".into(), port }
}

fn endpoint_of(server: &Server) -> Endpoint {
    local(server.port())
}

fn report_of(letter: char) -> SentinelReport {
    match letter {
        '?' => SentinelReport::Unknown,
        '-' => SentinelReport::NoReply("no reply".into()),
        host => SentinelReport::At(at(&host.to_string())),
    }
}

fn published(channel: &str, text: &str) -> PushInfo {
    let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    PushInfo { kind: PushKind::Message, data: vec![bulk(channel), bulk(text)] }
}

fn plain() -> Dialer {
    Dialer::new(RedisConnectionInfo::default())
}

/// Unreachable sentinels.
fn watcher_of(count: usize) -> SentinelWatcher {
    let endpoints = vec![at("name.invalid"); count];
    let sentinels = SentinelConfig { endpoints, master: MASTER.into(), dialer: plain() };
    SentinelWatcher::new(sentinels, plain(), Duration::from_secs(1))
}

fn primary_of(watcher: &SentinelWatcher) -> Option<Endpoint> {
    watcher.0.location.borrow().clone().ok()
}

fn follow(watcher: &SentinelWatcher) -> SupervisedConnection {
    SupervisedConnection::new(
        ConnectTarget::Primary(PrimaryTarget::new(Arc::new(watcher.clone()))),
        plain(),
        ConnectionSettings::default(),
    )
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(100)
}

fn late() -> Instant {
    Instant::now() + GENEROUS
}

/// The port of the connected server.
async fn port_of(connection: &SupervisedConnection) -> u16 {
    let mut cmd = redis::cmd("CONFIG");
    cmd.arg("GET").arg("port");
    let reply = connection.call_until(late(), &cmd).await.unwrap();
    let pair: Vec<String> = redis::from_redis_value(&reply).unwrap();
    pair[1].parse().unwrap()
}

async fn until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(GENEROUS, waiting).await.expect("the condition never becomes true");
}
