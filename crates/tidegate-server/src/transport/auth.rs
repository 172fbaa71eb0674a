//! API and admin tokens, and the access that they grant. Imports nothing of the crate.

use std::fmt;
use std::hint::black_box;
use std::path::Path;

use http::{HeaderMap, HeaderName};
use tidegate_tower::extract;

/// Header of the token, for callers whose `Authorization` is not meant for this server.
static TOKEN_HEADER: HeaderName = HeaderName::from_static("x-tidegate-token");

/// Access of a caller. Each level includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AccessLevel {
    /// Authenticate only.
    Nothing,
    /// Check, record, reserve and inspect.
    Check,
    /// Change rules and reset keys.
    Admin,
}

impl AccessLevel {
    /// The name of the token that grants it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no",
            Self::Check => "check",
            Self::Admin => "admin",
        }
    }
}

/// Tokens that grant access. `Debug` does not print them.
#[derive(Clone, Default)]
pub struct AuthTokens {
    check: Option<Box<str>>,
    admin: Option<Box<str>>,
    /// Whether checks need no token although there is a check token.
    has_open_checks: bool,
}

impl AuthTokens {
    /// Environment variable of the check token. With the suffix `_FILE`, it names a file.
    pub const CHECK_VARIABLE: &'static str = "TIDEGATE_TOKEN";
    /// Environment variable of the admin token; `_FILE` as above.
    pub const ADMIN_VARIABLE: &'static str = "TIDEGATE_ADMIN_TOKEN";
    /// Shortest token without a warning, in bytes: 64 bits as hexadecimal digits.
    pub(crate) const MIN_LEN: usize = 16;
    /// Longest token, in bytes.
    const MAX_LEN: usize = 1_024;

    /// Reads the tokens from the environment.
    pub fn from_env() -> Result<Self, TokenError> {
        let (check, admin) = (read(Self::CHECK_VARIABLE)?, read(Self::ADMIN_VARIABLE)?);
        Ok(Self { check, admin, has_open_checks: false })
    }

    /// A check and an admin token.
    pub fn new(check: Option<&str>, admin: Option<&str>) -> Self {
        let (check, admin) = (check.map(Into::into), admin.map(Into::into));
        Self { check, admin, has_open_checks: false }
    }

    /// The tokens of a listener whose checks need none. The check token stays valid: clients that
    /// send it to every listener are not refused.
    #[must_use]
    pub(crate) fn with_open_checks(&self) -> Self {
        Self { has_open_checks: true, ..self.clone() }
    }

    /// The environment variables of tokens that are so short that they can be guessed.
    pub(crate) fn guessable(&self) -> impl Iterator<Item = &'static str> {
        let both = [(Self::CHECK_VARIABLE, &self.check), (Self::ADMIN_VARIABLE, &self.admin)];
        let is_short = |token: &Option<Box<str>>| {
            token.as_ref().is_some_and(|token| token.len() < Self::MIN_LEN)
        };
        both.into_iter().filter(move |(_, token)| is_short(token)).map(|(name, _)| name)
    }

    /// Access without a token.
    pub fn access(&self) -> AccessLevel {
        if self.guards_checks() { AccessLevel::Nothing } else { AccessLevel::Check }
    }

    /// Access with `token`; `None` if it is invalid.
    pub fn access_with(&self, token: &[u8]) -> Option<AccessLevel> {
        let is =
            |known: &Option<Box<str>>| known.as_ref().is_some_and(|k| same(k.as_bytes(), token));
        // Both comparisons always run, so that the time does not depend on the first.
        match (is(&self.admin), is(&self.check)) {
            (true, _) => Some(AccessLevel::Admin),
            (false, true) => Some(AccessLevel::Check),
            (false, false) => None,
        }
    }

    /// Whether any token is configured.
    pub fn any(&self) -> bool {
        self.check.is_some() || self.admin.is_some()
    }

    /// Whether checks need a token.
    pub fn guards_checks(&self) -> bool {
        self.check.is_some() && !self.has_open_checks
    }

    /// Whether an admin token is configured. Without one, admin calls are refused.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// Token that a client sends with checks: the check token, or else the admin token.
    pub fn to_show(&self) -> Option<&str> {
        self.check.as_deref().or(self.admin.as_deref())
    }

    /// Token that a client sends with admin calls: the admin token, or else the check token.
    pub fn to_change(&self) -> Option<&str> {
        self.admin.as_deref().or(self.check.as_deref())
    }
}

/// The token of a request. `X-Tidegate-Token` takes precedence over `Authorization: Bearer`,
/// because proxies pass on the client's `Authorization`.
pub(crate) fn token_from_headers(headers: &HeaderMap) -> Option<&[u8]> {
    match headers.contains_key(&TOKEN_HEADER) {
        true => own_token(headers),
        false => extract::bearer(headers).map(str::as_bytes),
    }
}

/// The token in `X-Tidegate-Token`. Different values of it are none.
pub(crate) fn own_token(headers: &HeaderMap) -> Option<&[u8]> {
    extract::header(headers, TOKEN_HEADER.as_str()).map(str::as_bytes)
}

/// Compares in time that does not depend on where the tokens differ. An empty token never matches.
fn same(known: &[u8], given: &[u8]) -> bool {
    let mut differs = u8::from(known.len() != given.len());
    for (i, byte) in given.iter().enumerate().take(AuthTokens::MAX_LEN) {
        let other = known.get(i % known.len().max(1)).copied().unwrap_or(0);
        differs = black_box(differs | (byte ^ other));
    }
    differs == 0 && !given.is_empty() && given.len() <= AuthTokens::MAX_LEN
}

fn read(variable: &'static str) -> Result<Option<Box<str>>, TokenError> {
    let file = format!("{variable}_FILE");
    let (direct, file) = (std::env::var_os(variable), std::env::var_os(file));
    let token = match (direct, file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(TokenError::Both(variable)),
        (Some(token), None) => token.into_string().map_err(|_| TokenError::Text(variable))?,
        (None, Some(path)) => std::fs::read_to_string(Path::new(&path))
            .map_err(|error| TokenError::File(variable, error.kind()))?,
    };
    let token = token.trim_end_matches(['\r', '\n']);
    let is_text = token.bytes().all(|b| b.is_ascii_graphic());
    if token.is_empty() || token.len() > AuthTokens::MAX_LEN || !is_text {
        return Err(TokenError::Text(variable));
    }
    Ok(Some(token.into()))
}

impl fmt::Debug for AuthTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthTokens(..)")
    }
}

/// An invalid token. The message does not contain it.
#[derive(Debug)]
pub enum TokenError {
    /// Both the variable and the `_FILE` variable are set.
    Both(&'static str),
    /// Empty, too long, or not printable ASCII.
    Text(&'static str),
    /// The file cannot be read.
    File(&'static str, std::io::ErrorKind),
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Both(name) => write!(f, "both {name} and {name}_FILE are set; use one"),
            Self::Text(name) => {
                write!(
                    f,
                    "{name} is invalid; use 1 to {} printable ASCII characters",
                    AuthTokens::MAX_LEN
                )
            }
            Self::File(name, kind) => {
                write!(f, "cannot read the file named by {name}_FILE ({kind})")
            }
        }
    }
}

impl std::error::Error for TokenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_grants_its_access() {
        let both = AuthTokens::new(Some("check-me"), Some("admin-me"));
        for (token, access) in [
            ("check-me", Some(AccessLevel::Check)),
            ("admin-me", Some(AccessLevel::Admin)),
            ("check-m", None),
            ("check-mecheck-me", None),
            ("", None),
        ] {
            assert_eq!(both.access_with(token.as_bytes()), access, "{token}");
        }
        assert_eq!(both.access(), AccessLevel::Nothing);
        assert_eq!(AuthTokens::default().access(), AccessLevel::Check);
        assert_eq!(AuthTokens::default().access_with(b""), None);
        assert_eq!(AuthTokens::new(Some(""), Some("")).access_with(b""), None);
        assert_eq!(format!("{both:?}"), "AuthTokens(..)");
        let open = both.with_open_checks();
        assert_eq!((open.access(), open.guards_checks()), (AccessLevel::Check, false));
        assert_eq!(open.access_with(b"check-me"), Some(AccessLevel::Check));
        assert_eq!(open.access_with(b"admin-me"), Some(AccessLevel::Admin));
    }

    #[test]
    fn two_different_tokens_are_none() {
        let of = |lines: &[(&'static str, &str)]| {
            let line = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), value.parse().unwrap())
            };
            let headers: HeaderMap = lines.iter().map(line).collect();
            token_from_headers(&headers).map(<[u8]>::to_vec)
        };
        let (own, bearer) = (|token| (TOKEN_HEADER.as_str(), token), ("authorization", "Bearer b"));
        assert_eq!(of(&[own("a"), bearer]), Some(b"a".to_vec()));
        assert_eq!(of(&[own("a"), own("a")]), Some(b"a".to_vec()));
        assert_eq!(of(&[bearer]), Some(b"b".to_vec()));
        for none in [&[own("a"), own("b")][..], &[own("a"), own("b"), bearer], &[bearer, bearer]] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
