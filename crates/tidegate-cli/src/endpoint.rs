//! Listener of a server: its URL, and connections to it, plain or TLS.

use std::fmt;
use std::io;
use std::str::FromStr;

use http::Uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::error::CliError;
use crate::tls_args::TlsArgs;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerUrl {
    pub(crate) protocol: TargetProtocol,
    pub(crate) security: TargetSecurity,
    /// Name or address; IPv6 addresses are in brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetProtocol {
    /// HTTP/1.1.
    Http,
    Resp,
    /// Envoy's rate limit service.
    Grpc,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetSecurity {
    Plain,
    Tls,
}

impl ServerUrl {
    /// `host:port`
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn scheme(&self) -> &'static str {
        match (self.protocol, self.security) {
            (TargetProtocol::Http, TargetSecurity::Plain) => "http",
            (TargetProtocol::Http, TargetSecurity::Tls) => "https",
            (TargetProtocol::Resp, TargetSecurity::Plain) => "resp",
            (TargetProtocol::Resp, TargetSecurity::Tls) => "resps",
            (TargetProtocol::Grpc, TargetSecurity::Plain) => "grpc",
            (TargetProtocol::Grpc, TargetSecurity::Tls) => "grpcs",
        }
    }

    /// Default port of the scheme; that of `tidegate serve` where the scheme has no standard port.
    fn default_port(protocol: TargetProtocol, security: TargetSecurity) -> u16 {
        match (protocol, security) {
            (TargetProtocol::Http, TargetSecurity::Plain) => 80,
            (TargetProtocol::Http, TargetSecurity::Tls) => 443,
            (TargetProtocol::Resp, _) => 6380,
            (TargetProtocol::Grpc, _) => 8081,
        }
    }
}

impl FromStr for ServerUrl {
    type Err = InvalidServerUrl;

    fn from_str(text: &str) -> Result<Self, InvalidServerUrl> {
        use {TargetProtocol::*, TargetSecurity::*};
        let (protocol, security) = match text.split_once("://").map(|(scheme, _)| scheme) {
            Some("http") => (Http, Plain),
            Some("https") => (Http, Tls),
            Some("resp") => (Resp, Plain),
            Some("resps") => (Resp, Tls),
            Some("grpc") => (Grpc, Plain),
            Some("grpcs") => (Grpc, Tls),
            _ => return Err(InvalidServerUrl::UnknownScheme),
        };
        let uri: Uri = text.parse().map_err(|_| InvalidServerUrl::HostPort)?;
        let authority = uri.authority().ok_or(InvalidServerUrl::HostPort)?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        if !is_bare || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(InvalidServerUrl::HostPort);
        }
        let port = match authority.as_str() == authority.host() {
            true => Self::default_port(protocol, security),
            // An invalid port must not fall back to the default one.
            false => {
                authority.port_u16().filter(|port| *port > 0).ok_or(InvalidServerUrl::HostPort)?
            }
        };
        Ok(Self { protocol, security, host: authority.host().to_string(), port })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority())
    }
}

/// Why a URL is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InvalidServerUrl {
    UnknownScheme,
    /// Host or port is missing or invalid, or there is more than host and port.
    HostPort,
}

/// Plain or TLS stream.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

/// A listener to connect to.
pub(crate) struct ServerEndpoint {
    /// `host:port`
    pub(crate) host: String,
    /// `None` for plaintext.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

#[derive(Debug)]
pub(crate) enum ConnectError {
    Tcp(io::Error),
    Tls(io::Error),
}

impl ServerEndpoint {
    pub(crate) fn new(url: &ServerUrl, tls: &TlsArgs) -> Result<Self, CliError> {
        let protocols: &[&str] = match url.protocol {
            TargetProtocol::Http => &["http/1.1"],
            TargetProtocol::Resp => &[],
            TargetProtocol::Grpc => &["h2"],
        };
        let tls = match url.security {
            TargetSecurity::Plain => None,
            TargetSecurity::Tls => {
                let name = url.host.trim_start_matches('[').trim_end_matches(']').to_string();
                let invalid = "the server's host is not a valid TLS server name";
                Some((tls.connector(protocols)?, name.try_into().map_err(|_| invalid)?))
            }
        };
        Ok(Self { host: url.authority(), tls })
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) async fn connect(&self) -> Result<Box<dyn ByteStream>, ConnectError> {
        let stream = TcpStream::connect(&self.host).await.map_err(ConnectError::Tcp)?;
        // Not supported on some systems; requests are slower there.
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await;
                Ok(Box::new(stream.map_err(ConnectError::Tls)?))
            }
        }
    }
}
