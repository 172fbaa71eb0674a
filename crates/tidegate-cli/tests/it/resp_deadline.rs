//! Timeouts of clients, on a manual clock.
use std::time::Duration;

use testkit::resp::{RespConnection, command};
use testkit::resp_listener::RespListener;
use testkit::server::wait_until;
use tidegate::Clock;
use tidegate_server::internal::transport::auth::AuthTokens;

const DEADLINE: Duration = Duration::from_secs(10);
const ALMOST: Duration = Duration::from_millis(9_999);

/// Waits until the server has a timer.
fn await_deadline(endpoint: &RespListener) {
    wait_until(|| endpoint.clock.next_wake().filter(|wake| *wake > endpoint.clock.elapsed()))
        .expect("a client has a deadline");
}

fn is_cut_off(mut client: RespConnection) -> bool {
    matches!(client.try_receive(), Ok(None))
}

/// Connections closed before their first command, by the metrics.
fn silent_ones(endpoint: &RespListener) -> u64 {
    let text = endpoint.service.metrics().render(&endpoint.service.health());
    let name = r#"tidegate_connections_refused_total{listener="resp",reason="silent"} "#;
    let count = text.lines().find_map(|line| line.strip_prefix(name)).expect("it is counted");
    count.parse().unwrap()
}

#[test]
fn who_does_not_say_who_they_are_is_cut_off() {
    let endpoint = RespListener::with_tokens(AuthTokens::new(Some("sesame"), None));
    let silent = RespConnection::connect(endpoint.address);
    await_deadline(&endpoint);
    let mut talking = RespConnection::connect(endpoint.address);
    assert!(talking.send("PING").to_string().starts_with("-NOAUTH"));
    let mut known = RespConnection::connect(endpoint.address);
    assert!(known.send("AUTH sesame").is("+OK"));
    endpoint.clock.advance(ALMOST);
    // Incomplete input does not extend the deadline.
    assert!(talking.send("PING").to_string().starts_with("-NOAUTH"));
    endpoint.clock.advance(Duration::from_millis(1));
    assert!(is_cut_off(silent) && is_cut_off(talking));
    endpoint.clock.advance(DEADLINE * 1_000);
    assert!(known.send("PING").is("+PONG"), "it may be silent for as long as it likes");
}

#[test]
fn who_never_sends_a_whole_command_is_cut_off() {
    let endpoint = RespListener::open();
    let silent = RespConnection::connect(endpoint.address);
    await_deadline(&endpoint);
    // Half a command, and empty lines.
    let mut half = RespConnection::connect(endpoint.address);
    half.write(b"*1\r\n$4\r\nPI");
    let mut empty = RespConnection::connect(endpoint.address);
    empty.write(b"\r\n\r\n");
    // A later client has its reply, so the earlier ones were read.
    let mut later = RespConnection::connect(endpoint.address);
    assert!(later.send("PING").is("+PONG"));
    endpoint.clock.advance(DEADLINE);
    assert!(is_cut_off(silent) && is_cut_off(half) && is_cut_off(empty));
    assert_eq!(silent_ones(&endpoint), 3);
    endpoint.clock.advance(DEADLINE * 1_000);
    assert!(later.send("PING").is("+PONG"));
}

#[test]
fn a_request_that_is_not_finished_in_time_is_cut_off() {
    let endpoint = RespListener::open();
    let mut client = RespConnection::connect(endpoint.address);
    assert!(client.send("PING").is("+PONG"));
    endpoint.clock.advance(DEADLINE * 1_000);
    assert!(client.send("PING").is("+PONG"), "it may be silent for as long as it likes");

    // Byte by byte, but in time.
    let ping = command(&["PING"]);
    let (first, rest) = ping.split_at(5);
    client.write(first);
    await_deadline(&endpoint);
    endpoint.clock.advance(ALMOST);
    client.write(rest);
    assert!(client.receive().is("+PONG"));
    endpoint.clock.advance(DEADLINE * 1_000);

    // A new command has a new deadline, and more bytes do not extend it.
    client.write(first);
    await_deadline(&endpoint);
    endpoint.clock.advance(ALMOST);
    client.write(&rest[..2]);
    endpoint.clock.advance(Duration::from_millis(1));
    assert!(is_cut_off(client));
    assert_eq!(silent_ones(&endpoint), 0, "it had sent a command before");
}

#[test]
fn a_long_transaction_is_executed_in_time_or_cut_off() {
    let endpoint = RespListener::open();
    let mut small = RespConnection::connect(endpoint.address);
    assert!(small.send("MULTI").is("+OK"));
    assert!(small.send("PING").is("+QUEUED"));
    endpoint.clock.advance(DEADLINE * 1_000);
    assert!(small.send("EXEC").is("[+PONG]"), "a short one may take as long as it likes");

    let long = command(&["ECHO", &"x".repeat(5_000)]);
    let mut queue = |then: &[u8]| {
        small.write(&[command(&["MULTI"]), long.clone()].concat());
        assert!(small.receive().is("+OK") && small.receive().is("+QUEUED"));
        await_deadline(&endpoint);
        endpoint.clock.advance(ALMOST);
        small.write(then);
        small.receive()
    };
    assert_eq!(queue(&command(&["EXEC"])).items().len(), 1);
    endpoint.clock.advance(DEADLINE * 1_000);
    // More commands do not extend the deadline.
    assert!(queue(&command(&["PING"])).is("+QUEUED"));
    endpoint.clock.advance(Duration::from_millis(1));
    assert!(is_cut_off(small));
}

#[test]
fn after_reset_a_client_authenticates_in_time_or_is_cut_off() {
    let endpoint = RespListener::with_tokens(AuthTokens::new(Some("sesame"), None));
    let mut client = RespConnection::connect(endpoint.address);
    assert!(client.send("AUTH sesame").is("+OK"));
    endpoint.clock.advance(DEADLINE * 1_000);
    assert!(client.send("RESET").is("+RESET"));
    await_deadline(&endpoint);
    endpoint.clock.advance(ALMOST);
    assert!(client.send("AUTH sesame").is("+OK"));
    endpoint.clock.advance(DEADLINE * 1_000);
    assert!(client.send("RESET").is("+RESET"));
    await_deadline(&endpoint);
    endpoint.clock.advance(ALMOST);
    assert!(client.send("PING").to_string().starts_with("-NOAUTH"));
    endpoint.clock.advance(Duration::from_millis(1));
    assert!(is_cut_off(client));
}
