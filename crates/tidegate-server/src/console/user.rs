//! The user of a page and their access level.

use axum::extract::{FromRef, FromRequestParts};
use axum::response::{IntoResponse, Redirect, Response};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use super::error_page::ErrorPage;
use super::state::ConsoleContext;
use crate::transport::auth::{AccessLevel, token_from_headers};

/// A user with read access. As an extractor it redirects other users to the sign-in page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConsoleUser {
    pub(crate) access: AccessLevel,
    credential: Credential,
    tokens: ConfiguredTokens,
}

/// How the user has authenticated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Credential {
    Nothing,
    Session,
    Token,
}

/// The configured tokens, so that pages do not request one that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConfiguredTokens {
    None,
    CheckOnly,
    WithAdmin,
}

impl ConsoleUser {
    /// The user of a request, with or without read access.
    pub(super) fn of(context: &ConsoleContext, headers: &HeaderMap) -> Self {
        let ConsoleContext { app, console } = context;
        let by_token = token_from_headers(headers).and_then(|token| app.tokens.access_with(token));
        let by_session = || {
            let id = console.cookie.session_id(headers)?;
            console.sessions.access(id, console.clock.elapsed())
        };
        let (access, credential) = match by_token {
            Some(access) => (Some(access), Credential::Token),
            None => match by_session() {
                Some(access) => (Some(access), Credential::Session),
                None => (None, Credential::Nothing),
            },
        };
        let tokens = match (app.tokens.any(), app.tokens.has_admin()) {
            (false, _) => ConfiguredTokens::None,
            (true, false) => ConfiguredTokens::CheckOnly,
            (true, true) => ConfiguredTokens::WithAdmin,
        };
        Self {
            access: access.unwrap_or(AccessLevel::Nothing).max(app.tokens.access()),
            credential,
            tokens,
        }
    }

    pub(super) fn can_read(&self) -> bool {
        self.access >= AccessLevel::Check
    }

    pub(super) fn has_session(&self) -> bool {
        self.credential == Credential::Session
    }

    /// Whether the request has a token in a header. Browsers do not send one on their own.
    pub(super) fn has_token(&self) -> bool {
        self.credential == Credential::Token
    }

    /// Whether signing in can give more access.
    pub(super) fn could_sign_in(&self) -> bool {
        match self.tokens {
            ConfiguredTokens::None => false,
            ConfiguredTokens::CheckOnly => self.access < AccessLevel::Check,
            ConfiguredTokens::WithAdmin => self.access < AccessLevel::Admin,
        }
    }

    /// Whether forms that change something need a field for the admin token.
    pub(crate) fn needs_token(&self) -> bool {
        self.access < AccessLevel::Admin
    }

    /// Whether the server has an admin token, without which nothing can be changed.
    pub(crate) fn can_change(&self) -> bool {
        self.tokens == ConfiguredTokens::WithAdmin
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ConsoleUser
where
    ConsoleContext: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let user = Self::of(&ConsoleContext::from_ref(state), &parts.headers);
        if user.can_read() {
            return Ok(user);
        }
        let is_event_stream = parts
            .headers
            .get(http::header::ACCEPT)
            .is_some_and(|accepted| accepted.as_bytes().starts_with(b"text/event-stream"));
        if parts.method == Method::GET
            && token_from_headers(&parts.headers).is_none()
            && !is_event_stream
        {
            let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            let next: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
            return Err(Redirect::to(&format!("/login?next={next}")).into_response());
        }
        let detail = "sign in at /login, or send Authorization: Bearer";
        Err(ErrorPage::new(StatusCode::UNAUTHORIZED, detail).into_response())
    }
}
