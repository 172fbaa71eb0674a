//! Sentinels of several opinions, and a link that goes by them.

use redis::{PushKind, RedisConnectionInfo, Value};

use super::processes::{MASTER, Sentinel};
use super::server::Server;
use super::*;
use crate::link::{Aim, Link, LinkError, Settings};

const PATIENCE: Duration = Duration::from_secs(20);

// --- opinions ----------------------------------------------------------------------------------

#[tokio::test]
async fn the_primary_is_where_more_than_half_say() {
    // What each of the sentinels says, where the primary is by then, and where it is after that.
    for (said, present, expected) in [
        ("", None, None),
        ("a", None, Some("a")),
        ("b", Some("a"), Some("b")),
        ("aab", Some("a"), Some("a")),
        ("abb", Some("a"), Some("b")),
        // As many say this as that.
        ("ab", Some("a"), Some("a")),
        ("ab", Some("b"), Some("b")),
        ("ba", None, Some("b")),
        // The most, but no majority.
        ("abbcd", Some("a"), Some("a")),
        ("acbcd", None, Some("c")),
        // One does not know it, and another does not answer.
        ("?-b", Some("a"), Some("b")),
        ("?-", Some("a"), Some("a")),
    ] {
        let now = Instant::now();
        let mut opinions = Opinions::new(said.len());
        for (index, letter) in said.chars().enumerate() {
            opinions.hear(index, word_of(letter), now);
        }
        let present = present.map(at);
        let found = opinions.majority(present.as_ref(), now).or(present.as_ref());
        assert_eq!(found, expected.map(at).as_ref(), "{said}, {present:?}");
    }
}

#[tokio::test]
async fn what_was_said_long_ago_does_not_count() {
    let now = Instant::now();
    let mut opinions = Opinions::new(3);
    opinions.hear(0, word_of('a'), now);
    opinions.hear(1, word_of('a'), now);
    let later = now + RECENT_ENOUGH;
    opinions.hear(2, word_of('b'), later);
    assert_eq!(opinions.majority(Some(&at("a")), later), None);
    let too_late = now + PATIENCE;
    opinions.hear(2, word_of('b'), too_late);
    assert_eq!(opinions.majority(Some(&at("a")), too_late), Some(&at("b")));
}

/// The others learn of a failover later than the one that has led it.
#[tokio::test]
async fn an_event_moves_at_once_and_late_answers_do_not_move_back() {
    let watcher = watcher_of(3);
    for index in 0..3 {
        watcher.0.hear(index, word_of('a'));
    }
    assert_eq!(named(&watcher), Some(at("a")));
    watcher.0.listen(published("+switch-master", "tides a 1 b 1"));
    assert_eq!(named(&watcher), Some(at("b")));
    for index in [0, 1, 2, 0] {
        watcher.0.hear(index, word_of('a'));
        assert_eq!(named(&watcher), Some(at("b")));
    }
    watcher.0.hear(0, word_of('c'));
    assert_eq!(named(&watcher), Some(at("c")), "nobody else has an opinion that counts");
}

/// The end of the first failover is published after that of the second.
#[tokio::test]
async fn an_event_of_the_failover_before_does_not_move_back() {
    let watcher = watcher_of(1);
    watcher.0.hear(0, word_of('a'));
    watcher.0.listen(published("+switch-master", "tides a 1 b 1"));
    watcher.0.listen(published("+switch-master", "tides b 1 c 1"));
    watcher.0.listen(published("+switch-master", "tides a 1 b 1"));
    assert_eq!(named(&watcher), Some(at("c")));
    watcher.0.listen(published("+switch-master", "tides c 1 b 1"));
    assert_eq!(named(&watcher), Some(at("b")), "a failover back to where it was");
}

#[tokio::test]
async fn an_event_that_came_late_is_refuted_by_the_server() {
    let watcher = watcher_of(2);
    watcher.0.hear(0, word_of('b'));
    watcher.0.listen(published("+switch-master", "tides b 1 a 1"));
    assert_eq!(named(&watcher), Some(at("a")));
    watcher.refute(&at("a"));
    watcher.0.hear(0, word_of('b'));
    assert_eq!(named(&watcher), Some(at("b")));
}

#[tokio::test]
async fn what_is_published_about_others_or_makes_no_sense_moves_nothing() {
    let watcher = watcher_of(1);
    watcher.0.hear(0, word_of('a'));
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
        watcher.0.listen(published(channel, text));
        assert_eq!(named(&watcher), Some(at("a")), "{channel} {text}");
        assert_eq!(*watcher.0.chosen.borrow(), None, "{channel} {text}");
    }
    watcher.0.listen(PushInfo { kind: PushKind::Message, data: vec![Value::Nil] });
    watcher.0.listen(published("+selected-slave", "slave b:1 b 1 @ tides a 1"));
    assert_eq!(*watcher.0.chosen.borrow(), Some(at("b")));
    assert_eq!(named(&watcher), Some(at("a")), "chosen, and not promoted yet");
}

// --- servers -----------------------------------------------------------------------------------

#[tokio::test]
async fn a_link_goes_where_the_primary_is_and_calls_under_way_keep_their_answer() {
    let (one, other) = (Server::start(), Server::start());
    let watcher = watcher_of(0);
    let link = follow(&watcher);
    let error = link.call_until(soon(), &redis::cmd("PING")).await.unwrap_err();
    assert!(matches!(error, LinkError::Down(_)), "{error}");
    assert!(
        error.to_string().contains("no sentinel has named the primary of \"tides\""),
        "{error}"
    );

    watcher.0.name(place_of(&one));
    assert_eq!(port_of(&link).await, one.port());
    let slow = {
        let link = link.clone();
        let mut blocked = redis::cmd("BLPOP");
        blocked.arg("list").arg(0);
        tokio::spawn(async move { link.call_until(late(), &blocked).await })
    };
    until_so(|| one.cli(&["INFO", "clients"]).contains("blocked_clients:1")).await;
    watcher.0.name(place_of(&other));
    assert_eq!(port_of(&link).await, other.port());
    one.cli(&["RPUSH", "list", "x"]);
    assert!(matches!(slow.await.unwrap(), Ok(Value::Array(_))), "the answer was lost");
    assert_eq!(link.generation(), 2);
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_is_left_and_the_sentinels_are_asked() {
    let (one, other) = (Server::start(), Server::start());
    let watcher = watcher_of(0);
    let link = follow(&watcher);
    watcher.0.name(place_of(&one));
    assert_eq!(port_of(&link).await, one.port());
    one.replica_of(&other);
    let mut doubt = watcher.0.doubt.subscribe();
    let mut set = redis::cmd("SET");
    set.arg("k").arg("v");
    let error = link.call_until(late(), &set).await.unwrap_err();
    assert!(matches!(&error, LinkError::Reply(e) if e.code() == Some("READONLY")), "{error}");
    assert!(!link.is_up());
    assert!(doubt.has_changed().unwrap(), "nobody asks the sentinels");
    doubt.mark_unchanged();

    let error = link.call_until(soon(), &redis::cmd("PING")).await.unwrap_err();
    let expected = format!("redis at 127.0.0.1:{} is a replica", one.port());
    assert!(error.to_string().contains(&expected), "{error}");
    watcher.0.name(place_of(&other));
    assert_eq!(port_of(&link).await, other.port());
}

/// The sentinels name it only after they have looked again.
#[tokio::test]
async fn a_chosen_replica_is_gone_to_when_it_is_promoted_and_not_before() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let watcher = watcher_of(0);
    let link = follow(&watcher);
    watcher.0.name(place_of(&primary));
    assert_eq!(port_of(&link).await, primary.port());
    let (port, old) = (replica.port(), primary.port());
    let text = format!("slave 127.0.0.1:{port} 127.0.0.1 {port} @ tides 127.0.0.1 {old}");
    watcher.0.listen(published("+selected-slave", &text));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(port_of(&link).await, old, "went to a replica");
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    // As a sentinel does it.
    replica.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    until_so(|| named(&watcher) == Some(place_of(&replica))).await;
    assert_eq!(port_of(&link).await, port);
    assert_eq!(*watcher.0.chosen.borrow(), None);
}

#[tokio::test]
async fn sentinels_have_a_login_of_their_own() {
    let server = Server::start();
    let sentinel = Sentinel::start(server.port(), &["requirepass sesame"]);
    for (password, expected) in [(Some("sesame"), true), (Some("simsim"), false), (None, false)] {
        let login =
            RedisConnectionInfo { password: password.map(Into::into), ..Default::default() };
        let sentinels = Sentinels {
            places: vec![local(sentinel.port())],
            master: MASTER.into(),
            dialer: Dialer::new(login),
        };
        let link = follow(&Watcher::new(sentinels, plain(), Duration::from_secs(1)));
        if expected {
            assert_eq!(port_of(&link).await, server.port());
            continue;
        }
        sleep(Duration::from_millis(300)).await;
        let error = link.call_until(soon(), &redis::cmd("PING")).await.unwrap_err().to_string();
        assert!(error.contains("no sentinel of \"tides\" answers"), "{error}");
        assert!(!error.contains("simsim"), "{error}");
    }
}

/// The one that the documentation gives.
#[tokio::test]
async fn a_login_for_nothing_but_the_sentinels_questions_suffices() {
    let docs = include_str!("../../../../docs/redis.md");
    let server = Server::start();
    let sentinel = Sentinel::start(server.port(), &[]);
    for line in docs.lines().filter(|line| line.starts_with("ACL SETUSER tidegate-sentinel ")) {
        assert_eq!(sentinel.cli(&line.split(' ').collect::<Vec<_>>()), "OK");
    }
    let (username, password) = (Some("tidegate-sentinel".into()), Some("change-me".into()));
    let dialer = Dialer::new(RedisConnectionInfo { username, password, ..Default::default() });
    let places = vec![local(sentinel.port())];
    let sentinels = Sentinels { places, master: MASTER.into(), dialer };
    let link = follow(&Watcher::new(sentinels, plain(), Duration::from_secs(1)));
    assert_eq!(port_of(&link).await, server.port());
    let clients = sentinel.cli(&["CLIENT", "LIST"]);
    let ours = clients.lines().find(|line| line.contains("user=tidegate-sentinel")).unwrap();
    assert!(ours.contains(" sub=2 "), "not subscribed: {ours}");
}

#[tokio::test]
async fn the_last_link_takes_the_watcher_and_its_connections_with_it() {
    let server = Server::start();
    let sentinel = Sentinel::start(server.port(), &[]);
    let clients = || sentinel.cli(&["CLIENT", "LIST"]).lines().count();
    let others = clients();
    let places = vec![local(sentinel.port())];
    let sentinels = Sentinels { places, master: MASTER.into(), dialer: plain() };
    let watcher = Watcher::new(sentinels, plain(), Duration::from_secs(1));
    let shared = Arc::downgrade(&watcher.0);
    let link = follow(&watcher);
    drop(watcher);
    assert_eq!(port_of(&link).await, server.port());
    assert_eq!(clients(), others + 1);
    drop(link);
    until_so(|| shared.strong_count() == 0).await;
    until_so(|| clients() == others).await;
}

#[tokio::test]
async fn a_server_says_whether_it_is_a_primary() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let listening = plain().with_listener(Arc::new(|_| {}));
    for dialer in [plain(), listening] {
        let dial =
            async |server: &Server| -> Connection { dialer.dial(&place_of(server)).await.unwrap() };
        assert!(is_primary(dial(&primary).await).await.unwrap());
        assert!(!is_primary(dial(&replica).await).await.unwrap());
    }
}

/// Less than what makes an opinion too old.
const RECENT_ENOUGH: Duration = Duration::from_secs(2);

fn at(host: &str) -> Place {
    Place::Tcp { host: host.into(), port: 1 }
}

fn local(port: u16) -> Place {
    Place::Tcp { host: "127.0.0.1".into(), port }
}

fn place_of(server: &Server) -> Place {
    local(server.port())
}

fn word_of(letter: char) -> Word {
    match letter {
        '?' => Word::Unknown,
        '-' => Word::Nothing("no answer".into()),
        host => Word::At(at(&host.to_string())),
    }
}

fn published(channel: &str, text: &str) -> PushInfo {
    let word = |word: &str| Value::BulkString(word.as_bytes().to_vec());
    PushInfo { kind: PushKind::Message, data: vec![word(channel), word(text)] }
}

fn plain() -> Dialer {
    Dialer::new(RedisConnectionInfo::default())
}

/// Sentinels that nobody reaches.
fn watcher_of(count: usize) -> Watcher {
    let places = vec![at("name.invalid"); count];
    let sentinels = Sentinels { places, master: MASTER.into(), dialer: plain() };
    Watcher::new(sentinels, plain(), Duration::from_secs(1))
}

fn named(watcher: &Watcher) -> Option<Place> {
    watcher.0.named.borrow().clone().ok()
}

fn follow(watcher: &Watcher) -> Link {
    Link::new(Aim::Primary(watcher.clone()), plain(), Settings::default())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(100)
}

fn late() -> Instant {
    Instant::now() + PATIENCE
}

/// Whom the link asks.
async fn port_of(link: &Link) -> u16 {
    let mut cmd = redis::cmd("CONFIG");
    cmd.arg("GET").arg("port");
    let answer = link.call_until(late(), &cmd).await.unwrap();
    let words: Vec<String> = redis::from_redis_value(&answer).unwrap();
    words[1].parse().unwrap()
}

async fn until_so(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("it does not come about");
}
