//! An accepted TCP stream, plaintext or TLS.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::connection_limit::ConnectionPermit;

#[derive(Debug)]
pub struct ClientStream {
    transport: Transport,
    /// Counts it until the stream is closed. None if there is no connection limit.
    pub(crate) permit: Option<Arc<ConnectionPermit>>,
}

#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl ClientStream {
    /// The stream with the permit of its connection.
    pub(crate) fn with_permit(self, permit: Arc<ConnectionPermit>) -> Self {
        Self { permit: Some(permit), ..self }
    }

    /// Address of the peer.
    pub fn peer(&self) -> Option<IpAddr> {
        self.tcp().peer_addr().map(|address| address.ip()).ok()
    }

    /// The ALPN protocol, if TLS negotiated one.
    pub fn protocol(&self) -> Option<&[u8]> {
        match &self.transport {
            Transport::Plain(_) => None,
            Transport::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }

    /// Sets TCP_NODELAY. A failure is ignored: it only affects latency.
    pub fn set_nodelay(&self) {
        let _ = self.tcp().set_nodelay(true);
    }

    fn tcp(&self) -> &TcpStream {
        match &self.transport {
            Transport::Plain(stream) => stream,
            Transport::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl From<TcpStream> for ClientStream {
    fn from(stream: TcpStream) -> Self {
        Self { transport: Transport::Plain(stream), permit: None }
    }
}

impl From<TlsStream<TcpStream>> for ClientStream {
    fn from(stream: TlsStream<TcpStream>) -> Self {
        Self { transport: Transport::Tls(Box::new(stream)), permit: None }
    }
}

/// Whether these are the first bytes of a TLS handshake: a record of type 22, version 3.x.
pub(crate) fn begins_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x16] | [0x16, 0x03, ..])
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
