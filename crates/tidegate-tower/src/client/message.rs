//! What the layer reads of a request and of its response.

use std::borrow::Cow;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, Method, StatusCode, Uri};

use crate::extract::normalize_host;

/// A request whose head can be read before it is sent.
pub trait HttpRequest {
    /// Method, URI and headers.
    fn head(&self) -> Head<'_>;
}

/// A response whose head can be read when it arrives.
pub trait HttpResponse {
    /// The status; 429 and 503 can start a pause.
    fn status(&self) -> StatusCode;

    /// The headers, from which the time to retry is read.
    fn headers(&self) -> &HeaderMap;
}

/// Method, URI and headers of an outgoing request.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    method: &'a Method,
    uri: Cow<'a, Uri>,
    headers: &'a HeaderMap,
}

impl<'a> Head<'a> {
    /// The head of a request.
    pub fn new(method: &'a Method, uri: &'a Uri, headers: &'a HeaderMap) -> Self {
        Self { method, uri: Cow::Borrowed(uri), headers }
    }

    /// The method.
    pub fn method(&self) -> &Method {
        self.method
    }

    /// The URI.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        self.headers
    }

    /// The upstream: the host in lower case, and the port unless it is the default of the scheme.
    /// This is the default key.
    ///
    /// Without a host in the URI, the `Host` header is used. Without either it is empty: such a
    /// client has one fixed upstream, as a gRPC channel does, and its calls share one key.
    ///
    /// ```
    /// use http::Request;
    /// use tidegate_tower::client::HttpRequest;
    /// let request = Request::get("https://API.example.com:443/items").body(())?;
    /// assert_eq!(request.head().authority(), "api.example.com");
    /// # Ok::<(), http::Error>(())
    /// ```
    pub fn authority(&self) -> String {
        let usual_port = match self.uri.scheme_str() {
            Some("http" | "ws") => Some(80),
            Some("https" | "wss") => Some(443),
            _ => None,
        };
        let from_header = || self.headers.get(HOST)?.to_str().ok()?.parse().ok();
        let authority: Option<Cow<'_, Authority>> =
            self.uri.authority().map(Cow::Borrowed).or_else(|| from_header().map(Cow::Owned));
        let Some(authority) = authority else { return String::new() };
        let host = authority.host();
        let host = normalize_host(host).map_or_else(|| host.to_ascii_lowercase(), Cow::into_owned);
        match authority.port_u16().filter(|port| Some(*port) != usual_port) {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }
}

impl<B> HttpRequest for http::Request<B> {
    fn head(&self) -> Head<'_> {
        Head::new(self.method(), self.uri(), self.headers())
    }
}

impl<B> HttpResponse for http::Response<B> {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

#[cfg(feature = "reqwest")]
impl HttpRequest for reqwest::Request {
    fn head(&self) -> Head<'_> {
        // A URL that `http` cannot parse cannot be sent either; reqwest will return an error.
        let uri = self.url().as_str().parse().unwrap_or_default();
        Head { method: self.method(), uri: Cow::Owned(uri), headers: self.headers() }
    }
}

#[cfg(feature = "reqwest")]
impl HttpResponse for reqwest::Response {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_one_upstream_are_one_key() {
        for (uri, host, authority) in [
            ("http://Example.COM/", None, "example.com"),
            ("http://example.com.:80/a?b", None, "example.com"),
            ("https://example.com:443", None, "example.com"),
            ("https://example.com:80", None, "example.com:80"),
            ("http://example.com:443", None, "example.com:443"),
            ("http://user:pw@example.com:8080/", None, "example.com:8080"),
            ("http://example.com:/", None, "example.com"),
            ("wss://example.com:443", None, "example.com"),
            ("http://[::1]:8080/", None, "[::1]:8080"),
            ("http://127.0.0.1:3000/", Some("example.com"), "127.0.0.1:3000"),
            ("/path", Some("Example.com:8080"), "example.com:8080"),
            ("/path", Some("no host\"at all"), ""),
            ("/path", None, ""),
            ("example.com:443", None, "example.com:443"),
            ("other://example.com:1/", None, "example.com:1"),
        ] {
            let mut request = http::Request::get(uri).body(()).unwrap();
            if let Some(host) = host {
                request.headers_mut().insert(HOST, host.parse().unwrap());
            }
            assert_eq!(request.head().authority(), authority, "{uri} {host:?}");
        }
    }

    #[cfg(feature = "reqwest")]
    #[test]
    fn a_request_of_reqwest_has_the_same_key() {
        for (url, authority) in [
            ("http://Example.COM:80/a#fragment", "example.com"),
            ("https://example.com:8443/?q=%20", "example.com:8443"),
            ("http://bücher.example/", "xn--bcher-kva.example"),
            ("data:text/plain,hello", ""),
        ] {
            let request = reqwest::Request::new(Method::GET, url.parse().unwrap());
            assert_eq!(request.head().authority(), authority, "{url}");
        }
    }
}
