//! Key extractors: which key a request is counted under. Imports: extract.
//!
//! An [`ExtractKey`] finds the key of a request. A closure from the request to an `Option` of text
//! is one, and so is a tuple of extractors, whose parts stay separate. Extractors write to a
//! [`KeyBuilder`].
//!
//! ```
//! use tidegate_tower::key::{ClientIp, ExtractKey, Header};
//! # fn use_it(_: impl ExtractKey) {}
//! use_it(ClientIp::default());
//! use_it((Header::from_static("x-tenant"), ClientIp::default()));
//! use_it(|request: &http::request::Parts| {
//!     Some(request.uri.host()?.to_ascii_lowercase())
//! });
//! ```

pub(crate) mod builder;
mod client_ip;
pub(crate) mod extractors;

pub(crate) use crate::key::builder::KeyDefect;
pub use crate::key::builder::{KeyBuilder, KeyParts};
pub use crate::key::extractors::{
    Bearer, Claim, Cookie, Global, Header, InvalidPathParam, PathParam, Query,
};
pub(crate) use client_ip::peer;
pub use client_ip::{ClientIp, Peer};

use http::request::Parts;

/// Finds the key of a request.
///
/// ```
/// use http::request::Parts;
/// use tidegate_tower::key::{ExtractKey, KeyBuilder};
///
/// /// The host and the method.
/// struct HostAndMethod;
///
/// impl ExtractKey for HostAndMethod {
///     fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
///         match request.uri.host() {
///             Some(host) => key.add(host),
///             None => key.add_missing(),
///         }
///         key.add(request.method.as_str());
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the key of a request",
    label = "not a key extractor",
    note = "use `Header::from_static(\"x-api-key\")`, `ClientIp::default()` or another extractor of \
            `tidegate_tower::key`",
    note = "or a closure: `key_fn(|request| Some(request.uri.path().to_owned()))`",
    note = "to count all requests together, use `Global`"
)]
pub trait ExtractKey: Send + Sync + 'static {
    /// Adds the parts of the key. A part that the request does not have must be added as
    /// [missing](KeyBuilder::add_missing), so that the missing-key setting applies.
    fn extract(&self, request: &Parts, key: &mut KeyBuilder);
}

// Otherwise the compiler expects a closure of whatever is not an extractor.
#[diagnostic::do_not_recommend]
impl<F, T> ExtractKey for F
where
    F: Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    T: AsRef<str>,
{
    fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
        match self(request) {
            Some(part) => key.add(part.as_ref()),
            None => key.add_missing(),
        }
    }
}

/// A closure as an extractor, without a type for its argument.
///
/// ```
/// use tidegate_tower::key::{ExtractKey, key_fn};
/// # fn use_it(_: impl ExtractKey) {}
/// use_it(key_fn(|request| Some(request.uri.path().to_owned())));
/// ```
pub fn key_fn<F, T>(find: F) -> impl ExtractKey + Clone
where
    F: Fn(&Parts) -> Option<T> + Clone + Send + Sync + 'static,
    T: AsRef<str>,
{
    find
}

macro_rules! tuple {
    ($($name:ident)+) => {
        /// Adds the parts of each extractor, in order.
        impl<$($name: ExtractKey),+> ExtractKey for ($($name,)+) {
            #[expect(non_snake_case, reason = "a variable for each type")]
            fn extract(&self, request: &Parts, key: &mut KeyBuilder) {
                let ($($name,)+) = self;
                $($name.extract(request, key);)+
            }
        }
    };
}

tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
