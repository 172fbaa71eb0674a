//! Redisson's own scripts, from its jar, run at instants that the test chooses.

use redis::{Commands as _, Connection, RedisError, Value};

use crate::fixture::NAME;
use crate::jvm::Version;
use testkit::redis::RedisServer;

/// The scripts of one version, on a server.
pub(crate) struct RedissonScripts {
    connection: Connection,
    texts: Vec<String>,
    pub(crate) version: String,
    entries: u64,
}

impl RedissonScripts {
    /// The scripts of every installed version.
    pub(crate) fn all(server: &RedisServer) -> Vec<Self> {
        Version::all().iter().map(|version| Self::new(version, server)).collect()
    }

    pub(crate) fn new(version: &Version, server: &RedisServer) -> Self {
        let texts = version.read("org/redisson/RedissonRateLimiter.class");
        let texts = texts.into_iter().filter(|text| text.contains("redis.call")).collect();
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_connection().unwrap();
        Self { connection, texts, version: version.name.clone(), entries: 0 }
    }

    /// `tryAcquire` by a client whose clock shows `ms`: `None`, or the wait in ms, or an error.
    pub(crate) fn take_at(&mut self, ms: u64, permits: u32) -> Result<Option<i64>, String> {
        self.entries += 1;
        let id = format!("entry-{:010}", self.entries);
        match self.run("Requested permits", &[&permits.to_string(), &ms.to_string(), &id])? {
            Value::Nil => Ok(None),
            Value::Int(wait) => Ok(Some(wait)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn release(&mut self, permits: u32) {
        self.run("newValue > tonumber(rate)", &[&permits.to_string()]).unwrap();
    }

    pub(crate) fn available_at(&mut self, ms: u64) -> i64 {
        match self.run("return currentValue", &[&ms.to_string()]).unwrap() {
            Value::Int(left) => left,
            Value::BulkString(left) => String::from_utf8(left).unwrap().parse().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// `updateRate`, which keeps the state. Returns false for a version without it.
    pub(crate) fn update_at(&mut self, ms: u64, rate: u64) -> bool {
        let words = [&rate.to_string(), "1000", "0", "0", &ms.to_string(), "1", "1"];
        self.texts.iter().any(|text| text.contains("ARGV[7]"))
            && self.run("ARGV[7]", &words).is_ok_and(|done| done == Value::Int(1))
    }

    /// `setRate` with a keep-alive time in ms; 0 for none.
    pub(crate) fn set(&mut self, rate: u64, keep_alive_ms: u64) {
        let words = [&rate.to_string(), "1000", "0", &keep_alive_ms.to_string()];
        self.run("end redis.call('hset'", &words).unwrap();
    }

    /// Deletes the limiter and creates it with this rate.
    pub(crate) fn begin(&mut self, rate: u64) {
        let keys = [NAME.to_owned(), format!("{{{NAME}}}:value"), format!("{{{NAME}}}:permits")];
        let () = self.connection.del(&keys[..]).unwrap();
        self.run("hsetnx", &[&rate.to_string(), "1000", "0", "0"]).unwrap();
    }

    fn run(&mut self, with: &str, args: &[&str]) -> Result<Value, String> {
        let script = self.texts.iter().find(|text| text.contains(with)).unwrap();
        let key = |suffix: &str| format!("{{{NAME}}}:{suffix}");
        let keys = [
            NAME.to_owned(),
            key("value"),
            key("value:their-client"),
            key("permits"),
            key("permits:their-client"),
        ];
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(keys.len()).arg(&keys[..]).arg(args);
        eval.query(&mut self.connection).map_err(|error: RedisError| error.to_string())
    }
}
