//! MULTI, EXEC, DISCARD, WATCH and RESET of the real server.
use std::net::SocketAddr;

use testkit::resp::{RespConnection, command};
use testkit::server::{ServerProcess, TempFolder, wait_until};

const POLICY: &str = r#"
rules:
  - name: login
    limits: ["sliding-log 3/1h"]
  - name: api
    limits: ["10000/1h"]
"#;

const EXECABORT: &str = "-EXECABORT Transaction discarded because of previous errors.";
const NO_MULTI: &str = "-ERR EXEC without MULTI";
const UNUSED: &str = "[1, 3, 3, 0, 0, 0, login, memory]";

fn server() -> ServerProcess {
    ServerProcess::with_policy(POLICY)
}

/// A connection with RESP2 and one with RESP3. Each has a key of its own.
fn each_protocol(address: SocketAddr) -> impl Iterator<Item = (RespConnection, String)> {
    ["2", "3"].into_iter().map(move |protocol| {
        let mut client = RespConnection::connect(address);
        client.send_args(&["HELLO", protocol]);
        (client, format!("k{protocol}"))
    })
}

/// Sends the commands in order; `#` stands for the key.
fn in_order(client: &mut RespConnection, key: &str, table: &[(&str, &str)]) {
    for (line, expected) in table {
        let line = line.replace('#', key);
        let reply = client.send(&line);
        assert!(reply.is(expected), "{line}: {reply}, not {expected}");
    }
}

#[test]
fn a_transaction_charges_at_exec_and_not_before() {
    let server = server();
    for (mut client, key) in each_protocol(server.resp) {
        in_order(
            &mut client,
            &key,
            &[
                ("MULTI", "+OK"),
                ("TG.CHECK login #", "+QUEUED"),
                ("TG.CHECK login # COST 2", "+QUEUED"),
                ("TG.CHECK login #", "+QUEUED"),
                ("PING", "+QUEUED"),
            ],
        );
        let mut other = RespConnection::connect(server.resp);
        in_order(&mut other, &key, &[("TG.PEEK login #", UNUSED)]);
        let replies = client.send("EXEC");
        let expected = "[[1, 3, 2, 0, 3600000, 0, login, memory], \
                        [1, 3, 0, 0, ~3600000, 0, login, memory], \
                        [0, 3, 0, ~3600000, ~3600000, 0, login, memory], +PONG]";
        assert!(replies.is(expected), "{replies}");
        in_order(&mut client, &key, &[("EXEC", NO_MULTI), ("MULTI", "+OK"), ("EXEC", "[]")]);
    }
}

#[test]
fn an_aborted_transaction_charges_nothing() {
    let server = server();
    for (mut client, key) in each_protocol(server.resp) {
        for refused in
            ["NOPE", "TG.CHECK login", "TG.RESET login #", "AUTH x", "HELLO 3", "DISCARD now"]
        {
            in_order(&mut client, &key, &[("MULTI", "+OK"), ("TG.CHECK login #", "+QUEUED")]);
            let reply = client.send(&refused.replace('#', &key)).to_string();
            assert!(reply.starts_with('-'), "{refused}: {reply}");
            in_order(
                &mut client,
                &key,
                &[
                    ("TG.CHECK login #", "+QUEUED"),
                    ("EXEC", EXECABORT),
                    ("EXEC", NO_MULTI),
                    ("TG.PEEK login #", UNUSED),
                ],
            );
        }
    }
}

#[test]
fn a_discarded_transaction_charges_nothing() {
    let server = server();
    for (mut client, key) in each_protocol(server.resp) {
        in_order(
            &mut client,
            &key,
            &[
                ("DISCARD", "-ERR DISCARD without MULTI"),
                ("MULTI", "+OK"),
                ("TG.CHECK login #", "+QUEUED"),
                ("DISCARD", "+OK"),
                ("EXEC", NO_MULTI),
                ("TG.PEEK login #", UNUSED),
            ],
        );
        // Neither does one whose connection ends.
        in_order(&mut client, &key, &[("MULTI", "+OK"), ("TG.CHECK login #", "+QUEUED")]);
        in_order(&mut client, &key, &[("QUIT", "+OK")]);
        assert!(client.finish().unwrap().is_empty());
        in_order(&mut RespConnection::connect(server.resp), &key, &[("TG.PEEK login #", UNUSED)]);
    }
}

#[test]
fn multi_and_watch_inside_a_transaction_are_errors_that_do_not_abort_it() {
    let server = server();
    for (mut client, key) in each_protocol(server.resp) {
        in_order(
            &mut client,
            &key,
            &[
                ("WATCH # other", "+OK"),
                ("UNWATCH", "+OK"),
                ("WATCH #", "+OK"),
                ("MULTI", "+OK"),
                ("MULTI", "-ERR MULTI calls can not be nested"),
                ("WATCH #", "-ERR WATCH inside MULTI is not allowed"),
                ("UNWATCH", "+QUEUED"),
                ("TG.CHECK login #", "+QUEUED"),
                ("EXEC", "[+OK, [1, 3, 2, 0, 3600000, 0, login, memory]]"),
            ],
        );
    }
}

#[test]
fn an_error_of_one_command_is_one_element_and_the_others_run() {
    let server = server();
    for (mut client, key) in each_protocol(server.resp) {
        in_order(
            &mut client,
            &key,
            &[
                ("MULTI", "+OK"),
                ("TG.CHECK missing #", "+QUEUED"),
                ("TG.CHECK login # COST x", "+QUEUED"),
                ("TG.CHECK login #", "+QUEUED"),
                (
                    "EXEC",
                    "[-NORULE no rule named \"missing\", -ERR value is not a whole number from 0 to 2^53; \
                     usage: TG.CHECK rule key [COST n] [ID id] [NAMED], [1, 3, 2, 0, 3600000, 0, login, memory]]",
                ),
            ],
        );
    }
}

#[test]
fn a_transaction_that_is_too_long_charges_nothing() {
    const MAX: usize = 1_024;
    let server = server();
    let check = check();
    let long = command(&["ECHO", &"x".repeat(65_536)]);
    let full = "-ERR transaction too long; at most 1024 commands and 128 KiB";
    for (one, most) in [(&check, MAX), (&long, 2)] {
        let mut client = RespConnection::connect(server.resp);
        assert!(client.send("MULTI").is("+OK"));
        client.write(&check);
        client.write(&one.repeat(most));
        let replies: Vec<_> = (0..=most).map(|_| client.receive()).collect();
        let (last, queued) = replies.split_last().unwrap();
        assert!(queued.iter().all(|reply| reply.is("+QUEUED")));
        assert!(last.is(full), "{last}");
        assert!(client.send("EXEC").is(EXECABORT));
    }
    let mut client = RespConnection::connect(server.resp);
    assert_eq!(client.send("TG.PEEK api k").items()[2].integer(), 10_000);
    // The longest one runs. Its reply is longer than what the server buffers.
    let longest = [command(&["MULTI"]), command(&["COMMAND"]).repeat(MAX), command(&["EXEC"])];
    client.write(&longest.concat());
    assert!(client.receive().is("+OK"));
    assert!((0..MAX).all(|_| client.receive().is("+QUEUED")));
    let commands = client.receive();
    let one = client.send("COMMAND");
    assert_eq!(commands.items().len(), MAX);
    assert!(commands.items().iter().all(|reply| *reply == one));
}

#[test]
fn queued_commands_share_the_budget_of_incomplete_requests() {
    const CLIENTS: usize = 60;
    let server = server();
    // 60 times 120 kB are more than the 5 MiB of the listener.
    let long = command(&["ECHO", &"x".repeat(60_000)]).repeat(2);
    let transaction = [command(&["MULTI"]), check(), long].concat();
    let queue = || {
        let mut client = RespConnection::connect(server.resp);
        client.write(&transaction);
        let replies: Vec<_> = (0..4).map_while(|_| client.try_receive().ok()?).collect();
        let is_queued = replies.iter().skip(1).all(|reply| reply.is("+QUEUED"));
        (client, replies.len() == 4 && is_queued)
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| queue()).collect();
    let queued = clients.iter().filter(|(_, queued)| *queued).count();
    assert!((1..CLIENTS).contains(&queued), "{queued} of {CLIENTS}");
    let mut other = RespConnection::connect(server.resp);
    assert!(other.send("PING").is("+PONG"), "short commands need no room");
    let mut first = clients.into_iter().next().unwrap().0;
    assert_eq!(first.send("EXEC").items().len(), 3);
    assert_eq!(other.send("TG.PEEK api k").items()[2].integer(), 9_999, "the others had no EXEC");
    // The room of connections that have ended is free again.
    assert!(wait_until(|| queue().1.then_some(())).is_some());
}

fn check() -> Vec<u8> {
    command(&["TG.CHECK", "api", "k"])
}

#[test]
fn reset_brings_a_connection_back_to_its_start() {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let server = ServerProcess::start(
        &["--config", file.to_str().unwrap()],
        &[("TIDEGATE_TOKEN", "sesame")],
    );
    let no_auth = "-NOAUTH authentication required; send AUTH with the token";
    let mut client = RespConnection::connect(server.resp);
    in_order(&mut client, "k", &[("RESET", "+RESET"), ("PING", no_auth)]);
    client.send("HELLO 3 AUTH default sesame SETNAME me");
    in_order(
        &mut client,
        "k",
        &[
            ("CLIENT GETNAME", "me"),
            ("MULTI", "+OK"),
            ("TG.CHECK login #", "+QUEUED"),
            ("RESET", "+RESET"),
            ("EXEC", no_auth),
            ("AUTH sesame", "+OK"),
            ("EXEC", NO_MULTI),
            // RESP2 has this null value.
            ("CLIENT GETNAME", "nil"),
            ("TG.PEEK login #", UNUSED),
        ],
    );
    // Wrong tokens are still counted: ten of them, and the next error closes the connection.
    for _ in 0..9 {
        in_order(&mut client, "k", &[("AUTH no", "-WRONGPASS invalid token"), ("RESET", "+RESET")]);
    }
    client.write(&command(&["AUTH", "no"]));
    assert_eq!(client.finish().unwrap().len(), 1);
}

#[test]
fn a_client_can_find_the_keys_of_a_command() {
    let server = server();
    let keyless = "[ping, -1, [], 0, 0, 0, [], [], [], []]";
    for (mut client, _) in each_protocol(server.resp) {
        let is_map = client.send("CONFIG GET port").to_string() == "{}";
        for (name, first, last, step, range) in [
            ("cl.throttle", 1, 1, 1, 0),
            ("tg.peek", 2, 2, 1, 0),
            ("tg.mcheck", 3, -2, 3, -2),
            ("del", 1, -1, 1, -1),
        ] {
            let reply = client.send_args(&["COMMAND", "INFO", name, "PING"]);
            let arity = reply.items()[0].items()[1].integer();
            let keys = if is_map {
                format!(
                    "{{flags: [], begin_search: {{type: index, spec: {{index: {first}}}}}, \
                     find_keys: {{type: range, spec: \
                     {{lastkey: {range}, keystep: {step}, limit: 0}}}}}}"
                )
            } else {
                format!(
                    "[flags, [], begin_search, [type, index, spec, [index, {first}]], \
                     find_keys, [type, range, spec, \
                     [lastkey, {range}, keystep, {step}, limit, 0]]]"
                )
            };
            let expected = format!(
                "[[{name}, {arity}, [], {first}, {last}, {step}, [], [], [{keys}], []], {keyless}]"
            );
            assert!(reply.is(&expected), "{reply}, not {expected}");
        }
    }
}
