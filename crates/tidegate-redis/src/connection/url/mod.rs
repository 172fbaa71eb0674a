//! URLs of Redis, Sentinel and Cluster. Imports: endpoint.

mod invalid;
mod parse;
mod redis_url;
#[cfg(test)]
mod tests;

pub use invalid::InvalidUrl;
#[cfg(feature = "tls")]
pub(crate) use redis_url::ClientCertFiles;
pub use redis_url::RedisUrl;
pub(crate) use redis_url::{TlsSettings, UrlHosts};
