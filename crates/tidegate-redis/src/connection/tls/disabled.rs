//! Replaces TLS when it is not compiled in.

use std::convert::Infallible;
use std::io;

use tokio::net::TcpStream;

use super::InvalidTls;
use crate::connection::url::TlsSettings;

/// Has no values.
#[derive(Clone)]
pub(crate) struct Tls(Infallible);

impl Tls {
    pub(crate) fn new(_: &TlsSettings) -> Result<Self, InvalidTls> {
        Err(InvalidTls::NotBuilt)
    }

    #[expect(clippy::unused_async, reason = "same signature as with TLS")]
    pub(crate) async fn secure(&self, _: &str, _: TcpStream) -> io::Result<TcpStream> {
        match self.0 {}
    }
}
