//! Where the servers are, and all that is needed to enter: an address with its files read.

use std::fmt;
use std::path::PathBuf;

#[cfg(test)]
use crate::builder::InvalidSettings;
use crate::dial::Dialer;
use crate::tls::InvalidTls;
use crate::url::{RedisUrl, Servers};

/// What an address says, ready for use.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) target: Target,
    pub(crate) dialer: Dialer,
}

/// Whom to ask, and how the servers are arranged.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// One server.
    One(Place),
    /// The primary that these sentinels name.
    Sentinel(Sentinels),
    /// A Cluster, of which these are some.
    Cluster(Vec<Place>),
}

/// Those who know which server is the primary.
#[derive(Clone, Debug)]
pub(crate) struct Sentinels {
    pub(crate) places: Vec<Place>,
    /// What they call it.
    pub(crate) master: String,
    /// How to enter them; the servers they watch have another login.
    pub(crate) dialer: Dialer,
}

/// Where one server listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Address {
    /// Reads the files that `url` names.
    pub(crate) fn new(url: &RedisUrl) -> Result<Self, InvalidTls> {
        let dialer = Dialer::new(url.login.info(url.db)).with_tls(url.tls.as_ref())?;
        let target = match &url.servers {
            Servers::One(place) => Target::One(place.clone()),
            Servers::Cluster(places) => Target::Cluster(places.clone()),
            Servers::Sentinel { places, master, login } => Target::Sentinel(Sentinels {
                places: places.clone(),
                master: master.clone(),
                dialer: dialer.with_login(login.info(0)),
            }),
        };
        Ok(Self { target, dialer })
    }

    #[cfg(test)]
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidSettings> {
        Ok(Self::new(&text.parse()?)?)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
