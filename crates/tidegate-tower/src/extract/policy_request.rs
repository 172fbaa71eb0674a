//! An HTTP request in the form that policies evaluate.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderMap;
use tidegate::{Cost, policy};

use super::{bearer, cookie, digest, header, query};

/// An HTTP request that a policy evaluates.
#[derive(Clone, Debug)]
pub struct PolicyRequest<'a> {
    /// Headers of the request, from which rules read keys and matches.
    pub headers: &'a HeaderMap,
    /// `GET`, `POST`..; empty if unknown, which no rule with a method matches.
    pub method: &'a str,
    /// The path, normalized by [`normalize_path`](super::normalize_path).
    pub path: Cow<'a, str>,
    /// The raw query, without the `?`.
    pub query: &'a str,
    /// The host, normalized by [`normalize_host`](super::normalize_host).
    pub host: Cow<'a, str>,
    /// The client address.
    pub client_ip: Option<IpAddr>,
    /// Was the request sent by a trusted proxy? Only then do rules read its cost from a header.
    pub is_from_trusted_proxy: bool,
    /// The cost, if it is known; otherwise the rules define it.
    pub cost: Option<Cost>,
}

impl policy::Request for PolicyRequest<'_> {
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
        header(self.headers, name)
    }

    fn any_header(&self, name: &str, test: &dyn Fn(&str) -> bool) -> bool {
        self.headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(test))
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

    fn is_from_trusted_proxy(&self) -> bool {
        self.is_from_trusted_proxy
    }

    fn cost(&self) -> Option<Cost> {
        self.cost
    }
}
