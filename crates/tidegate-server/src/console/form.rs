//! What a visitor sends with a form.

use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, StatusCode, Uri};

use super::trouble::Trouble;
use super::visitor::Visitor;
use crate::http::{Door, read_bytes};

/// The fields of a form or of an address, in order.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Those of a query or a body. What is not UTF-8 becomes replacement characters.
    pub(crate) fn read(encoded: &[u8]) -> Self {
        Self(form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// The field of this name, the first if there are several; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    /// All fields of this name.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| &**value)
    }
}

/// The query of an address.
impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Fields {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::read(parts.uri.query().unwrap_or_default().as_bytes()))
    }
}

/// A form that a page of ours has sent, by somebody who may look. It changes nothing; see
/// [`Change`](super::change::Change) for one that may.
#[derive(Clone, Debug)]
pub(crate) struct Submitted {
    /// Who has sent it.
    pub(crate) visitor: Visitor,
    /// What stands in it.
    pub(crate) fields: Fields,
}

impl FromRequest<Door> for Submitted {
    type Rejection = Response;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Response> {
        use axum::extract::FromRequestParts;
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, door).await?;
        is_ours(&visitor, &parts.uri, &parts.headers).map_err(IntoResponse::into_response)?;
        let fields = fields(Request::from_parts(parts, body)).await;
        Ok(Self { visitor, fields: fields.map_err(IntoResponse::into_response)? })
    }
}

/// The fields of a body, of at most 64 KiB.
pub(super) async fn fields(request: Request) -> Result<Fields, Trouble> {
    let content_type = request.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
    let is_form = |value: &[u8]| value.starts_with(b"application/x-www-form-urlencoded");
    if !content_type.is_some_and(is_form) {
        let detail = "send a form: application/x-www-form-urlencoded";
        return Err(Trouble::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    Ok(Fields::read(&read_bytes(request).await?))
}

/// Refuses what another site has made a browser send. A browser says where a form comes from, in one way or another;
/// who is no browser shows the token instead.
pub(super) fn is_ours(visitor: &Visitor, uri: &Uri, headers: &HeaderMap) -> Result<(), Trouble> {
    if visitor.has_token() || comes_from_here(uri, headers) {
        return Ok(());
    }
    let detail = "this did not come from a page of this server; go back and use the form there, or show the token as \
                  Authorization: Bearer";
    Err(Trouble::new(StatusCode::FORBIDDEN, detail))
}

fn comes_from_here(uri: &Uri, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    // Over HTTP/2 the host is a part of the address.
    let host = uri.authority().map(|host| host.as_str().as_bytes());
    let host = host.or_else(|| Some(headers.get(HOST)?.as_bytes()));
    let Some((origin, host)) = headers.get(ORIGIN).zip(host) else { return false };
    let origin = origin.as_bytes();
    let origin = origin.strip_prefix(b"https://").or(origin.strip_prefix(b"http://"));
    origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_says_where_a_form_comes_from() {
        for (pairs, expected) in [
            (&[("sec-fetch-site", "same-origin")][..], true),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("origin", "http://a:8080"), ("host", "a:8080")], true),
            (&[("origin", "https://A"), ("host", "a")], true),
            (&[("origin", "http://a:80801"), ("host", "a:8080")], false),
            (&[("origin", "null"), ("host", "a")], false),
            (&[("origin", "http://evil"), ("host", "a")], false),
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://a"), ("host", "a")], false),
            (&[("host", "a")], false),
            (&[("origin", "a"), ("host", "a")], false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            assert_eq!(comes_from_here(&Uri::default(), &headers), expected, "{pairs:?}");
        }
        let headers = HeaderMap::from_iter([(ORIGIN, "https://a".parse().unwrap())]);
        for (uri, expected) in [("https://a/login", true), ("https://b/login", false)] {
            assert_eq!(comes_from_here(&uri.parse().unwrap(), &headers), expected, "{uri}");
        }
    }

    #[test]
    fn fields_are_read_as_they_come() {
        let fields = Fields::read(b"rule=a+b&key=%3Cimg%3E&key=2&bad=%ff");
        assert_eq!(fields.text("rule"), "a b");
        assert_eq!(fields.all("key").collect::<Vec<_>>(), ["<img>", "2"]);
        assert_eq!([fields.text("bad"), fields.text("none")], ["\u{fffd}", ""]);
    }
}
