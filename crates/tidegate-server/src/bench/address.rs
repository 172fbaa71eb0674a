//! Where a target is.

use std::fmt;
use std::str::FromStr;

use http::Uri;

use crate::store::{Store, StoreError};

/// A door of a server, or a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A door.
    Door(Door),
    /// A store, which is asked directly.
    Store(Store),
}

/// A door of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Door {
    /// What is spoken there.
    pub protocol: Protocol,
    /// With TLS, or in plain text?
    pub security: Security,
    /// The name or the address, in brackets if it has colons.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// What is spoken at a door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// The Redis protocol.
    Resp,
    /// Envoy's, over gRPC.
    Grpc,
}

/// Who else can read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Security {
    /// Anybody.
    Plain,
    /// Nobody.
    Tls,
}

impl Door {
    /// `host:port`
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn scheme(&self) -> &'static str {
        match (self.protocol, self.security) {
            (Protocol::Http, Security::Plain) => "http",
            (Protocol::Http, Security::Tls) => "https",
            (Protocol::Resp, Security::Plain) => "resp",
            (Protocol::Resp, Security::Tls) => "resps",
            (Protocol::Grpc, Security::Plain) => "grpc",
            (Protocol::Grpc, Security::Tls) => "grpcs",
        }
    }

    /// Where a server listens if nobody says otherwise.
    fn default_port(protocol: Protocol, security: Security) -> u16 {
        match (protocol, security) {
            (Protocol::Http, Security::Plain) => 80,
            (Protocol::Http, Security::Tls) => 443,
            (Protocol::Resp, _) => 6380,
            (Protocol::Grpc, _) => 8081,
        }
    }
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        use {Protocol::*, Security::*};
        let (protocol, security) = match text.split_once("://").map(|(scheme, _)| scheme) {
            Some("http") => (Http, Plain),
            Some("https") => (Http, Tls),
            Some("resp") => (Resp, Plain),
            Some("resps") => (Resp, Tls),
            Some("grpc") => (Grpc, Plain),
            Some("grpcs") => (Grpc, Tls),
            _ => {
                let store: Store = text.parse().map_err(|error| match error {
                    StoreError::Unknown => InvalidAddress::Unknown,
                    StoreError::Settings(_) => InvalidAddress::Store(error),
                })?;
                // Whoever asks there never waits, so that there is nothing to measure in this way.
                let is_here = store == Store::MEMORY;
                return if is_here { Err(InvalidAddress::Unknown) } else { Ok(Self::Store(store)) };
            }
        };
        let uri: Uri = text.parse().map_err(|_| InvalidAddress::Door)?;
        let authority = uri.authority().ok_or(InvalidAddress::Door)?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if !is_bare || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(InvalidAddress::Door);
        }
        let port = match authority.as_str() == authority.host() {
            true => Door::default_port(protocol, security),
            // One that is too large is no port, and not the usual one either.
            false => authority.port_u16().filter(|port| *port > 0).ok_or(InvalidAddress::Door)?,
        };
        Ok(Self::Door(Door { protocol, security, host: authority.host().to_string(), port }))
    }
}

/// Without a password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Door(door) => write!(f, "{}://{}", door.scheme(), door.authority()),
            Self::Store(store) => store.fmt(f),
        }
    }
}

/// Why a text is no target. It does not show the text, which may have a password in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InvalidAddress {
    /// Nobody knows such targets.
    Unknown,
    /// It is no host and port.
    Door,
    /// It is no store.
    Store(StoreError),
}

impl fmt::Display for InvalidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str(
                "not a target; use http://.., https://.., resp://.., resps://.., grpc://.., grpcs://.. \
                 or a Redis like redis://..",
            ),
            Self::Door => f.write_str(
                "write a host and a port, like http://127.0.0.1:8080; tokens are read from TIDEGATE_TOKEN",
            ),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvalidAddress {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_door_or_a_store_and_shown_without_its_password() {
        for (text, shown) in [
            ("http://127.0.0.1:8080", Ok("http://127.0.0.1:8080")),
            ("http://h/", Ok("http://h:80")),
            ("https://h", Ok("https://h:443")),
            ("resp://[::1]:1", Ok("resp://[::1]:1")),
            ("resps://h", Ok("resps://h:6380")),
            ("grpc://h", Ok("grpc://h:8081")),
            ("grpcs://h:1", Ok("grpcs://h:1")),
            ("redis://u:pw@h/1", Ok("redis://u:***@h:6379/1")),
            ("redis-cluster://a,b", Ok("redis-cluster://a:6379,b:6379")),
            ("unix:///run/redis.sock", Ok("unix:///run/redis.sock")),
            ("http://u:hunter2@h", Err("write a host and a port")),
            ("http://h/v1/check", Err("write a host and a port")),
            ("http://h:99999", Err("write a host and a port")),
            ("resp://h:0", Err("write a host and a port")),
            ("http://", Err("write a host and a port")),
            ("redis://hunter2@h", Err("a login without a password")),
            ("memory", Err("not a target")),
            ("127.0.0.1:8080", Err("not a target")),
            ("", Err("not a target")),
        ] {
            match (text.parse::<Address>(), shown) {
                (Ok(address), Ok(shown)) => assert_eq!(address.to_string(), shown),
                (Err(error), Err(told)) => {
                    assert!(error.to_string().contains(told), "{text}: {error}");
                    assert!(!error.to_string().contains("hunter2"));
                }
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
    }
}
