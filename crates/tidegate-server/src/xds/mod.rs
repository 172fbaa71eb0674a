//! A client of a control plane (xDS), which sends the limits of Envoy's domains. Imports: policy,
//! shutdown, tls, transport.

mod client;
mod connect;
mod options;
mod resource;

pub(crate) use self::client::XdsClient;
pub use self::options::{XdsAddress, XdsBackoff, XdsHeader, XdsOptions, XdsStart, XdsTls};
