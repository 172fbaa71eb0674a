//! The servers of a URL and the settings to connect to them, with certificate files read.

use crate::connection::dial::Dialer;
use crate::connection::endpoint::Endpoint;
use crate::connection::tls::InvalidTls;
use crate::connection::url::{RedisUrl, UrlHosts};

/// A URL, ready for use.
#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    pub(crate) servers: ServerSet,
    pub(crate) dialer: Dialer,
}

/// The kind of deployment, and the endpoints of the URL.
#[derive(Clone, Debug)]
pub(crate) enum ServerSet {
    One(Endpoint),
    /// The primary that these sentinels name.
    Sentinel(SentinelConfig),
    /// A Cluster; these are its seed nodes.
    Cluster(Vec<Endpoint>),
}

/// The sentinels that monitor a primary.
#[derive(Clone, Debug)]
pub(crate) struct SentinelConfig {
    pub(crate) endpoints: Vec<Endpoint>,
    /// The name under which they monitor the primary.
    pub(crate) master: String,
    /// Connects to the sentinels; the monitored servers have another login.
    pub(crate) dialer: Dialer,
}

impl Deployment {
    /// Reads the files that `url` names.
    pub(crate) fn new(url: &RedisUrl) -> Result<Self, InvalidTls> {
        let dialer = Dialer::new(url.login.info(url.db)).with_tls(url.tls.as_ref())?;
        let servers = match &url.servers {
            UrlHosts::One(endpoint) => ServerSet::One(endpoint.clone()),
            UrlHosts::Cluster(endpoints) => ServerSet::Cluster(endpoints.clone()),
            UrlHosts::Sentinel { endpoints, master, login } => {
                ServerSet::Sentinel(SentinelConfig {
                    endpoints: endpoints.clone(),
                    master: master.clone(),
                    dialer: dialer.with_login(login.info(0)),
                })
            }
        };
        Ok(Self { servers, dialer })
    }
}
