//! One server: URL, TLS, dialing, handshake, the supervised connection and the errors of a server.
//! Imports: nothing.

pub(crate) mod dial;
pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod handshake;
pub(crate) mod info;
pub(crate) mod pinned;
pub(crate) mod role;
pub(crate) mod server_error;
pub(crate) mod server_identity;
pub(crate) mod supervisor;
pub(crate) mod timing;
pub(crate) mod tls;
pub(crate) mod url;
