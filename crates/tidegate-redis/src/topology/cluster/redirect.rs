//! Classifies the errors of a node: redirects, retries and final errors.

use redis::RedisError;

use crate::connection::endpoint::Endpoint;
use crate::connection::server_error::ErrorClass;
use crate::topology::hash_slot::HashSlot;

/// What to do about an error. A command with such an error, `Final` excepted, was not executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Redirect {
    /// This node owns the slot now.
    Moved(Endpoint),
    /// The slot is being migrated to this node, which has these keys already.
    Ask(Endpoint),
    /// The slot is being migrated, and its keys are on two nodes.
    TryAgain,
    /// The node does not execute it at the moment; another node may own its slots now or later.
    /// False in `serves` means that the node considers the Cluster down.
    Unsettled { serves: bool },
    /// An error of the command, which every node would return; or a malformed redirect.
    Final,
}

impl Redirect {
    /// Classifies the error that node `from` returned to a command on `slot`.
    pub(crate) fn of(error: &RedisError, slot: HashSlot, from: &Endpoint) -> Self {
        let to = || target(error.detail()?, slot, from);
        match ErrorClass::of(error) {
            ErrorClass::Moved => to().map_or(Self::Final, Self::Moved),
            ErrorClass::Ask => to().map_or(Self::Final, Self::Ask),
            ErrorClass::TryAgain => Self::TryAgain,
            ErrorClass::ClusterDown => Self::Unsettled { serves: false },
            class if class.is_retryable_in_failover() => Self::Unsettled { serves: true },
            _ => Self::Final,
        }
    }
}

/// Parses `1234 host:port`.
fn target(detail: &str, slot: HashSlot, from: &Endpoint) -> Option<Endpoint> {
    let (number, endpoint) = detail.split_once(' ')?;
    // A node that names another slot computes slots differently.
    if number.parse() != Ok(slot.get()) {
        return None;
    }
    // An IPv6 address contains colons, and rarely has brackets.
    let (host, port) = endpoint.trim_end().rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    endpoint_of(Some(host), port.parse().ok()?, from)
}

/// A node that does not know or report its host name has the host of `queried`.
pub(crate) fn endpoint_of(host: Option<&str>, port: u16, queried: &Endpoint) -> Option<Endpoint> {
    let host = match (host, queried) {
        (Some(host), _) if !host.is_empty() && host != "?" => host,
        (_, Endpoint::Tcp { host, .. }) => host,
        (_, Endpoint::Unix(_)) => return None,
    };
    let is_valid = !host.contains(|c: char| c.is_whitespace() || c.is_control());
    (port > 0 && is_valid).then(|| Endpoint::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;

    fn redirect(kind: ErrorKind, detail: &str) -> Redirect {
        let from = Endpoint::Tcp { host: "10.0.0.1".to_owned(), port: 6379 };
        let error = RedisError::from((kind, "text", detail.to_owned()));
        Redirect::of(&error, HashSlot::of("foo"), &from)
    }

    #[test]
    fn a_redirect_is_parsed() {
        let slot = HashSlot::of("foo").get();
        for (text, host, port) in [
            ("10.0.0.2:6380", "10.0.0.2", 6380),
            (":6380", "10.0.0.1", 6380),
            ("?:6380", "10.0.0.1", 6380),
            ("redis-2.example:6380", "redis-2.example", 6380),
            ("fe80::2:6380", "fe80::2", 6380),
            ("[fe80::2]:6380", "fe80::2", 6380),
        ] {
            let expected = Endpoint::Tcp { host: host.to_owned(), port };
            let detail = format!("{slot} {text}");
            assert_eq!(
                redirect(ErrorKind::Moved, &detail),
                Redirect::Moved(expected.clone()),
                "{text}"
            );
            assert_eq!(redirect(ErrorKind::Ask, &detail), Redirect::Ask(expected), "{text}");
        }
    }

    #[test]
    fn a_malformed_redirect_is_a_final_error() {
        let slot = HashSlot::of("foo").get();
        for detail in [
            String::new(),
            format!("{slot}"),
            format!("{slot} "),
            format!("{slot} 10.0.0.2"),
            format!("{slot} 10.0.0.2:"),
            format!("{slot} 10.0.0.2:0"),
            format!("{slot} 10.0.0.2:65536"),
            format!("{slot} 10.0.0.2:-1"),
            format!("{slot} 10.0.0.2 x:6380"),
            "1 10.0.0.2:6380".to_owned(),
            "99999 10.0.0.2:6380".to_owned(),
            "x 10.0.0.2:6380".to_owned(),
        ] {
            assert_eq!(redirect(ErrorKind::Moved, &detail), Redirect::Final, "{detail:?}");
            assert_eq!(redirect(ErrorKind::Ask, &detail), Redirect::Final, "{detail:?}");
        }
    }
}
