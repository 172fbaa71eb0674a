//! Certificates for the doors, read again when they change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WantsServerCert;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{
    ConfigBuilder, Error, InconsistentKeys, RootCertStore, ServerConfig, WantsVerifier,
};

use crate::config::{Config, Problem, Problems, Surroundings};
use crate::metrics::Door;

/// The files that TLS needs, in PEM form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The server's certificate, and those between it and its root.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs the certificates of clients. With it, nobody comes in without one.
    pub client_ca: Option<PathBuf>,
}

impl Files {
    /// Reads them. Whatever is wrong names its file.
    pub fn load(&self, from: &dyn Surroundings) -> Result<Identity, Problems> {
        let chain = certificates(&self.cert, from)?;
        let key = key(&self.key, from)?;
        let config = match &self.client_ca {
            Some(file) => clients_of(roots(file, from)?, file)?,
            None => builder()?.with_no_client_auth(),
        };
        let config = config.with_single_cert(chain, key).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let cert = self.cert.display();
                let told = format!(
                    "this is not the key of the certificate in {cert}; use the two as a pair"
                );
                refused(&self.key, told)
            }
            Error::InvalidCertificate(_) => refused(&self.cert, NO_CERTIFICATE),
            _ => refused(&self.key, NO_KEY),
        })?;
        let mut web = config.clone();
        web.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let knows_clients = self.client_ca.is_some();
        Ok(Identity { web: Arc::new(web), resp: Arc::new(config), knows_clients })
    }
}

/// Who the server is, and whom it lets in.
#[derive(Clone)]
pub struct Identity {
    web: Arc<ServerConfig>,
    resp: Arc<ServerConfig>,
    knows_clients: bool,
}

impl Identity {
    /// Does a client have to show a certificate?
    pub fn knows_clients(&self) -> bool {
        self.knows_clients
    }

    fn config(&self, door: Door) -> &Arc<ServerConfig> {
        match door {
            Door::Http | Door::Grpc => &self.web,
            // A client of Redis that offers the protocols of a browser is none.
            Door::Resp => &self.resp,
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("knows_clients", &self.knows_clients)
            .finish_non_exhaustive()
    }
}

/// The certificates that are shown now. Connections keep those that they began with.
#[derive(Debug)]
pub struct Certificates(RwLock<Identity>);

impl Certificates {
    /// These.
    pub fn new(identity: Identity) -> Self {
        Self(RwLock::new(identity))
    }

    /// What the next client of this door is shown.
    pub fn config(&self, door: Door) -> Arc<ServerConfig> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).config(door).clone()
    }

    /// Shows others from now on, and gives back those that it showed.
    pub fn replace(&self, identity: Identity) -> Identity {
        let mut shown = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut shown, identity)
    }
}

const NO_CERTIFICATE: &str = "there is no good certificate in it; it must be in PEM form";
const NO_KEY: &str = "there is no good private key in it; it must be unencrypted, in PEM form";

/// The certificates in a file, at least one.
pub(crate) fn certificates(
    file: &Path,
    from: &dyn Surroundings,
) -> Result<Vec<CertificateDer<'static>>, Problems> {
    let bytes = bytes(file, from)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or_else(|| refused(file, NO_CERTIFICATE))
}

/// The key in a file.
pub(crate) fn key(
    file: &Path,
    from: &dyn Surroundings,
) -> Result<PrivateKeyDer<'static>, Problems> {
    PrivateKeyDer::from_pem_slice(&bytes(file, from)?).map_err(|_| refused(file, NO_KEY))
}

/// Whom the certificates in a file are to vouch for.
pub(crate) fn roots(file: &Path, from: &dyn Surroundings) -> Result<RootCertStore, Problems> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, from)? {
        roots.add(certificate).map_err(|_| refused(file, NO_CERTIFICATE))?;
    }
    Ok(roots)
}

/// The versions and ciphers that are spoken, the same wherever TLS is.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    // Named here, so that no other library can choose one for the whole process.
    Arc::new(ring::default_provider())
}

/// What is wrong with a file.
pub(crate) fn refused(file: &Path, message: impl Into<String>) -> Problems {
    Problems::of(Problem::of_file(&file.display().to_string(), message.into()))
}

fn clients_of(
    roots: RootCertStore,
    file: &Path,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, Problems> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    let verifier = verifier.map_err(|_| refused(file, NO_CERTIFICATE))?;
    Ok(builder()?.with_client_cert_verifier(verifier))
}

fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, Problems> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions();
    builder.map_err(|error| Problems::of(Problem::of_field("tls".into(), error.to_string())))
}

fn bytes(file: &Path, from: &dyn Surroundings) -> Result<Vec<u8>, Problems> {
    let bytes = from.read(file, Config::MAX_BYTES);
    let bytes = bytes.map_err(|error| refused(file, format!("cannot be read: {error}")))?;
    if bytes.len() > Config::MAX_BYTES {
        return Err(refused(file, "longer than 1 MiB; is it certificates?"));
    }
    Ok(bytes)
}
