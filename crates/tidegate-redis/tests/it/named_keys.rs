//! A call passes only the keys that it needs to the script. The script is called again only if a
//! key was missing.

use std::time::Duration;

use redis::cmd;
use testkit::redis::{RedisServer, SCRIPT_COMMANDS};
use tidegate::{Limit, Limiter};
use tidegate_redis::Redis;

/// A server that logs every command.
struct LoggingServer {
    redis: RedisServer,
    connection: redis::Connection,
}

impl LoggingServer {
    fn start() -> Self {
        let args = ["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"];
        let redis = RedisServer::start_with(&args);
        let connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        Self { redis, connection }
    }

    fn limiter(&self, limit: &str) -> Limiter {
        let builder = Redis::builder(&self.redis.url()).deadline(Duration::from_secs(10));
        Limiter::new(builder.build().unwrap(), limit.parse::<Limit>().unwrap())
    }

    /// Kinds of the keys of every script call since the last time.
    fn keys(&mut self) -> Vec<Vec<&'static str>> {
        type SlowLogEntry = (i64, i64, i64, Vec<Vec<u8>>, String, String);
        let slow: Vec<SlowLogEntry> =
            cmd("SLOWLOG").arg(&["GET", "-1"]).query(&mut self.connection).unwrap();
        cmd("SLOWLOG").arg("RESET").exec(&mut self.connection).unwrap();
        let mut calls = Vec::new();
        for (.., words, _, _) in slow.into_iter().rev() {
            let words: Vec<String> =
                words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            if SCRIPT_COMMANDS.contains(&&*words[0].to_ascii_lowercase()) {
                let count: usize = words[2].parse().unwrap();
                calls.push(words[3..3 + count].iter().map(|key| kind(key)).collect());
            }
        }
        calls
    }
}

fn kind(key: &str) -> &'static str {
    match key {
        _ if key.ends_with(":log") => "log",
        _ if key.ends_with(":holds") => "holds",
        _ if key.contains(":hold:") => "record",
        _ if key.contains(":once:") => "id",
        _ => "state",
    }
}

#[tokio::test]
async fn a_call_names_only_what_it_needs() {
    let mut server = LoggingServer::start();
    for (limit, keys) in [
        ("10/h", &["state"][..]),
        ("10/h every 1h", &["state"]),
        ("leaky-bucket 10/h queue", &["state"]),
        ("fixed-window 10/h", &["state"]),
        ("sliding-log 10/h", &["state", "log"]),
        ("sliding-window 10/h", &["state", "log"]),
        ("sliding-window 10/h approximate", &["state"]),
    ] {
        let limiter = server.limiter(limit);
        limiter.check("warm up").await.unwrap();
        limiter.check("warm up").peek().await.unwrap();
        server.keys();
        limiter.check("k").cost(7).await.unwrap();
        limiter.check("k").cost(7).await.unwrap();
        limiter.check("k").peek().await.unwrap();
        limiter.record("k", 1).await.unwrap();
        limiter.refund("k", 1).await.unwrap();
        limiter.inspect("k").await.unwrap();
        limiter.reset("k").await.unwrap();
        assert_eq!(server.keys(), vec![keys; 7], "{limit}");
    }
}

#[tokio::test]
async fn the_holds_key_is_named_only_while_holds_are_known_to_exist() {
    let mut server = LoggingServer::start();
    for limit in ["10/h", "fixed-window 10/h", "sliding-window 10/h approximate"] {
        let (other, limiter) = (server.limiter(limit), server.limiter(limit));
        limiter.check("warm up").await.unwrap();
        limiter.check("warm up").peek().await.unwrap();
        // A check of a key with holds loads the script for all checks.
        limiter.reserve("warm up", 1).await.unwrap().keep();
        limiter.check("warm up").await.unwrap();
        let kept = other.reserve("k", 2).await.unwrap().keep();
        server.keys();
        // The hold of another engine costs one extra call.
        assert_eq!(limiter.check("k").await.unwrap().remaining(), 7, "{limit}");
        assert_eq!(server.keys(), [&["state"][..], &["state", "holds"]], "{limit}");
        for _ in 0..2 {
            limiter.check("k").cost(9).await.unwrap();
            limiter.check("k").peek().await.unwrap();
            assert_eq!(server.keys(), [["state", "holds"]; 2], "{limit}");
        }
        limiter.check("other").await.unwrap();
        assert_eq!(server.keys(), [["state"]], "{limit}: another subject");
        other.reservation(kept).cancel().await.unwrap();
        server.keys();
        limiter.check("k").await.unwrap();
        limiter.check("k").await.unwrap();
        assert_eq!(server.keys(), [&["state", "holds"][..], &["state"]], "{limit}");
    }
}
