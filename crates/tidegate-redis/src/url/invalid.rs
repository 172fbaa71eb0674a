//! Why a text is not an address.

use std::fmt;

use super::RedisUrl;

/// What is wrong with an address. It quotes nothing of it: any part may be a misplaced password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidUrl {
    /// Beyond [`RedisUrl::MAX_LEN`].
    TooLong,
    /// It begins with none of [`RedisUrl::SCHEMES`].
    Scheme,
    /// A `%` without two hexadecimal digits, or not UTF-8 once decoded.
    Encoding,
    /// A user without a password, or neither of them before the `@`.
    Login,
    /// An `@` behind the hosts: the password before it has a `/` or a `?`.
    StrayAt,
    /// A host that is missing, or no name and no address.
    Host,
    /// Colons in a host that is not in brackets.
    Brackets,
    /// Not a number from 1 to 65535.
    Port,
    /// Several hosts where there is one server.
    SeveralHosts,
    /// More hosts than [`RedisUrl::MAX_HOSTS`].
    TooManyHosts,
    /// Not the number of a database.
    Database,
    /// A database other than 0 in a Cluster, which has no other.
    ClusterDatabase,
    /// Sentinels, and no name of what they watch.
    Master,
    /// Something before the path of a socket.
    SocketHost,
    /// The path of a socket is missing, or cannot be one.
    SocketPath,
    /// A parameter that this kind of address does not have.
    Parameter,
    /// A parameter for TLS where there is none.
    NeedsTls,
    /// A parameter twice.
    Repeated,
    /// A parameter without a value.
    EmptyParameter,
    /// A certificate without its key, or a key without its certificate.
    HalfIdentity,
    /// A user for the sentinels without a password.
    SentinelLogin,
    /// A name for the server that is none.
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
            Self::Encoding => {
                "a % that begins no character; write %25 for the sign itself, and only UTF-8"
            }
            Self::Login => {
                "a login without a password; write user:password@ or :password@ before the host"
            }
            Self::StrayAt => {
                "an @ behind the host; write / ? and @ in passwords and names as %2F, %3F and %40"
            }
            Self::Host => "a host is missing or is none; use a name or an address like 127.0.0.1",
            Self::Brackets => "a host with colons; put an IPv6 address into brackets, like [::1]",
            Self::Port => "a port is no number from 1 to 65535",
            Self::SeveralHosts => {
                "several hosts; use redis-sentinel:// or redis-cluster://, or name one"
            }
            Self::TooManyHosts => {
                return write!(f, "too many hosts; use at most {}", RedisUrl::MAX_HOSTS);
            }
            Self::Database => "the database is no number; write one like /0 behind the host",
            Self::ClusterDatabase => "a cluster has only database 0; leave the number out",
            Self::Master => {
                "the name of the primary is missing; write it behind the sentinels, like /mymaster"
            }
            Self::SocketHost => {
                "something stands before the path of the socket; write unix:///path, and a login \
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
            Self::Repeated => "a parameter is there twice; write it once",
            Self::EmptyParameter => "a parameter has no value; give it one, or leave it out",
            Self::HalfIdentity => "cert and key need each other; write both, or none",
            Self::SentinelLogin => {
                "sentinel_user has no password; write sentinel_password beside it"
            }
            Self::ServerName => "server_name is no name of a server; use one like redis.example",
        })
    }
}

impl std::error::Error for InvalidUrl {}
