//! A request described by name and value, for explanations.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tidegate_tower::extract::{PolicyRequest, normalize_host, normalize_path};

/// A described request: `path`, `method`, `host`, `client_ip`, and any number of `header`s up to
/// [`DescribedRequest::MAX_HEADERS`].
#[derive(Clone, Debug)]
pub struct DescribedRequest {
    method: Method,
    path: String,
    query: String,
    host: String,
    client_ip: Option<IpAddr>,
    headers: HeaderMap,
}

/// A field of a description that is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidRequest {
    /// The name of the field.
    pub field: String,
    /// What is wrong, or what to write instead.
    pub detail: &'static str,
}

impl DescribedRequest {
    /// The maximum number of headers in a description.
    pub const MAX_HEADERS: usize = 64;
    /// The names that a description can have.
    pub const FIELDS: [&'static str; 5] = ["path", "method", "host", "client_ip", "header"];

    /// Reads a description from names and values. `path` is required.
    ///
    /// ```
    /// use tidegate_server::internal::check::explain::DescribedRequest;
    /// let login = [("path", "/login"), ("method", "POST"), ("header", "x-api-key: k1")];
    /// assert!(DescribedRequest::read(login).is_ok());
    /// assert_eq!(DescribedRequest::read([("method", "GET")]).unwrap_err().field, "path");
    /// ```
    pub fn read<'a>(
        fields: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, InvalidRequest> {
        let mut seen: Vec<&str> = Vec::new();
        let mut request = Self {
            method: Method::GET,
            path: String::new(),
            query: String::new(),
            host: String::new(),
            client_ip: None,
            headers: HeaderMap::new(),
        };
        for (name, value) in fields {
            if name != "header" && seen.contains(&name) {
                return Err(InvalidRequest::new(name, "is given twice"));
            }
            request.take(name, value)?;
            seen.push(name);
        }
        if seen.contains(&"path") {
            Ok(request)
        } else {
            Err(InvalidRequest::new("path", "is required: describe the request or name a rule"))
        }
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), InvalidRequest> {
        let wrong = |detail| InvalidRequest::new(name, detail);
        match name {
            "path" => {
                if !value.starts_with('/') {
                    return Err(wrong("must begin with a slash"));
                }
                let (path, query) = value.split_once('?').unwrap_or((value, ""));
                self.path = normalize_path(path).into_owned();
                self.query = query.to_owned();
            }
            "method" => {
                self.method = value.parse().map_err(|_| wrong("must be a method like POST"))?;
            }
            "host" => {
                let host =
                    normalize_host(value).ok_or_else(|| wrong("must be a name or an address"))?;
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
                    return Err(wrong("is given more than 64 times"));
                }
                self.headers.append(name, value);
            }
            _ => return Err(wrong("use path, method, host, client_ip and header")),
        }
        Ok(())
    }

    /// The request as the policy sees it. A cost in a header counts, as if it came from a trusted
    /// proxy.
    pub(crate) fn described(&self) -> PolicyRequest<'_> {
        PolicyRequest {
            headers: &self.headers,
            method: self.method.as_str(),
            path: Cow::Borrowed(&self.path),
            query: &self.query,
            host: Cow::Borrowed(&self.host),
            client_ip: self.client_ip,
            is_from_trusted_proxy: true,
            cost: None,
        }
    }
}

impl InvalidRequest {
    fn new(field: &str, detail: &'static str) -> Self {
        Self { field: field.to_owned(), detail }
    }
}

impl std::fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.field, self.detail)
    }
}

impl std::error::Error for InvalidRequest {}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}
