//! One line of a log as a request.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use tidegate::{Cost, Micros, policy};
use tidegate_tower::extract::{
    TrustedProxies, bearer, cookie, digest, normal_host, normal_path, query,
};

/// What a line tells.
#[derive(Default, Debug)]
pub(super) struct Entry<'a> {
    pub(super) at: Option<Micros>,
    pub(super) method: Cow<'a, str>,
    target: Target<'a>,
    host: Option<Cow<'a, str>>,
    pub(super) from: Option<Origin>,
    /// Names in lower case.
    headers: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 4]>,
    pub(super) cost: Option<Cost>,
}

/// Where a request came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// Whoever called the server that wrote the log: perhaps a proxy.
    Peer(IpAddr),
    /// The client, found out by somebody else.
    Client(IpAddr),
}

/// What was asked for.
#[derive(Default, Debug)]
struct Target<'a> {
    path: Cow<'a, str>,
    query: Cow<'a, str>,
}

/// What is wrong with a line.
pub(super) type Fault = &'static str;

/// The most headers of a line; those behind them are left out.
const MAX_HEADERS: usize = 64;

impl<'a> Entry<'a> {
    /// A request of this instant.
    pub(super) fn new(at: Micros) -> Self {
        Self { at: Some(at), ..Self::default() }
    }

    /// Sets path, query and, if the target is a whole address, host.
    pub(super) fn set_target(&mut self, target: Cow<'a, str>) -> Result<(), Fault> {
        self.target = match target {
            Cow::Borrowed(text) => self.split(text)?,
            Cow::Owned(text) => {
                let mut owned = Entry::default();
                let Target { path, query } = owned.split(&text)?;
                let target = Target { path: own(path), query: own(query) };
                if let Some(host) = owned.host {
                    self.host.get_or_insert(own(host));
                }
                target
            }
        };
        Ok(())
    }

    fn split(&mut self, text: &'a str) -> Result<Target<'a>, Fault> {
        let before_fragment = text.split('#').next().unwrap_or(text);
        let (mut path, query) = before_fragment.split_once('?').unwrap_or((before_fragment, ""));
        if !path.starts_with('/') && path != "*" {
            let (_, rest) = path.split_once("://").ok_or("what was asked for is no path")?;
            let (authority, below) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            self.set_host(authority.rsplit('@').next().unwrap_or(authority));
            path = below;
        }
        Ok(Target { path: normal_path(path), query: query.into() })
    }

    /// The host, unless it is none or known already.
    pub(super) fn set_host(&mut self, host: &'a str) {
        if self.host.is_none() {
            self.host = normal_host(host);
        }
    }

    pub(super) fn set_owned_host(&mut self, host: Cow<'a, str>) {
        match host {
            Cow::Borrowed(host) => self.set_host(host),
            Cow::Owned(host) => self.host = self.host.take().or(normal_host(&host).map(own)),
        }
    }

    /// Adds a header; its name is to be in lower case.
    pub(super) fn push_header(&mut self, name: impl Into<Cow<'a, str>>, value: Cow<'a, str>) {
        if self.headers.len() < MAX_HEADERS {
            self.headers.push((name.into(), value));
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.target.path
    }

    /// The header of this name. What no server would take for a value is missing.
    fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| *known == name)?;
        let is_value = value.bytes().all(|b| b == b'\t' || (b' '..0x7f).contains(&b));
        is_value.then_some(&**value)
    }

    /// The header alone among headers, for those who look for something in them.
    fn among_headers(&self, name: &HeaderName) -> HeaderMap {
        let value = self.header(name.as_str()).and_then(|value| HeaderValue::from_str(value).ok());
        value.map(|value| (name.clone(), value)).into_iter().collect()
    }

    /// The request as it looks to somebody who trusts these proxies.
    pub(super) fn seen_behind<'s>(&'s self, trusted: &TrustedProxies) -> Seen<'s, 'a> {
        static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
        let (client_ip, is_vouched_for) = match self.from {
            Some(Origin::Client(ip)) => (Some(ip), trusted.contains(ip)),
            Some(Origin::Peer(ip)) if trusted.contains(ip) => {
                (Some(trusted.client_ip(ip, &self.among_headers(&FORWARDED_FOR))), true)
            }
            Some(Origin::Peer(ip)) => (Some(ip.to_canonical()), false),
            None => (None, false),
        };
        Seen { entry: self, client_ip, is_vouched_for }
    }
}

/// An address with or without brackets and port.
pub(super) fn address(text: &str) -> Option<IpAddr> {
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
pub(super) struct Seen<'s, 'a> {
    entry: &'s Entry<'a>,
    client_ip: Option<IpAddr>,
    is_vouched_for: bool,
}

impl policy::Request for Seen<'_, '_> {
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
        let headers = self.entry.among_headers(&COOKIE);
        cookie(&headers, name).map(|value| Cow::Owned(value.to_string()))
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        bearer(&self.entry.among_headers(&AUTHORIZATION)).map(|token| digest(token).into())
    }

    fn client_ip(&self) -> Option<IpAddr> {
        self.client_ip
    }

    fn is_vouched_for(&self) -> bool {
        self.is_vouched_for
    }

    fn cost(&self) -> Option<Cost> {
        self.entry.cost
    }
}
