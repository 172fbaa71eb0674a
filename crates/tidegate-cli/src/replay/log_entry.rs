//! One log line as a request.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use tidegate::{Cost, Micros, policy};
use tidegate_tower::extract::{
    TrustedProxies, bearer, cookie, digest, normalize_host, normalize_path, query,
};

#[derive(Default, Debug)]
pub(crate) struct AccessLogEntry<'a> {
    pub(crate) at: Option<Micros>,
    pub(crate) method: Cow<'a, str>,
    target: LoggedTarget<'a>,
    host: Option<Cow<'a, str>>,
    pub(crate) from: Option<ClientOrigin>,
    /// Names in lower case.
    headers: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 4]>,
    pub(crate) cost: Option<Cost>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientOrigin {
    /// Peer of the server that wrote the log; may be a proxy.
    Peer(IpAddr),
    /// Client address as determined by the server.
    Client(IpAddr),
}

/// Request target (RFC 9110).
#[derive(Default, Debug)]
struct LoggedTarget<'a> {
    path: Cow<'a, str>,
    query: Cow<'a, str>,
}

/// Why a line is malformed.
pub(crate) type LineError = &'static str;

/// Further headers of a line are ignored.
const MAX_HEADERS: usize = 64;

impl<'a> AccessLogEntry<'a> {
    pub(crate) fn new(at: Micros) -> Self {
        Self { at: Some(at), ..Self::default() }
    }

    /// Sets path, query and, if the target is a URL, the host.
    pub(crate) fn set_target(&mut self, target: Cow<'a, str>) -> Result<(), LineError> {
        self.target = match target {
            Cow::Borrowed(text) => self.split(text)?,
            Cow::Owned(text) => {
                let mut owned = AccessLogEntry::default();
                let LoggedTarget { path, query } = owned.split(&text)?;
                let target = LoggedTarget { path: own(path), query: own(query) };
                if let Some(host) = owned.host {
                    self.host.get_or_insert(own(host));
                }
                target
            }
        };
        Ok(())
    }

    fn split(&mut self, text: &'a str) -> Result<LoggedTarget<'a>, LineError> {
        let before_fragment = text.split('#').next().unwrap_or(text);
        let (mut path, query) = before_fragment.split_once('?').unwrap_or((before_fragment, ""));
        if !path.starts_with('/') && path != "*" {
            let (_, rest) = path.split_once("://").ok_or("the request target is not a path")?;
            let (authority, below) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            self.set_host(authority.rsplit('@').next().unwrap_or(authority));
            path = below;
        }
        Ok(LoggedTarget { path: normalize_path(path), query: query.into() })
    }

    /// Ignored if the host is invalid or already set.
    pub(crate) fn set_host(&mut self, host: &'a str) {
        if self.host.is_none() {
            self.host = normalize_host(host);
        }
    }

    pub(crate) fn set_owned_host(&mut self, host: Cow<'a, str>) {
        match host {
            Cow::Borrowed(host) => self.set_host(host),
            Cow::Owned(host) => self.host = self.host.take().or(normalize_host(&host).map(own)),
        }
    }

    /// `name` must be in lower case.
    pub(crate) fn push_header(&mut self, name: impl Into<Cow<'a, str>>, value: Cow<'a, str>) {
        if self.headers.len() < MAX_HEADERS {
            self.headers.push((name.into(), value));
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.target.path
    }

    /// `None` if the value is not valid in HTTP.
    fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| *known == name)?;
        let is_value = value.bytes().all(|b| b == b'\t' || (b' '..0x7f).contains(&b));
        is_value.then_some(&**value)
    }

    /// A map with only this header, for functions that take a map.
    fn header_map(&self, name: &HeaderName) -> HeaderMap {
        let value = self.header(name.as_str()).and_then(|value| HeaderValue::from_str(value).ok());
        value.map(|value| (name.clone(), value)).into_iter().collect()
    }

    /// The request as a server with these trusted proxies sees it.
    pub(crate) fn request_behind<'s>(&'s self, trusted: &TrustedProxies) -> LogRequest<'s, 'a> {
        static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
        let (client_ip, is_from_trusted_proxy) = match self.from {
            Some(ClientOrigin::Client(ip)) => (Some(ip), trusted.contains(ip)),
            Some(ClientOrigin::Peer(ip)) if trusted.contains(ip) => {
                (Some(trusted.client_ip(ip, &self.header_map(&FORWARDED_FOR))), true)
            }
            Some(ClientOrigin::Peer(ip)) => (Some(ip.to_canonical()), false),
            None => (None, false),
        };
        LogRequest { entry: self, client_ip, is_from_trusted_proxy }
    }
}

/// An address with or without brackets and port.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let bracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match bracketed {
        Some(v6) => v6.parse().ok(),
        None => text.parse::<SocketAddr>().ok().map(|address| address.ip()),
    }
}

fn own<'b>(text: Cow<'_, str>) -> Cow<'b, str> {
    Cow::Owned(text.into_owned())
}

/// A request as a policy sees it.
pub(crate) struct LogRequest<'s, 'a> {
    entry: &'s AccessLogEntry<'a>,
    client_ip: Option<IpAddr>,
    is_from_trusted_proxy: bool,
}

impl policy::Request for LogRequest<'_, '_> {
    fn method(&self) -> &str {
        &self.entry.method
    }

    fn path(&self) -> &str {
        self.entry.path()
    }

    fn host(&self) -> &str {
        self.entry.host.as_deref().unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.entry.header(name)
    }

    fn query(&self, name: &str) -> Option<Cow<'_, str>> {
        query(&self.entry.target.query, name)
    }

    fn cookie(&self, name: &str) -> Option<Cow<'_, str>> {
        let headers = self.entry.header_map(&COOKIE);
        cookie(&headers, name).map(|value| Cow::Owned(value.to_string()))
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        bearer(&self.entry.header_map(&AUTHORIZATION)).map(|token| digest(token).into())
    }

    fn client_ip(&self) -> Option<IpAddr> {
        self.client_ip
    }

    fn is_from_trusted_proxy(&self) -> bool {
        self.is_from_trusted_proxy
    }

    fn cost(&self) -> Option<Cost> {
        self.entry.cost
    }
}
