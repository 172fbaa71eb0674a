//! Recognizes requests that a browser sends for a page of another site. Imports nothing of the
//! crate.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderName, Uri};

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a browser sends the request for a page of this server. False for other clients.
pub(crate) fn is_same_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(&SEC_FETCH_SITE) {
        return site == "same-origin";
    }
    // Over HTTP/2 the host is part of the URI.
    let host = uri.authority().map(|host| host.as_str().as_bytes());
    let host = host.or_else(|| Some(headers.get(HOST)?.as_bytes()));
    let Some((origin, host)) = headers.get(ORIGIN).zip(host) else { return false };
    let origin = origin.as_bytes();
    let origin = origin.strip_prefix(b"https://").or(origin.strip_prefix(b"http://"));
    origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
}

/// Whether a browser sends the request for a page of another site. Other clients send neither
/// `Sec-Fetch-Site` nor `Origin`; a user who enters the address sends `Sec-Fetch-Site: none`.
pub(crate) fn is_cross_site(uri: &Uri, headers: &HeaderMap) -> bool {
    match headers.get(&SEC_FETCH_SITE) {
        Some(site) => site != "same-origin" && site != "none",
        None => headers.contains_key(ORIGIN) && !is_same_origin(uri, headers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_origin_is_recognized() {
        for (pairs, same_origin, cross_site) in [
            (&[("sec-fetch-site", "same-origin")][..], true, false),
            (&[("sec-fetch-site", "cross-site")], false, true),
            (&[("sec-fetch-site", "same-site")], false, true),
            (&[("sec-fetch-site", "none")], false, false),
            (&[("origin", "http://a:8080"), ("host", "a:8080")], true, false),
            (&[("origin", "https://A"), ("host", "a")], true, false),
            (&[("origin", "http://a:80801"), ("host", "a:8080")], false, true),
            (&[("origin", "null"), ("host", "a")], false, true),
            (&[("origin", "http://evil"), ("host", "a")], false, true),
            (
                &[("sec-fetch-site", "cross-site"), ("origin", "http://a"), ("host", "a")],
                false,
                true,
            ),
            (&[("host", "a")], false, false),
            (&[("origin", "a"), ("host", "a")], false, true),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            let uri = Uri::default();
            let found = (is_same_origin(&uri, &headers), is_cross_site(&uri, &headers));
            assert_eq!(found, (same_origin, cross_site), "{pairs:?}");
        }
        let headers = HeaderMap::from_iter([(ORIGIN, "https://a".parse().unwrap())]);
        for (uri, expected) in [("https://a/login", true), ("https://b/login", false)] {
            let parsed = uri.parse().unwrap();
            assert_eq!(is_same_origin(&parsed, &headers), expected, "{uri}");
            assert_eq!(is_cross_site(&parsed, &headers), !expected, "{uri}");
        }
    }
}
