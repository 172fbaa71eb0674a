//! Parses URLs.

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

use super::invalid::InvalidUrl;
use super::redis_url::{ClientCertFiles, Login, RedisUrl, TlsSettings, UrlHosts};
use crate::connection::endpoint::Endpoint;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// The longest DNS name.
const MAX_HOST_LEN: usize = 253;
/// Redis stores database numbers in an `int`.
const MAX_DB: u32 = i32::MAX as u32;

impl FromStr for RedisUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        url(text)
    }
}

fn url(text: &str) -> Result<RedisUrl, InvalidUrl> {
    if text.len() > RedisUrl::MAX_LEN {
        return Err(InvalidUrl::TooLong);
    }
    let (scheme, rest) = text.split_once("://").ok_or(InvalidUrl::Scheme)?;
    match scheme {
        "unix" | "redis+unix" => socket(rest),
        "redis" => network(rest, UrlKind::One, UrlTransport::Plain),
        "rediss" => network(rest, UrlKind::One, UrlTransport::Tls),
        "redis-sentinel" => network(rest, UrlKind::Sentinel, UrlTransport::Plain),
        "rediss-sentinel" => network(rest, UrlKind::Sentinel, UrlTransport::Tls),
        "redis-cluster" => network(rest, UrlKind::Cluster, UrlTransport::Plain),
        "rediss-cluster" => network(rest, UrlKind::Cluster, UrlTransport::Tls),
        _ => Err(InvalidUrl::Scheme),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlKind {
    One,
    Sentinel,
    Cluster,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlTransport {
    Plain,
    Tls,
}

/// `/path[?db=N&user=..&password=..]`
fn socket(rest: &str) -> Result<RedisUrl, InvalidUrl> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        let empty = path.is_empty();
        return Err(if empty { InvalidUrl::SocketPath } else { InvalidUrl::SocketHost });
    }
    let path = decoded(path)?;
    if path.ends_with('/') || path.contains('\0') {
        return Err(InvalidUrl::SocketPath);
    }
    let mut query = QueryParams::read(query)?;
    let db = query.take("db").as_deref().map_or(Ok(0), database)?;
    let login = query.login("user", "password").ok_or(InvalidUrl::Login)?;
    query.end(UrlTransport::Plain)?;
    Ok(RedisUrl { servers: UrlHosts::One(Endpoint::Unix(path.into())), login, db, tls: None })
}

/// `[user:password@]host[:port][,..][/master][/db][?..]`
fn network(rest: &str, kind: UrlKind, transport: UrlTransport) -> Result<RedisUrl, InvalidUrl> {
    let (authority, after) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // The end of a password with a slash would be parsed as a name, and printed.
    if after.contains('@') {
        return Err(InvalidUrl::StrayAt);
    }
    let (path, query) = after.split_once('?').unwrap_or((after, ""));
    let path = path.strip_prefix('/').unwrap_or(path);
    // The last @: a password may contain one.
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((text, hosts)) => (login(text)?, hosts),
        None => (Login::default(), authority),
    };
    let port = if kind == UrlKind::Sentinel { SENTINEL_PORT } else { REDIS_PORT };
    let mut endpoints = endpoints(hosts, port)?;
    let mut query = QueryParams::read(query)?;
    let tls = match transport {
        UrlTransport::Plain => None,
        UrlTransport::Tls => Some(query.tls()?),
    };
    let (servers, db) = match kind {
        UrlKind::One => {
            let endpoint = endpoints.pop().filter(|_| endpoints.is_empty());
            (UrlHosts::One(endpoint.ok_or(InvalidUrl::SeveralHosts)?), path)
        }
        UrlKind::Sentinel => {
            let (master, db) = path.split_once('/').unwrap_or((path, ""));
            let login = query.login("sentinel_user", "sentinel_password");
            let login = login.ok_or(InvalidUrl::SentinelLogin)?;
            (UrlHosts::Sentinel { endpoints, master: master_name(master)?, login }, db)
        }
        UrlKind::Cluster => (UrlHosts::Cluster(endpoints), path),
    };
    query.end(transport)?;
    let db = if db.is_empty() { 0 } else { database(db)? };
    if kind == UrlKind::Cluster && db != 0 {
        return Err(InvalidUrl::ClusterDatabase);
    }
    Ok(RedisUrl { servers, login, db, tls })
}

/// `user:password` or `:password`. Without a colon it could be either of them.
fn login(text: &str) -> Result<Login, InvalidUrl> {
    let (user, password) = text.split_once(':').ok_or(InvalidUrl::Login)?;
    if user.is_empty() && password.is_empty() {
        return Err(InvalidUrl::Login);
    }
    let user = (!user.is_empty()).then(|| decoded(user)).transpose()?;
    Ok(Login { user, password: Some(decoded(password)?) })
}

fn endpoints(hosts: &str, port: u16) -> Result<Vec<Endpoint>, InvalidUrl> {
    if hosts.split(',').count() > RedisUrl::MAX_HOSTS {
        return Err(InvalidUrl::TooManyHosts);
    }
    hosts.split(',').map(|host| endpoint(host, port)).collect()
}

fn endpoint(text: &str, port: u16) -> Result<Endpoint, InvalidUrl> {
    let (host, explicit) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(InvalidUrl::Brackets)?;
            let address: Ipv6Addr = host.parse().map_err(|_| InvalidUrl::Brackets)?;
            let explicit = match rest.strip_prefix(':') {
                Some(port) => Some(port),
                None if rest.is_empty() => None,
                None => return Err(InvalidUrl::Brackets),
            };
            (address.to_string(), explicit)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(InvalidUrl::Brackets),
            Some((host, port)) => (name(host).ok_or(InvalidUrl::Host)?, Some(port)),
            None => (name(text).ok_or(InvalidUrl::Host)?, None),
        },
    };
    let port = match explicit {
        Some(text) => number(text).filter(|port| *port > 0).ok_or(InvalidUrl::Port)?,
        None => port,
    };
    Ok(Endpoint::Tcp { host, port })
}

/// A DNS name or an IPv4 address, in lower case.
fn name(text: &str) -> Option<String> {
    let is_valid = (1..=MAX_HOST_LEN).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    is_valid.then(|| text.to_ascii_lowercase())
}

fn master_name(text: &str) -> Result<String, InvalidUrl> {
    let master = decoded(text)?;
    let is_invalid =
        master.is_empty() || master.contains(|c: char| c.is_control() || c.is_whitespace());
    if is_invalid { Err(InvalidUrl::Master) } else { Ok(master) }
}

fn database(text: &str) -> Result<u32, InvalidUrl> {
    number(text).filter(|db| *db <= MAX_DB).ok_or(InvalidUrl::Database)
}

/// Digits only: `parse` alone would accept a sign.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Percent-decodes. A `+` is a plus, and an incomplete sequence is an error.
fn decoded(text: &str) -> Result<String, InvalidUrl> {
    let is_hex = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
    let mut sequences = text.split('%').skip(1).map(|after| after.as_bytes().get(..2));
    if !sequences.all(|digits| digits.is_some_and(is_hex)) {
        return Err(InvalidUrl::Encoding);
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| InvalidUrl::Encoding)
}

/// The parameters that have not been taken yet.
struct QueryParams<'a>(Vec<(&'a str, String)>);

impl<'a> QueryParams<'a> {
    /// The parameters of TLS.
    const TLS: [&'static str; 4] = ["ca", "cert", "key", "server_name"];

    fn read(text: &'a str) -> Result<Self, InvalidUrl> {
        let mut all: Vec<(&str, String)> = Vec::new();
        for part in text.split('&').filter(|_| !text.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(InvalidUrl::Parameter)?;
            if all.iter().any(|(other, _)| *other == name) {
                return Err(InvalidUrl::Repeated);
            }
            if value.is_empty() {
                return Err(InvalidUrl::EmptyParameter);
            }
            all.push((name, decoded(value)?));
        }
        Ok(Self(all))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(other, _)| *other == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// None for a user without a password.
    fn login(&mut self, user: &str, password: &str) -> Option<Login> {
        let login = Login { user: self.take(user), password: self.take(password) };
        (login.user.is_none() || login.password.is_some()).then_some(login)
    }

    fn tls(&mut self) -> Result<TlsSettings, InvalidUrl> {
        let ca = self.take("ca").map(PathBuf::from);
        let identity = match (self.take("cert"), self.take("key")) {
            (Some(cert), Some(key)) => Some(ClientCertFiles { cert: cert.into(), key: key.into() }),
            (None, None) => None,
            _ => return Err(InvalidUrl::HalfIdentity),
        };
        let server_name = match self.take("server_name") {
            Some(text) if text.parse::<Ipv6Addr>().is_ok() => Some(text),
            Some(text) => Some(name(&text).ok_or(InvalidUrl::ServerName)?),
            None => None,
        };
        Ok(TlsSettings { ca, identity, server_name })
    }

    /// Refuses parameters that are left.
    fn end(self, transport: UrlTransport) -> Result<(), InvalidUrl> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) if transport == UrlTransport::Plain && Self::TLS.contains(name) => {
                Err(InvalidUrl::NeedsTls)
            }
            Some(_) => Err(InvalidUrl::Parameter),
        }
    }
}
