//! Bytes to a door and back.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Trouble;

/// A stream of bytes, with TLS or without.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// How to agree on TLS, and with whom.
#[derive(Clone)]
pub struct Tls {
    /// Whom it trusts, and who it is.
    pub connector: TlsConnector,
    /// Whom the certificate has to be for.
    pub name: ServerName<'static>,
}

/// A stream to `host:port`.
pub(crate) async fn connect(host: &str, tls: Option<&Tls>) -> Result<Box<dyn Stream>, Trouble> {
    let stream = TcpStream::connect(host).await.map_err(Trouble::connect)?;
    // Some systems cannot, and are slower for it.
    let _ = stream.set_nodelay(true);
    match tls {
        None => Ok(Box::new(stream)),
        Some(Tls { connector, name }) => {
            let agreed = connector.connect(name.clone(), stream).await;
            Ok(Box::new(agreed.map_err(|error| Trouble::new("tls", error))?))
        }
    }
}

/// A stream, and what of it is not read yet.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    received: BytesMut,
}

impl Wire {
    /// The longest answer in bytes, to several questions at once.
    const MOST: usize = 4 << 20;
    const ROOM: usize = 4 << 10;

    pub(crate) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, received: BytesMut::with_capacity(Self::ROOM) }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let sent = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        sent.await.map_err(Trouble::closed)
    }

    /// What has come so far.
    pub(crate) fn received(&self) -> &[u8] {
        &self.received
    }

    /// Waits for more of it.
    pub(crate) async fn receive(&mut self) -> Result<(), Trouble> {
        if self.received.len() > Self::MOST {
            return Err(Trouble::garbled("an answer without an end"));
        }
        self.received.reserve(Self::ROOM);
        match self.stream.read_buf(&mut self.received).await {
            Ok(0) => Err(Trouble::closed(io::Error::from(io::ErrorKind::UnexpectedEof))),
            Ok(_) => Ok(()),
            Err(error) => Err(Trouble::closed(error)),
        }
    }

    /// So much of it has been read.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.received.advance(bytes);
    }
}
