//! TLS clients.

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

use crate::certificates::{TestCa, TestCertificate};
use crate::server::TEST_TIMEOUT;

/// A client connection with TLS.
pub type TlsClientStream = StreamOwned<ClientConnection, TcpStream>;

/// Client configuration: trusted CA, client certificate, ALPN protocols.
pub fn config(
    trusted: &TestCa,
    identity: Option<&TestCertificate>,
    protocols: &[&str],
) -> Arc<ClientConfig> {
    config_with_versions(trusted, identity, protocols, DEFAULT_VERSIONS)
}

/// As [`config`], with these versions of TLS.
pub fn config_with_versions(
    trusted: &TestCa,
    identity: Option<&TestCertificate>,
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
        Some(TestCertificate { cert, key }) => {
            let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// Connects and completes the client's side of the handshake.
pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsClientStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut client = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
    while client.is_handshaking() {
        client.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(client, stream))
}

/// Sends bytes and returns the first line of the reply.
pub fn first_line(stream: &mut TlsClientStream, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_string())
}

/// The server's certificate in DER.
pub fn server_certificate(stream: &TlsClientStream) -> Vec<u8> {
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

/// Calls `grpc.health.v1.Health/Check`.
pub async fn grpc_health(
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
