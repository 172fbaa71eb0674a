//! Where spans go.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// An OpenTelemetry collector that takes OTLP over HTTP in JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collector {
    /// `host:port`
    pub(super) host: Box<str>,
    pub(super) path: Box<str>,
}

impl Collector {
    /// Where a collector listens unless told otherwise.
    pub const DEFAULT: &'static str = "http://127.0.0.1:4318";
    /// The variable of OpenTelemetry that names one.
    pub const VARIABLE: &'static str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const PATH: &'static str = "/v1/traces";
}

/// From `http://host:port`, perhaps with the path that `/v1/traces` comes behind, or ends.
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

/// Not a collector. The address is not shown: it may have a password in it by mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidCollector {
    /// It is not an address of one.
    Url,
    /// It wants TLS.
    Https,
}

impl fmt::Display for InvalidCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "not a collector; write one like http://127.0.0.1:4318",
            Self::Https => {
                "spans are not sent over https; name a collector beside the server, like \
                 http://127.0.0.1:4318, and let that one send them on"
            }
        })
    }
}

impl std::error::Error for InvalidCollector {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_base_as_the_variable_has_it() {
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
