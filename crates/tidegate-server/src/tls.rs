//! Certificates and rustls configurations of the listeners, swapped on reload. Imports observe.
//!
//! `policy::manager` reloads them with the policy: on SIGHUP, and when `policy::watcher` finds a
//! changed file.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use tidegate_config::{Environment, PolicyLoader, Problem, Problems, TlsFiles};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WantsServerCert;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{
    ConfigBuilder, Error, InconsistentKeys, RootCertStore, ServerConfig, WantsVerifier,
};

use crate::observe::metrics::ListenerKind;

/// The certificate of the server, and the CA for client certificates if mutual TLS is on.
#[derive(Clone)]
pub struct ServerTls {
    web: Arc<ServerConfig>,
    resp: Arc<ServerConfig>,
    requires_client_cert: bool,
}

impl ServerTls {
    /// Loads the files. A problem names its file.
    pub fn load(files: &TlsFiles, from: &dyn Environment) -> Result<Self, Problems> {
        let chain = certificates(&files.cert, from)?;
        let key = key(&files.key, from)?;
        let config = match &files.client_ca {
            Some(file) => mutual_tls(roots(file, from)?, file)?,
            None => builder()?.with_no_client_auth(),
        };
        let config = config.with_single_cert(chain, key).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let cert = files.cert.display();
                let message = format!("key does not belong to the certificate in {cert}");
                invalid(&files.key, message)
            }
            Error::InvalidCertificate(_) => invalid(&files.cert, NO_CERTIFICATE),
            _ => invalid(&files.key, NO_KEY),
        })?;
        let mut web = config.clone();
        web.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let requires_client_cert = files.client_ca.is_some();
        Ok(Self { web: Arc::new(web), resp: Arc::new(config), requires_client_cert })
    }

    /// Whether clients have to present a certificate.
    pub fn requires_client_cert(&self) -> bool {
        self.requires_client_cert
    }

    fn config(&self, listener: ListenerKind) -> &Arc<ServerConfig> {
        match listener {
            ListenerKind::Http | ListenerKind::Grpc => &self.web,
            // Without ALPN: Redis clients do not negotiate a protocol.
            ListenerKind::Resp => &self.resp,
        }
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("requires_client_cert", &self.requires_client_cert)
            .finish_non_exhaustive()
    }
}

/// The current certificates. A connection keeps those of its handshake.
#[derive(Debug)]
pub struct ReloadableTls(RwLock<ServerTls>);

impl ReloadableTls {
    /// Starts with `tls`.
    pub fn new(tls: ServerTls) -> Self {
        Self(RwLock::new(tls))
    }

    /// The configuration for the next connection of a listener.
    pub fn config(&self, listener: ListenerKind) -> Arc<ServerConfig> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).config(listener).clone()
    }

    /// Uses `tls` for new connections, and returns the previous one.
    pub fn replace(&self, tls: ServerTls) -> ServerTls {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, tls)
    }
}

const NO_CERTIFICATE: &str = "no valid certificate found; expected PEM";
const NO_KEY: &str = "no valid private key found; expected unencrypted PEM";

/// The certificates in a file, at least one.
pub fn certificates(
    file: &Path,
    from: &dyn Environment,
) -> Result<Vec<CertificateDer<'static>>, Problems> {
    let bytes = bytes(file, from)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or_else(|| invalid(file, NO_CERTIFICATE))
}

/// The private key in a file.
pub fn key(file: &Path, from: &dyn Environment) -> Result<PrivateKeyDer<'static>, Problems> {
    PrivateKeyDer::from_pem_slice(&bytes(file, from)?).map_err(|_| invalid(file, NO_KEY))
}

/// The certificates in a file as trusted roots.
pub fn roots(file: &Path, from: &dyn Environment) -> Result<RootCertStore, Problems> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, from)? {
        roots.add(certificate).map_err(|_| invalid(file, NO_CERTIFICATE))?;
    }
    Ok(roots)
}

/// The cryptography of every TLS connection.
pub fn provider() -> Arc<CryptoProvider> {
    // Explicit, so that no other library chooses one for the whole process.
    Arc::new(ring::default_provider())
}

/// A problem with a file.
pub(crate) fn invalid(file: &Path, message: impl Into<String>) -> Problems {
    Problems::of(Problem::of_file(&file.display().to_string(), message.into()))
}

fn mutual_tls(
    roots: RootCertStore,
    file: &Path,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, Problems> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    let verifier = verifier.map_err(|_| invalid(file, NO_CERTIFICATE))?;
    Ok(builder()?.with_client_cert_verifier(verifier))
}

fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, Problems> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions();
    builder.map_err(|error| Problems::of(Problem::of_field("tls".into(), error.to_string())))
}

fn bytes(file: &Path, from: &dyn Environment) -> Result<Vec<u8>, Problems> {
    let bytes = from.read(file, PolicyLoader::MAX_BYTES);
    let bytes = bytes.map_err(|error| invalid(file, format!("cannot be read: {error}")))?;
    if bytes.len() > PolicyLoader::MAX_BYTES {
        return Err(invalid(file, "larger than 1 MiB; is it a certificate file?"));
    }
    Ok(bytes)
}
