//! A parsed URL of Redis, Sentinel or Cluster, and how it is printed.

use std::fmt;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use redis::RedisConnectionInfo;

use crate::connection::endpoint::Endpoint;

/// The URL of a Redis server, of Sentinel or of a Cluster.
///
/// It is printed in full form and without its passwords:
///
/// ```
/// use tidegate_redis::RedisUrl;
///
/// let url: RedisUrl = "rediss://app:p@ss@redis.example/2?ca=/etc/ca.pem".parse()?;
/// assert_eq!(url.to_string(), "rediss://app:***@redis.example:6379/2?ca=/etc/ca.pem");
/// # Ok::<(), tidegate_redis::InvalidUrl>(())
/// ```
///
/// Equality includes passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    pub(crate) servers: UrlHosts,
    pub(crate) login: Login,
    pub(crate) db: u32,
    pub(crate) tls: Option<TlsSettings>,
}

/// The kind of deployment and its hosts.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum UrlHosts {
    One(Endpoint),
    /// The primary that sentinels monitor as `master`. The sentinels have a separate login.
    Sentinel {
        endpoints: Vec<Endpoint>,
        master: String,
        login: Login,
    },
    Cluster(Vec<Endpoint>),
}

/// User and password. The password is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// TLS settings, in addition to the host.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct TlsSettings {
    /// File of root certificates, instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) identity: Option<ClientCertFiles>,
    /// Name to send (SNI) and to verify, instead of the host.
    pub(crate) server_name: Option<String>,
}

/// The client certificate and its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientCertFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl RedisUrl {
    /// The accepted schemes.
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
    /// The longest URL, in bytes.
    pub const MAX_LEN: usize = 4096;
    /// The most hosts in one URL.
    pub const MAX_HOSTS: usize = 64;

    /// Whether the URL contains a password, of the servers or of the sentinels.
    pub fn has_password(&self) -> bool {
        let of_sentinels = match &self.servers {
            UrlHosts::Sentinel { login, .. } => login.password.is_some(),
            UrlHosts::One(_) | UrlHosts::Cluster(_) => false,
        };
        self.login.password.is_some() || of_sentinels
    }

    fn scheme(&self) -> &'static str {
        match (&self.servers, &self.tls) {
            (UrlHosts::One(Endpoint::Unix(_)), _) => "unix",
            (UrlHosts::One(_), None) => "redis",
            (UrlHosts::One(_), Some(_)) => "rediss",
            (UrlHosts::Sentinel { .. }, None) => "redis-sentinel",
            (UrlHosts::Sentinel { .. }, Some(_)) => "rediss-sentinel",
            (UrlHosts::Cluster(_), None) => "redis-cluster",
            (UrlHosts::Cluster(_), Some(_)) => "rediss-cluster",
        }
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        let path = |path: &Path| encoded(&path.to_string_lossy(), PATH);
        if let UrlHosts::One(Endpoint::Unix(_)) = self.servers {
            all.extend((self.db != 0).then(|| ("db", self.db.to_string())));
            all.extend(self.login.parameters("user", "password"));
        }
        if let Some(tls) = &self.tls {
            all.extend(tls.ca.iter().map(|ca| ("ca", path(ca))));
            if let Some(ClientCertFiles { cert, key }) = &tls.identity {
                all.extend([("cert", path(cert)), ("key", path(key))]);
            }
            all.extend(
                tls.server_name.iter().map(|name| ("server_name", encoded(name, SERVER_NAME))),
            );
        }
        if let UrlHosts::Sentinel { login, .. } = &self.servers {
            all.extend(login.parameters("sentinel_user", "sentinel_password"));
        }
        all
    }
}

impl Login {
    /// The login to database `db`.
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
        let name = self.user.as_ref().map(|name| (user, encoded(name, TEXT)));
        name.into_iter().chain(self.password.is_some().then(|| (password, MASK.into())))
    }
}

/// Replaces a password.
const MASK: &str = "***";

/// In full form, with masked passwords; otherwise the text parses to the same URL.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme())?;
        if let UrlHosts::One(Endpoint::Unix(path)) = &self.servers {
            f.write_str(&encoded(&path.to_string_lossy(), SOCKET_PATH))?;
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
            write!(f, "{}:{MASK}@", encoded(user, TEXT))?;
        }
        let (endpoints, master) = match &self.servers {
            UrlHosts::One(endpoint) => (std::slice::from_ref(endpoint), None),
            UrlHosts::Sentinel { endpoints, master, .. } => (&**endpoints, Some(master)),
            UrlHosts::Cluster(endpoints) => (&**endpoints, None),
        };
        for (i, endpoint) in endpoints.iter().enumerate() {
            write!(f, "{}{endpoint}", if i == 0 { "" } else { "," })?;
        }
        if let Some(master) = master {
            write!(f, "/{}", encoded(master, TEXT))?;
        }
        if self.db != 0 {
            write!(f, "/{}", self.db)?;
        }
        Ok(())
    }
}

/// Like `Display`.
impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// Encodes all characters with a meaning in a URL or on a terminal.
const TEXT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'*');
const SERVER_NAME: &AsciiSet = &TEXT.remove(b':');
const PATH: &AsciiSet = &TEXT.remove(b'/');
const SOCKET_PATH: &AsciiSet = &PATH.remove(b'@');

fn encoded(text: &str, set: &'static AsciiSet) -> String {
    utf8_percent_encode(text, set).to_string()
}
