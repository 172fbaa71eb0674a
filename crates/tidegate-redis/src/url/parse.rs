//! Reads addresses, piece by piece.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use super::{Identity, InvalidUrl, Login, RedisUrl, Servers, TlsSettings};
use crate::address::Place;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// The longest name in the DNS.
const MAX_HOST_LEN: usize = 253;
/// Redis counts its databases in an `int`.
const MAX_DB: u32 = i32::MAX as u32;

pub(super) fn url(text: &str) -> Result<RedisUrl, InvalidUrl> {
    if text.len() > RedisUrl::MAX_LEN {
        return Err(InvalidUrl::TooLong);
    }
    let (scheme, rest) = text.split_once("://").ok_or(InvalidUrl::Scheme)?;
    match scheme {
        "unix" | "redis+unix" => socket(rest),
        "redis" => network(rest, Arrangement::One, Security::Plain),
        "rediss" => network(rest, Arrangement::One, Security::Tls),
        "redis-sentinel" => network(rest, Arrangement::Sentinel, Security::Plain),
        "rediss-sentinel" => network(rest, Arrangement::Sentinel, Security::Tls),
        "redis-cluster" => network(rest, Arrangement::Cluster, Security::Plain),
        "rediss-cluster" => network(rest, Arrangement::Cluster, Security::Tls),
        _ => Err(InvalidUrl::Scheme),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrangement {
    One,
    Sentinel,
    Cluster,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Security {
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
    let mut query = Query::read(query)?;
    let db = query.take("db").as_deref().map_or(Ok(0), database)?;
    let login = query.login("user", "password").ok_or(InvalidUrl::Login)?;
    query.end(Security::Plain)?;
    Ok(RedisUrl { servers: Servers::One(Place::Unix(path.into())), login, db, tls: None })
}

/// `[user:password@]host[:port][,..][/master][/db][?..]`
fn network(
    rest: &str,
    arrangement: Arrangement,
    security: Security,
) -> Result<RedisUrl, InvalidUrl> {
    let (authority, behind) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // A password with a slash would have its end taken for a name, and shown.
    if behind.contains('@') {
        return Err(InvalidUrl::StrayAt);
    }
    let (path, query) = behind.split_once('?').unwrap_or((behind, ""));
    let path = path.strip_prefix('/').unwrap_or(path);
    // The last one: a password may have one.
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((text, hosts)) => (login(text)?, hosts),
        None => (Login::default(), authority),
    };
    let port = if arrangement == Arrangement::Sentinel { SENTINEL_PORT } else { REDIS_PORT };
    let mut places = places(hosts, port)?;
    let mut query = Query::read(query)?;
    let tls = match security {
        Security::Plain => None,
        Security::Tls => Some(query.tls()?),
    };
    let (servers, db) = match arrangement {
        Arrangement::One => {
            let place = places.pop().filter(|_| places.is_empty());
            (Servers::One(place.ok_or(InvalidUrl::SeveralHosts)?), path)
        }
        Arrangement::Sentinel => {
            let (master, db) = path.split_once('/').unwrap_or((path, ""));
            let login = query.login("sentinel_user", "sentinel_password");
            let login = login.ok_or(InvalidUrl::SentinelLogin)?;
            (Servers::Sentinel { places, master: master_name(master)?, login }, db)
        }
        Arrangement::Cluster => (Servers::Cluster(places), path),
    };
    query.end(security)?;
    let db = if db.is_empty() { 0 } else { database(db)? };
    if arrangement == Arrangement::Cluster && db != 0 {
        return Err(InvalidUrl::ClusterDatabase);
    }
    Ok(RedisUrl { servers, login, db, tls })
}

/// `user:password` or `:password`. Whoever wrote no colon may have meant either of them.
fn login(text: &str) -> Result<Login, InvalidUrl> {
    let (user, password) = text.split_once(':').ok_or(InvalidUrl::Login)?;
    if user.is_empty() && password.is_empty() {
        return Err(InvalidUrl::Login);
    }
    let user = (!user.is_empty()).then(|| decoded(user)).transpose()?;
    Ok(Login { user, password: Some(decoded(password)?) })
}

fn places(hosts: &str, port: u16) -> Result<Vec<Place>, InvalidUrl> {
    if hosts.split(',').count() > RedisUrl::MAX_HOSTS {
        return Err(InvalidUrl::TooManyHosts);
    }
    hosts.split(',').map(|host| place(host, port)).collect()
}

fn place(text: &str, port: u16) -> Result<Place, InvalidUrl> {
    let (host, written) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(InvalidUrl::Brackets)?;
            let address: Ipv6Addr = host.parse().map_err(|_| InvalidUrl::Brackets)?;
            let written = match rest.strip_prefix(':') {
                Some(port) => Some(port),
                None if rest.is_empty() => None,
                None => return Err(InvalidUrl::Brackets),
            };
            (address.to_string(), written)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(InvalidUrl::Brackets),
            Some((host, port)) => (name(host).ok_or(InvalidUrl::Host)?, Some(port)),
            None => (name(text).ok_or(InvalidUrl::Host)?, None),
        },
    };
    let port = match written {
        Some(text) => number(text).filter(|port| *port > 0).ok_or(InvalidUrl::Port)?,
        None => port,
    };
    Ok(Place::Tcp { host, port })
}

/// A name of the DNS, or an IPv4 address, in small letters.
fn name(text: &str) -> Option<String> {
    let good = (1..=MAX_HOST_LEN).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    good.then(|| text.to_ascii_lowercase())
}

fn master_name(text: &str) -> Result<String, InvalidUrl> {
    let master = decoded(text)?;
    let bad = master.is_empty() || master.contains(|c: char| c.is_control() || c.is_whitespace());
    if bad { Err(InvalidUrl::Master) } else { Ok(master) }
}

fn database(text: &str) -> Result<u32, InvalidUrl> {
    number(text).filter(|db| *db <= MAX_DB).ok_or(InvalidUrl::Database)
}

/// Digits and nothing else: `parse` alone would take a sign.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Percent-decoded. A `+` is a plus.
fn decoded(text: &str) -> Result<String, InvalidUrl> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(InvalidUrl::Encoding);
        };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| InvalidUrl::Encoding)?);
    }
    String::from_utf8(bytes).map_err(|_| InvalidUrl::Encoding)
}

/// The parameters that nobody has taken yet.
struct Query<'a>(Vec<(&'a str, String)>);

impl<'a> Query<'a> {
    /// What only TLS has.
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
            (Some(cert), Some(key)) => Some(Identity { cert: cert.into(), key: key.into() }),
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

    /// Nothing may be left.
    fn end(self, security: Security) -> Result<(), InvalidUrl> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) if security == Security::Plain && Self::TLS.contains(name) => {
                Err(InvalidUrl::NeedsTls)
            }
            Some(_) => Err(InvalidUrl::Parameter),
        }
    }
}
