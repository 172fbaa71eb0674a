//! Whom a request counts as.
//!
//! # Layout
//!
//! - [`ExtractKey`] finds the key of a request. Whatever finds one is one: a closure from the request
//!   to an `Option` of text, and a tuple of several, whose parts stay apart.
//! - [`ClientIp`], [`Header`], [`Query`], [`Cookie`], [`PathParam`], [`Bearer`], [`Claim`] and
//!   [`Everyone`] are those that most services need.
//! - [`KeyText`] is what they write to.
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

mod client_ip;
mod parts;
mod text;

pub(crate) use client_ip::peer;
pub use client_ip::{ClientIp, Peer};
pub use parts::{Bearer, Claim, Cookie, Everyone, Header, InvalidPathParam, PathParam, Query};
pub(crate) use text::Lacks;
pub use text::{KeyParts, KeyText};

use http::request::Parts;

/// Finds the key of a request.
pub trait ExtractKey: Send + Sync + 'static {
    /// Adds the parts of the key. One that the request does not have is added as
    /// [missing](KeyText::add_missing), so that somebody decides what that means.
    fn extract(&self, request: &Parts, key: &mut KeyText);
}

impl<F, T> ExtractKey for F
where
    F: Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    T: AsRef<str>,
{
    fn extract(&self, request: &Parts, key: &mut KeyText) {
        match self(request) {
            Some(part) => key.add(part.as_ref()),
            None => key.add_missing(),
        }
    }
}

macro_rules! tuple {
    ($($name:ident)+) => {
        /// Each in its turn.
        impl<$($name: ExtractKey),+> ExtractKey for ($($name,)+) {
            #[expect(non_snake_case, reason = "a variable for each type")]
            fn extract(&self, request: &Parts, key: &mut KeyText) {
                let ($($name,)+) = self;
                $($name.extract(request, key);)+
            }
        }
    };
}

tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
