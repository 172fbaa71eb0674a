//! TLS streams and their certificate files. Imports: url.

#[cfg(not(feature = "tls"))]
pub(crate) mod disabled;
#[cfg(feature = "tls")]
pub(crate) mod rustls;

use std::fmt;
use std::io;
use std::path::PathBuf;

#[cfg(not(feature = "tls"))]
pub(crate) use crate::connection::tls::disabled::Tls;
#[cfg(feature = "tls")]
pub(crate) use crate::connection::tls::rustls::Tls;

/// Why TLS settings are invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidTls {
    /// A file that cannot be read.
    Unreadable(PathBuf, io::ErrorKind),
    /// A file without a valid certificate in PEM format.
    Certificates(PathBuf),
    /// A file without a valid private key in PEM format.
    Key(PathBuf),
    /// The key in this file does not match the certificate.
    OtherKey(PathBuf),
    /// No system root certificates, and no file of roots.
    NoRoots,
    /// Not a valid server name.
    ServerName,
    /// This program was built without TLS.
    NotBuilt,
}

impl fmt::Display for InvalidTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(file, kind) => write!(f, "cannot read {file:?} ({kind})"),
            Self::Certificates(file) => {
                write!(f, "no valid certificate in {file:?}; it must be in PEM format")
            }
            Self::Key(file) => {
                write!(f, "no valid private key in {file:?}; it must be unencrypted, in PEM format")
            }
            Self::OtherKey(file) => {
                write!(
                    f,
                    "the key in {file:?} does not match the certificate; use the two as a pair"
                )
            }
            Self::NoRoots => f.write_str(
                "the system has no root certificates; install them, or name a file with ?ca=",
            ),
            Self::ServerName => {
                f.write_str("the server_name of the redis url is not a valid server name")
            }
            Self::NotBuilt => f.write_str(
                "built without TLS; enable the feature tls of tidegate-redis, or use redis://",
            ),
        }
    }
}

impl std::error::Error for InvalidTls {}
