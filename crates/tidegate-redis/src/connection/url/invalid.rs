//! Why a URL is invalid.

use std::fmt;

use super::redis_url::RedisUrl;

/// Why a URL is invalid. It quotes nothing: any part may be a misplaced password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidUrl {
    /// Longer than [`RedisUrl::MAX_LEN`].
    TooLong,
    /// Not one of [`RedisUrl::SCHEMES`].
    Scheme,
    /// A `%` without two hexadecimal digits, or not UTF-8 once decoded.
    Encoding,
    /// A user without a password, or nothing before the `@`.
    Login,
    /// An `@` after the hosts: the password before it contains a `/` or a `?`.
    StrayAt,
    /// A missing host, or one that is neither a name nor an address.
    Host,
    /// Colons in a host that is not in brackets.
    Brackets,
    /// Not a number from 1 to 65535.
    Port,
    /// Several hosts in a URL for one server.
    SeveralHosts,
    /// More hosts than [`RedisUrl::MAX_HOSTS`].
    TooManyHosts,
    /// Not a database number.
    Database,
    /// A database other than 0 in a Cluster.
    ClusterDatabase,
    /// Sentinels without the name of the primary.
    Master,
    /// Text before the path of a socket.
    SocketHost,
    /// A missing or invalid path of a socket.
    SocketPath,
    /// A parameter that this kind of URL does not have.
    Parameter,
    /// A parameter for TLS in a URL without TLS.
    NeedsTls,
    /// A parameter twice.
    Repeated,
    /// A parameter without a value.
    EmptyParameter,
    /// A certificate without its key, or a key without its certificate.
    HalfIdentity,
    /// A user for the sentinels without a password.
    SentinelLogin,
    /// An invalid server name.
    ServerName,
}

impl fmt::Display for InvalidUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a redis url: ")?;
        f.write_str(match self {
            Self::TooLong => return write!(f, "longer than {} bytes", RedisUrl::MAX_LEN),
            Self::Scheme => {
                let schemes = RedisUrl::SCHEMES.join("://, ");
                return write!(f, "unknown scheme; use {schemes}://");
            }
            Self::Encoding => "invalid percent-encoding; write % as %25, and use UTF-8",
            Self::Login => {
                "a login without a password; write user:password@ or :password@ before the host"
            }
            Self::StrayAt => {
                "an @ after the host; write / ? and @ in passwords and names as %2F, %3F and %40"
            }
            Self::Host => "missing or invalid host; use a name or an address like 127.0.0.1",
            Self::Brackets => "a host with colons; put an IPv6 address into brackets, like [::1]",
            Self::Port => "a port is not a number from 1 to 65535",
            Self::SeveralHosts => {
                "several hosts; use redis-sentinel:// or redis-cluster://, or name one"
            }
            Self::TooManyHosts => {
                return write!(f, "too many hosts; use at most {}", RedisUrl::MAX_HOSTS);
            }
            Self::Database => "the database is not a number; write one like /0 after the host",
            Self::ClusterDatabase => "a cluster has only database 0; leave the number out",
            Self::Master => {
                "the name of the primary is missing; write it after the sentinels, like /mymaster"
            }
            Self::SocketHost => {
                "text before the path of the socket; write unix:///path, and a login \
                 as ?user=..&password=.."
            }
            Self::SocketPath => "the path of the socket is missing; write unix:///path",
            Self::Parameter => {
                "unknown parameter; use ca, cert, key and server_name with TLS, sentinel_user and \
                 sentinel_password with sentinels, or db, user and password with unix://"
            }
            Self::NeedsTls => {
                "ca, cert, key and server_name need TLS; use rediss://, rediss-sentinel:// or \
                 rediss-cluster://"
            }
            Self::Repeated => "duplicate parameter; write it once",
            Self::EmptyParameter => "a parameter has no value; give it one, or leave it out",
            Self::HalfIdentity => "cert and key need each other; write both, or none",
            Self::SentinelLogin => "sentinel_user has no password; add sentinel_password",
            Self::ServerName => "server_name is not a server name; use one like redis.example",
        })
    }
}

impl std::error::Error for InvalidUrl {}
