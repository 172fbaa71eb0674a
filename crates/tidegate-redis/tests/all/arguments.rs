//! What a client in another language may send by mistake is refused before the first write.

use crate::server;
use redis::Value;
use server::Server;
use tidegate_redis::script_text;

const BUCKET: &[&str] = &["1", "1", "720000000", "1", "5", "0"];
const HOLDERS: &[&str] = &["6", "5"];
const ID: &str = "0123456789abcdef0123456789abcdef";

/// What comes beside a state: all there is, so that only the words are wrong.
const ALL: &str = "3";

/// A call of a script, each word of which can be another.
#[derive(Clone)]
struct Sent {
    op: &'static str,
    id: &'static str,
    ttl: &'static str,
    expiry: &'static str,
    settle: &'static str,
    request: &'static str,
    record: &'static str,
    count: Option<&'static str>,
    parts: Vec<Vec<&'static str>>,
    /// The names of the states.
    names: Vec<&'static str>,
    /// What keys come beside each.
    beside: &'static [&'static str],
    /// Keys behind those of the parts.
    more_keys: Vec<&'static str>,
    more_words: Vec<&'static str>,
}

impl Sent {
    fn check(limits: &[&[&'static str]]) -> Self {
        let part = |limit: &&[&'static str]| [&[ALL], *limit, &["0", "1", "", ""]].concat();
        Self {
            op: "check",
            id: "",
            ttl: "0",
            expiry: "0",
            settle: "",
            request: "",
            record: "record",
            count: None,
            parts: limits.iter().map(part).collect(),
            names: vec!["{x}:a", "{x}:b"],
            beside: &[":log", ":holds"],
            more_keys: Vec::new(),
            more_words: Vec::new(),
        }
    }

    fn hold() -> Self {
        let record = vec!["{x}:record"];
        Self { op: "hold", id: ID, ttl: "1000000", more_keys: record, ..Self::check(&[BUCKET]) }
    }

    fn enter() -> Self {
        Self { op: "enter", parts: Self::check(&[BUCKET, HOLDERS]).parts, ..Self::hold() }
    }

    fn to(&self, connection: &mut redis::Connection) -> redis::RedisResult<Value> {
        let states = &self.names[..self.parts.len().min(self.names.len())];
        let mut keys = Vec::new();
        for state in states {
            keys.push(state.to_string());
            keys.extend(self.beside.iter().map(|beside| format!("{state}{beside}")));
        }
        keys.extend(self.more_keys.iter().map(ToString::to_string));
        let count = self.parts.len().to_string();
        let count = self.count.unwrap_or(&count);
        let Self { op, id, ttl, expiry, settle, request, record, .. } = self;
        let mut command = redis::cmd("EVAL");
        command.arg(script_text(&[])).arg(keys.len()).arg(&keys);
        command.arg(&["1", op, "", id, ttl, expiry, settle, request, record, count]);
        command.arg(self.parts.concat()).arg(&self.more_words).query(connection)
    }
}

#[test]
fn what_is_missing_too_much_or_out_of_range_is_refused_before_the_first_write() {
    let server = Server::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let check = || Sent::check(&[BUCKET]);
    let mut bad: Vec<(&str, Sent)> = Vec::new();
    for (what, limit) in [
        ("tick 0", &["1", "0", "720000000", "1", "5", "0"][..]),
        ("permit 0", &["1", "1", "0", "1", "5", "0"]),
        ("drain 0", &["1", "1", "720000000", "0", "5", "0"]),
        ("queue 7", &["1", "1", "720000000", "1", "5", "7"]),
        ("units beyond 2^52", &["1", "1", "4503599627370495", "1", "2", "0"]),
        ("size of 2^52", &["1", "1", "1", "1", "4503599627370496", "0"]),
        ("every 0", &["2", "0", "1", "5"]),
        ("amount 0", &["2", "1000000", "0", "5"]),
        ("aligned length 0", &["3", "0", "5", "0"]),
        ("first-hit length 0", &["3", "2", "5", "0"]),
        ("mode 9", &["3", "9", "5", "3600000000"]),
        ("calendar without boundaries", &["3", "1", "5", "0"]),
        ("grain 0", &["4", "5", "0", "1000000"]),
        ("window 0", &["4", "5", "1", "0"]),
        ("approximate tick 0", &["5", "0", "5", "3600000000"]),
        ("approximate window 0", &["5", "1", "5", "0"]),
        ("approximate beyond 2^52", &["5", "1", "4503599627370495", "2"]),
        ("algorithm 7", &["7", "5"]),
        ("algorithm in hexadecimal", &["0x6", "5"]),
    ] {
        bad.push((what, Sent::check(&[limit])));
        // Behind one that is good: that must not have been charged.
        bad.push((what, Sent::check(&[BUCKET, limit])));
    }
    let one_boundary = [ALL, "3", "1", "5", "0", "1", "1", "1", "", ""].to_vec();
    let descending = [ALL, "3", "1", "5", "0", "2", "9007199254740991", "1", "1", "", ""].to_vec();
    bad.extend([
        ("one boundary", Sent { parts: vec![one_boundary], ..check() }),
        ("boundaries that descend", Sent { parts: vec![descending], ..check() }),
        ("no parts", Sent { parts: Vec::new(), names: Vec::new(), ..check() }),
        ("more parts than there are", Sent { count: Some("2"), ..check() }),
        ("fewer parts than there are", Sent { count: Some("1"), ..Sent::check(&[BUCKET, BUCKET]) }),
        (
            "one state twice",
            Sent { names: vec!["{x}:a", "{x}:a"], ..Sent::check(&[BUCKET, BUCKET]) },
        ),
        ("a word too many", Sent { more_words: vec!["1"], ..check() }),
        ("a key too many", Sent { more_keys: vec!["{x}:more"], ..check() }),
        ("a part without keys", Sent { names: vec!["{x}:a"], ..Sent::check(&[BUCKET, BUCKET]) }),
        ("an id without its key", Sent { request: "0123456789abcdef0123456789abcdef", ..check() }),
        ("keys beside a state that there are not", {
            let parts = vec![[&["4"], BUCKET, &["0", "1", "", ""]].concat()];
            Sent { parts, ..check() }
        }),
        ("fewer keys beside a state than come", {
            let parts = vec![[&["1"], BUCKET, &["0", "1", "", ""]].concat()];
            Sent { parts, ..check() }
        }),
        ("a log without its key", {
            let parts = vec![["0", "4", "5", "1", "1000000", "0", "1", "", ""].to_vec()];
            Sent { parts, beside: &[], ..check() }
        }),
        ("a hold without its key", {
            let parts = vec![[&["0"], BUCKET, &["0", "1", "", ""]].concat()];
            Sent { parts, beside: &[], ..Sent::hold() }
        }),
        ("a short fingerprint", Sent { request: "f", more_keys: vec!["{x}:once"], ..check() }),
        ("expiry 2", Sent { expiry: "2", ..check() }),
        ("an operation that is none", Sent { op: "chek", ..check() }),
        ("a settle cost that is none", Sent { settle: "0x1", ..check() }),
        ("a hold of no length", Sent { ttl: "0", ..Sent::hold() }),
        ("a hold without an id", Sent { id: "", ..Sent::hold() }),
        (
            "a hold of an id that is none",
            Sent { id: "0123456789abcdef0123456789abcdeg", ..Sent::hold() },
        ),
        ("a hold without a record", Sent { more_keys: Vec::new(), ..Sent::hold() }),
        (
            "a hold of nothing",
            Sent { parts: vec![[&[ALL], BUCKET, &["0", "0", "", ""]].concat()], ..Sent::hold() },
        ),
        ("a place of no length", Sent { ttl: "0", ..Sent::enter() }),
        ("a place without an id", Sent { id: "", ..Sent::enter() }),
        ("a place without a record", Sent { more_keys: Vec::new(), ..Sent::enter() }),
        ("a place that is charged at its end", Sent { expiry: "1", ..Sent::enter() }),
        ("an entry under an id", {
            let more_keys = vec!["{x}:record", "{x}:once"];
            Sent { request: ID, more_keys, ..Sent::enter() }
        }),
        ("a place of nothing", {
            let nothing = [&[ALL], HOLDERS, &["0", "0", "", ""]].concat();
            Sent { parts: vec![Sent::check(&[BUCKET]).parts.concat(), nothing], ..Sent::enter() }
        }),
    ]);
    for (what, sent) in &bad {
        let error = sent.to(&mut connection).expect_err(what).to_string();
        assert!(error.contains("TIDEGATE "), "{what}: {error}");
        assert_eq!(server.cli(&["DBSIZE"]), "0", "{what}");
    }
    // And what they were made from is fine.
    check().to(&mut connection).unwrap();
    Sent::hold().to(&mut connection).unwrap();
    let settle = Sent { op: "settle", ..Sent::hold() };
    let nothing = Sent { parts: Vec::new(), names: Vec::new(), ..settle.clone() };
    nothing.to(&mut connection).expect_err("no parts");
    let Value::Array(reply) = settle.to(&mut connection).unwrap() else { panic!("no array") };
    assert_eq!(reply[0], Value::Int(1), "settled by nothing before");
    // What is charged may cost nothing, and whoever enters without a place makes no hold.
    let alone = [&[ALL], BUCKET, &["0", "0", "", ""]].concat();
    let parts = vec![alone.clone(), Sent::check(&[HOLDERS]).parts.concat()];
    for (sent, record, made) in [
        (Sent { parts, ..Sent::enter() }, "{x}:place", ID),
        (Sent { parts: vec![alone], ..Sent::enter() }, "{x}:none", ""),
    ] {
        let sent = Sent { more_keys: vec![record], ..sent };
        let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
        assert_eq!((&reply[0], &reply[4]), (&Value::Int(1), &Value::BulkString(made.into())));
        let exists = if made.is_empty() { "0" } else { "1" };
        assert_eq!(server.cli(&["EXISTS", record]), exists);
    }
    // The only member is the first, though it is of the second part.
    assert_eq!(server.cli(&["HEXISTS", "{x}:place", "m1"]), "1");
    assert_eq!(server.cli(&["HEXISTS", "{x}:place", "m2"]), "0");
}

/// A state that has something beside it which was not named is left alone, and the reply says what.
#[test]
fn what_lies_beside_a_state_is_asked_for_before_anything_is_done() {
    let server = Server::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let window = &["4", "5", "3600000000", "11"][..];
    let approximate = &["5", "1", "5", "3600000000"][..];
    let charged = Sent::check(&[window]);
    let hold = Sent { names: vec!["{x}:b"], ..Sent::hold() };
    for sent in [&charged, &hold] {
        sent.to(&mut connection).unwrap();
    }
    let part = |beside, limit: &[&'static str]| [&[beside], limit, &["0", "1", "", ""]].concat();
    for op in ["check", "record", "refund", "reset", "peek", "inspect"] {
        let parts = vec![part("0", approximate), part("0", BUCKET)];
        let sent = Sent { op, parts, beside: &[], ..Sent::check(&[]) };
        let before = changes(&server);
        let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
        let [status, _, first, second] = &reply[..] else { panic!("{op}: {reply:?}") };
        assert_eq!([status, first, second], [8, 1, 2].map(Value::Int).each_ref(), "{op}");
        assert_eq!(changes(&server), before, "{op}");
    }
    let parts = vec![part("3", approximate), part("3", BUCKET)];
    let sent = Sent { parts, ..Sent::check(&[]) };
    let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
    assert_eq!(reply[0], Value::Int(1), "with all keys it is answered");
}

/// What is dropped late must not be what somebody holds under that name since.
#[test]
fn a_hold_is_dropped_by_its_own_record_and_then_forgotten() {
    let server = Server::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut status = |sent: &Sent| {
        let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
        match reply[..] {
            [Value::Int(status), _, Value::Int(third), ..] => (status, third),
            [Value::Int(status), ..] => (status, 0),
            _ => panic!("{reply:?}"),
        }
    };
    let hold = Sent { expiry: "1", ..Sent::hold() };
    for hold in [hold.clone(), Sent { op: "visit", ..hold }] {
        let drop = Sent { op: "drop", ..hold.clone() };
        assert_eq!(status(&hold), (1, 0));
        assert_eq!(status(&hold), (5, 1), "there is one, and it lasts");
        assert_eq!(status(&Sent { record: "another", ..drop.clone() }), (2, 0));
        assert_eq!(status(&hold), (5, 1), "it is there yet");
        assert_eq!(status(&drop), (1, 0));
        assert_eq!(server.cli(&["DBSIZE"]), "0", "nothing is left of it");
        assert_eq!(status(&drop), (2, 0));
    }
}

/// How many writes there have been.
fn changes(server: &Server) -> String {
    let info = server.cli(&["INFO", "persistence"]);
    let line = info.lines().find(|line| line.starts_with("rdb_changes_since_last_save:"));
    line.unwrap().to_owned()
}
