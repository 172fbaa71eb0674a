//! Under which names the console answers.
//!
//! A page anywhere can be given a name that leads to this machine. A browser then takes our answers for that page's own,
//! and shows them to it. It tells us that name, though, and we know ours.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use axum::extract::Request;
use http::header::HOST;
use http::uri::Authority;

/// A name by which people reach the console, without a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostName(Box<str>);

/// It is no name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidHostName;

impl FromStr for HostName {
    type Err = InvalidHostName;

    fn from_str(text: &str) -> Result<Self, InvalidHostName> {
        let is_name = |text: &str| {
            let known = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
            (1..=253).contains(&text.len()) && text.bytes().all(known)
        };
        if text.parse::<IpAddr>().is_err() && !is_name(text) {
            return Err(InvalidHostName);
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }
}

impl fmt::Display for InvalidHostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write a name without scheme and port, like limits.example.com")
    }
}

impl std::error::Error for InvalidHostName {}

/// All names under which the console answers, at any port: proxies and tunnels have ports of their own.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    bound: IpAddr,
    named: Vec<HostName>,
}

impl Hosts {
    pub(super) fn new(door: SocketAddr, named: Vec<HostName>) -> Self {
        Self { bound: door.ip().to_canonical(), named }
    }

    /// Does the client mean us? It says so once or twice, and every time it must be true.
    pub(super) fn include(&self, request: &Request) -> bool {
        let in_address = request.uri().authority().cloned();
        let mut said = in_address.into_iter().map(Some).chain(
            request.headers().get_all(HOST).iter().map(|value| value.to_str().ok()?.parse().ok()),
        );
        let is_ours = |said: Option<Authority>| said.is_some_and(|said| self.has(said.host()));
        said.next().is_some_and(is_ours) && said.all(is_ours)
    }

    fn has(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if self.named.iter().any(|name| name.0.eq_ignore_ascii_case(bare)) {
            return true;
        }
        match bare.parse::<IpAddr>().map(|address| address.to_canonical()) {
            // Whoever names an address has asked no name server that could have lied, and a door that is open on all
            // addresses knows none of them.
            Ok(address) => {
                address.is_loopback() || address == self.bound || self.bound.is_unspecified()
            }
            Err(_) => bare.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(host: &str) -> Request {
        Request::builder().uri("/").header(HOST, host).body(axum::body::Body::empty()).unwrap()
    }

    #[test]
    fn a_name_that_is_not_ours_is_somebody_elses() {
        let named = vec!["Limits.example.com".parse().unwrap()];
        let hosts = Hosts::new("10.0.0.7:8080".parse().unwrap(), named);
        for good in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "127.8.8.8",
            "[::1]:8080",
            "10.0.0.7:8080",
            "limits.example.com",
            "limits.example.com:443",
            "[::ffff:10.0.0.7]",
        ] {
            assert!(hosts.include(&asked(good)), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.8",
            "",
            "limits.example.com.evil.example",
            "127.0.0.1.evil.example",
            "a b",
            "127.0.0.1@evil.example",
            "evil.example@x",
        ] {
            assert!(!hosts.include(&asked(bad)), "{bad}");
        }
        let silent = Request::builder().uri("/").body(axum::body::Body::empty()).unwrap();
        assert!(!hosts.include(&silent));
        let twice = Request::builder().uri("http://evil.example/").header(HOST, "localhost");
        assert!(!hosts.include(&twice.body(axum::body::Body::empty()).unwrap()));
    }

    #[test]
    fn a_door_on_all_addresses_answers_under_each_but_under_no_name() {
        let hosts = Hosts::new("0.0.0.0:8080".parse().unwrap(), Vec::new());
        assert!(hosts.include(&asked("192.168.1.9:8080")));
        assert!(!hosts.include(&asked("evil.example:8080")));
    }

    #[test]
    fn names_are_names() {
        for bad in ["", "http://x", "x:80", "a/b", "*", "<b>"] {
            assert_eq!(bad.parse::<HostName>(), Err(InvalidHostName), "{bad}");
        }
    }
}
