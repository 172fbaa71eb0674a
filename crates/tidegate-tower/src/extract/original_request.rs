//! The original request that a forward-auth proxy describes in headers.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::{normalize_host, normalize_path, text};

/// The request that a proxy wants to have authorized before it passes it on.
///
/// It is read from `X-Forwarded-Method`, `-Uri` and `-Host` (Caddy, Traefik). Each of them that is
/// missing is read from `X-Original-Method`, `X-Original-URI` or `X-Original-URL`, and
/// `X-Original-Host` (nginx). A header that does not parse counts as missing. Of several lines, and
/// of a list of hosts, the last is used: the nearest proxy wrote it. Lines that differ are a
/// [`contradiction`](OriginalRequest::contradiction).
///
/// # The proxy has to set these headers
///
/// A client can set every header that the proxy does not set. A proxy that sets only the
/// `X-Original-*` headers must remove the three `X-Forwarded-*` headers, which take precedence: in
/// nginx, `proxy_set_header X-Forwarded-Uri "";` and so on.
/// [`contradiction`](OriginalRequest::contradiction) detects a proxy that does not.
///
/// ```
/// use tidegate_tower::extract::OriginalRequest;
/// let mut headers = http::HeaderMap::new();
/// headers.insert("x-original-url", "https://Shop.example/a/../login?next=/".parse()?);
/// let request = OriginalRequest::new(&headers);
/// assert_eq!(request.host.as_deref(), Some("shop.example"));
/// assert_eq!(request.path.as_deref(), Some("/login"));
/// assert_eq!(request.query, Some("next=/"));
/// assert_eq!(request.method, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OriginalRequest<'a> {
    /// The method.
    pub method: Option<Method>,
    /// The path, normalized by [`normalize_path`].
    pub path: Option<Cow<'a, str>>,
    /// The query as it was sent, without the `?`.
    pub query: Option<&'a str>,
    /// The host, normalized by [`normalize_host`]: from its own header, otherwise from a full URL.
    pub host: Option<Cow<'a, str>>,
}

impl<'a> OriginalRequest<'a> {
    /// Reads the headers.
    pub fn new(headers: &'a HeaderMap) -> Self {
        let method = first(headers, &METHOD, |text| Method::from_bytes(text.as_bytes()).ok());
        let target = first(headers, &TARGET, RequestTarget::parse);
        let host = first(headers, &HOST, |text| normalize_host(last_of_list(text)));
        let host = host.or_else(|| target.as_ref().and_then(|target| normalize_host(target.host?)));
        let (path, query) = match target {
            Some(target) => (Some(normalize_path(target.path)), target.query),
            None => (None, None),
        };
        Self { method, path, query, host }
    }

    /// Two headers, or two lines of one header, that contradict each other about one request, if
    /// there are any.
    ///
    /// A proxy sets one family of headers, and a client can add the other, or another line. Here
    /// they cannot be distinguished, so such a request is best refused.
    pub fn contradiction(headers: &HeaderMap) -> Option<[&'static str; 2]> {
        let method = claims(headers, &METHOD, |text| Some(text.into()));
        let target = claims(headers, &TARGET, |text| {
            Some(RequestTarget::parse(text)?.path_and_query().into())
        });
        let mut host = claims(headers, &HOST, |text| normalize_host(last_of_list(text)));
        host.extend(claims(headers, &TARGET, |text| {
            normalize_host(RequestTarget::parse(text)?.host?)
        }));
        clash(&method).or_else(|| clash(&target)).or_else(|| clash(&host))
    }
}

static METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
static TARGET: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-url"),
];
static HOST: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-host"), HeaderName::from_static("x-original-host")];

/// The first of these headers whose last line parses.
fn first<'a, T>(
    headers: &'a HeaderMap,
    names: &[HeaderName],
    parse: impl Fn(&'a str) -> Option<T>,
) -> Option<T> {
    names.iter().find_map(|name| {
        let line = headers.get_all(name).iter().next_back()?;
        text(line.as_bytes().trim_ascii()).and_then(&parse)
    })
}

/// The name of a header and the parsed value of one of its lines.
type HeaderClaim<'a> = (&'static str, Cow<'a, str>);

/// The parsed values of all lines of these headers; lines that do not parse are left out.
fn claims<'a>(
    headers: &'a HeaderMap,
    names: &'static [HeaderName],
    parse: impl Fn(&'a str) -> Option<Cow<'a, str>>,
) -> Vec<HeaderClaim<'a>> {
    let lines = names.iter().flat_map(|name| headers.get_all(name).iter().map(move |l| (name, l)));
    let read = |(name, line): (&'static HeaderName, &'a HeaderValue)| {
        let value = text(line.as_bytes().trim_ascii()).and_then(&parse)?;
        Some((name.as_str(), value))
    };
    lines.filter_map(read).collect()
}

/// The names of two lines with different values.
fn clash(claims: &[HeaderClaim<'_>]) -> Option<[&'static str; 2]> {
    claims.iter().find_map(|(one, this)| {
        let (other, _) = claims.iter().find(|(_, that)| this != that)?;
        Some([*one, *other])
    })
}

fn last_of_list(list: &str) -> &str {
    list.rsplit(',').next().unwrap_or(list).trim_matches([' ', '\t'])
}

/// The target of a request: path and query, optionally with a host.
struct RequestTarget<'a> {
    host: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> RequestTarget<'a> {
    fn parse(uri: &'a str) -> Option<Self> {
        let (uri, _fragment) = split_off(uri, '#');
        let (before, query) = split_off(uri, '?');
        if before.starts_with('/') || before == "*" {
            return Some(Self { host: None, path: before, query });
        }
        let (scheme, rest) = before.split_once("://")?;
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit('@').next();
        is_scheme.then_some(Self { host, path, query })
    }

    /// Path and query, without the host.
    fn path_and_query(&self) -> String {
        format!("{}?{}", normalize_path(self.path), self.query.unwrap_or_default())
    }
}

fn split_off(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, after)| (before, Some(after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &[u8])]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &[u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(line) {
            headers.append(name, value);
        }
        headers
    }

    /// Method, path, query and host, with `-` for what is missing.
    fn read(lines: &[(&'static str, &[u8])]) -> String {
        let headers = headers(lines);
        let request = OriginalRequest::new(&headers);
        let method = request.method.as_ref().map(Method::as_str);
        [method, request.path.as_deref(), request.query, request.host.as_deref()]
            .map(|part| part.unwrap_or("-"))
            .join(" ")
    }

    #[test]
    fn either_family_of_headers_describes_the_request_and_forwarded_wins() {
        for (lines, request) in [
            (&[][..], "- - - -"),
            (
                &[
                    ("x-forwarded-method", b"POST".as_slice()),
                    ("x-forwarded-uri", b"/login?a=b"),
                    ("x-forwarded-host", b"Example.com:443"),
                ],
                "POST /login a=b example.com",
            ),
            (
                &[
                    ("x-original-method", b"PUT"),
                    ("x-original-uri", b"//a/./b?"),
                    ("x-original-host", b"b.example"),
                ],
                "PUT /a/b  b.example",
            ),
            (&[("x-original-url", b"https://c.example:8443/x/%6c?q")], "- /x/l q c.example"),
            (
                &[
                    ("x-forwarded-method", b"POST"),
                    ("x-original-method", b"GET"),
                    ("x-forwarded-uri", b"/new"),
                    ("x-original-uri", b"/old?q"),
                    ("x-original-url", b"https://old/older"),
                    ("x-forwarded-host", b"new"),
                    ("x-original-host", b"old"),
                ],
                "POST /new - new",
            ),
            (&[("x-original-uri", b"/uri"), ("x-original-url", b"http://h/url")], "- /uri - -"),
            (&[("x-forwarded-method", b"GET"), ("x-original-uri", b"/mixed")], "GET /mixed - -"),
            (&[("x-original-host", b"own"), ("x-original-url", b"http://url/")], "- / - own"),
        ] {
            assert_eq!(read(lines), request, "{lines:?}");
        }
    }

    #[test]
    fn the_last_line_and_the_last_of_a_list_are_the_proxys() {
        for (lines, request) in [
            (
                [("x-forwarded-uri", b"/spoofed".as_slice()), ("x-forwarded-uri", b"/real")],
                "- /real - -",
            ),
            (
                [("x-forwarded-host", b"spoofed"), ("x-forwarded-host", b"spoofed, real")],
                "- - - real",
            ),
            ([("x-forwarded-method", b"GET"), ("x-forwarded-method", b"POST")], "POST - - -"),
        ] {
            assert_eq!(read(&lines), request, "{lines:?}");
        }
    }

    #[test]
    fn a_full_url_gives_its_host_and_path() {
        for (uri, request) in [
            ("http://h", "- / - h"),
            ("http://h?q", "- / q h"),
            ("http://h/#f", "- / - h"),
            ("/a#f?x", "- /a - -"),
            ("/a?x#f", "- /a x -"),
            ("/a?http://b/", "- /a http://b/ -"),
            ("//h/a", "- /h/a - -"),
            ("http://user:pw@h:80/a", "- /a - h"),
            ("http://[::1]:80/a", "- /a - [::1]"),
            ("http:///a", "- /a - -"),
            ("http://h\\x/a", "- /a - -"),
            ("*", "- * - -"),
        ] {
            assert_eq!(read(&[("x-forwarded-uri", uri.as_bytes())]), request, "{uri}");
        }
    }

    #[test]
    fn malformed_headers_are_missing() {
        for (name, value) in [
            ("x-forwarded-method", b"".as_slice()),
            ("x-forwarded-method", b"GE T"),
            ("x-forwarded-method", b"GET, POST"),
            ("x-forwarded-method", b"\xff"),
            ("x-forwarded-uri", b""),
            ("x-forwarded-uri", b"login"),
            ("x-forwarded-uri", b"?a=b"),
            ("x-forwarded-uri", b"://h/a"),
            ("x-forwarded-uri", b"1http://h/a"),
            ("x-forwarded-uri", b"ht tp://h/a"),
            ("x-forwarded-uri", b"/a\tb"),
            ("x-forwarded-uri", b"/\xff"),
            ("x-forwarded-uri", b"/\xc2\x80"),
            ("x-forwarded-host", b""),
            ("x-forwarded-host", b"a b"),
            ("x-forwarded-host", b"a,"),
            ("x-forwarded-host", b"a/b"),
            ("x-forwarded-host", b"\xff"),
        ] {
            assert_eq!(read(&[(name, value)]), "- - - -", "{name}: {value:?}");
        }
        let fallback = [("x-forwarded-uri", b"\xff".as_slice()), ("x-original-uri", b"/a")];
        assert_eq!(read(&fallback), "- /a - -");
    }

    #[test]
    fn headers_with_different_values_are_a_contradiction() {
        for (lines, clash) in [
            (&[("x-forwarded-uri", "/a"), ("x-original-uri", "/a")][..], false),
            (&[("x-forwarded-uri", "/a"), ("x-original-uri", "/b")], true),
            (&[("x-forwarded-uri", "/a"), ("x-original-uri", "/A")], true),
            (&[("x-forwarded-uri", "/a?x"), ("x-original-uri", "/a?y")], true),
            (&[("x-forwarded-uri", "/a?"), ("x-original-uri", "/%61")], false),
            (&[("x-forwarded-uri", "/a"), ("x-original-url", "http://h/a")], false),
            (&[("x-forwarded-uri", "/a"), ("x-original-url", "http://h/b/a")], true),
            (&[("x-original-uri", "/a"), ("x-original-url", "http://h/b")], true),
            // Which of the lines is used does not matter: the proxy did not write all of them.
            (
                &[("x-forwarded-uri", "/b"), ("x-forwarded-uri", "/a"), ("x-original-uri", "/b")],
                true,
            ),
            (
                &[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b"), ("x-original-uri", "/b")],
                true,
            ),
            (&[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b")], true),
            (&[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/%61")], false),
            (&[("x-forwarded-method", "GET"), ("x-forwarded-method", "POST")], true),
            (&[("x-forwarded-host", "a"), ("x-forwarded-host", "h")], true),
            (&[("x-forwarded-method", "GET"), ("x-original-method", "GET")], false),
            (&[("x-forwarded-method", "GET"), ("x-original-method", "POST")], true),
            (&[("x-forwarded-host", "H:80"), ("x-original-host", "h")], false),
            (&[("x-forwarded-host", "a, h"), ("x-original-host", "h")], false),
            (&[("x-forwarded-host", "a"), ("x-original-host", "h")], true),
            (&[("x-forwarded-host", "a"), ("x-original-url", "http://h/")], true),
            (&[("x-forwarded-host", "h"), ("x-original-url", "http://h/")], false),
            // A malformed header contradicts nothing.
            (&[("x-forwarded-uri", "a"), ("x-original-uri", "/b")], false),
            (&[("x-forwarded-uri", ""), ("x-original-uri", "/b")], false),
            (&[("x-forwarded-method", "GET"), ("x-original-uri", "/b")], false),
            (&[], false),
        ] {
            let lines: Vec<_> =
                lines.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            let found = OriginalRequest::contradiction(&headers(&lines));
            assert_eq!(found.is_some(), clash, "{lines:?}: {found:?}");
        }
    }
}
