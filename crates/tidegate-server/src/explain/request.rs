//! A request that somebody describes who wants to know what would become of it.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tidegate_tower::extract::{Described, normal_host, normal_path};

/// A request as it is described: `path`, `method`, `host`, `client_ip`, and `header` as often as need be.
#[derive(Clone, Debug)]
pub struct Imagined {
    method: Method,
    path: String,
    query: String,
    host: String,
    client_ip: Option<IpAddr>,
    headers: HeaderMap,
}

/// Which part of a description is wrong, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotARequest {
    /// The part.
    pub field: String,
    /// What to do.
    pub detail: &'static str,
}

impl Imagined {
    /// The most headers that a description has.
    pub const MAX_HEADERS: usize = 64;
    /// What can be told about a request.
    pub const FIELDS: [&'static str; 5] = ["path", "method", "host", "client_ip", "header"];

    /// Reads a description of names and values.
    ///
    /// ```
    /// use tidegate_server::explain::Imagined;
    /// let login = [("path", "/login"), ("method", "POST"), ("header", "x-api-key: k1")];
    /// assert!(Imagined::read(login).is_ok());
    /// assert_eq!(Imagined::read([("method", "GET")]).unwrap_err().field, "path");
    /// ```
    pub fn read<'a>(
        told: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, NotARequest> {
        let mut seen: Vec<&str> = Vec::new();
        let mut request = Self {
            method: Method::GET,
            path: String::new(),
            query: String::new(),
            host: String::new(),
            client_ip: None,
            headers: HeaderMap::new(),
        };
        for (name, value) in told {
            if name != "header" && seen.contains(&name) {
                return Err(NotARequest::new(name, "is there twice"));
            }
            request.take(name, value)?;
            seen.push(name);
        }
        if seen.contains(&"path") {
            Ok(request)
        } else {
            Err(NotARequest::new("path", "is missing; which request?"))
        }
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), NotARequest> {
        let wrong = |detail| NotARequest::new(name, detail);
        match name {
            "path" => {
                if !value.starts_with('/') {
                    return Err(wrong("must begin with a slash"));
                }
                let (path, query) = value.split_once('?').unwrap_or((value, ""));
                self.path = normal_path(path).into_owned();
                self.query = query.to_owned();
            }
            "method" => {
                self.method = value.parse().map_err(|_| wrong("must be a method like POST"))?;
            }
            "host" => {
                let host =
                    normal_host(value).ok_or_else(|| wrong("must be a name or an address"))?;
                self.host = host.into_owned();
            }
            "client_ip" => {
                let address =
                    value.parse().map_err(|_| wrong("must be an address like 1.2.3.4"))?;
                self.client_ip = Some(address);
            }
            "header" => {
                let (name, value) =
                    header(value).ok_or_else(|| wrong("must be like x-api-key: k1"))?;
                if self.headers.len() == Self::MAX_HEADERS {
                    return Err(wrong("must be there 64 times at most"));
                }
                self.headers.append(name, value);
            }
            _ => return Err(wrong("use path, method, host, client_ip and header")),
        }
        Ok(())
    }

    /// As a policy is told of it. A cost that it states counts, as if a trusted proxy had passed it on.
    pub(super) fn described(&self) -> Described<'_> {
        Described {
            headers: &self.headers,
            method: self.method.as_str(),
            path: Cow::Borrowed(&self.path),
            query: &self.query,
            host: Cow::Borrowed(&self.host),
            client_ip: self.client_ip,
            is_vouched_for: true,
            cost: None,
        }
    }
}

impl NotARequest {
    fn new(field: &str, detail: &'static str) -> Self {
        Self { field: field.to_owned(), detail }
    }
}

impl std::fmt::Display for NotARequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.field, self.detail)
    }
}

impl std::error::Error for NotARequest {}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}
