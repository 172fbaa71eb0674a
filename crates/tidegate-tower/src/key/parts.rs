//! What else tells clients apart.

use std::any::type_name;
use std::fmt::{self, Display};
use std::marker::PhantomData;

use http::HeaderName;
use http::request::Parts;
use tidegate::policy::{InvalidPattern, PathPattern};

use super::{ExtractKey, KeyText};
use crate::extract::{self, bearer, digest, normal_path};

/// The first value of a header.
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// This header.
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }

    /// The header of this name, in lower case.
    ///
    /// # Panics
    ///
    /// If it is no name of a header in lower case, as [`HeaderName::from_static`] does.
    pub const fn from_static(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl ExtractKey for Header {
    fn extract(&self, request: &Parts, key: &mut KeyText) {
        let value = request.headers.get(&self.0).and_then(|value| value.to_str().ok());
        add(key, value);
    }
}

/// The first value of a query parameter.
#[derive(Clone, Debug)]
pub struct Query(pub &'static str);

impl ExtractKey for Query {
    fn extract(&self, request: &Parts, key: &mut KeyText) {
        let query = request.uri.query().unwrap_or_default();
        add(key, extract::query(query, self.0).as_deref());
    }
}

/// The first cookie of this name.
#[derive(Clone, Debug)]
pub struct Cookie(pub &'static str);

impl ExtractKey for Cookie {
    fn extract(&self, request: &Parts, key: &mut KeyText) {
        add(key, extract::cookie(&request.headers, self.0));
    }
}

/// A segment of the path, by its name in a pattern. All spellings of one path give the same.
///
/// ```
/// use tidegate_tower::key::PathParam;
/// let tenant = PathParam::new("/tenants/{tenant}/*", "tenant")?;
/// assert!(PathParam::new("/tenants/{tenant}/*", "user").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A request for a path that is not like the pattern has no such segment. The path is the one that
/// the layer sees: inside axum's `nest`, it is what remains of it.
#[derive(Clone, Debug)]
pub struct PathParam {
    pattern: PathPattern,
    name: Box<str>,
}

impl PathParam {
    /// The segment that `{name}` stands for in `pattern`.
    pub fn new(pattern: &str, name: &str) -> Result<Self, InvalidPathParam> {
        let pattern: PathPattern = pattern.parse().map_err(InvalidPathParam::Pattern)?;
        if !pattern.names(name) {
            return Err(InvalidPathParam::NoSuchSegment(name.into()));
        }
        Ok(Self { pattern, name: name.into() })
    }
}

impl ExtractKey for PathParam {
    fn extract(&self, request: &Parts, key: &mut KeyText) {
        let path = normal_path(request.uri.path());
        let is_like = self.pattern.matches(&path);
        add(key, self.pattern.named(&self.name, &path).filter(|_| is_like));
    }
}

/// Why a [`PathParam`] cannot be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InvalidPathParam {
    /// The pattern is none.
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

/// The bearer token, as a hash of the whole of it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Bearer;

impl ExtractKey for Bearer {
    fn extract(&self, request: &Parts, key: &mut KeyText) {
        add(key, bearer(&request.headers).map(digest).as_deref());
    }
}

/// What code that has verified the request says about it, in an extension.
///
/// ```
/// use tidegate_tower::key::Claim;
/// #[derive(Clone)]
/// struct User { id: u64 }
/// let by_user = Claim::new(|user: &User| user.id);
/// ```
///
/// The layer that verifies and sets the extension must come before this one. Without the extension
/// the key is missing.
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
    /// What `of` makes of the extension.
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
    fn extract(&self, request: &Parts, key: &mut KeyText) {
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

/// No key: everybody together.
#[derive(Clone, Copy, Default, Debug)]
pub struct Everyone;

impl ExtractKey for Everyone {
    fn extract(&self, _: &Parts, _: &mut KeyText) {}
}

fn add(key: &mut KeyText, part: Option<&str>) {
    match part {
        Some(part) => key.add(part),
        None => key.add_missing(),
    }
}
