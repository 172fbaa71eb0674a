//! Encrypted streams, and the files that they need.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[cfg(feature = "tls")]
pub(crate) use with::Tls;
#[cfg(not(feature = "tls"))]
pub(crate) use without::Tls;

#[cfg(feature = "tls")]
mod with;
#[cfg(not(feature = "tls"))]
mod without;

/// Why there can be no TLS with these settings.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidTls {
    /// A file that cannot be read.
    Unreadable(PathBuf, io::ErrorKind),
    /// A file without certificates in PEM form, or with a damaged one.
    Certificates(PathBuf),
    /// A file without a private key in PEM form, or with one of an unknown kind.
    Key(PathBuf),
    /// The key in this file is another one than the certificate's.
    OtherKey(PathBuf),
    /// The system trusts nobody, and no file says whom to trust.
    NoRoots,
    /// A name that no certificate can have.
    ServerName,
    /// This program was built without TLS.
    NotBuilt,
}

impl fmt::Display for InvalidTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(file, kind) => write!(f, "cannot read {file:?} ({kind})"),
            Self::Certificates(file) => {
                write!(f, "no good certificate in {file:?}; it must be in PEM form")
            }
            Self::Key(file) => {
                write!(f, "no good private key in {file:?}; it must be unencrypted, in PEM form")
            }
            Self::OtherKey(file) => {
                write!(f, "the key in {file:?} is not the certificate's; use the two as a pair")
            }
            Self::NoRoots => f.write_str(
                "the system has no root certificates; install them, or name a file with ?ca=",
            ),
            Self::ServerName => f.write_str(
                "the server_name of the redis url is no name that a certificate can have",
            ),
            Self::NotBuilt => f.write_str(
                "built without TLS; enable the feature tls of tidegate-redis, or use redis://",
            ),
        }
    }
}

impl std::error::Error for InvalidTls {}
