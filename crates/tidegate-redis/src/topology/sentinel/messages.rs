//! Parses the events and replies of sentinels.

use redis::{ErrorKind, PushInfo, PushKind, RedisResult, Value};

use super::quorum::SentinelReport;
use crate::connection::endpoint::Endpoint;
use crate::connection::role::text;

/// An event of a failover that a sentinel publishes.
pub(crate) enum FailoverEvent {
    /// This replica was selected to become the primary.
    Chosen(Endpoint),
    Moved {
        from: Endpoint,
        to: Endpoint,
    },
}

impl FailoverEvent {
    pub(crate) const CHOSEN: &str = "+selected-slave";
    pub(crate) const MOVED: &str = "+switch-master";
}

/// The event in a pushed message, if it is about this master.
pub(crate) fn event(message: &PushInfo, master: &str) -> Option<FailoverEvent> {
    if message.kind != PushKind::Message {
        return None;
    }
    let channel = text(message.data.first()?)?;
    let fields: Vec<&str> = text(message.data.get(1)?)?.split(' ').collect();
    match (channel, &*fields) {
        (FailoverEvent::MOVED, [of, old_host, old_port, host, port]) if *of == master => {
            Some(FailoverEvent::Moved {
                from: endpoint(old_host, old_port)?,
                to: endpoint(host, port)?,
            })
        }
        (FailoverEvent::CHOSEN, ["slave", _, host, port, "@", of, ..]) if *of == master => {
            endpoint(host, port).map(FailoverEvent::Chosen)
        }
        _ => None,
    }
}

/// Parses the reply to `SENTINEL get-master-addr-by-name`.
pub(crate) fn report(reply: Value) -> RedisResult<SentinelReport> {
    let endpoint = match reply.extract_error()? {
        Value::Nil => return Ok(SentinelReport::Unknown),
        Value::Array(items) => match &*items {
            [host, port] => {
                text(host).zip(text(port)).and_then(|(host, port)| endpoint(host, port))
            }
            _ => None,
        },
        _ => None,
    };
    let not_sentinel = "the server is not a Sentinel";
    endpoint.map(SentinelReport::At).ok_or_else(|| (ErrorKind::ClientError, not_sentinel).into())
}

fn endpoint(host: &str, port: &str) -> Option<Endpoint> {
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| Endpoint::Tcp { host: host.into(), port })
}
