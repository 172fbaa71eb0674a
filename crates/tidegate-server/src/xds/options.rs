//! Options of the client of a control plane.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};

/// The control plane, and how the client identifies itself.
#[derive(Clone, Debug)]
pub struct XdsOptions {
    /// Where it listens.
    pub address: XdsAddress,
    /// The node id: control planes choose the resources by it.
    pub node_id: String,
    /// Metadata of the node.
    pub metadata: Vec<(String, String)>,
    /// Headers of the stream, such as a token.
    pub headers: Vec<XdsHeader>,
    /// TLS; if `None`, plaintext.
    pub tls: Option<XdsTls>,
    /// Whether the server waits for the first configuration.
    pub start: XdsStart,
    /// Pauses between connection attempts.
    pub backoff: XdsBackoff,
}

/// A header of the stream. `Debug` does not print the value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XdsHeader {
    name: MetadataKey<Ascii>,
    value: MetadataValue<Ascii>,
}

impl XdsHeader {
    /// A header with a text; `None` if gRPC does not allow the name or the value.
    pub fn new(name: &str, value: &str) -> Option<Self> {
        let name = MetadataKey::from_bytes(name.as_bytes()).ok()?;
        let mut value = MetadataValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some(Self { name, value })
    }

    pub(super) fn append_to(&self, metadata: &mut MetadataMap) {
        metadata.append(self.name.clone(), self.value.clone());
    }
}

/// Files and names of a TLS connection. The files are read again for every connection.
#[derive(Clone, Default, Debug)]
pub struct XdsTls {
    /// Trusted certificates; if `None`, those of the system.
    pub ca: Option<PathBuf>,
    /// Certificate and key of this client, for mutual TLS.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name in the certificate of the control plane; if `None`, the host of its address.
    pub server_name: Option<String>,
}

/// What happens before the first configuration arrives.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum XdsStart {
    /// The listeners are not bound yet.
    #[default]
    Wait,
    /// The server serves, and is not ready. Envoy's requests get `UNAVAILABLE`.
    NotReady,
    /// The same, but ready: as envoyproxy/ratelimit is by default.
    Ready,
}

/// Exponential pauses with jitter between connection attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdsBackoff {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Default for XdsBackoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(500), max: Duration::from_secs(30) }
    }
}

impl XdsBackoff {
    /// The shortest pause, whatever is configured.
    const MIN: Duration = Duration::from_millis(100);

    /// The pause after a number of failures in a row: between half of it and all of it, so that
    /// servers do not reconnect at the same time. `random` is uniform.
    pub(crate) fn pause(&self, failures: u32, random: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(16));
        let half = doubled.min(self.max).max(Self::MIN) / 2;
        half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

/// Host and port of a control plane, and whether it uses TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XdsAddress {
    uri: Uri,
}

impl XdsAddress {
    /// Whether the address begins with `https://`.
    pub fn is_https(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The host, without the brackets of an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        self.uri.host().unwrap_or_default().trim_matches(['[', ']'])
    }

    pub(crate) fn port(&self) -> u16 {
        self.uri.port_u16().unwrap_or_default()
    }
}

/// `host:port`, `http://host:port` or `https://host:port`.
impl FromStr for XdsAddress {
    type Err = InvalidXdsAddress;

    fn from_str(text: &str) -> Result<Self, InvalidXdsAddress> {
        let full = if text.contains("://") { text.into() } else { format!("http://{text}") };
        let uri: Uri = full.parse().map_err(|_| InvalidXdsAddress)?;
        let has_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let has_port = uri.port_u16().is_some_and(|port| port > 0);
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let is_plain = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if !(has_scheme && has_host && has_port && is_plain) || authority.contains('@') {
            return Err(InvalidXdsAddress);
        }
        Ok(Self { uri })
    }
}

impl fmt::Display for XdsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri.authority().map_or("", |authority| authority.as_str()))
    }
}

/// Not the address of a control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidXdsAddress;

impl fmt::Display for InvalidXdsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected host:port, for example envoy-gateway:18001 or https://[::1]:18001")
    }
}

impl std::error::Error for InvalidXdsAddress {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let cases = [
            ("localhost:18000", ("localhost", 18_000, false)),
            ("http://10.0.0.1:1", ("10.0.0.1", 1, false)),
            ("https://xds.example.org:443", ("xds.example.org", 443, true)),
            ("https://[::1]:18001/", ("::1", 18_001, true)),
        ];
        for (text, wanted) in cases {
            let address: XdsAddress = text.parse().unwrap();
            assert_eq!((address.host(), address.port(), address.is_https()), wanted, "{text}");
        }
        for text in ["", "localhost", ":18000", "a:0", "a:b", "ftp://a:1", "a:1/x", "u:p@a:1"] {
            assert_eq!(text.parse::<XdsAddress>(), Err(InvalidXdsAddress), "{text}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_have_jitter() {
        let backoff = XdsBackoff { first: Duration::from_secs(1), max: Duration::from_secs(10) };
        let seconds = |failures, random| backoff.pause(failures, random).as_secs_f64();
        let longest: Vec<f64> = (0..6).map(|failures| seconds(failures, u32::MAX)).collect();
        assert_eq!(longest, [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]);
        assert_eq!((seconds(0, 0), seconds(u32::MAX, 0)), (0.5, 5.0));
        let none = XdsBackoff { first: Duration::ZERO, max: Duration::ZERO };
        assert_eq!(none.pause(7, u32::MAX), XdsBackoff::MIN, "no loop without a pause");
    }
}
