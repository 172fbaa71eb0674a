//! Who may ask, and who may change things.

use std::fmt;
use std::hint::black_box;
use std::path::Path;

/// What somebody may do. A later one may do all that an earlier one may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Nothing but say who they are.
    Nothing,
    /// Ask.
    Check,
    /// Change rules and forget what was used.
    Admin,
}

/// The tokens that open the doors. Never shown.
#[derive(Clone, Default)]
pub struct Tokens {
    check: Option<Box<str>>,
    admin: Option<Box<str>>,
}

impl Tokens {
    /// The environment variable with the token for asking; with `_FILE` behind it, that of a file.
    pub const CHECK_VARIABLE: &'static str = "TIDEGATE_TOKEN";
    /// The environment variable with the token for changing things.
    pub const ADMIN_VARIABLE: &'static str = "TIDEGATE_ADMIN_TOKEN";
    /// The longest token in bytes.
    const MAX_LEN: usize = 1_024;

    /// The tokens that the environment names.
    pub fn from_env() -> Result<Self, TokenError> {
        let (check, admin) = (read(Self::CHECK_VARIABLE)?, read(Self::ADMIN_VARIABLE)?);
        Ok(Self { check, admin })
    }

    /// These tokens.
    pub fn new(check: Option<&str>, admin: Option<&str>) -> Self {
        Self { check: check.map(Into::into), admin: admin.map(Into::into) }
    }

    /// What somebody may do who has shown nothing.
    pub fn access(&self) -> Access {
        if self.check.is_some() { Access::Nothing } else { Access::Check }
    }

    /// What somebody may do who shows `token`; `None` if it opens nothing.
    pub fn access_with(&self, token: &[u8]) -> Option<Access> {
        let is =
            |known: &Option<Box<str>>| known.as_ref().is_some_and(|k| same(k.as_bytes(), token));
        // Both are compared, whatever the first says.
        match (is(&self.admin), is(&self.check)) {
            (true, _) => Some(Access::Admin),
            (false, true) => Some(Access::Check),
            (false, false) => None,
        }
    }

    /// Is there any token?
    pub fn any(&self) -> bool {
        self.check.is_some() || self.admin.is_some()
    }

    /// Is there a token for asking?
    pub fn guards_checks(&self) -> bool {
        self.check.is_some()
    }

    /// Is there a token for changing things? Without one nobody may.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// The token to show to a server for asking, the less powerful one if there are two.
    pub fn to_show(&self) -> Option<&str> {
        self.check.as_deref().or(self.admin.as_deref())
    }

    /// The token to show to a server for changing things.
    pub fn to_change(&self) -> Option<&str> {
        self.admin.as_deref().or(self.check.as_deref())
    }
}

/// Takes the same time wherever they differ. An empty token is nobody's.
fn same(known: &[u8], given: &[u8]) -> bool {
    let mut differs = u8::from(known.len() != given.len());
    for (i, byte) in given.iter().enumerate().take(Tokens::MAX_LEN) {
        let other = known.get(i % known.len().max(1)).copied().unwrap_or(0);
        differs = black_box(differs | (byte ^ other));
    }
    differs == 0 && !given.is_empty() && given.len() <= Tokens::MAX_LEN
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
    if token.is_empty() || token.len() > Tokens::MAX_LEN || !is_text {
        return Err(TokenError::Text(variable));
    }
    Ok(Some(token.into()))
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}

/// A token that cannot be used. It does not show the token.
#[derive(Debug)]
pub enum TokenError {
    /// It is given twice.
    Both(&'static str),
    /// It is empty, too long, or has spaces or worse in it.
    Text(&'static str),
    /// Its file cannot be read.
    File(&'static str, std::io::ErrorKind),
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Both(name) => write!(f, "both {name} and {name}_FILE are set; use one of them"),
            Self::Text(name) => {
                write!(
                    f,
                    "{name} is no token; use 1 to {} visible ASCII characters",
                    Tokens::MAX_LEN
                )
            }
            Self::File(name, kind) => {
                write!(f, "cannot read the file that {name}_FILE names ({kind})")
            }
        }
    }
}

impl std::error::Error for TokenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_what_it_is_for() {
        let both = Tokens::new(Some("check-me"), Some("admin-me"));
        for (token, access) in [
            ("check-me", Some(Access::Check)),
            ("admin-me", Some(Access::Admin)),
            ("check-m", None),
            ("check-mecheck-me", None),
            ("", None),
        ] {
            assert_eq!(both.access_with(token.as_bytes()), access, "{token}");
        }
        assert_eq!(both.access(), Access::Nothing);
        assert_eq!(Tokens::default().access(), Access::Check);
        assert_eq!(Tokens::default().access_with(b""), None);
        assert_eq!(Tokens::new(Some(""), Some("")).access_with(b""), None);
        assert_eq!(format!("{both:?}"), "Tokens(..)");
    }
}
