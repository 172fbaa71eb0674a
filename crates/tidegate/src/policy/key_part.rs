//! Where the parts of a rule's key come from.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use super::matching::{PathPattern, Request};
use crate::network::ClientNetwork;

/// One part of a rule's key, and where it is found in a request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyPart {
    /// `client_ip`: the client address, IPv6 by its /64.
    ClientIp,
    /// `header:x-api-key`.
    Header(Box<str>),
    /// `query:user`.
    Query(Box<str>),
    /// `cookie:session`.
    Cookie(Box<str>),
    /// `path:id`: the segment in the place of `{id}` in the rule's path.
    Path(Box<str>),
    /// `bearer`: a hash of the bearer token.
    Bearer,
    /// `instance`: this process.
    Instance,
}

/// What happens to a request that lacks a part of the key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum OnMissingKey {
    /// Such requests share one key.
    #[default]
    Shared,
    /// Such requests are denied.
    Deny,
    /// The rule does not apply to such requests.
    Skip,
}

impl KeyPart {
    /// The value of the part in this request.
    pub(super) fn find(
        &self,
        request: &impl Request,
        path: Option<&PathPattern>,
    ) -> Option<String> {
        match self {
            Self::ClientIp => request.client_ip().map(|ip| ClientNetwork::from(ip).to_string()),
            Self::Header(name) => request.header(name).map(str::to_string),
            Self::Query(name) => request.query(name).map(|value| value.into_owned()),
            Self::Cookie(name) => request.cookie(name).map(|value| value.into_owned()),
            Self::Path(name) => path?.named(name, request.path()).map(str::to_string),
            Self::Bearer => request.bearer().map(|hash| hash.into_owned()),
            Self::Instance => Some(instance_id().to_string()),
        }
    }
}

/// Value of a missing part. No header can contain it, so it differs from an empty value.
pub const MISSING: &str = "\0";

/// The id of this process, drawn on first use.
pub fn instance_id() -> &'static str {
    static INSTANCE: OnceLock<String> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        // Without random numbers the process id is used: it is unique on one machine.
        let id = getrandom::u64().unwrap_or(std::process::id().into());
        format!("{id:016x}")
    })
}

impl KeyPart {
    /// The part in words: `header x-api-key`.
    pub fn describe(&self) -> String {
        match self {
            Self::ClientIp => "client address".into(),
            Self::Header(name) => format!("header {name}"),
            Self::Query(name) => format!("query parameter {name}"),
            Self::Cookie(name) => format!("cookie {name}"),
            Self::Path(name) => format!("path segment {name}"),
            Self::Bearer => "bearer token".into(),
            Self::Instance => "instance".into(),
        }
    }
}

impl FromStr for KeyPart {
    type Err = InvalidKeyPart;

    fn from_str(text: &str) -> Result<Self, InvalidKeyPart> {
        match text {
            "client_ip" => return Ok(Self::ClientIp),
            "bearer" => return Ok(Self::Bearer),
            "instance" => return Ok(Self::Instance),
            _ => {}
        }
        let invalid = || InvalidKeyPart(text.into());
        let (kind, name) = text.split_once(':').ok_or_else(invalid)?;
        let is_token = name.bytes().all(|b| b.is_ascii_graphic() && !b"\",;:{}()".contains(&b));
        if name.is_empty() || name.len() > 256 || (!is_token && kind != "query") {
            return Err(invalid());
        }
        match kind {
            "header" => Ok(Self::Header(name.to_ascii_lowercase().into())),
            "query" => Ok(Self::Query(name.into())),
            "cookie" => Ok(Self::Cookie(name.into())),
            "path" => Ok(Self::Path(name.into())),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client_ip"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Path(name) => write!(f, "path:{name}"),
            Self::Bearer => f.write_str("bearer"),
            Self::Instance => f.write_str("instance"),
        }
    }
}

/// Unknown key part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidKeyPart(Box<str>);

impl fmt::Display for InvalidKeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown key {:?}; use client_ip, header:NAME, query:NAME, cookie:NAME, path:NAME, \
             bearer or instance",
            self.0
        )
    }
}

impl std::error::Error for InvalidKeyPart {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_print_as_they_are_parsed() {
        for text in [
            "client_ip",
            "header:x-api-key",
            "query:q",
            "cookie:sid",
            "path:id",
            "bearer",
            "instance",
        ] {
            assert_eq!(text.parse::<KeyPart>().unwrap().to_string(), text);
        }
        for text in ["", "ip", "header", "header:", "header:a b", "cookie:a;b", "body:x", "Bearer"]
        {
            assert!(text.parse::<KeyPart>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_process_has_one_id() {
        assert_eq!(instance_id(), instance_id());
        assert_eq!(instance_id().len(), 16);
    }
}
