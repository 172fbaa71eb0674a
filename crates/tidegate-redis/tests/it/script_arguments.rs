//! Invalid arguments, as a client in another language may send them, are refused before the first
//! write.

use redis::Value;
use testkit::redis::RedisServer;
use tidegate_redis::decide_script;

const BUCKET: &[&str] = &["1", "1", "720000000", "1", "5", "0"];
const HOLDERS: &[&str] = &["6", "5"];
const ID: &str = "0123456789abcdef0123456789abcdef";

/// Names all keys of a state, so that only the tested argument is wrong.
const ALL: &str = "3";

/// The end of a part: no boundaries, cost 1, how it is held, no caller, no mode.
const CHARGED: &[&str] = &["0", "1", "", "", ""];
const HELD: &[&str] = &["0", "1", "0", "", ""];
const HELD_AND_CHARGED: &[&str] = &["0", "1", "1", "", ""];

/// A script call, of which each argument can be replaced.
#[derive(Clone)]
struct ScriptCall {
    op: &'static str,
    id: &'static str,
    ttl: &'static str,
    request: &'static str,
    record: &'static str,
    count: Option<&'static str>,
    parts: Vec<Vec<&'static str>>,
    /// The names of the states.
    names: Vec<&'static str>,
    /// Suffixes of the other keys of each state.
    suffixes: &'static [&'static str],
    /// Keys behind those of the parts.
    more_keys: Vec<&'static str>,
    more_words: Vec<&'static str>,
}

impl ScriptCall {
    fn check(limits: &[&[&'static str]]) -> Self {
        let part = |limit: &&[&'static str]| [&[ALL], *limit, CHARGED].concat();
        Self {
            op: "check",
            id: "",
            ttl: "0",
            request: "",
            record: "record",
            count: None,
            parts: limits.iter().map(part).collect(),
            names: vec!["{x}:a", "{x}:b"],
            suffixes: &[":log", ":holds"],
            more_keys: Vec::new(),
            more_words: Vec::new(),
        }
    }

    fn hold() -> Self {
        Self::hold_as(HELD)
    }

    fn hold_as(end: &[&'static str]) -> Self {
        let (parts, record) = (vec![[&[ALL], BUCKET, end].concat()], vec!["{x}:record"]);
        Self { op: "hold", id: ID, ttl: "1000000", parts, more_keys: record, ..Self::check(&[]) }
    }

    /// Charges the bucket and holds a slot.
    fn enter() -> Self {
        Self::enter_as(HELD)
    }

    fn enter_as(end: &[&'static str]) -> Self {
        let parts = vec![[&[ALL], BUCKET, CHARGED].concat(), [&[ALL], HOLDERS, end].concat()];
        Self { op: "visit", parts, ..Self::hold() }
    }

    fn to(&self, connection: &mut redis::Connection) -> redis::RedisResult<Value> {
        let states = &self.names[..self.parts.len().min(self.names.len())];
        let mut keys = Vec::new();
        for state in states {
            keys.push(state.to_string());
            keys.extend(self.suffixes.iter().map(|suffix| format!("{state}{suffix}")));
        }
        keys.extend(self.more_keys.iter().map(ToString::to_string));
        let count = self.parts.len().to_string();
        let count = self.count.unwrap_or(&count);
        let Self { op, id, ttl, request, record, .. } = self;
        let mut command = redis::cmd("EVAL");
        command.arg(decide_script(&[])).arg(keys.len()).arg(&keys);
        command.arg(&["1", op, "", id, ttl, request, record, count]);
        command.arg(self.parts.concat()).arg(&self.more_words).query(connection)
    }
}

#[test]
fn missing_extra_and_out_of_range_arguments_are_refused_before_the_first_write() {
    let server = RedisServer::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let check = || ScriptCall::check(&[BUCKET]);
    let mut bad: Vec<(&str, ScriptCall)> = Vec::new();
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
        bad.push((what, ScriptCall::check(&[limit])));
        // After a valid part, which must not have been charged.
        bad.push((what, ScriptCall::check(&[BUCKET, limit])));
    }
    let one_boundary = [ALL, "3", "1", "5", "0", "1", "1", "1", "", "", ""].to_vec();
    let descending =
        [ALL, "3", "1", "5", "0", "2", "9007199254740991", "1", "1", "", "", ""].to_vec();
    bad.extend([
        ("one boundary", ScriptCall { parts: vec![one_boundary], ..check() }),
        ("boundaries that descend", ScriptCall { parts: vec![descending], ..check() }),
        ("no parts", ScriptCall { parts: Vec::new(), names: Vec::new(), ..check() }),
        ("more parts than there are", ScriptCall { count: Some("2"), ..check() }),
        (
            "fewer parts than there are",
            ScriptCall { count: Some("1"), ..ScriptCall::check(&[BUCKET, BUCKET]) },
        ),
        (
            "one state twice",
            ScriptCall { names: vec!["{x}:a", "{x}:a"], ..ScriptCall::check(&[BUCKET, BUCKET]) },
        ),
        ("a word too many", ScriptCall { more_words: vec!["1"], ..check() }),
        ("a key too many", ScriptCall { more_keys: vec!["{x}:more"], ..check() }),
        (
            "a part without keys",
            ScriptCall { names: vec!["{x}:a"], ..ScriptCall::check(&[BUCKET, BUCKET]) },
        ),
        (
            "an id without its key",
            ScriptCall { request: "0123456789abcdef0123456789abcdef", ..check() },
        ),
        ("a flag for keys that do not exist", {
            let parts = vec![[&["4"], BUCKET, CHARGED].concat()];
            ScriptCall { parts, ..check() }
        }),
        ("a flag for fewer keys than are sent", {
            let parts = vec![[&["1"], BUCKET, CHARGED].concat()];
            ScriptCall { parts, ..check() }
        }),
        ("a log without its key", {
            let parts = vec![["0", "4", "5", "1", "1000000", "0", "1", "", "", ""].to_vec()];
            ScriptCall { parts, suffixes: &[], ..check() }
        }),
        ("a hold without its key", {
            let parts = vec![[&["0"], BUCKET, HELD].concat()];
            ScriptCall { parts, suffixes: &[], ..ScriptCall::hold() }
        }),
        (
            "a short fingerprint",
            ScriptCall { request: "f", more_keys: vec!["{x}:once"], ..check() },
        ),
        ("expiry 2", ScriptCall::hold_as(&["0", "1", "2", "", ""])),
        ("an unknown operation", ScriptCall { op: "chek", ..check() }),
        ("a malformed total", {
            ScriptCall { op: "extend", ..ScriptCall::hold_as(&["0", "1", "0x1", "", ""]) }
        }),
        ("a least total that is none", {
            ScriptCall { op: "extend", ..ScriptCall::hold_as(&["0", "1", "2", "", ""]) }
        }),
        ("a least total of 0", {
            let extend = ScriptCall::hold_as(&["0", "1", "2", "", ""]);
            ScriptCall { op: "extend", record: "0", ..extend }
        }),
        ("a malformed settle cost", {
            ScriptCall { op: "settle", ..ScriptCall::hold_as(&["0", "1", "0x1", "", ""]) }
        }),
        ("a hold of no length", ScriptCall { ttl: "0", ..ScriptCall::hold() }),
        ("a hold without an id", ScriptCall { id: "", ..ScriptCall::hold() }),
        (
            "a hold with a malformed id",
            ScriptCall { id: "0123456789abcdef0123456789abcdeg", ..ScriptCall::hold() },
        ),
        ("a hold without a record", ScriptCall { more_keys: Vec::new(), ..ScriptCall::hold() }),
        ("a hold of cost 0", ScriptCall::hold_as(&["0", "0", "0", "", ""])),
        ("a slot of no length", ScriptCall { ttl: "0", ..ScriptCall::enter() }),
        ("a slot without an id", ScriptCall { id: "", ..ScriptCall::enter() }),
        ("a slot without a record", ScriptCall { more_keys: Vec::new(), ..ScriptCall::enter() }),
        ("a slot that is charged when it expires", ScriptCall::enter_as(HELD_AND_CHARGED)),
        ("a slot of cost 0", ScriptCall::enter_as(&["0", "0", "0", "", ""])),
    ]);
    for (what, sent) in &bad {
        let error = sent.to(&mut connection).expect_err(what).to_string();
        assert!(error.contains("TIDEGATE "), "{what}: {error}");
        assert_eq!(server.cli(&["DBSIZE"]), "0", "{what}");
    }
    // The unchanged calls are valid.
    check().to(&mut connection).unwrap();
    ScriptCall::hold().to(&mut connection).unwrap();
    let settle = ScriptCall { op: "settle", ..ScriptCall::hold_as(&["0", "1", "held", "", ""]) };
    let extend = ScriptCall::hold_as(&["0", "1", "2", "", ""]);
    let extend = ScriptCall { op: "extend", ttl: "0", record: "", ..extend };
    let Value::Array(reply) = extend.to(&mut connection).unwrap() else { panic!("no array") };
    // Allowed and 2 held; then the size, and what is reserved.
    assert_eq!(
        [&reply[0], &reply[5], &reply[11], &reply[12], &reply[13]],
        [1, 1, 2, 5, 2].map(Value::Int).each_ref()
    );
    let nothing = ScriptCall { parts: Vec::new(), names: Vec::new(), ..settle.clone() };
    nothing.to(&mut connection).expect_err("no parts");
    let Value::Array(reply) = settle.to(&mut connection).unwrap() else { panic!("no array") };
    assert_eq!(reply[0], Value::Int(1), "not settled before");
    // A charge may cost nothing, and an entry without a concurrency limit makes no hold.
    let alone = [&[ALL], BUCKET, &["0", "0", "", "", ""]].concat();
    let parts = vec![alone.clone(), [&[ALL], HOLDERS, HELD].concat()];
    for (sent, record, made) in [
        (ScriptCall { parts, ..ScriptCall::enter() }, "{x}:slot", ID),
        (ScriptCall { parts: vec![alone], ..ScriptCall::enter() }, "{x}:none", ""),
    ] {
        let sent = ScriptCall { more_keys: vec![record], ..sent };
        let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
        assert_eq!((&reply[0], &reply[4]), (&Value::Int(1), &Value::BulkString(made.into())));
        let exists = if made.is_empty() { "0" } else { "1" };
        assert_eq!(server.cli(&["EXISTS", record]), exists);
    }
    // The only member is the first, though it belongs to the second part.
    assert_eq!(server.cli(&["HEXISTS", "{x}:slot", "m1"]), "1");
    assert_eq!(server.cli(&["HEXISTS", "{x}:slot", "m2"]), "0");
}

/// A state with another key that the call does not name is not changed, and the reply names it.
#[test]
fn missing_keys_of_a_state_are_requested_before_anything_is_done() {
    let server = RedisServer::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let window = &["4", "5", "3600000000", "11"][..];
    let approximate = &["5", "1", "5", "3600000000"][..];
    let charged = ScriptCall::check(&[window]);
    let hold = ScriptCall { names: vec!["{x}:b"], ..ScriptCall::hold() };
    for sent in [&charged, &hold] {
        sent.to(&mut connection).unwrap();
    }
    let part = |flags, limit: &[&'static str]| [&[flags], limit, CHARGED].concat();
    for op in ["check", "record", "refund", "reset", "peek", "inspect"] {
        let parts = vec![part("0", approximate), part("0", BUCKET)];
        let sent = ScriptCall { op, parts, suffixes: &[], ..ScriptCall::check(&[]) };
        let before = changes(&server);
        let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
        let [status, _, first, second] = &reply[..] else { panic!("{op}: {reply:?}") };
        assert_eq!([status, first, second], [8, 1, 2].map(Value::Int).each_ref(), "{op}");
        assert_eq!(changes(&server), before, "{op}");
    }
    let parts = vec![part("3", approximate), part("3", BUCKET)];
    let sent = ScriptCall { parts, ..ScriptCall::check(&[]) };
    let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
    assert_eq!(reply[0], Value::Int(1), "decided with all keys");
}

/// A late drop must not release a newer hold with the same id.
#[test]
fn a_hold_is_dropped_by_its_own_record_and_leaves_nothing() {
    let server = RedisServer::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut status = |sent: &ScriptCall| {
        let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
        match reply[..] {
            [Value::Int(status), _, Value::Int(third), ..] => (status, third),
            [Value::Int(status), ..] => (status, 0),
            _ => panic!("{reply:?}"),
        }
    };
    let hold = ScriptCall::hold_as(HELD_AND_CHARGED);
    for hold in [hold.clone(), ScriptCall { op: "visit", ..hold }] {
        let parts = ScriptCall::hold_as(&["0", "1", "held", "", ""]).parts;
        let drop = ScriptCall { op: "drop", parts, ..hold.clone() };
        assert_eq!(status(&hold), (1, 0));
        assert_eq!(status(&hold), (5, 1), "the hold exists and has not expired");
        assert_eq!(status(&ScriptCall { record: "another", ..drop.clone() }), (2, 0));
        assert_eq!(status(&hold), (5, 1), "the hold still exists");
        assert_eq!(status(&drop), (1, 0));
        assert_eq!(server.cli(&["DBSIZE"]), "0", "keys are left");
        assert_eq!(status(&drop), (2, 0));
    }
}

/// A retry under the same id must not charge it again.
#[test]
fn a_dropped_hold_that_was_charged_when_it_expired_is_not_made_again() {
    let server = RedisServer::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut status = |sent: &ScriptCall| {
        let Value::Array(reply) = sent.to(&mut connection).unwrap() else { panic!("no array") };
        let [Value::Int(status), _, Value::Int(third), ..] = reply[..] else { panic!("{reply:?}") };
        (status, third)
    };
    let hold = ScriptCall::hold_as(HELD_AND_CHARGED);
    let hold = ScriptCall { op: "visit", ttl: "1000", ..hold };
    assert_eq!(status(&hold), (1, 0));
    let expired = (0..1_000_000).any(|_| status(&hold) == (5, 0));
    assert!(expired, "the hold of 1 ms is still active");
    let parts = ScriptCall::hold_as(&["0", "1", "held", "", ""]).parts;
    assert_eq!(status(&ScriptCall { op: "drop", parts, ..hold.clone() }), (1, 0));
    assert_eq!(status(&hold), (5, 0), "the hold exists and has expired");
}

/// Number of writes so far.
fn changes(server: &RedisServer) -> String {
    let info = server.cli(&["INFO", "persistence"]);
    let line = info.lines().find(|line| line.starts_with("rdb_changes_since_last_save:"));
    line.unwrap().to_owned()
}
