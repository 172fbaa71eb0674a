//! Who could come in from where, and what is said about it.

use std::net::SocketAddr;

use tracing::warn;

use super::tls::Identity;
use crate::tokens::Tokens;

/// Who can reach a server that nothing guards.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Exposure {
    /// This machine alone.
    #[default]
    Guarded,
    /// Whoever can reach its address.
    Insecure,
}

/// What is to be said about doors that other machines can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing.
    Good,
    /// Anybody may ask, although nobody can listen.
    AnybodyWithTls,
    /// Tokens cross the network in plain text.
    TokensInPlainText,
    /// Anybody may ask, and was told that they may.
    Anybody,
}

/// Looks at all doors; the first that must not open is told.
pub fn look(
    addresses: &[SocketAddr],
    tokens: &Tokens,
    tls: Option<&Identity>,
    exposure: Exposure,
) -> Result<Verdict, SocketAddr> {
    let Some(reachable) = addresses.iter().find(|address| !address.ip().is_loopback()) else {
        return Ok(Verdict::Good);
    };
    match (tokens.guards_checks(), tls) {
        (false, None) if exposure == Exposure::Guarded => Err(*reachable),
        (false, None) => Ok(Verdict::Anybody),
        (false, Some(tls)) if !tls.knows_clients() => Ok(Verdict::AnybodyWithTls),
        (true, None) => Ok(Verdict::TokensInPlainText),
        (_, Some(_)) => Ok(Verdict::Good),
    }
}

impl Verdict {
    /// Says it to whoever reads the log.
    pub fn tell(self) {
        match self {
            Self::Good => {}
            Self::AnybodyWithTls => warn!(
                "other machines can reach this server, and TLS alone keeps nobody out; set TIDEGATE_TOKEN, or name who \
                 signs the certificates of clients"
            ),
            Self::TokensInPlainText => warn!(
                "tokens cross the network in plain text; give the server a certificate with tls of the policy or \
                 --tls-cert and --tls-key, or put a proxy with TLS in front"
            ),
            Self::Anybody => warn!("other machines can reach this server, and anybody may ask it"),
        }
    }
}
