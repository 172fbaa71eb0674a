//! Form fields, and the check against cross-site requests.

use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode, Uri};

use super::error_page::ErrorPage;
use super::state::ConsoleContext;
use super::user::ConsoleUser;
use crate::transport::cross_site::is_same_origin;
use crate::transport::http::read_body::{ExpectedContent, read_bytes};

/// The fields of a form or a query string, in order.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Parses a query string or a body. Invalid UTF-8 becomes replacement characters.
    pub(crate) fn read(encoded: &[u8]) -> Self {
        Self(form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// The first field with this name; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| &**value)
    }
}

/// The query string of a request.
impl<S: Send + Sync> FromRequestParts<S> for FormFields {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::read(parts.uri.query().unwrap_or_default().as_bytes()))
    }
}

/// A form from a page of the console, sent by a user with read access. It changes nothing; see
/// [`AdminForm`](super::admin_form::AdminForm) for one that may.
#[derive(Clone, Debug)]
pub(crate) struct SubmittedForm {
    pub(crate) user: ConsoleUser,
    pub(crate) fields: FormFields,
}

impl<S: Send + Sync> FromRequest<S> for SubmittedForm
where
    ConsoleContext: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let user = ConsoleUser::from_request_parts(&mut parts, state).await?;
        check_same_origin(&user, &parts.uri, &parts.headers)
            .map_err(IntoResponse::into_response)?;
        let fields = fields(Request::from_parts(parts, body)).await;
        Ok(Self { user, fields: fields.map_err(IntoResponse::into_response)? })
    }
}

/// The fields of a body, of at most 64 KiB.
pub(super) async fn fields(request: Request) -> Result<FormFields, ErrorPage> {
    let content_type = request.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
    let is_form = |value: &[u8]| value.starts_with(b"application/x-www-form-urlencoded");
    if !content_type.is_some_and(is_form) {
        let detail = "send a form: application/x-www-form-urlencoded";
        return Err(ErrorPage::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    Ok(FormFields::read(&read_bytes(request, ExpectedContent::Any).await?))
}

/// Refuses cross-site requests (CSRF). Browsers send the origin of a form; other clients send a
/// token in a header instead.
pub(super) fn check_same_origin(
    user: &ConsoleUser,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), ErrorPage> {
    if user.has_token() || is_same_origin(uri, headers) {
        return Ok(());
    }
    let detail =
        "cross-site request refused; use the form of this server, or send Authorization: Bearer";
    Err(ErrorPage::new(StatusCode::FORBIDDEN, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_encoded_and_invalid_fields_are_parsed() {
        let fields = FormFields::read(b"rule=a+b&key=%3Cimg%3E&key=2&bad=%ff");
        assert_eq!(fields.text("rule"), "a b");
        assert_eq!(fields.all("key").collect::<Vec<_>>(), ["<img>", "2"]);
        assert_eq!([fields.text("bad"), fields.text("none")], ["\u{fffd}", ""]);
    }
}
