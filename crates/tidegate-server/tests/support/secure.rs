//! Clients that speak TLS.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DEFAULT_VERSIONS, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
};

use crate::certificates::{Authority, Certificate};
use crate::support::PATIENCE;

/// A connection with TLS.
pub(crate) type Secured = StreamOwned<ClientConnection, TcpStream>;

/// Whom a client trusts, who it is, and what it offers to speak.
pub(crate) fn config(
    trusted: &Authority,
    identity: Option<&Certificate>,
    protocols: &[&str],
) -> Arc<ClientConfig> {
    config_of(trusted, identity, protocols, DEFAULT_VERSIONS)
}

/// The same in these versions of TLS.
pub(crate) fn config_of(
    trusted: &Authority,
    identity: Option<&Certificate>,
    protocols: &[&str],
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted.ca()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some(Certificate { cert, key }) => {
            let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A connection on which both have agreed, as far as the client can tell.
pub(crate) fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Secured> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut client = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
    while client.is_handshaking() {
        client.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(client, stream))
}

/// The first line that comes back.
pub(crate) fn ask(stream: &mut Secured, question: &str) -> io::Result<String> {
    stream.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&answer).trim_end().to_string())
}

/// The certificate that the server has shown.
pub(crate) fn shown(stream: &Secured) -> Vec<u8> {
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

/// Asks for health over gRPC.
pub(crate) async fn grpc_health(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> Result<StatusCode, Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let name = ServerName::try_from("127.0.0.1")?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(async move { connection.await.ok() });
    let request = Request::post("https://127.0.0.1/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(&[0; 5])))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?;
    let trailers = body.trailers().ok_or("no trailers")?;
    assert_eq!(trailers["grpc-status"], "0");
    Ok(status)
}
