//! TLS arguments of client commands: `--ca`, `--client-cert`, `--client-key`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::CliError;
use tidegate_config::OsEnvironment;
use tidegate_server::internal::tls;

#[derive(Args, Clone, Default, Debug)]
pub(crate) struct TlsArgs {
    /// CA of the server's TLS certificate [default: system roots]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// TLS client certificate
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Key of the client certificate
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl TlsArgs {
    /// Offers these ALPN protocols.
    pub(crate) fn connector(&self, protocols: &[&str]) -> Result<TlsConnector, CliError> {
        let mut config = self.config()?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(TlsConnector::from(Arc::new(config)))
    }

    fn config(&self) -> Result<ClientConfig, CliError> {
        let roots = match &self.ca {
            Some(file) => tls::roots(file, &OsEnvironment)?,
            None => system_roots()?,
        };
        let config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) else {
            return Ok(config.with_no_client_auth());
        };
        let (chain, secret) =
            (tls::certificates(cert, &OsEnvironment)?, tls::key(key, &OsEnvironment)?);
        config.with_client_auth_cert(chain, secret).map_err(|error| {
            format!("{} and {} are not a pair ({error})", cert.display(), key.display()).into()
        })
    }
}

fn system_roots() -> Result<RootCertStore, CliError> {
    let mut roots = RootCertStore::empty();
    // One unreadable certificate must not make the others unusable.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("no system root certificates found; install them or use --ca".into());
    }
    Ok(roots)
}
