//! What a request says about the client: address, token, query, cookies, original request. Imports:
//! nothing.
//!
//! - [`TrustedProxies`] finds the client address behind proxies.
//! - [`bearer`], [`header`], [`query`], [`query_pairs`] and [`cookie`] read values that can
//!   identify a client; [`digest`] hashes a token.
//! - [`OriginalRequest`] is the request that a forward-auth proxy describes in headers.
//! - [`PolicyRequest`] presents an HTTP request to a policy.
//! - [`normalize_path`] and [`normalize_host`] map all spellings of a path or host to one.
//!
//! All input is untrusted. Malformed input counts as missing; nothing panics.

pub(crate) mod normalize;
pub(crate) mod original_request;
pub(crate) mod policy_request;
mod proxies;

pub use crate::extract::normalize::{normalize_host, normalize_path};
pub use crate::extract::original_request::OriginalRequest;
pub use crate::extract::policy_request::PolicyRequest;
pub use proxies::TrustedProxies;

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE};
use sha2::{Digest, Sha256};

/// The token of `Authorization: Bearer token`.
///
/// There must be exactly one such line with exactly one token of visible ASCII characters. This
/// accepts more than RFC 6750, because tokens with `|` or `:` are in use. It is strict enough that
/// two tokens never count as one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    let is_token = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
}

/// The SHA-256 of a token in hexadecimal digits, to store or log instead of the token.
pub fn digest(token: &str) -> String {
    use std::fmt::Write as _;
    let mut digits = String::with_capacity(64);
    for byte in Sha256::digest(token) {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The value of a header. A value that is not visible ASCII is missing, and so are different values
/// of one header: services differ in which one they use.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    unanimous(headers.get_all(name).iter().map(|value| value.to_str().ok()))
}

/// The parameter of this name in a query string, decoded; `+` is a space.
///
/// A parameter without `=` has an empty value. It is missing if its escapes are malformed or not
/// UTF-8, or if another of the same name has a different value: services differ in which one they
/// use.
///
/// ```
/// use tidegate_tower::extract::query;
/// assert_eq!(query("page=2&tenant=caf%C3%A9+noir", "tenant").as_deref(), Some("café noir"));
/// ```
pub fn query<'a>(raw_query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let is_named = |key: &str| decoded(key).is_some_and(|key| key == name);
    let pairs = raw_pairs(raw_query).filter(|(key, _)| is_named(key));
    unanimous(pairs.map(|(_, value)| decoded(value)))
}

/// The value, if there is at least one and all are valid and equal.
fn unanimous<T: PartialEq>(mut values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = values.next()??;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}

/// The parameters of a query string in order, with decoded names and values; `+` is a space.
///
/// A malformed name or value, or one that is not UTF-8, is `None`, so that it never equals a valid
/// one.
pub fn query_pairs(
    raw_query: &str,
) -> impl Iterator<Item = (Option<Cow<'_, str>>, Option<Cow<'_, str>>)> {
    raw_pairs(raw_query).map(|(name, value)| (decoded(name), decoded(value)))
}

fn raw_pairs(raw_query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = raw_query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// The cookie of this name in all `Cookie` lines, without surrounding quotes.
///
/// Names are compared byte by byte. A cookie is missing if it is not UTF-8 or contains control
/// characters, or if another of the same name has a different value: services differ in which one
/// they use.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|&b| b == b';'));
    let values = pairs.map(<[u8]>::trim_ascii).filter_map(|pair| {
        let equals = pair.iter().position(|&b| b == b'=')?;
        let (key, value) = pair.split_at_checked(equals)?;
        (key.trim_ascii_end() == name.as_bytes()).then(|| value.split_at(1).1.trim_ascii_start())
    });
    unanimous(values.map(|value| {
        let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        text(unquoted.unwrap_or(value))
    }))
}

/// Header bytes as text, if they are UTF-8 without control characters.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control))
}

fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, after) = match first {
            b'%' => escaped(tail)?,
            b'+' => (b' ', tail),
            _ => (first, tail),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The byte that the two digits after a `%` encode, and the rest of the input.
fn escaped(tail: &[u8]) -> Option<(u8, &[u8])> {
    let (&[high, low], after) = tail.split_first_chunk::<2>()?;
    Some((hex(high)? << 4 | hex(low)?, after))
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn lines(name: HeaderName, values: &[&[u8]]) -> HeaderMap {
        let value = |value: &&[u8]| HeaderValue::from_bytes(value).unwrap();
        values.iter().map(|bytes| (name.clone(), value(bytes))).collect()
    }

    #[test]
    fn a_bearer_token_is_one_token_on_one_line() {
        for (values, token) in [
            (&[b"Bearer abc".as_slice()][..], Some("abc")),
            (&[b"bEARER  abc.DEF-_~+/== "], Some("abc.DEF-_~+/==")),
            (&[b"Bearer 12|tok:en"], Some("12|tok:en")),
            (&[], None),
            (&[b""], None),
            (&[b"Bearer"], None),
            (&[b"Bearer "], None),
            (&[b"Bearerabc"], None),
            (&[b"Bearer\tabc"], None),
            (&[b"Bearer a b"], None),
            (&[b"Bearer a, Bearer b"], None),
            (&[b"Bearer a\tb"], None),
            (&[b"Bearer \xc3\xa9"], None),
            (&[b"Bearer \xff"], None),
            (&[b"Basic abc"], None),
            (&[b"Bearer abc", b"Bearer abc"], None),
            (&[b"Bearer abc", b"Basic abc"], None),
        ] {
            assert_eq!(bearer(&lines(AUTHORIZATION, values)), token, "{values:?}");
        }
    }

    #[test]
    fn a_header_with_different_values_is_missing() {
        let name = HeaderName::from_static("x-api-key");
        for (values, value) in [
            (&[b"v".as_slice()][..], Some("v")),
            (&[b"v", b"v"], Some("v")),
            (&[b"v", b"w"], None),
            (&[b"v", b"\xff"], None),
            (&[], None),
        ] {
            assert_eq!(header(&lines(name.clone(), values), "x-api-key"), value, "{values:?}");
        }
    }

    #[test]
    fn a_malformed_parameter_and_one_with_different_values_are_missing() {
        for (raw, value) in [
            ("k=v", Some("v")),
            ("a=1&k=v&b=2&k=%76", Some("v")),
            ("k=v&k=w", None),
            ("k=v&k", None),
            ("k=v&k=%ff", None),
            ("&&k=v", Some("v")),
            ("%6b=v", Some("v")),
            ("k=a+b%20c%2B", Some("a b c+")),
            ("k=%e2%82%AC", Some("€")),
            ("k=a=b", Some("a=b")),
            ("k=", Some("")),
            ("k", Some("")),
            ("k=%00", Some("\0")),
            ("%zz=x&k=v", Some("v")),
            ("", None),
            ("K=v", None),
            ("kk=v", None),
            ("=v", None),
            ("a=k=v", None),
            ("k=%", None),
            ("k=%6", None),
            ("k=%6g", None),
            ("k=%+6", None),
            ("k=%ff", None),
            ("k=%ff&k=v", None),
        ] {
            assert_eq!(query(raw, "k").as_deref(), value, "{raw:?}");
        }
        assert!(matches!(query("k=v", "k"), Some(Cow::Borrowed("v"))));
    }

    #[test]
    fn all_parameters_are_returned_in_order_and_malformed_ones_are_none() {
        let all: Vec<_> = query_pairs("&a=1&a=%32&b+c&=x&%ff=y&d=%zz&").collect();
        let all: Vec<_> = all.iter().map(|(k, v)| (k.as_deref(), v.as_deref())).collect();
        let some = |name, value| (Some(name), Some(value));
        let expected = [
            some("a", "1"),
            some("a", "2"),
            some("b c", ""),
            some("", "x"),
            (None, Some("y")),
            (Some("d"), None),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_cookie_counts_whatever_line_it_is_on_unless_its_values_differ() {
        for (values, value) in [
            (&[b"k=v".as_slice()][..], Some("v")),
            (&[b"k=v; a=1; k=\"v\"", b"k=v"], Some("v")),
            (&[b"k=v; k=w"], None),
            (&[b"k=v", b"k=w"], None),
            (&[b"k=v; k=\xff"], None),
            (&[b"a=1", b"b=2;k=v"], Some("v")),
            (&[b" ;; k = v ;"], Some("v")),
            (&[b"k=\"v w\""], Some("v w")),
            (&[b"k=\""], Some("\"")),
            (&[b"k=\"\""], Some("")),
            (&[b"k="], Some("")),
            (&[b"k=a=b"], Some("a=b")),
            (&[b"x=\xff; k=v"], Some("v")),
            (&["k=é".as_bytes()], Some("é")),
            (&[], None),
            (&[b""], None),
            (&[b"k"], None),
            (&[b"=v"], None),
            (&[b"K=v"], None),
            (&[b"kk=v"], None),
            (&[b"k=\xff; k=v"], None),
            (&[b"k=a\tb"], None),
        ] {
            assert_eq!(cookie(&lines(COOKIE, values), "k"), value, "{values:?}");
        }
    }
}
