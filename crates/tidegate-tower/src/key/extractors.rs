//! Extractors for headers, query parameters, cookies, path segments, bearer tokens and claims.

use std::any::type_name;
use std::fmt::{self, Display};
use std::marker::PhantomData;

use http::HeaderName;
use http::request::Parts;
use tidegate::policy::{InvalidPattern, PathPattern};

use super::{ExtractKey, KeyBuilder};
use crate::extract::{self, bearer, digest, normalize_path};

/// The value of a header; missing if there are different ones.
///
/// ```
/// use tidegate_tower::Header;
/// let by_api_key = Header::from_static("x-api-key");
/// ```
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// Uses this header.
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }

    /// Uses the header of this name, in lower case.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid lower-case header name, as [`HeaderName::from_static`] does.
    pub const fn from_static(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl ExtractKey for Header {
    fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
        add(key, extract::header(&request.headers, self.0.as_str()));
    }
}

/// The value of a query parameter; missing if there are different ones.
///
/// ```
/// use tidegate_tower::Query;
/// let by_user = Query("user");        // /search?user=7
/// ```
#[derive(Clone, Debug)]
pub struct Query(pub &'static str);

impl ExtractKey for Query {
    fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
        let query = request.uri.query().unwrap_or_default();
        add(key, extract::query(query, self.0).as_deref());
    }
}

/// The value of the cookie of this name; missing if there are different ones.
///
/// ```
/// use tidegate_tower::Cookie;
/// let by_session = Cookie("session");
/// ```
#[derive(Clone, Debug)]
pub struct Cookie(pub &'static str);

impl ExtractKey for Cookie {
    fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
        add(key, extract::cookie(&request.headers, self.0));
    }
}

/// A path segment, by its name in a pattern. All spellings of one path give the same segment.
///
/// ```
/// use tidegate_tower::key::PathParam;
/// let tenant = PathParam::new("/tenants/{tenant}/*", "tenant")?;
/// assert!(PathParam::new("/tenants/{tenant}/*", "user").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The key is missing if the path does not match the pattern. The path is the one that the layer
/// sees: inside axum's `nest`, the prefix is removed.
#[derive(Clone, Debug)]
pub struct PathParam {
    pattern: PathPattern,
    name: Box<str>,
}

impl PathParam {
    /// Uses the segment that `{name}` captures in `pattern`.
    pub fn new(pattern: &str, name: &str) -> Result<Self, InvalidPathParam> {
        let pattern: PathPattern = pattern.parse().map_err(InvalidPathParam::Pattern)?;
        if !pattern.names(name) {
            return Err(InvalidPathParam::NoSuchSegment(name.into()));
        }
        Ok(Self { pattern, name: name.into() })
    }
}

impl ExtractKey for PathParam {
    fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
        let path = normalize_path(request.uri.path());
        let matches = self.pattern.matches(&path);
        add(key, self.pattern.named(&self.name, &path).filter(|_| matches));
    }
}

/// Why a [`PathParam`] is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InvalidPathParam {
    /// The pattern is invalid.
    Pattern(InvalidPattern),
    /// The pattern has no segment of this name.
    NoSuchSegment(Box<str>),
}

impl Display for InvalidPathParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(invalid) => invalid.fmt(f),
            Self::NoSuchSegment(name) => {
                write!(f, "the pattern has no segment {{{name}}}; add it, or name another")
            }
        }
    }
}

impl std::error::Error for InvalidPathParam {}

/// The SHA-256 digest of the bearer token.
///
/// ```
/// use tidegate::{Limiter, Memory};
/// use tidegate_tower::{Bearer, RateLimitLayer};
/// let limiter = Limiter::new(Memory::default(), "100/s".parse()?);
/// let by_token = RateLimitLayer::new(limiter, Bearer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct Bearer;

impl ExtractKey for Bearer {
    fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
        add(key, bearer(&request.headers).map(digest).as_deref());
    }
}

/// A value that an earlier layer has verified and stored as an extension of the request.
///
/// ```
/// use tidegate_tower::key::Claim;
/// #[derive(Clone)]
/// struct User { id: u64 }
/// let by_user = Claim::new(|user: &User| user.id);
/// ```
///
/// The layer that verifies the request and sets the extension must run before this one. Without the
/// extension the key is missing.
pub struct Claim<T, F> {
    of: F,
    kind: PhantomData<fn(&T)>,
}

impl<T, F, D> Claim<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> D + Send + Sync + 'static,
    D: Display,
{
    /// Uses what `of` returns for the extension.
    pub const fn new(of: F) -> Self {
        Self { of, kind: PhantomData }
    }
}

impl<T, F, D> ExtractKey for Claim<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&T) -> D + Send + Sync + 'static,
    D: Display,
{
    fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
        match request.extensions.get::<T>() {
            Some(claim) => key.add_display((self.of)(claim)),
            None => key.add_missing(),
        }
    }
}

impl<T, F> fmt::Debug for Claim<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({})", type_name::<T>())
    }
}

/// The empty key: all requests share one count.
///
/// ```
/// use tidegate::{Limiter, Memory};
/// use tidegate_tower::{Global, RateLimitLayer};
/// let limiter = Limiter::new(Memory::default(), "concurrency 200 lease 30s".parse()?);
/// let whole_service = RateLimitLayer::new(limiter, Global);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct Global;

impl ExtractKey for Global {
    fn extract(&self, _: &Parts, _: &mut KeyBuilder) {}
}

fn add(key: &mut KeyBuilder, part: Option<&str>) {
    match part {
        Some(part) => key.add(part),
        None => key.add_missing(),
    }
}
