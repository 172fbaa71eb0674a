//! RESP of the real server, command by command.
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use testkit::redis::RedisServer;
use testkit::resp::{FuzzRng, RespConnection, RespReply, command};
use testkit::server::{ServerProcess, TempFolder, pause};

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

const SYNTAX: &str = "-ERR syntax error";
const CONFIG: &str = "-ERR only CONFIG GET is supported; use the policy file";
const UNKNOWN: &str = "-ERR unknown command; COMMAND LIST shows the commands of tidegate";

fn server() -> ServerProcess {
    ServerProcess::with_policy(POLICY)
}

fn with_tokens(variables: &[(&str, &str)]) -> ServerProcess {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    ServerProcess::start(&["--config", file.to_str().unwrap()], variables)
}

/// Sends the commands in both protocols. `#` stands for the protocol, so that each has its own
/// keys.
fn each_protocol(address: SocketAddr, table: &[(&str, &str)]) {
    for protocol in ["2", "3"] {
        let mut client = RespConnection::connect(address);
        client.send_args(&["HELLO", protocol]);
        in_order(&mut client, protocol, table);
    }
}

fn in_order(client: &mut RespConnection, id: &str, table: &[(&str, &str)]) {
    for (line, expected) in table {
        let (line, expected) = (line.replace('#', id), expected.replace('#', id));
        let reply = client.send(&line);
        let shown = reply.to_string();
        // The usage line is tested apart.
        let is_error = shown.split("; usage: ").next() == Some(&expected);
        assert!(is_error || reply.is(&expected), "{line}: {reply}, not {expected}");
    }
}

// --- checks ------------------------------------------------------------------------------------

#[test]
fn a_check_returns_eight_values() {
    each_protocol(
        server().resp,
        &[
            ("TG.CHECK login a#", "[1, 3, 2, 0, 3600000, 0, login, memory]"),
            ("tg.check login a# cost 2", "[1, 3, 0, 0, 3600000, 0, login, memory]"),
            ("TG.CHECK login a#", "[0, 3, 0, ~3600000, ~3600000, 0, login, memory]"),
            // A check that can never pass has no `retry_after`.
            ("TG.CHECK login b# COST 4", "[0, 3, 3, -1, 0, 0, login, memory]"),
            ("TG.CHECK closed b#", "[0, 0, 0, -1, 0, 0, closed, memory]"),
            // Of two limits, the one with the least remaining is reported.
            ("TG.CHECK api a# COST 4", "[1, 10, 6, 0, 1440000, 0, api, memory]"),
            // A queue admits it later.
            ("TG.CHECK queue a#", "[1, 3, 2, 0, 100000, 0, queue, memory]"),
            ("TG.CHECK queue a#", "[1, 3, 1, 0, ~200000, ~100000, queue, memory]"),
            ("TG.CHECK queue a# COST 2", "[0, 3, 1, ~100000, ~200000, 0, queue, memory]"),
            // No limit applies, or no rule is named.
            ("TG.CHECK guests gold", "[1, -1, -1, 0, 0, 0, guests, policy]"),
            ("TG.CHECK guests villain", "[0, 1, 0, -1, 0, 0, guests, policy]"),
            (
                "TG.CHECK jobs a#",
                "-ERR not supported by concurrency limits; use TG.RESERVE and TG.CANCEL",
            ),
            ("TG.CHECK missing a#", "-NORULE no rule named \"missing\""),
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
            // It reports the wait of a cost of 1.
            ("TG.PEEK login a#", "[1, 3, 0, ~3600000, ~3600000, 0, login, memory]"),
            ("TG.RECORD login a# 1", "1"),
            ("TG.PEEK login a#", "[0, 3, 0, ~3600000, ~3600000, 0, login, memory]"),
        ],
    );
}

#[test]
fn a_reply_can_have_names() {
    let server = server();
    let values = "limit: 3, remaining: 2, retry_after_ms: 0, reset_after_ms: 3600000, delay_ms: 0";
    let map = format!("{{allowed: 1, {values}, rule: login, source: memory}}");
    let list = format!("[{}]", map[1..map.len() - 1].replace(": ", ", "));
    for (protocol, expected) in [("2", list), ("3", map)] {
        let mut client = RespConnection::connect(server.resp);
        client.send_args(&["HELLO", protocol]);
        let key = format!("named-{protocol}");
        let reply = client.send(&format!("TG.CHECK login {key} NAMED COST 1")).to_string();
        assert_eq!(reply, expected);
        let limit = client.send(&format!("TG.LIMIT 3/h {key} NAMED")).to_string();
        assert!(limit.contains("rule") && limit.contains("adhoc"), "{limit}");
        let peek = client.send(&format!("TG.PEEK login {key} named")).to_string();
        assert!(peek.contains("retry_after_ms"), "{peek}");
        let twice = client.send(&format!("TG.CHECK login {key} NAMED NAMED")).to_string();
        let usage = "TG.CHECK rule key [COST n] [ID id] [NAMED]";
        assert_eq!(twice, format!("{SYNTAX}; usage: {usage}"));
    }
}

#[test]
fn an_error_names_the_rule_and_the_one_that_was_meant() {
    let server = server();
    let mut client = RespConnection::connect(server.resp);
    let refused = client.send("TG.CHECK logn a").to_string();
    assert_eq!(refused, r#"-NORULE no rule named "logn"; did you mean "login"?"#);
    let name = "x\r\n".repeat(1_000);
    let refused = client.send_args(&["TG.CHECK", &name, "a"]).to_string();
    assert!(refused.starts_with(r#"-NORULE no rule named "x\r\n"#), "{refused}");
    assert!(refused.len() < 300, "{refused}");
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
        ],
    );
    let mut client = RespConnection::connect(server.resp);
    let refused = client.send("TG.LIMIT 5/parsec a").to_string();
    let expected =
        "-ERR invalid limit: unknown unit \"parsec\"; use us, ms, s, min, h, d, w or month";
    assert_eq!(refused, expected);
    let reply = client.send_args(&["TG.LIMIT", "sliding-log 5/1m", "a key"]);
    assert!(reply.is("[1, 5, 4, 0, 60000, 0, adhoc, memory]"), "{reply}");
}

#[test]
fn limits_of_ones_own_can_be_turned_off() {
    let server = ServerProcess::with_policy(&format!("adhoc: false{POLICY}"));
    let off = "-ERR ad-hoc limits are disabled (adhoc: false); use TG.CHECK with a rule";
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
            // Only a cost of 0 peeks.
            (
                "TG.MCHECK 1 login a# 0",
                "[1, 3, 2, 0, ~3600000, 0, login, memory, \
                 [[1, 3, 2, 0, ~3600000, 0, login, memory]]]",
            ),
            ("TG.MCHECK 2 login a# 1 missing a# 1", "-NORULE no rule named \"missing\""),
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
            // A refund above the used permits refunds the used ones.
            ("TG.REFUND login a# 9", "1"),
            ("TG.PEEK login a#", "[1, 3, 3, 0, 0, 0, login, memory]"),
            ("TG.RECORD missing a# 1", "-NORULE no rule named \"missing\""),
            ("TG.REFUND missing a# 1", "-NORULE no rule named \"missing\""),
        ],
    );
}

// --- reservations ------------------------------------------------------------------------------

/// The id of a reservation that must be granted.
fn reserve(client: &mut RespConnection, line: &str) -> String {
    let reply = client.send(line);
    assert_eq!(reply.items().len(), 9, "{line}: {reply}");
    let id = reply.items()[0].text();
    assert!(id.len() >= 32, "too few bits to be secret: {id}");
    id
}

#[test]
fn a_reservation_is_committed_cancelled_or_renewed() {
    let server = server();
    for protocol in ["2", "3"] {
        let mut client = RespConnection::connect(server.resp);
        client.send_args(&["HELLO", protocol]);
        let left = |client: &mut RespConnection| {
            client.send(&format!("TG.PEEK api r{protocol}")).items()[2].integer()
        };
        let line = format!("TG.RESERVE api r{protocol} 5");

        let reply = client.send(&line);
        let (id, decision) = reply.items().split_first().unwrap();
        let decision = RespReply::Array(decision.to_vec());
        assert!(decision.is("[1, 10, 5, 0, 60000, 0, api, memory]"), "{decision}");

        // Unused permits are released; the same commit again gets the same reply, another does not.
        let id = id.text();
        assert!(client.send(&format!("TG.COMMIT {id} 2")).is("1"));
        assert_eq!(left(&mut client), 8);
        assert!(client.send(&format!("TG.COMMIT {id} 2")).is("1"));
        assert_eq!(left(&mut client), 8);
        let settled = "-ERR the reservation was settled differently";
        assert!(client.send(&format!("TG.CANCEL {id}")).is(settled));
        assert_eq!(left(&mut client), 8);

        // Without a cost, all of it is charged.
        let id = reserve(&mut client, &line);
        assert!(client.send(&format!("TG.COMMIT {id}")).is("1"));
        assert_eq!(left(&mut client), 3);

        // More than remains: no id.
        let reply = client.send(&line);
        let none = if protocol == "2" { "nil" } else { "null" };
        let denied = format!("[{none}, 0, 10, 3, ~720000, ~2520000, 0, api, memory]");
        assert!(reply.is(&denied), "{reply}");

        let id = reserve(&mut client, &line.replace('5', "3"));
        assert_eq!(left(&mut client), 0);
        assert!(client.send(&format!("TG.RENEW {id} 60000")).is("1"));
        assert!(client.send(&format!("TG.CANCEL {id}")).is("1"));
        assert_eq!(left(&mut client), 3);
    }
}

#[test]
fn an_unsettled_reservation_expires() {
    let server = server();
    let mut client = RespConnection::connect(server.resp);
    // Work is charged, late or not.
    for (settle, left) in [("TG.CANCEL #", 10), ("TG.RENEW # 1000", 10), ("TG.COMMIT # 4", 6)] {
        let id = reserve(&mut client, "TG.RESERVE api r 5 TTL 1");
        pause(Duration::from_millis(20));
        let reply = client.send(&settle.replace('#', &id));
        assert!(reply.is("0"), "{settle}: {reply}");
        assert_eq!(client.send("TG.PEEK api r").items()[2], RespReply::Integer(left), "{settle}");
    }
}

#[test]
fn each_rule_is_settled_at_its_own_cost() {
    settle_each_rule(&ServerProcess::with_policy(GATEWAY));
}

#[test]
fn each_rule_is_settled_at_its_own_cost_on_redis() {
    let redis = RedisServer::start();
    settle_each_rule(&ServerProcess::with_policy_on(&redis.url(), GATEWAY));
}

const GATEWAY: &str = r#"
rules:
  - { name: requests, unit: requests, key: [client_ip], limits: ["60/m"] }
  - { name: tokens, unit: tokens, key: [client_ip], limits: ["fixed-window 10000/1h"] }
"#;

fn settle_each_rule(server: &ServerProcess) {
    let mut client = RespConnection::connect(server.resp);
    let reply = client.send("TG.MRESERVE 2 requests ann 1 tokens ann 1500 TTL 60000 ID req-17");
    let (id, decision) = reply.items().split_first().unwrap();
    assert_eq!((decision[0].integer(), decision[8].items().len()), (1, 2), "{reply}");
    let id = id.text();
    let again = client.send("TG.MRESERVE 2 requests ann 1 tokens ann 1500 TTL 60000 ID req-17");
    assert_eq!(again.items()[0].text(), id, "one id, one reservation");
    let settled = client.send(&format!("TG.COMMIT {id} COSTS 1 tokens ann 312"));
    let expected = "[1, 0, 0, [[requests, 1, 1, 0, 59], [tokens, 1500, 312, 0, 9688]]]";
    assert!(settled.is(expected), "{settled}");
    assert_eq!(client.send("TG.PEEK requests ann").items()[2].integer(), 59);
    let other = client.send(&format!("TG.COMMIT {id} COSTS 1 tokens ann 313"));
    assert!(other.is("-ERR the reservation was settled differently"), "{other}");
    // One number is clear only if one rule is held.
    let id = client.send("TG.MRESERVE 2 requests bob 1 tokens bob 1500").items()[0].text();
    assert!(client.send(&format!("TG.COMMIT {id} 5")).is("1"));
    assert_eq!(client.send("TG.PEEK tokens bob").items()[2].integer(), 9_995);
    let line = "TG.MRESERVE 2 tokens a 10 tokens b 20 EXPIRY CHARGE";
    let id = client.send(line).items()[0].text();
    let unclear = client.send(&format!("TG.COMMIT {id} 5")).to_string();
    assert!(unclear.contains("different costs"), "{unclear}");
    let settled = client.send(&format!("TG.COMMIT {id} COSTS 1 tokens b 3"));
    let expected = "[1, 0, 0, [[tokens, 10, 10, 0, 9990], [tokens, 20, 3, 0, 9997]]]";
    assert!(settled.is(expected), "{settled}");
    for bad in
        ["TG.MRESERVE 0", "TG.MRESERVE 2 tokens a 1", "TG.MRESERVE 1 tokens a 1 EXPIRY RELEASE"]
    {
        assert!(client.send(bad).to_string().starts_with("-ERR"), "{bad}");
    }
}

#[test]
fn a_reservation_with_a_minimum_is_granted_what_fits() {
    let server = server();
    let mut client = RespConnection::connect(server.resp);
    let reply = client.send("TG.RESERVE api m 30 MIN 2");
    let items = reply.items();
    assert_eq!((items.len(), items[1].integer(), items[9].integer()), (10, 1, 10), "{reply}");
    assert!(client.send(&format!("TG.COMMIT {} 4", items[0].text())).is("1"));
    let reply = client.send("TG.MRESERVE 2 jobs m 1 api m 30 MIN 2");
    let items = reply.items();
    assert_eq!(
        (items.len(), items[10].integer()),
        (11, 6),
        "slots cost less and are fixed: {reply}"
    );
    let reply = client.send("TG.RESERVE api m 30 MIN 1");
    assert_eq!((reply.items()[1].integer(), reply.items()[9].integer()), (0, 0), "{reply}");
    let reply = client.send("TG.RESERVE api other 3 MIN 3");
    assert_eq!((reply.items()[1].integer(), reply.items()[9].integer()), (1, 3), "{reply}");
    for bad in ["TG.RESERVE api m 3 MIN 4", "TG.RESERVE api m 3 MIN 0", "TG.RESERVE api m 3 MIN"] {
        assert!(client.send(bad).to_string().starts_with("-ERR"), "{bad}");
    }
}

#[test]
fn a_reservation_is_extended_to_totals() {
    let server = ServerProcess::with_policy(GATEWAY);
    let mut client = RespConnection::connect(server.resp);
    let reply = client.send("TG.MRESERVE 2 requests ann 1 tokens ann 1500");
    let id = reply.items()[0].text();
    for _ in 0..2 {
        let extended = client.send(&format!("TG.EXTEND {id} 1 tokens ann 2000 TTL 60000"));
        let expected = "[1, 0, [[requests, 1, 59], [tokens, 2000, 8000]]]";
        assert!(extended.is(expected), "{extended}");
    }
    let denied = client.send(&format!("TG.EXTEND {id} 1 tokens ann 10001"));
    assert_eq!(denied.items()[0].integer(), 0, "{denied}");
    assert_eq!(client.send("TG.PEEK tokens ann").items()[2].integer(), 8_000);
    let part = client.send(&format!("TG.EXTEND {id} 1 tokens ann 10001 MIN 3000"));
    assert!(part.is("[1, 0, [[requests, 1, 59], [tokens, 10000, 0]]]"), "{part}");
    for (words, error) in [
        ("1 requests ann 2", "-ERR the reservation holds no permits of this rule and key"),
        ("1 tokens bob 2", "-ERR the reservation holds no permits of this rule and key"),
        (
            "1 tokens ann 2 MIN 3",
            "-ERR MIN needs one total of all rules, and is from 1 to that total",
        ),
        ("1 tokens ann 2 TTL 0", "-ERR TTL out of range; 1 ms to 1 h, or the lease of the limit"),
        ("1 tokens ann 2 TTL 1 TTL 1", SYNTAX),
        ("1 tokens ann 4294967297", "-ERR the cost is too large; use at most 4294967296"),
        ("0 tokens ann 2", "-ERR the number of checks must be from 1 to 16"),
        ("1 tokens ann x", "-ERR value is not a whole number from 0 to 2^53"),
    ] {
        let reply = client.send(&format!("TG.EXTEND {id} {words}")).to_string();
        assert_eq!(reply.split("; usage: ").next(), Some(error), "{words}");
    }
    let id = client.send("TG.RESERVE tokens bob 5 TTL 1").items()[0].text();
    pause(Duration::from_millis(20));
    let late = client.send(&format!("TG.EXTEND {id} 1 tokens bob 6"));
    assert!(late.is("-ERR the reservation has expired; reserve anew"), "{late}");
}

#[test]
fn holders_are_counted_until_they_let_go() {
    let server = server();
    let (mut one, mut other) =
        (RespConnection::connect(server.resp), RespConnection::connect(server.resp));
    let first = reserve(&mut one, "TG.RESERVE jobs r 1");
    reserve(&mut other, "TG.RESERVE jobs r 1");
    let full = one.send("TG.RESERVE jobs r 1");
    assert!(full.is("[nil, 0, 2, 0, ~30000, ~30000, 0, jobs, memory]"), "{full}");
    // Any connection may settle the reservation of another.
    assert!(other.send(&format!("TG.CANCEL {first}")).is("1"));
    reserve(&mut one, "TG.RESERVE jobs r 1");
}

// --- access -------------------------------------------------------------------------------------

#[test]
fn no_command_is_allowed_before_authentication() {
    let server = with_tokens(&[("TIDEGATE_TOKEN", "sesame"), ("TIDEGATE_ADMIN_TOKEN", "boss")]);
    let no_auth = "-NOAUTH authentication required; send AUTH with the token";
    let no_admin = "-NOAUTH admin token required; send it with AUTH";
    let wrong = "-WRONGPASS invalid token";
    let mut client = RespConnection::connect(server.resp);
    in_order(
        &mut client,
        "",
        &[
            ("PING", no_auth),
            ("TG.CHECK login a", no_auth),
            ("TG.RESET login a", no_auth),
            ("CL.THROTTLE a 1 1 1", no_auth),
            ("MISSING", no_auth),
            ("HELLO 3", "-NOAUTH authentication required; send HELLO with AUTH and the token"),
            ("AUTH sesam", wrong),
            ("AUTH sesamesesame", wrong),
            ("AUTH sesame boss2", wrong),
            ("HELLO 3 AUTH default no", wrong),
            ("PING", no_auth),
            ("AUTH sesame", "+OK"),
            ("PING", "+PONG"),
            ("TG.CHECK login a", "[1, 3, 2, 0, 3600000, 0, login, memory]"),
            // A wrong token keeps the access level, and the check token cannot reset.
            ("AUTH no", wrong),
            ("PING", "+PONG"),
            ("TG.RESET login a", no_admin),
            ("DEL a", no_admin),
            ("AUTH anybody boss", "+OK"),
            ("TG.RESET login a", "1"),
            ("TG.PEEK login a", "[1, 3, 3, 0, 0, 0, login, memory]"),
            ("TG.RESET missing a", "-NORULE no rule named \"missing\""),
            ("DEL a", "0"),
        ],
    );
    let mut client = RespConnection::connect(server.resp);
    let reply = client.send("HELLO 3 AUTH default sesame SETNAME worker-1");
    assert!(matches!(reply, RespReply::Map(_)), "{reply}");
    in_order(&mut client, "", &[("CLIENT GETNAME", "worker-1"), ("TG.RESET login a", no_admin)]);
}

#[test]
fn without_tokens_all_but_changes_are_open() {
    let server = server();
    let mut client = RespConnection::connect(server.resp);
    in_order(
        &mut client,
        "",
        &[
            ("AUTH x", "-ERR AUTH called, but no token is configured; set TIDEGATE_TOKEN"),
            (
                "HELLO 3 AUTH u x",
                "-ERR AUTH called, but no token is configured; set TIDEGATE_TOKEN",
            ),
            ("PING", "+PONG"),
            (
                "TG.RESET login a",
                "-NOAUTH admin token required, and the server has none; set TIDEGATE_ADMIN_TOKEN",
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
    let mut client = RespConnection::connect(server.resp);
    let id = client.send("CLIENT ID").integer();
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
            ("HELLO 4", "-NOPROTO unsupported protocol version; use 2 or 3"),
            ("HELLO 2 SETNAME", SYNTAX),
            ("HELLO 2 SETNAME me LATER", SYNTAX),
            // A refused command changes nothing.
            ("CLIENT GETNAME", "null"),
            ("HELLO 2 SETNAME me", second),
            ("CLIENT GETNAME", "me"),
        ],
    );
    assert_ne!(RespConnection::connect(server.resp).send("CLIENT ID").integer(), id);
}

#[test]
fn clients_get_what_they_expect_on_connecting() {
    let long = format!("CLIENT SETNAME {}", "x".repeat(65));
    let name = "-ERR invalid client name; at most 64 printable characters without spaces";
    each_protocol(
        server().resp,
        &[
            ("PING", "+PONG"),
            ("ping hello", "hello"),
            ("ECHO hi", "hi"),
            ("SELECT 0", "+OK"),
            ("SELECT 1", "-ERR DB index is out of range; only 0 exists"),
            ("CLIENT SETINFO LIB-NAME some-lib", "+OK"),
            ("CLIENT SETINFO LIB-VER 1.2.3", "+OK"),
            ("CLIENT SETNAME worker-#", "+OK"),
            ("CLIENT GETNAME", "worker-#"),
            (&long, name),
            ("CLIENT GETNAME", "worker-#"),
            ("CLIENT NO-EVICT on", "+OK"),
            ("CLIENT NO-TOUCH on", "+OK"),
            ("CLIENT KILL x", "-ERR unknown subcommand; use SETNAME, GETNAME, ID, SETINFO or INFO"),
            ("COMMAND COUNT", "34"),
            ("COMMAND NOPE", "-ERR unknown subcommand; use COUNT, DOCS, INFO or LIST"),
            ("FLUSHALL", UNKNOWN),
            ("GET key", UNKNOWN),
        ],
    );
}

#[test]
fn maps_are_lists_of_pairs_in_the_second_protocol() {
    let server = server();
    let mut client = RespConnection::connect(server.resp);
    in_order(
        &mut client,
        "",
        &[
            ("COMMAND DOCS", "[]"),
            ("COMMAND INFO missing", "[nil]"),
            ("CONFIG GET save", "[save, ]"),
            ("CONFIG GET appendonly", "[appendonly, no]"),
            ("CONFIG GET port", "[]"),
            ("CONFIG SET save x", CONFIG),
        ],
    );
    let info = client.send("TG.INFO");
    let keys: Vec<_> = info.items().iter().step_by(2).map(RespReply::text).collect();
    assert_eq!(
        keys,
        [
            "version",
            "rules",
            "store_up",
            "tracked_keys",
            "memory_bytes",
            "store_error",
            "store_error_since",
            "store_warning",
            "store_circuit",
            "store_resets",
            "store_last_reset"
        ]
    );
    let version = env!("CARGO_PKG_VERSION");
    let known = format!("[{version}, 7, 1, 0]");
    let values = info.items().iter().skip(1).step_by(2).take(4).cloned().collect();
    assert!(RespReply::Array(values).is(&known), "{info}");

    client.send("HELLO 3");
    in_order(
        &mut client,
        "",
        &[
            ("COMMAND DOCS tg.check", "{}"),
            ("COMMAND INFO missing", "[null]"),
            ("CONFIG GET save", "{save: }"),
            ("CONFIG GET port", "{}"),
            ("TG.CHECK login a", "[1, 3, 2, 0, 3600000, 0, login, memory]"),
        ],
    );
    let RespReply::Map(pairs) = client.send("TG.INFO") else { panic!("a map was expected") };
    let tracked = pairs.iter().find(|(key, _)| key.text() == "tracked_keys");
    assert_eq!(tracked.map(|(_, value)| value.integer()), Some(1));
}

#[test]
fn every_command_is_listed_and_has_the_listed_arity() {
    let server = with_tokens(&[("TIDEGATE_ADMIN_TOKEN", "boss")]);
    let mut client = RespConnection::connect(server.resp);
    let listed = client.send("COMMAND");
    let names: Vec<String> =
        client.send("COMMAND LIST").items().iter().map(RespReply::text).collect();
    assert_eq!(listed.items().len(), names.len());
    for (entry, name) in listed.items().iter().zip(&names) {
        assert_eq!(&entry.items()[0].text(), name);
        let arity = entry.items()[1].integer();
        let least = usize::try_from(arity.unsigned_abs()).unwrap();
        let send_words = |words: usize| {
            let words: Vec<_> = [name.as_str()].into_iter().chain(["1"; 8]).take(words).collect();
            let mut client = RespConnection::connect(server.resp);
            assert!(client.send("AUTH boss").is("+OK"));
            client.send_args(&words).to_string()
        };
        let usage = format!("; usage: {}", name.to_ascii_uppercase());
        let refused = |words| {
            let reply = send_words(words);
            let is_arity = reply.starts_with("-ERR wrong number of arguments");
            assert!(!is_arity || reply.contains(&usage), "{reply}");
            is_arity
        };
        assert!(least == 1 || refused(least - 1), "{name} with {} words", least - 1);
        assert!(!refused(least), "{name} with {least} words");
        assert_eq!(refused(least + 1), arity > 0, "{name} with {} words", least + 1);
    }
}

#[test]
fn info_is_what_tools_read() {
    let server = server();
    let info = RespConnection::connect(server.resp).send("INFO server").text();
    for line in ["redis_version:7.0.0", "redis_mode:standalone", "role:master", "rules:7"] {
        assert!(info.lines().any(|other| other == line), "{line} is missing in {info}");
    }
    assert!(info.contains(&format!("process_id:{}\r\n", server.id())));
}

#[test]
fn quit_ends_the_connection_and_what_follows_is_not_done() {
    let server = server();
    let mut client = RespConnection::connect(server.resp);
    client.write(&[command(&["PING"]), command(&["QUIT"]), check("api", "q", 1)].concat());
    let replies = client.finish().unwrap();
    assert_eq!(replies, [RespReply::Simple("PONG".into()), RespReply::Simple("OK".into())]);
    let left = RespConnection::connect(server.resp).send("TG.PEEK api q");
    assert!(left.is("[1, 10, 10, 0, 0, 0, api, memory]"), "{left}");
}

// --- many at once ------------------------------------------------------------------------------

fn check(rule: &str, key: &str, cost: u64) -> Vec<u8> {
    command(&["TG.CHECK", rule, key, "COST", &cost.to_string()])
}

#[test]
fn ten_thousand_commands_in_any_pieces_get_their_replies_in_order() {
    const COMMANDS: u64 = 10_000;
    let server = server();
    let mut random = FuzzRng::new(1);
    let (mut sent, mut expected) = (Vec::new(), Vec::new());
    let mut left = 1_000;
    for number in 0..COMMANDS {
        // A command that echoes its number, one that counts, and one that is refused.
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
                sent.extend(command(&["TG.CHECK", "missing", "k"]));
                expected.push("-NORULE no rule named \"missing\"".into());
            }
            _ => {
                sent.extend(check("shared", "k", 1));
                let allowed = u64::from(left > 0);
                left -= allowed;
                expected.push(format!("[{allowed}, 1000, {left}"));
            }
        }
    }
    // The last command arrives in two halves, with a long pause.
    sent.extend(command(&["ECHO", "the end"]));
    expected.push("the end".into());
    let half = sent.split_off(sent.len() - 6);

    let mut client = RespConnection::connect(server.resp);
    let mut writer = client.writer();
    let pieces = std::thread::spawn(move || {
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let most = random.pick(&[1, 10, 100, 1_000, 10_000, 100_000]);
            let len = usize::try_from(1 + random.below(most)).unwrap().min(rest.len());
            writer.write_all(&rest[..len]).expect("the listener accepts bytes");
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

/// No reply arrives for a while.
fn is_silent(client: &RespConnection) -> bool {
    let stream = client.writer();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let came = stream.peek(&mut [0]);
    stream.set_read_timeout(Some(testkit::server::TEST_TIMEOUT)).unwrap();
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
        let mut client = RespConnection::connect(server.resp);
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
