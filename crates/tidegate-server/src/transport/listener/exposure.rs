//! Refuses or warns about unauthenticated listeners that other machines can reach, and warns about
//! short tokens and about root.

use std::net::SocketAddr;

use tracing::warn;

use crate::tls::ServerTls;
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
    Good,
    /// TLS without authentication of callers.
    UnauthenticatedTls,
    /// Tokens are sent in plaintext.
    TokensInPlainText,
    /// Neither token nor TLS, allowed by [`Exposure::Insecure`].
    Unauthenticated,
}

/// The warning about these addresses; an error is the first address that must not be bound.
pub(crate) fn check_exposure(
    addresses: &[SocketAddr],
    tokens: &AuthTokens,
    tls: Option<&ServerTls>,
    exposure: Exposure,
) -> Result<ExposureWarning, SocketAddr> {
    let Some(reachable) = addresses.iter().find(|address| !address.ip().is_loopback()) else {
        return Ok(ExposureWarning::Good);
    };
    match (tokens.guards_checks(), tls) {
        (false, None) if exposure == Exposure::Guarded => Err(*reachable),
        (false, None) => Ok(ExposureWarning::Unauthenticated),
        (false, Some(tls)) if !tls.requires_client_cert() => {
            Ok(ExposureWarning::UnauthenticatedTls)
        }
        (true, None) => Ok(ExposureWarning::TokensInPlainText),
        (_, Some(_)) => Ok(ExposureWarning::Good),
    }
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
            Self::Good => {}
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
