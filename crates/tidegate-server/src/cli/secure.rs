//! TLS to a server.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Failure;
use crate::config::Machine;
use crate::doors::tls;

/// Whom to trust, and who one is, with an address that begins with https.
#[derive(Args, Clone, Default, Debug)]
pub(super) struct Secure {
    /// With https: who signs the server's certificate [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// With https: a certificate to show to the server
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl Secure {
    /// The stream with TLS, to a server that has shown to be `host`.
    pub(super) async fn connect(
        connector: &TlsConnector,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, Failure> {
        let name = Self::name(host)?;
        connector.connect(name, stream).await.map_err(|error| {
            format!(
                "cannot agree on TLS with {host} ({error}); is it https, and --ca the right file?"
            )
            .into()
        })
    }

    /// Who the server at `host` has to show to be.
    pub(super) fn name(host: &str) -> Result<ServerName<'static>, Failure> {
        let name = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let unnamed = "the server's address has no name that a certificate can have";
        Ok(ServerName::try_from(name).map_err(|_| unnamed)?)
    }

    /// For many connections, on which these protocols are offered.
    pub(super) fn connector(&self, protocols: &[&str]) -> Result<TlsConnector, Failure> {
        let mut config = self.config()?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(TlsConnector::from(Arc::new(config)))
    }

    fn config(&self) -> Result<ClientConfig, Failure> {
        let roots = match &self.ca {
            Some(file) => tls::roots(file, &Machine)?,
            None => system_roots()?,
        };
        let config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) else {
            return Ok(config.with_no_client_auth());
        };
        let (chain, secret) = (tls::certificates(cert, &Machine)?, tls::key(key, &Machine)?);
        config.with_client_auth_cert(chain, secret).map_err(|error| {
            format!("{} and {} do not go together ({error})", cert.display(), key.display()).into()
        })
    }
}

fn system_roots() -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    // Some systems have one that cannot be read among a hundred that can.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "the system trusts no certificates; install some, or name a file with --ca".into()
        );
    }
    Ok(roots)
}
