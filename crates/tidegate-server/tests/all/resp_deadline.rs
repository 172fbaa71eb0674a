//! How long a client may take, on a clock that the test turns.
use std::time::Duration;

use crate::{in_process, resp, support};
use in_process::Door;
use resp::{Client, command};
use support::wait_until;
use tidegate::Clock;
use tidegate_server::tokens::Tokens;

const DEADLINE: Duration = Duration::from_secs(10);
const ALMOST: Duration = Duration::from_millis(9_999);

/// Waits until the server waits for somebody.
fn await_deadline(door: &Door) {
    wait_until(|| door.clock.next_wake().filter(|wake| *wake > door.clock.elapsed()))
        .expect("somebody has a deadline");
}

fn is_cut_off(mut client: Client) -> bool {
    matches!(client.try_receive(), Ok(None))
}

/// Those who were cut off without having asked anything, as the metrics have it.
fn silent_ones(door: &Door) -> u64 {
    let text = door.service.metrics().render(&door.service.health());
    let name = r#"tidegate_connections_refused_total{door="resp",reason="silent"} "#;
    let count = text.lines().find_map(|line| line.strip_prefix(name)).expect("it is counted");
    count.parse().unwrap()
}

#[test]
fn who_does_not_say_who_they_are_is_cut_off() {
    let door = Door::with_tokens(Tokens::new(Some("sesame"), None));
    let silent = Client::connect(door.address);
    await_deadline(&door);
    let mut talking = Client::connect(door.address);
    assert!(talking.ask("PING").to_string().starts_with("-NOAUTH"));
    let mut known = Client::connect(door.address);
    assert!(known.ask("AUTH sesame").is("+OK"));
    door.clock.advance(ALMOST);
    // Talk alone does not help.
    assert!(talking.ask("PING").to_string().starts_with("-NOAUTH"));
    door.clock.advance(Duration::from_millis(1));
    assert!(is_cut_off(silent) && is_cut_off(talking));
    door.clock.advance(DEADLINE * 1_000);
    assert!(known.ask("PING").is("+PONG"), "it may be silent for as long as it likes");
}

#[test]
fn who_never_sends_a_whole_command_is_cut_off() {
    let door = Door::open();
    let silent = Client::connect(door.address);
    await_deadline(&door);
    // Half a command, and lines that are none.
    let mut half = Client::connect(door.address);
    half.write(b"*1\r\n$4\r\nPI");
    let mut empty = Client::connect(door.address);
    empty.write(b"\r\n\r\n");
    // One that comes later has been seen once it is answered, and so have they.
    let mut asks = Client::connect(door.address);
    assert!(asks.ask("PING").is("+PONG"));
    door.clock.advance(DEADLINE);
    assert!(is_cut_off(silent) && is_cut_off(half) && is_cut_off(empty));
    assert_eq!(silent_ones(&door), 3);
    door.clock.advance(DEADLINE * 1_000);
    assert!(asks.ask("PING").is("+PONG"));
}

#[test]
fn a_request_that_is_not_finished_in_time_is_cut_off() {
    let door = Door::open();
    let mut client = Client::connect(door.address);
    assert!(client.ask("PING").is("+PONG"));
    door.clock.advance(DEADLINE * 1_000);
    assert!(client.ask("PING").is("+PONG"), "it may be silent for as long as it likes");

    // Byte by byte, but in time.
    let ping = command(&["PING"]);
    let (first, rest) = ping.split_at(5);
    client.write(first);
    await_deadline(&door);
    door.clock.advance(ALMOST);
    client.write(rest);
    assert!(client.receive().is("+PONG"));
    door.clock.advance(DEADLINE * 1_000);

    // A new one has a new deadline, and more bytes do not move it.
    client.write(first);
    await_deadline(&door);
    door.clock.advance(ALMOST);
    client.write(&rest[..2]);
    door.clock.advance(Duration::from_millis(1));
    assert!(is_cut_off(client));
    assert_eq!(silent_ones(&door), 0, "it had asked before");
}
