//! The address of the collector.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// An OpenTelemetry collector that accepts OTLP over HTTP in JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collector {
    /// `host:port`
    pub(crate) host: Box<str>,
    pub(crate) path: Box<str>,
}

impl Collector {
    /// The default address of a collector.
    pub const DEFAULT: &'static str = "http://127.0.0.1:4318";
    /// The environment variable of OpenTelemetry for the address.
    pub const VARIABLE: &'static str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const PATH: &'static str = "/v1/traces";
}

/// From `http://host:port`, optionally with a path. `/v1/traces` is appended unless the path ends
/// in it.
impl FromStr for Collector {
    type Err = InvalidCollector;

    fn from_str(url: &str) -> Result<Self, InvalidCollector> {
        let uri: Uri = url.parse().map_err(|_| InvalidCollector::Url)?;
        if uri.scheme_str() == Some("https") {
            return Err(InvalidCollector::Https);
        }
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let is_plain = uri.scheme_str() == Some("http") && uri.query().is_none();
        let authority = authority.filter(|_| is_plain).ok_or(InvalidCollector::Url)?;
        let host = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix(Self::PATH).unwrap_or(base);
        Ok(Self { host: host.into(), path: format!("{base}{}", Self::PATH).into() })
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.host, self.path)
    }
}

/// Why an address is not accepted. The address is not shown: it may contain a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidCollector {
    /// It is not an `http` URL of a host, or it has a login or a query.
    Url,
    /// It is an `https` URL.
    Https,
}

impl fmt::Display for InvalidCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "invalid collector URL; expected one like http://127.0.0.1:4318",
            Self::Https => {
                "OTLP over https is not supported; use a local collector such as \
                 http://127.0.0.1:4318 and let it forward"
            }
        })
    }
}

impl std::error::Error for InvalidCollector {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_base_url_as_opentelemetry_defines_it() {
        for (url, expected) in [
            ("http://127.0.0.1:4318", Ok("http://127.0.0.1:4318/v1/traces")),
            ("http://collector", Ok("http://collector:80/v1/traces")),
            ("http://[::1]:4318/", Ok("http://[::1]:4318/v1/traces")),
            ("http://h:1/otel/", Ok("http://h:1/otel/v1/traces")),
            ("http://h:1/otel/v1/traces", Ok("http://h:1/otel/v1/traces")),
            ("https://h:1", Err(InvalidCollector::Https)),
            ("grpc://h:1", Err(InvalidCollector::Url)),
            ("http://user:pw@h:1", Err(InvalidCollector::Url)),
            ("http://h:1?x=y", Err(InvalidCollector::Url)),
            ("h:4318", Err(InvalidCollector::Url)),
            ("", Err(InvalidCollector::Url)),
        ] {
            let read: Result<Collector, _> = url.parse();
            let shown = read.map(|collector| collector.to_string());
            assert_eq!(shown.as_deref(), expected.as_ref().map(|text| &**text), "{url}");
        }
    }
}
