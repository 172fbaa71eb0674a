//! The Redis protocol of the real server, command by command.
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use crate::{resp, support};
use resp::{Client, Random, Reply, command};
use support::{Folder, Server, pause};

const POLICY: &str = r#"
rules:
  - name: login
    limits: ["sliding-log 3/1h"]
  - name: api
    limits: ["fixed-window 100/24h first-hit", "10/1h"]
  - name: jobs
    limits: ["concurrency 2 lease 30s"]
  - name: queue
    limits: ["leaky-bucket 1/100s capacity 3 queue"]
  - name: closed
    limits: ["0/1h"]
  - name: shared
    limits: ["1000/36500d"]
  - name: guests
    limits: ["1/1h"]
    allow: [gold]
    deny: [villain]
"#;

const SYNTAX: &str = "-ERR syntax error; see the documentation of this command";
const CONFIG: &str = "-ERR the policy file configures this server; there is only CONFIG GET";
const UNKNOWN: &str = "-ERR unknown command; this is tidegate, try COMMAND LIST for what there is";

fn server() -> Server {
    Server::with_policy(POLICY)
}

fn with_tokens(variables: &[(&str, &str)]) -> Server {
    let file = Folder::new().write("policy.yaml", POLICY);
    Server::start(&["--config", file.to_str().unwrap()], variables)
}

/// Asks one command after the other in both protocols. `#` stands for the protocol, so that each
/// has keys of its own.
fn each_protocol(address: SocketAddr, table: &[(&str, &str)]) {
    for protocol in ["2", "3"] {
        let mut client = Client::connect(address);
        client.ask_words(&["HELLO", protocol]);
        in_order(&mut client, protocol, table);
    }
}

fn in_order(client: &mut Client, id: &str, table: &[(&str, &str)]) {
    for (line, expected) in table {
        let (line, expected) = (line.replace('#', id), expected.replace('#', id));
        let reply = client.ask(&line);
        assert!(reply.is(&expected), "{line}: {reply}, not {expected}");
    }
}

// --- questions ---------------------------------------------------------------------------------

#[test]
fn a_check_tells_eight_things() {
    each_protocol(
        server().resp,
        &[
            ("TG.CHECK login a#", "[1, 3, 2, 0, 3600000, 0, login, memory]"),
            ("tg.check login a# cost 2", "[1, 3, 0, 0, 3600000, 0, login, memory]"),
            ("TG.CHECK login a#", "[0, 3, 0, ~3600000, ~3600000, 0, login, memory]"),
            // What can never pass has no time to come back.
            ("TG.CHECK login b# COST 4", "[0, 3, 3, -1, 0, 0, login, memory]"),
            ("TG.CHECK closed b#", "[0, 0, 0, -1, 0, 0, closed, memory]"),
            // Of two limits, the one with the least left speaks.
            ("TG.CHECK api a# COST 4", "[1, 10, 6, 0, 1440000, 0, api, memory]"),
            // A queue lets it pass later.
            ("TG.CHECK queue a#", "[1, 3, 2, 0, 100000, 0, queue, memory]"),
            ("TG.CHECK queue a#", "[1, 3, 1, 0, ~200000, ~100000, queue, memory]"),
            ("TG.CHECK queue a# COST 2", "[0, 3, 1, ~100000, ~200000, 0, queue, memory]"),
            // No limit applies, or none is asked.
            ("TG.CHECK guests gold", "[1, -1, -1, 0, 0, 0, guests, policy]"),
            ("TG.CHECK guests villain", "[0, 1, 0, -1, 0, 0, guests, policy]"),
            ("TG.CHECK jobs a#", "-ERR concurrency counts holders; use TG.RESERVE and TG.CANCEL"),
            ("TG.CHECK nobody a#", "-NORULE no such rule"),
        ],
    );
}

#[test]
fn an_id_charges_once() {
    let other = "-ERR the ID was used for another request; use a new one";
    each_protocol(
        server().resp,
        &[
            ("TG.CHECK login a# COST 2 ID x", "[1, 3, 1, 0, 3600000, 0, login, memory]"),
            ("TG.CHECK login a# COST 2 ID x", "[1, 3, 1, 0, 3600000, 0, login, memory]"),
            ("TG.CHECK login a# ID x COST 2", "[1, 3, 1, 0, 3600000, 0, login, memory]"),
            ("TG.CHECK login a# COST 1 ID x", other),
            ("TG.PEEK login a#", "[1, 3, 1, 0, ~3600000, 0, login, memory]"),
            ("TG.CHECK login b# COST 1 ID x", "[1, 3, 2, 0, 3600000, 0, login, memory]"),
            ("TG.LIMIT 5/h a# COST 2 ID y", "[1, 5, 3, 0, 1440000, 0, adhoc, memory]"),
            ("TG.LIMIT 5/h a# COST 2 ID y", "[1, 5, 3, 0, 1440000, 0, adhoc, memory]"),
        ],
    );
}

#[test]
fn a_peek_takes_nothing_and_is_denied_only_in_debt() {
    each_protocol(
        server().resp,
        &[
            ("TG.PEEK login a#", "[1, 3, 3, 0, 0, 0, login, memory]"),
            ("TG.CHECK login a# COST 0", "[1, 3, 3, 0, 0, 0, login, memory]"),
            ("TG.PEEK closed a#", "[1, 0, 0, -1, 0, 0, closed, memory]"),
            ("TG.CHECK login a# COST 3", "[1, 3, 0, 0, 3600000, 0, login, memory]"),
            // It tells how long a cost of 1 would wait.
            ("TG.PEEK login a#", "[1, 3, 0, ~3600000, ~3600000, 0, login, memory]"),
            ("TG.RECORD login a# 1", "1"),
            ("TG.PEEK login a#", "[0, 3, 0, ~3600000, ~3600000, 0, login, memory]"),
        ],
    );
}

#[test]
fn a_limit_of_ones_own_counts_by_key() {
    let server = server();
    each_protocol(
        server.resp,
        &[
            ("TG.LIMIT 5/h a#", "[1, 5, 4, 0, 720000, 0, adhoc, memory]"),
            ("TG.LIMIT 5/h a# COST 5", "[0, 5, 4, ~720000, ~720000, 0, adhoc, memory]"),
            ("TG.LIMIT 5/h b# COST 5", "[1, 5, 0, 0, 3600000, 0, adhoc, memory]"),
            ("TG.LIMIT often a#", "-ERR not a limit; write one like 100/s or sliding-log 5/1m"),
        ],
    );
    let mut client = Client::connect(server.resp);
    let reply = client.ask_words(&["TG.LIMIT", "sliding-log 5/1m", "a key"]);
    assert!(reply.is("[1, 5, 4, 0, 60000, 0, adhoc, memory]"), "{reply}");
}

#[test]
fn limits_of_ones_own_can_be_turned_off() {
    let server = Server::with_policy(&format!("adhoc: false{POLICY}"));
    let off = "-ERR limits of your own are turned off; use TG.CHECK with a rule";
    each_protocol(
        server.resp,
        &[
            ("TG.LIMIT 5/h a#", off),
            ("CL.THROTTLE a# 15 30 60", off),
            ("DEL a#", off),
            ("TG.CHECK login a#", "[1, 3, 2, 0, 3600000, 0, login, memory]"),
        ],
    );
}

#[test]
fn many_checks_are_charged_all_or_none() {
    each_protocol(
        server().resp,
        &[
            (
                "TG.MCHECK 2 login a# 1 api a# 2",
                "[1, 3, 2, 0, 3600000, 0, login, memory, \
                 [[1, 3, 2, 0, 3600000, 0, login, memory], \
                 [1, 100, 98, 0, 86400000, 0, api, memory], \
                 [1, 10, 8, 0, 720000, 0, api, memory]]]",
            ),
            // The second is full, so the first is not charged either.
            (
                "TG.MCHECK 2 api a# 2 login a# 3",
                "[0, 3, 2, ~3600000, ~3600000, 0, login, memory, \
                 [[1, 100, 98, 0, ~86400000, 0, api, memory], \
                 [1, 10, 8, 0, ~720000, 0, api, memory], \
                 [0, 3, 2, ~3600000, ~3600000, 0, login, memory]]]",
            ),
            ("TG.PEEK api a#", "[1, 10, 8, 0, ~720000, 0, api, memory]"),
            // Nothing but costs of 0 peeks.
            (
                "TG.MCHECK 1 login a# 0",
                "[1, 3, 2, 0, ~3600000, 0, login, memory, \
                 [[1, 3, 2, 0, ~3600000, 0, login, memory]]]",
            ),
            ("TG.MCHECK 2 login a# 1 nobody a# 1", "-NORULE no such rule"),
            ("TG.PEEK login a#", "[1, 3, 2, 0, ~3600000, 0, login, memory]"),
            ("TG.MCHECK 0 login a# 1", "-ERR the number of checks must be from 1 to 16"),
            ("TG.MCHECK 17 login a# 1", "-ERR the number of checks must be from 1 to 16"),
            ("TG.MCHECK 2 login a# 1", SYNTAX),
            ("TG.MCHECK 1 login a# 1 login a# 1", SYNTAX),
        ],
    );
}

#[test]
fn what_happened_is_recorded_and_given_back() {
    each_protocol(
        server().resp,
        &[
            ("TG.RECORD login a# 2", "1"),
            ("TG.PEEK login a#", "[1, 3, 1, 0, ~3600000, 0, login, memory]"),
            ("TG.REFUND login a# 1", "1"),
            ("TG.PEEK login a#", "[1, 3, 2, 0, ~3600000, 0, login, memory]"),
            // More than was used gives back what was used.
            ("TG.REFUND login a# 9", "1"),
            ("TG.PEEK login a#", "[1, 3, 3, 0, 0, 0, login, memory]"),
            ("TG.RECORD nobody a# 1", "-NORULE no such rule"),
            ("TG.REFUND nobody a# 1", "-NORULE no such rule"),
        ],
    );
}

// --- reservations ------------------------------------------------------------------------------

/// The id of a reservation that must be given.
fn reserve(client: &mut Client, line: &str) -> String {
    let reply = client.ask(line);
    assert_eq!(reply.items().len(), 9, "{line}: {reply}");
    let id = reply.items()[0].text();
    assert!(id.len() >= 32, "too few bits to be secret: {id}");
    id
}

#[test]
fn a_reservation_is_committed_cancelled_or_renewed() {
    let server = server();
    for protocol in ["2", "3"] {
        let mut client = Client::connect(server.resp);
        client.ask_words(&["HELLO", protocol]);
        let left = |client: &mut Client| {
            client.ask(&format!("TG.PEEK api r{protocol}")).items()[2].integer()
        };
        let line = format!("TG.RESERVE api r{protocol} 5");

        let reply = client.ask(&line);
        let (id, decision) = reply.items().split_first().unwrap();
        let decision = Reply::Array(decision.to_vec());
        assert!(decision.is("[1, 10, 5, 0, 60000, 0, api, memory]"), "{decision}");

        // What was not used comes back; the same again gives the same answer, another does not.
        let id = id.text();
        assert!(client.ask(&format!("TG.COMMIT {id} 2")).is("1"));
        assert_eq!(left(&mut client), 8);
        assert!(client.ask(&format!("TG.COMMIT {id} 2")).is("1"));
        assert_eq!(left(&mut client), 8);
        let settled = "-ERR the reservation was settled in another way";
        assert!(client.ask(&format!("TG.CANCEL {id}")).is(settled));
        assert_eq!(left(&mut client), 8);

        // Without a cost, all of it is charged.
        let id = reserve(&mut client, &line);
        assert!(client.ask(&format!("TG.COMMIT {id}")).is("1"));
        assert_eq!(left(&mut client), 3);

        // More than is left: no id.
        let reply = client.ask(&line);
        let none = if protocol == "2" { "nil" } else { "null" };
        let denied = format!("[{none}, 0, 10, 3, ~720000, ~2520000, 0, api, memory]");
        assert!(reply.is(&denied), "{reply}");

        let id = reserve(&mut client, &line.replace('5', "3"));
        assert_eq!(left(&mut client), 0);
        assert!(client.ask(&format!("TG.RENEW {id} 60000")).is("1"));
        assert!(client.ask(&format!("TG.CANCEL {id}")).is("1"));
        assert_eq!(left(&mut client), 3);
    }
}

#[test]
fn a_reservation_that_nobody_settles_expires() {
    let server = server();
    let mut client = Client::connect(server.resp);
    // Work that was done is charged, late or not.
    for (settle, left) in [("TG.CANCEL #", 10), ("TG.RENEW # 1000", 10), ("TG.COMMIT # 4", 6)] {
        let id = reserve(&mut client, "TG.RESERVE api r 5 TTL 1");
        pause(Duration::from_millis(20));
        let reply = client.ask(&settle.replace('#', &id));
        assert!(reply.is("0"), "{settle}: {reply}");
        assert_eq!(client.ask("TG.PEEK api r").items()[2], Reply::Integer(left), "{settle}");
    }
}

#[test]
fn holders_are_counted_until_they_let_go() {
    let server = server();
    let (mut one, mut other) = (Client::connect(server.resp), Client::connect(server.resp));
    let first = reserve(&mut one, "TG.RESERVE jobs r 1");
    reserve(&mut other, "TG.RESERVE jobs r 1");
    let full = one.ask("TG.RESERVE jobs r 1");
    assert!(full.is("[nil, 0, 2, 0, ~30000, ~30000, 0, jobs, memory]"), "{full}");
    // Any connection may settle what another one made.
    assert!(other.ask(&format!("TG.CANCEL {first}")).is("1"));
    reserve(&mut one, "TG.RESERVE jobs r 1");
}

// --- who may ask -------------------------------------------------------------------------------

#[test]
fn nobody_asks_before_saying_who_they_are() {
    let server = with_tokens(&[("TIDEGATE_TOKEN", "sesame"), ("TIDEGATE_ADMIN_TOKEN", "boss")]);
    let no_auth = "-NOAUTH authentication required; send AUTH with the token";
    let no_admin = "-NOAUTH this needs the admin token; send AUTH with it";
    let wrong = "-WRONGPASS this is not the token";
    let mut client = Client::connect(server.resp);
    in_order(
        &mut client,
        "",
        &[
            ("PING", no_auth),
            ("TG.CHECK login a", no_auth),
            ("TG.RESET login a", no_auth),
            ("CL.THROTTLE a 1 1 1", no_auth),
            ("NOBODY", no_auth),
            ("HELLO 3", "-NOAUTH authentication required; send HELLO with AUTH and the token"),
            ("AUTH sesam", wrong),
            ("AUTH sesamesesame", wrong),
            ("AUTH sesame boss2", wrong),
            ("HELLO 3 AUTH default no", wrong),
            ("PING", no_auth),
            ("AUTH sesame", "+OK"),
            ("PING", "+PONG"),
            ("TG.CHECK login a", "[1, 3, 2, 0, 3600000, 0, login, memory]"),
            // A wrong token takes nothing away, and the token for asking does not reset.
            ("AUTH no", wrong),
            ("PING", "+PONG"),
            ("TG.RESET login a", no_admin),
            ("DEL a", no_admin),
            ("AUTH anybody boss", "+OK"),
            ("TG.RESET login a", "1"),
            ("TG.PEEK login a", "[1, 3, 3, 0, 0, 0, login, memory]"),
            ("TG.RESET nobody a", "-NORULE no such rule"),
            ("DEL a", "0"),
        ],
    );
    let mut client = Client::connect(server.resp);
    let reply = client.ask("HELLO 3 AUTH default sesame SETNAME worker-1");
    assert!(matches!(reply, Reply::Map(_)), "{reply}");
    in_order(&mut client, "", &[("CLIENT GETNAME", "worker-1"), ("TG.RESET login a", no_admin)]);
}

#[test]
fn without_tokens_all_but_changes_are_open() {
    let server = server();
    let mut client = Client::connect(server.resp);
    in_order(
        &mut client,
        "",
        &[
            ("AUTH x", "-ERR AUTH was sent, but the server has no token; set TIDEGATE_TOKEN"),
            (
                "HELLO 3 AUTH u x",
                "-ERR AUTH was sent, but the server has no token; set TIDEGATE_TOKEN",
            ),
            ("PING", "+PONG"),
            (
                "TG.RESET login a",
                "-NOAUTH this needs an admin token, and the server has none; set TIDEGATE_ADMIN_TOKEN",
            ),
            // As with redis-cell.
            ("CL.THROTTLE a 15 30 60 1", "[0, 16, 15, -1, 2]"),
            ("DEL a b", "1"),
            ("DEL a", "0"),
            ("CL.THROTTLE a 15 30 60 0", "[0, 16, 16, -1, 0]"),
        ],
    );
}

// --- what clients send when they connect -------------------------------------------------------

#[test]
fn hello_chooses_the_protocol() {
    let server = server();
    let mut client = Client::connect(server.resp);
    let id = client.ask("CLIENT ID").integer();
    let second = "[server, redis, version, 7.0.0, proto, 2, id, #, mode, standalone, \
                  role, master, modules, []]";
    let third = "{server: redis, version: 7.0.0, proto: 3, id: #, mode: standalone, \
                 role: master, modules: []}";
    in_order(
        &mut client,
        &id.to_string(),
        &[
            ("HELLO", second),
            ("CLIENT GETNAME", "nil"),
            ("HELLO 3", third),
            ("CLIENT GETNAME", "null"),
            ("HELLO", third),
            ("HELLO 4", "-NOPROTO this speaks protocol 2 and 3"),
            ("HELLO 2 SETNAME", SYNTAX),
            ("HELLO 2 SETNAME me LATER", SYNTAX),
            // What was refused has changed nothing.
            ("CLIENT GETNAME", "null"),
            ("HELLO 2 SETNAME me", second),
            ("CLIENT GETNAME", "me"),
        ],
    );
    assert_ne!(Client::connect(server.resp).ask("CLIENT ID").integer(), id);
}

#[test]
fn clients_get_what_they_expect_on_connecting() {
    let long = format!("CLIENT SETNAME {}", "x".repeat(65));
    let name = "-ERR a name has at most 64 visible characters and no spaces";
    each_protocol(
        server().resp,
        &[
            ("PING", "+PONG"),
            ("ping hello", "hello"),
            ("ECHO hi", "hi"),
            ("SELECT 0", "+OK"),
            ("SELECT 1", "-ERR DB index is out of range; there is only 0"),
            ("CLIENT SETINFO LIB-NAME some-lib", "+OK"),
            ("CLIENT SETINFO LIB-VER 1.2.3", "+OK"),
            ("CLIENT SETNAME worker-#", "+OK"),
            ("CLIENT GETNAME", "worker-#"),
            (&long, name),
            ("CLIENT GETNAME", "worker-#"),
            ("CLIENT NO-EVICT on", "+OK"),
            ("CLIENT NO-TOUCH on", "+OK"),
            ("CLIENT KILL x", "-ERR unknown subcommand; use SETNAME, GETNAME, ID, SETINFO or INFO"),
            ("COMMAND COUNT", "24"),
            ("COMMAND INFO tg.peek PING", "[[tg.peek, 3, [], 0, 0, 0], [ping, -1, [], 0, 0, 0]]"),
            ("COMMAND NOPE", "-ERR unknown subcommand; use COUNT, DOCS, INFO or LIST"),
            ("FLUSHALL", UNKNOWN),
            ("GET key", UNKNOWN),
        ],
    );
}

#[test]
fn maps_are_lists_of_pairs_in_the_second_protocol() {
    let server = server();
    let mut client = Client::connect(server.resp);
    in_order(
        &mut client,
        "",
        &[
            ("COMMAND DOCS", "[]"),
            ("COMMAND INFO nobody", "[nil]"),
            ("CONFIG GET save", "[save, ]"),
            ("CONFIG GET appendonly", "[appendonly, no]"),
            ("CONFIG GET port", "[]"),
            ("CONFIG SET save x", CONFIG),
        ],
    );
    let info = client.ask("TG.INFO");
    let keys: Vec<_> = info.items().iter().step_by(2).map(Reply::text).collect();
    assert_eq!(
        keys,
        [
            "version",
            "rules",
            "store_up",
            "tracked_keys",
            "memory_bytes",
            "store_warning",
            "store_circuit",
            "store_resets",
            "store_last_reset"
        ]
    );
    let version = env!("CARGO_PKG_VERSION");
    let known = format!("[{version}, 7, 1, 0]");
    let values = info.items().iter().skip(1).step_by(2).take(4).cloned().collect();
    assert!(Reply::Array(values).is(&known), "{info}");

    client.ask("HELLO 3");
    in_order(
        &mut client,
        "",
        &[
            ("COMMAND DOCS tg.check", "{}"),
            ("COMMAND INFO nobody", "[null]"),
            ("CONFIG GET save", "{save: }"),
            ("CONFIG GET port", "{}"),
            ("TG.CHECK login a", "[1, 3, 2, 0, 3600000, 0, login, memory]"),
        ],
    );
    let Reply::Map(pairs) = client.ask("TG.INFO") else { panic!("a map was expected") };
    let tracked = pairs.iter().find(|(key, _)| key.text() == "tracked_keys");
    assert_eq!(tracked.map(|(_, value)| value.integer()), Some(1));
}

#[test]
fn every_command_is_listed_and_takes_as_many_words_as_it_says() {
    let server = with_tokens(&[("TIDEGATE_ADMIN_TOKEN", "boss")]);
    let mut client = Client::connect(server.resp);
    let listed = client.ask("COMMAND");
    let names: Vec<String> = client.ask("COMMAND LIST").items().iter().map(Reply::text).collect();
    assert_eq!(listed.items().len(), names.len());
    for (entry, name) in listed.items().iter().zip(&names) {
        assert_eq!(&entry.items()[0].text(), name);
        let arity = entry.items()[1].integer();
        let least = usize::try_from(arity.unsigned_abs()).unwrap();
        let ask = |words: usize| {
            let words: Vec<_> = [name.as_str()].into_iter().chain(["1"; 8]).take(words).collect();
            let mut client = Client::connect(server.resp);
            assert!(client.ask("AUTH boss").is("+OK"));
            client.ask_words(&words).to_string()
        };
        let refusal = "-ERR wrong number of arguments; COMMAND INFO and its name tells how many";
        assert!(least == 1 || ask(least - 1) == refusal, "{name} with {} words", least - 1);
        assert_ne!(ask(least), refusal, "{name} with {least} words");
        assert_eq!(ask(least + 1) == refusal, arity > 0, "{name} with {} words", least + 1);
    }
}

#[test]
fn info_is_what_tools_read() {
    let server = server();
    let info = Client::connect(server.resp).ask("INFO server").text();
    for line in ["redis_version:7.0.0", "redis_mode:standalone", "role:master", "rules:7"] {
        assert!(info.lines().any(|other| other == line), "{line} is missing in {info}");
    }
    assert!(info.contains(&format!("process_id:{}\r\n", server.id())));
}

#[test]
fn quit_ends_the_connection_and_what_follows_is_not_done() {
    let server = server();
    let mut client = Client::connect(server.resp);
    client.write(&[command(&["PING"]), command(&["QUIT"]), check("api", "q", 1)].concat());
    let replies = client.finish().unwrap();
    assert_eq!(replies, [Reply::Simple("PONG".into()), Reply::Simple("OK".into())]);
    let left = Client::connect(server.resp).ask("TG.PEEK api q");
    assert!(left.is("[1, 10, 10, 0, 0, 0, api, memory]"), "{left}");
}

// --- many at once ------------------------------------------------------------------------------

fn check(rule: &str, key: &str, cost: u64) -> Vec<u8> {
    command(&["TG.CHECK", rule, key, "COST", &cost.to_string()])
}

#[test]
fn ten_thousand_commands_in_any_pieces_are_answered_in_order() {
    const COMMANDS: u64 = 10_000;
    let server = server();
    let mut random = Random::new(1);
    let (mut sent, mut expected) = (Vec::new(), Vec::new());
    let mut left = 1_000;
    for number in 0..COMMANDS {
        // Something that tells its number, something that counts, and something that is refused.
        match random.below(4) {
            0 => {
                sent.extend(command(&["ECHO", &number.to_string()]));
                expected.push(number.to_string());
            }
            1 => {
                sent.extend(format!("PING {number}\r\n").as_bytes());
                expected.push(number.to_string());
            }
            2 => {
                sent.extend(command(&["TG.CHECK", "nobody", "k"]));
                expected.push("-NORULE no such rule".into());
            }
            _ => {
                sent.extend(check("shared", "k", 1));
                let allowed = u64::from(left > 0);
                left -= allowed;
                expected.push(format!("[{allowed}, 1000, {left}"));
            }
        }
    }
    // The last one comes in two halves, with an age in between.
    sent.extend(command(&["ECHO", "the end"]));
    expected.push("the end".into());
    let half = sent.split_off(sent.len() - 6);

    let mut client = Client::connect(server.resp);
    let mut writer = client.writer();
    let pieces = std::thread::spawn(move || {
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let most = random.pick(&[1, 10, 100, 1_000, 10_000, 100_000]);
            let len = usize::try_from(1 + random.below(most)).unwrap().min(rest.len());
            writer.write_all(&rest[..len]).expect("the door takes bytes");
            rest = &rest[len..];
        }
        writer
    });
    let (last, others) = expected.split_last().unwrap();
    for (number, expected) in others.iter().enumerate() {
        let reply = client.receive().to_string();
        assert!(reply.starts_with(expected), "{number}: {reply}, not {expected}");
    }
    let mut writer = pieces.join().unwrap();
    assert!(is_silent(&client), "half a command is no command");
    writer.write_all(&half).unwrap();
    assert_eq!(client.receive().to_string(), *last);
}

/// Nothing comes for a while.
fn is_silent(client: &Client) -> bool {
    let stream = client.writer();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let came = stream.peek(&mut [0]);
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    came.is_err_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    })
}

#[test]
fn eight_clients_share_one_limit_exactly() {
    const CLIENTS: usize = 8;
    const CHECKS: usize = 1_000;
    let server = server();
    let allowed = || {
        let mut client = Client::connect(server.resp);
        let check = check("shared", "k", 1);
        let mut allowed = 0;
        for _ in 0..CHECKS / 10 {
            client.write(&check.repeat(10));
            allowed += (0..10).map(|_| client.receive().items()[0].integer()).sum::<i64>();
        }
        allowed
    };
    let each: Vec<i64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(allowed)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(each.iter().sum::<i64>(), 1_000, "{each:?}");
}
