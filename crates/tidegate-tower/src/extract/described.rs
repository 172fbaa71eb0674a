//! A request as a policy is told of it.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderMap;
use tidegate::{Cost, policy};

use super::{bearer, cookie, digest, query};

/// What a policy is told of a request.
#[derive(Clone, Debug)]
pub struct Described<'a> {
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The method.
    pub method: &'a str,
    /// The path, as [`normal_path`](super::normal_path) has it.
    pub path: Cow<'a, str>,
    /// The query as it was written.
    pub query: &'a str,
    /// The host, as [`normal_host`](super::normal_host) has it.
    pub host: Cow<'a, str>,
    /// Where it came from.
    pub client_ip: Option<IpAddr>,
    /// Was it passed on by a proxy that is trusted?
    pub is_vouched_for: bool,
    /// What it costs, if that is known; else the rules say.
    pub cost: Option<Cost>,
}

impl policy::Request for Described<'_> {
    fn method(&self) -> &str {
        self.method
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn host(&self) -> &str {
        &self.host
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn query(&self, name: &str) -> Option<Cow<'_, str>> {
        query(self.query, name)
    }

    fn cookie(&self, name: &str) -> Option<Cow<'_, str>> {
        cookie(self.headers, name).map(Cow::Borrowed)
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        bearer(self.headers).map(|token| digest(token).into())
    }

    fn client_ip(&self) -> Option<IpAddr> {
        self.client_ip
    }

    fn is_vouched_for(&self) -> bool {
        self.is_vouched_for
    }

    fn cost(&self) -> Option<Cost> {
        self.cost
    }
}
