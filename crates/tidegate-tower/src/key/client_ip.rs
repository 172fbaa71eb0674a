//! The client address as a key.

use std::net::IpAddr;

use http::Extensions;
use http::request::Parts;
use tidegate::Network;

use super::{ExtractKey, KeyBuilder};
use crate::extract::TrustedProxies;

/// The address of the client. IPv6 addresses are cut to their /64: one customer has at least that
/// much.
///
/// The peer address comes from an extension of the request: axum's `ConnectInfo<SocketAddr>`,
/// tonic's `TcpConnectInfo` (feature `tonic`), or [`Peer`], which a service on plain hyper sets
/// itself. Without any of them the request is denied with 500, because all clients would share one
/// key.
///
/// If the peer is a trusted proxy, the client address is taken from `X-Forwarded-For`; see
/// [`TrustedProxies::client_ip`]. The header is ignored if it comes from any other peer. By
/// default, proxies on this machine are trusted.
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

/// The peer address of the connection, as an extension of its requests.
///
/// ```
/// use tidegate_tower::Peer;
/// # let address: std::net::SocketAddr = "192.0.2.7:4711".parse()?;
/// let mut request = http::Request::get("/").body(())?;
/// request.extensions_mut().insert(Peer(address.ip()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer(pub IpAddr);

impl ClientIp {
    pub(crate) const NO_PEER: &'static str = "peer address unknown; serve with \
        into_make_service_with_connect_info::<SocketAddr>(), or set tidegate_tower's Peer as an \
        extension";

    /// The client address behind these proxies.
    pub fn behind(proxies: impl IntoIterator<Item = Network>) -> Self {
        Self { proxies: proxies.into_iter().collect() }
    }
}

impl ExtractKey for ClientIp {
    fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
        match peer(&request.extensions) {
            Some(peer) => {
                let ip = self.proxies.client_ip(peer, &request.headers);
                key.add_client(ip);
            }
            None => key.misconfigured(Self::NO_PEER),
        }
    }
}

/// The peer address of the connection, if an extension carries it.
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
