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

/// TLS of one listener, where it differs from that of the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListenerTls {
    /// Plaintext.
    Off,
    /// Certificates of its own.
    Files(TlsFiles),
}

/// Where the certificates of the listeners come from.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TlsSources {
    /// For all listeners; if `None`, those that the policy names.
    pub all: Option<TlsFiles>,
    /// For HTTP, if it differs.
    pub http: Option<ListenerTls>,
    /// For RESP, if it differs.
    pub resp: Option<ListenerTls>,
    /// For gRPC, if it differs.
    pub grpc: Option<ListenerTls>,
}

impl TlsSources {
    /// The files of a listener, if it has TLS. `of_policy` are those that the policy names.
    fn files(&self, listener: ListenerKind, of_policy: Option<&TlsFiles>) -> Option<TlsFiles> {
        let own = match listener {
            ListenerKind::Http => &self.http,
            ListenerKind::Resp => &self.resp,
            ListenerKind::Grpc => &self.grpc,
        };
        let all = || match (&self.all, of_policy) {
            (Some(given), of_policy) => {
                // Naming another certificate must not turn off mutual TLS.
                let client_ca = of_policy.and_then(|files| files.client_ca.clone());
                Some(TlsFiles { client_ca: given.client_ca.clone().or(client_ca), ..given.clone() })
            }
            (None, of_policy) => of_policy.cloned(),
        };
        match own {
            None => all(),
            Some(ListenerTls::Off) => None,
            Some(ListenerTls::Files(files)) => Some(files.clone()),
        }
    }
}

/// The certificates of the listeners that have TLS.
#[derive(Clone, Default)]
pub struct ServerTls {
    http: Option<ListenerConfig>,
    resp: Option<ListenerConfig>,
    grpc: Option<ListenerConfig>,
}

/// The certificate of a listener, and the CA for client certificates if mutual TLS is on.
#[derive(Clone)]
struct ListenerConfig {
    config: Arc<ServerConfig>,
    requires_client_cert: bool,
}

impl ServerTls {
    /// Loads the same files for all listeners. A problem names its file.
    pub fn load(files: &TlsFiles, from: &dyn Environment) -> Result<Self, Problems> {
        let sources = TlsSources { all: Some(files.clone()), ..TlsSources::default() };
        Ok(Self::load_each(&sources, None, from)?.unwrap_or_default())
    }

    /// Loads the files of each listener; `None` if no listener has TLS. Each file is read once: it
    /// may be a pipe.
    pub(crate) fn load_each(
        sources: &TlsSources,
        of_policy: Option<&TlsFiles>,
        from: &dyn Environment,
    ) -> Result<Option<Self>, Problems> {
        let mut loaded: Vec<(TlsFiles, ServerConfig)> = Vec::new();
        let mut tls = Self::default();
        for listener in ListenerKind::ALL {
            let Some(files) = sources.files(listener, of_policy) else { continue };
            let known = loaded.iter().find(|(known, _)| *known == files);
            let mut config = match known {
                Some((_, config)) => config.clone(),
                None => server_config(&files, from)?,
            };
            let requires_client_cert = files.client_ca.is_some();
            if known.is_none() {
                loaded.push((files, config.clone()));
            }
            if listener != ListenerKind::Resp {
                // Redis clients do not negotiate a protocol.
                config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            }
            let config = Arc::new(config);
            *tls.of_mut(listener) = Some(ListenerConfig { config, requires_client_cert });
        }
        let has_any = ListenerKind::ALL.into_iter().any(|listener| tls.of(listener).is_some());
        Ok(has_any.then_some(tls))
    }

    /// Whether a listener has TLS.
    pub(crate) fn has(&self, listener: ListenerKind) -> bool {
        self.of(listener).is_some()
    }

    /// Whether clients of a listener have to present a certificate.
    pub(crate) fn requires_client_cert(&self, listener: ListenerKind) -> bool {
        self.of(listener).as_ref().is_some_and(|own| own.requires_client_cert)
    }

    fn of(&self, listener: ListenerKind) -> &Option<ListenerConfig> {
        match listener {
            ListenerKind::Http => &self.http,
            ListenerKind::Resp => &self.resp,
            ListenerKind::Grpc => &self.grpc,
        }
    }

    fn of_mut(&mut self, listener: ListenerKind) -> &mut Option<ListenerConfig> {
        match listener {
            ListenerKind::Http => &mut self.http,
            ListenerKind::Resp => &mut self.resp,
            ListenerKind::Grpc => &mut self.grpc,
        }
    }
}

/// Without a protocol for ALPN.
fn server_config(files: &TlsFiles, from: &dyn Environment) -> Result<ServerConfig, Problems> {
    let chain = certificates(&files.cert, from)?;
    let key = key(&files.key, from)?;
    let config = match &files.client_ca {
        Some(file) => mutual_tls(roots(file, from)?, file)?,
        None => builder()?.with_no_client_auth(),
    };
    config.with_single_cert(chain, key).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let cert = files.cert.display();
            let message = format!("key does not belong to the certificate in {cert}");
            invalid(&files.key, message)
        }
        Error::InvalidCertificate(_) => invalid(&files.cert, NO_CERTIFICATE),
        _ => invalid(&files.key, NO_KEY),
    })
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = ListenerKind::ALL.into_iter().filter(|listener| self.has(*listener));
        f.debug_list().entries(kinds.map(ListenerKind::name)).finish()
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

    /// Whether a listener has TLS. A reload does not turn it on or off.
    pub(crate) fn has(&self, listener: ListenerKind) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).has(listener)
    }

    /// The configuration for the next connection of a listener, if it has TLS.
    pub fn config(&self, listener: ListenerKind) -> Option<Arc<ServerConfig>> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        current.of(listener).as_ref().map(|own| own.config.clone())
    }

    /// Uses `tls` for new connections of the listeners that have TLS and keep it. The others stay
    /// as they are.
    pub(crate) fn replace(&self, mut tls: ServerTls) -> TlsChange {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut kept = Vec::new();
        for listener in ListenerKind::ALL {
            if current.has(listener) != tls.has(listener) {
                *tls.of_mut(listener) = current.of(listener).clone();
                kept.push(listener);
            }
        }
        let before = std::mem::replace(&mut *current, tls.clone());
        TlsChange { before, now: tls, kept }
    }
}

/// What a reload has changed about TLS.
pub(crate) struct TlsChange {
    pub(crate) before: ServerTls,
    pub(crate) now: ServerTls,
    /// Listeners whose TLS would have been turned on or off.
    pub(crate) kept: Vec<ListenerKind>,
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
