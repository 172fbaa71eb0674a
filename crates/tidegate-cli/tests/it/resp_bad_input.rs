//! Invalid commands: each gets an error or a closed connection, nothing is charged, and other
//! clients are not affected.
use std::io::Write as _;
use std::net::{Shutdown, SocketAddr};

use testkit::resp::{FuzzRng, RespConnection, RespReply, command};
use testkit::server::ServerProcess;

const POLICY: &str = r#"
rules:
  - name: api
    limits: ["10/1h"]
  - name: jobs
    limits: ["concurrency 2"]
"#;

/// Marker in the input that must never occur in an error.
const MARKER: &str = "marker-5127";

/// Expected result.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    /// One error; the connection stays open.
    Refused(&'static str),
    /// One error; the connection is closed.
    Ended(&'static str),
    /// The connection is closed without a reply.
    CutOff,
}
use Fate::{CutOff, Ended, Refused};

struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    fate: Fate,
}

fn case(name: &'static str, bytes: impl Into<Vec<u8>>, fate: Fate) -> Case {
    let mut bytes: Vec<u8> = bytes.into();
    // `@` stands for the marker wherever there is room for it.
    while let Some(at) = bytes.iter().position(|byte| *byte == b'@') {
        bytes.splice(at..=at, MARKER.bytes());
    }
    Case { name, bytes, fate }
}

/// A command; `@` stands for the marker.
fn words(name: &'static str, words: &[&str], fate: Fate) -> Case {
    let words: Vec<String> = words.iter().map(|word| word.replace('@', MARKER)).collect();
    Case { name, bytes: command(&words), fate }
}

const ARRAY: Fate = Ended("ERR Protocol error: invalid multibulk length");
const BULK: Fate = Ended("ERR Protocol error: invalid bulk length");
const BULK_TYPE: Fate =
    Ended("ERR Protocol error: expected '$'; send a flat array of bulk strings");
const BULK_END: Fate = Ended("ERR Protocol error: expected CRLF at the end of a bulk string");
const QUOTES: Fate = Ended("ERR Protocol error: unbalanced quotes in request");
const MANY: Fate =
    Ended("ERR Protocol error: too many arguments; send fewer, or authenticate first");
const LONG: Fate =
    Ended("ERR Protocol error: bulk string too long; send less, or authenticate first");
const LONG_FRAME: Fate =
    Ended("ERR Protocol error: request too long; send less, or authenticate first");
const LONG_LINE: Fate =
    Ended("ERR Protocol error: too big inline request; send an array of bulk strings");
const UNKNOWN: Fate = Refused("ERR unknown command; COMMAND LIST shows the commands of tidegate");
const ARITY: Fate = Refused("ERR wrong number of arguments");
const SYNTAX: Fate = Refused("ERR syntax error");
const INTEGER: Fate = Refused("ERR value is not a whole number from 0 to 2^53");
const COST: Fate = Refused("ERR the cost is too large; use at most 4294967296");
const KEY: Fate = Refused("ERR the key is too long; at most 1024 bytes, or send a hash");
const NAME: Fate = Refused("ERR names must be UTF-8");
const NO_RULE: Fate = Refused("NORULE no rule");
const NO_LIMIT: Fate = Refused("ERR invalid");
const ZONE: Fate = Refused("ERR unknown time zone; use an IANA name like Europe/Berlin");
const NO_THROTTLE: Fate =
    Refused("ERR invalid limit; count and period must be above 0 and in range");
const NO_HOLD: Fate = Refused("ERR no such reservation, or its record was forgotten");
const HOLD_LENGTH: Fate = Refused("ERR TTL out of range; 1 ms to 1 h, or the lease of the limit");
const ID_LENGTH: Fate = Refused("ERR an ID has 1 to 64 bytes");

fn protocol_garbage() -> Vec<Case> {
    let bulk = |len: usize| format!("${len}\r\n{}\r\n", "x".repeat(len));
    vec![
        case("an array of letters", "*@\r\n", ARRAY),
        case("a negative array", "*-2\r\n@\r\n", ARRAY),
        case("an array that ends too early", "*2\n@", ARRAY),
        case("an array of 2^31", "*2147483648\r\n$@", MANY),
        case("an array of 2^64", "*18446744073709551616\r\n@", MANY),
        case("65 words", format!("*65\r\n{}", bulk(1).repeat(65)), MANY),
        case("a nested array", "*1\r\n*1\r\n$4\r\nPING\r\n@", BULK_TYPE),
        case("a deep array", format!("{}@", "*1\r\n".repeat(1_000)), BULK_TYPE),
        case("an integer for a word", "*2\r\n$8\r\nTG.CHECK\r\n:1\r\n@", BULK_TYPE),
        case("a null for a word", "*2\r\n$8\r\nTG.CHECK\r\n$-1\r\n@", BULK),
        case("a bulk string of letters", "*1\r\n$@\r\n", BULK),
        case("a bulk string of 2^64", "*1\r\n$18446744073709551616\r\n@", LONG),
        case("64 KiB and a byte", format!("*1\r\n{}", bulk(65_537)), LONG),
        case("more than 128 KiB", format!("*3\r\n{}", bulk(65_000).repeat(3)), LONG_FRAME),
        case("a length that is too short", "*1\r\n$3\r\nPING\r\n@", BULK_END),
        case("a length that is too long", "*2\r\n$9\r\nTG.CHECK\r\n$1\r\n@\r\n", BULK_END),
        case("a line without an end", "@".repeat(200), LONG_LINE),
        case("a quote that is not closed", "ECHO \"@\r\n", QUOTES),
        case("a word behind a quote", "ECHO \"@\"@\r\n", QUOTES),
        case("a line of 65 words", format!("{}\r\n", "a ".repeat(65)), MANY),
        case("binary", b"\x17\x03\x01\x02\x00@\x01\x00\x01\xfc\x03\x03\n".to_vec(), UNKNOWN),
        case("TLS", b"\x16\x03\x01\x02\x00@\x01\x00\x01\xfc\x03\x03\n".to_vec(), CutOff),
        case("a reply", "+OK @\r\n", UNKNOWN),
        case("GET", "GET /@ HTTP/1.1\r\nHost: @\r\n\r\n", CutOff),
        case("POST", "POST / HTTP/1.1\r\nHost: @\r\n\r\nTG.CHECK api k\r\n", CutOff),
        case("PUT in small letters", "put /@ http/1.1\r\n\r\nTG.CHECK api k\r\n", CutOff),
        case("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n@", CutOff),
        case("a host", "Host: @\r\nTG.CHECK api k\r\n", CutOff),
    ]
}

fn wrong_words() -> Vec<Case> {
    let long_key = "k".repeat(2_048);
    let long_id = "i".repeat(65);
    let id = "0123456789abcdef0123456789abcdef";
    vec![
        words("an unknown command", &["@", "api", "k"], UNKNOWN),
        words("an empty command", &[""], UNKNOWN),
        words("a command with an end of line", &["TG.CHECK\r\n@", "api", "k"], UNKNOWN),
        words("a check without a key", &["TG.CHECK", "@"], ARITY),
        words("a peek with a cost", &["TG.PEEK", "api", "@", "1"], SYNTAX),
        words("an option that is none", &["TG.CHECK", "api", "k", "@", "1"], SYNTAX),
        words("a cost twice", &["TG.CHECK", "api", "@", "COST", "1", "COST", "1"], SYNTAX),
        words("a cost without a number", &["TG.CHECK", "api", "@", "COST"], SYNTAX),
        words("a throttle with too much", &["CL.THROTTLE", "k", "1", "1", "1", "1", "@"], SYNTAX),
        words("an empty rule", &["TG.CHECK", "", "@"], NO_RULE),
        words("an unknown rule", &["TG.CHECK", "@", "k"], NO_RULE),
        words("a rule with an end of line", &["TG.CHECK", "api\r\n@", "k"], NO_RULE),
        words("a rule that is a path", &["TG.CHECK", "../../@", "k"], NO_RULE),
        case(
            "a rule that is no text",
            command(&[&b"TG.CHECK"[..], b"\xff\xfe", MARKER.as_bytes()]),
            NAME,
        ),
        words("a key of 2 KiB", &["TG.CHECK", "api", &long_key], KEY),
        words("a throttle key of 2 KiB", &["CL.THROTTLE", &long_key, "1", "1", "1"], KEY),
        words("an ID of 65 bytes", &["TG.CHECK", "api", "@", "ID", &long_id], ID_LENGTH),
        words("an empty ID", &["TG.CHECK", "api", "@", "ID", ""], ID_LENGTH),
        words("a limit that is none", &["TG.LIMIT", "@ per day", "k"], NO_LIMIT),
        words("a limit of 2^53", &["TG.LIMIT", "9007199254740992/s", "@"], NO_LIMIT),
        words("an unknown time zone", &["TG.LIMIT", "fixed-window 1/d tz Mars/@", "k"], ZONE),
        words(
            "a reservation of nothing",
            &["TG.RESERVE", "api", "@", "0"],
            Refused("ERR cannot reserve a cost of 0"),
        ),
        words(
            "a reservation for no time",
            &["TG.RESERVE", "api", "@", "1", "TTL", "0"],
            HOLD_LENGTH,
        ),
        words(
            "a reservation for a day",
            &["TG.RESERVE", "api", "@", "1", "TTL", "86400000"],
            HOLD_LENGTH,
        ),
        words(
            "a check of holders",
            &["TG.CHECK", "jobs", "@"],
            Refused("ERR not supported by concurrency limits; use TG.RESERVE and TG.CANCEL"),
        ),
        words("an unknown reservation", &["TG.COMMIT", id, "1"], NO_HOLD),
        words("a reservation that is none", &["TG.CANCEL", "@"], NO_HOLD),
        words("an empty reservation", &["TG.RENEW", "", "1"], NO_HOLD),
        words(
            "an extension of an unknown reservation",
            &["TG.EXTEND", id, "1", "api", "@", "2"],
            NO_HOLD,
        ),
        words("a throttle of 0", &["CL.THROTTLE", "@", "1", "0", "1"], NO_THROTTLE),
        words("a throttle of 0 seconds", &["CL.THROTTLE", "@", "1", "1", "0"], NO_THROTTLE),
        words(
            "a throttle beyond counting",
            &["CL.THROTTLE", "@", "9007199254740992", "1", "1"],
            NO_THROTTLE,
        ),
        words(
            "a name with an end of line",
            &["CLIENT", "SETNAME", "@\r\n"],
            Refused("ERR invalid client name; at most 64 printable characters without spaces"),
        ),
        words(
            "a protocol that is none",
            &["HELLO", "@"],
            Refused("NOPROTO unsupported protocol version; use 2 or 3"),
        ),
    ]
}

fn wrong_numbers() -> Vec<Case> {
    let numbers = [
        "-1",
        "1.5",
        "0x10",
        "1e3",
        "nan",
        "inf",
        "",
        " 1",
        "1 ",
        "+1",
        "1\r\n",
        "1_000",
        "\u{661}",
        "9007199254740993",
        "9223372036854775808",
        "18446744073709551616",
        "@",
    ];
    let mut cases = Vec::new();
    for number in numbers {
        cases.push(words("a cost", &["TG.CHECK", "api", "k", "COST", number], INTEGER));
        cases.push(words("a cost of many", &["TG.MCHECK", "1", "api", "k", number], INTEGER));
        cases.push(words("a record", &["TG.RECORD", "api", "k", number], INTEGER));
        cases.push(words("a refund", &["TG.REFUND", "api", "k", number], INTEGER));
        cases.push(words("a reservation", &["TG.RESERVE", "api", "k", number], INTEGER));
        cases.push(words("a burst", &["CL.THROTTLE", "k", number, "1", "1"], INTEGER));
        cases.push(words("a count", &["CL.THROTTLE", "k", "1", number, "1"], INTEGER));
        cases.push(words("a period", &["CL.THROTTLE", "k", "1", "1", number], INTEGER));
        cases.push(words("a quantity", &["CL.THROTTLE", "k", "1", "1", "1", number], INTEGER));
    }
    cases.push(words("a cost of 2^32 + 1", &["TG.CHECK", "api", "@", "COST", "4294967297"], COST));
    cases.push(words("a record of 2^53", &["TG.RECORD", "api", "@", "9007199254740992"], COST));
    cases
}

// --- the claims --------------------------------------------------------------------------------

#[test]
fn what_no_client_should_send_is_refused_and_changes_nothing() {
    let mut server = ServerProcess::with_policy(POLICY);
    let mut bystander = RespConnection::connect(server.resp);
    let before = state(&mut bystander);
    let catalogue: Vec<Case> =
        [protocol_garbage(), wrong_words(), wrong_numbers()].into_iter().flatten().collect();
    for case in &catalogue {
        let shown = case.bytes[..case.bytes.len().min(100)].escape_ascii();
        let name = format!("{}: {shown}", case.name);
        let (replies, end) = send(server.resp, &[&case.bytes[..], &command(&["PING"])].concat());
        let expected = match case.fate {
            Refused(error) => {
                vec![RespReply::Error(error.into()), RespReply::Simple("PONG".into())]
            }
            Ended(error) => vec![RespReply::Error(error.into())],
            CutOff => Vec::new(),
        };
        let replies: Vec<RespReply> = replies.into_iter().map(without_details).collect();
        assert_eq!(replies, expected, "{name}");
        assert!(
            end.is_ok() || case.fate == CutOff,
            "{name}: the error could have been lost, {end:?}"
        );
        assert!(!format!("{replies:?}").contains(MARKER), "{name}: {replies:?}");
        assert_eq!(state(&mut bystander), before, "{name}");
    }
    assert!(server.is_running());
    let log = server.log().join("\n");
    assert!(!log.contains(MARKER), "{log}");
    writeln!(std::io::stderr(), "resp: {} bad inputs refused", catalogue.len()).unwrap();
}

/// Cuts the usage line off, and what quotes the caller, which is short and has no line break.
fn without_details(reply: RespReply) -> RespReply {
    let RespReply::Error(text) = reply else { return reply };
    assert!(text.len() < 320 && !text.contains(char::is_control), "{text:?}");
    let cut = ["; usage: ", " named ", " limit: "].iter().find_map(|mark| text.find(mark));
    RespReply::Error(text[..cut.unwrap_or(text.len())].into())
}

#[test]
fn noise_gets_nothing_but_errors() {
    let mut server = ServerProcess::with_policy(POLICY);
    let mut bystander = RespConnection::connect(server.resp);
    let before = state(&mut bystander);
    let mut random = FuzzRng::new(7);
    for number in 0..300 {
        let len = 1 + random.below(3_000);
        let noise: Vec<u8> = (0..len).map(|_| random.byte()).collect();
        let (replies, _) = send(server.resp, &noise);
        for reply in replies {
            assert!(matches!(reply, RespReply::Error(_)), "{number}: {reply}");
        }
    }
    assert_eq!(state(&mut bystander), before);
    assert!(server.is_running());
}

/// Input before authentication.
#[test]
fn before_the_token_even_less_is_read() {
    let server = ServerProcess::start(&[], &[("TIDEGATE_TOKEN", "sesame")]);
    let nine = command(&["PING"; 9]);
    let long = command(&["PING".to_string(), "x".repeat(1_025)]);
    for (bytes, fate) in [(&nine, MANY), (&long, LONG)] {
        let Ended(error) = fate else { unreachable!() };
        let (replies, end) = send(server.resp, bytes);
        assert_eq!(replies, [RespReply::Error(error.into())]);
        assert!(end.is_ok());
        let (replies, _) = send(server.resp, &[&command(&["AUTH", "sesame"])[..], bytes].concat());
        assert_eq!(replies[0], RespReply::Simple("OK".into()));
        assert_ne!(replies[1], RespReply::Error(error.into()));
    }
}

/// State seen by other clients: counts and number of keys.
fn state(client: &mut RespConnection) -> (RespReply, RespReply, i64) {
    let tracked = client.send("TG.INFO").items()[7].integer();
    (client.send("TG.PEEK api k"), client.send("CL.THROTTLE k 1 1 1 0"), tracked)
}

/// All replies, and whether the connection was closed cleanly.
fn send(address: SocketAddr, bytes: &[u8]) -> (Vec<RespReply>, std::io::Result<()>) {
    let mut client = RespConnection::connect(address);
    let mut replies = Vec::new();
    let mut talk = || {
        client.writer().write_all(bytes)?;
        client.writer().shutdown(Shutdown::Write)?;
        while let Some(reply) = client.try_receive()? {
            replies.push(reply);
        }
        Ok(())
    };
    let end = talk();
    (replies, end)
}
