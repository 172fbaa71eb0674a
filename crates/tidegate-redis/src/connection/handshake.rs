//! Checks that are made once on every new connection: is it Redis, recent enough, and configured
//! well?

use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisResult, Value, pipe};

use crate::connection::dial::{Dialer, RawConnection};
use crate::connection::endpoint::Endpoint;
use crate::connection::error::CallError;
use crate::connection::info::{field, text};
use crate::connection::server_error::ErrorClass;
use crate::connection::server_identity::ServerIdentity;

/// The oldest version of Redis that runs the scripts.
const MIN_VERSION: (u64, u64) = (6, 2);
/// The `maxmemory-policy` under which a full server refuses writes and keeps all keys.
const NO_EVICTION: &str = "noeviction";

/// What a server reports about itself.
pub(crate) struct ServerInfo {
    /// The error by which the server rejects all commands, for example because it is loading.
    pub(crate) rejection: Option<Arc<str>>,
    /// A setting of the server that should be changed.
    pub(crate) warning: Option<Arc<str>>,
    /// None if the server does not report its run id.
    pub(crate) identity: Option<Arc<ServerIdentity>>,
    /// The server has the native module.
    pub(crate) has_module: bool,
}

/// Connects, and queries the server in one round trip. A server that is not Redis, or too old, is
/// an error. One that reports nothing, because this user lacks the permission, is accepted.
pub(crate) async fn handshake(
    dialer: &Dialer,
    endpoint: &Endpoint,
) -> RedisResult<(RawConnection, ServerInfo)> {
    let mut connection = dialer.dial(endpoint).await?;
    let mut queries = pipe();
    queries.cmd("PING");
    // HELLO needs no permission, but does not exist before version 6.
    queries.cmd("HELLO").arg("2");
    // Before version 7, INFO takes one section only.
    for section in ["server", "memory", "replication", "keyspace", "modules"] {
        queries.cmd("INFO").arg(section);
    }
    let replies = connection.send_packed_commands(&queries, 0, queries.len()).await?;
    let [ping, hello, server, memory, replication, keyspace, modules] = replies.as_slice() else {
        return Err(io::Error::other("the server is not Redis").into());
    };
    let rejection = rejection(check_ping(ping)?);
    let version = match hello {
        Value::ServerError(_) => field(server, "redis_version"),
        hello => version_in_hello(hello),
    };
    if let Some(version) = version.filter(|version| is_too_old(version)) {
        let (major, minor) = MIN_VERSION;
        let text = format!("redis {version} is too old; use {major}.{minor} or newer");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text).into());
    }
    // The keyspace is not complete while the server is loading.
    let keyspace = if rejection.is_none() { keyspace } else { &Value::Nil };
    let identity =
        ServerIdentity::read(endpoint, dialer.db(), [server, replication, keyspace]).map(Arc::new);
    let (warning, has_module) = (eviction_warning(memory), lists_module(modules));
    Ok((connection, ServerInfo { rejection, warning, identity, has_module }))
}

/// Whether the server has the native module.
pub(crate) async fn query_module(mut connection: RawConnection) -> RedisResult<bool> {
    let info = connection.send_packed_command(redis::cmd("INFO").arg("modules")).await?;
    Ok(lists_module(&info))
}

fn lists_module(modules: &Value) -> bool {
    let is_ours = |line: &str| line.starts_with("module:name=tidegate,");
    text(modules).is_some_and(|info| info.lines().any(is_ours))
}

/// The reply to a `PING`, if it is that of a server. Any error will do, also a missing permission
/// for `PING` or `LOADING`. But a client that dials a free port of its own machine can connect to
/// itself, and reads its own command.
pub(crate) fn check_ping(reply: &Value) -> RedisResult<&Value> {
    match reply {
        Value::SimpleString(_) | Value::ServerError(_) => Ok(reply),
        _ => Err((ErrorKind::ClientError, "the server is not Redis").into()),
    }
}

/// Why the server rejects every command, if the reply shows that it does.
pub(crate) fn rejection(reply: &Value) -> Option<Arc<str>> {
    let Value::ServerError(error) = reply else { return None };
    let rejects_all = ErrorClass::of_reply(reply).is_some_and(ErrorClass::rejects_all);
    rejects_all.then(|| CallError::ServerError(Arc::new(error.clone().into())).to_string().into())
}

/// None for other servers, whose versions are not those of Redis.
fn version_in_hello(reply: &Value) -> Option<String> {
    let pairs: Vec<(Value, Value)> = match reply {
        Value::Map(pairs) => pairs.clone(),
        Value::Array(items) => {
            items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        }
        _ => return None,
    };
    let value = |name: &str| {
        let (_, value) = pairs.iter().find(|(key, _)| text(key).as_deref() == Some(name))?;
        text(value)
    };
    value("version").filter(|_| value("server").as_deref() == Some("redis"))
}

/// False for text that is not a version.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < MIN_VERSION,
        _ => false,
    }
}

fn eviction_warning(memory: &Value) -> Option<Arc<str>> {
    let policy = field(memory, "maxmemory_policy").filter(|policy| policy != NO_EVICTION)?;
    // Untrusted text that goes to logs.
    let policy: String = policy.chars().filter(char::is_ascii_graphic).take(32).collect();
    let text = format!(
        "redis evicts keys when its memory is full (maxmemory-policy {policy}), and an evicted \
         key resets its limit; set maxmemory-policy to {NO_EVICTION}"
    );
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn only_a_version_that_is_certainly_too_old_is_refused() {
        for old in ["6.1.9", "6.0.16", "5.0.7", "2.8.19", "0.0.0", "6.0", "6.1.240-rc1"] {
            assert!(is_too_old(old), "{old}");
        }
        for fine in ["6.2.0", "6.2", "7.0.15", "10.1.0", "255.255.255", "", "6", "six.two", "6.x"] {
            assert!(!is_too_old(fine), "{fine}");
        }
    }

    #[test]
    fn the_module_is_found_by_its_name() {
        let line = |name: &str| {
            bulk(&format!("# Modules\r\nmodule:name={name},ver=100,api=1,filters=0,usedby=[]\r\n"))
        };
        assert!(lists_module(&line("tidegate")));
        for other in [line("tidegate2"), line("redis-cell"), bulk("# Modules\r\n"), Value::Nil] {
            assert!(!lists_module(&other), "{other:?}");
        }
    }

    #[test]
    fn only_versions_of_redis_count() {
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
    fn every_eviction_policy_but_noeviction_causes_a_warning() {
        let warning = |info: &str| eviction_warning(&bulk(info));
        for fine in ["", "maxmemory_policy:noeviction\r\n", "x:1\r\nmaxmemory:0\r\n"] {
            assert_eq!(warning(fine), None, "{fine:?}");
        }
        for policy in ["allkeys-lru", "volatile-ttl", "allkeys-lru\u{1b}[2J"] {
            let warning = warning(&format!("# Memory\r\nmaxmemory_policy:{policy}\r\n")).unwrap();
            assert!(warning.contains(&policy[..8]), "{warning}");
            assert!(!warning.contains(char::is_control), "{warning:?}");
        }
        assert_eq!(eviction_warning(&Value::Okay), None, "not permitted");
    }
}
