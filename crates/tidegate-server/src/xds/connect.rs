//! Connections to a control plane, with TLS from files that are read for each of them.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tidegate_config::OsEnvironment;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Channel, Endpoint};

use super::options::{XdsOptions, XdsTls};
use crate::tls;

/// Time for a connection and its handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// TCP keepalive: time until the first probe, time between probes, and unanswered probes until the
/// connection is closed.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);
/// HTTP/2 keepalive: time without a frame until a ping, and time for its reply. The kernel of a
/// frozen process still replies to TCP. grpc-go closes connections with pings more often than every
/// 5 minutes.
const PING: (Duration, Duration) = (Duration::from_secs(310), Duration::from_secs(20));

/// Connects to the control plane.
pub(crate) async fn connect(options: &XdsOptions) -> Result<Channel, XdsConnectError> {
    let tls = options.tls.as_ref().map(|tls| Handshake::new(tls, options)).transpose()?;
    let address = (options.address.host().to_string(), options.address.port());
    let scheme = if tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
    let mut origin = options.address.uri().clone().into_parts();
    origin.scheme = Some(scheme);
    let origin = Uri::from_parts(origin).map_err(XdsConnectError::new)?;
    // The scheme of the endpoint is that of the connector, which does TLS itself.
    let endpoint = Endpoint::from(options.address.uri().clone()).origin(origin);
    let endpoint = endpoint.http2_keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    let connector = tower::service_fn(move |_: Uri| {
        let (address, tls) = (address.clone(), tls.clone());
        async move { open(&address, tls).await.map(TokioIo::new) }
    });
    let connecting = endpoint.connect_with_connector(connector);
    match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected.map_err(XdsConnectError::new),
        Err(late) => Err(XdsConnectError::new(late)),
    }
}

async fn open(address: &(String, u16), tls: Option<Handshake>) -> io::Result<XdsStream> {
    let stream = TcpStream::connect((&*address.0, address.1)).await?;
    stream.set_nodelay(true)?;
    let (after, interval, probes) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(after).with_interval(interval);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(probes))?;
    match tls {
        None => Ok(XdsStream(Box::new(stream))),
        Some(Handshake { config, name }) => {
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(XdsStream(Box::new(stream)))
        }
    }
}

/// What a TLS handshake needs.
#[derive(Clone)]
struct Handshake {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Handshake {
    /// Reads the files.
    fn new(tls: &XdsTls, options: &XdsOptions) -> Result<Self, XdsConnectError> {
        let roots = match &tls.ca {
            Some(file) => tls::roots(file, &OsEnvironment).map_err(XdsConnectError::new)?,
            None => system_roots(),
        };
        let config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(XdsConnectError::new)?
            .with_root_certificates(roots);
        let mut config = match &tls.identity {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let chain =
                    tls::certificates(cert, &OsEnvironment).map_err(XdsConnectError::new)?;
                let key = tls::key(key, &OsEnvironment).map_err(XdsConnectError::new)?;
                config.with_client_auth_cert(chain, key).map_err(XdsConnectError::new)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = tls.server_name.as_deref().unwrap_or(options.address.host());
        let name = ServerName::try_from(name.to_string()).map_err(XdsConnectError::new)?;
        Ok(Self { config: Arc::new(config), name })
    }
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Skips certificates that cannot be parsed: some systems have one among many.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Why there is no connection, with all causes.
#[derive(Debug)]
pub(crate) struct XdsConnectError(Box<dyn Error + Send + Sync>);

impl XdsConnectError {
    fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Display for XdsConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_causes(&*self.0, f)
    }
}

/// Writes an error and its causes: those of tonic alone say little.
pub(crate) fn write_causes(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut last = error.to_string();
    f.write_str(&last)?;
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if text != last {
            write!(f, ": {text}")?;
        }
        (last, cause) = (text, error.source());
    }
    Ok(())
}

trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for T {}

/// A plaintext or TLS stream.
struct XdsStream(Box<dyn AsyncStream>);

impl AsyncRead for XdsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for XdsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
