//! Host names of the console and of an API without a token, against DNS rebinding. Imports nothing
//! of the crate.
//!
//! Another site can point its own host name to the address of this server. A browser then gives the
//! responses of this server to that site. The request contains the host name, so it can be refused.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use axum::extract::Request;
use http::header::{HOST, HeaderValue};
use http::uri::Authority;

/// A host name of this server, without a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostName(Box<str>);

/// The text is not a host name.
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
        f.write_str("expected a host name without scheme and port, for example limits.example.com")
    }
}

impl std::error::Error for InvalidHostName {}

/// The host names of this server, with any port: proxies and tunnels have other ports.
#[derive(Clone, Debug)]
pub struct AllowedHosts {
    bound: IpAddr,
    named: Vec<HostName>,
}

impl AllowedHosts {
    /// The names of the HTTP listener at this address, and `named` besides.
    pub fn new(listener: SocketAddr, named: Vec<HostName>) -> Self {
        Self { bound: listener.ip().to_canonical(), named }
    }

    /// Whether the request is for this server.
    pub(crate) fn include(&self, request: &Request) -> bool {
        let has_host = request.headers().contains_key(HOST) || request.uri().authority().is_some();
        has_host && !self.exclude(request)
    }

    /// Whether the request is for another server. A request can have a host in its URI and in
    /// headers; all of them must match. Browsers always send one; other clients may send none.
    pub(crate) fn exclude(&self, request: &Request) -> bool {
        let includes = |value: &HeaderValue| {
            let Ok(text) = value.to_str() else { return false };
            match plain_host(text) {
                Some(host) => self.has(host),
                None => text.parse().is_ok_and(|authority: Authority| self.has(authority.host())),
            }
        };
        let in_uri = request.uri().authority();
        !(in_uri.is_none_or(|authority| self.has(authority.host()))
            && request.headers().get_all(HOST).iter().all(includes))
    }

    /// Whether only this machine can connect.
    pub(crate) fn is_loopback(&self) -> bool {
        self.bound.is_loopback()
    }

    fn has(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if self.named.iter().any(|name| name.0.eq_ignore_ascii_case(bare)) {
            return true;
        }
        match bare.parse::<IpAddr>().map(|address| address.to_canonical()) {
            // An IP address cannot be rebound by DNS. A listener bound to all addresses does not
            // know which ones it has.
            Ok(address) => {
                address.is_loopback() || address == self.bound || self.bound.is_unspecified()
            }
            Err(_) => bare.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
        }
    }
}

/// The host of an authority that is a name or an IPv4 address, with a port or without. Any other
/// needs the whole parser, which copies it.
fn plain_host(authority: &str) -> Option<&str> {
    let (host, port) = authority.split_once(':').unwrap_or((authority, "0"));
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-';
    let is_port = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
    (is_port && !host.is_empty() && host.bytes().all(is_name)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: &str) -> Request {
        Request::builder().uri("/").header(HOST, host).body(axum::body::Body::empty()).unwrap()
    }

    #[test]
    fn only_known_host_names_are_accepted() {
        let named = vec!["Limits.example.com".parse().unwrap()];
        let hosts = AllowedHosts::new("10.0.0.7:8080".parse().unwrap(), named);
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
            assert!(hosts.include(&request(good)), "{good}");
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
            assert!(!hosts.include(&request(bad)), "{bad}");
        }
        let without_host = Request::builder().uri("/").body(axum::body::Body::empty()).unwrap();
        assert!(!hosts.include(&without_host) && !hosts.exclude(&without_host));
        let twice = Request::builder().uri("http://evil.example/").header(HOST, "localhost");
        assert!(!hosts.include(&twice.body(axum::body::Body::empty()).unwrap()));
    }

    #[test]
    fn a_listener_on_all_addresses_accepts_any_address_but_no_name() {
        let hosts = AllowedHosts::new("0.0.0.0:8080".parse().unwrap(), Vec::new());
        assert!(hosts.include(&request("192.168.1.9:8080")));
        assert!(!hosts.include(&request("evil.example:8080")));
    }

    #[test]
    fn a_host_name_has_neither_scheme_nor_port() {
        for bad in ["", "http://x", "x:80", "a/b", "*", "<b>"] {
            assert_eq!(bad.parse::<HostName>(), Err(InvalidHostName), "{bad}");
        }
    }
}
