//! Which requests a rule matches.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tidegate_core::Cost;

use super::normalize_escapes::normalize_escapes;

use crate::InvalidRule;

/// What rules can match on. Implement it for other request types.
pub trait Request {
    /// `GET`, `POST`..; empty if unknown, which no rule with a method matches.
    fn method(&self) -> &str;
    /// The path without query, path parameters and dot segments, in [`normalize_escapes`].
    fn path(&self) -> &str;
    /// The host, with or without a port.
    fn host(&self) -> &str;
    /// The value of a header; `name` is in lower case. A header with different values is missing:
    /// services differ in which one they use.
    fn header(&self, name: &str) -> Option<&str>;
    /// Whether any value of a header passes `test`.
    fn any_header(&self, name: &str, test: &dyn Fn(&str) -> bool) -> bool {
        self.header(name).is_some_and(test)
    }
    /// The value of a query parameter; different values are missing, as with a header.
    fn query(&self, name: &str) -> Option<Cow<'_, str>>;
    /// The value of a cookie; different values are missing, as with a header.
    fn cookie(&self, name: &str) -> Option<Cow<'_, str>>;
    /// A hash of the bearer token, since keys are shown to operators.
    fn bearer(&self) -> Option<Cow<'_, str>>;
    /// Client address after trusted proxies.
    fn client_ip(&self) -> Option<IpAddr>;
    /// True if a trusted proxy sent it; only then `cost_header` is used.
    fn is_from_trusted_proxy(&self) -> bool;
    /// The cost, if the caller knows it; otherwise the rule determines it.
    fn cost(&self) -> Option<Cost> {
        None
    }
}

impl<R: Request + ?Sized> Request for &R {
    fn method(&self) -> &str {
        (**self).method()
    }

    fn path(&self) -> &str {
        (**self).path()
    }

    fn host(&self) -> &str {
        (**self).host()
    }

    fn header(&self, name: &str) -> Option<&str> {
        (**self).header(name)
    }

    fn any_header(&self, name: &str, test: &dyn Fn(&str) -> bool) -> bool {
        (**self).any_header(name, test)
    }

    fn query(&self, name: &str) -> Option<Cow<'_, str>> {
        (**self).query(name)
    }

    fn cookie(&self, name: &str) -> Option<Cow<'_, str>> {
        (**self).cookie(name)
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        (**self).bearer()
    }

    fn client_ip(&self) -> Option<IpAddr> {
        (**self).client_ip()
    }

    fn is_from_trusted_proxy(&self) -> bool {
        (**self).is_from_trusted_proxy()
    }

    fn cost(&self) -> Option<Cost> {
        (**self).cost()
    }
}

/// Conditions for a rule to apply. Empty, it matches every request.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Match {
    /// One of these methods; empty matches any.
    pub methods: Vec<Box<str>>,
    /// A pattern that the path must match.
    pub path: Option<PathPattern>,
    /// The host: a name, or `*.example.com` for all subdomains.
    pub host: Option<Box<str>>,
    /// Headers and patterns of their values, in which `*` matches anything.
    pub headers: Vec<(Box<str>, Box<str>)>,
}

impl Match {
    /// Whether the request matches.
    pub fn matches(&self, request: &impl Request) -> bool {
        self.has_method(request.method())
            && self.path.as_ref().is_none_or(|path| path.matches(request.path()))
            && self.host.as_ref().is_none_or(|host| is_host(host, request.host()))
            && self.headers.iter().all(|(name, value)| {
                request.any_header(name, &|given| glob(value.as_bytes(), given.as_bytes()))
            })
    }

    fn has_method(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|m| m.eq_ignore_ascii_case(method))
    }

    /// The match with header names in lower case, as [`Request::header`] expects them.
    pub(super) fn normalized(mut self) -> Result<Self, InvalidRule> {
        let is_method = |m: &str| {
            !m.is_empty() && m.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        if let Some(method) = self.methods.iter().find(|method| !is_method(method)) {
            return Err(InvalidRule::Method(method.clone()));
        }
        if let Some(host) = self.host.as_ref().filter(|host| !can_be_host(host)) {
            return Err(InvalidRule::Host(host.clone()));
        }
        for (name, _) in &mut self.headers {
            name.make_ascii_lowercase();
        }
        Ok(self)
    }

    /// Whether everything that `other` matches is matched here too. `false` also means "not sure".
    pub(super) fn covers(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty() && other.methods.iter().all(|m| self.has_method(m)));
        let path = match (&self.path, &other.path) {
            (None, _) => true,
            (Some(own), Some(other)) => own.covers(other),
            (Some(_), None) => false,
        };
        let host = self.host.is_none() || self.host == other.host;
        methods && path && host && self.headers.iter().all(|header| other.headers.contains(header))
    }
}

/// A request of the patterns of a match. What covers the match is a candidate for it.
pub(super) struct PatternRequest<'m> {
    matches: &'m Match,
    path: String,
}

impl<'m> PatternRequest<'m> {
    pub(super) fn new(matches: &'m Match) -> Self {
        let path = matches.path.as_ref().map_or(String::new(), PathPattern::to_string);
        Self { matches, path }
    }
}

impl Request for PatternRequest<'_> {
    fn method(&self) -> &str {
        ""
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn host(&self) -> &str {
        self.matches.host.as_deref().unwrap_or_default()
    }

    fn header(&self, _: &str) -> Option<&str> {
        None
    }

    fn any_header(&self, name: &str, test: &dyn Fn(&str) -> bool) -> bool {
        self.matches.headers.iter().any(|(other, value)| **other == *name && test(value))
    }

    fn query(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn cookie(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }

    fn bearer(&self) -> Option<Cow<'_, str>> {
        None
    }

    fn client_ip(&self) -> Option<IpAddr> {
        None
    }

    fn is_from_trusted_proxy(&self) -> bool {
        false
    }
}

/// A path in which `{name}` matches one segment, `*` any part of one, and a last segment of `*`
/// everything below. `/login` matches `/login/` too; `/api/*` matches `/api/`, but not `/api`. To
/// end with exactly one segment, write `/api/*/` or name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathPattern {
    segments: Vec<PathSegment>,
    /// The pattern ends with `/*`.
    below: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum PathSegment {
    Literal(Box<str>),
    Glob(Box<str>),
    Named(Box<str>),
}

impl PathPattern {
    /// Longest pattern in bytes.
    pub const MAX_LEN: usize = 1_024;

    /// Whether the path matches.
    pub fn matches(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else { return false };
        let path = if self.below { path } else { path.strip_suffix('/').unwrap_or(path) };
        let mut given = path.split('/');
        let mut first =
            |segment: &PathSegment| given.next().is_some_and(|text| segment.matches(text));
        let own = if self.segments.is_empty() && !self.below {
            return path.is_empty();
        } else {
            self.segments.iter().all(&mut first)
        };
        // `/a/*` matches everything below `/a/`, and not `/a` itself.
        own && given.next().is_some() == self.below
    }

    /// The segment in the place of `{name}`.
    pub fn named<'p>(&self, name: &str, path: &'p str) -> Option<&'p str> {
        let is_named =
            |segment: &PathSegment| matches!(segment, PathSegment::Named(n) if **n == *name);
        let index = self.segments.iter().position(is_named)?;
        path.strip_prefix('/')?.split('/').nth(index).filter(|text| !text.is_empty())
    }

    /// Whether the pattern has this `{name}`.
    pub fn names(&self, name: &str) -> bool {
        self.segments.iter().any(|s| matches!(s, PathSegment::Named(n) if **n == *name))
    }

    /// The segments: the text of literal ones, `None` for the others.
    pub(super) fn literals(&self) -> impl Iterator<Item = Option<&str>> {
        self.segments.iter().map(|segment| match segment {
            PathSegment::Literal(text) => Some(&**text),
            PathSegment::Glob(_) | PathSegment::Named(_) => None,
        })
    }

    fn covers(&self, other: &Self) -> bool {
        let enough = if self.below {
            // `/*` matches `/`, while `/a/*` does not match `/a`.
            other.segments.len() > self.segments.len()
                || self.segments.is_empty()
                || (other.below && other.segments.len() == self.segments.len())
        } else {
            !other.below && other.segments.len() == self.segments.len()
        };
        enough && self.segments.iter().zip(&other.segments).all(|(own, other)| own.covers(other))
    }
}

impl PathSegment {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Literal(literal) => **literal == *text,
            Self::Glob(pattern) => !text.is_empty() && glob(pattern.as_bytes(), text.as_bytes()),
            Self::Named(_) => !text.is_empty(),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(_), Self::Literal(text)) => !text.is_empty(),
            (Self::Named(_), _) => true,
            (Self::Glob(pattern), _) if &**pattern == "*" => Self::Named("".into()).covers(other),
            (own, Self::Literal(text)) => own.matches(text),
            (own, other) => own == other,
        }
    }
}

impl FromStr for PathPattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        let Some(rest) = text.strip_prefix('/') else { return Err(InvalidPattern::NoSlash) };
        if text.len() > Self::MAX_LEN {
            return Err(InvalidPattern::TooLong);
        }
        if text.contains(['?', '#']) {
            return Err(InvalidPattern::Query);
        }
        if text.contains("**") {
            return Err(InvalidPattern::Stars);
        }
        // No request has such a path: it would be normalized.
        let is_not_normal = |part: &str| {
            let part = normalize_escapes(part);
            matches!(&*part, "." | "..") || part.starts_with("%2F") || part.ends_with("%2F")
        };
        if text.contains("//") || text.contains(';') || rest.split('/').any(is_not_normal) {
            return Err(InvalidPattern::NotNormal);
        }
        let (rest, below) = match rest.strip_suffix('*') {
            Some("") => ("", true),
            Some(rest) if rest.ends_with('/') => (&rest[..rest.len() - 1], true),
            _ => (rest.strip_suffix('/').unwrap_or(rest), false),
        };
        let mut segments: Vec<PathSegment> = Vec::new();
        for part in rest.split('/').take_while(|_| !rest.is_empty()) {
            segments.push(match part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) {
                Some(name) if is_word(name) => {
                    let named = PathSegment::Named(name.into());
                    if segments.contains(&named) {
                        return Err(InvalidPattern::Twice(name.into()));
                    }
                    named
                }
                None if !part.contains(['{', '}']) => {
                    let normalized = normalize_escapes(part);
                    match normalized.contains('*') {
                        true => PathSegment::Glob(normalized.into()),
                        false => PathSegment::Literal(normalized.into()),
                    }
                }
                _ => return Err(InvalidPattern::Braces),
            });
        }
        Ok(Self { segments, below })
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                PathSegment::Literal(text) | PathSegment::Glob(text) => write!(f, "/{text}")?,
                PathSegment::Named(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match (self.below, self.segments.last()) {
            (true, _) => f.write_str("/*"),
            (false, None) => f.write_str("/"),
            // Without the slash it would match everything below.
            (false, Some(PathSegment::Glob(text))) if **text == *"*" => f.write_str("/"),
            (false, Some(_)) => Ok(()),
        }
    }
}

/// Why a path pattern is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidPattern {
    /// It does not begin with a slash.
    NoSlash,
    /// It is longer than [`PathPattern::MAX_LEN`].
    TooLong,
    /// It has a query or a fragment.
    Query,
    /// Two stars in a row.
    Stars,
    /// Two slashes in a row, also escaped, a path parameter, or a segment of one or two dots.
    NotNormal,
    /// A brace outside of a `{name}` that is a whole segment.
    Braces,
    /// The same name twice.
    Twice(Box<str>),
}

impl fmt::Display for InvalidPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlash => f.write_str("a path begins with a slash; write /login or /api/*"),
            Self::TooLong => {
                write!(f, "the path is too long; use at most {} bytes", PathPattern::MAX_LEN)
            }
            Self::Query => f.write_str("only the path is matched; leave out ? and #"),
            Self::Stars => {
                f.write_str("one star is enough; write /api/* for everything below /api/")
            }
            Self::NotNormal => f.write_str(
                "paths are compared without //, without . and .. segments and without what follows \
                 a ; in a segment; leave them out",
            ),
            Self::Braces => {
                f.write_str("braces hold the name of a whole segment; write /users/{id}/posts")
            }
            Self::Twice(name) => write!(f, "duplicate {{{name}}}; rename one"),
        }
    }
}

impl std::error::Error for InvalidPattern {}

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether a request can have a host that matches this pattern. Ports are not compared.
fn can_be_host(pattern: &str) -> bool {
    let name = pattern.strip_prefix("*.").unwrap_or(pattern);
    let is_literal = name.starts_with('[') && name.ends_with(']');
    let odd = if is_literal { "/*?#@ " } else { ":/*?#@ " };
    !name.is_empty() && !name.ends_with('.') && !name.contains(|c| odd.contains(c))
}

/// The name in a host, without a port and the dot of the root.
pub(super) fn host_name(host: &str) -> &str {
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    host.strip_suffix('.').unwrap_or(host)
}

fn is_host(pattern: &str, host: &str) -> bool {
    let host = host_name(host);
    match pattern.strip_prefix("*.") {
        Some(parent) => host
            .len()
            .checked_sub(parent.len() + 1)
            .and_then(|at| host.split_at_checked(at))
            .is_some_and(|(child, tail)| {
                !child.is_empty() && tail.starts_with('.') && tail[1..].eq_ignore_ascii_case(parent)
            }),
        None => host.eq_ignore_ascii_case(pattern),
    }
}

/// Whether `text` matches `pattern`, in which `*` matches any bytes. Linear in the text for each
/// star.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut resume: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            resume = Some((p + 1, t));
            p += 1;
        } else if pattern.get(p) == text.get(t) {
            p += 1;
            t += 1;
        } else if let Some((after, from)) = resume {
            resume = Some((after, from + 1));
            p = after;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PathPattern {
        text.parse().unwrap()
    }

    #[test]
    fn paths_match_segment_by_segment() {
        for (pattern, yes, no) in [
            ("/", vec!["/"], vec!["/a", "", "a"]),
            ("/login", vec!["/login", "/login/"], vec!["/", "/login/x", "/Login", "/log", "login"]),
            ("/users/{id}", vec!["/users/7", "/users/7/"], vec!["/users", "/users/", "/users/7/x"]),
            ("/a/{x}/b", vec!["/a/1/b"], vec!["/a//b", "/a/1/2/b", "/a/1/c"]),
            ("/api/*", vec!["/api/", "/api/x", "/api/x/y"], vec!["/api", "/apis", "/"]),
            ("/*", vec!["/", "/x", "/x/y/"], vec!["", "x"]),
            ("/img/*.png", vec!["/img/a.png", "/img/.png"], vec!["/img/a.jpg", "/img/a/b.png"]),
            ("/*/edit", vec!["/a/edit"], vec!["/edit", "/a/b/edit", "//edit"]),
            ("/a*", vec!["/a", "/abc", "/abc/"], vec!["/", "/b", "/abc/d"]),
            ("/a/*/", vec!["/a/b", "/a/b/"], vec!["/a", "/a/", "/a/b/c"]),
            ("/*/", vec!["/a", "/a/"], vec!["/", "/a/b"]),
            ("/%C3%A4/{x}", vec!["/%C3%A4/%C3%B6"], vec!["/%C3%A4", "/a/b"]),
        ] {
            let parsed = path(pattern);
            assert_eq!(parsed.to_string(), pattern);
            for text in yes {
                assert!(parsed.matches(text), "{pattern} {text}");
            }
            for text in no {
                assert!(!parsed.matches(text), "{pattern} {text}");
            }
        }
        for pattern in ["/ä/@{x}", "/{"] {
            assert!(pattern.parse::<PathPattern>().is_err(), "{pattern}");
        }
        for (pattern, one) in [("/ä/@b", "/%C3%A4/%40b"), ("/%c3%a4*", "/%C3%A4*"), ("/%61", "/a")]
        {
            assert_eq!(path(pattern).to_string(), one);
        }
        assert_eq!(path("/a/{x}/{y}").named("y", "/a/1/22"), Some("22"));
        assert_eq!(path("/a/{x}").named("y", "/a/1"), None);
    }

    #[test]
    fn a_bad_pattern_is_refused() {
        let long = format!("/{}", "x".repeat(PathPattern::MAX_LEN));
        for text in [
            "", "login", "/a?b", "/a#b", "/{", "/{a", "/x{a}", "/{}", "/{a}/{a}", "/**", "/a/**",
            "/a**/b", "//", "//*", "/a//b", "/a//", "/./a", "/a/..", "/a;b", "/a;/b", "/a%2f",
            "/%2Fa/b", &long,
        ] {
            assert!(text.parse::<PathPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_match_covers_another_only_when_that_is_certain() {
        let of = |method: &str, pattern: &str| Match {
            methods: (!method.is_empty()).then(|| method.into()).into_iter().collect(),
            path: (!pattern.is_empty()).then(|| path(pattern)),
            ..Match::default()
        };
        for (a, b, covers) in [
            (of("", ""), of("POST", "/x"), true),
            (of("POST", ""), of("", "/x"), false),
            (of("POST", ""), of("post", "/x"), true),
            (of("", "/api/*"), of("", "/api/x"), true),
            (of("", "/api/*"), of("", "/api/x/*"), true),
            (of("", "/api/*"), of("", "/api/*"), true),
            (of("", "/api/*"), of("", "/api"), false),
            (of("", "/*"), of("", "/"), true),
            (of("", "/*"), of("", ""), false),
            (of("", "/api/*/"), of("", "/api/{x}"), true),
            (of("", "/api/*/"), of("", "/api/*"), false),
            (of("", "/api/*"), of("", "/api/*/"), true),
            (of("", "/{x}/*"), of("", "/a*/b"), true),
            (of("POST", ""), of("GET", ""), false),
            (of("", "/api/{x}"), of("", "/api/y"), true),
            (of("", "/api/{x}"), of("", "/api/*"), false),
            (of("", "/a*"), of("", "/abc"), true),
            (of("", "/a*"), of("", "/{x}"), false),
            (of("", "/api/x"), of("", ""), false),
        ] {
            assert_eq!(a.covers(&b), covers, "{a:?} {b:?}");
        }
    }

    #[test]
    fn hosts_match_by_name_or_below_a_name() {
        for (pattern, host, expected) in [
            ("example.com", "EXAMPLE.com:8080", true),
            ("example.com", "example.com.", true),
            ("example.com", "a.example.com", false),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "badexample.com", false),
            ("*.example.com", "ä.example.com", true),
            ("*.example.com", "äexample.com", false),
        ] {
            assert_eq!(is_host(pattern, host), expected, "{pattern} {host}");
        }
    }

    #[test]
    fn conditions_that_no_request_can_meet_are_refused() {
        let of = |method: &str, host: &str| Match {
            methods: vec![method.into()],
            host: Some(host.into()),
            ..Match::default()
        };
        for host in ["a.example", "*.example.com", "localhost", "[::1]", "10.0.0.1", "x_y.example"]
        {
            assert!(of("GET", host).normalized().is_ok(), "{host}");
        }
        for host in
            ["", "*", "*.", "a.example:80", "a.example.", "api.*", "*example.com", "http://a"]
        {
            assert_eq!(of("M-SEARCH", host).normalized(), Err(InvalidRule::Host(host.into())));
        }
        for method in ["", "*", "GET,POST", "GET "] {
            assert_eq!(of(method, "a").normalized(), Err(InvalidRule::Method(method.into())));
        }
    }

    #[test]
    fn a_star_matches_anything() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYb", false),
            ("", "", true),
            ("", "a", false),
            ("**a", "ba", true),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
