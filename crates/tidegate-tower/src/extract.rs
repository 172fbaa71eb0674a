//! Who the client is, and what it asked for.
//!
//! # Layout
//!
//! - [`TrustedProxies`] finds the client's address behind proxies.
//! - [`bearer`], [`query`] and [`cookie`] find what else may tell clients apart; [`digest`] stands
//!   for a token. [`pairs`] is all of a query.
//! - [`OriginalRequest`] is the request that a proxy asks about, as forward-auth does.
//! - [`Described`] is what a policy is told of a request.
//! - [`normal_path`] and [`normal_host`] bring many spellings of one thing to one.
//!
//! Everything here reads what strangers wrote. Garbage counts as missing; nothing panics.

mod described;
mod normal;
mod original;
mod proxies;

pub use described::Described;
pub use normal::{normal_host, normal_path};
pub use original::OriginalRequest;
pub use proxies::TrustedProxies;

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE};
use sha2::{Digest, Sha256};

/// The token of `Authorization: Bearer token`.
///
/// There must be one such line and one token, of visible ASCII characters. That is more than
/// RFC 6750 allows, because tokens with a `|` or `:` in them are about; it is less than would let
/// two tokens pass for one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    let is_token = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
}

/// What stands for a token where it may be seen: its SHA-256 in hexadecimal digits.
pub fn digest(token: &str) -> String {
    use std::fmt::Write as _;
    let mut digits = String::with_capacity(64);
    for byte in Sha256::digest(token) {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The first parameter of this name in a query string, decoded; `+` is a space.
///
/// A parameter without `=` has an empty value. One whose escapes are malformed or do not make
/// UTF-8 is missing, even if another of the same name follows: which of the two a service would
/// take is anyone's guess.
///
/// ```
/// use tidegate_tower::extract::query;
/// assert_eq!(query("page=2&tenant=caf%C3%A9+noir", "tenant").as_deref(), Some("café noir"));
/// ```
pub fn query<'a>(raw_query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = raw_pairs(raw_query);
    let (_, value) = pairs.find(|(key, _)| decoded(key).is_some_and(|key| key == name))?;
    decoded(value)
}

/// The parameters of a query string in order, each with its name and value decoded; `+` is a space.
///
/// What is malformed or does not make UTF-8 is `None`, so that it cannot pass for something else.
pub fn pairs(
    raw_query: &str,
) -> impl Iterator<Item = (Option<Cow<'_, str>>, Option<Cow<'_, str>>)> {
    raw_pairs(raw_query).map(|(name, value)| (decoded(name), decoded(value)))
}

fn raw_pairs(raw_query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = raw_query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// The first cookie of this name over all `Cookie` lines, without the quotes it may stand in.
///
/// Names are compared as they are written. A cookie that is not UTF-8, or holds control characters,
/// is missing.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|&b| b == b';'));
    let value = pairs.map(<[u8]>::trim_ascii).find_map(|pair| {
        let equals = pair.iter().position(|&b| b == b'=')?;
        let (key, value) = pair.split_at_checked(equals)?;
        (key.trim_ascii_end() == name.as_bytes()).then(|| value.split_at(1).1.trim_ascii_start())
    })?;
    let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    text(unquoted.unwrap_or(value))
}

/// Bytes of a header as text, if they are UTF-8 without control characters.
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

/// The byte that the two digits after a `%` stand for, and what follows them.
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
    fn the_first_parameter_of_a_name_counts_and_garbage_is_missing() {
        for (raw, value) in [
            ("k=v", Some("v")),
            ("a=1&k=v&k=w", Some("v")),
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
    fn all_parameters_are_told_in_order_and_garbage_is_told_apart() {
        let all: Vec<_> = pairs("&a=1&a=%32&b+c&=x&%ff=y&d=%zz&").collect();
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
    fn the_first_cookie_of_a_name_counts_whatever_line_it_is_on() {
        for (values, value) in [
            (&[b"k=v".as_slice()][..], Some("v")),
            (&[b"a=1; k=v; k=w"], Some("v")),
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
