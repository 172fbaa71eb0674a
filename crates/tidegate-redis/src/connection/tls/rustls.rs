//! TLS by rustls.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error, InconsistentKeys, RootCertStore};

use super::InvalidTls;
use crate::connection::url::{ClientCertFiles, TlsSettings};

/// Root certificates and client certificate. Clones share them.
#[derive(Clone)]
pub(crate) struct Tls(Arc<TlsInner>);

struct TlsInner {
    settings: TlsSettings,
    server_name: Option<ServerName<'static>>,
    /// The system's root certificates, read once: there are many, and they rarely change.
    system_roots: Option<Arc<RootCertStore>>,
    /// From the latest files that could be read.
    latest: Mutex<Arc<ClientConfig>>,
}

impl Tls {
    /// Reads the files, so that errors are found at once.
    pub(crate) fn new(settings: &TlsSettings) -> Result<Self, InvalidTls> {
        let server_name = match &settings.server_name {
            Some(name) => {
                Some(ServerName::try_from(name.clone()).map_err(|_| InvalidTls::ServerName)?)
            }
            None => None,
        };
        let system_roots = match settings.ca {
            Some(_) => None,
            None => Some(system_roots()?),
        };
        let latest = Mutex::new(read(settings, system_roots.as_ref())?);
        let settings = settings.clone();
        Ok(Self(Arc::new(TlsInner { settings, server_name, system_roots, latest })))
    }

    /// Encrypts the stream and verifies that the server is `host`.
    pub(crate) async fn secure(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match &self.0.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        TlsConnector::from(self.config().await).connect(name, stream).await
    }

    /// Reads the files again: certificates are renewed while the process runs. If a file is missing
    /// or incomplete, the latest configuration stays.
    async fn config(&self) -> Arc<ClientConfig> {
        let TlsInner { settings, .. } = &*self.0;
        if settings.ca.is_some() || settings.identity.is_some() {
            let inner = Arc::clone(&self.0);
            let reading =
                spawn_blocking(move || read(&inner.settings, inner.system_roots.as_ref()));
            if let Ok(Ok(config)) = reading.await {
                *self.0.latest.lock().unwrap_or_else(PoisonError::into_inner) = config;
            }
        }
        Arc::clone(&self.0.latest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn read(
    settings: &TlsSettings,
    system_roots: Option<&Arc<RootCertStore>>,
) -> Result<Arc<ClientConfig>, InvalidTls> {
    let roots = match (&settings.ca, system_roots) {
        (Some(ca), _) => Arc::new(roots_in(ca)?),
        (None, Some(roots)) => Arc::clone(roots),
        (None, None) => return Err(InvalidTls::NoRoots),
    };
    // Explicit, because another library may install a default for the whole process.
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| InvalidTls::NotBuilt)?
        .with_root_certificates(roots);
    let config = match &settings.identity {
        None => config.with_no_client_auth(),
        Some(ClientCertFiles { cert, key: file }) => {
            let key = PrivateKeyDer::from_pem_slice(&bytes_of(file)?)
                .map_err(|_| InvalidTls::Key(file.clone()))?;
            config.with_client_auth_cert(certificates_in(cert)?, key).map_err(
                |error| match error {
                    Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                        InvalidTls::OtherKey(file.clone())
                    }
                    Error::InvalidCertificate(_) => InvalidTls::Certificates(cert.clone()),
                    _ => InvalidTls::Key(file.clone()),
                },
            )?
        }
    };
    Ok(Arc::new(config))
}

fn system_roots() -> Result<Arc<RootCertStore>, InvalidTls> {
    let mut roots = RootCertStore::empty();
    // Skips certificates that cannot be parsed: some systems have one among many.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(InvalidTls::NoRoots) } else { Ok(Arc::new(roots)) }
}

fn roots_in(file: &Path) -> Result<RootCertStore, InvalidTls> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(file)? {
        roots.add(certificate).map_err(|_| InvalidTls::Certificates(file.into()))?;
    }
    Ok(roots)
}

/// At least one certificate.
fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>, InvalidTls> {
    let bytes = bytes_of(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(InvalidTls::Certificates(file.into())),
    }
}

fn bytes_of(file: &Path) -> Result<Vec<u8>, InvalidTls> {
    /// Ten times the size of a system's bundle.
    const MAX_BYTES: u64 = 4 << 20;
    let mut bytes = Vec::new();
    match File::open(file).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(InvalidTls::Unreadable(file.into(), error.kind())),
    }
}
