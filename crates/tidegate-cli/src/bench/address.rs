//! Target URL of a benchmark.

use std::fmt;
use std::str::FromStr;

use crate::endpoint::{InvalidServerUrl, ServerUrl};
use tidegate_server::internal::store::{Store, StoreError};

/// A listener of a server, or a store that the library uses directly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TargetUrl {
    Server(ServerUrl),
    Store(Store),
}

impl FromStr for TargetUrl {
    type Err = InvalidTargetUrl;

    fn from_str(text: &str) -> Result<Self, InvalidTargetUrl> {
        match text.parse() {
            Ok(server) => return Ok(Self::Server(server)),
            Err(InvalidServerUrl::HostPort) => return Err(InvalidTargetUrl::HostPort),
            Err(InvalidServerUrl::UnknownScheme) => {}
        }
        let store: Store = text.parse().map_err(|error| match error {
            StoreError::Unknown(_) => InvalidTargetUrl::UnknownScheme,
            StoreError::Settings(_) => InvalidTargetUrl::Store(error),
        })?;
        // The memory store never waits: there is no latency to measure.
        let is_memory = store == Store::MEMORY;
        if is_memory { Err(InvalidTargetUrl::UnknownScheme) } else { Ok(Self::Store(store)) }
    }
}

/// The URL without its password.
impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(server) => server.fmt(f),
            Self::Store(store) => store.fmt(f),
        }
    }
}

/// Why a target URL is invalid. The URL is not part of the message: it may contain a password.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum InvalidTargetUrl {
    UnknownScheme,
    /// Host or port is missing or invalid, or there is more than host and port.
    HostPort,
    Store(StoreError),
}

impl fmt::Display for InvalidTargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownScheme => {
                f.write_str("invalid target; use http[s]://, resp[s]://, grpc[s]:// or redis://")
            }
            Self::HostPort => f.write_str(
                "expected host and port, for example http://127.0.0.1:8080; the token comes from \
                 TIDEGATE_TOKEN",
            ),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvalidTargetUrl {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_listener_or_a_store_and_shown_without_its_password() {
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
            ("http://u:hunter2@h", Err("expected host and port")),
            ("http://h/v1/check", Err("expected host and port")),
            ("http://h:99999", Err("expected host and port")),
            ("resp://h:0", Err("expected host and port")),
            ("http://", Err("expected host and port")),
            ("redis://hunter2@h", Err("a login without a password")),
            ("memory", Err("invalid target")),
            ("127.0.0.1:8080", Err("invalid target")),
            ("", Err("invalid target")),
        ] {
            match (text.parse::<TargetUrl>(), shown) {
                (Ok(address), Ok(shown)) => assert_eq!(address.to_string(), shown),
                (Err(error), Err(message)) => {
                    assert!(error.to_string().contains(message), "{text}: {error}");
                    assert!(!error.to_string().contains("hunter2"));
                }
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
    }
}
