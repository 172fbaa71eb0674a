//! Refuses or warns about unauthenticated listeners that other machines can reach, and warns about
//! short tokens and about root.

use std::net::SocketAddr;

use tracing::warn;

use crate::transport::auth::AuthTokens;

/// Where a server without token and TLS may listen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Exposure {
    /// On loopback addresses only.
    #[default]
    Guarded,
    /// On any address (`--insecure`).
    Insecure,
}

/// Warning about listeners that other machines can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExposureWarning {
    /// TLS without authentication of callers.
    UnauthenticatedTls,
    /// Tokens are sent in plaintext.
    TokensInPlainText,
    /// Neither token nor TLS, allowed by [`Exposure::Insecure`].
    Unauthenticated,
}

/// A listener, and what protects it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerGuards {
    pub(crate) address: SocketAddr,
    pub(crate) needs_token: bool,
    pub(crate) has_tls: bool,
    pub(crate) requires_client_cert: bool,
}

/// The warnings about these listeners; an error is the first address that must not be bound.
pub(crate) fn check_exposure(
    listeners: &[ListenerGuards],
    exposure: Exposure,
) -> Result<Vec<ExposureWarning>, SocketAddr> {
    let reachable = listeners.iter().filter(|listener| !listener.address.ip().is_loopback());
    let mut warnings = Vec::new();
    for listener in reachable {
        let warning = match (listener.needs_token, listener.has_tls) {
            (false, false) if exposure == Exposure::Guarded => return Err(listener.address),
            (false, false) => ExposureWarning::Unauthenticated,
            (false, true) if !listener.requires_client_cert => ExposureWarning::UnauthenticatedTls,
            (true, false) => ExposureWarning::TokensInPlainText,
            (_, true) => continue,
        };
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    Ok(warnings)
}

/// Warns about tokens that can be guessed: attempts over HTTP are not limited.
pub(crate) fn log_short_tokens(tokens: &AuthTokens) {
    for variable in tokens.guessable() {
        warn!(
            variable,
            "token shorter than {} characters can be guessed; use `openssl rand -hex 32`",
            AuthTokens::MIN_LEN
        );
    }
}

/// Warns if the process runs as root. Nothing in the server needs it.
pub(crate) fn log_root() {
    if rustix::process::geteuid().is_root() {
        warn!("running as root; run the server as a user without privileges");
    }
}

impl ExposureWarning {
    pub(crate) fn log(self) {
        match self {
            Self::UnauthenticatedTls => warn!(
                "listener reachable from other machines without authentication (TLS only); set \
                 TIDEGATE_TOKEN or --tls-client-ca"
            ),
            Self::TokensInPlainText => warn!(
                "tokens are sent in plaintext; set tls in the policy or --tls-cert and --tls-key, \
                 or put a TLS proxy in front"
            ),
            Self::Unauthenticated => {
                warn!("listener reachable from other machines with neither token nor TLS")
            }
        }
    }
}
