//! What the text of an address says: which servers, how to enter them, and what to show of it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use redis::RedisConnectionInfo;

use crate::address::Place;

mod invalid;
mod parse;
#[cfg(test)]
mod tests;

pub use invalid::InvalidUrl;

/// The address of a Redis, a Sentinel or a Cluster, understood but not yet used.
///
/// It is shown in full form and without its passwords:
///
/// ```
/// use tidegate_redis::RedisUrl;
///
/// let url: RedisUrl = "rediss://app:p@ss@redis.example/2?ca=/etc/ca.pem".parse()?;
/// assert_eq!(url.to_string(), "rediss://app:***@redis.example:6379/2?ca=/etc/ca.pem");
/// # Ok::<(), tidegate_redis::InvalidUrl>(())
/// ```
///
/// Two are equal if they say the same, passwords included.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    pub(crate) servers: Servers,
    pub(crate) login: Login,
    pub(crate) db: u32,
    pub(crate) tls: Option<TlsSettings>,
}

/// How the servers are arranged.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Servers {
    One(Place),
    /// The primary that sentinels call `master`. They have a login of their own.
    Sentinel {
        places: Vec<Place>,
        master: String,
        login: Login,
    },
    Cluster(Vec<Place>),
}

/// Who one is. Never shown whole.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// What TLS needs to know beside the host.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct TlsSettings {
    /// The roots, instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) identity: Option<Identity>,
    /// The name to ask for and to verify, instead of the host.
    pub(crate) server_name: Option<String>,
}

/// The files with which a client shows who it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl RedisUrl {
    /// What an address begins with, each before `://`.
    pub const SCHEMES: [&str; 8] = [
        "redis",
        "rediss",
        "unix",
        "redis+unix",
        "redis-sentinel",
        "rediss-sentinel",
        "redis-cluster",
        "rediss-cluster",
    ];
    /// The longest address, in bytes.
    pub const MAX_LEN: usize = 4096;
    /// The most hosts in one.
    pub const MAX_HOSTS: usize = 64;

    fn scheme(&self) -> &'static str {
        match (&self.servers, &self.tls) {
            (Servers::One(Place::Unix(_)), _) => "unix",
            (Servers::One(_), None) => "redis",
            (Servers::One(_), Some(_)) => "rediss",
            (Servers::Sentinel { .. }, None) => "redis-sentinel",
            (Servers::Sentinel { .. }, Some(_)) => "rediss-sentinel",
            (Servers::Cluster(_), None) => "redis-cluster",
            (Servers::Cluster(_), Some(_)) => "rediss-cluster",
        }
    }

    /// All that stands behind the `?`.
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        let path = |path: &Path| encoded(&path.to_string_lossy(), b"/");
        if let Servers::One(Place::Unix(_)) = self.servers {
            all.extend((self.db != 0).then(|| ("db", self.db.to_string())));
            all.extend(self.login.parameters("user", "password"));
        }
        if let Some(tls) = &self.tls {
            all.extend(tls.ca.iter().map(|ca| ("ca", path(ca))));
            if let Some(Identity { cert, key }) = &tls.identity {
                all.extend([("cert", path(cert)), ("key", path(key))]);
            }
            all.extend(tls.server_name.iter().map(|name| ("server_name", encoded(name, b":"))));
        }
        if let Servers::Sentinel { login, .. } = &self.servers {
            all.extend(login.parameters("sentinel_user", "sentinel_password"));
        }
        all
    }
}

impl Login {
    /// What the server is told on a connection to its database `db`.
    pub(crate) fn info(&self, db: u32) -> RedisConnectionInfo {
        RedisConnectionInfo {
            db: db.into(),
            username: self.user.clone(),
            password: self.password.clone(),
            ..RedisConnectionInfo::default()
        }
    }

    fn parameters(
        &self,
        user: &'static str,
        password: &'static str,
    ) -> impl Iterator<Item = (&'static str, String)> {
        let name = self.user.as_ref().map(|name| (user, encoded(name, b"")));
        name.into_iter().chain(self.password.is_some().then(|| (password, MASK.into())))
    }
}

/// Stands where a password was.
const MASK: &str = "***";

impl FromStr for RedisUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        parse::url(text)
    }
}

/// In full form, without passwords. What it prints is an address again, but for those.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme())?;
        if let Servers::One(Place::Unix(path)) = &self.servers {
            f.write_str(&encoded(&path.to_string_lossy(), b"/@"))?;
        } else {
            self.fmt_authority(f)?;
        }
        for (i, (name, value)) in self.parameters().into_iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl RedisUrl {
    fn fmt_authority(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.login.password.is_some() {
            let user = self.login.user.as_deref().unwrap_or_default();
            write!(f, "{}:{MASK}@", encoded(user, b""))?;
        }
        let (places, master) = match &self.servers {
            Servers::One(place) => (std::slice::from_ref(place), None),
            Servers::Sentinel { places, master, .. } => (&**places, Some(master)),
            Servers::Cluster(places) => (&**places, None),
        };
        for (i, place) in places.iter().enumerate() {
            write!(f, "{}{place}", if i == 0 { "" } else { "," })?;
        }
        if let Some(master) = master {
            write!(f, "/{}", encoded(master, b""))?;
        }
        if self.db != 0 {
            write!(f, "/{}", self.db)?;
        }
        Ok(())
    }
}

/// As it is shown.
impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// With everything percent-encoded that could mean something in an address or to a terminal, but for
/// what is in `plain`.
fn encoded(text: &str, plain: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~*".contains(&byte) || plain.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
