//! What is asked of a server once, on every new connection: will it do?

use std::io;
use std::sync::Arc;

use redis::{RedisResult, Value, from_redis_value, pipe};

use crate::address::Place;
use crate::dial::{Connection, Dialer};
use crate::link::serves;
use crate::resets::Life;

/// The oldest version of Redis whose scripts do what ours need.
const OLDEST: (u64, u64) = (6, 2);
/// Redis under a full memory: it says no, and forgets nothing.
const KEEPS_KEYS: &str = "noeviction";

/// What a server says about itself.
pub(crate) struct Greeting {
    /// It serves those who come.
    pub(crate) serves: bool,
    /// It will do, but for this.
    pub(crate) warning: Option<Arc<str>>,
    /// Who it is, if it tells.
    pub(crate) life: Option<Arc<Life>>,
}

/// Enters, and asks in one round trip. Only a server that is not Redis, or too old, is an error: one that tells
/// nothing, because this user may not ask, is taken as it is.
pub(crate) async fn greet(dialer: &Dialer, place: &Place) -> RedisResult<(Connection, Greeting)> {
    let mut connection = dialer.dial(place).await?;
    let mut questions = pipe();
    questions.cmd("PING");
    // Nobody needs a permission for this one, but before version 6 nobody knew it.
    questions.cmd("HELLO").arg("2");
    // One by one: before version 7 there is no asking for several.
    for section in ["server", "memory", "replication", "keyspace"] {
        questions.cmd("INFO").arg(section);
    }
    let answers = connection.send_packed_commands(&questions, 0, questions.len()).await?;
    let [ping, hello, server, memory, replication, keyspace] = answers.as_slice() else {
        return Err(io::Error::other("what answers there is not redis").into());
    };
    let serves = serves(ping)?;
    let version = match hello {
        Value::ServerError(_) => field(server, "redis_version"),
        hello => version_in_hello(hello),
    };
    if let Some(version) = version.filter(|version| is_too_old(version)) {
        let (major, minor) = OLDEST;
        let text = format!("redis {version} is older than {major}.{minor}; use a newer one");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text).into());
    }
    // One that still loads does not know what it has.
    let keyspace = if serves { keyspace } else { &Value::Nil };
    let life = Life::read(place, dialer.db(), [server, replication, keyspace]).map(Arc::new);
    Ok((connection, Greeting { serves, warning: eviction_warning(memory), life }))
}

/// None of another server: their numbers have nothing to do with those of Redis.
fn version_in_hello(answer: &Value) -> Option<String> {
    let pairs: Vec<(Value, Value)> = match answer {
        Value::Map(pairs) => pairs.clone(),
        Value::Array(words) => {
            words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        }
        _ => return None,
    };
    let value = |name: &str| {
        let (_, value) = pairs.iter().find(|(key, _)| text(key).as_deref() == Some(name))?;
        text(value)
    };
    value("version").filter(|_| value("server").as_deref() == Some("redis"))
}

/// What is no version is not too old.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < OLDEST,
        _ => false,
    }
}

/// A key that is evicted is a limit that begins anew.
fn eviction_warning(memory: &Value) -> Option<Arc<str>> {
    let policy = field(memory, "maxmemory_policy").filter(|policy| policy != KEEPS_KEYS)?;
    // It comes from outside and goes to logs.
    let policy: String = policy.chars().filter(char::is_ascii_graphic).take(32).collect();
    let text = format!(
        "redis evicts keys when its memory is full (maxmemory-policy {policy}), and an evicted \
         limit begins anew; set maxmemory-policy to {KEEPS_KEYS}"
    );
    Some(text.into())
}

/// A field of what `INFO` answers.
pub(crate) fn field(info: &Value, name: &str) -> Option<String> {
    let info = text(info)?;
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(|value| value.trim_end().to_owned())
}

fn text(value: &Value) -> Option<String> {
    from_redis_value(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn only_a_version_that_is_certainly_too_old_is() {
        for old in ["6.1.9", "6.0.16", "5.0.7", "2.8.19", "0.0.0", "6.0", "6.1.240-rc1"] {
            assert!(is_too_old(old), "{old}");
        }
        for fine in ["6.2.0", "6.2", "7.0.15", "10.1.0", "255.255.255", "", "6", "six.two", "6.x"] {
            assert!(!is_too_old(fine), "{fine}");
        }
    }

    #[test]
    fn a_version_counts_only_if_it_is_one_of_redis() {
        let hello = |server: &str| {
            Value::Array(vec![
                bulk("server"),
                bulk(server),
                bulk("version"),
                bulk("1.2.3"),
                bulk("proto"),
                Value::Int(2),
            ])
        };
        assert_eq!(version_in_hello(&hello("redis")).as_deref(), Some("1.2.3"));
        assert_eq!(version_in_hello(&hello("valkey")), None);
        for odd in [Value::Nil, Value::Okay, Value::Array(vec![bulk("server")]), bulk("redis")] {
            assert_eq!(version_in_hello(&odd), None, "{odd:?}");
        }
    }

    #[test]
    fn every_policy_but_noeviction_is_warned_of() {
        let warned = |info: &str| eviction_warning(&bulk(info));
        for silent in ["", "maxmemory_policy:noeviction\r\n", "x:1\r\nmaxmemory:0\r\n"] {
            assert_eq!(warned(silent), None, "{silent:?}");
        }
        for policy in ["allkeys-lru", "volatile-ttl", "allkeys-lru\u{1b}[2J"] {
            let warning = warned(&format!("# Memory\r\nmaxmemory_policy:{policy}\r\n")).unwrap();
            assert!(warning.contains(&policy[..8]), "{warning}");
            assert!(!warning.contains(char::is_control), "{warning:?}");
        }
        assert_eq!(eviction_warning(&Value::Okay), None, "not permitted");
    }
}
