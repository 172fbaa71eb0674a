//! No TLS, where it was not built in.

use std::convert::Infallible;
use std::io;

use tokio::net::TcpStream;

use super::InvalidTls;
use crate::url::TlsSettings;

/// There is none.
#[derive(Clone)]
pub(crate) struct Tls(Infallible);

impl Tls {
    pub(crate) fn new(_: &TlsSettings) -> Result<Self, InvalidTls> {
        Err(InvalidTls::NotBuilt)
    }

    #[expect(clippy::unused_async, reason = "as it is with TLS")]
    pub(crate) async fn secure(&self, _: &str, _: TcpStream) -> io::Result<TcpStream> {
        match self.0 {}
    }
}
