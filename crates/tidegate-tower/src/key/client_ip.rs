//! The address that a request comes from.

use std::net::IpAddr;

use http::Extensions;
use http::request::Parts;
use tidegate::Network;

use super::{ExtractKey, KeyText};
use crate::extract::TrustedProxies;

/// The client's address: of IPv6 its /64, since that is what a single customer has at least.
///
/// A request tells who its connection is from in its extensions: as axum's
/// `ConnectInfo<SocketAddr>`, as tonic's `TcpConnectInfo` (with the feature `tonic`), or as [`Peer`],
/// which a service on plain hyper sets itself. Without any of these the request is answered with an
/// error of the server, since everybody would count as one.
///
/// Where the connection is from a trusted proxy, the client is who the proxy says it is in
/// `X-Forwarded-For`; see [`TrustedProxies::client_ip`]. From anybody else the header counts for
/// nothing. By default, proxies on this machine are trusted.
///
/// ```
/// use tidegate_tower::key::ClientIp;
/// let behind_a_balancer = ClientIp::behind(["10.0.0.0/8".parse()?]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default, Debug)]
pub struct ClientIp {
    proxies: TrustedProxies,
}

/// Who a connection is from, as an extension of its requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer(pub IpAddr);

impl ClientIp {
    pub(crate) const NO_PEER: &'static str = "nobody says who the connection is from; serve with \
        into_make_service_with_connect_info::<SocketAddr>(), or set tidegate_tower's Peer as an \
        extension";

    /// The client's address behind these proxies.
    pub fn behind(proxies: impl IntoIterator<Item = Network>) -> Self {
        Self { proxies: proxies.into_iter().collect() }
    }
}

impl ExtractKey for ClientIp {
    fn extract(&self, request: &Parts, key: &mut KeyText) {
        match peer(&request.extensions) {
            Some(peer) => {
                let ip = self.proxies.client_ip(peer, &request.headers);
                key.add_client(ip);
            }
            None => key.cannot_know(Self::NO_PEER),
        }
    }
}

/// Who the connection of a request is from, if an extension tells.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    if let Some(Peer(address)) = extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    {
        use axum::extract::ConnectInfo;
        use axum::extract::connect_info::MockConnectInfo;
        use std::net::SocketAddr;
        if let Some(ConnectInfo(address)) = extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(address.ip());
        }
        if let Some(MockConnectInfo(address)) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(address.ip());
        }
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr().map(|address| address.ip());
    }
    None
}
